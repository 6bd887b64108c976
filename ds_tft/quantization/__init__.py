"""INT8: fake quantisation for training, calibration, and the model that is stored as whole numbers."""

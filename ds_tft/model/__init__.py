"""The Temporal Fusion Transformer in plain torch; knows nothing of training, memory or quantisation."""

"""Predicts the memory of a training process without training."""

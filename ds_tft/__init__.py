"""Temporal Fusion Transformer on hundreds of features, trained with DeepSpeed in little memory."""

__version__ = "0.1.0"

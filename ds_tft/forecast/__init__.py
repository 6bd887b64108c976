"""Forecasts from a trained model: prediction, evaluation, baselines."""

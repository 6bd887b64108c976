"""Traces of one optimizer update: memory by phase and by block, and its course over time."""

"""Training through a DeepSpeed engine: the loop, its state, its checkpoints and the export."""

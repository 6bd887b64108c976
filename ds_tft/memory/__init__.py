"""What a run costs in memory."""

"""A run on the disk: draws, checkpoints, results."""

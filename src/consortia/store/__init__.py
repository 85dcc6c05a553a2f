"""What is kept of a run: draws, checkpoints, results."""

"""Algorithms: assembly only, one file for each published method."""

"""Exact laws of the methods on Gaussian targets, and what follows from them for other models."""

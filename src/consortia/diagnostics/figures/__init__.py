"""Figures of statistics: a canvas, forests, and ranks against the uniform law."""

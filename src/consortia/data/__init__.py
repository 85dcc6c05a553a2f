"""Rows at sites: reading, preparing, dealing them out."""

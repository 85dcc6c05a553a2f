"""The contract between algorithms and engines, and what both are written in."""

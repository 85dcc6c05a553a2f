"""Flower: the engine of messages over its grid, with its two apps."""

from consortia.engines.flower.engine import FlowerEngine

__all__ = ["FlowerEngine"]

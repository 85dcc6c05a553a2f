"""The engine between institutions: each site is a node of Flower and answers messages."""

from consortia.engines.flower.engine import FlowerEngine

__all__ = ["FlowerEngine"]

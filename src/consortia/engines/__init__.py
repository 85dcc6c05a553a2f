"""Engines: they move the data of an algorithm, and know no algorithm."""

from consortia.engines.local import LocalEngine

__all__ = ["LocalEngine"]

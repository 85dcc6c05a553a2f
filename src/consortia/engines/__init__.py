"""Engines: they move the data of an algorithm, and know no algorithm."""

from consortia.engines.contract import Engine, Run
from consortia.engines.flower import FlowerEngine
from consortia.engines.local import LocalEngine
from consortia.engines.mpi import MPIEngine

__all__ = ["Engine", "FlowerEngine", "LocalEngine", "MPIEngine", "Run"]

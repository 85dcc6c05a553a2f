"""Engines: they move the data of an algorithm, and know no algorithm."""

from consortia.engines.flower import FlowerEngine
from consortia.engines.flower.run import FlowerRun
from consortia.engines.local import LocalEngine
from consortia.engines.local_run import LocalRun
from consortia.engines.mpi import MPIEngine
from consortia.engines.mpi.asynchronous_run import AsynchronousRun
from consortia.engines.mpi.run import MPIRun

Engine = LocalEngine | MPIEngine | FlowerEngine
Run = LocalRun | MPIRun | AsynchronousRun | FlowerRun
"""One algorithm on one set of sites, ready to start; every engine's has the same methods."""

__all__ = ["Engine", "FlowerEngine", "LocalEngine", "MPIEngine", "Run"]

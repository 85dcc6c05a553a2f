"""Engines: they move the data of an algorithm, and know no algorithm."""

from consortia.engines.local import LocalEngine
from consortia.engines.local_run import LocalRun
from consortia.engines.mpi import MPIEngine
from consortia.engines.mpi.asynchronous_run import AsynchronousRun
from consortia.engines.mpi.run import MPIRun

Engine = LocalEngine | MPIEngine
Run = LocalRun | MPIRun | AsynchronousRun
"""One algorithm on one set of sites, ready to start; every engine's has the same methods."""

__all__ = ["Engine", "LocalEngine", "MPIEngine", "Run"]

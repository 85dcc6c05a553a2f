"""The engine of many processes: each MPI rank holds some sites and hears only whom it must."""

from consortia.engines.mpi.engine import MPIEngine

__all__ = ["MPIEngine"]

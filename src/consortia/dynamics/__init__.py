"""Dynamics: one update of a position from a force and its noise."""

from consortia.dynamics.leapfrog import leapfrog
from consortia.dynamics.mass import MassMatrix

__all__ = ["MassMatrix", "leapfrog"]

"""What makes two results the same run."""

from __future__ import annotations

from typing import Any

import numpy as np

TOLERANCE = 1e-5
"""Posterior standard deviations: sums over sites are taken in another order, in 64 bits."""

SECRET = 6.0
"""Standard deviations, noise included, by which means differ where each run's noise is a secret of
its own: four of their difference."""


def assert_same_run(other: Any, alone: Any) -> None:
    """Draws, series and costs of a run are those of the same run in one process."""
    assert set(other.children) == set(alone.children)
    for name, variable in alone["posterior"].data_vars.items():
        spread = variable.values.std()
        assert spread > 1e-3
        there = other["posterior"][name].values
        if alone.attrs["algorithm"] == "private_posterior":
            gap = np.abs(variable.values.mean(axis=(0, 1)) - there.mean(axis=(0, 1))).max()
            assert gap <= SECRET * spread
            continue
        gap = np.abs(variable.values - there).max()
        assert gap <= TOLERANCE * spread
    for group in ("agents", "sample_stats"):
        if group in alone.children:
            for name, variable in alone[group].data_vars.items():
                np.testing.assert_allclose(other[group][name], variable, rtol=1e-6, atol=1e-8)
    for fact in ("bytes_up", "bytes_down", "communication_rounds", "gradients"):
        assert other.attrs[fact] == alone.attrs[fact]


def assert_same_bits(other: Any, alone: Any) -> None:
    """Draws that are computed in 64 bits and rounded to 32 are equal, bit for bit.

    In 64 bits they are not, by some 1e-15 sds, where a device has fewer chains or the
    compiler works less: a product of rows and of all positions has other terms in one instruction.
    """
    for name, variable in alone["posterior"].data_vars.items():
        assert variable.dtype == np.float64
        there = other["posterior"][name].values.astype(np.float32)
        np.testing.assert_array_equal(there, variable.values.astype(np.float32))

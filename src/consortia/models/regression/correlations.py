r"""Correlations of levels and slopes with the density of Lewandowski, Kurowicka and Joe.

.. math:: p(R) \propto \det(R)^{\eta - 1}, \qquad R = L L^T

L is made of partial correlations, row by row, each the hyperbolic tangent of an unconstrained
number; the partial correlation of column j (from 0) of K has the density
:math:`\propto (1 - \rho^2)^{a_j - 1}` with :math:`a_j = \eta + (K - 2 - j)/2`.

Source: Lewandowski, Kurowicka, Joe, "Generating random correlation matrices based on vines and
extended onion method" (2009), section 2.4.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from consortia.errors import InputError
from consortia.models._shared import Array


@dataclass(frozen=True)
class LKJ:
    """The density above."""

    shape: float  # η > 0; 1 is uniform over correlation matrices, more is nearer to none
    scaled: bool = False  # False, as of `consortia.models.regression.priors.Prior`

    def __str__(self) -> str:
        """Return it as it is written."""
        return f"lkj({self.shape:.4g})"

    def log_density(self, free: Array, size: int) -> Array:
        """Return the log-density of unconstrained numbers (size (size − 1)/2,), a scalar."""
        a = self._exponents(size)
        # tanh has the derivative 1 − ρ², and log(1 − ρ²) = 2 (log 2 − |x| − log(1 + exp(−2|x|)))
        size_of = jnp.abs(free)
        log_rest = 2 * (math.log(2) - size_of - jnp.log1p(jnp.exp(-2 * size_of)))
        constants = [
            (2 * one - 1) * math.log(2) + 2 * math.lgamma(one) - math.lgamma(2 * one) for one in a
        ]
        return jnp.sum(jnp.asarray(a, free.dtype) * log_rest) - sum(constants)

    def draw(self, rng: np.random.Generator, count: int, size: int) -> np.ndarray:
        """Return draws of the unconstrained numbers, (count, size (size − 1)/2)."""
        a = self._exponents(size)
        return np.arctanh(2 * rng.beta(a, a, (count, len(a))) - 1)

    def _exponents(self, size: int) -> np.ndarray:
        columns = np.concatenate([np.arange(row) for row in range(1, size)])
        return self.shape + (size - 2 - columns) / 2


def cholesky(free: Array, size: int) -> Array:
    """Return L, (size, size), with rows of length 1, from size (size − 1)/2 numbers."""
    partial = jnp.tanh(free)
    rows, place = [jnp.eye(1, size, dtype=free.dtype)[0]], 0
    for row in range(1, size):
        left, found = jnp.ones((), free.dtype), []
        for _ in range(row):
            found.append(partial[place] * jnp.sqrt(left))
            left = left * (1 - partial[place] ** 2)
            place += 1
        zeros = [jnp.zeros((), free.dtype)] * (size - row - 1)
        rows.append(jnp.stack([*found, jnp.sqrt(left), *zeros]))
    return jnp.stack(rows)


def read_lkj(key: str, text: Any) -> LKJ:
    """Return the density from words, ``"lkj(2)"``.

    Raises:
        InputError: the words are none.
    """
    match = re.fullmatch(r"\s*lkj\s*\(\s*([0-9.eE+-]+)\s*\)\s*", str(text))
    try:
        shape = float(match[1]) if match else 0.0
    except ValueError:
        shape = 0.0
    if not 0 < shape < math.inf:
        raise InputError(
            f"prior of {key!r} is {text!r}: correlations take 'lkj(SHAPE)', SHAPE > 0."
        )
    return LKJ(shape)

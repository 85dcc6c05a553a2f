r"""Correlations of levels and slopes with the density of Lewandowski, Kurowicka and Joe.

.. math:: p(R) \propto \det(R)^{\eta - 1}, \qquad R = L L^T

L is made of partial correlations, row by row; that of column j (from 0) of K has the density
:math:`\propto (1 - \rho^2)^{a_j - 1}` with :math:`a_j = \eta + (K - 2 - j)/2`. Each is
:math:`\rho = 2 \Phi(x) - 1` of an unconstrained number x, its normal score, which is N(0, 1) where
a is 1, and has Gaussian tails else. Φ is the distribution function of N(0, 1), φ its density.

Source: Lewandowski, Kurowicka, Joe, "Generating random correlation matrices based on vines and
extended onion method" (2009), section 2.4.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from consortia.core.arrays import Array, namespace, special
from consortia.errors import InputError


@dataclass(frozen=True)
class LKJ:
    """The density above."""

    shape: float  # η > 0; 1 is uniform over correlation matrices, more is nearer to none
    scaled: bool = False  # as in `consortia.models.regression.priors.Prior`: a user has written it

    def __str__(self) -> str:
        """Return the density as a user writes it."""
        return f"lkj({self.shape:.4g})"

    def log_density(self, free: Array, size: int) -> Array:
        """Return the log-density of unconstrained numbers (..., size (size − 1)/2), (...)."""
        exponents = self._exponents(size)  # a
        # (1 − ρ²)^(a − 1) dρ/dx over its integral 2^(2a − 1) Γ(a)²/Γ(2a), with dρ/dx = 2 φ(x)
        constants = [
            (2 * a - 2) * math.log(2) + 2 * math.lgamma(a) - math.lgamma(2 * a) for a in exponents
        ]
        xp = namespace(free)  # NumPy or JAX
        terms = xp.asarray(exponents - 1, free.dtype) * _log_rest(free) - free**2 / 2
        return xp.sum(terms, axis=-1) - sum(constants) - len(exponents) * math.log(2 * math.pi) / 2

    def draw(self, rng: np.random.Generator, count: int, size: int) -> np.ndarray:
        """Return draws of the unconstrained numbers, (count, size (size − 1)/2)."""
        from scipy import special  # heavy: only who draws from a prior pays for it

        a = self._exponents(size)  # (1 + ρ)/2 has the law Beta(a, a)
        return special.ndtri(rng.beta(a, a, (count, len(a))))

    def _exponents(self, size: int) -> np.ndarray:
        """Return a of each partial correlation, row by row, from its column j."""
        columns = np.concatenate([np.arange(row) for row in range(1, size)])
        return self.shape + (size - 2 - columns) / 2


def cholesky(free: Array, size: int) -> Array:
    """Return L, (..., size, size), with rows of length 1, from (..., size (size − 1)/2) numbers.

    An entry is ρ times the length that the entries left of it leave of 1.
    """
    xp = namespace(free)
    partial, log_rest = special(free).erf(free / math.sqrt(2)), _log_rest(free)
    zero = xp.zeros_like(free[..., 0])
    rows, index = [xp.stack([zero + 1, *[zero] * (size - 1)], axis=-1)], 0
    for row in range(1, size):
        log_left, entries = zero, []  # log of 1 less the squares of the entries so far
        for _ in range(row):
            entries.append(partial[..., index] * xp.exp(log_left / 2))
            log_left, index = log_left + log_rest[..., index], index + 1
        zeros = [zero] * (size - row - 1)
        rows.append(xp.stack([*entries, xp.exp(log_left / 2), *zeros], axis=-1))
    return xp.stack(rows, axis=-2)


def _log_rest(free: Array) -> Array:
    """Return log(1 − ρ²)."""
    log_ndtr = special(free).log_ndtr
    return log_ndtr(free) + log_ndtr(-free) + math.log(4)


def read_lkj(key: str, text: Any) -> LKJ:
    """Return the density from words, ``"lkj(2)"``.

    Raises:
        InputError: the words are not ``lkj(SHAPE)`` with a positive number.
    """
    match = re.fullmatch(r"\s*lkj\s*\(\s*([0-9.eE+-]+)\s*\)\s*", str(text))
    try:
        shape = float(match[1]) if match else 0.0
    except ValueError:
        shape = 0.0
    if not 0 < shape < math.inf:
        raise InputError(
            f"prior of {key!r} is {text!r}: correlations take 'lkj(SHAPE)', SHAPE > 0."
        ).at(key)
    return LKJ(shape)

r"""Numbers as integers mod :math:`2^{128}`, whose sums over sites are exact and cannot wrap.

The low 104 bits are the number at a resolution of :math:`2^{-37}`, so that a sum over as many sites
as there may be differs from the exact one by less than :math:`2^{-30}`. The upper 24 bits count, in
eight bits each, the sites whose number is NaN, plus or minus infinity. A number that is too large
for a sum over all sites (:math:`2^{66}` by their number) travels as an infinity of its sign: as a
potential it is one.

An integer is a row of two uint64, the lower half first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt64

from consortia.errors import wrong

FRACTION, VALUE_BITS, COUNT_BITS = 37, 104, 8
BYTES = 16
"""Length of an integer."""

MOST_SITES = 2**COUNT_BITS - 1

Integers = UInt64[np.ndarray, "n 2"]

_HALF = 64
_UPPER = VALUE_BITS - _HALF
_ONE = np.uint64(1)


def largest(sites: int) -> float:
    """Return the magnitude from which on a number travels as an infinity."""
    return 2.0 ** (VALUE_BITS - 1 - FRACTION) / sites


def encoded(values: Float[np.ndarray, " n"], sites: int) -> Integers:
    """Return numbers as integers, of each of so many sites.

    Raises:
        InputError: there are more sites than can be counted.
    """
    if sites > MOST_SITES:
        raise wrong("sites", f": secure sums of {sites} sites, more than {MOST_SITES}.")
    values = np.asarray(values, np.float64)
    finite = np.abs(values) < largest(sites)  # False of NaN
    scaled = np.rint(np.abs(np.where(finite, values, 0.0)) * 2.0**FRACTION)
    upper = np.floor(scaled / 2.0**_HALF)
    lower = scaled - upper * 2.0**_HALF
    made = np.stack([lower.astype(np.uint64), upper.astype(np.uint64)], axis=1)
    made = np.where((values < 0)[:, None], negated(made), made)
    counted = np.zeros(len(values), np.uint64)
    for counter, sort in enumerate((np.isnan(values), values > 0, values < 0)):
        counted += (sort & ~finite).astype(np.uint64) << np.uint64(_UPPER + COUNT_BITS * counter)
    made[:, 1] += counted
    return made


def decoded(total: Integers) -> Float[np.ndarray, " n"]:
    """Return the numbers that a sum of the integers of all sites stands for."""
    value = total.copy()
    value[:, 1] &= np.uint64(2**_UPPER - 1)
    below = value[:, 1] >> np.uint64(_UPPER - 1) == 1
    value[below, 1] -= np.uint64(2**_UPPER)  # as of 128 bits
    counts = (total[:, 1] - value[:, 1]) >> np.uint64(_UPPER)
    magnitude = np.where(below[:, None], negated(value), value)
    numbers = magnitude[:, 1] * 2.0 ** (_HALF - FRACTION) + magnitude[:, 0] * 2.0**-FRACTION
    numbers = np.where(below, -numbers, numbers)
    nan, plus, minus = (
        (counts >> np.uint64(COUNT_BITS * kind)) & np.uint64(MOST_SITES) != 0 for kind in range(3)
    )
    numbers = np.where(plus, np.inf, np.where(minus, -np.inf, numbers))
    return np.where(nan | (plus & minus), np.nan, numbers)


def added(left: Integers, other: Integers) -> Integers:
    """Return the sum mod 2^128."""
    lower = left[:, 0] + other[:, 0]
    return np.stack([lower, left[:, 1] + other[:, 1] + (lower < left[:, 0])], axis=1)


def negated(left: Integers) -> Integers:
    """Return 2^128 minus the integers."""
    lower = ~left[:, 0] + _ONE
    return np.stack([lower, ~left[:, 1] + (lower == 0)], axis=1)


def sum_of(vectors: Sequence[Integers]) -> Float[np.ndarray, " n"]:
    """Return the numbers that the integers of all sites add up to."""
    total = np.zeros_like(vectors[0])
    for vector in vectors:
        total = added(total, vector)
    return decoded(total)

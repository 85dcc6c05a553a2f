"""Moments of columns as integers that are added over sites, and what a site shows of them.

A sum over sites is exact: each number is an integer of `BITS` at a resolution of :math:`2^{-320}`,
so that no scale of a column has to be agreed on before. Of its own moments a site shows no more
than a comparison of units needs, see `coarse`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from consortia.data.preparation import Moments
from consortia.errors import InputError

FRACTION, BITS = 320, 1024
"""Squares of numbers from 1e-32 to 1e100 are sums of that many bits, over as many sites and rows as
there may be."""

LARGEST = 1e100
"""Largest mean or standard deviation of a column."""

STEPS = np.array([1.0, 2.0, 5.0, 10.0])
"""First digits of what a site shows of a standard deviation: right up to a factor of 1.6."""

Summands = list[int]


def summands(plain: Sequence[Any] | None) -> Summands:
    """Return n, and Σx and Σx² of each column, from `Moments.plain`; zeros of no values.

    Raises:
        InputError: a column is beyond `LARGEST`.
    """
    if plain is None:
        return [0, 0, 0]
    moments = Moments(*plain)
    rows = Fraction(moments.rows)
    means = np.atleast_1d(moments.centre).tolist()
    squares = np.atleast_1d(np.where(moments.constant, 0.0, moments.squares)).tolist()
    if max(map(abs, means)) > LARGEST or max(squares) / moments.rows > LARGEST**2:
        raise InputError(
            f"a column has numbers beyond {LARGEST:g}: divide it, [harmonise.SITE.scale]."
        )
    pairs = [(Fraction(mean), Fraction(about)) for mean, about in zip(means, squares, strict=True)]
    sums = [rows * mean for mean, _ in pairs]
    of_squares = [rows * mean**2 + about for mean, about in pairs]
    return [round(number * 2**FRACTION) for number in (rows, *sums, *of_squares)]


def pooled(totals: Sequence[int], shown: Iterable[Sequence[Any]]) -> list[Any] | None:
    """Return `Moments.plain` of all sites' rows; None where there is no value.

    Args:
        totals: sums of all sites' `summands`, mod 2^`BITS`.
        shown: what each site shows of its moments, `coarse`.

    Raises:
        ValueError: the totals are moments of no rows.
    """
    half = 1 << (BITS - 1)
    rows, *numbers = [
        Fraction((total + half) % (1 << BITS) - half, 2**FRACTION) for total in totals
    ]
    parts = list(shown)
    if rows != sum(part[0] for part in parts):
        raise ValueError("the numbers of rows do not add up")
    if not rows:
        return None
    means = [number / rows for number in numbers[: len(numbers) // 2]]
    sums = numbers[len(means) :]
    squares = [number - rows * mean**2 for number, mean in zip(sums, means, strict=True)]
    for centre, total, around in zip(means, sums, squares, strict=True):
        far = abs(centre) > LARGEST or around > rows * Fraction(LARGEST) ** 2
        if far or around < -abs(total) / 2**50:  # below 0 by more than rounding
            raise ValueError("sums of a column are those of no numbers")
    squares = [max(about, Fraction(0)) for about in squares]
    levels = np.logical_and.reduce([np.atleast_1d(part[5]) for part in parts]).tolist()
    constant = [about == 0 for about in squares]
    mean, about = [float(number) for number in means], [float(number) for number in squares]
    value = [number if same else 0.0 for number, same in zip(mean, constant, strict=True)]
    columns = [mean, about, constant, value, levels]
    if not isinstance(parts[0][1], list):
        columns = [column[0] for column in columns]
    return [int(rows), *columns]


def coarse(plain: Sequence[Any]) -> list[Any]:
    """Return the part of its moments that a site shows, in the form of `Moments.plain`.

    Of a measurement that is the standard deviation, to 1, 2 or 5 times a power of ten, and the mean
    to half of that, or as that where it is smaller: to be compared with other sites, as it may be
    in another unit. Of two codes it is the lower one, of 0 and 1 also where one of them is missing,
    and of other levels, constants and matrices nothing.
    """
    moments = Moments(*plain)
    if np.shape(moments.mean):
        return _nothing(moments)
    codes = moments.constant and float(moments.value) in (0.0, 1.0)
    low = 0.0 if codes else moments.lower_of_two
    if low is not None:
        return [moments.rows, low + 0.5, moments.rows / 4, False, 0.0, True]
    if moments.levels or moments.constant:
        return hidden(plain)
    sd, centre = _digit(float(moments.sd)), float(moments.centre)
    mean = _digit(centre) if abs(centre) < sd else round(2 * centre / sd) / 2 * sd
    return [moments.rows, mean, moments.rows * sd**2, False, 0.0, False]


def hidden(plain: Sequence[Any]) -> list[Any]:
    """Return the number of values alone, in the form of `Moments.plain`.

    Terms that are no columns show no more: several of one column would tell it together.
    """
    moments = Moments(*plain)
    if np.shape(moments.mean):
        return _nothing(moments)
    return [moments.rows, 0.0, float(moments.rows), False, 0.0, True]


def _nothing(moments: Moments) -> list[Any]:
    """Return of a matrix which columns have levels, which are not standardised."""
    zeros, levels = np.zeros(np.shape(moments.mean)), np.asarray(moments.levels)
    no = np.zeros_like(levels, bool).tolist()
    squares = (zeros + moments.rows).tolist()
    return [moments.rows, zeros.tolist(), squares, no, zeros.tolist(), levels.tolist()]


def _digit(number: float) -> float:
    """Return the nearest of 1, 2 and 5 times a power of ten, by ratio; 0 of 0."""
    if not number:
        return 0.0
    power = np.floor(np.log10(abs(number)))
    nearest = STEPS[np.abs(np.log(STEPS * 10.0**power / abs(number))).argmin()]
    return float(np.sign(number) * float(f"{nearest:g}e{int(power)}"))


def of_names(moments: Mapping[str, Any], names: Iterable[str]) -> dict[str, Summands]:
    """Return the summands of a site by name, of all that some site may have."""
    return {name: summands(moments.get(name)) for name in {**dict.fromkeys(names), **moments}}

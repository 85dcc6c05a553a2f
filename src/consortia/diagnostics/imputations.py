r"""The spread within the posterior of each imputation, and the spread between them.

With W the mean posterior variance of a coordinate, B the variance of its posterior means over m
imputations, Monte Carlo error taken off, r = (1 + 1/m) B / W and ν = (m − 1)(1 + 1/r)²,

.. math:: \mathrm{FMI} = \frac{r + 2 / (\nu + 3)}{r + 1}

is the fraction of the information on it that is missing. The mean of the pooled draws has, beside
that of sampling, the error √(B/m), since m are few.

Source: Rubin, "Multiple Imputation for Nonresponse in Surveys" (1987), section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def of_each(array: Any, numbers: np.ndarray) -> Iterator[Any]:
    """Yield the draws (chain, draw, ...) of each imputation, by the number of each draw's."""
    for number in np.unique(numbers):
        (places,) = np.nonzero(numbers == number)
        yield array[:, places[0] : places[-1] + 1]


def missing_information(array: np.ndarray, numbers: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return the fraction of missing information of every coordinate, (*shape).

    Args:
        array: draws (chain, draw, *shape), those of an imputation one after the other.
        numbers: of the imputation of each draw, (draw,).
        errors: Monte Carlo standard errors of the mean given each imputation, (m, *shape).
    """
    parts = [np.asarray(part, np.float64) for part in of_each(array, numbers)]
    count = len(parts)
    means = np.stack([part.mean(axis=(0, 1)) for part in parts])
    within = np.mean([part.var(axis=(0, 1), ddof=1) for part in parts], axis=0)
    chance = np.nan_to_num(errors**2).mean(axis=0)
    between = np.maximum(means.var(axis=0, ddof=1) - chance, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (1 + 1 / count) * between / within
        freedom = (count - 1) * (1 + 1 / ratio) ** 2
        return (ratio + 2 / (freedom + 3)) / (ratio + 1)


def pooled_error(
    array: np.ndarray, numbers: np.ndarray, error_of_mean: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the error of the pooled mean, (*shape), and that given each imputation, (m, *shape).

    The first is that of m independent means, each with its own error: sd / √m of these.
    """
    parts = [np.asarray(part) for part in of_each(array, numbers)]
    errors = np.stack([error_of_mean(part) for part in parts])
    means = np.stack([part.mean(axis=(0, 1), dtype=np.float64) for part in parts])
    together = np.sqrt(np.maximum(means.var(axis=0, ddof=1), (errors**2).mean(axis=0)))
    return together / np.sqrt(len(parts)), errors

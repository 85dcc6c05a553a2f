"""Posteriors of several modes with the mass at each, by a grid where there is one parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import consortia

PyTree = Any
NEAR = np.random.default_rng(13).normal(0, 1, 8)
OTHERS = np.random.default_rng(14).normal(0, 1, 8)


class Several(NamedTuple):
    """A posterior, which of its modes each draw is at, and their masses."""

    model: Any
    sites: Any
    mode: Callable[[PyTree], np.ndarray]
    masses: np.ndarray

    def run(self, seed: int) -> Any:
        """Sample it by `few_rounds`."""
        return consortia.sample(
            self.model, self.sites, consortia.few_rounds(), chains=4, seed=seed, progress=False
        )

    def errors(self, tree: Any) -> np.ndarray:
        """How far the share of draws at each mode is off, beyond four standard errors."""
        at = np.asarray(self.mode({n: v.to_numpy() for n, v in tree["posterior"].items()}))
        found = np.bincount(at.ravel().astype(int), minlength=len(self.masses)) / at.size
        size = 1000  # fewer effective draws than any run has
        return np.abs(found - self.masses) - 4 * np.sqrt(self.masses * (1 - self.masses) / size)


def normal(x: Any, mean: Any, sd: Any) -> Any:
    """Log-density, up to a constant."""
    return -0.5 * ((x - mean) / sd) ** 2 - jnp.log(sd)


def of_one(
    log_prior: Any,
    log_likelihood: Any,
    parts: Sequence[np.ndarray],
    ends: Sequence[float],
    start: float = 0.0,
) -> Several:
    """A posterior of one parameter m whose modes lie between some ends."""
    grid = np.linspace(-100, 100, 200_001, dtype=np.float32)
    height = np.asarray(log_prior(grid), float)
    for part in parts:
        for value in part:
            height = height + np.asarray(log_likelihood(grid, np.float32(value)), float)
    weight = np.exp(height - height.max())
    masses = np.bincount(np.digitize(grid, ends), weight, len(ends) + 1) / weight.sum()
    model = consortia.Model(
        lambda p: log_prior(p["m"]),
        lambda p, batch: log_likelihood(p["m"], batch["y"]),
        {"m": np.float32(start)},
    )
    sites = consortia.Sites.from_list([{"y": np.asarray(part, np.float32)} for part in parts])
    return Several(model, sites, lambda p: np.digitize(p["m"], ends), masses)


def student(m: Any, y: Any) -> Any:
    """Errors t(3) of a known scale."""
    return -2 * jnp.log1p((y - m) ** 2 / 3)


def far() -> Several:
    """Two sites that contradict one another, half of the mass at each."""
    return of_one(lambda m: normal(m, 12.5, 20.0), student, [NEAR, 25 - NEAR], [12.5])


def unmirrored() -> Several:
    """The same with other errors."""
    return of_one(lambda m: normal(m, 12.5, 20.0), student, [NEAR, 25 + OTHERS], [12.5])


def direction() -> Several:
    """A direction with a normal prior: modes 2 pi apart."""
    y = np.split(np.random.default_rng(5).vonmises(2.5, 2.0, 30), [12, 22])
    ends = [2.5 - np.pi, 2.5 + np.pi]
    return of_one(lambda m: normal(m, 0.0, 3.0), lambda m, y: 2 * jnp.cos(y - m), y, ends)


def square() -> Several:
    """A mean that is a square: the prior weighs the two signs."""
    y = np.split(4 + np.random.default_rng(11).normal(size=20), [10, 16])

    def log_likelihood(m: Any, y: Any) -> Any:
        return -0.5 * (y - m**2) ** 2

    return of_one(lambda m: normal(m, 0.4, 1.0), log_likelihood, y, [0.0], 0.5)


def shifted(by: float, sd: float) -> Several:
    """Rows of a mixture of two that lie apart: two places of the pair."""
    y = np.split(np.random.default_rng(7).normal(0, 1, 16), 2)

    def log_likelihood(m: Any, y: Any) -> Any:
        return jnp.logaddexp(-0.5 * (y - m) ** 2, -0.5 * (y - m - by) ** 2)

    return of_one(lambda m: normal(m, 0.0, sd), log_likelihood, y, [-by / 2])


def label() -> Several:
    """Two components whose means are m and −m, told apart by the prior alone."""
    rng = np.random.default_rng(5)
    y = np.concatenate([rng.normal(2, 1, 20), rng.normal(-2, 1, 15)])[rng.permutation(35)]

    def log_likelihood(m: Any, y: Any) -> Any:
        return jnp.logaddexp(-0.5 * (y - m) ** 2, -0.5 * (y + m) ** 2)

    return of_one(lambda m: normal(m, 0.5, 2.0), log_likelihood, np.split(y, [15, 25]), [0.0])


CASES: dict[str, Callable[[], Several]] = {
    "sites that contradict one another": far,
    "the same, not mirrored": unmirrored,
    "a direction": direction,
    "a square": square,
    "5 sds apart": lambda: shifted(2.5, 5.0),
    "100 sds apart": lambda: shifted(30.0, 30.0),
    "a sign": label,
}

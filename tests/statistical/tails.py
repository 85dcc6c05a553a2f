"""Posteriors with long tails, whose margins are known: quantiles, spread and density by a grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import consortia

LEVELS = np.array([0.005, 0.025, 0.5, 0.975, 0.995])
SHARES = (0.5, 0.3, 0.1)
"""Of the log-density at the sites; the rest is the prior."""

Height = Callable[[Any], Any]


class Margin(NamedTuple):
    """A projection of the draws and its law.

    Attributes:
        direction: (d,).
        quantiles: at `LEVELS`.
        density: there.
        sd: its standard deviation.
        peaked: fourth central moment by sd⁴, less 1.
    """

    direction: np.ndarray
    quantiles: np.ndarray
    density: np.ndarray
    sd: float
    peaked: float


class Tail(NamedTuple):
    """A model with its data at unlike sites, and the margins that are known."""

    model: consortia.Model
    sites: consortia.Sites
    margins: tuple[Margin, ...]


def margin(direction: np.ndarray, log_density: Height, low: float, high: float) -> Margin:
    """Return the law of a projection with this log-density."""
    grid = np.linspace(low, high, 2_000_001)
    mass = np.exp(np.asarray(log_density(grid), float))
    mass /= mass.sum()
    below = np.cumsum(mass) - mass / 2
    quantiles = np.interp(LEVELS, below, grid)
    away = grid - mass @ grid
    variance = mass @ away**2
    density = np.interp(quantiles, grid, mass / (grid[1] - grid[0]))
    peaked = mass @ away**4 / variance**2 - 1
    return Margin(direction, quantiles, density, float(np.sqrt(variance)), float(peaked))


def at_sites(height: Height, start: np.ndarray, margins: tuple[Margin, ...]) -> Tail:
    """Return a posterior whose log-density is dealt out to three sites and the prior."""
    model = consortia.Model(
        lambda p: (1 - sum(SHARES)) * height(p["x"]),
        lambda p, rows: rows["w"] * height(p["x"]),
        {"x": jnp.asarray(start, jnp.float32)},
    )
    shards = [{"w": np.array([share], np.float32)} for share in SHARES]
    return Tail(model, consortia.Sites.from_list(shards), margins)


def first_of(
    height: Callable[[Any, Any], Any], d: int, low: float, high: float, start: float = 0.0
) -> Tail:
    """Return a posterior whose first parameter has this law, those after it correlated with it.

    Args:
        height: log-density of the first, by a module of arrays.
        d: number of parameters.
        low: where its grid begins.
        high: where it ends.
        start: all parameters.
    """
    rng = np.random.default_rng(d)
    mix = np.eye(d) + np.tril(rng.normal(0, 0.45, (d, d)), -1)
    back = jnp.asarray(np.linalg.inv(mix), jnp.float32)

    def total(x: Any) -> Any:
        u = jnp.sum(back.astype(x.dtype) * x[None], axis=1)
        return height(u[0], jnp) - jnp.sum(u[1:] ** 2) / 2

    law = margin(np.eye(d)[0], lambda grid: height(grid, np), low, high)
    return at_sites(total, np.full(d, start), (law,))


def log_gamma(shape: float) -> Callable[[Any, Any], Any]:
    """Return the log-density of the logarithm of a Gamma variable."""
    return lambda u, of: shape * u - of.exp(of.minimum(u, 80.0))


def half_normal(scale: float) -> Callable[[Any, Any], Any]:
    """Return the log-density of the logarithm of a half-normal variable."""
    return lambda u, of: u - of.exp(of.minimum(2 * u, 80.0)) / (2 * scale**2)


def two_sided(scale: float) -> Callable[[Any, Any], Any]:
    """Return the log-density of a two-sided exponential, round at its peak."""
    return lambda u, of: -of.sqrt(u**2 + 0.01) / scale


def student(freedom: float) -> Callable[[Any, Any], Any]:
    """Return the log-density of a t."""
    return lambda u, of: -(freedom + 1) / 2 * of.log1p(u**2 / freedom)


def sinh_arcsinh(skew: float) -> Callable[[Any, Any], Any]:
    """Return the log-density of a skewed variable with heavy tails."""

    def height(u: Any, of: Any) -> Any:
        score = of.sinh(0.6 * of.arcsinh(u) - skew)
        return -(score**2) / 2 + of.log1p(score**2) / 2 - of.log1p(u**2) / 2

    return height


def logistic_normal(rows: int) -> Callable[[Any, Any], Any]:
    """Return the log-density of a log-odds of which rows have said yes, and none has said no."""
    return lambda u, of: -rows * of.logaddexp(0.0, -u) - u**2 / 50


def rotated(first: float, second: float, d: int) -> Tail:
    """Return two log-gammas, of opposite tails, under a dense rotation."""
    turn = np.linalg.qr(np.random.default_rng(d + 1).normal(size=(d, d)))[0]
    back = jnp.asarray(turn.T, jnp.float32)
    one, other = log_gamma(first), log_gamma(second)

    def total(x: Any) -> Any:
        u = jnp.sum(back.astype(x.dtype) * x[None], axis=1)
        return one(u[0], jnp) + other(-u[1], jnp) - jnp.sum(u[2:] ** 2) / 2

    margins = (
        margin(turn[:, 0], lambda u: one(u, np), -40 / first, 8),
        margin(turn[:, 1], lambda u: other(-u, np), -8, 40 / second),
    )
    return at_sites(total, np.zeros(d), margins)


def bent() -> Tail:
    """Return a log-gamma whose tail bends a neighbour and widens another on the way."""
    one = log_gamma(0.5)

    def total(x: Any) -> Any:
        rest = jnp.sum((x[3:] - 0.5 * x[0]) ** 2) + (x[1] - 0.08 * x[0] ** 2) ** 2
        wide = x[2] * jnp.exp(-0.15 * x[0])
        return one(x[0], jnp) - 0.15 * x[0] - (rest + wide**2) / 2

    return at_sites(total, np.zeros(5), (margin(np.eye(5)[0], lambda u: one(u, np), -90, 8),))


SHAPES = (0.3, 5), (0.5, 5), (0.7, 5), (1.0, 5), (2.0, 5), (5.0, 5), (0.5, 10), (1.0, 2)
"""Of the log-gammas, with numbers of parameters."""

CASES: dict[str, Callable[[], Tail]] = {
    **{
        f"log-gamma {shape}, d = {d}": lambda shape=shape, d=d: first_of(
            log_gamma(shape), d, -40 / shape, 8
        )
        for shape, d in SHAPES
    },
    "rotated .5 and 1, d = 5": lambda: rotated(0.5, 1.0, 5),
    "rotated .7 and 2, d = 8": lambda: rotated(0.7, 2.0, 8),
    "half-normal 1, d = 4": lambda: first_of(half_normal(1.0), 4, -40, 4),
    "half-normal .3, d = 8": lambda: first_of(half_normal(0.3), 8, -40, 4),
    "two-sided 1, d = 3": lambda: first_of(two_sided(1.0), 3, -40, 40, 0.3),
    "two-sided .3, d = 6": lambda: first_of(two_sided(0.3), 6, -12, 12, 0.3),
    "t of 5, d = 4": lambda: first_of(student(5.0), 4, -400, 400, 0.3),
    "t of 4, d = 8": lambda: first_of(student(4.0), 8, -400, 400, 0.3),
    "sinh-arcsinh 1, d = 3": lambda: first_of(sinh_arcsinh(1.0), 3, -200, 400),
    "sinh-arcsinh .5, d = 6": lambda: first_of(sinh_arcsinh(0.5), 6, -200, 400),
    "logistic-normal 3, d = 4": lambda: first_of(logistic_normal(3), 4, -20, 60),
    "bent": bent,
}
"""Posteriors by name."""

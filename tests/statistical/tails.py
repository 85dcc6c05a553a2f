"""Posteriors with long tails, whose margins are known: quantiles, spread and density by a grid."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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


def log_odds(first: float, second: float) -> Callable[[Any, Any], Any]:
    """Return the log-density of the log-odds of a Beta variable."""
    return lambda u, of: first * u - (first + second) * of.logaddexp(0.0, u)


def one_sided(lean: float) -> Callable[[Any, Any], Any]:
    """Return the log-density of an exponential on either side, of unlike scales."""
    return lambda u, of: -of.sqrt(u**2 + 0.01) + lean * u


def contaminated(share: float, scale: float) -> Callable[[Any, Any], Any]:
    """Return the log-density of a normal of which a share is so much wider."""
    core, wide = float(np.log(1 - share)), float(np.log(share / scale))
    return lambda u, of: of.logaddexp(core - u**2 / 2, wide - (u / scale) ** 2 / 2)


def two_modes(distance: float, share: float) -> Callable[[Any, Any], Any]:
    """Return the log-density of two normals, the second one lower."""
    low = float(np.log(share))
    return lambda u, of: of.logaddexp(-(u**2) / 2, low - (u - distance) ** 2 / 2)


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


def bent(shape: float = 0.5, bend: float = 0.08, widening: float = 0.15) -> Tail:
    """Return a log-gamma whose tail bends a neighbour and widens another on the way."""
    one = log_gamma(shape)

    def total(x: Any) -> Any:
        rest = jnp.sum((x[3:] - 0.5 * x[0]) ** 2) + (x[1] - bend * x[0] ** 2) ** 2
        wide = x[2] * jnp.exp(-widening * x[0])
        return one(x[0], jnp) - widening * x[0] - (rest + wide**2) / 2

    law = margin(np.eye(5)[0], lambda u: one(u, np), -45 / shape, 8)
    return at_sites(total, np.zeros(5), (law,))


SHAPES = (
    *((0.3, 5), (0.5, 5), (0.7, 5), (1.0, 5), (2.0, 5), (5.0, 5), (0.5, 10), (1.0, 2)),
    *((0.4, 8), (0.7, 2), (1.5, 3), (3.0, 10)),
)
"""Of the log-gammas, with numbers of parameters."""

ROTATED = (0.5, 1.0, 5), (0.7, 2.0, 8), (0.4, 0.7, 6), (1.0, 1.0, 10), (0.5, 5.0, 4)
"""Shapes of two log-gammas, and numbers of parameters."""

BENT = (0.5, 0.08, 0.15), (0.7, 0.04, 0.1), (1.0, 0.15, 0.0), (0.5, 0.0, 0.2), (1.0, 0.1, -0.1)
"""Shapes, bends and widenings."""

FIRST: dict[str, tuple[Callable[[Any, Any], Any], int, float, float, float]] = {
    "half-normal 1, d = 4": (half_normal(1.0), 4, -40, 4, 0.0),
    "half-normal .3, d = 8": (half_normal(0.3), 8, -40, 4, 0.0),
    "half-normal .1, d = 3": (half_normal(0.1), 3, -40, 4, 0.0),
    "half-normal 3, d = 6": (half_normal(3.0), 6, -40, 6, 0.0),
    "two-sided 1, d = 3": (two_sided(1.0), 3, -40, 40, 0.3),
    "two-sided .3, d = 6": (two_sided(0.3), 6, -12, 12, 0.3),
    "two-sided .6, d = 10": (two_sided(0.6), 10, -24, 24, 0.3),
    "t of 5, d = 4": (student(5.0), 4, -400, 400, 0.3),
    "t of 4, d = 8": (student(4.0), 8, -400, 400, 0.3),
    "t of 6, d = 3": (student(6.0), 3, -400, 400, 0.3),
    "t of 10, d = 5": (student(10.0), 5, -200, 200, 0.3),
    "sinh-arcsinh 1, d = 3": (sinh_arcsinh(1.0), 3, -200, 400, 0.0),
    "sinh-arcsinh .5, d = 6": (sinh_arcsinh(0.5), 6, -200, 400, 0.0),
    "sinh-arcsinh -.7, d = 4": (sinh_arcsinh(-0.7), 4, -400, 200, 0.0),
    "sinh-arcsinh 1.3, d = 2": (sinh_arcsinh(1.3), 2, -200, 600, 0.0),
    "logistic-normal 3, d = 4": (logistic_normal(3), 4, -20, 60, 0.0),
    "logistic-normal 1, d = 3": (logistic_normal(1), 3, -30, 60, 0.0),
    "logistic-normal 10, d = 8": (logistic_normal(10), 8, -10, 60, 0.0),
    "log-odds .3 and 2, d = 4": (log_odds(0.3, 2.0), 4, -120, 20, 0.0),
    "log-odds .5 and .5, d = 3": (log_odds(0.5, 0.5), 3, -80, 80, 0.0),
    "log-odds 1 and 1, d = 7": (log_odds(1.0, 1.0), 7, -40, 40, 0.0),
    "one-sided .5, d = 4": (one_sided(0.5), 4, -30, 80, 0.0),
    "one-sided -.7, d = 7": (one_sided(-0.7), 7, -130, 30, 0.0),
    "contaminated .1 by 5, d = 5": (contaminated(0.1, 5.0), 5, -60, 60, 0.3),
    "contaminated .05 by 4, d = 8": (contaminated(0.05, 4.0), 8, -50, 50, 0.3),
    "contaminated .3 by 8, d = 2": (contaminated(0.3, 8.0), 2, -90, 90, 0.3),
    "fourth power, d = 4": (lambda u, of: -(u**4) / 4, 4, -8, 8, 0.3),
    "two modes 4 apart, d = 4": (two_modes(4.0, 0.3), 4, -10, 16, 0.0),
    "log-gamma .5 mirrored, d = 6": (lambda u, of: log_gamma(0.5)(-u, of), 6, -8, 80, 0.0),
}
"""Laws of the first parameter: log-density, d, the ends of a grid, and the start."""


CASES: dict[str, Callable[[], Tail]] = {
    **{
        f"log-gamma {shape}, d = {d}": partial(first_of, log_gamma(shape), d, -40 / shape, 8)
        for shape, d in SHAPES
    },
    **{
        f"rotated {first} and {second}, d = {d}": partial(rotated, first, second, d)
        for first, second, d in ROTATED
    },
    **{name: partial(first_of, *law) for name, law in FIRST.items()},
    **{
        f"bent {bend}, widening {widening}, shape {shape}": partial(bent, shape, bend, widening)
        for shape, bend, widening in BENT
    },
}
"""Posteriors by name."""

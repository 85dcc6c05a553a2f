"""Posteriors as people have them, each split over unlike sites, on which few_rounds is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln, gammaln

import consortia


class Case(NamedTuple):
    """A model, its data at several sites, and what it is held to.

    Attributes:
        model: with a start of its own.
        sites: unlike ones.
        messages: the most to 1,000 effective draws.
        refused: it may be refused in place of an answer.
        widths: prior sds of intercept, coefficients and log σ of a linear regression, whose moments
            are then known; else ().
    """

    model: consortia.Model
    sites: consortia.Sites
    messages: int = 7
    refused: bool = False
    widths: tuple[Any, ...] = ()

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd of a linear regression's a, b and log σ: closed form given σ, then a grid."""
        intercept, slopes, scale = self.widths
        rows = self.sites.shards
        x = np.concatenate([np.asarray(part["x"], np.float64) for part in rows])
        y = np.concatenate([np.asarray(part["y"], np.float64) for part in rows])
        x = np.column_stack([np.ones(len(y)), x])
        prior = np.diag(1 / np.append(intercept, np.broadcast_to(slopes, x.shape[1] - 1)) ** 2)
        # In units in which all parameters are of one size.
        unit = 1 / np.sqrt(np.diag(x.T @ x))
        prior, x = unit[:, None] * prior * unit, x * unit
        grid = np.linspace(-5, 5, 4001)
        heights, means, squares = [], [], []
        for s in grid:
            precision = x.T @ x * np.exp(-2 * s) + prior
            covariance = np.linalg.inv(precision)
            mean = covariance @ (x.T @ y) * np.exp(-2 * s)
            residual = y - x @ mean
            fit = residual @ residual * np.exp(-2 * s) + mean @ prior @ mean
            volume = np.linalg.slogdet(precision)[1]
            heights.append(-len(y) * s - (fit + volume + (s / scale) ** 2) / 2)
            means.append(np.append(mean * unit, s))
            squares.append(np.append(np.diag(covariance) * unit**2, 0) + means[-1] ** 2)
        weights = np.exp(np.array(heights) - max(heights))
        weights /= weights.sum()
        mean = weights @ np.array(means)
        return mean, np.sqrt(weights @ np.array(squares) - mean**2)


def normal(value: Any, scale: Any = 1.0) -> Any:
    return -0.5 * (value / scale) ** 2 - jnp.log(scale)


def split(data: dict[str, np.ndarray], sites: int, rng: np.random.Generator) -> consortia.Sites:
    """Deal rows out by their response, with noise, in unlike shares."""
    key = data["y"]
    count = len(key)
    cuts = (np.cumsum(rng.dirichlet(np.full(sites, 2.0)))[:-1] * count).astype(int)
    order = np.argsort(key + rng.normal(size=count) * key.std())
    parts = [part for part in np.split(order, cuts) if len(part)]
    return consortia.Sites.from_list(
        [{name: np.asarray(v[part], np.float32) for name, v in data.items()} for part in parts]
    )


def start(features: int, *, scale: bool = True) -> dict[str, Any]:
    zero = jnp.zeros(())
    return {"a": zero, "b": jnp.zeros(features)} | ({"s": zero} if scale else {})


def predictor(p: Any, rows: Any) -> Any:
    return p["a"] + rows["x"] @ p["b"]


def regression(
    density: Callable[[Any, Any], Any],
    features: int,
    *,
    widths: Any = 10.0,
    intercept: float = 10.0,
    scale: float | None = 2.0,
) -> consortia.Model:
    """A regression with normal priors; ``scale`` is the prior sd of log σ, None without one."""

    def log_prior(p: Any) -> Any:
        value = jnp.sum(normal(p["b"], jnp.asarray(widths))) + normal(p["a"], intercept)
        return value if scale is None else value + normal(p["s"], scale)

    return consortia.Model(log_prior, density, start(features, scale=scale is not None))


def gaussian(p: Any, rows: Any) -> Any:
    return normal(rows["y"] - predictor(p, rows), jnp.exp(p["s"]))


def student(p: Any, rows: Any) -> Any:
    residual = (rows["y"] - predictor(p, rows)) / jnp.exp(p["s"])
    return -p["s"] - 2.5 * jnp.log1p(residual**2 / 4)


def poisson(p: Any, rows: Any) -> Any:
    return rows["y"] * predictor(p, rows) - jnp.exp(predictor(p, rows))


def negative_binomial(p: Any, rows: Any) -> Any:
    mean, size, y = jnp.exp(predictor(p, rows)), jnp.exp(p["s"]), rows["y"]
    # Differences of logarithms of Γ would be noise where the size is large.
    binomial = gammaln(y + 1) - betaln(size, y + 1) - jnp.log(size + y)
    return binomial - size * jnp.log1p(mean / size) + y * jnp.log(mean / (mean + size))


def logistic(p: Any, rows: Any) -> Any:
    return rows["y"] * predictor(p, rows) - jnp.logaddexp(0.0, predictor(p, rows))


def gamma(p: Any, rows: Any) -> Any:
    mean, shape, y = jnp.exp(predictor(p, rows)), jnp.exp(p["s"]), rows["y"]
    return (
        shape * jnp.log(shape / mean) - gammaln(shape) + (shape - 1) * jnp.log(y) - shape * y / mean
    )


def weibull(p: Any, rows: Any) -> Any:
    hazard = jnp.exp(p["s"]) * (jnp.log(rows["y"]) - predictor(p, rows))
    return rows["d"] * (p["s"] + hazard - jnp.log(rows["y"])) - jnp.exp(hazard)


def levels(p: Any, rows: Any) -> Any:
    return normal(rows["y"] - p["z"][rows["g"].astype(jnp.int32)], jnp.exp(p["s"]))


def levels_prior(p: Any) -> Any:
    spread = jnp.sum(normal(p["z"] - p["m"], jnp.exp(p["u"])))
    return normal(p["m"], 5.0) + normal(p["u"], 1.0) + spread + normal(p["s"], 1.0)


def schools(p: Any, rows: Any) -> Any:
    level = p["m"] + jnp.exp(p["u"]) * p["z"][rows["g"].astype(jnp.int32)]
    return normal(rows["y"] - level, rows["s"])


def schools_prior(p: Any) -> Any:
    cauchy = p["u"] - jnp.log1p((jnp.exp(p["u"]) / 5) ** 2)
    return normal(p["m"], 5.0) + jnp.sum(normal(p["z"])) + cauchy


def nothing(p: Any, rows: Any) -> Any:
    return 0 * rows["y"] * p["x"][0]


def made() -> dict[str, Case]:
    """Return all posteriors by name."""
    rng = np.random.default_rng(7)
    found: dict[str, Case] = {}

    def add(
        name: str,
        model: consortia.Model,
        sites: int = 3,
        widths: tuple[Any, ...] = (),
        **data: np.ndarray,
    ) -> None:
        found[name] = Case(model, split(data, sites, rng), widths=widths)

    usual = (10.0, 10.0, 2.0)

    def noise(count: int, *shape: int) -> np.ndarray:
        return rng.normal(size=(count, *shape))

    x = noise(100, 3)
    add(
        "linear",
        regression(gaussian, 3),
        widths=usual,
        y=1 + x @ [1, -2, 0.5] + 0.7 * noise(100),
        x=x,
    )
    x = noise(200, 3) * [1e-4, 1, 1e4]
    scaled = regression(gaussian, 3, widths=[1e5, 10.0, 1e-3])
    add(
        "scales",
        scaled,
        4,
        (10.0, [1e5, 10.0, 1e-3], 2.0),
        y=2 + x @ [1e4, 1, 1e-4] + noise(200),
        x=x,
    )
    left, right = np.linalg.qr(noise(300, 10))[0], np.linalg.qr(noise(10, 10))[0]
    x = 30 * left @ np.diag(np.logspace(0, -3, 10)) @ right  # Hessian of condition 10⁶
    add(
        "ill-conditioned", regression(gaussian, 10), 5, usual, y=x @ noise(10) + noise(300) / 2, x=x
    )
    iq, school = rng.normal(100, 15, 434), rng.integers(0, 2, 434)
    x = np.stack([school, iq, school * iq], 1)
    uncentred = regression(gaussian, 3, widths=50.0, intercept=100.0, scale=3.0)
    add(
        "uncentred",
        uncentred,
        6,
        (100.0, 50.0, 3.0),
        y=20 + 0.6 * iq + 5 * school + 18 * noise(434),
        x=x,
    )
    x = noise(120, 3)
    add("student", regression(student, 3), y=x @ [1, 2, 3] + rng.standard_t(3, 120), x=x)
    x = noise(150, 4) / 2
    mean = np.exp(1 + x @ [0.5, -0.5, 0.3, 0])
    counts = {"widths": 2.0, "intercept": 5.0}
    add("poisson", regression(poisson, 4, scale=None, **counts), 4, y=rng.poisson(mean) * 1.0, x=x)
    y = rng.negative_binomial(3, 3 / (3 + mean)) * 1.0
    add("negative binomial", regression(negative_binomial, 4, scale=1.0, **counts), 4, y=y, x=x)
    odds = {"widths": 2.5, "intercept": 5.0, "scale": None}
    x = noise(200, 5)
    y = (rng.random(200) < 1 / (1 + np.exp(-x @ [1, 1, -1, 0, 0.5]))) * 1.0
    add("logistic", regression(logistic, 5, **odds), y=y, x=x)
    x = noise(40, 3)
    add("separated", regression(logistic, 3, **odds), y=(x[:, 0] > 0) * 1.0, x=x)
    x = noise(569, 30)
    x[:, 10:] = 0.7 * x[:, :20] + 0.5 * x[:, 10:]
    y = (rng.random(569) < 1 / (1 + np.exp(-x @ noise(30)))) * 1.0
    add("logistic, 31 parameters", regression(logistic, 30, **odds | {"widths": 1.0}), y=y, x=x)
    series = np.zeros(200)
    for time in range(1, 200):
        series[time] = 0.3 + 0.8 * series[time - 1] + rng.normal() / 2
    add("autoregressive", regression(gaussian, 1), widths=usual, y=series[1:], x=series[:-1, None])
    x = noise(100, 2)
    y = rng.gamma(2, np.exp(0.5 + x @ [0.3, -0.4]) / 2)
    add("gamma", regression(gamma, 2, scale=1.0, **counts), y=y, x=x)
    x = noise(150, 3)
    time, censored = np.exp(x @ [0.5, -0.5, 0]) * rng.weibull(1.5, 150), rng.exponential(2, 150)
    ended = (time < censored) * 1.0
    add("weibull", regression(weibull, 3, scale=1.0, **counts), y=np.minimum(time, censored),
        x=x, d=ended)  # fmt: skip
    x = noise(20, 1)
    rows = [{"y": np.float32(2 * v + noise(1)), "x": np.float32(v[None])} for v in x]
    found["a row a site"] = Case(
        regression(gaussian, 1), consortia.Sites.from_list(rows), widths=usual
    )
    x = noise(60, 2)
    alone = split({"y": x @ [1, 1] + noise(60), "x": x}, 1, rng)
    found["a single site"] = Case(regression(gaussian, 2), alone, widths=usual)
    group = rng.integers(0, 6, 200)
    init = {"m": jnp.zeros(()), "u": jnp.zeros(()), "z": jnp.zeros(6), "s": jnp.zeros(())}
    add("levels", consortia.Model(levels_prior, levels, init),
        y=1 + 0.8 * noise(6)[group] + noise(200), g=group)  # fmt: skip
    effects = np.array([28, 8, -3, 7, -1, 1, 18, 12.0])
    errors = np.array([15, 10, 16, 11, 9, 11, 10, 18.0])
    init = {"m": jnp.zeros(()), "u": jnp.zeros(()), "z": jnp.zeros(8)}
    parts = split({"y": effects, "s": errors, "g": np.arange(8.0)}, 3, rng)
    found["eight schools"] = Case(consortia.Model(schools_prior, schools, init), parts, 40)
    empty = consortia.Sites.from_list([{"y": np.zeros(1, np.float32)}] * 2)

    def banana(p: Any) -> Any:
        return normal(p["x"][0]) + normal(p["x"][1] - p["x"][0] ** 2, 0.3)

    def funnel(p: Any) -> Any:
        return normal(p["x"][0], 3.0) + jnp.sum(normal(p["x"][1:], jnp.exp(p["x"][0] / 2)))

    for name, density, size in (("banana", banana, 2), ("funnel", funnel, 10)):
        model = consortia.Model(density, nothing, {"x": jnp.ones(size)})
        found[name] = Case(model, empty, 100, refused=True)
    return found

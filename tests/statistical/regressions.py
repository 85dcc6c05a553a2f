"""Eight regressions, each at unlike sites, with moments by importance sampling at the mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from scipy import optimize, stats

import consortia

POINTS = 100_000


class Case(NamedTuple):
    """A model whose parameters are one vector, and its data."""

    model: consortia.Model
    sites: consortia.Sites

    def log_density(self) -> Callable[[Any], Any]:
        """Return the log-density of one position, of all rows together."""
        names = self.sites.shards[0]
        rows = {
            name: jnp.asarray(
                np.concatenate([np.asarray(one[name]) for one in self.sites.shards]), float
            )
            for name in names
        }

        def at(x: Any) -> Any:
            value = jnp.sum(self.model.log_likelihood({"x": x}, rows))
            return value + self.model.log_prior({"x": x})

        return at

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return means and sds, each with a Monte Carlo error of at most .02 sd."""
        with jax.enable_x64(True):
            density = self.log_density()
            slope = jax.jit(jax.value_and_grad(lambda x: -density(x)))
            begin = np.asarray(self.model.init["x"], float)
            found = optimize.minimize(
                lambda x: tuple(np.asarray(v, float) for v in slope(x)), begin, jac=True
            )
            curvature = np.asarray(jax.hessian(density)(jnp.asarray(found.x)), float)
            family = stats.multivariate_t(
                found.x, np.linalg.inv(-curvature), 6, seed=np.random.default_rng(0)
            )
            points = family.rvs(POINTS)
            heights = np.concatenate(
                [
                    np.asarray(jax.jit(jax.vmap(density))(jnp.asarray(part)))
                    for part in np.split(points, 20)
                ]
            )
        logs = heights - family.logpdf(points)
        shares = np.exp(logs - logs.max())
        shares /= shares.sum()
        assert 1 / (shares**2).sum() > 2500
        mean = shares @ points
        return mean, np.sqrt(shares @ (points - mean) ** 2)


def normal(value: Any, scale: float) -> Any:
    return -jnp.sum((value / scale) ** 2) / 2


def columns(rng: np.random.Generator, rows: int, features: int, sites: int, away: float) -> Any:
    """Return a design with an intercept for each site: means and sizes differ between them."""
    sizes = np.maximum((rng.dirichlet(np.full(sites, 2.0)) * rows).astype(int), 3)
    found = []
    for size in sizes:
        middle, spread = rng.normal(0, away, features), rng.uniform(0.5, 1.5, features)
        x = middle + spread * rng.normal(size=(size, features))
        x[:, 0] = x[:, 0] > middle[0]  # a treatment
        found.append(np.column_stack([np.ones(size), x]))
    return found


def case(
    likelihood: Callable[[Any, Any], Any],
    log_prior: Callable[[Any], Any],
    d: int,
    designs: list[np.ndarray],
    responses: list[np.ndarray],
    **more: list[np.ndarray],
) -> Case:
    """Return a regression of a response at each site on its design."""
    shards = [
        {"x": x.astype(np.float32), "y": np.asarray(y, np.float32)}
        | {name: values[index].astype(np.float32) for name, values in more.items()}
        for index, (x, y) in enumerate(zip(designs, responses, strict=True))
    ]
    model = consortia.Model(
        lambda p: log_prior(p["x"]),
        lambda p, rows: likelihood(p["x"], rows),
        {"x": jnp.zeros(d)},
    )
    return Case(model, consortia.Sites.from_list(shards))


def logistic(x: Any, rows: Any) -> Any:
    odds = rows["x"] @ x
    return rows["y"] * odds - jnp.logaddexp(0.0, odds)


def poisson(x: Any, rows: Any) -> Any:
    eta = rows["x"] @ x + rows["e"]
    return rows["y"] * eta - jnp.exp(eta)


def negative_binomial(x: Any, rows: Any) -> Any:
    eta, size = rows["x"] @ x[:-1], jnp.exp(x[-1])
    total = jnp.logaddexp(x[-1], eta)
    own = gammaln(rows["y"] + size) - gammaln(size)
    return own + size * (x[-1] - total) + rows["y"] * (eta - total)


def student(x: Any, rows: Any) -> Any:
    residual = (rows["y"] - rows["x"] @ x[:-1]) * jnp.exp(-x[-1])
    return -2.5 * jnp.log1p(residual**2 / 4) - x[-1]


def gaussian(x: Any, rows: Any) -> Any:
    residual = (rows["y"] - rows["x"] @ x[:-1]) * jnp.exp(-x[-1])
    return -(residual**2) / 2 - x[-1]


def scaled_prior(scale: float) -> Callable[[Any], Any]:
    """Return a prior of coefficients of this scale, and of a logarithm with scale 1.5."""
    return lambda x: normal(x[:-1], scale) + normal(x[-1], 1.5)


def of_odds(d: int, rows: int, sites: int, seed: int) -> Case:
    """Return a logistic regression."""
    rng = np.random.default_rng(seed)
    b = rng.normal(0, 0.8, d)
    designs = columns(rng, rows, d - 1, sites, 1.0)
    responses = [rng.random(len(x)) < 1 / (1 + np.exp(-x @ b)) for x in designs]
    return case(logistic, lambda x: normal(x, 2.5), d, designs, responses)


def of_counts() -> Case:
    """Return a Poisson regression with exposures."""
    rng = np.random.default_rng(14)
    b, designs = rng.normal(0, 0.4, 6), columns(rng, 400, 5, 8, 0.7)
    exposures = [rng.uniform(0.5, 4, len(x)) for x in designs]
    pairs = zip(designs, exposures, strict=True)
    responses = [rng.poisson(e * np.exp(x @ b)) for x, e in pairs]
    logs = [np.log(e) for e in exposures]
    return case(poisson, lambda x: normal(x, 2.5), 6, designs, responses, e=logs)


def of_scattered_counts() -> Case:
    """Return a negative binomial regression."""
    rng = np.random.default_rng(15)
    b, designs = rng.normal(0, 0.5, 5), columns(rng, 300, 4, 6, 0.7)
    responses = [rng.poisson(rng.gamma(1.5, np.exp(x @ b) / 1.5)) for x in designs]
    return case(negative_binomial, scaled_prior(2.5), 6, designs, responses)


def of_outliers() -> Case:
    """Return a regression with a t of four degrees of freedom."""
    rng = np.random.default_rng(16)
    b, designs = rng.normal(0, 1, 5), columns(rng, 200, 4, 5, 1.0)
    responses = []
    for x in designs:
        y = x @ b + 0.7 * rng.standard_t(2, len(x))
        responses.append(y + 15 * (rng.random(len(x)) < 0.03))
    return case(student, scaled_prior(5.0), 6, designs, responses)


def ill_conditioned() -> Case:
    """Return a linear regression on columns that are alike, of scales from .03 to 30."""
    rng = np.random.default_rng(17)
    mix = np.linalg.cholesky(np.eye(7) + 3 * np.ones((7, 7))).T * np.logspace(-1.5, 1.5, 7)
    designs = [np.column_stack([x[:, :1], x[:, 1:] @ mix]) for x in columns(rng, 300, 7, 4, 1.0)]
    b = 0.3 * np.append(1, np.logspace(0.5, -1.5, 7))
    responses = [x @ b + 0.5 * rng.normal(size=len(x)) for x in designs]
    return case(gaussian, scaled_prior(5.0), 9, designs, responses)


def separated() -> Case:
    """Return a logistic regression that one site alone cannot bound, and a site of one row."""
    rng = np.random.default_rng(18)
    b, designs, responses = np.array([0.3, 1.2, -0.8, 0.5]), [], []
    for index, size in enumerate((60, 25, 1)):
        x = rng.normal(size=(size, 3)) + np.array([0, 2 * index - 1, index / 2])
        designs.append(np.column_stack([np.ones(size), x]))
        y = rng.random(size) < 1 / (1 + np.exp(-designs[-1] @ b))
        responses.append(x[:, 0] > 1 if index == 1 else y)
    return case(logistic, lambda x: normal(x, 2.5), 4, designs, responses)


CASES: dict[str, Callable[[], Case]] = {
    "logistic, d = 5": lambda: of_odds(5, 150, 3, 11),
    "logistic, d = 10": lambda: of_odds(10, 400, 5, 12),
    "logistic, d = 8, 25 sites": lambda: of_odds(8, 600, 25, 13),
    "Poisson": of_counts,
    "negative binomial": of_scattered_counts,
    "Student": of_outliers,
    "ill-conditioned": ill_conditioned,
    "separated": separated,
}
"""Regressions by name."""

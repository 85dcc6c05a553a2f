"""Regressions, each at unlike sites, with moments by importance sampling at the mode."""

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
LEVELS = 0.025, 0.975


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

    def law(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return means, sds and quantiles at `LEVELS`.

        Means and sds have Monte Carlo errors of at most .02 sd, quantiles of .05 sd.
        """
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
        order = np.argsort(points, axis=0)
        sorted_points = np.take_along_axis(points, order, axis=0)
        below = np.cumsum(shares[order], axis=0)
        pairs = list(zip(below.T, sorted_points.T, strict=True))
        quantiles = np.array([[np.interp(level, *pair) for pair in pairs] for level in LEVELS])
        return mean, np.sqrt(shares @ (points - mean) ** 2), quantiles


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
    eta, log_size = rows["x"] @ x[:-1], jnp.clip(x[-1], -8.0, 8.0)  # beyond them rounding is all
    size, total = jnp.exp(log_size), jnp.logaddexp(log_size, eta)
    own = gammaln(rows["y"] + size) - gammaln(size)
    return own + size * (log_size - total) + rows["y"] * (eta - total)


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


# --- sixteen more, of which each has one thing of its own ---------------------------------------


def grouped(x: Any, rows: Any) -> Any:
    """Return successes of trials."""
    odds = rows["x"] @ x
    return rows["y"] * odds - rows["trials"] * jnp.logaddexp(0.0, odds)


def probit(x: Any, rows: Any) -> Any:
    return jax.scipy.special.log_ndtr((2 * rows["y"] - 1) * (rows["x"] @ x))


def log_log(x: Any, rows: Any) -> Any:
    """Return yes or no with the complementary log-log link."""
    rate = jnp.exp(rows["x"] @ x)
    return jnp.where(rows["y"] > 0, jnp.log(-jnp.expm1(-rate)), -rate)


def gamma(x: Any, rows: Any) -> Any:
    shape, eta = jnp.exp(x[-1]), rows["x"] @ x[:-1]
    scaled = shape * rows["y"] * jnp.exp(-eta)
    return shape * (x[-1] - eta) + (shape - 1) * jnp.log(rows["y"]) - scaled - gammaln(shape)


def beta(x: Any, rows: Any) -> Any:
    eta = jnp.clip(rows["x"] @ x[:-1], -12.0, 12.0)  # beyond them one shape rounds to 0
    mean, precision = jax.nn.sigmoid(eta), jnp.exp(jnp.clip(x[-1], -8.0, 8.0))
    a, b = mean * precision, (1 - mean) * precision
    both = (a - 1) * jnp.log(rows["y"]) + (b - 1) * jnp.log1p(-rows["y"])
    return gammaln(precision) - gammaln(a) - gammaln(b) + both


def weibull(x: Any, rows: Any) -> Any:
    scaled = jnp.exp(x[-1]) * (jnp.log(rows["y"]) - rows["x"] @ x[:-1])
    return rows["event"] * (x[-1] + scaled) - jnp.exp(scaled)


def exponential(x: Any, rows: Any) -> Any:
    eta = rows["x"] @ x
    return rows["event"] * eta - rows["y"] * jnp.exp(eta)


def ordinal(x: Any, rows: Any) -> Any:
    """Return three levels, with the first threshold and the logarithm of the gap."""
    eta, first = rows["x"][:, 1:] @ x[:-2], x[-2]
    second = first + jnp.exp(x[-1])
    below = jax.nn.log_sigmoid(first - eta)
    above = jax.nn.log_sigmoid(eta - second)
    gap = jnp.log(-jnp.expm1(first - second))
    middle = jax.nn.log_sigmoid(second - eta) + jax.nn.log_sigmoid(eta - first) + gap
    return jnp.where(rows["y"] == 0, below, jnp.where(rows["y"] == 2, above, middle))


def robust(x: Any, rows: Any) -> Any:
    """Return a regression with logistic errors."""
    scaled = (rows["y"] - rows["x"] @ x[:-1]) * jnp.exp(-x[-1])
    return -2 * jnp.logaddexp(scaled / 2, -scaled / 2) - x[-1]


def spread_too(x: Any, rows: Any) -> Any:
    """Return a regression whose log spread is linear in the treatment."""
    spread = x[-2] + x[-1] * rows["x"][:, 1]
    return -(((rows["y"] - rows["x"] @ x[:-2]) * jnp.exp(-spread)) ** 2) / 2 - spread


Response = Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray]


def of_response(
    likelihood: Callable[[Any, Any], Any],
    respond: Response,
    features: int,
    sites: int,
    rows: int,
    *,
    extra: int = 0,
    size: float = 0.5,
    prior: float = 2.5,
    more: Callable[[np.random.Generator, np.ndarray, np.ndarray], dict[str, Any]] | None = None,
) -> Case:
    """Return a regression of a response that is drawn from the linear predictor.

    Args:
        likelihood: of the rows.
        respond: generator, design and coefficients -> the response.
        features: columns beside the intercept.
        sites: number of them.
        rows: of all sites.
        extra: further parameters, logarithms.
        size: of the coefficients.
        prior: their scale.
        more: generator, design, response -> further columns, or others in their place.
    """
    rng = np.random.default_rng([features, sites, rows])
    b = rng.normal(0, size, features + 1)
    designs = columns(rng, rows, features, sites, 0.7)
    responses = [np.asarray(respond(rng, x, b), float) for x in designs]
    further: dict[str, list[np.ndarray]] = {}
    if more is not None:
        for index, x in enumerate(designs):
            for name, values in more(rng, x, responses[index]).items():
                if name == "y":
                    responses[index] = values
                else:
                    further.setdefault(name, []).append(np.asarray(values, float))
    d = features + 1 + extra

    def log_prior(x: Any) -> Any:
        return normal(x[: features + 1], prior) + normal(x[features + 1 :], 1.5)

    return case(likelihood, log_prior, d, designs, responses, **further)


def yes(link: Callable[[np.ndarray], np.ndarray]) -> Response:
    """Return yes or no by an inverse link."""
    return lambda rng, x, b: rng.random(len(x)) < link(x @ b)


def censored(rng: np.random.Generator, x: np.ndarray, time: np.ndarray) -> dict[str, np.ndarray]:
    """Return times up to an end of the study of each row, and whether the event was seen."""
    end = rng.uniform(0.3, 3, len(x))
    return {"y": np.minimum(time, end), "event": time < end}


def _odds(eta: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-eta))


def _levels(rng: np.random.Generator, x: np.ndarray, b: np.ndarray) -> np.ndarray:
    latent = x[:, 1:] @ b[1:] + rng.logistic(size=len(x))
    return (latent > -0.5).astype(int) + (latent > 0.7)


def _fractions(rng: np.random.Generator, x: np.ndarray, b: np.ndarray) -> np.ndarray:
    mean = _odds(x @ b)
    return np.clip(rng.beta(8 * mean, 8 * (1 - mean)), 0.001, 0.999)


def of_trials() -> Case:
    """Return successes of two to nine trials."""
    rng = np.random.default_rng(31)
    b, designs = rng.normal(0, 0.5, 6), columns(rng, 120, 5, 7, 0.7)
    trials = [rng.integers(2, 10, len(x)).astype(float) for x in designs]
    pairs = zip(designs, trials, strict=True)
    responses = [rng.binomial(n.astype(int), _odds(x @ b)) for x, n in pairs]
    return case(grouped, lambda x: normal(x, 2.5), 6, designs, responses, trials=trials)


def of_rare_events() -> Case:
    """Return a logistic regression with some two events in a hundred rows."""
    rng = np.random.default_rng(32)
    b, designs = np.array([-4.0, 0.8, 0.5, -0.6]), columns(rng, 1500, 3, 6, 0.7)
    responses = [rng.random(len(x)) < _odds(x @ b) for x in designs]
    return case(logistic, lambda x: normal(x, 5.0), 4, designs, responses)


OWN: dict[str, Callable[[], Case]] = {
    "linear, 12 sites": lambda: of_response(
        gaussian, lambda g, x, b: x @ b + g.normal(0, 0.7, len(x)), 6, 12, 250, extra=1
    ),
    "linear, few rows": lambda: of_response(
        gaussian, lambda g, x, b: x @ b + g.normal(0, 1, len(x)), 3, 4, 24, extra=1
    ),
    "logistic errors": lambda: of_response(
        robust, lambda g, x, b: x @ b + g.logistic(0, 0.6, len(x)), 5, 6, 200, extra=1
    ),
    "spread by treatment": lambda: of_response(
        spread_too,
        lambda g, x, b: x @ b + g.normal(size=len(x)) * np.exp(0.6 * x[:, 1] - 0.4),
        *(4, 5, 220),
        extra=2,
    ),
    "t with 20 sites": lambda: of_response(
        student, lambda g, x, b: x @ b + 0.5 * g.standard_t(4, len(x)), 7, 20, 400, extra=1
    ),
    "probit": lambda: of_response(
        probit, lambda g, x, b: g.normal(size=len(x)) < x @ b, 6, 5, 300, prior=2.0
    ),
    "complementary log-log": lambda: of_response(
        log_log, yes(lambda eta: 1 - np.exp(-np.exp(np.clip(eta, -8, 3)))), 4, 8, 350, size=0.4
    ),
    "wide prior, 30 rows": lambda: of_response(logistic, yes(_odds), 2, 3, 30, prior=10.0),
    "trials": of_trials,
    "rare events": of_rare_events,
    "Poisson, small counts": lambda: of_response(
        poisson,
        lambda g, x, b: g.poisson(np.exp(x @ b - 1)),
        *(4, 10, 300),
        size=0.3,
        more=lambda g, x, y: {"e": np.full(len(x), -1.0)},
    ),
    "gamma": lambda: of_response(
        gamma, lambda g, x, b: g.gamma(2, np.exp(x @ b) / 2) + 1e-4, 5, 4, 200, extra=1
    ),
    "beta": lambda: of_response(beta, _fractions, 4, 6, 180, extra=1),
    "Weibull, censored": lambda: of_response(
        weibull,
        lambda g, x, b: np.exp(x @ b) * g.weibull(1.4, len(x)),
        *(4, 5, 250),
        extra=1,
        more=censored,
    ),
    "exponential, censored": lambda: of_response(
        exponential,
        lambda g, x, b: g.exponential(np.exp(-x @ b)),
        *(6, 15, 400),
        more=censored,
    ),
    "ordinal": lambda: of_response(ordinal, _levels, 5, 7, 250, extra=1),
}
"""Regressions with one thing of their own each."""

CASES: dict[str, Callable[[], Case]] = {
    "logistic, d = 5": lambda: of_odds(5, 150, 3, 11),
    "logistic, d = 10": lambda: of_odds(10, 400, 5, 12),
    "logistic, d = 8, 25 sites": lambda: of_odds(8, 600, 25, 13),
    "Poisson": of_counts,
    "negative binomial": of_scattered_counts,
    "Student": of_outliers,
    "ill-conditioned": ill_conditioned,
    "separated": separated,
    **OWN,
}
"""Regressions by name."""

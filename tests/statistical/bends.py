"""Posteriors that bend: products of parameters, saturating curves, mixtures, funnels.

Each is in one vector x, at unlike sites, with the model in coordinates in which NUTS has no
divergence as its reference, and the map from those to x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import consortia
from consortia.diagnostics.reference import nuts


class Bend(NamedTuple):
    """A posterior, the messages that it may take, and its reference.

    Attributes:
        model: of one vector x.
        sites: its data.
        most: messages.
        may_refuse: whether a refusal counts as right.
        straight: the same posterior where NUTS has no divergence; None: the model itself.
        mapped: draws of that one -> x, (..., d) each.
    """

    model: consortia.Model
    sites: consortia.Sites
    most: int = 14
    may_refuse: bool = False
    straight: consortia.Model | None = None
    mapped: Callable[[Any], Any] = np.asarray

    def reference(self) -> np.ndarray:
        """Return draws of NUTS, (chains, draws, d)."""
        model = self.straight or self.model
        tree = nuts(model, self.sites, draws=10_000, warmup=2000, target_acceptance=0.99)
        assert tree.attrs["divergences"] < 400  # one in a hundred
        return np.asarray(self.mapped(np.asarray(tree["posterior"]["x"], float)))


def _model(log_prior: Any, log_likelihood: Any, start: Any) -> consortia.Model:
    return consortia.Model(
        lambda p: log_prior(p["x"]),
        lambda p, rows: log_likelihood(p["x"], rows),
        {"x": jnp.asarray(start, float)},
    )


def _sites(tables: list[dict[str, Any]]) -> consortia.Sites:
    kept = [{name: np.asarray(one, np.float32) for name, one in t.items()} for t in tables]
    return consortia.Sites.from_list(kept)


def _normal(value: Any, sd: Any = 1.0) -> Any:
    return jnp.sum(-0.5 * (value / sd) ** 2 - jnp.log(sd) * jnp.ones_like(value))


def product() -> Bend:
    """y = a + s x'b + noise, s half-normal: only s b is known well."""
    rng, tables = np.random.default_rng(1), []
    for rows, middle in ((20, -1.0), (40, 0.0), (30, 0.5), (25, 1.5)):
        x = rng.normal(middle, 1, (rows, 3))
        tables.append({"x": x, "y": 0.5 + 0.8 * x @ [0.5, -0.7, 0.3] + rng.normal(size=rows)})

    def log_prior(x: Any) -> Any:
        return _normal(x[0]) + x[1] - 0.5 * jnp.exp(2 * x[1]) + _normal(x[2:])

    def log_likelihood(x: Any, rows: Any) -> Any:
        return -0.5 * (rows["y"] - x[0] - jnp.exp(x[1]) * (rows["x"] @ x[2:])) ** 2

    start = [0, 0, 0.1, 0.1, 0.1]
    return Bend(_model(log_prior, log_likelihood, start), _sites(tables))


def emax() -> Bend:
    """y = E0 + Emax D / (ED50 + D): doses of which few are above ED50."""
    rng, tables = np.random.default_rng(2), []
    for rows in (25, 40, 30):
        dose = rng.choice([0, 5, 10, 20, 40, 80], rows)
        effect = 2 + 8 * dose / (30 + dose)
        tables.append({"dose": dose, "y": effect + rng.normal(0, 1.5, rows)})

    def log_prior(x: Any) -> Any:
        return _normal(x[0], 10.0) + _normal(x[1], 20.0) + _normal(x[2] - 3, 1.0) + _normal(x[3])

    def log_likelihood(x: Any, rows: Any) -> Any:
        mean = x[0] + x[1] * rows["dose"] / (jnp.exp(x[2]) + rows["dose"])
        return -0.5 * ((rows["y"] - mean) * jnp.exp(-x[3])) ** 2 - x[3]

    return Bend(_model(log_prior, log_likelihood, [0, 5, 3, 0]), _sites(tables))


def growth() -> Bend:
    """A logistic curve whose end was not reached: K, r and the middle."""
    rng, tables = np.random.default_rng(3), []
    for rows, last in ((20, 4.0), (30, 6.0), (25, 7.0)):
        t = rng.uniform(0, last, rows)
        tables.append({"t": t, "y": 10 / (1 + np.exp(-0.9 * (t - 5))) + rng.normal(0, 0.4, rows)})

    def log_prior(x: Any) -> Any:
        return _normal(x[0] - 2, 1.0) + _normal(x[1], 1.0) + _normal(x[2] - 5, 3.0) + _normal(x[3])

    def log_likelihood(x: Any, rows: Any) -> Any:
        mean = jnp.exp(x[0]) * jax.nn.sigmoid(jnp.exp(x[1]) * (rows["t"] - x[2]))
        return -0.5 * ((rows["y"] - mean) * jnp.exp(-x[3])) ** 2 - x[3]

    return Bend(_model(log_prior, log_likelihood, [2, 0, 5, 0]), _sites(tables))


def weibull() -> Bend:
    """Times of which more than half are censored."""
    rng, tables = np.random.default_rng(4), []
    for rows, middle in ((30, -0.5), (40, 0.5), (20, 1.0)):
        x = rng.normal(middle, 1, (rows, 2))
        time = np.exp(1 + x @ [0.4, -0.3]) * rng.weibull(1.4, rows)
        end = rng.uniform(0.3, 3, rows)
        tables.append({"x": x, "time": np.minimum(time, end), "event": time < end})

    def log_prior(x: Any) -> Any:
        return _normal(x[:3], 2.5) + _normal(x[3])

    def log_likelihood(x: Any, rows: Any) -> Any:
        shape = jnp.exp(x[3])
        scaled = shape * (jnp.log(rows["time"]) - x[0] - rows["x"] @ x[1:3])
        return rows["event"] * (x[3] + scaled) - jnp.exp(scaled)

    return Bend(_model(log_prior, log_likelihood, [0, 0, 0, 0]), _sites(tables))


def zero_inflated() -> Bend:
    """Counts, of which some are zero for a reason of their own."""
    rng, tables = np.random.default_rng(5), []
    for rows, middle in ((40, -0.5), (60, 0.0), (50, 0.7)):
        x = rng.normal(middle, 1, (rows, 2))
        y = rng.poisson(np.exp(0.3 + x @ [0.5, -0.3])) * (rng.random(rows) > 0.35)
        tables.append({"x": x, "y": y})

    def log_likelihood(x: Any, rows: Any) -> Any:
        eta = x[0] + rows["x"] @ x[1:3]
        counted = rows["y"] * eta - jnp.exp(eta)
        zero, other = jax.nn.log_sigmoid(x[3]), jax.nn.log_sigmoid(-x[3])
        return jnp.where(rows["y"] == 0, jnp.logaddexp(zero, other + counted), other + counted)

    return Bend(_model(lambda x: _normal(x, 2.0), log_likelihood, np.zeros(4)), _sites(tables))


def ordered() -> Bend:
    """A mixture of two normals that overlap, the second mean above the first."""
    rng, tables = np.random.default_rng(6), []
    for rows, share in ((40, 0.3), (60, 0.6), (50, 0.5)):
        first = rng.random(rows) < share
        tables.append({"y": np.where(first, rng.normal(-1.3, 1, rows), rng.normal(1.3, 1, rows))})

    def log_prior(x: Any) -> Any:
        return _normal(x[0], 2.0) + _normal(x[1]) + _normal(x[2], 1.5)

    def log_likelihood(x: Any, rows: Any) -> Any:
        second = x[0] + jnp.exp(x[1])
        below = jax.nn.log_sigmoid(x[2]) - 0.5 * (rows["y"] - x[0]) ** 2
        return jnp.logaddexp(below, jax.nn.log_sigmoid(-x[2]) - 0.5 * (rows["y"] - second) ** 2)

    return Bend(_model(log_prior, log_likelihood, [-1, 0.7, 0]), _sites(tables))


def schools(*, centred: bool) -> Bend:
    """Eight schools, one a site."""
    effect = np.array([28, 8, -3, 7, -1, 1, 18, 12]) / 10
    error = np.array([15, 10, 16, 11, 9, 11, 10, 18]) / 10
    tables = [{"y": [effect[i]], "s": [error[i]], "school": np.eye(8)[[i]]} for i in range(8)]
    start = np.r_[0, -1.0, np.zeros(8)]

    def prior(x: Any, *, centred: bool) -> Any:
        common = _normal(x[0]) + x[1] - 0.5 * jnp.exp(2 * x[1])
        return common + (_normal(x[2:] - x[0], jnp.exp(x[1])) if centred else _normal(x[2:]))

    def likelihood(x: Any, rows: Any, *, centred: bool) -> Any:
        own = rows["school"] @ x[2:]
        theta = own if centred else x[0] + jnp.exp(x[1]) * own
        return -0.5 * ((rows["y"] - theta) / rows["s"]) ** 2

    def model(centred: bool) -> consortia.Model:
        return _model(
            lambda x: prior(x, centred=centred),
            lambda x, rows: likelihood(x, rows, centred=centred),
            start,
        )

    def mapped(x: Any) -> Any:
        if not centred:
            return x
        own = x[..., :1] + np.exp(x[..., 1:2]) * x[..., 2:]
        return np.concatenate([x[..., :2], own], axis=-1)

    return Bend(model(centred), _sites(tables), 40, True, model(False), mapped)


def horseshoe() -> Bend:
    """Nine slopes of which two are not zero, each the product of three parameters."""
    rng, tables = np.random.default_rng(8), []
    slopes = np.r_[1.5, -1.0, np.zeros(7)]
    for rows, middle in ((30, 0.0), (40, 0.5), (30, -0.5)):
        x = rng.normal(middle, 1, (rows, 9))
        tables.append({"x": x, "y": 0.3 + x @ slopes + rng.normal(size=rows)})

    def log_prior(x: Any) -> Any:  # half-Cauchy scales, on the logarithm
        scales = x[10:]
        return _normal(x[:10]) + jnp.sum(scales - jnp.log1p(jnp.exp(2 * scales)))

    def log_likelihood(x: Any, rows: Any) -> Any:
        b = x[1:10] * jnp.exp(x[10:19] + x[19])
        return -0.5 * (rows["y"] - x[0] - rows["x"] @ b) ** 2

    start = np.r_[np.zeros(19), -1.0]
    return Bend(_model(log_prior, log_likelihood, start), _sites(tables), 40, True)


def funnel() -> Bend:
    """Neal's funnel: log variance v ~ N(0, 3²), and nine x ~ N(0, e^v); the rows say nothing."""
    tables = [{"y": np.zeros(rows)} for rows in (1, 2, 3)]

    def nothing(x: Any, rows: Any) -> Any:
        return 0 * rows["y"]

    def log_prior(x: Any) -> Any:
        return _normal(x[0], 3.0) + _normal(x[1:], jnp.exp(x[0] / 2))

    def mapped(x: Any) -> Any:
        return np.concatenate([3 * x[..., :1], np.exp(1.5 * x[..., :1]) * x[..., 1:]], axis=-1)

    straight = _model(_normal, nothing, np.zeros(10))
    model = _model(log_prior, nothing, np.zeros(10))
    return Bend(model, _sites(tables), 40, True, straight, mapped)


CASES: dict[str, Callable[[], Bend]] = {
    "product": product,
    "emax": emax,
    "growth": growth,
    "weibull": weibull,
    "zero-inflated": zero_inflated,
    "ordered": ordered,
    "schools, centred": lambda: schools(centred=True),
    "schools, non-centred": lambda: schools(centred=False),
    "horseshoe": horseshoe,
    "funnel": funnel,
}

"""Eight posteriors over five unlike sites, and twelve methods for them with no step size given."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import consortia
from consortia.core.contract import Method

SIZES = (20, 30, 40, 60, 80)

METHODS: dict[str, Callable[[], Method]] = {
    "fa_hmc": lambda: consortia.fa_hmc(None, leapfrog_steps=3, local_steps=2),
    "fa_hmc, de-biased": lambda: consortia.fa_hmc(
        None, leapfrog_steps=3, local_steps=2, debias=True
    ),
    "fa_ld": lambda: consortia.fa_ld(None, local_steps=2),
    "dsgld": lambda: consortia.dsgld(None, local_steps=2, batch_size=None),
    "fsgld": lambda: consortia.fsgld(None, local_steps=2, batch_size=None),
    "de_sgld": lambda: consortia.de_sgld(None, "ring", batch_size=None),
    "extra": lambda: consortia.de_sgld(None, "ring", batch_size=None, correction="extra"),
    "de_sghmc": lambda: consortia.de_sghmc(None, 4.0, "ring", batch_size=None),
    "stale_sgld": lambda: consortia.stale_sgld(None, workers=5, batch_size=None),
    "stale_sghmc": lambda: consortia.stale_sghmc(None, 4.0, workers=5, batch_size=None),
    "decentralized_hmc": lambda: consortia.decentralized_hmc(None, "ring"),
    "federated_hmc": consortia.federated_hmc,
}


def prior(x: Any) -> Any:
    return -0.5 * jnp.sum(x**2)


def linear(x: Any, rows: Any) -> Any:
    return -0.5 * (rows["y"] - rows["x"] @ x) ** 2


def logistic(x: Any, rows: Any) -> Any:
    t = rows["x"] @ x
    return rows["y"] * t - jnp.logaddexp(0.0, t)


def poisson(x: Any, rows: Any) -> Any:
    t = 0.5 * (rows["x"] @ x)
    return rows["y"] * t - jnp.exp(t)


def student(x: Any, rows: Any) -> Any:
    return -2.5 * jnp.log1p((rows["y"] - rows["x"] @ x) ** 2 / 4)


def hierarchical(p: Any, rows: Any) -> Any:
    level = p["m"] + jnp.exp(p["u"]) * p["z"][rows["g"].astype(jnp.int32)]
    return -0.5 * (rows["y"] - level) ** 2


def hierarchical_prior(p: Any) -> Any:
    return -0.5 * (p["m"] ** 2 + jnp.sum(p["z"] ** 2) + (p["u"] + 0.5) ** 2)


def mixture(x: Any, rows: Any) -> Any:
    near, far = rows["y"] - x[0], rows["y"] + x[0] + 0.1 * x[1] + 0.05 * x[2]
    return 0.1 * jnp.logaddexp(-0.5 * near**2, -0.5 * far**2)


def last_layer(x: Any, rows: Any) -> Any:
    scores = rows["x"] @ x.reshape(4, 3)
    return jnp.take_along_axis(
        jax.nn.log_softmax(scores), rows["y"].astype(jnp.int32)[:, None], axis=1
    )[:, 0]


POSTERIORS = (
    "linear",
    "ill-conditioned",
    "logistic",
    "poisson",
    "student",
    "hierarchical",
    "mixture",
    "last layer",
)


@functools.cache
def posterior(name: str) -> tuple[consortia.Model, consortia.Sites]:
    """Return a model and its five sites, whose features and coefficients differ."""
    rng = np.random.default_rng([11, POSTERIORS.index(name)])
    widths = {"ill-conditioned": [1.0, 5.0, 25.0], "last layer": np.ones(4)}
    width = np.asarray(widths.get(name, np.ones(3)))
    hidden = rng.normal(size=(6, 4))
    rows = []
    for index, size in enumerate(SIZES):
        shift = 0.5 * rng.normal(size=3)
        x = rng.normal(size=(size, len(width))) * width
        x[:, :3] += 0.3 * shift * width[:3]
        mean = x[:, :3] @ ((np.array([0.5, -0.5, 0.2]) + 0.3 * shift) / width[:3])
        if name == "last layer":  # features of a hidden layer that stands still
            x = np.tanh(rng.normal(size=(size, 6)) @ hidden + 0.3 * shift[0])
        y = {
            "logistic": lambda m=mean: rng.random(len(m)) < 1 / (1 + np.exp(-m)),
            "poisson": lambda m=mean: rng.poisson(np.exp(np.clip(0.5 * m, -3, 3))),
            "student": lambda m=mean: m + rng.standard_t(4, size=len(m)),
            "hierarchical": lambda m=mean, s=shift: s[0] + 1 + rng.normal(size=len(m)),
            "mixture": lambda m=mean: rng.choice([-1.2, 1.2], len(m)) + rng.normal(size=len(m)) / 2,
            "last layer": lambda x=x: rng.integers(0, 3, len(x)) * (x[:, 0] > -0.5),
        }.get(name, lambda m=mean: m + rng.normal(size=len(m)))()
        row = {"x": x.astype(np.float32), "y": np.asarray(y, np.float32)}
        rows.append(row | {"g": np.full(size, index, np.float32)})
    sites = consortia.Sites.from_list(rows)
    if name == "hierarchical":
        init = {"m": jnp.zeros(()), "u": jnp.zeros(()), "z": jnp.zeros(5)}
        return consortia.Model(hierarchical_prior, hierarchical, init), sites
    densities = {"ill-conditioned": linear, "last layer": last_layer}
    density = densities.get(name) or globals()[name]
    return consortia.Model(prior, density, jnp.full(12 if name == "last layer" else 3, 0.1)), sites

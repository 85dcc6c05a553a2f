"""Gaussian sites of unlike curvatures, whose samplers with stale gradients have an exact law."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from consortia.core.model import Model
from consortia.data.sites import Sites

DIMENSION = 2


def log_prior(theta):
    return -jnp.sum(theta**2) / 8


def log_likelihood(theta, rows):
    return -jnp.sum(rows["scale"] * (rows["centre"] - theta[None]) ** 2, axis=1) / 2


MODEL = Model(log_prior, log_likelihood, jnp.zeros(DIMENSION))


def rows(count: int, seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "centre": rng.normal(size=(count, DIMENSION)) + seed,
        "scale": scale * np.exp(0.3 * rng.normal(size=(count, DIMENSION))),
    }


def one_site() -> Sites:
    return Sites.from_list([rows(30, 1, 1 / 30)])


def three_sites() -> Sites:
    return Sites.from_list([rows(10, 0, 0.1), rows(20, 1, 0.1), rows(5, 2, 0.1)])


def curvature_of(shard: dict[str, np.ndarray], prior_share: float) -> np.ndarray:
    return shard["scale"].sum(axis=0) + prior_share / 4


def centre_of(shard: dict[str, np.ndarray], prior_share: float) -> np.ndarray:
    pull = (shard["scale"] * shard["centre"]).sum(axis=0)
    return pull / curvature_of(shard, prior_share)

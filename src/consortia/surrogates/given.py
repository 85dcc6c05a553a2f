"""The user's own Gaussians, examined before a run as those that the sites compute."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from consortia.core.contract import Phase, Site
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.surrogates import curvature as curvatures
from consortia.surrogates.correction import product, stacked
from consortia.surrogates.gaussian import Gaussian, Natural, apply
from consortia.surrogates.stability import Examination, surrogate_posterior

Array = jax.Array


class Look(NamedTuple):
    """What a site sees at the start and where the chains will be.

    Attributes:
        likelihood: H_s at both points, (2, d), or (2, d, d) when a Gaussian is full.
        prior: P there, of the same shape.
        weight: f_s.
    """

    likelihood: Array
    prior: Array
    weight: Array


def look_phase(
    gaussians: tuple[Gaussian, ...], target: Target, position_of: Callable[[Any], Array]
) -> Phase:
    """A phase for ``Algorithm.fit`` that leaves a `Look` at each site; nothing is exchanged."""
    mean, pooled = product(*stacked(gaussians))
    return Phase(partial(_look, mean, pooled, target, position_of), noise=_row_numbers)


def _row_numbers(rng: RandomStreams) -> Array:
    return rng.bits("rows", (curvatures.MOST_ROWS,))


def _look(
    mean: np.ndarray,
    pooled: np.ndarray,
    target: Target,
    position_of: Callable[[Any], Array],
    noise: Array,
    shared: Any,
    state: Any,
    inbox: Any,
    site: Site,
) -> Any:
    start = position_of(inbox)
    precision = jnp.asarray(pooled, start.dtype)
    total = Natural(apply(precision, jnp.asarray(mean, start.dtype) - start), precision)
    _, centre = surrogate_posterior(target, start, total)
    rows, weights = curvatures.some_rows(site, noise, start.dtype)
    full = precision.ndim == 2

    def prior(theta: Array) -> Array:
        return -target.log_prior(theta)

    points = (start, centre)
    likelihood = [
        curvatures.curvature(target, point, rows, weights, "hessian", full=full) for point in points
    ]
    priors = [curvatures.hessian(prior, point, full=full) for point in points]
    return Look(jnp.stack(likelihood), jnp.stack(priors), site.weight), (), {}


def examined(
    gaussians: tuple[Gaussian, ...],
    looks: Look,
    *,
    strength: float,
    step_size: float,
    local_steps: int,
) -> tuple[Examination, np.ndarray]:
    """The examination of the user's Gaussians, in the form of `fit_phases`.

    Args:
        gaussians: one a site.
        looks: of all sites, site axis first.
        strength: α.
        step_size: h.
        local_steps: T.
    """
    _, precisions = stacked(gaussians)
    likelihood, prior, weight = (np.asarray(value, np.float64) for value in looks)
    pooled = precisions.sum(axis=0)
    shares = weight.reshape((-1,) + (1,) * (precisions.ndim - 1))
    slopes = precisions - shares * pooled
    falls = prior + (likelihood - strength * slopes[:, None]) / shares[:, None]
    along = extremes = falls
    if precisions.ndim == 3:
        basis = np.linalg.eigh(pooled + prior[0, 0])[1]
        along = np.einsum("ij,spik,kj->spj", basis, falls, basis)
        extremes = np.linalg.eigvalsh(falls)
    factors = np.einsum("s,spj->pj", weight, (1 - step_size / 2 * along) ** (2 * local_steps))
    found = Examination(
        None, np.ones(len(gaussians), bool), extremes.min(axis=-1), extremes.max(axis=-1)
    )
    return found, factors[None]

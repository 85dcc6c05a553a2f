"""Where a model's prior has its mass, which is the unit of what a site may be asked."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from consortia.core.target import Target

PROBES = 8
"""Random signs along which curvatures are taken; one is enough for independent parameters."""


class PriorScale(NamedTuple):
    """The centre of the prior and its standard deviations, (d,) each.

    Those of a normal prior, found from its gradient and curvature; of another one those of the
    normal density that has the same at the start. A parameter without a curvature there (no prior,
    or a flat one) has the start as its centre and 1 as its standard deviation.
    """

    centre: np.ndarray
    sd: np.ndarray

    def distance(self, positions: np.ndarray, origin: np.ndarray | None = None) -> np.ndarray:
        """Return |θ_i − origin_i| / sd_i, (..., d); from the centre when ``origin`` is None."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.abs(positions - (self.centre if origin is None else origin)) / self.sd


def prior_scale(target: Target, start: np.ndarray) -> PriorScale:
    """Return the scale of a model's prior, looked at from ``start`` (d,)."""
    signs = np.sign(np.random.default_rng(0).uniform(-1, 1, (PROBES, target.dimension)))

    def curvature(sign: jax.Array) -> jax.Array:
        return -sign * jax.jvp(jax.grad(target.log_prior), (at,), (sign,))[1]

    at = jnp.asarray(start, target.dtype)
    gradient = np.asarray(jax.jit(jax.grad(target.log_prior))(at), np.float64)
    curvatures = jax.jit(jax.vmap(curvature))(jnp.asarray(signs, target.dtype))
    precision = np.mean(np.asarray(curvatures, np.float64), axis=0)
    known = np.isfinite(precision) & (precision > 0) & np.isfinite(gradient)
    variance = 1 / np.where(known, precision, 1.0)
    centre = np.asarray(start, np.float64) + np.where(known, gradient, 0.0) * variance
    return PriorScale(centre, np.sqrt(variance))

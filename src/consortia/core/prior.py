"""Location and scale of a model's prior, used to bound queries to a site."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Float

from consortia.core.arrays import namespace
from consortia.core.model import Model
from consortia.core.target import Target
from consortia.runtime.late import Array, jax, jnp

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


_newest: WeakKeyDictionary[Model, tuple[Any, PriorScale]] = WeakKeyDictionary()
"""The latest start and scale of each model."""


def prior_scale(target: Target, start: np.ndarray) -> PriorScale:
    """Return the scale of a model's prior, looked at from ``start`` (d,).

    It is kept, so that a second run of a model compiles nothing. Its arrays are read-only.
    """
    position = np.asarray(start, target.dtype)
    key = target.shapes, position.tobytes()
    known, scale = _newest.get(target.model, (None, None))
    if scale is None or known != key:
        centre, sd = (np.array(values, np.float64) for values in _normal_of(target, position))
        scale = PriorScale(centre, np.where(np.isfinite(sd), sd, 1.0))
        for values in scale:
            values.flags.writeable = False
        _newest[target.model] = key, scale
    return scale


def _normal_of(target: Target, position: np.ndarray) -> tuple[Any, Any]:
    if target.model.host is None:
        return jax.jit(partial(normal_at, target))(jnp.asarray(position))
    signs = _signs(target.dimension)
    gradient, hessian = target.prior_gradient(position), target.prior_hessian(position)
    return normal_by(position, gradient, -(signs * (signs @ hessian)).mean(axis=0))


def _signs(dimension: int) -> np.ndarray:
    return np.sign(np.random.default_rng(0).uniform(-1, 1, (PROBES, dimension)))


def normal_at(
    target: Target, start: Float[Array, " d"]
) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Return the same centre and standard deviations as `prior_scale`, infinite where unknown."""
    signs = _signs(target.dimension)

    def curvature(sign: Array) -> Array:
        return -sign * jax.jvp(jax.grad(target.log_prior), (start,), (sign,))[1]

    gradient = jax.grad(target.log_prior)(start)
    precision = jnp.mean(jax.vmap(curvature)(jnp.asarray(signs, target.dtype)), axis=0)
    return normal_by(start, gradient, precision)


def normal_by(start: Any, gradient: Any, precision: Any) -> tuple[Any, Any]:
    """Return the same from the gradient at the start and the diagonal of minus the curvature."""
    xp = namespace(gradient)
    known = xp.isfinite(precision) & (precision > 0) & xp.isfinite(gradient)
    precision = xp.where(known, precision, 1)
    centre = start + xp.where(known, gradient, 0) / precision
    return centre, xp.where(known, 1 / xp.sqrt(precision), xp.inf)

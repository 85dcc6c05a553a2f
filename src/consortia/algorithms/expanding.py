r"""A method that first expands the posterior around its mode, for a prediction of its bias.

.. math::
    \theta \leftarrow \theta - (H + \lambda I)^{-1} g, \qquad
    g = \sum_c g_c - \nabla\log p, \quad H = \sum_c H_c - \nabla^2\log p

`NEWTON_STEPS` times from the model's own start, with gradient and Hessian of every site's
log-likelihood summed at the hub; then each site leaves its own at the mode, and its Hessian a
little away from it. All of it is in ``fit``, so that whatever carries the method carries this too,
and a site that lets nothing of that kind leave refuses the study.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.core.contract import Algorithm, Evaluation, Info, Method, Phase, Site, Sum
from consortia.core.target import Target, parameters_of
from consortia.runtime.late import Array, jax, jnp
from consortia.surrogates.curvature import all_rows, hessian, log_likelihood
from consortia.surrogates.newton import damped

Flat = Float[Array, " d"]
Square = Float[Array, "d d"]
Scalar = Float[Array, ""]

NEWTON_STEPS = 12
"""One message to each site a step; a generalised linear model needs about six."""

TOLERANCE = 1e-4
"""Bound on g'H⁻¹g at the last step, the squared distance to the mode in standard deviations."""

AWAY = 2.0
"""Standard deviations from the mode at which the Hessian is evaluated again."""


class Second(NamedTuple):
    """A function's value and two derivatives at a point."""

    value: Scalar
    gradient: Flat
    hessian: Square


class Points(NamedTuple):
    """Points of the expansion: the next one, the best so far, and one away from it."""

    trial: Flat
    best: Flat
    away: Flat


class Search(NamedTuple):
    """The hub's state: the best point, the function there, and the step that is tried."""

    best: Flat
    at: Second
    damping: Scalar
    change: Flat


class Left(NamedTuple):
    """A site's −log-likelihood: gradient and Hessian at the mode, Hessian away."""

    gradient: Flat
    hessian: Square
    away: Square


class Expanding(Method):
    """A method that expands the posterior first; made by `expanding`."""


def expanding(method: Method) -> Method:
    """Return the method with phases before it that expand the posterior around its mode.

    A method that fits something itself is returned as it is.
    """
    if isinstance(method, Expanding):
        return method
    made: Any = object.__new__(_expanding(type(method)))
    vars(made).update(vars(method))
    return made


@functools.cache
def _expanding(kind: type[Method]) -> type[Method]:
    def build(self: Any, target: Any) -> Algorithm:
        algorithm = kind.build(self, target)
        return algorithm if algorithm.fit else algorithm._replace(fit=_phases(target))

    return type(kind.__name__, (Expanding, kind), {"build": build, "__module__": kind.__module__})


def expands_first(algorithm: Algorithm) -> bool:
    """Return True if an algorithm begins with the phases of this module."""
    hub = algorithm.fit[0].hub if algorithm.fit else None
    return isinstance(hub, partial) and hub.func is _begin


def expansion_left(
    fitted: Any,
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]] | None:
    """Return mode, the point away, and of all sites gradients, Hessians, Hessians away.

    None where the mode was not reached.

    Args:
        fitted: of a run of an `Expanding` method, node axis first.
    """
    left, (points, fall) = fitted
    if not float(np.asarray(fall)[0]) <= TOLERANCE:
        return None
    mode, away = (np.asarray(part, np.float64)[0] for part in (points.best, points.away))
    gradients, hessians, there = (np.asarray(part, np.float64) for part in left)
    return mode, away, (gradients, hessians, there)


def _phases(target: Target) -> tuple[Phase, ...]:
    start = target.ravel(parameters_of(target.model, None, jax.random.key(0)))
    first = Phase(
        partial(_expand, target, lambda inbox: start),
        Sum(),
        hub=partial(_begin, target, start),
        evaluation=None,
    )
    step = Phase(
        partial(_expand, target, lambda inbox: inbox.trial),
        Sum(),
        hub=partial(_newton, target),
        repeat=NEWTON_STEPS,
        evaluation=lambda inbox: Evaluation(inbox.trial),
    )
    last = Phase(
        partial(_leave, target),
        Sum(),
        hub=_end,
        evaluation=lambda inbox: Evaluation(jnp.stack([inbox.best, inbox.away], axis=-2)),
    )
    return first, step, last


# --- at a site -----------------------------------------------------------------------------------


def _second(target: Target, position: Flat, site: Site) -> Second:
    rows, weights = all_rows(site, position.dtype)

    def negative(theta: Array) -> Array:
        return -log_likelihood(target, theta, rows, weights)

    value, gradient = jax.value_and_grad(negative)(position)
    return Second(value, gradient, hessian(negative, position, full=True))


def _expand(
    target: Target,
    at: Callable[[Any], Flat],
    noise: Any,
    shared: Any,
    state: tuple[()],
    inbox: Any,
    site: Site,
) -> tuple[tuple[()], Second, Info]:
    return state, _second(target, at(inbox), site), {}


def _leave(
    target: Target, noise: Any, shared: Any, state: tuple[()], inbox: Points, site: Site
) -> tuple[Left, Scalar, Info]:
    here = _second(target, inbox.best, site)
    away = _second(target, inbox.away, site).hessian
    return Left(here.gradient, here.hessian, away), jnp.zeros((), inbox.best.dtype), {}


# --- at the hub ----------------------------------------------------------------------------------


def _whole(target: Target, position: Flat, sites: Second) -> Second:
    """Return −log-posterior and its derivatives from the sums over the sites."""

    def prior(theta: Array) -> Array:
        return -target.log_prior(theta)

    value, gradient = jax.value_and_grad(prior)(position)
    return Second(
        sites.value + value,
        sites.gradient + gradient,
        sites.hessian + hessian(prior, position, full=True),
    )


def _begin(
    target: Target, start: Flat, shared: Any, hub: Any, message: Second
) -> tuple[Search, Points, Info]:
    at = _whole(target, start, message)
    search = _tried(start, at, jnp.full((), 1e-3, start.dtype))
    return search, _points(search), {}


def _newton(
    target: Target, shared: Any, search: Search, message: Second
) -> tuple[Search, Points, Info]:
    """Take the step that was tried when the function fell; see `surrogates.newton`."""
    trial = search.best + search.change
    there = _whole(target, trial, message)
    fall = -jnp.dot(search.at.gradient, search.change)
    # Near the minimum a fall is lost in the rounding of the sum.
    slack = 8 * jnp.finfo(trial.dtype).eps * jnp.abs(search.at.value)
    finite = jnp.all(jnp.isfinite(there.hessian)) & jnp.all(jnp.isfinite(there.gradient))
    better = (fall >= 0) & (there.value <= search.at.value + slack) & finite
    smaller = jnp.where(search.damping < 1e-2, 0, search.damping / 10)
    larger = jnp.maximum(10 * search.damping, 1e-3)
    best = jnp.where(better, trial, search.best)
    at = jax.tree.map(lambda new, old: jnp.where(better, new, old), there, search.at)
    after = _tried(best, at, jnp.where(better, smaller, larger))
    return after, _points(after), {}


def _tried(best: Flat, at: Second, damping: Scalar) -> Search:
    change = -jnp.linalg.solve(damped(at.hessian, damping), at.gradient)
    return Search(best, at, damping, change)


def _points(search: Search) -> Points:
    spread = jnp.sqrt(jnp.maximum(jnp.diag(jnp.linalg.inv(search.at.hessian)), 0))
    return Points(search.best + search.change, search.best, search.best + AWAY * spread)


def _end(
    shared: Any, search: Search, message: Scalar
) -> tuple[Search, tuple[Points, Scalar], Info]:
    """Reply with the mode, and how far from it the search may still be."""
    fall = jnp.dot(search.at.gradient, jnp.linalg.solve(search.at.hessian, search.at.gradient))
    return search, (_points(search), jnp.abs(fall)), {}

r"""The search for a Gaussian surrogate before the first iteration, once for all chains.

1. Damped Newton steps to the mode, each with one message (U_c, ∇U_c, ∇²U_c) a site.
2. From the Laplace approximation there to the Gaussian q that is nearest to the posterior,
   :math:`\operatorname{E}_q \nabla U = 0` and :math:`\Lambda = \operatorname{E}_q \nabla^2 U`.
   By Stein's identity :math:`\operatorname{E}_q \nabla^2 U = S^{-\top} \operatorname{E}_q[\zeta
   \nabla U^\top]`, :math:`\theta = m + S\zeta`, so that gradients at common points ±ζ are enough;
   one message (mean gradient, mean product) a site and step.

The mode of a skew posterior lies off its mass: there a Laplace approximation proposes badly.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from jaxtyping import Float

from consortia.algorithms.surrogate_hmc.state import Hub
from consortia.core.contract import Evaluation, Info, Phase, Site, Sum
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.dynamics import metropolis
from consortia.runtime.late import Array, PyTree, jax, jnp
from consortia.surrogates.curvature import damped, hessian

Vector = Float[Array, " d"]
Scalar = Float[Array, ""]

NEWTON_STEPS = 10

AVERAGING_STEPS = 6

PAIRS = 128
"""Points of an averaging step, each with its mirror image."""

LARGEST_CHANGE = 4.0
"""An averaging step changes no variance by more than this factor."""


class Best(NamedTuple):
    """The best point so far, with U, ∇U and ∇²U there."""

    position: Vector
    potential: metropolis.Potential
    gradient: Vector
    precision: Float[Array, "d d"]


class Found(NamedTuple):
    """The server's reply to all sites; the last one stays at each.

    Where to look next, m, Λ of the Laplace approximation, the squared distance to the mode in
    standard deviations, and S, () as long as the mode is sought.
    """

    look: Vector
    mean: Vector
    precision: Float[Array, "d d"]
    decrement: Scalar
    root: PyTree[Float[Array, "d d"]] = ()


class Search(NamedTuple):
    """The server's search: the best point, the damping of the next step, and its last reply."""

    best: Best
    damping: Scalar
    found: Found


def begin(position: Vector) -> Search:
    """Return the search before its first message."""
    zero, identity = jnp.zeros((), position.dtype), jnp.eye(position.size, dtype=position.dtype)
    highest = metropolis.Potential(zero + jnp.inf, zero)
    best = Best(position, highest, jnp.zeros_like(position), identity)
    return Search(best, zero, Found(position, position, identity, zero))


def phases(target: Target) -> tuple[Phase, ...]:
    """Return the phases of the search; the last reply stays at the sites."""
    newton = Phase(
        partial(_curvature, target),
        Sum(),
        hub=_descend,
        repeat=NEWTON_STEPS,
        evaluation=lambda inbox: Evaluation(inbox.look),
    )
    average = Phase(
        partial(_average, target),
        Sum(),
        hub=_nearer,
        shared=lambda rng: _points(target, rng),
        repeat=AVERAGING_STEPS,
        # The points spread around the mean, in each coordinate.
        evaluation=lambda inbox: Evaluation(
            inbox.mean, (inbox.root**2).sum(axis=-1) ** 0.5, 2 * PAIRS
        ),
    )
    return (newton, Phase(None, hub=_rooted), average)


def _replied(hub: Hub, found: Found) -> tuple[Hub, Found, Info]:
    return hub._replace(search=hub.search._replace(found=found)), found, {}


# --- the Laplace approximation -------------------------------------------------------------------


def _curvature(
    target: Target, noise: PyTree, shared: PyTree, state: PyTree, inbox: Found, site: Site
) -> tuple[PyTree, PyTree, Info]:
    """Send U_c, ∇U_c and ∇²U_c at the server's point."""
    rows, mask = site.all()
    potential, gradient = metropolis.potential_and_gradient(target, inbox.look, site)

    def function(theta: Vector) -> Scalar:
        return target.potential(theta, rows, mask, site)

    return state, (potential, gradient, hessian(function, inbox.look, full=True)), {}


def _descend(shared: PyTree, hub: Hub, message: PyTree) -> tuple[Hub, Found, Info]:
    """Make a damped Newton step from the best point so far; the reply is where to look next."""
    potential, gradient, precision = message
    best, damping, found = hub.search
    fell = potential.above(best.potential)
    better = (fell < 0) & jnp.all(jnp.isfinite(precision)) & jnp.all(jnp.isfinite(gradient))
    trial = Best(found.look, potential, gradient, precision)
    best = jax.tree.map(lambda a, b: jnp.where(better, a, b), trial, best)
    damping = jnp.where(better, damping / 10, jnp.maximum(10 * damping, 0.01))
    step = jnp.linalg.solve(damped(best.precision, damping), best.gradient)
    newton = jnp.linalg.solve(best.precision, best.gradient)
    decrement = jnp.sum(newton * best.gradient)
    mean = best.position - jnp.where(decrement < 1, newton, 0)
    found = Found(best.position - step, mean, best.precision, decrement)
    return _replied(hub._replace(search=Search(best, damping, found)), found)


# --- the nearest Gaussian ------------------------------------------------------------------------


def _rooted(shared: PyTree, hub: Hub, message: PyTree) -> tuple[Hub, Found, Info]:
    """Reply with the Laplace approximation and a root S of its covariance."""
    found = hub.search.found
    lower = jnp.linalg.cholesky((found.precision + found.precision.T) / 2)
    identity = jnp.eye(lower.shape[0], dtype=lower.dtype)
    # Λ = LLᵀ, so that S = L⁻ᵀ has SSᵀ = Λ⁻¹.
    root = jax.scipy.linalg.solve_triangular(lower, identity, lower=True).T
    return _replied(hub, found._replace(root=root))


def _points(target: Target, rng: RandomStreams) -> Float[Array, "pairs d"]:
    """Return ζ of the pairs, common to all sites."""
    return rng.normal("points", (PAIRS, target.dimension))


def _average(
    target: Target,
    noise: PyTree,
    shared: Float[Array, "pairs d"],
    state: PyTree,
    inbox: Found,
    site: Site,
) -> tuple[PyTree, PyTree, Info]:
    """Send the mean of ∇U_c and of ζ ∇U_cᵀ over the points ±ζ."""
    white = jnp.concatenate([shared, -shared])

    def gradient(position: Vector) -> Vector:
        return metropolis.potential_and_gradient(target, position, site)[1]

    positions = inbox.mean[None] + white @ inbox.root.T
    gradients = metropolis.at_all(target, gradient, positions, site)
    return state, (jnp.mean(gradients, axis=0), white.T @ gradients / white.shape[0]), {}


def _nearer(shared: Float[Array, "pairs d"], hub: Hub, message: PyTree) -> tuple[Hub, Found, Info]:
    """Step with mean and covariance towards the nearest Gaussian."""
    found = hub.search.found
    root = found.root
    gradient, product = root.T @ message[0], message[1] @ root
    # With U = |ζ|²/2 the product would be that of the points alone: take its error out.
    identity = jnp.eye(gradient.size, dtype=gradient.dtype)
    curvature = identity + product - shared.T @ shared / shared.shape[0]
    values, axes = jnp.linalg.eigh((curvature + curvature.T) / 2)
    values = jnp.clip(values, 1 / LARGEST_CHANGE, LARGEST_CHANGE)
    mean = found.mean - root @ (axes @ ((axes.T @ gradient) / values))
    new = found._replace(mean=mean, root=root @ (axes / jnp.sqrt(values)[None]))
    finite = jnp.all(jnp.isfinite(new.mean)) & jnp.all(jnp.isfinite(new.root))
    return _replied(hub, jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, found))

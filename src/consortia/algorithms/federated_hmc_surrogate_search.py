r"""How the server of federated HMC looks for a Gaussian surrogate before the first iteration.

Once for all chains:

1. damped Newton steps to the mode, each with one message (U_c, ∇U_c, ∇²U_c) a site;
2. from the Laplace approximation there to the Gaussian q that is nearest to the posterior,
   :math:`\operatorname{E}_q \nabla U = 0` and :math:`\Lambda = \operatorname{E}_q \nabla^2 U`.
   By Stein's identity :math:`\operatorname{E}_q \nabla^2 U = S^{-\top} \operatorname{E}_q[\zeta
   \nabla U^\top]`, :math:`\theta = m + S\zeta`, so that gradients at common points ±ζ are enough;
   one message (mean gradient, mean product) a site and step.

The mode of a skew posterior lies off its mass: there a Laplace approximation proposes badly.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from consortia.core.contract import Site
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.dynamics import metropolis
from consortia.surrogates.curvature import hessian

Array = jax.Array

NEWTON_STEPS = 10

AVERAGING_STEPS = 6
PAIRS = 128
"""Points of an averaging step, each with its mirror image."""

LARGEST_CHANGE = 4.0
"""An averaging step changes no variance by more than this factor."""

VALUES_AT_ONCE = 2**22
"""Row values that a site holds at once when it evaluates many points."""

# --- fit: the Laplace approximation --------------------------------------------------------------


def start(position: Array) -> Any:
    """The server's search for the mode: the best point so far and the damping."""
    d, zero = position.size, jnp.zeros((), position.dtype)
    best = {
        "position": position,
        "potential": metropolis.Potential(zero + jnp.inf, zero),
        "gradient": jnp.zeros_like(position),
        "precision": jnp.eye(d, dtype=position.dtype),
    }
    return {"best": best, "damping": zero, "decrement": zero + jnp.inf}


def look(target: Target, noise: Any, shared: Any, state: Any, inbox: Any, site: Site) -> Any:
    """The message is U_c, ∇U_c and ∇²U_c at the server's point."""
    position = inbox["look"]
    rows, mask = site.all()
    potential, gradient = metropolis.potential_and_gradient(target, position, site)

    def function(theta: Array) -> Array:
        return target.potential(theta, rows, mask, site)

    return state, (potential, gradient, hessian(function, position, full=True)), {}


def descend(shared: Any, hub: Any, message: Any) -> Any:
    """A damped Newton step from the best point so far; the reply is where to look next."""
    potential, gradient, precision = message
    server, hub = hub, dict(hub["fit"])
    trial = {
        "position": hub["next"],
        "potential": potential,
        "gradient": gradient,
        "precision": precision,
    }
    fell = potential.above(hub["best"]["potential"])
    better = (fell < 0) & jnp.all(jnp.isfinite(precision)) & jnp.all(jnp.isfinite(gradient))
    best = jax.tree.map(lambda a, b: jnp.where(better, a, b), trial, hub["best"])
    scale = jnp.max(jnp.abs(jnp.diag(best["precision"])))
    damping = jnp.where(better, hub["damping"] / 10, jnp.maximum(10 * hub["damping"], scale / 100))
    identity = jnp.eye(gradient.size, dtype=gradient.dtype)
    step = jnp.linalg.solve(best["precision"] + damping * identity, best["gradient"])
    newton = jnp.linalg.solve(best["precision"], best["gradient"])
    decrement = jnp.sum(newton * best["gradient"])
    after = {"best": best, "damping": damping, "decrement": decrement}
    after["next"] = best["position"] - step
    found = {
        "look": after["next"],
        "mean": best["position"] - jnp.where(decrement < 1, newton, 0),
        "precision": best["precision"],
        "decrement": decrement,
    }
    return server | {"fit": after, "found": found}, found, {}


# --- fit: the nearest Gaussian -------------------------------------------------------------------


def rooted(shared: Any, hub: Any, message: Any) -> Any:
    """The reply is the Laplace approximation with a root S of its covariance."""
    found = hub["found"]
    lower = jnp.linalg.cholesky((found["precision"] + found["precision"].T) / 2)
    identity = jnp.eye(lower.shape[0], dtype=lower.dtype)
    # Λ = LLᵀ, so that S = L⁻ᵀ has SSᵀ = Λ⁻¹.
    root = jax.scipy.linalg.solve_triangular(lower, identity, lower=True).T
    gaussian = {"mean": found["mean"], "root": root}
    found = found | gaussian
    return hub | {"found": found}, found, {}


def points(target: Target, rng: RandomStreams) -> Array:
    """ζ of the pairs, common to all sites."""
    return rng.normal("points", (PAIRS, target.dimension))


def average(target: Target, noise: Any, shared: Array, state: Any, inbox: Any, site: Site) -> Any:
    """The message is the mean of ∇U_c and of ζ ∇U_cᵀ over the points ±ζ."""
    white = jnp.concatenate([shared, -shared])

    def gradient(position: Array) -> Array:
        return metropolis.potential_and_gradient(target, position, site)[1]

    positions = inbox["mean"][None] + white @ inbox["root"].T
    gradients = at_all(gradient, positions, site)
    return state, (jnp.mean(gradients, axis=0), white.T @ gradients / white.shape[0]), {}


def nearer(shared: Array, hub: Any, message: Any) -> Any:
    """A Newton step of the mean and a step of the covariance towards the nearest Gaussian."""
    found = hub["found"]
    root = found["root"]
    gradient, product = root.T @ message[0], message[1] @ root
    # With U = |ζ|²/2 the product would be that of the points alone: take its error out.
    identity = jnp.eye(gradient.size, dtype=gradient.dtype)
    curvature = identity + product - shared.T @ shared / shared.shape[0]
    values, axes = jnp.linalg.eigh((curvature + curvature.T) / 2)
    values = jnp.clip(values, 1 / LARGEST_CHANGE, LARGEST_CHANGE)
    new = {
        "mean": found["mean"] - root @ (axes @ ((axes.T @ gradient) / values)),
        "root": root @ (axes / jnp.sqrt(values)[None]),
    }
    finite = jnp.all(jnp.isfinite(new["mean"])) & jnp.all(jnp.isfinite(new["root"]))
    found = found | {name: jnp.where(finite, new[name], found[name]) for name in new}
    return hub | {"found": found}, found, {}


def at_all(function: Any, positions: Array, site: Site) -> Any:
    """A function of a position at each of (n, d), as many at once as memory allows."""
    rows, _ = site.all()
    length = jax.tree.leaves(rows)[0].shape[0]
    at_once = int(min(max(VALUES_AT_ONCE // length, 1), positions.shape[0]))
    return jax.lax.map(function, positions, batch_size=at_once)

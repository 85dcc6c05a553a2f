r"""Coordinates in which a hierarchical posterior is nearer to a t, where groups are integrated out.

Given the standard deviation τ between J groups, their common level is known up to √(v + τ²/J), and
log τ has the tail of an exponential law to the left: with few groups both are far from a t. The
family is fitted in white coordinates ζ of φ = m + Sζ, and the model is asked at θ,

.. math::
    \theta_k = \begin{cases} \varphi_k & \varphi_k \ge m_k \\
               m_k - u - u^2/2,\quad u = m_k - \varphi_k & \varphi_k < m_k\end{cases}
    \quad (k \text{ a } \log\tau), \qquad
    \theta_j = m_j + (\varphi_j - m_j)\sqrt{\frac{v_j + s_j^2}{v_j + s_j(m)^2}}

with m the mode, v + s(m)² the variances of its Laplace approximation, and s = τ/√J from the model
(`Model.group_sd`), 0 of all parameters on which it depends, so that the map is one to one.
log |dθ/dφ| is added to log π: what is sampled stays the same.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from consortia.algorithms.few_rounds.family import Family
from consortia.algorithms.few_rounds.state import Hub
from consortia.core.target import Target

OWN_SHARE = 0.1
"""Of the variance at the mode, the least that is v."""


class Widening(NamedTuple):
    """m, and v + s(m)² of every coordinate."""

    mode: Float[Array, " d"]
    variance: Float[Array, " d"]


def widened(
    target: Target, widening: Widening | tuple[()], positions: Float[Array, "N d"]
) -> tuple[Float[Array, "N d"], Float[Array, " N"]]:
    """Return θ of φ, and log |dθ/dφ|; φ and 0 of a model without groups that are integrated out."""
    if not isinstance(widening, Widening):
        return positions, jnp.zeros_like(positions[:, 0])
    mode = widening.mode[None]
    spreads = jnp.any(jax.jacfwd(target.group_sd)(widening.mode) != 0, axis=0)
    below = jnp.where(spreads[None], jnp.maximum(mode - positions, 0), 0)
    positions = positions - below**2 / 2

    at_mode = target.group_sd(widening.mode) ** 2
    own = jnp.maximum(widening.variance - at_mode, OWN_SHARE * widening.variance)
    there = jax.vmap(target.group_sd)(positions) ** 2
    log_scale = 0.5 * (jnp.log(own[None] + there) - jnp.log(own + at_mode)[None])
    volume = jnp.sum(log_scale + jnp.log1p(below), axis=1)
    return mode + (positions - mode) * jnp.exp(log_scale), volume


def widening(target: Target, hub: Hub) -> Widening | tuple[()]:
    """Return where the map is narrow, and how much; () of a model without such groups."""
    if target.model.group_sd is None:
        return ()
    return Widening(hub.centre, jnp.sum(hub.root**2, axis=1))


def unwhitened(hub: Hub) -> Family:
    """Return the family of φ."""
    centres = hub.centre[None] + hub.family.centres @ hub.root.T
    return Family(hub.family.shares, centres, hub.root[None] @ hub.family.roots)


def parameters(
    target: Target, hub: Hub, points: Float[Array, "K d"]
) -> tuple[Float[Array, "K d"], Float[Array, " K"]]:
    """Return θ at white coordinates of φ, and log |dθ/dφ|."""
    return widened(target, widening(target, hub), hub.centre[None] + points @ hub.root.T)


def places(target: Target, hub: Hub, points: Float[Array, "K d"]) -> Float[Array, "K d"]:
    """Return the white coordinates of θ, where chains walk, at those of φ."""
    if target.model.group_sd is None:
        return points
    away = parameters(target, hub, points)[0] - hub.centre[None]
    return jnp.linalg.solve(hub.root, away.T).T

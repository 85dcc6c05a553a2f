"""The phases of federated averaging HMC: what a site does between two averages.

The functions take the method's parameters and the target first; with those bound they are the
phase functions of the contract.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from consortia import gradients
from consortia.core.contract import Site
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.dynamics import MassMatrix, leapfrog
from consortia.schedules import Schedule

Array = jax.Array


@dataclass(frozen=True)
class Settings:
    """The parameters of federated averaging HMC; see `consortia.fa_hmc`."""

    name: str
    step_size: Schedule
    leapfrog_steps: int
    local_steps: int
    batch_size: int | None
    replace: bool
    gradient_noise: float
    gradient_draws: int
    momentum_correlation: float
    debias: bool
    given_weights: tuple[float, ...] | None
    mass_matrix: MassMatrix
    temperature: float


def init(position: Array) -> Any:
    """No state at sites or hub; the inbox is θ."""
    return (), (), position


def init_debiased(position: Array) -> Any:
    """State: the anchor, ∇U_c there, and whether there is one; inbox: (θ, ∇f at the anchor)."""
    zero = jnp.zeros_like(position)
    state = {"anchor": position, "gradient": zero, "active": jnp.zeros((), bool)}
    return state, (), (position, zero)


def shared(method: Settings, target: Target, rng: RandomStreams) -> dict[str, Array]:
    """η of this round, and ξ where ρ > 0."""
    numbers = {"step_size": jnp.asarray(method.step_size(rng.iteration), target.dtype)}
    if method.momentum_correlation > 0:
        numbers["momentum"] = rng.normal("momentum", (method.local_steps, target.dimension))
    return numbers


def noise(method: Settings, target: Target, rng: RandomStreams) -> dict[str, Any]:
    """ξ_c where ρ < 1, and what the gradients need; leading axis T."""
    declare = _oracle(method, target).numbers
    inner = (method.local_steps, method.leapfrog_steps - 1, method.gradient_draws)
    numbers = {
        "first": declare(rng, "first", (method.local_steps, 1)),
        "inner": declare(rng, "inner", inner) if method.leapfrog_steps > 1 else (),
    }
    if method.momentum_correlation < 1:
        numbers["momentum"] = rng.normal("momentum", (method.local_steps, target.dimension))
    return numbers


def _oracle(method: Settings, target: Target, anchored: Any = None) -> gradients.GradientOracle:
    """The estimate of ∇U_c: exact or minibatch, de-biased and noisy where asked for."""
    oracle = gradients.exact(target)
    if method.batch_size is not None:
        oracle = gradients.minibatch(target, method.batch_size, replace=method.replace)
    if anchored is not None:
        oracle = gradients.control_variate(oracle, *anchored)
    if method.gradient_noise > 0:
        oracle = gradients.noisy(oracle, method.gradient_noise, target.dimension)
    return oracle


def _momentum_velocities(method: Settings, noise: Any, shared: Any, weight: Array) -> Array:
    """v = M⁻¹p of the T iterations, (T, d)."""
    correlation = method.momentum_correlation
    if correlation == 1:
        momentum = shared["momentum"]
    elif correlation == 0:
        momentum = noise["momentum"] / jnp.sqrt(weight)
    else:
        private = math.sqrt(1 - correlation) * noise["momentum"] / jnp.sqrt(weight)
        momentum = math.sqrt(correlation) * shared["momentum"] + private
    return method.mass_matrix.velocity(math.sqrt(method.temperature) * momentum)


def _iterate(
    method: Settings,
    oracle: gradients.GradientOracle,
    noise: Any,
    shared: Any,
    position: Array,
    site: Site,
) -> Array:
    """T HMC iterations from ``position`` with the force ∇f_c = ∇U_c / w_c."""
    evaluate = oracle.bind(site)
    weight = jnp.asarray(site.weight, position.dtype)
    inner_steps = method.leapfrog_steps - 1

    def force(numbers: Any, theta: Array) -> Array:
        return method.mass_matrix.solve(evaluate(numbers, theta) / weight)

    def iteration(theta: Array, numbers: Any) -> tuple[Array, None]:
        velocity, first, inner = numbers
        step_size = shared["step_size"]
        return leapfrog(force, theta, velocity, step_size, first, inner, inner_steps), None

    first = oracle.prepare(noise["first"], site)
    inner = oracle.prepare(noise["inner"], site) if inner_steps else ()
    velocities = _momentum_velocities(method, noise, shared, weight)
    return jax.lax.scan(iteration, position, (velocities, first, inner), length=method.local_steps)[
        0
    ]


def local(
    method: Settings,
    target: Target,
    noise: Any,
    shared: Any,
    state: Any,
    inbox: Array,
    site: Site,
) -> Any:
    """The message is θ_c after T iterations."""
    moved = _iterate(method, _oracle(method, target), noise, shared, inbox, site)
    return state, moved, {}


def local_debiased(
    method: Settings,
    target: Target,
    noise: Any,
    shared: Any,
    state: Any,
    inbox: Any,
    site: Site,
) -> Any:
    """The message is (θ_c, ∇f_c at the position of this round), next round's anchor."""
    position, mean_gradient = inbox
    weight = jnp.asarray(site.weight, position.dtype)
    anchored = (state["anchor"], state["gradient"], weight * mean_gradient, state["active"])
    here = gradients.exact(target).bind(site)((), position)
    moved = _iterate(method, _oracle(method, target, anchored), noise, shared, position, site)
    state = {"anchor": position, "gradient": here, "active": jnp.ones((), bool)}
    return state, (moved, here / weight), {}

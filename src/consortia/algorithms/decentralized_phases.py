"""The phases of decentralized MA-HMC and ULA: what an agent does between two exchanges.

The functions take the method's parameters and the target first; with those bound they are the phase
functions of the contract. An iteration of MA-HMC has two exchanges: of the trackers, then of
the positions. One of ULA has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from consortia import gradients
from consortia.core.contract import Site
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.graphs import MixingMatrix
from consortia.schedules import Schedule

Array = jax.Array


@dataclass(frozen=True)
class HMCSettings:
    """The parameters of `consortia.decentralized_hmc`."""

    name: str
    step_size: Schedule
    mixing: MixingMatrix | str
    variant: str
    leapfrog_steps: int
    gossip_rounds: int
    metropolis_from: int
    draws: str
    draw_before_mixing: bool

    @property
    def published(self) -> bool:
        """Full drift and a Metropolis test by Taylor expansion."""
        return self.variant == "published"


@dataclass(frozen=True)
class ULASettings:
    """The parameters of `consortia.decentralized_ula`."""

    name: str
    step_size: Schedule
    mixing: MixingMatrix | str
    decay: tuple[float, float]
    consensus: tuple[float, float, float]
    noise: str
    draws: str


# --- MA-HMC --------------------------------------------------------------------------------------


def init_hmc(method: HMCSettings, position: Array) -> Any:
    """Trackers and what was tracked last are zero; the inbox is ω."""
    zero = jnp.zeros_like(position)
    state = {"position": position, "momentum": zero, "gradient": zero, "tracked": zero}
    if method.published:
        none = jnp.zeros((), position.dtype)
        state |= {"curvature": none, "tracked_curvature": none}
    return state, (), position


def momentum(target: Target, rng: RandomStreams) -> Array:
    """p_i, the agent's own."""
    return rng.normal("momentum", (target.dimension,))


def step_shared(method: HMCSettings, target: Target, rng: RandomStreams) -> dict[str, Array]:
    """ε of this iteration, and whether its proposals are tested."""
    numbers = {"step_size": jnp.asarray(method.step_size(rng.iteration), target.dtype)}
    if method.published:
        numbers["testing"] = jnp.asarray(rng.iteration) >= method.metropolis_from
    return numbers


def step_noise(method: HMCSettings, rng: RandomStreams) -> Any:
    """u_i of the Metropolis test, the agent's own."""
    return rng.uniform("accept") if method.published else ()


def track(
    method: HMCSettings,
    target: Target,
    noise: Array,
    shared: Any,
    state: Any,
    inbox: Array,
    site: Site,
) -> Any:
    """The message is the tracker plus what is new: g + c − c_prev, and ℵ + a − a_prev."""
    rows, mask = site.all()

    def gradient_at(position: Array) -> Array:
        return jax.grad(target.potential)(position, rows, mask, site)

    after = state | {"position": inbox, "momentum": noise}
    if not method.published:
        gradient = gradient_at(inbox)
        after["gradient"] = gradient
        return after, (state["tracked"] + (gradient - state["gradient"]), ()), {}
    # Forward over reverse: the gradient and the product of the Hessian with p in one go.
    gradient, product = jax.jvp(gradient_at, (inbox,), (noise,))
    curvature = jnp.sum(noise * product)
    after |= {"gradient": gradient, "curvature": curvature}
    message = (
        state["tracked"] + (gradient - state["gradient"]),
        state["tracked_curvature"] + (curvature - state["curvature"]),
    )
    return after, message, {}


def step(
    method: HMCSettings,
    target: Target,
    noise: Any,
    shared: Any,
    state: Any,
    inbox: Any,
    site: Site,
) -> Any:
    """The step with the tracked gradient; the message is ω after it."""
    tracked, tracked_curvature = inbox
    position, step_size = state["position"], shared["step_size"]
    after = state | {"tracked": tracked}
    drift = step_size if method.published else step_size / 2
    moved = position - step_size * (state["momentum"] + drift * tracked)
    info = {}
    if method.published:
        after["tracked_curvature"] = tracked_curvature
        change = step_size**2 / 2 * (tracked_curvature + jnp.sum(tracked**2))
        rate = jnp.exp(jnp.minimum(-change, 0))
        accepted = (noise < rate) | ~shared["testing"]
        accepted &= jnp.all(jnp.isfinite(moved))
        moved = jnp.where(accepted, moved, position)
        info["accepted"] = accepted
    # Until the next exchange "position" is where the agent stood before it mixed.
    after["position"] = moved
    return after, moved, info


def drawn_hmc(method: HMCSettings, state: Any, inbox: Any) -> Array:
    """An agent's position, after mixing unless asked otherwise."""
    return state["position"] if method.draw_before_mixing else inbox


# --- ULA -----------------------------------------------------------------------------------------


def init_ula(position: Array) -> Any:
    """The state is ω; the inbox is what was heard of the neighbours' ω."""
    return {"position": position}, (), position


def ula_shared(method: ULASettings, target: Target, rng: RandomStreams) -> dict[str, Array]:
    """α_t and β_t."""
    time = jnp.asarray(rng.iteration, target.dtype)
    power, offset = method.decay
    first, slow, start = method.consensus
    alpha = jnp.asarray(method.step_size(rng.iteration), target.dtype) * (time + offset) ** -power
    return {"step_size": alpha, "consensus": first * (time + start) ** -slow}


def ula_noise(target: Target, rng: RandomStreams) -> Array:
    """v_i, the agent's own."""
    return rng.normal("noise", (target.dimension,))


def langevin(
    method: ULASettings,
    target: Target,
    share_of: Any,
    noise: Array,
    shared: Any,
    state: Any,
    inbox: Array,
    site: Site,
) -> Any:
    """One step of ULA; the message is the new position.

    ``share_of`` gives δ of the exchange's matrix I − δL from the number of agents, so that the
    inbox holds ω − δLω.
    """
    position, alpha = state["position"], shared["step_size"]
    agents = 1 / jnp.asarray(site.weight, target.dtype)
    gradient = gradients.exact(target).bind(site)((), position)
    disagreement = (position - inbox) / share_of(agents)
    heat = 2 * alpha * (agents if method.noise == "corrected" else 1)
    moved = (
        position
        - shared["consensus"] * disagreement
        - alpha * agents * gradient
        + jnp.sqrt(heat) * noise
    )
    return {"position": moved}, moved, {}

"""The phases of the gossip samplers: what an agent does between two exchanges.

The functions take the method's parameters and the target first; with those bound they are the
phase functions of the contract. The inbox of an agent is what mixing changes at it:
Σ_j W_ij (x_j − x_i) of the positions that all agents had before this step.
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
from consortia.graphs import MixingMatrix, MixingSchedule
from consortia.schedules import Schedule

Array = jax.Array


@dataclass(frozen=True)
class Settings:
    """The parameters of a gossip sampler; see `consortia.de_sgld` and `consortia.de_sghmc`.

    Attributes:
        friction: γ of DE-SGHMC, None for DE-SGLD.
        anchor: the point of the control variate, None without one.
    """

    name: str
    step_size: Schedule
    friction: float | None
    mixing: MixingMatrix | MixingSchedule | str
    batch_size: int | None
    replace: bool
    correction: str | None
    noise: str
    averaged_noise: bool
    anchor: tuple[float, ...] | None
    draws: str
    temperature: float

    @property
    def corrected(self) -> bool:
        """Whether agents remember how they disagreed with their neighbours."""
        return self.correction == "extra"


def message(method: Settings, position: Array, shared: Any) -> Any:
    """What is sent: the position, and whose turn it is where the network changes.

    The next iteration hears it, so that iteration k is mixed by matrix number k.
    """
    if not isinstance(method.mixing, MixingSchedule):
        return position
    return {"position": position, "turn": shared["turn"]}


def init(method: Settings, position: Array) -> Any:
    """All agents start at one point, at which no W changes anything."""
    state = {"position": position}
    zero = jnp.zeros_like(position)
    if method.friction is not None:
        state["velocity"] = zero
    if method.corrected:
        state["disagreement"] = zero
    if method.averaged_noise:
        state["noise"] = zero
    return state, (), message(method, zero, {"turn": jnp.zeros((), jnp.int32)})


def shared(method: Settings, target: Target, rng: RandomStreams) -> dict[str, Array]:
    """η of this iteration, and the noise where it is common."""
    numbers = {"step_size": jnp.asarray(method.step_size(rng.iteration), target.dtype)}
    if isinstance(method.mixing, MixingSchedule):
        turns = jnp.asarray(len(method.mixing), jnp.int32)
        numbers["turn"] = (jnp.asarray(rng.iteration, jnp.int32) + jnp.ones((), jnp.int32)) % turns
    if method.noise == "common" and method.temperature > 0:
        numbers["noise"] = rng.normal("noise", (target.dimension,))
    return numbers


def noise(method: Settings, target: Target, rng: RandomStreams) -> dict[str, Any]:
    """The agent's own noise where it is independent, and what its gradient needs."""
    numbers = {"gradient": _estimate(method, target).numbers(rng, "gradient", (1,))}
    if method.noise == "independent" and method.temperature > 0:
        numbers["noise"] = rng.normal("noise", (target.dimension,))
    return numbers


def anchor_gradient(
    method: Settings, target: Target, noise: Any, shared: Any, state: Any, inbox: Array, site: Site
) -> Any:
    """∇U_i at the anchor, which stays with the site as ``fitted``."""
    anchor = jnp.asarray(method.anchor, target.dtype)
    return state, {"anchor": anchor, "gradient": gradients.exact(target).bind(site)((), anchor)}, {}


def langevin(
    method: Settings, target: Target, noise: Any, shared: Any, state: Any, inbox: Array, site: Site
) -> Any:
    """One step of DE-SGLD; the message is the new position."""
    step_size = shared["step_size"]
    gradient = _gradient(method, target, noise, state, site)
    after = dict(state)
    heard = _corrected(method, state, inbox, after)
    moved = heard - step_size * gradient
    number = _normal(noise, shared, site)
    if number is not None:
        if method.averaged_noise:
            after["noise"] = number
            number = (state["noise"] + number) / 2
        moved = moved + jnp.sqrt(2 * method.temperature * step_size) * number
    after["position"] = moved
    return after, message(method, moved, shared), {}


def hamiltonian(
    method: Settings, target: Target, noise: Any, shared: Any, state: Any, inbox: Array, site: Site
) -> Any:
    """One step of DE-SGHMC; the message is the new position."""
    friction = 0.0 if method.friction is None else method.friction
    step_size = shared["step_size"]
    gradient = _gradient(method, target, noise, state, site)
    velocity = state["velocity"] - step_size * (friction * state["velocity"] + gradient)
    number = _normal(noise, shared, site)
    if number is not None:
        velocity = velocity + jnp.sqrt(2 * friction * method.temperature * step_size) * number
    after = {**state, "velocity": velocity}
    moved = _corrected(method, state, inbox, after) + step_size * velocity
    after["position"] = moved
    return after, message(method, moved, shared), {}


def _estimate(method: Settings, target: Target) -> gradients.GradientOracle:
    if method.batch_size is None:
        return gradients.exact(target)
    return gradients.minibatch(target, method.batch_size, replace=method.replace)


def _gradient(method: Settings, target: Target, noise: Any, state: Any, site: Site) -> Array:
    """The estimate of ∇U_i at the agent's own position."""
    oracle = _estimate(method, target)
    if method.anchor is not None:
        _, fitted = site.fitted
        exact = fitted["gradient"]
        oracle = gradients.control_variate(
            oracle, fitted["anchor"], exact, exact, jnp.ones((), bool)
        )
    return oracle.bind(site)(oracle.prepare(noise["gradient"], site), state["position"])


def _corrected(method: Settings, state: Any, inbox: Any, after: dict[str, Array]) -> Array:
    """The mixed position, less the disagreement so far; the noise never enters the latter.

    The disagreement is summed from the change itself: taken from positions, rounding of one sign
    would add up to a force that moves all agents away.
    """
    change = inbox["position"] if isinstance(method.mixing, MixingSchedule) else inbox
    heard = state["position"] + change
    if not method.corrected:
        return heard
    after["disagreement"] = state["disagreement"] - change / 2
    return heard - state["disagreement"]


def _normal(noise: Any, shared: Any, site: Site) -> Array | None:
    """The agent's standard normal numbers, or w/√N of the common ones; None at temperature 0."""
    if "noise" in noise:
        return noise["noise"]
    if "noise" in shared:
        return shared["noise"] * jnp.sqrt(jnp.asarray(site.weight, shared["noise"].dtype))
    return None

"""The phases of a parameter server: a worker's gradient at what it fetched, and one step.

The functions take the method's parameters and the target first; with those bound they are the
phase functions of the contract. A worker's own numbers are counted by its task, the shared
ones by the server's update; a worker does not know at which update its gradient will arrive, and
``local`` therefore reads nothing of ``shared``.
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
from consortia.dynamics.state import Dynamics, State
from consortia.latency import Latency
from consortia.schedules import Schedule

Array = jax.Array


@dataclass(frozen=True)
class Settings:
    """The parameters of a stale sampler; see `consortia.stale_sgld` and its relatives.

    Attributes:
        step_sizes: one schedule, or one for each server.
        dynamics: what the server does with a gradient.
        extrapolate: steps that the broadcast point looks ahead along the momentum.
        given_shares: f_c as declared, None where the trace of events tells them.
        aggregate: "each" gradient by itself, or the sum of the "latest" of all sites.
        weighting: of the servers' estimates, by "time" or "equal".
    """

    name: str
    step_sizes: tuple[Schedule, ...]
    dynamics: Dynamics
    batch_size: int | None
    replace: bool
    workers: int
    servers: int
    max_staleness: int | None
    latency: Latency
    extrapolate: float
    given_shares: tuple[float, ...] | None
    aggregate: str
    weighting: str

    @property
    def remembers(self) -> bool:
        """Whether the server keeps the last gradient of every site."""
        return self.aggregate == "latest"


def init(method: Settings, position: Array) -> Any:
    """The server's state, and the start as the parameters that all workers hold.

    A chain starts at rest, so that every point that may be broadcast is the start itself.
    """
    hub: Any = method.dynamics.start(position)
    if method.remembers:
        hub = (hub, jnp.zeros((method.workers, position.size), position.dtype))
    return (), hub, position


def shared(method: Settings, target: Target, rng: RandomStreams) -> dict[str, Array]:
    """h of this update and of the next one, and ζ."""
    now, after = (_step_size(method, target, rng, rng.iteration + ahead) for ahead in (0, 1))
    return {
        "step_size": now,
        # A table has nothing for the step after the last one, which nobody will take.
        "following": jnp.where(jnp.isfinite(after), after, now),
        "normal": rng.normal("noise", (target.dimension,)),
    }


def _step_size(method: Settings, target: Target, rng: RandomStreams, update: Array) -> Array:
    values = [jnp.asarray(schedule(update), target.dtype) for schedule in method.step_sizes]
    if len(values) == 1:
        return values[0]
    return jnp.stack(values)[rng.server]


def noise(method: Settings, target: Target, rng: RandomStreams) -> dict[str, Any]:
    """What the gradient of a worker's task needs."""
    return {"gradient": _estimate(method, target).numbers(rng, "gradient", (1,))}


def _estimate(method: Settings, target: Target) -> gradients.GradientOracle:
    if method.batch_size is None:
        return gradients.exact(target)
    return gradients.minibatch(target, method.batch_size, replace=method.replace)


def gradient(
    method: Settings, target: Target, noise: Any, shared: Any, state: Any, inbox: Array, site: Site
) -> Any:
    """The message is ∇U_c/f_c at the fetched point; (∇U_c, c) where the server keeps the latest."""
    oracle = _estimate(method, target)
    value = oracle.bind(site)(oracle.prepare(noise["gradient"], site), inbox)
    if method.remembers:
        if site.number is None:
            raise TypeError("aggregate='latest' needs the number of the site")
        return state, (value, site.number), {}
    return state, value / jnp.asarray(site.weight, value.dtype), {}


def update(method: Settings, shared: Any, hub: Any, message: Any) -> Any:
    """One step at the server; the reply is the point at which the next gradient is wanted."""
    if method.remembers:
        state, table = hub
        value, site = message
        table = table.at[site].set(value)
        state = method.dynamics.step(
            state, jnp.sum(table, axis=0), shared["normal"], shared["step_size"]
        )
        return (state, table), _broadcast(method, state, shared["following"]), {}
    state = method.dynamics.step(hub, message, shared["normal"], shared["step_size"])
    return state, _broadcast(method, state, shared["following"]), {}


def _broadcast(method: Settings, state: State, step_size: Array) -> Array:
    """Where the next step wants its gradient, moved on along the momentum where asked for."""
    point = method.dynamics.point(state, step_size)
    if method.extrapolate == 0:
        return point
    return point + method.extrapolate * step_size * state.momentum


def draw(method: Settings, hub: Any, inbox: Array) -> Array:
    """θ after the update, not the point that was broadcast."""
    state = hub[0] if method.remembers else hub
    return state.position

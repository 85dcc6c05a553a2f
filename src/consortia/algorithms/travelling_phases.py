"""The phases of travelling chains: what happens at the site that a chain visits.

The functions take the method's parameters and the target first; with those bound they are the
phase functions of the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from consortia import gradients, surrogates
from consortia.core.contract import Site
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.schedules import Schedule

Array = jax.Array
Correct = Callable[[Site], surrogates.Correction]


@dataclass(frozen=True)
class Settings:
    """The parameters of travelling chains; see `consortia.dsgld` and `consortia.fsgld`."""

    name: str
    step_size: Schedule
    local_steps: int
    batch_size: int | None
    replace: bool
    surrogate: surrogates.Recipe | tuple[surrogates.Gaussian, ...] | None
    strength: float
    covariance: str
    given_probabilities: tuple[float, ...] | None
    record: str

    @property
    def keeps_path(self) -> bool:
        """Whether every local update is a draw (with T = 1 the end of a visit is)."""
        return self.record == "updates" and self.local_steps > 1


def init(method: Settings, position: Array) -> Any:
    """No state anywhere; the inbox is θ, with the updates of the visit before where recorded."""
    return (), (), (position, _path(method, position))


def _path(method: Settings, position: Array) -> Array | tuple[()]:
    if not method.keeps_path:
        return ()
    return jnp.broadcast_to(position[None], (method.local_steps, position.size))


def shared(method: Settings, target: Target, rng: RandomStreams) -> dict[str, Array]:
    """h of this round."""
    return {"step_size": jnp.asarray(method.step_size(rng.iteration), target.dtype)}


def noise(method: Settings, target: Target, rng: RandomStreams) -> dict[str, Any]:
    """ξ and the rows of T updates."""
    return {
        "gradient": _uncorrected(method, target).numbers(rng, "gradient", (method.local_steps, 1)),
        "normal": rng.normal("normal", (method.local_steps, target.dimension)),
    }


def _uncorrected(method: Settings, target: Target) -> gradients.GradientOracle:
    if method.batch_size is None:
        return gradients.exact(target)
    return gradients.minibatch(target, method.batch_size, replace=method.replace)


def visit(
    method: Settings,
    target: Target,
    correct: Correct | None,
    noise: Any,
    shared: Any,
    state: Any,
    inbox: Any,
    site: Site,
) -> Any:
    """T updates at one site; the message is the chain.

    With λ_s = w_s = f_s the estimate of ∇U_s divided by f_s is minus the drift d_s, prior included.
    """
    oracle = _uncorrected(method, target)
    if correct is not None:
        oracle = gradients.conducive(oracle, method.strength, correct)
    evaluate = oracle.bind(site)
    half_step = shared["step_size"] / (2 * jnp.asarray(site.weight, target.dtype))
    spread = jnp.sqrt(shared["step_size"])

    def update(position: Array, numbers: Any) -> tuple[Array, Any]:
        rows, normal = numbers
        position = position - half_step * evaluate(rows, position) + spread * normal
        return position, position if method.keeps_path else ()

    numbers = (oracle.prepare(noise["gradient"], site), noise["normal"])
    position, path = jax.lax.scan(update, inbox[0], numbers, length=method.local_steps)
    if correct is not None:
        # A runaway that is still finite would otherwise be returned as draws.
        position = jnp.where(correct(site).runaway(position), jnp.nan, position)
    if not method.keeps_path:
        return state, (position, ()), {}
    return state, (position, path.at[-1].set(position)), {}

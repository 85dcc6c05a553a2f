"""The phases of federated HMC: the server's trajectory, and the sites' gradients along it.

The functions take the method's parameters first; with those bound they are the phase functions of
`consortia.core.contract`. One iteration is

1. ``begin`` (server): a momentum, a number of steps, half a kick and the first drift;
2. ``leapfrog``, once for each step: U_c and ∇U_c at every site, their sum, a kick and a drift (half
   a kick and no drift at the end);
3. ``end`` (server): the Metropolis test, and in the warm-up what is learned from it.

The server keeps v = M⁻¹p and the impulse I = Σ (kick) ∇U, so that the kinetic energy changes by
−½ I·(v₀ + v), a product in which nothing large cancels.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from consortia.algorithms.federated_hmc_settings import Settings
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.dynamics import adaptation, metropolis

Array = jax.Array

# --- states ------------------------------------------------------------------------------------


def init(method: Settings, position: Array) -> Any:
    """Nothing at the sites; the server's state; the inbox is θ."""
    zero, vector = jnp.zeros((), position.dtype), jnp.zeros_like(position)
    count = jnp.zeros((), jnp.int32)
    here = {
        "position": position,
        "potential": metropolis.Potential(zero, zero),
        "gradient": vector,
    }
    trial = here | {
        "start_velocity": vector,
        "velocity": vector,
        "impulse": vector,
        "step_size": zero,
        "step": count,
        "steps": count,
    }
    hub = {
        "here": here,
        "trial": trial,
        "kinetic": zero,
        "messages": count,
        "learned": method.nothing_learned(position),
        "wire": method.wire.state(position),
    }
    return (), hub, method.wire.down(hub, position)


def drawn(hub: Any, inbox: Any) -> Array:
    """The draw: θ after the Metropolis test."""
    return hub["here"]["position"]


# --- server ------------------------------------------------------------------------------------


def start(method: Settings, shared: Any, hub: Any, message: Any) -> Any:
    """Keeps U and ∇U at the starting point."""
    potential, gradient, largest = message
    here = hub["here"] | {"potential": potential, "gradient": gradient}
    hub = method.wire.begun(hub | {"here": here}, largest)
    return hub, method.wire.down(hub, here["position"]), {}


def begin_numbers(method: Settings, target: Target, rng: RandomStreams) -> dict[str, Array]:
    """ξ of the momentum and, where it is given, the step size."""
    numbers = {"momentum": rng.normal("momentum", (target.dimension,)), **_time(rng)}
    if method.step_size is not None:
        numbers["step_size"] = jnp.asarray(method.step_size(rng.iteration), target.dtype)
    return numbers


def end_numbers(rng: RandomStreams) -> dict[str, Array]:
    """u of the Metropolis test."""
    return {"level": rng.uniform("accept"), **_time(rng)}


def _time(rng: RandomStreams) -> dict[str, Array]:
    return {"iteration": jnp.asarray(rng.iteration), "warmup": jnp.asarray(rng.warmup)}


def begin(method: Settings, shared: Any, hub: Any, message: Any) -> Any:
    """A fresh momentum, half a kick and the first drift; the reply is the new θ.

    Where the gradient at the start has to be evaluated anew, the reply is the old θ.
    """
    here, normal = hub["here"], shared["momentum"]
    step_size = method.step_size_in_use(shared, hub["learned"])
    velocity = method.velocity(hub["learned"], normal)
    trial = {
        **here,
        "start_velocity": velocity,
        "velocity": velocity,
        "impulse": jnp.zeros_like(velocity),
        "step_size": step_size,
        "step": jnp.zeros((), jnp.int32),
        "steps": method.steps(shared, hub["learned"], step_size),
    }
    if not method.wire.fresh_start:
        trial = _drifted(_kicked(method, hub["learned"], trial, step_size / 2))
    hub = hub | {"trial": trial, "kinetic": jnp.sum(normal**2) / 2}
    return hub, method.wire.down(hub, trial["position"]), {}


def leapfrog(method: Settings, shared: Any, hub: Any, message: Any) -> Any:
    """A kick with the summed gradient, and the next drift unless this was the last step."""
    potential, gradient, hub = method.wire.up(hub, message)
    trial = hub["trial"] | {"potential": potential, "gradient": gradient}
    last = trial["step"] + 1 >= evaluations(method, hub)
    half = last | (trial["step"] == 0) if method.wire.fresh_start else last
    step_size = trial["step_size"]
    trial = _kicked(method, hub["learned"], trial, jnp.where(half, step_size / 2, step_size))
    drifted = _drifted(trial)
    trial = trial | {
        "position": jnp.where(last, trial["position"], drifted["position"]),
        "step": trial["step"] + 1,
    }
    hub = hub | {"trial": trial}
    return hub, method.wire.down(hub, trial["position"]), {}


def evaluations(method: Settings, hub: Any) -> Array:
    """How often the sites are asked in this trajectory: once a step, and once at a fresh start."""
    return hub["trial"]["steps"] + int(method.wire.fresh_start)


def end(method: Settings, shared: Any, hub: Any, message: Any) -> Any:
    """The Metropolis test on the summed log-density; the reply is θ after it."""
    here, trial = hub["here"], hub["trial"]
    gained = jnp.sum(trial["impulse"] * (trial["start_velocity"] + trial["velocity"])) / 2
    energy_error = trial["potential"].above(here["potential"]) - gained
    # A point whose gradient is not finite could not be left again.
    usable = jnp.all(jnp.isfinite(trial["gradient"]))
    energy_error = jnp.where(usable, energy_error, jnp.nan)
    rate = metropolis.acceptance(energy_error)
    accepted = shared["level"] < rate
    energy = here["potential"].value + hub["kinetic"] + jnp.where(accepted, energy_error, 0)
    moved = {name: trial[name] for name in here}
    here = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), moved, here)
    info = {
        "acceptance_rate": rate,
        "diverging": ~(energy_error <= metropolis.DIVERGENT),
        "energy": energy,
        "energy_error": jnp.where(jnp.isfinite(energy_error), energy_error, jnp.inf),
        "n_steps": evaluations(method, hub),
        "step_size": trial["step_size"],
    }
    hub = hub | {"here": here, "messages": hub["messages"] + evaluations(method, hub)}
    if hub["learned"] is not None:
        hub["learned"] = adaptation.learned(
            hub["learned"],
            shared["iteration"],
            shared["warmup"],
            rate,
            here["position"],
            here["gradient"],
            wanted=method.target_acceptance,
            learn_variance=method.mass_matrix is None,
        )
    hub = method.wire.adapted(hub, shared)
    return hub, method.wire.down(hub, here["position"]), info


def _kicked(method: Settings, learned: Any, trial: Any, time: Array) -> Any:
    """The momentum after the force has acted for some time."""
    impulse = time * trial["gradient"]
    velocity = trial["velocity"] - method.solve(learned, impulse)
    return trial | {"velocity": velocity, "impulse": trial["impulse"] + impulse}


def _drifted(trial: Any) -> Any:
    return trial | {"position": trial["position"] + trial["step_size"] * trial["velocity"]}

r"""The phases of federated HMC with the force of a Gaussian surrogate.

With the force :math:`\Lambda(\theta - m)` and the mass matrix Λ a trajectory is a rotation,
exactly: in white coordinates :math:`\theta = m + S\zeta`, :math:`SS^\top = \Lambda^{-1}`, a turn
by the angle t leads to :math:`\zeta' = \cos(t)\,\zeta + \sin(t)\,\xi`, and the energy changes by
:math:`U(\theta') - U(\theta) - \tfrac12(|\zeta'|^2 - |\zeta|^2)`. One iteration is

1. ``propose`` (server): K proposals; with a quarter turn none of them depends on the state;
2. ``evaluate``: U_c at all of them, and their sum;
3. ``decide`` (server): K Metropolis steps;
4. in the warm-up, now and then, what the answers teach (`federated_hmc_surrogate_learning`).

Independent proposals have a tail guard: a share of them comes from a wider Gaussian, so that their
density is :math:`q \propto e^{-|\zeta|^2/2} \bigl(1 - p + p s^{-d} e^{|\zeta|^2 (1 - s^{-2})/2}
\bigr)`, and stands in the Metropolis test in place of the first factor.

The functions take the method's parameters first.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from consortia.algorithms import federated_hmc_surrogate_learning as learning
from consortia.algorithms.federated_hmc_surrogate_fit import QUARTER, SurrogateSettings
from consortia.algorithms.federated_hmc_surrogate_search import at_all
from consortia.core.contract import Site
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.dynamics import metropolis

Array = jax.Array

GUARD = 4
"""Where the turn is chosen, each fourth turn is a shorter one at least."""


def drawn(hub: Any, inbox: Any) -> Array:
    """The draws of this iteration, (K, d), or (d,) for one."""
    draws = hub["draws"]
    return draws if draws.shape[0] > 1 else draws[0]


def proposal_numbers(
    method: SurrogateSettings, target: Target, rng: RandomStreams
) -> dict[str, Array]:
    """ξ of K proposals, and which of them come from the wider Gaussian."""
    numbers = {"normals": rng.normal("proposals", (method.proposals, target.dimension))}
    if method.guarded:
        numbers["wide"] = rng.uniform("guard", (method.proposals,)) < method.guard
    return numbers | {"iteration": rng.iteration, "warmup": rng.warmup}


def decision_numbers(method: SurrogateSettings, rng: RandomStreams) -> dict[str, Array]:
    """u of K Metropolis tests."""
    levels = rng.uniform("accept", (method.proposals,))
    return {"levels": levels, "iteration": rng.iteration, "warmup": rng.warmup}


def propose(method: SurrogateSettings, shared: Any, hub: Any, message: Any) -> Any:
    """K turns; the reply is where they lead, (K, d).

    Of several turns the one that is on trial, or that was chosen, is made; but each fourth turn is
    a shorter one at least, which leads a chain back from a tail where the surrogate would leave it
    alone.
    """
    white, kind = shared["normals"], jnp.zeros((), jnp.int32)
    trial = learning.on_trial(method, shared["iteration"], shared["warmup"])
    if len(method.turns) > 1:
        warming = shared["iteration"] < shared["warmup"]
        kind = jnp.where(warming, jnp.maximum(trial, 0), hub["chosen"])
        guarding = shared["iteration"] % GUARD == 0
        kind = jnp.where(guarding, jnp.maximum(kind, 1), kind)
    if method.guarded:
        scale = method.guard_scale(white.shape[1])
        white = white * jnp.where(shared["wide"], scale, 1).astype(white.dtype)[:, None]
    if method.turns != (QUARTER,):
        # Exactly zero for a quarter turn, whose proposals depend on nothing.
        cosines = [0.0 if turn == QUARTER else math.cos(turn) for turn in method.turns]
        sines = [math.sin(turn) for turn in method.turns]
        cosine, sine = (jnp.asarray(values, white.dtype)[kind] for values in (cosines, sines))
        white = cosine * hub["here"]["white"][None] + sine * white
    positions = hub["mean"][None] + white @ hub["root"].T
    proposals = {"positions": positions, "white": white, "kind": kind, "trial": trial}
    return hub | {"proposals": proposals}, positions, {}


def evaluate(target: Target, noise: Any, shared: Any, state: Any, inbox: Array, site: Site) -> Any:
    """The message is U_c at all proposals."""

    def potential(position: Array) -> metropolis.Potential:
        return metropolis.potential(target, position, site)

    return state, at_all(potential, inbox, site), {}


def decide(method: SurrogateSettings, shared: Any, hub: Any, message: Any) -> Any:
    """K Metropolis steps; in the warm-up their answers are kept for `learning.learn`."""
    trials = {
        "position": hub["proposals"]["positions"],
        "white": hub["proposals"]["white"],
        "potential": message,
    }
    trials["lift"] = lift(method, trials["white"])

    def test(carry: Any, arriving: Any) -> Any:
        here, rejections, longest = carry
        trial, level = arriving
        white, before = trial["white"], here["white"]
        gained = jnp.sum((white - before) * (white + before)) / 2
        gained = gained - (trial["lift"] - here["lift"])
        rate = metropolis.acceptance(trial["potential"].above(here["potential"]) - gained)
        accepted = level < rate
        here = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), trial, here)
        rejections = jnp.where(accepted, 0, rejections + 1)
        return (here, rejections, jnp.maximum(longest, rejections)), (here, rate)

    here = hub["here"] | {"lift": lift(method, hub["here"]["white"])}
    (here, rejections, longest), (draws, rates) = jax.lax.scan(
        test, (here, hub["rejections"], hub["rejections"]), (trials, shared["levels"])
    )
    here.pop("lift")
    kind = hub["proposals"]["kind"]
    log_weights = jnp.zeros_like(rates)
    if method.independent:
        log_weights = _log_weights(trials, hub["moments"]["reference"])
    weights = jnp.exp(log_weights - jnp.max(log_weights))
    info = {
        "acceptance_rate": jnp.mean(rates),
        "largest_weight_share": jnp.max(weights) / jnp.sum(weights),
        "longest_rejection": longest,
        "turn": jnp.asarray(method.turns, rates.dtype)[kind],
    }
    white = trials["white"] if method.independent else draws["white"]
    hub = hub | {"here": here, "draws": draws["position"], "rejections": rejections}
    hub = learning.seen_in_warmup(method, shared, hub, log_weights, white, jnp.mean(rates))
    hub = _watched(shared, hub, longest, jnp.mean(rates))
    return hub, trials["position"], info


def lift(method: SurrogateSettings, white: Array) -> Array:
    """log q + |ζ|²/2 of white coordinates (..., d), up to a constant; 0 without a guard."""
    squares = jnp.sum(white**2, axis=-1)
    if not method.guarded:
        return jnp.zeros_like(squares)
    d, scale = white.shape[-1], method.guard_scale(white.shape[-1])
    wide = math.log(method.guard) - d * math.log(scale) + squares * (1 - scale**-2) / 2
    return jnp.logaddexp(jnp.full_like(squares, math.log1p(-method.guard)), wide)


def _log_weights(trials: Any, reference: metropolis.Potential) -> Array:
    """log π/q at the proposals, up to a constant; very low where U is not finite."""
    logarithm = jnp.sum(trials["white"] ** 2, axis=1) / 2 - trials["lift"]
    gaps = trials["potential"].above(reference) - logarithm
    lowest = jnp.finfo(gaps.dtype).min / 4
    return jnp.where(jnp.isfinite(gaps), jnp.maximum(-gaps, lowest), lowest)


def _watched(shared: Any, hub: Any, longest: Array, rate: Array) -> Any:
    """The server's state with what the draws after the warm-up look like."""
    seen = hub["seen"]
    new = {
        "longest": jnp.maximum(seen["longest"], longest),
        "rounds": seen["rounds"] + 1,
        "rates": seen["rates"] + rate,
    }
    after = shared["iteration"] >= shared["warmup"]
    return hub | {"seen": jax.tree.map(lambda a, b: jnp.where(after, a, b), new, seen)}

r"""The phases of federated HMC with the force of a Gaussian surrogate.

With the force :math:`\Lambda(\theta - m)` and the mass matrix Λ a trajectory is a rotation,
exactly: in white coordinates :math:`\theta = m + S\zeta`, :math:`SS^\top = \Lambda^{-1}`, a turn
by the angle t leads to :math:`\zeta' = \cos(t)\,\zeta + \sin(t)\,\xi`, and the energy changes by
:math:`U(\theta') - U(\theta) - \tfrac12(|\zeta'|^2 - |\zeta|^2)`. One iteration is

1. ``propose`` (server): K proposals; with a quarter turn none of them depends on the state;
2. ``evaluate``: U_c at all of them, and their sum;
3. ``decide`` (server): K Metropolis steps, and in the warm-up what the answers teach of m and S.

The functions take the method's parameters first.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from consortia.algorithms.federated_hmc_surrogate_fit import (
    QUARTER,
    SurrogateSettings,
    no_moments,
)
from consortia.algorithms.federated_hmc_surrogate_search import at_all
from consortia.base import Site
from consortia.dynamics import metropolis
from consortia.numbers import Numbers
from consortia.target import Target

Array = jax.Array

ENDS = (0.1, 0.25, 0.5, 1.0)
"""Shares of the warm-up after which the surrogate is fitted anew."""


GUARD = 4
"""Where the turn is chosen, each fourth turn is a shorter one at least."""


def drawn(hub: Any, inbox: Any) -> Array:
    """The draws of this iteration, (K, d), or (d,) for one."""
    draws = hub["draws"]
    return draws if draws.shape[0] > 1 else draws[0]


def proposal_numbers(method: SurrogateSettings, target: Target, rng: Numbers) -> dict[str, Array]:
    """ξ of K proposals."""
    normals = rng.normal("proposals", (method.proposals, target.dimension))
    return {"normals": normals, "iteration": rng.iteration, "warmup": rng.warmup}


def decision_numbers(method: SurrogateSettings, rng: Numbers) -> dict[str, Array]:
    """u of K Metropolis tests."""
    levels = rng.uniform("accept", (method.proposals,))
    return {"levels": levels, "iteration": rng.iteration, "warmup": rng.warmup}


def propose(method: SurrogateSettings, shared: Array, hub: Any, message: Any) -> Any:
    """K turns; the reply is where they lead, (K, d).

    In the warm-up the turns to choose from take turns; after it the one that was chosen is made. In
    between a shorter one leads a chain back from a tail where the surrogate would leave it alone.
    """
    white = shared["normals"]
    kind = jnp.zeros((), jnp.int32)
    if len(method.turns) > 1:
        warming = shared["iteration"] < shared["warmup"]
        guarding = shared["iteration"] % GUARD == 0
        after = jnp.where(guarding, jnp.maximum(hub["chosen"], 1), hub["chosen"])
        kind = jnp.where(warming, shared["iteration"] % len(method.turns), after)
    if method.turns != (QUARTER,):
        # Exactly zero for a quarter turn, whose proposals depend on nothing.
        cosines = [0.0 if turn == QUARTER else math.cos(turn) for turn in method.turns]
        sines = [math.sin(turn) for turn in method.turns]
        cosine, sine = (jnp.asarray(values, white.dtype)[kind] for values in (cosines, sines))
        white = cosine * hub["here"]["white"][None] + sine * white
    positions = hub["mean"][None] + white @ hub["root"].T
    proposals = {"positions": positions, "white": white, "kind": kind}
    return hub | {"proposals": proposals}, positions, {}


def evaluate(target: Target, noise: Any, shared: Any, state: Any, inbox: Array, site: Site) -> Any:
    """The message is U_c at all proposals."""

    def potential(position: Array) -> metropolis.Potential:
        return metropolis.potential(target, position, site)

    return state, at_all(potential, inbox, site), {}


def decide(method: SurrogateSettings, shared: Any, hub: Any, message: Any) -> Any:
    """K Metropolis steps; in the warm-up also the moments, and at the end of a window the fit."""
    trials = {
        "position": hub["proposals"]["positions"],
        "white": hub["proposals"]["white"],
        "potential": message,
    }

    def test(carry: Any, arriving: Any) -> Any:
        here, rejections, longest = carry
        trial, level = arriving
        white, before = trial["white"], here["white"]
        gained = jnp.sum((white - before) * (white + before)) / 2
        rate = metropolis.acceptance(trial["potential"].above(here["potential"]) - gained)
        accepted = level < rate
        jump = rate * jnp.mean((white - before) ** 2)
        here = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), trial, here)
        rejections = jnp.where(accepted, 0, rejections + 1)
        return (here, rejections, jnp.maximum(longest, rejections)), (here, rate, jump)

    (here, rejections, longest), (draws, rates, jumps) = jax.lax.scan(
        test, (hub["here"], hub["rejections"], hub["rejections"]), (trials, shared["levels"])
    )
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
    tried = jax.nn.one_hot(kind, len(method.turns), dtype=rates.dtype)
    tally = {"rounds": tried, "rates": tried * jnp.mean(rates), "jumps": tried * jnp.mean(jumps)}
    hub = _taught(method, shared, hub, log_weights, white, tally)
    hub = _watched(shared, hub, longest, tally)
    return hub, trials["position"], info


# --- what the warm-up teaches --------------------------------------------------------------------


def _log_weights(trials: Any, reference: metropolis.Potential) -> Array:
    """log π/q at the proposals, up to a constant; very low where U is not finite."""
    gaps = trials["potential"].above(reference) - jnp.sum(trials["white"] ** 2, axis=1) / 2
    lowest = jnp.finfo(gaps.dtype).min / 4
    return jnp.where(jnp.isfinite(gaps), jnp.maximum(-gaps, lowest), lowest)


def _taught(
    method: SurrogateSettings, shared: Any, hub: Any, log_weights: Array, white: Array, tally: Any
) -> Any:
    """The server's state with this iteration's moments; unchanged once the warm-up is over."""
    ends = jnp.asarray(ENDS, white.dtype) * shared["warmup"].astype(white.dtype)
    ends = jnp.floor(ends).astype(jnp.int32)
    moments = hub["moments"]
    top = jnp.maximum(moments["top"], jnp.max(log_weights))
    kept, weights = jnp.exp(moments["top"] - top), jnp.exp(log_weights - top)
    weighted = weights[:, None] * white
    added = {
        "reference": moments["reference"],
        "top": top,
        "total": kept * moments["total"] + jnp.sum(weights),
        "squares": kept**2 * moments["squares"] + jnp.sum(weights**2),
        "first": kept * moments["first"] + jnp.sum(weighted, axis=0),
        "second": kept * moments["second"] + weighted.T @ white,
    }
    # Shorter turns do not propose from the surrogate: their proposals say nothing here.
    counts = (hub["proposals"]["kind"] == 0) | (not method.independent)
    new = hub | {
        "moments": _chosen(counts, added, moments),
        "tally": jax.tree.map(jnp.add, hub["tally"], tally),
    }
    closing = jnp.any(shared["iteration"] + 1 == ends)
    new = _chosen(closing, _refitted(method, new), new)
    return _chosen(shared["iteration"] < shared["warmup"], new, hub)


def _watched(shared: Any, hub: Any, longest: Array, tally: Any) -> Any:
    """The server's state with what the draws after the warm-up look like."""
    seen = hub["seen"]
    new = {
        "longest": jnp.maximum(seen["longest"], longest),
        "rounds": seen["rounds"] + 1,
        "rates": seen["rates"] + jnp.sum(tally["rates"]),
    }
    return hub | {"seen": _chosen(shared["iteration"] >= shared["warmup"], new, seen)}


def _refitted(method: SurrogateSettings, hub: Any) -> Any:
    """The surrogate with the moments of this window, shrunk towards the one before."""
    moments, here, tally = hub["moments"], hub["here"], hub["tally"]
    d = here["white"].size
    rates, jumps = (tally[name] / tally["rounds"] for name in ("rates", "jumps"))
    count = moments["total"] ** 2 / moments["squares"]
    if not method.independent:
        # Of the positions of an autoregression of this rate so many are independent.
        renewed = rates[0] * (1 - math.cos(method.turns[0]))
        count = count * renewed / (2 - renewed)
    # d numbers of the centre and d²/2 of the spread have to be told from noise.
    centre = moments["first"] / moments["total"]
    spread = moments["second"] / moments["total"] - jnp.outer(centre, centre)
    before = jnp.eye(d, dtype=centre.dtype) / method.widening**2
    share = count / (count + d * d)
    centre, spread = count / (count + d) * centre, share * spread + (1 - share) * before
    lower = method.widening * jnp.linalg.cholesky((spread + spread.T) / 2)
    white = jax.scipy.linalg.solve_triangular(lower, here["white"] - centre, lower=True)
    fitted = hub | {
        "mean": hub["mean"] + hub["root"] @ centre,
        "root": hub["root"] @ lower,
        "here": here | {"white": white},
    }
    usable = jnp.all(jnp.isfinite(lower)) & jnp.all(jnp.isfinite(white))
    # Draws a squared jump of E apart have an autocorrelation of 1 − E/2, and the fewer the more of
    # them are effective. A turn that was not tried has no average.
    chosen = jnp.argmax(jnp.nan_to_num(jumps, nan=-1.0)).astype(jnp.int32)
    empty = {
        "moments": no_moments(here["white"], here["potential"]),
        "chosen": chosen,
        "last_rate": rates[chosen],
        "tally": jax.tree.map(jnp.zeros_like, tally),
    }
    return _chosen(usable, fitted, hub) | empty


def _chosen(condition: Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)

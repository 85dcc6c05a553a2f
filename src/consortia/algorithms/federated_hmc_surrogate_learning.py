r"""What the warm-up teaches federated HMC with a surrogate: the surrogate, and the turn.

The surrogate is fitted anew at fixed shares of the warm-up, from the proposals of the window
before, weighted by π/q. Where the turn is to be chosen, each candidate then has a window of its
own, with the surrogate that will stay: whichever gives the largest bulk effective sample size a
round there, the smallest over the parameters, is made from then on.

``seen_in_warmup`` is called in every iteration and only adds up; ``learn`` is a phase of the server
that runs in the few iterations that end a window.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from consortia.algorithms.federated_hmc_surrogate_fit import SurrogateSettings, no_moments
from consortia.dynamics.effective_size import bulk_ess

Array = jax.Array

ENDS = (0.1, 0.3, 1.0)
"""Shares of the warm-up after which the surrogate is fitted anew."""

ENDS_BEFORE_TRIALS = (0.1, 0.25, 0.6)
"""The same where turns are tried afterwards, in equal parts of the rest."""

LEAST_TRIAL = 40
"""After fewer draws of each turn the first one is kept: too little was measured."""


def on_trial(method: SurrogateSettings, iteration: Array, warmup: Array) -> Array:
    """Which turn this iteration tries, int32; −1 when none is on trial."""
    if len(method.turns) == 1:
        return jnp.full((), -1, jnp.int32)
    edges = _trial_edges(method, warmup)
    part = jnp.sum(iteration >= edges[:-1]).astype(jnp.int32) - 1
    return jnp.where(iteration < edges[-1], part, -1)


def _trial_edges(method: SurrogateSettings, warmup: Array) -> Array:
    """The first iteration of each trial, and the end of the last one."""
    shares = np.linspace(ENDS_BEFORE_TRIALS[-1], 1, len(method.turns) + 1)
    return _at_shares(shares, warmup)


def _at_shares(shares: Any, warmup: Array) -> Array:
    shares = jnp.asarray(shares, jnp.result_type(float))
    # The last share is 1, and must not be rounded below the end.
    return jnp.floor(shares * warmup.astype(shares.dtype) + 1e-3).astype(jnp.int32)


def seen_in_warmup(
    method: SurrogateSettings, shared: Any, hub: Any, log_weights: Array, white: Array, rate: Array
) -> Any:
    """The server's state with this iteration's moments, draw and rate; later as it was."""
    iteration, warmup = shared["iteration"], shared["warmup"]
    several = len(method.turns) > 1
    warming, trial = iteration < warmup, hub["proposals"]["trial"]
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
    counts = warming & (trial < 0)
    if several:
        counts &= hub["proposals"]["kind"] == 0
    turn = jax.nn.one_hot(jnp.maximum(trial, 0), len(method.turns), dtype=rate.dtype)
    turn = jnp.where(warming, turn, 0)
    tally = {"rounds": hub["tally"]["rounds"] + turn, "rates": hub["tally"]["rates"] + turn * rate}
    ends = _at_shares(ENDS_BEFORE_TRIALS if several else ENDS, warmup)
    fitting = warming & jnp.any(iteration + 1 == ends)
    choosing = warming & several & (iteration + 1 == warmup)
    hub = hub | {
        "moments": jax.tree.map(lambda a, b: jnp.where(counts, a, b), added, moments),
        "tally": tally,
        "due": jnp.where(choosing, 2, jnp.where(fitting, 1, 0)).astype(jnp.int32),
    }
    if not several:
        return hub
    tried = hub["tried"]
    slot = jnp.where(trial >= 0, tried["made"][trial], tried["draws"].shape[1])
    # Beyond the last slot nothing is written: outside the trials, and of a long trial's rest.
    draws = tried["draws"].at[trial, slot].set(hub["draws"][0], mode="drop")
    made = jnp.where(trial >= 0, tried["made"] + turn.astype(jnp.int32), tried["made"])
    made = jnp.minimum(made, draws.shape[1])
    return hub | {"tried": tried | {"draws": draws, "made": made}}


def due(hub: Any) -> Array:
    """How often ``learn`` runs in this iteration: once at the end of a window, else not at all."""
    return (hub["due"] > 0).astype(jnp.int32)


def learn(method: SurrogateSettings, shared: Any, hub: Any, message: Any) -> Any:
    """The surrogate fitted anew, or the turn chosen; the reply stays as it was."""
    fitted = refitted(method, hub)
    if len(method.turns) > 1:
        chosen = chosen_turn(method, hub)
        fitted = jax.tree.map(lambda a, b: jnp.where(hub["due"] == 2, a, b), chosen, fitted)
    return fitted, fitted["proposals"]["positions"], {}


def chosen_turn(method: SurrogateSettings, hub: Any) -> Any:
    """The server's state with the turn of the largest measured ESS a round."""
    tried = hub["tried"]
    ess = jnp.stack(
        [jnp.min(bulk_ess(tried["draws"][i], tried["made"][i])) for i in range(len(method.turns))]
    )
    a_round = ess / jnp.maximum(tried["made"], 1).astype(ess.dtype)
    enough = jnp.min(tried["made"]) >= LEAST_TRIAL
    chosen = jnp.where(enough, jnp.argmax(jnp.nan_to_num(a_round)), 0).astype(jnp.int32)
    rates = hub["tally"]["rates"] / jnp.maximum(hub["tally"]["rounds"], 1)
    # The draws are thrown away, which also keeps the compiler from taking the sorts and transforms
    # out of this phase's loop, as of something that the loop leaves alone, into every iteration.
    measured = {"ess": a_round, "draws": jnp.zeros_like(tried["draws"])}
    return hub | {
        "chosen": chosen,
        "last_rate": rates[chosen],
        "tried": tried | measured,
    }


def refitted(method: SurrogateSettings, hub: Any) -> Any:
    """The surrogate with the moments of this window, shrunk towards the one before."""
    moments, here, tally = hub["moments"], hub["here"], hub["tally"]
    d = here["white"].size
    rate = tally["rates"][0] / jnp.maximum(tally["rounds"][0], 1)
    count = moments["total"] ** 2 / moments["squares"]
    if not method.independent:
        # Of the positions of an autoregression of this rate so many are independent.
        renewed = rate * (1 - math.cos(method.turns[0]))
        count = count * renewed / (2 - renewed)
    # d numbers of the centre and d²/2 of the spread have to be told from noise.
    centre = moments["first"] / moments["total"]
    spread = moments["second"] / moments["total"] - jnp.outer(centre, centre)
    before = jnp.eye(d, dtype=centre.dtype) / method.widening**2
    share = count / (count + d * d)
    centre, spread = count / (count + d) * centre, share * spread + (1 - share) * before
    lower = method.widening * jnp.linalg.cholesky((spread + spread.T) / 2)
    white = jax.scipy.linalg.solve_triangular(lower, here["white"] - centre, lower=True)
    fitted = {
        "mean": hub["mean"] + hub["root"] @ centre,
        "root": hub["root"] @ lower,
        "here": here | {"white": white},
    }
    usable = jnp.all(jnp.isfinite(lower)) & jnp.all(jnp.isfinite(white))
    old = {name: hub[name] for name in fitted}
    fitted = jax.tree.map(lambda a, b: jnp.where(usable, a, b), fitted, old)
    return (
        hub
        | fitted
        | {
            "moments": no_moments(fitted["here"]["white"], here["potential"]),
            "last_rate": rate,
            "tally": jax.tree.map(jnp.zeros_like, tally),
        }
    )

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
    SurrogateSettings,
    at_all,
    no_moments,
)
from consortia.base import Site
from consortia.dynamics import metropolis
from consortia.numbers import Numbers
from consortia.target import Target

Array = jax.Array

ENDS = (0.1, 0.25, 0.5, 1.0)
"""Shares of the warm-up after which the surrogate is fitted anew."""


def drawn(hub: Any, inbox: Any) -> Array:
    """The draws of this iteration, (K, d), or (d,) for one."""
    draws = hub["draws"]
    return draws if draws.shape[0] > 1 else draws[0]


def proposal_numbers(method: SurrogateSettings, target: Target, rng: Numbers) -> Array:
    """ξ of K proposals."""
    return rng.normal("proposals", (method.proposals, target.dimension))


def decision_numbers(method: SurrogateSettings, rng: Numbers) -> dict[str, Array]:
    """u of K Metropolis tests."""
    levels = rng.uniform("accept", (method.proposals,))
    return {"levels": levels, "iteration": rng.iteration, "warmup": rng.warmup}


def propose(method: SurrogateSettings, shared: Array, hub: Any, message: Any) -> Any:
    """K turns; the reply is where they lead, (K, d)."""
    white = shared
    if not method.independent:
        start = hub["here"]["white"]
        white = math.cos(method.turn) * start[None] + math.sin(method.turn) * shared
    positions = hub["mean"][None] + white @ hub["root"].T
    proposals = {"positions": positions, "white": white}
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
        here = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), trial, here)
        rejections = jnp.where(accepted, 0, rejections + 1)
        return (here, rejections, jnp.maximum(longest, rejections)), (here, rate)

    (here, rejections, longest), (draws, rates) = jax.lax.scan(
        test, (hub["here"], hub["rejections"], hub["rejections"]), (trials, shared["levels"])
    )
    log_weights = jnp.zeros_like(rates)
    if method.independent:
        log_weights = _log_weights(trials, hub["moments"]["reference"])
    weights = jnp.exp(log_weights - jnp.max(log_weights))
    info = {
        "acceptance_rate": jnp.mean(rates),
        "largest_weight_share": jnp.max(weights) / jnp.sum(weights),
        "longest_rejection": longest,
    }
    white = trials["white"] if method.independent else draws["white"]
    hub = hub | {"here": here, "draws": draws["position"], "rejections": rejections}
    hub = _taught(method, shared, hub, log_weights, white, jnp.mean(rates))
    return hub, trials["position"], info


# --- what the warm-up teaches --------------------------------------------------------------------


def _log_weights(trials: Any, reference: metropolis.Potential) -> Array:
    """log π/q at the proposals, up to a constant; very low where U is not finite."""
    gaps = trials["potential"].above(reference) - jnp.sum(trials["white"] ** 2, axis=1) / 2
    lowest = jnp.finfo(gaps.dtype).min / 4
    return jnp.where(jnp.isfinite(gaps), jnp.maximum(-gaps, lowest), lowest)


def _taught(
    method: SurrogateSettings, shared: Any, hub: Any, log_weights: Array, white: Array, rate: Array
) -> Any:
    """The server's state with this iteration's moments; unchanged once the warm-up is over."""
    ends = jnp.asarray(ENDS, rate.dtype) * shared["warmup"].astype(rate.dtype)
    ends = jnp.floor(ends).astype(jnp.int32)
    moments = hub["moments"]
    top = jnp.maximum(moments["top"], jnp.max(log_weights))
    kept, weights = jnp.exp(moments["top"] - top), jnp.exp(log_weights - top)
    weighted = weights[:, None] * white
    rounds = hub["rounds"] + 1
    new = hub | {
        "moments": {
            "reference": moments["reference"],
            "top": top,
            "total": kept * moments["total"] + jnp.sum(weights),
            "squares": kept**2 * moments["squares"] + jnp.sum(weights**2),
            "first": kept * moments["first"] + jnp.sum(weighted, axis=0),
            "second": kept * moments["second"] + weighted.T @ white,
        },
        "rate": hub["rate"] + (rate - hub["rate"]) / rounds,
        "rounds": rounds,
    }
    closing = jnp.any(shared["iteration"] + 1 == ends)
    new = _chosen(closing, _refitted(method, new), new)
    return _chosen(shared["iteration"] < shared["warmup"], new, hub)


def _refitted(method: SurrogateSettings, hub: Any) -> Any:
    """The surrogate with the moments of this window, shrunk towards the one before."""
    moments, here = hub["moments"], hub["here"]
    d = here["white"].size
    count = moments["total"] ** 2 / moments["squares"]
    if not method.independent:
        # Of the positions of an autoregression of this rate so many are independent.
        renewed = hub["rate"] * (1 - math.cos(method.turn))
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
    empty = {
        "moments": no_moments(here["white"], here["potential"]),
        "last_rate": hub["rate"],
        "rate": jnp.zeros_like(hub["rate"]),
        "rounds": jnp.zeros_like(hub["rounds"]),
    }
    return _chosen(usable, fitted, hub) | empty


def _chosen(condition: Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)

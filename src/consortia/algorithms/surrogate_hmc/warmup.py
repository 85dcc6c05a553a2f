r"""The warm-up learns the surrogate, and the angle of a trajectory.

The surrogate is fitted anew at fixed shares of the warm-up, from the proposals of the window
before, weighted by π/q. Where the angle is to be chosen, each candidate then has a window of its
own, with the surrogate that will stay: whichever gives the largest bulk effective sample size a
round there, the smallest over the parameters, is used from then on.

`observe` is called in every iteration and only adds up; `learn` is a phase of the server that runs
in the few iterations that end a window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from consortia.algorithms.surrogate_hmc import rays
from consortia.algorithms.surrogate_hmc.state import (
    QUARTER,
    Hub,
    Moments,
    Tally,
    Trials,
    no_moments,
)
from consortia.core.contract import Info
from consortia.dynamics.effective_size import bulk_ess
from consortia.runtime.late import Array, PyTree, jax, jnp

Scalar = Float[Array, ""]
Count = Int[Array, ""]

WINDOW_ENDS = (0.1, 0.3, 1.0)
"""Shares of the warm-up after which the surrogate is fitted anew."""

WINDOW_ENDS_BEFORE_TRIALS = (0.1, 0.25, 0.6)
"""The same where angles are tried afterwards, in equal parts of the rest."""

LEAST_TRIAL = 40
"""After fewer draws of each angle the first one is kept: too little was measured."""

Angles = tuple[float, ...]


def angle_on_trial(angles: Angles, iteration: Count, warmup: Count) -> Count:
    """Return the index of the angle that this iteration tries; −1 when none is on trial."""
    if len(angles) == 1:
        return jnp.full((), -1, jnp.int32)
    # The first iteration of each trial, and the end of the last one.
    shares = np.linspace(WINDOW_ENDS_BEFORE_TRIALS[-1], 1, len(angles) + 1)
    edges = _at_shares(shares, warmup)
    part = jnp.sum(iteration >= edges[:-1]).astype(jnp.int32) - 1
    return jnp.where(iteration < edges[-1], part, -1)


def _at_shares(shares: Sequence[float] | np.ndarray, warmup: Count) -> Int[Array, " k"]:
    values = jnp.asarray(shares, jnp.result_type(float))
    # The last share is 1, and must not be rounded below the end.
    return jnp.floor(values * warmup.astype(values.dtype) + 1e-3).astype(jnp.int32)


def observe(
    angles: Angles,
    iteration: Count,
    warmup: Count,
    hub: Hub,
    log_weights: Float[Array, " K"],
    white: Float[Array, "K d"],
    rate: Scalar,
) -> Hub:
    """Return the server's state with this iteration's moments, draw and rate; later as it was."""
    several = len(angles) > 1
    warming, trial = iteration < warmup, hub.proposals.trial
    added = _added(hub.moments, log_weights, white)
    # Shorter angles do not propose from the surrogate: their proposals do not count here.
    counts = warming & (trial < 0)
    if several:
        counts &= hub.proposals.angle == 0
    here = jax.nn.one_hot(jnp.maximum(trial, 0), len(angles), dtype=rate.dtype)
    here = jnp.where(warming, here, 0)
    ends = _at_shares(WINDOW_ENDS_BEFORE_TRIALS if several else WINDOW_ENDS, warmup)
    fitting = warming & jnp.any(iteration + 1 == ends)
    choosing = warming & several & (iteration + 1 == warmup)
    hub = hub._replace(
        moments=jax.tree.map(lambda a, b: jnp.where(counts, a, b), added, hub.moments),
        tally=Tally(hub.tally.rounds + here, hub.tally.rates + here * rate),
        due=jnp.where(choosing, 2, jnp.where(fitting, 1, 0)).astype(jnp.int32),
    )
    trials = hub.trials
    if not isinstance(trials, Trials):
        return hub
    slot = jnp.where(trial >= 0, trials.made[trial], trials.draws.shape[1])
    # Beyond the last slot nothing is written: outside the trials, and of a long trial's rest.
    draws = trials.draws.at[trial, slot].set(hub.draws[0], mode="drop")
    made = jnp.where(trial >= 0, trials.made + here.astype(jnp.int32), trials.made)
    return hub._replace(trials=Trials(draws, jnp.minimum(made, draws.shape[1]), trials.ess))


def _added(
    moments: Moments, log_weights: Float[Array, " K"], white: Float[Array, "K d"]
) -> Moments:
    top = jnp.maximum(moments.top, jnp.max(log_weights))
    kept, weights = jnp.exp(moments.top - top), jnp.exp(log_weights - top)
    weighted = weights[:, None] * white
    return Moments(
        moments.reference,
        top,
        kept * moments.total + jnp.sum(weights),
        kept**2 * moments.squares + jnp.sum(weights**2),
        kept * moments.first + jnp.sum(weighted, axis=0),
        kept * moments.second + weighted.T @ white,
    )


def due(hub: Hub) -> Count:
    """Return how often `learn` runs in this iteration: once at the end of a window, else never."""
    return (hub.due > 0).astype(jnp.int32)


def learn(
    angles: Angles, inflation: float, shared: tuple[()], hub: Hub, message: PyTree
) -> tuple[Hub, Array, Info]:
    """Fit the surrogate anew, or choose the angle; the reply stays as it was."""
    learned = _refitted(angles, inflation, hub)
    if isinstance(hub.trials, Trials):
        chosen = chosen_angle(hub, hub.trials)
        learned = jax.tree.map(lambda a, b: jnp.where(hub.due == 2, a, b), chosen, learned)
    return learned, learned.proposals.positions, {}


def chosen_angle(hub: Hub, trials: Trials) -> Hub:
    """Return the server's state with the angle of the largest measured ESS a round."""
    ess = jnp.stack(
        [jnp.min(bulk_ess(*trial)) for trial in zip(trials.draws, trials.made, strict=True)]
    )
    a_round = ess / jnp.maximum(trials.made, 1).astype(ess.dtype)
    enough = jnp.min(trials.made) >= LEAST_TRIAL
    chosen = jnp.where(enough, jnp.argmax(jnp.nan_to_num(a_round)), 0).astype(jnp.int32)
    rates = hub.tally.rates / jnp.maximum(hub.tally.rounds, 1)
    # The draws are thrown away, which also keeps the compiler from taking the sorts and transforms
    # out of this phase's loop, as of something that the loop leaves alone, into every iteration.
    trials = trials._replace(ess=a_round, draws=jnp.zeros_like(trials.draws))
    return hub._replace(chosen=chosen, last_rate=rates[chosen], trials=trials)


def _refitted(angles: Angles, inflation: float, hub: Hub) -> Hub:
    """Return the surrogate with the moments of this window, shrunk towards the one before."""
    moments, here, tally = hub.moments, hub.here, hub.tally
    d = here.white.size
    rate = tally.rates[0] / jnp.maximum(tally.rounds[0], 1)
    count = moments.total**2 / moments.squares
    if angles[0] != QUARTER:
        # Of the positions of an autoregression of this rate so many are independent.
        renewed = rate * (1 - math.cos(angles[0]))
        count = count * renewed / (2 - renewed)
    # d entries of the centre and d²/2 of the spread have to be estimated above their noise.
    centre = moments.first / moments.total
    spread = moments.second / moments.total - jnp.outer(centre, centre)
    before = jnp.eye(d, dtype=centre.dtype) / inflation**2
    share = count / (count + d * d)
    centre, spread = count / (count + d) * centre, share * spread + (1 - share) * before
    lower = inflation * jnp.linalg.cholesky((spread + spread.T) / 2)
    white = jax.scipy.linalg.solve_triangular(lower, here.white - centre, lower=True)
    usable = jnp.all(jnp.isfinite(lower)) & jnp.all(jnp.isfinite(white))
    lines = rays.refitted(hub.rays, lower, centre)
    fitted = (hub.mean + hub.root @ centre, hub.root @ lower, white, lines)
    before_it = (hub.mean, hub.root, here.white, hub.rays)
    mean, root, white, lines = jax.tree.map(lambda a, b: jnp.where(usable, a, b), fitted, before_it)
    return hub._replace(
        mean=mean,
        root=root,
        here=here._replace(white=white),
        moments=no_moments(white, here.potential),
        last_rate=rate,
        tally=jax.tree.map(jnp.zeros_like, tally),
        rays=lines,
    )

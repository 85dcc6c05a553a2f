"""Chains of federated HMC, where no family fits: their messages, and what trajectories teach.

A round is a leapfrog step of all chains, an iteration a trajectory; see `federated_hmc.ensemble`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from consortia.algorithms.federated_hmc import ensemble
from consortia.algorithms.few_rounds import limited, weights
from consortia.algorithms.few_rounds.seeking import Candidates
from consortia.algorithms.few_rounds.state import Hub, Levels, Limited, Stage
from consortia.core.contract import Evaluation, Info, Phase, Site, Sum
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.dynamics import metropolis

MOST_WALKED = 64
"""Trajectories in which chains may forget where they were started."""

MOST_MESSAGES, MOST_MESSAGES_BY_GRADIENTS = 100, 400
"""Communication rounds before which they have to; the second with more than 200 parameters."""


def phases(target: Target, count: int) -> tuple[Phase, Phase]:
    """Return the begin of a trajectory of so many chains, and a leapfrog step of all of them."""

    def momenta(rng: RandomStreams) -> Float[Array, "K d"]:
        return rng.normal("momentum", (count, target.dimension))

    leap = Phase(
        partial(_evaluate, target),
        Sum(),
        hub=_leap,
        repeat=ensemble.LONGEST,
        repeats=lambda hub: jnp.where(walking(hub), ensemble.due(hub.walkers), 0),
        evaluation=lambda inbox: Evaluation(inbox.positions),
    )
    return Phase(None, hub=_begin, shared=momenta), leap


def walking(hub: Hub) -> Bool[Array, ""]:
    """Return True if the round in progress is a trajectory."""
    return walks(hub.due)


def walks(stage: Any) -> Any:
    """Return True in the stages of trajectories, of an array or a number."""
    return (stage == Stage.WALK) | (stage == Stage.WALK_DRAW)


def _begin(shared: Float[Array, "K d"], hub: Hub, message: PyTree) -> tuple[Hub, Candidates, Info]:
    """Begin a trajectory of all chains; the reply is where they are to be evaluated."""
    begun = ensemble.begun(hub.walkers, shared, hub.due == Stage.WALK)
    walkers = jax.tree.map(partial(jnp.where, walking(hub)), begun, hub.walkers)
    return _asked(hub._replace(walkers=walkers))


def _asked(hub: Hub) -> tuple[Hub, Candidates, Info]:
    places = hub.centre[None] + ensemble.along(hub.root, hub.walkers.trial.places)
    return hub, Candidates(hub.search.best.position, places), {}


def _evaluate(
    target: Target, noise: PyTree, shared: PyTree, state: PyTree, inbox: Candidates, site: Site
) -> tuple[PyTree, limited.Answer, Info]:
    """Send U_c and ∇U_c where the chains are."""
    at = limited.answering(target, inbox.reference, site)
    return state, metropolis.at_all(target, at, inbox.positions, site), {}


def _leap(shared: PyTree, hub: Hub, message: limited.Answer) -> tuple[Hub, Candidates, Info]:
    """Kick and drift all chains."""
    gradients = ensemble.against(hub.root, message.gradients)
    return _asked(hub._replace(walkers=ensemble.moved(hub.walkers, message.potentials, gradients)))


def after_walk(shared: Levels, hub: Hub) -> tuple[Hub, weights.Quality]:
    """Let the chains learn from their trajectories, or keep where these ended as draws."""
    walkers = ensemble.ended(hub.walkers, shared.tests)
    idle = jnp.max(walkers.idle.reshape(hub.chains.idle.size, -1), axis=1)
    hub = hub._replace(chains=hub.chains._replace(idle=idle))
    hub = jax.lax.cond(hub.due == Stage.WALK, _learned, _drawn, hub, walkers)
    return hub, weights.unknown(hub.centre.dtype)._replace(acceptance=walkers.measured.rate)


def _learned(hub: Hub, tested: ensemble.Ensemble) -> Hub:
    """Adapt the trajectories; the next ones are draws once the starts are forgotten."""
    settled = ensemble.settled(tested)
    walkers = jax.tree.map(partial(jnp.where, settled), tested, ensemble.learned(tested))
    rounds = jnp.sum(hub.history.messages, dtype=jnp.int32) + ensemble.due(hub.walkers)
    limit = MOST_MESSAGES_BY_GRADIENTS if isinstance(hub.search, Limited) else MOST_MESSAGES
    late = (rounds + 2 * ensemble.due(walkers) > limit) | (walkers.trajectories >= MOST_WALKED)
    stage = Stage.WALK.until(settled, Stage.WALK_DRAW, late)
    return hub._replace(stage=stage, walkers=walkers)


def _drawn(hub: Hub, walkers: ensemble.Ensemble) -> Hub:
    """Keep where the trajectories ended."""
    draws = hub.centre[None] + ensemble.along(hub.root, walkers.here.places)
    draws = draws.reshape(hub.chains.draws.shape)
    return hub._replace(walkers=walkers, chains=hub.chains._replace(draws=draws))

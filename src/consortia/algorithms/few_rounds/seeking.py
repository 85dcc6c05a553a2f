"""A round of the search: candidates go to the sites, and the search goes on from the best.

The search is that of `modes`, with more than 200 parameters that of `limited`.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from consortia.algorithms.federated_hmc import ensemble
from consortia.algorithms.few_rounds import limited, modes, search, weights
from consortia.algorithms.few_rounds.state import Hub, Levels, Limited, Searches, Stage, Vector
from consortia.core.contract import Evaluation, Info, Phase, Site, Sum
from consortia.core.random import RandomStreams
from consortia.core.target import Target

MOST_SEARCH, MOST_LIMITED = 40, 56
"""Rounds of the search, at most; the second by gradients only."""


class Candidates(NamedTuple):
    """Where the sites are to evaluate: potentials are told relative to the reference."""

    reference: Vector
    positions: Float[Array, "M d"]


def phases(target: Target) -> tuple[Phase, Phase]:
    """Return what settles the purpose of a round, and the message of the search."""
    aim = Phase(None, hub=partial(_aim, target), shared=partial(_starts, target))
    seek = Phase(
        partial(_answer, target),
        Sum(),
        hub=partial(_sought, target),
        repeats=lambda hub: (hub.due == Stage.SEARCH).astype(jnp.int32),
        evaluation=lambda inbox: Evaluation(inbox.positions),
    )
    return aim, seek


def _starts(target: Target, rng: RandomStreams) -> PyTree[Vector]:
    """Return ξ for the starts of further searches; () where there are none."""
    d = target.dimension
    return rng.normal("elsewhere", (d,)) if d <= limited.MOST_CURVED else ()


def _aim(
    target: Target, shared: PyTree[Vector], hub: Hub, message: PyTree
) -> tuple[Hub, Candidates, Info]:
    """Settle what the round is for; the reply is where to look for the mode."""
    hub = hub._replace(due=hub.stage)
    if isinstance(hub.search, Searches):
        begun = modes.begun(target, hub.search, shared)
        chosen = jax.tree.map(partial(jnp.where, hub.rounds == 0), begun, hub.search)
        hub = hub._replace(search=chosen)
    return _asked(hub)


def _asked(hub: Hub) -> tuple[Hub, Candidates, Info]:
    return hub, Candidates(hub.search.best.position, hub.search.candidates), {}


def _answer(
    target: Target, noise: PyTree, shared: PyTree, state: PyTree, inbox: Candidates, site: Site
) -> tuple[PyTree, search.Answer | limited.Answer, Info]:
    """Send U_c, ∇U_c and, where it is small enough, ∇²U_c at the candidates."""
    answer = search.answer if target.dimension <= limited.MOST_CURVED else limited.answer
    return state, answer(target, inbox.reference, inbox.positions, site), {}


def _sought(
    target: Target, shared: PyTree, hub: Hub, message: PyTree
) -> tuple[Hub, Candidates, Info]:
    """Go on to the best candidate."""
    now = hub.search
    if isinstance(now, Limited):
        return _asked(hub._replace(search=limited.step(target, now, message)))
    return _asked(hub._replace(search=modes.step(target, now, message)))


def after_search(shared: Levels, hub: Hub) -> tuple[Hub, weights.Quality]:
    """Begin the fit at the mode, where the search has ended; or chains, of too many parameters."""
    if isinstance(hub.search, Limited):
        return _after_limited(shared, hub, hub.search)
    ended, found = search.ended(hub.search.first), modes.found(hub.search)
    late = (hub.rounds + 1 >= MOST_SEARCH) | search.stuck(hub.search.first)
    family = modes.family_of(found.modes, hub.family.shares.size)
    hub = hub._replace(
        stage=Stage.SEARCH.until(ended, Stage.FIT, late),
        search=jax.tree.map(partial(jnp.where, ended), found, hub.search),
        centre=found.modes.centres[0],
        root=found.modes.roots[0],
        family=family,
        mixed=jnp.where(jnp.sum(family.shares > 0) > 1, 2, 0).astype(jnp.int32),
    )
    return hub, weights.unknown(hub.centre.dtype)


def _after_limited(shared: Levels, hub: Hub, found: Limited) -> tuple[Hub, weights.Quality]:
    """Begin chains near the mode, where the search has ended."""
    centre, root = limited.laplace(found)
    late = (hub.rounds + 1 >= MOST_LIMITED) | limited.stuck(found)
    stage = Stage.SEARCH.until(limited.ended(found), Stage.WALK, late)
    begins = shared.begins[ensemble.superchains(hub.walkers.idle.size)]
    walkers = ensemble.start(begins, jnp.ones_like(root))
    hub = hub._replace(stage=stage, centre=centre, root=root, walkers=walkers)
    return hub, weights.unknown(hub.centre.dtype)

"""The rounds one after the other: how the server begins, and what a round of each kind teaches.

From the search a run goes on to the fit, or to chains where there are too many parameters for one;
from the fit to draws, or to chains where no family comes near enough; from chains to their draws.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from consortia.algorithms.federated_hmc import ensemble
from consortia.algorithms.few_rounds import family as families
from consortia.algorithms.few_rounds import fitting, limited, modes, seeking, walking
from consortia.algorithms.few_rounds.independence import after_draws
from consortia.algorithms.few_rounds.proposing import KEPT, newest
from consortia.algorithms.few_rounds.state import (
    Chains,
    History,
    Hub,
    Levels,
    Memory,
    Stage,
    Vector,
)
from consortia.algorithms.few_rounds.weights import Quality, unknown
from consortia.algorithms.few_rounds.weights import quality as quality_of
from consortia.core.contract import Info, Phase
from consortia.core.random import RandomStreams
from consortia.core.target import Target

MOST_WARMUP = seeking.MOST_SEARCH + fitting.MOST_FITS + walking.MOST_WALKED
"""Iterations before the first draws, at most."""

MOST_DRAWS = 100
"""Iterations of draws, at most."""


def first(
    points: int, chains: int, components: int, position: Vector
) -> tuple[tuple[()], Hub, tuple[()]]:
    """Return the state of the server before the first round."""
    d, dtype, curved = position.size, position.dtype, position.size <= limited.MOST_CURVED
    zeros, zero = partial(jnp.zeros, dtype=dtype), jnp.zeros((), jnp.int32)
    root = jnp.eye(d, dtype=dtype) if curved else jnp.ones(d, dtype)
    # With too many parameters for a family nothing of it is kept.
    kept, size = (points, d) if curved else (1, 1)
    family = families.single(size, components, dtype)
    several = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (KEPT, *leaf.shape)), family)
    idle, count = jnp.zeros(chains, jnp.int32), points // chains
    length = MOST_WARMUP + MOST_DRAWS
    none = jnp.zeros(length, jnp.int32)
    hub = Hub(
        stage=zero,
        due=zero,
        rounds=zero,
        search=modes.first(position) if curved else limited.first(position),
        centre=position,
        root=root,
        family=family,
        memory=Memory(zeros((KEPT, kept, size)), zeros((KEPT, kept)), several, zero),
        fits=zero,
        mixed=zero,
        chains=Chains(zeros((chains, d)), zeros(chains), zeros((chains, count, d)), idle),
        walkers=ensemble.start(zeros((points, d)), root),
        history=History(none, none, *[zeros(length) + jnp.nan] * (len(History._fields) - 2)),
    )
    return (), hub, ()


def drawn(hub: Hub, inbox: PyTree) -> Float[Array, "*C n d"]:
    """Return the draws of a round."""
    draws = hub.chains.draws
    return draws if draws.shape[0] > 1 else draws[0]


def lesson(target: Target, count: int) -> Phase:
    """Return the last phase, in which the server learns from the message; of so many points."""
    return Phase(None, hub=partial(_learn, target), shared=partial(_levels, target, count))


def _levels(target: Target, count: int, rng: RandomStreams) -> Levels:
    d = target.dimension
    begins = rng.normal("begins", (ensemble.SUPERCHAINS, d)) if d > limited.MOST_CURVED else ()
    return Levels(rng.uniform("accept", (count,)), rng.uniform("start"), begins)


def _learn(
    target: Target, shared: Levels, hub: Hub, message: PyTree
) -> tuple[Hub, tuple[()], Info]:
    """Go on with the search, the fit or the chains."""
    points = partial(_after_points, target) if target.dimension <= limited.MOST_CURVED else _idle
    branches = _idle, seeking.after_search, points, walking.after_walk
    places = {Stage.SEARCH: 1, Stage.FIT: 2, Stage.DRAW: 2, Stage.WALK: 3, Stage.WALK_DRAW: 3}
    place = jnp.asarray([places.get(stage, 0) for stage in Stage], jnp.int32)[hub.due]
    hub, quality = jax.lax.switch(place, branches, shared, hub)
    at, walkers = hub.rounds, hub.walkers
    values = History(
        purpose=hub.due,
        messages=jnp.where(walking.walking(hub), ensemble.due(walkers), 1),
        decrement=hub.search.decrement,
        share=quality.share,
        k_hat=quality.k_hat,
        acceptance=quality.acceptance,
        log_mean=quality.log_mean,
        nested_r_hat=walkers.measured.nested_r_hat,
        correlation=walkers.measured.correlation,
        step_size=walkers.step_size,
    )
    history = jax.tree.map(
        lambda kept, value: jax.lax.dynamic_update_index_in_dim(
            kept, jnp.asarray(value, kept.dtype), at, 0
        ),
        hub.history,
        values,
    )
    info = {
        "acceptance_rate": quality.acceptance,
        "k_hat": quality.k_hat,
        "effective_share": quality.share,
        "longest_rejection": jnp.max(hub.chains.idle),
    }
    return hub._replace(rounds=at + 1, history=history), (), info


def _after_points(target: Target, shared: Levels, hub: Hub) -> tuple[Hub, Quality]:
    """Fit the family to the points, or make Metropolis steps with them."""
    new = newest(hub)
    return jax.lax.cond(
        hub.due == Stage.FIT,
        partial(fitting.after_fit, target),
        partial(after_draws, target),
        *(shared, hub, new, quality_of(new.log_weights)),
    )


def _idle(shared: Levels, hub: Hub) -> tuple[Hub, Quality]:
    return hub, unknown(hub.centre.dtype)

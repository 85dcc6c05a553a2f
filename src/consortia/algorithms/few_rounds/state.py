"""The server's state: where the method stands, and what it has seen."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from consortia.algorithms.federated_hmc.ensemble import Ensemble, Root
from consortia.algorithms.few_rounds.family import Family
from consortia.dynamics.metropolis import Potential

Vector = Float[Array, " d"]
Scalar = Float[Array, ""]
Count = Int[Array, ""]

TRIED = (0, 1, 2, 3, 4)
"""Of a search's candidates those that a search from elsewhere sends: no round is made for it."""


class Stage(IntEnum):
    """What a round is for.

    The mode, the family, draws; nothing any more; where no family fits, chains of federated HMC
    that learn from each other, and their draws.
    """

    SEARCH, FIT, DRAW, FAILED, WALK, WALK_DRAW = range(6)

    def until(self, ended: Bool[Array, ""], following: Stage, late: Bool[Array, ""]) -> Count:
        """Return the stage of the next round: the following one where this has ended."""
        return jnp.where(ended, following, jnp.where(late, Stage.FAILED, self)).astype(jnp.int32)


class Best(NamedTuple):
    """The best point so far: θ, ∇U, ∇²U and U there."""

    position: Vector
    gradient: Vector
    curvature: Float[Array, "d d"]
    height: Potential


class Search(NamedTuple):
    """The search for the mode.

    Attributes:
        best: the best point so far; potentials are told relative to it.
        candidates: points of the next round.
        decrement: g'|H|⁻¹g at the best point.
        convex: the curvature there is positive.
        idle: rounds without a better point.
    """

    best: Best
    candidates: Float[Array, "M d"]
    decrement: Scalar
    convex: Count
    idle: Count


class Modes(NamedTuple):
    """Where the searches for the mode have ended, the heaviest mode first.

    Attributes:
        centres: θ.
        roots: of the inverse curvatures.
        shares: of the mass, by Laplace's approximation; zero where there is no further mode.
    """

    centres: Float[Array, "L d"]
    roots: Float[Array, "L d d"]
    shares: Float[Array, " L"]


class Searches(NamedTuple):
    """The search for the mode, and others from elsewhere.

    Attributes:
        first: from the model's start.
        others: the same of two more, (S, ...).
        modes: where they have come to.
    """

    first: Search
    others: Search
    modes: Modes

    @property
    def best(self) -> Best:
        """The best point of the first."""
        return self.first.best

    @property
    def decrement(self) -> Scalar:
        """That of the first."""
        return self.first.decrement

    @property
    def convex(self) -> Count:
        """That of the first."""
        return self.first.convex

    @property
    def candidates(self) -> Float[Array, "M d"]:
        """Points of the next round, of all searches."""
        few = self.others.candidates[:, np.array(TRIED)]
        return jnp.concatenate([self.first.candidates, few.reshape(-1, few.shape[-1])])


class Slope(NamedTuple):
    """The best point so far: θ and ∇U there."""

    position: Vector
    gradient: Vector


class Limited(NamedTuple):
    """The search for the mode by gradients only.

    Attributes:
        best: as in `Search`; and so are candidates, decrement, convex and idle.
        moves: of the best point, newest first.
        changes: of its gradient.
        taught: moves so far.
    """

    best: Slope
    candidates: Float[Array, "M d"]
    decrement: Scalar
    convex: Count
    idle: Count
    moves: Float[Array, "m d"]
    changes: Float[Array, "m d"]
    taught: Count


class Memory(NamedTuple):
    """The last W rounds of proposals, in white coordinates.

    Attributes:
        points: ζ.
        heights: log π, relative to the reference.
        families: from which they were drawn.
        rounds: that have been kept so far.
    """

    points: Float[Array, "W K d"]
    heights: Float[Array, "W K"]
    families: Family
    rounds: Count


class Chains(NamedTuple):
    """C chains of independence Metropolis.

    Attributes:
        places: ζ.
        log_weights: log π/q there.
        draws: θ of this round.
        idle: the longest row of rejections in it.
    """

    places: Float[Array, "C d"]
    log_weights: Float[Array, " C"]
    draws: Float[Array, "C n d"]
    idle: Int[Array, " C"]


class Levels(NamedTuple):
    """u of K Metropolis tests, and one for the places where the chains start.

    With too many parameters for a family ``begins`` has standard normal numbers for these.
    """

    tests: Float[Array, " K"]
    start: Scalar
    begins: PyTree[Float[Array, "S d"]] = ()


class History(NamedTuple):
    """What each iteration was for, and what was measured in it; NaN where nothing was."""

    purpose: Int[Array, " rounds"]
    messages: Int[Array, " rounds"]
    decrement: Float[Array, " rounds"]
    share: Float[Array, " rounds"]
    k_hat: Float[Array, " rounds"]
    acceptance: Float[Array, " rounds"]
    log_mean: Float[Array, " rounds"]
    nested_r_hat: Float[Array, " rounds"]
    correlation: Float[Array, " rounds"]
    step_size: Float[Array, " rounds"]


class Hub(NamedTuple):
    """The state of the server.

    With too many parameters for curvatures the search is that of gradients, the root a scale of
    each parameter, and family and memory are not used.

    Attributes:
        stage: of the next round.
        due: the stage of the round in progress.
        rounds: so far.
        search: for the mode.
        centre: m of the white coordinates, θ = m + Sζ.
        root: S.
        family: of the next proposals, in white coordinates.
        memory: of proposals.
        fits: rounds of proposals so far.
        mixed: 0 of a family with a single component; 1 when it has just been divided, 2 later.
        chains: of the draws.
        walkers: chains of federated HMC, where no family fits.
        history: round by round.
    """

    stage: Count
    due: Count
    rounds: Count
    search: Searches | Limited
    centre: Vector
    root: Root
    family: Family
    memory: Memory
    fits: Count
    mixed: Count
    chains: Chains
    walkers: Ensemble
    history: History

r"""The exact posterior in few communication rounds, each with thousands of points.

Between institutions a round costs seconds whatever it carries, and a site evaluates a thousand
points in the time of one message. Every iteration is one round, and a round is for one of three:

1. the mode: a damped Newton search with several candidates a round (`few_rounds.search`);
2. the family: K points from a family q, weights π/q against all points at hand, and the family
   nearest to them (`few_rounds.weights`, `few_rounds.family`);
3. draws: the family stands still, and the K points of a round are the proposals of chains of
   independence Metropolis,

.. math:: \alpha(\zeta \to \zeta') = \min\bigl(1,
          \pi(\zeta')\,q(\zeta) \,/\, \pi(\zeta)\,q(\zeta')\bigr)

so that the fit can slow the chain down, but cannot bias it. Proposals do not travel: centres and
scales of the family do, and every site draws the points from the stream that all share.

Where no family comes near enough, K chains of federated Hamiltonian Monte Carlo go on from the fit,
which is their preconditioner, and learn from each other (`federated_hmc.ensemble`); a round is then
a leapfrog step of all of them, an iteration a trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from consortia.algorithms.federated_hmc import ensemble
from consortia.algorithms.few_rounds import family as families
from consortia.algorithms.few_rounds import limited, modes, search, weights
from consortia.algorithms.few_rounds.evidence import evidence
from consortia.algorithms.few_rounds.family import FREEDOM, Family, Numbers
from consortia.algorithms.few_rounds.independence import metropolis_chains, resampled
from consortia.algorithms.few_rounds.state import (
    DRAW,
    FAILED,
    FIT,
    SEARCH,
    WALK,
    WALK_DRAW,
    Chains,
    Count,
    History,
    Hub,
    Limited,
    Memory,
    Searches,
)
from consortia.algorithms.few_rounds.widening import Widening, widened
from consortia.core import arguments
from consortia.core.contract import (
    Algorithm,
    Claims,
    Cost,
    Draws,
    Effort,
    Evaluation,
    Fault,
    Info,
    Method,
    Phase,
    Site,
    Sum,
)
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.dynamics import metropolis
from consortia.errors import InputError

Vector = Float[Array, " d"]

KEPT = 4
"""Rounds of points from which the family is fitted."""

MOST_SEARCH, MOST_FITS, MOST_DRAWS = 40, 16, 100
"""Rounds of each kind, at most."""

MOST_LIMITED = 56
"""Rounds of the search by gradients only."""

USUAL_ROUNDS = 14
"""In which ordinary regressions end, the draws included."""

MOST_WALKED = 64
"""Trajectories in which chains may forget where they were started."""

MOST_MESSAGES, MOST_MESSAGES_BY_GRADIENTS = 100, 400
"""Communication rounds before which they have to; the second with more than 200 parameters."""

MOST_CURVED, MOST_PARAMETERS = 200, 20_000
"""With more parameters the curvature, d² numbers a candidate, is too much for a message; and with
more than these so are enough chains."""

MOST_NUMBERS, FEWEST_CHAINS = 2**21, 64
"""Of all positions in a message, where there are more than 200 parameters; and chains at least."""

POINTS_PER_EFFECTIVE = 4
"""K by the asked effective size: one round of a good family is then enough."""

WIDER_TAILS = 2.0
"""Points of a t with ν = 8 reach about twice as far as those of a Gaussian."""

FEWEST_POINTS, MOST_POINTS = 256, 8192

FIT_ROUNDS, POINTS_PER_PARAMETER, PATIENCE = 2, 16, 30.0
"""Of an open K: rounds that fit the family, points that a fit needs, and seconds that a site may
compute in a round whatever that costs in all: fewer points fit worse, and rounds are whole."""

GOOD_SHARE, GOOD_K_HAT = 0.5, 0.5
"""A family with these needs no further round."""

GROWTH = 1.1
"""The fit goes on while the effective share grows by this factor a round."""

TRIED = 6
"""Rounds after which a family that does not come nearer to the posterior is given up."""

REFITS = 3
"""Rounds after which a single t that does not do gives way to a mixture."""

WORST_CORRELATION = 0.3
"""Of the draws of a chain of federated HMC in successive rounds."""

WORST_K_HAT, LOWEST_RATE = 0.7, 0.1
"""A family that is further from the posterior is refused."""


@dataclass(frozen=True, kw_only=True)
class FewRounds(Method):
    r"""The exact posterior in about a dozen communication rounds.

    **Samples** exp(−U), U = Σ_c U_c, exactly: every draw passes a Metropolis test on the summed
    log-density, with proposals from a family that stands still. However unlike the sites are, there
    is no bias but that of a finite chain. It needs every site in every round.

    **Draw**: θ after a Metropolis step, K of them a round, divided among the chains; of K chains of
    Hamiltonian Monte Carlo where each is, K/C side by side in one chain of the result.

    **Step size**: none.

    Nothing has to be set. From the model's own start the mode is sought, each round with several
    candidates (points, and for each U_c, ∇U_c and ∇²U_c); then a Student t with ν = 8 is fitted by
    adaptive importance sampling; then it stands still and draws begin. The run ends at the asked
    effective size, or after ``rounds`` rounds of draws. What each round was for, and what it
    showed, stands in the attribute ``rounds_used`` of the result, and the log evidence with its
    standard error in ``log_evidence`` and ``log_evidence_error``. Where no member of the family
    comes near the posterior K chains of federated Hamiltonian Monte Carlo go on from it, each a few
    trajectories long; the attribute ``handed_over`` has the reason. Where these have not forgotten
    their starts within 100 communication rounds, or some of them do not move, the run ends and says
    so, with what to do, in place of an answer. With more than 200 parameters the mode is sought by
    gradients only, and chains begin there, as many as 8 MB hold, with 400 communication rounds.

    ``sample_stats`` holds acceptance_rate, k_hat (the Pareto shape of the importance weights: the
    usual bound is .7), effective_share of the weights, and longest_rejection.

    Args:
        effective_size: the run ends when the smallest effective sample size over the parameters,
            bulk or tail, has reached it; None runs all rounds.
        proposals: K, points a round: four times the effective size, at least 256 and at most 8,192,
            when None; fewer where a site would compute for long, by the measured seconds of a
            log-density and of a message, see `paced`. Each is 4 bytes up a site.
        components: more than one let a t that does not do (k-hat above .5 after three rounds)
            become a mixture. It follows bends, but k-hat does not see a tail that no point has
            reached: on a banana it had standard deviations up to a fifth too small. With 1 such a
            posterior is refused. With 4 it also begins with a component for each mode
            that the searches have found, and draws from all of them.
        chains: independent chains among which the proposals of a round are divided; set by
            ``sample(..., chains=...)``.

    Raises:
        InputError: an argument is out of its range; there are more than 20,000 parameters.

    Example:
        >>> FewRounds(effective_size=500).points
        2000

    Source: ours; adaptive multiple importance sampling after Cornuet, Marin, Mira, Robert (2012),
    independence Metropolis after Tierney (1994).
    """

    effective_size: float | None = 1000.0
    proposals: int | None = None
    components: int = 1
    chains: int = 1

    name = "few_rounds"
    step_size = None
    most_warmup = MOST_SEARCH + MOST_FITS + MOST_WALKED
    most_rounds = MOST_DRAWS
    claims = Claims(
        samples="the posterior (independence Metropolis on the summed log-density)",
        bias="none, however unlike the sites are; every site answers in every round",
        draw="the position after a Metropolis step, thousands of them a round",
        step_size="none",
        source="ours; adaptive multiple importance sampling after Cornuet, Marin, Mira, Robert "
        "(2012), independence Metropolis after Tierney (1994)",
    )

    def __post_init__(self) -> None:
        arguments.keep(
            self,
            effective_size=arguments.optional_number("effective_size", self.effective_size, 1.0),
            proposals=arguments.optional_whole("proposals", self.proposals, 64),
            components=arguments.whole("components", self.components, 1, 64),
            chains=arguments.whole("chains", self.chains, 1),
        )

    @property
    def points(self) -> int:
        """K, a multiple of the number of chains."""
        wanted = self.proposals
        if wanted is None:
            size = 1000.0 if self.effective_size is None else self.effective_size
            wanted = math.ceil(POINTS_PER_EFFECTIVE * size)
            wanted = min(max(wanted, FEWEST_POINTS), MOST_POINTS)
        return self.chains * -(-wanted // self.chains)

    def with_chains(self, chains: int) -> tuple[FewRounds, int]:
        """Return the method with these chains, and 1: its one hub holds them all."""
        return replace(self, chains=chains), 1

    @property
    def adapts(self) -> bool:
        """The mode and the family are sought before the first draw."""
        return True

    def points_of(self, dimension: int) -> int:
        """Return K; with more than 200 parameters as many chains as a message carries."""
        if dimension <= MOST_CURVED:
            return self.points
        most = max(MOST_NUMBERS // dimension, FEWEST_CHAINS)
        return self.chains * max(min(self.points, most) // self.chains, 1)

    def usual_rounds(self, dimension: int) -> int | None:
        """Return 14; with more than 200 parameters nothing is usual."""
        return USUAL_ROUNDS if dimension <= MOST_CURVED else None

    def effort(self, dimension: int) -> Effort | None:
        """Return 400 messages of the gradients of all chains, with more than 200 parameters."""
        if dimension <= MOST_CURVED:
            return None
        return Effort(MOST_MESSAGES_BY_GRADIENTS, self.points_of(dimension))

    def open_points(self, dimension: int) -> int:
        """Return K where it follows from the effective size, with up to 200 parameters."""
        return self.points if self.proposals is None and dimension <= MOST_CURVED else 0

    def paced(self, point: float, message: float, dimension: int) -> FewRounds:
        r"""Return the method with a smaller K where the sites' work is what takes the time.

        Of N points for the draws and F rounds of K for the fit the time is
        :math:`(F + N/K)(\tau + Ks)`, least at :math:`K = \sqrt{N\tau/(Fs)}`, with s seconds a
        point and τ a message. Points for half a minute of work a round are always taken.
        """
        wanted = self.open_points(dimension)
        least = max(FEWEST_POINTS, POINTS_PER_PARAMETER * dimension, PATIENCE / point)
        best = max(math.sqrt(wanted * message / (FIT_ROUNDS * point)), least)
        return self if best >= wanted else replace(self, proposals=math.ceil(best))

    @property
    def chosen(self) -> dict[str, Any]:
        """K, unless it follows from the effective size."""
        return {} if self.proposals is None else {"proposals": self.proposals}

    def with_chosen(self, values: Mapping[str, Any]) -> FewRounds:
        """Return the method with the K of a run: no more points than it has without.

        Raises:
            InputError: K is another one in the study, or is no such number.
        """
        given = values.get("proposals", self.proposals)
        if values.keys() - {"proposals"} or self.proposals not in (None, given):
            raise InputError(f"few_rounds: {dict(values)} was chosen, which is not open.")
        if given is None:
            return self
        return replace(self, proposals=arguments.whole("proposals", given, 64, self.points))

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse a model of which a message cannot carry many chains."""
        if dimension > MOST_PARAMETERS:
            raise InputError(
                f"few_rounds: the model has {dimension} parameters; the most is {MOST_PARAMETERS}, "
                "of which a message still carries many chains. Use federated_hmc: some hundreds of "
                f"rounds, {4 * dimension + 8} bytes up a site in each."
            )

    def warm(self, hub: Hub) -> bool:
        """Return True if the family or the chains stand still, or nothing was found."""
        return int(hub.stage) in (DRAW, WALK_DRAW, FAILED)

    def check_learned(self, hub: Hub) -> str | None:
        """Return what was reached where no family was found; None where one was."""
        if int(hub.stage) != FAILED:
            return None
        rounds = int(hub.rounds)
        if not int(np.sum(_walked_iterations(hub))) and int(hub.fits) == 0:
            return (
                f"few_rounds: the mode was not reached in {rounds} rounds: the last step was "
                f"{math.sqrt(float(hub.search.decrement)):.2g} standard deviations long"
                f"{'' if int(hub.search.convex) else ', where the curvature is not positive'}. The "
                "posterior may be improper, or flat in a direction: give every parameter a proper "
                "prior, give init nearer to the mode, or use federated_hmc."
            )
        messages = int(np.sum(np.asarray(hub.history.messages)))
        obstacles = " and ".join(ensemble.obstacles(hub.walkers.measured)) or "more rounds are due"
        return (
            f"few_rounds: {_why(hub)}; and {len(hub.walkers.idle)} chains of federated HMC did not "
            f"settle in {messages} communication rounds in all: {obstacles}. Give every parameter "
            "a proper prior, use federated_hmc for some hundreds of rounds, from init=fitted_mean "
            "with mass_matrix=1/fitted_variance "
            "(attributes of error.tree), write scales of hierarchical models on the scale on which "
            "their data inform them (centred where there are many, non-centred where few), or "
            "integrate a site's own parameters out (integrate=True of a formula)."
        )

    def check_draws(self, hub: Hub) -> tuple[Fault, ...]:
        """Return what the weights, the chains and the modes that were found say against them."""
        history = jax.tree.map(np.asarray, hub.history)
        faults = []
        walked, drawn = history.purpose == WALK_DRAW, history.purpose == DRAW
        correlation = np.max(history.correlation[walked], initial=0.0)
        if np.sum(walked) > 1 and correlation > WORST_CORRELATION:
            faults.append(
                f"few_rounds: the draws of a chain in successive rounds have a correlation of "
                f"{correlation:.2f}, which the effective sample size does not see: it is exact for "
                "one round of draws"
            )
        if drawn.any() and (k_hat := np.median(history.k_hat[drawn])) > WORST_K_HAT:
            faults.append(
                f"few_rounds: k-hat is {k_hat:.2f} in the rounds of draws, above {WORST_K_HAT}: "
                "the tails of the posterior may not have been seen, or it has no end (give every "
                "parameter a proper prior). Compare with federated_hmc"
            )
        missed = modes.missed(_modes(hub)) if drawn.any() or walked.any() else ""
        return (*map(Fault, faults), *([Fault(f"few_rounds: {missed}", True)] if missed else []))

    def report(self, hub: Hub) -> dict[str, Any]:
        """Return what each round was for, and what was measured in it."""
        history = jax.tree.map(np.asarray, hub.history)
        names = {SEARCH: "mode", FIT: "family", DRAW: "draws", WALK: "chains", WALK_DRAW: "draws"}
        purposes = history.purpose[: int(hub.rounds)]
        lines = []
        for index, purpose in enumerate(purposes.tolist()):
            seen = {name: float(history._asdict()[name][index]) for name in MEASURED[purpose]}
            values = {
                name: float(f"{value:.3g}") for name, value in seen.items() if math.isfinite(value)
            }
            points = {"points": self.points} if purpose in (FIT, DRAW) else {}
            lines.append({"for": names[purpose]} | points | values)
        facts: dict[str, Any] = {
            "rounds_used": lines,
            "family_components": int(np.sum(hub.family.shares > 0)) if int(hub.fits) else 0,
        }
        facts |= evidence(hub, WORST_K_HAT)
        if told := _modes(hub):
            facts["modes"] = told
        if int(hub.stage) in (WALK, WALK_DRAW):
            facts["handed_over"] = (
                f"{_why(hub)}. {len(hub.walkers.idle)} chains of federated HMC, preconditioned by "
                "the last fit, each a few trajectories long, have made the draws"
            )
        if int(hub.stage) == FAILED and int(hub.fits) > 0:
            family = _in_parameters(hub)
            shares = np.asarray(family.shares / family.shares.sum())
            centres = np.asarray(family.centres)
            within = np.sum(np.asarray(family.roots) ** 2, axis=-1) * FREEDOM / (FREEDOM - 2)
            mean = shares @ centres
            facts["fitted_mean"] = mean.tolist()
            facts["fitted_variance"] = (shares @ (within + (centres - mean) ** 2)).tolist()
        return facts

    def full_iterations(self, hub: Hub, done: int) -> float:
        """Return the rounds of points and of chains."""
        return sum(self._rounds_of(hub, done)[1:])

    def phases_run(self, hub: Hub, done: int) -> tuple[int, ...]:
        """Return how often each phase has run: that of the mode, of points, or of the chains."""
        sought, proposed, walked = self._rounds_of(hub, done)
        points = () if isinstance(hub.search, Limited) else (done, proposed)
        return done, sought, *points, done, walked, done

    def _rounds_of(self, hub: Hub, done: int) -> tuple[int, int, int]:
        """Return the communication rounds for the mode, of points and of the chains."""
        purpose = np.asarray(hub.history.purpose)[:done]
        sought, walking = int(np.sum(purpose == SEARCH)), _walked_iterations(hub)[:done]
        walked = int(np.sum(np.asarray(hub.history.messages)[:done][walking]))
        return sought, done - sought - int(np.sum(walking)), walked

    def cost(self, sizes: np.ndarray) -> Cost:
        """Return no gradients; K potentials a site, each counted as one."""
        return Cost(self.points * len(sizes), self.points * int(sizes.sum()))

    def build(self, target: Target) -> Algorithm:
        """Return one message an iteration, for the mode or for points, and what it teaches."""
        curved = target.dimension <= MOST_CURVED
        aim = Phase(None, hub=partial(_aim, target), shared=partial(_starts, target))
        seek = Phase(
            partial(_answer, target),
            Sum(),
            hub=partial(_sought, modes.step if curved else limited.step),
            repeats=lambda hub: _due(hub, SEARCH),
            evaluation=lambda inbox: Evaluation(inbox.positions),
        )
        propose = Phase(None, hub=partial(_propose, target))
        evaluate = Phase(
            partial(_evaluate, target),
            Sum(),
            hub=partial(_keep, target),
            shared=partial(_numbers, self, target),
            repeats=lambda hub: _due(hub, FIT) + _due(hub, DRAW),
            evaluation=partial(_evaluation_around, self, target),
        )
        begin = Phase(None, hub=_begin, shared=partial(_momenta, self, target))
        leap = Phase(
            partial(_walked, target),
            Sum(),
            hub=_leap,
            repeat=ensemble.LONGEST,
            repeats=lambda hub: jnp.where(_walking(hub), ensemble.due(hub.walkers), 0),
            evaluation=lambda inbox: Evaluation(inbox.positions),
        )
        learn = Phase(
            None, hub=partial(_learn, self, target), shared=partial(_levels, self, target)
        )
        points = (propose, evaluate) if curved else ()
        return Algorithm(
            partial(_init, self),
            (aim, seek, *points, begin, leap, learn),
            Draws(
                hub=_drawn,
                per_iteration=self.points_of(target.dimension) // self.chains,
                chains=self.chains,
            ),
            one_exchange=True,
        )


few_rounds = FewRounds


def _drawn(hub: Hub, inbox: PyTree) -> Float[Array, "*C n d"]:
    draws = hub.chains.draws
    return draws if draws.shape[0] > 1 else draws[0]


MEASURED = {
    SEARCH: ("decrement",),
    FIT: ("share", "k_hat", "acceptance"),
    DRAW: ("share", "k_hat", "acceptance"),
    WALK: ("messages", "acceptance", "nested_r_hat", "correlation", "step_size"),
    WALK_DRAW: ("messages", "acceptance", "nested_r_hat", "correlation", "step_size"),
}
"""What is measured in a round, by its purpose."""


def _walked_iterations(hub: Hub) -> np.ndarray:
    """Return True for the iterations that were trajectories of chains."""
    return np.isin(np.asarray(hub.history.purpose), (WALK, WALK_DRAW))


def _modes(hub: Hub) -> list[dict[str, float]]:
    """Return what is told of several modes; empty where one was found, or nothing was drawn."""
    if not isinstance(hub.search, Searches):
        return []
    return modes.told(
        hub.search.modes, np.asarray(hub.chains.draws, float).reshape(-1, hub.centre.size)
    )


def _why(hub: Hub) -> str:
    """Return why no family does: what was measured in the last round of one."""
    if not int(hub.fits):
        return (
            f"with more than {MOST_CURVED} parameters no family of proposals comes near enough to "
            "the posterior"
        )
    history = jax.tree.map(np.asarray, hub.history)
    last = np.flatnonzero(history.purpose[: int(hub.rounds)] == FIT)[-1]
    return (
        f"no family of proposals was reached in {int(hub.fits)} rounds (k-hat "
        f"{history.k_hat[last]:.2f}, effective share {history.share[last]:.2g}, acceptance "
        f"{history.acceptance[last]:.2g}): the posterior is too wide in its tails, too bent or of "
        "too many parameters for independent proposals"
    )


# --- the message of a round ----------------------------------------------------------------------


class Candidates(NamedTuple):
    """Where to look for the mode: potentials are told relative to the reference."""

    reference: Vector
    positions: Float[Array, "M d"]


class Proposal(NamedTuple):
    """A family of positions φ, from which every site draws the same points; see `Widening`."""

    reference: Vector
    family: Family
    widening: Widening | tuple[()]


class Starts(NamedTuple):
    """Standard normal numbers (d,) for the starts of further searches; () where there are none."""

    normals: PyTree


class Levels(NamedTuple):
    """u of K Metropolis tests, and one for the places where the chains start.

    With too many parameters for a family ``begins`` has standard normal numbers for these.
    """

    tests: Float[Array, " K"]
    start: Float[Array, ""]
    begins: PyTree = ()


class Momenta(NamedTuple):
    """ξ of the momenta of the chains of federated HMC."""

    normals: Float[Array, "K d"]


class Walked(NamedTuple):
    """Of the chains of federated HMC: U relative to the reference, and ∇U."""

    heights: Float[Array, " K"]
    gradients: Float[Array, "K d"]


def _init(method: FewRounds, position: Vector) -> tuple[tuple[()], Hub, tuple[()]]:
    d, dtype, chains = position.size, position.dtype, method.chains
    points, curved = method.points_of(d), d <= MOST_CURVED
    zero = jnp.zeros((), jnp.int32)
    root = jnp.eye(d, dtype=dtype) if curved else jnp.ones(d, dtype)
    # With too many parameters for a family nothing of it is kept.
    kept, size = (points, d) if curved else (1, 1)
    family = families.single(size, method.components, dtype)
    several = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (KEPT, *leaf.shape)), family)
    length = method.most_warmup + MOST_DRAWS
    hub = Hub(
        stage=zero,
        due=zero,
        rounds=zero,
        search=modes.first(position) if curved else limited.first(position),
        centre=position,
        root=root,
        family=family,
        memory=Memory(
            jnp.zeros((KEPT, kept, size), dtype), jnp.zeros((KEPT, kept), dtype), several, zero
        ),
        fits=zero,
        mixed=zero,
        chains=Chains(
            jnp.zeros((chains, d), dtype),
            jnp.zeros(chains, dtype),
            jnp.zeros((chains, points // chains, d), dtype),
            jnp.zeros(chains, jnp.int32),
        ),
        walkers=ensemble.start(jnp.zeros((points, d), dtype), root),
        history=History(
            jnp.zeros(length, jnp.int32),
            jnp.zeros(length, jnp.int32),
            *[jnp.full(length, jnp.nan, dtype)] * (len(History._fields) - 2),
        ),
    )
    return (), hub, ()


def _due(hub: Hub, stage: int) -> Count:
    return (hub.due == stage).astype(jnp.int32)


def _starts(target: Target, rng: RandomStreams) -> Starts:
    if target.dimension > MOST_CURVED:
        return Starts(())
    return Starts(rng.normal("elsewhere", (target.dimension,)))


def _aim(target: Target, shared: Starts, hub: Hub, message: PyTree) -> tuple[Hub, Candidates, Info]:
    """Settle what the round is for; the reply is where to look for the mode."""
    hub = hub._replace(due=hub.stage)
    if isinstance(hub.search, Searches):
        begun = modes.begun(target, hub.search, shared.normals)
        chosen = jax.tree.map(partial(jnp.where, hub.rounds == 0), begun, hub.search)
        hub = hub._replace(search=chosen)
    return hub, _candidates(hub), {}


def _candidates(hub: Hub) -> Candidates:
    return Candidates(hub.search.best.position, hub.search.candidates)


def _answer(
    target: Target, noise: PyTree, shared: PyTree, state: PyTree, inbox: Candidates, site: Site
) -> tuple[PyTree, search.Answer | limited.Answer, Info]:
    """Send U_c, ∇U_c and, where it is small enough, ∇²U_c at the candidates."""
    answer = search.answer if target.dimension <= MOST_CURVED else limited.answer
    return state, answer(target, inbox.reference, inbox.positions, site), {}


def _sought(
    step: Callable[..., Searches | Limited],
    shared: PyTree,
    hub: Hub,
    message: search.Answer | limited.Answer,
) -> tuple[Hub, Candidates, Info]:
    """Go on to the best candidate."""
    hub = hub._replace(search=step(hub.search, message))
    return hub, _candidates(hub), {}


def _propose(
    target: Target, shared: PyTree, hub: Hub, message: PyTree
) -> tuple[Hub, Proposal, Info]:
    """Reply with the family in the coordinates of the model."""
    return hub, _proposal(target, hub), {}


def _proposal(target: Target, hub: Hub) -> Proposal:
    return Proposal(hub.search.best.position, _in_parameters(hub), _widening(target, hub))


def _in_parameters(hub: Hub) -> Family:
    """Return the family in the coordinates of the model, but for what `Widening` does."""
    centres = hub.centre[None] + hub.family.centres @ hub.root.T
    return Family(hub.family.shares, centres, hub.root[None] @ hub.family.roots)


def _widening(target: Target, hub: Hub) -> Widening | tuple[()]:
    if target.model.group_sd is None:
        return ()
    return Widening(hub.centre, jnp.sum(hub.root**2, axis=1))


def _evaluation_around(method: FewRounds, target: Target, inbox: Proposal) -> Evaluation:
    """Return the centres in use, and how far their points spread."""
    used = np.asarray(inbox.family.shares) > 0
    centres, roots = inbox.family.centres[used], inbox.family.roots[used]
    widest = WIDER_TAILS * jnp.sqrt(jnp.sum(roots**2, axis=-1))
    around, *ends = (
        widened(target, inbox.widening, centres + times * widest)[0] for times in (0, -1, 1)
    )
    widest = jnp.maximum(*[jnp.abs(end - around) for end in ends])
    return Evaluation(around, widest, -(-method.points // max(len(centres), 1)))


def _numbers(method: FewRounds, target: Target, rng: RandomStreams) -> Numbers:
    count = method.points
    return Numbers(
        rng.normal("points", (count, target.dimension)),
        rng.uniform("scales", (count, FREEDOM // 2)),
        rng.uniform("components", (count,)),
    )


def _levels(method: FewRounds, target: Target, rng: RandomStreams) -> Levels:
    d = target.dimension
    begins: PyTree = ()
    if d > MOST_CURVED:
        begins = rng.normal("begins", (ensemble.SUPERCHAINS, d))
    return Levels(rng.uniform("accept", (method.points_of(d),)), rng.uniform("start"), begins)


def _evaluate(
    target: Target, noise: PyTree, shared: Numbers, state: PyTree, inbox: Proposal, site: Site
) -> tuple[PyTree, Float[Array, " K"], Info]:
    """Draw the points of the round, and send U_c there relative to the reference."""
    base = metropolis.potential(target, inbox.reference, site)

    def above(position: Vector) -> Array:
        return metropolis.potential(target, position, site).above(base)

    points, _ = widened(target, inbox.widening, families.points(inbox.family, shared))
    return state, metropolis.at_all(target, above, points, site), {}


def _keep(
    target: Target, shared: Numbers, hub: Hub, message: Float[Array, " K"]
) -> tuple[Hub, Proposal, Info]:
    """Keep the points of the round with their heights."""
    memory, points = hub.memory, families.points(hub.family, shared)
    slot = memory.rounds % KEPT
    heights = jnp.where(jnp.isfinite(message), -message, -jnp.inf)
    heights = heights + _parameters(target, hub, points)[1]

    def put(kept: Array, new: Array) -> Array:
        return kept.at[slot].set(new)

    memory = Memory(
        put(memory.points, points),
        put(memory.heights, heights),
        jax.tree.map(put, memory.families, hub.family),
        memory.rounds + 1,
    )
    hub = hub._replace(memory=memory)
    return hub, _proposal(target, hub), {}


def _parameters(
    target: Target, hub: Hub, points: Float[Array, "K d"]
) -> tuple[Float[Array, "K d"], Float[Array, " K"]]:
    """Return θ at white coordinates of φ, and log |dθ/dφ|."""
    return widened(target, _widening(target, hub), hub.centre[None] + points @ hub.root.T)


def _places(target: Target, hub: Hub, points: Float[Array, "K d"]) -> Float[Array, "K d"]:
    """Return the white coordinates of θ, where chains walk, at those of φ."""
    if target.model.group_sd is None:
        return points
    away = _parameters(target, hub, points)[0] - hub.centre[None]
    return jnp.linalg.solve(hub.root, away.T).T


# --- chains of federated HMC, where no family fits -----------------------------------------------


def _walking(hub: Hub) -> Bool[Array, ""]:
    return (hub.due == WALK) | (hub.due == WALK_DRAW)


def _momenta(method: FewRounds, target: Target, rng: RandomStreams) -> Momenta:
    return Momenta(rng.normal("momentum", (method.points_of(target.dimension), target.dimension)))


def _begin(shared: Momenta, hub: Hub, message: PyTree) -> tuple[Hub, Candidates, Info]:
    """Begin a trajectory of all chains; the reply is where they are to be evaluated."""
    begun = ensemble.begun(hub.walkers, shared.normals, hub.due == WALK)
    walking = _walking(hub)
    walkers = jax.tree.map(lambda a, b: jnp.where(walking, a, b), begun, hub.walkers)
    return _asked(hub._replace(walkers=walkers))


def _asked(hub: Hub) -> tuple[Hub, Candidates, Info]:
    places = hub.centre[None] + ensemble.along(hub.root, hub.walkers.trial.places)
    return hub, Candidates(hub.search.best.position, places), {}


def _walked(
    target: Target, noise: PyTree, shared: PyTree, state: PyTree, inbox: Candidates, site: Site
) -> tuple[PyTree, Walked, Info]:
    """Send U_c and ∇U_c where the chains are."""
    base = metropolis.potential(target, inbox.reference, site)

    def at(position: Vector) -> Walked:
        potential, gradient = metropolis.potential_and_gradient(target, position, site)
        return Walked(potential.above(base), gradient)

    return state, metropolis.at_all(target, at, inbox.positions, site), {}


def _leap(shared: PyTree, hub: Hub, message: Walked) -> tuple[Hub, Candidates, Info]:
    """Kick and drift all chains."""
    gradients = ensemble.against(hub.root, message.gradients)
    return _asked(hub._replace(walkers=ensemble.moved(hub.walkers, message.heights, gradients)))


# --- what a round teaches ------------------------------------------------------------------------


def _learn(
    method: FewRounds, target: Target, shared: Levels, hub: Hub, message: PyTree
) -> tuple[Hub, tuple[()], Info]:
    """Go on with the search, the fit or the chains."""
    points: tuple[Any, Any] = (
        partial(_after_fit, method, target),
        partial(_after_draws, target),
    )
    if isinstance(hub.search, Limited):
        points = _idle, _idle
    branches = (partial(_after_search, method), *points, _idle, _after_walk, _after_walked_draws)
    hub, quality = jax.lax.switch(hub.due, branches, shared, hub)
    at, history, walkers = hub.rounds, hub.history, hub.walkers
    walking = _walking(hub)
    values = History(
        purpose=hub.due,
        messages=jnp.where(walking, ensemble.due(walkers), 1),
        decrement=hub.search.decrement,
        share=quality.share,
        k_hat=quality.k_hat,
        acceptance=quality.acceptance,
        log_mean=quality.log_mean,
        nested_r_hat=walkers.measured.nested_r_hat,
        correlation=walkers.measured.correlation,
        step_size=walkers.step_size,
    )
    history = jax.tree.map(lambda kept, value: kept.at[at].set(value), history, values)
    info = {
        "acceptance_rate": quality.acceptance,
        "k_hat": quality.k_hat,
        "effective_share": quality.share,
        "longest_rejection": jnp.max(hub.chains.idle),
    }
    return hub._replace(rounds=at + 1, history=history), (), info


def _idle(shared: Levels, hub: Hub) -> tuple[Hub, weights.Quality]:
    nothing = jnp.full((), jnp.nan, hub.centre.dtype)
    return hub, weights.Quality(*[nothing] * len(weights.Quality._fields))


def _after_search(method: FewRounds, shared: Levels, hub: Hub) -> tuple[Hub, weights.Quality]:
    """Begin the fit at the mode, where the search has ended; or chains, of too many parameters."""
    if isinstance(hub.search, Limited):
        return _after_limited(shared, hub, hub.search)
    ended = search.ended(hub.search.first)
    late = (hub.rounds + 1 >= MOST_SEARCH) | search.stuck(hub.search.first)
    stage = jnp.where(ended, FIT, jnp.where(late, FAILED, SEARCH)).astype(jnp.int32)
    found = modes.found(hub.search)
    sought = jax.tree.map(partial(jnp.where, ended), found, hub.search)
    family = modes.family_of(found.modes, method.components)
    mixed = jnp.where(jnp.sum(family.shares > 0) > 1, 2, 0).astype(jnp.int32)
    centre, root = found.modes.centres[0], found.modes.roots[0]
    hub = hub._replace(stage=stage, centre=centre, root=root, search=sought)
    return _idle(shared, hub._replace(family=family, mixed=mixed))


def _after_limited(shared: Levels, hub: Hub, found: Limited) -> tuple[Hub, weights.Quality]:
    """Begin chains near the mode, where the search has ended."""
    centre, root = limited.laplace(found)
    late = (hub.rounds + 1 >= MOST_LIMITED) | limited.stuck(found)
    stage = jnp.where(limited.ended(found), WALK, jnp.where(late, FAILED, SEARCH))
    begins = shared.begins[ensemble.superchains(hub.walkers.idle.size)]
    walkers = ensemble.start(begins, jnp.ones_like(root))
    hub = hub._replace(stage=stage.astype(jnp.int32), centre=centre, root=root, walkers=walkers)
    return _idle(shared, hub)


def _newest(hub: Hub) -> tuple[Float[Array, "K d"], Float[Array, " K"]]:
    """Return the points of this round, and log π/q there."""
    slot = (hub.memory.rounds - 1) % KEPT
    points, heights = hub.memory.points[slot], hub.memory.heights[slot]
    return points, heights - families.log_density(hub.family, points)


def _after_fit(
    method: FewRounds, target: Target, shared: Levels, hub: Hub
) -> tuple[Hub, weights.Quality]:
    """Fit the family to all points at hand; begin to draw where it does."""
    memory, fits, mixed = hub.memory, hub.fits + 1, hub.mixed
    quality = weights.quality(_newest(hub)[1])
    before = jnp.where(hub.fits > 0, hub.history.share[hub.rounds - 1], 0)
    good = (quality.share >= GOOD_SHARE) & (quality.k_hat <= GOOD_K_HAT)
    mixing = (mixed == 0) & (fits >= REFITS) & (quality.k_hat > GOOD_K_HAT)
    mixing &= jnp.asarray(method.components > 1)
    stands = (fits > 1) & (quality.share < GROWTH * before) & ~mixing
    # The first fit after a family has become a mixture is compared with none.
    stands &= (mixed == 0) | (mixed > 1)
    # One round's k-hat may be lucky: two in a row must be low, unless it is good.
    last_k_hat = jnp.where(hub.fits > 0, hub.history.k_hat[hub.rounds - 1], jnp.inf)
    usable = jnp.maximum(quality.k_hat, last_k_hat) <= WORST_K_HAT
    usable = good | (usable & (quality.acceptance >= LOWEST_RATE))
    # Far from the posterior the share is noise: only a family that would do may be kept.
    ends = good | (stands & usable) | (fits >= MOST_FITS)
    d = hub.centre.size
    # Fewer effective points than parameters teach nothing, unless they soon grow; nor do more
    # rounds of a family that no longer comes nearer.
    hopeless = (fits >= REFITS) & (quality.share * method.points < d)
    late = (fits >= TRIED) & (quality.share < GROWTH * before) & ~mixing & (mixed != 1)
    ends |= ~usable & (hopeless | late)
    after = jnp.where(usable, DRAW, WALK)
    stage = jnp.where(ends, after, FIT).astype(jnp.int32)

    log_weights = weights.mixture_log_weights(memory)
    wanted = jnp.asarray(max(20.0 * d, 100.0), log_weights.dtype)
    points = memory.points.reshape(-1, d)
    tempered = weights.tempered(log_weights, wanted)
    fitted = families.refitted(hub.family, points, tempered, mixing)
    family = jax.tree.map(
        lambda new, old: jnp.where(jnp.all(jnp.isfinite(new)), new, old), fitted, hub.family
    )
    index = resampled(weights.normalised(log_weights), shared.start, method.chains)
    places = points[index]
    start = memory.heights.reshape(-1)[index] - families.log_density(family, places)
    chains = hub.chains._replace(places=places, log_weights=start)
    mixed = jnp.where(mixing, 1, 2 * jnp.minimum(mixed, 1)).astype(jnp.int32)
    # Groups of chains of federated HMC start where tempered weights are.
    begins = points[resampled(tempered, shared.start, ensemble.SUPERCHAINS)]
    shell = _shell(hub.family, _newest(hub)[0][: ensemble.SUPERCHAINS])
    begins = _places(target, hub, jnp.where(hopeless, shell, begins))[
        ensemble.superchains(method.points)
    ]
    spread = math.sqrt(FREEDOM / (FREEDOM - 2)) * family.roots[0]
    walkers = ensemble.start(begins, jnp.where(hopeless, hub.family.roots[0], spread))
    hub = hub._replace(stage=stage, family=family, fits=fits, mixed=mixed, chains=chains)
    return hub._replace(walkers=walkers), quality


def _shell(family: Family, points: Float[Array, "S d"]) -> Float[Array, "S d"]:
    """Return points of the first component, moved to where those of a Gaussian lie."""
    centre, root = family.centres[0], family.roots[0]
    white = jax.scipy.linalg.solve_triangular(root, (points - centre[None]).T, lower=True)
    scale = math.sqrt(centre.size) / jnp.sqrt(jnp.sum(white**2, axis=0))
    return centre[None] + (root @ (white * scale[None])).T


def _after_draws(target: Target, shared: Levels, hub: Hub) -> tuple[Hub, weights.Quality]:
    """Make K Metropolis steps with the points of this round, in all chains together."""
    points, log_weights = _newest(hub)
    quality = weights.quality(log_weights)
    chains, rate = metropolis_chains(hub.chains, points, log_weights, shared.tests)
    flat = chains.draws.reshape(-1, hub.centre.size)
    draws = _parameters(target, hub, flat)[0].reshape(chains.draws.shape)
    return hub._replace(chains=chains._replace(draws=draws)), quality._replace(acceptance=rate)


def _after_walk(shared: Levels, hub: Hub) -> tuple[Hub, weights.Quality]:
    """Let the chains learn from their trajectories; keep draws once their starts are forgotten."""
    tested = ensemble.ended(hub.walkers, shared.tests)
    settled = ensemble.settled(tested)
    learned = ensemble.learned(tested)
    walkers = jax.tree.map(lambda a, b: jnp.where(settled, a, b), tested, learned)
    rounds = jnp.sum(hub.history.messages, dtype=jnp.int32) + ensemble.due(hub.walkers)
    curved = not isinstance(hub.search, Limited)
    most = MOST_MESSAGES if curved else MOST_MESSAGES_BY_GRADIENTS
    late = (rounds + 2 * ensemble.due(walkers) > most) | (walkers.trajectories >= MOST_WALKED)
    stage = jnp.where(settled, WALK_DRAW, jnp.where(late, FAILED, WALK)).astype(jnp.int32)
    return _moved(hub._replace(stage=stage), walkers)


def _after_walked_draws(shared: Levels, hub: Hub) -> tuple[Hub, weights.Quality]:
    """Keep where the trajectories ended."""
    hub, quality = _moved(hub, ensemble.ended(hub.walkers, shared.tests))
    draws = hub.centre[None] + ensemble.along(hub.root, hub.walkers.here.places)
    draws = draws.reshape(hub.chains.draws.shape)
    return hub._replace(chains=hub.chains._replace(draws=draws)), quality


def _moved(hub: Hub, walkers: ensemble.Ensemble) -> tuple[Hub, weights.Quality]:
    idle = jnp.max(walkers.idle.reshape(hub.chains.idle.size, -1), axis=1)
    hub = hub._replace(walkers=walkers, chains=hub.chains._replace(idle=idle))
    return hub, _idle(Levels(idle, idle[0]), hub)[1]._replace(acceptance=walkers.measured.rate)

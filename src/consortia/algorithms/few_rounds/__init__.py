r"""The exact posterior in few communication rounds, each with thousands of points.

Between institutions a round costs seconds whatever it carries, and a site evaluates a thousand
points in the time of one message. Every iteration is one round, and a round is for one of three:

1. the mode: a damped Newton search with several candidates a round (`few_rounds.seeking`);
2. the family: K points from a family q (`few_rounds.proposing`), weights π/q against all points at
   hand, and the family nearest to them (`few_rounds.fitting`);
3. draws: the family stands still, and the K points of a round are the proposals of chains of
   independence Metropolis (`few_rounds.independence`),

.. math:: \alpha(\zeta \to \zeta') = \min\bigl(1,
          \pi(\zeta')\,q(\zeta) \,/\, \pi(\zeta)\,q(\zeta')\bigr)

so that the fit can slow the chain down, but cannot bias it. Proposals do not travel: centres and
scales of the family do, and every site draws the points from the stream that all share.

Where no family comes near enough, K chains of federated Hamiltonian Monte Carlo go on from the fit,
which is their preconditioner, and learn from each other (`few_rounds.walking`). What a round
teaches decides what the next is for (`few_rounds.rounds`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from consortia.algorithms.few_rounds import account, limited, proposing, rounds, seeking, walking
from consortia.algorithms.few_rounds.state import Hub, Stage
from consortia.core import arguments
from consortia.core.contract import Algorithm, Claims, Cost, Draws, Effort, Fault, Method
from consortia.core.target import Target
from consortia.errors import InputError

USUAL_ROUNDS = 14
"""In which ordinary regressions end, the draws included."""

MOST_PARAMETERS = 20_000
"""With more of them enough chains are too much for a message."""

MOST_NUMBERS, FEWEST_CHAINS = 2**21, 64
"""Of all positions in a message, where there are more than 200 parameters; and chains at least."""

POINTS_PER_EFFECTIVE = 4
"""K by the asked effective size: one round of a good family is then enough."""

FEWEST_POINTS, MOST_POINTS = 256, 8192

USUAL_PARAMETERS = 16
"""Up to which K is that; with more it grows in proportion: a family has d²/2 numbers to be learned,
and its effective share falls."""

FIT_ROUNDS, POINTS_PER_PARAMETER, PATIENCE = 2, 16, 30.0
"""Of an open K: rounds that fit the family, points that a fit needs, and seconds that a site may
compute in a round whatever that costs in all: fewer points fit worse, and rounds are whole."""


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
    standard error in ``log_evidence`` and ``log_evidence_error``. Where searches from three places
    ended in several modes, ``modes`` has of each its share of the mass and of the draws. No
    candidate is more than eight standard deviations of the prior from its centre in a parameter,
    unless the best point is nearly as far. Where no member of the family
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
        proposals: K, points a round: when None four times the effective size, d/16 times as many
            with d above 16, at least 256 and at most 8,192; fewer where a site would compute for
            long, by the measured seconds of a log-density and of a message, see `paced`. Each is 4
            bytes up a site.
        components: more than one let a t that does not do (k-hat above .5 after three rounds)
            become a mixture. It follows bends, but k-hat does not see a tail that no point has
            reached: on a banana it had standard deviations up to a fifth too small. With 1 such a
            posterior is refused. With 4 it also begins with a component for each mode that the
            searches have found, and draws from all of them.
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
    lightly_compiled = True
    most_warmup = rounds.MOST_WARMUP
    most_rounds = rounds.MOST_DRAWS
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
        """K with up to 16 parameters, or as given; a multiple of the number of chains."""
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
        if dimension <= limited.MOST_CURVED:
            if self.proposals is not None or dimension <= USUAL_PARAMETERS:
                return self.points
            wanted = min(self.points * dimension // USUAL_PARAMETERS, MOST_POINTS)
            return self.chains * -(-wanted // self.chains)
        most = max(MOST_NUMBERS // dimension, FEWEST_CHAINS)
        return self.chains * max(min(self.points, most) // self.chains, 1)

    def usual_rounds(self, dimension: int) -> int | None:
        """Return 14; with more than 200 parameters nothing is usual."""
        return USUAL_ROUNDS if dimension <= limited.MOST_CURVED else None

    def effort(self, dimension: int) -> Effort | None:
        """Return 400 messages of the gradients of all chains, with more than 200 parameters."""
        if dimension <= limited.MOST_CURVED:
            return None
        return Effort(walking.MOST_MESSAGES_BY_GRADIENTS, self.points_of(dimension))

    def open_points(self, dimension: int) -> int:
        """Return K where it follows from the effective size, with up to 200 parameters."""
        curved = dimension <= limited.MOST_CURVED
        return self.points_of(dimension) if self.proposals is None and curved else 0

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

    def with_chosen(self, values: Mapping[str, Any], dimension: int) -> FewRounds:
        """Return the method with the K of a run: no more points than it has without.

        Raises:
            InputError: K is another one in the study, or is no such number.
        """
        given = values.get("proposals", self.proposals)
        if values.keys() - {"proposals"} or self.proposals not in (None, given):
            raise InputError(f"few_rounds: {dict(values)} was chosen, which is not open.")
        if given is None:
            return self
        return replace(
            self, proposals=arguments.whole("proposals", given, 64, self.points_of(dimension))
        )

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
        return int(hub.stage) in (Stage.DRAW, Stage.WALK_DRAW, Stage.FAILED)

    def check_learned(self, hub: Hub) -> str | None:
        """Return what was reached where no family was found; None where one was."""
        return account.failure(hub)

    def check_draws(self, hub: Hub) -> tuple[Fault, ...]:
        """Return what the weights, the chains and the modes that were found say against them."""
        return account.faults(hub)

    def report(self, hub: Hub) -> dict[str, Any]:
        """Return what each round was for, and what was measured in it."""
        return account.report(hub)

    def full_iterations(self, hub: Hub, done: int) -> float:
        """Return the rounds of points and of chains."""
        return sum(account.messages(hub, done)[1:])

    def phases_run(self, hub: Hub, done: int) -> tuple[int, ...]:
        """Return how often each phase has run: that of the mode, of points, or of the chains."""
        sought, proposed, walked = account.messages(hub, done)
        points = (done, proposed) if hub.centre.size <= limited.MOST_CURVED else ()
        return done, sought, *points, done, walked, done

    def cost(self, sizes: np.ndarray, dimension: int) -> Cost:
        """Return no gradients; K potentials a site, each counted as one."""
        points = self.points_of(dimension)
        return Cost(points * len(sizes), points * int(sizes.sum()))

    def build(self, target: Target) -> Algorithm:
        """Return one message an iteration, for the mode or for points, and what it teaches."""
        count = self.points_of(target.dimension)
        points = proposing.phases(target, count) if target.dimension <= limited.MOST_CURVED else ()
        before, chains = (*seeking.phases(target), *points), walking.phases(target, count)
        of_chains = tuple(range(len(before), len(before) + len(chains)))
        return Algorithm(
            partial(rounds.first, count, self.chains, self.components),
            (*before, *chains, rounds.lesson(target, count)),
            Draws(hub=rounds.drawn, per_iteration=count // self.chains, chains=self.chains),
            one_exchange=True,
            idle=lambda hub: () if walking.walks(int(hub.stage)) else of_chains,
        )


few_rounds = FewRounds

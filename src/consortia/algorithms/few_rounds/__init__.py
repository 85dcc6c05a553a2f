r"""The exact posterior in a few messages, by a server in plain Python.

Between institutions a message costs seconds whatever it carries, and a site evaluates a thousand
points in the time of one. The sites fit their own posteriors, then evaluate points twice: a wide
exploration, from which the server learns a surrogate of the log-posterior, and proposals that it
draws from that. They are the proposals of independence Metropolis chains,

.. math:: \alpha(\theta \to \theta') = \min\bigl(1,
          \pi(\theta')\,q(\theta) \,/\, \pi(\theta)\,q(\theta')\bigr)

so that a poor surrogate slows the chains down but never changes their law. The algorithm is written
in `consortia.algorithms.few_rounds.algorithm`, from top to bottom.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from consortia.algorithms.few_rounds.limits import (
    FEW_COORDINATES,
    FEWEST_WALKERS,
    FITS,
    MOST_CURVED,
    MOST_NUMBERS,
    STARTS,
    WALKERS,
)
from consortia.core import arguments
from consortia.core.contract import Claims, Cost
from consortia.core.queries import Conversation, Conversing, Known, SiteFunction, Size
from consortia.errors import InputError
from consortia.surrogates.mode_search import CANDIDATES
from consortia.surrogates.proposals import FEW_PARAMETERS

POINTS_PER_EFFECTIVE = 4
"""K by the requested effective size: one message of good proposals is then enough."""

FEWEST_POINTS, MOST_POINTS = 1000, 20_000
"""K, where it follows from the effective size."""

OF_MANY = 6
"""With more than 14 parameters K is so much larger as they are more than this."""

WORK = 3.6e9
"""Points times rows times parameters of a message at the largest site, above which K is smaller."""

MOST_PARAMETERS = 20_000
"""With more of them enough chains are too much for a message."""

USUAL_MESSAGES, USUAL_OF_MANY, USUAL_BY_GRADIENTS = 3, 7, 100
"""Messages as a rule, with up to 14, up to 200, and more parameters."""

MOST_MESSAGES = 500

MOST_RULES = 6
"""Rules of quadrature that are compared in a message."""


@dataclass(frozen=True, kw_only=True)
class FewRounds(Conversation):
    r"""The exact posterior, usually in three messages after the agreement on columns.

    **Samples** exp(−U), U = Σ_c U_c, exactly: every draw passes a Metropolis test on the summed
    log-density, with proposals that depend on earlier messages only. However different the sites
    are, the only error is that of finite chains. Every site has to answer every message.

    **Draw**: θ after a Metropolis step, thousands of them a message, divided among the chains.

    **Step size**: none.

    No settings are needed. A regression of up to ten parameters usually ends after three messages:
    local fits, an exploration, draws. Curved posteriors take more. Points on rays through the
    posterior show tails that no draw has visited: a batch that does not cover them is not kept, and
    the sites receive further queries. Where no proposal comes near the posterior, the run continues
    with many chains of federated Hamiltonian Monte Carlo; if these do not settle, it ends without
    draws and says what to do. The attribute ``rounds_used`` of the result says what each message
    was for and what it showed; ``log_evidence`` and ``log_evidence_error`` are the log evidence and
    its standard error.

    ``sample_stats`` holds lp (log π up to a constant), acceptance_rate, and effective_share of the
    importance weights.

    Args:
        effective_size: the run ends when the smallest effective sample size over the parameters, of
            the bulk and of both tails, has reached this; None: after ``rounds`` batches of draws.
        proposals: K, points a message: when None four times the effective size, d/6 times as many
            with d above 14, at least 1,000 and at most 20,000; fewer with very many rows. Each
            point takes 4 bytes up from a site.
        gradients: between institutions, also query sites for exact gradients and curvatures, at
            positions that the server chooses, if the noisy log-densities do not lead to draws; each
            site's policy must permit ``slopes`` and ``derivatives``. In one process this is always
            done.

    Raises:
        InputError: an argument is out of its range; there are more than 20,000 parameters.

    Example:
        >>> FewRounds(effective_size=500).points_of(dimension=5, rows=1000)
        2000

    Source: ours; independence Metropolis after Tierney (1994).
    """

    effective_size: float | None = 1000.0
    proposals: int | None = None
    gradients: bool = False

    name = "few_rounds"
    step_size = None
    most_rounds = 100
    most_messages = MOST_MESSAGES
    sandwich = True
    claims = Claims(
        samples="the posterior (independence Metropolis on the summed log-density)",
        bias="none, however different the sites are; every site answers every message",
        draw="the position after a Metropolis step, thousands of them a message",
        step_size="none",
        source="ours; independence Metropolis after Tierney (1994)",
    )

    def __post_init__(self) -> None:
        arguments.keep(
            self,
            effective_size=arguments.optional_number("effective_size", self.effective_size, 1.0),
            proposals=arguments.optional_whole("proposals", self.proposals, 64),
            gradients=arguments.flag("gradients", self.gradients),
        )

    def points_of(self, dimension: int, rows: int) -> int:
        """Return K.

        Args:
            dimension: d.
            rows: of the largest site.
        """
        if self.proposals is not None:
            return self.proposals
        size = 1000.0 if self.effective_size is None else self.effective_size
        wanted = POINTS_PER_EFFECTIVE * size
        if dimension > FEW_PARAMETERS:
            wanted *= dimension / OF_MANY
        wanted = min(max(wanted, FEWEST_POINTS), MOST_POINTS)
        affordable = max(WORK / (max(rows, 1) * dimension), FEWEST_POINTS)
        return math.ceil(min(wanted, affordable))

    def usual_messages(self, dimension: int) -> int:
        """Return 3 with few parameters: local fits, exploration, draws."""
        if dimension > MOST_CURVED:
            return USUAL_BY_GRADIENTS
        return USUAL_MESSAGES if dimension <= FEW_PARAMETERS else USUAL_OF_MANY

    def message_sizes(self, dimension: int) -> Mapping[str, Size]:
        """Return the largest sizes of local fits and of points."""
        if dimension > MOST_CURVED:
            count = max(min(WALKERS, MOST_NUMBERS // dimension), FEWEST_WALKERS)
            return {"slopes": Size(count * dimension, count * (dimension + 1))}
        count = self.points_of(dimension, 1)
        return {
            "local_fits": _fits(FITS, dimension),
            "log_densities": Size(count * dimension, count + 2),
        }

    def declared_sizes(self, dimension: int) -> Mapping[str, Size]:
        """Return the same with curvatures at candidates, and gradients at the places of chains."""
        d, sizes = dimension, dict(self.message_sizes(dimension))
        many = 4 * d + 1  # points at which a rule of quadrature is measured
        points, triangle = max(self.points_of(d, 1), many), d * (d + 1) // 2
        sizes["log_densities"] = Size((points + many) * d, points + 2 + many * MOST_RULES)
        count = max(min(WALKERS, MOST_NUMBERS // d), FEWEST_WALKERS)
        sizes["slopes"] = Size((count + 1) * d, count * (d + 1))
        if d <= MOST_CURVED:  # local fits with the sums of the spread between sites
            sizes["derivatives"] = Size((CANDIDATES + 1) * d, CANDIDATES * (1 + d + triangle))
            fits = _fits(STARTS if d <= FEW_COORDINATES else FITS, d)
            sizes["local_fits"] = fits._replace(up=fits.up + 6 * d)
        sizes["scores"] = Size(d, triangle)
        return sizes

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse a model of which a message cannot carry many chains."""
        if dimension > MOST_PARAMETERS:
            raise InputError(
                f"few_rounds: the model has {dimension} parameters; the most is {MOST_PARAMETERS}, "
                "of which a message still carries many chains. Use federated_hmc: some hundreds of "
                f"messages, {4 * dimension + 8} bytes up a site in each."
            ).at("model")

    def cost(self, sizes: np.ndarray, dimension: int) -> Cost:
        """Return no gradients; K potentials a site, each counted as one."""
        points = self.points_of(dimension, int(np.max(sizes)))
        return Cost(points * len(sizes), points * int(sizes.sum()))

    @property
    def functions(self) -> Mapping[str, SiteFunction]:  # type: ignore[override]
        """Local fits, log-densities, gradients and curvatures."""
        from consortia.algorithms.few_rounds.site_functions import FUNCTIONS  # loads SciPy

        return FUNCTIONS

    def queried(self, *, robust: bool) -> dict[str, int | None]:
        """Return the functions that sites answer, exact gradients only where they are wanted."""
        usual: dict[str, int | None] = {"local_fits": 1, "log_densities": None}
        if robust or self.gradients:  # of a sandwich the mode is sought
            usual |= {"scores": 1, "derivatives": None, "slopes": None}
        return usual

    def converse(self, known: Known) -> Conversing:
        """Yield the queries and batches of draws of a run."""
        from consortia.algorithms.few_rounds.algorithm import converse  # loads SciPy
        from consortia.algorithms.few_rounds.quadrature import with_rule
        from consortia.algorithms.few_rounds.sandwich import with_sandwich

        count = self.points_of(known.target.dimension, int(np.max(known.sizes)))
        make = partial(converse, known, count, self.effective_size, gradients=self.gradients)
        rules = known.target.model.integration
        if known.target.model.sandwich:
            return with_sandwich(make, known)
        return make() if rules is None else with_rule(make, known, rules)


few_rounds = FewRounds


def _fits(starts: int, d: int) -> Size:
    """Count the numbers of fits from some starts and one more: curvature, pull and square."""
    return Size((starts + 1) * d + 1, (starts + 1) * (d * (d + 1) // 2 + d + 1))

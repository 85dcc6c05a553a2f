"""The algorithm, from the first message to the last.

1. Local fits: every site sends the curvature and the mode of its own posterior; their sums are a
   Gaussian guess.
2. Exploration: log-densities at points of a wide mixture around the guess, and on rays through it.
   A surrogate is fitted to all points; the next proposals are drawn from it.
3. Draws: log-densities at the proposals, which are those of independence Metropolis chains. A batch
   is judged by what it did not cover; the surrogate is refitted, and the sites are queried again,
   until the effective size is reached.

Where the exploration found little, the mode is sought first; where proposals do not come near the
posterior, many chains of Hamiltonian Monte Carlo go on from the points that are there.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

from consortia.algorithms.few_rounds.limits import (
    FEW_COORDINATES,
    FEWEST_WALKERS,
    FIRST_REACH,
    FITS,
    GROUPS,
    MOST_CURVED,
    MOST_NUMBERS,
    STARTS,
    WALKERS,
)
from consortia.algorithms.few_rounds.quadrature import points_to_measure
from consortia.core.contract import Fault
from consortia.core.parameters import coordinate_names, variables
from consortia.core.prior import PriorScale, prior_scale
from consortia.core.queries import Arrays, Batch, Conversing, Known, Outcome, Query, in_width
from consortia.core.tails import Tail
from consortia.dynamics.ensemble import chains as walking
from consortia.dynamics.ensemble.mixing import resampled
from consortia.dynamics.independence import metropolis_chains, smallest_effective_size
from consortia.surrogates import local_fits, several_modes
from consortia.surrogates import mode_search as search
from consortia.surrogates.heterogeneity import with_spreads
from consortia.surrogates.proposals import FEW_PARAMETERS, mixture
from consortia.surrogates.proposals.batches import LEAST_SHARE, Judged
from consortia.surrogates.proposals.groups import WIDER, Groups, SpreadOf, groups_of
from consortia.surrogates.proposals.learning import FEW, Missed, learn
from consortia.surrogates.proposals.memory import Memory, Weighted
from consortia.surrogates.proposals.mixture import Mixture, normalised
from consortia.surrogates.proposals.proposal import Proposal, effective_share
from consortia.surrogates.proposals.rays import (
    MOST_MISSED,
    Line,
    Profile,
    along_lines,
    far_lines,
    lines_through,
    not_covered,
    outward_lines,
    parabolas_through,
    points_of,
    profile_of,
    to_prior_end,
    within,
)
from consortia.surrogates.proposals.regression import MOST_QUADRATIC
from consortia.surrogates.proposals.unbent import Scored, Unbent, tail_of
from consortia.surrogates.proposals.warp import Coordinates, Plain
from consortia.surrogates.quadrature import points_around

RAYS = 0.165
"""Share of a message's points that lie on lines and parabolas: three of each parameter, of ten."""

WIDE, OF_GROUPS = ((0.5, 1.2), (0.25, 2.2), (0.25, 4.0)), ((0.5, 1.1), (0.3, 1.9), (0.2, 3.2))
NARROW = (0.8, 1.0), (0.2, 1.5)
"""Shares and scales of an exploration's parts; of hierarchical models; with over 14 parameters."""

MOST_BEYOND = 0.01
"""Mass along a line that may lie beyond the places of all chains."""

MOST_STRETCHED = 6
"""Directions along which an envelope is stretched: what the last batches did not cover."""

STANDING = 0.5
"""Effective share of a batch from which its proposal is kept, however many are missing."""

FEW_DRAWS = 400
"""Proposals of a message, at least; else the envelope itself is sent."""

MOST_POOR, MOST_STANDING, HOPELESS, LEAST_HOPE = 7, 14, 3, 0.02
"""Batches that do not count before chains take over, more if one of the last two is standing; or
so many, the last two below such a share, if the mode has been sought: else it is sought first."""

UNFIT = 0.5
"""Held-out error: if that of every surrogate so far is larger, none will fit."""

MOST_SEARCHED, MOST_WALKED, MOST_ROUGH = 16, 60, 40
"""Messages of a search for the mode, of chains before their first draws, and of a run whose chains
are rough, see `Ensemble.rough`."""

FITTED_WORK = 20_000_000
"""Rows times d² beyond which there is one local fit alone."""

DOUBTED = 0.25
"""Share of a guess at which the sites parted, by that of another one."""

CLIMBED = 3
"""Guesses from which climbs start, beside the first one, the best point and rises."""

FROM_PRIOR = 0.2
"""Share of an exploration's points that the prior draws, where they are spread over it."""

TO_MIDDLE = 1.15
"""Sum of the distances of a point and of the centre, by the farthest distance; sites permit 1.22,
with the median of a message's points in place of the centre."""

LOUD = 1.2
"""Noise of log-densities, in standard deviations, with which proposals are worth a quarter."""

REPEATS = 16
"""Further times that sites with noise of their own are queried for the middle of all rays: what
they add, which a site may raise, is then known to 17 %."""

MOST_WITHHELD = 0.05
"""Share of the proposals of kept draws at which sites may tell no log-density. Those that they do
tell there stand for them, as long as there are some."""

COARSE = 0.1
"""Largest rounding of log-densities, by how far the reference lies below the best of them."""

REFERENCE = 20.0
"""Smallest excess of a point's log-density over the reference's for which it replaces it."""

MOST_SEARCHED_BY_GRADIENTS, MOST_WALKED_BY_GRADIENTS = 56, 400
"""Messages of a search and of chains before their first draws, with more parameters."""

WORST_CORRELATION = 0.3
"""Largest correlation of a chain's draws in successive trajectories."""

SLOWLY = (
    "few_rounds: along {} the density falls no faster than a power of the distance: its far tail "
    "has too few draws. Formulas, from_numpyro and from_pymc sample cauchy and t priors by scores"
)
"""The fault of a far tail that is not sampled."""

ELSEWHERE, FAR_CENTRE = 1.0, 2.0
"""Standard deviations of the starts of further local fits where the prior is wider, and those by
which its centre lies so far from the model's start that they are around this."""


ALL_BATCHES = (
    "in all batches of draws: give more rounds, or resume with consortia.resume(..., rounds=...)"
)
LOUDER = (
    "as further answers would settle a row, or have noise with which nothing can be drawn: request "
    "fewer draws (effective_size) or columns, or bound far-out values, such as by log(crp)"
)
"""Reasons to end before the effective size is reached."""

NOISE = "noise that keeps rows from being settled"
"""Reason to end with the draws of the messages before."""

HARDLY = (
    "; and their proposals hardly cover {:.1%} of the mass along a line, as a later message showed"
)
"""The fault of draws that are kept as no others were made."""


class Sent(NamedTuple):
    """A message of points: those that were drawn, log q there, and points on rays.

    ``share`` is that of the draws which lie where sites answer. By ``looks``, lines to far
    places and ways to rises, no proposal is judged.
    """

    points: Float[np.ndarray, "n d"]
    log_density: Float[np.ndarray, " n"]
    proposal: Proposal
    exploring: bool
    lines: list[Line]
    centre: Float[np.ndarray, " d"]
    arrays: Arrays
    share: float
    looks: list[Line]

    @property
    def on_ways(self) -> bool:
        """True if the next message shows ways to rises: of one parameter the line is the only."""
        return self.exploring and self.points.shape[1] > 1


@dataclass
class Server:
    """State of the server between messages.

    Attributes:
        known: the posterior and the run.
        count: points a message.
        rng: random numbers of the server.
        reference: the common point of log-densities.
        memory: all points.
        wanted: effective draws at which the run ends, if any.
        messages: sent so far.
        offset: log π at the reference minus that at the first one.
        height: U at the first reference.
        centre: the best guess.
        covariance: the posterior's, as far as it is known.
        groups: which parameters are standard deviations between sites, if any.
        common_variance: of what is common to the sites where these are 0.
        slow: ways along which the density falls slowly far out.
        rises: where the exploration saw the log-density rise, the highest first.
        modes: the ends of climbs from there that lie apart, the highest first.
        others: guesses of modes that lie apart from the best.
        records: one entry for each message of points.
        exact: sites may be queried for gradients and curvatures.
        disagreement: Cochran's Q of the sites' fits and its degrees of freedom, where known.
        fitted: the number of starts of the sites' fits.
        noise: standard deviation of what all sites added to a log-density of the last message.
    """

    known: Known
    count: int
    rng: np.random.Generator
    reference: Float[np.ndarray, " d"]
    memory: Memory
    wanted: float | None = None
    messages: int = 0
    offset: float = 0.0
    height: float = 0.0
    centre: Float[np.ndarray, " d"] = field(default_factory=lambda: np.zeros(0))
    records: list[dict[str, Any]] = field(default_factory=list)
    covariance: Float[np.ndarray, "d d"] = field(default_factory=lambda: np.zeros((0, 0)))
    groups: SpreadOf | None = None
    common_variance: Float[np.ndarray, " d"] = field(default_factory=lambda: np.zeros(0))
    slow: list[np.ndarray] = field(default_factory=list)
    rises: list[np.ndarray] = field(default_factory=list)
    modes: list[several_modes.Mode] = field(default_factory=list)
    others: list[local_fits.Law] = field(default_factory=list)
    exact: bool = True
    disagreement: tuple[float, int] | None = None
    fitted: int = 0
    noise: float = 0.0

    @property
    def dtype(self) -> Any:
        """The type in which positions travel."""
        return self.known.target.dtype

    @property
    def dimension(self) -> int:
        """The number of parameters."""
        return self.known.target.dimension

    @property
    def rays(self) -> int:
        """Lines of a message, at most."""
        return max(int(RAYS * self.count) // 22, 2)

    @property
    def swept(self) -> bool:
        """True where modes are sought as far as the prior reaches: of no formula."""
        on_lines = len(several_modes.SHARES) * (several_modes.LINES + 2 * self.dimension)
        few = 4 * on_lines <= self.count and self.dimension <= FEW_PARAMETERS
        return few and self.known.target.model.host is None

    @property
    def over_prior(self) -> bool:
        """True where points are spread over the whole prior."""
        return self.swept and self.dimension <= several_modes.OVER_PRIOR

    def unseen(self, draws: Float[np.ndarray, "n d"]) -> tuple[Fault, ...]:
        """Describe suspected modes that have no draws."""
        return several_modes.unseen(self.modes, self.others, self.memory, draws)

    def mostly(self, way: Float[np.ndarray, " d"]) -> int:
        """Return the parameter along which a way goes most, in widths of the middle 68 %."""
        widths = 2 * np.sqrt(np.diag(self.covariance))
        if self.memory.drawn:  # of a tail without a standard deviation there is no estimate
            seen = self.memory.weighted()
            middle = partial(np.quantile, q=(0.16, 0.84), axis=0, method="inverted_cdf")
            widths = np.ptp(middle(seen.points, weights=normalised(seen.log_weights)), axis=0)
        return int(np.argmax(np.abs(way) / np.maximum(widths, np.finfo(float).tiny)))

    def suspect(self, places: list[np.ndarray]) -> None:
        """Climb from places next; where nobody may, modes without draws are named."""
        self.rises = places if self.exact else []
        self.others += [] if self.exact else [(at, self.covariance) for at in places]

    def query(self, function: str, arrays: Arrays, purpose: str) -> Query:
        """Return a query with its arrays as they travel, and begin its record."""
        self.messages += 1
        self.records.append({"for": purpose})
        typed = {
            name: values if values.dtype.kind in "ui" else values.astype(self.dtype)
            for name, values in ((name, np.asarray(values)) for name, values in arrays.items())
        }
        return Query(function, typed, purpose)

    def counted(self, asking: Generator[Query, Arrays, Any]) -> Generator[Query, Arrays, Any]:
        """Yield the queries of another part; return what it returns."""
        answer = None
        while True:
            try:
                query = asking.send(answer)  # type: ignore[arg-type]
            except StopIteration as end:
                return end.value
            answer = yield self.query(query.function, query.arrays, query.purpose)

    @property
    def coordinates(self) -> Coordinates:
        """Coordinates that the model suggests, around the highest point or the guess."""
        if self.groups is None and self.slow:
            heavy = np.isin(np.arange(self.dimension), [self.mostly(way) for way in self.slow])
            return Scored(Tail(heavy * 1.0, *self.scale))
        if self.groups is None:
            return Plain()
        mode = self.memory.best if len(self.memory.points) else self.centre
        return Groups(mode, WIDER * self.common_variance, self.groups)

    @property
    def unbent(self) -> Coordinates | None:
        """The parameters of scores, around the highest point."""
        tail = tail_of(self.known.target)
        return None if tail is None else Unbent(self.memory.best, tail)

    @property
    def private(self) -> bool:
        """True where sites protect their rows, by noise of their own too."""
        return math.isfinite(self.known.farthest)

    @cached_property
    def scale(self) -> PriorScale:
        """The scale of the prior."""
        return prior_scale(self.known.target, self.known.start)

    def farthest_from(self, centre: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
        """Bound the distance of points from the prior's centre around a place, in its sds.

        Sites look at places half-way between a point and the middle of its message.
        """
        most = self.known.farthest
        return np.minimum(most, TO_MIDDLE * most - self.scale.distance(centre))

    def take_height(self, height: float) -> None:
        """Take U at the reference, of a sum without noise; the first one is that of log π = 0."""
        if not len(self.memory.points):
            self.height, self.offset = height, 0.0
        elif math.isfinite(height) and math.isfinite(self.height):
            self.offset = self.height - height

    def nearly(self, reached: float, batches: int) -> bool:
        """Return True if one more batch would do, of a proposal that need not stand then."""
        return self.wanted is not None and reached * (1 + 1 / batches) >= self.wanted

    def ending(
        self, reached: float, batches: int, why: str = ALL_BATCHES
    ) -> tuple[str, tuple[Fault, ...]] | None:
        """Name the reason to end with these draws, and what they lack; None if they go on."""
        if self.wanted is not None and reached >= self.wanted:
            return f"{reached:,.0f} effective draws", ()
        if batches < self.known.batches:
            return None
        of = "" if self.wanted is None else f" of the {self.wanted:g} that were requested"
        text = f"few_rounds: {reached:.0f} effective draws{of}, {why}"
        if why is ALL_BATCHES:
            return "all batches of draws", () if self.wanted is None else (Fault(text),)
        return NOISE, (Fault(text),)


def converse(known: Known, count: int, wanted: float | None, *, gradients: bool) -> Conversing:
    """Yield the queries and batches of draws of a run, ``count`` points a message."""
    d = known.target.dimension
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([known.seed, 1])))
    server = Server(known, count, rng, known.start, Memory(np.zeros((0, d))), wanted)
    server.groups = groups_of(known.target, known.start)
    server.exact = gradients or math.isinf(known.farthest)
    server.exact |= known.target.model.sandwich is not None
    if d > MOST_CURVED:
        return (yield from _by_gradients(server))
    centres, covariances, agree, _, sure = yield from _local_fits(server)
    server.reference = centres[0] if agree else known.start
    searched, next_step = not agree or d > MOST_QUADRATIC or not server.exact, "draw"
    batches, earlier, reached, missed = list[Judged](), 0, 0.0, list[np.ndarray]()
    shares, errors, aside = list[float](), list[float](), list[Judged]()
    guesses = list(zip(centres, covariances, strict=True))
    # sites with few rows fit each of them exactly, wherever they begin
    server.others = several_modes.further(guesses) if agree else []
    if searched and server.exact:  # no regression could follow, or guesses are no use
        starts = centres if agree else [*centres, server.scale.centre]
        starts = [*starts[: search.CANDIDATES - 1], *starts[search.CANDIDATES - 1 :][-1:]]
        mode = yield from _search(server, np.stack(starts))
        if mode.converged:
            centres, covariances = yield from _with_other_modes(server, mode)
            sure = len(centres)
    guess = server.covariance = covariances[0]
    sent = _exploration(server, centres, covariances, sure)
    while True:
        profiles, judged = yield from _evaluate(server, sent)
        if not sent.on_ways and server.rises and (climbed := (yield from _climb(server))):
            guess, searched, sent = server.covariance, True, climbed
            continue
        if judged is not None and judged.counts:
            batches.append(judged)
            joined = np.concatenate([batch.chains.draws for batch in batches], axis=1)
            alone = len(batches) == 1
            reached = judged.effective if alone else smallest_effective_size(joined)
            server.records[-1]["effective_size"] = round(reached)
            if ended := server.ending(reached, len(batches)):
                return (yield from _ended(server, batches, ended, profiles))
            if judged.share >= STANDING or server.nearly(reached, len(batches)):
                sent = _drawn(server, sent.proposal, _with_parabolas(server, sent.lines))
                continue
        elif judged is not None and batches and server.noise > LOUD:
            ended = server.ending(reached, server.known.batches, LOUDER)
            return (yield from _ended(server, batches, ended, profiles))
        elif judged is not None:
            if judged.not_covered or not server.private:  # else noise may be all that it lacks
                aside = [each._replace(missed=judged.missed) for each in batches[earlier:]] or aside
                del batches[earlier:]  # what it has found others of its proposal did not see
            missed = [*judged.not_covered, *missed][:MOST_STRETCHED]
            shares.append(judged.share)
            next_step = _next_step(shares, errors, searched=searched)
            if next_step == "walk":
                return (yield from _walk(server, batches or aside, profiles))
        base = server.coordinates
        learnt = learn(
            server.memory,
            profiles,
            server.covariance,
            Missed(missed, sum(share >= STANDING for share in shares)),
            server.rng,
            base,
            guess=guess,
            bent=len(shares) > 0,
            doubted=len(shares) > 1 and not isinstance(base, Groups),
            other=server.unbent,
        )
        if math.isfinite(learnt.error):
            server.records[-1]["error"] = float(f"{learnt.error:.3g}")
        errors.append(learnt.error if d <= FEW_PARAMETERS else 0.0)  # a quadratic may yet fit
        if (learnt.lost or learnt.proposal is None or next_step == "search") and not searched:
            searched = True
            if not len(server.memory.points):  # the guess was none
                server.reference = known.start
            start = server.memory.best if len(server.memory.points) else known.start
            mode = yield from _search(server, start[None])
            if mode.converged or not len(server.memory.points):
                server.memory.forget_drawn()
                shares, errors, missed, aside, next_step = [], [], [], [], "draw"
                centres, covariances = yield from _with_other_modes(server, mode)
                server.covariance = covariances[0]
                sent = _exploration(server, centres, covariances)
                continue
        if learnt.proposal is None:
            return (yield from _walk(server, batches or aside, profiles))
        server.covariance, earlier = learnt.covariance, len(batches)
        lines = lines_through(server.covariance, server.rays, profiles)
        proposal = several_modes.with_modes(learnt.proposal, server.modes, server.scale)
        sent = _drawn(server, proposal, _with_parabolas(server, lines))


def _ended(
    server: Server,
    batches: list[Judged],
    ended: tuple[str, tuple[Fault, ...]] | None,
    profiles: list[Profile],
) -> Conversing:
    """Yield the batches that are kept, and return the end of the run."""
    assert ended is not None
    for batch in batches:
        yield _batch(batch)
    draws = np.concatenate([batch.chains.draws for batch in batches], axis=1)
    faults = *ended[1], *server.unseen(draws.reshape(-1, server.dimension))
    faults = *faults, *_heavy(server, profiles), *_withheld(batches)
    return _outcome(server, batches, ended[0], faults)


def _next_step(shares: list[float], errors: list[float], *, searched: bool) -> str:
    """Return the step after batches that do not count: "draw", "search" for the mode, or "walk".

    Where no surrogate predicted, after the exploration or any batch, and shares stay small, as in a
    funnel, further points do not help, and the mode need not be sought.

    Args:
        shares: effective shares of the batches, since the mode was sought.
        errors: held-out errors of the surrogates that they and the exploration led to.
        searched: whether the mode was sought.
    """
    if len(shares) < HOPELESS:
        return "draw"
    best = max(shares[-2:])
    most = MOST_POOR if best < STANDING else MOST_STANDING
    if len(shares) >= most or (best < LEAST_SHARE and min(errors) > UNFIT):
        return "walk"
    if best < LEAST_HOPE:
        return "walk" if searched else "search"
    return "draw"


# --- the messages --------------------------------------------------------------------------------


def _local_fits(server: Server) -> Generator[Query, Arrays, local_fits.Guesses]:
    """Ask for local fits; return the guesses that differ.

    Beside the model's start two more are sent, in every parameter a prior standard deviation to
    either side of its centre, or of the start where that is far from it, and further ones drawn
    from the prior's normal law where the model is not a formula: where guesses differ there are
    several modes. One more leaves out sites with few rows.
    """
    start, d, scale = server.known.start, server.dimension, server.scale
    wide = np.minimum(scale.sd, ELSEWHERE)
    away = wide * np.sign(server.rng.standard_normal(d))
    # the normal law of the prior of a logarithm of a small scale is centred at absurd scales
    centre = np.where(scale.distance(start) < FAR_CENTRE, scale.centre, start)
    # further fits cost little with few rows; of log τ a site alone knows nothing
    several = np.max(server.known.sizes) * d**2 <= FITTED_WORK and server.groups is None
    starts = [start, centre + away, centre - away][: FITS if several else 1]
    if several and d <= FEW_COORDINATES and server.known.target.model.host is None:
        # numbers of their own: the others stay those of a model with one mode
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([server.known.seed, 2])))
        drawn = rng.standard_normal((STARTS - FITS, d))
        starts += list(scale.centre + scale.sd * drawn)
    sites, eps = len(server.known.sizes), float(np.finfo(server.dtype).eps)
    server.fitted = len(starts)
    arrays = {"reference": start, "starts": np.stack(starts), "share": np.array(1 / sites)}
    answer = yield server.query("local_fits", arrays, "local fits")
    server.disagreement = local_fits.disagreement(answer, server.known.sizes)
    guesses = local_fits.guesses(answer, start, scale, wide, eps, sites)
    server.records[-1]["apart"] = float(f"{guesses.parted:.3g}")
    if server.groups is None:
        return guesses
    target = server.known.target
    spread = answer["spread"], target, start, sites, server.groups
    guesses, server.common_variance = with_spreads(guesses, *spread)
    return guesses


def _exploration(
    server: Server,
    centres: list[np.ndarray],
    covariances: list[np.ndarray],
    sure: int | None = None,
) -> Sent:
    """Return points of a mixture around the guesses, and rays through the first.

    Fewer are around those after the first ``sure`` ones. No guess need be near a mode: of few
    parameters some points are the prior's.
    """
    few = WIDE if server.groups is None else OF_GROUPS
    wide = few if server.dimension <= FEW_PARAMETERS else NARROW
    guesses = list(zip(centres, covariances, strict=True))
    parts = [
        (share if rank < (sure or len(guesses)) else DOUBTED * share, at, factor * scale)
        for rank, (at, scale) in enumerate(guesses)
        for share, factor in wide
    ]
    if server.over_prior:
        total = FROM_PRIOR / (1 - FROM_PRIOR) * sum(share for share, _, _ in parts)
        parts.append((total, server.scale.centre, np.diag(server.scale.sd**2)))
    envelope = mixture.mixture_of(*map(list, zip(*parts, strict=True)))
    lines = lines_through(covariances[0], server.rays, [])
    if server.private and server.known.target.model.host is not None:
        lines = [line.up_to(FIRST_REACH) for line in lines]
    server.centre, looks = centres[0], list[Line]()
    if server.known.target.model.host is None:  # formulas are evaluated in double precision
        straight = len(lines)
        lines += far_lines(server.scale) if server.swept and not server.modes else []
        log_prior = server.known.target.log_priors(points_of(lines, server.centre))
        lines = to_prior_end(lines, server.centre, log_prior)
        lines, looks = lines[:straight], lines[straight:]
    if server.swept and not server.modes:
        looks = several_modes.lines_to_prior(server.centre, server.scale, server.rng) + looks
    return _drawn(server, Proposal(envelope, None, server.coordinates), lines, looks)


def _climb(server: Server) -> Generator[Query, Arrays, Sent | None]:
    """Find modes from rises and guesses; return an exploration of them, or None of a single one.

    Of a guess it is known then where it leads, and it is suspected no more.
    """
    guesses, server.others = server.others[:CLIMBED], server.others[CLIMBED:]
    places = [server.memory.best, server.centre, *(centre for centre, _ in guesses), *server.rises]
    server.rises = []
    ended = yield from _climbed(server, places)
    ended = [mode._replace(potential=mode.potential - server.offset) for mode in ended]
    before = sum(mode.reached for mode in server.modes)
    server.modes = several_modes.distinct([*server.modes, *ended])
    reached = [mode for mode in server.modes if mode.reached]
    if len(reached) <= max(before, 1):
        return None
    server.memory.forget_drawn()
    server.reference, server.covariance = reached[0].position, reached[0].covariance
    return _exploration(server, [m.position for m in reached], [m.covariance for m in reached])


def _climbed(
    server: Server, places: list[np.ndarray]
) -> Generator[Query, Arrays, list[several_modes.Mode]]:
    """Climb from the first of some places."""
    starts, bound = np.stack(places[: search.CANDIDATES]), search.within(*server.scale)
    return (yield from server.counted(several_modes.climb(starts, server.reference, bound)))


def _with_parabolas(server: Server, lines: list[Line]) -> list[Line]:
    """Return the straight lines, and the parabolas that there is room for and weighted points."""
    lines, d = [line for line in lines if not line.bent], server.dimension
    if d <= FEW_PARAMETERS and (weighted := server.memory.weighted()).effective >= FEW * d:
        probabilities, room = normalised(weighted.log_weights), server.rays - len(lines)
        lines += parabolas_through(weighted.points, probabilities, server.memory.best, room)
    return lines


def _looks(server: Server) -> list[Line]:
    """Return ways to rises, and lines along the directions in which points lie farthest out."""
    ways = several_modes.ways_to(server.rises, server.memory.best, server.count)
    weighted, d = server.memory.weighted(), server.dimension
    if not server.swept or d == 1 or weighted.effective < FEW * d:
        return ways
    return ways + outward_lines(
        weighted.points, normalised(weighted.log_weights), server.memory.best
    )


def _drawn(
    server: Server, proposal: Proposal, lines: list[Line], looks: list[Line] | None = None
) -> Sent:
    """Return draws of a proposal and points on rays, as a message of a fixed number of points.

    An exploration looks along lines, other messages on the ways to rises.
    """
    exploring = looks is not None
    envelope = Mixture(
        *(np.asarray(part, float) for part in in_width(proposal.envelope._asdict()).values())
    )
    proposal = proposal._replace(envelope=envelope)
    centre = server.centre if exploring else server.memory.best
    farthest = server.farthest_from(centre)
    looks = _looks(server) if looks is None else looks
    lines, looks = (within(some, centre, server.scale, farthest) for some in (lines, looks))
    rays = points_of([*lines, *looks], centre)
    seed, words = server.known.seed, server.messages + 1
    stream = np.array([seed & 0xFFFFFFFF, seed >> 32, words], np.uint32)
    if server.private:
        more = min(REPEATS, server.count // 16)
        rays = np.concatenate([rays, np.repeat(rays[-1:], more, axis=0)])
    wanted = server.count - len(rays)
    points, density, accepted = proposal.sample(stream, server.rng, wanted)
    if len(points) < FEW_DRAWS:  # too few to be worth a message
        proposal = proposal._replace(surrogate=None, floor=0.0, cap=0.0, log_mass=0.0)
        points, density, accepted = proposal.sample(stream, server.rng, wanted)
    inside, share = (server.scale.distance(points) <= farthest).all(axis=1), 1.0
    if inside.sum() >= min(FEW_DRAWS, wanted // 2):  # else a site refuses and names the distance
        points, density, accepted = points[inside], density[inside], accepted[inside]
        share = float(inside.mean())
    points = points.astype(server.dtype).astype(float)
    fill = np.repeat(rays[-1:], wanted - len(points), axis=0)
    rest = np.concatenate([rays, fill])
    if isinstance(proposal.coordinates, Plain):  # the sites draw the points themselves
        arrays = envelope._asdict() | {"stream": stream, "points": rest}
        arrays["accepted"] = accepted.astype(np.int32)
    else:
        arrays = {"points": np.concatenate([points, rest])}
    if server.known.target.model.integration is not None:
        middle = server.centre if exploring else np.median(points, axis=0)
        around = points_around(middle, server.covariance)
        arrays["measured"] = points_to_measure(server.known, around)
    return Sent(points, density, proposal, exploring, lines, centre, arrays, share, looks)


def _heights(server: Server, sent: Sent) -> Generator[Query, Arrays, np.ndarray]:
    """Ask for log-densities; again from their best point where the reference lies too far below."""
    purpose = "exploration" if sent.exploring else "draws"
    while True:
        query = server.query(
            "log_densities", {"reference": server.reference, **sent.arrays}, purpose
        )
        points = query.arrays["points"]
        if "accepted" in sent.arrays:  # the sites draw what is here already
            points = np.concatenate([sent.points, points]).astype(server.dtype)
            same = {n: a for n, a in query.arrays.items() if n in ("reference", "measured")}
            query = query._replace(completed={**same, "points": points})
        answer = yield query
        potentials = np.where(np.isfinite(answer["potentials"]), answer["potentials"], np.inf)
        if -potentials.min() * np.finfo(server.dtype).eps <= COARSE:
            server.take_height(float(answer["height"].sum()))
            return server.offset - potentials
        server.reference = points[potentials.argmin()]


def _evaluate(
    server: Server, sent: Sent
) -> Generator[Query, Arrays, tuple[list[Profile], Judged | None]]:
    """Ask for log-densities; return the straight lines' profiles, and the judged batch of draws."""
    heights, count = (yield from _heights(server, sent)), len(sent.points)
    on_rays = points_of([*sent.lines, *sent.looks], sent.centre)
    ray_heights = heights[count : count + len(on_rays)]
    repeated = heights[count + len(on_rays) - 1 :]
    if server.private and len(repeated := repeated[np.isfinite(repeated)]) > 2:
        ray_heights[-1], server.noise = repeated.mean(), float(repeated.std(ddof=1))
    profiles = [profile_of(*pair) for pair in along_lines([*sent.lines, *sent.looks], ray_heights)]
    straight = [each for each in profiles if each.line.steps[0] < 0 and not each.line.bent]
    if sent.exploring and sent.looks:
        above = float(heights.max() - ray_heights[-1]) if np.isfinite(ray_heights[-1]) else 0.0
        rises = several_modes.rises(profiles, sent.centre)
        server.suspect(several_modes.spread_out(rises, server.modes, server.scale.sd))
        far, sd = profiles[-2 * server.dimension :], np.sqrt(np.diag(server.covariance))
        server.slow = [
            each.line.direction for each in far if each.far_share(sd, above) > MOST_MISSED
        ]
    before = server.memory.weighted() if server.memory.drawn else None
    # far-out points far below all others would bend the regressions
    kept = ray_heights > heights.max() - several_modes.deepest(server.dimension)
    kept[-1] = kept[: sum(len(line.steps) for line in sent.lines)] = True
    points = np.concatenate([sent.points, on_rays[kept]])
    known = np.concatenate([heights[:count], ray_heights[kept]])
    server.memory.add(points, known, count, sent.proposal.log_density, server.noise)
    weights = heights[:count] - sent.log_density
    share = effective_share(weights) if np.isfinite(weights).any() else 0.0
    server.records[-1]["effective_share"] = float(f"{share:.3g}")
    best = float(server.memory.heights.max(initial=-math.inf))
    if best > server.offset + REFERENCE:
        server.reference, server.offset = server.memory.best, best
    if sent.exploring or before is None:
        return straight, None
    ratio = ray_heights - sent.proposal.log_density(on_rays)
    judged = _judged(server, sent, heights[:count], weights, ratio, profiles, before)
    server.records[-1] |= {
        "acceptance": round(float(judged.chains.accepted.mean()), 3),
        "missed": float(f"{judged.missed:.2g}"),
    }
    return straight, judged


def _judged(
    server: Server,
    sent: Sent,
    heights: Float[np.ndarray, " n"],
    weights: Float[np.ndarray, " n"],
    ratio: Float[np.ndarray, " r"],
    profiles: list[Profile],
    before: Weighted,
) -> Judged:
    """Return chains over the proposals, and what speaks against them."""
    shares = normalised(before.log_weights)
    chosen = server.rng.choice(len(shares), server.known.chains, p=shares)
    starts = before.points[chosen]
    start_weights = before.heights[chosen] - sent.proposal.log_density(starts)
    chains = metropolis_chains(
        sent.points, heights, weights, (starts, before.heights[chosen], start_weights), server.rng
    )
    if not np.isfinite(weights).any():
        return Judged(chains, 0.0, -math.inf, 1.0, [], math.inf, 1.0)
    log_mean = float(special.logsumexp(weights) - math.log(len(weights) / sent.share))
    ratios = [v - log_mean for _, v in along_lines([*sent.lines, *sent.looks], ratio)]
    share, probabilities, judging = effective_share(weights), normalised(weights), len(sent.lines)
    missed, ways = not_covered(profiles[:judging], ratios[:judging], server.noise)
    to_rises = list(zip(profiles[judging:], ratios[judging:], strict=True))
    server.rises = several_modes.not_uphill(server.rises, to_rises)
    if server.over_prior and share >= LEAST_SHARE:
        beyond, points = several_modes.uncovered(before, sent.proposal.log_density, log_mean)
        if beyond > several_modes.FORGOTTEN:
            missed, ways = max(missed, beyond), [*ways, (points[0] - server.memory.best) / 2]
            places = [*server.rises, *points]
            server.suspect(several_modes.spread_out(places, server.modes, server.scale.sd))
    inside = probabilities > 0  # where log π is finite
    judged = Judged(
        chains,
        share,
        log_mean,
        missed,
        ways,
        float(server.memory.heights.max() - probabilities[inside] @ heights[inside]),
        float(probabilities.max()),
        mass_error=sent.proposal.mass_error,
        withheld=float(1 - inside.mean()) if server.private else 0.0,
    )
    if judged.counts:  # so far: the effective size takes longer than all else of this
        judged = judged._replace(effective=smallest_effective_size(chains.draws))
    return judged


def _search(
    server: Server, starts: Float[np.ndarray, "s d"]
) -> Generator[Query, Arrays, search.Found]:
    """Search for the mode."""
    given = search.within(*server.scale), MOST_SEARCHED, server.dimension / 4
    return (yield from server.counted(search.find_mode(starts, server.reference, *given)))


def _with_other_modes(
    server: Server, best: search.Found
) -> Generator[Query, Arrays, tuple[list[np.ndarray], list[np.ndarray]]]:
    """Search for the modes that guesses lead to; return those that are high enough.

    A guess that leads to a known mode, or to one that holds nothing, is suspected no more.
    """
    known = [(best.position, best.root @ best.root.T)]
    if not best.converged:
        return [known[0][0]], [known[0][1]]
    server.reference, suspected = best.best, list[local_fits.Law]()
    starts = [at for at, _ in server.others if several_modes.apart(at, known)]
    for mode in (yield from _climbed(server, starts)) if starts else ():
        if not mode.reached:
            suspected.append(mode.law)
        elif mode.potential < several_modes.deepest(server.dimension) and several_modes.apart(
            mode.position, known
        ):
            known.append(mode.law)
            suspected.append(mode.law)
    server.others = suspected
    return [centre for centre, _ in known], [covariance for _, covariance in known]


def _walk(server: Server, kept: list[Judged], profiles: list[Profile]) -> Conversing:
    """Let many chains of Hamiltonian Monte Carlo go on from the weighted points.

    Without gradients end with draws that are ``kept``, if there are any.
    """
    if kept and not server.exact:
        return (yield from _ended(server, kept, (NOISE, (_hardly(kept),)), profiles))
    weighted = server.memory.weighted()
    if server.rises:
        yield from _climb(server)
    if not len(weighted.points):
        return _failed(server, "no point of a positive density was found")
    if not server.exact:
        return _failed(server, f"in {server.messages} messages no proposals came near enough")
    tempered = mixture.tempered(weighted.log_weights, mixture.TEMPERED * server.dimension)
    mean, covariance = mixture.moments(weighted.points, tempered)
    if not (np.isfinite(covariance).all() and np.diag(covariance).min() > 0):
        return _failed(server, "the points of a positive density lie at one place, or too far out")
    root = mixture.cholesky_root(covariance)
    places = resampled(weighted.points, tempered, _walkers(server), server.rng)
    most = MOST_WALKED, MOST_ROUGH - server.messages
    return (yield from _chains(server, places, mean, root, most))


def _by_gradients(server: Server) -> Conversing:
    """Begin chains near the mode, where there are too many parameters for a curvature."""
    bound, start = search.within(*server.scale), server.known.start
    if not server.exact:
        return _failed(server, f"with more than {MOST_CURVED} parameters draws need gradients")
    mode = yield from server.counted(
        search.find_mode_by_gradients(start, start, bound, MOST_SEARCHED_BY_GRADIENTS)
    )
    if not mode.converged:
        return _failed(server, mode.reason)
    server.reference = mode.best
    count, d = _walkers(server), server.dimension
    groups = np.minimum(np.arange(count) * GROUPS // count, GROUPS - 1)
    places = mode.position + mode.root * server.rng.standard_normal((GROUPS, d))[groups]
    most = MOST_WALKED_BY_GRADIENTS, MOST_WALKED_BY_GRADIENTS
    return (yield from _chains(server, places, mode.position, mode.root, most))


def _walkers(server: Server) -> int:
    """Count the chains that a message carries, as many for each chain of the result."""
    most = max(min(WALKERS, MOST_NUMBERS // server.dimension), FEWEST_WALKERS)
    return server.known.chains * max(most // server.known.chains, 1)


def _chains(
    server: Server,
    places: Float[np.ndarray, "W d"],
    centre: Float[np.ndarray, " d"],
    root: Float[np.ndarray, "*d"],
    most: tuple[int, int],
) -> Conversing:
    """Run chains until they have settled, and then for draws."""
    ensemble = yield from server.counted(
        walking.settle(places, centre, root, server.reference, server.rng, *most)
    )
    if not ensemble.settled:
        return _failed(server, " and ".join(ensemble.obstacles()))
    # Before the first draws: a longer run must ask the same questions.
    faults = server.unseen(ensemble.positions)
    faults += yield from _unvisited(server, ensemble.positions)
    draws: list[np.ndarray] = []
    seen: dict[str, Fault] = {}
    while True:
        ensemble = yield from server.counted(walking.trajectory(ensemble, server.rng))
        if rough := ensemble.measured.roughness(len(ensemble.positions)):
            text = f"while draws were made, {' and '.join(rough)}"
            if not draws:
                return _failed(server, text)
            seen["rough"] = Fault(f"few_rounds: {text}")
        positions = ensemble.positions.reshape(server.known.chains, -1, server.dimension)
        shape = positions.shape[:2]
        stats = {
            "lp": server.offset - ensemble.points.potentials.reshape(shape),
            "acceptance_rate": np.full(shape, ensemble.acceptance),
            "effective_share": np.full(shape, np.nan),
        }
        draws.append(positions)
        if len(draws) > 1 and abs(ensemble.correlation) > WORST_CORRELATION:
            seen["correlated"] = Fault(
                "few_rounds: the draws of a chain in successive trajectories have a correlation of "
                f"{ensemble.correlation:.2f}, which the effective sample size does not see"
            )
        yield Batch(positions, stats)
        reached = smallest_effective_size(np.concatenate(draws, axis=1))
        if ended := server.ending(reached, len(draws)):
            faults = (*faults, *seen.values(), *ended[1])
            return _outcome(server, [], ended[0], faults, walked=True)


def _unvisited(
    server: Server, positions: Float[np.ndarray, "W d"]
) -> Generator[Query, Arrays, tuple[Fault, ...]]:
    """Ask for points on rays through where the chains are; return what lies beyond all of them.

    Statistics of draws see no tail, and no mode, that no chain has visited.
    """
    if server.dimension > MOST_CURVED:
        return ()
    even = np.full(len(positions), 1 / len(positions))
    centre = np.median(positions, axis=0)
    covariance = np.cov(positions.T).reshape(server.dimension, server.dimension)
    lines = lines_through(covariance, server.rays, []) + outward_lines(positions, even, centre)
    lines = within(lines, centre, server.scale, server.farthest_from(centre))
    arrays = {"reference": server.reference, "points": points_of(lines, centre)}
    answer = yield server.query("log_densities", arrays, "rays")
    pairs, beyond = along_lines(lines, -answer["potentials"]), 0.0
    profiles = [profile_of(*pair) for pair in pairs]
    for profile in profiles:
        direction = profile.line.direction
        across = np.linalg.lstsq(covariance, direction, rcond=None)[0]
        along = (positions - centre) @ across / (direction @ across)
        beyond = max(beyond, profile.mass_beyond(along.min(), along.max()))
    server.records[-1]["missed"] = float(f"{beyond:.2g}")
    if beyond < MOST_BEYOND:
        return _heavy(server, profiles)
    return (
        Fault(
            f"few_rounds: on a line through the chains {beyond:.1%} of the posterior's mass lies "
            "beyond all of them: a tail or a mode that no chain has visited. Start chains there "
            "(init), or give a parameter without a proper prior one"
        ),
    )


# --- what comes of them --------------------------------------------------------------------------


def _batch(judged: Judged) -> Batch:
    """Return the draws of a batch with the statistics of each."""
    chains, shape = judged.chains, judged.chains.heights.shape
    stats = {
        "lp": chains.heights,
        "acceptance_rate": np.full(shape, chains.accepted.mean()),
        "effective_share": np.full(shape, judged.share),
    }
    return Batch(chains.draws, stats)


def _heavy(server: Server, profiles: list[Profile]) -> tuple[Fault, ...]:
    """Describe parameters along which the density falls so slowly that draws miss the far tail."""
    ways = [profile.line.direction for profile in profiles if profile.heavy] + server.slow
    if not ways:
        return ()
    structure = server.known.target.structure
    names = [n for each in variables(structure) for n in coordinate_names(each.name, each.shape)]
    text = ", ".join(dict.fromkeys(names[server.mostly(way)] for way in ways))
    return (Fault(SLOWLY.format(text), unseen=True),)


def _hardly(batches: list[Judged]) -> Fault:
    """Describe draws after which no proposals came near enough."""
    draws = np.concatenate([batch.chains.draws for batch in batches], axis=1)
    text = f"few_rounds: {smallest_effective_size(draws):.0f} effective draws, {LOUDER}"
    missed = max(batch.missed for batch in batches)
    hardly = missed > MOST_MISSED
    return Fault(text + HARDLY.format(missed) * hardly, unseen=hardly)


def _withheld(batches: list[Judged]) -> tuple[Fault, ...]:
    """Describe a region without draws in which sites withhold log-densities."""
    share = max(judged.withheld for judged in batches)
    if share <= MOST_WITHHELD:
        return ()
    return (
        Fault(
            f"few_rounds: {share:.1%} of the proposals lie where a site says only that its rows "
            "are improbable, and the draws leave this region out: ask for a model that fits the "
            "rows of all sites, with (1 | site) or log(...) of a far-out column",
            unseen=True,
        ),
    )


def _outcome(
    server: Server,
    kept: list[Judged],
    reason: str,
    faults: tuple[Fault, ...] = (),
    *,
    walked: bool = False,
) -> Outcome:
    """Return the end of a run that has draws."""
    report: dict[str, Any] = {"rounds_used": server.records}
    if server.disagreement is not None:
        report["disagreement"] = server.disagreement
    if server.known.target.model.host is None:
        report["modes_sought"] = server.swept or server.fitted > 1
    if kept:
        means = np.array([judged.log_mean for judged in kept])
        evidence = special.logsumexp(means) - math.log(len(means)) - server.height
        size = sum(judged.share * judged.chains.heights.size for judged in kept)
        total = sum(judged.chains.heights.size for judged in kept)
        report["log_evidence"] = float(evidence)
        of_mass = max(judged.mass_error for judged in kept)
        report["log_evidence_error"] = math.sqrt(max(1 / size - 1 / total, 0) + of_mass**2)
    if walked:
        why = "no proposals came near enough to the posterior"
        if server.dimension > MOST_CURVED:
            why = f"with more than {MOST_CURVED} parameters no proposals come near the posterior"
        report["handed_over"] = f"{why}: chains of federated HMC have made the draws"
    return Outcome(reason, report, faults)


OF_CHAINS = (
    "Give every parameter a proper prior; in a formula leave correlations of slopes by site out, "
    "(1 + x || site), or integrate a site's own parameters out (integrate=True: a level and at "
    "most two slopes); write scales of hierarchical models on the scale on which their data inform "
    "them (centred where there are many, non-centred where few); or, where thousands of messages "
    "cost little, use federated_hmc(target_acceptance=0.95) for some hundreds of rounds."
)
WITHOUT_GRADIENTS = (
    "Exact gradients of the sites were not queried, as the study does not ask for them. Bound "
    "far-out values of a column, such as by log(crp), ask for fewer columns, give coefficients "
    "tighter priors, or integrate a site's own parameters out (integrate = true). Or say "
    "gradients = true in [algorithm] of a new study: each site's policy must permit slopes and "
    "derivatives, and a site with few rows may refuse them all the same."
)
"""Remedies of runs without draws."""


def _failed(server: Server, obstacle: str) -> Outcome:
    """Return the end of a run that has no draws."""
    failure = (
        f"few_rounds: no proposals came near enough to the posterior, and chains did not settle in "
        f"{server.messages} messages: {obstacle}. {OF_CHAINS}"
    )
    if not server.exact:
        failure = f"few_rounds: {obstacle}. {WITHOUT_GRADIENTS}"
    report: dict[str, Any] = {"rounds_used": server.records}
    weighted = server.memory.weighted() if server.memory.drawn else None
    if weighted is not None and len(weighted.points):
        tempered = mixture.tempered(weighted.log_weights, mixture.TEMPERED * server.dimension)
        mean, covariance = mixture.moments(weighted.points, tempered)
        report["fitted_mean"] = mean.tolist()
        report["fitted_variance"] = np.diag(covariance).tolist()
    return Outcome("no draws", report, failure=failure)

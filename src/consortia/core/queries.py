"""Queries: the contract of methods that need few messages.

A method of thousands of small messages is a tuple of phases, compiled into a loop
(`consortia.core.contract`). A method of a dozen messages is a *conversation*: a Python generator at
the server that yields queries and receives answers, read from top to bottom like the algorithm on
paper. What it decides between two messages is ordinary NumPy and is never traced.

1. The server yields a `Query`: the name of a site function and arrays.
2. Every site answers with that `SiteFunction`: pure, compiled once for each shape of the arrays.
3. The engine returns the sum over the sites, in double precision.
4. The server yields a `Batch` of draws when it has some, and returns an `Outcome` at its end.

A conversation is a deterministic function of what it knows (`Known`) and of the answers. A stored
run keeps the answers, and resuming runs the generator over them again: there is no other
checkpoint.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from consortia.core.contract import Algorithm, Array, Disclosure, Evaluation, Fault, Method, Site
from consortia.core.host import HostSite
from consortia.core.privacy import Dither, Privacy, SecretNoise
from consortia.core.target import Target, in_jax_width
from consortia.runtime.late import jax

LEEWAY = 4
"""Messages that a site's policy permits as it is proposed, in those of a usual run."""

Arrays = Mapping[str, np.ndarray]
Reply = Mapping[str, Array]


class Noise(NamedTuple):
    """Normal noise that sites add to potentials, and the height above which they tell none.

    Where a site's answer is seen, only the site's own noise protects its rows: with so many sites
    that what each adds becomes smaller, each is protected less.
    """

    each: float  # standard deviation of what a site adds
    most: float  # largest one of the sum over the sites, for which each adds less
    bounded: bool = False  # no number is above `highest_sent`

    def sd(self, sites: int, factor: float = 1.0) -> float:
        """Return the standard deviation of what each of so many sites adds to its numbers."""
        return min(self.each, self.most / math.sqrt(sites)) * math.sqrt(factor)

    def sent(
        self, numbers: Any, rng: SecretNoise, sites: int, rows: int, factor: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials as they leave, and their errors to whoever sees them.

        Where a row is nearly all of a number, noise hides little of it: a number that is with its
        noise z > h, the height above which none leaves, becomes h with the probability exp(h - z),
        else infinite. All the same the mean of exp(-sent) is exp(-number), whatever the number is
        (Russian roulette), and one that is surely above h says nothing.

        Args:
            numbers: that would leave.
            rng: of the site's secret.
            sites: that add noise.
            rows: of the site.
            factor: of the variance.
        """
        sd = self.sd(sites, factor)
        noisy = numbers + sd * rng.standard_normal(np.shape(numbers)) + sd**2 / 2
        if not self.bounded:
            return noisy, np.full(np.shape(numbers), sd)
        highest = highest_sent(rows, factor, sd)
        stays = rng.random(np.shape(numbers)) < np.exp(np.minimum(highest - noisy, 0))
        known = information(highest - np.where(np.isfinite(numbers), numbers, np.inf), sd)
        with np.errstate(divide="ignore"):
            errors = 1 / np.sqrt(known)
        return np.where(stays, np.minimum(noisy, highest), np.inf), errors


def information(below: Float[np.ndarray, " K"], sd: float) -> Float[np.ndarray, " K"]:
    """Return Fisher's information on numbers that are so far below the height of a roulette.

    That of a normal number at most, as the roulette only takes from it.
    """
    from scipy.special import log_ndtr, ndtr  # heavy, and only wanted at sites

    most, t = 1 / sd**2, np.maximum(below, -FAR_ABOVE) / sd - sd / 2
    density = np.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
    tiny = np.finfo(float).tiny
    as_height = np.exp(np.maximum(below, -FAR_ABOVE) + log_ndtr(-(t + sd)))
    lost = ndtr(-t) - as_height
    of_height = density / sd - as_height  # its derivative by the number, that of lost is as_height
    known = (ndtr(t) - t * density) * most + of_height**2 / np.maximum(as_height, tiny)
    known += as_height**2 / np.maximum(lost, tiny)
    known = np.where(below > -FAR_ABOVE, known, 0.0)
    return np.where(t > SURELY, most, np.clip(known, 0, most))


def highest_sent(rows: int, factor: float, sd: float) -> float:
    """Return the potential of a site, from its reference, above which none leaves.

    Where sites of n rows disagree, one's potential may differ in the posterior's bulk by about
    2 sqrt(n), which is less without further noise. It is higher by what noise moves upwards.
    """
    times = WITHOUT_MORE if factor == 1 else 1 / factor
    return max((30 + rows / 20) * times, LEAST_HEIGHT) + sd + sd**2 / 2


LEAST_HEIGHT, WITHOUT_MORE = 5.0, 3.0
"""Smallest such height, as a site's potential is in the bulk of nearly all posteriors; and how many
times as high it is without more noise, as a first guess may be far off."""

FAR_ABOVE, SURELY = 100.0, 5.0
"""Distance above the height from which on nothing is known of a number, and the standard deviations
below it from which on nothing is lost."""


class Rounded(NamedTuple):
    """An answer with the precision in which it leaves a site."""

    arrays: dict[str, np.ndarray]
    errors: dict[str, np.ndarray]  # standard deviations of what rounding has moved


class Query(NamedTuple):
    """One message to all sites.

    Attributes:
        function: name of the site function that answers it.
        arrays: what it needs, by name.
        purpose: one or two words for progress and record.
        completed: what `SiteFunction.complete` makes of the arrays, where the server has made it
            already. It does not travel.
    """

    function: str
    arrays: Arrays
    purpose: str
    completed: Arrays | None = None


class Batch(NamedTuple):
    """Draws that are ready.

    Attributes:
        draws: positions, (chains, draws, d).
        stats: what the group ``sample_stats`` holds of them, each (chains, draws).
        report: attributes of the record that are known by now, whatever ends the run.
    """

    draws: Float[np.ndarray, "chains draws d"]
    stats: Arrays
    report: Mapping[str, Any] = {}


class Outcome(NamedTuple):
    """The end of a conversation.

    Attributes:
        reason: why it ended.
        report: attributes of the record.
        faults: problems that the method's diagnostics found in its draws.
        failure: why there are no draws to be used, with advice; None where there are.
    """

    reason: str
    report: Mapping[str, Any] = {}
    faults: tuple[Fault, ...] = ()
    failure: str | None = None


Conversing = Generator[Query | Batch, Any, Outcome]
"""A conversation in progress: it is sent the sums after a `Query`, None after a `Batch`."""


def in_width(arrays: Arrays) -> dict[str, np.ndarray]:
    """Return arrays on the host as they travel: 64 bits become 32 while JAX runs in 32 bits.

    A server that completes a query as the sites do, to know their points, does so from these.
    """
    return {name: in_jax_width(np.asarray(values)) for name, values in arrays.items()}


class Revealed(NamedTuple):
    """Sums over a site's rows in an answer: of log p(z_i | θ), and of its derivatives by θ.

    Attributes:
        points: θ, (m, d).
        orders: of the derivatives: 0 the sum itself, 1 its gradient, 2 its curvature.
        reference: the point from which the sums of order 0 are taken, (d,); None: from zero.
        height: the standard deviation of the error of the sum at the reference, where that is in
            the answer, too; 0 for an exact one.
        errors: by order the standard deviations of the errors of the numbers, (m, numbers); exact
            ones where left out.
        away: from where gradients are taken that are those of the quadratic around a point, to the
            point, (m, d); None: they are taken at the points.
        turn: T by which these gradients g and the curvatures A are multiplied in the answer, to T g
            and T A T', (m, d, d); None: they are not.
        rules: nodes of the rule of quadrature in the sums; of several rules the numbers of order 0
            are the distances from the last. Empty: of the model's own, if it has one.
    """

    points: Float[np.ndarray, "m d"]
    orders: tuple[int, ...] = (0,)
    reference: Float[np.ndarray, " d"] | None = None
    height: float | None = None
    errors: Mapping[int, np.ndarray] = MappingProxyType({})
    away: Float[np.ndarray, "m d"] | None = None
    turn: Float[np.ndarray, "m d d"] | None = None
    rules: tuple[int, ...] = ()


@dataclass(frozen=True)
class SiteFunction:
    """The computation of a site for one kind of query.

    Attributes:
        answer: ``(target, arrays, site) -> arrays`` at one site: pure, traced and compiled. A
            function of a module: programs are kept by it, and a new one is compiled anew.
        evaluation: ``arrays -> Evaluation``, on the host: where it evaluates its rows, which the
            site bounds before it computes.
        describes: one sentence on what an answer says of the rows, for the person who permits it.
        complete: ``arrays -> arrays``, on the host at both ends: the arrays that ``answer`` takes,
            made from those that travel. Points that need not travel are drawn here.
        summed: the server needs the sum over the sites only. Where False it receives the answers
            side by side, site axis first.
        disclosure: ``arrays -> Disclosure`` of one site's answer, on the host: the part that is
            compared with those of other sites; None where nothing can be.
        reveals: ``(target, arrays, answer, errors) -> Revealed``, several, on the host: the sums
            over rows in an answer, from which the site measures what it gives away, with the
            standard deviations of noise and rounding by name of array. The answer may hold only
            such sums and functions of them. None where that is not known.
        noise: by name of arrays of potentials U_c, the normal noise that each site adds to each
            number between institutions, from its own secret: of standard deviation σ and mean
            σ²/2. The mean of exp(−U) stays what it is, and with it the law of a Metropolis chain
            that keeps the number of the point where it is.
        rounding: ``(answer, rows, rng, coarser) -> Rounded`` of one site with so many rows, on the
            host, in every engine: an answer that shapes proposals alone leaves with few digits, or
            with units that are so many times coarser. None where it leaves as it is.
        fault: ``(arrays, sites) -> str | None``, on the host: how a query contradicts what every
            site knows, as the number of sites; such a query is refused.
        privacy: ``dimension -> Privacy``, of an answer of integers: discrete Gaussian noise that
            the sites add in every engine. None where there is no guarantee.
        bounds: by name of arrays of potentials, the height F from which on a number may count as
            infinite, and below minus which there is none: a secure sum has as many bits as that
            needs. Other arrays have 128.
        evaluate: ``(target, arrays, site) -> arrays``, by NumPy, of a site as
            `consortia.core.host` has it: the numbers of ``answer`` up to rounding, of models that
            NumPy evaluates. None: these are compiled, too.
        shapes: ``(target, arrays) -> {name: shape}`` of an answer, on the host; None: ``answer`` is
            traced for them.
    """

    answer: Callable[[Target, Mapping[str, Array], Site], Reply]
    evaluation: Callable[[Arrays], Evaluation]
    describes: str
    complete: Callable[[Arrays], Arrays] = lambda arrays: arrays
    summed: bool = True
    disclosure: Callable[[Arrays], Disclosure] | None = None
    reveals: Callable[[Target, Arrays, Arrays, Arrays], tuple[Revealed, ...]] | None = None
    noise: Mapping[str, Noise] = field(default_factory=dict)
    rounding: Callable[[Arrays, int, Dither, float], Rounded] | None = None
    fault: Callable[[Arrays, int], str | None] = lambda arrays, sites: None
    privacy: Callable[[int], Privacy] | None = None
    bounds: Mapping[str, float] = field(default_factory=dict)
    evaluate: Callable[[Target, Arrays, HostSite], Arrays] | None = None
    shapes: Callable[[Target, Arrays], Mapping[str, tuple[int, ...]]] | None = None

    @property
    def is_exact(self) -> bool:
        """True if sums over rows leave as they are, without noise and with all their digits."""
        return self.reveals is not None and not self.noise and self.rounding is None

    def number_type(self, target: Target) -> np.dtype:
        """Return the type of the numbers of an answer, in which integers with noise stay exact."""
        return np.dtype(np.float64 if self.privacy is not None else target.dtype)

    def shapes_of(
        self, target: Target, arrays: Mapping[str, Any], sites: Callable[[], Any]
    ) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a site's answer.

        Args:
            target: the posterior.
            arrays: of a query, completed, or their shapes.
            sites: returns an engine's `SiteArrays`, or their shapes, where the answer is traced.
        """
        if self.shapes is not None:
            return dict(self.shapes(target, arrays))

        def answer(given: Any, held: Any) -> dict[str, Any]:
            return dict(self.answer(target, given, held.site(0)))

        made = jax.eval_shape(answer, dict(arrays), sites())
        return {name: leaf.shape for name, leaf in made.items()}


@dataclass(frozen=True)
class Known:
    """The server's knowledge before the first query.

    Attributes:
        target: the posterior, of which it can evaluate the prior alone.
        start: the model's start, (d,).
        sizes: rows of the sites, (sites,).
        chains: independent chains of the result.
        batches: of draws, at most.
        seed: of the run.
        farthest: prior standard deviations from the prior's centre, in any parameter, beyond which
            sites do not answer; a posterior is that of the region within.
    """

    target: Target
    start: Float[np.ndarray, " d"]
    sizes: Int[np.ndarray, " sites"]
    chains: int
    batches: int
    seed: int
    farthest: float = float("inf")


class Size(NamedTuple):
    """The numbers of the largest message of a kind, each as wide as a parameter.

    Attributes:
        down: in the arrays that travel to a site.
        up: in a site's answer.
    """

    down: int
    up: int


class Conversation(Method):
    """A method that is a conversation: it has site functions and no phases.

    Attributes:
        functions: the site functions, by the names that queries give.
        most_messages: messages of a run, at most.
        most_rounds: batches of draws, at most, where the user names none.
        needs_rows: it must know how many rows there are, before its first query.
        sandwich: True if it can give its draws the spread of a sandwich, `Model.sandwich`.
    """

    functions: Mapping[str, SiteFunction]
    most_messages: int
    most_rounds: int
    needs_rows: bool = False
    sandwich = False

    @abstractmethod
    def converse(self, known: Known) -> Conversing:
        """Yield queries and batches of draws; return the outcome.

        Nothing but ``known`` and the answers may decide what is yielded: no clock, no other source
        of random numbers. With more batches it begins with the same queries and draws, so that a
        stored run can be made longer. It may be closed after any batch, by a stopping rule.
        """

    @abstractmethod
    def usual_messages(self, dimension: int) -> int:
        """Return after how many messages a run has ended as a rule."""

    def queried(self, *, robust: bool) -> dict[str, int | None]:
        """Return the site functions that a run between institutions may query.

        Args:
            robust: the draws have the spread of a sandwich.

        Returns:
            By name how often a usual run does; None: in any of its messages.
        """
        return dict.fromkeys(self.functions)

    def message_sizes(self, dimension: int) -> Mapping[str, Size]:
        """Return the largest size of a message, by site function; functions left out are not known.

        Plans count with them; nothing is traced for that.
        """
        return {}

    def sizes_of(self, target: Target) -> Mapping[str, Size]:
        """Return those of a usual run of a model, with what is measured of its quadrature beside.

        Args:
            target: the posterior, of which the model and the dimension are looked at.
        """
        usual = self.message_sizes(target.dimension)
        if target.model.integration is None:
            return usual
        declared = self.declared_sizes(target.dimension)
        return {name: declared[name] for name in usual}

    def declared_sizes(self, dimension: int) -> Mapping[str, Size]:
        """Return the largest size of a message by every site function that a run may ever ask.

        A site refuses a larger answer, and one of a function that is left out: what a person has
        agreed to is never too small. By default those of `message_sizes`.
        """
        return self.message_sizes(dimension)

    def build(self, target: Target) -> Algorithm:
        """Raise: a conversation has no phases."""
        raise TypeError(f"{self.name} is a conversation: it has no phases")

r"""Settings that are left open, chosen together with the step size by the exact law.

The law on the posterior's Gaussian law gives mean shift, spread and autocorrelation of any settings
before a run. Of those whose bias is within the target the cheapest are taken, where

.. math:: \text{cost} = R\,(G\,m + g)

where an independent draw takes R rounds of m messages, and g gradients of all rows of a site that
follow one another; a message is worth as much as G gradients. `Price` has other costs. The search
moves one setting at a time from a few starts, each with the best of a few step sizes, and the last
one's step is refined. With many parameters it compares settings in a few directions, and takes the
best of them in all.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from consortia.algorithms.preconditioning import Preconditioned
from consortia.core import arguments
from consortia.core.contract import CURVATURE, Cost, Frequency, Method, SelfSetting
from consortia.errors import InputError
from consortia.schedules import Constant, Unchosen
from consortia.theory.affine import Recursion
from consortia.theory.arrivals import entries, has_exact_law
from consortia.theory.bias import Problem, errors_of, known_law
from consortia.theory.coupled_modes import CoupledModes
from consortia.theory.delays import DelayedModes
from consortia.theory.expansion import DIRECTIONS
from consortia.theory.law import Law

GRADIENTS_OF_A_MESSAGE = 30.0
"""Gradients of all rows of a site that a message takes as long as: over a network between hospitals
a message takes a good part of a second, and a gradient of some thousand rows milliseconds."""

DOUBLINGS, HALVINGS, BISECTIONS, REFINEMENTS = 4, 30, 2, 5
"""Numbers of changes of a step on its way to the longest that meets the target: few, since only
costs are compared; more of the best settings' step."""

ADJUSTMENTS, CONFIRMED, ENOUGH, AIM = 5, 3, 0.95, 0.97
"""Steps that are tried in all directions, and after a law by modes by that of the matrix; the part
of the target that the bias of a step must take for no longer one to be tried, and the part that the
next one is aimed at."""

MOST_TRACED = 20_000
"""Entries of the covariance along a trace, up to which a choice by mean delays is compared with it.
Beyond it takes seconds; at 24 and 32 sites with 100 parameters standard deviations were within 1 %
of it and means within .003 sd."""

LEAST_PART = 0.01
"""Smallest part of the target that a bias is taken for: the next step is twice as long anyway."""

LEAST_ORDER, MOST_CHANGE = 0.5, 2.0
"""Least power of the step with which a bias is taken to grow, and the most that a step changes by:
orders are 1 and 2 at short steps; two biases apart by rounding or by another law give any."""

SHORTER = 0.8
"""Factor by which that step is shortened while a draw becomes cheaper."""

GAIN = 0.98
"""Share of the cost below which a move is an improvement, so that ties end the search."""

FEW = 7
"""Choices up to which all are compared: all that a single setting has."""

SHOWN = 2
"""Settings, the cheapest in a few directions, that are compared in all of them."""

Values = tuple[tuple[str, Any], ...]
Taken = Callable[[Problem, Law], float]


@dataclass(frozen=True)
class Price:
    """The price of a round, of which the cheapest settings are sought."""

    message: float = GRADIENTS_OF_A_MESSAGE  # of a message of any size
    vector: float = 0.0  # of a vector of the dimension of the parameters in it
    gradient: float = 1.0  # of a gradient of all rows of a site

    @classmethod
    def read(cls, given: Any) -> Price:
        """Return a price by its name, or by the gradients that a message is worth."""
        names = {None: cls(), "messages": cls(1, 0, 0), "bytes": cls(0, 1, 0)}
        names["gradients"] = cls(0, 0, 1)
        if given is None or (isinstance(given, str) and given in names):
            return names[given]
        if isinstance(given, (str, bool)):
            raise InputError(
                f"cost is {given!r}: give 'messages', 'bytes', 'gradients', or the number of "
                "gradients of a site that a message takes as long as."
            ).at("cost")
        return cls(arguments.number("cost", given, 0.0, 1e9))

    def of(self, cost: Cost, sites: int) -> float:
        """Return the price of a round."""
        gradients = self.gradient * in_a_row(cost, sites)
        return self.message * cost.messages + self.vector * cost.vectors + gradients


def in_a_row(cost: Cost, sites: int) -> float:
    """Return the gradients of a round that follow one another."""
    return cost.gradients / (1 if cost.in_turn else sites)


class Tried(NamedTuple):
    """Settings with the step that suits them, their law, and what a draw costs."""

    settings: Values  # by name, without the step size
    method: Method  # with all settings
    step: float
    law: Law
    cost: float  # of an independent draw, by the price
    messages: int  # of a round
    gradients: float  # of a site and round
    mean: float  # largest |predicted mean − mean| in posterior standard deviations
    sd: float  # largest |predicted sd / sd − 1|

    @property
    def values(self) -> dict[str, Any]:
        """The settings by name, with CURVATURE for a mass matrix of that."""
        return {
            name: vars(self.method)[name] if isinstance(value, Frequency) else value
            for name, value in self.settings
        }

    def plain(self) -> dict[str, Any]:
        """Return the settings and what is predicted of them, as JSON can hold it."""
        return {
            **self.values,
            "step_size": self.step,
            "rounds_per_draw": self.law.rounds_per_draw,
            "messages": self.messages,
            "gradients": self.gradients,
            "mean": self.mean,
            "sd": self.sd,
        }


def open_settings(method: Method) -> Mapping[str, tuple[Any, ...]]:
    """Return the values to choose from, of each argument that a method leaves open."""
    return method.open_settings if isinstance(method, SelfSetting) else {}


def in_words(tried: Tried) -> str:
    """Describe settings, most as they are written in a call."""
    values = tried.values
    scaled = values.pop("mass_matrix", None) == CURVATURE
    words = [f"{name}={written(value)}" for name, value in values.items()]
    return ", ".join(words + ["the posterior's curvature as mass matrix"] * scaled)


def written(value: Any) -> str:
    """Write a setting as it stands in a call, but floats with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def with_settings(method: Method, settings: Mapping[str, Any], problem: Problem) -> Method:
    """Fill in open settings; those by the posterior's curvature at its mode in numbers."""
    values = dict(settings)
    precision, sites = problem.near.precision, len(problem.near.sizes)
    for name, value in settings.items():
        if isinstance(value, str) and value == CURVATURE:
            values[name] = precision
        elif isinstance(value, Frequency):
            # The average of agents on a network feels the average of their potentials.
            slowest = np.linalg.eigvalsh(precision)[0] / (1 if method.network is None else sites)
            values[name] = value.times * float(np.sqrt(slowest))
    made: Any = method
    return dataclasses.replace(made, **values)


def many(problem: Problem, method: Method) -> bool:
    """Return True if a method is compared in a few directions of so many parameters first."""
    projects = method.dimension is None and not isinstance(method, Preconditioned)
    return problem.near.mode.size > DIRECTIONS and projects and method.gradient_rows is None


def search(
    problem: Problem,
    method: Method,
    taken: Taken,
    price: Price,
    begin: Callable[[float], float],
) -> list[Tried]:
    """Find settings that meet a target, the cheapest first; none where no settings do.

    Args:
        problem: the posterior.
        method: with open settings, and perhaps an open step size.
        taken: part of the target that the bias of a law takes on the posterior, or on it in some
            directions.
        price: by which they are compared.
        begin: largest curvature to a step beyond every stable one.

    Raises:
        InputError: nothing is predicted for the method or the posterior.
    """
    few = many(problem, method)
    tried = compared(problem.compared(few=few), method, taken, price, begin)
    whole_problem = problem.compared(few=False)
    confirmed: list[Tried] = []
    reasons: list[InputError] = []
    longer = 1.0  # a step in all directions over one in few, as the last settings had it
    for number, made in enumerate(tried):
        whole: Tried | None = made
        if few or number == 0:
            try:
                at = _steps(whole_problem, method, dict(made.settings), taken, price)
                whole = (
                    _adjusted(at, method, longer * made.step)
                    if few
                    else _tried(at, method, made.step, REFINEMENTS)
                )
            except InputError as error:  # these have no law in all directions
                reasons.append(error)
                whole = None
        if whole is not None:
            confirmed.append(whole)
            longer = whole.step / made.step
        if few and len(confirmed) == SHOWN:
            break
    if not confirmed and reasons:
        raise reasons[0]
    confirmed.sort(key=lambda made: made.cost)
    # The law by mean delays is unequally near for gradients that are summed in other ways.
    ways = {dict(made.settings).get("aggregate"): made for made in reversed(confirmed)}
    first = [_nearer(problem, method, made, taken, price) for made in ways.values()]
    others = [made for made in confirmed if ways[dict(made.settings).get("aggregate")] is not made]
    return sorted((made for made in first if made), key=lambda made: made.cost) + others


def _nearer(
    problem: Problem, method: Method, made: Tried, taken: Taken, price: Price
) -> Tried | None:
    """Adjust a step by a nearer law where there may be one; None where none then meets a target."""
    if not _has_exact(made.law.recursion):
        return made
    at = _steps(problem, method, dict(made.settings), taken, price)
    return _adjusted(at, method, made.step, CONFIRMED, rough=made.law)


def _has_exact(recursion: Recursion) -> bool:
    """Return True if there may be a law that is nearer, in seconds."""
    if isinstance(recursion, DelayedModes):
        few = entries(*recursion.curvatures.shape[:2]) <= MOST_TRACED
        return few and (recursion.latest or has_exact_law(recursion.curvatures))
    return isinstance(recursion, CoupledModes)


def compared(
    problem: Problem,
    method: Method,
    taken: Taken,
    price: Price,
    begin: Callable[[float], float],
) -> list[Tried]:
    """Compare settings as `search` does, in all directions of a problem."""
    values = open_settings(method)
    known: dict[tuple[int, ...], Tried | None] = {}
    reasons: list[InputError] = []
    steepest = float(np.linalg.eigvalsh(problem.near.precision)[-1])

    def at(index: tuple[int, ...], like: Tried | None = None) -> Tried | None:
        if index not in known:
            settings = {name: values[name][i] for name, i in zip(values, index, strict=True)}
            scaled = settings.get("mass_matrix") == CURVATURE
            first = begin(1.0 if scaled else steepest)
            if like is not None and scaled == (dict(like.settings).get("mass_matrix") == CURVATURE):
                first = like.step
            try:
                steps = _steps(problem, method, settings, taken, price)
                known[index] = _tried(steps, method, first)
            except InputError as error:
                reasons.append(error)
                known[index] = None
        return known[index]

    for first in _starts(values):
        index, best = first, at(first)
        improved = True
        while improved:
            improved = False
            for near in _neighbours(index, values):
                made = at(near, best)
                if made is not None and (best is None or made.cost < GAIN * best.cost):
                    index, best, improved = near, made, True
    tried = [made for made in known.values() if made is not None]
    if not tried and reasons:
        raise reasons[0]
    return sorted(tried, key=lambda made: made.cost)


def _starts(values: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[int, ...]]:
    """Yield where the search begins: every choice of two kinds, of numbers a middle one.

    Where there are few choices, which take no longer than a search, it is everywhere.
    """
    few = math.prod(map(len, values.values())) <= FEW
    kinds = [
        range(len(choices)) if few or len(choices) == 2 else [len(choices) // 2 if n == 0 else 0]
        for n, choices in enumerate(values.values())
    ]
    return itertools.product(*kinds)


def _neighbours(
    index: tuple[int, ...], values: Mapping[str, tuple[Any, ...]]
) -> Iterator[tuple[int, ...]]:
    for axis, choices in enumerate(values.values()):
        for other in (index[axis] - 1, index[axis] + 1):
            if 0 <= other < len(choices):
                yield (*index[:axis], other, *index[axis + 1 :])


Steps = Callable[[float], tuple[Tried | None, float]]
"""Functions of a step size: what is tried, None off target, and the part of that its bias takes."""


def _tried(
    steps: Steps, method: Method, begin: float, bisections: int = BISECTIONS
) -> Tried | None:
    """Try settings with steps around one; None where no step meets the target.

    A step that the method refuses as too long is one that does not meet it.
    """
    reasons: list[InputError] = []

    def at(step: float) -> Tried | None:
        try:
            return steps(step)[0]
        except InputError as error:
            reasons.append(error)
            return None

    if not isinstance(vars(method)["step_size"], Unchosen):
        (schedule,) = method.step_schedules
        made = at(schedule.value) if isinstance(schedule, Constant) else None
        if made is None and reasons:
            raise reasons[-1]
        return made
    best, step = at(begin), begin
    tries = 1
    while best is None and tries <= HALVINGS:
        step, tries = step / 2, tries + 1
        best = at(step)
    if best is None:
        if len(reasons) == tries:
            raise reasons[-1]
        return None
    if tries == 1:
        for _ in range(DOUBLINGS):
            if (longer := at(2 * step)) is None:
                break
            best, step = longer, 2 * step
    low, high = step, 2 * step
    for _ in range(bisections):
        middle = math.sqrt(low * high)
        halfway = at(middle)
        low, high, best = (low, middle, best) if halfway is None else (middle, high, halfway)
    while (shorter := at(SHORTER * best.step)) is not None and shorter.cost < best.cost:
        best = shorter
    return best


def _adjusted(
    steps: Steps,
    method: Method,
    begin: float,
    tries: int = ADJUSTMENTS,
    rough: Law | None = None,
) -> Tried | None:
    """Try few steps near one that meets the target in a few directions, by the bias of each.

    As `_tried` where none of them meets it. Where the law at the first step is of the kind of the
    ``rough`` one, by which that step was chosen, it stays; and a longer step that is dearer ends
    the search, since not the bias is what limits the step.
    """
    if not isinstance(vars(method)["step_size"], Unchosen):
        return _tried(steps, method, begin)
    best, step, low, high = None, begin, 0.0, math.inf
    before: tuple[float, float] | None = None  # a step and the part that its bias takes
    for _ in range(tries):
        try:
            made, part = steps(step)
        except InputError:  # it has no law with this step
            made, part = None, math.inf
        if (
            made is not None
            and rough is not None
            and type(made.law.recursion) is type(rough.recursion)
        ):
            return made
        if made is not None and best is not None and best.step < step and made.cost > best.cost:
            break
        if made is not None and (best is None or made.cost < best.cost):
            best = made
        low, high = (low, step) if made is None else (step, high)
        if ENOUGH <= part <= 1:
            break
        order = 1.0
        if before is not None and 0 < part < math.inf:
            order = math.log(part / before[1]) / math.log(step / before[0])
        before = (step, part) if 0 < part < math.inf else None
        order = order if order >= LEAST_ORDER else 1.0  # also where it is NaN
        change = (AIM / max(part, LEAST_PART)) ** (1 / order)
        wanted = step * min(max(change, 1 / MOST_CHANGE), MOST_CHANGE)
        step = wanted if low < wanted < high else math.sqrt(low * high)
    return best or _tried(steps, method, step)


def _steps(
    problem: Problem, method: Method, settings: Mapping[str, Any], taken: Taken, price: Price
) -> Steps:
    """Return the steps of settings."""
    filled = with_settings(method, settings, problem)
    near = problem.near
    sites, spent = len(near.sizes), filled.cost(near.sizes, near.mode.size)

    def at(step: float) -> tuple[Tried | None, float]:
        stepped: Any = dataclasses.replace(filled, step_size=step)  # type: ignore[type-var]
        law = known_law(stepped, problem)
        part = taken(problem, law)
        if not part <= 1:  # NaN is not within a target
            return None, math.inf if math.isnan(part) else part
        off, ratio = errors_of(law, near)
        shift, wide = float(abs(off).max()), float(abs(ratio - 1).max())
        cost = law.rounds_per_draw * law.tries * price.of(spent, sites)
        counts = spent.messages, in_a_row(spent, sites)
        tried = Tried(tuple(settings.items()), stepped, step, law, cost, *counts, shift, wide)
        return tried, part

    return at

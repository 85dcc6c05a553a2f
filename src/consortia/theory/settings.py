r"""Settings that are left open, chosen together with the step size by the exact law.

The law on the posterior's Gaussian law gives mean shift, spread and autocorrelation of any settings
before a run. Of those whose bias is within the target the cheapest are taken, where

.. math:: \text{cost} = R\,(G + g)

where an independent draw takes R rounds, and a site g gradients of all its rows a round; a message
is worth as much as G gradients. The search moves one setting at a time from a few
starts, each with the best of a few step sizes, and the last one's step is refined.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from consortia.core.contract import CURVATURE, Method, SelfSetting
from consortia.errors import InputError
from consortia.schedules import Constant, Unchosen
from consortia.theory.bias import Problem, known_law
from consortia.theory.law import Law

GRADIENTS_OF_A_MESSAGE = 30.0
"""Gradients of all rows of a site that a message takes as long as: over a network between hospitals
a message takes a good part of a second, and a gradient of some thousand rows milliseconds."""

DOUBLINGS, HALVINGS, BISECTIONS = 4, 16, 2
"""Numbers of changes of a step on its way to the longest that meets the target: few, since only
costs are compared."""

SHORTER = 0.8
"""Factor by which that step is shortened while a draw becomes cheaper."""

GAIN = 0.98
"""Share of the cost below which a move is an improvement, so that ties end the search."""

Values = tuple[tuple[str, Any], ...]


class Tried(NamedTuple):
    """Settings with the step that suits them, their law, and what a draw costs."""

    settings: Values  # by name, without the step size
    method: Method  # with all settings
    step: float
    law: Law
    cost: float  # gradients of a site an independent draw, a message being worth some
    gradients: float  # of a site and round
    mean: float  # largest |predicted mean − mean| in posterior standard deviations
    sd: float  # largest |predicted sd / sd − 1|

    def plain(self) -> dict[str, Any]:
        """Return the settings and what is predicted of them, as JSON can hold it."""
        return {
            **dict(self.settings),
            "step_size": self.step,
            "rounds_per_draw": self.law.rounds_per_draw,
            "gradients": self.gradients,
            "mean": self.mean,
            "sd": self.sd,
        }


def open_settings(method: Method) -> Mapping[str, tuple[Any, ...]]:
    """Return the values to choose from, of each argument that a method leaves open."""
    return method.open_settings if isinstance(method, SelfSetting) else {}


def in_words(settings: Values) -> str:
    """Describe settings, most as they are written in a call."""
    words = [f"{name}={value!r}" for name, value in settings if name != "mass_matrix"]
    if dict(settings).get("mass_matrix") == CURVATURE:
        words.append("the posterior's curvature as mass matrix")
    return ", ".join(words)


def with_settings(method: Method, settings: Mapping[str, Any], problem: Problem) -> Method:
    """Fill in open settings; the curvature stands for the posterior's precision at its mode."""
    values = dict(settings)
    if values.get("mass_matrix") == CURVATURE:
        values["mass_matrix"] = problem.near.precision
    made: Any = method
    return dataclasses.replace(made, **values)


def search(
    problem: Problem, method: Method, fits: Callable[[Law], bool], begin: Callable[[float], float]
) -> list[Tried]:
    """Find settings that meet a target, the cheapest first; none where no settings do.

    Args:
        problem: the posterior.
        method: with open settings, and perhaps an open step size.
        fits: predicate of a law.
        begin: largest curvature to a step beyond every stable one.

    Raises:
        InputError: nothing is predicted for the method or the posterior.
    """
    values = open_settings(method)
    known: dict[tuple[int, ...], Tried | None] = {}
    reasons: list[InputError] = []
    steepest = float(np.linalg.eigvalsh(problem.near.precision)[-1])

    def at(place: tuple[int, ...], like: Tried | None = None) -> Tried | None:
        if place not in known:
            settings = {name: values[name][i] for name, i in zip(values, place, strict=True)}
            scaled = settings.get("mass_matrix") == CURVATURE
            first = begin(1.0 if scaled else steepest)
            if like is not None and scaled == (dict(like.settings).get("mass_matrix") == CURVATURE):
                first = like.step
            try:
                known[place] = _tried(problem, method, settings, fits, first)
            except InputError as error:
                reasons.append(error)
                known[place] = None
        return known[place]

    for first in _starts(values):
        place, best = first, at(first)
        improved = True
        while improved:
            improved = False
            for near in _neighbours(place, values):
                found = at(near, best)
                if found is not None and (best is None or found.cost < GAIN * best.cost):
                    place, best, improved = near, found, True
    made = [one for one in known.values() if one is not None]
    if not made and reasons:
        raise reasons[0]
    return sorted(made, key=lambda one: one.cost)


def _starts(values: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[int, ...]]:
    """Yield where the search begins: every choice of two kinds, of numbers a middle one."""
    kinds = [
        range(len(choices)) if len(choices) == 2 else [len(choices) // 2 if n == 0 else 0]
        for n, choices in enumerate(values.values())
    ]
    return itertools.product(*kinds)


def _neighbours(
    place: tuple[int, ...], values: Mapping[str, tuple[Any, ...]]
) -> Iterator[tuple[int, ...]]:
    for axis, choices in enumerate(values.values()):
        for index in (place[axis] - 1, place[axis] + 1):
            if 0 <= index < len(choices):
                yield (*place[:axis], index, *place[axis + 1 :])


def _tried(
    problem: Problem,
    method: Method,
    settings: Mapping[str, Any],
    fits: Callable[[Law], bool],
    begin: float,
) -> Tried | None:
    """Try settings with steps around one; None where no step meets the target."""
    filled = with_settings(method, settings, problem)
    near = problem.near
    gradients = filled.cost(near.sizes, near.mode.size).gradients / len(near.sizes)

    def at(step: float) -> Tried | None:
        stepped: Any = dataclasses.replace(filled, step_size=step)  # type: ignore[type-var]
        law = known_law(stepped, problem)
        if not fits(law):
            return None
        moments = law.stationary
        shift = float(abs(moments.mean / near.sd).max())
        wide = float(abs(moments.sd / near.sd - 1).max())
        cost = law.rounds_per_draw * (GRADIENTS_OF_A_MESSAGE + gradients)
        return Tried(tuple(settings.items()), stepped, step, law, cost, gradients, shift, wide)

    if not isinstance(vars(method)["step_size"], Unchosen):
        (schedule,) = method.step_schedules
        return at(schedule.value) if isinstance(schedule, Constant) else None
    best, step = at(begin), begin
    if best is None:
        for _ in range(HALVINGS):
            step /= 2
            if (best := at(step)) is not None:
                break
        low, high = step, 2 * step
    else:
        for _ in range(DOUBLINGS):
            if (longer := at(2 * step)) is None:
                break
            best, step = longer, 2 * step
        low, high = step, 2 * step
    if best is None:
        return None
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        found = at(middle)
        low, high, best = (low, middle, best) if found is None else (middle, high, found)
    while (shorter := at(SHORTER * best.step)) is not None and shorter.cost < best.cost:
        best = shorter
    return best

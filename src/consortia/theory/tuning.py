"""The largest step size whose predicted bias is below a target, and what else would meet it.

With ``step_size=None`` an approximate method has a step size that `consortia.sample` chooses here,
from the exact law of its settings on the posterior's Gaussian law.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from consortia import schedules
from consortia.algorithms.preconditioning import Preconditioned
from consortia.core import arguments
from consortia.core.contract import Method, SurrogateBased
from consortia.diagnostics.prediction import BiasPrediction
from consortia.diagnostics.verdict import K_HAT
from consortia.errors import InputError, warn
from consortia.runtime.threads import one_thread
from consortia.theory.bias import Problem, errors_of, known_law, prediction_by
from consortia.theory.expansion import Expansion
from consortia.theory.law import Law
from consortia.theory.settings import Price, Tried, in_words, many, open_settings, search

HALVINGS = 40
"""Halvings of a first step that is beyond every stable one, to 1e-12 of it."""

REFINEMENTS = 6
"""Bisections between a step that meets the target and twice as long a one that does not; they find
the largest to 1 %."""

MOST_DOUBTED = 8
"""Halvings of a step that meets the target by a prediction which may hold at a shorter one only."""

SHORTER = 0.9
"""Factor by which a step is shortened while the chain then forgets faster: near the largest stable
one some methods overshoot."""

SOME_STEP = 1e-6
"""A step size for counting phases, which do not depend on it; every bound permits it."""

MINIBATCHES = (
    "the spread of its draws is not predicted with minibatches, so that no step size can be chosen "
    "by it: give step_size, or batch_size=None"
)

LEAST_DRAWS = 100.0
"""Effective draws, all chains together, below which a run is called too short: with so many the
means have a Monte Carlo error of a tenth of a posterior standard deviation."""

ALTERNATIVES: tuple[tuple[str, Any], ...] = (
    ("debias", True),
    ("correction", "extra"),
    ("steps_ahead", 1),
    ("local_steps", 1),
    ("leapfrog_steps", 1),
    ("workers", 2),
    ("mixing", "complete"),
    ("batch_size", None),
)
"""Other values of a method's arguments with which a longer step may do, one at a time."""


@dataclass(frozen=True)
class BiasTarget:
    """The largest permitted bias of the draws, by which a step size is chosen.

    By default it is half of what good draws of a method with a bias may have (0.1, see
    `consortia.diagnostics.verdict`). Where it is predicted, a short pilot from the mode confirms
    the step. Above 200 parameters nothing is predicted: a pilot beside half the step chooses, by
    ``sd`` in the mean square over all directions, which needs the rows of all sites in one process.
    """

    mean: float = 0.05  # largest |predicted mean − mean| in posterior standard deviations
    sd: float = 0.05  # largest |predicted sd / sd − 1|
    price: Price = field(default_factory=Price)  # by which settings that meet it are compared

    @classmethod
    def read(cls, given: Any, cost: Any = None) -> BiasTarget:
        """Return a target from a pair of numbers, that by default from None, and a cost's name."""
        price = Price.read(cost)
        if given is None:
            return cls(price=price)
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise InputError(
                f"bias_target is {given!r}: give (mean, sd), e.g. (0.05, 0.05) for means within 5 "
                "% of a posterior standard deviation and standard deviations within 5 %."
            ).at("bias_target")
        mean, sd = (arguments.number("bias_target", number, 1e-6, 10.0) for number in given)
        return cls(mean, sd, price)

    def halved(self) -> BiasTarget:
        """Return half of the target, as a margin for a posterior far from its Gaussian law."""
        return replace(self, mean=self.mean / 2, sd=self.sd / 2)

    def __str__(self) -> str:
        return f"{100 * self.mean:g} % of an sd in the means and {100 * self.sd:g} % in the sds"

    def taken(self, law: Law, near: Expansion) -> float:
        """Return the part of the target that the bias of the long-run law takes.

        Args:
            law: of the method at its step size.
            near: expansion of the posterior about its mode.
        """
        if not (law.stationary.variance > 0).all():  # the second order of a large network fails
            return math.inf
        shift, ratio = errors_of(law, near)
        parts = np.abs(shift).max() / self.mean, np.abs(ratio - 1).max() / self.sd
        return float(np.max(parts))  # NaN if one of them is

    def met(self, law: Law, near: Expansion) -> bool:
        """Return True if the long-run law is within the target of the posterior."""
        return self.taken(law, near) <= 1


@dataclass(frozen=True)
class Choice:
    """A method with its step size, and what it rests on."""

    method: Method  # with the step size
    step_size: float  # h
    # rounds that an independent draw takes in the slowest direction; NaN where a pilot has chosen
    rounds_per_draw: float
    prediction: BiasPrediction  # of the method's bias
    tried: tuple[Tried, ...] = ()  # settings that were compared, the cheapest first
    margin: str = ""  # why half of the target was kept, where it was

    def line(self, target: BiasTarget) -> str:
        """Describe the choice in words."""
        if math.isnan(self.rounds_per_draw):
            return f"{self.step_size:.4g}, chosen: the longest that a pilot confirms"
        draw = f"an independent draw takes about {math.ceil(self.rounds_per_draw):,} rounds"
        if self.tried:
            chosen = f"chosen with {in_words(self.tried[0])}: the cheapest"
        else:
            chosen = "chosen: the largest"
        margin = ""
        if self.margin:
            margin = f"half of the target, as {self.margin}: "
            target = target.halved()
        return (
            f"{self.step_size:.4g}, {chosen} with a predicted bias within {margin}{target}; {draw}"
        )


def unchosen(method: Method) -> bool:
    """Return True if the method's step size or another setting is still to be chosen."""
    open_steps = any(isinstance(schedule, schedules.Unchosen) for schedule in method.step_schedules)
    return open_steps or bool(open_settings(method))


def completed(method: Method, dimension: int) -> Method:
    """Return the method with some step and scales where they are to be found, for its phases."""
    settled: Any = method
    if isinstance(method, Preconditioned) and method.scales is None:
        settled = dataclasses.replace(settled, scales=(1.0,) * dimension)
    # of each open setting its first value; the phases do not depend on which
    first = {name: values[0] for name, values in open_settings(method).items()}
    if "mass_matrix" in first:
        first["mass_matrix"] = None
    if "friction" in first:
        first["friction"] = 1.0
    settled = dataclasses.replace(settled, **first)
    open_steps = any(isinstance(schedule, schedules.Unchosen) for schedule in method.step_schedules)
    return dataclasses.replace(settled, step_size=SOME_STEP) if open_steps else settled


def choose_step(
    problem: Problem, method: Method, target: BiasTarget, *, rounds: int, chains: int
) -> Choice:
    """Choose the largest step size that meets a target of bias, and the settings left open.

    Args:
        problem: the posterior.
        method: with ``step_size=None``, or other open settings.
        target: how far off the draws may be.
        rounds: of the run, after its warm-up.
        chains: of the run.

    Raises:
        InputError: nothing is predicted for the method or the posterior, or no step meets the
            target. The message says which other arguments would do, and so does the warning of a
            step that is too short for so many rounds.
    """
    try:
        margin = _margin(problem, method)
        kept, within = target, str(target)
        if margin:
            kept = target.halved()
            within = f"half of the target, {kept}, as {margin}"
        with one_thread():
            choice = best_choice(problem, method, kept)
    except InputError as error:
        text = str(error).rstrip(".")
        raise InputError(
            f"settings are left open, but none can be chosen: {text}. Give step_size and the "
            "others, or take federated_hmc, which is exact."
            if open_settings(method)
            else f"step_size is None, but none can be chosen: {text}. Give it, or take "
            "federated_hmc, which is exact."
        ).at("step_size") from error
    if choice is None:
        raise InputError(
            f"no step size of {method.name} meets {within if margin else f'the target, {kept}'}. "
            f"{_advice(problem, method, kept, rounds, chains)}"
        )
    draws = rounds * chains / choice.rounds_per_draw
    if draws < LEAST_DRAWS:
        needed = math.ceil(LEAST_DRAWS * choice.rounds_per_draw / chains)
        text = (
            f"{rounds:,} rounds of {chains} chains are too few: with step_size "
            f"{choice.step_size:.3g} {method.name} makes {draws:.1f} independent draws in the "
            "slowest direction. "
            f"{needed:,} rounds would make {LEAST_DRAWS:.0f}; a stored run can be resumed."
        )
        # What is open already has been compared.
        other = "" if open_settings(method) else _advice(problem, method, kept, rounds, chains)
        warn(f"{text} {other}".rstrip())
    return replace(choice, margin=margin)


def _margin(problem: Problem, method: Method) -> str:
    """Explain why half of a target is kept; "" where all of it is used."""
    if problem.near.gaussian:
        return ""
    if (problem.near.k_hat or 0.0) > K_HAT:  # the importance weights towards the posterior
        return "the posterior is far from its Gaussian law"
    if isinstance(method, SurrogateBased) and method.fits_surrogates:
        return "surrogates follow likelihoods that are not Gaussian near the mode only"
    return ""


def best_choice(problem: Problem, method: Method, target: BiasTarget) -> Choice | None:
    """Choose the cheapest settings where some are open, else the largest step, if any will do."""
    return (_cheapest if open_settings(method) else largest_step)(problem, method, target)


def _cheapest(problem: Problem, method: Method, target: BiasTarget) -> Choice | None:
    """Choose open settings with their step size, or None where no settings meet the target."""
    sites = len(problem.near.sizes)

    doubts: list[str] = []

    def taken(projected: Problem, law: Law) -> float:  # in the directions that are searched
        if not law.variance_known:
            raise InputError(MINIBATCHES)
        part = target.taken(law, projected.near) if law.stable else math.inf
        if part <= 1 and _doubtful(problem, law):
            doubts.append(law.unsure)
            return math.inf
        return part

    def begin(steepest: float) -> float:
        return first_step(steepest, sites)

    tried = search(problem, method, taken, target.price, begin)
    if not tried and doubts:
        raise InputError(f"the prediction may not hold with any settings: {doubts[-1]}")
    if not tried:
        return None
    best = tried[0]
    prediction = prediction_by(best.method, problem, best.law)
    return Choice(best.method, best.step, best.law.rounds_per_draw, prediction, tuple(tried))


def largest_step(problem: Problem, method: Method, target: BiasTarget) -> Choice | None:
    """Return the method with the largest step size that meets the target, or None.

    A step at which the prediction may not hold (`Law.unsure`) does not meet it; and a shorter step
    is taken where the chain forgets faster with it.

    Raises:
        InputError: nothing is predicted for the method or the posterior, or nothing that holds.
    """
    near = problem.seen_by(method).near
    steepest = float(np.linalg.eigvalsh(near.precision)[-1])
    step = first_step(steepest, len(near.sizes))
    if many(problem, method):
        with suppress(InputError):  # these directions have none
            some = largest_step(problem.compared(few=True), method, target)
            step = step if some is None else 2 * some.step_size
    fits = None
    reason: InputError | None = None
    doubted = 0
    for _ in range(HALVINGS):
        step /= 2
        try:
            fits = _fitting(problem, method, step, target)
            reason = None
        except InputError as error:
            reason = error
        if fits is not None and _doubtful(problem, fits[1]):
            reason = InputError(f"the prediction may not hold at any step: {fits[1].unsure}")
            fits, doubted = None, doubted + 1
        if fits is not None or doubted > MOST_DOUBTED:
            break
    if reason is not None:
        raise reason
    if fits is None:
        return None
    low, high = step, 2 * step
    for _ in range(REFINEMENTS):
        middle = math.sqrt(low * high)
        try:
            longer = _fitting(problem, method, middle, target)
        except InputError:  # an argument of the method bounds the step
            longer = None
        if longer is None or _doubtful(problem, longer[1]):
            high = middle
        else:
            low, fits = middle, longer
    shorter = _fitting(problem, method, SHORTER * low, target)
    while shorter is not None and shorter[1].rounds_per_draw < fits[1].rounds_per_draw:
        low, fits = SHORTER * low, shorter
        shorter = _fitting(problem, method, SHORTER * low, target)
    stepped, law = fits
    return Choice(stepped, low, law.rounds_per_draw, prediction_by(stepped, problem, law))


def first_step(steepest: float, sites: int) -> float:
    """Return a step beyond every stable one of any method, from the largest curvature λ.

    With all rows, leapfrog steps are stable below 2/√λ and Langevin steps below 2/λ; an agent of a
    network of N has about λ/N by itself.
    """
    return 4 * max(1 / math.sqrt(steepest), 1 / steepest) * max(sites, 1)


def _doubtful(problem: Problem, law: Law) -> bool:
    """Return True if a law is of a method whose prediction may fail on this posterior."""
    return bool(law.unsure) and not problem.near.gaussian


def _fitting(
    problem: Problem, method: Method, step: float, target: BiasTarget
) -> tuple[Method, Law] | None:
    """Return the method with this step and its law where that meets the target."""
    stepped: Any = dataclasses.replace(method, step_size=step)  # type: ignore[type-var]
    law = known_law(stepped, problem)
    if not law.variance_known:
        raise InputError(MINIBATCHES)
    if not law.stable or not target.met(law, problem.near):
        return None
    return stepped, law


def _advice(problem: Problem, method: Method, target: BiasTarget, rounds: int, chains: int) -> str:
    """Advise other values of single arguments, the fastest first."""
    options = []  # rounds per draw, and the argument with its value
    for name, value, other in _others(method):
        try:
            choice = best_choice(problem, other, target)
        except InputError:
            continue
        if choice is not None and rounds * chains / choice.rounds_per_draw >= LEAST_DRAWS:
            options.append((choice.rounds_per_draw, f"{name}={value!r}"))
    if options:
        return f"What can: {', '.join(text for _, text in sorted(options))}; or federated_hmc."
    return "Neither can another value of one of its arguments: take federated_hmc, which is exact."


def _others(method: Method) -> Iterator[tuple[str, Any, Method]]:
    fields = {setting.name for setting in dataclasses.fields(method)}  # type: ignore[arg-type]
    for name, value in ALTERNATIVES:
        if name in fields and vars(method).get(name) != value:
            try:
                changed: Any = dataclasses.replace(method, **{name: value})  # type: ignore[type-var]
            except InputError:
                continue
            yield name, value, changed

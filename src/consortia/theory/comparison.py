"""Bias against messages of the methods that could sample one posterior, before any of them runs."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from consortia.algorithms.registry import ALGORITHMS
from consortia.errors import InputError
from consortia.runtime.threads import one_thread
from consortia.theory.bias import UNFITTED, Problem, errors_of, known_law, unfitted
from consortia.theory.expansion import DIRECTIONS
from consortia.theory.tuning import BiasTarget, best_choice

DRAWS = 400
"""Effective draws, all chains together, whose messages are compared."""

FACTORS = tuple(2.0**power for power in np.arange(-3, 2.5, 0.5))
"""Factors of the chosen step size at which a method's bias is drawn."""

ACCEPTANCE, ANGLE, LENGTH = 0.8, math.pi / 2, 0.85
"""The acceptance rate that `federated_hmc` learns, how far it goes at most in the widest
direction, and the mean of its lengths in units of that."""


class Curve(NamedTuple):
    """A method's bias and messages along its step size; one point where it has no bias."""

    name: str
    biases: tuple[float, ...]  # largest of |shift| and |sd ratio − 1|, in posterior sds
    messages: tuple[float, ...]  # that follow one another, until there are `DRAWS` effective draws


def candidates(sites: int) -> dict[str, dict[str, Any]]:
    """Return the settings, by name, of methods whose other settings the law chooses."""
    network = {"mixing": "ring" if sites > 2 else "complete"}
    workers = {"workers": sites}
    return {"fa_hmc": {}, "fsgld": {}, "dsgld": {}} | {
        "stale_sgld": workers,
        "stale_sghmc": workers,
        "de_sgld": network,
        "de_sghmc": network,
        "decentralized_hmc": network,
    }


def curves(problem: Problem, target: BiasTarget, chains: int) -> tuple[list[Curve], dict[str, str]]:
    """Return a curve of each method that has one, the dearest first, and why others have none.

    The settings of a method are those that are chosen for a target; its step is varied around the
    chosen one. With many parameters both happen in a few directions.
    """
    there = problem.compared(few=True) if problem.near.mode.size > DIRECTIONS else problem
    drawn, reasons = [], {}
    for name, settings in candidates(len(problem.sites)).items():
        method = ALGORITHMS[name].factory(**settings)
        try:
            method.check(problem.sites.sizes, problem.sites.names, problem.near.mode.size)
            if unfitted(method, problem):
                raise InputError(UNFITTED)
            with one_thread():
                drawn.append(_curve(name, there, method, target, chains))
        except InputError as error:
            reasons[name] = str(error).rstrip(".")
    return sorted(drawn, key=lambda curve: -min(curve.messages)), reasons


def _curve(name: str, problem: Problem, method: Any, target: BiasTarget, chains: int) -> Curve:
    choice = best_choice(problem, method, target)
    if choice is None:
        raise InputError(f"no settings meet {target}")
    made = []
    for factor in FACTORS:
        with contextlib.suppress(InputError):  # the step may be too long
            stepped: Any = dataclasses.replace(choice.method, step_size=factor * choice.step_size)  # type: ignore[type-var]
            made.append(point(stepped, problem, chains))
    # Beyond some step a draw takes more messages and is worse.
    least = [point for point in made if all(point[1] <= m for b, m in made if b <= point[0])]
    return Curve(name, *zip(*sorted(least), strict=True))


def point(method: Any, problem: Problem, chains: int) -> tuple[float, float]:
    """Return the bias of a method with all its settings, and its messages.

    Raises:
        InputError: it has no law, or that does not settle.
    """
    near, law = problem.near, known_law(method, problem)
    shift, ratio = errors_of(law, near)
    # Asynchronous workers send at the same time: as many messages pass as one of them sends.
    together = vars(method).get("workers", 1)
    messages = method.cost(near.sizes, near.mode.size).messages / together
    return float(np.abs([shift, ratio - 1]).max()), law.rounds_per_draw * messages * DRAWS / chains


def exact_messages(problem: Problem, chains: int) -> float:
    r"""Return the messages of `federated_hmc` after its warm-up, on the posterior's Gaussian law.

    With its learned masses the precisions are κ_i, and the leapfrog of step ε turns direction i by
    an angle without a loss of energy but

    .. math:: E = \sum_i \tfrac14 (1/r_i - r_i)^2, \qquad r_i^2 = 1 - \epsilon^2\kappa_i/4,
              \qquad a = \operatorname{erfc}(\sqrt{E}/2)

    which is taken at the mean of sin² over angles; a is the acceptance rate. A trajectory counts as
    one draw: those of means are worth more, as they swing to the other side.
    """
    near = problem.near
    precisions = np.linalg.eigvalsh(near.precision * np.outer(near.sd, near.sd))
    low, high = 0.0, 2 / math.sqrt(precisions[-1])
    for _ in range(50):
        middle = (low + high) / 2
        r = np.sqrt(1 - middle**2 * precisions / 4)
        accepted = math.erfc(math.sqrt(np.sum((1 / r - r) ** 2) / 4) / 2)
        low, high = (middle, high) if accepted > ACCEPTANCE else (low, middle)
    steps = max(LENGTH * ANGLE / (low * math.sqrt(precisions[0])), 1.0)
    return (steps + 1) * DRAWS / chains

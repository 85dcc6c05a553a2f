r"""A step size where nothing is predicted: a chain beside itself with half the step.

Of networks no curvature is known. There the energy U, minus the log-density, tells whether a step
is short enough, whatever the method does with it. With

.. math::
    \Delta(h) = (\mathrm{E}_h U - \mathrm{E}_{h/2} U) / d, \qquad a(h) = e^{-|\Delta(h)|}

a is the acceptance, a parameter, of a Metropolis test that takes a draw with the step h in the
place of one with h/2. On a Gaussian posterior, in units of its standard deviations, E U is half the
sum of the squared spreads r_i² and shifts m_i². Their error is at least of order h, so that what
h/2 leaves of it is at most what it takes away: 1 + 4Δ bounds the mean of r² + m² over all
directions. A single direction, and a shift, that is small beside that mean is not seen.

Half the step is run between two runs with the whole one, each from where the one before ended: what
still drifts equally in all three, as a chain that has not arrived, drops out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from consortia.core.contract import Method
from consortia.core.parameters import join, sampled_draws, variables
from consortia.core.target import Target
from consortia.diagnostics.prediction import BiasPrediction
from consortia.errors import InputError, NonFiniteError, wrong
from consortia.runtime.late import PyTree, jnp
from consortia.theory.bias import Problem
from consortia.theory.estimates import largest_curvature
from consortia.theory.settings import open_settings
from consortia.theory.stability import has_prediction, predict_divergence
from consortia.theory.tuning import SOME_STEP, BiasTarget, Choice, first_step

HALVINGS = 14
"""Steps that are tried, the first of which is beyond every stable one."""

MOST_ROUNDS = 200
"""Rounds of each run of a pilot; twice as many with half the step."""

SUBSET = 10
"""Draws of each chain, of the later half of its rounds, whose energy is computed."""

DEFAULTS: Mapping[str, Any] = {
    "leapfrog_steps": 5,
    "local_steps": 1,
    "debias": True,
    "mass_matrix": None,
    "gossip_rounds": 8,
}
"""Settings where no law compares them: those that keep the bias small on Gaussian posteriors, and
five leapfrog steps, chosen: on a network of 1,810 weights digits were predicted as with a step that
was given (accuracy 0.953 of both)."""

Run = Callable[[Method, int, PyTree], Any]
"""A function of a method, rounds and starting parameters: the result of a short run."""


class Level(NamedTuple):
    """The energies of a run's later draws: their mean, its error, and the last parameters."""

    mean: float
    error: float
    end: PyTree


def unpredicted(method: Method, problem: Problem) -> tuple[Method, str]:
    """Return a method with default settings in the place of open ones, and these in words.

    Args:
        method: with open settings, of which none is changed where their laws are known.
        problem: the posterior.

    Raises:
        InputError: an open setting has no default: the friction.
    """
    if problem.too_large is None:
        return method, ""
    # settings that are open only while the step is have defaults of the method's own
    settled: Any = dataclasses.replace(method, step_size=SOME_STEP)  # type: ignore[type-var]
    wanted = open_settings(settled)
    for name in wanted.keys() - DEFAULTS.keys():
        raise wrong(
            name,
            f" is None, but none can be chosen: {problem.too_large}. Give {name}=a number, or take "
            "a method without it.",
        )
    settings = {name: DEFAULTS[name] for name in wanted}
    words = ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)
    made: Any = method
    return dataclasses.replace(made, **settings), words


def piloted(problem: Problem, method: Any, target: BiasTarget, rounds: int, run: Run) -> Choice:
    """Return the method with the longest step that a pilot confirms.

    Args:
        problem: a posterior too large for a prediction.
        method: with ``step_size=None``.
        target: of it the share of the standard deviations is kept, in the mean square.
        rounds: of the run.
        run: makes the runs of the pilot.

    Raises:
        InputError: no step is confirmed, or a process has not the rows of all sites.
    """
    model, sites = problem.model, problem.sites
    if sites.elsewhere:
        raise InputError(
            f"step_size is None, but none can be chosen: {problem.too_large}, and the rows of all "
            "sites, with which a pilot begins, are not in this process. Give it."
        ).at("step_size")
    made = Target(model, problem.start)
    step = first_step(largest_curvature(model, sites, problem.start), len(sites))
    length, position = min(MOST_ROUNDS, rounds), problem.start

    def level(stepped: Method, count: int, start: PyTree) -> Level:
        return level_of(run(stepped, count, start), problem, made)

    reason = ""
    for _ in range(HALVINGS):
        step /= 2
        try:
            whole, half = (dataclasses.replace(method, step_size=size) for size in (step, step / 2))
            if has_prediction(whole):
                fault = predict_divergence(whole, model, sites, problem.start)
                if fault:
                    reason = fault
                    continue
            first = level(whole, length, level(whole, length, position).end)
            fine = level(half, 2 * length, first.end)
            again = level(whole, length, fine.end)
        except (NonFiniteError, InputError) as end:  # an argument bounds the step, or it diverges
            reason = str(end).rstrip(".")
            continue
        position = fine.end
        delta, error = difference(first, fine, again, made.dimension)
        reason = f"with {step:.3g} the acceptance is {acceptance(delta):.3f} a parameter"
        if confirms(delta, error, target):
            wide = math.sqrt(1 + 4 * abs(delta))
            reason = (
                f"{problem.too_large}; a pilot with half the step has an acceptance of "
                f"{acceptance(delta):.3f} a parameter, as with standard deviations up to "
                f"{100 * (wide - 1):.1f} % off in the mean square over all directions"
            )
            return Choice(whole, step, math.nan, BiasPrediction(reason=reason, settled=True))
    raise InputError(
        f"no step size within the budget can: of {HALVINGS} steps, each half the one before, a "
        f"pilot of {length} rounds confirms none within {100 * target.sd:g} % in the standard "
        f"deviations ({reason}). Give step_size, or take more rounds or federated_hmc."
    ).at("step_size")


def level_of(tree: Any, problem: Problem, target: Target) -> Level:
    """Return the energies of the later draws of a run."""
    flat = join(sampled_draws(tree), variables(target.structure), leading=2).astype(float)
    chains, draws, dimension = flat.shape
    places = np.linspace(draws // 2, draws - 1, SUBSET).round().astype(int)
    some = flat[:, places].reshape(-1, dimension)
    energies = -problem.potentials.values(some).reshape(chains, SUBSET)
    if not np.isfinite(energies).all():
        raise InputError("the energy of a draw is not finite")
    units = energies.mean(axis=1) if chains > 1 else energies[0]
    error = float(units.std(ddof=1) / math.sqrt(len(units)))
    return Level(float(energies.mean()), error, target.unravel(jnp.asarray(flat[0, -1])))


def difference(first: Level, fine: Level, again: Level, dimension: int) -> tuple[float, float]:
    """Return Δ and its Monte Carlo error, from half the step between two runs with the whole."""
    coarse = (first.mean + again.mean) / 2
    error = math.hypot(fine.error, math.hypot(first.error, again.error) / 2)
    return (coarse - fine.mean) / dimension, error / dimension


def acceptance(log_ratio: float) -> float:
    """Return a = min(1, exp(−|Δ|))."""
    return math.exp(-abs(log_ratio))


def confirms(bias: float, error: float, target: BiasTarget) -> bool:
    """Return True if 1 + 4Δ, within its Monte Carlo error, is inside the target for r²."""
    most = ((1 + target.sd) ** 2 - 1) / 4
    return abs(bias) + error <= most

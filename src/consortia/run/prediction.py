"""The predicted bias of a run: found before it starts, said, and kept with its draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.algorithms.expanding import expansion_left
from consortia.core import arguments
from consortia.core.contract import Method
from consortia.core.model import Model
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.diagnostics.prediction import FEWEST_DRAWS, BiasPrediction
from consortia.diagnostics.summary import summary
from consortia.diagnostics.verdict import Evidence, Severity, judge, pilot_fault
from consortia.engines.contract import Engine
from consortia.errors import DivergenceError, InputError, NonFiniteError, warn
from consortia.run.pilot import piloted
from consortia.run.specification import Request
from consortia.runtime.late import jax, jnp
from consortia.theory import bias
from consortia.theory.bias import Problem, keeps_posterior, known_law, predict_bias, prediction_by
from consortia.theory.tuning import BiasTarget, Choice, choose_step

PyTree = Any

MOST_OPERATIONS = 200_000_000
"""Rows times squared parameters up to which `consortia.sample` predicts the bias unasked: some
tenths of a second a look at the curvature, of which there are about ten."""

CALL = 100_000
"""The same of a call, of which each site needs its own: as many as are computed in its time."""

PILOT_DRAWS, LEAST_PILOT, MOST_PILOT = 20, 50, 2000
"""Independent draws of a chain that a pilot is worth; its fewest and its most rounds."""

PILOTS = 3
"""Pilots, each with half the step of the one before, until one confirms the step."""

FORGOTTEN = (
    "some sites were absent, and what a prediction without them needs was lost when the run was "
    "resumed"
)
"""Reason why a resumed run with absent sites has no prediction: that for all is not of it."""

RESPONSES = ("warn", "raise", "ignore")


def check_response(on_divergence: Any) -> str:
    """Return the response to a predicted divergence; refuse another word."""
    return str(arguments.one_of("on_divergence", on_divergence, RESPONSES))


def predicted(
    method: Method,
    model: Model,
    sites: Sites,
    parameters: PyTree,
    dimension: int,
    engine: Engine,
    fitted: Any = None,
    draws: int = FEWEST_DRAWS,
) -> BiasPrediction:
    """Return the predicted bias, or why there is none by default.

    The search for the mode starts at ``parameters``; ``fitted`` is what the sites have left of a
    method that `fits_surrogates`, node axis first. ``draws`` are those of the run.
    """
    operations = sites.rows * dimension**2 + len(sites) * CALL
    if keeps_posterior(method):
        prediction = predict_bias(model, sites, method, init=parameters)
        # where one process has all rows, they are sought after the run
        apart = sites.elsewhere or jax.process_count() > 1
        if apart and draws >= FEWEST_DRAWS and operations <= MOST_OPERATIONS:
            others = _other_modes(Problem(model, sites, parameters, engine))
            return replace(prediction, other_modes=others)
        return prediction
    corrections = None if fitted is None else fitted[0].correction
    problem = Problem(model, sites, parameters, engine, corrections=corrections)
    if problem.too_large is None and operations > MOST_OPERATIONS:
        return BiasPrediction(
            reason=f"{sites.rows:,} rows of {len(sites):,} sites in {dimension:,} parameters are "
            "too many to examine unasked; `consortia check` and theory.bias.predict_bias try"
        )
    return bias.predicted(method, problem)


def _other_modes(problem: Problem) -> tuple[tuple[float, ...], ...] | None:
    """Return other modes of a posterior; None where it has none that was found, or is too large."""
    try:
        return problem.near.others
    except InputError:
        return None


def predicted_by(
    method: Method,
    model: Model,
    sites: Sites,
    parameters: PyTree,
    fitted: Any,
    participation: np.ndarray | None = None,
) -> BiasPrediction:
    """Return the predicted bias from what ``fit`` phases have left, node axis first.

    ``participation``, (rounds, sites), says which sites took part in which round, if not all did.
    """
    if fitted == ():  # by a server that went on: the sites alone have it
        return BiasPrediction(reason=FORGOTTEN)
    left = expansion_left(fitted)
    if left is None:
        return BiasPrediction(reason="the search for the mode did not converge in its steps")
    problem = Problem(model, sites, parameters, left=left, participation=participation)
    return bias.predicted(method, problem)


def chosen(
    method: Method,
    problem: Problem,
    target: BiasTarget,
    request: Request,
    pilot: Callable[[Method, int, PyTree], Any],
) -> Choice:
    """Return the method with the step size that meets a target of bias, as a pilot confirms.

    ``pilot`` takes a method, rounds and starting parameters to the result of a short run.

    Raises:
        InputError: no step size does, within the rounds of the run or at all.
    """
    if problem.too_large is not None:
        return piloted(problem, method, target, request.rounds, pilot)
    choice = choose_step(problem, method, target, rounds=request.rounds, chains=request.chains)
    # Far from its Gaussian law a posterior has places where a step is too long, reached late.
    needed = MOST_PILOT if choice.margin else math.ceil(PILOT_DRAWS * choice.rounds_per_draw)
    rounds = max(min(needed, request.rounds, MOST_PILOT), LEAST_PILOT)
    mode = Target(problem.model, problem.start).unravel(jnp.asarray(problem.near.mode))
    fault = "the pilot's chain diverged"
    for _ in range(PILOTS):
        try:
            tree = pilot(choice.method, rounds, mode)
        except NonFiniteError:
            check = None
        else:
            table = summary(tree, units="sampled")
            evidence = Evidence.of(tree, table)
            check = pilot_fault(choice.prediction, evidence, rounds >= choice.rounds_per_draw)
            if check is None:
                return choice
            fault = f"{check.title} {check.value}"
        shorter: Any = replace(choice.method, step_size=choice.step_size / 2)  # type: ignore[type-var]
        choice = Choice(
            shorter,
            choice.step_size / 2,
            4 * choice.rounds_per_draw,
            prediction_by(shorter, problem, known_law(shorter, problem)),
        )
    raise InputError(
        f"no step size is confirmed by a pilot of {rounds} rounds from the mode ({fault}): the "
        "posterior is not near its Gaussian law. Give step_size, or use federated_hmc."
    )


def starts_near_mode(
    problem: Problem, positions: Float[np.ndarray, "chains d"], seed: int, *, fits: bool
) -> Float[np.ndarray, "chains d"]:
    """Return starts of chains from the posterior's Gaussian law, where their settings hold.

    From afar a chain takes as long as it takes, and its way would be among its draws. The first is
    the mode if sites ``fits`` surrogates there. Given ones are returned where the posterior is too
    large to be expanded.
    """
    if problem.too_large is not None:
        return positions
    values, axes = np.linalg.eigh(problem.near.covariance)
    normal = np.random.default_rng(seed).normal(size=positions.shape)
    away = normal @ (axes * np.sqrt(np.maximum(values, 0))).T
    away[:1] *= not fits
    return (problem.near.mode + away).astype(positions.dtype)


def with_scales(method: Any, problem: Problem) -> Any:
    """Return a preconditioned method with the scales that the curvatures of all sites give.

    Raises:
        InputError: the posterior has no mode near the start, or too many parameters.
    """
    try:
        curvature = np.diagonal(problem.near.precision)
    except InputError as error:
        text = str(error).rstrip(".")
        raise InputError(
            f"there are no curvatures to precondition with: {text}. Give scales."
        ) from (error)
    return replace(method, scales=tuple((1 / np.sqrt(curvature)).tolist()))


def respond(prediction: BiasPrediction, on_divergence: str, *, warned: bool) -> None:
    """Warn of settings whose verdict is bad; raise where a divergence is to be refused.

    Args:
        prediction: of the settings.
        on_divergence: "warn" or "raise".
        warned: the user has been warned of an unstable step size already.

    Raises:
        DivergenceError: the chain diverges near the mode.
    """
    verdict = judge(prediction)
    if verdict.severity is not Severity.BAD:
        return
    (reason,) = verdict.reasons
    text = f"{verdict.headline}: {reason.value}. {reason.text}"
    if prediction.diverges and on_divergence == "raise":
        raise DivergenceError(text)
    if not (warned and prediction.diverges):
        warn(text)

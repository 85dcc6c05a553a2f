"""The predicted bias of a run: found before it starts, said, and kept with its draws."""

from __future__ import annotations

import warnings
from typing import Any

from consortia.core.contract import Method
from consortia.core.model import Model
from consortia.data.sites import Sites
from consortia.diagnostics.prediction import BiasPrediction
from consortia.diagnostics.verdict import Severity, judge
from consortia.engines import Engine
from consortia.errors import DivergenceError, InputError
from consortia.theory.bias import keeps_posterior, predict_bias

PyTree = Any

MOST_OPERATIONS = 200_000_000
"""Rows times squared parameters up to which `consortia.sample` predicts the bias unasked: some
tenths of a second a look at the curvature, of which there are about ten."""

RESPONSES = ("warn", "raise", "ignore")


def check_response(on_divergence: Any) -> str:
    """Return what a predicted divergence leads to; refuse another word."""
    if on_divergence not in RESPONSES:
        raise InputError(
            f"on_divergence is {on_divergence!r}: give 'warn', 'raise' or 'ignore' (no prediction)."
        )
    return str(on_divergence)


def predicted(
    method: Method, model: Model, sites: Sites, parameters: PyTree, dimension: int, engine: Engine
) -> BiasPrediction:
    """Return the predicted bias, or why there is none without being asked for."""
    if keeps_posterior(method):
        return predict_bias(model, sites, method, init=parameters)
    if sites.rows * dimension**2 > MOST_OPERATIONS:
        return BiasPrediction(
            reason=f"{sites.rows:,} rows in {dimension:,} parameters are too many to be looked at "
            "unasked; `consortia check` and theory.bias.predict_bias try"
        )
    return predict_bias(model, sites, method, init=parameters, engine=engine)


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
        warnings.warn(text, UserWarning, stacklevel=4)

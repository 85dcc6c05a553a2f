"""The server's part: Newton steps from noisy sums, and a normal that knows the noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.algorithms.private_posterior.stages import DRAWS, STAGES, Stage, units_of
from consortia.core.contract import Fault
from consortia.core.privacy import Privacy, epsilon_of
from consortia.core.queries import Batch, Conversing, Known, Outcome, Query, SiteFunction

MOST_CLIPPED = 0.05
"""Share of clipped rows from which the result may be biased."""

MOST_WIDENED = 2.0
"""Factor of an interval from which the noise says more than the rows."""

FARTHEST_STEP = 4.0
"""Standard deviations of the last message's estimate that its step may have, in any direction."""


class Received(NamedTuple):
    """The answer to a stage, in the units of the model."""

    gradient: Float[np.ndarray, " d"]  # of minus the log-likelihood, (d,)
    curvature: Float[np.ndarray, "d d"] | None  # of it, symmetric (d, d); None of a stage without
    clipped: float  # rows that were clipped, with noise
    sd: float  # of the noise in each number of the gradient
    curvature_sd: float  # the same of the curvature's diagonal; √2 times as much as beside it


def converse(
    known: Known,
    functions: Mapping[str, SiteFunction],
    *,
    clip: float,
    delta: float,
    honest: float | None,
) -> Conversing:
    """Yield a query of each stage, then the draws.

    Args:
        known: the posterior and the run.
        functions: site functions of the stages.
        clip: norm to which gradients are clipped.
        delta: privacy parameter δ.
        honest: fraction of the sites that add their noise to sums.
    """
    target, d = known.target, known.target.dimension
    nonce = np.array([known.seed % 2**31, known.seed // 2**31 % 2**31], np.int32)
    at = np.asarray(known.start, np.float64)
    curvature = np.zeros((d, d))
    for stage in STAGES:
        query = Query(stage.name, {"position": at, "nonce": nonce}, stage.name.split("_")[1])
        privacy = functions[stage.name].privacy
        assert privacy is not None
        answer = yield query
        sums = received(stage, answer, privacy(d), len(known.sizes), clip)
        position = at.astype(target.dtype)
        gradient = sums.gradient - target.prior_gradient(position)
        prior = -target.prior_hessian(position)
        if sums.curvature is not None:
            # A step may not rely on a curvature that noise alone could make.
            least = 0.0 if stage is STAGES[-1] else sums.curvature_sd * 2 * math.sqrt(d)
            curvature = positive(sums.curvature, least) + prior
        step = -np.linalg.solve(curvature, gradient)
        at = at + step
    covariance = np.linalg.inv(curvature)
    noise = sums.sd**2 + sums.curvature_sd**2 * float(step @ step)
    whole = covariance + noise * covariance @ covariance
    wider = np.sqrt(np.diag(whole) / np.diag(covariance))
    rng = np.random.default_rng([known.seed, 1])
    for _ in range(known.batches):
        yield Batch(rng.multivariate_normal(at, whole, (known.chains, DRAWS)), {})
    report, faults = _report(known, sums, step, whole, wider, clip)
    privacies = [of.privacy(d) for of in functions.values() if of.privacy is not None]
    report |= {
        "epsilon": epsilon_of(sum(privacy.loss for privacy in privacies), delta),
        "delta": delta,
        "noise_by": "each site alone" if honest is None else f"{honest:g} of the sites",
    }
    return Outcome("all messages were answered", report, faults)


def received(
    stage: Stage, answer: dict[str, np.ndarray], privacy: Privacy, sites: int, clip: float
) -> Received:
    """Return the answer to a stage in the units of the model."""
    units, sd = units_of(clip), math.sqrt(privacy.total_variance(sites))
    gradient = answer["gradient"] * units.gradient
    curvature = None
    if stage.curved:
        d = gradient.size
        upper = np.triu_indices(d)
        weights = np.where(upper[0] == upper[1], 1.0, math.sqrt(0.5))
        curvature = np.zeros((d, d))
        curvature[upper] = answer["curvature"] * units.curvature * weights
        curvature = curvature + np.triu(curvature, 1).T
    clipped = float(answer["clipped"][0]) * units.clipped
    return Received(gradient, curvature, clipped, sd * units.gradient, sd * units.curvature)


def positive(matrix: Float[np.ndarray, "d d"], least: float) -> Float[np.ndarray, "d d"]:
    """Return the symmetric matrix with eigenvalues of ``least`` and more."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, least)) @ vectors.T


def _report(
    known: Known,
    received: Received,
    step: Float[np.ndarray, " d"],
    whole: Float[np.ndarray, "d d"],
    wider: Float[np.ndarray, " d"],
    clip: float,
) -> tuple[dict[str, Any], tuple[Fault, ...]]:
    """Return the attributes of the record, and what is in doubt."""
    rows, d = int(known.sizes.sum()), known.target.dimension
    share = float(np.clip(received.clipped / rows, 0.0, 1.0))
    report = {
        "neighbours": "data sets in which one row of one site is empty, which adds nothing",
        "clip": clip,
        "clipped_share": share,
        "wider": float(wider.max()),
        "wider_by_parameter": wider.tolist(),
        "approximation": (
            f"a normal approximation; intervals are {100 * (wider.max() - 1):.1f} % wider than "
            "without the noise, at most"
        ),
    }
    faults = []
    if share > MOST_CLIPPED:
        text = f"about {share:.0%} of the rows were clipped to a gradient of norm "
        text += f"{clip:.3g}, which biases the result: give a larger clip."
        faults.append(Fault(text))
    if wider.max() > MOST_WIDENED:
        text = f"the noise makes intervals up to {wider.max():.1f} times as wide as the rows do: "
        faults.append(Fault(text + "take more rows or a larger epsilon."))
    away = float(np.sqrt(step @ np.linalg.solve(whole, step)))
    if away > FARTHEST_STEP * math.sqrt(d):
        text = f"the last step was {away:.1f} standard deviations long, so that the curvature is "
        faults.append(Fault(text + "not that of the mode: take more rows or a larger epsilon."))
    return report, tuple(faults)

r"""Draws with the spread of a sandwich, for rows with weights of a sample.

The product of likelihoods to the power of weights is not a likelihood of the rows: its draws have
the spread :math:`H^{-1}` around its mode :math:`\hat\theta`, while estimates from other samples of
the same population would scatter by

.. math::
    V = H^{-1} (J + P)\, H^{-1}, \qquad
    J = \sum_i s_i s_i^\top, \quad s_i = w_i \nabla \log p(y_i \mid \hat\theta),

with H the curvature of the log-posterior there and P that of the prior. The draws are moved to

.. math::
    \hat\theta + R\,(R^\top (J + P) R)^{1/2} R^{-1} (\theta - \hat\theta), \qquad H^{-1} = R R^\top,

which leaves them where they are if J is the curvature of the log-likelihood. After the local fits
the mode is sought, and one query asks for the sum of products of scores there.

Source: Ribatet, Cooley, Davison, "Bayesian inference from composite likelihoods" (2012); Williams,
Savitsky, "Uncertainty estimation for pseudo-Bayesian inference under complex sampling" (2021).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from consortia.algorithms.few_rounds.limits import MOST_CURVED
from consortia.algorithms.few_rounds.quadrature import guess_of
from consortia.core.prior import prior_scale
from consortia.core.queries import Arrays, Batch, Conversing, Known, Outcome, Query
from consortia.errors import InputError
from consortia.surrogates import mode_search as search

MOST_SEARCHED = 16
"""Messages of the search for the mode."""


class Adjustment(NamedTuple):
    """The map of the draws.

    Attributes:
        mode: its fixed point.
        matrix: what differences from it are multiplied with.
        ratios: standard deviations after by before, of each parameter.
    """

    mode: Float[np.ndarray, " d"]
    matrix: Float[np.ndarray, "d d"]
    ratios: Float[np.ndarray, " d"]


def with_sandwich(
    make: Callable[[], Conversing], known: Known
) -> Generator[Query | Batch, Any, Outcome]:
    """Yield what a conversation does, its draws moved; its batches have the measured ratios.

    Args:
        make: begins the conversation.
        known: what it knows.

    Raises:
        InputError: there are too many parameters to send a curvature.
    """
    if known.target.dimension > MOST_CURVED:
        raise InputError(
            f"weights_are='sampling': the model has {known.target.dimension} parameters; sites "
            f"send sums of products of scores of at most {MOST_CURVED}. Leave terms out."
        )
    conversing, answer, found = make(), None, None
    while True:
        try:
            item = conversing.send(answer)
        except StopIteration as end:
            return _without_evidence(end.value)
        if isinstance(item, Query):
            answer = yield item
            if item.function == "local_fits" and found is None:
                found = yield from _adjustment(known, item.arrays, answer)
                if found is None:
                    conversing.close()
                    return Outcome("no draws", failure=_lost())
            continue
        assert found is not None
        draws = found.mode + (item.draws - found.mode) @ found.matrix.T
        stats = {name: values for name, values in item.stats.items() if name != "lp"}
        low, high = (float(f"{one:.4g}") for one in (found.ratios.min(), found.ratios.max()))
        answer = yield Batch(draws, stats, {"sandwich": {"low": low, "high": high}})


def adjustment(
    mode: Float[np.ndarray, " d"],
    root: Float[np.ndarray, "d d"],
    products: Float[np.ndarray, "d d"],
    prior: Float[np.ndarray, "d d"],
) -> Adjustment:
    """Return the map of draws around a mode.

    Args:
        mode: of the weighted log-posterior.
        root: R, with R Rᵀ the inverse of its curvature.
        products: J, the sum of products of scores.
        prior: P, the curvature of the log-prior; what is negative in it is left out.
    """
    sizes, axes = np.linalg.eigh(prior)
    middle = root.T @ (products + (axes * np.maximum(sizes, 0)) @ axes.T) @ root
    sizes, axes = np.linalg.eigh((middle + middle.T) / 2)
    moved = root @ (axes * np.sqrt(np.maximum(sizes, 0))) @ axes.T
    spread = np.sqrt((moved**2).sum(axis=1) / (root**2).sum(axis=1))
    return Adjustment(mode, moved @ np.linalg.inv(root), spread)


def _adjustment(
    known: Known, sent: Arrays, answer: Arrays
) -> Generator[Query, Arrays, Adjustment | None]:
    """Find the mode from the guess of the local fits, and query the products there; or None."""
    target, d = known.target, known.target.dimension
    law = guess_of(known, sent, answer)
    start = known.start if law is None else law[0]
    scale = prior_scale(target, known.start)
    bound = search.within(scale.centre, scale.sd)
    asking = search.find_mode(start[None], start, bound, MOST_SEARCHED)
    found: search.Found | None = None
    sums: Any = None
    while found is None:
        try:
            query = asking.send(sums)
        except StopIteration as end:
            found = end.value
            break
        arrays = {name: np.asarray(one, target.dtype) for name, one in query.arrays.items()}
        sums = yield query._replace(arrays=arrays)
    if not found.converged:
        return None
    points = found.position[None].astype(target.dtype)
    products = (yield Query("scores", {"points": points}, "scores"))["products"]
    prior = -np.asarray(jax.hessian(target.log_prior)(jnp.asarray(points[0])), float)
    root = np.asarray(found.root, float)
    return adjustment(found.position, root, search.symmetric(products, d), prior)


def _without_evidence(outcome: Outcome) -> Outcome:
    """Return an outcome without the evidence, which only a likelihood has."""
    kept = {name: one for name, one in outcome.report.items() if "log_evidence" not in name}
    return outcome._replace(report=kept)


def _lost() -> str:
    return (
        f"few_rounds: the mode of the weighted log-posterior was not found in {MOST_SEARCHED} "
        "messages, so that there is no sandwich: give coefficients tighter priors, or leave terms "
        "out whose coefficients the rows do not know"
    )

"""Bayesian metric learning: which directions tell similar pairs from dissimilar ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from consortia.core import arguments
from consortia.core.model import Model
from consortia.errors import InputError
from consortia.models._features import arranged, predictor, product
from consortia.models._shared import (
    Array,
    PyTree,
    as_features,
    two_classes,
    wrong_classes,
)
from consortia.runtime.late import jax


@arguments.hinted
def metric_learning(
    directions: int,
    *,
    prior_scale: float = 1.0,
    threshold_scale: float | None = None,
) -> Model:
    r"""Return Bayesian learning of a distance from pairs that are similar or not.

    .. math::
        P(y_{ij} = 1) = \frac{1}{1 + \exp(\|x_i - x_j\|_A^2 - \mu)}, \quad
        \|x_i - x_j\|_A^2 = \sum_k \gamma_k \bigl(v_k^\top(x_i - x_j)\bigr)^2, \quad
        \gamma_k \sim N(0, s^2), \ \mu \sim N(0, s_\mu^2)

    with fixed directions :math:`v_k` and :math:`A = \sum_k \gamma_k v_k v_k^\top`, which the prior
    does not force to be positive definite, as published. It is a logistic regression in
    :math:`(\gamma, \mu)` with the features :math:`(-(v_k^\top \Delta x)^2, 1)`.

    Densities are normalised and at full scale. The parameters are a dict of

    - ``scales``: γ, (directions,), in units of 1 / distance²;
    - ``threshold``: μ, a scalar.

    A batch is ``dict(x=(rows, directions), y=(rows,))``: the squares that `squared_projections`
    gives, one row a pair, and 1 for similar pairs, 0 for dissimilar ones. `consortia.predict` gives
    the probabilities of 0 and 1, (rows, 2).

    Args:
        directions: K, number of directions.
        prior_scale: s, the standard deviation of each scale's normal prior.
        threshold_scale: s_μ, the same of the threshold; ``prior_scale`` by default.

    Returns:
        The model, starting at zero everywhere.

    Raises:
        InputError: a scale that is not a finite number > 0, ``directions`` < 1.

    Example:
        >>> model = metric_learning(5)
        >>> {name: value.shape for name, value in model.init.items()}
        {'scales': (5,), 'threshold': ()}

    Source: Yang, Jin, Sukthankar, "Bayesian active distance metric learning" (2007), as in El
    Mekkaoui, Mesquita, Blomstedt, Kaski (2021), section 5.2, whose dissimilar label "zero" must be
    −1 for the printed density.
    """
    count = arguments.whole("directions", directions, 1)
    names = ("scales", "threshold")
    init, _, log_prior = predictor((count,), prior_scale, True, threshold_scale, names)

    def log_odds(params: PyTree, batch: PyTree) -> Array:
        return params["threshold"] - product(batch["x"], params["scales"])

    def log_likelihood(params: PyTree, batch: PyTree) -> Array:
        t = log_odds(params, batch)
        sign = 2.0 * as_features(batch["y"], t) - 1.0
        return jax.nn.log_sigmoid(sign * t)

    def predict(params: PyTree, batch: PyTree) -> Array:
        return two_classes(log_odds(params, batch))

    def check(batch: PyTree) -> str | None:
        wrong = wrong_classes(batch, count, 2)
        if wrong is None and np.any(np.asarray(batch["x"]) < 0):
            return "x holds a negative number: give squares, as squared_projections does"
        return wrong

    arrange = partial(arranged, features=count)
    return Model(log_prior, log_likelihood, init, predict=predict, check=check, arrange=arrange)


def leading_directions(rows: Any, count: int) -> np.ndarray:
    """Return the ``count`` leading right singular vectors of X, v_k, (count, features).

    Args:
        rows: X, (rows, features), as it is: neither centred nor scaled here.
        count: K, at most the smaller side of X.

    Raises:
        InputError: X is not a matrix, or has fewer directions.
    """
    matrix = np.asarray(rows, np.float64)
    count = arguments.whole("count", count, 1)
    if matrix.ndim != 2 or count > min(matrix.shape):
        raise InputError(
            f"rows has shape {matrix.shape}: give (rows, features), with at least {count} of each."
        ).at("rows")
    values, vectors = np.linalg.eigh(matrix.T @ matrix)
    return vectors[:, np.argsort(values)[::-1][:count]].T


def squared_projections(first: Any, second: Any, directions: Any) -> np.ndarray:
    """Return (v_k'(x_i − x_j))² of pairs, (pairs, directions).

    Args:
        first: x_i, (pairs, features).
        second: x_j, (pairs, features).
        directions: v_k, (directions, features).

    Raises:
        InputError: shapes that do not fit.
    """
    left, right, axes = (np.asarray(value, np.float64) for value in (first, second, directions))
    if left.ndim != 2 or left.shape != right.shape or axes.shape[1:] != left.shape[1:]:
        raise InputError(
            f"first {left.shape}, second {right.shape} and directions {axes.shape}: give "
            "(pairs, features) twice and (directions, features)."
        ).at("directions")
    return ((left - right) @ axes.T) ** 2

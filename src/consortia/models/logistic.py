"""Logistic regression."""

from __future__ import annotations

import functools
from collections.abc import Callable

from consortia.core import arguments
from consortia.core.model import Model
from consortia.models._features import arranged, predictor
from consortia.models._shared import (
    Array,
    PyTree,
    as_features,
    two_classes,
    wrong_batch,
    wrong_labels,
)
from consortia.runtime.late import jax


@functools.cache
def _density_of_label() -> Callable[[Array, Array], Array]:
    """Return log P(y | t) = −log(1 + exp((1 − 2y) t)), a function of t and y."""

    @jax.custom_jvp
    def _log_probability(log_odds: Array, label: Array) -> Array:
        # Stable at both ends.
        return -jax.nn.softplus((1.0 - 2.0 * label) * log_odds)

    # The derivative y − σ(t) written out: one exponential where automatic rules take three.
    _log_probability.defjvps(
        lambda tangent, _, log_odds, label: (label - jax.nn.sigmoid(log_odds)) * tangent, None
    )
    return _log_probability


@arguments.hinted
def logistic_regression(
    features: int,
    *,
    prior_scale: float = 1.0,
    intercept: bool = False,
    intercept_scale: float | None = None,
) -> Model:
    r"""Return Bayesian logistic regression for two classes.

    .. math:: P(y_i = 1) = \frac{1}{1 + e^{-t_i}}, \quad t_i = a + x_i^\top\beta, \quad
              \beta_j \sim N(0, s^2), \quad a \sim N(0, s_a^2)

    Densities are normalised and at full scale. The parameters are a dict of

    - ``coefficients``: β, (features,), log-odds per unit of x;
    - ``intercept``: a, a scalar, log-odds at x = 0, when ``intercept=True``.

    A batch is ``dict(x=(rows, features), y=(rows,))`` with labels 0 and 1 of any bool, integer or
    floating type; `consortia.predict` gives the probabilities of the classes 0 and 1, (rows, 2).

    Args:
        features: columns of x.
        prior_scale: s.
        intercept: add an intercept to the model (or add a column of ones).
        intercept_scale: s_a; ``prior_scale`` by default.

    Returns:
        The model, starting at zero everywhere.

    Raises:
        InputError: a scale that is not a finite number > 0, ``features`` < 1.

    Example:
        >>> model = logistic_regression(30, intercept=True)
        >>> {name: value.shape for name, value in model.init.items()}
        {'coefficients': (30,), 'intercept': ()}
    """
    features = arguments.whole("features", features, 1)

    init, log_odds, log_prior = predictor((features,), prior_scale, intercept, intercept_scale)

    def log_likelihood(params: PyTree, batch: PyTree) -> Array:
        t = log_odds(params, batch)
        return _density_of_label()(t, as_features(batch["y"], t))

    def predict(params: PyTree, batch: PyTree) -> Array:
        return two_classes(log_odds(params, batch))

    def check(batch: PyTree) -> str | None:
        return wrong_batch(batch, features) or wrong_labels(batch["y"], 2)

    def arrange(batch: PyTree) -> PyTree:
        return arranged(batch, features)

    return Model(log_prior, log_likelihood, init, predict=predict, check=check, arrange=arrange)

"""Softmax (multinomial logistic) regression."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from consortia.core import arguments
from consortia.core.model import Model
from consortia.models._features import arranged, product
from consortia.models._shared import (
    Array,
    PyTree,
    log_normal_density,
    wrong_batch,
    wrong_labels,
    zeros,
)


def softmax_regression(
    features: int,
    classes: int,
    *,
    prior_scale: float = 1.0,
    intercept: bool = False,
    intercept_scale: float | None = None,
) -> Model:
    r"""Bayesian softmax regression for K classes.

    .. math:: P(y_i = k) = \frac{e^{t_{ik}}}{\sum_l e^{t_{il}}}, \quad
              t_{ik} = a_k + x_i^\top B_k, \quad B_{kj} \sim N(0, s^2), \quad a_k \sim N(0, s_a^2)

    All K classes are free, and the likelihood does not change when one vector is added to all
    B_k: only the prior holds that direction. Densities are normalised and at full scale. The
    parameters are a dict of

    - ``coefficients``: B, (classes, features), log-odds per unit of x. This layout makes the
      gradient 1.6 to 2 times as fast as the transposed one;
    - ``intercept``: a, (classes,), when ``intercept=True``.

    A batch is ``dict(x=(rows, features), y=(rows,))`` with labels 0, ..., K − 1 of any bool,
    integer or floating type; `consortia.predict` gives the probabilities, (rows, classes).

    Args:
        features: columns of x.
        classes: K >= 2.
        prior_scale: s.
        intercept: whether the model has intercepts of its own (else add a column of ones).
        intercept_scale: s_a; ``prior_scale`` by default.

    Returns:
        The model, starting at zero everywhere.

    Raises:
        InputError: a scale that is not a finite number > 0, ``features`` < 1, ``classes`` < 2.

    Example:
        >>> model = softmax_regression(785, 10)
        >>> {name: value.shape for name, value in model.init.items()}
        {'coefficients': (10, 785)}
    """
    features = arguments.whole("features", features, 1)
    classes = arguments.whole("classes", classes, 2)
    scale = arguments.positive("prior_scale", prior_scale)
    offset_scale = (
        scale if intercept_scale is None else arguments.positive("intercept_scale", intercept_scale)
    )

    init: dict[str, Any] = {"coefficients": zeros(classes, features)}
    if intercept:
        init["intercept"] = zeros(classes)

    def scores(params: PyTree, batch: PyTree) -> Array:
        coefficients = params["coefficients"]
        values = product(batch["x"], coefficients)
        return values + params["intercept"][None, :] if intercept else values

    def log_prior(params: PyTree) -> Array:
        total = jnp.sum(log_normal_density(params["coefficients"], scale))
        if intercept:
            total = total + jnp.sum(log_normal_density(params["intercept"], offset_scale))
        return total

    def log_likelihood(params: PyTree, batch: PyTree) -> Array:
        t = scores(params, batch)
        labels = jnp.asarray(batch["y"]).astype(jnp.int32)
        # A mask, not a gather: the gradient of a gather is a scatter.
        chosen = labels[:, None] == jnp.arange(classes, dtype=jnp.int32)[None, :]
        return jnp.sum(jnp.where(chosen, t, 0.0), axis=-1) - jax.nn.logsumexp(t, axis=-1)

    def predict(params: PyTree, batch: PyTree) -> Array:
        return jax.nn.softmax(scores(params, batch), axis=-1)

    def check(batch: PyTree) -> str | None:
        return wrong_batch(batch, features) or wrong_labels(batch["y"], classes)

    def arrange(batch: PyTree) -> PyTree:
        return arranged(batch, features)

    return Model(log_prior, log_likelihood, init, predict=predict, check=check, arrange=arrange)

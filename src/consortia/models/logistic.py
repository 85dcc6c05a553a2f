"""Logistic regression."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from consortia.core import arguments
from consortia.core.arrays import VALUES_AT_ONCE, sigmoid, softplus
from consortia.core.fingerprints import of_value
from consortia.core.host import MOST_ROWS, Params, RowValues
from consortia.core.model import Model
from consortia.models._features import arranged, predictor
from consortia.models._shared import (
    Array,
    PyTree,
    as_features,
    two_classes,
    wrong_classes,
)
from consortia.runtime.late import jax


@cache
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
    `few_rounds` and `private_posterior` evaluate up to 100,000 rows by NumPy.

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

    check = partial(wrong_classes, features=features, classes=2)
    arrange = partial(arranged, features=features)
    scales = {"coefficients": float(prior_scale)}
    if intercept:
        scales["intercept"] = float(prior_scale if intercept_scale is None else intercept_scale)
    host = _OnHost(features, scales)
    return Model(log_prior, log_likelihood, init, predict, check, arrange, host=host)


class _OnHost:
    """The density as NumPy evaluates it, see `consortia.core.host.HostDensity`."""

    labels: Mapping[str, Any] = {}
    units: Mapping[str, float] = {}
    has_rows = True

    def __init__(self, features: int, scales: Mapping[str, float]) -> None:
        self._features, self._scales = features, scales
        self.digest = of_value(("logistic_regression", features, *scales.items()))

    def way(self, rows: int) -> str:
        """Return the way in which so many rows are evaluated: "NumPy" or "compiled"."""
        return "compiled" if rows > MOST_ROWS else _Rows.way

    def prior_slopes(self, params: Params) -> dict[str, np.ndarray]:
        """Compute the gradient of the log-prior, −v/s²."""
        return {name: -values / self._scales[name] ** 2 for name, values in params.items()}

    def predict(self, params: Params, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute the probabilities of the classes, (K, n, 2)."""
        chance = sigmoid(self.site({"y": np.zeros(0), **rows}).log_odds(params, slice(None)))
        return np.stack([1 - chance, chance], axis=-1)

    def log_likelihood(self, params: Params, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute log p(y_i | θ), (K, n)."""
        return self.site(rows).parts(params)

    def site(self, rows: Mapping[str, np.ndarray]) -> _Rows:
        """Return the likelihood of a site's rows."""
        x = np.asarray(rows["x"], np.float64)[:, : self._features]  # without the padding
        return _Rows(x, np.asarray(rows["y"], np.float64))


class _Rows:
    """The likelihood of a site's rows, see `consortia.core.host.SiteLikelihood`."""

    way = "NumPy"

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self._x, self._y = x, y

    def log_odds(self, params: Params, part: slice) -> np.ndarray:
        """Return η of some rows, (K, n)."""
        t = params["coefficients"] @ self._x[part].T
        if "intercept" in params:
            t += params["intercept"][:, None]
        return t

    def _parts(self, params: Params) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield some rows at a time, with their log-odds at all points."""
        width = max(VALUES_AT_ONCE // len(params["coefficients"]), 64)
        for at in range(0, len(self._y), width):
            part = slice(at, at + width)
            yield part, self.log_odds(params, part)

    def values(self, params: Params, nodes: int | None) -> np.ndarray:
        """Return log L, (K,)."""
        total = np.zeros(len(params["coefficients"]))
        for part, t in self._parts(params):
            total += t @ self._y[part] - softplus(t).sum(axis=-1)
        return total

    def slopes(self, params: Params, nodes: int | None) -> dict[str, np.ndarray]:
        """Return the gradient, by name."""
        total = {name: np.zeros_like(values) for name, values in params.items()}
        for part, t in self._parts(params):
            errors = self._y[part] - sigmoid(t)
            total["coefficients"] += errors @ self._x[part]
            if "intercept" in params:
                total["intercept"] += errors.sum(axis=-1)
        return total

    def errors(self, params: Params, nodes: tuple[int, ...]) -> np.ndarray:
        """Raise: nothing is integrated out."""
        raise TypeError("a model without a rule of quadrature has no error of one")

    def parts(self, params: Params) -> np.ndarray:
        """Return log p(z_i | θ) of all rows, which are independent."""
        return self.of_rows(params, slice(None))

    def by_values(self, params: Params, values: RowValues, nodes: int | None) -> np.ndarray:
        """Return the derivatives of log L by values of some of its rows, (K, k, n)."""
        every, features = np.ones(len(values.steps), bool), self._x.shape[1]
        moved = _Rows(values.moved["x"][:, :features], values.moved["y"])
        made = values.slopes(moved.parts(params), every)
        return np.pad(made, [(0, 0), (0, 0), (0, values.sums.shape[1])])

    def of_rows(self, params: Params, part: slice) -> np.ndarray:
        """Return log p(y_i | θ) of some rows, (K, n)."""
        return -softplus((1 - 2 * self._y[part]) * self.log_odds(params, part))

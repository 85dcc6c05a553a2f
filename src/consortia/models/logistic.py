"""Logistic regression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from consortia.core import arguments
from consortia.core.fingerprints import of_value
from consortia.core.host import Params, SiteLikelihood
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

if TYPE_CHECKING:
    from consortia.models.regression.evaluation import Evaluation


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
        prior_scale: s, the standard deviation of each coefficient's normal prior.
        intercept: add an intercept to the model (or add a column of ones).
        intercept_scale: s_a, the same of the intercept; ``prior_scale`` by default.

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
    """The density of the formula ``y ~ x0 + x1 + ...``, see `consortia.core.host.HostDensity`."""

    labels: Mapping[str, Any] = {}
    units: Mapping[str, float] = {}
    has_rows = True

    def __init__(self, features: int, scales: Mapping[str, float]) -> None:
        self._features, self._scales = features, scales
        self.digest = of_value(("logistic_regression", features, *scales.items()))

    @cached_property
    def _formula(self) -> Evaluation:
        # a third of a second to import, and only for conversations
        from consortia.models.regression.construction import question_of
        from consortia.models.regression.density import Density
        from consortia.models.regression.evaluation import Evaluation
        from consortia.models.regression.specification import Specification, Unit

        names = [f"x{index}" for index in range(self._features)]
        terms = ["1" if "intercept" in self._scales else "0", *names]
        question = question_of(f"y ~ {' + '.join(terms)}", "bernoulli")
        units = dict.fromkeys(names, Unit(0.0, 1.0, 1))
        priors = {name: f"normal(0, {scale!r})" for name, scale in self._scales.items()}
        return Evaluation(Density(Specification(question, (), (), units, {}, {}), priors))

    def _columns(self, rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the rows without the padding of their features."""
        return {**rows, "x": np.asarray(rows["x"], np.float64)[:, : self._features]}

    def way(self, rows: int, sites: int = 1) -> str:
        """Return the way in which so many rows are evaluated: "NumPy" or "compiled"."""
        return self._formula.way(rows, sites)

    def group_bundles(self, params: Params) -> list[Any]:
        """Return nothing: sites have no levels of their own."""
        return []

    def prior_slopes(self, params: Params) -> dict[str, np.ndarray]:
        """Compute the gradient of the log-prior, −v/s²."""
        return {name: -values / self._scales[name] ** 2 for name, values in params.items()}

    def predict(self, params: Params, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute the probabilities of the classes, (K, n, 2)."""
        return self._formula.predict(params, self._columns(rows))

    def log_likelihood(self, params: Params, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute log p(y_i | θ), (K, n)."""
        return self._formula.log_likelihood(params, self._columns(rows))

    def site(self, rows: Mapping[str, np.ndarray]) -> SiteLikelihood:
        """Return the likelihood of a site's rows."""
        return self._formula.site(self._columns(rows))

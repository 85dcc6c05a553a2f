"""Regressions with the interface of scikit-learn, fitted to rows that stay at their sites.

Each is `consortia.regression` with a formula of all columns. ``fit`` takes the sites, a dict from
names to pairs (X, y) or a list of such pairs, or one pair in the usual way, ``fit(X, y)``. The
sites are in this process; between institutions the same model is a study.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from scipy import special
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data

from consortia.algorithms.few_rounds import few_rounds
from consortia.core.contract import Method
from consortia.errors import InputError, wrong
from consortia.models.regression.construction import regression
from consortia.models.regression.estimates import Estimates, interval_ends
from consortia.run.sampling import sample

__all__ = ["LinearRegression", "LogisticRegression", "PoissonRegressor"]

CHUNK = 2**22
"""Numbers of predictors, draws times rows, that are held at once."""

Array = np.ndarray


class _Regression(BaseEstimator):  # type: ignore[misc]
    """Parameters, `fit` and averages over draws; see `LinearRegression`."""

    def __init__(
        self,
        *,
        fit_intercept: bool = True,
        prior: Mapping[str, str] | None = None,
        algorithm: Method | None = None,
        draws: float = 1000.0,
        chains: int = 4,
        random_state: Any = 0,
    ) -> None:
        self.fit_intercept = fit_intercept
        self.prior = prior
        self.algorithm = algorithm
        self.draws = draws
        self.chains = chains
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw from the posterior of the coefficients given the rows of all sites.

        Args:
            X: the sites: a dict from names to pairs (rows, responses), or a list of pairs; or the
                rows of one, (rows, columns), with ``y``. All sites have the same columns.
            y: the responses, where ``X`` holds the rows of one site.

        Returns:
            The estimator.

        Raises:
            InputError: rows or responses cannot be used, or sites have unlike columns.
        """
        read: dict[str, tuple[Array, Array]] = {}
        for name, rows, responses in _sites_of(X, y):
            options: dict[str, Any] = {"dtype": np.float64, "reset": not read, **self._checks}
            read[name] = validate_data(self, rows, responses, **options)
        if sum(len(rows) for rows, _ in read.values()) < 2:
            raise InputError("the sites have 1 sample in all: give two or more.")
        family, responses = self._read({name: pair[1] for name, pair in read.items()})
        columns = self._columns
        target = "y"
        while target in columns:
            target += "_"
        terms = [f"`{name}`" for name in columns] + ([] if self.fit_intercept else ["-1"])
        tables = {
            name: dict(zip(columns, rows.T, strict=True)) | {target: responses[name]}
            for name, (rows, _) in read.items()
        }
        made = regression(
            f"{target} ~ {' + '.join(terms)}", tables, family=family, prior=self.prior
        )
        rounds: dict[str, Any] = {}
        algorithm = self.algorithm
        if algorithm is None:
            algorithm = few_rounds(effective_size=self.draws)
        else:
            rounds = {"rounds": int(self.draws), "warmup": 500}
        self.tree_ = sample(
            made.model,
            made.sites,
            algorithm,
            **rounds,
            chains=self.chains,
            seed=int(check_random_state(self.random_state).randint(2**31)),
            metadata=made.metadata,
            progress=False,
        )
        natural = made.natural(self.tree_)
        slopes = np.asarray(natural["coefficients"], float)
        self._slopes = slopes.reshape(-1, *slopes.shape[2:])
        self._intercepts = np.zeros(self._slopes.shape[:-1])
        if self.fit_intercept:
            intercept = np.asarray(natural["intercept"], float)
            self._intercepts = intercept.reshape(self._intercepts.shape)
        self.coef_, self.intercept_ = self._slopes.mean(axis=0), self._intercepts.mean(axis=0)
        self.estimates_: Estimates = made.estimates(self.tree_)
        self.sites_ = tuple(read)
        return self

    @property
    def _columns(self) -> list[str]:
        names = getattr(self, "feature_names_in_", None)
        if names is not None:
            return [str(name) for name in names]
        return [f"x{index}" for index in range(self.n_features_in_)]

    _checks: dict[str, Any] = {"y_numeric": True}  # noqa: RUF012 - constant

    def _read(self, responses: dict[str, Array]) -> tuple[str, dict[str, Array]]:
        """Return the family and the responses as it takes them."""
        raise NotImplementedError

    def _over_draws(self, X: Any, summary: Callable[[Array], Array]) -> Array:
        """Return a summary over draws, the first axis, of the predictors of each row."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        count = max(1, CHUNK // self._intercepts.size)
        parts = [
            summary(self._intercepts[:, None] + np.einsum("s...p,np->sn...", self._slopes, part))
            for part in np.split(rows, range(count, len(rows), count))
        ]
        return np.concatenate(parts)


class _Regressor(RegressorMixin, _Regression):  # type: ignore[misc]
    """Means of the response and their intervals."""

    def _mean(self, predictor: Array) -> Array:
        return predictor

    def predict(self, X: Any) -> Array:
        """Return the posterior mean of the response's mean, (rows,)."""
        return self._over_draws(X, lambda predictor: self._mean(predictor).mean(axis=0))

    def intervals(self, X: Any, level: float = 0.95) -> Array:
        """Return central intervals of the response's mean, (rows, 2).

        Args:
            X: (rows, columns).
            level: probability inside each.
        """
        return self._over_draws(X, lambda predictor: _central(self._mean(predictor), level))


class LinearRegression(_Regressor):
    """Linear regression with normal noise, over sites.

    Args:
        fit_intercept: with an intercept.
        prior: in words, as of `consortia.regression`; when None its wide ones.
        algorithm: `consortia.few_rounds` when None, which ends by itself; of another method
            ``draws`` is the number of rounds, after 500 of warm-up.
        draws: effective draws.
        chains: independent chains.
        random_state: a seed, or a generator of NumPy.

    Attributes:
        coef_: posterior means of the coefficients, (columns,).
        intercept_: that of the intercept.
        estimates_: each coefficient with its interval; print it.
        tree_: the result of the run, for `consortia.summary` and ArviZ.
        sites_: names of the sites.

    Example:
        >>> import numpy as np
        >>> from consortia.sklearn import LinearRegression
        >>> x = np.linspace(-1, 1, 30)[:, None]
        >>> y = 1 + 2 * x[:, 0] + np.tile([0.1, -0.1], 15)
        >>> made = LinearRegression(draws=100).fit(  # doctest: +SKIP
        ...     {"oslo": (x, y), "lima": (x, y)})
        >>> made.predict([[0.5]]).round(1)  # doctest: +SKIP
        array([2.])
    """

    def _read(self, responses: dict[str, Array]) -> tuple[str, dict[str, Array]]:
        return "gaussian", responses


class PoissonRegressor(_Regressor):
    """Poisson regression of counts with the log link, over sites; as `LinearRegression`."""

    def _read(self, responses: dict[str, Array]) -> tuple[str, dict[str, Array]]:
        return "poisson", responses

    def _mean(self, predictor: Array) -> Array:
        return np.exp(predictor)

    def __sklearn_tags__(self) -> Any:
        """Return the tags: responses are counts."""
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


class LogisticRegression(ClassifierMixin, _Regression):  # type: ignore[misc]
    """Logistic regression over sites, of two classes or more; as `LinearRegression`.

    ``classes_`` are those of all sites together. Of two classes ``coef_`` is (1, columns); of more
    there is a row for each class but the first, against the first.
    """

    _checks: dict[str, Any] = {}  # noqa: RUF012 - constant

    def _read(self, responses: dict[str, Array]) -> tuple[str, dict[str, Array]]:
        for labels in responses.values():
            check_classification_targets(labels)
        self.classes_ = unique_labels(*responses.values())
        if len(self.classes_) < 2:
            raise InputError(
                f"y has one class only, {self.classes_[0]!r}, at all sites: give rows of two."
            ).at("y")
        codes = {name: np.searchsorted(self.classes_, labels) for name, labels in responses.items()}
        if len(self.classes_) == 2:
            return "bernoulli", codes
        width = len(str(len(self.classes_)))
        return "categorical", {
            name: np.char.zfill(labels.astype(str), width) for name, labels in codes.items()
        }

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw from the posterior; see `LinearRegression.fit`."""
        super().fit(X, y)
        self.coef_, self.intercept_ = np.atleast_2d(self.coef_), np.atleast_1d(self.intercept_)
        return self

    def _probabilities(self, predictor: Array) -> Array:
        """Return the probability of each class, (draws, rows, classes)."""
        if predictor.ndim == 2:
            return np.stack([special.expit(-predictor), special.expit(predictor)], axis=-1)
        first = np.zeros((*predictor.shape[:-1], 1))
        return special.softmax(np.concatenate([first, predictor], axis=-1), axis=-1)

    def predict_proba(self, X: Any) -> Array:
        """Return the posterior mean of the probability of each class, (rows, classes)."""
        return self._over_draws(X, lambda draws: self._probabilities(draws).mean(axis=0))

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row."""
        most = self.predict_proba(X).argmax(axis=1)
        return self.classes_[most]

    def intervals(self, X: Any, level: float = 0.95) -> Array:
        """Return central intervals of each class's probability, (rows, classes, 2).

        Args:
            X: (rows, columns).
            level: probability inside each.
        """
        return self._over_draws(X, lambda draws: _central(self._probabilities(draws), level))


def _central(values: Array, level: float) -> Array:
    """Return the ends of central intervals along the first axis, as a last axis."""
    return np.moveaxis(np.quantile(values, interval_ends(level), axis=0), 0, -1)


def _sites_of(X: Any, y: Any) -> Iterable[tuple[str, Any, Any]]:
    """Return names, rows and responses of the sites."""
    if y is not None:
        return [("site 0", X, y)]
    if isinstance(X, Mapping):
        pairs = {str(name): pair for name, pair in X.items()}
    elif isinstance(X, Sequence) and all(isinstance(pair, tuple) for pair in X):
        pairs = {f"site {index}": pair for index, pair in enumerate(X)}
    else:
        raise InputError(
            "fit requires y to be passed, but the target y is None: give fit(X, y), or the sites, "
            "a dict from names to pairs (X, y)."
        )
    if not pairs or any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs.values()):
        raise wrong("sites", ": give a dict from names to pairs (X, y), one pair a site.")
    return [(name, *pair) for name, pair in pairs.items()]

"""`consortia.sklearn`: the checks of scikit-learn that hold, and what sites add to them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import estimator_checks_generator

import consortia
import consortia.sklearn as estimators
from consortia.errors import InputError
from tests.refusals import refused

CLASSES = (
    estimators.LinearRegression,
    estimators.LogisticRegression,
    estimators.PoissonRegressor,
)
COUNTS = "the check's responses are no counts"
CANNOT = {
    "LinearRegression": {
        "check_regressors_no_decision_function": "a column gives the response exactly: no noise",
    },
    "LogisticRegression": {},
    "PoissonRegressor": {
        "check_fit_check_is_fitted": COUNTS,
        "check_fit_idempotent": COUNTS,
        "check_n_features_in": COUNTS,
        "check_n_features_in_after_fitting": COUNTS,
        "check_regressor_data_not_an_array": COUNTS,
        "check_regressors_no_decision_function": COUNTS,
        "check_regressors_train": COUNTS,
    },
}
"""Checks that cannot hold, by class; all others do, those of the rows of one site."""

LATER = {"check_array_api_input"}
"""Checks that scikit-learn itself skips unless SciPy is set up for them."""


def name_of(check: Any) -> str:
    return getattr(check, "func", check).__name__


def checks(of: type) -> list[tuple[Any, Any]]:
    pairs = list(estimator_checks_generator(of(draws=60, chains=2)))
    unwanted = CANNOT[of.__name__].keys() | LATER
    return [(one, check) for one, check in pairs if name_of(check) not in unwanted]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("of", CLASSES)
def test_an_estimator_keeps_the_checks_of_scikit_learn(of: type) -> None:
    failed = {}
    for estimator, check in checks(of):
        try:
            check(clone(estimator))
        except Exception as error:
            failed[name_of(check)] = repr(error)
    assert failed == {}


def test_the_checks_that_cannot_hold_are_checks_of_scikit_learn() -> None:
    for of in CLASSES:
        known = {name_of(check) for _, check in estimator_checks_generator(of())}
        assert CANNOT[of.__name__].keys() <= known


WITHOUT_ROWS = (
    "check_do_not_raise_errors_in_init_or_set_param",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_get_params_invariance",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
)


@pytest.mark.parametrize("of", CLASSES)
def test_parameters_and_copies_are_those_of_an_estimator(of: type) -> None:
    held = {name_of(check): check for _, check in checks(of)}
    for name in WITHOUT_ROWS:
        if name in held:
            held[name](of())
    with pytest.raises(NotFittedError):
        of().predict(np.ones((2, 2)))


def of_sites(seed: int, *sizes: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    found = {}
    for place, size in enumerate(sizes):
        x = rng.normal(place, 1, (size, 2))
        found[f"site {place}"] = x, 1 + x @ [2.0, -1.0] + 0.5 * rng.normal(size=size)
    return found


def test_rows_at_sites_give_the_regression_of_all_rows() -> None:
    sites = of_sites(0, 40, 60)
    made = estimators.LinearRegression(draws=400, chains=2).fit(sites)
    assert made.sites_ == ("site 0", "site 1")
    x, y = (np.concatenate(parts) for parts in zip(*sites.values(), strict=True))
    design = np.column_stack([np.ones(len(x)), x])
    least, residual = np.linalg.lstsq(design, y, rcond=None)[:2]
    errors = np.sqrt(residual / (len(y) - 3) * np.diag(np.linalg.inv(design.T @ design)))
    found = np.array([made.intercept_, *made.coef_])
    # The prior is wide; 400 effective draws leave 0.05 standard errors: five of these.
    assert np.all(np.abs(found - least) < 0.3 * errors)
    ends = made.intervals(x[:3], level=0.95)
    leverage = np.sqrt(
        np.einsum("ni,ij,nj->n", design[:3], np.linalg.inv(design.T @ design), design[:3])
        * residual
        / (len(y) - 3)
    )
    np.testing.assert_allclose(np.ptp(ends, axis=1), 2 * 1.98 * leverage, rtol=0.25)
    again = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(again.predict(x[:3]), made.predict(x[:3]))


@pytest.mark.slow
def test_classes_are_those_of_all_sites_together() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 1))
    sites = [(x, np.where(x[:, 0] > 0, "b", "a")), (x, np.where(x[:, 0] > 0.5, "c", "a"))]
    made = estimators.LogisticRegression(draws=60, chains=2).fit(sites)
    assert made.classes_.tolist() == ["a", "b", "c"]
    assert made.coef_.shape == (2, 1)
    shares = made.predict_proba([[-1.0], [2.0]])
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert made.predict([[-2.0]]).tolist() == ["a"]
    ends = made.intervals([[-1.0]])
    assert ends.shape == (1, 3, 2)
    assert (ends[..., 0] <= shares[:1]).all()
    assert (shares[:1] <= ends[..., 1]).all()


@pytest.mark.slow
def test_counts_and_cross_validation() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(80, 1))
    y = rng.poisson(np.exp(0.5 + x[:, 0]))
    made = estimators.PoissonRegressor(draws=200, chains=2)
    assert cross_val_score(made, x, y, cv=2).mean() > 0.2
    assert abs(made.fit(x, y).coef_[0] - 1) < 0.3


def test_what_are_no_sites_is_refused_with_what_to_give() -> None:
    x, y = of_sites(0, 5)["site 0"]
    with pytest.raises(InputError, match=r"requires y to be passed.*a dict from names to pairs"):
        estimators.LinearRegression().fit(x)
    with refused(argument="sites"):
        estimators.LinearRegression().fit({"a": x})
    with pytest.raises(ValueError, match="expecting 2 features"):
        estimators.LinearRegression().fit({"a": (x, y), "b": (x[:, :1], y)})
    with refused(argument="y"):
        estimators.LogisticRegression().fit(x, np.ones(5, int))


def test_the_module_is_an_attribute_of_the_package() -> None:
    assert consortia.sklearn is estimators

"""Frailties of patients and sites in survival, beside lme4 on split rows and R's survival."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import insides
import numpy as np
import pytest

import consortia
from tests.models.regression.modes import host_sites
from tests.refusals import refused

CUTS = {"rats": [60, 75, 90], "kidney": [15, 30, 100, 200], "diabetic": [6, 18, 36]}
COLUMNS = {"rats": "a", "kidney": "a + b", "diabetic": "a + b"}
# tests/references/frailty.R, R 4.2.2, lme4 1.1-31: coefficients and log hazards, their standard
# errors, the standard deviation of the frailty, and the greatest log-likelihood
R: dict[str, Any] = {
    "rats": (
        (0.896526208, -7.57143887, -6.05285636, -5.26597343, -4.92655296),
        (0.321619873, 0.449118244, 0.434785763, 0.359646241, 0.362416172),
        0.600276073,
        -247.69306,
    ),
    "kidney": (
        (-1.235024, 0.0456805, -4.061617, -3.423994, -4.447047, -3.965912, -4.103373),
        (0.4200301, 0.1081474, 0.607701, 0.61475, 0.663958, 0.671411, 0.721501),
        0.502734814,
        -330.789747,
    ),
    "diabetic": (
        (-0.95694508, 0.172581426, -5.88833107, -5.78057479, -5.98473821, -6.09084576),
        (0.185200058, 0.0718000391, 0.761423421, 0.734864631, 0.729643438, 0.736996784),
        1.02984194,
        -823.404466,
    ),
    "sites": (
        (-0.952946, 0.0287613, -4.046755, -3.502564, -4.647658, -4.261714, -4.566413),
        (0.333254, 0.0919055, 0.551053, 0.558363, 0.59787, 0.585872, 0.595866),
        0.217584528,
        -331.726798,
    ),
}


def table(name: str) -> dict[str, np.ndarray]:
    with (Path(__file__).parents[2] / "references" / f"{name}.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    return {key: np.array([float(row[key]) for row in rows]) for key in rows[0]}


def at_sites(rows: dict[str, np.ndarray], site: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    return {f"s{at:g}": {k: one[site == at] for k, one in rows.items()} for at in np.unique(site)}


def made(name: str, count: int, breaks: Any = None) -> Any:
    rows = table(name)
    formula = f"Surv(time, event) ~ {COLUMNS[name]} + (1 | site:group)"
    more: dict[str, Any] = {"family": "piecewise_exponential", "breaks": breaks or CUTS[name]}
    return consortia.regression(formula, at_sites(rows, rows["group"] % count), **more)


def most_likely(one: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the maximum of the sites' likelihoods, standard errors, and its height.

    They are of coefficients, log hazards and the logarithm of the standard deviation, in the
    columns' units.
    """
    spec = one.specification
    sites = [site.with_share(0.0) for site in host_sites(one)]
    at = np.concatenate([np.ravel(one.density.start[name]) for name in sorted(one.density.start)])
    for _ in range(40):
        gradient = sum(site.gradients(at[None])[0] for site in sites)
        curvature = sum(site.derivatives(at[None]).matrices[0] for site in sites)
        values, vectors = np.linalg.eigh(curvature)
        step = vectors @ (vectors.T @ gradient / np.maximum(np.abs(values), 1e-3))
        at = at - step / max(1.0, np.abs(step).max())
        if np.abs(step).max() < 1e-7:
            break
    height = -sum(float(site.potentials(at[None])[0]) for site in sites)
    varying = [bool(numbers or levels) for numbers, levels in spec.keys]
    turn, count = np.eye(len(at)), len(spec.names)
    turn[:count, :count] = spec.basis[np.ix_(varying, varying)]
    turn[count:-1, :count] = spec.basis[varying.index(False), varying]
    sampled = {"hazard_contrasts": np.eye(len(at) - count - 1)}
    turn[count:-1, count:-1] = insides.family_parameters(one.density, sampled)["log_hazard"].T
    covariance = turn @ np.linalg.inv(curvature) @ turn.T
    return turn @ at, np.sqrt(np.diag(covariance)), height


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", list(CUTS))
def test_the_likelihood_with_frailties_is_that_of_lme4(name: str, count: int) -> None:
    estimates, errors, sd, height = R[name]
    found, spreads, value = most_likely(made(name, count))
    np.testing.assert_allclose(found[:-1], estimates, atol=2e-3)
    np.testing.assert_allclose(spreads[:-1], errors, rtol=0.05)
    assert np.exp(found[-1]) == pytest.approx(sd, abs=2e-3)
    assert value == pytest.approx(height, abs=1e-3)


def test_the_likelihood_with_frailties_of_sites_is_that_of_lme4() -> None:
    estimates, errors, sd, height = R["sites"]
    rows = table("kidney")
    more: dict[str, Any] = {"family": "piecewise_exponential", "breaks": CUTS["kidney"]}
    sites = at_sites(rows, rows["group"] // 5)
    found, spreads, value = most_likely(
        consortia.regression("Surv(time, event) ~ a + b + (1 | site)", sites, **more)
    )
    np.testing.assert_allclose(found[:-1], estimates, atol=2e-3)
    np.testing.assert_allclose(spreads[:-1], errors, rtol=0.05)
    assert np.exp(found[-1]) == pytest.approx(sd, abs=2e-3)
    assert value == pytest.approx(height, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "estimates", "errors"),
    [
        ("rats", [0.91286419], [0.322521274]),
        ("kidney", [-1.41082239, 0.0471295822], [0.445, 0.125]),
    ],
)
def test_ten_intervals_have_nearly_the_estimates_of_cox(
    name: str, estimates: list[float], errors: list[float]
) -> None:
    rows = table(name)
    cuts = np.quantile(rows["time"][rows["event"] == 1], np.arange(1, 10) / 10).tolist()
    found, _, _ = most_likely(made(name, 3, cuts))
    apart = (found[: len(errors)] - estimates) / np.array(errors)
    assert np.abs(apart).max() < 0.06  # of survival, with frailty.gaussian


def test_hazards_of_sites_differ_by_their_level_alone() -> None:
    rows = table("kidney")
    more: dict[str, Any] = {"family": "piecewise_exponential", "breaks": CUTS["kidney"]}
    sites = at_sites(rows, rows["group"] // 5)
    density = consortia.regression("Surv(time, event) ~ a + (1 | site)", sites, **more).density
    spread = density.group_sd(density.start)
    assert np.flatnonzero(spread["hazard_contrasts"]).tolist() == [0]
    contrasts = np.random.default_rng(1).normal(size=5)
    hazards, higher = (
        insides.family_parameters(density, {"hazard_contrasts": values})["log_hazard"]
        for values in (contrasts, contrasts + 0.3 * np.eye(5)[0])
    )
    np.testing.assert_allclose(higher - hazards, 0.3, rtol=1e-12)
    np.testing.assert_allclose(density.sampled_cuts("log_hazard", hazards), contrasts, rtol=1e-12)


@pytest.mark.parametrize(
    ("term", "argument", "match"),
    [
        ("(1 | site)", "formula", "piecewise_exponential"),
        ("(1 + a | site)", "formula", r"\(0 \+ x \| site\)"),
        ("(1 | site:group)", "formula", "ten breaks at quantiles"),
    ],
)
def test_what_cox_does_not_know_is_refused_with_the_remedy(
    term: str, argument: str, match: str
) -> None:
    rows = table("rats")
    with refused(argument=argument, match=match):
        consortia.regression(
            f"Surv(time, event) ~ a + {term}", at_sites(rows, rows["group"] % 3), family="cox"
        )


@pytest.mark.slow
def test_a_new_hospital_predicts_from_a_run_of_others_and_no_row_of_theirs() -> None:
    rows, formula = table("lung"), "Surv(time, status) ~ age + sex + (1 | site)"
    sites = at_sites(rows, rows["id"] % 3)
    more: dict[str, Any] = {"family": "weibull"}
    every = consortia.regression(formula, sites, **more)
    method = consortia.few_rounds(effective_size=400)
    parts = (every.model, every.sites, method)
    tree = consortia.sample(*parts, seed=1, progress=False, metadata=every.metadata)
    few = {name: values[:12] for name, values in sites["s0"].items()}
    here = consortia.regression(formula, {"bern": few}, prior_from=tree, **more)
    patients = {"age": np.array([60.0, 70.0]), "sex": np.array([1.0, 2.0])}
    found = np.asarray(here.predict(tree, patients, at=[6, 12], seed=3))
    np.testing.assert_array_equal(found, every.predict(tree, patients, at=[6, 12], seed=3))
    assert ((found > 0) & (found < 1)).all()
    assert (found[..., 1] < found[..., 0]).all()

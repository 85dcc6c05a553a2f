"""Weights by the probability of treatment, beside R's sandwich, survey and survival."""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.models.regression.formula import expression
from tests.models.regression.modes import mode_and_spread
from tests.refusals import refused

FORMULA = "I(arm == 'hormone') ~ age*meno + size + grade + log1p(nodes)"
WIDE = {"coefficients": "normal(0, 1000)", "intercept": "normal(0, 1000)"}
FAMILIES: dict[str, tuple[str, dict[str, str]]] = {
    "bernoulli": ("event ~ arm + site", WIDE),
    "cox": ("Surv(months, event) ~ arm", {"coefficients": WIDE["coefficients"]}),
}
TRIM = {"ATE": 0.3}
# estimates and robust standard errors of tests/references/propensity.R, R 4.2.2
R = {
    ("ATE", 3): {"bernoulli": (-0.411258692, 0.166620667), "cox": (-0.398614028, 0.127984293)},
    ("ATT", 3): {"bernoulli": (-0.537446812, 0.175235915), "cox": (-0.430641407, 0.130765125)},
    ("overlap", 3): {"bernoulli": (-0.471649307, 0.170821452), "cox": (-0.418619693, 0.130103114)},
    ("ATE", 8): {"bernoulli": (-0.352894798, 0.168276356), "cox": (-0.362271903, 0.128669972)},
    ("ATT", 8): {"bernoulli": (-0.443865956, 0.177101716), "cox": (-0.378017478, 0.132221335)},
    ("overlap", 8): {"bernoulli": (-0.394867362, 0.172170947), "cox": (-0.363546201, 0.130613043)},
}


def sites_of(count: int) -> dict[str, dict[str, np.ndarray]]:
    """Return the patients of tests/references/gbsg.csv, dealt out by id."""
    with (Path(__file__).parents[2] / "references" / "gbsg.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    words = ("arm", "grade")
    table = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    table = {key: one if key in words else one.astype(float) for key, one in table.items()}
    return {
        f"s{place}": {key: values[table["id"] % count == place] for key, values in table.items()}
        for place in range(count)
    }


@functools.cache
def treated(count: int, formula: str = FORMULA) -> Any:
    """Return the run of who was treated."""
    made = consortia.regression(formula, sites_of(count), family="bernoulli", prior=WIDE)
    method = consortia.few_rounds(effective_size=4000)
    more = {"seed": 1, "metadata": made.metadata, "progress": False}
    return consortia.sample(made.model, made.sites, method, **more)


def weights(count: int, estimand: str, **more: Any) -> str:
    more = {"trim": TRIM.get(estimand, 0.0)} | more
    return consortia.propensity_weights(treated(count), estimand=estimand, **more)


def outcome(family: str, count: int, text: str) -> Any:
    formula, prior = FAMILIES[family]
    more: dict[str, Any] = {"prior": prior, "levels": {"arm": ["none", "hormone"]}}
    more |= {"weights": text, "weights_are": "sampling"}
    return consortia.regression(formula, sites_of(count), family=family, **more)


@pytest.mark.parametrize("family", ["bernoulli", "cox"])
@pytest.mark.parametrize(("estimand", "count"), R)
def test_mode_and_robust_spread_are_those_of_r(estimand: str, count: int, family: str) -> None:
    made = outcome(family, count, weights(count, estimand))
    mode, spread = (values[made.names.index("arm[hormone]")] for values in mode_and_spread(made))
    estimate, error = R[estimand, count][family]
    assert abs(mode - estimate) < 0.02 * error
    assert spread == pytest.approx(error, rel=0.01)


def log_odds(formula: str, table: dict[str, Any], site: str) -> np.ndarray:
    """Compute the log odds of treatment from the posterior means of the coefficients by name."""
    tree = treated(3, formula)
    slopes = tree["posterior"]["coefficients"].mean(("chain", "draw"))
    total = float(tree["posterior"]["intercept"].mean()) * np.ones(len(table["age"]))
    for name, slope in zip(slopes.coords[slopes.dims[0]].values.tolist(), slopes, strict=True):
        product = np.ones(len(total))
        for part in name.split(":"):
            column, _, level = part.removesuffix("]").partition("[")
            known = {"log1p(nodes)": np.log1p(table["nodes"]), "site": np.array(site)} | table
            product = product * (known[column] == level if level else known[column])
        total = total + float(slope) * product
    return total


@pytest.mark.parametrize("formula", [FORMULA, "I(arm == 'hormone') ~ age + grade:nodes + site"])
def test_weights_are_those_of_the_posterior_mean(formula: str) -> None:
    run = treated(3, formula)
    for site, table in sites_of(3).items():
        a, odds = table["arm"] == "hormone", np.exp(log_odds(formula, table, site))
        e = odds / (1 + odds)
        share = 246 / 686
        wanted = {
            "ATE": np.where(a, share / e, (1 - share) / (1 - e)),
            "ATT": np.where(a, 1, odds),
            "overlap": np.where(a, 1 - e, e),
        }
        for estimand, values in wanted.items():
            text = consortia.propensity_weights(run, estimand=estimand)
            made = outcome("bernoulli", 3, text)
            found = made.rows.site(site)["weight"]
            np.testing.assert_allclose(found / found[0], values / values[0], rtol=1e-5)
            np.testing.assert_allclose(
                expression(text).values(made.tables[site], site), values, rtol=1e-6
            )


def test_a_draw_has_the_weights_of_its_coefficients() -> None:
    run = treated(3, "I(arm == 'hormone') ~ age")
    slopes, constants = (
        np.asarray(run["posterior"][name]).reshape(-1) for name in ("coefficients", "intercept")
    )
    table = sites_of(3)["s0"]
    for draw in (0, len(slopes) - 1):
        odds = np.exp(constants[draw] + slopes[draw] * table["age"])
        wanted = np.where(table["arm"] == "hormone", 1, odds)
        text = consortia.propensity_weights(run, estimand="ATT", draw=draw)
        found = expression(text).values(outcome("cox", 3, text).tables["s0"], "s0")
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    with refused(argument="draw"):
        consortia.propensity_weights(run, draw=len(slopes))


def test_a_probability_beyond_the_bounds_is_set_to_them() -> None:
    text, (site, table) = weights(3, "ATE", stabilise=False), next(iter(sites_of(3).items()))
    odds = np.exp(log_odds(FORMULA, table, site))
    e = np.clip(odds / (1 + odds), 0.3, 0.7)
    a = table["arm"] == "hormone"
    found = expression(text).values(outcome("cox", 3, text).tables[site], site)
    np.testing.assert_allclose(found, np.where(a, 1 / e, 1 / (1 - e)), rtol=1e-6)
    assert (e == 0.3).any()


def test_treatments_of_two_words_have_no_share() -> None:
    tables = sites_of(3)
    more: Any = {"levels": {"arm": ["none", "hormone"]}, "prior": WIDE}
    made = consortia.regression("arm ~ age", tables, family="bernoulli", **more)
    method, more = consortia.few_rounds(), {"metadata": made.metadata, "progress": False}
    run = consortia.sample(made.model, made.sites, method, seed=1, **more)
    with refused(argument="stabilise"):
        consortia.propensity_weights(run)
    text = consortia.propensity_weights(run, stabilise=False)
    assert text.startswith("1 + exp((1 - 2*(arm == 'hormone'))*(")


@pytest.mark.parametrize(
    ("formula", "argument", "match"),
    [
        ("I(arm == 'hormone') ~ scale(age)", "formula", r"\(age\)"),
        (
            "I(arm == 'hormone') ~ ns(age, knots=[50], boundary=[20, 85])",
            "formula",
            "not arithmetic of columns",
        ),
        ("I(arm == 'hormone') ~ age + (1 | site)", "formula", "write site"),
        ("event ~ offset(age)", "formula", "no offset"),
    ],
)
def test_terms_that_are_no_expression_are_refused(formula: str, argument: str, match: str) -> None:
    made = consortia.regression(formula, sites_of(3), family="bernoulli")
    method, more = consortia.few_rounds(), {"metadata": made.metadata, "progress": False}
    tree = consortia.sample(made.model, made.sites, method, seed=1, **more)
    with refused(argument=argument, match=match):
        consortia.propensity_weights(tree)


def test_a_run_of_another_family_and_other_estimands_are_refused() -> None:
    with refused(argument="estimand"):
        consortia.propensity_weights(treated(3), estimand="ATC")
    with refused(argument="trim"):
        consortia.propensity_weights(treated(3), trim=0.5)
    made = consortia.regression("age ~ size", sites_of(3))
    method, more = consortia.few_rounds(), {"metadata": made.metadata, "progress": False}
    run = consortia.sample(made.model, made.sites, method, seed=1, **more)
    with refused(argument="tree", match="'bernoulli'"):
        consortia.propensity_weights(run)

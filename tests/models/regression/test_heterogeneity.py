"""What differs between sites, and predictions for them and for a new one, from given draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import consortia
from consortia.models.regression.heterogeneity import Varying, site_effects
from tests.refusals import refused

RNG = np.random.default_rng(3)
NAMES = ("oslo", "lima", "bern")


def sites(rows: int = 12) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "age": RNG.normal(60, 10, rows),
            "arm": np.array(["new", "old"] * (rows // 2)),
            "died": RNG.integers(0, 2, rows),
            "grade": np.array(["a", "b", "c"] * (rows // 3)),
            "time": RNG.exponential(3.0, rows),
        }
        for name in NAMES
    }


SITES = sites()


def made(right: str, left: str = "died", family: str = "bernoulli", **more: Any) -> Any:
    return consortia.regression(f"{left} ~ {right}", SITES, family=family, **more)


def draws_of(one: Any, count: int = 400) -> dict[str, np.ndarray]:
    params = one.density.draw(np.random.default_rng(1), count)
    return {name: (0.5 * value)[None] for name, value in params.items()}


def at_mean(one: Any, raw: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return natural parameters where all numbers have their mean, (1, draws, ...)."""
    found = jax.vmap(one.density.at_mean)({name: jnp.asarray(a[0]) for name, a in raw.items()})
    return {name: np.asarray(a)[None] for name, a in found.items()}


def test_a_site_s_effect_is_the_common_one_and_its_own() -> None:
    one = made("age + arm + (1 + arm + age | site)", integrate=False)
    raw = draws_of(one)
    natural = at_mean(one, raw)
    table = one.by_site(raw)
    assert table.effect == "odds ratio"
    assert table.terms == ("Intercept", "arm[old]", "age")
    frame = table.to_dataframe().set_index(["term", "name"])
    effects = np.asarray(natural["effects"])[0]
    labels = one.labels["effects"][0]
    slopes = np.asarray(natural["coefficients"])[0]
    for term, common in (("Intercept", 0), ("age", slopes[:, 0]), ("arm[old]", slopes[:, 1])):
        own = common + effects[:, labels.index(f"{term} | lima")]
        assert frame.loc[(term, "lima"), "median"] == pytest.approx(np.median(np.exp(own)))
        assert frame.loc[(term, "lima"), "above"] == pytest.approx(np.mean(own > 0))
    assert ("Intercept", "all sites") not in frame.index  # a level is told against the common one
    spread = np.asarray(natural["sd"])[0][:, 2]
    assert frame.loc[("age", "sd between sites"), "median"] == pytest.approx(np.median(spread))
    # a new site's interval: wider than the common effect's by the spread
    new, common_row = frame.loc[("age", "a new site")], frame.loc[("age", "all sites")]
    assert new["upper"] / new["lower"] > common_row["upper"] / common_row["lower"]
    assert "a new site" in str(table)
    assert "shrinkage" in str(table)


def test_a_slope_is_the_coefficient_in_the_units_of_the_column(x64: None) -> None:
    one = made("age + (1 + age | site)", integrate=False)
    raw = draws_of(one, 3)
    rows = {"age": np.array([61.0, 62.0]), "arm": ["new", "new"]}
    probability = np.asarray(one.predict(raw, rows, "lima"))[0]
    log_odds = np.log(probability / (1 - probability))
    natural = one.natural(raw)
    effects = dict(zip(one.labels["effects"][0], np.asarray(natural["effects"])[0].T, strict=True))
    slope = np.asarray(natural["coefficients"])[0][:, 0] + effects["age | lima"]
    np.testing.assert_allclose(log_odds[:, 1] - log_odds[:, 0], slope, rtol=1e-6)


def test_shrinkage_is_the_share_of_the_site_s_own_variance() -> None:
    # A normal model with known τ: the exact posterior of u is N(., V τ²/(V + τ²)).
    spread, rng = 0.7, np.random.default_rng(0)
    variances = {"sharp": 0.01, "vague": 4.0}
    deviations = {
        name: rng.normal(0.3, np.sqrt(v * spread**2 / (v + spread**2)), 20_000)
        for name, v in variances.items()
    }
    one = Varying("age", np.full(20_000, 0.5), np.full(20_000, spread), deviations)
    table = site_effects([one], None, 0.9, 0)
    for row in table.rows[:2]:
        # a variance of 20 000 draws has a standard error of 1 %; five of them
        expected = variances[row.name] / (variances[row.name] + spread**2)
        assert row.shrinkage == pytest.approx(expected, rel=0.05)
    # the new site's prediction is N(0.5, τ²): 90 % within 1.645 τ, an error of 1.4 %
    new = table.rows[3]
    assert (new.upper - new.lower) / 2 == pytest.approx(1.645 * spread, rel=0.05)


def test_a_categorical_response_has_a_block_for_each_level() -> None:
    one = made("age + (1 | site)", "grade", "categorical")
    table = one.by_site(draws_of(one))
    assert table.terms == ("Intercept, b", "Intercept, c")
    rows = {"age": [50.0, 60.0]}
    for site in (None, "bern"):
        shares = one.predict(draws_of(one), rows, site)
        assert shares.dims == ("chain", "draw", "row", "class")
        np.testing.assert_allclose(shares.sum("class"), 1.0, rtol=1e-5)


def test_levels_that_stay_at_the_sites_are_drawn_there_for_the_table(x64: None) -> None:
    joint, apart = (
        made("age + (1 | site)", integrate=False),
        made("age + (1 | site)", integrate=True),
    )
    raw = draws_of(apart, 300)
    table = apart.by_site(raw, seed=4).to_dataframe().set_index("name")
    own = np.asarray(apart.levels_of(raw, "lima", seed=4)).ravel()
    assert table.loc["lima", "median"] == pytest.approx(np.median(np.exp(own)))
    # the same levels given as parameters predict the same
    levels = np.stack([np.asarray(apart.levels_of(raw, s, seed=4)) for s in NAMES], axis=-1)
    with_levels = {**raw, "effects_in_sd": levels / np.exp(raw["log_sd"])}
    rows = {"age": np.array([40.0, 75.0])}
    np.testing.assert_allclose(
        apart.predict(raw, rows, "lima", seed=4), joint.predict(with_levels, rows, "lima")
    )
    new = apart.predict(raw, rows, seed=1)
    assert float(new.std("draw").min()) > 0


def test_a_new_site_s_levels_have_the_spread_and_the_correlation(x64: None) -> None:
    one = made("age + (1 + age | site)", family="gaussian", left="time")
    params = {name: np.repeat(value[:, :1], 6000, 1) for name, value in draws_of(one, 2).items()}
    rows = {"age": np.array([40.0, 60.0, 80.0])}
    found = np.asarray(one.predict(params, rows, seed=3))[0]
    sd = np.exp(params["log_sd"][0, 0])
    rho = norm.cdf(params["correlation_score"][0, 0, 0]) * 2 - 1
    scale = np.diag(sd) @ np.array([[1, rho], [rho, 1]]) @ np.diag(sd)
    centre = np.concatenate([t["age"] for t in SITES.values()]).mean()
    slopes = np.column_stack([np.ones(3), rows["age"] - centre])
    expected = np.sqrt(np.diag(slopes @ scale @ slopes.T))
    # 6000 draws: a standard error of 0.9 %; five of them
    np.testing.assert_allclose(found.std(axis=0), expected, rtol=0.05)


def test_survival_and_responses_of_new_rows(x64: None) -> None:
    one = made("age", "Surv(time, died)", "weibull")
    raw = draws_of(one, 500)
    rows = {"age": np.array([55.0, 65.0])}
    with refused(argument="at"):
        one.predict(raw, rows)
    shares = one.predict(raw, rows, at=[1.0, 4.0])
    natural = one.natural(raw)
    eta = (
        np.asarray(natural["intercept"])[..., None]
        + np.asarray(natural["coefficients"]) * rows["age"]
    )
    k = np.asarray(natural["shape"])[..., None, None]
    unit = np.concatenate([t["time"] for t in SITES.values()]).mean()
    hazard = (np.array([1.0, 4.0]) / unit) ** k * np.exp(eta)[..., None]
    np.testing.assert_allclose(shares, np.exp(-hazard), rtol=1e-6)
    times = np.asarray(one.predict(raw, rows, responses=True, seed=2))
    gap = (times > 4.0).mean(axis=(0, 1)) - np.asarray(shares.sel(time=4.0)).mean(axis=(0, 1))
    assert np.abs(gap).max() < 0.1  # 500 draws: a standard error of .022


def test_what_cannot_be_predicted_is_refused() -> None:
    one = made("age + arm + (1 | site)")
    raw = draws_of(one, 2)
    with refused(argument="site", match="'limma': .*lima"):
        one.predict(raw, {"age": [1.0], "arm": ["new"]}, "limma")
    with refused(argument="arm", match="not a column"):
        one.predict(raw, {"age": [1.0]})
    with refused(argument="arm", match="in 1 of 1 rows"):
        one.predict(raw, {"age": [1.0], "arm": ["newest"]})
    with refused(argument="age", match="of 1 row.$"):
        one.predict(raw, {"age": [np.nan, 1.0], "arm": ["new", "old"]})
    with refused(argument="formula"):
        made("age + site").predict(draws_of(made("age + site"), 2), {"age": [1.0]})
    with refused(argument="formula", match="by_site"):
        made("age").by_site(draws_of(made("age"), 2))


def test_forest_plots_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    one = made("age + arm + (1 + arm | site)")
    raw = draws_of(one)
    table = one.by_site(raw)
    drawn = table.forest(tmp_path / "forest.svg", title="Deaths")
    text = drawn.read_text(encoding="utf-8")
    for word in ("oslo", "a new site", "all sites", "odds ratio", "Deaths"):
        assert word in text
    picture = one.estimates(raw).forest(tmp_path / "estimates.png")
    assert picture.read_bytes()[:4] == b"\x89PNG"
    with refused(argument="path", match=r"forest\.doc"):
        table.forest(tmp_path / "forest.doc")


def test_another_prior_of_the_spread_has_its_posterior() -> None:
    # Draws of τ that are those of its prior: the data say nothing. Weighted, they are of the other.
    one = made("age + (1 + age | site)", prior={"sd": "half_student_t(3, 1)"})
    raw = {k: v[None] for k, v in one.density.draw(np.random.default_rng(0), 8000).items()}
    table = one.sensitivity(raw, ["half_normal(1)", "half_normal(0.3)"])
    assert [line.prior for line in table.lines[:3]] == [
        "half_student_t(3, 1)",
        "half_normal(1)",
        "half_normal(0.3)",
    ]
    for line, scale in zip(table.lines[1:3], (1.0, 0.3), strict=True):
        # 8000 draws of which a third weigh: an error of 2 % of the median, 3 % of the upper end
        assert line.spread[0] == pytest.approx(0.6745 * scale, rel=0.08)
        assert line.spread[2] == pytest.approx(2.2414 * scale, rel=0.12)
        assert line.k_hat < 0.7
        assert line.common is None
    own = at_mean(one, raw)["sd"][0, :, 0]
    assert table.lines[0].spread[0] == pytest.approx(np.median(own), rel=0.01)
    assert table.lines[3].common is not None  # of the slope
    assert "prior of the spread" in str(table)
    with refused(argument="formula", match="sensitivity"):
        made("age").sensitivity(draws_of(made("age"), 2))


def test_ratios_of_a_column_in_tiny_units_have_finite_ends_and_no_warning() -> None:
    rng = np.random.default_rng(0)
    common, deviation = rng.normal(0, 2000, (2, 500)).astype(np.float32)
    one = Varying("dose", common, np.full(500, 3000.0), {"oslo": deviation})
    table = site_effects([one], "rate ratio", 0.95, seed=0)
    for row in table.rows:
        assert np.isfinite([row.lower, row.median, row.upper]).all(), row
    assert table.rows[1].above == pytest.approx(np.mean(common > 0))

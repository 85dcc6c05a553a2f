"""Posterior predictive checks and Bayesian R² from sums over each site's rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import consortia
from consortia.errors import InputError

RNG = np.random.default_rng(2)
CUTS = (40, 119)
N = 120
X = RNG.normal(size=N)


def parted(y: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """Return three sites, the last one with a single row."""
    parts = zip(np.split(X, CUTS), np.split(y, CUTS), strict=True)
    return {name: {"x": x, "y": own} for name, (x, own) in zip("abc", parts, strict=True)}


def at(made: Any, spread: float = 0.02, **values: Any) -> dict[str, np.ndarray]:
    """Return 300 draws of two chains near some values of the parameters."""
    start = {name: np.asarray(one) for name, one in made.model.init.items()} | values
    return {
        name: np.asarray(one + spread * RNG.normal(size=(2, 150, *np.shape(one))), np.float32)
        for name, one in start.items()
    }


@pytest.mark.parametrize("family", ["gaussian", "bernoulli"])
def test_r2_is_that_of_arviz_on_pooled_rows(family: str) -> None:
    arviz_stats = pytest.importorskip("arviz_stats")
    import xarray

    y = X + RNG.normal(size=N) if family == "gaussian" else (RNG.normal(size=N) < X).astype(float)
    made = consortia.regression("y ~ x", parted(y), family=family)
    draws = at(made, coefficients=np.array([X.std()]))
    found = made.predictive_check(draws, draws=300)
    assert found.r2.mean() > 0.1
    natural = made.natural(draws)
    eta = natural["intercept"].values[..., None] + natural["coefficients"].values[..., :1] * X
    mean = eta if family == "gaussian" else 1 / (1 + np.exp(-eta))
    groups = {"/posterior": xarray.Dataset({"mu": (("chain", "draw", "row"), mean)})}
    more = {}
    if family == "gaussian":
        groups["/posterior"]["sigma"] = (("chain", "draw"), natural["sigma"].values)
        more = {"scale": "sigma"}
    else:
        more = {"scale_kind": "var", "scale": "v"}
        groups["/posterior"]["v"] = (("chain", "draw"), (mean * (1 - mean)).mean(axis=-1))
    tree = xarray.DataTree.from_dict(groups)
    wanted = arviz_stats.bayesian_r2(tree, pred_mean="mu", summary=False, **more)
    np.testing.assert_allclose(np.sort(found.r2), np.sort(np.ravel(wanted)), rtol=1e-4)
    assert "Bayesian R²" in str(found)


def test_a_check_sees_zeros_that_the_model_does_not_make_and_only_where_they_are() -> None:
    y = RNG.poisson(np.exp(1.5 + 0 * X)).astype(float)
    y[: CUTS[0] : 2] = 0  # at the first site only
    made = consortia.regression("y ~ x", parted(y), family="poisson")
    draws = at(made, intercept=np.log(y.mean()), coefficients=np.zeros(1))
    found = {(one.site, one.statistic): one for one in made.predictive_check(draws).lines}
    assert found["a", "zeros"].observed == pytest.approx(np.mean(y[: CUTS[0]] == 0))
    assert found["a", "zeros"].p < 0.01
    assert found["a", "sd"].p < 0.05
    assert found["b", "zeros"].p > 0.02
    assert found["all sites", "mean"].observed == pytest.approx(y.mean())
    assert ("c", "sd") not in found  # of one row
    assert 0.05 < found["all sites", "mean"].p < 0.95


def test_levels_that_stay_at_a_site_are_those_given_its_rows() -> None:
    y = X + np.repeat([3.0, -3.0, 0.0], np.diff([0, *CUTS, N])) + 0.3 * RNG.normal(size=N)
    made = consortia.regression("y ~ x + (1 | site)", parted(y), integrate=True)
    draws = at(made, log_sigma=np.log(0.3), log_sd=np.log([3.0]), coefficients=np.array([X.std()]))
    found = {(one.site, one.statistic): one for one in made.predictive_check(draws).lines}
    for site in "ab":
        one = found[site, "mean"]
        assert abs(one.median - one.observed) < 0.2, site
        assert one.upper - one.lower < 0.5, site


LEVELS = {"y": ["low", "mid", "high"]}


@pytest.mark.parametrize("family", ["ordinal", "categorical"])
def test_shares_of_levels_are_simulated_and_small_cells_are_not_shown(family: str) -> None:
    place = np.where(X < -0.5, 0, 1)
    place[:30], place[40:42] = 2, 2  # half of site a, two rows of site b
    made = consortia.regression(
        "y ~ x", parted(np.array(LEVELS["y"])[place]), family=family, levels=LEVELS
    )
    found = made.predictive_check(at(made))
    lines = {(one.site, one.statistic): one for one in found.lines}
    assert lines["a", "high"].observed == 0.75
    assert lines["a", "high"].p < 0.01  # the start has equal levels
    assert ("b", "high") not in lines
    assert ("all sites", "high") not in lines
    assert "c" not in {site for site, _ in lines}
    assert found.r2 is None
    assert "observed" in str(found)


def test_events_and_follow_up_are_those_of_times_that_the_model_makes() -> None:
    rng = np.random.default_rng(4)
    sites = {}
    for name in "ab":
        x, end = rng.normal(size=400), rng.uniform(1, 6, 400)
        time = rng.exponential(3 * np.exp(-0.5 * x))
        sites[name] = {"x": x, "t": np.minimum(time, end), "d": (time < end).astype(int)}
    made = consortia.regression("Surv(t, d) ~ x", sites, family="weibull")
    unit, x = made.specification.units["time()"].mean, made.specification.units["x"]
    level = np.log(unit / 3) + 0.5 * x.mean
    right: dict[str, Any] = {"coefficients": np.array([0.5 * x.sd]), "intercept": level}
    found = made.predictive_check(at(made, spread=0.0, log_shape=0.0, **right))
    for line in found.lines:
        assert 0.02 < line.p < 0.98, line
        assert abs(line.median / line.observed - 1) < 0.1, line
    assert {one.statistic for one in found.lines} == {"events", "follow-up"}
    wrong = made.predictive_check(at(made, spread=0.0, **right | {"log_shape": 0.7}))
    assert any(line.p < 0.01 or line.p > 0.99 for line in wrong.lines)


def test_what_has_no_times_to_simulate_is_refused() -> None:
    rows = {"x": X, "s": np.zeros(N), "t": np.exp(X), "d": np.ones(N)}
    made = consortia.regression("Surv(s, t, d) ~ x", {"a": rows, "b": rows}, family="weibull")
    with pytest.raises(InputError, match="rows start later than 0"):
        made.predictive_check(at(made))

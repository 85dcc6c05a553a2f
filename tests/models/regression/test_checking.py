"""Posterior predictive checks and Bayesian R² from sums over each site's rows."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.models.regression import model, prediction
from tests.refusals import refused

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


def followed(rows: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return persons with the hazard e^{x / 2} / 3, up to ends of follow-up that are uniform."""
    x, end = rng.normal(size=rows), rng.uniform(1, 6, rows)
    time = rng.exponential(3 * np.exp(-0.5 * x))
    seen = (time < end).astype(int)
    times = {"s": 0 * x, "t": np.minimum(time, end), "d": seen, "end": end}
    return {"x": x, **times, "id": np.arange(rows)}


def cut(table: dict[str, np.ndarray], times: tuple[float, ...]) -> dict[str, np.ndarray]:
    """Return the intervals of each person between some times, in no order."""
    edges = np.array([0.0, *times, np.inf])
    pieces = []
    for begin, end in itertools.pairwise(edges):
        there = table["t"] > begin
        piece = {name: values[there] for name, values in table.items()}
        piece["s"] = np.full(there.sum(), begin)
        piece["d"] = piece["d"] * (piece["t"] <= end)
        piece["t"] = np.minimum(piece["t"], end)
        pieces.append(piece)
    order = np.random.default_rng(0).permutation(sum(len(one["t"]) for one in pieces))
    return {name: np.concatenate([one[name] for one in pieces])[order] for name in table}


BREAKS = {"weibull": {}, "piecewise_exponential": {"breaks": [0.5, 2.0, 4.0]}}


def truth(made: Any, **wrong: Any) -> dict[str, np.ndarray]:
    """Return draws at the hazard of `followed`."""
    spec = made.specification
    x = spec.units["x"]
    values: dict[str, Any] = {"coefficients": np.array([0.5 * x.sd])}
    level = 0.5 * x.mean - np.log(3)
    if spec.breaks:
        hazards = np.full(len(spec.breaks) + 1, level)
        values["hazard_contrasts"] = made.density.sampled_cuts("log_hazard", hazards)
    else:
        values |= {"intercept": level + np.log(spec.units["time()"].mean), "log_shape": 0.0}
    return at(made, spread=0.0, **values | wrong)


@pytest.mark.parametrize("family", BREAKS)
def test_intervals_have_the_check_of_their_persons(family: str) -> None:
    rng = np.random.default_rng(6)
    persons = {name: followed(300, rng) for name in "ab"}
    intervals = {name: cut(table, (0.7, 2.0)) for name, table in persons.items()}
    options: dict[str, Any] = {"family": family, **BREAKS[family]}
    single = consortia.regression("Surv(t, d) ~ x", persons, **options)
    parts = consortia.regression("Surv(s, t, d) ~ x", intervals, persons="id", **options)
    assert sum(parts.specification.rows) > 1000
    lines = [made.predictive_check(truth(made), draws=300).lines for made in (single, parts)]
    assert [one[:2] for one in lines[0]] == [one[:2] for one in lines[1]]
    for one, other in zip(*lines, strict=True):
        assert other.observed == pytest.approx(one.observed)
        assert other.median == pytest.approx(one.median, rel=0.02)
        width = one.upper - one.lower
        assert other.upper - other.lower == pytest.approx(width, rel=0.25)
        assert 0.02 < other.p < 0.98


@pytest.mark.parametrize("family", BREAKS)
def test_a_simulated_time_is_later_than_its_rows_start(family: str) -> None:
    table = {name: np.tile(values, 20) for name, values in followed(300, RNG).items()}
    table["s"] = np.where(table["id"] % 2, 0.3 * table["t"], 0.0)
    made = consortia.regression(
        "Surv(s, t, d) ~ x", {"a": table, "b": table}, family=family, **BREAKS[family]
    )
    rows = {name: np.asarray(values) for name, values in made.rows.site("a").items()}
    rows["start"] = table["s"]
    params = {name: values.reshape(300, *values.shape[2:]) for name, values in truth(made).items()}
    times = made.density.simulated(RNG, {name: one[:2] for name, one in params.items()}, rows)
    assert (times > table["s"]).all()
    again = made.with_response(made.rows.site("a"), times[0])  # of simulation-based calibration
    np.testing.assert_array_equal(again["start"], made.rows.site("a")["start"])
    # the hazard lived through since the start has the exponential law, by the hazard itself
    lived = (times - table["s"]) * np.exp(0.5 * table["x"]) / 3
    np.testing.assert_allclose(lived.mean(), 1, atol=5 / lived.size**0.5)
    shares = [(lived[:, table["id"] % 2 == kind] > 1).mean() for kind in (0, 1)]
    np.testing.assert_allclose(shares, np.exp(-1), atol=5 * 0.5 / (lived.size / 2) ** 0.5)


@pytest.mark.parametrize("kind", ["late entries", "events that recur"])
def test_late_entries_and_events_that_recur_are_checked(kind: str) -> None:
    rng, sites = np.random.default_rng(8), {}
    for name in "ab":
        table = followed(900, rng)
        if kind == "late entries":  # those who live so long
            table["s"] = rng.uniform(0, 1.5, 900)
            table = {key: values[table["t"] > table["s"]] for key, values in table.items()}
        else:  # after an event a person is followed on, with the same hazard
            after = {key: values[table["d"] == 1] for key, values in table.items()}
            second = after["t"] + rng.exponential(3 * np.exp(-0.5 * after["x"]))
            after |= {"s": after["t"], "t": np.minimum(second, after["end"])}
            after["d"] = (second < after["end"]).astype(int)
            table = {key: np.append(values, after[key]) for key, values in table.items()}
        sites[name] = table
    more = {"persons": "id"} if kind == "events that recur" else {}
    made = consortia.regression("Surv(s, t, d) ~ x", sites, family="weibull", **more)
    found = made.predictive_check(truth(made)).lines
    assert {one.statistic for one in found} == {"events", "follow-up"}
    for line in found:
        assert 0.01 < line.p < 0.99, line
        assert line.median == pytest.approx(line.observed, rel=0.1)
    events = next(line.observed for line in found if line.site == "all sites")
    every = sum(one["d"].sum() for one in sites.values())
    persons = 1800 if more else sum(len(one["d"]) for one in sites.values())
    assert events == pytest.approx(every / persons)
    shape = truth(made, log_shape=np.array(0.6))
    wrong = made.predictive_check(shape).lines
    assert any(line.p < 0.005 or line.p > 0.995 for line in wrong)


def test_events_and_follow_up_are_those_of_times_that_the_model_makes() -> None:
    rng = np.random.default_rng(4)
    made = consortia.regression(
        "Surv(t, d) ~ x", {name: followed(400, rng) for name in "ab"}, family="weibull"
    )
    found = made.predictive_check(truth(made))
    for line in found.lines:
        assert 0.02 < line.p < 0.98, line
        assert abs(line.median / line.observed - 1) < 0.1, line
    assert {one.statistic for one in found.lines} == {"events", "follow-up"}
    wrong = made.predictive_check(truth(made, log_shape=0.7))
    assert any(line.p < 0.01 or line.p > 0.99 for line in wrong.lines)


def test_what_has_no_times_to_simulate_is_refused() -> None:
    rows = {"x": X, "t": np.exp(X), "d": np.ones(N)}
    made = consortia.regression("Surv(t, d) ~ x", {"a": rows, "b": rows}, family="cox")
    with refused(argument="family", match="proportional_hazards"):
        made.predictive_check(at(made))


@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "categorical"])
def test_responses_are_the_same_however_many_draws_are_simulated_together(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    numbers = rng.integers(0, 2, N)
    y = {
        "gaussian": X + rng.normal(size=N),
        "bernoulli": numbers.astype(float),
        "categorical": np.array(["no", "yes", "perhaps"])[numbers + (X > 1)],
    }[family]
    made = consortia.regression("y ~ x", parted(y), family=family)
    draws = at(made)
    together = made.predictive_check(draws, draws=40)
    monkeypatch.setattr(prediction, "VALUES_AT_ONCE", 1)
    monkeypatch.setattr(model, "SIMULATED_AT_ONCE", 3)
    assert str(made.predictive_check(draws, draws=40)) == str(together)

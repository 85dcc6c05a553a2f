"""Rows that start later than 0, strata and event codes, beside likelihoods written by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.models.regression.proportional import log_time_sums
from tests.refusals import refused

RNG = np.random.default_rng(11)


def table(rows: int) -> dict[str, np.ndarray]:
    """Return rows with ties, late entries and two causes."""
    start = np.where(RNG.random(rows) < 0.5, 0, RNG.integers(0, 8, rows)).astype(float)
    return {
        "x": RNG.normal(size=rows),
        "start": start,
        "stop": start + np.ceil(RNG.exponential(4, rows)),
        "status": RNG.integers(0, 3, rows),
        "ward": RNG.choice(["A", "B", "C"], rows),
    }


SITES = {"oslo": table(40), "lima": table(25), "bern": table(3)}
ALL = {name: np.concatenate([one[name] for one in SITES.values()]) for name in SITES["oslo"]}
MEAN, SD = ALL["x"].mean(), ALL["x"].std()


def by_hand(rows: dict[str, np.ndarray], b: float, cause: int, strata: bool) -> float:
    """Return Efron's log partial likelihood, event time by event time of each stratum."""
    total, eta = 0.0, b * (rows["x"] - MEAN) / SD
    ward = rows["ward"] if strata else np.full(len(eta), "A")
    for one in np.unique(ward):
        here = ward == one
        seen = here & (rows["status"] == cause)
        for at in np.unique(rows["stop"][seen]):
            risk = np.exp(eta[here & (rows["start"] < at) & (at <= rows["stop"])]).sum()
            events = eta[seen & (rows["stop"] == at)]
            for k in range(len(events)):
                total -= np.log(risk - k / len(events) * np.exp(events).sum())
            total += events.sum()
    return total


@pytest.mark.parametrize(("cause", "strata"), [(1, False), (2, True)])
def test_the_partial_likelihood_is_the_one_by_hand(x64: None, cause: int, strata: bool) -> None:
    formula = f"Surv(start, stop, status == {cause}) ~ x{' + strata(ward)' if strata else ''}"
    made = consortia.regression(formula, SITES, family="cox")
    of_site = jax.jit(jax.value_and_grad(made.model.site_log_likelihood))
    for name, rows in SITES.items():
        own = made.rows.site(name)
        count, more = len(own["y"]), 45 - len(own["y"])  # of one shape, padded as engines do
        padded = {k: np.concatenate([a, np.repeat(a[:1], more, axis=0)]) for k, a in own.items()}
        mask = np.arange(45) < count
        value, gradient = of_site({"coefficients": jnp.asarray([0.6])}, padded, mask)
        np.testing.assert_allclose(value, by_hand(rows, 0.6, cause, strata), rtol=1e-10, atol=1e-10)
        ends = [by_hand(rows, 0.6 + sign * 1e-6, cause, strata) for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(gradient["coefficients"][0], slope, rtol=1e-6, atol=1e-7)


def test_strata_alone_are_within_each_site(x64: None) -> None:
    sites = {name: {**one, "start": np.zeros(len(one["x"]))} for name, one in SITES.items()}
    made = consortia.regression("Surv(stop, status > 0) ~ x + strata(ward)", sites, family="cox")
    own, rows = made.rows.site("lima"), sites["lima"]
    given = {"coefficients": jnp.asarray([0.6])}
    value = jax.jit(made.model.site_log_likelihood)(given, own, np.ones(len(own["y"]), bool))
    seen = {**rows, "status": np.minimum(rows["status"], 1)}
    np.testing.assert_allclose(value, by_hand(seen, 0.6, 1, True), rtol=1e-10, atol=1e-10)


def test_few_rows_at_risk_of_many_keep_their_digits() -> None:
    rows = 5000
    start = np.concatenate([np.zeros(4), np.full(rows - 4, 50.0)])
    stop = np.concatenate([[1.0, 2.0, 3.0, 60.0], 50 + RNG.exponential(5, rows - 4) + 1e-3])
    x = RNG.normal(size=rows)
    seen = np.concatenate([np.ones(3), np.zeros(rows - 3)])
    one = {"start": start, "stop": stop, "seen": seen, "x": x}
    made = consortia.regression("Surv(start, stop, seen) ~ x", {"a": one, "b": one}, family="cox")
    own = made.rows.site("a")
    given = {"coefficients": jnp.asarray([1.0])}
    value = jax.jit(made.model.site_log_likelihood)(given, own, np.ones(rows, bool))
    eta = (x - x.mean()) / x.std()
    wanted = sum(eta[i] - np.log(np.exp(eta[i:4]).sum()) for i in range(3))
    np.testing.assert_allclose(value, wanted, atol=2e-5)


@pytest.mark.parametrize("family", ["weibull", "piecewise_exponential"])
def test_a_person_cut_into_rows_has_one_likelihood(x64: None, family: str) -> None:
    rng = np.random.default_rng(3)
    time, seen, x = rng.exponential(5, 50) + 0.2, rng.integers(0, 2, 50), rng.normal(size=50)
    cut = rng.uniform(0.1, 0.9, 50) * time
    whole = {"start": np.zeros(50), "stop": time, "seen": seen, "x": x}
    two = {
        "start": np.concatenate([np.zeros(50), cut]),
        "stop": np.concatenate([cut, time]),
        "seen": np.concatenate([np.zeros(50, int), seen]),
        "x": np.concatenate([x, x]),
    }
    formula, breaks = "Surv(start, stop, seen) ~ x", {}
    if family == "piecewise_exponential":
        breaks = {"breaks": [1.0, 3.0, 7.0]}
    values = []
    for one in (whole, two):
        made = consortia.regression(formula, {"a": one, "b": whole}, family=family, **breaks)
        own = {k: jnp.asarray(v) for k, v in made.rows.site("a").items()}
        if "log_unit" in own:
            own["log_unit"] = jnp.zeros_like(own["log_unit"])
        x_unit = made.specification.units["x"]
        own["x"] = own["x"] * x_unit.sd + x_unit.mean  # the same scale for both
        start = jax.tree.map(lambda leaf: jnp.full(np.shape(leaf), 0.1, float), made.model.init)
        if breaks:  # the same hazards for both
            hazards = made.density.sampled_cuts("log_hazard", np.array([0.3, -0.1, 0.2, 0.0]))
            start["hazard_contrasts"] = jnp.asarray(hazards)
        values.append(float(jnp.sum(made.model.log_likelihood(start, own))))
    np.testing.assert_allclose(values[0], values[1], rtol=1e-10)


def test_what_cannot_be_is_refused_by_name() -> None:
    wrong = {**SITES["oslo"], "start": SITES["oslo"]["stop"] + 1}
    given: Any = {"oslo": wrong, "lima": SITES["lima"]}
    for formula, family, field, match in (
        ("Surv(start, stop, status > 0) ~ x", "cox", {"site": "oslo"}, "before the stop"),
        ("Surv(stop, status > 0) ~ x + strata(ward)", "weibull", {"argument": "formula"}, "'cox'"),
        (
            "Surv(stop, status > 0) ~ x:strata(ward)",
            "cox",
            {"argument": "formula"},
            "separate term",
        ),
        (
            "Surv(stop, status > 0) ~ x + frailty(ward)",
            "cox",
            {"argument": "formula"},
            r"\(1 \| column\), .*weibull",
        ),
        (
            "Surv(start, stop, status, x) ~ x",
            "cox",
            {"argument": "formula"},
            "start, stop and event",
        ),
    ):
        with refused(match=match, **field):
            consortia.regression(formula, given, family=family)


@pytest.mark.slow
def test_a_hazard_ratio_that_changes_with_time_is_found_beside_one_that_does_not() -> None:
    rng = np.random.default_rng(2)
    sites = {}
    for name in ("oslo", "lima"):
        x, z = rng.normal(size=800), rng.normal(size=800)
        late = x > 0  # t has the density of a Weibull of shape 2 there, of 1 elsewhere
        time = rng.exponential(1.0, 800) ** np.where(late, 0.5, 1.0) * np.exp(-0.4 * z) + 1e-3
        sites[name] = {"x": late.astype(float), "z": z, "time": time, "seen": np.ones(800)}
    made = consortia.regression("Surv(time, seen) ~ x + z", sites, family="cox")
    # at the posterior mean, near enough to the maximum for one step
    tree = consortia.sample(made.model, made.sites, consortia.few_rounds(), seed=1, progress=False)
    found = made.proportional_hazards(tree)
    assert found.p[0] < 1e-6
    assert found.change[0] == pytest.approx(1.0, abs=0.3)  # the shape's difference
    assert found.p[1] > 0.01 or abs(found.change[1]) < 0.15
    assert "change with log(time)" in str(found)


def test_sums_with_log_time_are_derivatives_of_the_likelihood() -> None:
    made = consortia.regression("Surv(start, stop, status > 0) ~ x", SITES, family="cox")
    own = {name: np.asarray(values) for name, values in made.rows.site("lima").items()}
    x = own["x"][:, 0]

    def likelihood(gamma: float) -> float:
        """Return Breslow's log partial likelihood with 0.3 + gamma log(t) in the place of b."""
        total = 0.0
        for event in np.flatnonzero(own["event"]):
            at = own["y"][event]
            risk = (own["start"] < at) & (at <= own["y"])
            slope = 0.3 + gamma * np.log(at)
            total += slope * x[event] - np.log(np.exp(slope * x[risk]).sum())
        return total

    events, score, spread = log_time_sums(own, 0.3 * x).T
    step = 1e-3
    up, here, down = likelihood(step), likelihood(0.0), likelihood(-step)
    assert events[0] == own["event"].sum()
    np.testing.assert_allclose(score[1], (up - down) / (2 * step), rtol=1e-4)
    np.testing.assert_allclose(spread[2], -(up - 2 * here + down) / step**2, rtol=1e-4)

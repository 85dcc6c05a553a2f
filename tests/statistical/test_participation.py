"""FA-HMC with sites that are absent at random: its draws beside the law, and beside that of all."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from sparse import sparse

import consortia
from consortia.errors import InputError
from consortia.oracles import fa_hmc_law
from consortia.schedules.participation import fair_weights, participation
from consortia.theory.bias import predict_bias
from consortia.theory.federated_averaging import takers

SHARES = (0.3, 0.5, 0.9)
ROUNDS, WARMUP = 6000, 500


def _problem() -> tuple[Any, Any]:
    """Six sites of unequal sizes whose modes lie some posterior standard deviations apart."""
    rng = np.random.default_rng(0)
    modes, sizes = 2 * np.linspace(-1, 1, 6) ** 3, (30, 30, 30, 60, 20, 30)
    rows = [
        {"y": (mode + rng.normal(size=size)).astype(np.float32)}
        for mode, size in zip(modes, sizes, strict=True)
    ]
    model = consortia.Model(
        lambda x: -0.5e-6 * jnp.sum(x**2),
        lambda x, row: -0.5 * (row["y"] - x[0]) ** 2,
        jnp.zeros(1),
    )
    return model, consortia.Sites.from_list(rows)


@pytest.mark.predicted
@pytest.mark.parametrize("share", sparse(SHARES, (0.5,)))
def test_the_forecast_of_absent_sites_is_within_a_twentieth_of_the_measured_spread(
    share: float,
) -> None:
    model, sites = _problem()
    present = np.random.default_rng(1).random((ROUNDS + WARMUP, 6)) < share
    present[~present.any(axis=1), 0] = True
    engine = consortia.LocalEngine(participation=present)
    method = consortia.fa_ld(0.02, 3)
    options: dict[str, Any] = {"rounds": ROUNDS, "warmup": WARMUP, "seed": 1, "progress": False}
    with pytest.warns(UserWarning, match="Do not run these settings"):
        tree = consortia.sample(model, sites, method, engine=engine, **options)
    forecast, full = (predict_bias(model, sites, method, engine=one) for one in (engine, None))
    draws = tree["posterior"]["theta"].to_numpy()[..., 0]
    spread, shift = draws.std() / forecast.sd[0], (draws.mean() - forecast.mean[0]) / forecast.sd[0]
    assert spread == pytest.approx(forecast.sd_ratio[0], rel=0.05)
    # four standard errors of a mean over rounds, which all chains share with the absences
    free = ROUNDS / forecast.rounds_per_draw
    assert abs(shift - forecast.shift[0]) < 4 * spread / free**0.5
    # the negative control: the law without absences
    assert spread > 1.05 * full.sd_ratio[0]
    verdict = consortia.summary(tree).verdict
    (check,) = (one for one in verdict.checks if one.title.startswith("Did all sites"))
    assert check.value == f"{100 * (1 - present.mean()):.0f} % of their answers are missing"
    assert check.severity.word == "good"


def test_an_absence_that_nothing_predicts_is_named_by_the_verdict() -> None:
    model, sites = _problem()
    present = np.random.default_rng(1).random((60, 6)) < 0.5
    present[~present.any(axis=1), 0] = True
    tree = consortia.sample(
        model,
        sites,
        consortia.fa_hmc(0.02, 3, 3, debias=True),
        rounds=60,
        progress=False,
        engine=consortia.LocalEngine(participation=present),
    )
    (check,) = (
        one
        for one in consortia.summary(tree).verdict.reasons
        if one.title.startswith("Did all sites")
    )
    assert "the draws are wider" in check.text


UNEQUAL = (0.9, 0.4, 0.7, 0.8, 0.5, 0.6)
"""Probabilities of the six sites to take part."""


def test_with_their_availability_sites_that_are_often_absent_do_not_shift_the_mean() -> None:
    """Plain averages pull the mean towards the sites that are there most."""
    model, sites = _problem()
    present = participation(UNEQUAL, ROUNDS + WARMUP, 6, seed=4)
    engine = consortia.LocalEngine(participation=present)
    options: dict[str, Any] = {"rounds": ROUNDS, "warmup": WARMUP, "seed": 1, "progress": False}
    off = {}
    for available in (None, UNEQUAL):
        method = consortia.fa_ld(0.02, 3, availability=available)
        tree = consortia.sample(
            model, sites, method, engine=engine, on_divergence="ignore", **options
        )
        forecast = predict_bias(model, sites, method, engine=engine)
        draws = tree["posterior"]["theta"].to_numpy()[..., 0]
        spread = draws.std() / forecast.sd[0]
        assert spread == pytest.approx(forecast.sd_ratio[0], rel=0.05)
        error = spread / (ROUNDS / forecast.rounds_per_draw) ** 0.5
        off[available] = (draws.mean() - forecast.mean[0]) / forecast.sd[0]
        assert abs(off[available] - forecast.shift[0]) < 4 * error
    assert abs(off[UNEQUAL]) < 4 * error
    assert abs(off[None]) > 8 * error


def test_the_parts_of_the_sites_are_their_shares_on_average() -> None:
    for shares, available in (
        ([0.5, 0.3, 0.2], [0.9, 0.6, 0.4]),
        ([0.1, 0.1, 0.2, 0.25, 0.35], [0.2, 1.0, 0.9, 0.5, 0.7]),
        ([0.02, 0.98], [1.0, 0.99]),
    ):
        averages, often = takers(available, fair_weights(np.array(shares), np.array(available)))
        np.testing.assert_allclose(often @ averages, shares, rtol=1e-5)


def test_a_site_that_takes_part_too_rarely_for_its_share_is_named() -> None:
    method = consortia.fa_ld(0.02, 3, availability=(1.0, 0.3))
    with pytest.raises(InputError, match=r"site 1, with a share of 0.5, takes part in 0.3"):
        method.check(np.array([10, 10]), ("north", "south"), 1)


@pytest.mark.parametrize("wrong", [(0.0, 1.0), (0.5, 1.5), ((0.5, 0.5),), ("a", 1.0)])
def test_availability_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="availability"):
        consortia.fa_hmc(0.02, 3, 3, availability=wrong)


def test_sites_answer_within_a_deadline_and_the_quickest_at_any_rate() -> None:
    latency = consortia.latency.lognormal((1.0, 1.0, 4.0))
    present = participation(latency, 2000, 3, deadline=1.5)
    times = np.stack([latency.durations(0, 0, site, 0, 2000) for site in range(3)], axis=1)
    assert (present == (times <= np.maximum(1.5, times.min(axis=1, keepdims=True)))).all()
    assert present.any(axis=1).all()
    assert present.mean(axis=0)[2] < 0.3 < present.mean(axis=0)[0]


def test_with_fair_weights_the_law_has_the_mean_of_all_sites() -> None:
    """Of unlike curvatures, which plain averages over some sites shift."""
    available = np.array([0.5, 0.8, 0.6])
    fair = _law(available, averaging=fair_weights(WEIGHTS, available)).stationary
    np.testing.assert_allclose(fair.bias, _law(None).stationary.bias, rtol=1e-5)
    assert np.abs(_law(available).stationary.bias - fair.bias).max() > 0.05


WEIGHTS = np.array([0.5, 0.3, 0.2])


def _law(participation: Any, **more: Any) -> Any:
    return fa_hmc_law(
        [[-1.0, 0.5], [2.0, 0.0], [0.0, 1.0]],
        [[1.0, 3.0], [0.3, 1.0], [2.0, 0.2]],
        WEIGHTS,
        step_size=0.3,
        leapfrog_steps=3,
        local_steps=2,
        momentum_correlation=0.4,
        gradient_noise=0.1,
        participation=participation,
        **more,
    )


def test_sites_that_always_take_part_have_the_law_without_absences() -> None:
    plain = _law(None).stationary
    for everyone in ([1.0, 1.0, 1.0], np.ones((5, 3), bool)):
        found = _law(everyone).stationary
        np.testing.assert_allclose(found.bias, plain.bias, rtol=1e-10)
        np.testing.assert_allclose(found.variance, plain.variance, rtol=1e-10)


def test_probabilities_have_the_law_of_the_sets_that_they_draw() -> None:
    rng = np.random.default_rng(2)
    drawn = rng.random((200_000, 3)) < [0.5, 0.8, 0.3]
    by_sets = _law(drawn[drawn.any(axis=1)]).stationary
    found = _law([0.5, 0.8, 0.3]).stationary
    np.testing.assert_allclose(found.bias, by_sets.bias, atol=0.01)
    np.testing.assert_allclose(found.sd, by_sets.sd, rtol=0.005)


@pytest.mark.parametrize("wrong", [[0.0, 1.0, 1.0], [0.5, 0.5], np.zeros((2, 3), bool)])
def test_a_participation_without_a_site_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="participation"):
        _law(wrong)

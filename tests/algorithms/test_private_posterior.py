"""Differential privacy: the noise, what it costs, and intervals that account for it."""

from __future__ import annotations

import functools
import itertools
import secrets
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

import consortia
from consortia.algorithms.private_posterior import PrivatePosterior, stages
from consortia.algorithms.private_posterior.stages import STAGES, functions_of, sensitivity
from consortia.core import privacy
from consortia.core.privacy import (
    Privacy,
    SecretNoise,
    discrete_gaussian,
    epsilon_of,
    loss_of,
    with_noise,
)
from consortia.core.queries import Query
from consortia.core.target import Target
from consortia.engines.local import site_arrays
from consortia.engines.programs import SitePrograms
from consortia.errors import InputError, MissingExtraError
from tests.refusals import refused

DELTA = 1e-6
D = 10


@pytest.fixture(autouse=True)
def known_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that a test knows: a run has fresh ones, and a gate would fail once in a while."""
    keys = itertools.count()
    monkeypatch.setattr(privacy, "fresh_key", lambda: next(keys).to_bytes(32, "little"))


def rows_of(n: int, seed: int, d: int = D) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return coefficients of the prior N(0, .3²), covariates and responses."""
    rng = np.random.default_rng(seed)
    truth = 0.3 * rng.normal(size=d)
    x = rng.normal(size=(n, d)).astype(np.float32)
    y = (rng.random(n) < 1 / (1 + np.exp(-x @ truth))).astype(np.int32)
    return truth, x, y


def sites_of(x: np.ndarray, y: np.ndarray, count: int = 3) -> consortia.Sites:
    parts = zip(np.array_split(x, count), np.array_split(y, count), strict=True)
    return consortia.Sites.from_list([{"x": a, "y": b} for a, b in parts])


@functools.cache
def model() -> consortia.Model:
    return consortia.models.logistic_regression(D, prior_scale=0.3)


def sampled(n: int, seed: int, **options: Any) -> tuple[np.ndarray, Any, np.ndarray, np.ndarray]:
    """Return the truth, the result, and mean and sd of the posterior without noise."""
    truth, x, y = rows_of(n, seed)
    method = PrivatePosterior(delta=DELTA, **{"honest": 1.0, **options})
    tree = consortia.sample(model(), sites_of(x, y), method, chains=2, seed=seed, progress=False)
    at, precision = np.zeros(D), np.eye(D)
    for _ in range(8):
        p = 1 / (1 + np.exp(-x @ at))
        precision = (x * (p * (1 - p))[:, None]).T @ x + np.eye(D) / 0.09
        at = at - np.linalg.solve(precision, x.T @ (p - y) + at / 0.09)
    return truth, tree, at, np.sqrt(np.diag(np.linalg.inv(precision)))


# --- the result ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "epsilon", "most"), [(20_000, 1.0, 1.15), (5_000, 3.0, 1.10)])
def test_intervals_are_hardly_wider_than_without_noise(n: int, epsilon: float, most: float) -> None:
    _, tree, mean, sd = sampled(n, 1, epsilon=epsilon)
    draws = tree.posterior["coefficients"].values.reshape(-1, D)
    assert (draws.std(axis=0) / sd).mean() < most
    assert tree.attrs["wider"] < most
    assert np.abs((draws.mean(axis=0) - mean) / sd).max() < 2
    assert tree.attrs["epsilon"] == pytest.approx(epsilon, rel=1e-6)
    assert "wider" in tree.attrs["approximation"]
    assert "exact" not in str(tree.attrs["approximation"]) + PrivatePosterior.claims.samples


def test_without_sums_each_site_has_all_of_the_noise() -> None:
    alone = Privacy(10, 50.0, 1.0)
    assert alone.total_variance(4) == 4 * alone.total_variance(1)
    assert Privacy(10, 50.0, 1.0, 0.5).total_variance(4) == pytest.approx(2 * 50.0**2)


def test_arguments_out_of_range_are_refused() -> None:
    for wrong in ({"epsilon": 0}, {"delta": 0.5}, {"unit": "site"}, {"honest": 2}, {"clip": -1}):
        with pytest.raises(InputError):
            PrivatePosterior(**({"epsilon": 1.0, "delta": DELTA} | wrong))  # type: ignore[arg-type]
    _, x, y = rows_of(100, 0)
    method = PrivatePosterior(epsilon=1.0, delta=0.05)
    with refused(argument="delta", match="0.05 with 100 rows"):
        consortia.sample(model(), sites_of(x, y), method, progress=False)


# --- what a row can do ---------------------------------------------------------------------------


def sums(x: np.ndarray, y: np.ndarray, stage: int, position: np.ndarray) -> dict[str, np.ndarray]:
    """Return a site's integers without noise."""
    sites = sites_of(x, y, 1)
    target = Target(model(), model().init)
    method = PrivatePosterior(epsilon=1.0, delta=DELTA)
    arrays = site_arrays(model(), sites, method, np.array([0]))
    programs = SitePrograms(target, arrays, 0, 1, mapped=True)
    function = functions_of(loss_of(1.0, DELTA), None, None)[STAGES[stage].name]
    given = {"position": position.astype(np.float32), "nonce": np.zeros(2, np.int32)}
    return programs.answer(function, given)


@pytest.mark.parametrize("size", [0.0, 1.0, 1e4, 1e20, 1e37])
def test_a_row_changes_integers_by_no_more_than_the_sensitivity(size: float) -> None:
    _, x, y = rows_of(50, 2)
    planted = np.concatenate([x, np.full((1, D), size, np.float32)])
    labels = np.append(y, 0).astype(np.int32)
    with_row = sums(planted, labels, 3, np.full(D, 0.1))
    without = sums(np.concatenate([x, np.zeros((1, D), np.float32)]), labels, 3, np.full(D, 0.1))
    moved = np.concatenate([(with_row[name] - without[name]).ravel() for name in with_row])
    assert (moved == np.rint(moved)).all()
    assert np.linalg.norm(moved) <= sensitivity(D, curved=True)
    if size == 1e4:
        assert np.linalg.norm(moved) > stages.LEVELS  # the clip is reached


# --- noise and its price -------------------------------------------------------------------------


@pytest.mark.parametrize("sd", [0.4, 2.3])
def test_noise_is_the_discrete_gaussian(sd: float) -> None:
    drawn = discrete_gaussian(SecretNoise(bytes(32)), sd, (40_000,))
    support = np.arange(-40, 41)
    law = np.exp(-(support**2) / (2 * sd**2))
    law /= law.sum()
    inner = 40_000 * law > 8
    counts = np.array([(drawn == k).sum() for k in support])
    expected = 40_000 * law[inner]
    observed = counts[inner] * expected.sum() / counts[inner].sum()
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_noise_follows_from_nothing_that_a_run_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has seed and position must not take the noise off the stored answers."""
    monkeypatch.setattr(privacy, "fresh_key", functools.partial(secrets.token_bytes, 32))
    _, x, y = rows_of(300, 0)
    target = Target(model(), model().init)
    method = PrivatePosterior(epsilon=1.0, delta=DELTA)
    panel = consortia.LocalEngine().panel(target, sites_of(x, y), method)
    stage = STAGES[0].name
    query = Query(stage, {"position": np.zeros(D, np.float32), "nonce": np.zeros(2, np.int32)}, "")
    first, again = panel.ask(query), panel.ask(query)
    for name, values in first.items():
        assert (values != again[name]).any()


def test_secret_numbers_are_those_of_their_key_and_uniform() -> None:
    first, again, other = SecretNoise(b"a" * 32), SecretNoise(b"a" * 32), SecretNoise(b"b" * 32)
    drawn = first.random(40_000)
    np.testing.assert_array_equal(drawn, again.random(40_000))
    assert (drawn != other.random(40_000)).all()
    assert (first.random(40_000) != drawn).all()
    assert stats.kstest(drawn, "uniform").pvalue > 1e-3
    assert stats.kstest(first.standard_normal((200, 200)).ravel(), "norm").pvalue > 1e-3
    trials = first.geometric(0.3, (20_000,))
    assert trials.min() == 1
    counts = np.bincount(trials, minlength=12)[1:12]
    law = 0.3 * 0.7 ** np.arange(11)
    expected = counts.sum() * law / law.sum()
    assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_secret_numbers_are_the_keystream_of_chacha20() -> None:
    # RFC 8439, appendix A.1, test vector 5: key 0, nonce 2, of which the counter is a part here
    known = bytes.fromhex("c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7")
    noise = SecretNoise(bytes(32))
    noise._counter = (2 << 56) - 1
    words = [int.from_bytes(known[begin : begin + 8], "little") >> 11 for begin in range(0, 32, 8)]
    assert (noise.random(4) * 2.0**53).tolist() == words


def test_epsilon_is_above_that_of_one_gaussian_and_near_it() -> None:
    for epsilon in (0.5, 1.0, 3.0):
        loss = loss_of(epsilon, DELTA)
        assert epsilon_of(loss, DELTA) == pytest.approx(epsilon, rel=1e-6)
        assert exact_delta(np.sqrt(loss), epsilon) < DELTA
        assert exact_delta(1.12 * np.sqrt(loss), epsilon) > DELTA


def exact_delta(m: float, epsilon: float) -> float:
    """Return the δ of a Gaussian mechanism (Balle, Wang 2018)."""
    first, second = m / 2 - epsilon / m, -m / 2 - epsilon / m
    return float(stats.norm.cdf(first) - np.exp(epsilon) * stats.norm.cdf(second))


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_epsilon_is_the_least_of_all_orders(delta: float) -> None:
    orders = 1 + np.geomspace(1e-3, 1e5, 40_001)
    for loss in (1e-4, 0.01, 0.4, 3.0, 1e4):
        bounds = orders * loss / 2 + np.log1p(-1 / orders)
        bounds -= np.log(delta * orders) / (orders - 1)  # Canonne, Kamath, Steinke: proposition 12
        assert epsilon_of(loss, delta) == pytest.approx(bounds.min(), rel=1e-3)


@pytest.mark.parametrize("delta", [1e-30, 1e-6, 0.1])
def test_the_whole_range_of_epsilon_has_a_loss(delta: float) -> None:
    losses = [loss_of(epsilon, delta) for epsilon in (1e-3, 1.0, 1e5)]
    assert losses == sorted(losses)
    for epsilon, loss in zip((1e-3, 1.0, 1e5), losses, strict=True):
        assert epsilon * (1 - 1e-6) < epsilon_of(loss, delta) <= epsilon * (1 + 1e-9)


def test_without_the_accountant_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    loss_of.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(MissingExtraError, match=r"consortia\[privacy\]"):
        sampled(500, 0, epsilon=1.0)


def test_the_stages_share_the_whole_budget() -> None:
    privacies = [one.privacy(D) for one in functions_of(loss_of(1.0, DELTA), None, None).values()]
    assert sum(one.share for one in privacies) == pytest.approx(1.0)
    assert epsilon_of(sum(one.loss for one in privacies), DELTA) == pytest.approx(1.0)


# --- statistical gates ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the last step was")  # of 500 some are long
@pytest.mark.parametrize(("epsilon", "honest"), [(1.0, 1.0), (3.0, None)])
def test_intervals_cover_over_500_data_sets(epsilon: float, honest: float | None) -> None:
    covered = []
    for seed in range(500):
        truth, tree, _, _ = sampled(5_000, seed, epsilon=epsilon, honest=honest)
        draws = tree.posterior["coefficients"].values.reshape(-1, D)
        low, high = np.quantile(draws, [0.025, 0.975], axis=0)
        covered.append((low < truth) & (truth < high))
    assert 0.93 < np.mean(covered) < 0.97, np.mean(covered)


def audited(noise: float, runs: int = 2000) -> float:
    """Return a lower bound on ε of a whole run, from runs with and without a planted row.

    Args:
        noise: factor of the standard deviation of all noise.
        runs: half of them with the row.
    """
    _, x, y = rows_of(200, 3)
    position = np.zeros(D)
    row = np.full((1, D), 100.0, np.float32)  # clipped in all parts
    planted = np.concatenate([x, row]), np.append(y, 1).astype(np.int32)
    empty = np.concatenate([x, 0 * row]), np.append(y, 1).astype(np.int32)
    rng = SecretNoise(bytes([4] * 32))
    functions = functions_of(loss_of(1.0, DELTA), None, None)
    scores = np.zeros((2, runs // 2))
    for index, stage in enumerate(STAGES):
        make = functions[stage.name].privacy
        assert make is not None
        noise_of = make(D)
        there, away = (sums(*rows, index, position) for rows in (planted, empty))
        weaker = Privacy(noise_of.sensitivity, noise_of.sd * noise, noise_of.share)
        for group, answer in enumerate((away, there)):
            for run in range(runs // 2):
                seen = with_noise(weaker, answer, 1, rng)
                for name, values in seen.items():
                    part = (there[name] - away[name]) / noise_of.sd**2
                    scores[group, run] += float(part @ (values - away[name]))
    # A threshold from one half of the runs; error rates by Clopper and Pearson from the other.
    half = runs // 4
    threshold = np.median(scores[:, :half])
    false, missed = (scores[0, half:] > threshold).sum(), (scores[1, half:] <= threshold).sum()
    most = [stats.beta.ppf(0.975, one + 1, half - one) for one in (false, missed)]
    m = max(-stats.norm.ppf(most[0]) - stats.norm.ppf(most[1]), 0.0)
    return epsilon_of(m**2, DELTA)


@pytest.mark.slow
def test_an_audit_finds_no_more_than_the_stated_epsilon_and_finds_a_mutant() -> None:
    assert audited(1.0) < 1.0
    assert audited(0.5) > 1.0


def test_both_libraries_send_the_same_integers_but_for_ties() -> None:
    """A number of one row is rounded otherwise once in a few thousand, by one unit."""
    rng = np.random.default_rng(7)
    table = {"x": rng.normal(size=300), "y": rng.integers(0, 2, 300)}
    made = consortia.regression("y ~ x", {"a": table}, family="bernoulli")
    method, sums = PrivatePosterior(epsilon=1.0, delta=1e-6), []
    for model in (made.model, replace(made.model, host=None)):
        target = Target(model, model.init)
        panel = consortia.LocalEngine().panel(target, made.sites, method)
        position = np.array([0.3, -0.2], np.float32)
        query = Query("private_start", {"position": position, "nonce": np.zeros(2, np.int32)}, "")
        function = panel.function(query)
        sums.append(panel._programs.answer(function, panel.completed(query)))
    assert sums[0].keys() == sums[1].keys()
    for name, values in sums[0].items():
        np.testing.assert_allclose(values, sums[1][name], atol=3)

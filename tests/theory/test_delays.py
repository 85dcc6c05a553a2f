"""The law by mean delays beside that along the same traces, event by event."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import consortia
from consortia import latency
from consortia.schedules.events import simulate
from consortia.theory import arrivals, bias, settings, tuning
from consortia.theory.arrivals import ArrivalRecursion, Arrivals, SiteGradients
from consortia.theory.bias import Problem, law_of
from consortia.theory.delays import DelayedModes, Delays
from consortia.theory.staleness import langevin_server, sghmc_server, stale_server_law

EVEN, SLOW = latency.lognormal(), latency.lognormal((5.0, 1.0, 1.0, 1.0))
TARGET = tuning.BiasTarget()


def sites_of(directions: int, *, apart: float, seed: int = 0) -> np.ndarray:
    """Return curvatures of four sites along the axes of their sum, which is 1 to 10."""
    rng, scale = np.random.default_rng(seed), np.sqrt(np.geomspace(1, 10, directions))
    drawn = rng.normal(size=(4, directions, 2 * directions))
    wishart = drawn @ drawn.mT / (2 * directions)
    each = (1 - apart) * np.eye(directions) + apart * wishart
    each = each * np.outer(scale, scale) / 4
    axes = np.linalg.eigh(each.sum(axis=0))[1]
    return axes.T @ each @ axes


def sds_of(server: Any, curvatures: np.ndarray, lat: Any, noise: float = 0.0) -> tuple[Any, Any]:
    """Return standard deviations in some directions, and radii, by events and by delays."""
    d = curvatures.shape[1]
    sent = curvatures, np.zeros((4, d)), noise * np.broadcast_to(np.eye(d), (4, d, d))
    trace = simulate(lat, workers=4, updates=1600)
    events = Arrivals(trace.worker, trace.dropped)
    blocks = SiteGradients(sent[0][:, None], sent[1][:, None], sent[2][:, None])
    exact = ArrivalRecursion(server, events, blocks, latest=True, stretch=1600)
    fast = DelayedModes.of(server, trace, *sent, latest=True)
    some = np.random.default_rng(1).normal(size=(d, d))
    both = exact.stationary().full, fast.stationary().full
    sds = [np.sqrt(np.diagonal(some @ part @ some.T)) for part in both]
    return sds, (exact.spectral_radius, fast.spectral_radius)


@pytest.mark.parametrize("noise", [0.0, 3.0])
@pytest.mark.parametrize(("lat", "most"), [(EVEN, 0.003), (SLOW, 0.009)], ids=["even", "slow"])
@pytest.mark.parametrize(
    "server",
    [langevin_server(0.003), langevin_server(0.006), sghmc_server(0.03, 3.0)],
    ids=["h", "2h", "momentum"],
)
def test_it_is_the_law_of_events_where_the_bias_is_moderate(server, lat, most, noise) -> None:
    """Spreads of up to 1.2; what is left out is of second order, and events are few."""
    (exact, fast), (radius, near) = sds_of(server, sites_of(3, apart=0.5), lat, noise)
    assert np.abs(fast / exact - 1).max() < most
    assert near == pytest.approx(radius, abs=0.02 * (1 - radius))


@pytest.mark.parametrize(
    ("server", "workers"),
    [
        (langevin_server(0.03), 8),
        (langevin_server(0.05), 5),
        (sghmc_server(math.sqrt(0.0178) / 2, 2.0), 5),
        (langevin_server(0.1), 5),
    ],
)
def test_the_slowest_root_is_found_between_a_real_one_and_a_pair(server: Any, workers: int) -> None:
    """There two roots are nearly one, and from 1 or from the spectrum's peak none was found."""
    trace = simulate(EVEN, workers=workers, updates=1600)
    sent = np.full((workers, 1, 1), 1 / workers), np.zeros((workers, 1)), np.zeros((workers, 1, 1))
    fast = DelayedModes.of(server, trace, *sent, latest=True)
    blocks = SiteGradients(*(part[:, None] for part in sent))
    events = server, Arrivals(trace.worker, trace.dropped), blocks
    exact = ArrivalRecursion(*events, latest=True, stretch=1600).spectral_radius
    assert fast.spectral_radius == pytest.approx(exact, abs=0.03 * (1 - exact))


def test_sites_whose_delays_differ_couple_directions() -> None:
    """Without that coupling the law is at least twice as far off."""
    curvatures = sites_of(3, apart=0.9)
    (exact, fast), _ = sds_of(langevin_server(0.005), curvatures, SLOW)
    alone = curvatures * np.eye(3)
    (_, plain), _ = sds_of(langevin_server(0.005), alone, SLOW)
    assert 2 * np.abs(fast / exact - 1).max() < np.abs(plain / exact - 1).max()


def test_workers_in_turn_have_a_constant_delay() -> None:
    """Of one site: the law with a constant staleness, which is exact."""
    trace = simulate(latency.constant(), workers=5, updates=2000)
    curvatures = np.broadcast_to(np.diag([1.0, 10.0]), (5, 2, 2))
    nothing = np.zeros((5, 2)), np.broadcast_to(4.0 * np.eye(2), (5, 2, 2))
    for server in (langevin_server(0.01), sghmc_server(0.05, 2.0, extrapolate=2.0)):
        fast = DelayedModes.of(server, trace, curvatures, *nothing, latest=False)
        kick = float(server.force[-1] / server.spread[-1])  # a gradient's noise, as the injected
        noisy = server._replace(noise_variance=server.noise_variance + 4 * kick**2)
        exact = stale_server_law(noisy, [1.0, 10.0], 4)
        # 2e-4: frequencies are 4 % apart
        np.testing.assert_allclose(np.diag(fast.stationary().full),
                                   exact.stationary.variance, rtol=5e-4)  # fmt: skip
        assert fast.spectral_radius == pytest.approx(exact.spectral_radius, rel=1e-4)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_it_settles_up_to_the_limit_of_a_constant_delay(factor: float) -> None:
    """h λ < 2 sin(π/(4τ + 2)), with spreads that are far off below it."""
    trace = simulate(latency.constant(), workers=5, updates=2000)
    step = factor * 2 * math.sin(math.pi / 18)
    sent = np.ones((5, 1, 1)), np.zeros((5, 1)), np.zeros((5, 1, 1))
    law = DelayedModes.of(langevin_server(step), trace, *sent, latest=False)
    assert law.stable == (factor < 1)


def test_delays_of_sums_go_on_until_the_next_gradient() -> None:
    trace = simulate(latency.constant(), workers=3, updates=3000)
    single, sums = (Delays.of(trace, latest) for latest in (False, True))
    np.testing.assert_allclose(single.means, 2, atol=0.01)
    np.testing.assert_allclose(sums.means, 3, atol=0.01)  # 2, 3 and 4 in turn
    np.testing.assert_allclose(sums.chances.sum(axis=1), 1)


def test_a_worker_whose_gradients_are_all_dropped_has_no_share() -> None:
    slow = latency.constant((1.0, 1.0, 1.0, 50.0))
    trace = simulate(slow, workers=4, updates=400, max_staleness=3)
    delays = Delays.of(trace, False)
    np.testing.assert_allclose(delays.shares, [1 / 3, 1 / 3, 1 / 3, 0], atol=5e-3)
    sent = np.ones((4, 1, 1)), np.zeros((4, 1)), np.zeros((4, 1, 1))
    law = DelayedModes.of(langevin_server(0.02), trace, *sent, latest=False)
    exact = stale_server_law(langevin_server(0.02), 1.0, 2).stationary.variance
    np.testing.assert_allclose(law.stationary().full[0], exact, rtol=5e-3)


def problem_of(apart: float, *, sites: int = 4) -> Problem:
    """Return a linear regression; with 0 each site has the same rows."""
    rng = np.random.default_rng(1)
    x, moves = rng.normal(size=(60, 2)), apart * rng.normal(size=(sites, 2))
    noise = rng.normal(size=60)
    data = [{"x": x, "y": x @ (1.0 + move) + noise} for move in moves]
    model = consortia.models.linear_regression(2, noise_scale=1.0)
    return Problem(model, consortia.Sites.from_list(data))


def test_sites_that_differ_need_sums_and_equal_ones_do_not() -> None:
    """A worker's gradient alone is fresher, and pulls towards its own site."""
    chosen = {}
    for apart in (0.0, 0.3):
        method = consortia.stale_sgld(workers=4, max_staleness=100)
        choice = tuning.choose_step(problem_of(apart), method, TARGET, rounds=10**7, chains=4)
        chosen[apart] = choice.method.aggregate
    assert chosen == {0.0: "each", 0.3: "latest"}


def test_a_cap_is_chosen_where_it_saves_messages_dropped_ones_counted() -> None:
    """Of one site whose workers are late at random; not where they take turns."""
    problem, options = problem_of(0.3, sites=1), {"rounds": 10**7, "chains": 4}
    costs = {}
    for lat in (latency.exponential(), latency.constant()):
        method = consortia.stale_sgld(workers=8, latency=lat)
        choice = tuning.choose_step(problem, method, TARGET, **options)
        costs[lat] = choice.method.max_staleness
        assert TARGET.met(law_of(choice.method, problem), problem.near)
        if lat == latency.exponential():
            kept = tuning.choose_step(
                problem, consortia.stale_sgld(workers=8, latency=lat, max_staleness=10**6),
                TARGET, **options)  # fmt: skip
            first, whole = choice.tried[0], kept.tried[0]
            assert first.law.tries == pytest.approx(1 / 0.76, rel=0.05)
            # the staleness falls from 7 to 2.6, and a quarter is dropped: .544 of the cost
            assert first.cost / whole.cost == pytest.approx(0.544, rel=0.12)
    assert costs == {latency.exponential(): 7, latency.constant(): None}


def test_workers_that_are_too_many_for_a_trace_choose_by_their_mean_delays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The exact law of those settings has nearly the spread that was aimed at."""
    problem = problem_of(0.02)
    method = consortia.stale_sgld(workers=4, aggregate="each")
    with monkeypatch.context() as patched:
        patched.setattr(arrivals, "MOST_ENTRIES", 1)
        choice = tuning.choose_step(problem, method, TARGET, rounds=10**7, chains=4)
        assert "mean delays" in choice.tried[0].law.basis
    exact = law_of(choice.method, problem)
    assert isinstance(exact.recursion, ArrivalRecursion)
    off = exact.stationary.sd_ratio - choice.tried[0].law.stationary.sd_ratio
    assert np.abs(off).max() < 0.01


def test_unlike_sites_of_many_parameters_choose_without_a_law_that_couples_no_directions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The trace's law leaves out what couples them, so that no step of it would be trusted."""
    rng = np.random.default_rng(2)
    data = [{"x": (x := rng.normal(size=(60, 20)) * rng.uniform(0.5, 2, 20)),
             "y": rng.integers(0, 2, len(x))} for _ in range(4)]  # fmt: skip
    model = consortia.models.logistic_regression(20)
    problem = Problem(model, consortia.Sites.from_list(data))
    assert not problem.near.gaussian
    assert not arrivals.has_exact_law(problem.near.turned[2])
    laws, known = [], settings.known_law
    monkeypatch.setattr(settings, "known_law", lambda *of: laws.append(known(*of)) or laws[-1])
    method = consortia.stale_sgld(workers=4, aggregate="each")
    choice = tuning.choose_step(problem, method, TARGET, rounds=10**7, chains=4)
    assert isinstance(choice.tried[0].law.recursion, DelayedModes)
    assert not any(law.unsure for law in laws)
    # what is said of the posterior itself keeps the doubt, as the law leaves the same out
    assert law_of(choice.method, problem).unsure == bias.TURNED


def test_given_settings_stay_and_a_given_step_leaves_nothing_open() -> None:
    assert consortia.stale_sgld(0.01, workers=4).open_settings == {}
    assert consortia.stale_sgld(workers=1).open_settings == {}
    assert consortia.stale_sgld(workers=4, max_staleness=9, aggregate="each").open_settings == {}
    assert consortia.stale_sgld(0.01, workers=4).latest_only
    assert sorted(consortia.stale_sghmc(workers=4).open_settings) == [
        "aggregate", "friction", "max_staleness"]  # fmt: skip

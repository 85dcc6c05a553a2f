"""Exact laws of SGHMC with stale gradients, and along traces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consortia import latency
from consortia.schedules.events import simulate
from consortia.theory import staleness as oracle
from tests.refusals import refused

STEPS = np.array([0.4, 0.2, 0.1, 0.05, 0.025])


def relative_bias(law: Any) -> float:
    return law.stationary.variance_ratio[0] - 1


def errors(steps: np.ndarray = STEPS, friction: float = 1.0, **options: Any) -> np.ndarray:
    """Return the relative errors of the variance over step sizes."""
    return np.array([relative_bias(oracle.stale_sghmc_law(h, friction, **options)) for h in steps])


def slopes_of(steps: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return the order of errors from each step size to the next."""
    return np.diff(np.log(np.abs(found))) / np.diff(np.log(steps))


def last_slope(**options: Any) -> float:
    return slopes_of(STEPS, errors(**options))[-1]


# --- the integrators -------------------------------------------------------------------------


def test_euler_without_noise_or_staleness_is_second_order() -> None:
    expected = [0.0526, 0.0112, 0.0026, 0.0006, 0.00016]
    assert errors() == pytest.approx(expected, abs=5e-5)
    assert last_slope() == pytest.approx(2, abs=0.03)


def test_the_splitting_is_second_order_with_a_smaller_constant() -> None:
    found = errors(integrator="splitting")
    assert found[:3] == pytest.approx([-0.0066, -0.0017, -0.0004], abs=5e-5)
    assert last_slope(integrator="splitting") == pytest.approx(2, abs=0.01)
    assert abs(found[-1]) < errors()[-1] / 5.9


def test_the_splitting_with_the_gradient_at_the_end_point_is_first_order() -> None:
    assert last_slope(integrator="splitting at the end") == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("integrator", ["euler", "splitting"])
def test_gradient_noise_makes_both_first_order_unless_it_is_subtracted(integrator: str) -> None:
    options = {"integrator": integrator, "gradient_noise": 1.0}
    assert last_slope(**options) == pytest.approx(1, abs=0.05)
    # h V / (2 B) to leading order.
    assert errors(**options)[-1] == pytest.approx(0.025 / 2, rel=0.02)
    assert last_slope(**options, subtract_noise=True) == pytest.approx(2, abs=0.03)
    subtracted = errors(**options, subtract_noise=True)
    assert subtracted == pytest.approx(errors(integrator=integrator), rel=1e-9)


@pytest.mark.parametrize("integrator", ["euler", "splitting"])
@pytest.mark.parametrize(("tau", "lam", "friction"), [(1, 1.0, 1.0), (3, 0.5, 2.0)])
def test_staleness_makes_both_first_order(
    integrator: str, tau: int, lam: float, friction: float
) -> None:
    options = {"integrator": integrator, "staleness": tau, "curvature": lam}
    steps = STEPS / 8
    found = errors(np.asarray(steps), friction, **options)
    slopes = slopes_of(steps, found)
    assert slopes[-1] == pytest.approx(1, abs=0.05)
    assert found[-1] == pytest.approx(lam * tau * steps[-1] / friction, rel=0.05)


def test_extrapolation_removes_most_of_the_error() -> None:
    def pair(tau: int, h: float) -> list[float]:
        return [
            relative_bias(oracle.stale_sghmc_law(h, 1.0, staleness=tau, extrapolate=ahead))
            for ahead in (0, tau)
        ]

    assert pair(1, 0.1) == pytest.approx([0.114, 0.0037], abs=5e-4)
    assert pair(5, 0.05) == pytest.approx([0.330, 0.0073], abs=5e-4)
    plain, extrapolated = pair(1, 0.05)
    assert plain / extrapolated > 10


@pytest.mark.parametrize("integrator", ["euler", "splitting"])
@pytest.mark.parametrize("tau", [0, 2])
def test_the_law_is_that_of_the_steps_written_out(integrator: str, tau: int) -> None:
    h, B, lam, V, ahead, chains = 0.3, 0.8, 1.4, 0.5, 0.5, 20_000
    rng = np.random.default_rng(4)
    theta, q = np.zeros(chains), np.zeros(chains)
    sent = [theta] * (tau + 1)
    for _ in range(120):
        g = lam * sent[0] + np.sqrt(V) * rng.normal(size=chains)
        zeta = rng.normal(size=chains)
        if integrator == "euler":
            q = (1 - B * h) * q - h * g + np.sqrt(2 * B * h) * zeta
            theta = theta + h * q
            point = theta + ahead * h * q
        else:
            theta = theta + h / 2 * q
            q = np.exp(-B * h / 2) * q - h * g + np.sqrt(2 * B * h) * zeta
            q = np.exp(-B * h / 2) * q
            theta = theta + h / 2 * q
            point = theta + h / 2 * q + ahead * h * q
        sent = [*sent[1:], point]
    law = oracle.stale_sghmc_law(
        h,
        B,
        curvature=lam,
        staleness=tau,
        integrator=integrator,
        extrapolate=ahead,
        gradient_noise=V,
    )
    found = np.cov(theta, q)
    exact = law.recursion.step.stationary_covariance()[0, :2, :2]
    spread = np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
    assert np.all(np.abs(found - exact) < 4.5 * np.sqrt(2 / chains) * spread)


# --- along a trace ---------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0, 4])
def test_a_constant_trace_ends_in_the_stationary_law(tau: int) -> None:
    staleness = np.minimum(np.arange(1200), tau)
    server = oracle.sghmc_server(0.1, 1.0, integrator="splitting", extrapolate=0.5)
    law = oracle.stale_trace_law(server, staleness, [1.0, 2.0], start_variance=0.3)
    for mode, lam in enumerate((1.0, 2.0)):
        exact = oracle.stale_server_law(server, lam, tau).stationary.variance[0]
        assert law.variance[-1, mode] == pytest.approx(exact, rel=1e-9)


def test_a_random_trace_follows_the_recursion_written_out() -> None:
    trace = simulate(latency.exponential(), workers=3, updates=40)
    tau = trace.staleness
    server = oracle.sghmc_server(0.3, 0.8, extrapolate=2.0, gradient_noise=0.5)
    # Every source of randomness by itself: the start, then each step's noise.
    sources = np.zeros((41, 42))
    theta, q = [np.eye(42)[0] * np.sqrt(0.6)], [np.zeros(42)]
    theta[0][1] = 0.4  # the last-but-one column carries the mean
    sent = [theta[0]]
    for step in range(40):
        noise = np.zeros(42)
        noise[step + 2] = np.sqrt(server.noise_variance)
        q.append((1 - 0.8 * 0.3) * q[-1] - 0.3 * 1.7 * sent[step - tau[step]] + noise)
        theta.append(theta[-1] + 0.3 * q[-1])
        sent.append(theta[-1] + 2 * 0.3 * q[-1])
    sources = np.array(theta)[1:]
    law = oracle.stale_trace_law(server, tau, 1.7, start_mean=0.4, start_variance=0.6)
    assert law.mean[:, 0] == pytest.approx(sources[:, 1], rel=1e-10)
    variance = (sources**2).sum(axis=1) - sources[:, 1] ** 2
    assert law.variance[:, 0] == pytest.approx(variance, rel=1e-10)


def test_staleness_of_a_trace_is_that_of_its_mean_to_leading_order() -> None:
    trace = simulate(latency.exponential(), workers=8, updates=3000)
    law = oracle.stale_trace_law(
        oracle.langevin_server(0.01), trace.staleness, 1.0, start_variance=1.0
    )
    bias = law.variance[1500:, 0].mean() - 1
    assert bias == pytest.approx(relative_bias(oracle.stale_sgld_law(0.01, 1.0, 7)), rel=0.1)
    independent = independent_variance(0.01, trace.histogram()[0] / 3000, 0.02) - 1
    assert bias == pytest.approx(independent, rel=0.02)  # the mean alone is 4 % off
    alone = independent_variance(0.01, np.eye(8)[7], 0.02) - 1  # always 7
    assert alone == pytest.approx(relative_bias(oracle.stale_sgld_law(0.01, 1.0, 7)), rel=1e-8)


def independent_variance(a: float, shares: np.ndarray, noise: float) -> float:
    """Return the variance in the long run if the staleness of each update is drawn independently.

    The autocovariances solve g_k = g_{k-1} - a sum_j p_j g_|j+1-k|, and
    2 sum_j p_j g_j = a g_0 + noise/a.
    """
    size = len(shares)
    system, right = np.eye(size) - np.eye(size, k=-1), noise * np.eye(size)[0]
    system[0] = 2 * a * shares - a**2 * np.eye(size)[0]
    for k in range(1, size):
        np.add.at(system[k], np.abs(np.arange(size) + 1 - k), a * shares)
    return float(np.linalg.solve(system, right)[0])


def test_extrapolation_helps_along_random_traces() -> None:
    # Eight workers, where the number of steps to look ahead is right on average only.
    trace = simulate(latency.lognormal(), workers=8, updates=1500)
    curvature = np.array([0.5, 1.0, 2.0, 4.0])
    biases = []
    for ahead in (0.0, 7.0):
        server = oracle.sghmc_server(0.025, 1.0, extrapolate=ahead)
        law = oracle.stale_trace_law(
            server, trace.staleness, curvature, start_variance=1 / curvature
        )
        biases.append(law.variance[1000:].mean(axis=0) * curvature - 1)
    plain, extrapolated = biases
    assert plain == pytest.approx([0.095, 0.21, 0.52, 2.0], rel=0.1)
    assert np.all(np.abs(extrapolated) < plain / 30)


def test_the_bias_grows_with_the_number_of_workers() -> None:
    biases = []
    for workers in (1, 2, 4, 8):
        trace = simulate(latency.lognormal(), workers=workers, updates=1200)
        law = oracle.stale_trace_law(
            oracle.langevin_server(0.01), trace.staleness, 1.0, start_variance=1.0
        )
        biases.append(law.variance[600:, 0].mean() - 1)
    # a (W − 1/2) to leading order.
    assert biases == pytest.approx([0.005, 0.0152, 0.0358, 0.078], rel=0.06)


@pytest.mark.parametrize("tau", [0, 3, 10])
def test_growth_along_a_constant_trace_turns_at_the_stability_limit(tau: int) -> None:
    staleness = np.minimum(np.arange(4000), tau)
    limit = 2.0 * np.sin(np.pi / (4 * tau + 2))
    server = oracle.langevin_server(1.0)
    for part, grows in ((0.99, False), (1.01, True)):
        mean = oracle.stale_trace_law(server, staleness, part * limit, start_mean=1.0).mean
        assert (np.abs(mean[-100:]).max() > np.abs(mean[2000:2100]).max()) == grows


# --- sites of their own ----------------------------------------------------------------------


def test_dividing_by_the_shares_keeps_the_mean_of_the_target() -> None:
    # Three sites with unlike speeds, curvatures and centres; target mean .45 by construction.
    speeds = latency.constant((1.0, 2.03, 4.9))
    trace = simulate(speeds, workers=3, updates=4000, warmup=1000, sites=("a", "b", "c"))
    shares = trace.shares[0]
    assert shares == pytest.approx([0.59, 0.29, 0.12], abs=0.005)
    lam, mu = np.array([1.0, 2.0, 1.0]), np.array([1.8, -0.3, 0.6])
    target = lam @ mu / lam.sum()
    assert target == pytest.approx(0.45)
    # A step small enough that the order of the sites does not matter.
    server = oracle.langevin_server(0.004)

    def mean(weights: np.ndarray) -> float:
        law = oracle.stale_trace_law(
            server,
            trace.staleness,
            (lam * weights)[:, None],
            centre=mu[:, None],
            workers=trace.worker,
            start_mean=target,
        )
        return law.mean[1000:, 0].mean()

    assert mean(1 / shares) == pytest.approx(target, abs=0.01)
    unscaled = (shares * lam) @ mu / (shares @ lam)
    multiplied = (shares**2 * lam) @ mu / (shares**2 @ lam)
    assert mean(np.ones(3)) == pytest.approx(unscaled, abs=0.03)
    assert mean(shares * 3) == pytest.approx(multiplied, abs=0.03)
    assert abs(unscaled - target) > 0.2
    assert abs(multiplied - target) > 0.4


def test_site_noise_is_the_covariance_of_the_divided_gradients() -> None:
    shares = np.array([0.5, 0.2, 0.3])
    gradients = np.array([[1.0, 2.0], [-3.0, 0.5], [0.2, -1.0]])
    rng = np.random.default_rng(0)
    heard = rng.choice(3, size=100_000, p=shares)
    sampled = np.cov((gradients / shares[:, None])[heard], rowvar=False)
    found = oracle.site_noise(gradients, shares)
    # Relative standard errors of entries this size are about 1 %.
    assert sampled == pytest.approx(found, rel=0.05)


@pytest.mark.parametrize(
    ("call", "argument", "match"),
    [
        (
            lambda: oracle.stale_sghmc_law(0.1, 1.0, curvature=50.0, staleness=5).stationary,
            "step_size",
            "diverges",
        ),
        (lambda: oracle.sghmc_server(0.1, 1.0, integrator="leapfrog"), "integrator", None),
        (
            lambda: oracle.sghmc_server(0.1, 1.0, gradient_noise=21.0, subtract_noise=True),
            "subtract_noise",
            "above 2",
        ),
        (
            lambda: oracle.stale_trace_law(oracle.langevin_server(0.1), [1, 0], 1.0),
            "staleness",
            "behind the start",
        ),
        (lambda: oracle.site_noise([[1.0]], [0.5]), "shares", "to 0.5.*to 1"),
        (
            lambda: oracle.stale_trace_law(
                oracle.langevin_server(0.1), [0, 0], [[1.0]], workers=[0, 1]
            ),
            "workers",
            "site 1",
        ),
    ],
)
def test_bad_arguments_are_named(call: object, argument: str | None, match: str | None) -> None:
    with refused(argument=argument, match=match):
        call()  # type: ignore[operator]

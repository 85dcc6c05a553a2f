"""Stale gradients: Monte Carlo against the exact law along the same trace of events.

Gates are 4 standard errors over 4,000 chains (some hundreds of comparisons in all, most of them of
neighbouring updates of one chain: a correct sampler fails at about one seed in a hundred, and seeds
are fixed; 2.0 is the largest seen). Beside each gate stands what must fail.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sparse import sparse

import consortia
from consortia import latency
from consortia.oracles import (
    langevin_server,
    minibatch_noise,
    sghmc_server,
    stale_sgld_law,
    stale_trace_law,
)
from consortia.schedules.events import simulate

CHAINS, GATE, SEED = 4000, 4.0, 6
ROW_PRECISION, PRIOR_SCALE = 0.5, 2.0

MODEL = consortia.Model(
    lambda theta: -0.5 * jnp.sum(theta**2) / PRIOR_SCALE**2,
    lambda theta, rows: -0.5 * ROW_PRECISION * (rows["y"] - theta[0]) ** 2,
    jnp.ones(1),
)


def rows(count: int, centre: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(count)
    return {"y": (centre + rng.normal(size=count)).astype(np.float32)}


def draws_of(method: Any, sites: consortia.Sites, updates: int) -> np.ndarray:
    """(chains, updates)."""
    tree = consortia.sample(
        MODEL, sites, method, rounds=updates, chains=CHAINS, seed=SEED, progress=False
    )
    return np.asarray(tree.posterior.theta, np.float64)[..., 0]


def deviations(draws: np.ndarray, law: Any) -> tuple[float, float]:
    """Largest deviation of a mean and of a variance after any update, in standard errors."""
    mean, variance = law.mean[:, 0], law.variance[:, 0]
    of_mean = (draws.mean(axis=0) - mean) / np.sqrt(variance / CHAINS)
    of_variance = (draws.var(axis=0) / variance - 1) / math.sqrt(2 / CHAINS)
    return float(np.abs(of_mean).max()), float(np.abs(of_variance).max())


SERVERS = {
    "langevin": (consortia.stale_sgld, (0.012,), {}, langevin_server, (0.012,), {}),
    "euler": (consortia.stale_sghmc, (0.06, 3.0), {}, sghmc_server, (0.06, 3.0), {}),
    "splitting": (
        *(consortia.stale_sghmc, (0.06, 3.0), {"integrator": "splitting", "extrapolate": True}),
        *(sghmc_server, (0.06, 3.0), {"integrator": "splitting", "extrapolate": 4.0}),
    ),
}


LATENCIES = {"constant": latency.constant(), "exponential": latency.exponential()}


@pytest.mark.parametrize(
    ("name", "times"),
    sparse(
        itertools.product(SERVERS, LATENCIES),
        (("langevin", "constant"), ("euler", "exponential"), ("splitting", "exponential")),
    ),
)
def test_means_and_variances_are_those_of_the_trace(name: str, times: str) -> None:
    model = LATENCIES[times]
    factory, arguments, options, server, settings, given = SERVERS[name]
    data, batch, workers, updates = rows(20, 1.5), 5, 5, 60
    method = factory(*arguments, batch, workers=workers, latency=model, **options)
    draws = draws_of(method, consortia.Sites.from_list([data]), updates)
    trace = simulate(model, workers=workers, updates=updates, seed=SEED)
    curvature = 20 * ROW_PRECISION + 1 / PRIOR_SCALE**2
    centre = ROW_PRECISION * data["y"].astype(np.float64).sum() / curvature
    spread = ROW_PRECISION**2 * data["y"].astype(np.float64).var()
    noise = float(minibatch_noise(spread, 20, batch))

    def law(staleness: Any, noise: float) -> Any:
        return stale_trace_law(
            server(*settings, **given, gradient_noise=noise),
            staleness,
            [curvature],
            centre=[centre],
            start_mean=[1.0],
        )

    of_mean, of_variance = deviations(draws, law(trace.staleness, noise))
    print("largest deviation, in standard errors: means", of_mean, "variances", of_variance)
    assert of_mean < GATE
    assert of_variance < GATE
    # Fresh gradients, and exact ones, have other laws.
    fresh = deviations(draws, law(np.zeros_like(trace.staleness), noise))
    assert max(fresh) > 2 * GATE
    assert deviations(draws, law(trace.staleness, 0.0))[1] > GATE


def test_sites_with_unlike_speeds_leave_the_target_mean_where_it_is() -> None:
    sites = consortia.Sites.from_list([rows(6, 3.0), rows(9, 0.0), rows(4, -1.0)])
    speeds, updates, warmup = latency.constant((1.0, 2.0, 4.3)), 1800, 600
    method = consortia.stale_sgld(0.0015, workers=3, latency=speeds, aggregate="each")
    tree = consortia.sample(
        MODEL,
        sites,
        method,
        rounds=updates - warmup,
        warmup=warmup,
        chains=CHAINS,
        seed=SEED,
        progress=False,
    )
    draws = np.asarray(tree.posterior.theta, np.float64)[..., 0]
    trace = simulate(
        speeds, workers=3, updates=updates, warmup=warmup, seed=SEED, sites=sites.names
    )
    shares = trace.shares[0]
    assert shares[0] > 2 * shares[2]
    sizes = np.array([6, 9, 4])
    own = ROW_PRECISION * sizes + sizes / sizes.sum() / PRIOR_SCALE**2
    pulls = ROW_PRECISION * np.array([shard["y"].astype(np.float64).sum() for shard in sites])
    law = stale_trace_law(
        langevin_server(0.0015),
        trace.staleness,
        (own / shares)[:, None],
        centre=(pulls / own)[:, None],
        workers=trace.worker,
        start_mean=[1.0],
    )
    late = type(law)(law.mean[warmup:], law.variance[warmup:])
    assert max(deviations(draws, late)) < GATE
    target = pulls.sum() / own.sum()
    # The average over the run, whose updates the shares count; its spread over chains is its error.
    averages = draws.mean(axis=1)
    error = averages.std() / math.sqrt(CHAINS)
    leading = abs(late.mean.mean() - target)  # O(h): the pulls of single sites do not commute
    print("average", averages.mean(), "target", target, "standard error", error, "O(h)", leading)
    assert abs(averages.mean() - target) < 3 * error + leading
    assert leading < 0.01
    # Without the shares the fast site would draw the chain to itself.
    unscaled = (shares @ pulls) / (shares @ own)
    assert abs(unscaled - target) > 20 * error + leading


# --- the well-mixed problem ----------------------------------------------------------------------


def start(mode: np.ndarray, root: np.ndarray, key: Any) -> Any:
    """A draw of N(mode, root root')."""
    made = mode + root @ np.asarray(jax.random.normal(key, mode.shape), np.float64)
    return {"coefficients": jnp.asarray(made, jnp.float32)}


NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(20)


def logistic_law(
    x: np.ndarray, y: np.ndarray, step: float, batch: int, late: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the stale chain, or of the posterior when ``late`` is None.

    The potential is replaced by the quadratic one that has its average gradient and curvature under
    the law itself, so that the law and the quadratic are found together; at the mode alone the
    variance would be 3 % too small. Averages over t_i = x_i'θ, which is normal, are by quadrature.
    """
    d = x.shape[1]
    mean, covariance = np.zeros(d), np.zeros((d, d))
    for _ in range(40):
        spread = np.sqrt(np.einsum("ni,ij,nj->n", x, covariance, x))
        t = (x @ mean)[:, None] + spread[:, None] * NODES
        p = 1 / (1 + np.exp(-t))
        weights = WEIGHTS / WEIGHTS.sum()
        hessian = (x.T * (p * (1 - p) @ weights)) @ x + np.eye(d)
        pulls = (p @ weights - y)[:, None] * x
        mean = mean - np.linalg.solve(hessian, pulls.sum(axis=0) + mean)
        values, vectors = np.linalg.eigh(hessian)
        variances = 1 / values
        if late is not None:
            noise = minibatch_noise((pulls @ vectors).var(axis=0), len(x), batch)
            variances = np.array(
                [
                    stale_sgld_law(step, v, late, gradient_noise=float(n)).stationary.variance[0]
                    for v, n in zip(values, noise, strict=True)
                ]
            )
        covariance = (vectors * variances) @ vectors.T
    return mean, covariance


def expected_loss(x: np.ndarray, y: np.ndarray, mean: np.ndarray, covariance: Any) -> float:
    """The mean logistic loss of some points, averaged over N(mean, covariance)."""
    spread = np.sqrt(np.einsum("ni,ij,nj->n", x, covariance, x))
    t = (x @ mean)[:, None] + spread[:, None] * NODES
    return float(np.mean(np.logaddexp(0, (1 - 2 * y)[:, None] * t) @ (WEIGHTS / WEIGHTS.sum())))


@pytest.mark.slow
def test_more_workers_lower_the_variance_and_raise_the_bias() -> None:
    """Standardised logistic regression, 256 stationary starts, 1,000 iterations a worker."""
    n, d, h, batch, chains = 2000, 10, 2e-4, 100, 256
    rng = np.random.default_rng(1)
    x, truth = rng.normal(size=(n + 1000, d)), rng.normal(size=d) / 2
    y = (rng.uniform(size=n + 1000) < 1 / (1 + np.exp(-x @ truth))).astype(np.int32)
    (x, points), (y, labels) = np.split(x, [n]), np.split(y, [n])
    model = consortia.models.logistic_regression(d, prior_scale=1.0)
    sites = consortia.Sites.from_list([{"x": x.astype(np.float32), "y": y}])

    exact = expected_loss(points, labels, *logistic_law(x, y, h, batch, None))
    averages, predicted = {}, {}
    for workers in (1, 2, 4, 8):
        law = logistic_law(x, y, h, batch, workers - 1)  # they take turns
        predicted[workers] = expected_loss(points, labels, *law)
        tree = consortia.sample(
            model,
            sites,
            consortia.stale_sgld(h, batch, workers=workers, latency=latency.constant()),
            rounds=1000 * workers,
            thin=5,  # a third of the shortest correlation time, 1/(h λ)
            chains=chains,
            seed=3,
            init=partial(start, law[0], np.linalg.cholesky(law[1])),
            progress=False,
        )
        theta = np.asarray(tree.posterior.coefficients)
        signed = ((1 - 2 * labels)[:, None] * points).astype(np.float32)
        averages[workers] = np.array(
            [np.logaddexp(0, draws @ signed.T).mean(dtype=np.float64) for draws in theta]
        )

    bias = {}
    for workers, values in averages.items():
        ratio = averages[1].var() / values.var()
        error = values.std() / math.sqrt(chains)
        bias[workers] = values.mean() - exact
        expected = predicted[workers] - exact
        print(
            f"W = {workers}: Var(1)/Var = {ratio:.2f}, sd {values.std():.2e}, bias "
            f"{bias[workers]:.2e}, predicted {expected:.2e}, error {error:.1e}"
        )
        if workers > 1:
            assert 0.65 * workers < ratio < 1.5 * workers
        assert abs(bias[workers] - expected) < 3 * error
    assert bias[1] < bias[2] < bias[4] < bias[8]
    assert bias[8] ** 2 > averages[8].var()  # it dominates the mean square error
    # The negative control: one update of staleness less.
    less = expected_loss(points, labels, *logistic_law(x, y, h, batch, 6)) - exact
    assert bias[8] - less > 3 * averages[8].std() / math.sqrt(chains)

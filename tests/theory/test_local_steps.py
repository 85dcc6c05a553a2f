"""The law of workers that take several steps before they send, beside noises and chains."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sparse import sparse
from theory.test_arrivals import CENTRES, CURVATURES, FAR, UPDATES, model, sites, trace

import consortia
from consortia import latency
from consortia.schedules.events import simulate
from consortia.theory.affine import Normal
from consortia.theory.arrivals import Arrivals, in_blocks
from consortia.theory.bias import Problem, law_of, predict_bias
from consortia.theory.local_steps import TaskRecursion
from consortia.theory.staleness import langevin_server

STEP = 0.03
MEASURED = (1, 5, 12, 30)
"""Updates after which moments are compared."""


def recursion(
    events, steps: int, *, latest: bool, noise: float = 0.0, centres=CENTRES
) -> TaskRecursion:
    share = np.ones(3) if latest else events.shares[0]
    sent, _ = in_blocks(
        CURVATURES[:, :, None] * np.eye(2) / share[:, None, None],
        -CURVATURES * centres / share[:, None],
        noise * np.eye(2) / share[:, None, None] ** 2,
    )
    arrivals = Arrivals(events.worker, events.dropped)
    stretch = len(events.worker)
    return TaskRecursion(langevin_server(STEP), arrivals, sent, latest, stretch, steps=steps)


def by_noises(events, steps: int, *, latest: bool, noise: float):
    """Return mean and variance of the first coordinate from its answer to every single noise."""
    share = np.ones(3) if latest else events.shares[0]
    columns = 1 + 2 * steps * len(events.worker)
    theta = np.zeros(columns)
    theta[0] = 0.5
    points, kept = [theta.copy() for _ in range(3)], np.zeros((3, columns))
    sums, fresh = [np.zeros(columns) for _ in range(3)], itertools.count(1)
    means, variances = [], []

    def gradient(site: int, at: np.ndarray) -> np.ndarray:
        value = CURVATURES[site, 0] * at / share[site]
        value[0] -= CURVATURES[site, 0] * CENTRES[site, 0] / share[site]
        value[next(fresh)] += np.sqrt(noise) / share[site]
        return value

    for site, dropped in zip(events.worker, events.dropped, strict=True):
        if not dropped:
            z, total, moved = points[site], np.zeros(columns), np.zeros(columns)
            for step in range(steps):
                value = gradient(site, z)
                if step == 0:
                    anchor = value
                force = value + (sums[site] - anchor if latest else 0)
                injected = np.zeros(columns)
                injected[next(fresh)] = np.sqrt(2 * STEP)
                z = z - STEP * force + injected
                total, moved = total + value / steps, moved + injected
            kept[site] = total
            drift = kept.sum(axis=0) if latest else total
            theta = theta - steps * STEP * drift + moved
            means.append(theta[0])
            variances.append((theta[1:] ** 2).sum())
        points[site], sums[site] = theta, kept.sum(axis=0)
    return np.array(means), np.array(variances)


@pytest.mark.parametrize("steps", [2, 5])
@pytest.mark.parametrize("cap", [None, 3])
@pytest.mark.parametrize("latest", [False, True])
def test_the_law_is_the_sum_of_the_answers_to_all_noises(latest, cap, steps):
    events = trace(seed=1, cap=cap)
    made = recursion(events, steps, latest=latest, noise=0.7)
    laws = list(itertools.islice(made.path(Normal(np.array([0.5, -0.5]), np.zeros(2))), 1, 61))
    mean, variance = by_noises(events, steps, latest=latest, noise=0.7)
    np.testing.assert_allclose([law.mean[0] for law in laws], mean, rtol=1e-9)
    np.testing.assert_allclose([law.covariance[0] for law in laws], variance, rtol=1e-9)


def test_the_long_run_is_where_a_repeated_trace_ends_and_its_mean_the_mode():
    events = trace(seed=2)
    mode = (CURVATURES * CENTRES).sum(axis=0) / CURVATURES.sum(axis=0)
    made = recursion(events, 4, latest=True, centres=CENTRES - mode)
    path = itertools.islice(made.path(Normal(np.ones(2), np.zeros(2))), 1, 20 * UPDATES + 1)
    last = list(path)[-UPDATES:]
    found = made.stationary()
    wide = np.mean([law.covariance for law in last], axis=0)
    np.testing.assert_allclose(np.diag(found.covariance), wide, rtol=1e-6)
    np.testing.assert_allclose([law.mean for law in last], 0, atol=1e-6)
    np.testing.assert_allclose(found.mean, 0, atol=1e-12)


FEW = (20, 4, 4, 4)
CHAINS = 20_000, 5_000  # in slow tests and in quick ones
CASES = {
    "sites": (FEW, FAR, {"workers": 4, "local_steps": 10}),
    "sites, a cap": (FEW, FAR, {"workers": 4, "local_steps": 4, "max_staleness": 4}),
    "each": (FEW, FAR, {"workers": 4, "local_steps": 10, "aggregate": "each"}),
    "minibatches": (FEW, FAR, {"workers": 4, "local_steps": 4, "batch_size": 2}),
    "one site, minibatches": ((20,), (0,), {"workers": 3, "local_steps": 6, "batch_size": 2}),
}


def spread_out(problem: consortia.Sites) -> consortia.Sites:
    """Return sites with the same means, and rows that differ."""
    rng, rows = np.random.default_rng(0), []
    for shard in problem.shards:
        noise = rng.normal(size=shard["y"].shape)
        rows.append({"y": (shard["y"] + noise - noise.mean()).astype(np.float32)})
    return consortia.Sites.from_list(rows)


@pytest.mark.filterwarnings("ignore:Do not run these settings")
@pytest.mark.parametrize(
    ("case", "chains"),
    sparse(
        itertools.product(CASES, CHAINS),
        [("sites, a cap", 5_000), ("one site, minibatches", 5_000)],
    ),
)
def test_the_draws_of_many_chains_have_the_law(case, chains):
    sizes, modes, options = CASES[case]
    problem, workers = spread_out(sites(sizes, modes)), options["workers"]
    events = simulate(
        latency.lognormal(), workers=workers, updates=MEASURED[-1], seed=3,
        max_staleness=options.get("max_staleness"),
    )  # fmt: skip
    log = np.stack([events.worker, events.version], axis=1)
    share = {"shares": tuple(events.shares[0])} if len(sizes) > 1 else {}
    method = consortia.stale_sgld(
        0.02 / sum(sizes), latency=latency.recorded(log), **options, **share
    )
    near = Problem(model(), problem).near
    start = float(near.mode[0] + near.sd[0])
    tree = consortia.sample(
        model(), problem, method, rounds=MEASURED[-1], warmup=0, chains=chains, seed=5,
        init=np.full(1, start, np.float32), progress=False,
    )  # fmt: skip
    draws = np.asarray(next(iter(tree.posterior.data_vars.values())), np.float64)[..., 0]
    law = law_of(method, Problem(model(), problem))
    path = list(
        itertools.islice(law.recursion.path(Normal(near.sd, np.zeros(1))), MEASURED[-1] + 1)
    )
    for update in MEASURED:
        mean, variance = path[update].mean[0], path[update].covariance[0]
        column = draws[:, update - 1] - near.mode[0]
        error = (column.mean() - mean) / np.sqrt(variance / chains)
        assert abs(error) < 4, (update, error)
        wide = (column.var() / variance - 1) / np.sqrt(2 / chains)
        assert abs(wide) < 4, (update, wide)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Do not run these settings")
def test_sites_pull_the_mean_aside_only_where_others_are_left_out():
    problem, step = sites(FEW, FAR), 0.02 / sum(FEW)
    made = {
        how: consortia.stale_sgld(step, workers=4, local_steps=10, aggregate=how)
        for how in ("each", "latest")
    }
    found = {how: predict_bias(model(), problem, method) for how, method in made.items()}
    assert abs(found["each"].shift[0]) > 0.5
    assert "aggregate='latest' removes most" in " ".join(found["each"].notes)
    assert abs(found["latest"].shift[0]) < 1e-5
    tree = consortia.sample(
        model(), problem, made["latest"], rounds=3000, warmup=300, chains=200, seed=1,
        progress=False,
    )  # fmt: skip
    near = Problem(model(), problem).near
    draws = np.asarray(next(iter(tree.posterior.data_vars.values())), np.float64)[..., 0]
    means = (draws.mean(axis=1) - near.mode[0]) / near.sd[0]
    assert abs(means.mean()) < 0.02
    assert means.std() / np.sqrt(len(means)) < 0.008


def test_minibatches_that_bound_the_step_are_averaged_over_a_task():
    rows = [{"y": np.random.default_rng(i).normal(size=400).astype(np.float32)} for i in range(3)]
    problem = consortia.Sites.from_list(rows)
    laws = {
        steps: law_of(
            consortia.stale_sgld(4e-7, 4, workers=3, local_steps=steps), Problem(model(), problem)
        )
        for steps in (1, 10)
    }
    wide = {steps: float(law.stationary.sd_ratio[0]) - 1 for steps, law in laws.items()}
    assert 0.03 < wide[1] < wide[10] < 1.2 * wide[1]
    assert laws[10].rounds_per_draw < 0.11 * laws[1].rounds_per_draw

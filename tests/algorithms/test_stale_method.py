"""Samplers with stale gradients as values: what they hold, refuse and measure."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithms.stale_problem import MODEL, centre_of, curvature_of, one_site, three_sites

from consortia import latency, schedules
from consortia.algorithms.stale import stale_sghmc, stale_sgld, stale_sgnht
from consortia.core.model import Model
from consortia.data.sites import Sites
from consortia.oracles import stale_sghmc_law
from consortia.run.sampling import sample
from consortia.theory import estimates
from consortia.theory.estimates import gradient_noise_variance, largest_curvature
from consortia.theory.stability import predict_divergence
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("x64")


class Unhashable:
    """A user's law of durations, compared by value as a dataclass that is not frozen is."""

    server_cost = 0.0
    __hash__ = None  # type: ignore[assignment]

    def check(self, workers: int) -> None: ...

    def durations(self, seed: int, server: int, worker: int, first: int, count: int) -> Any:
        return np.ones(count)


# --- step sizes -------------------------------------------------------------------------


def test_servers_are_weighted_by_their_time_or_equally() -> None:
    by_time = stale_sgld([0.1, 0.3], workers=2, servers=2)
    assert not by_time.servers_alike
    weights = by_time.step_weights(np.arange(5, 25)).sum(axis=1)
    assert weights / weights.sum() == pytest.approx([0.25, 0.75])
    equal = stale_sgld([0.1, 0.3], workers=2, servers=2, weighting="equal")
    assert equal.step_weights(np.arange(5, 25)) is None
    assert stale_sgld([0.1, 0.1], workers=2, servers=2).servers_alike


def test_an_array_is_a_step_size_over_updates_for_all_servers() -> None:
    method = stale_sgld(np.array([0.1, 0.2]), workers=2, servers=2)
    assert method.servers_alike
    assert method.step_schedules == (schedules.Tabulated((0.1, 0.2)),)
    assert method.step_weights(np.arange(2)) == pytest.approx([0.1, 0.2])
    assert stale_sgld(0.1, workers=2).step_weights(np.arange(2)) is None


# --- the method as a value -------------------------------------------------------------------


def test_methods_compare_hash_and_describe_themselves() -> None:
    make = partial(stale_sghmc, 0.1, 1.0, 5, workers=3, subtract_noise=[0.5, 0.25])
    assert make() == make()
    assert hash(make()) == hash(make())
    assert make() != make(extrapolate=True)
    plain = make(latency=latency.recorded([(0, 0)])).parameters()
    assert plain["latency"] == {"kind": "Recorded", "events": 1}
    assert plain["step_size"] == {"kind": "Constant", "value": 0.1}
    assert plain["subtract_noise"] == [0.5, 0.25]
    assert make().cost(np.array([30]), 3).row_gradients == 5
    assert stale_sgld(0.1, workers=3).cost(np.array([10, 20, 30]), 3).row_gradients == 20
    task = stale_sgld(0.1, 5, workers=3, local_steps=4).cost(np.array([30]), 3)
    assert (task.gradients, task.row_gradients, task.vectors) == (4, 20, 2)


@pytest.mark.parametrize(
    ("make", "argument", "match"),
    [
        (lambda: stale_sgld(0.1, workers=0), "workers", "workers is 0"),
        (lambda: stale_sgld(0.1, workers=2, servers=0), "servers", "servers is 0"),
        (lambda: stale_sgld(0.1, 0, workers=2), "batch_size", "batch_size is 0"),
        (lambda: stale_sgld(0.1, workers=2, max_staleness=-1), "max_staleness", "is -1"),
        (lambda: stale_sgld([0.1, 0.2, 0.3], workers=2, servers=2), "step_size", "3.*servers=2"),
        (lambda: stale_sgld(0.1, workers=2, latency="fast"), "latency", "consortia.latency"),
        (lambda: stale_sgld(0.1, workers=2, aggregate="mean"), "aggregate", "'each'.*'latest'"),
        (lambda: stale_sgld(0.1, workers=2, weighting="best"), "weighting", "'time'.*'equal'"),
        (lambda: stale_sgld(0.1, workers=2, shares=[0.5, 0.6]), "shares", "shares sum to"),
        (lambda: stale_sgld(0.1, workers=2, temperature=-1), "temperature", None),
        (lambda: stale_sgld(-0.1, workers=2), "step_size", None),
        (lambda: stale_sgld(0.1, workers=2, local_steps=0), "local_steps", "local_steps is 0"),
        (
            lambda: stale_sgld([0.1, 0.2], workers=2, servers=2, local_steps=3),
            "local_steps",
            "local_steps=3",
        ),
        (
            lambda: stale_sgld(np.array([0.1, 0.2]), workers=2, local_steps=3),
            "local_steps",
            "one constant step",
        ),
        (
            lambda: stale_sgld(0.1, workers=2, adaptation=1, local_steps=3),
            "local_steps",
            "no adaptation",
        ),
        (lambda: stale_sghmc(0.1, 0.0, workers=2), "friction", "friction is 0"),
        (lambda: stale_sghmc(0.5, 2.1, workers=2), "friction", "most 1"),
        (lambda: stale_sghmc(0.1, 1.0, workers=2, integrator="leapfrog"), "integrator", None),
        (
            lambda: stale_sghmc(0.1, 1.0, workers=2, subtract_noise=True),
            "subtract_noise",
            "gradient_noise_variance",
        ),
        (
            lambda: stale_sghmc(0.1, 1.0, workers=2, subtract_noise=20.1),
            "subtract_noise",
            "is 2.01.*than 2",
        ),
        (
            lambda: stale_sghmc(
                np.array([0.01, 0.1]),
                1.0,
                workers=2,
                integrator="splitting",
                subtract_noise=[1, 21],
            ),
            "subtract_noise",
            "is 2.1",
        ),
        (
            lambda: stale_sghmc(0.1, 1.0, workers=2, subtract_noise=-1.0),
            "subtract_noise",
            "not negative",
        ),
        (lambda: stale_sghmc(0.1, 1.0, workers=2, extrapolate=-1), "extrapolate", None),
        (lambda: stale_sgnht(0.1, 1.0, workers=2, thermostat="hot"), "thermostat", None),
        (lambda: stale_sgld(0.1, workers=2, latency=Unhashable()), "latency", "has no hash"),
    ],
)
def test_bad_arguments_are_named(make, argument: str, match: str | None) -> None:
    with refused(argument=argument, match=match):
        make()


def test_noise_up_to_the_friction_may_be_subtracted() -> None:
    assert stale_sghmc(0.1, 1.0, workers=2, subtract_noise=20.0).dynamics.gradient_variance == 20


@pytest.mark.parametrize(
    ("method", "sizes", "argument", "match"),
    [
        (stale_sgld(0.1, workers=3), [5, 5], "workers", "2.*workers=3"),
        (stale_sgld(0.1, workers=3, shares=[0.5, 0.5]), [5, 5, 5], "shares", "2.*for 3"),
        (stale_sgld(0.1, 6, workers=2, replace=False), [9, 5], "batch_size", "'b'.*only 5"),
        (
            stale_sghmc(0.1, 1.0, workers=1, subtract_noise=[1.0]),
            [5],
            "subtract_noise",
            "1.*model 2",
        ),
        (
            stale_sgld(0.1, workers=1, latency=latency.recorded([(1, 0)])),
            [5],
            "latency",
            "worker 1",
        ),
    ],
)
def test_what_does_not_fit_the_sites_is_refused(method, sizes, argument: str, match: str) -> None:
    with refused(argument=argument, match=match):
        method.check(np.array(sizes), tuple("abc"[: len(sizes)]), 2)


def test_one_site_or_one_for_each_worker_passes_the_check() -> None:
    method = stale_sgld(0.1, 4, workers=3)
    method.check(np.array([30]), ("a",), 2)
    method.check(np.array([5, 6, 7]), ("a", "b", "c"), 2)
    assert method.site_weights(np.array([30])).tolist() == [1.0]


# --- measures --------------------------------------------------------------------------------


@pytest.mark.parametrize("replace", [True, False])
def test_the_gradient_noise_is_that_of_minibatches(replace: bool) -> None:
    sites = one_site()
    theta = np.array([0.2, 0.4])
    shard = sites.shards[0]
    per_row = shard["scale"] * (theta - shard["centre"])
    expected = 30**2 / 4 * per_row.var(axis=0) * (1 if replace else 26 / 29)
    found = gradient_noise_variance(MODEL, sites, theta, 4, replace=replace)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert gradient_noise_variance(MODEL, sites, theta, None).tolist() == [0, 0]


def test_the_gradient_noise_of_several_sites_has_their_differences() -> None:
    sites, theta = three_sites(), np.array([0.2, 0.4])
    shares = np.array([0.5, 0.3, 0.2])
    priors = np.array([10, 20, 5]) / 35
    pulls = np.array(
        [
            curvature_of(shard, prior) * (theta - centre_of(shard, prior))
            for shard, prior in zip(sites.shards, priors, strict=True)
        ]
    )
    between = (pulls**2 / shares[:, None]).sum(axis=0) - pulls.sum(axis=0) ** 2
    found = gradient_noise_variance(MODEL, sites, theta, None, shares=shares)
    np.testing.assert_allclose(found, between, rtol=1e-10)
    within = sum(
        len(shard["scale"]) ** 2 / 4 * (shard["scale"] * (theta - shard["centre"])).var(axis=0) / f
        for shard, f in zip(sites.shards, shares, strict=True)
    )
    found = gradient_noise_variance(MODEL, sites, theta, 4, shares=shares)
    np.testing.assert_allclose(found, between + within, rtol=1e-10)


def test_the_largest_curvature_is_that_of_the_hessian() -> None:
    sites = three_sites()
    exact = sum(shard["scale"].sum(axis=0) for shard in sites.shards) + 1 / 4
    found = largest_curvature(MODEL, sites, np.zeros(2), iterations=400)
    assert found == pytest.approx(exact.max(), rel=1e-6)


def test_rows_of_a_site_that_are_not_read_are_counted() -> None:
    sites = Sites.from_list(
        [
            {"scale": np.full((rows, 2), scale), "centre": np.zeros((rows, 2))}
            for rows, scale in ((40, 1.0), (9, 3.0), (3, 0.5))
        ]
    )
    found = largest_curvature(MODEL, sites, np.zeros(2), iterations=400, rows=4)
    assert found == pytest.approx(40 + 27 + 1.5 + 1 / 4, rel=1e-9)


def test_the_program_of_the_largest_curvature_is_as_long_with_many_sites(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = []

    def noted(*arguments: Any) -> Any:
        lengths.append(len(program.lower(*arguments).as_text().splitlines()))
        return power(*arguments)

    power = estimates._power
    program = jax.jit(power.__wrapped__, static_argnums=(0, 1))
    monkeypatch.setattr(estimates, "_power", noted)
    for count in (2, 20):
        parts = [{"scale": np.ones((3, 2)), "centre": np.zeros((3, 2))} for _ in range(count)]
        found = largest_curvature(MODEL, Sites.from_list(parts), np.zeros(2))
        assert found == pytest.approx(3 * count + 1 / 4)
    assert lengths[0] == lengths[1]


# --- steps that diverge --------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [1, 2, 5, 10, 15, 20])
def test_the_papers_step_size_read_literally_is_refused_with_the_limit(tau: int) -> None:
    model = Model(
        lambda theta: -0.5 * jnp.sum(theta**2),
        lambda theta, batch: -0.5 * (batch["y"] - theta[0]) ** 2,
        jnp.zeros(1),
    )
    sites = Sites.from_list([{"y": np.random.default_rng(0).normal(size=1000)}])
    literal = stale_sgld(0.0042 / tau, 10, workers=tau + 1)  # h Λ = 4.2/τ, Λ = 1001
    limit = 2 * np.sin(np.pi / (4 * tau + 2)) / 1001
    with refused(argument="step_size", match="largest stable") as caught:
        sample(model, sites, literal, rounds=10, progress=False, chains=1)
    said = float(re.search(r"step_size is (\S+)\. ", str(caught.value))[1])
    assert abs(said / limit - 1) < 5e-3  # three digits, by bisection to a thousandth
    # Just above the limit the user is warned, just below nothing is said.
    above = stale_sgld(1.01 * limit, 10, workers=tau + 1)
    assert predict_divergence(above, model, sites, jnp.zeros(1))
    below = stale_sgld(0.99 * limit, 10, workers=tau + 1)
    assert predict_divergence(below, model, sites, jnp.zeros(1)) is None


@pytest.mark.parametrize("integrator", ["euler", "splitting"])
def test_the_limit_of_a_step_with_momentum_is_that_of_the_exact_recursion(integrator: str) -> None:
    model = Model(
        lambda theta: -0.5 * jnp.sum(theta**2),
        lambda theta, batch: -0.5 * (batch["y"] - theta[0]) ** 2,
        jnp.zeros(1),
    )
    sites = Sites.from_list([{"y": np.random.default_rng(0).normal(size=99)}])  # curvature 100

    def judged(step: float) -> str | None:
        method = stale_sghmc(step, 2.0, 10, workers=4, integrator=integrator)
        return predict_divergence(method, model, sites, jnp.zeros(1))

    low, high = 1e-4, 0.1
    for _ in range(40):
        middle = (low + high) / 2
        law = stale_sghmc_law(middle, 2.0, curvature=100.0, staleness=3, integrator=integrator)
        low, high = (middle, high) if law.stable else (low, middle)
    assert judged(0.999 * low) is None
    assert "diverges" in (judged(1.001 * low) or "")
    with refused(argument="step_size", match="diverges"):
        judged(2.1 * low)

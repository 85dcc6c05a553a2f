"""The simulation of events of a parameter server."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from consortia import latency
from consortia.schedules.events import Trace, simulate
from tests.refusals import refused

MODELS = [
    latency.constant(),
    latency.lognormal(),
    latency.exponential(server_cost=0.05),
    latency.straggler(server_cost=0.3),
]


def same(left: Trace, right: Trace) -> bool:
    fields = ("server", "worker", "task", "version", "staleness", "finish", "dropped", "in_flight")
    return all(np.array_equal(getattr(left, f), getattr(right, f)) for f in fields)


# --- laws ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cap", [None, 5])
def test_the_integer_identity_holds_exactly(model: latency.Latency, cap: int | None) -> None:
    trace = simulate(model, workers=5, updates=700, servers=2, max_staleness=cap, seed=3)
    assert trace.excess().tolist() == [0, 0]


def test_dropped_gradients_count_in_the_integer_identity() -> None:
    trace = simulate(latency.exponential(), workers=5, updates=700, max_staleness=5)
    dropped = trace.staleness[trace.dropped]
    assert dropped.size
    assert trace.excess()[0] == 0 != trace.excess()[0] - dropped.sum()


def test_the_first_update_is_fresh_and_workers_that_take_turns_are_late_by_all_others() -> None:
    trace = simulate(latency.constant(), workers=4, updates=12)
    assert trace.staleness.tolist() == [0, 1, 2, *[3] * 9]
    assert trace.worker.tolist() == [0, 1, 2, 3] * 3
    assert trace.task.tolist() == [t for t in range(3) for _ in range(4)]


def test_ties_go_to_the_lowest_worker() -> None:
    trace = simulate(latency.constant((2.0, 1.0, 2.0)), workers=3, updates=4)
    assert list(zip(trace.finish.tolist(), trace.worker.tolist(), strict=True)) == [
        (1.0, 1),
        (2.0, 0),
        (2.0, 1),
        (2.0, 2),
    ]


def test_a_dropped_gradient_leaves_the_count_and_the_worker_fetches_anew() -> None:
    trace = simulate(latency.constant(), workers=3, updates=5, max_staleness=1)
    # The third worker is late by 2 at time 1, fetches version 2 and is the last again at time 2.
    assert trace.dropped.tolist() == [False, False, True, False, False, True, False]
    assert trace.version.tolist() == [0, 0, 0, 1, 2, 2, 4 - 1]
    assert trace.staleness.tolist() == [0, 1, 2, 1, 1, 2, 1]
    assert trace.drops.tolist() == [[0, 0, 2]]
    assert trace.accepted("worker").tolist() == [[0, 1, 0, 1, 0]]
    assert trace.excess()[0] == 0


def test_without_staleness_allowed_every_update_is_fresh() -> None:
    trace = simulate(latency.lognormal(), workers=2, updates=200, max_staleness=0)
    assert trace.largest_staleness == 0
    assert trace.dropped.any()


def test_one_worker_is_never_stale() -> None:
    trace = simulate(latency.exponential(), workers=1, updates=50)
    assert not trace.staleness.any()
    assert trace.accepted("task").tolist() == [list(range(50))]


def test_a_server_that_takes_time_serves_one_worker_after_the_other() -> None:
    trace = simulate(latency.constant(server_cost=0.5), workers=2, updates=6)
    # A cycle of a worker takes 1.5, two workers share the server without waiting but at the start.
    assert trace.finish.tolist() == [1.5, 2.0, 3.0, 3.5, 4.5, 5.0]


@pytest.mark.parametrize(("workers", "cost"), [(2, 0.1), (8, 0.1), (8, 0.5), (16, 0.5)])
def test_the_speed_up_in_time_is_bounded_by_workers_and_by_the_server(
    workers: int, cost: float
) -> None:
    model = latency.lognormal(server_cost=cost)
    one, many = (simulate(model, workers=w, updates=4000) for w in (1, workers))
    speed_up = many.throughput[0] / one.throughput[0]
    bound = min(workers, (1 + cost) / cost)
    # Durations are random: 4000 of them average to 1 within .5/sqrt(4000) = .8 %, three times that.
    assert 0.7 * bound < speed_up < 1.024 * bound


def test_the_mean_staleness_is_that_of_all_other_workers() -> None:
    trace = simulate(latency.exponential(), workers=8, updates=5000)
    # The identity leaves only what is in flight: at most a few times W² / L.
    assert trace.mean_staleness[0] == pytest.approx(7, abs=0.1)
    assert trace.largest_staleness > 30
    assert trace.histogram().sum() == 5000
    assert trace.histogram()[0] @ np.arange(trace.largest_staleness + 1) == trace.staleness.sum()


# --- the same order in a compiled loop --------------------------------------------------------


@pytest.mark.parametrize("workers", [4, 16])
@pytest.mark.parametrize("model", MODELS)
def test_the_order_equals_that_of_a_compiled_scan(
    x64: None, workers: int, model: latency.Latency
) -> None:
    updates, cap = 400, 2 * workers
    trace = simulate(model, workers=workers, updates=updates, max_staleness=cap, seed=11)
    tasks = int(trace.task.max()) + 2
    durations = jnp.asarray(np.stack([model.durations(11, 0, w, 0, tasks) for w in range(workers)]))

    def event(carry, _):
        arrival, version, task, done, free = carry
        worker = jnp.argmin(arrival)  # the first of equal ones
        staleness = done - version[worker]
        dropped = staleness > cap
        now = jnp.maximum(arrival[worker], free)
        now = jnp.where(dropped, now, now + model.server_cost)
        free = jnp.where(dropped, free, now)
        done = done + jnp.where(dropped, 0, 1)
        out = (worker, task[worker], version[worker], staleness, now, dropped)
        task = task.at[worker].add(1)
        arrival = arrival.at[worker].set(now + durations[worker, task[worker]])
        return (arrival, version.at[worker].set(done), task, done, free), out

    start = (
        durations[:, 0],
        jnp.zeros(workers, int),
        jnp.zeros(workers, int),
        jnp.zeros((), int),
        jnp.zeros(()),
    )
    _, out = jax.lax.scan(event, start, None, length=trace.worker.size)
    found = [trace.worker, trace.task, trace.version, trace.staleness, trace.finish, trace.dropped]
    for host, compiled in zip(found, out, strict=True):
        assert np.array_equal(host, np.asarray(compiled))


# --- reproducible, extendable, fast ----------------------------------------------------------


def test_a_run_again_is_the_same_and_another_seed_is_not() -> None:
    first, again, other = (
        simulate(latency.lognormal(), workers=4, updates=300, servers=2, seed=s) for s in (5, 5, 6)
    )
    assert same(first, again)
    assert not same(first, other)


def test_a_longer_run_begins_with_the_shorter_one() -> None:
    short, long = (simulate(latency.lognormal(), workers=4, updates=n) for n in (300, 900))
    assert np.array_equal(short.finish, long.finish[:300])
    assert np.array_equal(short.worker, long.worker[:300])


def test_servers_do_not_depend_on_one_another() -> None:
    one, three = (simulate(latency.lognormal(), workers=3, updates=200, servers=s) for s in (1, 3))
    assert np.array_equal(one.finish, three.accepted("finish")[0])
    assert not np.array_equal(three.accepted("finish")[0], three.accepted("finish")[1])


# --- recorded traces -------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [None, 4])
def test_a_recorded_trace_replays(cap: int | None) -> None:
    trace = simulate(latency.lognormal(), workers=4, updates=200, servers=2, max_staleness=cap)
    log = np.stack([trace.server, trace.worker, trace.version], axis=1)
    model = latency.recorded(log, times=trace.finish)
    again = simulate(model, workers=4, updates=200, servers=2, max_staleness=cap, seed=99)
    assert same(trace, again)


def test_a_recorded_trace_without_times_counts_events() -> None:
    trace = simulate(latency.recorded([(0, 0), (1, 0), (0, 1)]), workers=2, updates=3)
    assert trace.finish.tolist() == [1, 2, 3]
    assert trace.staleness.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("log", "argument", "match"),
    [
        ([(0, 0), (2, 0)], "latency", "event 1.*worker 2"),
        ([(0, 0), (1, 2)], "latency", "event 1.*version 2.*done 1"),
        ([(0, 0)], "latency", "has 1.*2"),
        ([(1, 0, 0), (0, 0, 0)], "latency", "event 0.*server 1"),
    ],
)
def test_a_recorded_trace_that_cannot_have_happened_is_refused(
    log: list, argument: str, match: str
) -> None:
    with refused(argument=argument, match=match):
        simulate(latency.recorded(log), workers=2, updates=2)


# --- sites -----------------------------------------------------------------------------------


def test_shares_are_counted_after_the_warmup() -> None:
    model = latency.constant((1.0, 2.0, 5.0))
    trace = simulate(model, workers=3, updates=1700, warmup=17, sites=("fast", "middle", "slow"))
    # Speeds 1 : 1/2 : 1/5 are shares 10/17, 5/17, 2/17; whole periods of 10 but for a few events.
    assert trace.shares[0] == pytest.approx(np.array([10, 5, 2]) / 17, abs=2e-3)
    assert trace.shares.sum() == pytest.approx(1)
    counted = np.bincount(trace.worker[17:], minlength=3) / 1683
    assert np.array_equal(trace.shares[0], counted)


@pytest.mark.parametrize(
    ("options", "argument", "match"),
    [
        ({"sites": ("a", "b")}, "workers", "2.*for 4"),
        ({"max_staleness": -1}, "max_staleness", "is -1"),
        ({"max_staleness": 0}, "max_staleness", "drops 75%"),
        ({"max_staleness": 2, "sites": tuple("abcd")}, "max_staleness", "'d'.*max_staleness=2"),
        ({"updates": 0}, "updates", "updates is 0"),
        ({"workers": 0}, "workers", "workers is 0"),
        ({"servers": 0}, "servers", "servers is 0"),
        ({"warmup": 400}, "warmup", "warmup is 400"),
        ({"latency": latency.constant((1.0, 2.0))}, "latency", "2.*for 4"),
        (
            {"latency": latency.constant((1, 1, 1, 60)), "sites": tuple("abcd")},
            None,
            "site 'd' sends only .* speeds",
        ),
    ],
)
def test_what_would_change_the_target_is_refused(
    options: dict, argument: str | None, match: str
) -> None:
    arguments = {"latency": latency.constant(), "workers": 4, "updates": 400, **options}
    with refused(argument=argument, match=match):
        simulate(arguments.pop("latency"), **arguments)


def test_a_site_at_a_tenth_of_an_equal_share_still_runs() -> None:
    # Share 1/39.6 of 1/4, a little above a tenth: 3 workers at speed 1, one at 1/12.
    trace = simulate(latency.constant((1, 1, 1, 12)), workers=4, updates=2000, sites=tuple("abcd"))
    assert 0.025 < trace.shares[0, 3] < 0.03

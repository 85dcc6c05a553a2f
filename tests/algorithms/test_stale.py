"""Samplers with stale gradients: their phases driven by a trace, and what they refuse."""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithms.stale_problem import (
    DIMENSION,
    MODEL,
    centre_of,
    curvature_of,
    one_site,
    three_sites,
)

from consortia import latency
from consortia.algorithms.stale import stale_sghmc, stale_sgld, stale_sgnht
from consortia.core import random
from consortia.core.contract import Mailbox, Site
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.schedules.events import Trace, simulate
from consortia.theory.staleness import langevin_server, sghmc_server, stale_trace_law

pytestmark = pytest.mark.usefixtures("x64")

PHASE_CODE = 2 * 65536
"""Of the first phase of an iteration, in the keys of its numbers."""


# --- the reference interpreter ---------------------------------------------------------------


@cache
def built(method):
    """The algorithm, its phase, and the phase's local function, compiled."""
    algorithm = method.build(Target(MODEL, jnp.zeros(DIMENSION)))
    (phase,) = algorithm.phases
    assert isinstance(phase.exchange, Mailbox)
    return algorithm, phase, jax.jit(lambda n, inbox, site: phase.local(n, (), (), inbox, site)[1])


def chain_key(seed: int, server: int):
    return random.phase_key(random.base_key(seed), server, PHASE_CODE)


def drawn_by_workers(phase, key, workers, tasks):
    """A worker's own numbers, counted by its task; leading axis: updates."""
    return drawn(phase, random.node_key(key, np.asarray(workers, np.uint32)), tasks)


@partial(jax.jit, static_argnums=0)
def drawn(phase, keys, tasks):
    return jax.vmap(lambda key, task: random.declared(phase.noise, key, task, 0, None))(keys, tasks)


def drawn_by_the_server(phase, key, updates, server):
    """The shared numbers, counted by the server's update; leading axis: updates."""
    return drawn_in_common(phase, random.shared_key(key), updates, server)


@partial(jax.jit, static_argnums=(0, 2))
def drawn_in_common(phase, key, updates, server):
    def declare(rng):
        rng.server = server
        return phase.shared(rng)

    return jax.vmap(lambda u: random.declared(declare, key, u, 0, None))(jnp.arange(updates))


def at(tree, index: int):
    return jax.tree.map(lambda leaf: leaf[index], tree)


def site_of(method, sites: Sites, node: int, share: float) -> Site:
    """A site as a row of the arrays of all sites, which is how a worker's data are reached."""
    return Site(
        jax.tree.map(jnp.asarray, sites.padded()),
        jnp.asarray(int(sites.sizes[node])),
        jnp.asarray(share),
        jnp.asarray(method.prior_shares(np.asarray(sites.sizes))[node]),
        node=jnp.asarray(node),
        number=jnp.asarray(node),
    )


def interpret(method, sites: Sites, trace: Trace, seed: int = 0, server: int = 0, start=None):
    """Drives the phases along a trace with a ring of past replies; draws and replies, (L, d).

    The server runs operation by operation, so that no fusion rounds one caller's arithmetic
    otherwise than another's.
    """
    algorithm, phase, local = built(method)
    several = len(sites) > 1
    shares = trace.shares[server] if several else np.ones(1)
    nodes = [site_of(method, sites, c, share) for c, share in enumerate(shares)]
    worker, task, staleness = (trace.accepted(f)[server] for f in ("worker", "task", "staleness"))
    key = chain_key(seed, server)
    noise = drawn_by_workers(phase, key, worker, task)
    shared = drawn_by_the_server(phase, key, trace.updates, jnp.int32(server))
    start = jnp.zeros(DIMENSION) if start is None else jnp.asarray(start)
    _, hub, inbox = algorithm.init(start)
    length = trace.largest_staleness + 1
    ring = [inbox] * length
    draws, replies = [], []
    for update in range(trace.updates):
        site = nodes[worker[update] if several else 0]
        stale = ring[(update - staleness[update]) % length]
        message = local(at(noise, update), stale, site)
        hub, reply, _ = phase.hub(at(shared, update), hub, message)
        ring[(update + 1) % length] = reply
        draws.append(algorithm.draws.hub(hub, reply))
        replies.append(reply)
    return np.stack(draws), np.stack(replies)


def shared_normals(seed: int, updates: int, server: int = 0) -> np.ndarray:
    key = random.shared_key(chain_key(seed, server))

    def normal(rng):
        return rng.normal("noise", (DIMENSION,))

    def draw(update):
        return random.declared(normal, key, update, 0, None)

    return np.asarray(jax.jit(jax.vmap(draw))(jnp.arange(updates)))


def trace_of(method, updates: int, **options) -> Trace:
    return simulate(
        method.latency,
        workers=method.workers,
        servers=method.servers,
        max_staleness=method.max_staleness,
        updates=updates,
        **options,
    )


# --- the phases against recursions written out -----------------------------------------------

UPDATES = 20


def by_hand(kind: str, h: float, B: float, gradient, trace: Trace, zeta: np.ndarray, ahead=0.0):
    theta, q, xi = np.zeros(DIMENSION), np.zeros(DIMENSION), np.array(B)
    if kind == "elementwise":
        xi = np.full(DIMENSION, B)
    sent, path = [theta], []
    for step in range(UPDATES):
        g = gradient(sent[step - trace.staleness[step]], step)
        if kind == "langevin":
            theta = theta - h * g + np.sqrt(2 * h) * zeta[step]
            point = theta
        elif kind == "euler":
            q = (1 - B * h) * q - h * g + np.sqrt(2 * B * h) * zeta[step]
            theta = theta + h * q
            point = theta
        else:

            def excess(q):
                return {"scalar": q @ q / DIMENSION - 1, "elementwise": q * q - 1}.get(kind, 0.0)

            theta = theta + h / 2 * q
            xi = xi + h / 2 * excess(q)
            q = np.exp(-xi * h / 2) * q - h * g + np.sqrt(2 * B * h) * zeta[step]
            q = np.exp(-xi * h / 2) * q
            theta = theta + h / 2 * q
            xi = xi + h / 2 * excess(q)
            point = theta + h / 2 * q
        sent.append(point + ahead * h * q)
        path.append(theta)
    return np.array(path), np.array(sent[1:])


METHODS = {
    "langevin": partial(stale_sgld, 0.1),
    "euler": partial(stale_sghmc, 0.1, 0.7),
    "splitting": partial(stale_sghmc, 0.1, 0.7, integrator="splitting"),
    "scalar": partial(stale_sgnht, 0.1, 0.7),
    "elementwise": partial(stale_sgnht, 0.1, 0.7, thermostat="elementwise"),
}


@pytest.mark.parametrize("kind", METHODS)
def test_the_phases_follow_the_equations_with_stale_gradients(kind: str) -> None:
    method = METHODS[kind](workers=4)
    sites = one_site()
    trace = trace_of(method, UPDATES)
    assert trace.largest_staleness > 3
    lam, mu = curvature_of(sites.shards[0], 1.0), centre_of(sites.shards[0], 1.0)
    draws, replies = interpret(method, sites, trace, seed=5)
    expected, sent = by_hand(
        kind, 0.1, 0.7, lambda point, step: lam * (point - mu), trace, shared_normals(5, UPDATES)
    )
    # Double precision, errors grow with the number of updates.
    np.testing.assert_allclose(draws, expected, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(replies, sent, rtol=1e-11, atol=1e-12)
    half_step = kind in ("splitting", "scalar", "elementwise")
    assert (np.abs(draws - replies).max() > 1e-3) == half_step


@pytest.mark.parametrize("kind", ["euler", "splitting", "elementwise"])
@pytest.mark.parametrize(("given", "steps"), [(True, 3), (1.5, 1.5)])
def test_extrapolation_moves_what_is_broadcast_and_not_the_draw(kind, given, steps) -> None:
    method = METHODS[kind](workers=4, extrapolate=given)
    sites = one_site()
    trace = trace_of(method, UPDATES)
    lam, mu = curvature_of(sites.shards[0], 1.0), centre_of(sites.shards[0], 1.0)
    draws, replies = interpret(method, sites, trace, seed=5)
    expected, sent = by_hand(
        kind,
        0.1,
        0.7,
        lambda point, step: lam * (point - mu),
        trace,
        shared_normals(5, UPDATES),
        steps,
    )
    np.testing.assert_allclose(draws, expected, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(replies, sent, rtol=1e-11, atol=1e-12)


def test_sites_are_weighted_by_their_shares_of_the_accepted_updates() -> None:
    speeds = latency.constant((1.0, 2.0, 4.0))
    method = stale_sgld(0.02, workers=3, latency=speeds, aggregate="each")
    sites = three_sites()
    trace = trace_of(method, UPDATES, sites=sites.names)
    priors = np.array([10, 20, 5]) / 35
    pairs = list(zip(sites.shards, priors, strict=True))
    lam = np.array([curvature_of(shard, share) for shard, share in pairs])
    mu = np.array([centre_of(shard, share) for shard, share in pairs])
    shares = trace.shares[0]
    assert shares[0] > shares[1] > shares[2]

    def gradient(point, step):
        c = trace.worker[step]
        return lam[c] * (point - mu[c]) / shares[c]

    draws, _ = interpret(method, sites, trace, seed=2)
    expected, _ = by_hand("langevin", 0.02, 1, gradient, trace, shared_normals(2, UPDATES))
    np.testing.assert_allclose(draws, expected, rtol=1e-11, atol=1e-12)


def test_the_latest_gradients_of_all_sites_are_summed() -> None:
    method = stale_sgld(0.02, workers=3, aggregate="latest")
    sites = three_sites()
    trace = trace_of(method, UPDATES, sites=sites.names)
    priors = np.array([10, 20, 5]) / 35
    pairs = list(zip(sites.shards, priors, strict=True))
    table = np.zeros((3, DIMENSION))

    def gradient(point, step):
        c = trace.worker[step]
        shard, share = pairs[c]
        table[c] = curvature_of(shard, share) * (point - centre_of(shard, share))
        return table.sum(axis=0)

    draws, _ = interpret(method, sites, trace, seed=2)
    expected, _ = by_hand("langevin", 0.02, 1, gradient, trace, shared_normals(2, UPDATES))
    np.testing.assert_allclose(draws, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "server"),
    [
        ("langevin", langevin_server(0.1)),
        ("euler", sghmc_server(0.1, 0.7)),
        ("splitting", sghmc_server(0.1, 0.7, integrator="splitting")),
    ],
)
def test_the_mean_of_the_draws_is_that_of_the_oracle(kind: str, server) -> None:
    """Without noise the phases give the mean of the exact law along the same trace."""
    method = METHODS[kind](workers=4, temperature=0.0)
    sites = one_site()
    trace = trace_of(method, UPDATES)
    draws, _ = interpret(method, sites, trace, start=[2.0, 1.0])
    law = stale_trace_law(
        server,
        trace.staleness,
        curvature_of(sites.shards[0], 1.0),
        centre=centre_of(sites.shards[0], 1.0),
        start_mean=[2.0, 1.0],
    )
    np.testing.assert_allclose(draws, law.mean, rtol=1e-11)


# --- delay 0 ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "batch_size"), [(kind, 4) for kind in METHODS] + [("euler", None)]
)
def test_one_worker_is_the_synchronous_sampler_bit_for_bit(kind: str, batch_size) -> None:
    method = METHODS[kind](batch_size, workers=1)
    sites, updates = one_site(), 15
    draws, _ = interpret(method, sites, trace_of(method, updates), seed=9)
    _, phase, local = built(method)
    key, h = chain_key(9, 0), jnp.asarray(0.1)
    noise = drawn_by_workers(phase, key, jnp.zeros(updates, int), jnp.arange(updates))
    normals = drawn_by_the_server(phase, key, updates, jnp.int32(0)).normal
    site = site_of(method, sites, 0, 1.0)
    state = method.dynamics.start(jnp.zeros(DIMENSION))
    for update in range(updates):
        gradient = local(at(noise, update), method.dynamics.point(state, h), site)
        state = method.dynamics.step(state, gradient, normals[update], h)
        assert np.array_equal(draws[update], state.position)


def test_dropped_gradients_change_which_tasks_are_used_and_nothing_else() -> None:
    capped = stale_sgld(0.1, 4, workers=4, max_staleness=3, latency=latency.exponential())
    sites = one_site()
    trace = trace_of(capped, UPDATES)
    assert trace.dropped.any()
    free = stale_sgld(0.1, 4, workers=4, latency=latency.exponential())
    accepted = ~trace.dropped
    only = Trace(
        4,
        UPDATES,
        0,
        *(
            getattr(trace, f)[accepted]
            for f in ("server", "worker", "task", "version", "staleness", "finish", "dropped")
        ),
        trace.in_flight,
    )
    assert np.array_equal(interpret(capped, sites, trace)[0], interpret(free, sites, only)[0])


def test_runs_again_are_equal_and_a_recorded_trace_gives_the_same_chain() -> None:
    method = stale_sgld(0.1, 4, workers=3)
    sites = one_site()
    trace = trace_of(method, UPDATES)
    draws = interpret(method, sites, trace)[0]
    assert np.array_equal(draws, interpret(method, sites, trace_of(method, UPDATES))[0])
    log = np.stack([trace.worker, trace.version], axis=1)
    replayed = stale_sgld(0.1, 4, workers=3, latency=latency.recorded(log))
    assert np.array_equal(draws, interpret(replayed, sites, trace_of(replayed, UPDATES))[0])


# --- step sizes ------------------------------------------------------------------------------


def test_a_half_step_point_belongs_to_the_step_that_will_use_it() -> None:
    table = np.linspace(0.2, 0.05, 12)
    method = stale_sghmc(table, 0.7, workers=1, integrator="splitting")
    sites = one_site()
    draws, replies = interpret(method, sites, trace_of(method, 12), seed=3)
    lam, mu = curvature_of(sites.shards[0], 1.0), centre_of(sites.shards[0], 1.0)
    theta, q = np.zeros(DIMENSION), np.zeros(DIMENSION)
    for step, h in enumerate(table):
        half = theta + h / 2 * q
        g = lam * (half - mu)
        kicked = np.exp(-0.35 * h) * q - h * g + np.sqrt(1.4 * h) * shared_normals(3, 12)[step]
        q = np.exp(-0.35 * h) * kicked
        theta = half + h / 2 * q
        np.testing.assert_allclose(draws[step], theta, rtol=1e-11)
    assert np.all(np.isfinite(replies))


def test_servers_have_their_own_step_sizes_and_numbers() -> None:
    method = stale_sgld([0.1, 0.3], workers=2, servers=2)
    sites = one_site()
    trace = trace_of(method, 10)
    zeta = shared_normals(1, 1, server=1)[0]
    lam, mu = curvature_of(sites.shards[0], 1.0), centre_of(sites.shards[0], 1.0)
    first = interpret(method, sites, trace, seed=1, server=1)[0][0]
    np.testing.assert_allclose(first, 0.3 * lam * mu + np.sqrt(0.6) * zeta, rtol=1e-12)

"""Sketches of systems in which one message moves at a time: a parameter server, a travelling chain.

They are driven by a toy engine that uses nothing but the contract: a phase's ``local``, ``hub`` and
declared numbers, `Site`, and an inbox that is some past reply. Counters are the worker's task and
the server's update. No line of it knows a method.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sparse import sparse

import consortia
from consortia import latency
from consortia.core import random
from consortia.core.contract import Algorithm, Draws, Exchange, Mailbox, Phase, Route, Site, Sum
from consortia.core.target import Target
from consortia.engines import mailbox, rng
from consortia.schedules.events import simulate

pytestmark = pytest.mark.usefixtures("x64")


@functools.partial(jax.jit, static_argnums=0)
def drawn(declare: Any, key: Any, at: Any) -> Any:
    """The numbers that a phase declares."""
    return random.declared(declare, key, at, 0, None)


class Toy:
    """Runs an algorithm of one phase, one message after the other, from a given trace."""

    def __init__(
        self,
        algorithm: Algorithm,
        sites: Any,
        weights: Any,
        seed: int = 0,
        chain: int = 0,
        prior_shares: Any = None,
    ) -> None:
        (self.phase,) = algorithm.phases
        self.algorithm, self.sites, self.weights = algorithm, sites, jnp.asarray(weights)
        self.prior_shares = self.weights if prior_shares is None else jnp.asarray(prior_shares)
        base = jnp.asarray(random.base_key(seed))
        self.key = random.phase_key(base, chain, rng.ROUND * 65536)
        self.data = jax.tree.map(jnp.asarray, sites.padded())
        self.fitted = self.fit() if algorithm.fit else [()] * len(sites)
        self.local, self.hub = jax.jit(self.phase.local), self.phase.hub and jax.jit(self.phase.hub)
        self.node_key = functools.cache(functools.partial(random.node_key, self.key))
        self.shared_key = random.shared_key(self.key)

    def site(self, node: int, fitted: Any = ()) -> Site:
        size = jnp.int32(self.sites.sizes[node])
        weight, share = self.weights[node], self.prior_shares[node]
        return Site(self.data, size, weight, share, fitted, jnp.int32(node))

    def fit(self) -> list[Any]:
        (phase,) = self.algorithm.fit
        state, _, inbox = self.algorithm.init(jnp.zeros(1))
        nodes = range(len(self.sites))
        made = [phase.local((), (), state, inbox, self.site(node)) for node in nodes]
        total = jax.tree.map(lambda *leaves: sum(leaves), *[outbox for _, outbox, _ in made])
        return [(own, total) for own, _, _ in made]

    def shared(self, at: int) -> Any:
        return drawn(self.phase.shared, self.shared_key, at)

    def work(self, node: int, task: int, shared: Any, state: Any, inbox: Any) -> Any:
        noise = drawn(self.phase.noise, self.node_key(node), task)
        place = node if len(self.sites) > 1 else 0  # several workers may share one site
        site = self.site(place, self.fitted[place])
        return self.local(noise, shared, state, inbox, site)[:2]

    def mailbox(self, start: Any, events: Iterable[tuple[int, int]], limit: int) -> np.ndarray:
        """Draws after the accepted updates; an event is (worker, staleness)."""
        state, hub, inbox = self.algorithm.init(jnp.asarray(start))
        workers = self.phase.exchange.workers
        states, replies, draws = [state] * workers, [inbox], []
        tasks = [0] * workers
        for worker, staleness in events:
            inbox = replies[len(replies) - 1 - staleness]
            after, outbox = self.work(worker, tasks[worker], (), states[worker], inbox)
            tasks[worker] += 1
            if staleness > limit:
                continue
            states[worker] = after
            hub, reply, _ = self.hub(self.shared(len(draws)), hub, outbox)
            replies.append(reply)
            draws.append(self.algorithm.draws.hub(hub, reply))
        return np.array(draws)

    def route(self, start: Any, visits: Iterable[int]) -> np.ndarray:
        """Draws after each visit of one chain."""
        state, hub, inbox = self.algorithm.init(jnp.asarray(start))
        states, draws = [state] * len(self.sites), []
        for at, node in enumerate(visits):
            states[node], inbox = self.work(node, at, self.shared(at), states[node], inbox)
            draws.append(self.algorithm.draws.hub(hub, inbox))
        return np.array(draws)


# --- the problem: Gaussian rows of unit variance, N(0, 1) as the prior ----------------------------

MODEL = consortia.Model(
    lambda p: -0.5 * jnp.sum(p**2), lambda p, rows: -0.5 * (rows["y"] - p[0]) ** 2, jnp.zeros(1)
)


def make_sites(sizes: tuple[int, ...]) -> consortia.Sites:
    rng = np.random.default_rng(0)
    return consortia.Sites.from_list([{"y": rng.normal(size=n) + i} for i, n in enumerate(sizes)])


THREE, ONE = make_sites((2, 4, 3)), make_sites((5,))
ROWS = np.concatenate([shard["y"] for shard in THREE])
MODE = ROWS.sum() / (len(ROWS) + 1)
TARGET = Target(MODEL, MODEL.init)


# --- a server with stale gradients ----------------------------------------------------------------


def stale_sghmc(
    exchange: Exchange, step: float, friction: float = 1.0, heat: float = 1.0, batch: int = 0
) -> Algorithm:
    """ABOBA: the server broadcasts the half-step point; workers scale by their share f_c."""
    decay = math.exp(-friction * step / 2)

    def local(noise: Any, shared: Any, state: Any, inbox: Any, site: Site) -> Any:
        if batch:
            rows = site.rows(site.index(noise))
            gradient = jax.grad(TARGET.batch_potential)(inbox, rows, site)
        else:
            gradient = jax.grad(TARGET.potential)(inbox, *site.all(), site)
        return state, gradient / site.weight, {}

    def hub(shared: Any, hub: Any, message: Any) -> Any:
        theta, momentum = hub
        theta = theta + step / 2 * momentum
        kick = -step * message + math.sqrt(2 * friction * step * heat) * shared
        momentum = decay * (decay * momentum + kick)
        theta = theta + step / 2 * momentum
        return (theta, momentum), theta + step / 2 * momentum, {}

    phase = Phase(
        local,
        exchange,
        hub,
        noise=lambda rng: rng.bits("rows", (batch,)) if batch else (),
        shared=lambda rng: rng.normal("momentum", (1,)),
    )
    return Algorithm(
        lambda p: ((), (p, jnp.zeros_like(p)), p), (phase,), Draws(hub=lambda hub, inbox: hub[0])
    )


def stale_sgld(step: float) -> Algorithm:
    def local(noise: Any, shared: Any, state: Any, inbox: Any, site: Site) -> Any:
        return state, jax.grad(TARGET.potential)(inbox, *site.all(), site), {}

    def hub(shared: Any, hub: Any, message: Any) -> Any:
        hub = hub - step * message + math.sqrt(2 * step) * shared
        return hub, hub, {}

    phase = Phase(local, Mailbox(1), hub, shared=lambda rng: rng.normal("noise", (1,)))
    return Algorithm(lambda p: ((), p, p), (phase,), Draws(hub=lambda hub, inbox: hub))


@pytest.mark.parametrize("batch", [0, 2])
def test_without_delay_a_server_of_one_worker_is_the_synchronous_sampler(
    runner: Any, batch: int
) -> None:
    toy = Toy(stale_sghmc(Mailbox(1), 0.1, batch=batch), ONE, [1.0])
    made = toy.mailbox([2.0], [(0, 0)] * 40, limit=0)
    local = runner(lambda target: stale_sghmc(Sum(), 0.1, batch=batch), MODEL, ONE, [[2.0]])
    np.testing.assert_allclose(made, local.advance(40).draws[0], rtol=0, atol=1e-12)


def test_gradients_of_constant_staleness_are_the_delayed_recursion() -> None:
    # x⁺ = x − h∇U(x_{l−τ}) + √(2h) ζ_l, with the server's own numbers.
    step, delay = 0.02, 3
    toy = Toy(stale_sgld(step), ONE, [1.0])
    events = [(0, min(update, delay)) for update in range(60)]
    made = toy.mailbox([2.0], events, limit=10)
    rows = np.asarray(ONE.shards[0]["y"])
    history = [np.array([2.0])]
    for update in range(60):
        old = history[max(update - delay, 0)]
        gradient = len(rows) * old - rows.sum() + old
        noise = math.sqrt(2 * step) * np.asarray(toy.shared(update))
        history.append(history[-1] - step * gradient + noise)
    np.testing.assert_allclose(made, history[1:], rtol=0, atol=1e-12)
    fresh = toy.mailbox([2.0], [(0, 0)] * 60, limit=10)
    assert np.abs(fresh - made).max() > 1e-2


def test_a_dropped_gradient_leaves_the_server_and_its_numbers_as_they_are() -> None:
    toy = Toy(stale_sghmc(Mailbox(3), 0.05), THREE, [1 / 3] * 3)
    # Worker 2 arrives too late and is dropped: as if it had never sent.
    with_drop = [(0, 0), (1, 1), (0, 1), (1, 0), (2, 4), (0, 2), (1, 1)]
    without = [event for event in with_drop if event[1] <= 3]
    made = toy.mailbox([2.0], with_drop, limit=3)
    assert len(made) == 6
    np.testing.assert_array_equal(made, toy.mailbox([2.0], without, limit=3))


def test_sites_heard_unequally_often_leave_the_target_when_scaled_by_their_shares() -> None:
    shares = np.array([0.6, 0.3, 0.1])
    order = [0, 1, 0, 0, 1, 0, 2, 0, 1, 0] * 60
    events = [(worker, min(2, update)) for update, worker in enumerate(order)]
    cold = stale_sghmc(Mailbox(3), 0.01, friction=2.0, heat=0.0)
    # The prior goes with the rows' owners: λ_c = f_c here, so that the sum over messages is ∇U.
    centre = Toy(cold, THREE, shares).mailbox([2.0], events, limit=5)[-200:].mean()
    # The step's own error is O(h) of what one message moves; without the shares the answer is the
    # mode of sites weighted by how often they are heard.
    totals = np.array([shard["y"].sum() for shard in THREE])
    counts = np.array([2, 4, 3])
    unscaled = shares @ totals / (shares @ counts + shares @ shares)
    assert abs(centre - MODE) < 0.02
    assert abs(unscaled - MODE) > 0.2


def with_memory(exchange: Mailbox, step: float) -> Algorithm:
    """A worker that counts its tasks and sends the count along: states belong to workers."""
    plain = stale_sghmc(exchange, step, batch=2)
    (phase,) = plain.phases

    def local(noise: Any, shared: Any, state: Any, inbox: Any, site: Site) -> Any:
        _, message, info = phase.local(noise, shared, (), inbox, site)
        return state + 1, message + 0.01 * state, info

    return plain._replace(
        phases=(phase._replace(local=local),),
        init=lambda p: (jnp.zeros(()), *plain.init(p)[1:]),
    )


BOXES = {
    "several workers at one site": (ONE, {"workers": 4}),
    "a site for each worker": (THREE, {"workers": 3, "latency": latency.constant((1.0, 1.7, 2.2))}),
    "a cap that drops": (
        ONE,
        {"workers": 4, "latency": latency.exponential(), "max_staleness": 3},
    ),
    "two servers": (THREE, {"workers": 3, "servers": 2}),
}


# The workers with a memory do all that the others do, and more.
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda box, step: stale_sghmc(box, step, batch=2), marks=pytest.mark.slow),
        with_memory,
    ],
)
@pytest.mark.parametrize(
    ("name", "chains"),
    sparse(
        itertools.product(BOXES, (1, 3)),
        [(name, 1 if number % 2 else 3) for number, name in enumerate(BOXES)],
    ),
)
def test_the_local_engine_moves_one_message_at_a_time_as_the_toy_does(
    runner: Any, monkeypatch: Any, name: str, chains: int, make: Any
) -> None:
    sites, options = BOXES[name]
    box = Mailbox(**{"latency": latency.lognormal()} | options)
    rounds, seed = 70, 11
    monkeypatch.setattr(mailbox, "STRETCH", 32)  # the trace is handed over in three pieces
    total = chains * box.servers
    engine = runner(
        lambda target: make(box, 0.05), MODEL, sites, [[2.0]] * total, seed, rounds=rounds
    )
    made = np.concatenate([engine.advance(n).draws for n in (10, 60)], axis=1)
    several = len(sites) > 1
    trace = simulate(
        box.latency,
        workers=box.workers,
        servers=box.servers,
        max_staleness=box.max_staleness,
        updates=rounds,
        seed=seed,
        sites=sites.names if several else None,
    )
    assert (box.max_staleness is not None) == bool(trace.dropped.any())
    algorithm = make(box, 0.05)
    for chain in {0, total - 1}:
        server = chain // chains
        weights = trace.shares[server] if several else np.ones(1)
        priors = np.full(len(sites), 1 / len(sites))
        toy = Toy(algorithm, sites, weights, seed, chain, priors)
        here = trace.server == server
        events = list(zip(trace.worker[here], trace.staleness[here], strict=True))
        limit = rounds if box.max_staleness is None else box.max_staleness
        expected = toy.mailbox([2.0], events, limit)
        np.testing.assert_allclose(made[chain], expected, rtol=0, atol=1e-12)
        # The negative control: fresh gradients make another chain.
        fresh = toy.mailbox([2.0], [(worker, 0) for worker, _ in events], limit)
        assert np.abs(fresh[:rounds] - made[chain]).max() > 1e-3


# --- a chain that travels -------------------------------------------------------------------------


def fsgld(step: float, alpha: float, updates: int = 3, batch: int = 0) -> Algorithm:
    """T Langevin steps at the visited site, with conducive gradients from fitted surrogates."""

    def fit(noise: Any, shared: Any, state: Any, inbox: Any, site: Site) -> Any:
        rows, mask = site.all()
        own = (jnp.sum(jnp.where(mask, rows["y"], 0)), jnp.asarray(site.size, jnp.float64))
        return own, own, {}  # natural parameters r_s and P_s of q_s

    def local(noise: Any, shared: Any, state: Any, inbox: Any, site: Site) -> Any:
        (own_r, own_p), (total_r, total_p) = site.fitted
        theta = inbox
        for update in range(updates):
            if batch:
                rows = site.rows(site.index(noise["rows"][update]))
                gradient = jax.grad(TARGET.batch_potential)(theta, rows, site)
            else:
                gradient = jax.grad(TARGET.potential)(theta, *site.all(), site)
            conducive = total_r - total_p * theta - (own_r - own_p * theta) / site.weight
            drift = -gradient / site.weight + alpha * conducive
            theta = theta + step / 2 * drift + math.sqrt(step) * noise["normal"][update]
        return state, theta, {}

    def declare(rng: Any) -> Any:
        made = {"normal": rng.normal("normal", (updates, 1))}
        return made | ({"rows": rng.bits("rows", (updates, batch))} if batch else {})

    return Algorithm(
        lambda p: ((), (), p),
        (Phase(local, Route(), noise=declare),),
        Draws(hub=lambda hub, inbox: inbox),
        fit=(Phase(fit, Sum()),),
    )


@pytest.mark.parametrize(
    ("alpha", "batch"), sparse(itertools.product((0.0, 1.0), (0, 2)), [(0.0, 0), (1.0, 2)])
)
def test_the_local_engine_and_the_toy_move_a_chain_alike(
    runner: Any, alpha: float, batch: int
) -> None:
    made = runner(lambda target: fsgld(0.02, alpha, batch=batch), MODEL, THREE, [[2.0]])
    records = made.advance(25)
    visits = [int(made.numbers(at)[0].visited) for at in range(25)]
    assert set(visits) == {0, 1, 2}
    toy = Toy(fsgld(0.02, alpha, batch=batch), THREE, [1 / 3] * 3)
    np.testing.assert_allclose(toy.route([2.0], visits), records.draws[0], rtol=0, atol=1e-12)


def test_with_exact_surrogates_every_visit_follows_the_pooled_gradient() -> None:
    # On Gaussian rows α = 1 leaves ∇U wherever the chain is; α = 0 does not.
    visits = [0, 2, 1, 1, 0, 2, 0, 1]

    def pooled(step: float, toy: Toy) -> np.ndarray:
        theta, draws = np.array([2.0]), []
        for at, node in enumerate(visits):
            key = random.node_key(toy.key, node)
            noise = random.declared(toy.phase.noise, key, at, 0, None)["normal"]
            for update in range(3):
                gradient = len(ROWS) * theta - ROWS.sum() + theta
                noise_now = math.sqrt(step) * np.asarray(noise[update])
                theta = theta - step / 2 * gradient + noise_now
            draws.append(theta)
        return np.array(draws)

    shares = [0.25, 0.5, 0.25]
    conducive = Toy(fsgld(0.02, 1.0), THREE, shares)
    expected = pooled(0.02, conducive)
    np.testing.assert_allclose(conducive.route([2.0], visits), expected, rtol=0, atol=1e-12)
    plain = Toy(fsgld(0.02, 0.0), THREE, shares)
    assert np.abs(plain.route([2.0], visits) - expected).max() > 1e-2


def test_the_corrections_of_all_sites_cancel_under_the_visiting_probabilities() -> None:
    toy = Toy(fsgld(0.02, 1.0), THREE, [0.5, 0.3, 0.2])
    theta = 0.7
    total = sum(
        weight * ((r - p * theta) / weight - (total_r - total_p * theta))
        for weight, ((r, p), (total_r, total_p)) in zip([0.5, 0.3, 0.2], toy.fitted, strict=True)
    )
    assert abs(total) < 1e-12

"""The contract of phases, as the local engine keeps it: stages, repetition, infos, agents."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from consortia.core.contract import Algorithm, Draws, Mean, Mix, Phase, Route, Sum
from consortia.engines.buffers import Window
from consortia.errors import NonFiniteError
from consortia.run.loop import RunLength, RunLoop
from consortia.run.progress import Progress
from consortia.run.stopping import stop_when
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("x64")

ENGINES = [{}, {"block": 1}, {"node_mode": "map", "block": 3}]
SHARES = np.array([1, 2, 3]) / 6  # of the three sites' rows

HUB = Draws(hub=lambda hub, inbox: jnp.atleast_1d(hub))
INBOX = Draws(hub=lambda hub, inbox: jnp.atleast_1d(inbox))


def add_one(shared: Any, hub: Any, message: Any) -> Any:
    return hub + 1, jnp.zeros(()), {}


def rows_of(site: Any) -> Any:
    return jnp.asarray(site.size, jnp.float64)


def silent(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
    return state, inbox, {}


def algorithm(*phases: Phase, hub: Any = 0.0, draws: Draws = HUB, **stages: Any) -> Algorithm:
    def init(position: Any) -> Any:
        return jnp.zeros(()), jnp.asarray(hub), jnp.zeros(())

    return Algorithm(init, phases, draws, **stages)


# --- what a phase is -----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("chains", [1, 2])
def test_a_phase_goes_from_local_through_the_exchange_to_the_hub(
    drive: Any, engine: dict[str, Any], chains: int
) -> None:
    def local(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
        rows, mask = site.all()
        total = jnp.sum(jnp.where(mask, rows["y"], 0))
        return state + 1, state + total + inbox + site.weight, {}

    def hub(shared: Any, state: Any, message: Any) -> Any:
        return state + message, 2 * message, {}

    made = drive(algorithm(Phase(local, Sum(), hub)), rounds=4, chains=chains, **engine)
    # Site i has i + 1 rows equal to i: totals 0, 2, 6; the states count the rounds.
    inbox, hub_state, expected = 0.0, 0.0, []
    for state in range(4):
        message = sum(state + total + inbox for total in (0, 2, 6)) + 1  # Σ w_c = 1
        hub_state, inbox = hub_state + message, 2 * message
        expected.append(hub_state)
    for chain in range(chains):
        np.testing.assert_allclose(made.draws[chain, :, 0], expected, rtol=1e-13)


def test_both_halves_of_a_phase_are_traced_once_for_the_shapes_and_the_rounds(drive: Any) -> None:
    traced = []

    def local(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
        traced.append("local")
        return state, inbox, {}

    def hub(shared: Any, state: Any, message: Any) -> Any:
        traced.append("hub")
        return state + 1, message, {}

    made = drive(algorithm(Phase(local, Sum(), hub)), rounds=3)
    np.testing.assert_array_equal(made.draws[0, :, 0], [1, 2, 3])
    assert sorted(traced) == ["hub", "local"]


def test_a_phase_without_local_is_the_hub_alone(drive: Any) -> None:
    made = drive(algorithm(Phase(None, None, add_one)), rounds=3)
    np.testing.assert_array_equal(made.draws[0, :, 0], [1, 2, 3])


def test_without_a_hub_the_reply_is_the_message(drive: Any) -> None:
    def local(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
        return state, inbox + jnp.where(site.size == 3, 1.0, 0.0), {}

    made = drive(algorithm(Phase(local, Mean()), draws=INBOX), rounds=3)
    np.testing.assert_allclose(made.draws[0, :, 0], 0.5 * np.arange(1, 4), rtol=1e-13)


def test_without_an_exchange_a_node_keeps_its_outbox_to_itself(drive: Any) -> None:
    def own(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
        return state, rows_of(site), {}

    def compare(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
        return state, jnp.abs(inbox - rows_of(site)), {}

    made = drive(algorithm(Phase(own), Phase(compare, Sum()), draws=INBOX), rounds=2)
    np.testing.assert_array_equal(made.draws, 0)


def test_mixed_messages_differ_from_node_to_node_and_survive_the_iteration(drive: Any) -> None:
    rotate = ((0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0))

    def local(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
        # The first time everyone sends its size, then it passes on what it received.
        value = jnp.where(state == 0, rows_of(site), inbox)
        return state + 1, value, {}

    draws = Draws(node=lambda state, inbox: jnp.atleast_1d(inbox), agents=True)
    made = drive(algorithm(Phase(local, Mix(rotate)), draws=draws), rounds=3)
    np.testing.assert_array_equal(
        made.records.agents[0, :, :, 0], [[2, 3, 1], [3, 1, 2], [1, 2, 3]]
    )
    np.testing.assert_allclose(made.draws[0, :, 0], 2, rtol=1e-14)  # their plain average


# --- repetition ----------------------------------------------------------------------------------


def test_a_repeated_phase_sees_new_numbers_each_time(drive: Any) -> None:
    def hub(shared: Any, state: Any, message: Any) -> Any:
        return jnp.concatenate([state[1:], shared[None]]), (), {}

    phase = Phase(None, None, hub, shared=lambda rng: rng.uniform("u"), repeat=5)
    # The reply is empty, so the inbox must be too.
    made = drive(
        Algorithm(lambda p: ((), jnp.zeros(5), ()), (phase,), Draws(hub=lambda hub, inbox: hub)),
        rounds=2,
    )
    assert len(set(made.draws.reshape(-1).tolist())) == 10


@pytest.mark.parametrize("engine", ENGINES)
def test_each_chain_repeats_a_phase_as_often_as_it_says(drive: Any, engine: Any) -> None:
    def begin(shared: Any, hub: Any, message: Any) -> Any:
        length = jnp.floor(5 * shared).astype(jnp.int32)  # 0, ..., 4
        return (length, jnp.zeros(())), jnp.zeros(()), {}

    def local(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
        return state + 1, jnp.ones(()), {}

    def hub(shared: Any, state: Any, message: Any) -> Any:
        return (state[0], state[1] + message), jnp.zeros(()), {}

    made = drive(
        Algorithm(
            lambda p: (jnp.zeros(()), (jnp.int32(0), jnp.zeros(())), jnp.zeros(())),
            (
                Phase(None, None, begin, shared=lambda rng: rng.uniform("length")),
                Phase(local, Sum(), hub, repeat=4, repeats=lambda hub: hub[0]),
            ),
            Draws(hub=lambda hub, inbox: jnp.stack([hub[0].astype(jnp.float64), hub[1]])),
        ),
        rounds=12,
        chains=5,
        **engine,
    )
    lengths, messages = made.draws[..., 0], made.draws[..., 1]
    assert set(lengths.reshape(-1).tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0}
    assert any(len(set(row)) > 1 for row in lengths.T.tolist())  # unlike in one iteration
    np.testing.assert_array_equal(messages, 3 * lengths)
    node = np.asarray(made.carry.node)  # (nodes, chains): every repetition ran at every node
    np.testing.assert_array_equal(node, np.tile(lengths.sum(axis=1), (3, 1)))


def test_a_count_of_zero_stands_even_where_the_bound_is_one(drive: Any) -> None:
    phase = Phase(None, None, add_one, repeat=1, repeats=lambda hub: jnp.int32(0))
    made = drive(algorithm(phase), rounds=2)
    np.testing.assert_array_equal(made.draws, 0)


# --- fit and setup -------------------------------------------------------------------------------


@pytest.mark.parametrize("chains", [1, 2])
def test_setup_runs_once_before_the_first_iteration(drive: Any, chains: int) -> None:
    def local(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
        return state + 10, jnp.ones(()), {}

    def hub(shared: Any, state: Any, message: Any) -> Any:
        return state + message, message, {}

    made = drive(
        algorithm(Phase(None, None, add_one), setup=(Phase(local, Sum(), hub),)),
        rounds=3,
        chains=chains,
    )
    np.testing.assert_array_equal(made.draws[..., 0], [[4, 5, 6]] * chains)  # 3 nodes, then 1 each
    np.testing.assert_array_equal(made.carry.node, np.full(np.shape(made.carry.node), 10))


@pytest.mark.parametrize("repeat", [1, 3])
def test_a_phase_of_setup_repeats_as_it_says(drive: Any, repeat: int) -> None:
    made = drive(
        algorithm(Phase(None, None, add_one), setup=(Phase(None, None, add_one, repeat=repeat),)),
        rounds=1,
    )
    assert made.draws[0, 0, 0] == repeat + 1


@pytest.mark.parametrize("repeat", [1, 3])
def test_a_phase_of_fit_repeats_as_it_says(drive: Any, repeat: int) -> None:
    def fit(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
        return state + noise, inbox, {}

    def local(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
        own, _ = site.fitted
        return state, own, {}

    phase = Phase(fit, Sum(), noise=lambda rng: 1 + 0 * rng.uniform("u"), repeat=repeat)
    made = drive(algorithm(Phase(local, Sum()), fit=(phase,), draws=INBOX), rounds=1)
    assert made.draws[0, 0, 0] == 3 * repeat


@pytest.mark.parametrize("engine", ENGINES)
def test_what_fit_leaves_is_read_at_its_site_by_every_chain(drive: Any, engine: Any) -> None:
    def fit(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
        value = rows_of(site) + noise
        return value, value, {}

    def local(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
        own, total = site.fitted
        correct = jnp.abs(own - rows_of(site)) < 1  # this site's own, not another's
        return state, jnp.stack([own, total, jnp.where(correct, 1.0, 0.0)]), {}

    made = drive(
        Algorithm(
            lambda p: (jnp.zeros(()), (), jnp.zeros(3)),
            (Phase(local, Sum()),),
            Draws(hub=lambda hub, inbox: inbox),
            fit=(Phase(fit, Sum(), noise=lambda rng: rng.uniform("u")),),
        ),
        rounds=2,
        chains=3,
        **engine,
    )
    own, total, correct = np.moveaxis(made.draws, -1, 0)
    np.testing.assert_array_equal(correct, 3)
    np.testing.assert_allclose(total, 3 * own, rtol=1e-13)
    assert len(set(own.reshape(-1).tolist())) == 1  # once, not once a chain


def test_stages_draw_different_numbers(drive: Any) -> None:
    def keep(shared: Any, state: Any, message: Any) -> Any:
        return jnp.concatenate([state[1:], shared[None]]), (), {}

    phase = Phase(None, None, keep, shared=lambda rng: rng.uniform("u"))
    made = drive(
        Algorithm(
            lambda p: ((), jnp.zeros(3), ()),
            (phase, phase),
            Draws(hub=lambda hub, inbox: hub),
            setup=(phase,),
        ),
        rounds=1,
    )
    assert len(set(made.draws.reshape(-1).tolist())) == 3


def test_phases_see_the_iteration_and_the_warm_up(drive: Any) -> None:
    def hub(shared: Any, state: Any, message: Any) -> Any:
        return shared, (), {}

    def shared(rng: Any) -> Any:
        return jnp.stack([rng.iteration, rng.warmup]).astype(jnp.float64)

    made = drive(
        Algorithm(
            lambda p: ((), jnp.zeros(2), ()),
            (Phase(None, None, hub, shared=shared),),
            Draws(hub=lambda hub, inbox: hub),
        ),
        rounds=4,
        warmup=3,
    )
    np.testing.assert_array_equal(made.draws[0], [[3, 3], [4, 3], [5, 3], [6, 3]])


# --- what is recorded ----------------------------------------------------------------------------


@pytest.mark.parametrize("chains", [1, 2])
def test_infos_are_averages_over_the_thinned_window(drive: Any, chains: int) -> None:
    def local(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
        return state + 1, inbox, {"node": state + 10 * rows_of(site)}

    def hub(shared: Any, state: Any, message: Any) -> Any:
        return state + 1, message, {"hub": state**2}

    made = drive(algorithm(Phase(local, Mean(), hub)), rounds=12, thin=4, chains=chains)
    squares = (np.arange(12.0) ** 2).reshape(3, 4).mean(axis=1)
    counts = np.arange(12.0).reshape(3, 4).mean(axis=1)
    for chain in range(chains):
        np.testing.assert_allclose(made.records.hub_info["hub"][chain], squares, rtol=1e-13)
        expected = counts[:, None] + 10 * np.array([1, 2, 3])
        np.testing.assert_allclose(made.records.node_info["node"][chain], expected, rtol=1e-13)
        np.testing.assert_array_equal(made.draws[chain, :, 0], [4, 8, 12])


def test_several_draws_an_iteration_are_thinned_in_their_order(drive: Any) -> None:
    def draws(count: int) -> Draws:
        def all_of_them(hub: Any, inbox: Any) -> Any:
            return (count * hub + jnp.arange(count, dtype=jnp.float64))[:, None]

        return Draws(hub=all_of_them, per_iteration=count)

    for chains in (1, 2):
        for thin in (1, 2, 4, 7):
            made = drive(
                algorithm(Phase(None, None, add_one), draws=draws(4)),
                rounds=7,
                thin=thin,
                chains=chains,
            )
            every = np.arange(4.0, 32.0)
            for chain in range(chains):
                np.testing.assert_array_equal(made.draws[chain, :, 0], every[thin - 1 :: thin])


class Kept:
    """A recorder that remembers the draws."""

    room, full, libraries = 10**9, False, ()

    def __init__(self) -> None:
        self.kept = 0
        self.parts: list[np.ndarray] = []

    def add(self, buffers: Any, filled: int) -> None:
        self.parts.append(np.asarray(buffers.draws)[:filled])
        self.kept += filled

    def draws_so_far(self) -> np.ndarray:
        return np.concatenate(self.parts)[None]


@pytest.mark.parametrize("every", [4, 5, 100])
def test_a_stopping_rule_is_judged_whatever_the_draws_of_an_iteration(
    drive: Any, every: int
) -> None:
    draws = Draws(
        hub=lambda hub, inbox: (8 * hub + jnp.arange(8, dtype=jnp.float64))[:, None],
        per_iteration=8,
    )
    run = drive(algorithm(Phase(None, None, add_one), draws=draws), rounds=1).run
    recorder = Kept()
    carry = run.start(0, jnp.zeros((1, 1)))
    rule = stop_when(budget=20, every=every)  # ends a loop that makes no progress
    loop = RunLoop(run, carry, RunLength(0, 30, 1), recorder, Progress(), rule, lambda hub: None)
    loop.execute()
    np.testing.assert_array_equal(np.concatenate(recorder.parts)[:, 0], np.arange(8.0, 248.0))


# --- travelling chains ---------------------------------------------------------------------------


@pytest.mark.parametrize("chains", [1, 4])
def test_a_route_runs_at_the_visited_node_with_its_own_rows_state_and_weight(
    drive: Any, chains: int
) -> None:
    def local(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
        row = site.rows(jnp.zeros(1, jnp.int32))["y"][0]  # the node's own number
        same = jnp.abs(row + 1 - rows_of(site)) + jnp.abs(site.weight - rows_of(site) / 6)
        return state + 1, jnp.stack([inbox[0] + row, inbox[1] + same]), {}

    made = drive(
        Algorithm(
            lambda p: (jnp.zeros(()), (), jnp.zeros(2)),
            (Phase(local, Route()),),
            Draws(hub=lambda hub, inbox: inbox),
        ),
        rounds=300,
        chains=chains,
    )
    np.testing.assert_allclose(made.draws[..., 1], 0, atol=1e-9)
    visits = np.asarray(made.carry.node).reshape(3, chains)
    np.testing.assert_array_equal(visits.sum(axis=0), 300)
    np.testing.assert_allclose(made.draws[:, -1, 0], visits[1] + 2 * visits[2], atol=1e-9)
    # By default the sites' weights 1/6, 2/6, 3/6; 4.5 standard errors of a share of all visits.
    shares = visits.sum(axis=1) / visits.sum()
    assert np.all(np.abs(shares - SHARES) < 4.5 * np.sqrt(SHARES * (1 - SHARES) / visits.sum()))


# --- the engine's own arguments, and a chain that breaks at the hub -------------------------------


@pytest.mark.parametrize("arguments", [{"node_mode": "loop"}, {"block": 0}])
def test_an_engine_refuses_what_it_does_not_know(drive: Any, arguments: dict[str, Any]) -> None:
    with refused(argument=next(iter(arguments))):
        drive(algorithm(Phase(None, None, add_one)), **arguments)


def test_a_window_resumes_where_the_one_before_ended(drive: Any) -> None:
    def hub(shared: Any, state: Any, message: Any) -> Any:
        return 0.5 * state + shared, (), {}

    make = Algorithm(
        lambda p: ((), jnp.zeros(()), ()),
        (Phase(None, None, hub, shared=lambda rng: rng.normal("x", ())),),
        HUB,
    )
    for block in (1, 4, 64):
        whole = drive(make, rounds=20, block=block)
        run, carry = whole.run, whole.run.start(0, jnp.zeros((1, 1)))
        buffers = run.buffers(carry)
        for first, stop in ((0, 3), (3, 4), (4, 17), (17, 20)):
            carry, buffers, _ = run.advance(carry, buffers, Window(first, stop, 0, 1, 0))
        np.testing.assert_array_equal(np.asarray(buffers.draws)[:20], whole.draws[0])


@pytest.mark.parametrize("warmup", [0, 5])
def test_a_chain_that_breaks_at_the_hub_is_found_there(drive: Any, warmup: int) -> None:
    def hub(shared: Any, state: Any, message: Any) -> Any:
        after = state + 1
        return jnp.where(after > 12, jnp.nan, after), message, {}

    run = drive(algorithm(Phase(silent, Mean(), hub)), rounds=1).run
    recorder = Kept()
    start, length = run.start(0, jnp.zeros((1, 1))), RunLength(warmup, 40, 1)
    loop = RunLoop(run, start, length, recorder, Progress(), None, lambda hub: None)
    with refused(NonFiniteError, round=12, chain=0, site=None, match="at the hub"):
        loop.execute()
    assert recorder.kept == 12 - warmup

"""What must not change a draw: cuts, chunks, thinning, warm-up, blocks, node mode, other chains."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.core import random
from consortia.core.contract import Adaptive
from consortia.core.queries import Conversation
from consortia.core.target import Target
from consortia.engines import local
from consortia.errors import StoreError
from consortia.run import loop
from tests.refusals import refused

# In double precision, on numbers of order one, after some dozens of rounds of a stable recursion:
# only the order of sums differs, so a few units in the last place of each round.
ROUNDING = 1e-12


# --- cuts ----------------------------------------------------------------------------------------


@pytest.fixture
def count_calls(monkeypatch: Any) -> list[tuple[int, int]]:
    """First and last round of each call of the compiled program."""
    calls: list[tuple[int, int]] = []
    whole = local.LocalRun.advance

    def advance(self: Any, carry: Any, buffers: Any, window: Any) -> Any:
        calls.append((int(window.first), int(window.stop)))
        return whole(self, carry, buffers, window)

    monkeypatch.setattr(local.LocalRun, "advance", advance)
    return calls


# What {"thin": 3} cuts, the last one cuts after a warm-up too.
@pytest.mark.parametrize(
    "arguments",
    [{}, pytest.param({"thin": 3}, marks=pytest.mark.slow), {"warmup": 5, "thin": 4}],
)
def test_where_calls_and_chunks_are_cut_changes_no_bit(
    case: Any, arguments: dict[str, Any], draws_of: Any, monkeypatch: Any, count_calls: Any
) -> None:
    whole = draws_of(case.method(), rounds=61, **arguments)
    usual = list(count_calls)
    cuts = [
        {"SECONDS_PER_CALL": 0.0},  # one round a call, or one block of thinned rounds
        {"SECONDS_PER_CALL": 1e9, "LARGEST_GROWTH": 7},
        {"SECONDS_PER_CALL": 0.0, "SECONDS_PER_CHUNK": 1e-5},  # draws leave after every call
    ]
    for cut in cuts:
        count_calls.clear()
        with monkeypatch.context() as patch:
            for name, value in cut.items():
                patch.setattr(loop, name, value)
            again = draws_of(case.method(), rounds=61, **arguments)
        if not isinstance(case.method(), Conversation):  # which has no calls to cut
            assert count_calls != usual, cut  # it was cut elsewhere
        np.testing.assert_array_equal(again, whole, err_msg=str(cut))


def test_the_same_run_twice_gives_the_same_bits(case: Any, draws_of: Any, usual: Any) -> None:
    one = usual(case.method())
    np.testing.assert_array_equal(draws_of(case.method()), one)


# --- thinning, warm-up, length -------------------------------------------------------------------


@pytest.mark.parametrize("thin", [2, 5, 23])
def test_thinning_keeps_the_last_draw_of_each_block(
    case: Any, thin: int, draws_of: Any, usual: Any
) -> None:
    every = usual(case.method())
    kept = draws_of(case.method(), thin=thin)
    assert kept.shape[1] == every.shape[1] // thin
    np.testing.assert_array_equal(kept, every[:, thin - 1 :: thin])


@pytest.mark.usefixtures("with_rounds")
@pytest.mark.parametrize("thin", [1, 3])
def test_warm_up_only_drops_the_first_draws(
    case: Any, thin: int, draws_of: Any, usual: Any
) -> None:
    method = case.method()
    if isinstance(method, Adaptive) and method.adapts:
        pytest.skip("what its warm-up learns changes the draws")
    every = usual(case.method())
    kept = draws_of(case.method(), rounds=15, warmup=8, thin=thin)
    np.testing.assert_array_equal(kept, every[:, 8 + thin - 1 :: thin])


def test_a_schedule_counts_the_warm_up_iterations(example: Any, draws_of: Any) -> None:
    def schedule(iteration: Any) -> Any:
        return jnp.where(iteration < 8, 0.001, 0.05).astype(jnp.float32)

    example.stepping()
    method = example.method(step_size=schedule)
    every = draws_of(method, rounds=20)
    np.testing.assert_array_equal(draws_of(method, rounds=12, warmup=8), every[:, 8:])
    # The control: the short steps are those of the first 8 iterations, whatever a step moves.
    constant = example.method(step_size=lambda iteration: jnp.full((), 0.001, jnp.float32))
    short = draws_of(constant, rounds=20)
    np.testing.assert_allclose(every[:, :8], short[:, :8], rtol=1e-4, atol=1e-5)
    assert np.abs(every[:, 8:] - short[:, 8:]).max() > 1e-3


def test_a_shorter_run_is_the_beginning_of_a_longer_one(
    case: Any, draws_of: Any, usual: Any
) -> None:
    longer = usual(case.method())
    for rounds in (1, 7, 22):
        shorter = draws_of(case.method(), rounds=rounds)
        each = longer.shape[1] // 23
        np.testing.assert_array_equal(shorter, longer[:, : rounds * each])


# --- blocks of random numbers, node mode, chains -------------------------------------------------


# A block of one draws numbers where the node runs.
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("block", "chains"), [(1, 1), pytest.param(7, 3, marks=pytest.mark.slow, id="7-3")]
)
def test_block_node_mode_and_other_chains_change_rounding_only(
    private: Any, draws_of: Any, block: int, chains: int
) -> None:
    def draws(chains: int, **engine: Any) -> np.ndarray:
        made = consortia.LocalEngine(**engine)
        return draws_of(private.method(), chains=chains, warmup=3, rounds=40, engine=made)

    usual = draws(3, node_mode="vmap")
    assert usual.dtype == np.float64
    if isinstance(private.method(), Conversation):
        chains = 3  # the server holds all chains, and divides the same points among them
    # A single chain runs without a chain axis.
    turned = draws(chains, block=block, node_mode="map")
    np.testing.assert_allclose(turned, usual[:chains], rtol=0, atol=ROUNDING)


def test_chains_and_seeds_differ(case: Any, draws_of: Any) -> None:
    runs = [draws_of(case.method(), seed=seed) for seed in (0, 1, 2**32, 2**62)]
    first = np.concatenate([run[:, 0] for run in runs])
    distances = np.abs(first[:, None] - first[None]).max(axis=-1)
    assert distances[~np.eye(len(first), dtype=bool)].min() > 0


# --- order of the sites --------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_reordered_sites_are_another_run_on_the_same_target(
    private: Any, model: Any, three_sites: Any, positions: Any
) -> None:
    order, sites = (2, 0, 1), three_sites
    other = consortia.Sites.from_list(
        [sites.shards[i] for i in order], names=[sites.names[i] for i in order]
    )
    target = Target(model, jax.tree.map(jnp.asarray, model.init))
    where = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)))

    def values(these: Any) -> np.ndarray:
        engine = consortia.LocalEngine()
        if isinstance(private.method(), Conversation):
            return np.asarray(engine.panel(target, these, private.method()).start_values(where)[1])
        run = engine.prepare(target, these, private.method(), 3)
        return np.asarray(run.start_values(where)[1])  # U_c, (nodes, chains)

    one, two = values(sites), values(other)
    np.testing.assert_allclose(two, one[list(order)], rtol=1e-13)
    np.testing.assert_allclose(two.sum(axis=0), one.sum(axis=0), rtol=1e-13)

    options: dict[str, Any] = {"rounds": 23, "chains": 3, "progress": False}
    usual, moved = (
        positions(consortia.sample(model, these, private.method(), **options))
        for these in (sites, other)
    )
    # Numbers belong to a place in the order, not to a site; where only the hub draws any, the order
    # changes the rounding of sums and nothing else.
    numbers_at_sites = not isinstance(private.method(), Conversation) and any(
        jax.tree.leaves(phase.noise(random.RandomStreams(0, 0)))
        for phase in private.method().build(target).phases
    )
    change = np.abs(usual - moved).max()
    # A conversation learns proposals from the sums: hundreds of fitted numbers.
    rounding = 100 * ROUNDING if isinstance(private.method(), Conversation) else ROUNDING
    assert change > 1e-6 if numbers_at_sites else change < rounding


# --- the store -----------------------------------------------------------------------------------


def test_a_store_holds_the_draws_and_attributes_that_memory_would(
    rich: Any, model: Any, sites: Any, positions: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    options: dict[str, Any] = {
        "rounds": 47,
        "thin": 2,
        "warmup": 3,
        "chains": 2,
        "seed": 5,
        "progress": False,
    }
    in_memory = consortia.sample(model, sites, rich.method(), **options)
    monkeypatch.setattr(local, "MOST_SLOTS", 5)  # several chunks, the last one shorter
    returned = consortia.sample(model, sites, rich.method(), store=tmp_path / "run", **options)
    for tree in (returned, consortia.open_run(tmp_path / "run")):
        np.testing.assert_array_equal(positions(tree), positions(in_memory))
        assert set(tree.children) == set(in_memory.children)
        np.testing.assert_array_equal(tree.posterior.draw, in_memory.posterior.draw)
        assert set(tree.attrs) - {"state"} == set(in_memory.attrs)
        for name, value in in_memory.attrs.items():
            if name != "seconds":
                assert tree.attrs[name] == value, name
    if "weight" in in_memory.get("sample_stats", {}):
        np.testing.assert_array_equal(returned.sample_stats.weight, in_memory.sample_stats.weight)


def test_the_record_says_how_to_repeat_the_run(
    case: Any, model: Any, sites: Any, positions: Any
) -> None:
    options: dict[str, Any] = {"rounds": 12, "warmup": 2, "thin": 3, "chains": 2, "seed": 11}
    tree = consortia.sample(model, sites, case.method(), progress=False, **options)
    warms_up = not isinstance(case.method(), Conversation)
    for name, value in (options | {"warmup": 2 * warms_up}).items():
        assert tree.attrs[name] == value
    for name in ("algorithm", "parameters", "samples", "bias", "engine", "versions", "stopped"):
        assert tree.attrs[name]
    assert tree.attrs["iterations_run"] == tree.attrs["warmup"] + 12
    engine = consortia.LocalEngine(node_mode=tree.attrs["node_mode"], block=tree.attrs["block"])
    again = consortia.sample(model, sites, case.method(), progress=False, engine=engine, **options)
    np.testing.assert_array_equal(positions(again), positions(tree))


def test_a_store_that_holds_a_run_is_refused_and_left_alone(
    mostly_slow: Any, model: Any, sites: Any, positions: Any, tmp_path: Any
) -> None:
    options: dict[str, Any] = {"rounds": 5, "chains": 2, "progress": False}
    options["store"] = tmp_path / "run"
    before = positions(consortia.sample(model, sites, mostly_slow.method(), **options))
    with refused(StoreError, argument="store", match="holds a run"):
        consortia.sample(model, sites, mostly_slow.method(), seed=1, **options)
    np.testing.assert_array_equal(positions(consortia.open_run(tmp_path / "run")), before)

"""Drawing: what a phase declares is the same array however it is drawn, and nobody else's."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from consortia.core import random
from consortia.core.contract import Algorithm, Draws, Phase, Route, Sum
from consortia.engines import rng
from consortia.engines.rng import Layout

NODES, CHAINS = 3, 2
WEIGHTS = jnp.full(NODES, 1 / NODES)


def declare(rng: random.RandomStreams) -> Any:
    return {"a": rng.bits("a", (2,)), "b": rng.bits("b", (3,))}


def idle(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
    return state, inbox, {}


PHASES = (
    Phase(idle, Sum(), noise=declare, shared=declare),
    Phase(idle, Sum(), noise=declare, shared=declare, repeat=4),
    Phase(idle, Sum(), noise=declare, shared=declare),
)


def layout(chains: int = CHAINS, block: int = 4, mapped: bool = False) -> Layout:
    return Layout(NODES, chains, mapped, block, 10)


def keys(stage: int = rng.ROUND, seed: int = 5, chains: int = CHAINS) -> Any:
    base = jnp.asarray(random.base_key(seed))
    return rng.stage_keys(PHASES, stage, base, layout(chains))


def one_round(at: int, chains: int = CHAINS, **options: Any) -> Any:
    return drawn(keys(chains=chains, **options), jnp.int32(at), chains)


@partial(jax.jit, static_argnums=2)
def drawn(own: Any, at: Any, chains: int) -> Any:
    counter = rng.Counter(at, jnp.int32(0))
    return rng.round_randomness(PHASES, own, counter, rng.Source(layout(chains), WEIGHTS))


@partial(jax.jit, static_argnums=2)
def block_of(own: Any, first: Any, block: int) -> Any:
    return rng.block_randomness(
        PHASES, own, rng.Counter(first, jnp.int32(0)), rng.Source(layout(block=block), WEIGHTS)
    )


def on_the_host(tree: Any) -> Any:
    """Cut there, an array costs no program for each place where it is cut."""
    return jax.tree.map(np.asarray, tree)


def assert_same(one: Any, two: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, two)


@pytest.mark.parametrize("block", [2, 5, 16])
def test_a_block_holds_what_its_rounds_would_draw_alone(block: int) -> None:
    made = on_the_host(block_of(keys(), jnp.int32(3), block))
    for offset in range(block):
        assert_same(jax.tree.map(lambda leaf, i=offset: leaf[i], made), one_round(3 + offset))


def test_numbers_drawn_where_the_node_runs_are_the_same() -> None:
    where: list[bool] = []

    @jax.jit
    def deferred(own: Any, at: Any) -> Any:
        made = rng.deferred_randomness(
            PHASES, own, rng.Counter(at, jnp.int32(0)), rng.Source(layout(block=1), WEIGHTS)
        )
        where.extend(callable(here.noise) for here in made)

        def noise(here: rng.PhaseRandomness) -> Any:
            made = here.noise
            nodes = range(NODES)
            return [made(jnp.int32(node)) for node in nodes] if callable(made) else made

        return [(here.shared, noise(here)) for here in made]

    made = deferred(keys(), jnp.int32(6))
    assert where == [True, False, True]  # all numbers of a phase that repeats are drawn at once
    for (shared, noise), expected, own in zip(made, on_the_host(one_round(6)), where, strict=True):
        assert_same(shared, expected.shared)
        if own:
            for node, here in enumerate(noise):
                assert_same(here, jax.tree.map(lambda leaf, n=node: leaf[n], expected.noise))
        else:
            assert_same(noise, expected.noise)


def test_a_single_chain_draws_what_chain_0_of_several_does() -> None:
    one, several = one_round(4, chains=1), on_the_host(one_round(4))
    for position, (alone, first) in enumerate(zip(one, several, strict=True)):
        repeated = PHASES[position].repeat > 1
        shared = jax.tree.map(lambda leaf, r=repeated: leaf[:, 0] if r else leaf[0], first.shared)
        noise = jax.tree.map(
            lambda leaf, r=repeated: leaf[:, :, 0] if r else leaf[:, 0], first.noise
        )
        assert_same(alone.shared, shared)
        assert_same(alone.noise, noise)


def test_no_number_is_drawn_twice() -> None:
    # First words over stages, phases, repetitions, iterations, chains, nodes and the shared ones.
    words: list[int] = []
    for stage in (rng.FIT, rng.SETUP, rng.ROUND):
        for at in range(5):
            for made in one_round(at, stage=stage):
                for tree in (made.shared, made.noise):
                    words.extend(np.asarray(tree["a"])[..., 0].reshape(-1).tolist())
    phases = 2 * (1 + NODES) * CHAINS + 4 * (1 + NODES) * CHAINS
    assert len(words) == 3 * 5 * phases
    # 720 words of 32 bits: two of them agree by chance once in 16,000 seeds.
    assert len(set(words)) == len(words)


def test_seeds_differ_in_every_word() -> None:
    one, two = one_round(0, seed=1), one_round(0, seed=2)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        assert not np.any(np.asarray(left) == np.asarray(right))


@pytest.mark.parametrize("engine", [{}, {"block": 1}, {"node_mode": "map"}])
@pytest.mark.parametrize("chains", [1, 3])
def test_shared_numbers_are_the_same_at_every_node_and_at_the_hub(
    drive: Any, chains: int, engine: dict[str, Any]
) -> None:
    def local(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
        return state, (shared, shared**2, noise), {}

    def hub(shared: Any, state: Any, message: Any) -> Any:
        total, squares, noise = message
        # Three equal terms, and equal to the hub's own.
        return (
            state,
            jnp.stack([total - 3 * shared, squares - 3 * shared**2, noise - 3 * shared]),
            {},
        )

    phase = Phase(
        local,
        Sum(),
        hub,
        noise=lambda rng: rng.uniform("number"),
        shared=lambda rng: rng.uniform("number"),
    )
    made = drive(
        Algorithm(lambda p: ((), (), jnp.zeros(3)), (phase,), Draws(hub=lambda h, inbox: inbox)),
        rounds=5,
        chains=chains,
        **engine,
    )
    np.testing.assert_allclose(made.draws[..., :2], 0, atol=1e-6)
    assert np.abs(made.draws[..., 2]).min() > 1e-4  # private ones are not


def test_the_node_that_a_chain_visits_has_the_stated_probability() -> None:
    phase = Phase(idle, Route((0.5, 0.3, 0.2)), noise=declare, shared=declare)
    wide = Layout(NODES, 20_000, False, 1, 1)
    made = rng.stage_keys((phase,), rng.ROUND, jnp.asarray(random.base_key(0)), wide)
    counter = rng.Counter(jnp.int32(0), jnp.int32(0))

    @jax.jit
    def visits(own: Any) -> Any:
        return rng.round_randomness((phase,), own, counter, rng.Source(wide, WEIGHTS))

    (drawn,) = on_the_host(visits(made))
    counts = np.bincount(np.asarray(drawn.visited), minlength=NODES)
    expected = 20_000 * np.array([0.5, 0.3, 0.2])
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < 27.6  # chi-square with two degrees of freedom exceeds it once in 10⁶
    wrong = 20_000 * np.array([0.48, 0.32, 0.2])
    assert ((counts - wrong) ** 2 / wrong).sum() > 27.6
    # What is private is that of the visited node.
    words = jax.jit(lambda own: counter.draw(declare, own))
    for chain in range(5):
        expected_words = words(made[0].private[drawn.visited[chain], chain])
        assert_same(jax.tree.map(lambda leaf, c=chain: leaf[c], drawn.noise), expected_words)

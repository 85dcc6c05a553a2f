"""Random numbers: the generator, its keys and counters, and row numbers made of its words."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from consortia.core import random as numbers

# --- the generator by hand -----------------------------------------------------------------------

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key: Any, high: int, low: int) -> tuple[int, int]:
    """Threefry-2x32 of twenty rounds (Salmon, Moraes, Dror, Shaw, 2011), in Python integers."""
    k0, k1 = int(key[0]), int(key[1])
    schedule = (k0, k1, k0 ^ k1 ^ 0x1BD11BDA)
    word = 2**32
    x0, x1 = (high + k0) % word, (low + k1) % word
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x0 = (x0 + x1) % word
            x1 = ((x1 << rotation) | (x1 >> (32 - rotation))) % word
            x1 ^= x0
        x0 = (x0 + schedule[(group + 1) % 3]) % word
        x1 = (x1 + schedule[(group + 2) % 3] + group + 1) % word
    return x0, x1


def by_hand(key: Any, iteration: int, count: int, shift: int = 0) -> list[int]:
    """``count`` words of one declaration: all first halves, then all second halves."""
    pairs = [threefry(key, iteration, shift + i) for i in range((count + 1) // 2)]
    return ([first for first, _ in pairs] + [second for _, second in pairs])[:count]


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**32 + 5, 2**63 - 1])
def test_keys_are_the_hash_of_seed_chain_phase_and_node(seed: int) -> None:
    base = numbers.base_key(seed)
    assert base.tolist() == [seed >> 32, seed % 2**32]
    phase = threefry(base, 3, 131073)
    assert tuple(np.asarray(numbers.phase_key(base, 3, 131073)).tolist()) == phase
    key = jnp.asarray(phase, jnp.uint32)
    assert tuple(np.asarray(numbers.node_key(key, 4)).tolist()) == threefry(phase, 1, 4)
    assert tuple(np.asarray(numbers.shared_key(key)).tolist()) == threefry(phase, 0, 0)


@pytest.mark.parametrize("repetition", [None, 0, 3])
def test_words_are_the_hash_of_iteration_and_position(repetition: int | None) -> None:
    key = jnp.asarray([7, 2**32 - 9], jnp.uint32)

    def declare(rng: numbers.RandomStreams) -> Any:
        return rng.bits("a", (2, 3)), rng.bits("b", (5,))

    first, second = numbers.declared(declare, key, 12, 0, repetition)
    words = by_hand(np.asarray(key), 12, 11, shift=0 if repetition is None else 6 * repetition)
    assert np.asarray(first).reshape(-1).tolist() == words[:6]
    assert np.asarray(second).tolist() == words[6:]


def test_repetitions_continue_where_the_one_before_ended() -> None:
    key = jnp.asarray([1, 2], jnp.uint32)

    def draw(repetition: int) -> list[int]:
        made = numbers.declared(lambda rng: rng.bits("a", (8,)), key, 0, 0, repetition)
        return np.asarray(made).tolist()

    words = [word for repetition in range(6) for word in draw(repetition)]
    assert len(set(words)) == len(words) == 48


@pytest.mark.parametrize("double", [False, True])
def test_the_words_are_the_same_in_both_precisions(double: bool) -> None:
    with jax.enable_x64(double):
        key = numbers.phase_key(numbers.base_key(5), 0, 0)
        made = numbers.declared(lambda rng: rng.bits("a", (4,)), key, 2, 0, None)
    assert np.asarray(made).tolist() == by_hand(threefry((0, 5), 0, 0), 2, 4)


def test_no_key_is_made_twice_over_chains_phases_nodes_and_users() -> None:
    keys = []
    for seed in (0, 1, 2**32):
        base = numbers.base_key(seed)
        keys.append(tuple(base.tolist()))
        for chain, phase in itertools.product(range(4), (0, 1, 65536, 131072, 131073)):
            root = threefry(base, chain, phase)
            keys.append(root)
            keys.append(threefry(root, numbers.SHARED, 0))
            keys.extend(threefry(root, numbers.PRIVATE, node) for node in range(4))
        for chain in range(4):
            user = jax.random.key_data(numbers.user_key(seed, chain))
            keys.append(tuple(np.asarray(user).tolist()))
    assert len(set(keys)) == len(keys)


def test_a_stream_cannot_be_declared_twice() -> None:
    def twice(rng: numbers.RandomStreams) -> Any:
        return rng.normal("a", (2,)), rng.uniform("a")

    with pytest.raises(ValueError, match="'a' is declared twice"):
        numbers.declared(twice, jnp.asarray([1, 2], jnp.uint32), 0, 0, None)


def test_a_declaration_sees_the_iteration_and_the_warm_up() -> None:
    key = jnp.asarray([1, 2], jnp.uint32)
    seen = numbers.declared(lambda rng: (rng.iteration, rng.warmup), key, 9, 4, None)
    assert [int(value) for value in seen] == [9, 4]


# --- laws ----------------------------------------------------------------------------------------

COUNT = 200_000


def sample(kind: str) -> np.ndarray:
    key = numbers.phase_key(numbers.base_key(20), 0, 0)
    made = numbers.declared(lambda rng: getattr(rng, kind)("a", (COUNT,)), key, 0, 0, None)
    return np.asarray(made)


def is_standard_normal(values: np.ndarray) -> bool:
    """Mean, variance and Kolmogorov's distance, each at 4.5 standard errors or p = 1e-5."""
    values = values.astype(np.float64)
    mean = abs(values.mean()) * np.sqrt(COUNT) < 4.5
    variance = abs(values.var() - 1) < 4.5 * np.sqrt(2 / COUNT)
    return bool(mean and variance and stats.kstest(values, "norm").pvalue > 1e-5)


@pytest.mark.parametrize("double", [False, True])
def test_normal_numbers_are_standard_normal(double: bool) -> None:
    with jax.enable_x64(double):
        values = sample("normal")
    assert values.dtype == (np.float64 if double else np.float32)
    assert is_standard_normal(values)
    # Negative controls: a standard deviation and a mean that are a hundredth off.
    assert not is_standard_normal(1.01 * values)
    assert not is_standard_normal(values + 0.011)


@pytest.mark.parametrize("double", [False, True])
def test_uniform_numbers_are_uniform(double: bool) -> None:
    with jax.enable_x64(double):
        values = sample("uniform").astype(np.float64)
    assert stats.kstest(values, "uniform").pvalue > 1e-5
    assert stats.kstest(values**1.02, "uniform").pvalue < 1e-5  # the negative control


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("word", [0, 2**31, 2**32 - 1])
def test_extreme_words_give_finite_normal_numbers_and_no_uniform_bound(
    double: bool, word: int
) -> None:
    with jax.enable_x64(double):
        rng = numbers.RandomStreams(0, 0, jnp.full(16, word, jnp.uint32))
        assert np.all(np.isfinite(rng.normal("normal", (3,))))
        uniform = np.asarray(rng.uniform("uniform", (3,)))
    assert np.all(uniform > 0)
    assert np.all(uniform < 1)


@pytest.mark.parametrize("double", [False, True])
def test_normal_numbers_are_symmetric(double: bool) -> None:
    # Complemented words give the opposite number: no sign, no zero is preferred.
    with jax.enable_x64(double):
        words = jax.random.bits(jax.random.key(0), (64,), jnp.uint32)
        plus = numbers.RandomStreams(0, 0, words).normal("a", (20,))
        minus = numbers.RandomStreams(0, 0, ~words).normal("a", (20,))
        # The lowest bit of a word is set, not used: it shifts a uniform number by its last place.
        rounding = 1e-14 if double else 1e-5
        np.testing.assert_allclose(np.asarray(plus), -np.asarray(minus), rtol=0, atol=rounding)


# --- row numbers ---------------------------------------------------------------------------------

SIZES = [1, 2, 3, 7, 1000, 2**16 - 1, 2**16, 2**16 + 1, 2**24 + 3, 2**31 - 1]


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_below_is_the_exact_product_in_64_bits(size: int, double: bool) -> None:
    edges = [0, 1, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]
    steps = [min(2**32 - 1, -(-(row * 2**32) // size)) for row in range(min(size, 5))]
    random = np.random.default_rng(1).integers(0, 2**32, 20_000)
    words = np.concatenate([np.array(edges + steps + [max(s - 1, 0) for s in steps]), random])
    exact = (words.astype(object) * size) // 2**32  # Python integers
    with jax.enable_x64(double):
        rows = np.asarray(numbers.below(jnp.asarray(words.astype(np.uint32)), jnp.int32(size)))
    assert rows.dtype == np.int32
    np.testing.assert_array_equal(rows, exact.astype(np.int64))
    assert rows.min() >= 0
    assert rows.max() < size


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2).sum() / expected)


def gate(cells: int) -> float:
    """What chi-square exceeds with probability 1e-6: the seeds are fixed, a false alarm is rare."""
    return float(stats.chi2.isf(1e-6, cells - 1))


@pytest.mark.parametrize("size", [2, 7, 100])
def test_rows_with_replacement_are_uniform(size: int) -> None:
    words = jax.random.bits(jax.random.key(3), (COUNT,), jnp.uint32)
    rows = np.asarray(numbers.below(words, jnp.int32(size)))
    assert chi_square(np.bincount(rows, minlength=size)) < gate(size)
    # The negative control: one row too many, folded back, is one row drawn twice as often.
    folded = np.asarray(numbers.below(words, jnp.int32(size + 1))) % size
    assert chi_square(np.bincount(folded, minlength=size)) > gate(size)


def subset_counts(rows: np.ndarray, size: int) -> np.ndarray:
    """How often each subset of ``size`` rows occurs."""
    subsets = list(itertools.combinations(range(size), rows.shape[1]))
    place = {subset: i for i, subset in enumerate(subsets)}
    found = [place[tuple(row)] for row in np.sort(rows, axis=1).tolist()]
    return np.bincount(found, minlength=len(subsets))


@pytest.mark.parametrize(("size", "batch"), [(5, 3), (4, 1), (6, 5), (5, 2)])
def test_rows_without_replacement_are_uniform_over_subsets(size: int, batch: int) -> None:
    words = jax.random.bits(jax.random.key(size), (20_000, batch), jnp.uint32)
    rows = np.asarray(numbers.distinct_below(words, jnp.int32(size)))
    counts = subset_counts(rows, size)
    assert chi_square(counts) < gate(counts.size)


def test_the_gate_of_subsets_sees_what_the_frequency_of_rows_does_not() -> None:
    # Neighbouring rows from a random start on: every row equally often, subsets not.
    start = np.random.default_rng(0).integers(0, 5, 20_000)
    rows = (start[:, None] + np.arange(3)) % 5
    assert chi_square(np.bincount(rows.reshape(-1), minlength=5)) < gate(5)
    counts = subset_counts(rows, 5)
    assert chi_square(counts) > gate(counts.size)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("size", [4, 9, 2**31 - 1])
def test_rows_without_replacement_are_distinct_and_in_range(size: int, double: bool) -> None:
    with jax.enable_x64(double):
        words = jax.random.bits(jax.random.key(1), (3, 500, 4), jnp.uint32)
        rows = np.asarray(numbers.distinct_below(words, jnp.int32(size)))
    assert rows.shape == (3, 500, 4)
    assert rows.min() >= 0
    assert rows.max() < size
    assert all(len(set(row)) == 4 for row in rows.reshape(-1, 4).tolist())


def test_a_batch_as_large_as_the_site_is_every_row_once() -> None:
    words = jax.random.bits(jax.random.key(2), (50, 6), jnp.uint32)
    rows = np.asarray(numbers.distinct_below(words, jnp.int32(6)))
    np.testing.assert_array_equal(np.sort(rows, axis=1), np.tile(np.arange(6), (50, 1)))

"""Counter-based random numbers: declared by an algorithm, drawn by an engine.

A number is a function of (seed, chain, phase, node) and of a counter (round, position): a Threefry
hash of the counter under a key that is itself the hash of the rest. No key is carried in a state or
used twice, and none reaches an algorithm: an algorithm names a stream and a shape, and gets the
array. Whatever engine draws it, in whatever order, at whatever chunk length, the array is the same.

All streams that a phase declares come from one call of the hash, in the order of their declaration.
The compiler spends seconds on each call, and key derivation inside a loop would cost as much again;
so keys are made once, on the host, and are arguments of the compiled program.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from consortia.runtime.late import Array, PyTree, jax, jnp

ROTATIONS = np.array([[13, 15, 26, 6], [17, 29, 16, 24]], np.uint32)
"""Rotations of the hash, in turn."""

SHARED, PRIVATE = 0, 1
"""Domains in key space: numbers common to the nodes of a phase, and numbers of one node."""

INIT_STREAM = 0x1217
"""Sets the keys that a user's ``init`` function receives apart from all others."""


def base_key(seed: int) -> np.ndarray:
    """Return the key of a run, uint32 (2,). ``seed`` is a Python int, 0 <= seed < 2**63."""
    return np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)


def derive(key: Any, high: Any, low: Any) -> np.ndarray:
    """Return the keys (..., 2) that belong to pairs of 32-bit words under keys (..., 2).

    Their leading axes are broadcast. On the host: the hash is Threefry-2x32 of twenty rounds, as in
    JAX.

    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """
    key = np.asarray(key, np.uint32)
    schedule = (key[..., 0], key[..., 1], key[..., 0] ^ key[..., 1] ^ np.uint32(0x1BD11BDA))
    with np.errstate(over="ignore"):  # addition is modulo 2**32
        first = np.asarray(high, np.uint32) + schedule[0]
        second = np.asarray(low, np.uint32) + schedule[1]
        for group in range(5):
            for rotation in ROTATIONS[group % 2]:
                first = first + second
                second = (second << rotation) | (second >> (np.uint32(32) - rotation))
                second = second ^ first
            first = first + schedule[(group + 1) % 3]
            second = second + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return np.stack(np.broadcast_arrays(first, second), axis=-1)


def _hash(key: Array | np.ndarray, high: Array, low: Array) -> tuple[Array, Array]:
    """Return Threefry of the counter (high, low) under ``key`` (2,), two words for each."""
    from jax.extend.random import threefry2x32_p

    # The primitive's loop wants every batch axis, of the key too, on both words of the counter.
    zero = (key[0] ^ key[0]) + (high ^ high) + (low ^ low)
    first, second = threefry2x32_p.bind(key[0], key[1], high + zero, low + zero)
    return first, second


def phase_key(key: Any, chain: Any, phase: int) -> np.ndarray:
    """Return the key of a phase of a chain, or of several; ``phase``: its stage and position."""
    return derive(key, chain, phase)


def node_key(key: Any, node: Any) -> np.ndarray:
    """Return the key of a node (from 0) under a phase's key; of several, their axes broadcast."""
    return derive(key, PRIVATE, node)


def shared_key(key: Any) -> np.ndarray:
    """Return the key of what all nodes of a phase, and the hub, have in common."""
    return derive(key, SHARED, 0)


def user_key(seed: int, chain: int) -> Array:
    """Return the JAX key with which a user's ``init`` function is called for a chain."""
    key = jax.random.key(seed & 0xFFFFFFFF, impl="threefry2x32")
    for part in (seed >> 32, INIT_STREAM, chain):
        key = jax.random.fold_in(key, part)
    return key


class RandomStreams:
    """Named streams of numbers, which a phase's ``noise`` and ``shared`` functions receive.

    Each stream may be used once in a phase.

    Attributes:
        iteration: index of the iteration, warm-up included, from 0 (int32 scalar).
        warmup: number of warm-up iterations of the run (int32 scalar).
        server: index of the server, of several (int32 scalar); 0 elsewhere.
    """

    def __init__(self, iteration: Any, warmup: Any, words: Array | None = None) -> None:
        self.iteration = jnp.asarray(iteration, jnp.int32)
        self.warmup = jnp.asarray(warmup, jnp.int32)
        self.server = jnp.asarray(0, jnp.int32)
        self.used = 0
        self._words = words
        self._names: set[str] = set()

    def _take(self, name: str, count: int) -> Array:
        if name in self._names:
            raise ValueError(f"the stream {name!r} is declared twice in one phase")
        self._names.add(name)
        start, self.used = self.used, self.used + count
        if self._words is None:
            return jnp.zeros(count, jnp.uint32)
        return self._words[start : self.used]

    def bits(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return uniform 32-bit words, which a site of known size turns into row indices."""
        return self._take(name, math.prod(shape)).reshape(shape)

    def uniform(self, name: str, shape: tuple[int, ...] = ()) -> Array:
        """Return uniform numbers in (0, 1) of the default float type."""
        return (self._symmetric(name, shape) + 1) / 2

    def normal(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return standard normal numbers of the default float type."""
        return math.sqrt(2) * jax.lax.erf_inv(self._symmetric(name, shape))

    def _symmetric(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return uniform odd multiples of 2⁻²³ in (−1, 1), or of 2⁻⁵² with 64-bit floats."""
        count = math.prod(shape)
        dtype = jnp.result_type(float)
        if dtype == jnp.float32:
            words = self._take(name, count)
            odd = (words >> jnp.uint32(8)) | jnp.uint32(1)
            return (odd.astype(dtype) * 2.0**-23 - 1).reshape(shape)
        words = self._take(name, 2 * count)
        high = (words[:count] >> jnp.uint32(11)).astype(dtype)
        low = (words[count:] | jnp.uint32(1)).astype(dtype)
        return ((high * 2.0**32 + low) * 2.0**-52 - 1).reshape(shape)


def declared(
    declare: Callable[[RandomStreams], PyTree],
    key: Array | np.ndarray,
    iteration: Any,
    warmup: Any,
    repetition: Any,
) -> PyTree:
    """Draw the numbers that ``declare`` declares under ``key`` (2,) at one iteration.

    Args:
        declare: a phase's ``noise`` or ``shared``.
        key: key of (chain, phase) and of the node or the shared domain.
        iteration: the first half of the counter.
        warmup: passed on.
        repetition: index within a repeated phase, which shifts the positions; None otherwise.
    """
    count = _words_of(declare)
    if count == 0:
        return declare(RandomStreams(iteration, warmup))
    half = (count + 1) // 2
    position = jax.lax.iota(jnp.uint32, half)
    if repetition is not None:
        position = position + jnp.uint32(repetition) * jnp.uint32(half)
    words = jnp.concatenate(_hash(key, jnp.uint32(iteration), position))
    return declare(RandomStreams(iteration, warmup, words))


def _words_of(declare: Callable[[RandomStreams], PyTree]) -> int:
    """Return the number of 32-bit words that a declaration takes."""
    used = 0

    def measure() -> PyTree:
        nonlocal used
        numbers = RandomStreams(0, 0)
        result = declare(numbers)
        used = numbers.used
        return result

    jax.eval_shape(measure)
    return used


def below(bits: Array, size: Array) -> Array:
    """Return row indices floor(bits / 2**32 * size), exactly, in 32-bit arithmetic.

    Args:
        bits: uint32 words of any shape.
        size: int32 scalar, 0 < size < 2**31.

    Returns:
        int32 row numbers in [0, size), each with probability 1/size up to 2**-32.
    """
    words = size.astype(jnp.uint32)
    mask = jnp.uint32(0xFFFF)
    half = jnp.uint32(16)
    high, low = bits >> half, bits & mask
    size_high, size_low = words >> half, words & mask
    middle = high * size_low + ((low * size_low) >> half)
    carry = low * size_high + (middle & mask)
    return (high * size_high + (middle >> half) + (carry >> half)).astype(jnp.int32)


def distinct_below(bits: Array, size: Array) -> Array:
    """Return row indices without replacement: a uniform random subset, by Floyd's method.

    Args:
        bits: uint32 words (..., batch), one word a member.
        size: int32 scalar, at least ``batch``.

    Returns:
        int32 row numbers (..., batch), distinct along the last axis.
    """
    batch = bits.shape[-1]

    def member(i: Array, chosen: Array) -> Array:
        limit = size - batch + i
        word = jax.lax.dynamic_index_in_dim(bits, i, -1, keepdims=True)
        candidate = below(word, limit + 1)
        taken = jnp.any(chosen == candidate, axis=-1, keepdims=True)
        value = jnp.where(taken, limit, candidate)
        return jax.lax.dynamic_update_slice_in_dim(chosen, value, i, -1)

    bounds = (jnp.int32(0), jnp.int32(batch))
    return jax.lax.fori_loop(*bounds, member, jnp.full(bits.shape, -1, jnp.int32))

"""Counter-based random numbers: declared by an algorithm, drawn by an engine.

A number is a function of (seed, chain, phase, node, stream) and of a counter (round, repetition,
position). No key is carried in a state or used twice, and no key reaches an algorithm: an algorithm
names a stream and a shape, and gets the array. Whatever engine draws it, in whatever order, at
whatever chunk length, the array is the same.

The generator is JAX's Threefry, fixed here by name, so that a session-wide default cannot change
a run.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import jax
import jax.numpy as jnp

Array = jax.Array

SHARED = 0
"""The node index, in key space, of numbers that all nodes and the hub of a chain share."""


def base_key(seed: int) -> Array:
    """The key of a run. ``seed`` is a Python int, 0 <= seed < 2**63."""
    low, high = seed & 0xFFFFFFFF, seed >> 32
    return jax.random.fold_in(jax.random.key(low, impl="threefry2x32"), high)


def phase_key(key: Array, chain: Array | int, phase: int) -> Array:
    """The key of one phase of one chain; ``phase`` is the engine's code of (stage, position)."""
    return jax.random.fold_in(jax.random.fold_in(key, chain), phase)


def node_key(key: Array, node: Array | int) -> Array:
    """The key of one node of a phase (from 0)."""
    return jax.random.fold_in(key, node + SHARED + 1)


def shared_key(key: Array) -> Array:
    """The key of the numbers that all nodes of a phase, and the hub, have in common."""
    return jax.random.fold_in(key, SHARED)


@dataclass(frozen=True)
class Numbers:
    """What a phase's ``noise`` and ``shared`` functions receive: named streams of numbers.

    Each stream may be asked for once in a phase.

    Attributes:
        iteration: index of the iteration, warm-up included, from 0 (int32 scalar).
        warmup: number of warm-up iterations of the run (int32 scalar).
        repetition: index within a repeated phase (int32 scalar), None when it is not repeated.
    """

    key: Array
    iteration: Array
    warmup: Array
    repetition: Array | None = None

    def _stream(self, name: str) -> Array:
        key = jax.random.fold_in(self.key, zlib.crc32(name.encode()))
        key = jax.random.fold_in(key, self.iteration)
        return key if self.repetition is None else jax.random.fold_in(key, self.repetition)

    def normal(self, name: str, shape: tuple[int, ...]) -> Array:
        """Standard normal numbers of the default float type."""
        return jax.random.normal(self._stream(name), shape, jnp.result_type(float))

    def uniform(self, name: str, shape: tuple[int, ...] = ()) -> Array:
        """Uniform numbers in [0, 1) of the default float type."""
        return jax.random.uniform(self._stream(name), shape, jnp.result_type(float))

    def bits(self, name: str, shape: tuple[int, ...]) -> Array:
        """Uniform 32-bit words, to be turned into row numbers at the site that knows its size."""
        return jax.random.bits(self._stream(name), shape, jnp.uint32)


def below(bits: Array, size: Array) -> Array:
    """Row numbers floor(bits / 2**32 * size), exactly, in 32-bit arithmetic.

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
    """Row numbers without replacement: a uniform random subset, by Floyd's method.

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

    return jax.lax.fori_loop(0, batch, member, jnp.full(bits.shape, -1, jnp.int32))

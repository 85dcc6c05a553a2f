"""The compiler's effort where programs take longer to compile than to run."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from consortia.runtime.late import jax, jnp

MOST_NUMBERS = 1_000_000
"""Numbers in the data of a small problem."""

MOST_STATES = 64
"""Nodes times chains of a small problem."""

FEW_IN_BATCH = 64
"""Rows of a minibatch, up to which rounds were measured that are hardly optimised."""


class Effort(NamedTuple):
    """Options of the compiler: for what runs once in a run, and for its rounds."""

    once: dict[str, Any]
    often: dict[str, Any]


FULL = Effort({}, {})

LEVEL = "xla_backend_optimization_level"
FUSION = "xla_cpu_use_fusion_emitters"


def jit(function: Callable[..., Any], *, options: Callable[[], Any] = dict, **of_jit: Any) -> Any:
    """Return `jax.jit(function, **of_jit)`, made at its first call with the options of then.

    For a function of a module: an import should not load JAX, nor start a device, on which the
    options depend.
    """

    @functools.cache
    def compiled() -> Any:
        return jax.jit(function, compiler_options=options(), **of_jit)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return compiled()(*args)

    return call


def map_in_blocks(function: Callable[[Any], Any], values: Any, at_once: int) -> Any:
    """Return a function of each of the values, as many side by side as are allowed.

    As `jax.lax.map` with a ``batch_size``, which compiles a shorter last block anew: here blocks
    are of one length, and the last value fills the last of them.

    Args:
        function: of one value.
        values: arrays with a common first axis, which is not empty.
        at_once: values side by side, at most.
    """
    length = jax.tree.leaves(values)[0].shape[0]
    blocks = -(-length // at_once)
    width = -(-length // blocks)

    def divided(leaf: Any) -> Any:
        filled = jnp.concatenate([leaf, jnp.repeat(leaf[-1:], blocks * width - length, axis=0)])
        return filled.reshape(blocks, width, *leaf.shape[1:])

    made = jax.lax.map(jax.vmap(function), jax.tree.map(divided, values))
    return jax.tree.map(lambda leaf: leaf.reshape(blocks * width, *leaf.shape[2:])[:length], made)


def for_rounds() -> dict[str, Any]:
    """Return options for the rounds of small problems, on a processor; elsewhere none.

    LLVM's second level of optimisation in place of its third: measured on programs of every
    exchange, they compile in a tenth to a half less time and run as fast. With a thousand nodes
    some are a seventh slower. What the user has set stands.
    """
    return _on_processors(2)


def lightly() -> dict[str, Any]:
    """Return options for rounds that take as long with them, on a processor; elsewhere none.

    LLVM's first level with the older code generator compiles in six tenths of the time. Measured of
    Hamiltonian trajectories with 1 to 20,000 rows at 3 to 100 sites, and, in small problems, of
    chains that travel and of parameter servers with minibatches of 10 to 64 rows (.83 to 1.06 of
    the time of a round). Other rounds take longer: local steps and agents with minibatches by a
    tenth, with all rows by up to half, and three times as long those that are little but one
    log-density or one gradient of 4,000 rows.
    """
    return for_once(1)


def for_once(level: int = 0) -> dict[str, Any]:
    """Return options for what runs once in small problems: it is hardly optimised.

    Args:
        level: of LLVM's optimisation, higher for what takes seconds.
    """
    options = _on_processors(level)
    # The older code generator for loops compiles in half the time; loops run slower.
    if options and FUSION not in os.environ.get("XLA_FLAGS", "") and _is_known(FUSION):
        options[FUSION] = False
    return options


def _on_processors(level: int) -> dict[str, Any]:
    if jax.default_backend() != "cpu" or LEVEL in os.environ.get("XLA_FLAGS", ""):
        return {}
    if jax.config.values["jax_disable_most_optimizations"]:
        return {}
    return {LEVEL: level}


@functools.cache
def _is_known(option: str) -> bool:
    """Return False where this version of the compiler has no such option."""
    try:
        jax.jit(lambda: 0, compiler_options={option: False}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True

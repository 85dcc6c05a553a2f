"""Functions of the host that a compiled program calls in its midst."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from consortia.engines.mpi.callback import HostCallback, raised


def form(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def test_a_function_sees_the_operands_and_fills_the_results_in_every_turn_of_a_loop() -> None:
    seen = []

    def function(operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        numbers, whole, nothing = operands
        seen.append((float(numbers[0, 0]), numbers.shape, whole.dtype, nothing.shape))
        results[0][...] = 2 * numbers.T
        results[1][...] = whole + 1

    callback = HostCallback(function)

    @jax.jit
    def program(numbers: Any, whole: Any, count: Any) -> Any:
        def one(_: Any, state: Any) -> Any:
            turn, numbers, whole = state
            wanted = [form((3, 2), jnp.float32), form((4,), whole.dtype)]
            turn, (numbers, whole) = callback(turn, (numbers, whole, numbers[:, :0]), wanted)
            return turn, numbers.T, whole

        return jax.lax.fori_loop(0, count, one, (jnp.int32(0), numbers, whole))

    start = np.arange(6, dtype=np.float32).reshape(2, 3) + 1
    for dtype in (np.int32, np.float16, np.bool_):
        turn, numbers, whole = program(start, np.zeros(4, dtype), 5)
        assert int(turn) == 5
        np.testing.assert_array_equal(numbers, 32 * start)
        np.testing.assert_array_equal(whole, np.full(4, 5).astype(dtype))
        assert seen[-5:] == [(2.0**n, (2, 3), dtype, (2, 0)) for n in range(5)]


def test_calls_keep_the_order_of_their_turns_though_no_number_binds_them() -> None:
    order: list[str] = []
    first = HostCallback(lambda operands, results: order.append("first"))
    second = HostCallback(lambda operands, results: order.append("second"))

    @jax.jit
    def program(value: Any) -> Any:
        turn, _ = second(jnp.int32(0), (value,), [])
        turn, _ = first(turn, (value + 1,), [])
        return second(turn, (value,), [])[0]

    assert int(program(jnp.ones(1000))) == 3
    assert order == ["second", "first", "second"]


def test_what_a_function_raises_ends_the_program_and_is_kept() -> None:
    calls = []

    def function(operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        calls.append(int(operands[0][0]))
        if calls[-1] == 3:
            raise KeyboardInterrupt
        results[0][...] = operands[0] + 1

    callback = HostCallback(function)

    @jax.jit
    def program(value: Any) -> Any:
        def one(_: Any, state: Any) -> Any:
            turn, (value,) = callback(state[0], (state[1],), [form((1,), jnp.int32)])
            return turn, value

        return jax.lax.fori_loop(0, 10, one, (jnp.int32(0), value))

    with pytest.raises(jax.errors.JaxRuntimeError, match="KeyboardInterrupt"):
        jax.block_until_ready(program(jnp.zeros(1, jnp.int32)))
    assert calls == [0, 1, 2, 3]
    assert isinstance(callback.failure, KeyboardInterrupt)
    calls.clear()
    value = jax.block_until_ready(program(jnp.full(1, 4, jnp.int32)))[1]
    assert int(value[0]) == 14
    assert calls == list(range(4, 14))


CLEARED = """
import gc
import jax, jax.numpy as jnp
from consortia.engines.mpi.callback import HostCallback

called = []

def made():
    callback = HostCallback(lambda operands, results: called.append(1))
    program = jax.jit(lambda turn: callback(turn, (jnp.ones(1),), [])[0])
    return program.lower(jnp.int32(0)).compile()

program = made()
jax.clear_caches()
gc.collect()
assert int(jax.block_until_ready(program(jnp.int32(0)))) == 1
assert called == [1]
"""


def test_a_function_lives_as_long_as_the_program_that_calls_it() -> None:
    # In a process of its own: other tests need what JAX keeps.
    done = subprocess.run([sys.executable, "-c", CLEARED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("in_place", [True, False])
def test_a_call_is_made_where_programs_do_not_run_in_this_memory_too(
    monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    monkeypatch.setattr(HostCallback, "in_place", staticmethod(lambda: in_place))
    order: list[int] = []

    def function(operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        order.append(int(operands[1][0]))
        if order[-1] == 7:
            raise ValueError("the seventh")
        results[0][...] = 2 * operands[0]

    callback = HostCallback(function)

    @jax.jit
    def program(value: Any, count: Any) -> Any:
        def one(at: Any, state: Any) -> Any:
            turn, value = state
            turn, (value,) = callback(turn, (value, at[None]), [form((3,), jnp.float32)])
            return turn, value

        return jax.lax.fori_loop(0, count, one, (jnp.int32(0), value))

    turn, value = program(jnp.ones(3), 5)
    assert int(turn) == 5
    np.testing.assert_array_equal(value, np.full(3, 32.0))
    with pytest.raises(ValueError, match="the seventh"), raised(callback):
        jax.block_until_ready(program(jnp.ones(3), 10))
    assert order == [*range(5), *range(8)]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
@pytest.mark.parametrize("last", [False, True])
def test_an_interrupt_while_a_program_computes_is_raised_though_it_skips_a_call(
    last: bool,
) -> None:
    calls = []

    def function(operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        calls.append(1)
        if len(calls) == 2:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
        results[0][...] = operands[0]

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    callback = HostCallback(function)

    @jax.jit
    def program(count: Any) -> Any:
        def one(_: Any, state: Any) -> Any:
            turn, value = state
            value = jax.lax.fori_loop(0, 10**7, lambda n, v: jnp.sin(v + n), value)
            turn, (value,) = callback(turn, (value,), [form((), jnp.float32)])
            return turn, value

        return jax.lax.fori_loop(0, count, one, (jnp.int32(0), jnp.float32(1)))

    before, report = signal.signal(signal.SIGALRM, interrupt), sys.unraisablehook
    try:
        with pytest.raises(KeyboardInterrupt), raised(callback):
            jax.block_until_ready(program(3 if last else 5))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(calls) == 2  # the third was skipped, and none came after it
    assert sys.unraisablehook is report
    with raised(callback):
        assert int(program(1)[0]) == 1

"""Functions of this process that a compiled program calls in its midst."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32

from consortia.runtime.late import Array, jax, jnp

Function = Callable[[list[np.ndarray], list[np.ndarray]], None]
"""``(operands, results)``: reads the first, fills the second; both only while it runs."""


class HostCallback:
    """A function that compiled programs call; calls happen in the order of their turns.

    Where programs run in the memory of this process the function sees XLA's own buffers and no
    copy is made: a call takes some five microseconds. Elsewhere JAX brings the arrays here and
    back.

    Args:
        function: fills the results from the operands.

    Attributes:
        failure: what the function raised; the program ended there.
    """

    def __init__(self, function: Function) -> None:
        self.failure: BaseException | None = None
        self._function = function

    def __call__(
        self,
        turn: Int32[Array, ""],
        operands: Sequence[Array],
        results: Sequence[jax.ShapeDtypeStruct],
    ) -> tuple[Array, tuple[Array, ...]]:
        """Return the next turn, and the results of these shapes and types; to be traced.

        ``turn`` is a scalar int32. It passes from call to call, which orders them.
        """
        shapes = (jax.ShapeDtypeStruct((), jnp.int32), *results)
        if HostCallback.in_place():
            from jax.experimental.buffer_callback import buffer_callback

            call = buffer_callback(
                self._on_buffers, shapes, has_side_effect=True, input_output_aliases={0: 0}
            )
            after, *filled = call(turn, *operands)
        else:
            from jax.experimental import io_callback

            after, *filled = io_callback(self._on_copies(results), shapes, turn, *operands)
        return after + 1, tuple(filled)

    @staticmethod
    def in_place() -> bool:
        """Return True if compiled programs run in the memory of this process."""
        return jax.default_backend() == "cpu"

    def _on_buffers(self, context: Any, results: Any, turn: Any, *operands: Any) -> None:
        self._run([np.asarray(part) for part in operands], [np.asarray(r) for r in results[1:]])

    def _on_copies(self, forms: Sequence[jax.ShapeDtypeStruct]) -> Callable[..., Any]:
        def call(turn: Any, *operands: Any) -> tuple[Any, ...]:
            results = [np.empty(form.shape, form.dtype) for form in forms]
            self._run([np.asarray(part) for part in operands], results)
            return turn, *results

        return call

    def _run(self, operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        try:
            self._function(operands, results)
        except BaseException as error:
            self.failure = error
            raise


@contextlib.contextmanager
def raised(*callbacks: HostCallback) -> Iterator[None]:
    """Raise what a function raised, in place of what JAX makes of it."""
    for callback in callbacks:
        callback.failure = None
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        for callback in callbacks:
            if callback.failure is not None:
                raise callback.failure from None
        interrupt = _interrupt_of(str(error))
        if interrupt is not None:
            raise interrupt from None
        raise


def _interrupt_of(text: str) -> KeyboardInterrupt | None:
    """Return the interrupt with which a traceback ends, or None.

    An interrupt while the program computes is raised where Python is entered next: in JAX, before
    the function. Of it there is only the text of JAX's own error.
    """
    name = text.rstrip().rpartition("\n")[2].partition(":")[0]
    kinds: list[type[KeyboardInterrupt]] = [KeyboardInterrupt]
    for kind in kinds + KeyboardInterrupt.__subclasses__():
        if name in (kind.__name__, f"{kind.__module__}.{kind.__qualname__}"):
            return kind()
    return None

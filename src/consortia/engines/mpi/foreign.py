"""Functions of this process that a compiled program calls in its midst.

XLA's stable C interface for foreign calls, spoken through ctypes: a call takes about five
microseconds, JAX's own callbacks into Python take eighty. The function sees XLA's own buffers: no
copy is made for it. On the CPU only: elsewhere the buffers are not in this process's memory.

Source: the structures of ``xla/ffi/api/c_api.h``, major version 0, minor version 3.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
Function = Callable[[list[np.ndarray], list[np.ndarray]], None]
"""``(operands, results)``: reads the first, fills the second; both only while it runs."""

TARGET = "consortia_foreign_call"
MAJOR, MINOR = 0, 3
METADATA, ABORTED = 1, 10
MOST_VIEWS = 256
"""Views of buffers that a place keeps; XLA gives the same few addresses again and again."""


class HostCallback:
    """A function that compiled programs call; calls happen in the order of their turns.

    Args:
        function: fills the results from the operands.

    Attributes:
        failure: what the function raised; the program ended there.
        skipped: the interrupt that kept an earlier call of the program from being made.
    """

    def __init__(self, function: Function) -> None:
        self.failure: BaseException | None = None
        self.skipped: BaseException | None = None
        self._function = function
        self._places: list[_Place] = []

    def __call__(
        self, turn: Array, operands: Sequence[Array], results: Sequence[Any]
    ) -> tuple[Array, tuple[Array, ...]]:
        """To be traced: the next turn, and the results of these shapes and types.

        ``turn`` is a scalar int32. It passes from call to call, which orders them.
        """
        _register()
        place = _Place(self, operands, results)
        self._places.append(place)
        number = np.int32(next(_NUMBERS))
        _PLACES[int(number)] = place
        shapes = (jax.ShapeDtypeStruct((), jnp.int32), *results)
        called = jax.ffi.ffi_call(TARGET, shapes, has_side_effect=True)(number, turn, *operands)
        return called[0], tuple(called[1:])

    def run(self, operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        """Calls the function; remembers what it raises."""
        try:
            if self.skipped is not None:
                raise self.skipped
            self._function(operands, results)
        except BaseException as error:
            self.failure = error
            raise

    @staticmethod
    def serve() -> bool:
        """Whether compiled programs run in the memory of this process."""
        return jax.default_backend() == "cpu"


@contextlib.contextmanager
def raised(*foreign: HostCallback) -> Iterator[None]:
    """Raises what a function raised, in place of what JAX makes of it.

    An interrupt during the program is raised where Python is entered next: at the first step of a
    call from C, before any `try`. Python then only reports it, and the call is skipped; what the
    program goes on to compute must not be used.
    """
    for one in foreign:
        one.failure = one.skipped = None
    report = sys.unraisablehook

    def noted(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            report(unraisable)
            return
        for one in foreign:
            one.skipped = unraisable.exc_value

    sys.unraisablehook = noted
    try:
        yield
    except jax.errors.JaxRuntimeError:
        _raise_failure(foreign)
        raise
    finally:
        sys.unraisablehook = report
    _raise_failure(foreign)


def _raise_failure(foreign: Sequence[HostCallback]) -> None:
    for one in foreign:
        error = one.failure or one.skipped
        one.skipped = None
        if error is not None:
            raise error from None


class _Place:
    """One call in a traced program: the forms of its buffers."""

    def __init__(
        self, owner: HostCallback, operands: Sequence[Any], results: Sequence[Any]
    ) -> None:
        self.owner = owner
        self._forms = [(leaf.shape, np.dtype(leaf.dtype)) for leaf in (*operands, *results)]
        self._operands = len(operands)
        self._views: dict[tuple[int, int], np.ndarray] = {}

    def run(self, frame: Any) -> None:
        """Calls the function on the buffers of this call."""
        given, wanted = frame.arguments, frame.results
        operands = [self._view(n, given.items[n + 2][0].data) for n in range(self._operands)]
        results = [
            self._view(self._operands + n, wanted.items[n + 1][0].data)
            for n in range(wanted.count - 1)
        ]
        self.owner.run(operands, results)
        turn = c_int32.from_address(given.items[1][0].data).value
        c_int32.from_address(wanted.items[0][0].data).value = turn + 1

    def _view(self, number: int, address: int) -> np.ndarray:
        view = self._views.get((number, address))
        if view is None:
            if len(self._views) > MOST_VIEWS:
                self._views.clear()
            shape, dtype = self._forms[number]
            size = math.prod(shape) * dtype.itemsize
            memory = (ctypes.c_char * size).from_address(address) if size else bytearray()
            view = np.ndarray(shape, dtype, memory)
            self._views[number, address] = view
        return view


_PLACES: weakref.WeakValueDictionary[int, _Place] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count(1)


# --- the C interface -----------------------------------------------------------------------------


class _Version(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("major", c_int),
        ("minor", c_int),
    )


class _Metadata(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("version", _Version), ("traits", c_uint32))


class _Extension(ctypes.Structure):
    """Of the kind METADATA: XLA asks which version this speaks."""

    _fields_ = (
        ("size", c_size_t),
        ("kind", c_int),
        ("next", c_void_p),
        ("metadata", POINTER(_Metadata)),
    )


class _ErrorArguments(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("message", c_char_p),
        ("code", c_int),
    )


_CREATE_ERROR = ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArguments))


class _Interface(ctypes.Structure):
    """As far as it is used."""

    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("version", _Version),
        ("internal", c_void_p),
        ("create_error", _CREATE_ERROR),
    )


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("kind", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dimensions", POINTER(c_int64)),
    )


class _Buffers(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("count", c_int64),
        ("kinds", c_void_p),
        ("items", POINTER(POINTER(_Buffer))),
    )


class _Frame(ctypes.Structure):
    """As far as it is used."""

    _fields_ = (
        ("size", c_size_t),
        ("extension", POINTER(_Extension)),
        ("interface", POINTER(_Interface)),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
    )


@ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))
def _handler(pointer: Any) -> int | None:
    """What XLA calls; None if all went well, else an error that ends the program."""
    frame = pointer[0]
    if frame.extension and frame.extension[0].kind == METADATA:
        version = frame.extension[0].metadata[0].version
        version.major, version.minor = MAJOR, MINOR
        return None
    try:
        number = c_int32.from_address(frame.arguments.items[0][0].data).value
        _PLACES[number].run(frame)
    except BaseException as error:  # C cannot raise it: it is raised where the program was called
        text = f"{type(error).__name__} in a foreign call".encode()
        size = ctypes.sizeof(_ErrorArguments)
        told = _ErrorArguments(size, None, text, ABORTED)
        return int(frame.interface[0].create_error(ctypes.byref(told)))
    return None


@cache
def _register() -> None:
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_handler), platform="cpu")

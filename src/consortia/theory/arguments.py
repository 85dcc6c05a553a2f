"""Arguments of the laws as checked float64 numbers and arrays."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from consortia.errors import InputError

Array = Float[np.ndarray, "..."]


def floats(value: ArrayLike, name: str) -> Array:
    """Return a float64 array of finite numbers, or raise an `InputError` with the name."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: cannot be read as an array of numbers ({error})") from error
    if not np.all(np.isfinite(array)):
        raise InputError(f"{name}: holds a value that is not finite; give finite numbers")
    return array


def filled(value: ArrayLike, shape: tuple[int, ...], name: str) -> Array:
    """Return a number or an array of this very shape as an array of this shape."""
    array = floats(value, name)
    if array.shape not in ((), shape):
        raise InputError(f"{name}: shape {array.shape}; give a number or shape {shape}")
    return np.broadcast_to(array, shape)


def number(
    value: float, name: str, *, least: float = 0.0, most: float = math.inf, strict: bool = False
) -> float:
    """Return one number of at least (``strict``: above) ``least`` and at most ``most``."""
    array = floats(value, name)
    if array.ndim or not (least < array if strict else least <= array) or array > most:
        bounds = f"{'above' if strict else 'of at least'} {least:g}"
        bounds += f" and at most {most:g}" if math.isfinite(most) else ""
        raise InputError(f"{name}: got {value!r}; give one number {bounds}")
    return float(array)


def count(value: int, name: str, *, least: int = 1) -> int:
    """Return a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name}: got {value!r}; give a whole number of at least {least}")
    return int(value)

"""Numbers that are not finite, as they travel: zeros, and beside them what they stand for.

All numbers of a message are finite then, so that gate and server may refuse others.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from consortia.engines.messages.envelope import EnvelopeError

PREFIX = "not finite: "
VALUES = (0.0, np.nan, np.inf, -np.inf)


def marked(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return finite arrays, and for the others marks, uint8 of the same shape."""
    result: dict[str, np.ndarray] = {}
    for name, value in arrays.items():
        array = np.asarray(value)
        result[name] = array
        if array.dtype.kind != "f" or np.isfinite(array).all():
            continue
        codes = np.isnan(array) * 1 + np.isposinf(array) * 2 + np.isneginf(array) * 3
        result[name] = np.where(codes == 0, array, np.zeros_like(array))
        result[PREFIX + name] = codes.astype(np.uint8)
    return result


def unmarked(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays that were marked.

    Raises:
        EnvelopeError: a number is not finite, or marks do not fit.
    """
    result: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if name.startswith(PREFIX):
            continue
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise EnvelopeError(f"array {name!r} holds a number that is not finite")
        codes = arrays.get(PREFIX + name)
        if codes is not None:
            if codes.shape != array.shape or codes.dtype != np.uint8 or codes.max(initial=0) > 3:
                raise EnvelopeError(f"the marks of array {name!r} do not fit")
            array = np.where(codes == 0, array, np.asarray(VALUES, array.dtype)[codes])
        result[name] = array
    if any(n.startswith(PREFIX) and n[len(PREFIX) :] not in result for n in arrays):
        raise EnvelopeError("there are marks of an array that is not there")
    return result

"""Arrays of an answer as the integers that are masked, and the sums of those of all sites.

Numbers of arrays with a declared bound are integers of as many bits as their sum needs
(`consortia.engines.messages.narrow`), those of all others integers of 128 bits
(`consortia.engines.messages.fixed_point`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from consortia.engines.messages import fixed_point
from consortia.engines.messages.envelope import Envelope, EnvelopeError
from consortia.engines.messages.narrow import Ring, ring_of

MASKED, PACKED = "masked", "masked, packed"
"""Names of the arrays that leave: integers of 128 bits, uint64 (n, 2), and packed ones, uint8."""

PACKED_NUMBERS = "packed numbers"
"""Plain value of an answer: how many numbers are packed."""

WORD = 8
"""Bytes of a mask for a packed integer."""

Arrays = Mapping[str, np.ndarray]
Integers = tuple[np.ndarray, ...]
"""Integers of 128 bits of all arrays without a bound, and those of each array with one."""


class Layout(NamedTuple):
    """The order of the numbers of an answer among the integers that are masked."""

    shapes: Mapping[str, tuple[int, ...]]  # of all arrays, by name
    rings: Mapping[str, Ring]  # of those with a bound
    sites: int  # that are added

    @classmethod
    def of(cls, like: Mapping[str, Any], bounds: Mapping[str, float], sites: int) -> Layout:
        """Return the layout of arrays of these shapes, of which some have bounds."""
        rings = {name: ring_of(bounds[name], sites) for name in sorted(bounds) if name in like}
        kept = {name: ring for name, ring in rings.items() if ring is not None}
        return cls({name: like[name].shape for name in sorted(like)}, kept, sites)

    @property
    def _wide(self) -> list[str]:
        return [name for name in self.shapes if name not in self.rings]

    def _count(self, names: Any) -> int:
        return sum(math.prod(self.shapes[name]) for name in names)

    @property
    def packed_numbers(self) -> int:
        """Numbers of arrays with a bound."""
        return self._count(self.rings)

    @property
    def size(self) -> int:
        """Bytes of the arrays that leave."""
        narrow = (ring.bytes_of(self._count([name])) for name, ring in self.rings.items())
        return fixed_point.BYTES * self._count(self._wide) + sum(narrow)

    @property
    def mask_bytes(self) -> int:
        """Bytes of a mask."""
        return fixed_point.BYTES * self._count(self._wide) + WORD * self.packed_numbers

    def encoded(self, values: Arrays) -> Integers:
        """Return the numbers of one site as integers.

        Raises:
            PolicyError: a number is beyond its bound.
        """
        wide = np.concatenate([np.zeros(0), *(np.ravel(values[name]) for name in self._wide)])
        narrow = (ring.encoded(np.ravel(values[name])) for name, ring in self.rings.items())
        return (fixed_point.encoded(wide, self.sites), *narrow)

    def integers(self, stream: bytes) -> Integers:
        """Return a mask from so many random bytes."""
        count = self._count(self._wide)
        mask = [np.frombuffer(stream, "<u8", 2 * count).reshape(count, 2)]
        begin = fixed_point.BYTES * count
        for name, ring in self.rings.items():
            mask.append(ring.cut(np.frombuffer(stream, "<u8", size := self._count([name]), begin)))
            begin += WORD * size
        return tuple(mask)

    def added(self, left: Integers, other: Integers) -> Integers:
        """Return the sums in the rings."""
        narrow = zip(self.rings.values(), left[1:], other[1:], strict=True)
        first = fixed_point.added(left[0], other[0])
        return (first, *(ring.cut(a + b) for ring, a, b in narrow))

    def negated(self, left: Integers) -> Integers:
        """Return the integers that cancel these."""
        narrow = zip(self.rings.values(), left[1:], strict=True)
        return (fixed_point.negated(left[0]), *(ring.cut(~a + np.uint64(1)) for ring, a in narrow))

    def packed(self, integers: Integers) -> dict[str, np.ndarray]:
        """Return integers as arrays that leave."""
        narrow = zip(self.rings.values(), integers[1:], strict=True)
        octets = [ring.packed(part) for ring, part in narrow]
        leaving = {MASKED: integers[0]} if self._wide else {}
        return leaving | ({PACKED: np.concatenate(octets)} if octets else {})

    def read(self, answer: Envelope) -> dict[str, np.ndarray]:
        """Return the arrays of a site's answer, checked.

        Raises:
            EnvelopeError: it holds something else.
        """
        count = self._count(self._wide)
        wanted: dict[str, tuple[tuple[int, ...], type]] = {}
        if self._wide:
            wanted[MASKED] = (count, 2), np.uint64
        if self.rings:
            wanted[PACKED] = (self.size - fixed_point.BYTES * count,), np.uint8
        if answer.arrays.keys() != wanted.keys():
            raise EnvelopeError("it holds something else than masked arrays")
        for name, (shape, dtype) in wanted.items():
            array = answer.arrays[name]
            if array.shape != shape or array.dtype != dtype:
                raise EnvelopeError(f"the array {name!r} is {array.dtype} {array.shape}")
        return dict(answer.arrays)

    def total(self, answers: Sequence[Arrays]) -> dict[str, np.ndarray]:
        """Return the sums of the numbers of all sites, by name, in double precision."""
        sums, begin = {}, 0
        if self._wide:
            flat = fixed_point.sum_of([answer[MASKED] for answer in answers])
            for name in self._wide:
                end = begin + self._count([name])
                sums[name], begin = flat[begin:end].reshape(self.shapes[name]), end
        begin = 0
        for name, ring in self.rings.items():
            count = self._count([name])
            end = begin + ring.bytes_of(count)
            parts = [answer[PACKED][begin:end] for answer in answers]
            sums[name], begin = ring.sum_of(parts, count).reshape(self.shapes[name]), end
        return sums


def is_masked(arrays: Mapping[str, Any]) -> bool:
    """Return True if the arrays of an answer are masked."""
    return MASKED in arrays or PACKED in arrays

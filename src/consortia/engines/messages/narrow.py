"""Numbers as integers of few bits, whose sums over sites are exact and cannot wrap.

An array with a declared bound F needs no more bits than its sum over the sites: C sites with a
resolution of :math:`2^{-f}`, f = 29 + ⌈log2 C⌉, differ in the sum by at most :math:`2^{-30}` from
the exact one. A number above F, or one that is not finite, is the mark L, which is larger than any
sum of numbers may be: as a potential it is infinite. A number below -F is refused. Of three sites
and F = 2^16 an integer has 52 bits, a third of one of `consortia.engines.messages.fixed_point`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8, UInt64

from consortia.errors import PolicyError

MOST_BITS = 64


class Ring(NamedTuple):
    """Integers mod 2^bits for sums over so many sites."""

    sites: int  # C
    fraction: int  # f, bits behind the point
    most: int  # F in units of 2^-f

    @property
    def mark(self) -> int:
        """L, which stands for a number that is infinite."""
        return 2 * self.sites * self.most + 1

    @property
    def bits(self) -> int:
        """Length of an integer."""
        return (self.sites * (self.most + self.mark)).bit_length()

    @property
    def _mask(self) -> np.uint64:
        return np.uint64(2**self.bits - 1)

    def encoded(self, values: Float[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
        """Return numbers of one site as integers.

        Raises:
            PolicyError: one is below the declared bound.
        """
        values = np.asarray(values, np.float64)
        most = math.ldexp(self.most, -self.fraction)
        if (values < -most).any():
            raise PolicyError(
                f"secure sums: overflow: a number of this site is {values.min():.4g}, below the "
                f"{-most:g} that its site function declares. Start nearer to the posterior "
                "(run.init), or let the study say run.secure_sums = false.",
                rules=("secure_sums",),
                of_rows=True,
            )
        finite = values <= most  # False of NaN
        whole = np.rint(np.ldexp(np.where(finite, values, 0.0), self.fraction)).astype(np.int64)
        return np.where(finite, whole.view(np.uint64), np.uint64(self.mark)) & self._mask

    def decoded(self, total: UInt64[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return the numbers that a sum of the integers of all sites stands for."""
        zero = self.sites * self.most
        shifted = (total + np.uint64(zero)) & self._mask
        value = np.ldexp((shifted - np.uint64(zero)).view(np.int64).astype(float), -self.fraction)
        return np.where(shifted > np.uint64(2 * zero), np.inf, value)

    def sum_of(self, packed: Sequence[UInt8[np.ndarray, " b"]], count: int) -> np.ndarray:
        """Return the numbers that the packed integers of all sites add up to."""
        total = np.zeros(count, np.uint64)
        for integers in packed:
            total += self.unpacked(integers, count)
        return self.decoded(self.cut(total))

    def cut(self, integers: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
        """Return integers mod 2^bits."""
        return integers & self._mask

    def bytes_of(self, count: int) -> int:
        """Return the bytes of so many packed integers."""
        return -(-count * self.bits // 8)

    def packed(self, integers: UInt64[np.ndarray, " n"]) -> UInt8[np.ndarray, " b"]:
        """Return integers one behind the other, lowest bit first."""
        octets = integers.astype("<u8").view(np.uint8).reshape(-1, 8)
        return np.packbits(
            np.unpackbits(octets, axis=1, bitorder="little")[:, : self.bits], bitorder="little"
        )

    def unpacked(self, octets: UInt8[np.ndarray, " b"], count: int) -> UInt64[np.ndarray, " n"]:
        """Return the integers that were packed."""
        bits = np.unpackbits(octets, count=count * self.bits, bitorder="little")
        whole = np.zeros((count, MOST_BITS), np.uint8)
        whole[:, : self.bits] = bits.reshape(count, self.bits)
        return np.packbits(whole, axis=1, bitorder="little").view("<u8").reshape(count)


def ring_of(largest: float, sites: int) -> Ring | None:
    """Return the ring for a declared bound; None where 64 bits are too few."""
    fraction = 29 + math.ceil(math.log2(sites))
    ring = Ring(sites, fraction, math.ceil(math.ldexp(largest, fraction)))
    return ring if ring.bits <= MOST_BITS else None

"""Pytrees on the network: one array (rows, width) for each type of number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from consortia.runtime.late import PyTree, jax, jnp

Packed = tuple[Any, ...]
"""Arrays (rows, width), one for each type of number, in the order of the types' names."""


@dataclass(frozen=True)
class Wire:
    """The form of one kind of message."""

    structure: Any  # of the pytree
    shapes: tuple[tuple[int, ...], ...]  # of its leaves, without the leading axis of rows
    dtypes: tuple[str, ...]  # names of their types of number

    @classmethod
    def of(cls, tree: PyTree) -> Wire:
        """Return the form of a pytree of arrays, or their shapes, with a leading axis of rows."""
        leaves, structure = jax.tree.flatten(tree)
        shapes = tuple(tuple(leaf.shape[1:]) for leaf in leaves)
        return cls(structure, shapes, tuple(str(leaf.dtype) for leaf in leaves))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The types of number of the packed arrays."""
        return tuple(sorted(set(self.dtypes)))

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers in a row of each packed array."""
        return tuple(
            sum(
                math.prod(shape)
                for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
                if dtype == kind
            )
            for kind in self.kinds
        )

    def arrays(self, rows: int) -> list[tuple[tuple[int, int], str]]:
        """Return shape and type of each packed array."""
        return [((rows, w), k) for w, k in zip(self.widths, self.kinds, strict=True)]

    def pack(self, tree: PyTree) -> Packed:
        """Return one array (rows, width) for each type of number."""
        leaves = jax.tree.leaves(tree)
        return tuple(
            jnp.concatenate(
                [
                    leaf.reshape(leaf.shape[0], -1)
                    for leaf, dtype in zip(leaves, self.dtypes, strict=True)
                    if dtype == kind
                ],
                axis=1,
            )
            for kind in self.kinds
        )

    def unpack(self, packed: Packed) -> PyTree:
        """Return the pytree that was packed."""
        starts = dict.fromkeys(self.kinds, 0)
        whole = dict(zip(self.kinds, packed, strict=True))
        leaves = []
        for shape, kind in zip(self.shapes, self.dtypes, strict=True):
            start, width = starts[kind], math.prod(shape)
            starts[kind] = start + width
            part = whole[kind][:, start : start + width]
            leaves.append(part.reshape(part.shape[0], *shape))
        return jax.tree.unflatten(self.structure, leaves)

"""A run between two rounds as named arrays on the host: what a checkpoint holds, for any engine.

A run of an engine gives ``state(carry)`` and takes it back with ``restore(...)``. The names and
shapes are those of the whole `consortia.engines.types.Carry` and of what the ``fit`` phases left:
node axis first, then the chain axis (none for a single chain). An engine that holds the nodes in
several processes gathers them, and may hand them out to other processes than before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from consortia.errors import StoreError

PyTree = Any


def named(tree: PyTree, prefix: str) -> dict[str, np.ndarray]:
    """The leaves of a pytree by their paths, on the host."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def from_names(arrays: Mapping[str, np.ndarray], like: PyTree, prefix: str) -> PyTree:
    """The pytree of the shapes ``like`` from the arrays that `named` made.

    Raises:
        StoreError: an array is absent, or of another shape or type.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    found = []
    for path, shape in leaves:
        name = prefix + jax.tree_util.keystr(path)
        array = arrays.get(name)
        if array is None:
            raise StoreError(f"the checkpoint lacks the array {name!r} that this algorithm needs.")
        if array.dtype.kind == "V" and array.dtype.itemsize == shape.dtype.itemsize:
            array = array.view(shape.dtype)  # a narrow type that NumPy's files have no name for
        if array.shape != shape.shape or array.dtype != shape.dtype:
            raise StoreError(
                f"the checkpoint's array {name!r} is {array.dtype} {array.shape}, this run needs "
                f"{shape.dtype} {shape.shape}."
            )
        found.append(jax.device_put(array))
    return jax.tree.unflatten(structure, found)

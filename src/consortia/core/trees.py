"""Pytrees of arrays on the host: dicts of arrays are taken apart without JAX, which takes others.

Every function does to a dict what JAX does to it, whose order of the leaves is that of sorted keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from consortia.runtime import late
from consortia.runtime.late import PyTree, jax


class Leaf(NamedTuple):
    """An array of a pytree."""

    path: str  # as JAX writes it: "['x']"
    keys: tuple[str, ...]  # the same in parts: ("x",)
    value: Any


@dataclass(frozen=True)
class Names:
    """The structure of a dict of arrays."""

    names: tuple[str, ...]

    def unflatten(self, leaves: Any) -> dict[str, Any]:
        """Return the dict of so many arrays."""
        return dict(zip(self.names, leaves, strict=True))

    def __repr__(self) -> str:
        return f"PyTreeDef({{{', '.join(f'{name!r}: *' for name in self.names)}}})"


def _is_plain(tree: PyTree) -> TypeGuard[dict[str, Any]]:
    """Return True for a dict of which every value is an array by its type."""
    return type(tree) is dict and all(
        isinstance(name, str) and (isinstance(value, np.ndarray | np.generic) or is_jax(value))
        for name, value in tree.items()
    )


def is_jax(value: Any) -> bool:
    """Return True for an array of JAX, which is none where nobody has loaded it."""
    return late.is_loaded() and isinstance(value, jax.Array)


def leaves_of(tree: PyTree) -> list[Leaf]:
    """Return the arrays of a pytree with their paths."""
    if _is_plain(tree):
        return [Leaf(f"[{name!r}]", (name,), tree[name]) for name in sorted(tree)]
    keystr = jax.tree_util.keystr
    return [
        Leaf(keystr(path), tuple(keystr((key,), simple=True) for key in path), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def structure_of(tree: PyTree) -> Any:
    """Return the structure that makes the pytree of its arrays again, by ``unflatten``."""
    paths = [leaf.keys for leaf in leaves_of(tree)]
    if type(tree) is dict and paths == [(name,) for name in sorted(tree, key=str)]:
        return Names(tuple(sorted(tree)))
    return jax.tree.structure(tree)


def are_same(structure: Any, other: Any) -> bool:
    """Return True for equal structures; JAX takes one of another type for equal to its own."""
    return type(structure) is type(other) and bool(structure == other)


def map_leaves(function: Callable[..., Any], *trees: PyTree) -> PyTree:
    """Return the pytree of a function of the arrays in one place of all trees."""
    if all(map(_is_plain, trees)) and all(tree.keys() == trees[0].keys() for tree in trees):
        return {name: function(*(tree[name] for tree in trees)) for name in sorted(trees[0])}
    return jax.tree.map(function, *trees)

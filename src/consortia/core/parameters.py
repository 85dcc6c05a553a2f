"""The names of parameters: from a model's pytree to the variables of a result, and back.

Parameters given as a dict become one variable each, a bare array becomes "theta"; in nested
structures the keys are joined with a dot: ``{"layer": {"bias": ...}}`` has the variable
"layer.bias". The variables follow the order of `jax.tree_util.tree_leaves`, which is the order of
the flat position, so that a flat vector is split by slices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from consortia.core import trees
from consortia.core.printable import is_printable
from consortia.errors import InputError, wrong
from consortia.runtime import late
from consortia.runtime.late import PyTree, jax

BARE_ARRAY = "theta"
POSTERIOR, UNCONSTRAINED = "posterior", "unconstrained_posterior"
"""Groups of a result: natural quantities; the coordinates that were sampled, where they differ."""

SCALE, NATURAL = "scale", "natural"
"""Attribute of a group that tells natural quantities from coordinates, and what it says there."""

IMPUTATION = "imputation"
"""Coordinate of the draws of several imputations: the number of the one that they are given."""

RESERVED = ("chain", "draw", "sample", IMPUTATION)
NAME_MAX = 200
"""Bytes of a name: it is a directory of a stored run, with a few more behind it."""


@dataclass(frozen=True)
class Variable:
    """One variable of a result and its place in the flat position."""

    name: str  # name in the group ``posterior``
    shape: tuple[int, ...]  # shape of one draw, () for a scalar
    start: int  # first entry of the flat vector that belongs to it

    @property
    def size(self) -> int:
        """Number of scalar coordinates."""
        return math.prod(self.shape)

    @property
    def slice(self) -> slice:
        """Its entries of the flat vector."""
        return slice(self.start, self.start + self.size)


def is_function(init: Any) -> bool:
    """Return True for a function that makes parameters, False for a pytree of them.

    A module that is a pytree and can be called, as those of Equinox, is parameters.
    """
    return callable(init) and jax.tree.leaves(init) == [init]


def structure_of(init: PyTree) -> PyTree:
    """Return the parameters' shapes, a pytree of zeros without memory; nothing is computed.

    Args:
        init: a pytree of arrays, or a function of a JAX key that returns one (`Model.init`).
    """
    parameters = jax.eval_shape(init, jax.random.key(0)) if is_function(init) else init
    zero = np.zeros((), late.float_type())
    return trees.map_leaves(lambda leaf: np.broadcast_to(zero, np.shape(leaf)), parameters)


def variables(structure: PyTree, of: str = "Model.init") -> tuple[Variable, ...]:
    """Return the variables of a pytree of arrays or shapes, in the order of its leaves.

    Args:
        structure: pytree of arrays or of anything with a ``shape``.
        of: where the names come from, for an error.

    Returns:
        One `Variable` per leaf.

    Raises:
        InputError: a name that a result cannot hold, or the same name twice.

    Example:
        >>> import numpy as np
        >>> [v.name for v in variables({"weights": np.zeros((3, 2)), "bias": np.zeros(3)})]
        ['bias', 'weights']
        >>> variables(np.zeros(5))
        (Variable(name='theta', shape=(5,), start=0),)
    """
    parts: list[Variable] = []
    start = 0
    for _, keys, leaf in trees.leaves_of(structure):
        name = ".".join(keys) if keys else BARE_ARRAY
        shown = is_printable(name) and len(name.encode()) <= NAME_MAX
        file = shown and name[:1] != "." and name != "zarr.json"
        if not name or "/" in name or name in RESERVED or not file:
            raise InputError(
                f"{of}: a parameter cannot be named {name[:NAME_MAX]!r}: the name of a "
                f"variable is not empty, has no '/' and no control character, is not the name of a "
                f"file of Zarr's, has at most {NAME_MAX} bytes and is none of "
                f"{', '.join(RESERVED)}. Rename the key."
            ).at(of.rpartition(".")[2])
        if any(name == other.name for other in parts):
            raise InputError(
                f"{of}: two parameters have the name {name!r} once the keys of nested "
                "structures are joined with a dot. Rename one of them."
            ).at(of.rpartition(".")[2])
        parts.append(Variable(name, tuple(int(n) for n in np.shape(leaf)), start))
        start = parts[-1].slice.stop
    return tuple(parts)


def split(flat: Any, parts: Sequence[Variable]) -> dict[str, Any]:
    """Cut flat vectors (..., d), NumPy's or JAX's, into the variables, (..., *shape) each."""
    return {
        part.name: flat[..., part.slice].reshape(flat.shape[:-1] + part.shape) for part in parts
    }


def join(
    arrays: Mapping[str, Any], parts: Sequence[Variable], leading: int | None = None
) -> np.ndarray:
    """Return flat vectors (..., d) of one array (..., *shape) a variable; inverts `split`.

    Args:
        arrays: one array a variable, by name.
        parts: the variables, in the order of the flat vector.
        leading: number of axes before those of the parameter; None: any.

    Raises:
        InputError: a variable is missing or has another shape than in the model.
    """
    flat = []
    for part in parts:
        array = _array_of(arrays, part, leading)
        lead = array.shape[: array.ndim - len(part.shape)]
        flat.append(array.reshape((*lead, part.size)))
    return np.concatenate(flat, axis=-1)


def draws_to_pytree(structure: PyTree, arrays: Mapping[str, Any]) -> PyTree:
    """Return the model's own pytree of one array (..., *shape) a variable, leading axes kept.

    Args:
        structure: pytree of arrays or shapes, as `structure_of` returns it.
        arrays: one array per variable, by name.

    Raises:
        InputError: a variable is missing or has another shape than in the model.
    """
    leaves = [_array_of(arrays, part) for part in variables(structure)]
    return trees.structure_of(structure).unflatten(leaves)


def has_natural(tree: Any) -> bool:
    """Return True for a result with natural quantities beside the coordinates."""
    return UNCONSTRAINED in getattr(tree, "children", ())


def as_sampled(tree: Any) -> Any:
    """Return a result with the coordinates that were sampled in its group ``posterior``.

    They are in ``unconstrained_posterior`` where the model has natural quantities, which are left
    out; any other result is returned as it is.

    Args:
        tree: as of `posterior_arrays`.

    Raises:
        InputError: natural quantities alone, of which coordinates cannot be had.
    """
    children = getattr(tree, "children", {})
    if not has_natural(tree):
        group = children.get(POSTERIOR, tree)
        if getattr(group, "attrs", {}).get(SCALE) == NATURAL:
            raise InputError(
                f"tree: these are natural quantities without the group {UNCONSTRAINED!r}, of which "
                "this is computed. Give the whole xarray.DataTree that `sample` or `open_run` "
                "returned, or that group."
            ).at("tree")
        return tree
    import xarray  # heavy, and only wanted here

    gone = (POSTERIOR, UNCONSTRAINED, "diagnostics")
    groups = {f"/{name}": node.to_dataset() for name, node in children.items() if name not in gone}
    groups[f"/{POSTERIOR}"] = tree[UNCONSTRAINED].to_dataset()
    made = xarray.DataTree.from_dict(groups)
    made.attrs.update(tree.attrs)
    return made


def sampled_draws(tree: Any) -> dict[str, np.ndarray]:
    """Return the coordinates that were sampled, one array (chain, draw, *shape) a variable."""
    return posterior_draws(as_sampled(tree))


def posterior_draws(tree: Any) -> dict[str, np.ndarray]:
    """Return the draws of a result in memory, one array (chain, draw, *shape) a variable."""
    return {name: np.asarray(array) for name, array in posterior_arrays(tree).items()}


def posterior_arrays(tree: Any) -> dict[str, Any]:
    """Return the draws of a result, one array (chain, draw, *shape) a variable; read lazily.

    Args:
        tree: an `xarray.DataTree` with a group ``posterior``, that group, an `xarray.Dataset`, or
            a mapping of names to arrays (chain, draw, ...).

    Returns:
        NumPy arrays from a mapping, otherwise `xarray.DataArray`, which reads what is sliced.

    Raises:
        InputError: there is no group ``posterior``, or an array without chain and draw axes.
    """
    source = posterior_group(tree)
    arrays = {}
    for name in source:
        array = source[name]
        if hasattr(array, "dims"):
            if not {"chain", "draw"} <= set(array.dims):
                raise InputError(
                    f"posterior: variable {str(name)!r} has the dimensions {tuple(array.dims)}; "
                    "draws need 'chain' and 'draw'. Give the result of a run."
                ).at("posterior")
            array = array.transpose("chain", "draw", ...)
        else:
            array = np.asarray(array)
        if array.ndim < 2:
            raise InputError(
                f"posterior: variable {str(name)!r} has shape {array.shape}; draws are arrays "
                "(chain, draw, ...). Add the missing axis, e.g. array[None] for one chain."
            ).at("posterior")
        arrays[str(name)] = array
    if not arrays:
        raise wrong("posterior", ": there are no variables. Give the result of a run.")
    return arrays


def posterior_group(tree: Any) -> Any:
    """Return the group ``posterior`` of a result, or a Dataset or mapping as it is."""
    children = getattr(tree, "children", None)
    if children is None:
        if not hasattr(tree, "keys"):
            raise InputError(
                f"tree is a {type(tree).__name__}: give the xarray.DataTree that `sample` or "
                "`open_run` returned."
            ).at("tree")
        return getattr(tree, "data_vars", tree)
    if "posterior" in children:
        return tree["posterior"].data_vars
    if tree.data_vars:
        return tree.data_vars
    raise InputError(
        f"tree has no group 'posterior' (its groups: {', '.join(children) or 'none'}). "
        "Give the xarray.DataTree that `sample` or `open_run` returned."
    ).at("tree")


def draw_weights(tree: Any) -> np.ndarray | None:
    """Return the step weights of the kept draws, or None when the step size did not vary.

    They are (draw,), or (chain, draw) where servers with step sizes of their own are the chains.
    """
    children = getattr(tree, "children", {})
    if "sample_stats" not in children or "weight" not in tree["sample_stats"].data_vars:
        return None
    weight = np.asarray(tree["sample_stats"]["weight"], dtype=np.float64)
    if (
        weight.ndim not in (1, 2)
        or not np.all(np.isfinite(weight) & (weight >= 0))
        or weight.sum() <= 0
    ):
        raise InputError(
            f"sample_stats.weight: shape {weight.shape}; step weights are one non-negative finite "
            "number a draw, not all zero."
        ).at("tree")
    return weight


def draw_imputations(tree: Any) -> np.ndarray | None:
    """Return the number of the imputation of each draw, (draw,); None where nothing is imputed."""
    children = getattr(tree, "children", {})
    source = tree["posterior"] if "posterior" in children else tree
    coords = getattr(source, "coords", {})
    return np.asarray(coords[IMPUTATION]) if IMPUTATION in coords else None


def coordinate_names(
    name: str, shape: tuple[int, ...], axes: Sequence[Sequence[Any] | None] = ()
) -> list[str]:
    """Return the names of a variable's numbers, by the labels of those axes that have any.

    Example:
        >>> coordinate_names("level", (2, 2), [["oslo", "bonn"]])
        ['level[oslo, 0]', 'level[oslo, 1]', 'level[bonn, 0]', 'level[bonn, 1]']
    """
    known = dict(enumerate(axes))
    words = [map(str, known.get(axis) or range(length)) for axis, length in enumerate(shape)]
    return [f"{name}[{', '.join(labels)}]" if shape else name for labels in product(*words)]


def spaced(length: int, most: int) -> np.ndarray:
    """Return at most so many places of so many draws, evenly spaced from the first to the last."""
    return np.linspace(0, length - 1, min(most, length)).round().astype(int)


def _array_of(arrays: Mapping[str, Any], part: Variable, leading: int | None = None) -> np.ndarray:
    if part.name not in arrays:
        raise InputError(
            f"posterior: there is no variable {part.name!r} (there are: {', '.join(arrays)}). "
            "Give the model that was sampled."
        ).at("posterior")
    array = np.asarray(arrays[part.name])
    rank = len(part.shape)
    other_rank = array.ndim < rank or leading not in (None, array.ndim - rank)
    if other_rank or array.shape[array.ndim - rank :] != part.shape:
        raise InputError(
            f"posterior: variable {part.name!r} has shape {array.shape}; the model's parameter "
            f"has shape {part.shape}. Give the model that was sampled."
        ).at("posterior")
    return array

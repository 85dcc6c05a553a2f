"""Dicts of arrays are taken apart as JAX does it, and without JAX."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from consortia.core import trees

X, Y = np.arange(6.0).reshape(3, 2), np.arange(3)
TREES = {
    "dict": {"y": Y, "x": X},
    "of JAX": {"y": jnp.asarray(Y), "x": X},
    "nested": {"y": Y, "a": {"x": X, "b": (X, [Y])}},
    "bare": X,
    "empty": {},
    "numbers": {"y": 1.0, "x": X},
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_leaves_paths_and_structure_are_those_of_jax(tree):
    paths = jax.tree_util.tree_leaves_with_path(tree)
    found = trees.leaves_of(tree)
    assert [leaf.path for leaf in found] == [jax.tree_util.keystr(path) for path, _ in paths]
    assert all(leaf.value is value for leaf, (_, value) in zip(found, paths, strict=True))
    simple = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
    assert ["/".join(leaf.keys) for leaf in found] == simple
    structure = trees.structure_of(tree)
    assert str(structure) == str(jax.tree.structure(tree))
    rebuilt = structure.unflatten([leaf.value for leaf in found])
    assert jax.tree.structure(rebuilt) == jax.tree.structure(tree)
    doubled, wanted = (each(lambda v: 2 * v, tree) for each in (trees.map_leaves, jax.tree.map))
    assert str(doubled) == str(wanted)  # the order of the keys too


def test_structures_of_other_names_differ():
    names = trees.structure_of({"x": X, "y": Y})
    nested = trees.structure_of({"x": X, "y": {"z": Y}})
    assert trees.are_same(names, trees.structure_of({"y": X, "x": Y}))
    assert trees.are_same(names, trees.structure_of({"x": 1.0, "y": jnp.asarray(Y)}))
    assert trees.are_same(nested, trees.structure_of({"x": X, "y": {"z": X}}))
    assert not trees.are_same(names, trees.structure_of({"x": X}))
    assert not trees.are_same(names, nested)
    assert not trees.are_same(nested, names)


def test_trees_of_other_names_are_refused_as_by_jax():
    with pytest.raises(ValueError, match="key"):
        trees.map_leaves(np.add, {"x": X}, {"z": X})


def test_a_dict_of_arrays_needs_no_jax():
    code = """
import sys
import numpy as np
from consortia.core import parameters, trees
from consortia.data.sites import Sites

rows = [{"x": np.ones((n, 2)), "y": np.zeros(n)} for n in (3, 5)]
sites = Sites.from_list(rows)
sites.digests, sites.pooled(), sites.padded(), sites.only([1]), sites.first
structure = parameters.structure_of({"b": np.zeros(2), "a": np.zeros(())})
assert [one.name for one in parameters.variables(structure)] == ["a", "b"]
draws = {"a": np.ones(4), "b": np.ones((4, 2))}
assert list(parameters.draws_to_pytree(structure, draws)) == ["a", "b"]
print("jax" in sys.modules)
"""
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert outcome.stdout == "False\n", outcome.stderr

"""Names of parameters: pytrees to variables and back."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from jax.flatten_util import ravel_pytree

import consortia
from consortia.core import parameters
from tests.refusals import refused


class Layer(NamedTuple):
    weights: np.ndarray
    bias: np.ndarray


TREES = {
    "bare array": np.arange(3.0),
    "scalar": np.array(2.0),
    "dict": {"weights": np.arange(6.0).reshape(3, 2), "bias": np.arange(3.0)},
    "nested": {"b": {"y": np.arange(2.0), "x": np.array(1.0)}, "a": np.ones((1, 2, 2))},
    "named tuple": {"layer": Layer(np.ones((2, 3)), np.zeros(2)), "scale": np.array(0.5)},
    "list": [np.arange(2.0), (np.arange(3.0), np.array(4.0))],
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_slices_follow_the_flat_position_of_ravel_pytree(tree):
    flat, _ = ravel_pytree(tree)
    parts = parameters.variables(tree)
    pieces = parameters.split(np.asarray(flat), parts)
    for part, leaf in zip(parts, jax.tree.leaves(tree), strict=True):
        np.testing.assert_array_equal(pieces[part.name], leaf)
    assert parts[-1].slice.stop == flat.size


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_flat_draws_to_variables_to_pytree_and_back_is_the_identity(tree):
    parts = parameters.variables(tree)
    dimension = parts[-1].slice.stop
    flat = np.random.default_rng(0).normal(size=(2, 5, dimension))
    arrays = parameters.split(flat, parts)
    np.testing.assert_array_equal(parameters.join(arrays, parts), flat)
    rebuilt = parameters.draws_to_pytree(parameters.structure_of(tree), arrays)
    assert jax.tree.structure(rebuilt) == jax.tree.structure(tree)
    _, unravel = ravel_pytree(tree)
    expected = unravel(jnp.asarray(flat[1, 3], dtype=jnp.result_type(float)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1, 3], b, rtol=1e-6), rebuilt, expected)


def names_of(tree):
    return [one.name for one in parameters.variables(parameters.structure_of(tree))]


def test_names_are_keys_joined_with_a_dot_and_theta_for_a_bare_array():
    assert names_of(TREES["bare array"]) == ["theta"]
    assert names_of(TREES["dict"]) == ["bias", "weights"]
    assert names_of(TREES["nested"]) == ["a", "b.x", "b.y"]
    assert names_of(TREES["named tuple"]) == [
        "layer.weights",
        "layer.bias",
        "scale",
    ]
    assert names_of(TREES["list"]) == ["0", "1.0", "1.1"]


def test_an_init_function_is_not_run_to_learn_its_names():
    ran = []

    def init(key):
        noise = jax.random.normal(key, (4,))
        if not isinstance(noise, jax.core.Tracer):
            ran.append(True)
        return {"theta": noise, "scale": jnp.ones(())}

    structure = parameters.structure_of(init)
    assert not ran
    assert structure["theta"].shape == (4,)
    assert names_of(init) == ["scale", "theta"]


def test_the_structure_has_the_precision_of_the_run(x64):
    structure = parameters.structure_of({"a": np.zeros(2, np.float32)})
    assert structure["a"].dtype == np.float64


@pytest.mark.parametrize("tree", [{"a/b": np.ones(1)}, {"draw": np.ones(1)}, {"": np.ones(1)}])
def test_names_that_a_result_cannot_hold_are_refused(tree):
    with refused(argument="init", match="cannot be named"):
        parameters.variables(tree)


def test_two_parameters_of_one_name_are_refused():
    with refused(argument="init", match=r"two .* 'a\.b'"):
        parameters.variables({"a.b": np.ones(1), "a": {"b": np.ones(1)}})


def test_draws_of_another_model_are_refused():
    structure = parameters.structure_of({"weights": np.zeros((3, 2))})
    with refused(argument="posterior", match=r"no variable 'weights' \(there are: theta\)"):
        parameters.draws_to_pytree(structure, {"theta": np.zeros((4, 3))})
    with refused(argument="posterior", match=r"'weights' has shape \(4, 2, 3\)"):
        parameters.draws_to_pytree(structure, {"weights": np.zeros((4, 2, 3))})


def dataset() -> xarray.Dataset:
    values = np.arange(24.0).reshape(2, 3, 4)
    return xarray.Dataset({"theta": (("feature", "draw", "chain"), values)})


def test_draws_are_found_in_a_tree_a_group_a_dataset_and_a_mapping():
    tree = xarray.DataTree.from_dict({"/posterior": dataset()})
    expected = dataset()["theta"].values.transpose(2, 1, 0)
    for source in (tree, tree["posterior"], dataset(), {"theta": expected}):
        np.testing.assert_array_equal(parameters.posterior_draws(source)["theta"], expected)


def test_a_tree_without_posterior_is_refused_with_its_groups():
    tree = xarray.DataTree.from_dict({"/prior": dataset()})
    with refused(argument="tree", match=r"no group 'posterior' \(its groups: prior\)"):
        parameters.posterior_draws(tree)
    with refused(argument="tree", match=r"ndarray.*give the xarray.DataTree"):
        parameters.posterior_draws(np.zeros((1, 2, 3)))


def test_a_variable_without_draws_is_refused():
    flat = xarray.Dataset({"theta": (("draw",), np.zeros(3))})
    with refused(argument="posterior", match=r"'theta' has the dimensions.*'chain' and 'draw'"):
        parameters.posterior_draws(flat)


def test_step_weights_are_found_where_there_are_some():
    weights = xarray.Dataset({"weight": (("draw",), np.array([1.0, 0.5, 0.25]))})
    tree = xarray.DataTree.from_dict({"/posterior": dataset(), "/sample_stats": weights})
    np.testing.assert_array_equal(parameters.draw_weights(tree), [1.0, 0.5, 0.25])
    assert parameters.draw_weights(xarray.DataTree.from_dict({"/posterior": dataset()})) is None
    assert parameters.draw_weights(dataset()) is None


def test_step_weights_that_are_none_are_refused():
    bad = xarray.Dataset({"weight": (("draw",), np.array([1.0, np.nan, 0.25]))})
    tree = xarray.DataTree.from_dict({"/posterior": dataset(), "/sample_stats": bad})
    with refused(argument="tree", match="sample_stats"):
        parameters.draw_weights(tree)


# --- what counts as parameters -------------------------------------------------------------------


@jax.tree_util.register_pytree_node_class
class Module:
    """A pytree that can be called, as modules of Equinox are."""

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, x):
        return x @ self.weight

    def tree_flatten(self):
        return (self.weight,), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)


def sampled(parameters_of_model, likelihood, **options):
    def log_prior(p):
        return -sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(p))

    model = consortia.Model(log_prior, likelihood, parameters_of_model)
    sites = consortia.Sites.from_list([{"x": np.ones((3, 2), np.float32)}])
    method = consortia.fa_ld(step_size=0.1, local_steps=1)
    return consortia.sample(model, sites, method, rounds=4, chains=1, progress=False, **options)


def test_a_module_that_can_be_called_is_parameters():
    tree = sampled(Module(jnp.zeros(2)), lambda module, rows: -(module(rows["x"]) ** 2))
    (name,) = tree["posterior"].data_vars
    assert tree["posterior"][name].shape == (1, 4, 2)


def test_a_function_among_the_parameters_is_said_to_be_one():
    with refused(argument="init", match="is a function"):
        sampled({"w": jnp.zeros(2), "act": jnp.tanh}, lambda p, rows: -rows["x"][:, 0])


def test_parameters_may_be_python_floats():
    def likelihood(p, rows):
        return -((rows["x"][:, 0] - p["b"]) ** 2)

    assert sampled({"b": 0.0}, likelihood)["posterior"]["b"].shape == (1, 4)
    assert sampled({"b": jnp.zeros(())}, likelihood, init={"b": 1.0}).attrs["chains"] == 1


def test_an_unknown_keyword_is_answered_with_the_nearest():
    with refused(TypeError, argument="leapfrog_step", match="'leapfrog_steps'"):
        consortia.fa_hmc(step_size=0.1, leapfrog_step=3, local_steps=2)
    with refused(argument="round", match="'rounds'"):
        consortia.sample(None, None, None, round=3, chains=1)
    with refused(argument="prior_scal", match="'prior_scale'"):
        consortia.models.logistic_regression(3, prior_scal=2.0)


@pytest.mark.parametrize(
    "name", ["..", ".", "zarr.json", "\ud800", "c" * 201, "é" * 101, "\x1b[2J", "", "a/b", "draw"]
)
def test_a_name_that_no_stored_run_can_hold_is_refused_before_the_run(name):
    with refused(argument="init", match="cannot be named"):
        parameters.variables({name: np.zeros(2)})

"""A diagonal preconditioner: the same draws as in scaled parameters, and the same law."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.algorithms.registry import ALGORITHMS
from consortia.theory.bias import Problem, keeps_posterior, law_of
from tests.refusals import refused

SCALES = (0.5, 2.0)
WIDTHS = np.array([1.0, 30.0])
RNG = np.random.default_rng(4)


def log_likelihood(x: Any, rows: Any) -> Any:
    return -0.5 * (rows["y"] - rows["x"] @ x) ** 2


def log_prior(x: Any) -> Any:
    return -0.5 * jnp.sum(x**2)


MODEL = consortia.Model(log_prior, log_likelihood, np.full(2, 0.1))
SCALED = consortia.Model(
    lambda phi: log_prior(phi * jnp.asarray(SCALES, phi.dtype)),
    lambda phi, rows: log_likelihood(phi * jnp.asarray(SCALES, phi.dtype), rows),
    0.1 / np.array(SCALES),
)


def sites(widths: Any = 1.0) -> consortia.Sites:
    rows = []
    for size, shift in ((9, 0.0), (14, 0.4), (20, -0.3)):
        x = RNG.normal(size=(size, 2)) * widths + shift
        y = x @ np.array([0.5, -0.2]) + shift + RNG.normal(size=size)
        rows.append({"x": x, "y": y})
    return consortia.Sites.from_list(rows)


SITES, STEEP = sites(), sites(WIDTHS)
METHODS = {
    "fa_hmc": consortia.fa_hmc(0.05, 2, 2, debias=True),
    "de_sgld": consortia.de_sgld(0.002, "ring", batch_size=4),
    "stale_sgld": consortia.stale_sgld(0.001, workers=3, batch_size=None),
    "fsgld": consortia.fsgld(0.01, 2, batch_size=3),
}

SLOW = ("stale_sgld", "fsgld")


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name", ["fa_hmc", "de_sgld", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)]
)
def test_the_draws_are_those_in_scaled_parameters_and_others_without(name):
    options: dict[str, Any] = {"rounds": 15, "chains": 2, "progress": False}

    def draws(model: consortia.Model, method: Any) -> np.ndarray:
        return np.asarray(consortia.sample(model, SITES, method, **options)["posterior"]["theta"])

    method = METHODS[name]
    found = draws(MODEL, consortia.preconditioned(method, SCALES))
    np.testing.assert_allclose(found, draws(SCALED, method) * SCALES, rtol=1e-9, atol=1e-11)
    assert np.abs(found - draws(MODEL, method)).max() > 1e-3


def approximate() -> list[Any]:
    """Each approximate method of the registry that has a law, on all rows."""
    found = []
    for entry in ALGORITHMS.values():
        method = entry.factory(**entry.example)
        known = law_of.dispatch(type(method)) is not law_of.dispatch(object)
        if known and not keeps_posterior(method):
            options = dict(entry.example)
            if "batch_size" in {one.name for one in dataclasses.fields(method)}:
                options["batch_size"] = None
            step = 0.05 if "hmc" in method.name or method.name == "fa_ld" else 0.002
            step = 0.002 if method.name.startswith(("de_", "stale_")) else step
            found.append(entry.factory(**options | {"step_size": step}))
    return found


@pytest.mark.parametrize("method", approximate(), ids=lambda method: method.name)
def test_the_law_is_that_in_scaled_parameters_in_the_units_of_the_parameters(method):
    own = law_of(consortia.preconditioned(method, SCALES), Problem(MODEL, SITES))
    other = law_of(method, Problem(SCALED, SITES))
    plain = law_of(method, Problem(MODEL, SITES))
    assert own.stable
    assert other.stable
    one, two = own.stationary, other.stationary
    # Hessians and the search for the mode are in single precision.
    np.testing.assert_allclose(one.sd, two.sd * SCALES, rtol=1e-4)
    np.testing.assert_allclose(one.bias, two.bias * SCALES, atol=1e-4)
    np.testing.assert_allclose(own.rounds_per_draw, other.rounds_per_draw, rtol=1e-3)
    assert np.abs(plain.stationary.sd / one.sd - 1).max() > 1e-4
    there = own.after(3, [0.3, -0.1]).mean
    np.testing.assert_allclose(there, other.after(3, np.array([0.3, -0.1]) / SCALES).mean * SCALES,
                               atol=1e-4)  # fmt: skip


@pytest.mark.predicted
def test_where_the_rounds_are_too_few_for_any_step_a_preconditioned_one_does(tmp_path):
    method = consortia.fa_ld(None, local_steps=1)
    options: dict[str, Any] = {"progress": False, "chains": 4}
    with pytest.warns(UserWarning, match="too few"):
        consortia.sample(MODEL, STEEP, method, rounds=1000, **options)
    within = consortia.preconditioned(method)
    tree = consortia.sample(
        MODEL, STEEP, within, rounds=1000, warmup=200, store=tmp_path / "run", **options
    )
    near = Problem(MODEL, STEEP).near
    scales = tree.attrs["parameters"]
    np.testing.assert_allclose(np.array(_read(scales)), np.diagonal(near.precision) ** -0.5, 1e-5)
    table = consortia.summary(tree)
    # 4,000 rounds are worth some hundreds of draws.
    assert (np.abs(table["mean"] - near.mode) / near.sd < 0.05 + 4 / np.sqrt(300)).all()
    assert (np.abs(table["sd"] / near.sd - 1) < 0.1 + 4 / np.sqrt(600)).all()
    longer = consortia.resume(tmp_path / "run", MODEL, STEEP, within, rounds=1100, progress=False)
    assert longer["posterior"].sizes["draw"] == 1100
    assert longer.attrs["parameters"] == tree.attrs["parameters"]


def _read(parameters: Any) -> Any:
    return (json.loads(parameters) if isinstance(parameters, str) else parameters)["scales"]


def test_what_cannot_be_preconditioned_is_refused():
    method = consortia.fa_ld(0.1, local_steps=1)
    for given, scales, argument, match in (
        (consortia.federated_hmc(), None, "method", "federated_hmc"),
        ("fa_ld", None, "method", "got 'fa_ld'"),
        (consortia.preconditioned(method), None, "method", "already"),
        (method, [1.0, -1.0], "scales", "positive"),
    ):
        with refused(argument=argument, match=match):
            consortia.preconditioned(given, scales)
    with refused(argument="scales", match="3.*for 2"):
        consortia.sample(MODEL, SITES, consortia.preconditioned(method, [1, 2, 3]), rounds=2)


def test_a_preconditioned_method_compares_by_value_and_keeps_its_scales():
    method = consortia.preconditioned(consortia.fa_ld(0.1, local_steps=2), SCALES)
    assert method == consortia.preconditioned(consortia.fa_ld(0.1, local_steps=2), SCALES)
    assert method != consortia.preconditioned(consortia.fa_ld(0.1, local_steps=2), (1.0, 2.0))
    assert dataclasses.replace(method, step_size=0.2).scales == SCALES
    assert method.parameters()["scales"] == list(SCALES)
    assert method.inner() == consortia.fa_ld(0.1, local_steps=2)

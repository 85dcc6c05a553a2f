"""What a regression says of draws: of its own, and of nobody else's."""

from __future__ import annotations

import numpy as np
import pytest
import xarray

import consortia
from consortia.store.results import plain_attributes
from tests.refusals import refused

RNG = np.random.default_rng(0)
TABLE = {
    "sick": RNG.integers(0, 2, 40),
    "age": RNG.normal(60.0, 10.0, 40),
    "dose": RNG.normal(1.0, 0.3, 40),
    "stage": np.array(["I", "II"])[RNG.integers(0, 2, 40)],
}
SITES = {"a": TABLE, "b": TABLE}


def made_of(formula: str, family: str = "bernoulli", **more):
    return consortia.regression(formula, SITES, family=family, **more)


def result_of(made, *, study: bool = False) -> xarray.DataTree:
    """A result with draws of every parameter, and the record that a run of this model has."""
    draws = {
        name: (("chain", "draw", *(f"{name}_{i}" for i in range(np.ndim(value)))), one)
        for name, value in made.model.init.items()
        for one in [RNG.normal(size=(2, 30, *np.shape(value)))]
    }
    record = dict(made.metadata.record)
    if study:
        record["settings"] = {"model": "regression", "regression": record["settings"]}
    tree = xarray.DataTree.from_dict({"posterior": xarray.Dataset(draws)})
    tree.attrs.update(plain_attributes(record))
    return tree


@pytest.mark.parametrize("study", [False, True])
@pytest.mark.parametrize(
    ("other", "what"),
    [(("sick ~ dose",), "formula"), (("sick ~ age", "poisson"), "family")],
)
def test_draws_of_another_regression_are_refused(other, what, study):
    made, other = made_of("sick ~ age"), made_of(*other)
    tree = result_of(made, study=study)
    assert made.estimates(tree).names == ("age",)
    assert np.shape(made.predict(tree, TABLE)) == (2, 30, 40)
    for ask in (other.estimates, other.natural, other.marginal_effects):
        with refused(argument="tree", match=f"the {what} .*that was sampled"):
            ask(tree)


def test_draws_with_other_levels_in_their_columns_are_refused():
    first = made_of("sick ~ stage")
    second = made_of("sick ~ stage", levels={"stage": ["II", "I"]})
    assert first.names != second.names
    with refused(argument="tree", match="with the columns"):
        second.estimates(result_of(first))


def test_spaces_make_no_other_formula():
    tree = result_of(made_of("sick ~ age + dose"))
    assert made_of("sick~age  +dose ").estimates(tree).names == ("age", "dose")


def test_draws_without_a_record_are_taken_as_they_are():
    made = made_of("sick ~ age")
    draws = {name: np.asarray(one) for name, one in result_of(made)["posterior"].items()}
    assert made.estimates(draws).names == ("age",)

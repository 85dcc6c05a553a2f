"""No GOOD over what was not seen: posteriors chosen to be hard, beside importance sampling."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from statistical.pieces import kept
from statistical.unseen import CASES, Law, wrong

import consortia
from consortia.diagnostics.verdict import Severity
from consortia.errors import WarmupError


@pytest.mark.parametrize(("name", "seed"), [("a direction, wide prior", 5), ("a frequency", 2)])
def test_few_parameters_have_all_modes_with_their_masses(name: str, seed: int) -> None:
    """The first was GOOD without a third of its width, the second refused."""
    case = CASES[name]()
    tree = case.run(seed)
    assert wrong(case, case.law(size=20_000), tree) == []
    assert consortia.summary(tree).verdict.severity is Severity.GOOD


def test_a_tail_like_a_power_is_unknown_with_its_parameter() -> None:
    """A Cauchy prior where rows say nothing: quantiles were half of the right ones under GOOD."""
    model = consortia.Model(
        lambda p: -jnp.log1p((p["b"] / 2.5) ** 2),
        lambda p, rows: -jnp.logaddexp(0.0, -p["b"] * rows["x"]),
        {"b": jnp.zeros(())},
    )
    sites = consortia.Sites.from_list([{"x": np.ones(n, np.float32)} for n in (5, 4, 3)])
    with pytest.warns(UserWarning, match="too few draws"):
        tree = consortia.sample(model, sites, consortia.few_rounds(), seed=1, progress=False)
    summary = consortia.summary(tree)
    assert summary.verdict.severity is Severity.UNKNOWN
    assert "along b the density falls no faster than a power" in summary.text()


@functools.cache
def law_of(name: str) -> Law:
    return CASES[name]().law()


def outcome(name: str, seed: int) -> tuple[str, list[str]]:
    """Return the verdict on a run, and what of its draws is wrong, kept in pieces."""

    def make() -> Any:
        case = CASES[name]()
        try:
            tree = case.run(seed)
        except WarmupError as error:
            return f"refused: {error}", []
        return consortia.summary(tree).verdict.word, wrong(case, law_of(name), tree)

    word, faults = kept(f"unseen-{name.replace('/', ' ')}-{seed}", make)
    return word, faults


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_none_is_good_and_wrong(name: str, seed: int) -> None:
    word, faults = outcome(name, seed)
    print(f"{name}, seed {seed}: {word[:60]} {faults}")
    if word == "good":
        assert faults == []


@pytest.mark.slow
def test_what_is_refused_with_levels_as_parameters_runs_by_its_remedy() -> None:
    """Two slopes are not integrated out: chains do not settle, and longer ones are asked for."""
    rng = np.random.default_rng(7)
    sites = {}
    for name, rows in (("north", 180), ("south", 130), ("west", 100)):
        dose, age = rng.uniform(0, 3, rows), rng.normal(size=rows)
        ill = rng.random(rows) < 1 / (1 + np.exp(0.4 * dose - age + rng.normal(0, 0.3)))
        sites[name] = {"dose": dose, "age": age, "ill": ill.astype(int)}
    made = consortia.regression("ill ~ dose + (1 + dose + age | site)", sites, family="bernoulli")
    options: dict[str, Any] = {"chains": 4, "seed": 1, "progress": False}
    options["metadata"] = made.metadata
    with pytest.raises(WarmupError, match=r"federated_hmc\(target_acceptance=0.95\)"):
        consortia.sample(made.model, made.sites, consortia.few_rounds(), **options)
    remedy = consortia.federated_hmc(target_acceptance=0.95)
    tree = consortia.sample(made.model, made.sites, remedy, warmup=500, rounds=1000, **options)
    assert consortia.summary(tree).verdict.severity is Severity.GOOD

"""No GOOD over what was not seen: posteriors chosen to be hard, beside importance sampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from statistical.unseen import CASES, wrong

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


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_none_is_good_and_wrong(name: str) -> None:
    case = CASES[name]()
    law, good = case.law(), 0
    for seed in (1, 2, 3):
        try:
            tree = case.run(seed)
        except WarmupError:
            continue
        if consortia.summary(tree).verdict.severity is Severity.GOOD:
            assert wrong(case, law, tree) == [], (name, seed)
            good += 1
    print(f"{name}: {good} of 3 runs are GOOD and right")


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

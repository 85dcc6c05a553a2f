"""No GOOD over what was not seen: posteriors chosen to be hard, beside importance sampling."""

from __future__ import annotations

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

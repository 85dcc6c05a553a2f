"""Factors between units: decided by a ratio of means and the name of a column, or left open."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from consortia.data.tables import read_table
from consortia.study.likeness import Suggestion, suggestions
from consortia.study.units import LABORATORY, usual_factor

LAB = [analyte for analyte in LABORATORY if analyte.factor is not None]


@pytest.mark.parametrize("analyte", LAB, ids=lambda analyte: analyte.name.replace(" ", "-"))
@pytest.mark.parametrize("patients", [0.85, 1.0, 1.15])
def test_a_laboratory_value_has_the_factor_of_its_analyte(analyte, patients) -> None:
    name = f"{analyte.name} at baseline"
    for ratio in (analyte.factor * patients, patients / analyte.factor):
        found = usual_factor(name, ratio)
        assert found is not None
        assert found[0] == pytest.approx(analyte.factor if ratio > 1 else 1 / analyte.factor)
        assert analyte.units in found[1]


@pytest.mark.parametrize(
    "name", ["Kreatinin", "créatinine", "creat_0", "CREA", "s-creatinine", "creatinina"]
)
def test_names_of_other_languages_and_short_ones_are_known(name: str) -> None:
    found = usual_factor(name, 92.0)  # 100 is as near by the ratio alone
    assert found is not None
    assert found[0] == 88.42


@pytest.mark.parametrize(
    ("name", "ratio", "factor"),
    [
        ("height", 99.0, 100),
        ("stay", 30.0, 30.4375),
        ("stay", 1 / 7.1, 1 / 7),
        ("follow_up", 12.2, 12),
        ("followup", 360.0, 365.25),
        ("wbc", 1010.0, 1000),
        ("haemoglobin", 10.3, 10),  # g/L for g/dL
    ],
)
def test_other_columns_have_factors_of_time_and_powers_of_ten(name, ratio, factor) -> None:
    assert usual_factor(name, ratio) == (factor, "")


@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        ("marker", 88.4),  # 88.42 as well as 100
        ("marker", 94.0),
        ("marker", 18.0),
        ("marker", 21.0),
        ("glucose", 24.0),
        ("HbA1c", 7.6),  # mmol/mol of %: no factor alone
        ("creatine_kinase", 88.4),  # another quantity
        ("marker", 5.0),
    ],
)
def test_what_two_factors_or_none_explain_is_left_open(name: str, ratio: float) -> None:
    assert usual_factor(name, ratio) is None


def test_the_factor_of_creatinine_is_proposed_with_its_units() -> None:
    rng = np.random.default_rng(4)
    tables = {}
    for site, factor in (("a", 1.0), ("b", 1.0), ("c", 88.42)):
        values = rng.lognormal(0, 0.25, 200) * factor * (1.1 if site == "c" else 1)
        tables[site] = read_table({"creatinine": values}, site)
    shown: list[str] = []

    def accept(proposals: Sequence[Suggestion]) -> bool:
        shown.extend(proposal.sentence for proposal in proposals)
        return True

    [(site, changes)] = suggestions(lambda _: tables, {}, accept).items()
    assert site == "c"
    assert dict(changes.scale) == {"creatinine": pytest.approx(1 / 88.42)}
    assert "88.42 µmol/L in 1 mg/dL" in shown[0]

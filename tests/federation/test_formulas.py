"""What a site between institutions tells of its table is what its policy lets it tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from consortia.federation.app import site_of
from consortia.study.build import load_study

STUDY = """[data]
files = ["oslo.csv", "lima.csv"]
[model]
formula = "died ~ stage"
family = "bernoulli"
[algorithm]
name = "federated_hmc"
[run]
rounds = 10
warmup = 20
"""
ROWS = "stage,died\n" + "I,0\nII,1\n" * 5 + "IV,1\n" * 2


@pytest.mark.parametrize(
    ("limit", "told"), [("", ("I", "II")), ("minimum_level_rows = 2", ("I", "II", "IV"))]
)
def test_a_policy_keeps_the_names_of_rare_levels_back(
    tmp_path: Path, limit: str, told: tuple[str, ...]
) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "oslo.csv").write_text(ROWS)
    (tmp_path / "policy.toml").write_text(
        f'studies = ["any"]\nmaximum_rounds = 100\nminimum_rows = 1\n{limit}\n'
    )
    node = {
        "site": "oslo",
        "data": str(tmp_path / "oslo.csv"),
        "policy": str(tmp_path / "policy.toml"),
        "state": str(tmp_path / "state"),
    }
    facts = site_of(load_study(tmp_path / "study.toml"), node, {})._contribute()
    assert facts.table is not None
    assert facts.table.levels == {"stage": told}

"""Studies of one file whose difference, or one term, would be a patient: refused before a message.

Each test is the attack: what a coordinator would send who wishes to know one row.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from federation.hospitals import HOSPITALS, NAMES
from federation.same_rows import FORMULA, Hospitals
from typer.testing import CliRunner

from consortia.cli.commands import app
from consortia.data.columns import Table
from consortia.data.tables import read_table
from consortia.errors import PolicyError, SiteRefusedError
from consortia.federation.governance.holdings import rows_told
from consortia.federation.governance.proposal import proposed
from consortia.federation.governance.terms import terms_of
from consortia.federation.rehearsal.attacks import settled_rows
from consortia.federation.rehearsal.stage import Stage
from consortia.federation.rehearsal.week import days
from consortia.models.regression.concentration import check_moments
from consortia.models.regression.question import Question
from consortia.study.build import load_study
from consortia.study.formulas import question_in
from tests.federation.governance.test_holdings import rows

AGE = "ill ~ age + dose"


def with_wards(hospitals: Hospitals) -> Hospitals:
    """One patient of north lies in a ward of which the other hospitals have many."""
    for name, path in hospitals.files.items():
        head, *lines = path.read_text().split()
        often = len(lines) if name == "north" else 9
        wards = ["icu" if index % often == 7 else "med" for index in range(len(lines))]
        rows = [f"{line},{ward}" for line, ward in zip(lines, wards, strict=True)]
        path.write_text("\n".join([f"{head},ward", *rows]) + "\n")
    return hospitals


def ages(hospitals: Hospitals) -> np.ndarray:
    lines = hospitals.files["north"].read_text().split()[1:]
    return np.array([float(line.partition(",")[0]) for line in lines])


def refused(hospitals: Hospitals, *study: str, **more: str) -> str:
    """The rule for which north refuses a study of which nothing has left."""
    before = hospitals.left
    with pytest.raises(SiteRefusedError):
        hospitals.described(*study, **more)
    assert hospitals.left == before
    return hospitals.errors


@pytest.mark.parametrize("first", [True, False])
def test_a_subgroup_without_the_one_patient_of_a_level(tmp_path: Path, first: bool) -> None:
    hospitals = with_wards(Hospitals(tmp_path))
    keeps = ["", "keep = \"ward != 'icu'\""]
    one, other = keeps if first else keeps[::-1]
    hospitals.described(AGE, one)
    assert "minimum_rows_changed: 1 row" in refused(hospitals, AGE, other)


def test_all_patients_and_two_groups_that_have_one_in_common(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    north = np.sort(ages(hospitals))
    between = (north[59] + north[60]) / 2
    below = (north[58] + north[59]) / 2
    hospitals.described(AGE)
    hospitals.described(AGE, f"keep = 'age < {between}'")
    assert "minimum_rows_changed: 1 row" in refused(hospitals, AGE, f"keep = 'age > {below}'")


def test_sums_over_several_sets_that_leave_few_rows() -> None:
    every, young, old = rows(*range(40)), rows(*range(20)), rows(*range(19, 40))
    assert rows_told(old, [every, young], 10) == 1
    assert rows_told(every, [young, old], 10) == 1
    assert rows_told(rows(*range(20, 40)), [every, young], 10) is None
    # Of two halves across, one patient less: a - b + c - d.
    odd, even = rows(*range(1, 40, 2)), rows(*range(0, 38, 2))
    assert rows_told(even, [odd, young, rows(*range(20, 40))], 10) == 1
    assert rows_told(even, [odd, every], 1) is None
    assert rows_told(rows(*range(15, 25)), [young, every], 5) is None


@pytest.mark.parametrize("value", ["1000000", "0"])
def test_a_value_that_is_taken_for_another_at_one_site(tmp_path: Path, value: str) -> None:
    hospitals = Hospitals(tmp_path)
    hospitals.described(AGE)
    age = hospitals.files["north"].read_text().split()[7].partition(",")[0]
    table = f'[harmonise.north.recode]\nage = {{"{age}" = "{value}"}}\n'
    assert "minimum_rows_changed: 1 row" in refused(hospitals, AGE, loo=table)
    hospitals.described("ill ~ dose", loo=table)  # which does not look at it


def test_a_value_that_is_taken_for_missing_and_drawn(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    hospitals.described(AGE)
    age = hospitals.files["north"].read_text().split()[7].partition(",")[0]
    table = f'[harmonise.north.missing_values]\nage = ["{age}"]\n'
    study = {"formula": AGE, "loo": table, "missing": "indicator"}
    assert "minimum_rows_changed: 1 row" in refused(hospitals, **study)


@pytest.mark.parametrize(
    ("term", "rule"),
    [
        ("I(exp(-20000*(age+1.06)**2)*dose)", "minimum_pattern_rows"),
        ("I(dose+exp(-20000*(age+1.06)**2)*dose)", "maximum_settled_rows"),
        ("I(1e-3*dose+exp(-20000*(age+1.06)**2)*dose)", "maximum_settled_rows"),
        ("I((age<{above})*(age>{below}))", "minimum_pattern_rows"),
        ("I((age<{above})*(age>{below})*dose)", "minimum_pattern_rows"),
    ],
)
def test_a_term_that_is_about_one_patient(tmp_path: Path, term: str, rule: str) -> None:
    hospitals = Hospitals(tmp_path)
    age = np.sort(ages(hospitals))
    term = term.format(below=(age[9] + age[10]) / 2, above=(age[10] + age[11]) / 2)
    assert rule in refused(hospitals, f"{AGE} + {term}")


@pytest.mark.parametrize(
    "formula",
    [
        "ill ~ age + I(age*dose)",
        "ill ~ age + I(age**2) + I(exp(dose))",
        "ill ~ age * dose + I(dose > 0)",
        "ill ~ bs(age, knots=[-0.5, 0.5], boundary=[-6, 6]) + dose",
        "ill ~ poly(age, 3, raw=TRUE) + scale(dose)",
    ],
)
def test_ordinary_terms_are_described(tmp_path: Path, formula: str) -> None:
    hospitals = Hospitals(tmp_path)
    hospitals.described(formula)
    assert hospitals.left == 1


SKEWED = np.maximum(np.round(np.exp(2 + np.random.default_rng(4).normal(size=100)), 1), 0.4)
SKEWED[0] = 0.1  # in a column whose standard deviation is 15


@pytest.mark.parametrize("term", ["log(lab)", "log(lab) + I(lab**0.5)", "I(log(lab)*age)"])
def test_the_mean_of_a_logarithm_tells_no_value_near_zero(term: str) -> None:
    check_moments(*skewed(term), "a", 3)


@pytest.mark.parametrize(
    "term",
    [
        "I(1/(lab-0.099))",  # falls all the way, and all of its mean is one patient's
        "I(lab**30)",
        "I(exp(lab))",
        "log(lab) + I(log(lab)+1/(lab-0.099))",
        "I(exp(-20000*(age-30)**2)*log(lab))",
    ],
)
def test_a_term_that_is_nearly_all_of_one_patient_is_refused(term: str) -> None:
    with pytest.raises(PolicyError, match=r"maximum_settled_rows|minimum_pattern_rows"):
        check_moments(*skewed(term), "a", 3)


def skewed(term: str) -> tuple[Question, Table]:
    """The question and the rows of a table with a skewed column."""
    age = np.round(60 + 9 * np.random.default_rng(4).normal(size=100))
    columns = {"age": np.r_[30, age[1:]], "lab": SKEWED, "ill": np.arange(100) % 2}
    question = question_in(f"ill ~ age + {term}", {"family": "bernoulli"})
    return question, read_table(columns, "a")


# --- siblings of the known differences ------------------------------------------------------------


def table_of(hospitals: Hospitals, name: str) -> tuple[str, list[str]]:
    head, *lines = hospitals.files[name].read_text().split()
    return head, lines


REGISTERED = """
[registered.numbers]
age = {{ centre = 0.0, scale = 1.0 }}
dose = {{ centre = 0.0, scale = 1.0 }}
{more}"""


@pytest.mark.parametrize("first", [True, False])
def test_a_registered_study_beside_an_unregistered_one(tmp_path: Path, first: bool) -> None:
    hospitals = Hospitals(tmp_path)
    crp = "crp = { centre = 0.0, scale = 1.0 }"
    studies = [
        {"formula": AGE, "loo": REGISTERED.format(more="")},
        {"formula": f"{AGE} + crp"},
    ]
    if not first:
        studies = [
            {"formula": f"{AGE} + crp", "loo": REGISTERED.format(more=crp)},
            {"formula": AGE},
        ]
    hospitals.described(**studies[0])
    assert "minimum_rows_changed: 1 row" in refused(hospitals, **studies[1])


def test_a_file_that_is_registered_again_with_one_patient_more(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    head, lines = table_of(hospitals, "north")
    hospitals.files["north"].write_text("\n".join([head, *lines[:-1]]) + "\n")
    study = {"formula": AGE, "loo": REGISTERED.format(more="")}
    hospitals.described(**study)
    hospitals.files["north"].write_text("\n".join([head, *lines]) + "\n")
    assert "minimum_rows_changed: 1 row" in refused(hospitals, **study)


def test_a_copy_in_other_units_that_is_harmonised_and_lacks_one_patient(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    hospitals.described(AGE)
    head, lines = table_of(hospitals, "north")
    names = head.split(",")
    copied = []
    for line in lines[1:]:
        cells = dict(zip(names, line.split(","), strict=True))
        other = {"alder": float(cells["age"]) * 12, "dosis": float(cells["dose"]) * 1000}
        copied.append(",".join([*(f"{value!r}" for value in other.values()), cells["ill"]]))
    hospitals.files["north"].write_text("\n".join(["alder,dosis,ill", *copied]) + "\n")
    table = """
[harmonise.north]
rename = { alder = "age", dosis = "dose" }
scale = { age = 0.08333333333333333, dose = 0.001 }
"""
    assert "minimum_rows_changed: 1 row" in refused(hospitals, AGE, loo=table)


def test_knots_of_a_spline_around_one_patient(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    below, age, above = np.sort(ages(hospitals))[59:62].tolist()
    sides = [age - (age - below) / 2, age - (age - below) / 4]
    knots = [*sides, age, age + (above - age) / 4, age + (above - age) / 2]
    term = f"bs(age, knots={knots}, boundary=[-6, 6])"  # the fifth is 0 of all other patients
    assert "minimum_pattern_rows" in refused(hospitals, f"ill ~ {term} + dose")


def test_a_product_with_a_column_that_only_one_patient_has(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    for name, path in hospitals.files.items():
        head, lines = table_of(hospitals, name)
        rows = [f"{line},{int(index == 7) / 4}" for index, line in enumerate(lines)]
        path.write_text("\n".join([f"{head},rare", *rows]) + "\n")
    assert "minimum_pattern_rows" in refused(hospitals, f"{AGE} + I(age*rare)")


def test_a_week_of_studies_settles_no_row_and_refuses_the_differences_alone(tmp_path: Path) -> None:
    path, folder = tmp_path / "study.toml", tmp_path / "week"
    for name in NAMES:
        shutil.copy(HOSPITALS / f"{name}.csv", tmp_path)
    parts = {"formula": f"{AGE} + weight", "require": "", "missing": "complete", "more": ""}
    path.write_text(FORMULA.format(**parts))
    folder.mkdir()
    ended = {
        day.title: day for day in days(path, tmp_path / "north.csv", "north", [*NAMES], folder)
    }
    for title in ("an export with one row more", "an export with one value corrected"):
        differing = ended.pop(title)
        assert differing.answers == 0
        assert "minimum_rows_changed" in differing.refused
    assert len(ended) == 6
    assert {day.refused for day in ended.values()} == {""}
    assert all(day.settled == 0 for day in ended.values())
    answers = {title: day.answers for title, day in ended.items()}
    assert answers.pop("compared with a covariate less") >= 6  # of two models
    assert min(answers.values()) >= 3


def test_fits_of_a_later_study_keep_their_digits(tmp_path: Path) -> None:
    """Answers before the third study hold a quarter of what settles a row, its fits hardly any."""
    parts = {"formula": f"{AGE} + weight", "require": "", "missing": "complete", "more": ""}
    files = {name: HOSPITALS / f"{name}.csv" for name in NAMES}
    for seed in range(1, 4):
        study = tmp_path / str(seed) / "study.toml"
        study.parent.mkdir()
        study.write_text(FORMULA.format(**parts).replace("seed = 1", f"seed = {seed}"))
        policy = proposed(terms_of(load_study(study, HOSPITALS / "study.toml")))
        policy = policy.replace("maximum_runs = 3", "maximum_runs = 9")
        stage = Stage(study, files, tmp_path / "sites", policy, origin=HOSPITALS / "study.toml")
        stage.run()
    fits = [
        exchange.answer
        for log in stage.log.values()
        for exchange in log
        if exchange.request.values.get("function") == "local_fits"
    ]
    assert len(fits) == 3
    assert all("noise" not in answer.values for answer in fits)


def test_the_officer_reads_which_rows_are_left_out_and_changed(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    age = hospitals.files["north"].read_text().split()[7].partition(",")[0]
    changes = f'[harmonise.north]\nmissing_values = {{ age = ["{age}"] }}\n'
    changes += 'recode = { arm = { "t" = "treated" } }\n'
    head, *lines = hospitals.files["north"].read_text().split()
    arms = [f"{line},{'t' if index < 3 else 'c'}" for index, line in enumerate(lines)]
    hospitals.files["north"].write_text("\n".join([f"{head},arm", *arms]) + "\n")
    parts = {"formula": f"{AGE} + arm + I(age*dose)", "missing": "complete", "more": ""}
    study = tmp_path / "study.toml"
    study.write_text(FORMULA.format(require="keep = 'dose < 1'", **parts) + changes)
    words = ["site", "check", "--study", str(study), "--data", str(hospitals.files["north"])]
    said = " ".join(CliRunner().invoke(app, words).stderr.split())
    doses = np.array([float(line.split(",")[1]) for line in lines])
    left_out = (doses >= 1) | (ages(hospitals) == float(age))
    assert f"{left_out.sum()} rows of your 120 are left out" in said
    assert f"In age the value {age} counts as missing: 1 row of yours." in said
    assert "In arm the value t is taken for treated: 3 rows of yours." in said
    assert "The formula computes I(age * dose): ask what for." in said


# --- rows that a study holds out ------------------------------------------------------------------

ONE_HELD_OUT = "test_share = 0.0084"  # 1 row of 120


@pytest.mark.parametrize("missing", ["complete", "indicator"])
def test_a_study_that_holds_one_patient_out_then_another_one(tmp_path: Path, missing: str) -> None:
    hospitals = Hospitals(tmp_path)
    hospitals.described(AGE, missing=missing)
    text = refused(hospitals, AGE, ONE_HELD_OUT, missing=missing)
    assert "minimum_rows_changed: 1 row" in text
    again = refused(hospitals, AGE, f"{ONE_HELD_OUT}\nseed = 5", missing=missing)
    assert again.removeprefix(text).count("minimum_rows_changed: 1 row") == 1


def test_one_patient_held_out_before_all_are_used_and_beside_another_choice(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    hospitals.described(AGE, ONE_HELD_OUT)
    assert "minimum_rows_changed: 1 row" in refused(hospitals, AGE)
    other = refused(hospitals, AGE, f"{ONE_HELD_OUT}\nseed = 5")
    assert "minimum_rows_changed: 2 rows" in other
    registered = REGISTERED.format(more="")
    assert "minimum_rows_changed: 1 row" in refused(hospitals, AGE, loo=registered)


def test_choices_of_few_patients_are_refused_at_once(tmp_path: Path) -> None:
    """Two that have few in common would have an account and a budget of their own each."""
    hospitals = Hospitals(tmp_path)
    assert "data.test_share = 0.6" in refused(hospitals, AGE, "test_share = 0.6")
    with pytest.raises(SiteRefusedError) as caught:
        hospitals.described(AGE, "test_share = 0.6")
    assert "at most 0.3 of its rows out" in caught.value.reason


def test_an_honest_study_that_holds_rows_out_ends_and_has_one_account(tmp_path: Path) -> None:
    parts = {"formula": f"{AGE} + weight", "missing": "complete", "more": ""}
    files = {name: HOSPITALS / f"{name}.csv" for name in NAMES}
    for of, require in enumerate(["test_share = 0.2", "test_share = 0.2\nseed = 5"]):
        study = tmp_path / str(of) / "study.toml"
        study.parent.mkdir()
        study.write_text(FORMULA.format(require=require, **parts))
        policy = proposed(terms_of(load_study(study, HOSPITALS / "study.toml")))
        policy = policy.replace("maximum_runs = 3", "maximum_runs = 9")
        stage = Stage(study, files, tmp_path / "sites", policy, origin=HOSPITALS / "study.toml")
        tree = stage.run()
        assert all(np.isfinite(draws).all() for draws in tree["posterior"].data_vars.values())
    told = settled_rows(stage, "north")
    assert len(told) >= 6
    assert set(told) == {"0 of 96 rows"}
    assert len([*(tmp_path / "sites" / "north" / "settled").glob("*.bin")]) == 1

"""The studies of a week: what each is made of, and under which policy it runs."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consortia.federation.app import POLICY
from consortia.federation.rehearsal import rehearsed
from consortia.federation.rehearsal.stage import Stage
from consortia.federation.rehearsal.week import Day, _variants, days
from tests.federation.hospitals import HOSPITALS, NAMES
from tests.federation.same_rows import COMPARED, FORMULA

FACTORY = """[data]
files = ["north.csv", "south.csv", "west.csv"]
target = "ill"
[model]
factory = "our_week:made"
[algorithm]
name = "few_rounds"
"""
PLAIN = {"formula": "ill ~ age + dose", "require": "", "missing": "complete", "more": ""}
LESS, COMPARED_WITH = "a covariate less", "compared with a covariate less"
SEED, CORRECTED = "the same with another seed", "an export with one value corrected"
TABLES = """[data]
files = ["north.csv", "south.csv", "west.csv"]
target = "ill"
[model]
formula = "ill ~ age + dose"
family = "bernoulli"
[run]
seed = 1
"""
ROWS = b"ill,age,dose\n0,60,1\n1,61,2\n"
EXPORTS = [
    "an updated export, 12 rows more",
    "an export with one row more",
    "an export with one value corrected",
    "the rows without the first half",
]


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> list[Stage]:
    """The stages that were made; none of them runs."""
    made: list[Stage] = []
    monkeypatch.setattr(Stage, "run_all", lambda stage: made.append(stage))
    return made


def week(folder: Path, text: str, data: Path, policy: str | None = None) -> dict[str, Day]:
    (folder / "study.toml").write_text(text)
    kept = folder / "week"
    kept.mkdir()
    found = days(folder / "study.toml", data, data.stem, [*NAMES], kept, policy)
    return {day.title: day for day in found}


def north(folder: Path) -> Path:
    return Path(shutil.copy(HOSPITALS / "north.csv", folder))


def made(folder: Path, text: str, rows: bytes = ROWS) -> dict[str, Any]:
    """Return of each day the tables of the study and the rows, or why it is not tried."""
    (folder / "north.csv").write_bytes(rows)
    return {
        each.title: each.untried or (tomllib.loads(each.study), each.rows)
        for each in _variants(text, folder / "north.csv")
    }


def policy_of(stage: Stage) -> str:
    return (stage.folder / "north" / POLICY).read_text()


def test_a_factory_beside_the_study_is_found(tmp_path: Path, stages: list[Stage]) -> None:
    (tmp_path / "our_week.py").write_text("def made():\n    pass\n")
    found = week(tmp_path, FACTORY, north(tmp_path))
    assert [title for title, day in found.items() if day.untried] == [LESS, COMPARED_WITH]
    assert len(stages) == 6
    assert {stage.study.path for stage in stages} == {tmp_path / "study.toml"}


@pytest.mark.parametrize(
    "formula", ["ill ~ age", "ill ~ age + (1 | site)", "ill ~ age + log(dose)"]
)
def test_a_study_that_cannot_be_made_is_named(
    tmp_path: Path, stages: list[Stage], formula: str
) -> None:
    rows = tmp_path / "north.npz"
    np.savez(rows, age=np.zeros(3), ill=np.zeros(3))
    found = week(tmp_path, FORMULA.format(**PLAIN | {"formula": formula}), rows)
    untried = {title: day.untried for title, day in found.items() if day.untried}
    assert [*untried] == [LESS, COMPARED_WITH, *EXPORTS]
    assert "no formula of several covariates" in untried.pop(LESS)
    assert "no formula of several covariates" in untried.pop(COMPARED_WITH)
    assert {*untried.values()} == {"north.npz does not hold text: export it as .csv."}
    assert len(stages) == 2


def test_a_covariate_is_left_out_whatever_quotes_the_formula_has(
    tmp_path: Path, stages: list[Stage]
) -> None:
    text = FORMULA.format(**PLAIN).replace('"ill ~ age + dose"', "'ill ~ age + dose'")
    assert not week(tmp_path, text, north(tmp_path))[LESS].untried
    both = ["ill ~ age + dose", "ill ~ age"]
    assert [stage.study.model.formula for stage in stages[1:4]] == [*both, both[0]]
    assert [stage.study.compare is not None for stage in stages[1:4]] == [False, False, True]
    assert stages[3].study.compare.formula == "ill ~ age"


def test_rows_are_copied_in_the_encoding_that_they_have(
    tmp_path: Path, stages: list[Stage]
) -> None:
    data = tmp_path / "north.csv"
    lines = [b"ill,age,dose,ward", *(b"1,%d,2,M\xfcnchen" % age for age in range(24))]
    data.write_bytes(b"\r\n".join(lines))
    week(tmp_path, FORMULA.format(**PLAIN), data)
    exports = [
        (tmp_path / "week" / f"day{number}" / "north.csv").read_bytes().splitlines()
        for number in (4, 5, 6, 7)
    ]
    assert exports == [
        [*lines, *lines[1::2]],
        [*lines, lines[1]],
        [lines[0], lines[1].replace(b"1,0,", b"1,1,"), *lines[2:]],
        [lines[0], *lines[13:]],
    ]


def test_a_cell_of_two_lines_is_not_cut(tmp_path: Path, stages: list[Stage]) -> None:
    data = tmp_path / "north.csv"
    data.write_text('ill,age,note\n1,2,"a\nb"\n')
    found = week(tmp_path, FORMULA.format(**PLAIN), data)
    assert all("a line of north.csv is not a row" in found[title].untried for title in EXPORTS)


def test_a_proposed_policy_has_runs_for_all_days(tmp_path: Path, stages: list[Stage]) -> None:
    week(tmp_path, FORMULA.format(**PLAIN) + COMPARED, north(tmp_path))
    assert stages
    assert "\nmaximum_runs = 100\n" in policy_of(stages[-1])


def test_all_days_have_the_policy_that_is_given(tmp_path: Path, stages: list[Stage]) -> None:
    week(tmp_path, FORMULA.format(**PLAIN), north(tmp_path))
    given = policy_of(stages[-1]).replace("maximum_runs = 100", "maximum_runs = 7")
    shutil.rmtree(tmp_path / "week")
    week(tmp_path, FORMULA.format(**PLAIN), north(tmp_path), given)
    assert policy_of(stages[-1]) == given


def test_a_rehearsal_says_which_policy_the_days_had(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(FORMULA.format(**PLAIN))
    data, policy = north(tmp_path), tmp_path / "site-policy.toml"
    limits = 'models = ["any"]\nmessages = []\nmaximum_rounds = 1\nminimum_rows = 1\n'
    policy.write_text(f'studies = ["{"0" * 64}"]\n{limits}')
    found = rehearsed(tmp_path / "study.toml", data, policy=policy, week=True)
    sentences = [each.sentence for each in found if each.attack.startswith("a week, ")]
    assert len(sentences) == 8
    for sentence in sentences:
        assert sentence.startswith("0 answers leave under your policy. The answers of all studies")
        assert "on all versions of your rows together so far settle 0 of them" in sentence
        assert "not measured" not in sentence  # of formulas it is
        assert "Refused: " in sentence


@pytest.mark.parametrize(
    ("rows", "corrected"),
    [
        (b'name,age,ill\n"A, B",60,1\n"C, D",61,0\n', b'name,age,ill\n"A, B",61,1\n"C, D",61,0\n'),
        (b"ward,age\r\nM\xfc,60\r\n\xfc,61\r\n", b"ward,age\r\nM\xfc,61\r\n\xfc,61\r\n"),
        (b"sep=;\nage;ill\n60,5;0\n61,5;1", b"sep=;\nage;ill\n61,5;0\n61,5;1\n"),
        (b"age,dose\n60,1\n60.0,2\n", b"age,dose\n60,2\n60.0,2\n"),
        (b"age\n60\nNA\n-9.0\n \n61\n", b"age\n61\nNA\n-9.0\n \n61\n"),
        (b"age\n60\n60.00\nNA\n-9\n", None),
        (b"ill\n0\n1\n", None),
    ],
)
def test_one_value_of_a_covariate_is_corrected(
    tmp_path: Path, rows: bytes, corrected: bytes | None
) -> None:
    codes = "[harmonise.north.missing_values]\nage = [-9]\n"
    found = made(tmp_path, TABLES + codes, rows)[CORRECTED]
    assert ("no covariate is" in found) if corrected is None else (found[1] == corrected)


@pytest.mark.parametrize("target", ["target = 'ill'", 'target="ill"', '"target" = "ill"'])
def test_the_response_is_not_corrected(tmp_path: Path, target: str) -> None:
    text = TABLES.replace('target = "ill"', target)
    text = text.replace('formula = "ill ~ age + dose"', 'kind = "logistic"')
    assert made(tmp_path, text)[CORRECTED][1] == b"ill,age,dose\n0,61,1\n1,61,2\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ('"ill ~ age + dose"', '"""\nill ~ age\n + dose\n"""'),
        ("age + dose", "age+dose"),
        ("[model]", '# formula = "ill ~ age + dose"\n[model]'),
        ("[model]", "# [compare] is not here\n[model]"),
        ("[model]", " [ model ] # ours"),
        ('[model]\nformula = "', '[model]\nprior.scale = 2.5\nformula = "'),
    ],
)
def test_a_covariate_is_left_out_and_nothing_else(tmp_path: Path, before: str, after: str) -> None:
    text = TABLES.replace(before, after)
    tables, found = tomllib.loads(text), made(tmp_path, text)
    less, compared = found[LESS][0], found[COMPARED_WITH][0]
    assert less["model"].pop("formula").strip() == "ill ~ age"
    assert compared.pop("compare").pop("formula").strip() == "ill ~ age"
    assert compared == tables
    del tables["model"]["formula"]
    assert less == tables
    assert found[CORRECTED][1] == b"ill,age,dose\n0,61,1\n1,61,2\n"


@pytest.mark.parametrize("formula", ["ill ~ age + 0", "ill ~ age*dose + age", "ill ~ age - dose"])
def test_an_intercept_or_a_product_is_not_left_out(tmp_path: Path, formula: str) -> None:
    found = made(tmp_path, TABLES.replace("ill ~ age + dose", formula))
    assert "no formula of several covariates" in found[LESS]
    assert found[COMPARED_WITH] == found[LESS]


def test_what_cannot_be_cut_is_named(tmp_path: Path) -> None:
    found = made(tmp_path, TABLES.replace("age + dose", "age \\u002B dose"))
    assert "cannot be changed in this alone" in found[LESS]
    assert found[COMPARED_WITH][0]["compare"]["formula"] == "ill ~ age"


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("", '[ compare ]\nformula = "ill ~ age"\n'),
        ('compare = {formula = "ill ~ age"}\n', ""),
        ('compare.formula = "ill ~ age"\n', ""),
    ],
)
def test_a_comparison_is_not_made_twice(tmp_path: Path, first: str, last: str) -> None:
    found = made(tmp_path, first + TABLES + last)
    assert found[COMPARED_WITH] == "the study compares two models already."


@pytest.mark.parametrize(
    "run",
    [
        "[run]\nseed = 1_000",
        "[ run ]\nseed=4",
        "[run] # seed = 4\nchains = 2",
        "[partition]\nseed = 4",
        "[partition]\nseed = 4\n[run]\nseed = 4",
    ],
)
@pytest.mark.parametrize("first", ["", "run.seed = 4\n", "run.chains = 2\n"])
def test_only_the_seed_of_the_run_is_another(tmp_path: Path, run: str, first: str) -> None:
    run = run.partition("[run")[0].partition("[ run")[0] if first else run
    text = first + TABLES.replace("[run]\nseed = 1", run)
    found, before = made(tmp_path, text)[SEED][0], tomllib.loads(text)
    assert found["run"].pop("seed") != before.setdefault("run", {}).pop("seed", 0)
    assert found == before


@pytest.mark.parametrize(
    ("rows", "reasons"),
    [
        (b"", dict.fromkeys(EXPORTS, "north.csv is empty.")),
        (b"ill,age\n", dict.fromkeys(EXPORTS, "north.csv has no row below its header.")),
        (b"ill,age\n1,2\n", {EXPORTS[3]: "north.csv has one row."}),
    ],
)
def test_a_file_without_rows_enough_is_named(
    tmp_path: Path, rows: bytes, reasons: dict[str, str]
) -> None:
    found = made(tmp_path, TABLES, rows)
    assert {title: found[title] for title in reasons} == reasons
    if len(reasons) == 1:
        assert found[EXPORTS[0]][1] == rows + 12 * b"1,2\n"


def test_a_study_that_cannot_be_read_is_not_varied(tmp_path: Path, stages: list[Stage]) -> None:
    (day,) = week(tmp_path, "[model", north(tmp_path)).values()
    assert "is not TOML" in day.untried

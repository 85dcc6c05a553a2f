"""What a study asks that no study did which a site has answered before."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from cli.irises import invoke

from consortia.federation.governance import terms_of
from consortia.federation.governance.approved import answered_before, differences, keep_study
from consortia.federation.governance.ledger import Ledger
from consortia.study.build import Study, load_study, study_of
from tests.federation.correspondence import Correspondence
from tests.federation.same_rows import Hospitals
from tests.refusals import refused

STUDY = """[data]
files = ["north.csv", "south.csv", "west.csv"]
[model]
formula = "ill ~ age + dose"
family = "bernoulli"
[algorithm]
name = "few_rounds"
[run]
secure_sums = false
"""


LETTERS = STUDY.replace("\nsecure_sums = false", "")


def made(*changes: tuple[str, str], more: str = "") -> Study:
    text = STUDY + more
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return study_of(tomllib.loads(text), Path("study.toml"))


@pytest.mark.parametrize(
    ("changes", "more", "wanted", "unwanted"),
    [
        ([("+ dose", "+ dose + weight")], "", "columns: weight; terms: weight", "rows"),
        ([("+ dose", "+ log(dose)")], "", "terms: log(dose)", "columns"),
        ([("+ dose", "+ age:dose")], "", "", "columns"),
        ([('west.csv"]', 'west.csv"]\nkeep = "age > 0"')], "", "rows: those with age > 0", "terms"),
        ([('west.csv"]', 'west.csv"]\nrequire = ["weight"]')], "", "a value of weight", "terms"),
        ([('few_rounds"', 'few_rounds"\ngradients = true')], "", "exact answers: ", "columns"),
        ([('"bernoulli"', '"gaussian"')], "", "models: gaussian", "columns"),
        ([], '[harmonise.north.recode.ill]\nyes = "1"\n', "changes: north recode ill", "rows"),
        ([("secure_sums = false", "secure_sums = false\nseed = 7")], "", "", "None of them"),
    ],
)
def test_what_is_new_is_named_and_what_is_not_is_not(
    changes: list[tuple[str, str]], more: str, wanted: str, unwanted: str
) -> None:
    text = differences(made(*changes, more=more), [made()])
    assert "Your site has answered 1 other study" in text
    assert wanted in text
    new = text.partition("None of them had")[2].partition("With other rows")[0]
    assert unwanted not in new
    if "None of them" in unwanted:
        assert "asks for no column, term, row, change or function" in text


def test_all_rows_are_new_where_a_study_before_had_some() -> None:
    some = made(('west.csv"]', 'west.csv"]\nkeep = "age > 0"'))
    assert "rows: all" in differences(made(), [some])
    assert "rows: all" not in differences(made(), [some, made()])


def test_only_studies_of_which_an_answer_has_left_count(tmp_path: Path) -> None:
    prints = {}
    for name, formula in (("a", "ill ~ age"), ("b", "ill ~ dose"), ("c", "ill ~ weight")):
        path = tmp_path / "letters" / name / "study.toml"
        path.parent.mkdir(parents=True)
        path.write_text(STUDY.replace("ill ~ age + dose", formula))
        prints[name] = terms_of(load_study(path)).study
    assert answered_before(tmp_path, "") == []
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for name in ("a", "b"):  # c was never opened
        details = {"policy": "p", "study": prints[name], "model": "m"}
        ledger.append("opened", run=f"run{name}", site="north", details=details)
    ledger.append("released", run="runa", site="north", kind="description", payload=b"x")
    (kept,) = answered_before(tmp_path, "")
    assert kept.model.formula == "ill ~ age"
    assert answered_before(tmp_path, prints["a"]) == []
    (tmp_path / "letters" / "c" / "study.toml").write_text("[data")
    with refused(file=str(tmp_path / "letters" / "c" / "study.toml"), match="before"):
        answered_before(tmp_path, "")


def test_a_person_who_permits_a_letter_reads_what_is_new(tmp_path: Path) -> None:
    first = Correspondence(tmp_path / "first", asked=LETTERS)
    policy = first.site("north") / "site-policy.toml"
    kinds = 'messages = ["description", "moments", "query"]'
    policy.write_text(f"{kinds}\n{policy.read_text()}")
    first.proceed()
    first.answer("north", 1)
    second = LETTERS.replace("+ dose", "+ dose + weight")
    other = Correspondence(tmp_path / "second", asked=second)
    other.proceed()
    folder = first.site("north")
    question = other.question("north", 1)
    done = invoke(
        *("letter", "answer", question, "--folder", folder),
        *("--data", folder / "rows.csv"),
    )
    text = " ".join(done.output.split())
    assert "Your site has answered 1 other study. None of them had what this one has: " in text
    assert "columns: weight; terms: weight." in text
    (tmp_path / "study.toml").write_text(second)
    checked = invoke(
        *("site", "check", "--study", tmp_path / "study.toml", "--folder", folder),
    )
    assert "columns: weight; terms: weight." in " ".join(checked.output.split())


def test_studies_that_came_over_a_network_are_compared_too(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    hospitals.described("ill ~ age + dose")
    folder, path = tmp_path / "sites" / "north", tmp_path / "study.toml"
    (kept,) = (folder / "studies").iterdir()
    assert kept.stem == terms_of(load_study(path)).study
    path.write_text(path.read_text().replace("age + dose", "age + dose + crp"))
    words = ("site", "check", "--study", path, "--folder", folder)
    text = " ".join(invoke(*words).output.split())
    assert "None of them had what this one has: columns: crp; terms: crp." in text


def test_a_study_with_code_of_its_own_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    study = load_study(path)
    keep_study(tmp_path, study, "a")
    assert (tmp_path / "studies" / "a.toml").read_text() == STUDY
    with_code = study.model.model_copy(update={"factory": "model:made"})
    keep_study(tmp_path, study.model_copy(update={"model": with_code}), "b")
    assert not (tmp_path / "studies" / "b.toml").exists()

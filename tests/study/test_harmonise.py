"""The tables ``[harmonise.SITE]`` of a study: what they change, and what of them is refused."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from consortia.data.harmonisation import Harmonisation
from consortia.data.mending import key, text
from consortia.data.tables import read_table
from consortia.study.build import load_study
from consortia.study.likeness import suggestions
from tests.refusals import refused

STUDY = """
[data]
files = ["oslo.csv", "lima.csv"]
[model]
formula = "died ~ age + sex"
family = "bernoulli"
missing = "complete"
[algorithm]
name = "few_rounds"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name in ("oslo", "lima"):
        rows = [f"{rng.integers(0, 2)},{rng.normal(60, 9):.1f},{'fm'[i % 2]}" for i in range(30)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["died,age,sex", *rows, ""]))
    return tmp_path


def study(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(STUDY + text)
    return path


WRONG = [
    (
        "[harmonise.osla]\ndecimal = ','",
        "harmonise",
        "harmonise: site 'osla': unknown; did you mean 'oslo'",
    ),
    (
        "[harmonise.oslo]\nrenam = {}",
        "harmonise.oslo.renam",
        "harmonise.oslo.renam]: unknown; did you mean 'rename'",
    ),
    (
        "[harmonise.oslo]\nencoding = 'utf-9'",
        "harmonise.oslo.encoding",
        "encoding = 'utf-9': unknown; try 'latin-1'",
    ),
    ("[harmonise.oslo]\ndecimal = 'x'", "harmonise.oslo.decimal", "harmonise.oslo.decimal = 'x'"),
    (
        "[harmonise.oslo.scale]\nage = 0.0",
        "harmonise.oslo.scale",
        "scale.age = 0.0: give a finite factor",
    ),
    (
        "[harmonise.oslo.recode]\nsex = 'f'",
        "harmonise.oslo.recode.sex",
        "harmonise.oslo.recode.sex = 'f'",
    ),
]


@pytest.mark.parametrize(("text", "argument", "message"), WRONG)
def test_a_wrong_key_is_refused_before_any_data_are_read(folder, text, argument, message) -> None:
    for name in ("oslo", "lima"):
        (folder / f"{name}.csv").unlink()
    with refused(argument=argument, file=str(folder / "study.toml"), match=re.escape(message)):
        load_study(study(folder, text))


def test_it_goes_with_a_formula_alone(folder) -> None:
    path = study(folder, "[harmonise.oslo]\ndecimal = '.'")
    text = path.read_text().replace('formula = "died ~ age + sex"\nfamily = "bernoulli"', "")
    path.write_text(text.replace('missing = "complete"', 'kind = "logistic_regression"'))
    with refused(argument="harmonise"):
        load_study(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rename]\nalter = 'age'", "oslo.csv, line 1: rename: 'alter' is not a column: unknown"),
        ("rename]\nsex = 'age'", "two columns would be called 'age'"),
        (
            "recode.agee]\n'1' = '2'",
            "harmonise: 'agee' is not a column: unknown; did you mean 'age'",
        ),
        ("missing_values]\nsexe = ['f']", "harmonise: 'sexe' is not a column"),
        ("scale]\nsex = 2.0", "scale: the column 'sex' holds no numbers"),
    ],
)
def test_a_change_of_what_is_not_there_is_refused_with_the_file(folder, text, message) -> None:
    with refused(site="oslo", match=rf"oslo\.csv.*{re.escape(message.removeprefix('oslo.csv'))}"):
        load_study(study(folder, f"[harmonise.oslo.{text}")).build()


def test_every_change_is_made_at_its_site_alone_and_a_word_that_no_row_has_is_told(folder) -> None:
    plain = load_study(study(folder, "")).build().regression
    text = "[harmonise.oslo.scale]\nage = 2\n[harmonise.oslo.recode.sex]\nf = 'm'\nm = 'f'\nx = 'f'"
    made = load_study(study(folder, text.replace("= 2\n", "= 2.0\n"))).build().regression
    np.testing.assert_allclose(
        made.tables["oslo"]["age"].values, 2 * plain.tables["oslo"]["age"].values
    )
    assert made.tables["oslo"]["sex"].values[:2].tolist() == ["m", "f"]
    np.testing.assert_array_equal(
        made.tables["lima"]["age"].values, plain.tables["lima"]["age"].values
    )
    assert "oslo: sex: recode lists 'x', which no row has" in str(made)


def test_facts_with_guesses_come_back_as_they_were_told(folder) -> None:
    from consortia.data.facts import SiteFacts

    path = study(folder, "[harmonise.lima]\napproved = false")
    facts = load_study(path).contribution(folder / "lima.csv", 1)
    assert facts.table.guesses
    assert SiteFacts.read(facts.plain()) == facts
    rare = load_study(path).contribution(folder / "lima.csv", 1, least=100)
    assert all(not one.rows for one in rare.table.guesses)


@pytest.mark.parametrize(("letters", "proposed"), [("mw", {"m", "w"}), ("mf", set())])
def test_letters_are_no_abbreviations_where_one_abbreviates_nothing(letters, proposed) -> None:
    words = {"oslo": [*letters], "bonn": ["männlich", "weiblich"]}
    tables = {site: read_table({"sex": 8 * levels}, site) for site, levels in words.items()}
    changes = suggestions(lambda _: tables, {}, lambda _: True)
    assert {*changes["oslo"].recode.get("sex", {})} == proposed if proposed else not changes


def test_the_record_has_the_changes_of_each_site(folder: Path) -> None:
    (folder / "study.toml").write_text(
        STUDY + '[harmonise.lima.recode.sex]\nf = "w"\nm = "m"\n[harmonise.oslo.recode.sex]\n'
        'f = "w"\n[harmonise.lima.scale]\nage = 12\n[harmonise.oslo.missing_values]\nage = [999]\n'
    )
    made = load_study(folder / "study.toml").build().regression
    assert made is not None
    assert made.metadata.settings["readings"][:4] == [
        "lima: sex: 'f' is 'w', 'm' is 'm'",
        "lima: age is multiplied by 12",
        "oslo: sex: 'f' is 'w'",
        "oslo: age: missing is 999",
    ]


def test_a_column_without_codes_is_described_so() -> None:
    changes = Harmonisation(missing_values={"age": [], "bmi": [-9, "?"]})
    assert changes.sentences("oslo") == [
        "oslo: age: missing is none of the values",
        "oslo: bmi: missing is -9, '?'",
    ]


@pytest.mark.parametrize(
    "symbol", ["\x7f", "\x85", "\x9b", "\xad", "\u200b", "\u2028", "\U000e0001"]
)
def test_a_character_that_nobody_sees_is_a_code_that_toml_reads(symbol: str) -> None:
    written = text(f"a{symbol}b")
    assert written.isprintable()
    assert tomllib.loads(f"{key(symbol)} = {written}") == {symbol: f"a{symbol}b"}

"""From each site's own file to the columns that were meant: every kind of misreading, by kind."""

from __future__ import annotations

import itertools
import re
import tomllib
import unicodedata
from pathlib import Path
from typing import Any

import insides
import numpy as np
import pandas as pd
import pytest

from consortia.data.mending import joined
from consortia.data.preparation import Moments
from consortia.data.tables import read_table
from consortia.data.writing import has_hidden
from consortia.errors import InputError
from consortia.models.regression import unlike
from consortia.models.regression.construction import regression
from tests.refusals import refused

ROWS = 60
RNG = np.random.default_rng(0)
Y, X, Z = RNG.integers(0, 2, ROWS), RNG.normal(size=ROWS), RNG.normal(5, 1, ROWS)


def made(formula: str, tables: Any, **more: Any) -> Any:
    return regression(formula, tables, **{"family": "bernoulli", **more})


def columns(formula: str, tables: Any, **more: Any) -> dict[str, np.ndarray]:
    """Return the columns of the design matrix of the first site, in their own units, by name."""
    found = made(formula, tables, **more)
    site, table = next(iter(found.tables.items()))
    matrix = insides.design_matrix(found.specification, table, site)
    names = iter(found.names)
    labels = [
        next(names) if numbers or levels else "1" for numbers, levels in found.specification.keys
    ]
    return dict(zip(labels, matrix.T, strict=True))


def file(folder: Path, name: str, header: str, rows: list[str], encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes("\n".join([header, *rows, ""]).encode(encoding))
    return path


# --- 1: names ------------------------------------------------------------------------------------

NAMES = [
    "post-pre",
    "1",
    "u.v",
    "a:b",
    "log(x)",
    "x + y",
    "y~z",
    "class",
    "site|x",
    "a[b]",
    "µg",
    "ﬁ",
    "Intercept",
    "0.5",
    "C(k)",
    "it's",
    'say "so"',
    "#",
    "s",
    "ph.ecog",
    "x y",
    "été",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_quoted_name_is_that_column_wherever_it_stands(name: str) -> None:
    frame = pd.DataFrame({"y": Y, "post": X, "pre": 2 * X + 1, name: Z, "t": np.exp(X)})
    quoted = f"`{name}`"
    for formula in (f"y ~ {quoted}", f"y ~ post*{quoted}", f"y ~ I({quoted} + 0)"):
        found = columns(formula, {"a": frame})
        np.testing.assert_array_equal(list(found.values())[-1 if "*" not in formula else 2], Z)
    product = list(columns(f"y ~ post*{quoted}", {"a": frame}).values())[3]
    np.testing.assert_allclose(product, X * Z)
    response = made(f"{quoted} ~ post", {"a": frame}, family="gaussian").sites.site("a")["y"]
    np.testing.assert_allclose(response, Z)
    offset = made(f"y ~ post + offset({quoted})", {"a": frame}).sites.site("a")["offset"]
    np.testing.assert_allclose(offset, Z)
    slopes = made(f"y ~ {quoted} + (1 + {quoted} || site)", {"a": frame, "b": frame})
    assert any(block.factor for block in slopes.specification.blocks)
    assert made(f"y ~ s({quoted})", {"a": frame}).names
    survival = made(f"Surv(t, y) ~ {quoted}", {"a": frame}, family="weibull")
    assert len(survival.names) == 1


def test_a_name_with_dots_needs_no_quotes_and_a_letter_stays_itself() -> None:
    frame = pd.DataFrame({"y": Y, "ph.ecog": Z, "µg": X, "meal.cal.x": X})
    np.testing.assert_array_equal(columns("y ~ ph.ecog", {"a": frame})["ph.ecog"], Z)
    np.testing.assert_array_equal(
        columns("y ~ log(ph.ecog)", {"a": frame})["log(ph.ecog)"], np.log(Z)
    )
    assert made("y ~ µg + meal.cal.x", {"a": frame}).names == ("µg", "meal.cal.x")


def test_groups_are_found_by_any_name() -> None:
    frame = pd.DataFrame({"y": Y, "x": X, "ward (old)|b": np.arange(ROWS) % 5})
    found = made("y ~ x + (1 | `ward (old)|b`)", {"a": frame})
    assert found.groups["a"] == ("0", "1", "2", "3", "4")


@pytest.mark.parametrize("formula", ["y ~ ``", "y ~ `x", "y ~ ."])
def test_a_name_that_is_none_is_refused(formula: str) -> None:
    with refused(argument="formula"):
        made(formula, {"a": {"y": Y, "x": X}})


# --- 2: dialects ---------------------------------------------------------------------------------


def numbers(path: Path, name: str) -> list[float]:
    return read_table(path, "it")[name].values[:2].tolist()


def test_the_marks_in_numbers_belong_to_the_file(tmp_path: Path) -> None:
    semicolons = file(tmp_path, "a.csv", "n;x", ["100.000;45,5", "101.000;1,25"])
    assert numbers(semicolons, "n") == [100_000, 101_000]
    millions = file(tmp_path, "b.csv", "n;x", ["1.234.567;12,5", "150.000;1,5"])
    assert numbers(millions, "n") == [1_234_567, 150_000]
    english = file(tmp_path, "c.csv", "n,x", ['"1,234",45.5', '"12,500",1.25'])
    assert numbers(english, "n") == [1234, 12_500]
    tabs = file(tmp_path, "d.tsv", "n\tx", ["1,234\t0.5", "2,500\t1.5"])
    assert numbers(tabs, "n") == [1234, 2500]


@pytest.mark.parametrize(
    "rows", [["100.000;1", "150.000;0"], ["0.500;1,5", "0.250;2,5"], ["0,500;1.5", "0,250;2.5"]]
)
def test_what_nothing_or_everything_decides_is_refused(tmp_path: Path, rows: list[str]) -> None:
    path = file(tmp_path, "a.csv", "x;y", [*rows] * 5)
    with refused(site="a", match=r'\[harmonise\.a\] decimal = "\."'):
        made("y ~ x", [path], family="gaussian")
    if rows[0] == "100.000;1":
        for mark, right in ((".", [100.0, 150.0]), (",", [100_000.0, 150_000.0])):
            changes = {"a": {"decimal": mark}}
            found = columns("y ~ x", [path], family="gaussian", harmonise=changes)
            assert found["x"][:2].tolist() == right


def test_a_column_on_another_scale_at_one_site_is_said() -> None:
    months = RNG.gamma(4, 3, ROWS)
    sites = {
        name: {"y": Y, "stay": months * factor}
        for name, factor in (("a", 1.0), ("b", 1.1), ("c", 30.4))
    }
    doubts = made("y ~ stay", sites).metadata.settings["doubts"]
    assert doubts[0].startswith("c: stay may be on another scale: its mean is")
    assert "[harmonise.c.scale] stay = 1 confirms it" in doubts[0]
    mended = made("y ~ stay", sites, harmonise={"c": {"scale": {"stay": 1 / 30.4}}})
    assert "doubts" not in mended.metadata.settings
    np.testing.assert_allclose(mended.tables["c"]["stay"].values, months)


@pytest.mark.parametrize(
    ("sd", "factor", "doubted"),
    [(1.5, 8.0, False), (0.5, 8.0, True), (1.0, 5.5, False), (1.0, 88.4, True)],
)
def test_skewed_numbers_of_unlike_sites_are_of_one_scale(
    sd: float, factor: float, doubted: bool
) -> None:
    # crime in suburbs and in a city: 8 times as much, where single districts differ a thousandfold
    usual = np.exp(sd * np.linspace(-2, 2, ROWS))
    sites = {
        name: {"y": Y, "crime": usual * times}
        for name, times in (("a", 1.0), ("b", 1.1), ("c", 1 / factor))
    }
    settings = made("y ~ crime", sites).metadata.settings
    assert any("another scale" in one for one in settings.get("doubts", ())) is doubted


@pytest.mark.parametrize(("odd", "doubted"), [(-0.100907684318, False), (-0.13, False),
                                              (-9.0, True), (-99.9, True)])  # fmt: skip
def test_a_negative_number_of_many_decimals_is_no_code(odd: float, doubted: bool) -> None:
    values = np.where(np.arange(ROWS) % 10 == 0, odd, np.linspace(0.3, 4, ROWS))
    settings = made("y ~ x", {"a": {"y": Y, "x": values}}).metadata.settings
    assert bool(settings.get("doubts")) is doubted


# --- 3: words that mean missing ------------------------------------------------------------------


@pytest.mark.parametrize("word", ["None", "NA", "null", "nan", "."])
def test_in_a_column_of_words_only_the_empty_field_misses(tmp_path: Path, word: str) -> None:
    rows = [f"{a},{[word, 'Some', '']['012'.index(str(i % 3))]}" for i, a in enumerate(Y)]
    path = file(tmp_path, "a.csv", "y,drink", rows)
    found = made("y ~ drink", [path], missing="complete")
    assert found.specification.rows == (40,)
    assert set(found.specification.levels["drink"]) == {word, "Some"}
    (doubt,) = found.metadata.settings["doubts"]
    assert doubt.startswith(f"a: drink: '{word}' is a level, not a missing value, in 20 rows")
    confirmed = made(
        "y ~ drink", [path], missing="complete", harmonise={"a": {"missing_values": {"drink": []}}}
    )
    assert "doubts" not in confirmed.metadata.settings
    with refused(argument="drink", match="'Some'"):
        made(
            "y ~ drink",
            [path],
            missing="complete",
            harmonise={"a": {"missing_values": {"drink": [word]}}},
        )


def test_in_a_column_of_numbers_words_miss_and_are_counted(tmp_path: Path) -> None:
    rows = [f"{a},{'NA' if i % 6 == 0 else i}" for i, a in enumerate(Y)]
    found = made("y ~ x", [file(tmp_path, "a.csv", "y,x", rows)], missing="complete")
    assert found.specification.rows == (50,)
    assert "a: x: 'NA' is missing, in 10 rows" in str(found)
    assert "doubts" not in found.metadata.settings


@pytest.mark.parametrize("sites", [3, 8])
def test_a_word_that_misses_in_many_columns_of_many_sites_is_one_line(
    sites: int, tmp_path: Path
) -> None:
    names, paths = "abcdefgh"[:sites], {}
    for number, name in enumerate(names):
        rows = [
            f"{a},{'NA' if i % 6 == 0 else i},{'NA' if i % 10 == 0 else i % 7},"
            f"{'.' if i < number else i % 5}"
            for i, a in enumerate(Y)
        ]
        paths[name] = file(tmp_path, f"{name}.csv", "y,x,z,w", rows)
    found = made("y ~ x + z + w", paths, missing="complete")
    lines = [str(reading) for reading in found.readings if "missing" in reading.text]
    others = ", ".join(f"{name} {number}" for number, name in enumerate(names) if number)
    assert lines == [
        f"all sites: 'NA' is missing: x in {10 * sites} rows, z in {6 * sites} rows",
        f"w: '.' is missing, in {sites * (sites - 1) // 2} rows ({others})",
    ]
    few = {name: paths[name] for name in "abc"} | {"d": paths["a"]}
    assert "b, c: '.' is missing" not in str(made("y ~ w", few, missing="complete"))
    assert "w: '.' is missing, in 3 rows (b 1, c 2)" in str(made("y ~ w", few, missing="complete"))


@pytest.mark.parametrize(
    ("sentences", "lines"),
    [
        (["a x: 'NA' is missing, in 1 row"], ["a: x: 'NA' is missing, in 1 row"]),
        (
            ["a x: 'NA' is missing, in 1,200 rows", "b x: 'NA' is missing, in 1 row"],
            ["x: 'NA' is missing, in 1,201 rows (a 1,200, b 1)"],
        ),
        (
            [
                "a x: 'NA' in 2 rows, '?' in 1 row",
                "b x: 'NA' in 2 rows, '?' in 1 row",
            ],
            [
                "a: x: 'NA' in 2 rows, '?' in 1 row",
                "b: x: 'NA' in 2 rows, '?' in 1 row",
            ],
        ),
        (
            ["a x: 'NA' is missing, in 2 rows", "b z: 'NA' is missing, in 3 rows"],
            ["'NA' is missing: x in 2 rows, z in 3 rows"],
        ),
        (["a : not UTF-8", "b : not UTF-8"], ["a, b: not UTF-8"]),
        (
            ["a x: 'M' is 'm', in 2 rows", "b x: 'F' is 'f', in 2 rows"],
            ["a: x: 'M' is 'm', in 2 rows", "b: x: 'F' is 'f', in 2 rows"],
        ),
    ],
)
def test_sentences_that_differ_in_site_column_and_count_are_one(
    sentences: list[str], lines: list[str]
) -> None:
    given = []
    for sentence in sentences:
        start, _, rest = sentence.partition(": ")
        site, column = start.split(" ")
        given.append((site, column, f"{site}: {column}{': ' if column else ''}{rest}"))
    assert joined(given, ["a", "b", "c"]) == lines


def test_what_levels_name_is_a_level_in_a_column_of_codes_too(tmp_path: Path) -> None:
    rows = [f"{a},{['1', '2', 'NA'][i % 3]}" for i, a in enumerate(Y)]
    path = file(tmp_path, "a.csv", "y,k", rows)
    found = made("y ~ C(k)", [path], missing="complete", levels={"k": ["1", "2", "NA"]})
    assert found.specification.rows == (ROWS,)
    assert found.names == ("C(k)[2]", "C(k)[NA]")


# --- 4: codes ------------------------------------------------------------------------------------

CODES = [
    ["900000000000207008", "900000000000207009", "900000000000207010"],
    ["01067", "1067", "10670"],
    ["1.10", "1.1", "1.2"],
    ["1e3", "1000", "1000.0"],
    ["+7", "7", "007"],
]


@pytest.mark.parametrize("codes", CODES, ids=lambda one: one[0])
def test_levels_and_groups_are_the_texts_that_were_read(tmp_path: Path, codes: list[str]) -> None:
    rows = [f"{a},{codes[i % 3]},{x}" for i, (a, x) in enumerate(zip(Y, X, strict=True))]
    path = file(tmp_path, "a.csv", "y,k,x", rows)
    assert set(made("y ~ C(k)", [path]).specification.levels["C(k)"]) == set(codes)
    assert set(made("y ~ x + (1 | k)", [path]).groups["a"]) == set(codes)
    found = made("k ~ x", [path], family="categorical")
    assert set(found.specification.levels["response()"]) == set(codes)


def test_groups_of_a_prediction_are_the_texts_that_were_read(tmp_path: Path) -> None:
    codes = np.array(["01067", "1067", "10670"])[np.arange(ROWS) % 3]
    rows = [f"{a},{k},{x}" for a, k, x in zip(Y, codes, X, strict=True)]
    column = read_table(file(tmp_path, "a.csv", "y,k,x", rows), "it")["k"]
    assert insides.groups_of_rows(column).tolist() == (np.arange(ROWS) % 3).tolist()
    numbers = read_table({"k": np.array([10, 9, 9, 100])}, "it")["k"]
    assert insides.groups_of_rows(numbers).tolist() == [1, 0, 0, 2]


def test_integers_of_a_frame_are_levels_to_the_last_digit() -> None:
    ids = np.array([900000000000207008, 900000000000207009, 900000000000207010, 5])
    frame = pd.DataFrame({"y": Y, "k": ids[np.arange(ROWS) % 4]})
    assert len(made("y ~ C(k)", {"a": frame}).names) == 3
    with_gap = frame.assign(k=frame["k"].astype("Int64").where(np.arange(ROWS) > 0))
    assert len(made("y ~ C(k)", {"a": with_gap}, missing="complete").names) == 3
    with refused(site="a", match=r"integers beyond 2\^53"):
        made("y ~ k", {"a": frame})


# --- 5: declared kinds ---------------------------------------------------------------------------


def test_a_categorical_is_levels_in_its_order() -> None:
    k = np.arange(ROWS) % 3 + 1
    cut = pd.cut(Z, [0, 4, 5, 10])
    for column, names in (
        (pd.Categorical(k), ("k[2]", "k[3]")),
        (pd.Categorical(k, [3, 1, 2]), ("k[1]", "k[2]")),
        (pd.Categorical(k > 1), ("k[True]",)),
        (
            pd.Categorical(np.array(["low", "mid", "top"])[k - 1], ["mid", "top", "low"]),
            ("k[top]", "k[low]"),
        ),
        (cut, ("k[(4, 5]]", "k[(5, 10]]")),
    ):
        frame = pd.DataFrame({"y": Y, "k": column})
        assert made("y ~ k", {"a": frame, "b": frame.iloc[:50]}).names == names


def test_the_order_of_an_ordered_categorical_is_that_of_an_ordinal_response() -> None:
    words = pd.Categorical(
        np.array(["mild", "none", "severe"])[np.arange(ROWS) % 3],
        ["none", "mild", "severe"],
        ordered=True,
    )
    frame = pd.DataFrame({"pain": words, "x": X})
    found = made("pain ~ x", {"a": frame, "b": frame}, family="ordinal")
    assert found.specification.levels["response()"] == ("none", "mild", "severe")
    plain = frame.assign(pain=pd.Categorical(words.astype(str)))
    with refused(argument="pain", match="order"):
        made("pain ~ x", {"a": plain}, family="ordinal")


def test_orders_that_contradict_one_another_are_refused_and_others_are_merged() -> None:
    k = np.array(["a", "b", "c"])[np.arange(ROWS) % 3]
    frames = {
        name: frame[frame["k"].isin(list(order))].assign(
            k=lambda kept, order=order: pd.Categorical(kept["k"], list(order))
        )
        for name, order in (("one", "bca"), ("two", "bc"), ("three", "ca"))
        for frame in [pd.DataFrame({"y": Y, "k": k})]
    }
    assert made("y ~ k", frames).specification.levels["k"] == ("b", "c", "a")
    frames["four"] = pd.DataFrame({"y": Y, "k": pd.Categorical(k, list("acb"))})
    with refused(argument="k", match=r"levels = \{ k = "):
        made("y ~ k", frames)


# --- 6: nearly numbers ---------------------------------------------------------------------------

NEARLY = ["<5", "-", "12%", "−4", "1,5", "> 100", "n.d.", "5 mg", "1 234", "٣", "1O", "5+"]


@pytest.mark.parametrize("odd", NEARLY)
@pytest.mark.parametrize("every", [4, 20])
def test_what_is_nearly_a_number_is_refused_with_its_line(
    tmp_path: Path, odd: str, every: int
) -> None:
    field = f'"{odd}"' if "," in odd else odd
    rows = [f"{a},{field if i % every == 2 else f'{i}.5'}" for i, a in enumerate(Y)]
    path = file(tmp_path, "a.csv", "y,crp", rows)
    with refused(argument="crp", site="a", match=rf"a\.csv(.|\n)*{re.escape(odd)}") as caught:
        made("y ~ crp", [path])
    assert re.search(r"write C\(crp\)|decimal mark|both decimal", str(caught.value))
    assert made("y ~ C(crp)", [path]).names


@pytest.mark.parametrize("column", [["12%", "13%", "9%"], ["<5", "<10", ">3"], ["١", "٢", "٣"]])
def test_a_column_of_nothing_but_nearly_numbers_is_refused(tmp_path: Path, column) -> None:
    rows = [f"{a},{column[i % 3]}" for i, a in enumerate(Y)]
    with refused(site="a", match=r"column 'x'.*the first in line 2"):
        made("y ~ x", [file(tmp_path, "a.csv", "y,x", rows)])


def test_age_bands_and_stages_of_letters_are_levels(tmp_path: Path) -> None:
    rows = [f"{a},{['<18', '18-64', '65+'][i % 3]},{['I', 'IIa'][i % 2]}" for i, a in enumerate(Y)]
    path = file(tmp_path, "a.csv", "y,age,stage", rows)
    assert made("y ~ age + stage", [path]).names == ("age[65+]", "age[<18]", "stage[IIa]")


# --- 7: codes for missing ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "column"),
    [
        (999, np.arange(ROWS) + 20.0),
        (-9, np.arange(ROWS)),
        (-1, np.arange(ROWS) % 7),
        (99, np.arange(ROWS) % 5),
        (88888, Z),
        (-99, np.abs(X)),
    ],
)
def test_a_number_that_may_be_a_code_is_asked_about(code: int, column: np.ndarray) -> None:
    values = np.where(np.arange(ROWS) % 8 == 0, code, column)
    sites = {"oslo": {"y": Y, "age": values}}
    (doubt,) = made("y ~ age", sites).metadata.settings["doubts"]
    assert doubt.startswith(f"oslo: age: {code} is taken as a number, in 8 rows")
    assert f"[harmonise.oslo.missing_values] age = [{code}] makes it missing" in doubt
    for codes, rows in (([code], ROWS - 8), ([], ROWS)):
        changes = {"oslo": {"missing_values": {"age": codes}}}
        found = made("y ~ age", sites, harmonise=changes, missing="complete")
        assert "doubts" not in found.metadata.settings
        assert found.specification.rows == (rows,)


def test_a_response_and_a_date_have_codes_for_missing_too() -> None:
    days = pd.Series(pd.date_range("2024-01-01", periods=ROWS))
    days[3] = days[9] = pd.Timestamp("2199-12-31")
    late = {"a": pd.DataFrame({"y": Y, "came": days})}
    (doubt,) = made("y ~ came", late).metadata.settings["doubts"]
    assert doubt.startswith('a: came: "2199-12-31T00:00:00" is taken as a date, in 2 rows')
    changes = {"a": {"missing_values": {"came": ["2199-12-31T00:00:00"]}}}
    found = made("y ~ came", late, harmonise=changes, missing="complete")
    assert found.specification.rows == (ROWS - 2,)
    weights = np.where(np.arange(ROWS) < 3, 9999, Z)
    found = made("w ~ x", {"a": {"w": weights, "x": X}}, family="gaussian")
    assert "w: 9999 is taken as a number, in 3 rows" in found.metadata.settings["doubts"][0]


@pytest.mark.parametrize(
    "column",
    [
        X,
        Z,
        Y,
        np.exp(3 * X),
        np.arange(ROWS) % 5 - 2,
        np.array([1, 2, 4])[np.arange(ROWS) % 3],
        np.array([0, 10, 100])[np.arange(ROWS) % 3],
        np.array([-1, 1])[np.arange(ROWS) % 2],
    ],
)
def test_honest_numbers_are_not_asked_about(column: np.ndarray) -> None:
    found = made("z ~ x", {"a": {"z": Z, "x": column}}, family="gaussian")
    assert "doubts" not in found.metadata.settings


# --- 8: one word in several writings -------------------------------------------------------------


@pytest.mark.parametrize("other", ["Male", "MALE", "ma\u200dle", "ｍale"])
def test_one_word_in_several_writings_is_refused_with_the_line_that_mends_it(other: str) -> None:
    sex = np.where(np.arange(ROWS) % 2, "male", "female").astype(object)
    sex[5] = other
    with refused(argument="sex", site="oslo", match=r'row 6.*\[harmonise\.oslo\.recode\.sex\] "'):
        made("y ~ sex", {"oslo": {"y": Y, "sex": sex}})
    changes = {"oslo": {"recode": {"sex": {other: "male"}}}}
    found = made("y ~ sex", {"oslo": {"y": Y, "sex": sex}}, harmonise=changes)
    assert found.names == ("sex[male]",)


@pytest.mark.parametrize("other", [" male", "male\u00a0", "\u200bmale", "male\u00ad", "\ufeffmale"])
@pytest.mark.parametrize("declare", [list, pd.Categorical])
def test_blanks_and_marks_without_a_width_are_no_part_of_a_word(other: str, declare: Any) -> None:
    sex = np.where(np.arange(ROWS) % 2, "male", "female").astype(object)
    sex[5] = other
    frame = pd.DataFrame({"y": Y, " sex ": declare(sex.tolist())})
    assert set(made("y ~ sex", {"oslo": frame}).specification.levels["sex"]) == {"male", "female"}


def test_names_and_words_are_equal_in_either_unicode_form(tmp_path: Path) -> None:
    one, two = (unicodedata.normalize(form, "température") for form in ("NFC", "NFD"))
    rows = [
        f"{a},{i},{'élevé' if i % 2 else unicodedata.normalize('NFD', 'élevé') if i % 4 else 'x'}"
        for i, a in enumerate(Y)
    ]
    paths = [
        file(tmp_path, f"{name}.csv", f"y,{name_of},k", rows)
        for name, name_of in (("a", one), ("b", two))
    ]
    for name in (one, two):
        assert made(f"y ~ {name} + k", paths).names == (one, "k[élevé]")


@pytest.mark.parametrize("other", ["Age", "AGE", "age\u200d"])
def test_a_name_that_differs_in_its_writing_is_refused_with_the_line(other: str) -> None:
    sites = {"a": {"y": Y, "age": Z}, "b": {"y": Y, other: Z}}
    with refused(site="b", match=r'\[harmonise\.b\.rename\] ".*" = "age"'):
        made("y ~ age", sites)
    found = made("y ~ age", sites, harmonise={"b": {"rename": {other: "age"}}})
    assert found.names == ("age",)
    with refused(site="a", match="differ only in spelling"):
        made("y ~ age", {"a": {"y": Y, "age": Z, "Age": X}})


@pytest.mark.parametrize(("here", "there"), [("Ward A", "ward a"), ("1", "1.0"), ("Ja", "ja")])
def test_sites_that_write_one_level_unlike_are_refused_with_the_line(
    tmp_path: Path, here: str, there: str
) -> None:
    paths = [
        file(tmp_path, f"{name}.csv", "y,k", [f"{a},{[word, '3'][i % 2]}" for i, a in enumerate(Y)])
        for name, word in (("a", here), ("b", here), ("c", there))
    ]
    line = rf'c\.csv, line 2: k is .*\[harmonise\.c\.recode\.k\] "{there}" = "{here}"'
    with refused(argument="k", match=line):
        made("y ~ C(k)", paths)


# --- 10: columns that nobody uses ----------------------------------------------------------------


@pytest.mark.parametrize(
    "column",
    [
        pd.to_timedelta(np.arange(ROWS), unit="D"),
        [[1, 2]] * ROWS,
        [{"a": 1}] * ROWS,
        np.ones(ROWS) * 1j,
        pd.period_range("2020", periods=ROWS, freq="M"),
        [b"x"] * ROWS,
    ],
    ids=["timedelta", "lists", "dicts", "complex", "periods", "bytes"],
)
def test_a_column_that_nobody_uses_refuses_nothing(column: Any) -> None:
    frame = pd.DataFrame({"y": Y, "x": X}).assign(other=column)
    assert made("y ~ x", {"a": frame}).names == ("x",)
    with refused(site="a", match="'other': it is"):
        made("y ~ other", {"a": frame})


def test_dates_beyond_all_calendars_are_read_only_where_they_are_used(tmp_path: Path) -> None:
    rows = [f"{a},{x},9999-13-31" for a, x in zip(Y, X, strict=True)]
    path = file(tmp_path, "a.csv", "y,x,until", rows)
    assert made("y ~ x", [path]).names == ("x",)
    with refused(site="a", match="not every value is a date"):
        made("y ~ until", [path])


# --- 12: files -----------------------------------------------------------------------------------

PLAIN = [
    f"{a},{x},{'été' if i % 2 else 'hiver'}" for i, (a, x) in enumerate(zip(Y, X, strict=True))
]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("name", ["a.csv", "A.CSV", "a.Txt"])
def test_unicode_is_read_by_its_mark_whatever_the_case_of_the_suffix(
    tmp_path: Path, encoding: str, name: str
) -> None:
    path = file(tmp_path, name, "y,x,k", PLAIN, encoding)
    assert set(made("y ~ x + k", [path]).specification.levels["k"]) == {"été", "hiver"}


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16-le", "mac-roman"])
def test_another_encoding_is_named_with_its_line_and_read_where_it_is_said(
    tmp_path: Path, encoding: str
) -> None:
    path = file(tmp_path, "a.csv", "y,x,k", PLAIN, encoding)
    with refused(site="a", file=str(path), match="(line 3|UTF-16).*encoding"):
        made("y ~ x + k", [path])
    found = made("y ~ x + k", [path], harmonise={"a": {"encoding": encoding}})
    assert set(found.specification.levels["k"]) == {"été", "hiver"}


@pytest.mark.parametrize("first", ["sep=;", "SEP=;", "sep=|"])
def test_a_line_that_says_the_separator_is_no_header(tmp_path: Path, first: str) -> None:
    mark = first[-1]
    rows = [f"{a}{mark}{i}" for i, a in enumerate(Y)]
    path = file(tmp_path, "a.csv", first, [f"y{mark}x", *rows])
    assert made("y ~ x", [path]).names == ("x",)
    path.write_text(path.read_text().replace(f"{Y[2]}{mark}2\n", "1\n"))
    with refused(site="a", line=5, match="line 5: 1 fields under 2 names"):
        made("y ~ x", [path])


@pytest.mark.parametrize("title", ["Export of 2024", "Export of 2024,,", '"all, of 2024"'])
def test_a_title_above_the_header_is_named(tmp_path: Path, title: str) -> None:
    path = file(tmp_path, "a.csv", title, ["y,x,k", *PLAIN])
    with refused(site="a", line=1, match="line 1: .* seems to be a title"):
        made("y ~ x", [path])


@pytest.mark.parametrize("kind", ["file", "frame"])
def test_times_with_and_without_a_zone_are_named(tmp_path: Path, kind: str) -> None:
    texts = ["2024-01-01T10:00Z" if i % 9 else "2024-01-01T10:00" for i in range(ROWS)]
    given: Any = [
        file(tmp_path, "a.csv", "y,t", [f"{a},{t}" for a, t in zip(Y, texts, strict=True)])
    ]
    if kind == "frame":
        given = {"a": pd.DataFrame({"y": Y, "t": [pd.Timestamp(one) for one in texts]})}
    with refused(site="a", match="53 of 60 times have a time zone and the others do not"):
        made("y ~ t", given)


# --- 13: all errors at once ----------------------------------------------------------------------


def test_all_faults_of_all_sites_are_in_one_answer(tmp_path: Path) -> None:
    good = [f"{a},{i},{'f' if i % 2 else 'm'}" for i, a in enumerate(Y)]
    paths = [
        file(tmp_path, "a.csv", "y,age,sex", [*good[:5], "1,<5,F", *good[6:]]),
        file(tmp_path, "b.csv", "y,Age,sex", good),
        file(tmp_path, "c.csv", "y,age,sex", [*good, "1,2"]),
        file(tmp_path, "d.csv", "y,age,sex", good, "latin-1"),
    ]
    with pytest.raises(InputError) as caught:
        made("y ~ age + sex", paths)
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    for words in (
        "a.csv: the column 'age'",
        "a.csv, line 7: sex is 'F'",
        "b.csv, line 1: 'age' is not a column, but",
        "c.csv, line 62",
    ):
        assert sum(words in line for line in lines) == 1, words


def test_what_only_a_comparison_shows_is_in_the_same_answer_as_a_table_that_fails(tmp_path):
    def rows(*, no: str, arm: str) -> list[str]:
        return [f"{a},{i},{no if i % 2 else 'x'},{arm}" for i, a in enumerate(Y)]

    head = "y,age,arm,smoker"
    paths = [
        file(tmp_path, "a.csv", head, ["1,<5,old,no", *rows(no="old", arm="no")]),
        file(tmp_path, "b.csv", "y,Age,arm,smoker", rows(no="Old", arm="no")),
        file(tmp_path, "c.csv", head, [*rows(no="old", arm="0")]),
        file(tmp_path, "d.csv", head, [*rows(no="old", arm="0"), "1"]),
    ]
    with pytest.raises(InputError) as caught:
        made("y ~ log(age + 1) + arm + smoker", paths)
    lines = str(caught.value).splitlines()
    for words in (
        "a.csv: the column 'age'",
        "b.csv, line 1: 'age' is not a column, but 'Age' is",
        "d.csv, line 62: 1 fields",
        "b.csv, line 3: arm is 'Old', and 'old' at a, c: [harmonise.b.recode.arm]",
        "the column 'smoker' holds strings at site 'a' and numbers at site 'c'",
        'a.csv, line 2: smoker is \'no\': [harmonise.a.recode.smoker] "no" = "0"',
        'b.csv, line 2: smoker is \'no\': [harmonise.b.recode.smoker] "no" = "0"',
    ):
        assert sum(words in line for line in lines) == 1, (words, lines)
    assert len(lines) == 7


def test_values_that_miss_and_values_that_cannot_be_are_in_one_answer() -> None:
    gap = np.where(np.arange(ROWS) % 9 == 0, np.nan, Z)
    sites = {"a": {"y": Y, "x": gap, "z": -Z}, "b": {"y": Y + 5, "x": Z, "z": Z}}
    with refused(argument="x", site="a") as caught:
        made("y ~ x + log(z)", sites)
    assert [fault.argument for fault in caught.value.faults] == ["x", "z", "y"]
    for words in (
        "site 'a': values are missing in 'x' 7 of 60 rows",
        "site 'a': log(z) is not finite in 60 of 60 rows, first in site 'a', row 1, where z is",
        "site 'b': the response y is outside the family bernoulli in 60 of 60 rows: its values",
    ):
        assert words in str(caught.value), words


@pytest.mark.parametrize(
    ("name", "line"),
    [("ages", '"ages" = "age"'), ("Alter", '"NAME THERE" = "age"')],
)
def test_a_column_that_a_file_lacks_is_named_with_its_header(tmp_path, name, line) -> None:
    rows = [f"{a},{i}" for i, a in enumerate(Y)]
    paths = [
        file(tmp_path, "a.csv", "y,age", rows),
        file(tmp_path, "b.csv", "sep=,", [f"y,{name}", *rows]),
    ]
    with refused(
        argument="age",
        site="b",
        match=rf"b\.csv, line 2: 'age' is not a column.*\[harmonise\.b\.rename\] {line}",
    ):
        made("y ~ age", paths)


# --- unlike kinds --------------------------------------------------------------------------------

HALF = np.arange(ROWS) % 2
WRITINGS = {
    "yes": np.array(["no", "yes"])[HALF],
    "ja": np.array(["Nein", "Ja"])[HALF],
    "0 1": HALF,
    "TRUE": np.array(["FALSE", "TRUE"])[HALF],
    "bool": HALF > 0,
}
PROPOSED = re.compile(r": (\[harmonise\.\w+\.recode\.k\]) (.* = .*)")


def proposals(error: InputError) -> dict[str, Any]:
    """Return the recodings of k in an error, as a study has them."""
    found: dict[str, Any] = {}
    for table, line in PROPOSED.findall(str(error)):
        ((site, changes),) = tomllib.loads(f"{table}\n{line}")["harmonise"].items()
        own = found.setdefault(site, {"recode": {"k": {}}})
        own["recode"]["k"] |= changes["recode"]["k"]
    return found


@pytest.mark.parametrize("kind", ["file", "frame"])
@pytest.mark.parametrize("formula", ["y ~ k", "y ~ C(k)", "k ~ y"])
@pytest.mark.parametrize(("here", "there"), list(itertools.permutations(WRITINGS, 2)))
def test_yes_and_no_in_unlike_writings_are_refused_with_the_lines_that_mend_it(
    tmp_path: Path, here: str, there: str, formula: str, kind: str
) -> None:
    sites: dict[str, Any] = {
        "a": pd.DataFrame({"y": Y, "k": WRITINGS[here]}),
        "b": pd.DataFrame({"y": Y, "k": WRITINGS[there]}),
    }
    if kind == "file":
        for name, frame in list(sites.items()):
            sites[name] = tmp_path / f"{name}.csv"
            frame.to_csv(sites[name], index=False)
    if {here, there} == {"TRUE", "bool"}:
        assert made(formula, sites)
        return
    with pytest.raises(InputError) as caught:
        made(formula, sites)
    found = made(formula, sites, harmonise=proposals(caught.value))
    assert len(found.specification.levels.get(formula[4:], ("", ""))) == 2
    first, second = (np.asarray(found.sites.site(name)["x"]) for name in "ab")
    np.testing.assert_array_equal(first, second)
    first, second = (np.asarray(found.sites.site(name)["y"]) for name in "ab")
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("words", [["male", "female"], ["low", "high"]])
def test_words_that_are_no_number_are_named_and_nothing_is_proposed_for_them(tmp_path, words):
    paths = [
        file(tmp_path, f"{name}.csv", "y,k", [f"{a},{of[i % 2]}" for i, a in enumerate(Y)])
        for name, of in (("a", words), ("b", ["1", "2"]))
    ]
    line = rf"a\.csv, line 2: k is '{words[0]}', and nothing says which"
    missing = rf'\[harmonise\.a\.missing_values\] k = \["{words[0]}"\]'
    with refused(argument="k", match=f"{line}.*{missing}"):
        made("y ~ k", paths)
    days = file(
        tmp_path, "c.csv", "y,k", [f"{a},2024-01-{i % 28 + 1:02d}" for i, a in enumerate(Y)]
    )
    with refused(argument="k", match="of which no line makes numbers: leave k out"):
        made("y ~ k", [paths[1], days])


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (["male", "female"], ["man", "woman"]),
        (["1", "2"], ["male", "female"]),
        (["I", "II"], ["1", "2"]),
    ],
)
def test_levels_of_which_no_other_site_has_one_are_asked_about(here, there) -> None:
    sites = {
        name: {"y": Y, "k": np.array(words)[HALF]} for name, words in (("a", here), ("b", there))
    }
    (doubt,) = made("y ~ C(k)", sites).metadata.settings["doubts"]
    assert doubt.startswith("b: no level of k is at another site")
    assert "[model] levels = { k = [" in doubt
    assert "[harmonise.b.recode.k]" in doubt
    given = made("y ~ C(k)", sites, levels={"k": [*here, *there]})
    assert "doubts" not in given.metadata.settings
    mended = made(
        "y ~ C(k)",
        sites,
        harmonise={"b": {"recode": {"k": dict(zip(there, here, strict=True))}}},
    )
    assert "doubts" not in mended.metadata.settings
    assert len(mended.names) == 1


@pytest.mark.parametrize(
    ("here", "there", "said"),
    [
        (Z, HALF, "b: x is 0 or 1 in all rows, and a measurement at a"),
        (100 * Z, HALF + 1, "b: x is 1 or 2 in all rows, and a measurement at a"),
        (HALF, HALF + 1, "b: x is 1 or 2 in all rows, and 0 or 1 at a"),
        (HALF - 1, HALF + 1, "b: x is 1 or 2 in all rows, and -1 or 0 at a"),
        (37 + 0.4 * X, 98.6 + 0.7 * X, "a: x is far from that of other sites: its mean is 37"),
        (80 + 12 * X, 2.2046 * (80 + 12 * X), "far from that of other sites: its mean is"),
        (170 + 9 * X, 71 + 12 * X, "far from that of other sites: its mean is 17"),
    ],
)
def test_numbers_of_another_kind_at_one_site_are_asked_about(here, there, said) -> None:
    sites = {"a": {"y": Y, "x": here}, "b": {"y": Y, "x": there}}
    (doubt,) = made("y ~ x", sites).metadata.settings["doubts"]
    assert said in doubt
    site = doubt[0]
    assert f"[harmonise.{site}.scale] x = 1 confirms it" in doubt
    confirmed = made("y ~ x", sites, harmonise={site: {"scale": {"x": 1.0}}})
    assert "doubts" not in confirmed.metadata.settings


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (Z, Z + 3),
        (HALF, 1 - HALF),
        (HALF, np.arange(ROWS) % 4),
        (40 + 12 * X, 9 + 4 * X),
        (np.exp(X), 2.5 * np.exp(X)),
        (HALF, np.zeros(ROWS)),
        (np.arange(ROWS) % 5, np.arange(ROWS) % 3 + 1),
        (100 * Z, np.array([27.0, 28.0])),  # two rows always have two values
        (1986 + HALF, 1988 + HALF),  # years
        (70 + 4 * X, 71 + HALF),  # ages
    ],
)
def test_honest_differences_between_sites_are_not_asked_about(here, there) -> None:
    sites = {"a": {"y": Y, "x": here}, "b": {"y": Y[: len(there)], "x": there}}
    assert "doubts" not in made("y ~ x", sites).metadata.settings


@pytest.mark.parametrize(
    ("words", "letter", "word"),
    [(["male", "female", "m"], "m", "male"), (["yes", "no", "Y"], "Y", "yes")],
)
def test_a_letter_beside_the_word_that_it_begins_is_asked_about(words, letter, word) -> None:
    spread = np.array(words)[np.arange(ROWS) % 3]
    other = np.array(["unknown", *words])[np.arange(ROWS) % 4]
    sites = {"a": {"y": Y, "k": np.array([word, words[1]])[HALF]}, "b": {"y": Y, "k": other}}
    (doubt,) = made("y ~ k", sites).metadata.settings["doubts"]
    assert doubt.startswith(f"b: k: {letter!r} is another level than {word!r}")
    assert f'[harmonise.b.recode.k] "{letter}" = "{word}" mends it' in doubt
    mended = made("y ~ k", sites, harmonise={"b": {"recode": {"k": {letter: word}}}})
    assert "doubts" not in mended.metadata.settings
    confirmed = made("y ~ k", {"a": {"y": Y, "k": spread}}, levels={"k": words})
    assert "doubts" not in confirmed.metadata.settings


@pytest.mark.parametrize("words", [["I", "II", "III"], ["A", "AB", "B", "O"], ["a", "b", "c"]])
def test_codes_of_letters_are_not_asked_about(words) -> None:
    sites = {"a": {"y": Y, "k": np.array(words)[np.arange(ROWS) % len(words)]}}
    assert "doubts" not in made("y ~ k", sites).metadata.settings


def test_a_word_with_a_slip_at_fewer_sites_is_asked_about() -> None:
    arms = np.array(["placebo", "drug"])[HALF]
    sites = {name: {"y": Y, "arm": arms} for name in "ab"}
    sites["c"] = {"y": Y, "arm": np.array(["placebo", "drug", "placbo"])[np.arange(ROWS) % 3]}
    (doubt,) = made("y ~ arm", sites).metadata.settings["doubts"]
    assert doubt.startswith("c: arm: 'placbo' is another level than 'placebo'")
    recode = {"c": {"recode": {"arm": {"placbo": "placebo"}}}}
    assert "doubts" not in made("y ~ arm", sites, harmonise=recode).metadata.settings


# --- hidden characters ---------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", ["pla\u200bcebo", "pla\u00adcebo", "pl\u2060acebo"])
@pytest.mark.parametrize("rows", [5, 55])
def test_a_hidden_character_is_what_the_line_removes_however_many_rows_have_it(
    hidden: str, rows: int
) -> None:
    arms = [hidden] * rows + ["placebo"] * (60 - rows)
    with refused(argument="k", site="a", match='= "placebo"'):
        made("y ~ k", {"a": pd.DataFrame({"y": Y, "k": arms})})
    dirty = pd.DataFrame({"y": Y, "k": [hidden, "verum"] * 30})
    clean = pd.DataFrame({"y": Y, "k": ["placebo", "verum"] * 30})
    for sites in (
        {"a": dirty, "b": clean},
        {"b": clean, "a": dirty},
        {"a": dirty, "b": clean, "c": dirty},
    ):
        with refused(argument="k", match=r"\[harmonise\.a\.recode\.k\]") as caught:
            made("y ~ k", sites)
        assert "[harmonise.b" not in str(caught.value)


def test_a_joiner_of_a_script_is_no_hidden_character() -> None:
    assert not has_hidden("می\u200cخواهم")
    assert has_hidden("intensive\u00a0care")


def test_sites_are_compared_in_a_time_that_grows_with_their_number(monkeypatch) -> None:
    calls: list[Moments] = []
    original = Moments.lower_of_two.fget
    assert original is not None

    def counted(moments: Moments) -> float | None:
        calls.append(moments)
        return original(moments)

    monkeypatch.setattr(Moments, "lower_of_two", property(counted))
    rng = np.random.default_rng(0)
    every = {f"s{index}": Moments.of(rng.integers(0, 2, 20).astype(float)) for index in range(300)}
    assert unlike.supports_apart({"arm": every}, {}) == []
    assert len(calls) == 300

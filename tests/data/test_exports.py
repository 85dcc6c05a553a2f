"""Files of Excel, SPSS, Stata, SAS and R, and queries: the same columns as from a text file."""

from __future__ import annotations

import base64
import datetime
import re
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import consortia
from consortia.data.columns import LazyTable, as_levels
from consortia.data.exports import DATABASE
from consortia.data.harmonisation import Harmonisation
from consortia.data.tables import read_table
from consortia.errors import InputError
from tests.data.sas import ENCODING_AT, ENCODINGS, write_sas
from tests.refusals import refused

EXTRA = "the extra tables is not installed"

FRAME = pd.DataFrame(
    {
        "age": [40.0, 51.5, np.nan, 61.0, 30.25],
        "arm": ["a", "b", "a", "b", "c"],
        "code": [1.0, 2.0, 3.0, 3.0, 1.0],
        "seen": [datetime.date(2024, 1, day) for day in range(1, 6)],
        "würde": ["é", "ß", "é", "ß", "é"],
    }
)


def written(folder: Path, kind: str, frame: pd.DataFrame = FRAME, site: str = "oslo") -> Path:
    """Return a site's file of a kind with these rows."""
    path = folder / f"{site}.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False, float_format="%g")
    elif kind == "xlsx":
        pytest.importorskip("openpyxl", reason=EXTRA)
        frame.to_excel(path, index=False)
    elif kind in ("sav", "zsav", "dta"):
        stats = pytest.importorskip("pyreadstat", reason=EXTRA)
        if kind == "dta":
            stats.write_dta(frame.rename(columns={"würde": "wurde"}), path)
        else:
            stats.write_sav(frame, path, compress=kind == "zsav")
    elif kind == "sas7bdat":
        pytest.importorskip("pyreadstat", reason=EXTRA)
        write_sas(path, frame.rename(columns={"würde": "wurde"}))
    elif kind == "rds":
        rdata = pytest.importorskip("rdata", reason=EXTRA)
        if "seen" in frame:
            days = (pd.to_datetime(frame["seen"]) - pd.Timestamp(0)).dt.days.astype(float)
            frame = frame.assign(seen=days)
        words = frame.select_dtypes(exclude="number").columns
        rdata.write_rds(path, frame.astype(dict.fromkeys(words, object)))
    else:
        pytest.importorskip("sqlalchemy", reason=EXTRA)
        with sqlite3.connect(folder / "hospital.db") as base:
            frame.iloc[::-1].to_sql(site, base, index=False)
        path.write_text(f"select * from {site}")
    return path


def sheet(path: Path, *rows: Any, others: dict[str, list[Any]] | None = None) -> Path:
    openpyxl = pytest.importorskip("openpyxl", reason=EXTRA)
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for name, lines in (others or {}).items():
        page = book.create_sheet(name)
        for row in lines:
            page.append(row)
    book.save(path)
    return path


def spss(path: Path, frame: pd.DataFrame, **given: Any) -> Path:
    stats = pytest.importorskip("pyreadstat", reason=EXTRA)
    stats.write_sav(frame, path, **given)
    return path


def read(path: Path, **changes: Any) -> LazyTable:
    return read_table(path, str(path), site="oslo", harmonise=Harmonisation(**changes))


@pytest.mark.parametrize("kind", ["xlsx", "sav", "zsav", "dta", "sas7bdat", "rds", "sql"])
def test_every_kind_of_file_gives_the_columns_of_a_text_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv(DATABASE, f"sqlite:///{tmp_path}/hospital.db")
    given, plain = read(written(tmp_path, kind)), read(written(tmp_path, "csv"))
    order = np.argsort(given["age"].values) if kind == "sql" else np.arange(5)
    at = np.argsort(plain["age"].values) if kind == "sql" else np.arange(5)
    for name, wanted in plain.items():
        column = given["wurde" if name == "würde" and kind in ("dta", "sas7bdat") else name]
        assert (column.kind == wanted.kind) or (kind == "rds" and name == "seen"), name
        assert (column.missing[order] == wanted.missing[at]).all()
        kept = ~wanted.missing[at]
        assert (column.values[order][kept] == wanted.values[at][kept]).all(), name
        if name != "seen":
            assert (as_levels(column)[order] == as_levels(wanted)[at]).all(), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["xlsx", "sav", "zsav", "dta", "sas7bdat", "rds", "sql"])
def test_a_hundred_thousand_rows_of_every_kind_are_those_of_a_text_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv(DATABASE, f"sqlite:///{tmp_path}/hospital.db")
    count = 100_000
    age = np.arange(count) * 1.0  # in the order that the rows of a query have
    days = [datetime.date(2020, 1, 1) + datetime.timedelta(day % 700) for day in range(count)]
    arm = np.array(["placebo", "würde", "ß"])[np.arange(count) % 3]
    frame = pd.DataFrame({"age": age, "arm": arm, "seen": days, "died": np.arange(count) % 2 * 1.0})
    frame.loc[::1000, "died"] = np.nan
    given, plain = read(written(tmp_path, kind, frame)), read(written(tmp_path, "csv", frame))
    order = np.argsort(given["age"].values) if kind == "sql" else np.arange(count)
    for name, wanted in plain.items():
        column, kept = given[name], ~wanted.missing
        assert (column.missing[order] == wanted.missing).all(), name
        assert wanted.missing.sum() == (100 if name == "died" else 0)
        assert (column.values[order][kept] == wanted.values[kept]).all(), name


def test_a_query_gives_its_rows_in_one_order_whatever_the_database_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATABASE, f"sqlite:///{tmp_path}/hospital.db")
    path = written(tmp_path, "sql")
    first = read(path)["age"].values.tolist()
    path.write_text("select * from oslo order by arm desc, age")
    assert read(path)["age"].values.tolist() == first


def test_a_query_needs_the_database_of_the_site_and_its_fault_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "sql")
    monkeypatch.delenv(DATABASE, raising=False)
    with refused(site="oslo", file=str(path), match=DATABASE):
        read(path)
    monkeypatch.setenv(DATABASE, f"sqlite:///{tmp_path}/hospital.db")
    path.write_text("select * from nobody")
    with refused(site="oslo", match="oslo.sql cannot be read: .*no such table: nobody"):
        read(path)


def test_labels_are_levels_in_the_order_of_their_codes_and_declared_codes_miss(
    tmp_path: Path,
) -> None:
    frame = pd.DataFrame(
        {
            "sex": [2.0, 1.0, 9.0, 2.0],
            "age": [40.0, 99.0, 98.0, 50.5],
            "pain": [0.0, 10.0, 3.0, 7.0],
            "ward": ["N", "S", "X", "N"],
        }
    )
    path = spss(
        tmp_path / "oslo.sav",
        frame,
        variable_value_labels={
            "sex": {2.0: "male", 1.0: "woman", 9.0: "refused"},
            "pain": {0.0: "none", 10.0: "worst"},
        },
        missing_ranges={"sex": [9], "age": [{"lo": 98, "hi": 99}], "ward": ["X"]},
        variable_measure={"sex": "nominal"},
    )
    table = read(path)
    sex = table["sex"]
    assert (sex.order, sex.ordered) == (("woman", "male"), False)
    assert sex.missing.tolist() == [False, False, True, False]
    assert [one.text for one in sex.guesses] == [
        "oslo: sex: 'refused' is missing, as declared in the file, in 1 row"
    ]
    assert table["age"].missing.tolist() == [False, True, True, False]
    assert table["ward"].missing.tolist() == [False, False, True, False]
    assert table["pain"].kind == "number"  # 3 and 7 have no label
    assert read(path, recode={"sex": {"woman": "F"}})["sex"].values.tolist()[:2] == ["male", "F"]


def test_extended_missing_values_of_stata_miss_and_labels_are_levels(tmp_path: Path) -> None:
    stats = pytest.importorskip("pyreadstat", reason=EXTRA)
    frame = pd.DataFrame({"age": [40.0, "a", 3.0], "sex": [1, 2, 1]})
    frame["age"] = frame["age"].astype(object)
    path = tmp_path / "oslo.dta"
    labels = {"sex": {1: "woman", 2: "male"}}
    stats.write_dta(frame, path, variable_value_labels=labels, missing_user_values={"age": ["a"]})
    table = read(path)
    assert table["age"].missing.tolist() == [False, True, False]
    assert table["sex"].order == ("woman", "male")


def test_formats_of_sas_are_levels_in_the_order_of_their_codes_in_any_encoding(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pyreadstat", reason=EXTRA)
    frame = pd.DataFrame(
        {
            "arm": [2.0, 1.0, 2.0, 1.0],
            "pain": [0.0, 10.0, 3.0, "A"],  # .A, a special missing value
            "day": [datetime.date(2024, 2, 29), datetime.date(1959, 1, 1)] * 2,
            "ward": ["Süd", "Nord", "Süd", "Süd"],
        }
    )
    labels = {"arm": {1.0: "üblich", 2.0: "neu"}, "pain": {0.0: "none", 10.0: "worst"}}
    for encoding in ENCODINGS:
        path = write_sas(tmp_path / "oslo.sas7bdat", frame, labels, encoding)
        table = read(path)
        assert table["arm"].order == ("üblich", "neu")
        assert as_levels(table["arm"]).tolist() == ["neu", "üblich", "neu", "üblich"]
        assert table["pain"].values[:3].tolist() == [0.0, 10.0, 3.0]  # 3 has no label
        assert table["pain"].missing.tolist() == [False, False, False, True]
        assert as_levels(table["day"]).tolist() == ["2024-02-29", "1959-01-01"] * 2
        assert table["ward"].values.tolist() == ["Süd", "Nord", "Süd", "Süd"]


def test_a_file_of_sas_that_names_a_false_encoding_is_read_in_the_one_that_is_given(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pyreadstat", reason=EXTRA)
    frame = pd.DataFrame({"ward": ["Süd", "Nord"], "age": [40.0, 50.0]})
    path = write_sas(tmp_path / "oslo.sas7bdat", frame, encoding="cp1252")
    data = bytearray(path.read_bytes())
    data[ENCODING_AT] = ENCODINGS["utf-8"]
    path.write_bytes(data)
    with refused(site="oslo", match='oslo.sas7bdat cannot be read: .*encoding = "cp1252"'):
        read(path)
    assert read(path, encoding="cp1252")["ward"].values.tolist() == ["Süd", "Nord"]


OF_R = base64.b64decode(
    "H4sIAAAAAAAAA3VRQU7DMBDcOAlpIoEq8Q565kYQCAkuINFKvZrErSqSGDlWi7jQE+Id3HgHP4ATrygfgLJ2sqGy"
    "SqR41+uxZ2Z3nACADwFj4IeYQjganh0cYm0fNz2MuxYAwPD3lgaCaJNDADHGnULMRVFj1reophrdFTwTN5JAPNOz"
    "uXCuhlnBa7rZvTdBrFSY/Wywe6SgecJbO3xBOStyeqFGRaolYy4ykirH03wbHewZuqMv6xLSoImPdh+94EJy/KYR"
    "Ro5v76QfF+kmNn1fpdA1qxNBJoNTrkVr0d4//qyenjGh+Me53cTV5fX5ONNkwm612179ICvhMPuj4Ulrtt+M3pa9"
    "e1ziNX4AS1Ngb6+4JtT+1q87/LDipaAJ9oiCq5LOp4rnoqtPKfUqakQtBOWMk59ggUOiqrz9p4lJzjUfTBRKcGTF"
    "Si4GJM3MjBn9aO7bWP8FXrjiePQCAAA="
)
"""What R 4.2 saves: factors, an ordered one, integers, dates, times, words, and NA in each."""


def test_a_data_frame_of_r_keeps_levels_dates_and_what_misses(tmp_path: Path) -> None:
    rdata = pytest.importorskip("rdata", reason=EXTRA)
    path = tmp_path / "oslo.rds"
    path.write_bytes(OF_R)
    table = read(path)
    assert (table["arm"].order, table["arm"].ordered) == (("placebo", "active"), False)
    assert (table["grade"].order, table["grade"].ordered) == (("mild", "severe"), True)
    missing = {name: np.flatnonzero(column.missing).tolist() for name, column in table.items()}
    assert missing == {
        "arm": [2],
        "grade": [],
        "age": [2],
        "n": [1],
        "seen": [1],
        "at": [2],
        "word": [1],
        "ok": [1],
    }
    assert table["n"].values[[0, 2]].tolist() == [3, 1]
    assert as_levels(table["seen"]).tolist() == ["2024-01-31", "", "2023-02-01"]
    assert table["at"].values[0] == 19753 + 10 / 24
    assert as_levels(table["word"]).tolist() == ["x", "", "é"]
    assert table["ok"].kind == "truth"
    rdata.write_rds(path, {"a": 1})
    with refused(site="oslo", match="oslo.rds holds a dict, not a data.frame"):
        read(path)


def test_a_sheet_is_read_as_the_text_that_it_shows(tmp_path: Path) -> None:
    path = sheet(
        tmp_path / "oslo.xlsx",
        ["age", "dose", "ok", None],
        ["45,5", 1, True],
        [None, None, None],
        ["46", "NA", False],
        ["1.250,5", 3, None],
    )
    table = read(path)
    assert list(table) == ["age", "dose", "ok"]
    assert table["age"].values.tolist() == [45.5, 46.0, 1250.5]
    assert table["dose"].missing.tolist() == [False, True, False]
    assert table["ok"].kind == "truth"
    assert table["age"].source is not None
    assert table["age"].source.row(1) == f"{path}, row 4"


FAULTS: dict[str, tuple[list[list[Any]], str]] = {
    "a title": (
        [["Study of 2024"], ["age", "died"], [40, 1]],
        "row 1: 'Study of 2024' seems to be a title",
    ),
    "no name": ([["age", "died", None], [40, 1, 2]], "has a column without a name"),
    "a name twice": ([["age", "age"], [40, 1]], "has the name 'age' twice"),
    "a word": (
        [["age", "died"], [40, 1], ["forty", 0], [50, 1]],
        "1 of 3 values are not numbers, the first in row 3: 'forty'",
    ),
    "an error": (
        [["age", "died"], [40, 1], ["#DIV/0!", 0], [50, 1]],
        "1 of 3 values are not numbers, the first in row 3: '#DIV/0!'",
    ),
    "a formula": ([["age", "died"], ["=20*2", 1]], "the formula in cell A2 has no result"),
    "no rows": ([["age", "died"]], "oslo.xlsx is empty"),
    "nothing": ([], "oslo.xlsx is empty"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_sheet_is_named_with_its_row(tmp_path: Path, name: str) -> None:
    rows, wanted = FAULTS[name]
    sheet(tmp_path / "oslo.xlsx", *rows)
    sheet(tmp_path / "lima.xlsx", ["age", "died"], *([one, one % 2] for one in range(30)))
    with refused(site="oslo", match=re.escape(wanted)):
        consortia.regression(
            "died ~ age", [tmp_path / "oslo.xlsx", tmp_path / "lima.xlsx"], family="bernoulli"
        )


def changed(frame: pd.DataFrame, row: int, name: str, value: Any) -> pd.DataFrame:
    return pd.DataFrame({**frame, name: [*frame[name][:row], value, *frame[name][row + 1 :]]})


# What a file is given, and what is said of it: row 8 is the sheet's row 9.
SAME_FAULTS: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], str]] = {
    "a word": (
        lambda rows: changed(rows.assign(age=rows["age"].map(str)), 7, "age", "sixty"),
        "oslo.KIND: the column 'age': 1 of 30 values are not numbers, the first in row ROW: "
        "'sixty'",
    ),
    "no such day": (
        lambda rows: changed(rows.assign(age=rows["age"].map(str)), 7, "age", "2024-02-31"),
        "oslo.KIND: the column 'age': 1 of 30 values are not numbers, the first in row ROW: "
        "'2024-02-31'",
    ),
    "neither of two": (
        lambda rows: changed(rows, 7, "died", 2.0),
        "the response died is outside the family bernoulli in 1 of 30 rows: its values must be 0 "
        "or 1, True or False, or two strings, first in oslo.KIND, row ROW, where died is 2",
    ),
    "another name": (
        lambda rows: rows.rename(columns={"age": "Age"}),
        "oslo.KIND: 'age' is not a column, but 'Age' is: [harmonise.oslo.rename] \"Age\" = \"age\"",
    ),
    "no column": (
        lambda rows: rows.drop(columns="age"),
        "oslo.KIND: 'age' is not a column: unknown. There are: arm, died",
    ),
    "no rows": (lambda rows: rows.iloc[:0], "oslo.KIND is empty: omit it, or give it at least one"),
    "no value": (
        lambda rows: rows.assign(age=np.nan),
        "site 'oslo': values are missing in 'age' 30 of 30 rows",
    ),
}


@pytest.mark.parametrize("kind", ["xlsx", "sav", "dta", "sas7bdat", "rds", "sql"])
@pytest.mark.parametrize("fault", SAME_FAULTS)
def test_a_fault_of_any_kind_of_file_is_named_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, fault: str
) -> None:
    monkeypatch.setenv(DATABASE, f"sqlite:///{tmp_path}/hospital.db")
    rows = pd.DataFrame({"age": np.arange(30.0) + 40.5, "arm": ["a", "b"] * 15})
    rows["died"] = (np.arange(30) % 3 == 0).astype(float)
    make, wanted = SAME_FAULTS[fault]
    lima = written(tmp_path, kind, rows, "lima")
    oslo = written(tmp_path, kind, make(rows), "oslo")
    with pytest.raises(InputError) as raised:
        consortia.regression("died ~ age + arm", [oslo, lima], family="bernoulli")
    message = str(raised.value).replace(f"{tmp_path}/", "")
    # A query's rows are sorted, and words come after all numbers in it.
    at = {"xlsx": 9, "sql": {"a word": 30, "no such day": 1}.get(fault, 8)}.get(kind, 8)
    assert wanted.replace("KIND", kind).replace("ROW", str(at)) in message


@pytest.mark.parametrize("kind", ["xlsx", "sav", "rds", "sql"])
def test_a_value_that_is_not_finite_is_named_with_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv(DATABASE, f"sqlite:///{tmp_path}/hospital.db")
    rows = pd.DataFrame({"age": np.arange(30.0) + 40.5, "died": (np.arange(30) % 3 == 0) * 1.0})
    path = written(tmp_path, kind, changed(rows, 7, "age", np.inf), "oslo")
    with refused(argument="age", site="oslo", match="in 1.*of 30") as raised:
        consortia.regression("died ~ age", [path, written(tmp_path, kind, rows, "lima")])
    assert "log1p" not in str(raised.value)
    assert "[data] keep" in str(raised.value)


def test_of_several_sheets_one_is_named(tmp_path: Path) -> None:
    rows = [["age"], [40]]
    path = sheet(tmp_path / "oslo.xlsx", *rows, others={"more": [["age"], [41]], "none": []})
    with refused(site="oslo", match=r'sheets Sheet, more: .*\[harmonise.oslo\] sheet = "Sh'):
        read(path)
    assert read(path, sheet="more")["age"].values.tolist() == [41.0]
    with refused(site="oslo", match="sheet 'less' is not one of Sheet, more, none"):
        read(path, sheet="less")


@pytest.mark.parametrize("kind", ["xlsx", "sav", "dta", "sas7bdat", "rds"])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    for package in ("openpyxl", "pyreadstat", "rdata"):
        pytest.importorskip(package, reason=EXTRA)
    path = tmp_path / f"oslo.{kind}"
    path.write_bytes(b"age,died\n40,1\n")
    with refused(site="oslo", file=str(path)):
        read(path)


def test_a_zip_that_is_no_workbook_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl", reason=EXTRA)
    with zipfile.ZipFile(tmp_path / "oslo.xlsx", "w") as file:
        file.writestr("a", "b")
    with refused(site="oslo", match="oslo.xlsx cannot be read: it is not an Excel workbook"):
        read(tmp_path / "oslo.xlsx")


def test_without_the_extra_the_fault_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyreadstat", None)
    (tmp_path / "oslo.sav").touch()
    with refused(site="oslo", match=r'by pyreadstat: pip install "consortia\[tables\]"'):
        read(tmp_path / "oslo.sav")

"""Tables with text, dates and missing values, of every dialect, read alike."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import consortia
from consortia.data.columns import Column, as_levels, column_of, rows_of, without_missing
from consortia.data.harmonisation import Harmonisation
from consortia.data.tables import read_table
from consortia.data.writing import one_slip
from consortia.errors import InputError
from tests.refusals import refused

ENGLISH = 'id,age,"crp level",sex,smoker,admitted\n' + "".join(
    f'H{i},{i}.5,{i / 8 if i != 2 else ""},"{"fm"[i % 2]}",{["TRUE", "NA"][i == 3]},2024-01-0{i}\n'
    for i in range(1, 6)
)


def written(folder: Path, text: str, name: str = "site.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def as_in_germany(text: str) -> str:
    return text.replace(",", ";").replace(".", ",")


@pytest.mark.parametrize(
    "dialect",
    [str, as_in_germany, lambda text: text.replace(",", "\t"), lambda text: "\ufeff" + text],
    ids=["commas", "semicolons and decimal commas", "tabs", "byte order mark"],
)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_every_dialect_gives_the_same_columns(tmp_path: Path, dialect, ends: str) -> None:
    table = read_table(written(tmp_path, dialect(ENGLISH).replace("\n", ends)), "site 'oslo'")
    kinds = {name: column.kind for name, column in table.items()}
    assert kinds == {
        "id": "text",
        "age": "number",
        "crp level": "number",
        "sex": "text",
        "smoker": "truth",
        "admitted": "date",
    }
    assert table["age"].values.tolist() == [1.5, 2.5, 3.5, 4.5, 5.5]
    assert table["crp level"].missing.tolist() == [False, True, False, False, False]
    assert table["crp level"].values[[0, 2]].tolist() == [0.125, 0.375]
    assert table["sex"].values.tolist() == ["m", "f", "m", "f", "m"]
    assert table["smoker"].missing.tolist() == [False, False, True, False, False]
    assert np.diff(table["admitted"].values).tolist() == [1, 1, 1, 1]


def test_a_frame_and_a_dict_give_what_the_file_gives(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, ENGLISH), "site 'oslo'")
    frame = pd.DataFrame(
        {
            "age": [1.5, 2.5, 3.5, 4.5, 5.5],
            "crp level": [0.125, None, 0.375, 0.5, 0.625],
            "sex": pd.Categorical(["m", "f", "m", "f", "m"]),
            "smoker": pd.array([True, True, None, True, True], dtype="boolean"),
            "admitted": pd.date_range("2024-01-01", periods=5),
        }
    )
    as_dict = {"age": frame["age"].to_numpy(), "sex": np.array(list("mfmfm"))}
    for read in (read_table(frame, "it"), read_table(as_dict, "it")):
        for name, column in read.items():
            assert column.kind == table[name].kind
            np.testing.assert_array_equal(column.missing, table[name].missing)
            known = ~column.missing
            np.testing.assert_array_equal(column.values[known], table[name].values[known])


def test_thousands_set_apart_by_dots_are_read(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "a;b\n1.234,5;x\n12,25;y\n"), "it")
    assert table["a"].values.tolist() == [1234.5, 12.25]


@pytest.mark.parametrize("separator", [",", "\t"])
def test_thousands_set_apart_by_commas_are_never_taken_for_decimals(
    tmp_path: Path, separator: str
) -> None:
    for numbers in (("1,234", "987", "12,500"), ("1,234.50", "2,345.10", "12.0")):
        lines = [f'"{one}"{separator}1' for one in numbers]
        text = f"a{separator}b\n" + "\n".join(lines) + "\n"
        column = read_table(written(tmp_path, text), "it")["a"]
        if "1,234" in numbers:  # nothing in the file decides
            assert column.kind == "text"
            assert column.doubt.startswith("commas seem to separate thousands")
        else:
            assert column.values.tolist() == [1234.5, 2345.1, 12.0]


def test_three_decimals_behind_a_comma_are_read_where_they_can_be_nothing_else(
    tmp_path: Path,
) -> None:
    for text in (
        "a;b\n1,234;1\n12,5;2\n",
        "a;b\n1,234;1\n2,500;2\n",
        'a,b\n"0,123",1\n"1,234",2\n',
    ):
        column = read_table(written(tmp_path, text), "it")["a"]
        assert (column.kind, column.doubt) == ("number", "")


DECIDED = ["%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%m-%d-%Y"]
FORMS = [
    "%m-%d-%y",
    "%Y/%m/%d",
    "%d.%m.%Y %H:%M",
    "%m/%d/%Y %I:%M %p",
    "%d%b%Y",
    "%d. %B %Y",
    "%d-%b-%y",
]


@pytest.mark.parametrize("form", DECIDED)
def test_days_above_12_show_the_order_of_dates(tmp_path: Path, form: str) -> None:
    days = pd.date_range("2024-01-01", periods=20, freq="11D")
    lines = "".join(f"{day},1\n" for day in [*days.strftime(form), "NA"])
    column = read_table(written(tmp_path, f"a,b\n{lines}"), "it")["a"]
    assert (column.kind, column.doubt) == ("date", "")
    assert pd.to_datetime(column.values[:-1], unit="D").equals(days)
    assert column.missing.tolist() == [False] * 20 + [True]
    unit = "day" if form.startswith("%d") else "month"
    assert f"a: dates are read as {unit} first" in column.guesses[0].text
    assert (
        "look like dates, the first in row 1"
        in read_table({"a": days.strftime(form)}, "it")["a"].doubt
    )


@pytest.mark.parametrize("days", [["3/4/2024", "5/6/2024"], ["13/4/2024", "4/13/2024"]])
def test_dates_whose_order_nothing_shows_are_doubted(tmp_path: Path, days: list[str]) -> None:
    lines = "".join(f"{day},1\n" for day in days)
    column = read_table(written(tmp_path, f"a,b\n{lines}"), "it")["a"]
    assert column.kind == "text"
    assert f"look like dates, the first in line 2: {days[0]!r}" in column.doubt


def test_a_day_that_a_month_lacks_is_named(tmp_path: Path) -> None:
    column = read_table(written(tmp_path, "a,b\n13/1/2024,1\n31/2/2024,0\n"), "it")["a"]
    assert (column.kind, "'2024-02-31'" in column.doubt) == ("date", True)
    assert "line 3" in column.doubt


@pytest.mark.parametrize("form", FORMS)
def test_dates_in_another_order_than_that_of_iso_are_doubted(tmp_path: Path, form: str) -> None:
    days = pd.date_range("2024-01-01", periods=20, freq="11D").strftime(form)
    column = read_table(written(tmp_path, "a,b\n" + "".join(f"{d},1\n" for d in days)), "it")["a"]
    assert column.kind == "text"
    assert f"its strings look like dates, the first in line 2: {days[0]!r}; only" in column.doubt
    assert "look like dates, the first in row 1" in read_table({"a": days}, "it")["a"].doubt


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ("31.01.2024", "write 2024-01-31;"),
        ("1/31/2024", "write 2024-01-31;"),
        ("3/3/2024", "write 2024-03-03;"),
        ("03/04/2024", "write 2024-04-03 if the day comes first, 2024-03-04 if the month comes"),
        ("3.4.2024", "write 2024-04-03 if the day comes first, 2024-03-04 if the month comes"),
        ("3.4.24", "write 2024-01-31 for 31 January 2024;"),  # of which century?
        ("2024/04/03", "write 2024-01-31 for 31 January 2024;"),
    ],
)
def test_a_date_is_written_out_and_its_order_is_never_guessed(given: str, remedy: str) -> None:
    assert remedy in read_table({"a": [given, "13.12.2023"]}, "it")["a"].doubt


@pytest.mark.parametrize("form", ["%Y-%m-%d", *DECIDED, *FORMS])
@pytest.mark.parametrize("odd", ["unknown", "2021", "offen"])
def test_what_is_no_date_among_dates_is_named_and_no_date_is_called_no_number(
    tmp_path: Path, form: str, odd: str
) -> None:
    days = [*pd.date_range("2024-01-01", periods=9, freq="31D").strftime(form), odd]
    for column, where in (
        (
            read_table(written(tmp_path, "a;b\n" + "".join(f"{d};1\n" for d in days)), "it")["a"],
            "line 11",
        ),
        (read_table({"a": days}, "it")["a"], "row 10"),
    ):
        assert column.kind == "text"
        assert column.doubt.startswith(
            f"1 of 10 values are not dates, the first in {where}: {odd!r}: write C(a)"
        )


@pytest.mark.parametrize(
    "numbers", [("1,5", "2,25"), ("1.234,5", "2"), ("12", "13"), ("1,234", "2,345")]
)
def test_german_dates_beside_german_numbers_are_called_dates(
    tmp_path: Path, numbers: tuple[str, str]
) -> None:
    rows = "".join(
        f"{day};{number}\n"
        for day, number in zip(("31.12.2023", "01.02.2024"), numbers, strict=True)
    )
    column = read_table(written(tmp_path, f"a;b\n{rows}"), "it")["a"]
    assert (column.kind, column.values.tolist()) == ("date", [19722.0, 19754.0])


def test_words_that_are_no_dates_stay_levels() -> None:
    for words in (["1a", "2b"], ["12 may", "3 oct"], ["stage 1.2", "3.1.2"], ["5/10", "6/10"]):
        assert read_table({"a": words * 3}, "it")["a"].doubt == "", words


def test_an_empty_text_of_a_frame_misses(tmp_path: Path) -> None:
    table = read_table(pd.DataFrame({"a": ["x", "", " "], "b": ["", "", ""]}), "it")
    assert table["a"].missing.tolist() == [False, True, True]
    assert table["b"].kind == "empty"


def test_a_quoted_separator_is_part_of_the_text(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, 'a,b\n"x, y",1\n"u ""v""",2\n'), "it")
    assert table["a"].values.tolist() == ["x, y", 'u "v"']


def test_a_line_that_begins_with_a_hash_is_a_row(tmp_path: Path) -> None:
    assert read_table(written(tmp_path, "a,b\n#1,2\n3,4\n"), "it")["a"].values[0] == "#1"


ODD = (
    *("", "NA", "nan", ".", "None", "1,5", "1.5", "1.234", "1,234", "1,234.5", "1.234.567", "007"),
    *("1e5", "+5", "--5", "1e", "1e400", "inf", "-Infinity", "0x1A", "1_000", "１２", "٣", "1 000"),
    *("9007199254740993", "1" * 30, "0." + "1" * 50, "2024-01-31", "2024-13-01", "31.1.2024"),
    *(
        "2024-01-31T10:00:00Z",
        "2024-01-31 10:00",
        "true",
        "yes",
        "e\u0301",
        "<5",
        "12%",
        "−4",
        "1O",
    ),
    *("-", ".5", "5.", "1.5.2", "999", "unknown", "5\0", "#1", "\u00a05", "\u200b5", "-9"),
)


@st.composite
def tables_of_odd_cells(draw: Any) -> tuple[str, str, list[list[str]]]:
    """Return a separator, a decimal mark and two columns of numbers with odd cells among them."""
    separator, mark = draw(st.sampled_from([(",", "."), (";", ","), (";", "."), ("\t", ".")]))
    number = st.one_of(
        st.integers(-50, 1000).map(str),
        st.floats(-1e6, 1e6).map(repr),
        st.floats(-1, 1).map("{:.3f}".format),
    ).map(lambda text: text.replace(".", mark))
    odd = draw(st.lists(st.sampled_from(ODD), max_size=3))
    cell = st.one_of(number, st.sampled_from(odd)) if odd else number
    rows = draw(st.integers(1, 8))
    columns = [draw(st.lists(cell, min_size=rows, max_size=rows)) for _ in range(2)]
    return separator, mark, columns


def parts_of(column: Column) -> tuple[Any, ...]:
    known = ~column.missing
    words = None if column.words is None else column.words.tolist()
    given = None if column.given is None else column.given.tolist()
    values = (column.values[known].tolist(), column.values.dtype.kind, column.missing.tolist())
    told = (column.doubt, column.guesses, words, given, as_levels(column).tolist())
    return (column.kind, *values, *told)


@settings(max_examples=400, deadline=None)
@given(
    tables_of_odd_cells(),
    st.sampled_from([{}, {"decimal": ","}, {"missing_values": {"a": ["unknown", 999, "1.5"]}}]),
    st.sampled_from(["", '"', "\ufeff"]),
)
def test_a_column_is_the_same_read_at_once_or_word_by_word(made, changes, mark) -> None:
    # a blank behind every field, which is no part of it, makes them words that are looked at
    separator, _, columns = made
    found = []
    for blank in ("", " "):
        quote = '"' if mark == '"' else ""
        rows = [
            [f"{quote}{cell}{blank}{quote}" for cell in row] for row in zip(*columns, strict=True)
        ]
        if not quote:
            rows = [[f'"{one}"' if separator in one else one for one in row] for row in rows]
        lines = [separator.join(row) + "\n" for row in [["a", "b"], *rows]]
        with TemporaryDirectory() as folder:
            text = ("\ufeff" if mark == "\ufeff" else "") + "".join(lines)
            path = written(Path(folder), text)
            table = read_table(path, "it", harmonise=Harmonisation.model_validate(changes))
            found.append({})
            for name in "ab":
                try:
                    parts: Any = parts_of(table[name])
                except InputError as error:
                    parts = str(error).replace(folder, "")
                found[-1][name] = parts
    assert repr(found[0]) == repr(found[1])


def test_a_number_is_the_nearest_to_what_is_written(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(size=1000) * 10.0 ** np.arange(-500, 500).clip(
        -300, 300
    )
    texts = [repr(one) for one in numbers.tolist()]
    for text in (
        "a,b\n" + "".join(f"{one},\n" for one in texts),
        "a;b\n" + "".join(f"{one.replace('.', ',')};\n" for one in texts),
    ):
        column = read_table(written(tmp_path, text), "it")["a"]
        assert column.kind == "number"
        np.testing.assert_array_equal(column.values, numbers)


def test_a_number_declared_as_missing_is_so_in_every_dialect(tmp_path: Path) -> None:
    changes = Harmonisation.model_validate({"missing_values": {"a": [-9.5, "unknown"]}})
    for text in (
        "a,b\n1.5,1\n-9.50,2\nunknown,3\n",
        "a;b\n1,5;1\n-9,50;2\nunknown;3\n",
        "a;b\n1,5;1\n -9,5;2\nunknown;3\n",
    ):
        column = read_table(written(tmp_path, text), "it", harmonise=changes)["a"]
        assert column.missing.tolist() == [False, True, True]
        assert (column.kind, column.guesses, column.words) == ("number", (), None)
        changed = changes.model_copy(update={"missing_values": {"a": [1.5, -9.5, "unknown"]}})
        assert read_table(written(tmp_path, text), "it", harmonise=changed)["a"].kind == "empty"


def test_infinity_is_read_in_every_dialect(tmp_path: Path) -> None:
    for text in ("a,b\ninf,1\n-2.5,2\n", "a;b\ninf;1\n-2,5;2\n", '"a","b"\n"inf",1\n-2.5,2\n'):
        assert read_table(written(tmp_path, text), "it")["a"].values.tolist() == [np.inf, -2.5]


def test_the_first_slip_is_named_among_numbers_with_decimal_commas(tmp_path: Path) -> None:
    column = read_table(written(tmp_path, "a;b\n12,5;1\n7,25;2\n1O;3\n"), "it")["a"]
    assert column.doubt.startswith("1 of 3 values are not numbers, the first in line 4: '1O'")


def test_times_are_days_since_1970(tmp_path: Path) -> None:
    texts = ["1970-01-02", "1969-12-31 12:00", "1970-01-01T00:00:00.864", "2261-12-31T18:00"]
    text = "a,b\n" + "".join(f"{one},1\n" for one in texts)
    column = read_table(written(tmp_path, text), "it")["a"]
    assert column.values.tolist() == [1.0, -0.5, 1e-5, 106650.75]
    zoned = read_table(written(tmp_path, "a,b\n1970-01-01T01:00+01:00,1\n"), "it")["a"]
    assert zoned.values.tolist() == [0.0]


def test_a_text_file_is_read_without_pandas() -> None:
    code = (
        "import sys; from consortia.data.tables import read_table; "
        "dict(read_table('examples/pneumonia/cork.csv', 'it')); sys.exit('pandas' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


WRONG = [
    ("a,b\n1,2\n3\n", 3, "1 fields under 2 .*','"),
    ("a,b\n1,2\n3,4,5\n", 3, "3 fields under 2"),
    ("a,a\n1,2\n", None, "line 1 .* 'a' twice"),
    ("a,,c\n1,2,3\n", None, "line 1 .*pandas: index"),
    ("a,b\n", None, "no rows"),
    ("", None, "no rows"),
    ('a,b\n"x,2\n', 2, "end of data"),
]


@pytest.mark.parametrize(("text", "line", "match"), WRONG)
def test_a_wrong_file_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int | None, match: str
) -> None:
    path = written(tmp_path, text)
    with refused(file=str(path), line=line, match=match):
        dict(read_table(path, "it"))


@pytest.mark.parametrize("date", ["9999-12-31", "1500-01-01", "2024-02-31", "0000-00-00"])
def test_a_date_that_is_none_is_doubted_with_its_line_and_read_once_it_is_missing(
    tmp_path: Path, date: str
) -> None:
    path = written(tmp_path, f"d,y\n2024-01-02,1\n{date},2\n")
    column = read_table(path, "it", site="a")["d"]
    assert column.kind == "date"
    assert column.values[0] == 19724
    assert f"the first in line 3: {date!r}" in column.doubt
    assert f'[harmonise.a.missing_values] d = ["{date}"]' in column.doubt
    changes = Harmonisation.model_validate({"missing_values": {"d": [date]}})
    mended = read_table(path, "it", site="a", harmonise=changes)["d"]
    assert not mended.doubt
    assert mended.missing.tolist() == [False, True]


@pytest.mark.parametrize("made", [datetime.date, datetime.datetime])
def test_dates_of_a_frame_are_days_and_those_beyond_the_range_are_doubted(made: Any) -> None:
    column = read_table({"d": [made(2024, 1, 2), made(1677, 1, 1)]}, "it")["d"]
    assert column.values[0] == 19724
    assert "in row 2: '1677-01-01" in column.doubt
    far = read_table({"d": np.array(["2024-01-02", "9999-12-31"], "datetime64[s]")}, "it")["d"]
    assert "'9999-12-31" in far.doubt


def test_a_date_that_is_none_is_refused_only_where_it_is_used(tmp_path: Path) -> None:
    path = written(tmp_path, "d,x,y\n2024-01-02,1,2\n9999-12-31,4,3\n2024-01-05,2,5\n")
    assert consortia.regression("y ~ x", {"a": path}).names == ("x",)
    with refused(site="a", match=r"site.csv: the column 'd': .* in line 3: '9999-12-31'"):
        consortia.regression("y ~ d", {"a": path})


def test_what_is_no_table_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "größe\n1\n", encoding="latin-1")
    with refused(file=str(path), match="UTF-8"):
        read_table(path, "it")
    with refused(file=str(tmp_path / "site.xls"), match=r"\.csv, \.tsv"):
        read_table(tmp_path / "site.xls", "it")
    with refused(file=str(tmp_path / "none.csv"), match="no such file"):
        read_table(tmp_path / "none.csv", "it")
    packed = tmp_path / "site.npz"
    for damage in (b"no archive", np.array([{}], object)):
        np.savez(packed, y=damage) if isinstance(damage, np.ndarray) else packed.write_bytes(damage)
        with refused(file=str(packed), match="cannot be read: it is damaged or too large"):
            read_table(packed, "it")
    np.savez(packed, y=np.zeros((2000, 2)))
    packed.write_bytes(packed.read_bytes().replace(b"(2000, 2)", b"(2000, 1)"))
    with refused(file=str(packed), match="longer than its header says"):  # not half of the numbers
        read_table(packed, "it")
    np.savez_compressed(packed, y=np.zeros(10**4))
    assert rows_of(read_table(packed, "it")) == 10**4
    monkeypatch.setattr("consortia.data.tables.EXPANDED_BYTES", 10**4)
    with refused(file=str(packed), match="too large .80,128 bytes in"):
        read_table(packed, "it")
    with refused(argument="data", match="'oslo' is a list"):
        read_table([1, 2], "site 'oslo'")
    with refused(argument="data", match="different lengths"):
        read_table({"a": np.ones(2), "b": np.ones(3)}, "it")
    with refused(argument="a", match="complex"):
        dict(read_table({"a": np.ones(2) * 1j}, "it"))
    with refused(argument="agee", match="'age'"):
        column_of(read_table({"age": np.ones(2)}, "it"), "agee", "it")


def test_a_slip_in_a_column_of_numbers_is_kept_in_mind_with_its_line(tmp_path: Path) -> None:
    rows = [str(i) for i in range(30)]
    rows[17] = "1O"
    column = read_table(written(tmp_path, "age\n" + "\n".join(rows) + "\n"), "it")["age"]
    assert column.kind == "text"
    assert column.doubt.startswith("1 of 30 values are not numbers, the first in line 19")
    stages = read_table(written(tmp_path, "stage\n" + "1\n2\n3a\n3b\n" * 5), "it")["stage"]
    assert stages.kind == "text"
    assert "the first in line 4: '3a': write C(stage) for a factor" in stages.doubt


def test_parquet_and_feather_are_read_where_pyarrow_is(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    frame = pd.DataFrame({"age": [1.0, None], "sex": ["f", "m"]})
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_feather(tmp_path / "a.feather")
    for name in ("a.parquet", "a.feather"):
        table = read_table(tmp_path / name, "it")
        assert table["age"].missing.tolist() == [False, True]
        assert table["sex"].values.tolist() == ["f", "m"]


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch) -> None:
    def absent(path: Path) -> None:
        raise ImportError("pyarrow")

    monkeypatch.setattr(pd, "read_parquet", absent)
    (tmp_path / "a.parquet").touch()
    with refused(file=str(tmp_path / "a.parquet"), match=r"consortia\[parquet\]"):
        read_table(tmp_path / "a.parquet", "it")


# --- missing values ------------------------------------------------------------------------------

GAPS = read_table(
    {"y": np.array([1, 0, np.nan, 1]), "a": np.array([1, np.nan, 3, 4.0]), "b": np.full(4, np.nan)},
    "it",
)


def test_missing_values_are_refused_with_their_columns_and_counts() -> None:
    with refused(argument="y", match="site 'x': .* 'y' 1, 'a' 1 of 4 rows"):
        without_missing(GAPS, ["y", "a"], ["y"], "refuse", "site 'x'")


def test_complete_rows_are_those_with_every_value_that_is_used() -> None:
    kept = without_missing(GAPS, ["y", "a"], ["y"], "complete", "it")
    assert kept["a"].values.tolist() == [1, 4]
    assert rows_of(kept) == 2
    assert rows_of(without_missing(GAPS, ["y"], ["y"], "complete", "it")) == 3


def test_with_an_indicator_only_a_row_without_a_response_goes() -> None:
    kept = without_missing(GAPS, ["y", "a", "b"], ["y"], "indicator", "it")
    assert kept["a"].missing.tolist() == [False, True, False]


def test_a_site_without_one_complete_row_is_refused_with_what_to_do() -> None:
    with refused(argument="b", match="site 'x': .* 4 of 4 rows"):
        without_missing(GAPS, ["y", "a", "b"], ["y"], "complete", "site 'x'")
    with refused(argument="missing"):
        without_missing(GAPS, ["y"], ["y"], "drop", "it")


@pytest.mark.parametrize("end", [",", ",,", " , "])
def test_separators_at_the_ends_of_all_lines_make_no_column(tmp_path, end):
    path = tmp_path / "site.csv"
    path.write_text("".join(f"{line}{end}\n" for line in ("a,b", "1,x", "2,y")))
    assert list(read_table(path, "it")) == ["a", "b"]
    path.write_text(f"a,b{end}\n1,x{end}\n2,y{end}3\n")
    with refused(file=str(path), match=r'\[harmonise.SITE.rename\] "" = "row"'):
        read_table(path, "it")


def test_a_column_without_a_name_is_given_one(tmp_path):
    path = tmp_path / "site.csv"
    path.write_text(",a,b\n0,1,2\n1,2,3\n")
    changes = Harmonisation.model_validate({"rename": {"": "row"}})
    assert list(read_table(path, "it", harmonise=changes)) == ["row", "a", "b"]


@pytest.mark.parametrize(
    ("one", "other", "slip"),
    [
        ("placebo", "placbo", True),
        ("weight", "weigth", True),
        ("Ward Nord", "ward nort", False),
        ("general ward", "genral ward", True),
        ("smoking", "smokinng", True),
        ("male", "female", False),
        ("increased", "decreased", False),
        ("systolic", "diastolic", False),
        ("ward A", "ward B", False),
        ("grade I", "grade II", False),
        ("type1", "type2", False),
        ("gradeI", "gradeII", False),
        ("P0001", "P0011", False),
        ("left", "lift", True),
        ("no", "nö", False),
    ],
)
def test_a_slip_of_the_pen_is_one_letter_of_a_long_word(one, other, slip):
    assert one_slip(one, other) is slip
    assert one_slip(other, one) is slip


@pytest.mark.parametrize(
    ("written", "number"),
    [("90+", "90"), ("<0.5", "0.5"), (">= 200", "200"), ("≤3", "3"), ("12,5", None), ("x+1", None)],
)
def test_a_number_that_is_a_bound_has_a_line_that_takes_it_for_one(
    tmp_path: Path, written: str, number: str | None
) -> None:
    path = tmp_path / "turin.csv"
    path.write_text("age;y\n" + "".join(f"{age};1\n" for age in ("31.5", written, "47.0", "52.1")))
    doubt = read_table(path, "turin", site="turin")["age"].doubt
    line = f'[harmonise.turin.recode.age] "{written}" = "{number}" takes it for the number'
    assert (line in doubt) == (number is not None), doubt
    if number is not None:
        changes = Harmonisation.model_validate({"recode": {"age": {written: number}}})
        column = read_table(path, "turin", site="turin", harmonise=changes)["age"]
        assert (column.kind, column.doubt) == ("number", "")
        assert column.values[1] == float(number)


def test_a_bound_among_dates_is_not_taken_for_a_number(tmp_path: Path) -> None:
    path = tmp_path / "turin.csv"
    path.write_text("seen,y\n2024-01-31,1\n90+,1\n2024-02-03,1\n2024-02-09,1\n")
    doubt = read_table(path, "turin", site="turin")["seen"].doubt
    assert "1 of 4 values are not dates, the first in" in doubt
    assert "recode" not in doubt

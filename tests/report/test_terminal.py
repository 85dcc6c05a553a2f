"""What a person sees in a terminal of any width and in a notebook."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import insides
import numpy as np
import pytest
from rich.console import Console

import consortia
from consortia.models.regression.estimates import estimates_of
from consortia.report.tables import Table
from consortia.report.terminal import Fitting, console_of
from consortia.run import progress

HEADS = ("parameter", "mean", "sd", "5 %", "95 %", "R-hat", "ESS")
ROWS = (
    ("coefficients[smoker yes]", "0.498", "0.268", "0.051", "0.942", "1.000", "1,936"),
    ("age", "0.0650", "0.0112", "0.0472", "0.0839", "1.003", "12,356"),
)


def printed(width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(Fitting(Table("Numbers", HEADS, ROWS)))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "columns"), [(40, 4), (50, 5), (60, 7), (100, 7)])
def test_a_narrow_terminal_loses_columns_and_no_digits(width, columns):
    text = printed(width)
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines)
    for row in ROWS:
        line = next(one for one in lines if row[1] in one)
        assert line.split()[-(columns - 1) :] == list(row[1:columns])
    left_out = HEADS[columns:]
    told = " ".join(text.split())
    assert (f"{', '.join(left_out)} omitted" in told) == bool(left_out)


def test_what_goes_to_no_terminal_is_as_wide_as_columns_says(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console_of().width == 100
    monkeypatch.setenv("COLUMNS", "72")
    assert console_of().width == 72


def test_estimates_are_a_table_in_a_notebook_with_their_text_escaped():
    draws = {"coefficients": np.random.default_rng(0).normal(size=(2, 100, 2))}
    found = estimates_of(draws, {"coefficients": [["age", "<b>"]]}, "odds ratio", 0.95, ("a & b",))
    shown = found._repr_html_()
    assert shown.count("<tr>") == 3
    assert "<th>&lt;b&gt;</th>" in shown
    assert "a &amp; b" in shown
    cells = re.findall(r"<td>(.*?)</td>", shown)
    assert all(cell in str(found) for cell in cells)
    assert list(found.to_dataframe().index) == ["age", "<b>"]


def test_in_a_notebook_progress_is_one_output_that_moves(monkeypatch):
    display = pytest.importorskip("IPython.display", reason="needs IPython")
    shown: list[Any] = []

    class Output:
        def update(self, content: Any) -> None:
            shown.append(content.data)

    def first(content: Any, display_id: bool) -> Output:
        shown.append(content.data)
        return Output()

    monkeypatch.setattr(display, "display", first)
    insides.show_in_notebook(monkeypatch)
    with progress.progress_of("few_rounds", 40, None, "messages", show=True) as told:
        told.update(10, 0)
        told.update(30, 5, (30, 10**6, 10**6))
    assert "compiling" in shown[0]
    assert 'max="40" value="30"' in shown[-1]
    assert "30/40 messages, " in shown[-1]
    assert "s left" in shown[-1]


def test_a_run_that_ends_by_itself_is_shown_to_where_it_ends_as_a_rule_and_then_to_the_last(capsys):
    shown = progress.Lines("few_rounds", 220, 14)
    with shown:
        for done in (2, 4):
            shown.update(done, 0, (done, 0, 0))
        assert insides.end_shown(shown, 4) == 14
        assert insides.end_shown(shown, 14) == 220
    last = json.loads(capsys.readouterr().err)
    assert (last["rounds"], last["of"]) == (4, 220)
    assert last["rounds_per_second"] > 0
    assert "seconds_left" not in last


def test_a_run_of_known_length_says_how_long_it_takes_and_another_does_not(capsys):
    fixed = progress.Lines("fa_hmc", 220)
    with fixed:
        for done in (2, 4):
            fixed.update(done, 0, (done, 0, 0))
    assert json.loads(capsys.readouterr().err)["seconds_left"] >= 0
    for usual, known in ((None, True), (14, False)):
        shown = progress.Progress(220, usual)
        moments = [insides.moment_shown(shown, done) for done in (2, 4, 20)]
        assert [one.left is not None for one in moments] == [False, known, known]
        assert [one.rate is not None for one in moments] == [False, True, True]


def test_outside_of_a_notebook_progress_is_not_shown_in_one():
    assert not insides.is_in_notebook()


def test_completion_offers_the_public_names_only():
    assert set(dir(consortia)) == {*consortia.__all__, "__version__"}

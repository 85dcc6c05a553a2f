"""The items of STROBE and ROBUST beside a report: each answered, or named with the reason."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from needs import needs
from report.test_figure import of_formula

import consortia
from consortia.diagnostics.prediction import BiasPrediction
from consortia.diagnostics.verdict import Check, Severity, Verdict, _factors
from consortia.models.regression.checking import Line, PredictiveCheck
from consortia.report.document import _parts, page, write_report
from consortia.report.effects import estimates, response_of
from consortia.report.examined import Examined, examined, fit_table
from consortia.report.items import checklist, items
from consortia.report.methods import paragraph, references
from consortia.report.run_report import RunReport, report_of
from consortia.report.tables import contribution_table, effect_table

needs("matplotlib", extra="plots")

KEYS = [
    *(f"STROBE {number}" for number in range(1, 12)),
    *(f"STROBE 12{letter}" for letter in "abcde"),
    *(f"STROBE 13{letter}" for letter in "abc"),
    *(f"STROBE 14{letter}" for letter in "abc"),
    "STROBE 15",
    *(f"STROBE 16{letter}" for letter in "abc"),
    *(f"STROBE {number}" for number in range(17, 23)),
    *(f"ROBUST {number}" for number in range(1, 8)),
    "decision rule",
    "fit",
]


def binomial(names: tuple[str, ...] = ("oslo", "lima")) -> tuple[Any, RunReport]:
    """Return a regression of events out of trials, and a report of draws that nobody sampled."""
    rng = np.random.default_rng(0)
    tables = {}
    for name in names:
        trials = rng.integers(5, 9, 60)
        age = rng.normal(60, 9, 60)
        age[:7] = np.nan
        tables[name] = {
            "sick": rng.binomial(trials, 0.3),
            "trials": trials,
            "age": age,
            "arm": rng.choice(["usual", "new"], 60),
        }
    made = consortia.regression(
        "sick ~ age + arm",
        tables,
        family="binomial",
        trials="trials",
        missing="complete",
        levels={"arm": ["usual", "new"]},
    )
    draws = rng.normal([0.1, -0.6], 0.1, (2, 150, 2))
    posterior = xarray.Dataset(
        {
            "coefficients": (("chain", "draw", "column"), draws),
            "intercept": (("chain", "draw"), rng.normal(-0.8, 0.1, (2, 150))),
        },
        {"column": list(made.names)},
    )
    tree = xarray.DataTree.from_dict({"/posterior": posterior})
    settings = {"regression": dict(made.metadata.settings)}
    tree.attrs.update(
        {"algorithm": "few_rounds", "samples": "the posterior", "bias": "none", "seed": 7}
        | {"sites": json.dumps(names), "site_rows": json.dumps([53] * len(names))}
        | {"settings": json.dumps(settings), "versions": '{"consortia": "0.2.0"}'}
    )
    return made, report_of(tree, model=made.model, sites=made.sites, regression=made)


@pytest.fixture(scope="module")
def report() -> RunReport:
    return binomial()[1]


def test_every_item_is_answered_or_named_with_a_reason(report: RunReport) -> None:
    looked = examined(report)
    found = {one.key: one for one in items(report, looked, margins=True)}
    assert list(found) == KEYS
    assert all(one.answer for one in found.values())
    assert found["STROBE 12c"].answer == "rows with a missing value were left out"
    assert found["STROBE 12d"].state == found["STROBE 14c"].state == "not applicable"
    assert found["STROBE 14a"].state == found["STROBE 16c"].state == "reported"
    assert found["ROBUST 3"].state == found["fit"].state == "reported"
    assert found["ROBUST 2"].state == "for the authors"
    partly = ("STROBE 5", "STROBE 10", "STROBE 13a", "STROBE 13c", "STROBE 16a", "STROBE 18")
    assert {found[key].state for key in partly} == {"in part"}
    written = (1, 2, 3, 4, 6, 8, 9, 19, 20, 21, 22)
    assert {found[f"STROBE {one}"].state for one in written} == {"for the authors"}
    assert found["STROBE 16b"].state == "not applicable"
    assert "seed 7" in found["ROBUST 5"].answer
    table = checklist(tuple(found.values()))
    assert table is not None
    assert len(table.rows) == len(KEYS)


@pytest.mark.parametrize("family", ["ordinal", "weibull"])
def test_levels_and_times_are_checked_by_default(family: str) -> None:
    rng = np.random.default_rng(3)
    tables = {
        name: {"x": rng.normal(size=60), "grade": rng.integers(0, 3, 60)}
        | {"t": rng.exponential(size=60), "d": rng.integers(0, 2, 60)}
        for name in ("oslo", "lima")
    }
    left = "grade" if family == "ordinal" else "Surv(t, d)"
    made = consortia.regression(f"{left} ~ x", tables, family=family)
    draws = {
        name: 0.1 * rng.normal(size=(2, 150, *np.shape(one))) + np.asarray(one)
        for name, one in made.model.init.items()
    }
    tree = xarray.DataTree.from_dict(
        {
            "/posterior": xarray.Dataset(
                {
                    name: (("chain", "draw", *[f"{name}_{i}" for i in range(a.ndim - 2)]), a)
                    for name, a in draws.items()
                }
            )
        }
    )
    looked = examined(report_of(tree, model=made.model, sites=made.sites, regression=made))
    table = fit_table(looked)
    assert table is not None
    said = {row[0] for row in table.rows}
    wanted = {"2"} if family == "ordinal" else {"events", "follow-up"}
    assert {f"{site}: {one}" for site in ("oslo", "lima", "all sites") for one in wanted} <= said
    assert looked.check is not None


def answered(formula: str, **more: Any) -> dict[str, Any]:
    """Return the items of a run of a formula, nothing of which was looked at but the rows."""
    rng = np.random.default_rng(1)
    sites = {
        name: {"t": rng.integers(2, 90, 50), "s": np.ones(50), "d": rng.integers(0, 2, 50)}
        | {"x": rng.normal(size=50), "arm": ["a", "b"] * 25}
        for name in ("oslo", "lima", "bern")
    }
    made = consortia.regression(formula, sites, **more)
    names = list(made.names) or ["none"]
    posterior = xarray.Dataset(
        {"coefficients": (("chain", "draw", "column"), rng.normal(size=(2, 99, len(names))))},
        {"column": names},
    )
    tree = xarray.DataTree.from_dict({"/posterior": posterior})
    settings = {"regression": dict(made.metadata.settings)}
    tree.attrs.update({"sites": '["oslo", "lima", "bern"]', "settings": json.dumps(settings)})
    one = report_of(tree)
    return {item.key: item for item in items(one, examined(one), margins=False)}


@pytest.mark.parametrize(
    ("formula", "options", "key", "state"),
    [
        ("d ~ x * arm", {"family": "bernoulli"}, "STROBE 12b", "in part"),
        ("d ~ x + (1 + arm || site)", {"family": "bernoulli"}, "STROBE 12b", "reported"),
        ("d ~ x + (1 + arm || site)", {"family": "bernoulli"}, "STROBE 21", "in part"),
        ("d ~ x + arm", {"family": "bernoulli"}, "STROBE 12b", "not applicable"),
        ("Surv(t, d) ~ x", {"family": "cox"}, "STROBE 14c", "reported"),
        ("Surv(s, t, d) ~ x", {"family": "cox"}, "STROBE 14c", "in part"),
        ("Surv(t, d) ~ x", {"family": "cox"}, "STROBE 12d", "in part"),
        ("d ~ I(x > 0.5)", {"family": "bernoulli"}, "STROBE 16b", "reported"),
        ("d ~ C(arm)", {"family": "bernoulli"}, "STROBE 16b", "not applicable"),
        ("d ~ x", {"family": "bernoulli", "keep": "t > 5"}, "STROBE 6", "in part"),
        ("d ~ x", {"family": "bernoulli"}, "STROBE 13a", "in part"),
    ],
)
def test_no_item_is_called_reported_that_is_not(
    formula: str, options: dict[str, Any], key: str, state: str
) -> None:
    assert answered(formula, **options)[key].state == state


def test_what_was_not_looked_at_is_for_the_authors(report: RunReport) -> None:
    alone = report_of(report.tree)
    alone.record["settings"]["regression"].pop("participants")
    alone.record["settings"]["regression"].pop("missing")
    found = {one.key: one for one in items(alone, examined(alone), margins=False)}
    for key in ("STROBE 12c", "STROBE 12e", "STROBE 13a", "STROBE 14b", "STROBE 16c", "ROBUST 3"):
        assert found[key].state == "for the authors", key
    assert found["fit"].state == "for the authors"


def test_reference_levels_denominators_and_rules_are_in_tables_and_text(report: RunReport) -> None:
    effects = estimates(report)
    assert effects is not None
    assert [row[0] for row in effect_table(effects, response_of(report)).rows] == [
        "age",
        "arm[new], against usual",
    ]
    told = contribution_table(report)
    assert told is not None
    assert told.columns[-3:] == ("trials", "events", "events per trial")
    text = paragraph(report)
    for part in (
        "Levels are compared with usual of arm.",
        "The trials are the column trials.",
        "Rows with a missing value were left out.",
        "The seed was 7.",
        "a direction is stated if its posterior probability is at least 0.975",
    ):
        assert part in text


@pytest.mark.parametrize("names", [("oslo", "lima", "bern"), ("c", "a", "b"), ("a10", "a9")])
def test_tables_have_the_sites_in_the_order_of_the_study(names: tuple[str, ...]) -> None:
    made, one = binomial(names)
    told, looked = contribution_table(one), examined(one)
    assert told is not None
    assert [row[0] for row in told.rows] == [*names, "all"]
    assert made.table_one().columns == (*names, "all sites")
    assert looked.check is not None
    assert [*dict.fromkeys(line.site for line in looked.check.lines)] == [*names, "all sites"]
    for lines in made.marginal_effects(one.tree, draws=10).by_site.values():
        assert [line.site for line in lines] == [*names]


def test_a_rule_of_quadrature_is_named_with_what_it_moves(report: RunReport) -> None:
    kept = {"nodes": 60, "against": 240, "shift": 0.004, "low": 1.0, "high": 1.0, "error": 0.01}
    for rule, said in (
        (kept, "by quadrature with 60 nodes, which moves means by at most 0.004 posterior sd."),
        ({"nodes": 60}, "by quadrature with 60 nodes, whose error was not measured."),
    ):
        one = dataclasses.replace(report, record={**report.record, "quadrature": rule})
        text = paragraph(one)
        assert said in text
        assert "without bias" not in text
        found = {item.key: item for item in items(one, Examined(), margins=False)}
        assert "quadrature with 60 nodes" in found["ROBUST 5"].answer
    exact = {**kept, "shift": 0.0, "error": 0.0}  # sums over the rows of a gaussian response
    for record in (report.record, {**report.record, "quadrature": exact}):
        text = paragraph(dataclasses.replace(report, record=record))
        assert "without bias" in text
        assert "quadrature" not in text


def test_the_page_holds_table_one_sensitivity_checks_and_checklist(report: RunReport) -> None:
    text = page([report])
    for title in (
        "Who was analysed",
        "Sensitivity to the priors",
        "Does the model reproduce the responses?",
        "Reporting checklists",
        "Posterior predictive checks",
    ):
        assert title in text


@pytest.mark.parametrize("family", ["cox", "weibull"])
def test_the_fit_of_times_is_shown_under_what_it_is(family: str) -> None:
    rng = np.random.default_rng(1)
    tables = {
        name: {"t": rng.integers(2, 90, 50), "d": rng.integers(0, 2, 50), "x": rng.normal(size=50)}
        for name in ("oslo", "lima")
    }
    made = consortia.regression("Surv(t, d) ~ x", tables, family=family)
    draws = {
        name: (
            ("chain", "draw", *(["column"] * np.ndim(one))),
            rng.normal(size=(2, 99, *one.shape)),
        )
        for name, one in made.model.init.items()
    }
    tree = xarray.DataTree.from_dict({"/posterior": xarray.Dataset(draws, {"column": ["x"]})})
    tree.attrs["settings"] = json.dumps({"regression": dict(made.metadata.settings)})
    one = report_of(tree, model=made.model, sites=made.sites, regression=made)
    parts = {part.title: part for part in _parts(one) if any(part.tables)}
    assert ("Are the hazards proportional?" in parts) == (family == "cox")
    assert ("Does the model reproduce the responses?" in parts) == (family != "cox")
    names = {row[0] for table in parts["Who was analysed"].tables for row in table.rows}
    assert "follow-up (t)" in names


def test_a_caption_is_not_torn_from_its_table_on_paper(
    report: RunReport, tmp_path: Path, browser: Any
) -> None:
    write_report(report, tmp_path / "page.html")
    browser.open(tmp_path / "page.html", width=718)
    browser.call("Emulation.setEmulatedMedia", media="print")
    of = "[...document.querySelectorAll('{}')].map(e => getComputedStyle(e).{})"
    for what in (".caption", "h2", "h2 + p", "summary"):
        assert {*browser.value(of.format(what, "breakAfter"))} == {"avoid"}, what
    for what in (".scroll", ".card", "figure", "blockquote"):
        assert {*browser.value(of.format(what, "breakInside"))} == {"avoid"}, what
    for what in ("ul.plain", "footer"):  # notes and the last words
        assert {*browser.value(of.format(what, "breakBefore"))} == {"avoid"}, what
    cells = browser.value("[...document.querySelectorAll('td')].map(e => e.innerText)")
    assert any("\u00a0%" in cell for cell in cells)
    assert not any(" %" in cell for cell in cells)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binomial", "weibull", "ordinal"])
def test_the_page_of_a_study_fits_a_phone_and_a_desk_and_has_the_checklist(
    kind: str, tmp_path: Path, browser: Any
) -> None:
    if kind == "binomial":
        one = binomial()[1]
    else:
        made, tree = of_formula(kind)
        tree.attrs["settings"] = json.dumps({"regression": dict(made.metadata.settings)})
        one = report_of(tree, model=made.model, sites=made.sites, regression=made)
    write_report(one, tmp_path / "page.html")
    for width in (390, 1280):
        browser.open(tmp_path / "page.html", width=width)
        assert browser.asked() == []
        assert browser.complaints() == []
        assert browser.value("document.documentElement.scrollWidth") <= width
        text = browser.value("document.body.innerText")
        assert all(key in text for key in KEYS)
        assert not re.search(r"\blog_|correlation_score|score of|in_sd", text)


BROKEN = """
[...document.querySelectorAll('td.number:not(.long)')].flatMap(cell => {
  const text = cell.firstChild, lines = word => {
    const range = document.createRange();
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    return range.getClientRects().length;
  };
  return text?.data ? [...text.data.matchAll(/[^ ]+/g)].filter(word => lines(word) > 1) : [];
}).map(word => word[0])
"""
"""Numbers that are written on two lines."""


def test_a_table_of_nine_sites_is_printed_whole(tmp_path: Path, browser: Any) -> None:
    names = tuple(f"hospital {letter}" for letter in "ABCDEFGHI")
    write_report(binomial(names)[1], tmp_path / "page.html")
    width = 718  # of a sheet of A4 within its margins
    browser.open(tmp_path / "page.html", width=width)
    browser.call("Emulation.setEmulatedMedia", media="print")
    edges = "[...document.querySelectorAll('table')].map(t => t.getBoundingClientRect().right)"
    assert max(browser.value(edges)) <= width
    assert browser.value(BROKEN) == []


def test_no_label_of_an_axis_is_cut_off(report: RunReport) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figures = [plot.figure for part in _parts(report) for plot in part.plots if plot is not None]
    assert len(figures) > 5
    for figure in figures:
        FigureCanvasAgg(figure).draw()
        for axes in figure.axes:
            box = axes.xaxis.label.get_window_extent()
            assert figure.bbox.x0 <= box.x0, axes.get_xlabel()
            assert box.x1 <= figure.bbox.x1, axes.get_xlabel()


def test_a_share_is_never_0_or_1_and_equal_factors_are_one_number(report: RunReport) -> None:
    line = Line("oslo", "mean", 3.0, 1.0, 0.5, 1.5, 0.0)
    check = PredictiveCheck((line, line._replace(p=1.0)), None, 0.95)
    table = fit_table(Examined(check=check))
    assert table is not None
    assert [row[-1] for row in table.rows] == ["< 0.001", "> 0.999"]
    assert _factors(1.0001, 0.9999, 3) == "1.000×"
    assert _factors(0.9, 1.25) == "0.90–1.25×"


@pytest.mark.parametrize(
    ("titles", "counts", "ends"),
    [
        ([], False, "All checks passed."),
        (["How large is the measured bias?"], False, "how large is the measured bias?"),
        (["Do the sites agree?", "How many modes?"], False, "do the sites agree? How many modes?"),
        (["Do the sites agree?"], True, None),  # what counts is no good verdict
    ],
)
def test_a_good_verdict_names_what_was_not_looked_at(
    titles: list[str], counts: bool, ends: str | None
) -> None:
    good = Check(Severity.GOOD, "Do the chains agree?", "yes", "They do.")
    unknown = [Check(Severity.UNKNOWN, one, "not measured", "", counts=counts) for one in titles]
    verdict = Verdict((good, *unknown))
    assert (verdict.severity is Severity.GOOD) is (ends is not None)
    if ends is not None:
        assert verdict.explanation.endswith(ends)
        assert ("Not checked: " in verdict.explanation) is bool(titles)


@pytest.mark.parametrize("kind", ["binomial", "weibull", "ordinal"])
def test_beside_the_missing_bias_of_an_exact_method_no_card_is_unknown(kind: str) -> None:
    if kind == "binomial":
        one = binomial()[1]
    else:
        made, tree = of_formula(kind)
        one = report_of(tree, model=made.model, sites=made.sites, regression=made)
    exact = dataclasses.replace(one, prediction=BiasPrediction(basis="a Metropolis test"))
    cards = [check for check in exact.verdict.checks if "bias" in check.title]
    assert [card.value for card in cards] == ["no bias"]
    assert Severity.UNKNOWN not in {check.severity for check in exact.verdict.checks}
    stale = dataclasses.replace(one, prediction=None)
    assert Severity.UNKNOWN in {check.severity for check in stale.verdict.checks}


@pytest.mark.parametrize(
    ("columns", "levels"),
    [
        (["length"], ["bird", "invertebrate"]),
        (["size", "lake[oklawaha]"], ["fish", "other"]),
        (["age"], ["rural, north"]),
    ],
)
def test_intercepts_of_levels_are_called_so_beside_coefficients(
    columns: list[str], levels: list[str]
) -> None:
    rng = np.random.default_rng(2)
    shape = (2, 99, len(levels), len(columns))
    axes = ("chain", "draw", "level", "column")
    posterior = xarray.Dataset(
        {
            "coefficients": (axes, rng.normal(size=shape)),
            "intercept": (axes[:3], rng.normal(size=shape[:3])),
        },
        {"column": columns, "level": levels},
    )
    made = report_of(xarray.DataTree.from_dict({"/posterior": posterior}))
    assert made.names == [
        *(f"{level}, {column}" for level in levels for column in columns),
        *(f"{level}, intercept" for level in levels),
    ]


def test_the_methods_paragraph_says_ties_baseline_intervals_weights_and_kept_rows() -> None:
    def said(formula: str, family: str, **more: Any) -> tuple[str, list[str]]:
        settings = {"formula": formula, "family": family, "levels": {}, **more}
        tree = xarray.DataTree.from_dict(
            {"/posterior": xarray.Dataset({"x": (("chain", "draw"), np.zeros((2, 9)))})}
        )
        tree.attrs.update(
            {"algorithm": "few_rounds", "settings": json.dumps({"regression": settings})}
        )
        one = report_of(tree)
        return paragraph(one), references(one)

    text, cited = said("Surv(start, stop, event) ~ x", "cox")
    assert "tied times are treated as Efron does [6]" in text
    assert "A row is an interval from a start to a stop" in text
    assert [one.split(" ")[0] for one in cited[4:]] == ["Cox", "Efron"]
    assert cited[1].startswith("Tierney L. Markov chains for exploring")
    assert max(map(int, re.findall(r"\[(?:\d+, )?(\d+)\]", text))) <= len(cited)
    text, cited = said("Surv(t, d) ~ x", "weibull")
    assert "that of a Weibull distribution" in text
    assert "interval from a start" not in text
    assert len(cited) == 4
    text, _ = said("y ~ x", "poisson", beside={"weights": "Freq", "exposure": "years"})
    assert "Rows are weighted by Freq." in text
    assert "The exposure is the column years." in text
    assert "Only rows with t > 0 were analysed." in said("y ~ x", "gamma", keep="t > 0")[0]

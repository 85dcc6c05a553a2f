"""The report as an HTML file: what it says, that it needs nothing else, and how it looks."""

from __future__ import annotations

import dataclasses
import functools
import html
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from cli.irises import NO_FIGURE, STUDY, invoke

pytest.importorskip("matplotlib", reason="needs the extra `plots`")
pytest.importorskip("jinja2", reason="needs the extra `plots`")

from matplotlib import colormaps
from matplotlib.colors import to_hex

import consortia
from consortia.diagnostics.figures import canvas
from consortia.diagnostics.verdict import Severity
from consortia.engines.mailbox import facts_of
from consortia.errors import StoreError
from consortia.report.document import _notes, write_report
from consortia.report.plots import MOST_FOREST, forest
from consortia.report.run_report import RunReport, report_of
from consortia.schedules.events import simulate
from consortia.store.ending import RunEnd
from consortia.store.results import plain_attributes
from tests.refusals import refused

RECORD = {
    "algorithm": "fa_hmc",
    "samples": "a law near the posterior",
    "sites": '["Oslo", "Lima"]',
    "site_rows": "[30, 50]",
    "warmup": 10,
    "rounds": 500,
    "iterations_run": 510,
    "end": "all rounds",
    "stopped": "all rounds were run",
    "communication_rounds": 510,
    "bytes_sent": 4_800_000,
    "gradients": 9600,
    "row_gradients": 960_000,
    "seconds": 3.25,
}


def tree_of(
    *, chains: int = 2, draws: int = 500, parameters: int = 3, shift: float = 0.0, seed: int = 0
) -> Any:
    """Independent normal draws, means 0, 1, 2, ... + shift."""
    rng = np.random.default_rng(seed)
    means = np.arange(parameters) % 7 + shift
    values = means + rng.normal(size=(chains, draws, parameters))
    tree = xarray.DataTree.from_dict(
        {"/posterior": xarray.Dataset({"theta": (("chain", "draw", "theta_dim_0"), values)})}
    )
    tree.attrs.update(RECORD)
    return tree


def page(folder: Path, *reports: Any) -> str:
    return write_report(list(reports), folder / "report.html").read_text()


@functools.cache
def gossip() -> RunReport:
    """A real run with agents, a reference and held-out rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 2)).astype(np.float32)
    rows = {"x": x, "y": (x.sum(axis=1) + rng.normal(size=90) > 0).astype(np.int32)}
    model = consortia.models.logistic_regression(2)
    sites = consortia.partition.iid(rows, sites=3, seed=0)
    method = consortia.de_sgld(
        0.01, "ring", correction="extra", noise="common", averaged_noise=True, draws="agents"
    )
    options = {"warmup": 100, "thin": 5, "chains": 2, "progress": False}
    tree = consortia.sample(model, sites, method, rounds=3000, **options)
    other = consortia.sample(
        model, sites, consortia.fa_hmc(0.05, 2, 1), rounds=3000, seed=1, **options
    )
    return report_of(
        tree,
        name="ring",
        title="Three hospitals",
        model=model,
        sites=sites,
        algorithm=method,
        held_out=rows,
        labels={"coefficients": (("dose", "age"),)},
        reference=other,
    )


def test_how_the_tables_were_read_is_a_section(tmp_path):
    tree = tree_of()
    said = "oslo: age: 'NA' is missing, in 8 rows"
    tree.attrs["settings"] = json.dumps({"regression": {"readings": [said]}})
    assert said in html.unescape(page(tmp_path, report_of(tree)))
    assert "How the tables were read" not in page(tmp_path, report_of(tree_of()))


# --- what it says --------------------------------------------------------------------------------


def test_a_report_has_every_section_of_a_gossip_run_with_a_reference(tmp_path):
    text = page(tmp_path, gossip())
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    parts = ["The posterior", "Bias, predicted and measured", "Traces", "Ranks", "Predictions"]
    parts.insert(0, "What each site contributed")
    assert titles[1:] == [*parts, "The network", "Cost", "A methods paragraph"]
    for said in ("Three hospitals", "root mean square distance", "dose", "Predicted means within"):
        assert said in text
    assert text.index("Do the chains agree?") < text.index("The posterior</h2>")


def test_a_report_asks_for_nothing_from_elsewhere(tmp_path):
    text = page(tmp_path, gossip())
    links = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "<script" not in text
    assert not re.search(r"@import|url\((?!#)", text)


def test_every_figure_has_a_text_and_follows_the_colours_of_the_page(tmp_path):
    text = page(tmp_path, gossip())
    figures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(figures) > 5
    # The middle of a mean's mark, and colours that stand for numbers.
    kept = {"#ffffff", *map(to_hex, colormaps["viridis"].colors)}
    for one in figures:
        assert re.search(r'role="img" aria-label="[^"]{20,}"', one)
        drawn = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", one)) - kept
        assert canvas.MUTED in drawn or canvas.INK in drawn
        for colour in drawn:
            for what in ("fill", "stroke"):
                assert f'[style*="{what}: {colour}"] {{ {what}: var(--' in text
    names = re.findall(r'\bid="([^"]*)"', text)
    assert len(names) == len(set(names))


def test_numbers_on_the_axes_are_not_rounded_with_the_coordinates():
    from matplotlib.figure import Figure

    with canvas.drawing():
        figure = Figure(figsize=(2, 2))
        figure.subplots().set_yticks([0.0125, 0.0175], ["0.0125", "0.0175"])
        text = canvas.Plot(figure, "a figure").svg("k")
    assert ">0.0125</text>" in text
    assert not re.search(r'="[^"]*\d\.\d{3}', text)


def test_of_a_thousand_parameters_a_selection_is_drawn_and_named(tmp_path):
    text = page(tmp_path, report_of(tree_of(parameters=1000)))
    assert f"{MOST_FOREST} of 1,000 parameters, those with the smallest ESS" in text


def test_one_chain_of_one_parameter_has_no_ranks_and_no_r_hat(tmp_path):
    report = report_of(tree_of(chains=1, parameters=1))
    text = page(tmp_path, report)
    assert "Ranks</h2>" not in text
    assert "R-hat n/a" in text
    assert report.verdict.severity is Severity.UNKNOWN


def test_several_runs_stand_side_by_side_under_names_of_their_own(tmp_path):
    one, two = (report_of(tree_of(seed=seed), name="run") for seed in (0, 1))
    text = page(tmp_path, one, two)
    head = re.search(r'<section id="comparison">.*?</table>', text, re.DOTALL)
    assert head is not None
    assert "run (1)" in head[0]
    assert "run (2)" in head[0]
    for row in ("verdict", "Do the chains agree?", "bytes sent", "effective draws per second"):
        assert row in head[0]
    assert text.count("<article") == 2


def test_runs_of_unlike_models_are_compared_where_they_can_be(tmp_path):
    one, two = report_of(tree_of(parameters=1)), report_of(tree_of(parameters=2), name="two")
    assert "intervals of all parameters; run, two" in forest([one, two])[-1].caption
    assert "intervals of the parameters in common; two, run" in forest([two, one])[-1].caption
    other = tree_of(parameters=1)
    other["posterior"] = xarray.DataTree(other["posterior"].to_dataset().rename(theta="beta"))
    assert "the runs share no parameter" in page(tmp_path, one, report_of(other, name="other"))


def test_text_from_a_run_is_escaped(tmp_path):
    text = page(tmp_path, report_of(tree_of(), title="<b>&", study="a = '<script>'"))
    assert "&lt;b&gt;&amp;" in text
    assert "<script>" not in text


def test_the_staleness_of_real_workers_is_that_of_their_log(tmp_path):
    rows = {"x": np.ones((8, 2), np.float32), "y": np.arange(8, dtype=np.int32) % 2}
    model, sites = consortia.models.logistic_regression(2), consortia.Sites.from_list([rows])
    method = consortia.stale_sgld(0.001, workers=2, batch_size=4)
    tree = consortia.sample(model, sites, method, rounds=40, warmup=2, progress=False, chains=1)
    objects = {"model": model, "sites": sites, "algorithm": method}
    simulated = re.search(
        r"Over the run (\S+) on average", page(tmp_path, report_of(tree, **objects))
    )
    assert float(simulated[1]) > 0.5  # workers − 1 but for the first updates
    alone = [(0, 0, version) for version in range(42)]  # one worker does it all: nothing is stale
    trace = simulate(consortia.latency.recorded(alone), workers=2, servers=1, updates=42, warmup=2)
    tree.attrs.update(plain_attributes(facts_of(trace)))
    tree.attrs["processes"] = '["rank 0: server 0", "rank 1: worker 0", "rank 2: worker 1"]'
    text = page(tmp_path, report_of(tree, **objects))
    assert "Over the run 0.00 on average, 0 at most" in text
    assert "It ran in 3 processes." in text


# --- the verdict ---------------------------------------------------------------------------------


def severity_of(report: RunReport, title: str) -> Severity:
    return next(one.severity for one in report.verdict.checks if one.title == title)


def test_chains_in_different_places_are_bad():
    tree = tree_of()
    tree["posterior"]["theta"].values[0] += 5
    assert severity_of(report_of(tree), "Do the chains agree?") is Severity.BAD


@pytest.mark.parametrize(("draws", "severity"), [(1000, Severity.GOOD), (100, Severity.WARNING)])
def test_the_number_of_draws_is_judged(draws, severity):
    assert severity_of(report_of(tree_of(draws=draws)), "Are there enough draws?") is severity


@pytest.mark.parametrize(
    ("shift", "severity"), [(0.0, Severity.GOOD), (0.28, Severity.WARNING), (0.8, Severity.BAD)]
)
def test_a_measured_bias_counts_beyond_its_monte_carlo_error(shift, severity):
    report = report_of(tree_of(draws=2000, shift=shift), reference=tree_of(draws=2000, seed=1))
    assert severity_of(report, "How large is the measured bias?") is severity
    card = next(
        one for one in report.verdict.checks if one.title == "How large is the measured bias?"
    )
    assert ("federated_hmc, which is exact" in card.action) == (severity is not Severity.GOOD)


def test_a_bias_that_nobody_looked_at_is_not_good():
    report = report_of(tree_of(draws=1000))
    assert report.verdict.severity is Severity.UNKNOWN


@pytest.mark.parametrize(
    ("end", "severity"),
    [
        (RunEnd.NON_FINITE, Severity.BAD),
        (RunEnd.INTERRUPTED, Severity.WARNING),
        (RunEnd.SITE_MISSING, Severity.WARNING),
        (RunEnd.RANK_LOST, Severity.WARNING),
    ],
)
def test_how_a_run_ended_counts(end, severity):
    tree = tree_of()
    tree.attrs["end"] = end.value
    assert severity_of(report_of(tree), "The run") is severity


# --- from a directory ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory written by the command."""
    folder = tmp_path_factory.mktemp("stored")
    (folder / "irises.toml").write_text(STUDY + NO_FIGURE)
    arguments = ["run", str(folder / "irises.toml"), "-q", "--output", str(folder / "run")]
    outcome = invoke(*arguments)
    assert outcome.exit_code == 0, outcome.output
    return folder / "run"


def test_the_command_writes_the_report_into_the_run(stored):
    outcome = invoke("report", stored)
    assert outcome.exit_code == 0, outcome.output
    text = (stored / "report.html").read_text()
    for said in ("Irises", "setosa", "Calibration curve", "accuracy", "title = "):
        assert said in text


def test_an_unfinished_run_is_reported_as_such(stored, tmp_path):
    record = json.loads((stored / "run.json").read_text())
    for key in ("stopped", "iterations_run", "bytes_sent", "seconds"):
        record.pop(key, None)
    tree = consortia.open_run(stored)
    tree.attrs.clear()
    tree.attrs.update(record | {"state": "running"})
    text = page(tmp_path, report_of(tree))
    assert "not finished" in text
    assert "unfinished, of 40" in text


def test_a_directory_without_a_run_has_its_own_exit_code(tmp_path):
    outcome = invoke("report", tmp_path)
    assert outcome.exit_code == 3
    assert "holds no run" in outcome.stderr


def test_a_run_that_keeps_moments_says_of_which_draws_its_numbers_are(tmp_path):
    tree = tree_of(parameters=1, draws=750)
    tree["moments"] = xarray.DataTree(xarray.Dataset(attrs={"draws": 1500}))
    (note,) = _notes(report_of(tree))
    assert "750 evenly spaced draws per chain" in note
    assert "means and variances of all 1,500." in note
    assert note in page(tmp_path, report_of(tree))
    tree["unconstrained_moments"] = tree.children["moments"]
    del tree["moments"]
    (note,) = _notes(report_of(tree))
    assert "variances of all 1,500 of the coordinates that were sampled." in note
    assert "`unconstrained_moments`" in note


def test_a_run_without_draws_is_refused():
    with refused(argument="tree", match="no draws"):
        report_of(xarray.DataTree())


def test_a_file_that_cannot_be_written_is_an_error_of_its_own(tmp_path):
    path = tmp_path / "no" / "report.html"
    with refused(StoreError, file=str(path), match="cannot be written"):
        write_report(report_of(tree_of(parameters=1)), path)


# --- in a browser --------------------------------------------------------------------------------


def test_a_page_asks_for_nothing_overflows_nowhere_and_complains_of_nothing(tmp_path, browser):
    report = gossip()
    write_report([report], tmp_path / "one.html")
    write_report([report, dataclasses.replace(report, name="other")], tmp_path / "two.html")
    for name in ("one", "two"):
        for width in (390, 1280, 1920):
            for dark in (False, True):
                browser.open(tmp_path / f"{name}.html", width=width, dark=dark)
                assert browser.asked() == []
                assert browser.complaints() == []
                assert browser.value("innerWidth") == width
                assert browser.value("document.documentElement.scrollWidth") <= width
                ratio, words = browser.faintest()
                assert ratio >= 4.5, (name, width, dark, words)
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('svg text')).fill"
    seen = []
    for dark in (False, True):
        browser.open(tmp_path / "one.html", width=390, dark=dark)
        seen.append((browser.value(ground), browser.value(ink)))
    assert all(brightness(light) > 200 for light, _ in seen[:1])
    assert brightness(seen[1][0]) < 60
    for paper, text in seen:  # figures are read on both grounds
        assert abs(brightness(paper) - brightness(text)) > 100


def brightness(colour: str) -> float:
    """Of ``rgb(...)``."""
    return float(np.mean([float(part) for part in re.findall(r"[\d.]+", colour)[:3]]))


def test_the_browser_sees_what_a_bad_page_does(tmp_path, browser):
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<meta name="viewport" content="width=device-width"><div style="width:3000px">x</div>'
        '<p style="color: #888">faint</p>'
        '<img src="missing.png"><script>console.error("no"); nowhere()</script>'
    )
    browser.open(bad, width=390)
    assert browser.value("document.documentElement.scrollWidth") > 390
    assert [url for url in browser.asked() if url.endswith("missing.png")]
    assert len(browser.complaints()) >= 2
    ratio, text = browser.faintest()
    assert text == "faint"
    assert abs(ratio - 3.54) < 0.02  # of #888888 on white


# --- how long it takes ---------------------------------------------------------------------------


@pytest.mark.slow
def test_four_chains_of_ten_thousand_draws_take_less_than_twenty_seconds(tmp_path):
    tree = tree_of(chains=4, draws=10_000, parameters=31)
    other = tree_of(chains=4, draws=1_000, parameters=31, seed=1)
    started = time.monotonic()
    page(tmp_path, report_of(tree, reference=other))
    assert time.monotonic() - started < 20

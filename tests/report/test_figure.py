"""The report and its figure: what they say, and that they are made for every kind of result."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from sklearn.metrics import roc_auc_score, roc_curve

import consortia
from consortia import models
from consortia.diagnostics.figures import forest
from consortia.diagnostics.figures.canvas import drawing
from consortia.diagnostics.figures.forest import forest_figure
from consortia.diagnostics.natural import Quantities
from consortia.diagnostics.prediction import BiasPrediction
from consortia.errors import MissingExtraError
from consortia.models.regression.heterogeneity import Row
from consortia.report import accuracy, plots
from consortia.report.document import write_figures
from consortia.report.run_report import labelled, report_of
from consortia.report.tables import text_of
from consortia.store.results import dataset_of

RECORD = {
    "algorithm": "fa_hmc",
    "chains": 2,
    "iterations_run": 1200,
    "end": "all rounds",
    "stopped": "all rounds were run",
    "communication_rounds": 1200,
    "bytes_sent": 4_800_000,
    "gradients": 9600,
    "row_gradients": 960_000,
    "seconds": 3.25,
}
REFERENCE = {"gradients": 5000, "seconds": 1.5, "divergences": 0}
LABELS = {
    "coefficients": (("no", "yes"), ("age", "dose", "weight")),
    "intercept": (("no", "yes"),),
}


def result(shift: float = 0.0, *, chains: int = 2, features: int = 3, seed: int = 0) -> Any:
    """Independent normal draws of a logistic regression, mean (1, 2, 3) + shift, sd ½."""
    rng = np.random.default_rng(seed)
    means = np.arange(1, features + 1) + shift
    posterior = xarray.Dataset(
        {
            "coefficients": (
                ("chain", "draw", "coefficients_dim_0"),
                means + 0.5 * rng.normal(size=(chains, 500, features)),
            ),
            "intercept": (("chain", "draw"), 0.5 * rng.normal(size=(chains, 500))),
        }
    )
    tree = xarray.DataTree.from_dict({"/posterior": posterior})
    tree.attrs.update(RECORD if seed == 0 else REFERENCE)
    return tree


def held_out(features: int = 3, rows: int = 40) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(9)
    x = rng.normal(size=(rows, features)).astype(np.float32)
    return {"x": x, "y": (x.sum(axis=1) > 0).astype(np.int32)}


@functools.cache  # equal model objects are compiled once
def logistic(features: int = 3) -> Any:
    return models.logistic_regression(features, intercept=True)


def made_of(tree: Any, reference: Any = None, **options: Any) -> Any:
    options = {"model": logistic(), "held_out": held_out(), "title": "A title"} | options
    return report_of(tree, reference=reference, **options)


# --- what is said --------------------------------------------------------------------------------


def test_the_verdict_names_the_parameter_that_is_off():
    tree = result()
    tree["posterior"]["coefficients"].values[:, :, 1] += 0.5  # one standard deviation
    verdict = made_of(tree, result(seed=1), labels=LABELS).worst
    size, name = verdict.shift
    assert name == "dose"
    # Two means of 1,000 independent draws: standard error √(2/1000) = .045 sd.
    assert size == pytest.approx(1.0, abs=4 * 0.045)
    assert verdict.shift_error == pytest.approx(0.045, rel=0.3)


def test_the_reference_is_matched_by_name_in_whatever_order_it_comes():
    reference = result(seed=1)
    posterior = reference["posterior"].to_dataset()
    turned = xarray.DataTree.from_dict({"/posterior": posterior[["intercept", "coefficients"]]})
    turned.attrs.update(reference.attrs)
    one, two = made_of(result(), reference), made_of(result(), turned)
    assert list(turned["posterior"].data_vars) != list(reference["posterior"].data_vars)
    for column, values in one.reference_table.columns.items():
        np.testing.assert_array_equal(two.reference_table[column], values)
    assert two.worst == one.worst


def test_a_bias_that_nobody_has_looked_at_is_unknown_and_that_of_an_exact_method_is_none():
    report = made_of(result())
    assert report.worst.shift is None
    assert report.verdict.word == "unknown"
    assert "not predicted" in " ".join(report.verdict.lines())
    exact = dataclasses.replace(report, prediction=BiasPrediction(basis="a Metropolis test"))
    assert not any("bias" in line for line in [*exact.verdict.lines(), *exact.worst.lines()])


def test_numbers_of_one_chain_are_not_available_and_the_report_says_so():
    report = made_of(result(chains=1), result(seed=1, chains=1))
    assert np.isnan(report.worst.r_hat)
    assert "R-hat not available" in report.worst.lines()[0]
    assert json.loads(report.json())["worst"]["r_hat"] is None


def test_labels_stand_for_numbers_where_they_fit():
    assert made_of(result(), labels=LABELS).names == [
        "age",
        "dose",
        "weight",
        "intercept",
    ]
    wrong = {"coefficients": (("a", "b"),)}
    assert made_of(result(), labels=wrong).names[0] == "coefficients[0]"


def test_labelling_changes_no_draw():
    tree = result()
    named = labelled(tree, LABELS)
    np.testing.assert_array_equal(
        named["posterior"]["coefficients"], tree["posterior"]["coefficients"]
    )
    assert named.attrs == tree.attrs


def test_the_text_has_every_parameter_every_score_and_the_cost():
    text = text_of(made_of(result(), result(seed=1), labels=LABELS, skipped=("x: y",)))
    for part in ("age", "weight", "intercept", "accuracy", "Brier", "ECE", "4,800,000", "9,600"):
        assert part in text
    assert "skipped: x: y" in text


def test_the_json_is_strict_and_complete():
    content = json.loads(made_of(result(), result(seed=1), labels=LABELS).json())
    assert content["parameters"][0]["name"] == "coefficients[age]"
    assert content["scores"].keys() == content["reference_scores"].keys()
    assert content["run"]["bytes_sent"] == 4_800_000


def test_scores_that_cannot_be_made_are_named():
    report = made_of(result(), held_out=None)
    assert report.scores is None
    assert "has no held-out rows" in " ".join(report.skipped)


# --- what is drawn -------------------------------------------------------------------------------


def size_of(path: Path) -> tuple[int, int]:
    """Width and height of a PNG file, from its header."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def regression_report() -> Any:
    model = models.linear_regression(3, intercept=True)
    rows = held_out()
    rows["y"] = rows["x"].sum(axis=1)
    return made_of(result(), result(seed=1), model=model, held_out=rows)


def of_formula(family: str, seed: int = 1) -> tuple[Any, Any]:
    """A regression, and draws from its prior as a run's result has them."""
    rng = np.random.default_rng(5)
    left = "Surv(time, event)" if family == "weibull" else "grade"
    tables = {
        site: {
            "age": rng.normal(60, 10, 30),
            "time": rng.exponential(2.0, 30) + 0.1,
            "event": rng.integers(0, 2, 30),
            "grade": np.arange(30) % 4,
        }
        for site in ("oslo", "lima")
    }
    made = consortia.regression(f"{left} ~ age", tables, family=family)
    params = made.density.draw(np.random.default_rng(seed), 400)
    draws = {name: np.reshape(one, (2, 200, *one.shape[1:])) for name, one in params.items()}
    groups = Quantities(made.model).beside({"posterior": dataset_of(draws, {}, ("chain", "draw"))})
    tree = xarray.DataTree.from_dict({f"/{name}": one for name, one in groups.items()})
    tree.attrs.update(RECORD)
    return made, tree


@pytest.mark.parametrize("family", ["weibull", "ordinal"])
def test_figures_and_the_verdict_have_natural_quantities_only(family):
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    made, tree = of_formula(family)
    _, other = of_formula(family, seed=2)
    report = report_of(tree, model=made.model, regression=made, reference=other)
    natural = tree["posterior"].to_dataset()
    own = {"weibull": "shape", "ordinal": "2|3"}[family]
    assert own in report.names
    drawn = [plot.of for plot in [*plots.traces(report), *plots.ranks(report)]]
    assert own in drawn
    assert set(drawn) <= set(report.names)
    (figure, *_), place = plots.traces(report), report.names.index(own)
    lines = figure.figure.axes[0].lines
    shown = plots.selected(report.shown, [place])
    wanted = natural["shape"] if family == "weibull" else natural["thresholds"][..., 2]
    np.testing.assert_array_equal(shown[..., 0], wanted)
    assert lines
    texts = [
        text.get_text()
        for plot in plots.forest([report])
        for axes in plot.figure.axes
        for text in axes.texts
    ]
    assert own in texts
    off, shown = np.abs(report.table["shift"]), np.abs(report.shown_table["shift"])
    name = report.sampled.names[off.argmax()]  # how far by what was sampled, named by what is shown
    if name not in report.names:
        name = f"{report.names[shown.argmax()]} among what is shown"
    assert report.worst.shift == (off.max(), name)
    said = " ".join([*report.verdict.lines(), text_of(report), *texts, *drawn])
    assert not re.search(r"log_|correlation_score|score of|in_sd", said)


@pytest.mark.parametrize("seed", range(3))
def test_the_receiver_operating_characteristic_is_that_of_scikit_learn(seed):
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    rng = np.random.default_rng(seed)
    event, score = rng.random(60) < 0.4, rng.integers(0, 20, 60) / 20
    wrong, right = accuracy.above_thresholds(event, score)
    wanted = roc_curve(event, score, drop_intermediate=False)
    np.testing.assert_allclose((wrong, right), wanted[:2], atol=1e-15)
    assert np.trapezoid(right, wrong) == pytest.approx(roc_auc_score(event, score))


def test_parameters_of_unlike_sizes_have_figures_of_their_own():
    low, high = np.array([-1.0, 0.010, -1.2, 119.0]), np.array([1.0, 0.012, -0.4, 121.0])
    assert plots.together_on_an_axis(low, high) == [[0, 2], [1], [3]]
    wide = np.array([10.0**-place for place in range(1, 20, 3)])
    assert len(plots.together_on_an_axis(0 * wide, wide)) == plots.MOST_AXES


def test_a_mean_that_is_withheld_is_not_drawn():
    rng = np.random.default_rng(0)
    draws = {"a": rng.normal(size=(4, 900)), "tail": rng.pareto(0.4, size=(4, 900))}
    posterior = xarray.Dataset(
        {name: (("chain", "draw"), values) for name, values in draws.items()}
    )
    tree = xarray.DataTree.from_dict({"/posterior": posterior})
    tree.attrs |= {name: RECORD[name] for name in ("algorithm", "chains", "iterations_run", "end")}
    report = report_of(tree)
    assert np.isnan(report.shown_table["mean"]).tolist() == [False, True]
    means = {}
    for plot in plots.forest([report]):
        names, axes = plot.figure.axes
        (points,) = (made for made in axes.collections if isinstance(made, PathCollection))
        drawn = np.ma.filled(points.get_offsets()[:, 0], np.nan)
        means |= dict(zip([label.get_text() for label in names.texts], drawn, strict=True))
    assert abs(means["a"] - draws["a"].mean()) < 1e-6
    assert np.isnan(means["tail"])


def many_parameters() -> Any:
    tree, other = result(features=50), result(features=50, seed=1)
    return made_of(tree, other, model=logistic(50), held_out=held_out(50))


@pytest.mark.parametrize("case", ["beside", "alone", "one chain", "no rows"])
def test_a_figure_is_drawn_for_every_kind_of_result(tmp_path, case):
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    tree = result(chains=1 if case == "one chain" else 2)
    reference = result(seed=1) if case == "beside" else None
    rows = None if case == "no rows" else held_out()
    report = made_of(tree, reference, held_out=rows, labels=LABELS)
    write_figures(report, tmp_path)
    width, height = size_of(tmp_path / "posterior.png")
    assert width > 1200
    assert height > 900


def test_a_picture_begins_with_the_verdict_and_leaves_no_hole():
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    left, right = plots.overview(made_of(result(features=16), model=logistic(16), held_out=None))
    words = [text.get_text() for text in left[0].texts]
    assert any("R-hat at most" in one for one in words)
    heights = [sum(one.get_size_inches()[1] for one in column) for column in (left, right)]
    assert abs(heights[0] - heights[1]) < plots.TRACE


def test_a_figure_of_a_regression_shows_predictions(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    report = regression_report()
    assert set(report.scores.values) == {"rmse", "log_density_per_row"}
    write_figures(report, tmp_path)
    assert size_of(tmp_path / "posterior.png")[0] > 1200


def test_of_many_parameters_those_farthest_from_the_reference_are_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    report = many_parameters()
    shown, _ = plots.chosen(report)
    assert len(shown) == plots.MOST_FOREST
    hidden = np.setdiff1d(np.arange(51), shown)
    shift = np.abs(report.table["shift"])
    assert shift[shown].min() >= shift[hidden].max()
    write_figures(report, tmp_path)


def test_without_matplotlib_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"consortia\[plots\]"):
        write_figures(made_of(result()), tmp_path)
    assert not (tmp_path / "posterior.png").exists()


def test_a_long_title_of_a_panel_is_not_cut_off():
    row = Row("a", "oslo", "site", 1.0, 0.5, 2.0, 0.5, 0.5)
    long = "technique[laparoscopic, converted]; sd between sites 0.339 (0.013 to 1.47)"
    with drawing():
        figures = [forest_figure({head: [row] * 3}, "odds ratio", 0.95) for head in ("x", long)]
        for figure in figures:
            FigureCanvasAgg(figure).draw()
            [axes] = figure.axes
            assert axes.title.get_window_extent().x1 <= figure.bbox.x1
    short, tall = (figure.axes[0].get_window_extent().height for figure in figures)
    assert tall > 0.95 * short


def test_many_sites_are_drawn_in_one_height_by_their_medians():
    count = forest.MOST_LINES + 1
    sites = [Row("a", f"s{i}", "site", 1 + i, 0.5, 2.0 + i, 0.5, 0.5) for i in range(count)]
    new = Row("a", "a new site", "new site", 1.0, 0.5, 2.0, 0.5, 0.5)
    with drawing():
        figures = [forest_figure({"x": rows}, "odds ratio", 0.95) for rows in (sites, sites * 2)]
        figure = forest_figure({"x": [*sites[::-1], new]}, "odds ratio", 0.95)
    assert figures[0].get_figheight() == figures[1].get_figheight()
    assert figures[0].get_figheight() < count * forest.LINE + forest.MARGIN
    [axes] = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a new site"]
    [intervals] = axes.collections
    ends = np.array([segment[1] for segment in intervals.get_segments()])
    np.testing.assert_allclose(ends[:, 0], 2.0 + np.arange(count))
    assert (np.diff(ends[:, 1]) < 0).all()
    assert ends[-1, 1] > 1

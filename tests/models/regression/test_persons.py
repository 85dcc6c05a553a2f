"""Rows that stand for several persons: they are counted as those persons' rows would be."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
import xarray

import consortia
from consortia.diagnostics.verdict import Severity
from consortia.report.effects import interpretation
from consortia.report.examined import examined
from consortia.report.items import items
from consortia.report.methods import paragraph
from consortia.report.run_report import RunReport, report_of
from consortia.report.tables import contribution_table
from tests.refusals import refused

SITES = ("oslo", "lima")


def cells(site: int) -> dict[str, np.ndarray]:
    """Return cells of words with how many persons are in each."""
    rng = np.random.default_rng(site)
    rows = 40
    return {
        "sat": rng.choice(["low", "high"], rows),
        "kind": rng.choice(["flat", "house", "tower"], rows),
        "age": rng.normal(50, 9, rows).round(),
        "trials": rng.integers(5, 9, rows),
        "events": rng.integers(0, 5, rows),
        "time": rng.exponential(3, rows).round(1) + 0.1,
        "seen": rng.integers(0, 2, rows),
        "freq": rng.integers(0, 9, rows),
        "adult": rng.integers(0, 8, rows),
    }


def expanded(table: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a row of each person."""
    rows = np.repeat(np.arange(len(table["freq"])), table["freq"])
    return {name: values[rows] for name, values in table.items()}


@pytest.mark.parametrize(
    ("formula", "options"),
    [
        ("sat ~ kind + age", {"family": "bernoulli"}),
        ("seen ~ kind + age", {"family": "bernoulli"}),
        ("age ~ kind", {}),
        ("events ~ kind + age", {"family": "binomial", "trials": "trials"}),
        ("Surv(time, seen) ~ kind + age", {"family": "weibull"}),
    ],
)
@pytest.mark.parametrize("least", [1, 5])
def test_weighted_rows_have_the_table_1_of_the_persons(
    formula: str, options: dict[str, Any], least: int
) -> None:
    given = {name: cells(place) for place, name in enumerate(SITES)}
    options = {**options, "describe": {"cells": least}, "missing": "complete", "keep": "adult > 0"}
    for table in given.values():
        table["age"][3:7] = np.nan
    weighted = consortia.regression(formula, given, weights="freq", **options).table_one()
    persons = {name: expanded(table) for name, table in given.items()}
    single = consortia.regression(formula, persons, **options).table_one()
    assert weighted.lines == single.lines
    flow = {line.variable: line.cells for line in weighted.flow}
    of_persons = {line.variable: line.cells for line in single.flow}
    rows = [np.sum((table["adult"] > 0) & ~np.isnan(table["age"])) for table in given.values()]
    if "age" in formula:
        assert flow["rows of these persons"] == (*map(str, rows), str(sum(rows)))
    del flow["rows of these persons"]
    assert flow == of_persons
    assert [one for one in weighted.missing if one.variable != "freq"] == [*single.missing]
    assert "levels are persons (percent)" in weighted.notes[0]


def test_weights_of_a_sample_and_parts_of_persons_are_counted_as_rows() -> None:
    given = {name: cells(place) for place, name in enumerate(SITES)}
    sampled = consortia.regression(
        "age ~ kind", given, weights="time", weights_are="sampling"
    ).table_one()
    assert "rows of these persons" not in {line.variable for line in sampled.flow}
    parts = consortia.regression("age ~ kind", given, weights="time").table_one()
    assert sampled.lines == parts.lines


@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_predictive_checks_are_those_of_the_persons(family: str) -> None:
    left = "sat" if family == "bernoulli" else "events"
    given = {name: cells(place) for place, name in enumerate(SITES)}
    persons = {name: expanded(table) for name, table in given.items()}
    weighted = consortia.regression(f"{left} ~ kind", given, weights="freq", family=family)
    single = consortia.regression(f"{left} ~ kind", persons, family=family)
    rng = np.random.default_rng(0)
    draws = {
        name: np.asarray(value) + 0.1 * rng.normal(size=(2, 60, *np.shape(value)))
        for name, value in single.model.init.items()
    }
    lines = [made.predictive_check(draws, draws=100).lines for made in (weighted, single)]
    for one, other in zip(*lines, strict=True):
        assert (one.site, one.statistic) == (other.site, other.statistic)
        assert one.observed == pytest.approx(other.observed)
        # the intervals of equally many persons; of rows they would be wider by a factor of two
        width = one.upper - one.lower
        assert width == pytest.approx(other.upper - other.lower, rel=0.35)


def test_who_contributed_what_counts_persons_and_their_events() -> None:
    given = {name: cells(place) for place, name in enumerate(SITES)}
    made = consortia.regression("seen ~ kind", given, weights="freq", family="bernoulli")
    posterior = xarray.Dataset(
        {"coefficients": (("chain", "draw", "column"), np.zeros((2, 9, 2)))},
        {"column": list(made.names)},
    )
    tree = xarray.DataTree.from_dict({"/posterior": posterior})
    settings = json.dumps({"regression": dict(made.metadata.settings)})
    tree.attrs.update({"sites": '["oslo", "lima"]', "site_rows": "[40, 40]", "settings": settings})
    report = report_of(tree, sites=made.sites)
    table = contribution_table(report)
    assert table is not None
    assert table.columns[2:] == ("persons", "share of the persons", "events", "events per person")
    for row, own in zip(table.rows, given.values(), strict=False):
        assert row[2] == str(own["freq"].sum())
        assert row[4] == str((own["freq"] * own["seen"]).sum())
    total = sum(int(own["freq"].sum()) for own in given.values())
    assert f"{total} persons in 80 rows at 2 sites" in paragraph(report)


def of_draws(made: consortia.Regression) -> RunReport:
    """Return the report of draws that nobody sampled, equal for regressions of equal names."""
    rng = np.random.default_rng(3)
    variables = {
        name: (("chain", "draw", *(["column"] * np.ndim(value))), rng.normal(
            0.4, 0.1, (2, 100, *np.shape(value))))
        for name, value in made.model.init.items()
    }  # fmt: skip
    posterior = xarray.Dataset(variables, {"column": list(made.names)})
    tree = xarray.DataTree.from_dict({"/posterior": posterior})
    rows = list(made.specification.rows)
    settings = json.dumps({"regression": dict(made.metadata.settings)})
    tree.attrs.update({"sites": json.dumps(SITES), "site_rows": json.dumps(rows)})
    tree.attrs.update({"settings": settings, "seed": 1})
    return report_of(tree, model=made.model, sites=made.sites, regression=made)


def two_ways(kind: str, more: str = "") -> tuple[consortia.Regression, consortia.Regression, Any]:
    """Return a regression of such rows, that of a row a person, and the persons' tables."""
    if kind == "weights":
        given = {name: cells(number) for number, name in enumerate(SITES)}
        persons = {name: expanded(table) for name, table in given.items()}
        formula, options = f"seen ~ kind{more}", {"family": "bernoulli"}
        parts = consortia.regression(formula, given, weights="freq", **options)
    else:
        persons = {name: patients(number) for number, name in enumerate(SITES)}
        given = {name: intervals(table) for name, table in persons.items()}
        formula, options = "Surv(time, death) ~ arm", {"family": "cox"}
        left = formula.replace("time", "start, stop")
        parts = consortia.regression(left, given, persons="id", **options)
    return parts, consortia.regression(formula, persons, **options), persons


@pytest.mark.parametrize("kind", ["weights", "intervals"])
def test_the_report_is_that_of_a_row_a_person(kind: str) -> None:
    parts, single, persons = two_ways(kind)
    reports = of_draws(parts), of_draws(single)
    sentences = [interpretation(one) for one in reports]
    assert sentences[0] == sentences[1] != ""
    tables = [contribution_table(one) for one in reports]
    assert tables[0] is not None
    assert tables[1] is not None
    for row, other in zip(tables[0].rows, tables[1].rows, strict=True):
        assert row[2:] == other[1:]  # of persons where the other has rows
    states = [
        {one.key: one.state for one in items(each, examined(each), margins=False)}
        for each in reports
    ]
    assert states[0] == states[1]
    number = sum(len(one["arm" if kind == "intervals" else "kind"]) for one in persons.values())
    assert f"{number} persons in " in paragraph(reports[0])
    assert f" to {number} rows at 2 sites" in paragraph(reports[1])


@pytest.mark.parametrize("kind", ["weights", "intervals"])
def test_runs_of_such_rows_and_of_a_row_a_person_have_one_posterior(kind: str) -> None:
    trees = []
    for seed, made in enumerate(two_ways(kind, " + age")[:2]):
        more = {"seed": seed, "metadata": made.metadata, "progress": False}
        trees.append(consortia.sample(made.model, made.sites, consortia.few_rounds(), **more))
    verdicts = [consortia.summary(tree).verdict for tree in trees]
    assert [verdict.severity for verdict in verdicts] == [Severity.GOOD] * 2
    for name, draws in trees[0].posterior.data_vars.items():
        others = trees[1].posterior[name]
        sd = draws.std(("chain", "draw"))
        # of 1,000 effective draws each: means within four, sds within six Monte Carlo errors
        assert (
            abs(draws.mean(("chain", "draw")) - others.mean(("chain", "draw"))) < 0.18 * sd
        ).all()
        assert (abs(others.std(("chain", "draw")) / sd - 1) < 0.19).all()


@pytest.mark.parametrize(
    ("formula", "options"),
    [
        ("sat ~ kind + age", {"family": "bernoulli"}),
        ("events ~ kind + age", {"family": "binomial", "trials": "trials"}),
        ("events ~ kind + age", {"family": "poisson"}),
    ],
)
def test_marginal_effects_are_averages_over_the_persons(
    formula: str, options: dict[str, Any]
) -> None:
    given = {name: cells(place) for place, name in enumerate(SITES)}
    persons = {name: expanded(table) for name, table in given.items()}
    weighted = consortia.regression(formula, given, weights="freq", **options)
    single = consortia.regression(formula, persons, **options)
    effects = []
    for made in (weighted, single):
        # in the units of the columns, which are sampled in sds of the rows
        slopes = np.array([0.3, -0.4, 0.02]) * np.array(made.specification.scales)
        slopes = slopes.astype(np.float32)
        at_zero = made.density.natural({"coefficients": slopes, "intercept": np.float32(0)})
        # one intercept at zero of the columns, which have other means over persons than over rows
        draws = {
            "coefficients": np.broadcast_to(slopes, (1, 2, 3)).copy(),
            "intercept": np.full((1, 2), -0.8 - float(at_zero["intercept"])),
        }
        effects.append(made.marginal_effects(draws).over_all.lines)
    for one, other in zip(*effects, strict=True):
        assert str(one.key) == str(other.key)
        assert one.mean == pytest.approx(other.mean, rel=1e-3)


def patients(site: int) -> dict[str, np.ndarray]:
    """Return a row of each patient: numbers, words, a value that misses, a time and its end."""
    rng = np.random.default_rng(site)
    rows = 60
    table = {
        "id": np.array([f"p{site}-{number:02}" for number in rng.permutation(rows)]),
        "arm": rng.choice(["a", "b"], rows),
        "age": rng.normal(60, 9, rows).round(1),
        "adult": rng.integers(0, 6, rows),
        "time": np.ceil(rng.exponential(9, rows)),
        "death": rng.integers(0, 2, rows),
    }
    table["age"][rng.choice(rows, 7, replace=False)] = np.nan
    return table


def intervals(table: dict[str, np.ndarray], *, ages: bool = False) -> dict[str, np.ndarray]:
    """Return up to four intervals of each patient, in no order; age may grow in between."""
    lines = []
    for place, time in enumerate(table["time"]):
        cuts = sorted({0.0, *(one for one in (1.0, 4.0, 10.0) if one < time), float(time)})
        for start, stop in itertools.pairwise(cuts):
            lines.append((place, start, stop, table["death"][place] * (stop == time)))
    order = np.random.default_rng(1).permutation(len(lines))
    place, start, stop, death = (np.array(one)[order] for one in zip(*lines, strict=True))
    found = {name: table[name][place] for name in ("id", "arm", "age", "adult")}
    found["age"] = found["age"] + start * ages
    return found | {"start": start, "stop": stop, "death": death}


@pytest.mark.parametrize("family", ["cox", "weibull"])
@pytest.mark.parametrize("cells_of", [1, 5])
def test_intervals_have_the_flow_events_and_follow_up_of_their_patients(
    family: str, cells_of: int
) -> None:
    every = {name: patients(place) for place, name in enumerate(SITES)}
    describe = {"cells": cells_of, "times": [2.0, 5.0, 9.0], "by": "arm"}
    options: dict[str, Any] = {"family": family, "missing": "complete", "keep": "adult > 0"}
    options["describe"] = describe
    single = consortia.regression("Surv(time, death) ~ arm + age", every, **options)
    parts = {name: intervals(table, ages=True) for name, table in every.items()}
    cut = consortia.regression("Surv(start, stop, death) ~ arm + age", parts, persons="id",
                               **options)  # fmt: skip
    first, second = single.table_one(), cut.table_one()
    assert second.unit == "persons"
    assert second.notes[1].startswith("id identifies the person of each interval: covariates are")
    assert second.flow[-1].cells[2] == str(sum(cut.specification.rows))
    assert second.flow[:-1] == first.flow

    def ages(lines: Any) -> list[Any]:
        return [line.cells for line in lines if line.variable == "age"]

    # age is that of the first interval; what misses in one of a patient's rows misses in all
    assert ages(second.missing) == ages(first.missing)
    assert [line.cells for line in second.lines] == [line.cells for line in first.lines]
    assert str(cut.survival_curves()) == str(single.survival_curves())


def test_table_1_has_no_level_that_only_later_intervals_or_rows_of_nobody_have() -> None:
    def variables(made: consortia.Regression) -> list[tuple[str, str]]:
        lines = made.table_one().lines
        return [(line.variable, line.level) for line in lines if line.variable in ("nth", "kind")]

    every = {name: intervals(patients(place)) for place, name in enumerate(SITES)}
    for table in every.values():
        table["nth"] = 1 + np.searchsorted([0.5, 3.0, 8.0], table["start"])  # of the interval
    formula = "Surv(start, stop, death) ~ nth"
    made = consortia.regression(formula, every, family="cox", persons="id")
    assert variables(made) == [("nth", "1")]
    given = {name: cells(place) for place, name in enumerate(SITES)}
    for table in given.values():
        table["freq"] = np.where(table["kind"] == "tower", 0, table["freq"])
    made = consortia.regression("seen ~ kind", given, weights="freq", family="bernoulli")
    assert variables(made) == [("kind", "flat"), ("kind", "house")]


def test_intervals_without_a_column_of_persons_have_no_curves() -> None:
    every = {name: intervals(patients(place)) for place, name in enumerate(SITES)}
    with refused(argument="describe.times"):
        consortia.regression("Surv(start, stop, death) ~ arm", every, family="cox",
                             describe={"times": [2.0]})  # fmt: skip
    with refused(argument="persons"):
        consortia.regression("Surv(stop, death) ~ arm", every, family="cox", persons="id")


def test_events_that_recur_are_counted_of_each_person() -> None:
    every = {name: intervals(patients(place)) for place, name in enumerate(SITES)}
    for table in every.values():
        table["death"] = (table["stop"] > 1).astype(int)
    made = consortia.regression("Surv(start, stop, death) ~ arm", every, family="cox", persons="id")
    lines = {(one.variable, one.level): one.cells[-1] for one in made.table_one().lines}
    counts = [
        np.bincount(np.unique(one["id"], return_inverse=True)[1], one["death"])
        for one in every.values()
    ]
    events = np.concatenate(counts).astype(int)
    for number, persons in enumerate(np.bincount(events)):
        assert lines["events of a person", str(number)].split()[0] == str(persons)
    assert lines["outcome", "event"].split()[0] == str(np.sum(events > 0))
    table = contribution_table(of_draws(made))
    assert table is not None
    assert table.columns[-1] == "events per person"
    assert [row[-1] for row in table.rows] == [f"{one.mean():.2f}" for one in (*counts, events)]


def test_an_interval_without_a_person_is_refused_and_gaps_have_no_curves() -> None:
    every = {name: intervals(patients(place)) for place, name in enumerate(SITES)}
    every["lima"]["id"][3] = ""
    with refused(argument="persons", match="'lima'.*'id'.*1"):
        consortia.regression("Surv(start, stop, death) ~ arm", every, family="cox", persons="id")
    every["lima"] = intervals(patients(1))
    every["lima"]["start"][every["lima"]["start"] == 4] = 4.5
    with refused(site="lima", match="followed from time 0 without"):
        consortia.regression("Surv(start, stop, death) ~ arm", every, family="cox", persons="id",
                             describe={"times": [2.0, 9.0]})  # fmt: skip


def test_marginal_effects_are_over_persons_not_over_their_intervals() -> None:
    every = {name: patients(place) for place, name in enumerate(SITES)}
    for table in every.values():
        table["age"] = np.nan_to_num(table["age"], nan=60.0)
    single = consortia.regression("Surv(time, death) ~ arm + age", every, family="weibull")
    parts = {name: intervals(table) for name, table in every.items()}
    cut = consortia.regression("Surv(start, stop, death) ~ arm + age", parts, family="weibull",
                               persons="id")  # fmt: skip
    effects = []
    for made in (single, cut):
        spec = made.specification
        slopes = (np.array([0.4, 0.05]) * np.array(spec.scales)).astype(np.float32)
        start = made.model.init | {"coefficients": slopes, "intercept": np.float32(0)}
        at_zero = made.density.natural(start)
        draws = {name: np.broadcast_to(value, (1, 2, *np.shape(value))).copy()
                 for name, value in made.model.init.items()}  # fmt: skip
        draws["coefficients"] = np.broadcast_to(slopes, (1, 2, 2)).copy()
        draws["intercept"] = np.full((1, 2), 2.0 - float(at_zero["intercept"]))
        effects.append(made.marginal_effects(draws, at=[5.0]).over_all.lines)
    for one, other in zip(*effects, strict=True):
        assert one.key == other.key
        assert one.mean == pytest.approx(other.mean, rel=1e-3)

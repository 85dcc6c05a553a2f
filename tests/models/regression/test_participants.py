"""Table 1, flow of rows, and curves over sites, beside the pooled rows; nothing small leaves."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from consortia import regression
from consortia.data.description import SiteDescription
from consortia.study.build import load_study
from tests.refusals import refused

TIMES = (2.0, 4.0, 6.0, 8.0, 10.0)
CAUSES = {1: "relapse", 2: "death"}


def followed(rows, seed, whole=False):
    """Return a made-up table of follow-up with two causes."""
    rng = np.random.default_rng(seed)
    time, end = rng.exponential(10, rows), rng.uniform(0, 20, rows)
    seen = (time <= end).astype(int)
    table = {"time": np.minimum(time, end), "status": seen * rng.integers(1, 3, rows)}
    if whole:
        table["time"] = np.ceil(table["time"] / 2) * 2
    table |= {"seen": seen, "age": rng.normal(60, 10, rows)}
    return table | {"arm": rng.choice(["a", "b"], rows)}


def pooled(tables, name):
    return np.concatenate([table[name] for table in tables.values()])


def kaplan_meier(time, event, at):
    """Return the product over event times, one by one."""
    found = []
    for until in at:
        product = 1.0
        for t in np.unique(time[(event > 0) & (time <= until)]):
            product *= 1 - np.sum((time == t) & (event > 0)) / np.sum(time >= t)
        found.append(product)
    return np.array(found)


def incidence(time, kind, cause, at):
    """Return the Aalen-Johansen estimate, event time by event time."""
    found = []
    for until in at:
        total, survival = 0.0, 1.0
        for t in np.unique(time[(kind > 0) & (time <= until)]):
            at_risk = np.sum(time >= t)
            total += survival * np.sum((time == t) & (kind == cause)) / at_risk
            survival *= 1 - np.sum((time == t) & (kind > 0)) / at_risk
        found.append(total)
    return np.array(found)


def of_times(tables, **more):
    asked = {"times": list(TIMES), "event": "status", "causes": CAUSES} | more
    return regression("Surv(time, seen) ~ age + arm", tables, family="cox", describe=asked)


def test_curves_are_those_of_the_pooled_rows_where_the_times_are_the_agreed_ones():
    tables = {name: followed(600, n, whole=True) for n, name in enumerate(("oslo", "lima", "bonn"))}
    found = of_times(tables).survival_curves()
    (curve,) = found.strata.values()
    time, status = pooled(tables, "time"), pooled(tables, "status")
    assert curve.times.tolist() == list(TIMES)
    np.testing.assert_allclose(curve.survival, kaplan_meier(time, status, TIMES), rtol=1e-12)
    for place, cause in enumerate(CAUSES):
        wanted = incidence(time, status, cause, TIMES)
        np.testing.assert_allclose(curve.incidence[:, place], wanted, rtol=1e-12)
    assert np.all(curve.lower < curve.survival)
    assert np.all(curve.survival < curve.upper)


def test_bounds_hold_the_estimate_from_the_times_themselves():
    tables = {name: followed(400, n) for n, name in enumerate(("oslo", "lima"))}
    (curve,) = of_times(tables).survival_curves().strata.values()
    wanted = kaplan_meier(pooled(tables, "time"), pooled(tables, "status"), curve.times)
    low, high = curve.bounds.T
    assert np.all(low <= wanted)
    assert np.all(wanted <= high)
    assert np.max(high - low) < 0.1


def test_few_ends_of_follow_up_are_put_off_and_widen_the_bounds():
    tables = {name: followed(500, n) for n, name in enumerate(("oslo", "lima"))}
    for one in tables.values():  # two ends of follow-up before the first time, in each
        early = np.flatnonzero((one["time"] <= 2) & (one["seen"] == 0))[2:]
        one["time"][early] += 2
    told = of_times(tables)
    site = told.descriptions["oslo"].followup
    assert 1 not in site.ended
    assert site.counts["all"][0][0] == 0
    (curve,) = told.survival_curves().strata.values()
    assert curve.times[0] == 2.0
    wanted = kaplan_meier(pooled(tables, "time"), pooled(tables, "status"), curve.times)
    assert np.all(curve.bounds[:, 0] <= wanted)
    assert np.all(wanted <= curve.bounds[:, 1])


def test_each_level_has_a_curve_of_its_own():
    tables = {name: followed(900, n, whole=True) for n, name in enumerate(("oslo", "lima"))}
    found = of_times(tables, by="arm").survival_curves()
    assert sorted(found.strata) == ["a", "b"]
    of_a = pooled(tables, "arm") == "a"
    time, status = pooled(tables, "time")[of_a], pooled(tables, "status")[of_a]
    one = found.strata["a"]
    np.testing.assert_allclose(one.survival, kaplan_meier(time, status, one.times), rtol=1e-12)
    assert "incidence of relapse" in str(found)
    assert len(found.to_dataframe()) == sum(len(curve.times) for curve in found.strata.values())


def test_a_site_with_few_events_is_not_in_the_curves_and_that_is_said():
    few = followed(40, 9)
    few["status"] = np.array([1, 2, 2] + [0] * 37)
    few["seen"] = (few["status"] > 0).astype(int)
    found = of_times({"oslo": followed(300, 1), "lima": few}).survival_curves()
    assert found.without == ("lima",)
    assert "without lima" in str(found)


def test_codes_that_are_not_declared_are_refused():
    table = followed(300, 1)
    table["status"][3] = 7
    with refused(site="oslo", match=r"among the codes 1, 2"):
        of_times({"oslo": table, "lima": followed(300, 2)})


def test_times_of_a_family_without_follow_up_are_refused():
    table = followed(60, 1)
    with refused(argument="describe.times"):
        regression("age ~ arm", [table, table], describe={"times": [1.0]})


# --- Table 1 --------------------------------------------------------------------------------------


def small():
    """Return a table with cells of one and two, missing values among them."""
    rng = np.random.default_rng(3)
    sex = np.array(["f"] * 30 + ["m"] * 26 + ["x"] * 2 + ["y"])
    ward = np.array(["A"] * 29 + ["B"] * 28 + ["C", "C"])
    age, weight = rng.normal(60, 10, 59), rng.normal(80, 9, 59)
    age[[1, 2]], weight[[1, 5, 7]] = np.nan, np.nan
    sick = np.array([1] + [0] * 58)
    return {"sick": sick, "sex": sex, "ward": ward, "age": age, "weight": weight}


def numbers_in(value):
    """Return all counts in plain values."""
    if isinstance(value, dict):
        return [one for part in value.values() for one in numbers_in(part)]
    if isinstance(value, (list, tuple)):
        return [one for part in value for one in numbers_in(part)]
    return [value] if isinstance(value, int) else []


def made_of_small(missing="complete", cells=5):
    formula, table = "sick ~ sex + ward + age + weight", small()
    levels = {"sex": ["f", "m", "x", "y"], "ward": ["A", "B", "C"], "sick": ["0", "1"]}
    tables = {"oslo": table, "lima": table}
    asked = {"missing": missing, "levels": levels, "describe": {"cells": cells}}
    return regression(formula, tables, family="bernoulli", **asked)


@pytest.mark.parametrize("missing", ["complete", "indicator"])
def test_no_cell_of_one_and_two_is_told(missing):
    one = made_of_small(missing).descriptions["oslo"]
    plain = json.loads(json.dumps(asdict(one)))
    ranges = [plain.pop("missing"), plain.pop("given")]
    assert ranges[0]["age"] == ranges[0]["weight"] == [1, 4]
    assert ranges[1] == [59, 59] if missing == "indicator" else ranges[1] != [59, 59]
    assert all(number == 0 or number >= 5 for number in numbers_in(plain))
    rows = sum(one.levels["ward"].counts.values()) + one.levels["ward"].rest
    assert one.levels["ward"].rest > 5  # the small level with a large one: no difference tells it
    assert one.levels["sick"].counts == {}
    assert rows >= 50
    assert one.levels["sex"].rest == rows - sum(one.levels["sex"].counts.values())


def test_without_a_minimum_everything_is_told():
    one = made_of_small(cells=1).descriptions["oslo"]
    assert one.missing["age"] == (2, 2)
    assert one.given == (59, 59)
    assert one.levels["sick"].rest == 0


@pytest.mark.parametrize("few", [1, 2, 4])
def test_of_rows_that_are_here_nothing_is_withheld_and_no_count_is_a_range(few):
    tables = {
        name: {"sick": np.arange(60) % 2, "age": np.linspace(40, 80, 60), "sex": ["f", "m"] * 30}
        for name in ("oslo", "lima")
    }
    tables["lima"]["age"][:few] = np.nan
    tables["lima"]["sex"] = [*["x"] * few, *tables["lima"]["sex"][few:]]
    options = {"family": "bernoulli", "keep": "sick >= 0", "missing": "indicator"}
    cells = of_all("sick ~ age + sex", tables, describe=None, **options)
    assert cells["sex", "x"][:2] == ("0 (0.0 %)", f"{few} ({few / 0.6:.1f} %)")
    made = regression("sick ~ age + sex", tables, **(options | {"missing": "complete"}))
    table = made.table_one()
    flow = {line.variable: line.cells for line in table.flow}
    assert flow["left out, a value missing"] == ("0", str(few), str(few))
    assert flow["analysed"] == ("60", str(60 - few), str(120 - few))
    text = str(table)
    assert not re.search(r"\d–\d|n/a|withheld|or more", text), text


def test_table_one_of_the_example_withholds_nothing():
    study = Path(__file__).parents[3] / "examples" / "pneumonia" / "study.toml"
    text = str(load_study(study).build().regression.table_one())
    assert "analysed" in text
    assert not re.search(r"\d–\d|withheld|or more|other levels", text), text


def test_the_minimum_of_the_site_counts_where_it_is_larger():
    from consortia.data.tables import read_table
    from consortia.models.regression.construction import contribution, question_of

    asked = question_of("age ~ sex", "gaussian", missing="complete", describe={"cells": 3})
    facts = contribution(asked, read_table(small(), "oslo"), "oslo", 1, 10)
    assert facts.described is not None
    assert facts.described.cells == 10
    assert type(facts).read(facts.plain()) == facts
    assert facts.numbers > 10


def test_table_one_is_that_of_the_pooled_rows():
    tables = {name: followed(200, n) for n, name in enumerate(("oslo", "lima"))}
    tables["lima"]["age"][:17] = np.nan
    asked = {"family": "bernoulli", "missing": "complete"}
    made = regression("seen ~ age + arm", tables, **asked, describe={"cells": 3})
    found = made.table_one().to_dataframe().set_index(["part", "variable", "level"])["all sites"]
    known = ~np.isnan(pooled(tables, "age"))
    in_a = int(np.sum((pooled(tables, "arm") == "a") & known))
    assert found["analysed", "arm", "a"] == f"{in_a} ({100 * in_a / 383:.1f} %)"
    mean = float(np.mean(pooled(tables, "age")[known]))
    assert float(found["analysed", "age", ""].split()[0]) == pytest.approx(mean, abs=0.1)
    low, high = map(int, found["rows", "left out, a value missing", ""].split("–"))
    assert low <= 17 <= high
    assert "1 to 2 rows" in str(made.table_one())


def of_all(formula, tables, **options):
    """Return the lines of Table 1 by variable and level: the cells of all sites last."""
    options = {"describe": {"cells": 1}, **options}
    made = regression(formula, tables, **options)
    return {(one.variable, one.level): one.cells for one in made.table_one().lines}


def ages(places, rows=60):
    """Return tables of whole years that hardly overlap between sites, few of them at some."""
    rng = np.random.default_rng(5)
    spans = {"few": (20, 24), "many": (40, 70), "other": (71, 79)}
    return {
        name: {"y": rng.normal(size=rows), "age": rng.integers(*spans[name], rows)}
        for name in places
    }


@pytest.mark.parametrize("cells", [1, 3])
def test_a_number_of_few_values_at_some_sites_has_means_at_all(cells):
    tables = ages(["few", "many"])
    lines = of_all("y ~ age", tables, describe={"cells": cells})
    assert [one for one in lines if one[0] == "age"] == [("age", "")]
    wanted = [tables["few"]["age"], tables["many"]["age"], pooled(tables, "age")]
    for text, values in zip(lines["age", ""], wanted, strict=True):
        mean, sd = text.rstrip(")").split(" (")
        assert float(mean) == pytest.approx(np.mean(values), rel=0.003)
        assert float(sd) == pytest.approx(np.std(values, ddof=1), rel=0.005)


def test_a_number_of_many_values_over_all_sites_is_no_list_of_levels():
    tables = ages(["few", "other"])
    assert len(np.unique(pooled(tables, "age"))) == 12
    assert ("age", "20") in of_all("y ~ age", tables)
    tables["few"]["age"] = tables["few"]["age"] - np.arange(60) % 3 * 10
    assert ("age", "") in of_all("y ~ age", tables)
    factors = of_all("y ~ C(age)", tables)
    assert ("age", "") not in factors
    assert sum(name == "age" for name, _ in factors) == len(np.unique(pooled(tables, "age")))


def test_a_mean_that_a_site_keeps_is_left_out_of_all_and_said():
    tables = ages(["few", "many"])
    tables["few"]["age"][:1] = 30  # a cell of one is merged, so that no mean follows
    cells = of_all("y ~ age", tables, describe={"cells": 3})["age", ""]
    assert cells[0] == "n/a"
    assert cells[-1].endswith(", at 1 of 2 sites")


def test_the_outcome_comes_first_and_columns_in_the_order_of_the_formula():
    tables = {name: followed(200, n) for n, name in enumerate(("oslo", "lima"))}
    for table in tables.values():
        table["large"] = 1e4 * table["age"]
    lines = of_all("Surv(time, seen) ~ large + arm + age", tables, family="cox")
    names = list(dict.fromkeys(name for name, _ in lines))
    assert names == ["outcome", "follow-up (time)", "large", "arm", "age"]
    assert [level for name, level in lines if name == "outcome"] == ["end of follow-up", "event"]
    mean = np.mean(pooled(tables, "large"))
    assert lines["large", ""][-1].startswith(f"{mean:,.0f} (")


def test_a_description_that_is_none_is_refused():
    plain = json.loads(json.dumps(asdict(made_of_small().descriptions["oslo"])))
    assert SiteDescription.read(plain) == made_of_small().descriptions["oslo"]
    for name, value in (("given", [3]), ("levels", {"a": [{"b": -1}, 0]}), ("numbers", {"a": 1})):
        with pytest.raises(ValueError, match=r"given|cell|numbers"):
            SiteDescription.read(plain | {name: value})

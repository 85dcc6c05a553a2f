"""What the sites agree on: the columns are those of one table of all rows."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import formulaic
import insides
import numpy as np
import pandas as pd
import pytest

from consortia.data.columns import TableFacts
from consortia.data.facts import SiteFacts
from consortia.data.tables import read_table
from consortia.models.regression import smooth
from consortia.models.regression.agreement import agree
from consortia.models.regression.construction import contribution, question_of, regression
from tests.refusals import refused

ROWS, CUTS = 120, (50, 90, 119)


def table_of_all() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(
        {
            "age": rng.normal(60, 10, ROWS),
            "my crp": rng.lognormal(size=ROWS),
            "arm": rng.choice(["new", "old"], ROWS),
            "grade": rng.integers(1, 4, ROWS),
            "smoker": rng.random(ROWS) < 0.3,
            "died": rng.integers(0, 2, ROWS),
            "admitted": pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(ROWS), unit="D"),
        }
    )
    frame.loc[CUTS[0] : CUTS[1] - 1, "grade"] = 1 + frame.loc[CUTS[0] : CUTS[1] - 1, "grade"] % 2
    return frame


ALL = table_of_all()
SITES = dict(
    zip(
        ("oslo", "lima", "rome", "bern"),
        (ALL[a:b] for a, b in zip((0, *CUTS), (*CUTS, ROWS), strict=True)),
        strict=True,
    )
)
"""Four unlike sites: the second one lacks a grade, the last one has one row."""


def designs(made: Any, sites: Any = SITES) -> np.ndarray:
    asked = made.specification.question
    kept = [(asked.kept(read_table(part, name), name), name) for name, part in sites.items()]
    return np.concatenate(
        [insides.design_matrix(made.specification, table, name) for table, name in kept]
    )


FORMULAS = [
    "age",
    "0 + age + arm",
    "age * arm + C(grade)",
    "(age + arm + smoker)^2 - age:arm",
    "log(`my crp`) * center(age) + scale(age):arm",
    "I(age ** 2) + I(age / 10 > 6) + arm:smoker:C(grade)",
    "1",
]


@pytest.mark.parametrize("right", FORMULAS)
def test_the_columns_are_those_of_all_rows_in_one_table(right: str) -> None:
    made = regression(f"died ~ {right}", SITES, family="bernoulli")
    # a truth value is a factor here, as in R; formulaic takes it for a number
    wanted = formulaic.model_matrix(right.replace("^", "**"), ALL.astype({"smoker": str}))
    np.testing.assert_allclose(designs(made), wanted.to_numpy(float), rtol=1e-6, atol=1e-9)
    names = [name.replace("[T.", "[") for name in wanted.columns if name != "Intercept"]
    assert list(made.names) == names
    pooled = regression(f"died ~ {right}", {"all": ALL}, family="bernoulli")
    one, other = made.sites.pooled(), pooled.sites.pooled()
    np.testing.assert_allclose(one["x"], other["x"], rtol=1e-9, atol=1e-9)


def test_the_reference_is_the_level_that_the_formula_names() -> None:
    made = regression("died ~ C(grade, 2)", SITES, family="bernoulli")
    assert made.names == ("C(grade, 2)[1]", "C(grade, 2)[3]")
    np.testing.assert_array_equal(designs(made)[:, 2], ALL["grade"] == 3)


def test_scale_at_a_site_is_not_the_pooled_one_and_is_not_used() -> None:
    made = regression("died ~ scale(age)", SITES, family="bernoulli")
    own = formulaic.model_matrix("scale(age)", SITES["lima"]).to_numpy(float)
    assert np.abs(designs(made)[CUTS[0] : CUTS[1]] - own).max() > 0.01
    # the site with one row: a scale of its own would not even exist
    wanted = (ALL["age"].to_numpy()[-1] - ALL["age"].mean()) / ALL["age"].std(ddof=1)
    np.testing.assert_allclose(designs(made)[-1, 1], wanted)


def test_a_basis_of_centred_numbers_turns_back_to_the_columns() -> None:
    made = regression("died ~ age * arm + age:smoker + I(age**2)", SITES, family="bernoulli")
    spec = made.specification
    x = made.sites.pooled()["x"]
    basis, design = spec.basis, designs(made)
    np.testing.assert_allclose((design @ basis)[:, 1:], x, atol=1e-9)
    place = made.names.index("age:arm[old]")
    # With age centred in the product it hardly moves with the arm; as it was, they are nearly one.
    assert abs(np.corrcoef(x[:, place], x[:, made.names.index("arm[old]")])[0, 1]) < 0.3
    raw = design[:, 1:]
    assert np.corrcoef(raw[:, place], raw[:, made.names.index("arm[old]")])[0, 1] > 0.95
    eta = x @ np.arange(1.0, 6.0) + 0.7
    natural = made.density.natural(
        {"coefficients": np.arange(1.0, 6.0, dtype=np.float32), "intercept": np.float32(0.7)}
    )
    turned = raw @ np.asarray(natural["coefficients"]) + np.asarray(natural["intercept"])
    np.testing.assert_allclose(turned, eta, rtol=2e-4, atol=2e-3)  # squares of 60 in float32


def test_a_level_that_a_site_lacks_or_has_alone_is_said() -> None:
    sites = {name: part.assign(ward="A") for name, part in SITES.items()}
    sites["rome"] = sites["rome"].assign(ward=["A", *["B"] * 28])
    made = regression("died ~ C(grade) + ward", sites, family="bernoulli")
    (grades,) = (one for one in made.notes if one.startswith("grade"))
    assert "grade = '3' is not at 'lima', 'bern'" in grades
    assert "ward = 'B' is at site 'rome' only" in made.notes


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"rome": "ABB"}, "ward = 'B' is at site 'rome' only"),
        ({"rome": "ABC"}, "ward = 'B' is at site 'rome' only; ward = 'C' is at site 'rome' only"),
        ({"rome": "AB", "oslo": "AB"}, "ward = 'B' is not at 'lima', 'bern'"),
        ({"rome": "ABCDEFGHIJ"}, "9 of the 10 levels of ward are not at all sites: ward = 'B' is"),
    ],
)
@pytest.mark.parametrize("coded", [False, True])
def test_levels_that_not_all_sites_have_are_one_line(
    words: dict[str, str], line: str, coded: bool
) -> None:
    sites = {}
    for name, part in SITES.items():
        cycle = np.resize([*words.get(name, "A")], len(part))
        sites[name] = part.assign(ward=cycle)
    ward = "C(ward)" if coded else "ward"
    made = regression(f"died ~ age + {ward}", sites, family="bernoulli")
    every = (*made.notes, *map(str, made.readings))
    told = [one for one in every if "ward = " in one]
    assert len(told) == 1
    assert told[0].startswith(line)


def test_dates_are_days_and_truth_values_are_levels() -> None:
    made = regression("died ~ I(admitted - 19723) + smoker", SITES, family="bernoulli")
    assert made.names == ("I(admitted - 19723)", "smoker[True]")
    np.testing.assert_array_equal(designs(made)[:, 1], np.arange(ROWS))


def test_the_name_of_the_site_is_a_factor() -> None:
    made = regression("died ~ site", SITES, family="bernoulli")
    assert made.names == ("site[lima]", "site[rome]", "site[bern]")
    assert designs(made)[:, 1].sum() == CUTS[1] - CUTS[0]


# --- missing values ------------------------------------------------------------------------------


def with_gaps() -> dict[str, pd.DataFrame]:
    sites = {name: part.copy() for name, part in SITES.items()}
    sites["oslo"].loc[:4, "age"] = np.nan
    sites["oslo"].loc[5, "arm"] = None
    sites["lima"].loc[50, "died"] = np.nan
    return sites


def test_missing_values_are_refused_by_default() -> None:
    with refused(argument="age", site="oslo", match="'age' 5, 'arm' 1 of"):
        regression("died ~ age + arm", with_gaps(), family="bernoulli")


def test_complete_rows_are_taken_with_the_counts_told() -> None:
    made = regression("died ~ age + arm", with_gaps(), family="bernoulli", missing="complete")
    assert made.sites.sizes.tolist() == [44, 39, 29, 1]
    assert made.notes[0].startswith(
        "left out: 7 rows with missing values (oslo 6 of 50, lima 1 of 40)"
    )


def test_an_indicator_marks_what_misses_and_the_mean_of_all_stands_for_it() -> None:
    sites = with_gaps()
    made = regression("died ~ age + arm", sites, family="bernoulli", missing="indicator")
    assert made.names == ("age", "arm[old]", "arm[missing]", "missing(age)")
    design = designs(made, sites)
    known = np.concatenate([ALL["age"].to_numpy()[5:50], ALL["age"].to_numpy()[51:]])
    np.testing.assert_allclose(design[:5, 1], known.mean())
    assert design[:, 4].sum() == 5
    assert design[:, 3].sum() == 1


def test_a_column_that_misses_at_one_site_altogether_is_filled_or_refused() -> None:
    sites = {**SITES, "bern": SITES["bern"].assign(age=np.nan)}
    with refused(argument="age", site="bern", match="in 1 of 1 row:"):
        regression("died ~ age", sites, family="bernoulli", missing="complete")
    made = regression("died ~ log(age)", sites, family="bernoulli", missing="indicator")
    np.testing.assert_allclose(
        designs(made, sites)[-1], [1, np.log(ALL["age"][:-1].mean()), 1], rtol=1e-12
    )


# --- facts ---------------------------------------------------------------------------------------


def facts_of(formula: str, least: int = 1, **more: Any) -> tuple[Any, list[SiteFacts]]:
    question = question_of(formula, "bernoulli", **more)
    made = [
        contribution(question, read_table(part, name), name, least) for name, part in SITES.items()
    ]
    return question, made


def test_facts_survive_the_network_bit_by_bit() -> None:
    question, made = facts_of("died ~ age * C(grade) + s(age) + log(`my crp`)")
    back = [SiteFacts.read(json.loads(json.dumps(one.plain()))) for one in made]
    assert [one.plain() for one in back] == [one.plain() for one in made]
    specs = [agree(question, each, list(SITES)) for each in (made, back)]
    assert specs[0].digest == specs[1].digest
    np.testing.assert_array_equal(specs[0].basis, specs[1].basis)


def test_rare_levels_are_not_told() -> None:
    _, made = facts_of("died ~ C(grade)", least=15)
    counts = SITES["oslo"]["grade"].value_counts()
    assert made[0].table is not None
    assert set(made[0].table.levels["C(grade)"]) == {str(v) for v in counts[counts >= 15].index}
    assert made[3].table is not None
    assert made[3].table.levels["C(grade)"] == ()


def test_levels_that_are_given_are_not_told_at_all() -> None:
    _, made = facts_of("died ~ C(grade)", levels={"grade": [1, 2, 3]})
    assert all(one.table is not None and one.table.levels == {} for one in made)


def test_a_level_that_nobody_told_of_is_refused_at_the_site() -> None:
    with refused(argument="C(grade)", match="'oslo': .* in 15 of 50 rows"):
        regression("died ~ C(grade)", SITES, family="bernoulli", levels={"grade": [1, 2]})


def test_the_agreement_is_in_the_digests_of_the_sites() -> None:
    def digests(**more: Any) -> tuple[str, ...]:
        sites = {**SITES, "bern": SITES["bern"].assign(**more)}
        return regression("died ~ age", sites, family="bernoulli").sites.digests

    one, other = digests(), digests(age=99.0)
    assert all(a != b for a, b in zip(one, other, strict=True))
    assert one == digests()


WRONG = [
    ("given", 0),
    ("kinds", {"age": "colour"}),
    ("missing", {"age": 999}),
    ("moments", {"age": [200, 0.0, 1.0, False, 0.0]}),
    ("moments", {"age": [2, float("nan"), 1.0, False, 0.0]}),
    ("levels", {"arm": ["a", "a"]}),
    ("levels", {"arm": "ab"}),
    ("levels", {"arm": ["\x1b[31m"]}),
    ("levels", {"x" * 2000: ["a"]}),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_facts_that_are_none_are_refused(name: str, value: Any) -> None:
    _, made = facts_of("died ~ age + arm")
    assert made[0].table is not None
    plain = json.loads(json.dumps(dataclasses.asdict(made[0].table)))
    assert TableFacts.read(plain) == TableFacts.read(dict(plain))
    with pytest.raises(ValueError, match="."):
        TableFacts.read({**plain, name: value})


# --- smooths -------------------------------------------------------------------------------------


def test_a_smooth_has_no_straight_line_in_it_and_the_penalty_of_a_natural_spline() -> None:
    at = np.linspace(-3, 3, 8)
    columns = smooth.curved(at, 8)
    # at the knots it is orthogonal to lines
    np.testing.assert_allclose(columns.T @ np.column_stack([np.ones(8), at]), 0, atol=1e-12)
    # ∫ f''² is the same multiple of u'u in every direction u
    fine = np.linspace(-3, 3, 20001)
    second = np.gradient(np.gradient(smooth.curved(fine, 8), fine, axis=0), fine, axis=0)
    energy = np.trapezoid(second[2:-2, :, None] * second[2:-2, None, :], fine[2:-2], axis=0)
    scale = np.trace(energy) / 6
    # second differences over steps of 3e-4: an error of the order of 1e-3 of the largest
    np.testing.assert_allclose(energy, scale * np.eye(6), atol=5e-3 * scale)


def test_beyond_its_knots_a_smooth_is_straight() -> None:
    values = smooth.curved(np.array([3.0, 4.0, 5.0, 9.0]), 6)
    np.testing.assert_allclose(values[2] - values[1], values[1] - values[0], atol=1e-12)
    np.testing.assert_allclose(values[3] - values[2], 4 * (values[1] - values[0]), atol=1e-12)


# --- what is wrong -------------------------------------------------------------------------------

BAD: list[tuple[str, dict[str, Any], str, str | None, str]] = [
    (
        "died ~ agee",
        {},
        "agee",
        "oslo",
        "site 'oslo': 'agee' is not a column: unknown; did you mean 'age'",
    ),
    (
        "died ~ age",
        {"family": "bernouli"},
        "family",
        None,
        "family is 'bernouli': unknown; did you mean 'bernou",
    ),
    ("died ~ age", {"family": "cox"}, "formula", None, "family 'cox' needs Surv(time, event) ~"),
    ("died ~ age", {"family": "logistic"}, "family", None, "it is called 'bernoulli' here"),
    (
        "died ~ age",
        {"family": "weibull"},
        "formula",
        None,
        "family 'weibull' needs Surv(time, event) ~",
    ),
    (
        "grade ~ age",
        {},
        "grade",
        "oslo",
        "site 'oslo': the response grade is outside the family bernoulli in",
    ),
    (
        "arm ~ age",
        {"family": "poisson"},
        "arm",
        "oslo",
        "holds strings, and family poisson is of numbers: of two",
    ),
    ("arm ~ age", {"family": "gaussian"}, "arm", "oslo", "of two strings is family bernoulli"),
    (
        "age ~ arm",
        {"family": "poisson"},
        "age",
        "oslo",
        "the response age is outside the family poisson in 50 of",
    ),
    (
        "age ~ arm",
        {"family": "beta"},
        "age",
        "oslo",
        "its values must be between 0 and 1, both excluded",
    ),
    ("died ~ age", {"family": "gamma"}, "died", "oslo", "its values must be > 0"),
    (
        "died ~ age",
        {"family": "binomial"},
        "trials",
        None,
        "a response of 0 and 1 is of family 'bernoulli'",
    ),
    (
        "died ~ age",
        {"exposure": "age"},
        "exposure",
        None,
        "exposure is for family poisson or negative_binomial",
    ),
    (
        "arm ~ age",
        {"family": "ordinal"},
        "arm",
        None,
        "whose order is not known: give levels={'arm': [lowest",
    ),
    (
        "grade ~ age",
        {"family": "bernoulli", "levels": {"grade": [1, 2]}},
        "response()",
        None,
        "has a level",
    ),
    ("died ~ arm + log(age - 70)", {}, "age", "oslo", "log(age - 70) is not finite in"),
    ("died ~ C(grade, 9)", {}, "formula", None, "there is no level '9'; there are 1, 2, 3"),
    (
        "died ~ age",
        {"prior": {"agee": "normal(0, 1)"}},
        "prior",
        None,
        "'agee' is not a parameter: unknown; did",
    ),
    (
        "died ~ age",
        {"prior": {"age": "normall(0, 1)"}},
        "prior",
        None,
        "'normall': unknown; did you mean 'normal'",
    ),
    (
        "died ~ age",
        {"prior": {"age": "normal(0, -1)"}},
        "prior",
        None,
        "the scale is -1; it must be > 0",
    ),
    ("died ~ age", {"prior": {"age": "exponential(1)"}}, "prior", None, "has no mass below 0"),
    (
        "died ~ age",
        {"prior": {"age": "normal(0)"}},
        "prior",
        None,
        "normal takes location, scale as numbers",
    ),
    ("died ~ age", {"prior": {"age": 3}}, "prior", None, "write for instance 'normal(0, 1)'"),
    ("died ~ age", {"missing": "drop"}, "missing", None, "missing is 'drop'"),
    (
        "died ~ age",
        {"levels": {"arm": ["old"]}},
        "levels",
        None,
        "give at least two levels, each once",
    ),
    (
        "died ~ arm",
        {"levels": {"amr": ["old", "new"]}},
        "levels",
        None,
        "levels: 'amr' is not a column of the",
    ),
    (
        "died ~ grade",
        {"levels": {"grade": [3, 2, 1]}},
        "levels",
        None,
        "holds numbers; write C(grade) in the",
    ),
    ("died ~ age + died", {}, "formula", None, "'died' is the response and in a term too"),
    (
        "died ~ (1 | site)",
        {"integrate": "false"},
        "integrate",
        None,
        "integrate is 'false': it must be True or Fal",
    ),
    ("died ~ factor(grade)", {}, "formula", None, "factor(...): write C(column)"),
    (
        "grade ~ age",
        {"family": "poisson", "exposure": "age - 1000"},
        "age",
        "oslo",
        "site 'oslo': exposure age - 1000 must be > 0 in every row",
    ),
    (
        "grade ~ age",
        {"family": "poisson", "exposure": "I(0 * age)"},
        "age",
        "oslo",
        "exposure I(0 * age) must be > 0 in every row",
    ),
    (
        "died ~ age",
        {"breaks": [1.0]},
        "breaks",
        None,
        "breaks are for family='piecewise_exponential'",
    ),
    (
        "died ~ age",
        {"weights": "age - 60"},
        "age",
        "oslo",
        "weights age - 60 must be >= 0 in every row",
    ),
    (
        "Surv(age, grade) ~ arm",
        {"family": "weibull"},
        "grade",
        "oslo",
        "the event grade is outside the family",
    ),
    (
        "Surv(age, died) ~ arm",
        {"family": "piecewise_exponential", "breaks": [3, 2]},
        "breaks",
        None,
        "give times > 0 that increase",
    ),
]


@pytest.mark.parametrize(("formula", "arguments", "argument", "site", "message"), BAD)
def test_bad_input_is_refused_with_what_to_do(
    formula: str, arguments: dict[str, Any], argument: str, site: str | None, message: str
) -> None:
    with refused(argument=argument, site=site, match=re.escape(message)):
        regression(formula, SITES, **{"family": "bernoulli", **arguments})


def test_sites_that_disagree_are_named() -> None:
    sites = {**SITES, "rome": SITES["rome"].assign(age="old")}
    with refused(argument="age"):
        regression("died ~ age", sites, family="bernoulli")
    one = {name: part.assign(arm="new") for name, part in SITES.items()}
    with refused(argument="arm", match="one level 'new'"):
        regression("died ~ arm", one, family="bernoulli")


def test_a_level_of_the_response_that_one_site_writes_differently_is_named() -> None:
    sites = {
        name: part.assign(died=np.where(part["died"], "yes", "no")) for name, part in SITES.items()
    }
    sites["lima"] = sites["lima"].assign(died=sites["lima"]["died"].str.title())
    with refused(argument="died"):
        regression("died ~ age", sites, family="bernoulli")


def test_numbers_and_dates_that_a_frame_holds_as_texts_are_levels_only_where_c_is_written() -> None:
    texts = {name: part.assign(age=part["age"].astype(str)) for name, part in SITES.items()}
    with refused(site="oslo", match=r"'oslo': the column 'age': its strings are numbers: con"):
        regression("died ~ age", texts, family="bernoulli")
    assert len(regression("died ~ C(age)", texts, family="bernoulli").names) == ROWS - 1
    days = {
        name: part.assign(admitted=part["admitted"].astype(str)) for name, part in SITES.items()
    }
    with refused(site="oslo", match=r"'admitted': its strings are dates: convert them"):
        regression("died ~ admitted", days, family="bernoulli")
    codes = {name: part.assign(grade=part["grade"].astype(str)) for name, part in SITES.items()}
    assert regression("died ~ grade", codes, family="bernoulli").names == ("grade[2]", "grade[3]")


def test_a_column_with_the_name_of_the_sites_name_is_refused_where_it_is_another_thing() -> None:
    tumour = {name: part.assign(site=part["arm"]) for name, part in SITES.items()}
    with refused(site="oslo", match="has a column 'site' of several values, and site in a f"):
        regression("died ~ age + site", tumour, family="bernoulli")
    with refused(site="oslo", match="has a column 'site' of several values"):
        regression("died ~ age + (1 | site)", tumour, family="bernoulli")
    named = {name: part.assign(site=name) for name, part in SITES.items()}
    assert regression("died ~ site", named, family="bernoulli").names[0] == "site[lima]"
    assert regression("died ~ age", tumour, family="bernoulli").names == ("age",)


def test_one_table_of_all_sites_is_told_how_to_be_taken_apart() -> None:
    with refused(argument="sites", match=r"dict\(list\(table\.groupby\('COLUMN'\)\)\)"):
        regression("died ~ age", ALL, family="bernoulli")
    with refused(argument="sites", match="sites is a str: give a dict of names to tables, or a l"):
        regression("died ~ age", "oslo.csv", family="bernoulli")


def test_collinear_columns_are_said() -> None:
    sites = {name: part.assign(months=12 * part["age"]) for name, part in SITES.items()}
    made = regression("died ~ age + months + arm", sites, family="bernoulli")
    assert any(note.startswith("age, months are collinear") for note in made.notes)
    fine = regression("died ~ age + arm", SITES, family="bernoulli").notes
    assert not any("collinear" in note for note in fine)


def test_of_many_collinear_columns_eight_are_named() -> None:
    doses = {f"dose{number}": number for number in range(12)}
    sites = {
        name: part.assign(**{dose: k * part["age"] + 1 for dose, k in doses.items() if k})
        for name, part in SITES.items()
    }
    made = regression("died ~ age + " + " + ".join(list(doses)[1:]), sites, family="bernoulli")
    said = next(note for note in made.notes if "collinear" in note)
    assert said.startswith("age, dose1, dose2, dose3, dose4, dose5, dose6, dose7 and 4 others are ")


def test_an_identifier_among_the_terms_is_noted_once() -> None:
    tables = {
        site: {
            "died": np.arange(60) % 2,
            "who": np.array([f"{site}{number}" for number in range(60)]),
            "ward": np.array([f"{site}{number % 5}" for number in range(60)]),
        }
        for site in ("oslo", "lima", "bern")
    }
    doubt, rest = regression("died ~ who", tables, family="bernoulli").notes
    assert doubt.startswith("who has 180 levels in 180 rows: leave it out if it identifies rows")
    assert rest == (
        "180 of the 180 levels of who are not at all sites: who = 'bern0' is at site 'bern' only, "
        "for one"
    )
    notes = regression("died ~ ward", tables, family="bernoulli").notes
    assert not any("identifies rows" in one for one in notes)
    assert sum("levels of ward are not at all sites" in one for one in notes) == 1
    assert len(notes) <= 2


def test_an_identifier_of_thousands_of_rows_is_refused_before_its_columns_are_made() -> None:
    tables = {
        site: {
            "died": np.arange(20_000) % 2,
            "who": np.array([f"{site}{number}" for number in range(20_000)]),
        }
        for site in ("oslo", "lima")
    }
    with refused(argument="who", match="40000 levels in 40000 rows"):
        regression("died ~ who", tables, family="bernoulli")

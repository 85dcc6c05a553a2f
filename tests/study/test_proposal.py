"""A first study of tables: which columns it takes, and how it reads the response."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import consortia
from consortia.data.tables import read_table
from consortia.study.proposal import Proposal, propose
from tests.refusals import refused

Columns = Mapping[str, Callable[[int, int], Any]]


def tables(sites: int, rows: int, **columns: Callable[[int, int], Any]) -> dict[str, Any]:
    """Return tables of columns, each of a function of the site's index and the row."""
    rng = np.random.default_rng(0)
    found = {}
    for place in range(sites):
        made = {"y": rng.normal(size=rows), "x": rng.normal(size=rows)}
        made |= {name: [of(place, row) for row in range(rows)] for name, of in columns.items()}
        found[f"s{place}"] = made
    return found


def proposed(given: Mapping[str, Any], response: str = "y", **options: Any) -> Proposal:
    read = {site: read_table(table, site, site=site) for site, table in given.items()}
    return propose(read, response, **options)


def built(given: Mapping[str, Any], found: Proposal) -> consortia.Regression:
    """Return the regression that the study file of a proposal has."""
    model = tomllib.loads(found.toml([f"{site}.csv" for site in given], "title"))["model"]
    return consortia.regression(model.pop("formula"), given, **model)


# --- which columns -------------------------------------------------------------------------------


def test_words_that_many_small_sites_have_are_counted_once() -> None:
    given = tables(
        8,
        25,
        arm=lambda place, row: "ab"[row % 2],
        sex=lambda place, row: "fm"[row % 4 == 0],
        stage=lambda place, row: ["I", "II", "III"][row % 3],
    )
    assert proposed(given).formula == "y ~ x + arm + sex + stage + site"
    assert "(arm || site)" in proposed(given, by_site="arm").formula


def test_nine_judges_at_three_sites_are_levels() -> None:
    given = tables(3, 24, judge=lambda place, row: f"judge {row % 9}")
    assert proposed(given).formula == "y ~ x + judge + site"


def test_wards_that_no_other_small_site_has_are_still_asked_about() -> None:
    given = tables(8, 25, ward=lambda place, row: f"{'abcdefgh'[place]}{row // 6}")
    found = proposed(given)
    assert found.formula == "y ~ x + site"
    assert dict(found.left_out)["ward"].startswith(
        "40 values in 200 rows: do these identify a patient"
    )


@pytest.mark.parametrize("name", ["age", "weight_kg", "year"])
def test_integers_that_hardly_overlap_between_sites_are_numbers(name: str) -> None:
    given = tables(3, 63, **{name: lambda place, row: 20 + 9 * place + row % 8})
    assert proposed(given).formula == f"y ~ x + {name} + site"


@pytest.mark.parametrize(
    ("name", "number", "left_out"),
    [
        ("pid", lambda place, row: 7 * (3 * row + place), True),
        ("subjid", lambda place, row: 1000 * place + 3 * row, True),
        ("entry", lambda place, row: 1 + 3 * row + place, True),  # 1 to 180 over all sites
        ("entry", lambda place, row: 1 + 5 * row + place, False),
        ("lipid", lambda place, row: 7 * (3 * row + place), False),
        ("sids", lambda place, row: 7 * (3 * row + place), False),
    ],
)
def test_numbers_of_persons_that_are_spread_over_sites_identify_rows(
    name: str, number: Callable[[int, int], float], left_out: bool
) -> None:
    made = proposed(tables(3, 60, **{name: number}))
    assert (dict(made.left_out).get(name) == "it identifies rows") is left_out
    assert (name in made.formula) is not left_out


def test_integers_that_are_called_patients_are_still_asked_about() -> None:
    given = tables(3, 60, patient=lambda place, row: 100 * place + row // 4)
    assert "45 values in 180 rows" in dict(proposed(given).left_out)["patient"]
    courses_of_one_or_two = tables(3, 61, id=lambda place, row: row * 35 // 61)
    assert proposed(courses_of_one_or_two).formula == "y ~ x + site"
    few = tables(8, 25, case_no=lambda place, row: row % 2)  # a number called so, of two values
    assert proposed(few).formula == "y ~ x + case_no + site"


@pytest.mark.parametrize("name", ["Number", "number", "nr"])
def test_a_number_of_which_rows_share_values_is_a_count(name: str) -> None:
    vertebrae = tables(3, 27, **{name: lambda place, row: 2 + (row * row + place) % 9})
    assert proposed(vertebrae).formula == f"y ~ x + {name} + site"
    patients = tables(3, 60, **{name: lambda place, row: 7 * (3 * row + place)})
    assert dict(proposed(patients).left_out)[name] == "it identifies rows"


@pytest.mark.parametrize("name", ["class", "school", "birth.hospital"])
def test_numbers_of_classes_and_hospitals_are_asked_about_and_few_codes_are_used(name: str) -> None:
    given = tables(3, 120, **{name: lambda place, row: 180 + 1000 * place + 10 * (row // 6)})
    found = proposed(given)
    assert found.formula == "y ~ x + site"
    assert "do these identify a patient or a ward? --group" in dict(found.left_out)[name]
    grouped = proposed(given, group=name)
    assert "(1 | site:" in grouped.formula
    many = tables(2, 300, **{name: lambda place, row: row % 8})
    assert name in dict(proposed(many).left_out)
    few = tables(3, 120, **{name: lambda place, row: 1 + row % 3})
    assert name in proposed(few).formula
    assert name in proposed(given, question=name).formula


@pytest.mark.parametrize("option", [{"by_site": "came"}, {"by_site": "ward"}])
def test_a_column_that_somebody_named_is_never_left_out(option: dict[str, str]) -> None:
    given = tables(
        2,
        60,
        came=lambda place, row: f"2024-01-{1 + row % 28:02d}",
        ward=lambda place, row: f"{'ab'[place]}{row // 10}",
    )
    for table in given.values():
        table["came"] = np.array(table["came"], "datetime64[s]")
    assert f"({option['by_site']} || site)" in proposed(given, **option).formula


@pytest.mark.parametrize(
    ("number", "left_out"),
    [
        (lambda place, row: 20_230_101 + 100 * (row % 12) + place, True),
        (lambda place, row: 20_230_101 + 100 * (row % 14) + place, False),  # a 14th month
        (lambda place, row: 20_230_101 + 100 * (row % 12) + place + 0.5, False),
        (lambda place, row: 200_000 + 7_919 * row + place, False),
    ],
)
def test_dates_of_eight_digits_are_no_numbers(
    number: Callable[[int, int], float], left_out: bool
) -> None:
    made = proposed(tables(3, 40, seen=number, age=lambda place, row: 40 + row % 9))
    assert ("seen" in dict(made.left_out)) is left_out
    if left_out:
        assert "write them as 2024-01-31" in dict(made.left_out)["seen"]


def test_what_other_columns_or_the_sites_tell_is_left_out() -> None:
    given = tables(
        3,
        60,
        active=lambda place, row: "yes" if row % 3 else "no",
        trt=lambda place, row: ("placebo", "drug", "drug+")[row % 3],
        country=lambda place, row: ("NO", "PE", "PE")[place],
        beds=lambda place, row: (120, 300, 80)[place],
    )
    found = proposed(given)
    assert found.formula == "y ~ x + trt + site"
    reasons = dict(found.left_out)
    assert reasons["active"] == "trt determines it: each level of trt has one of active"
    assert reasons["country"] == "it is constant at each site, so the site's level covers it"
    assert "beds" in reasons
    made = built(given, found)
    assert not any("collinear" in note for note in made.notes)
    assert proposed(given, question="active").formula.startswith("y ~ x + active + trt")
    many = tables(9, 60, country=lambda place, row: ("NO", "PE", "CH")[place % 3])
    assert "country" in proposed(many).formula  # levels of sites are pooled, around its effect


# --- time to an event ----------------------------------------------------------------------------


def courses(**codes: Any) -> dict[str, Any]:
    return tables(
        2,
        40,
        start=lambda place, row: float(row % 3),
        stop=lambda place, row: 4.0 + row,
        **codes,
    )


def test_the_event_is_the_third_of_three_arguments() -> None:
    given = courses(event=lambda place, row: row % 2)
    found = proposed(given, "Surv(start, stop, event)", drop=["y"])
    assert found.formula == "Surv(start, stop, event) ~ x"
    (event,) = (one for one in found.used if one.name == "event")
    assert event.note == (
        "code 0: 0, the end of follow-up (40 rows); code 1: 1, the event (40 rows)"
    )
    assert float(np.sum(built(given, found).sites.site("s0")["event"])) == 20
    two = courses(event=lambda place, row: 1 + row % 2)
    assert proposed(two, "Surv(start, stop, event)").formula.startswith(
        "Surv(start, stop, I(event > 1)) ~"
    )


def test_the_person_of_each_interval_is_proposed_and_built() -> None:
    def start(place: int, row: int) -> float:
        return 0.0 if row % 2 == 0 else 3.0

    given = tables(
        3,
        30,
        start=start,
        stop=lambda place, row: start(place, row) + (3.0 if row % 2 == 0 else 2.0),
        died=lambda place, row: int(row % 4 == 3),
        who=lambda place, row: f"{place}{row // 2:02}",
        weight=lambda place, row: 60.25 + row // 2,  # as many values as persons
        centre=lambda place, row: "ab"[row % 5 == 0],
    )
    found = proposed(given, "Surv(start, stop, died)", drop=["y"])
    assert found.persons == "who"
    assert found.formula == "Surv(start, stop, died) ~ x + weight + centre"
    assert "who identifies the person of each interval: 90 intervals are of 45 persons" in found.why
    table = built(given, found).table_one()
    assert [line.cells[-1] for line in table.flow] == ["45", "0", "45", "90"]
    none = proposed(given, "Surv(start, stop, died)", drop=["y", "who"])
    assert none.persons is None
    assert "--persons COLUMN names it" in none.why
    assert proposed(given, "Surv(start, stop, died)", persons="centre").persons == "centre"


@pytest.mark.parametrize("name", ["patient", "who"])
def test_late_entries_have_a_person_of_intervals_by_their_name_only(name: str) -> None:
    given = tables(
        2,
        40,
        start=lambda place, row: 1.0 + 9 * (row % 2),
        stop=lambda place, row: 7.0 + 9 * (row % 2),  # a gap between 7 and 10
        died=lambda place, row: int(row % 4 == 3),
        **{name: lambda place, row: 100 * place + row // 2},
    )
    found = proposed(given, "Surv(start, stop, died)", drop=["y"])
    assert found.persons == (name if name == "patient" else None)


@pytest.mark.parametrize(
    ("event", "code"), [("status == 2", 2), ("I(status == 1)", 1), ("status > 0", None)]
)
def test_an_event_may_be_a_comparison_and_each_code_is_said(event: str, code: int | None) -> None:
    given = courses(status=lambda place, row: row % 3)
    found = proposed(given, f"Surv(stop, {event})", drop=["y", "start"])
    assert found.formula == f"Surv(stop, {event}) ~ x"
    (note,) = (one.note for one in found.used if one.name == "status")
    for number in (0, 1, 2):
        is_event = number == code if code else number > 0
        meant = "1, the event" if is_event else "0, the end of follow-up"
        assert f"code {number}: {meant} ({28 if number == 0 else 26} rows)" in note
    events = sum(float(np.sum(built(given, found).sites.site(site)["event"])) for site in given)
    assert events == (26 if code else 52)


def test_a_chosen_code_is_written_into_the_formula_and_the_others_are_said() -> None:
    given = courses(status=lambda place, row: row % 3)
    found = proposed(given, "Surv(start, stop, status)", event="1", drop=["y"])
    assert found.formula == "Surv(start, stop, status == 1) ~ x"
    (note,) = (one.note for one in found.used if one.name == "status")
    assert "code 2: 0, the end of follow-up (26 rows)" in note
    with refused(argument="event", match=r"0, 1, 2: .*2 \(26 rows\)"):
        proposed(given, "Surv(stop, status)")


def test_a_chosen_word_is_the_event() -> None:
    given = courses(status=lambda place, row: ["alive", "dead", "it's lost"][row % 3])
    for word, count in (("dead", 13), ("it's lost", 13), ("alive", 14)):
        found = proposed(given, "Surv(stop, status)", event=word)
        assert float(np.sum(built(given, found).sites.site("s1")["event"])) == count
    with refused(argument="event", match="deat: .*'dead'"):
        proposed(given, "Surv(stop, status)", event="deat")


def test_a_word_in_another_writing_is_no_event_in_silence() -> None:
    given = courses(status=lambda place, row: ["alive", "Dead"][row % 2])
    with refused(site="s0", match=r'recode.status\] "Dead" = "dead"'):
        consortia.regression("Surv(stop, status == 'dead') ~ x", given, family="cox")
    with refused(argument="formula", match="== 'died' is 0 in all rows"):
        consortia.regression("Surv(stop, status == 'died') ~ x", given, family="cox")


# --- levels --------------------------------------------------------------------------------------


def housing(rows: int = 24) -> dict[str, Any]:
    """Return cells of words, and how many persons are in each."""
    return {
        f"s{place}": {
            "Sat": [["Low", "Medium", "High"][row % 3] for row in range(rows)],
            "Infl": [["low", "high"][row // 3 % 2] for row in range(rows)],
            "Type": [["flat", "house", "tower", "yard"][row // 6] for row in range(rows)],
            "Freq": [5 + 7 * row % 11 + place for row in range(rows)],
        }
        for place in range(2)
    }


@pytest.mark.parametrize(
    "levels",
    [("Low", "Medium", "High"), ("sehr schlecht", "mäßig", "gut"), ("III", "II", "I")],
)
def test_levels_that_are_given_for_a_response_of_words_are_their_order(
    levels: tuple[str, ...],
) -> None:
    given = housing()
    words = dict(zip(("Low", "Medium", "High"), levels, strict=True))
    for table in given.values():
        table["answer"] = [words[each] for each in table["Sat"]]
    found = proposed(given, "answer", levels={"answer": levels}, drop=["Sat"])
    assert found.family == "ordinal"
    assert " < ".join(levels) in found.why
    made = built(given, found)
    assert made.specification.levels["response()"] == levels
    assert made.sites.site("s0")["y"].max() == 2
    with refused(argument="levels", match="Sat=LOWEST,...,HIGHEST"):
        proposed(given, "Sat", family="ordinal")
    with refused(argument="levels", match="Sat: Medium is missing"):
        proposed(given, "Sat", levels={"Sat": ("Low", "High")})


def test_levels_of_a_term_are_in_the_order_that_is_given() -> None:
    given = tables(2, 40, dose=lambda place, row: row % 3, arm=lambda place, row: "ab"[row % 2])
    found = proposed(given, levels={"dose": ("1", "0", "2"), "arm": ("b", "a")})
    assert found.formula == "y ~ x + C(dose) + arm + site"
    assert built(given, found).names[1:4] == ("C(dose)[0]", "C(dose)[2]", "arm[a]")


@pytest.mark.parametrize("name", ["Freq", "n", "Anzahl", "wt"])
def test_a_column_of_counts_beside_cells_of_words_is_proposed_as_weights(name: str) -> None:
    given = housing()
    for table in given.values():
        table[name] = table.pop("Freq")
    found = proposed(given, "Sat")
    persons = sum(sum(table[name]) for table in given.values())
    assert found.weights == name
    assert f"48 rows are {persons} persons" in found.why
    assert found.formula == "Sat ~ Infl + Type + site"
    weights = built(given, found).sites.site("s1")["weight"]
    np.testing.assert_array_equal(weights, given["s1"][name])
    assert proposed(given, "Sat", drop=[name]).weights is None
    assert proposed(given, name).weights is None  # it is the response


def test_a_count_beside_measurements_or_repeated_cells_is_a_covariate() -> None:
    measured = tables(2, 40, count=lambda place, row: row % 7)
    assert proposed(measured).formula == "y ~ x + count + site"
    words = {"yes": ["a", "b"] * 12, "z": ["c", "d", "d", "c"] * 6, "freq": list(range(24))}
    assert proposed({"s0": words, "s1": words}, "yes").weights is None


@pytest.mark.parametrize(
    ("words", "levels", "count", "other", "near"),
    [
        ("bird fish fish invertebrate fish", "fish bird invertebrate", 72, "bird", "fisch"),
        ("train car air bus train", "train air bus car", 48, "car", "trian"),
        ("rural urban urban seaside", "urban rural seaside", 60, "seaside", "urbane"),
    ],
)
def test_a_response_of_several_words_is_against_the_most_frequent_or_the_chosen_one(
    words: str, levels: str, count: int, other: str, near: str
) -> None:
    every, first = words.split(), levels.split()[0]
    given = tables(3, 40, kind=lambda place, row: every[row % len(every)])
    found = proposed(given, "kind")
    assert found.levels["kind"] == tuple(levels.split())
    assert f"'{first}', the most frequent ({count} of 120 rows)" in found.why
    assert f"kind = '{first}'" in str(built(given, found).notes)
    chosen = proposed(given, "kind", references={"kind": other})
    assert chosen.levels["kind"] == (other, *(each for each in sorted({*every}) if each != other))
    with refused(argument="reference", match=f"'{near}' .*'{first}'"):
        proposed(given, "kind", references={"kind": near})


def test_the_reference_of_a_response_of_two_words_is_no_event() -> None:
    given = tables(2, 40, died=lambda place, row: ["no", "yes"][row % 4 == 0])
    assert "'yes' is the event, in 20 of 80 rows" in proposed(given, "died").why
    other = proposed(given, "died", references={"died": "yes"})
    assert other.levels["died"] == ("yes", "no")
    assert float(np.sum(built(given, other).sites.site("s0")["y"])) == 30


def test_a_slip_in_a_word_of_the_response_is_doubted_and_no_level_is_confirmed() -> None:
    words = ["private", "public", "other"]
    given = tables(3, 40, pays=lambda place, row: words[row % 3])
    given["s2"]["pays"][0] = "pivate"
    assert proposed(given, "pays").levels == {}


def test_rows_that_are_kept_are_those_of_the_proposal_and_of_the_study() -> None:
    given = courses(event=lambda place, row: row % 2)
    given["s0"]["stop"][0] = given["s0"]["start"][0] = 0.0
    found = proposed(given, "Surv(stop, event)", keep="stop > 0", drop=["y"])
    assert found.rows == (39, 40)
    data = tomllib.loads(found.toml(["s0.csv", "s1.csv"], "title"))["data"]
    assert data["keep"] == "stop > 0"


def test_the_question_is_written_never_left_out_and_by_default_that_of_the_sites() -> None:
    given = tables(2, 40, arm=lambda place, row: f"{'ab'[place]}{row % 4}")
    assert "arm" not in proposed(given).formula
    found = proposed(given, question="arm")
    assert found.formula == "y ~ x + arm + site"
    assert tomllib.loads(found.toml(["s0.csv", "s1.csv"], "title"))["question"] == "arm"
    assert proposed(given, by_site="arm").question == "arm"
    with refused(argument="columns", match="'arm'.*'a'"):
        proposed(tables(2, 40, arm=lambda place, row: "a"), question="arm")


UNLIKE: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "small hospitals": (
        lambda: tables(
            8,
            25,
            arm=lambda place, row: "ab"[row % 2],
            age=lambda place, row: 20 + 9 * place + row % 8,
            ward=lambda place, row: f"{'abcdefgh'[place]}{row // 6}",
        ),
        "y",
    ),
    "intervals": (
        lambda: courses(status=lambda place, row: row % 3, sex=lambda place, row: "fm"[row % 2]),
        "Surv(start, stop, status == 1)",
    ),
    "cells of persons": (housing, "Sat"),
}


@pytest.mark.parametrize("kind", ["file", "frame"])
@pytest.mark.parametrize("which", UNLIKE)
def test_files_and_frames_have_the_proposal_of_their_arrays(
    which: str, kind: str, tmp_path: Path
) -> None:
    make, response = UNLIKE[which]
    given, other = make(), dict[str, Any]()
    for site, table in given.items():
        frame, path = pd.DataFrame(table), tmp_path / f"{site}.csv"
        frame.to_csv(path, index=False)
        other[site] = path if kind == "file" else frame
    files = [f"{site}.csv" for site in given]
    wanted, found = (proposed(one, response) for one in (given, other))
    assert found.toml(files, "title") == wanted.toml(files, "title")
    assert found.left_out == wanted.left_out
    assert found.why == wanted.why


@pytest.mark.parametrize(
    "name", ["followup_days", "fu_years", "person.years", "pyears", "time_at_risk"]
)
def test_the_time_in_which_counts_were_counted_is_their_exposure(name: str) -> None:
    given = tables(
        2, 30, events=lambda place, row: row % 4, **{name: lambda place, row: 1 + row % 20}
    )
    counts = proposed(given, "events")
    assert counts.exposure == name
    assert f"per unit of {name}" in counts.why
    assert name not in counts.formula
    offset = built(given, counts).sites.site("s0")["offset"]
    np.testing.assert_allclose(offset, np.log(given["s0"][name]), rtol=1e-6)
    assert proposed(given, "events", drop=[name]).exposure is None
    assert proposed(given, "events", question=name).exposure is None  # it is a covariate
    assert proposed(given, "y").exposure is None  # of no count


def test_a_time_that_is_not_positive_or_misses_is_no_exposure() -> None:
    for first in (0, math.nan):
        given = tables(
            2,
            30,
            events=lambda place, row: row % 4,
            fu_days=lambda place, row, first=first: 1 + row if row else first,
        )
        assert proposed(given, "events").exposure is None


def test_the_sentence_on_the_exposure_is_beside_that_on_the_weights() -> None:
    given = tables(
        2, 24, events=lambda site, row: row % 4, fu_days=lambda site, row: 1 + row,
        freq=lambda site, row: 2,
    )  # fmt: skip
    found = proposed(given, "events", weights="freq", drop=["y", "x"])
    assert "Counts are per unit of fu_days" in found.why
    assert "48 rows are 96 persons" in found.why


def test_a_term_is_against_the_level_that_is_called_a_control() -> None:
    def arms(*levels: str) -> dict[str, Any]:
        return tables(2, 30, arm=lambda place, row: levels[row % len(levels)])

    usual = arms("nurse-led", "usual care")
    assert proposed(usual).levels == {"arm": ("usual care", "nurse-led")}
    assert proposed(usual, references={"arm": "nurse-led"}).levels["arm"][0] == "nurse-led"
    assert (
        proposed(usual, levels={"arm": ("nurse-led", "usual care")}).levels["arm"][0] == "nurse-led"
    )
    # none, or two, or the one that comes first anyway
    for levels in (("new", "old"), ("b", "placebo", "sham"), ("control", "treated")):
        assert proposed(arms(*levels)).levels == {}

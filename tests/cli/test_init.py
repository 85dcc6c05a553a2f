"""The first study of one's own tables: what is written, what is left out, what is refused."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.irises import invoke

import consortia
from consortia.algorithms.registry import ALGORITHMS
from consortia.study.build import load_study

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SITES = {"oslo": ",", "lima": ";", "bern": "\t"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables of three dialects with an identifier, dates, texts, gaps, and a column of one site."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(4)
    for place, (name, separator) in enumerate(SITES.items()):
        extra = ["ward"] if name == "bern" else []
        head = ["record", "came", "age", "arm", "grade", "unit", "crp", *extra, "died"]
        lines = [separator.join(head)]
        for row in range(40):
            crp = "NA" if row % (7 + place) == 0 else f"{rng.gamma(2, 5):.2f}"
            arm = "new" if row % 2 else "old"
            died = "yes" if rng.random() < 0.4 else "no"
            fields = [f"P{place}{row}", f"2024-01-{1 + row % 28:02d}", f"{rng.normal(60, 9):.1f}"]
            fields += [arm, str(1 + row % 3), "mg", crp, *(["a"] if extra else []), died]
            lines.append(separator.join(fields))
        (tmp_path / f"{name}.csv").write_text("\n".join([*lines, ""]))
    return tmp_path


def init(*arguments: str) -> Any:
    return invoke("init", *(f"{name}.csv" for name in SITES), *arguments)


def rewritten(path: Path, column: str, value: Any) -> None:
    """Put a value, or what a function of the row's number gives, into a column of a file."""
    first, *rows = path.read_text().splitlines()
    separator = SITES[path.stem]
    place = first.split(separator).index(column)
    lines = [first]
    for number, row in enumerate(rows):
        fields = row.split(separator)
        fields[place] = value(number) if callable(value) else value
        lines.append(separator.join(fields))
    path.write_text("\n".join([*lines, ""]))


@pytest.mark.parametrize(
    ("sizes", "scales"),
    [
        ((1, 24, 1), {"lima": 1 / 24}),  # days where the others have hours
        ((1, 24, 700), {}),  # sites that differ, by no unit of two
        ((1, (24, 3), 1), {}),  # a mean that is larger, and a spread that is not
    ],
)
def test_a_factor_is_proposed_where_one_unit_explains_the_sites(
    folder: Path, sizes: tuple[Any, ...], scales: dict[str, float]
) -> None:
    for site, size in zip(SITES, sizes, strict=True):
        mean, spread = size if isinstance(size, tuple) else (size, size)
        rng = np.random.default_rng(3)
        numbers = [f"{50 * mean + 6 * spread * rng.normal():.3f}" for _ in range(40)]
        rewritten(folder / f"{site}.csv", "age", numbers.__getitem__)
    assert init("--response", "died", "--yes").exit_code == 0
    changes = tomllib.loads((folder / "study.toml").read_text()).get("harmonise", {})
    made = {site: table["scale"]["age"] for site, table in changes.items() if "scale" in table}
    assert made == pytest.approx(scales)


@pytest.mark.parametrize(
    ("elsewhere", "values"),
    [
        ([991, 400, 12], {"lima": []}),  # days: other sites have as long times
        ([60, 70, 80], {"lima": [999]}),  # ages
        ([60, 70, 999], {"oslo": [999], "lima": [999], "bern": [999]}),
        ([9910, 4000, 9120], {"lima": [999]}),  # another unit
    ],
)
def test_a_number_that_other_sites_have_values_near_is_no_code(
    folder: Path, elsewhere: list[int], values: dict[str, list[int]]
) -> None:
    for site in SITES:
        column = [*range(20, 60)] if site == "lima" else [*range(20, 57), *elsewhere]
        if min(elsewhere) > 90 and site != "lima":
            column = [10 * one for one in range(200, 237)] + elsewhere
        if site == "lima":
            column[-1] = 999
        rewritten(folder / f"{site}.csv", "age", lambda row, column=column: str(column[row]))
    assert init("--response", "died", "--yes").exit_code == 0
    changes = tomllib.loads((folder / "study.toml").read_text()).get("harmonise", {})
    made = {
        site: table["missing_values"]["age"]
        for site, table in changes.items()
        if "age" in table.get("missing_values", {})
    }
    assert made == values


# --- what is written -----------------------------------------------------------------------------


def test_the_study_holds_every_usable_column_the_policy_and_the_exact_sampler(folder):
    outcome = init("--response", "died")
    assert outcome.exit_code == 0, outcome.output
    written = tomllib.loads((folder / "study.toml").read_text())
    assert written["model"] == {
        "formula": "died ~ age + arm + grade + crp + site",
        "family": "bernoulli",
        "missing": "complete",
    }
    assert written["algorithm"] == {"name": "few_rounds"}
    assert written["data"]["files"] == ["oslo.csv", "lima.csv", "bern.csv"]


def test_a_study_is_written_over_when_told_to(folder):
    (folder / "study.toml").write_text("mine")
    refused = init("--response", "died")
    assert refused.exit_code == 2
    assert "--output" in refused.output
    assert "--force" in refused.output
    assert (folder / "study.toml").read_text() == "mine"
    assert init("--response", "died", "--force").exit_code == 0
    assert load_study(folder / "study.toml").model.formula.startswith("died ~ age")


def test_what_is_left_out_and_missing_is_said_with_the_reason(folder):
    text = " ".join(init("--response", "died").stdout.split())
    for words in (
        "record: it identifies rows",
        "came: a date",
        "unit: it is 'mg' in every row",
        "ward: only bern has it",
        "2 levels: new, old; the reference is new",
        "16 (oslo 6, lima 5, bern 5)",
        "Complete rows: oslo 34 of 40, lima 35 of 40, bern 35 of 40.",
        "'yes' is the event",
        "C(grade) makes it a factor",
    ):
        assert words in text, words
    comments = (folder / "study.toml").read_text()
    assert "#   record: it identifies rows" in comments


def test_check_takes_the_study_as_it_was_written(folder):
    assert init("--response", "died").exit_code == 0
    told = json.loads(invoke("check", "study.toml", "--json").stdout)
    assert told["verdict"] == "good"
    assert "arm[old]" in told["regression"]["priors"]


@pytest.mark.slow
def test_run_takes_the_study_as_it_was_written_and_its_posterior_can_be_used(folder):
    assert init("--response", "died").exit_code == 0
    outcome = invoke("run", "study.toml", "-q", "-o", "out")
    assert outcome.exit_code == 0, outcome.output
    summary = json.loads((folder / "out" / "summary.json").read_text())
    assert summary["verdict"] == "good", summary["headline"]
    assert "arm[old]" in (folder / "out" / "estimates.txt").read_text()
    assert (folder / "out" / "forest.png").stat().st_size > 5_000


def test_an_effect_by_site_gets_a_spread_with_a_prior_and_an_exact_sampler(folder):
    assert init("--response", "died", "--by-site", "arm").exit_code == 0
    study = load_study("study.toml")
    assert study.model.formula == "died ~ age + arm + grade + crp + (arm || site)"
    assert study.model.options["prior"] == {"sd": "half_normal(1)"}
    assert study.algorithm.name == "few_rounds"
    assert study.model.options["integrate"] is True
    names = study.build().regression.names
    assert names == ("age", "arm[old]", "grade", "crp")


@pytest.mark.parametrize("levels", [["new", "old"], ["new", "old", "none"]])
def test_an_effect_on_a_time_by_site_leaves_the_level_to_the_baselines(folder, levels):
    for name in SITES:
        rewritten(folder / f"{name}.csv", "arm", lambda row: levels[row % len(levels)])
    outcome = init("--response", "Surv(crp, died)", "--event", "yes", "--by-site", "arm")
    assert outcome.exit_code == 0, outcome.output
    study = load_study("study.toml")
    assert study.model.formula.endswith(" + (0 + arm || site)")
    assert study.title == "Time to death, 3 sites"
    assert study.algorithm.name == "federated_hmc"


@pytest.mark.parametrize("levels", [["new", "old", "none"], ["new", "old", "none", "both"]])
def test_effects_of_up_to_three_levels_by_site_stay_at_the_sites(folder, levels):
    for name in SITES:
        rewritten(folder / f"{name}.csv", "arm", lambda row: levels[row % len(levels)])
    assert init("--response", "died", "--by-site", "arm").exit_code == 0
    study, few = load_study("study.toml"), len(levels) == 3
    assert study.algorithm.name == ("few_rounds" if few else "federated_hmc")
    assert ("integrate" in study.model.options) == few


def test_changes_of_a_file_come_first_and_others_are_proposed(folder):
    lima = folder / "lima.csv"
    lima.write_text(lima.read_text().replace("died", "verstorben").replace("new", "neu"))
    outcome = init("--response", "died", "--no-harmonise")
    assert outcome.exit_code == 2
    assert '[harmonise.lima.rename] NAME = "died" into a file' in " ".join(outcome.stderr.split())
    changes = folder / "changes.toml"
    changes.write_text(
        '[harmonise.lima.rename]\nverstorben = "died"\n[harmonise.lima.recode.arm]\nneu = "new"\n'
    )
    outcome = init("--response", "died", "--yes", "--changes", "changes.toml")
    assert outcome.exit_code == 0, outcome.output
    study = load_study("study.toml")
    assert study.harmonise["lima"].rename == {"verstorben": "died"}
    assert study.harmonise["lima"].recode == {"arm": {"neu": "new"}}
    assert "arm" in study.model.formula
    changes.write_text('[harmonise.rome.rename]\na = "b"\n')
    outcome = init("--response", "died", "--yes", "--force", "--changes", "changes.toml")
    assert "site 'rome'" in outcome.stderr


def test_a_chosen_reference_comes_first_and_the_coefficients_are_against_it(folder):
    outcome = init("--response", "died", "--by-site", "arm", "--reference", "arm=old")
    assert outcome.exit_code == 0, outcome.output
    assert "the reference is old" in " ".join(outcome.stdout.split())
    study = load_study("study.toml")
    assert study.model.options["levels"] == {"arm": ["old", "new"]}
    assert study.build().regression.names == ("age", "arm[new]", "grade", "crp")


def test_the_response_is_asked_for_again_after_an_unknown_one(folder):
    files = [f"{name}.csv" for name in SITES]
    outcome = invoke("init", *files, answers="dead\ndied\n")
    assert outcome.exit_code == 0, outcome.output
    assert "did you mean 'died'" in outcome.output
    assert invoke("init", *files, "-o", "other.toml", answers="").exit_code == 2


@pytest.mark.parametrize(
    ("response", "values", "formula", "family"),
    [
        ("died", lambda row: str(1 + row % 2), "I(died > 1)", "bernoulli"),
        ("died", lambda row: str(row % 5), "died", "negative_binomial"),
        ("died", lambda row: f"{row / 3:.2f}", "died", "gaussian"),
        ("died", lambda row: "abc"[row % 3], "died", "categorical"),
        ("Surv(age, died)", lambda row: str(row % 2), "Surv(age, died)", "cox"),
    ],
)
def test_the_family_is_that_of_the_responses_values(folder, response, values, formula, family):
    for name in SITES:
        rewritten(folder / f"{name}.csv", "died", values)
    assert init("--response", response).exit_code == 0
    study = load_study("study.toml")
    assert study.model.formula is not None
    assert study.model.formula.split(" ~ ")[0] == formula
    assert study.model.options["family"] == family
    study.build()


def test_a_table_can_steer_neither_the_study_file_nor_the_terminal(folder):
    path = folder / "oslo.csv"
    text = path.read_text()
    path.write_text('"a\n[run]\nseed = 7\n\x1b[31m",' + text.replace("\n", "\n1,", 41)[:-2] + "\n")
    outcome = init("--response", "died")
    assert outcome.exit_code == 0, outcome.output
    assert "\x1b" not in outcome.stdout + (folder / "study.toml").read_text()
    assert tomllib.loads((folder / "study.toml").read_text())["run"]["seed"] == 1


# --- tables that are unlike ---


def messy(folder: Path) -> dict[str, Any]:
    """Write three tables, each in its own way; return the rows that are meant."""
    rng = np.random.default_rng(8)
    meant: dict[str, Any] = {}
    for name in ("oslo", "lima", "bern"):
        rows = 80
        table = {
            "age": np.round(rng.normal(60, 9, rows), 1),
            "crp": np.round(rng.gamma(2, 5, rows) + 0.25, 2),
            "sex": rng.choice(["female", "male"], rows),
            "smoker": rng.choice(["no", "yes"], rows),
            "drug": rng.choice(["placebo", "résorbé"], rows),
            "died": rng.choice(["no", "yes"], rows, p=[0.6, 0.4]),
        }
        table["age"][[3, 17, 40]] = np.nan
        meant[name] = table
    code = {"oslo": "999", "lima": "999", "bern": "-9"}
    day = {"oslo": "2024-03-{:02d}", "lima": "{:02d}.03.2024", "bern": "{:02d}/03/2024"}
    heads = {
        "oslo": "age,crp,sex,smoker,drug,died,came",
        "lima": "Age ;CRP;sex;smoker;drug;died;came",
        "bern": "age\tcrp_mg_l\tsex\tsmoker\tdrug\tdied\tcame",
    }
    for name, table in meant.items():
        separator = SITES[name]
        lines = [heads[name]]
        for row in range(80):
            age, crp, sex, smoker, drug, died = (table[key][row] for key in table)
            number = code[name] if np.isnan(age) else f"{age:.1f}"
            fields = [number, f"{crp:.2f}", sex, smoker, drug, died, day[name].format(1 + row % 28)]
            if name == "lima":
                fields[0], fields[1] = fields[0].replace(".", ","), fields[1].replace(".", ",")
                fields[2], fields[3] = sex.title(), str(int(smoker == "yes"))
            if name == "bern":
                fields[3], fields[5] = smoker.upper(), {"yes": "ja", "no": "nein"}[died]
            lines.append(separator.join(fields))
        encoding = "latin-1" if name == "lima" else "utf-8"
        (folder / f"{name}.csv").write_bytes("\n".join([*lines, ""]).encode(encoding))
    return meant


def test_three_messy_tables_are_the_clean_ones_after_two_answers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    meant = messy(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.glob("*.csv")}
    files = [f"{name}.csv" for name in SITES]
    outcome = invoke("init", *files, "--response", "died", answers="y\ny\n")
    assert outcome.exit_code == 0, outcome.output
    for words in (
        "lima: not UTF-8; read as cp1252",
        "lima: the column 'Age' is 'age'",
        "bern: the column 'crp_mg_l' is 'crp'",
        "'Female'",
        "stands for a missing value, in 6 rows (oslo 3, lima 3)",
        "bern: age: -9 in 3 rows",
    ):
        assert words in outcome.output, words
    study = load_study("study.toml")
    assert study.model.formula == "died ~ age + crp + sex + smoker + drug + site"
    found = study.build().regression
    clean = consortia.regression(
        "died ~ age + crp + sex + smoker + drug + site",
        meant,
        family="bernoulli",
        missing="complete",
    )
    assert found.names == clean.names
    assert "doubts" not in found.metadata.settings
    for site in SITES:
        for name, array in clean.sites.site(site).items():
            np.testing.assert_array_equal(found.sites.site(site)[name], array)
    assert {path: path.read_bytes() for path in tmp_path.glob("*.csv")} == before
    # the run gives the draws of the clean tables, to the last bit
    ended = invoke("run", "study.toml", "-q", "-o", "out")
    assert ended.exit_code == 0, ended.output
    drawn = consortia.open_run("out")
    wanted = consortia.sample(
        clean.model, clean.sites, study.method, **study.run_options, progress=False
    )
    for name, array in wanted["posterior"].data_vars.items():
        np.testing.assert_array_equal(drawn["posterior"][name], array)
    first, second = (made.estimates(tree) for made, tree in ((found, drawn), (clean, wanted)))
    assert str(first) == str(second)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["verdict"] == "good"


def test_what_nobody_has_approved_withholds_good_until_somebody_writes_that_it_is_right(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    messy(tmp_path)
    files = [f"{name}.csv" for name in SITES]
    assert invoke("init", *files, "--response", "died", answers="").exit_code == 0
    text = (tmp_path / "study.toml").read_text()
    assert text.count("approved = false") == 3
    told = json.loads(invoke("check", "study.toml", "--json").stdout)
    assert told["verdict"] == "unknown"
    assert "what `consortia init` proposed is applied" in str(told["checks"])
    (tmp_path / "study.toml").write_text(text.replace("approved = false", "approved = true"))
    assert json.loads(invoke("check", "study.toml", "--json").stdout)["verdict"] == "good"


def test_an_encoding_that_nobody_has_confirmed_is_not_approved(folder):
    path = folder / "oslo.csv"
    path.write_bytes(path.read_text().replace("old", "früher").encode("latin-1"))
    assert init("--response", "died", "--drop", "arm").exit_code == 0
    changes = tomllib.loads((folder / "study.toml").read_text())["harmonise"]
    assert changes["oslo"] == {"encoding": "cp1252", "approved": False}
    assert init("--response", "died", "--drop", "arm", "--force", "--yes").exit_code == 0
    changes = tomllib.loads((folder / "study.toml").read_text())["harmonise"]
    assert changes["oslo"] == {"encoding": "cp1252"}


def test_what_is_not_taken_is_not_written_and_what_stays_unlike_is_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    messy(tmp_path)
    files = [f"{name}.csv" for name in SITES]
    outcome = invoke("init", *files, "--response", "crp", answers="n\nn\n")
    assert outcome.exit_code == 2
    assert "the response 'crp' is missing at lima, bern" in outcome.output
    outcome = invoke("init", *files, "--response", "sex", answers="n\nn\n")
    assert outcome.exit_code == 2
    assert "nothing was written, because the study would be refused" in outcome.output
    assert '[harmonise.lima.recode.sex] "Female" = "female"' in outcome.output
    assert not (tmp_path / "study.toml").exists()


def written(folder: Path, **tables: list[str]) -> list[str]:
    for name, lines in tables.items():
        (folder / f"{name}.csv").write_text("\n".join([*lines, ""]))
    return [f"{name}.csv" for name in tables]


def test_names_of_patients_are_never_made_those_of_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    head = "patient,ward,smokes,y"
    words = {"one": ("Pneumology 1", "smoking"), "two": ("Pneumology 2", "smokinng")}
    files = written(
        tmp_path,
        **{
            site: [
                head,
                *(
                    f"P{site}{i // 3:03d},{ward},{[smokes, 'never'][i % 2]},{i % 3}"
                    for i in range(30)
                ),
            ]
            for site, (ward, smokes) in words.items()
        },
    )
    outcome = invoke("init", *files, "--response", "y", "--yes")
    assert outcome.exit_code == 0, outcome.output
    changes = tomllib.loads((tmp_path / "study.toml").read_text())["harmonise"]
    # the same number of rows at both: one of them is changed, and not each into the other
    assert changes == {"two": {"recode": {"smokes": {"smokinng": "smoking"}}}}


def test_words_among_numbers_and_letters_for_words_and_doubled_names_are_proposed(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [
        f"{'unk' if i % 9 == 4 else rng.integers(20, 80)},{'< 5' if i % 9 == 4 else i % 7},"
        f"{['male', 'female', 'm'][i % 3]},{i},{rng.integers(2)}"
        for i in range(40)
    ]
    plain = [row.replace("m,", "male,").replace("unk", "33") for row in rows]
    files = written(tmp_path, one=["age,crp,sex,Crp,y", *rows], two=["age,crp,sex,n,y", *plain])
    outcome = invoke("init", *files, "--response", "y", "--yes")
    assert outcome.exit_code == 0, outcome.output
    changes = tomllib.loads((tmp_path / "study.toml").read_text())["harmonise"]
    assert changes == {
        "one": {
            "rename": {"Crp": "other Crp"},
            "missing_values": {"age": ["unk"]},
            "recode": {"sex": {"m": "male"}},
        }
    }
    assert load_study("study.toml").model.formula == "y ~ age + sex + site"


@pytest.mark.parametrize(
    ("words", "event"), [(("ja", "nein"), "ja"), (("no", "yes"), "yes"), (("Y", "N"), "Y")]
)
def test_yes_is_the_event_whatever_comes_first_in_the_alphabet(tmp_path, monkeypatch, words, event):
    monkeypatch.chdir(tmp_path)
    rows = [f"{i * i % 23},{words[i * i % 3 % 2]}" for i in range(40)]
    files = written(tmp_path, one=["x,died", *rows], two=["x,died", *rows])
    outcome = invoke("init", *files, "--response", "died")
    assert f"{event!r} is the event" in " ".join(outcome.output.split())
    assert load_study("study.toml").build().regression.specification.event == f"died = {event!r}"


# --- identifiers, trials, events -----------------------------------------------------------------


def columns(folder: Path, rows: int = 40, **made: Any) -> list[str]:
    """Write two tables of columns, each of a function of the site's index and the row."""
    rng = np.random.default_rng(0)
    for place, site in enumerate(("one", "two")):
        own = {"y": lambda p, r: int(rng.integers(2)), "x": lambda p, r: round(rng.normal(), 3)}
        lines = [",".join([*own, *made])]
        lines += [
            ",".join(str(of(place, row)) for of in (*own.values(), *made.values()))
            for row in range(rows)
        ]
        (folder / f"{site}.csv").write_text("\n".join([*lines, ""]))
    return ["one.csv", "two.csv"]


def test_a_patient_of_several_rows_is_asked_about_and_is_no_covariate(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = columns(
        tmp_path,
        60,
        patient=lambda place, row: 1000 * place + row // 4,
        ward=lambda place, row: f"W{place}{row // 3}",
        age=lambda place, row: 40 + row % 20,
    )
    outcome = invoke("init", *files, "--response", "y")
    text = " ".join(outcome.output.split())
    assert "patient: 30 values in 120 rows: do these identify a patient or a ward?" in text
    assert "--group ward writes (1 | site:ward)" in text
    assert load_study("study.toml").model.formula == "y ~ x + age + site"
    again = ["--response", "y", "--group", "patient", "--drop", "ward", "--force"]
    assert invoke("init", *files, *again).exit_code == 0
    study = load_study("study.toml")
    assert study.model.formula == "y ~ x + age + site + (1 | site:patient)"
    assert len(study.build().regression.groups["one"]) == 15


def test_identifiers_are_those_of_all_rows_and_a_covariate_of_few_values_is_kept(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    words = ["none", "mild", "bad", "worse", "worst"]
    files = columns(
        tmp_path,
        5,
        grade=lambda place, row: words[row],
        dose=lambda place, row: 10 * (row * row + 3 * place),
        code=lambda place, row: f"P{place}-{row}",
    )
    outcome = invoke("init", *files, "--response", "y")
    assert "code: it identifies rows" in outcome.output
    assert load_study("study.toml").model.formula == "y ~ x + grade + dose + site"


def test_trials_are_asked_for_and_events_of_other_codes_are_turned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = columns(
        tmp_path,
        n=lambda place, row: 20 + row % 7,
        k=lambda place, row: row % 5,
        time=lambda place, row: 1 + row * 0.5,
        status=lambda place, row: 1 + row % 2,
        cause=lambda place, row: row % 3,
    )
    asked = ["--response", "k", "--family", "binomial", "--drop", "y", "--force"]
    assert invoke("init", *files, *asked, answers="m\nn\n").exit_code == 0
    assert load_study("study.toml").model.options["trials"] == "n"
    assert "n" not in load_study("study.toml").model.formula.split()
    outcome = invoke("init", *files, "--response", "Surv(time, status)", "--force")
    assert outcome.exit_code == 0, outcome.output
    assert load_study("study.toml").model.formula.startswith("Surv(time, I(status > 1)) ~")
    assert "seen where status is 2" in " ".join(outcome.output.split())
    outcome = invoke("init", *files, "--response", "Surv(time, cause)", "--force")
    assert outcome.exit_code == 2
    assert "has the codes 0, 1, 2: say which is the event" in outcome.output
    asked = ["--response", "Surv(time, cause)", "--force", "--event"]
    assert "unknown" in invoke("init", *files, *asked, "dead").output
    assert invoke("init", *files, *asked, "2").exit_code == 0
    study = load_study("study.toml")
    assert study.model.formula.startswith("Surv(time, cause == 2) ~")
    events = study.build().sites.site("one")["event"]
    assert int(np.sum(events)) == sum(row % 3 == 2 for row in range(40))


def test_levels_weights_and_the_reference_are_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = columns(
        tmp_path,
        sat=lambda place, row: ["Low", "Medium", "High"][row % 3],
        arm=lambda place, row: "ab"[row % 2],
        persons=lambda place, row: 1 + row % 4,
    )
    asked = ["--levels", "sat=Low, Medium,High", "--weights", "persons", "--reference", "arm=b"]
    outcome = invoke("init", *files, "--response", "sat", *asked)
    assert outcome.exit_code == 0, outcome.output
    study = load_study("study.toml")
    assert study.model.options["family"] == "ordinal"
    assert study.model.options["weights"] == "persons"
    assert study.model.options["levels"] == {"sat": ["Low", "Medium", "High"], "arm": ["b", "a"]}
    assert study.model.formula == "sat ~ y + x + arm + site"
    assert "80 rows are 200 persons" in " ".join(outcome.stdout.split())
    wrong = invoke("init", *files, "--response", "sat", "--levels", "sat", "--force")
    assert "give COLUMN=LEVEL,LEVEL,..., as in --levels stage=I,II,III" in wrong.stderr


def test_an_event_in_words_is_the_one_that_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [["alive", "dead", "Dead"], ["alive", "dead", "lost"]]
    files = columns(
        tmp_path,
        time=lambda place, row: 1 + row * 0.5,
        status=lambda place, row: words[place][row % 3],
        ward=lambda place, row: f"{'ab'[place]}{row // 10}",
    )
    asked = ["--response", "Surv(time, status)", "--yes"]
    outcome = invoke("init", *files, *asked)
    assert "say which is the event: --event LEVEL" in outcome.output
    outcome = invoke("init", *files, *asked, "--event", "dead")
    assert outcome.exit_code == 0, outcome.output
    assert "--group ward writes (1 | site:ward)" in " ".join(outcome.output.split())
    found = load_study("study.toml").build().sites
    # rows are in the order of falling times
    for name, place in (("one", 0), ("two", 1)):
        wanted = [words[place][row % 3].lower() == "dead" for row in reversed(range(40))]
        assert np.asarray(found.site(name)["event"]).astype(bool).tolist() == wanted
    assert (
        "needs --response"
        in invoke("init", *files, "--response", "y", "--event", "1", "--force").output
    )


def test_an_event_is_known_in_the_writing_of_each_site_or_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def study_of(codes):
        files = columns(
            tmp_path,
            time=lambda place, row: 1 + row * 0.5,
            status=lambda place, row: codes[place][row % 3],
            age=lambda place, row: 50 + row,
        )
        asked = ("--response", "Surv(time, status)", "--event", "2", "--yes", "--force")
        return invoke("init", *files, *asked)

    outcome = study_of([["1", "2", "1"], ["1.0", "2.0", "1.0"]])
    assert outcome.exit_code == 0, outcome.output
    found = load_study("study.toml").build().sites
    assert [int(np.sum(found.site(name)["event"])) for name in ("one", "two")] == [13, 13]
    assert study_of([["1", "2", "1"], ["1", "1", "1"]]).exit_code == 0  # all are censored at two
    outcome = study_of([["1", "2", "1"], ["alive", "dead", "alive"]])
    assert outcome.exit_code == 2
    assert "site 'two' has no such value of status, but" in " ".join(outcome.output.split())


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--response", "dyed"),
            "the response 'dyed' is not a column: unknown; did you mean 'died'",
        ),
        (("--response", "died", "--by-site", "arn"), "did you mean 'arm'"),
        (("--response", "died", "--by-site", "record"), "it identifies rows"),
        (("--response", "died", "--reference", "arm=olt"), "unknown; did you mean 'old'"),
        (("--response", "died", "--reference", "age=60"), "the column holds no strings"),
        (("--response", "died", "--reference", "arm"), "give COLUMN=LEVEL"),
        (("--response", "died", "--drop", "arm", "--reference", "arm=old"), "no such term"),
        (("--response", "ward"), "the response 'ward' is missing at oslo, lima"),
        (("--response", "came"), "holds dates"),
        (("--response", "unit"), "'mg' in every row"),
        (("--response", "record"), "holds 120 different strings"),
        (("--response", "died", "--family", "logistic"), "it is called 'bernoulli'"),
        (
            ("--response", "arm", "--family", "gaussian"),
            "holds strings, but family 'gaussian' needs numbers",
        ),
        (("--response", "died", "--family", "cox"), "'cox' needs a response Surv(time, event)"),
        (("--response", "died", "--missing", "drop"), "missing is 'drop'"),
        (("--response", "died", "-o", "study.yaml"), "must end in .toml"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_nearest_that_can(folder, arguments, words):
    outcome = init(*arguments)
    assert outcome.exit_code == 2
    assert words in outcome.stderr
    assert not (folder / "study.toml").exists()


def test_a_response_that_misses_everywhere_at_a_site_is_refused_with_the_site(folder):
    rewritten(folder / "lima.csv", "died", "NA")
    outcome = init("--response", "died")
    assert outcome.exit_code == 2
    assert "'died' has no value at lima: all are missing" in outcome.stderr


def test_a_column_that_misses_everywhere_at_a_site_is_left_out(folder):
    rewritten(folder / "lima.csv", "crp", "NA")
    outcome = init("--response", "died")
    assert outcome.exit_code == 0
    assert "crp: no value at lima" in outcome.stdout
    assert "crp" not in str(load_study("study.toml").model.formula)


def test_a_column_that_says_what_another_says_is_left_out(folder):
    for name in SITES:
        path = folder / f"{name}.csv"
        rewritten(path, "unit", lambda row: ["0.5", "2.25"][row % 2])  # of the arm
        rewritten(path, "crp", lambda row: str(3 * (1 + row % 3) - 40))  # of the grade
    outcome = init("--response", "died")
    assert outcome.exit_code == 0
    assert "unit: it duplicates arm" in outcome.stdout
    assert "crp: it duplicates grade" in outcome.stdout
    assert load_study("study.toml").model.formula == "died ~ age + arm + grade + site"
    rewritten(folder / "bern.csv", "unit", lambda row: ["0.5", "2.25"][row % 5 == 1])
    again = init("--response", "died", "--force")
    assert again.exit_code == 0
    assert "unit: " not in again.stdout


def test_the_response_in_other_words_is_no_term(folder):
    for name in SITES:
        path = folder / f"{name}.csv"
        first, *rows = path.read_text().splitlines()
        separator = SITES[name]
        said = ["1" if row.endswith("yes") else "0" for row in rows]
        rows = [f"{row}{separator}{one}" for row, one in zip(rows, said, strict=True)]
        path.write_text("\n".join([f"{first}{separator}dead", *rows, ""]))
    assert "dead: it duplicates died" in init("--response", "died").stdout


def test_rows_of_which_none_is_complete_are_refused_with_the_column(folder):
    rewritten(folder / "bern.csv", "crp", lambda row: "NA" if row < 30 else "3.1")
    rewritten(folder / "bern.csv", "age", lambda row: "61.5" if row < 30 else "NA")
    outcome = init("--response", "died")
    assert outcome.exit_code == 2
    assert "bern has no complete row; 'crp' is missing most often" in outcome.stderr


def test_a_slip_in_a_number_is_said_with_its_line(folder):
    rewritten(folder / "oslo.csv", "age", lambda row: "6O" if row == 3 else f"{50 + row}.5")
    text = " ".join(init("--response", "died").stdout.split())
    assert "age: at oslo 1 of 40 values are not numbers, the first in line 5" in text


def test_nothing_is_written_over(folder):
    (folder / "study.toml").write_text("mine")
    outcome = init("--response", "died")
    assert outcome.exit_code == 2
    assert "already exists" in outcome.stderr
    assert (folder / "study.toml").read_text() == "mine"


# --- algorithms and examples ---------------------------------------------------------------------


def test_the_algorithms_are_a_line_each(monkeypatch):
    lines = invoke("algorithms").stdout.splitlines()
    assert [line.split()[0] for line in lines[: len(ALGORITHMS)]] == list(ALGORITHMS)
    assert all(len(line) <= 100 for line in lines)


@pytest.mark.parametrize("name", ["few_rounds", "de_sghmc", "decentralized_ula"])
def test_everything_about_an_algorithm_is_said_by_name(name):
    text = " ".join(invoke("algorithms", name).stdout.split())
    told = json.loads(invoke("algorithms", name, "--json").stdout)[name]
    assert " ".join(told["bias"].split()) in text
    assert all(argument in text for argument in told["arguments"])


def test_an_unknown_algorithm_or_example_is_answered_with_the_nearest(tmp_path):
    assert "did you mean 'few_rounds'" in invoke("algorithms", "few_round").stderr
    assert "did you mean 'pneumonia'" in invoke("examples", "pneumona").stderr


def test_an_example_is_copied_with_its_tables_and_never_over_another(tmp_path):
    assert "pneumonia" in invoke("examples").stdout
    assert invoke("examples", "pneumonia", "--to", tmp_path).exit_code == 0
    copied = sorted(path.name for path in (tmp_path / "pneumonia").iterdir())
    assert copied == ["aarhus.csv", "bilbao.csv", "cork.csv", "study.toml"]
    assert invoke("examples", "pneumonia", "--to", tmp_path).exit_code == 2
    assert invoke("examples", "wine_softmax", "--to", tmp_path).exit_code == 0
    assert load_study(tmp_path / "wine_softmax.toml").title


def test_the_example_of_three_tables_is_what_init_writes_of_them(tmp_path, monkeypatch):
    assert invoke("examples", "pneumonia", "--to", tmp_path).exit_code == 0
    monkeypatch.chdir(tmp_path / "pneumonia")
    study = (tmp_path / "pneumonia" / "study.toml").read_text()
    title = tomllib.loads(study)["title"]
    files = ["aarhus.csv", "bilbao.csv", "cork.csv"]
    options = ["--response", "died", "--by-site", "arm", "--title", title, "-o", "again.toml"]
    options += ["--yes"]
    assert invoke("init", *files, *options).exit_code == 0
    assert (tmp_path / "pneumonia" / "again.toml").read_text() == study


def test_intervals_of_persons_are_written_with_a_title_without_a_formula(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("oslo", "lima"):
        lines = ["patient,start,stop,death,age"]
        for patient in range(30):
            age, last = rng.normal(60, 9), patient % 3 == 0
            lines += [
                f"{patient},0,5,0,{age:.1f}",
                f"{patient},5,{9 + patient},{int(last)},{age:.1f}",
            ]
        (tmp_path / f"{name}.csv").write_text("\n".join([*lines, ""]))
    ended = invoke(
        "init", "oslo.csv", "lima.csv", "--response", "Surv(start, stop, death)", "--yes"
    )
    assert ended.exit_code == 0, ended.output
    assert "patient identifies the person of each interval" in " ".join(ended.output.split())
    study = tomllib.loads((tmp_path / "study.toml").read_text())
    assert study["title"] == "Time to death, 2 sites"
    assert study["model"]["persons"] == "patient"
    assert invoke("check", "study.toml").exit_code == 0
    told = invoke("describe", "study.toml").output
    assert "rows of these persons" in told
    assert "analysed persons" in told


@pytest.mark.parametrize("hidden", ["\u200b", "\u00ad", "\u2060"])
@pytest.mark.parametrize("dirty", [0, 1])
def test_the_clean_spelling_is_proposed_and_not_the_one_with_a_hidden_character(
    hidden, dirty, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    arms = [["placebo", "verum"], ["placebo", "verum"]]
    arms[dirty][0] = f"pla{hidden}cebo"
    files = columns(tmp_path, 60, arm=lambda place, row: arms[place][row % 2])
    outcome = invoke("init", *files, "--response", "y", "--yes")
    assert outcome.exit_code == 0, outcome.output
    changes = tomllib.loads((tmp_path / "study.toml").read_text())["harmonise"]
    assert changes == {("one", "two")[dirty]: {"recode": {"arm": {arms[dirty][0]: "placebo"}}}}
    assert "arm[verum]" in load_study("study.toml").build().regression.names


def test_the_command_that_is_named_next_registers_a_study_of_tables(folder: Path) -> None:
    made = init("--response", "died", "--yes")
    assert made.exit_code == 0, made.output
    (line,) = (line for line in made.output.splitlines() if line.startswith("  consortia register"))
    registered = invoke(*line.split()[1:])
    assert registered.exit_code == 0, registered.output
    study = load_study(folder / "study.toml")
    assert study.registered is not None
    unit = study.registered.registration.numbers["age"]
    assert unit.sd == float(f"{unit.sd:.2g}")  # some 9.1, and the mean as far
    assert unit.mean == round(unit.mean, 1)
    assert abs(unit.mean - 60) < 3

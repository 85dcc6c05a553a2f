"""A study file with [propensity]: first who was treated, then the outcome with weights."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import consortia
from consortia.cli.commands import app
from consortia.federation.governance import terms_of
from consortia.store.metadata import recorded
from consortia.study.build import Study, load_study
from consortia.study.propensity import with_weights
from tests.parity import launch
from tests.refusals import refused

STUDY = """
title = "Hormone therapy"
question = "arm"
[data]
files = ["s0.csv", "s1.csv", "s2.csv"]
[model]
formula = "Surv(months, event) ~ arm"
family = "cox"
prior = { coefficients = "normal(0, 1000)" }
levels = { arm = ["none", "hormone"] }
[propensity] # who was treated
formula = "I(arm == 'hormone') ~ age + size + grade"
estimand = "overlap"
[model.describe]
cells = 5
[algorithm]
name = "few_rounds"
[output]
figure = false
"""
WEIGHTS = "1 + 2*(arm == 'hormone')"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the study and the files of its sites."""
    with (Path(__file__).parents[1] / "references" / "gbsg.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    for place in range(3):
        with (tmp_path / f"s{place}.csv").open("w") as lines:
            writer = csv.DictWriter(lines, rows[0])
            writer.writeheader()
            writer.writerows(row for row in rows if int(row["id"]) % 3 == place)
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path


def changed(folder: Path, old: str, new: str) -> Study:
    text = STUDY.replace(old, new)
    assert text != STUDY
    (folder / "study.toml").write_text(text)
    return load_study(folder / "study.toml")


def test_without_weights_it_is_the_study_of_who_was_treated(folder: Path) -> None:
    study = load_study(folder / "study.toml")
    assert study.awaits_weights
    assert study.model.formula == "I(arm == 'hormone') ~ age + size + grade"
    assert study.model.options == {"family": "bernoulli", "levels": {"arm": ["none", "hormone"]}}
    assert load_study(folder / "study.toml").propensity is not None
    assert (study.name, study.title) == ("study-propensity", "Hormone therapy: who was treated")
    assert study.question is None
    regression = study.build().regression
    assert regression is not None
    assert regression.names == ("age", "size", "grade[g2]", "grade[g3]")


def test_with_weights_it_is_the_study_of_the_outcome(folder: Path) -> None:
    before = terms_of(load_study(folder / "study.toml")).study
    text = with_weights(STUDY, WEIGHTS)
    assert tomllib.loads(text)["propensity"]["estimand"] == "overlap"
    (folder / "study.toml").write_text(text)
    study = load_study(folder / "study.toml")
    assert not study.awaits_weights
    assert (study.name, study.question) == ("study", "arm")
    assert study.model.options["weights_are"] == "sampling"
    regression = study.build().regression
    assert regression is not None
    rows = regression.rows.site("s1")
    described = regression.specification.question.described
    assert described is not None
    assert described.treated == "I(arm == 'hormone')"
    assert set(np.round(rows["weight"] / rows["weight"].min(), 6)) == {1.0, 3.0}
    after = terms_of(study)
    assert after.study != before
    (folder / "study.toml").write_text(with_weights(STUDY, f"2*({WEIGHTS})"))
    assert terms_of(load_study(folder / "study.toml")).study != after.study


def test_a_treatment_of_two_words_is_stabilised_by_its_share(folder: Path) -> None:
    words = STUDY.replace("I(arm == 'hormone') ~", "arm ~").replace('"overlap"', '"ATE"')
    (folder / "study.toml").write_text(words)
    study = load_study(folder / "study.toml")
    assert study.model.formula == "I(arm == 'hormone') ~ age + size + grade"
    run = CliRunner().invoke(app, ["run", str(folder / "study.toml"), "-o", str(folder / "out")])
    assert run.exit_code == 0, run.output
    written = load_study(folder / "out" / "study.toml")
    assert written.propensity is not None
    text = str(written.propensity.weights)
    share, other = 246 / 686, 440 / 686
    assert text.startswith(f"({share:.10g}*I(arm == 'hormone') + {other:.10g}*(1 - I(")
    # balance, too, is of the arms
    described = written.model.question.described if written.model.question else None
    assert described is not None
    assert described.treated == "I(arm == 'hormone')"
    # words whose order is not given: before anything is sampled
    unordered = words.replace('levels = { arm = ["none", "hormone"] }', "")
    (folder / "study.toml").write_text(unordered)
    with refused(argument="stabilise", match=r"\(arm == 'none'\)"):
        load_study(folder / "study.toml").build()


def test_levels_and_scales_of_the_treatment_go_with_its_run(folder: Path) -> None:
    changed(folder, "[model.describe]\ncells = 5\n", "")
    done = CliRunner().invoke(app, ["register", str(folder / "study.toml")])
    assert done.exit_code == 0, done.output
    text = (folder / "study.toml").read_text()
    study = load_study(folder / "study.toml")
    assert study.registered is not None
    assert {*study.registered.numbers} == {"age", "size", "response()"}
    (folder / "study.toml").write_text(with_weights(text, WEIGHTS))
    assert load_study(folder / "study.toml").registered is None
    done = CliRunner().invoke(app, ["register", str(folder / "study.toml")])
    assert done.exit_code == 0, done.output
    study = load_study(folder / "study.toml")
    assert study.registered is not None
    assert {*study.registered.numbers} == {"time()", "event()", "weights()"}


def test_a_run_has_both_and_can_be_reported(folder: Path) -> None:
    run = CliRunner().invoke(app, ["run", str(folder / "study.toml"), "-o", str(folder / "out")])
    assert run.exit_code == 0, run.output
    first, second = (consortia.open_run(folder / name) for name in ("out-propensity", "out"))
    text = consortia.propensity_weights(first, estimand="overlap")
    settings: Any = recorded(second, "settings")
    assert settings["model"]["weights"] == settings["propensity"]["weights"] == text
    assert "widths are those of a sandwich estimator" in str(consortia.summary(second))
    assert text in (folder / "out" / "study.toml").read_text()
    page = CliRunner().invoke(app, ["report", str(folder / "out"), "-o", str(folder / "out.html")])
    assert page.exit_code == 0, page.output
    content = " ".join((folder / "out.html").read_text().split())
    assert "Balance: standardised mean differences" in content
    assert "weights for the effect in patients who might have had either treatment" in content
    assert (folder / "study.toml").read_text() == STUDY
    again = CliRunner().invoke(app, ["resume", str(folder / "out")])
    assert again.exit_code == 0, again.output
    done = CliRunner().invoke(
        app,
        ["register", str(folder / "study.toml"), "--propensity", str(folder / "out-propensity")],
    )
    assert done.exit_code == 0, done.output
    study = load_study(folder / "study.toml")
    assert study.propensity is not None
    assert study.propensity.weights == text
    twice = CliRunner().invoke(
        app, ["register", str(folder / "study.toml"), "--propensity", str(folder / "out")]
    )
    assert twice.exit_code == 2
    assert "that has no weights yet" in twice.output
    changed(folder, "~ age + size", "~ size")
    other = CliRunner().invoke(
        app,
        ["register", str(folder / "study.toml"), "--propensity", str(folder / "out-propensity")],
    )
    assert other.exit_code == 2
    assert "run this study first" in " ".join(other.output.split())


@pytest.mark.engines
def test_processes_of_mpi_sample_both_studies_with_the_same_weights(folder: Path) -> None:
    out = folder / "out"
    words = ("run", str(folder / "study.toml"), "--engine", "mpi", "-o", str(out))
    job = launch.ranks(2, "-m", "consortia", *words)
    assert job.returncode == 0, job.stderr
    first, second = (consortia.open_run(folder / name) for name in ("out-propensity", "out"))
    settings: Any = recorded(second, "settings")
    text = consortia.propensity_weights(first, estimand="overlap")
    assert settings["propensity"]["weights"] == text
    built = load_study(out / "study.toml").build(data_folder=folder)
    more: dict[str, Any] = {"seed": 3, "progress": False, "metadata": built.metadata}
    alone = consortia.sample(built.model, built.sites, built.algorithm, **more)
    there, here = (np.asarray(tree["posterior"]["coefficients"]) for tree in (second, alone))
    assert abs(there.mean() - here.mean()) < 0.15 * here.std()
    assert there.std() == pytest.approx(here.std(), rel=0.1)


@pytest.mark.parametrize(
    ("old", "new", "argument", "match"),
    [
        ("~ arm", "~ arm + (1 | site)", "model.formula", "a baseline of each site"),
        ('question = "arm"', 'question = "age"', "question", "is not a column of a term"),
        ("[propensity]", 'weights = "age"\n[propensity]', "propensity", "it gives the weights"),
        ("~ age", "age", None, "propensity.formula is"),
        ('"overlap"', '"ATC"', "propensity.estimand", None),
        ('"overlap"', '"overlap"\ntrim = 0.6', "propensity.trim", None),
        (
            "[algorithm]",
            '[compare]\nformula = "event ~ arm"\n[algorithm]',
            "propensity",
            r"leave \[compare\] out",
        ),
        ("[algorithm]", "[registered]\n[algorithm]", "registered", "age is missing"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    folder: Path, old: str, new: str, argument: str | None, match: str | None
) -> None:
    with refused(argument=argument, match=match):
        changed(folder, old, new)

"""The probability that an honest run ends early, from runs with noise of their own."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cli.irises import invoke

from consortia.core.contract import Plan
from consortia.engines.messages.settled import TRIED
from consortia.errors import SiteRefusedError, WarmupError
from consortia.federation.governance.early_end import beforehand, early_end
from consortia.federation.governance.proposal import proposed
from consortia.federation.governance.terms import terms_of
from consortia.federation.rehearsal import Finding, attacks, rehearsed
from consortia.federation.rehearsal.stage import Stage
from consortia.study.build import Study, load_study, study_of
from tests.federation.hospitals import HOSPITALS, NAMES
from tests.federation.hospitals import study as hospitals_study
from tests.federation.same_rows import FORMULA

PLAIN = {"formula": "ill ~ age + dose", "require": "", "missing": "complete", "more": ""}
REASON = "the site's policy does not permit this (maximum_settled_rows); the site has the details"


def refusal() -> SiteRefusedError:
    return SiteRefusedError(("north",), waited=0.0, reason=REASON)


@pytest.fixture
def north(tmp_path: Path) -> Path:
    """A file in which a patient's dose lies far out."""
    head, *rows = (HOSPITALS / "north.csv").read_text().splitlines()
    age, _, *rest = rows[0].split(",")
    path = tmp_path / "north.csv"
    path.write_text("\n".join([head, ",".join([age, "40", *rest]), *rows[1:], ""]))
    return path


def honest(
    monkeypatch: pytest.MonkeyPatch,
    path: Path,
    ends: list[Exception | None],
    *,
    answers: int = 2,
    names: tuple[str, ...] = NAMES,
) -> tuple[Finding, int]:
    """Return what is found of runs that end so, and how many there were."""
    outcomes, stages = iter(ends), list[Path]()

    def run(stage: Stage) -> SimpleNamespace:
        stages.append(stage.folder)
        end = next(outcomes)
        if end is not None:
            raise end
        return SimpleNamespace(attrs={"site_noise": '{"north": 2.0}'})

    monkeypatch.setattr(Stage, "run", run)
    monkeypatch.setattr(attacks, "settled_rows", lambda *_: ["0 of 120 rows"] * answers)
    text = FORMULA.format(**PLAIN)
    listed = ", ".join(f'"{name}.csv"' for name in names)
    (path.parent / "study.toml").write_text(
        text.replace('"north.csv", "south.csv", "west.csv"', listed)
    )
    findings: Iterator[Finding] = rehearsed(path.parent / "study.toml", path)
    finding = next(one for one in findings if one.attack == "an honest run")
    assert len(set(stages)) == len(stages)  # each with secrets of its own
    return finding, len(stages)


def test_one_run_of_five_that_ends_early_is_refused_with_its_probability(
    monkeypatch: pytest.MonkeyPatch, north: Path
) -> None:
    found, runs = honest(monkeypatch, north, [None, None, refusal(), None, None])
    assert runs == 5
    assert found.refused
    assert (found.numbers["runs"], found.numbers["ended_early"]) == (5, 1)
    assert found.numbers["probability"] == pytest.approx(0.25)
    assert "Of 5 runs with noise of their own 1 end early" in found.sentence
    assert "the probability is about 0.25" in found.sentence
    # what to change: the column with the value far out, and only it
    assert "Farthest out, in standard deviations: dose (10." in found.sentence
    assert "age (" not in found.sentence


def test_runs_without_an_early_end_are_not_refused_and_have_a_limit(
    monkeypatch: pytest.MonkeyPatch, north: Path
) -> None:
    found, runs = honest(monkeypatch, north, [None] * 5)
    assert (runs, found.refused) == (5, False)
    assert found.numbers["noise"] == 2.0
    assert found.numbers["probability"] == pytest.approx(0.5 / 6)
    assert found.numbers["probability_at_most"] == pytest.approx(1 - 0.05**0.2)
    assert "Farthest out" not in found.sentence


def test_a_run_without_proposals_that_come_near_ends_early_with_its_own_advice(
    monkeypatch: pytest.MonkeyPatch, north: Path
) -> None:
    end = WarmupError("few_rounds: no proposals came near enough. Ask for fewer columns.")
    found, runs = honest(monkeypatch, north, [end, None, None, None, None])
    assert (runs, found.refused) == (5, True)
    assert "Ask for fewer columns." in found.sentence
    assert "Farthest out" not in found.sentence


@pytest.mark.parametrize(("answers", "most"), [(0, 1), (2, 2)])
def test_runs_that_all_end_early_are_not_repeated(
    monkeypatch: pytest.MonkeyPatch, north: Path, answers: int, most: int
) -> None:
    found, runs = honest(monkeypatch, north, [refusal()] * 5, answers=answers)
    assert (runs, found.refused) == (most, True)
    assert found.numbers["probability_at_most"] == 1.0


def test_many_sites_have_fewer_runs(monkeypatch: pytest.MonkeyPatch, north: Path) -> None:
    names = ("north", *(f"s{number}" for number in range(11)))
    found, runs = honest(monkeypatch, north, [None] * 5, names=names)
    assert runs == 2
    assert found.numbers["probability_at_most"] > 0.5


def test_the_limit_holds_in_95_of_100_rehearsals() -> None:
    rng = np.random.default_rng(0)
    for chance in (0.02, 0.2, 0.6):
        ended = rng.binomial(5, chance, 4000)
        limits = np.array([early_end(k, 5)[1] for k in range(6)])
        assert np.mean(limits[ended] >= chance) > 0.94  # four standard errors below .95
        means = np.array([early_end(k, 5)[0] for k in range(6)])
        assert abs(means[ended].mean() - (5 * chance + 0.5) / 6) < 0.01


def counted(folder: Path, formula: str, family: str = "poisson") -> Study:
    text = FORMULA.format(**{**PLAIN, "formula": formula}).replace('"bernoulli"', f'"{family}"')
    return study_of(tomllib.loads(text), folder / "study.toml")


@pytest.mark.parametrize(
    ("formula", "family", "copies", "exposed"),
    [
        ("ill ~ age + dose", "poisson", 1, True),
        ("ill ~ age + I(log(dose + 9))", "poisson", 1, False),  # takes it as it is no more
        ("ill ~ age", "poisson", 1, False),
        ("ill ~ age + dose", "bernoulli", 1, False),
        ("ill ~ age + dose", "poisson", 4, False),  # more rows
    ],
)
def test_the_probability_beforehand_is_that_of_studies_like_it(
    tmp_path: Path, north: Path, formula: str, family: str, copies: int, exposed: bool
) -> None:
    head, *rows = north.read_text().splitlines()
    north.write_text("\n".join([head, *rows * copies]))
    ended, runs = TRIED[exposed]
    text = beforehand(counted(tmp_path, formula, family), north, "north")
    assert f"a probability of {(ended + 0.5) / (runs + 1):.2f}, at most" in text
    assert f"Of {runs} made-up studies" in text
    assert "if yours is like them: 3 to 25 sites of 60 to 3,000 rows" in text
    assert ("as far out as yours of dose" in text) == exposed
    assert ("Ask for log() of the column." in text) == exposed


def test_a_file_is_read_as_the_study_says_of_its_site(tmp_path: Path, north: Path) -> None:
    head, *rows = north.read_text().replace("dose", "Dosis für").splitlines()
    north.write_text("\n".join([head, *rows, ""]), encoding="cp1252")
    study = FORMULA.format(**{**PLAIN, "formula": "ill ~ age + dose"})
    study += '\n[harmonise.north]\nencoding = "cp1252"\nrename = { "Dosis für" = "dose" }\n'
    study = study.replace('"bernoulli"', '"poisson"')
    text = beforehand(study_of(tomllib.loads(study), tmp_path / "study.toml"), north, "north")
    assert "as far out as yours of dose" in text


def test_without_rows_or_a_formula_the_probability_is_unknown(tmp_path: Path, north: Path) -> None:
    for given in (
        (counted(tmp_path, "ill ~ age"), None, "north"),
        (study_of(tomllib.loads(hospitals_study()), tmp_path / "study.toml"), north, "north"),
    ):
        assert "is unknown before your rows were tried: consortia site rehearse" in beforehand(
            *given
        )


def test_check_gives_the_probability_and_so_does_the_plan(tmp_path: Path, north: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(FORMULA.format(**PLAIN))
    words = ("site", "check", "--study", path, "--data", north)
    text = " ".join(invoke(*words).stderr.split())
    chance = (TRIED[False][0] + 0.5) / (TRIED[False][1] + 1)
    assert f"Early end Of {TRIED[False][1]} made-up studies" in text
    assert f"a probability of {chance:.2f}" in text
    plans: list[Plan] = []
    text = proposed(terms_of(load_study(path)))
    stage = Stage(path, dict.fromkeys(NAMES, north), tmp_path / "sites", text)

    def on_plan(plan: Plan) -> None:
        plans.append(plan)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage.sample(stage.engine(), on_plan=on_plan)
    ended, runs = (sum(counts) for counts in zip(*TRIED.values(), strict=True))
    assert f"of {runs} ordinary studies {ended} did" in " ".join(plans[0].warnings)

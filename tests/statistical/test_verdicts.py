"""Studies drawn at random, a third of them wrong on purpose: no wrong answer looks healthy.

Each is a file that `consortia check`, `run` and `report` are given, and `consortia.sample` what
they make of it. The true error of its draws is beside the posterior summed on a grid; where the
posterior is Gaussian, that of the method's exact law counts too.

Run it in pieces: CONSORTIA_PIECES=FOLDER keeps every outcome, see `statistical.pieces`.
"""

from __future__ import annotations

import functools
import json
import math
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from cli.irises import invoke
from statistical import drawn
from statistical.pieces import kept

import consortia
from consortia.cli.exits import BAD, UNUSABLE
from consortia.errors import ConsortiaError
from consortia.report.run_report import load_run
from consortia.theory.bias import Problem, law_of

pytestmark = pytest.mark.predicted

WRONG, RIGHT = (0.5, 0.25), (0.1, 0.05)
"""Shift in posterior sds, and relative error of an sd: above the first an answer is wrong, below
the second it is right."""


class Outcome(NamedTuple):
    """How far off a study is, and the words of `check`, `run`, `report` and `sample` on it.

    No answer at all, a refusal or a chain that was not finite, is the word "none".
    """

    shift: float
    spread: float
    words: tuple[str, str, str, str]

    @property
    def wrong(self) -> bool:
        return self.shift > WRONG[0] or self.spread > WRONG[1]

    @property
    def right(self) -> bool:
        return self.shift <= RIGHT[0] and self.spread <= RIGHT[1]

    @property
    def answered(self) -> bool:
        return self.words[1] != "none"


@functools.cache
def outcome(seed: int) -> Outcome:
    """Return the outcome of a study, the one that is kept if there is one."""

    def make() -> Outcome:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of wrong settings, which is right
            return found_in(drawn.study(seed), Path(folder))

    shift, spread, words = kept(f"study-{seed}", make)
    return Outcome(shift, spread, tuple(words))


def found_in(one: drawn.Study, folder: Path) -> Outcome:
    path, directory = drawn.written(one, folder), folder / "run"
    checked = invoke("check", path, "--json", "--code")
    if checked.exit_code == UNUSABLE:  # the step is far beyond what is stable at the start
        assert invoke("run", path, "--output", directory, "--quiet").exit_code == UNUSABLE
        return Outcome(math.inf, math.inf, ("none",) * 4)
    assert checked.exit_code in (0, BAD), checked.output
    check = json.loads(checked.stdout)["verdict"]
    assert (check == "bad") == (checked.exit_code == BAD)
    ran = invoke("run", path, "--output", directory, "--anyway", "--quiet")
    try:
        tree = consortia.sample(
            one.model, one.sites, one.method, **one.table["run"], progress=False
        )
    except ConsortiaError:
        assert ran.exit_code != 0
        return Outcome(math.inf, math.inf, (check, "none", "none", "none"))
    assert ran.exit_code == 0, ran.output
    run = json.loads((directory / "summary.json").read_text())["verdict"]
    report = load_run(directory, code=True).verdict.word
    table = consortia.summary(tree)
    assert table.verdict is not None
    return Outcome(*true_error(one, table), (check, run, report, table.verdict.word))


def true_error(one: drawn.Study, table: Any) -> tuple[float, float]:
    """Return the largest shift and relative error of an sd, of the draws or of the law."""
    true = drawn.posterior(one)
    shifts, spreads = [(table["mean"] - true.mean) / true.sd], [table["sd"] / true.sd - 1]
    if one.kind == "linear" and one.method.name != "federated_hmc":
        problem = Problem(one.model, one.sites)
        law = law_of(one.method, problem)
        if not law.stable:
            return math.inf, math.inf
        shifts.append(law.stationary.mean / problem.near.sd)
        if law.variance_known:
            spreads.append(law.stationary.sd / problem.near.sd - 1)
    return float(np.abs(shifts).max()), float(np.abs(spreads).max())


def held(seeds: Sequence[int]) -> list[Outcome]:
    """Return the outcomes of studies, of which no wrong one is called good by anybody."""
    found = [outcome(seed) for seed in seeds]
    for seed, one in zip(seeds, found, strict=True):
        _, *after = one.words
        assert len(set(after)) == 1, (seed, one)
        if one.wrong:
            assert "good" not in one.words, (seed, one)
    return found


def test_of_a_few_studies_drawn_at_random_no_wrong_answer_is_called_good():
    wrong, right = held((36, 7))
    assert wrong.wrong
    assert right.right


@pytest.mark.slow
def test_of_200_studies_drawn_at_random_no_wrong_answer_is_good_and_few_right_ones_are_bad():
    found = held(range(200))
    wrong = [one for one in found if one.wrong and one.answered]
    right = [one for one in found if one.right]
    assert len(wrong) >= 40  # else there is little that could have been called good
    assert len(right) >= 40  # else a share of 5 % says nothing
    assert sum("bad" in one.words for one in right) <= 0.05 * len(right)

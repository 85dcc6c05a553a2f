"""What the studies on images share."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest

import consortia
from consortia.diagnostics import scores
from consortia.errors import NonFiniteError
from experiments import claims, records
from experiments.claims import Study
from experiments.fa_hmc import classification, fashion_mnist, images
from experiments.fa_hmc.classification import Setting, Task

SETTING = Setting(leapfrog_steps=2, local_steps=3, step_size=0.02, batch_size=20)


@pytest.fixture(scope="module")
def task() -> Task:
    return classification.image_task("digits", seed=0, train_rows=500)


def model_of(task: Task) -> consortia.Model:
    return consortia.models.softmax_regression(task.features, 10)


def test_a_set_without_test_rows_is_split_and_dealt_out_to_ten_clients(task: Task) -> None:
    assert len(task.test["y"]) == 359  # a fifth of 1,797
    assert task.sites.sizes.tolist() == [50] * 10
    assert task.features == 65
    assert (task.test["x"][:, -1] == 1).all()
    assert "359 held out" in task.note


def test_the_curve_scores_the_average_over_all_draws_so_far(task: Task) -> None:
    model = model_of(task)
    points = classification.curve(model, task, SETTING, rounds=6, seed=4)
    assert [point["round"] for point in points] == [1, 2, 3, 5, 6]
    algorithm = consortia.fa_hmc(0.02, 2, 3, batch_size=20)
    tree = consortia.sample(
        model, task.sites, algorithm, rounds=6, seed=4, progress=False, chains=1
    )
    for point in points:
        some = tree["posterior"].dataset.isel(draw=slice(0, point["round"]))
        expected = scores(consortia.predict(some, model, task.test), task.test["y"])
        for name in classification.SCORES:
            # the same draws, averaged in other blocks of float32
            assert point[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-6)


def test_a_sweep_keeps_the_step_size_with_the_least_loss_and_says_which_diverged(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def curve(model: Any, task: Task, setting: Setting, rounds: int, seed: int) -> Any:
        if setting.step_size > 1:
            raise NonFiniteError("too large", round=3, chain=0, site=None)
        loss = 100 * abs(setting.step_size - 0.1) + seed
        return [{"round": rounds, "accuracy": 0.5, "brier": 0.5, "ece": 0.1, "nll": loss}]

    monkeypatch.setattr(classification, "curve", curve)
    candidates = {"K = 2": [SETTING._replace(step_size=size) for size in (0.02, 0.1, 0.5, 9.0)]}
    (found,) = classification.sweep(
        model_of(task), task, candidates, classification.Lengths(3, runs=3), seed=5
    )
    assert found["tried"][3] == {"step_size": 9.0, "diverged_in_round": 3}
    assert found["setting"]["step_size"] == 0.1
    assert [run[-1]["nll"] for run in found["runs"]] == [5, 6, 7]

    hopeless = {"K = 2": [SETTING._replace(step_size=9.0)]}
    with pytest.raises(RuntimeError, match="every step size diverged"):
        classification.sweep(model_of(task), task, hopeless, classification.Lengths(3), seed=5)


def test_a_setting_that_was_tuned_alone_is_compared_with_no_finished_one() -> None:
    def part(label: str, accuracy: float) -> dict[str, Any]:
        scored = {"round": 200, "accuracy": accuracy, "brier": 0.2, "ece": 0.1, "nll": 4e3}
        tried = [{"step_size": step} for step in (1e-3, 2e-3, 3e-3, 4e-3)]
        setting = {"step_size": 2e-3}
        return {"label": label, "setting": setting, "tried": tried, "runs": [[scored]]}

    leapfrog = [part("K = 1", 0.7), part("K = 10, 50 rounds", 0.6)]
    local = [part("T = 1", 0.5), part("T = 10", 0.7), part("T = 20", 0.7), part("T = 50", 0.7)]
    begun = part("T = 100, 50 rounds", 0.4)
    alone = fashion_mnist.findings({"leapfrog": leapfrog, "local": local})
    assert fashion_mnist.findings({"leapfrog": leapfrog, "local": [*local, begun]}) == alone
    assert alone["fig4-worst-all"].value >= 1  # in accuracy, whatever else was begun
    both = {name: {"leapfrog": leapfrog, "local": []} for name in images.CLASSES}
    assert not images.findings(both)


# --- what notes and causes tell of the stored records ---------------------------------------------

PAPER = claims.read("fa-hmc")
TOLD = re.compile(r"(?<![\d.])(?:\.\d{4}|[34]\d{3})(?![\d.]*\d)")
"""Scores in a text: four decimals, or an NLL."""


def numbers(of: Any) -> Iterator[float]:
    if isinstance(of, (dict, list)):
        for one in of.values() if isinstance(of, dict) else of:
            yield from numbers(one)
    elif isinstance(of, (int, float)):
        yield float(of)


def told_in_no_record(study: Study) -> list[str]:
    """Return the scores in a study's notes and causes that none of its records has."""
    stored = records.stored(PAPER, study).values()
    there = [one for record in stored for one in numbers(record["results"])]
    texts = "\n".join([study.notes, *(claim.why for claim in study.claims)])
    return [
        told
        for told in TOLD.findall(texts)
        if min(abs(float(told) - one) for one in there) > (0.501e-4 if "." in told else 0.501)
    ]


@pytest.mark.parametrize("name", ["fashion_mnist", "neural_network", "images"])
def test_a_score_that_a_note_tells_stands_in_a_record(name: str) -> None:
    (study,) = PAPER.chosen(name)
    assert told_in_no_record(study) == []
    planted = dataclasses.replace(study, notes="The end is at .9876 and 3999, after 10,000 rows.")
    assert told_in_no_record(planted) == [".9876", "3999"]


def test_what_is_told_of_the_orders_in_figures_3_and_4_is_what_the_record_shows() -> None:
    (study,) = PAPER.chosen("fashion_mnist")
    full = records.stored(PAPER, study)["full"]["results"]
    by_k = {part["label"]: part for part in full["leapfrog"]}
    by_t = {
        part["label"]: part for part in classification.with_fifty(full["local"], [*by_k.values()])
    }
    assert len(by_t) == 5

    def at_round(part: dict[str, Any], score: str, number: int) -> float:
        """Return a loss of the tuned run."""
        (point,) = (point for point in part["runs"][0] if point["round"] == number)
        return -point[score] if score == "accuracy" else point[score]

    def tuned_for(part: dict[str, Any], score: str) -> float:
        """Return the least loss after 50 rounds of all step sizes."""
        losses = [-one[score] if score == "accuracy" else one[score] for one in part["tried"]]
        return min(losses)

    for score in classification.SCORES:
        others = [part for label, part in by_t.items() if label != "T = 1"]
        worst = [
            at_round(by_t["T = 1"], score, r) - max(at_round(o, score, r) for o in others)
            for r in (50, 200)
        ]
        few = [
            at_round(by_k["K = 1"], score, r) - at_round(by_k["K = 10"], score, r)
            for r in (50, 200)
        ]
        expected = [True, score != "ece"]
        assert [one > 0 for one in worst] == expected, score
        assert [one > 0 for one in few] == expected, score
        assert tuned_for(by_t["T = 1"], score) > max(tuned_for(o, score) for o in others)
        assert tuned_for(by_k["K = 1"], score) > tuned_for(by_k["K = 10"], score)
    gaps = [at_round(o, "ece", 200) - at_round(by_t["T = 1"], "ece", 200) for o in others]
    assert (round(min(gaps), 3), round(max(gaps), 3)) == (0.003, 0.007)

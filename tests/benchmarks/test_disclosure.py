"""Ordinary studies under the policy that is proposed: the table of a file, and a study of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PASSED = {"family": "poisson", "levels": False, "messages": 3, "without": 3, "apart": 0.05}


@pytest.fixture
def disclosure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import disclosure

    return disclosure


def run(disclosure: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["disclosure", *words])
    disclosure.main()


def test_the_table_counts_what_ended_what_took_longer_and_what_differs(
    disclosure: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    studies: list[dict[str, Any]] = [
        PASSED,
        PASSED | {"messages": 5, "predicted": 0},
        PASSED | {"messages": 6},
        PASSED | {"apart": float("nan"), "family": "gaussian", "predicted": 1},
        {"family": "poisson", "levels": True, "ended": "refused", "predicted": 2},
        {"family": "poisson", "levels": True, "ended": "refused", "predicted": 0},
    ]
    path = tmp_path / "studies.jsonl"
    lines = [json.dumps({"seed": seed} | study) for seed, study in enumerate(studies)]
    path.write_text("\n".join([lines[1], *lines]) + "\n")  # one of them twice
    run(disclosure, monkeypatch, str(path))
    text = capsys.readouterr().out
    assert text.startswith("4 of 6 studies have a posterior\n")
    assert "poisson: 3 of 3" in text
    assert "poisson, levels: 0 of 2" in text
    assert "1 take over 2 messages more, 1 differ" in text
    assert "early ends predicted: 1 of 2" in text
    assert "of 2 with a posterior that were rehearsed: 1" in text


@pytest.mark.slow
def test_a_study_is_run_once_and_has_a_posterior(
    disclosure: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "studies.jsonl"
    run(disclosure, monkeypatch, str(path), "309")
    (study,) = map(json.loads, path.read_text().splitlines())
    assert study["messages"] <= study["without"] + disclosure.MORE_MESSAGES
    assert study["apart"] <= disclosure.RIGHT
    monkeypatch.setattr(disclosure, "run_study", None)
    run(disclosure, monkeypatch, str(path), "309")

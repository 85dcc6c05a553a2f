"""`consortia papers`, beyond what the experiments' tests run."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from consortia.cli.papers import papers


def test_all_papers_run_in_processes_with_the_same_options_and_the_first_fault_is_the_exit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[list[str]] = []
    running: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        name = command[command.index("run") + 1]
        running.append(name)
        assert name != "stale-gradients" or running == [name]  # it measures times
        running.remove(name)
        return subprocess.CompletedProcess(command, 3 * (name == "fsgld"), f"{name}, ran\n")

    monkeypatch.setattr(subprocess, "run", run)
    asked = ["run", "--all", "--figure", "2", "--seed", "5", "--resume", "--out", str(tmp_path)]
    ended = CliRunner().invoke(papers, asked)
    assert ended.exit_code == 3
    names = [line.removesuffix(", ran") for line in ended.output.splitlines()]
    assert len(names) == 5
    assert sorted(command[5] for command in commands) == sorted(names)
    assert names[-1] == "stale-gradients"
    options = ["--seed=5", f"--out={tmp_path}", "--resume", "--figure=2"]
    assert all(command[6:] == options for command in commands)

"""A run of a paper's study that is killed with SIGKILL and repeated makes its finished parts once.

The programs run in a copy of them, in which the table of FSGLD has few rows and visits.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import consortia

ROOT = Path(__file__).parents[2]
OTHERS = ("fa-hmc", "stale-gradients", "decentralized-ma-hmc", "de-sgld")
COMMAND = ("papers", "run", "fsgld", "--figure", "table1", "--scale", "quick", "--store")

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL"),
]


def copied(folder: Path) -> Path:
    """Copy the programs of one paper to where their records are not the project's."""
    shutil.copytree(
        ROOT / "experiments",
        folder / "experiments",
        ignore=shutil.ignore_patterns("results", "__pycache__"),
    )
    changes = {
        "claims.py": [(f'    "{name}": ', f'    # "{name}": ') for name in OTHERS],
        "fsgld/table.py": [('"quick": (4, 100, 100, 1)', '"quick": (2, 60, 20, 1)')],
    }
    for name, pairs in changes.items():
        path = folder / "experiments" / name
        text = path.read_text()
        for old, new in pairs:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path.write_text(text)
    return folder


def started(folder: Path) -> subprocess.Popen[str]:
    """Start the command in a copy."""
    paths = (str(folder), str(Path(consortia.__file__).parents[1]))
    return subprocess.Popen(
        [sys.executable, "-m", "consortia", *COMMAND],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process: subprocess.Popen[str], folder: Path) -> tuple[str, dict]:
    """Return a run's output and the results that it stores."""
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    stored = folder / "experiments" / "results" / "fsgld" / "table.quick.json"
    return said, json.loads(stored.read_text())["results"]


def test_a_killed_run_that_is_repeated_takes_its_finished_parts(tmp_path):
    folder = copied(tmp_path)
    killed = started(folder)
    end = time.monotonic() + 240
    while len(parts := sorted(folder.glob("runs/papers/fsgld/table.quick.0.*.parts/*.json"))) < 2:
        assert killed.poll() is None, killed.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not (folder / "experiments" / "results" / "fsgld").exists()
    kept = {path.name: path.read_text() for path in parts}

    # What a finished part holds is taken, and not made again: a score of it is marked.
    marked = json.loads(kept["dsgld-alike-0.json"])
    marked["made"]["train"] = -0.125
    parts[0].with_name("dsgld-alike-0.json").write_text(json.dumps(marked))
    said, results = finished(started(folder), folder)
    assert said.count("kept from an earlier run") >= len(parts)
    assert "dsgld-alike-0: kept from an earlier run" in said
    assert results["cells"][0]["train"] == -0.125
    assert len(results["cells"]) == 4

    shutil.rmtree(folder / "runs")
    said, whole = finished(started(folder), folder)
    assert "kept" not in said
    assert whole["cells"][1:] == results["cells"][1:]
    assert whole["cells"][0] == json.loads(kept["dsgld-alike-0.json"])["made"] | {
        "seed": 0, "shards": "alike", "method": "dsgld",
    }  # fmt: skip

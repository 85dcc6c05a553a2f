"""The vignette of the R package, built as R builds it, and the package's check."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "r" / "consortia"


ROWS = ("aarhus", "bilbao", "cork", "all sites", "a new site", "sd between sites")


def table_of(text: str) -> dict[str, list[float]]:
    """Return the numbers of the treatment's rows, by name."""
    lines = text.split("arm[treated]      odds ratio")[1].splitlines()[1:7]
    parts = [re.match(r"\s*(\D+?)\s+(\d.*)", line) for line in lines]
    return {part[1]: [float(one) for one in part[2].split()] for part in parts if part}


def has_packages(*names: str) -> bool:
    """Return True if R and these packages are installed."""
    if shutil.which("Rscript") is None:
        return False
    code = f"for (name in c({str(names)[1:-1]})) stopifnot(requireNamespace(name))"
    return subprocess.run(["Rscript", "-e", code], capture_output=True).returncode == 0


@pytest.mark.slow
def test_the_vignette_prints_the_table_of_the_readme_and_the_check_is_clean(
    tmp_path: Path,
) -> None:
    if not has_packages("knitr", "markdown"):  # not at collection: R would start for every suite
        pytest.skip("knitr is not installed in R")
    command = tmp_path / "bin" / "consortia"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m consortia "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "_R_CHECK_FORCE_SUGGESTS_": "false",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }

    def done(*words: str) -> str:
        run = subprocess.run(
            words, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False
        )
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    done("R", "CMD", "build", str(PACKAGE))
    (built,) = tmp_path.glob("consortia_*.tar.gz")
    checked = done("R", "CMD", "check", "--no-manual", built.name)
    assert "WARNING" not in checked
    assert "ERROR" not in checked
    page = tmp_path / "consortia.Rcheck" / "consortia" / "doc" / "consortia.html"
    here = table_of(page.read_text(encoding="utf-8").replace("#&gt; ", ""))
    there = table_of((ROOT / "README.md").read_text(encoding="utf-8"))
    assert here.keys() == there.keys() == {*ROWS}
    for name, values in there.items():
        # One seed, rounded by another number of threads: other draws, some 2,000 effective ones, of
        # which a normal median has the error 1.25 sd/√2,000, and a .025 quantile 2.67 sd/√2,000.
        sd = math.log(values[2] / values[1]) / 3.92
        error = np.array([1.25, 2.67, 2.67]) * sd * math.sqrt(2 / 2000)
        apart = np.abs(np.log(np.array(here[name][:3]) / np.array(values[:3])))
        assert np.all(apart < 4 * error + 0.01), name  # rounded figures

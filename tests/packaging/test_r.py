"""The R package: its own tests, and the three hospitals in one process and by letters."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "r" / "consortia"
needs_r = pytest.mark.skipif(shutil.which("Rscript") is None, reason="R is not installed")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library with the package in it."""
    folder = tmp_path_factory.mktemp("library")
    command = ["R", "CMD", "INSTALL", f"--library={folder}", str(PACKAGE)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def run_r(library: Path, code: str) -> str:
    """Return R's output, with the package loaded and this Python's command."""
    command = f'c("{sys.executable}", "-m", "consortia")'
    start = f'.libPaths(c("{library}", .libPaths())); options(consortia.command = {command})'
    lines = [start, "library(consortia)", "grDevices::pdf(NULL)", code]
    return subprocess.run(
        ["Rscript", "-e", "; ".join(lines)], check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.slow
@needs_r
def test_the_package_passes_its_own_tests(library: Path) -> None:
    tests = PACKAGE / "tests" / "testthat"
    code = f'testthat::test_dir("{tests}", package = "consortia", load_package = "installed")'
    assert "FAIL 0" in run_r(library, code)


@pytest.mark.slow
@needs_r
def test_three_hospitals_from_r_have_the_posterior_by_letters_too(library: Path) -> None:
    said = run_r(library, f'source("{PACKAGE / "demo" / "three_hospitals.R"}")')
    found = [
        (float(mean), float(sd))
        for mean, sd in re.findall(r"coefficients\[age\]\s+(\S+)\s+(\S+)", said)
    ]
    first, *_, last = found
    assert abs(first[0] - 0.97) < 0.05
    assert abs(first[0] - last[0]) < 0.15 * first[1]


@pytest.mark.slow
@needs_r
def test_the_readme_runs_to_its_end(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (PACKAGE / "inst" / "hospitals").glob("*.csv"):
        shutil.copy(path, tmp_path)
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    first, *blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.MULTILINE)
    assert "pip install consortia" in first
    code = "\n".join([first.partition("R CMD INSTALL r/consortia")[2], *blocks])
    (tmp_path / "readme.R").write_text(code)
    monkeypatch.chdir(tmp_path)
    said = run_r(library, 'source("readme.R", echo = TRUE, max.deparse.length = 1e5)')
    assert said.count("Levels: good care bad unknown") == 2
    assert "[1] good" in said.rpartition("verdict(result)")[2]
    assert "20" in said.rpartition("cons_ledger")[2]  # a date: something left

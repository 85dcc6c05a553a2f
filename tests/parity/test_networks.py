"""One study of three hospitals by letters and over MPI: the posterior of one process.

Over vantage6 and NVFlare: tests/federation/test_carried.py; as jobs of Slurm: test_jobs.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import consortia
from consortia.federation.governance import verify
from consortia.federation.governance.gate import LEDGER
from tests.federation.correspondence import Correspondence
from tests.federation.hospitals import HOSPITALS, NAMES, check_posterior, study
from tests.parity.launch import ranks


def test_by_letters_with_keys_and_masked_sums(tmp_path: Path) -> None:
    made, number = Correspondence(tmp_path / "letters", keys=True), 0
    while (progress := made.proceed()).result is None:
        number += 1
        for name in NAMES:
            made.answer(name, number)
    check_posterior(consortia.open_run(progress.result))
    for name in NAMES:
        assert verify(made.site(name) / LEDGER).problem is None


@pytest.mark.engines
def test_over_mpi(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    text = study()
    for name in NAMES:
        text = text.replace(f'"{name}.csv"', f'"{HOSPITALS / name}.csv"')
    path.write_text(text)
    words = ("run", str(path), "--engine", "mpi", "--output", str(tmp_path / "run"))
    done = ranks(3, "-m", "consortia", *words, "--no-reference", "--quiet")
    assert done.returncode == 0, done.stdout + done.stderr
    check_posterior(consortia.open_run(tmp_path / "run"))

"""One study of three hospitals by letters, Flower and MPI: the posterior of one process.

Over vantage6 and NVFlare: tests/federation/test_carried.py, with clients that are killed:
test_killed_clients.py; as jobs of Slurm: test_jobs.py. All are compared with the same draws.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import consortia
from consortia.cli.commands import app
from consortia.cli.network import KEYS, prepared_sites
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
@pytest.mark.xdist_group("flower deployment")
def test_over_flower_with_keys_and_masked_sums(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'consortia[flower]'")
    from consortia.federation.loopback import Loopback

    path, bundle, folder = tmp_path / "study.toml", tmp_path / "app", tmp_path / "folder"
    path.write_text(study())
    made = CliRunner().invoke(app, ["flower", "new", str(path), "--to", str(bundle)])
    assert made.exit_code == 0, made.output
    nodes, lines = prepared_sites(bundle, HOSPITALS, folder, 50), []
    config = {"output": str(tmp_path / "run"), "keys": str(folder / KEYS)}
    with Loopback(tmp_path / "network", nodes) as network:
        ended = network.run(bundle, config=config, show=lines.append, deadline=1200)
    assert ended == "finished:completed", lines
    check_posterior(consortia.open_run(tmp_path / "run"))
    for name in NAMES:
        site = folder / "sites" / name
        assert verify(site / LEDGER).problem is None
        assert "secure_sums" not in (site / "site-policy.toml").read_text()  # plain: refused


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

"""One study of three hospitals over all networks: the posterior of one process.

Over vantage6 and NVFlare: tests/federation/test_carried.py, with clients that are killed:
test_killed_clients.py; as jobs of Slurm: test_jobs.py. All are compared with the same draws. Their
packages do not share an environment: `CONSORTIA_PYTHONS` names further interpreters, as PATH does.
"""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import consortia
from consortia.cli.commands import app
from consortia.cli.network import KEYS, prepared_sites
from consortia.federation.governance import verify
from consortia.federation.governance.gate import LEDGER
from tests.federation.correspondence import Correspondence
from tests.federation.hospitals import HOSPITALS, NAMES, check_posterior, posterior_tree, study
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


CARRIED = "federation/test_carried.py::test_three_"
NETWORKS = {
    "letters": ("consortia", "parity/test_networks.py::test_by_letters_with_keys_and_masked_sums"),
    "Flower": ("flwr", "parity/test_networks.py::test_over_flower_with_keys_and_masked_sums"),
    "MPI": ("mpi4py", "parity/test_networks.py::test_over_mpi"),
    "vantage6": (
        "vantage6.algorithm.tools.mock_client",
        f"{CARRIED}organizations_run_a_study_over_the_mock_client_of_vantage6",
    ),
    "NVFlare": ("nvflare", f"{CARRIED}client_processes_run_a_study_as_a_job_of_nvflare"),
}
"""By network the package that it needs, and the test that leaves a run of the study."""

WITHIN = 4.5
"""Monte Carlo standard errors: by chance one in 2,000 of a run's 60 differences is larger."""


def python_with(package: str) -> str:
    """Return an interpreter that has a package, or skip the test."""
    others = os.environ.get("CONSORTIA_PYTHONS", "").split(os.pathsep)
    for python in [sys.executable, *filter(None, others)]:
        if subprocess.run([python, "-c", f"import {package}"], capture_output=True).returncode == 0:
            return python
    pytest.skip(f"no interpreter has {package}: name one in CONSORTIA_PYTHONS")


def errors(first: Any, second: Any) -> dict[str, float]:
    """Return how far the means of two results are apart, in Monte Carlo standard errors."""
    tables = consortia.summary(first), consortia.summary(second)
    assert set(tables[0].coordinates) == set(tables[1].coordinates)
    rows = {name: [table.row(name) for table in tables] for name in tables[0].coordinates}
    return {
        name: abs(a["mean"] - b["mean"]) / math.hypot(a["mcse_mean"], b["mcse_mean"])
        for name, (a, b) in rows.items()
    }


def check_governed(folder: Path) -> None:
    """Check that three sites have written down what left them, every answer to a query masked."""
    ledgers = [(verify(path), path) for path in folder.rglob(LEDGER)]
    assert sorted(ledger.entries[0].site for ledger, _ in ledgers) == sorted(NAMES)
    for ledger, path in ledgers:
        assert ledger.problem is None
        assert "secure_sums" not in (path.parent / "site-policy.toml").read_text()
        answers = [e for e in ledger.entries if e.event == "released" and e.kind == "query"]
        assert answers
        assert all(name.startswith("masked") for e in answers for name, _, _ in e.arrays)


@pytest.mark.slow
@pytest.mark.engines
@pytest.mark.xdist_group("flower deployment")
def test_all_networks_have_the_posterior_of_one_process(tmp_path: Path) -> None:
    trees = {"local": posterior_tree()}
    for network, (package, test) in NETWORKS.items():
        python, folder, tests = python_with(package), tmp_path / network, Path(__file__).parents[1]
        words = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", ""]
        words += ["-o", "tmp_path_retention_policy=all", "--basetemp", str(folder)]
        done = subprocess.run(
            [python, *words, str(tests / test)],
            cwd=tests.parent,
            # another version of JAX may not know the flags that conftest.py has set
            env={name: value for name, value in os.environ.items() if name != "XLA_FLAGS"},
            capture_output=True,
            text=True,
        )
        assert "1 passed in" in done.stdout, done.stdout
        (record,) = folder.rglob("run.json")
        trees[network] = consortia.open_run(record.parent)
        if network != "MPI":  # the ranks of a job have one owner
            check_governed(folder)
    for first, second in itertools.combinations(trees, 2):
        apart = errors(trees[first], trees[second])
        print(f"{first} and {second}: at most {max(apart.values()):.1f} standard errors")
        assert max(apart.values()) < WITHIN, (first, second, apart)


def test_the_posterior_of_two_of_the_hospitals_is_another(tmp_path: Path) -> None:
    assert max(errors(posterior_tree(), posterior_tree(NAMES[:2])).values()) > 2 * WITHIN

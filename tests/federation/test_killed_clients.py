"""Clients of vantage6 and NVFlare that are killed: a study goes on, or says why it ended."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from consortia.errors import DeploymentError, SiteMissingError
from consortia.federation.governance.gate import LEDGER
from tests.federation.hospitals import HOSPITALS, NAMES, study
from tests.federation.test_carried import ROOT, check, job_of_nvflare, made

pytestmark = pytest.mark.engines

KILLED = "south"


class Nodes:
    """Nodes of vantage6, of which one site's runs each task as the image does: in a process.

    Args:
        root: of what tasks read and write.
        folders: of the sites.
        lost: tasks of `KILLED`, counted from 1, that are killed as they begin.
        unheard: the same, of which the answer is lost after it was made.
    """

    def __init__(
        self, root: Path, folders: dict[str, Path], lost: range, unheard: range = range(0)
    ) -> None:
        self.root, self.folders, self.lost, self.unheard = root, folders, lost, unheard
        self.runs: list[subprocess.Popen[bytes] | str] = []
        self.tasks = 0  # of the site that is killed
        self.task = SimpleNamespace(create=self.create)
        self.run = SimpleNamespace(from_task=lambda task: [{"status": self.status(task)}])
        self.result = SimpleNamespace(from_task=lambda task: [self.output(task)])
        self.organization = SimpleNamespace(list=lambda: [{"id": number} for number in range(3)])

    def environment(self, site: str) -> dict[str, str]:
        """Return what the node of a site gives its tasks."""
        return {
            "CONSORTIA_SITE": site,
            "CONSORTIA_FOLDER": str(self.folders[site]),
            "USER_REQUESTED_DATABASE_LABELS": "default",
            "DEFAULT_DATABASE_URI": str(HOSPITALS / f"{site}.csv"),
        }

    def create(self, input_: dict[str, Any], organizations: list[int], name: str) -> dict[str, int]:
        site, task = NAMES[organizations[0]], len(self.runs)
        if site == KILLED:
            self.tasks += 1
            self.runs.append(self.process(input_, task))
        else:
            with pytest.MonkeyPatch.context() as patched:
                for key, value in self.environment(site).items():
                    patched.setenv(key, value)
                self.runs.append(vantage6().answer(**input_["kwargs"]))
        return {"id": task}

    def process(self, input_: dict[str, Any], task: int) -> subprocess.Popen[bytes]:
        """Return the process of a task; the command is that of the image."""
        from vantage6.common.serialization import serialize

        (self.root / f"input-{task}").write_bytes(serialize(input_))
        environment = os.environ | self.environment(KILLED)
        environment["PKG_NAME"] = "consortia.federation.vantage6"
        environment["INPUT_FILE"] = str(self.root / f"input-{task}")
        environment["OUTPUT_FILE"] = str(self.root / f"output-{task}")
        image = (ROOT / "docker" / "vantage6" / "Dockerfile").read_text(encoding="utf-8")
        command = [sys.executable, *json.loads(image.partition("CMD ")[2])[1:]]
        process = subprocess.Popen(command, env=environment)
        if self.tasks in self.lost:
            process.kill()
        elif self.tasks in self.unheard:
            assert process.wait() == 0
            process.returncode = 137
        return process

    def output(self, task: int) -> str:
        run = self.runs[task]
        return (
            run if isinstance(run, str) else json.loads((self.root / f"output-{task}").read_text())
        )

    def status(self, task: int) -> str:
        run = self.runs[task]
        code = 0 if isinstance(run, str) else run.poll()
        return {None: "active", 0: "completed"}.get(code, "crashed")


def vantage6() -> Any:
    """Return the module, or skip the test."""
    pytest.importorskip("vantage6.algorithm.tools.wrap", reason="no vantage6")
    return importlib.import_module("consortia.federation.vantage6")


def test_a_task_of_vantage6_that_is_killed_is_sent_again_and_the_posterior_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, folders = vantage6(), made(tmp_path / "made")
    monkeypatch.setenv("CONSORTIA_FOLDER", str(folders["coordinator"]))
    nodes = Nodes(tmp_path, folders, lost=range(3, 4), unheard=range(5, 6))
    said = package.central(mock_client=nodes, study=study())
    assert "coefficients[age]" in said
    assert nodes.tasks == 7  # five messages, two of them twice
    (run,) = (folders["coordinator"] / "studies").glob("*/run")
    check(run, folders)


class Clock:
    """A clock that passes while somebody sleeps and no task runs."""

    def __init__(self, nodes: Nodes) -> None:
        self.now, self.nodes = 0.0, nodes

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if any(self.nodes.status(task) == "active" for task in range(len(self.nodes.runs))):
            time.sleep(0.05)
        else:
            self.now += seconds


def test_a_node_of_vantage6_that_fails_to_the_end_is_named_and_the_study_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, folders = vantage6(), made(tmp_path / "made")
    nodes = Nodes(tmp_path, folders, lost=range(4, 99))
    clock = Clock(nodes)
    monkeypatch.setenv("CONSORTIA_FOLDER", str(folders["coordinator"]))
    monkeypatch.setattr("consortia.engines.messages.asking.time", clock)
    monkeypatch.setattr("consortia.federation.vantage6.time", clock)
    with pytest.raises(SiteMissingError, match="its task failed") as raised:
        package.central(mock_client=nodes, study=study(), deadline=30.0)
    assert raised.value.sites == (KILLED,)
    nodes.lost = range(0)
    assert "coefficients[age]" in package.central(mock_client=nodes, study=study())
    (run,) = (folders["coordinator"] / "studies").glob("*/run")
    check(run, folders)


def test_a_client_of_nvflare_that_is_killed_ends_the_job_with_its_name(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="no nvflare: pip install nvflare")
    workspace, code = job_of_nvflare(tmp_path)
    code = code.replace('"study.toml"', '"study.toml", deadline=60.0')
    with (tmp_path / "log").open("w") as log:
        job = subprocess.Popen(
            [sys.executable, "-c", code], cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT
        )
    ledger = workspace / KILLED / "local" / "consortia" / KILLED / LEDGER
    while job.poll() is None and not (ledger.exists() and '"query"' in ledger.read_text()):
        time.sleep(0.02)
    killed = [
        process
        for process in psutil.Process(job.pid).children(recursive=True)
        if "simulator_worker" in (line := " ".join(process.cmdline())) and f" {KILLED} " in line
    ]
    for process in killed:
        process.kill()
    job.wait(timeout=600)
    assert killed
    said = (tmp_path / "log").read_text()
    wanted = f"SiteMissingError: site '{KILLED}' did not answer within 60 s in round"
    assert wanted in said, said[-4000:]


def test_a_job_that_nvflare_has_ended_ends_the_study(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="no nvflare: pip install nvflare")
    from consortia.federation.nvflare import TaskTransport

    clients = [SimpleNamespace(name=name) for name in NAMES]
    context = SimpleNamespace(get_engine=lambda: SimpleNamespace(get_clients=lambda: clients))
    ended = SimpleNamespace(triggered=False)
    transport = TaskTransport(SimpleNamespace(), context, ended)
    assert transport.replies([]) == []
    ended.triggered = True
    with pytest.raises(DeploymentError, match="NVFlare has ended the job"):
        transport.replies([])

"""The jobs of docs/jobs.md, as they stand there: a scheduler, a container's command, a folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import consortia
from consortia.cli.commands import app
from tests.federation.correspondence import Correspondence
from tests.federation.hospitals import HOSPITALS, NAMES, check_posterior
from tests.federation.hospitals import study as text_of_study

PAGE = Path(__file__).resolve().parents[2] / "docs" / "jobs.md"


def block(language: str) -> str:
    """Return the block of a language of the page."""
    found = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (text,) = found
    return text


@pytest.fixture
def study(tmp_path: Path) -> Correspondence:
    """Return a study whose first letters are written, with keys."""
    made = Correspondence(tmp_path / "study", keys=True)
    made.proceed()
    return made


def test_the_container_of_the_cron_job_answers_a_letter(study: Correspondence) -> None:
    job = yaml.safe_load(block("yaml"))
    assert (job["kind"], job["apiVersion"]) == ("CronJob", "batch/v1")
    spec = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    mounted = {one["name"] for one in container["volumeMounts"]}
    assert mounted == {one["name"] for one in spec["volumes"]}
    folder = study.site("north")
    there = {
        "/post/north": str(study.shared / "north"),
        "/site": str(folder),
        "/data/north.csv": str(folder / "rows.csv"),
    }
    assert there.keys() <= set(container["args"])
    words = [there.get(word, word) for word in container["args"]]
    for answers in (1, 1):  # the second time there is nothing to do
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        assert len(list((study.shared / "north").glob("answer-*"))) == answers


def submit(folder: Path, environment: dict[str, str], name: str) -> int:
    """Return the exit code of the job of a site, at its end."""
    command = ["sbatch", "--wait", f"{name}.sbatch"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True).returncode


def cancel(folder: Path, environment: dict[str, str], name: str) -> None:
    """Submit the job of a site, and end it as soon as it runs."""

    def said(*words: str) -> str:
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
        return done.stdout.strip()

    number = said("sbatch", "--parsable", f"{name}.sbatch")
    while said("squeue", "--noheader", f"--jobs={number}", "--format=%T") == "PENDING":
        time.sleep(0.05)
    said("scancel", "--signal=KILL", "--full", number)


def with_slurm(root: Path) -> dict[str, str]:
    """Return an environment with the command; skip the test where there is no Slurm."""
    if shutil.which("sbatch") is None or subprocess.run(["sinfo"], capture_output=True).returncode:
        pytest.skip("no Slurm: apt-get install slurm-wlm, and start munged, slurmctld and slurmd")
    command = root / "bin" / "consortia"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m consortia "$@"\n')
    command.chmod(0o755)
    return os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}"}


@pytest.mark.engines
def test_processes_under_srun_find_one_another(tmp_path: Path) -> None:
    environment = with_slurm(tmp_path)
    (tmp_path / "study.toml").write_text(text_of_study())
    for name in NAMES:
        shutil.copy(HOSPITALS / f"{name}.csv", tmp_path)
    (line,) = [line for line in PAGE.read_text().splitlines() if "--coordinator slurm" in line]
    words = line.replace("=4", "=2").replace("STUDY.toml", "study.toml").split()
    done = subprocess.run(
        [*words, "--no-reference"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "process 1" in done.stdout + done.stderr
    check_posterior(consortia.open_run(tmp_path / "RUN"))


@pytest.mark.engines
def test_three_sites_answer_as_jobs_of_slurm_of_which_one_is_killed(study: Correspondence) -> None:
    root, environment = study.root, with_slurm(study.root)
    for name in NAMES:
        shutil.copy(study.site(name) / "rows.csv", root / f"{name}.csv")
        (root / f"{name}.sbatch").write_text(block("bash").replace("north", name))
    paths = {"POST": study.shared, "SITES": root / "sites", "ROWS": root}
    environment |= {name: str(path) for name, path in paths.items()}
    cancel(root, environment, "north")
    for _ in range(6):
        with ThreadPoolExecutor() as pool:
            done = pool.map(lambda name: submit(root, environment, name), NAMES)
        assert not any(done), [path.read_text() for path in root.glob("slurm-*")]
        if (found := study.proceed()).result is not None:
            break
    check_posterior(consortia.open_run(found.result))


SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/sftp-server", "/usr/lib/ssh/sftp-server")


@pytest.mark.engines
def test_the_lines_for_sftp_fetch_questions_and_send_answers(study: Correspondence) -> None:
    servers = [path for path in SERVERS if Path(path).exists()]
    if not servers or shutil.which("sftp") is None:
        pytest.skip("no SFTP: apt-get install openssh-client openssh-sftp-server")
    there, here = study.shared / "north", study.root / "here"
    here.mkdir()
    lines = block("text").replace("/srv/post/north", str(here)).replace("cd north", f"cd {there}")
    (study.root / "transfer.txt").write_text(lines)

    def transfer() -> None:
        words = ["sftp", "-b", str(study.root / "transfer.txt"), "-D", servers[0]]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    transfer()  # there is no answer yet
    question, answer = "question-001.letter", "answer-001.letter"
    assert (here / question).read_bytes() == (there / question).read_bytes()
    (here / answer).write_bytes(b"an answer")
    for arrived in (b"", b"an an"):  # the second time a part has arrived before
        (there / answer).write_bytes(arrived) if arrived else (there / answer).unlink(True)
        transfer()
        assert (there / answer).read_bytes() == b"an answer"


class SeenError(Exception):
    """What a test waits for has come."""


def test_a_watched_folder_waits_for_the_rest_of_a_letter(
    study: Correspondence, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = study.question("north", 1)
    whole, looks = path.read_bytes(), []
    path.write_bytes(whole[: len(whole) // 2])

    def looked(seconds: float) -> None:
        looks.append((path.read_bytes() == whole, study.reply("north", 1).exists()))
        if looks[-1][1]:
            raise SeenError
        if len(looks) == 2:
            path.write_bytes(whole)

    monkeypatch.setattr("consortia.cli.letter.time.sleep", looked)
    folder = study.site("north")
    words = ["letter", "answer", str(path.parent), "--folder", str(folder), "--watch", "--yes"]
    done = CliRunner().invoke(app, [*words, "--data", str(folder / "rows.csv")])
    assert isinstance(done.exception, SeenError), done.output
    assert looks == [(False, False), (False, False), (True, True)]
    assert done.stderr.count("warning") == 1
    assert "question-001.letter" in done.stderr

"""The container of a site: linted, without privileges, its rows read-only, one way out or none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docker" / "site"
yaml = pytest.importorskip("ruamel.yaml", reason="a tool of the group test is not installed")


def services() -> dict[str, Any]:
    return yaml.YAML(typ="safe").load(FOLDER / "compose.yaml")


@pytest.mark.lint
def test_the_linter_finds_nothing_in_the_dockerfile() -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("the linter hadolint is not installed")
    command = [program, str(FOLDER / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_image_runs_as_nobody_in_particular_and_installs_by_hash() -> None:
    lines = (FOLDER / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("USER")][-1] == "USER 10001"
    assert lines.index("USER 10001") < lines.index('ENTRYPOINT ["consortia"]')
    assert "--require-hashes" in "".join(lines)
    copied = [line.split()[1:] for line in lines if line.startswith("COPY requirements")]
    for name in copied[0][:-1]:
        assert (ROOT / name).is_file()


def test_each_service_is_locked_and_the_rows_are_read_only() -> None:
    found = services()["services"]
    for name, one in found.items():
        assert one["user"] == "10001", name
        assert one["read_only"] is True
        assert one["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in one["security_opt"]
        assert not one.keys() & {"privileged", "ports", "cap_add", "pid", "ipc", "devices"}
    for name in ("node", "offline"):
        rows = next(one for one in found[name]["volumes"] if one["target"].startswith("/data"))
        assert rows["read_only"] is True


def test_a_site_reaches_the_superlink_or_nothing() -> None:
    found = services()
    assert found["services"]["offline"]["network_mode"] == "none"
    assert found["services"]["node"]["networks"] == ["inside"]
    assert found["networks"]["inside"]["internal"] is True
    outside = [
        name for name, one in found["services"].items() if "outside" in one.get("networks", ())
    ]
    assert outside == ["superlink"]
    assert "SUPERLINK" in found["services"]["superlink"]["command"][1]


def test_the_build_sees_no_rows_runs_or_keys() -> None:
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert kept[0] == "*"
    assert set(kept[1:]) <= {
        *("!docker", "!examples", "!LICENSE", "!README.md"),
        *("!pyproject.toml", "!requirements", "!src"),
    }


@pytest.mark.slow
def test_the_image_is_built_and_runs_where_a_builder_is() -> None:
    docker = shutil.which("docker")
    ready = docker and subprocess.run([docker, "info"], capture_output=True).returncode == 0
    if not ready:
        pytest.skip("no builder of containers runs here")
    tag = "consortia-site-test"
    build = [str(docker), "build", "-f", str(FOLDER / "Dockerfile"), "-t", tag, str(ROOT)]
    assert subprocess.run(build).returncode == 0
    run = [str(docker), "run", "--rm", "--network=none", "--read-only", "--cap-drop=ALL"]
    done = subprocess.run([*run, tag, "--version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "consortia" in done.stdout

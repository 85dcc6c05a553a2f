"""The wheel that a user installs: what it holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROBE = """
import importlib.metadata, json
import consortia
distribution = importlib.metadata.distribution("consortia")
print(json.dumps({
    "file": consortia.__file__,
    "version": consortia.__version__,
    "distribution": distribution.version,
    "scripts": {script.name: script.value for script in distribution.entry_points},
    "files": [str(file) for file in distribution.files],
}))
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    finished = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Build the wheel, install it alone in an empty folder and import it from there."""
    folder = tmp_path_factory.mktemp("wheel")
    target = folder / "target"
    build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", folder)
    run(sys.executable, *build, ROOT, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    install = ("-m", "pip", "install", "--no-deps", "--no-index", "--target", target)
    run(sys.executable, *install, wheel, cwd=folder)
    # PYTHONPATH comes before the editable installation of the checkout.
    return target, json.loads(run(sys.executable, "-c", PROBE, cwd=folder, PYTHONPATH=str(target)))


def test_the_wheel_is_what_was_imported(installed: tuple[Path, dict[str, Any]]) -> None:
    target, found = installed
    assert Path(found["file"]) == target / "consortia" / "__init__.py"


def test_the_wheel_marks_the_package_as_typed(installed: tuple[Path, dict[str, Any]]) -> None:
    target, _ = installed
    assert (target / "consortia" / "py.typed").is_file()


def test_the_wheel_holds_every_file_of_the_package_the_examples_and_no_other(
    installed: tuple[Path, dict[str, Any]],
) -> None:
    _, found = installed
    source = ROOT / "src"
    kept = [path for path in (source / "consortia").rglob("*") if path.is_file()]
    expected = {path.relative_to(source).as_posix() for path in kept if path.suffix != ".pyc"}
    listed = run("git", "ls-files", "examples", cwd=ROOT).split()
    expected |= {f"consortia/cli/{name}" for name in listed}
    # The installer adds its own record, compiled modules and the command.
    added = (".dist-info/", ".pyc", "bin/consortia")
    shipped = {name for name in found["files"] if not any(part in name for part in added)}
    assert shipped == expected


def test_the_wheel_and_the_package_have_one_version(
    installed: tuple[Path, dict[str, Any]],
) -> None:
    _, found = installed
    assert found["version"] == found["distribution"]


def test_an_installed_package_lists_its_examples(
    installed: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    target, _ = installed
    code = "from consortia.cli import main; main()"
    told = run(sys.executable, "-c", code, "examples", cwd=tmp_path, PYTHONPATH=str(target))
    assert "three_hospitals" in told


def test_the_wheel_installs_the_command(installed: tuple[Path, dict[str, Any]]) -> None:
    _, found = installed
    assert found["scripts"] == {"consortia": "consortia.cli:main"}

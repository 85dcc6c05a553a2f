"""The wheel that a user installs: what it holds."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
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


# --- the wheel of a site that only answers -------------------------------------------------------

SITE = ROOT / "packaging" / "site"


def test_the_wheel_of_a_site_needs_a_part_of_what_the_package_needs() -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    part = tomllib.loads((SITE / "pyproject.toml").read_text())["project"]
    extra = {one for one in part["dependencies"] if one.startswith("cryptography")}  # by Flower
    assert {*part["dependencies"]} - extra < {*whole["dependencies"]}
    names = {re.split(r"[<>=]", one)[0] for one in part["dependencies"]}
    assert not names & {"jax", "pandas", "xarray", "zarr", "arviz-base", "arviz-stats"}
    assert part["requires-python"] == whole["requires-python"]
    assert part["scripts"] == whole["scripts"]


def test_the_wheel_of_a_site_has_the_same_modules(tmp_path: Path) -> None:
    run(
        *(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, SITE),
        cwd=tmp_path,
    )
    (wheel,) = tmp_path.glob("consortia_site-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if name.startswith("consortia/")}
    kept = [path for path in (ROOT / "src" / "consortia").rglob("*") if path.is_file()]
    sources = {path.relative_to(ROOT / "src").as_posix() for path in kept if path.suffix != ".pyc"}
    assert found == sources


STUDY = """
[data]
files = ["aarhus.csv", "bilbao.csv", "cork.csv"]
[model]
formula = "died ~ age + sex + crp + arm"
family = "bernoulli"
missing = "complete"
[algorithm]
name = "few_rounds"
"""

POLICY = """
models = ["any"]
maximum_rounds = 1000
minimum_rows = 50
messages = ["description", "moments", "query"]
"""


@pytest.mark.slow  # makes an environment and installs into it, from an index
def test_a_site_answers_a_masked_study_without_jax(tmp_path: Path) -> None:
    from consortia.engines.messages.identities import made_keys

    build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path)
    run(sys.executable, *build, SITE, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "site", cwd=tmp_path)
    scripts = tmp_path / "site" / ("Scripts" if os.name == "nt" else "bin")
    try:
        run(scripts / "python", "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    except AssertionError as error:
        if "No matching distribution" in str(error) or "Connection" in str(error):
            pytest.skip("no index of packages is reached")
        raise
    installed = sum(p.stat().st_size for p in (tmp_path / "site").rglob("*") if p.is_file())
    print(f"{installed / 1e6:.0f} MB, pip included")

    names = ("aarhus", "bilbao", "cork")
    (tmp_path / "study.toml").write_text(STUDY)
    rules = made_keys(tmp_path / "keys", {name: tmp_path / name for name in names})
    for name in names:
        for folder in (tmp_path, tmp_path / name):
            shutil.copy(ROOT / "examples" / "pneumonia" / f"{name}.csv", folder)
        (tmp_path / name / "site-policy.toml").write_text(POLICY + rules)
    bare = {"PYTHONPATH": "", "CONSORTIA_CACHE": str(tmp_path / "cache")}

    def site(*words: str | Path) -> str:
        return run(scripts / "consortia", *words, cwd=tmp_path, **bare)

    def coordinator(*words: str | Path) -> str:
        code = "from consortia.cli import main; main()"
        return run(sys.executable, "-c", code, *words, cwd=tmp_path)

    assert "aarhus" in site("site", "key", "elsewhere/aarhus")
    table = tmp_path / "aarhus" / "aarhus.csv"
    assert site("site", "check", "--study", "study.toml", "--data", table)
    opened = ("--folder", "coordinator", "--shared", "post", "--keys", "keys")
    coordinator("letter", "open", "study.toml", *opened)
    told, letters = "", tmp_path / "post"
    for number in range(1, 20):
        letter = f"question-{number:03d}.letter"
        if not (letters / "aarhus" / letter).exists():
            break
        for name in names:
            where = ("--folder", name, "--data", f"{name}/{name}.csv", "--yes")
            command = site if name == "aarhus" else coordinator
            command("letter", "answer", letters / name / letter, *where)
        told = coordinator("letter", "next", "coordinator")
    assert "The result is in" in told
    refused = subprocess.run(
        [scripts / "consortia", "run", "study.toml"],
        cwd=tmp_path,
        env={**os.environ, **bare},
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 5
    assert "pip install consortia" in refused.stderr

"""Build the wheel and the sdist, and try both ends of the bounds in empty environments.

For each Python that the classifiers name, and that is found here, two environments are made: with
the oldest versions of the direct dependencies that the bounds permit and that are built for this
Python, and with the newest. In each the wheel is installed with its extras, and what a new user
does first is done: the demo, a study of their own tables, its report as a page and as a document. A
Python that is not found is skipped by name. Needs uv, which is fetched into the build folder where
it is not on the PATH. Run by ``make release-check``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
EXTRAS = ("docx", "netcdf", "numpyro", "parquet", "plots", "reference", "tables")
ENDS = {"oldest": "lowest-direct", "newest": "highest"}
"""What uv calls them."""

FIRST = ("jax", "jaxlib", "arviz-base", "numpy", "xarray", "zarr", "matplotlib", "python-docx")
"""Packages whose versions are shown."""

# Packages on PYTHONPATH would count as installed.
CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
VERSIONS = """
import importlib.metadata, json, sys
print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))
"""
SMOKE = """
import importlib.metadata, json, warnings
warnings.filterwarnings("error", module="consortia")
import numpy as np
import consortia
assert importlib.metadata.version("consortia") == consortia.__version__
rng = np.random.default_rng(0)
tables = {}
for site in ("oslo", "lima", "bern"):
    age, arm = rng.normal(60, 9, 60), rng.choice(["new", "old"], 60)
    died = rng.random(60) < 1 / (1 + np.exp(-0.1 * (age - 60)))
    tables[site] = {"age": age, "arm": arm, "died": died}
made = consortia.regression("died ~ age + arm", tables, family="bernoulli")
method = consortia.few_rounds(effective_size=200)
tree = consortia.sample(
    made.model, made.sites, method, metadata=made.metadata, progress=False, store="smoke")
print(made.estimates(tree))
print(consortia.summary(consortia.open_run("smoke")))
consortia.to_netcdf("smoke", "smoke.nc")
"""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command to its end and return its output; end with it where it fails."""
    finished = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=CLEAN,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if finished.returncode != 0:
        shown = " ".join(str(part) for part in command)
        raise RuntimeError(f"{shown}\n{finished.stdout[-6000:]}")
    return finished.stdout


def built() -> Path:
    """Build both files, look into them, and return the wheel."""
    files = BUILD / "dist"
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", files)
    (wheel,), (sdist,) = files.glob("*.whl"), files.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        text = opened.read(metadata).decode()
    wanted = ["cli/examples/breast_cancer.toml", "cli/examples/pneumonia/cork.csv", "py.typed"]
    missing = [name for name in wanted if f"consortia/{name}" not in names]
    missing += [] if any(name.endswith("licenses/LICENSE") for name in names) else ["LICENSE"]
    missing += [key for key in ("License-Expression", "Keywords", "Author") if key not in text]
    with tarfile.open(sdist) as opened:
        inside = {name.partition("/")[2] for name in opened.getnames()}
    for name in ("CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md", "pyproject.toml"):
        missing += [] if name in inside else [f"sdist: {name}"]
    if missing:
        raise RuntimeError(f"the files lack: {', '.join(missing)}")
    print(f"built {wheel.name} ({wheel.stat().st_size / 1e6:.2f} MB) and {sdist.name}")
    return wheel


def uv_program() -> str:
    """Return uv, from the PATH or fetched."""
    found = os.environ.get("UV") or shutil.which("uv")
    if found is None:
        folder = BUILD / "uv"
        run(sys.executable, "-m", "venv", folder)
        run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "uv")
        found = str(folder / "bin" / "uv")
    return found


def pythons() -> dict[str, str | None]:
    """Return the interpreter of each Python that the project names, None where there is none.

    It is looked for on the PATH and where pyenv keeps them; what only seems to be one is left out.
    """
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found: dict[str, str | None] = {}
    for version in re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text):
        kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
        places = [shutil.which(f"python{version}"), *sorted(kept.glob(f"{version}.*/bin/python"))]
        found[version] = next((str(one) for one in places if one and is_python(one)), None)
    return found


def direct_requirements() -> list[str]:
    """Return the dependencies of the project and of the extras that are tried."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = found["optional-dependencies"]
    return found["dependencies"] + [one for name in EXTRAS for one in extras[name]]


def is_python(path: str | Path) -> bool:
    """Return True if a program runs, and is a Python."""
    try:
        return "Python" in run(path, "--version")
    except RuntimeError:
        return False


def tried(uv: str, wheel: Path, python: str, name: str, resolution: str) -> str:
    """Install into an empty environment and do what a new user does; return what was installed."""
    folder = BUILD / name
    shutil.rmtree(folder, ignore_errors=True)
    run(uv, "venv", "--quiet", "--no-python-downloads", "--python", python, folder / "env")
    here = folder / "env" / "bin"
    # The bounds stand as direct requirements: of others uv takes the newest at either end.
    # Only what is built for this Python: the oldest of some packages are for older ones, and to
    # build them needs compilers and libraries that a user need not have.
    asked = (f"consortia @ {wheel.as_uri()}", *direct_requirements())
    run(
        uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        here / "python",
        "--resolution",
        resolution,
        "--only-binary",
        ":all:",
        *asked,
    )
    versions = json.loads(run(here / "python", "-c", VERSIONS, *FIRST))
    work = folder / "work"
    work.mkdir()
    (work / "smoke.py").write_text(SMOKE)
    run(here / "python", "smoke.py", cwd=work)
    command = here / "consortia"
    for line in (
        "examples breast_cancer",
        "run breast_cancer.toml --quiet --output demo",
        "report demo",
        "examples pneumonia",
        "init pneumonia/aarhus.csv pneumonia/bilbao.csv pneumonia/cork.csv --response died",
        "check study.toml",
        "run study.toml --quiet --output own",
        "report own --format docx",
        "watch own --once",
        "export own own.nc",
    ):
        run(command, *line.split(), cwd=work)
    page = work / "demo" / "report.html"
    if not 10_000 < page.stat().st_size < 1_000_000:
        raise RuntimeError(f"the demo's report has {page.stat().st_size:,} bytes")
    return ", ".join(f"{one} {version}" for one, version in versions.items())


def main() -> None:
    """Build, try, and end with 1 where anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=sorted(ENDS), help="one end of the bounds")
    ends = [end for end in ENDS if parser.parse_args().only in (None, end)]
    if shutil.which("git") and run("git", "status", "--porcelain", "--untracked-files=no").strip():
        print("note: the working tree has changes that are not committed")
    shutil.rmtree(BUILD / "dist", ignore_errors=True)
    wheel, uv, failed = built(), uv_program(), []
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    print("requires-python", version["project"]["requires-python"])
    for number, python in pythons().items():
        if python is None:
            print(f"skipped: Python {number} is not found here")
            continue
        for end in ends:
            name, began = f"{number}-{end}", time.monotonic()
            try:
                found = tried(uv, wheel, python, name, ENDS[end])
                print(f"works: Python {number}, {end}, {time.monotonic() - began:.0f} s: {found}")
            except (RuntimeError, OSError) as error:
                failed.append(name)
                print(f"FAILED: Python {number}, {end}:\n{error}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

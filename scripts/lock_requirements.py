"""Write the locked requirements: requirements/base.txt, and a file of each extra and set-up group.

All sets are resolved together, so that one environment can hold every extra, and then cut apart,
so that an extra that a machine cannot install leaves the others whole. Present pins are kept where
they still fit; ``--upgrade`` looks for newer ones. Needs uv; run by ``make lock``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
UNLOCKED = {"pymc", "torch"}
"""Extras that are resolved with the others, and that the set-up does not install."""

GROUPS = ("dev", "docs")
"""Dependency groups that the set-up installs; others are parts of these."""

HEADER = "# Written by `make lock` from pyproject.toml: {purpose}.\n"


def compile_requirements(uv: str, sources: list[str], output: Path, *options: str) -> str:
    """Resolve the sources for every platform and return the text, hashes included.

    Only pins and hashes are asked for: no comment, address or path of this machine.
    """
    command = [uv, "pip", "compile", "--quiet", "--universal", "--generate-hashes"]
    command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
    # One version for all Pythons: results must not depend on the interpreter's age.
    command += ["--fork-strategy", "fewest", "--output-file", str(output), *options, *sources]
    finished = subprocess.run(command, cwd=ROOT)
    if finished.returncode != 0:
        sys.exit(f"uv could not resolve {', '.join(sources)} {' '.join(options)}")
    return output.read_text()


def pins(text: str) -> list[str]:
    """Split a requirements file into its pins, each with its hashes."""
    return [block + "\n" for block in re.split(r"\n(?=\S)", text.strip()) if block]


def main() -> None:
    """Resolve everything together, then write one file per set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    upgrade = ["--upgrade"] if parser.parse_args().upgrade else []
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        sys.exit("uv is needed to lock: put it on the PATH or name it in the variable UV")

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = sorted(project["project"]["optional-dependencies"].keys() - UNLOCKED)
    oldest = project["project"]["requires-python"].removeprefix(">=")
    common = ["--python-version", oldest]

    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build.in"
        build.write_text("\n".join(project["build-system"]["requires"]) + "\n")
        sources = ["pyproject.toml", str(build)]
        # uv prefers the pins that it finds in the output file.
        joint = Path(folder) / "joint.txt"
        joint.write_text("".join(path.read_text() for path in sorted(LOCKS.glob("*.txt"))))
        groups = [f"--group={group}" for group in GROUPS]
        compile_requirements(uv, sources, joint, *common, *upgrade, "--all-extras", *groups)

        constrained = [*common, "--constraints", str(joint)]
        base = pins(compile_requirements(uv, sources, Path(folder) / "base.txt", *constrained))
        texts = {"base": HEADER.format(purpose="the package and its build tools") + "".join(base)}
        kinds = dict.fromkeys(extras, "extra") | dict.fromkeys(GROUPS, "group")
        for name, kind in kinds.items():
            output = Path(folder) / f"{name}.txt"
            added = compile_requirements(uv, sources, output, *constrained, f"--{kind}", name)
            header = HEADER.format(purpose=f"what the {kind} `{name}` adds to base.txt")
            texts[name] = header + "".join(pin for pin in pins(added) if pin not in base)

    LOCKS.mkdir(exist_ok=True)
    for stale in {path.stem for path in LOCKS.glob("*.txt")} - texts.keys():
        (LOCKS / f"{stale}.txt").unlink()
    for name, text in texts.items():
        (LOCKS / f"{name}.txt").write_text(text)
        print(f"requirements/{name}.txt: {len(pins(text)) - 1} packages")


if __name__ == "__main__":
    main()

"""Create ``.venv``: the locked dependencies, this project and every extra that installs here.

Uses uv where it is on the PATH, else venv and pip. Does nothing when nothing changed. An extra that
cannot be installed is named with the reason and leaves the rest whole. Standard library only; this
file must still be readable by an old Python, which looks for a newer one.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
STAMP = ENVIRONMENT / "set-up.json"
LOCKS = ROOT / "requirements"
OLDEST = (3, 11)
# Packages on PYTHONPATH would count as installed.
CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(*command):
    """Run a command without input and return its status and its output."""
    finished = subprocess.run(
        [str(part) for part in command],
        env=CLEAN,
        cwd=str(ROOT),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    return finished.returncode, finished.stdout


def works(*command):
    """Tell whether a command exists and succeeds."""
    try:
        return run(*command)[0] == 0
    except OSError:
        return False


def reason(output):
    """Return the line of an installer's output that says best why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no message"]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines)[-1]


def fingerprint():
    """Return a hash of everything that decides what is installed."""
    digest = hashlib.sha256()
    for path in [Path(__file__).resolve(), ROOT / "pyproject.toml", *sorted(LOCKS.glob("*.txt"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    source = (ROOT / "src" / "consortia" / "core" / "version.py").read_text(encoding="utf-8")
    digest.update(repr(re.findall(r"^__version__.*$", source, re.MULTILINE)).encode())
    # Scripts in an environment name its folder: a moved one must be made anew.
    digest.update(str(ROOT).encode())
    return digest.hexdigest()


def read_stamp():
    """Return the record of the last set-up, or an empty one if the environment is not usable."""
    if not STAMP.exists() or not works(PYTHON, "--version"):
        return {}
    try:
        return json.loads(STAMP.read_text())
    except ValueError:  # the set-up was stopped while it wrote
        return {}


def write_stamp(inputs, installed, missing):
    """Record what is installed; inputs None: the set-up has begun and not ended."""
    record = {"inputs": inputs, "root": str(ROOT), "installed": installed, "missing": missing}
    STAMP.write_text(json.dumps(record))


def find_interpreter(uv):
    """Return a Python that is new enough: this one, else one from the PATH, else uv's."""
    names = ["python3"] + ["python3.%d" % minor for minor in range(OLDEST[1], OLDEST[1] + 8)]
    check = "import sys; sys.exit(sys.version_info < %r)" % (OLDEST,)
    for candidate in [sys.executable, *names]:
        if works(candidate, "-c", check):
            return shutil.which(candidate) or candidate
    wanted = "%d.%d" % OLDEST
    if uv:
        return ">=" + wanted
    sys.exit(
        "Python %s or newer is needed and none is on the PATH (this is %s): install one, or uv."
        % (wanted, sys.version.split()[0])
    )


def create_environment(uv, interpreter):
    """Make an empty environment in place of whatever is there."""
    if ENVIRONMENT.exists():
        print("set-up: replacing .venv, which was not made here by this set-up", flush=True)
        shutil.rmtree(str(ENVIRONMENT))
    if uv:
        status, output = run(uv, "venv", "--quiet", "--python", interpreter, ENVIRONMENT)
    else:
        status, output = run(interpreter, "-m", "venv", ENVIRONMENT)
        if status != 0:  # some systems ship venv without its copy of pip
            status, output = run(interpreter, "-m", "venv", "--clear", "--without-pip", ENVIRONMENT)
    if status != 0:
        sys.exit("%s\nNo environment could be made with %s." % (output.rstrip(), interpreter))


def find_installer(uv, interpreter):
    """Return the words of the install command: uv's, the environment's pip or an outer pip."""
    if uv:
        return [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", PYTHON]
    options = ["install", "--quiet", "--no-input", "--no-compile", "--disable-pip-version-check"]
    if works(PYTHON, "-m", "pip", "--version"):
        return [PYTHON, "-m", "pip", *options]
    if works(interpreter, "-m", "pip", "--python", PYTHON, "--version"):
        return [interpreter, "-m", "pip", "--python", PYTHON, *options]
    sys.exit(
        "%s has no pip (22.3 or newer) to install with: install uv, or your system's pip and venv "
        "for Python (on Debian: python3-venv)." % interpreter
    )


def install(installer, title, *what):
    """Install something that must install; leave with the installer's words if it does not."""
    began = time.monotonic()
    print("set-up: %s ..." % title, flush=True)
    status, output = run(*installer, "--no-deps", *what)
    if status != 0:
        sys.exit("%s\nset-up: %s: FAILED" % (output.rstrip(), title))
    print("set-up: %s: done in %.0f s" % (title, time.monotonic() - began), flush=True)


def install_extras(installer, extras):
    """Install the extras one at a time; return the reason for each that could not be."""
    missing = {}
    for extra in extras:
        locked = LOCKS / (extra + ".txt")
        status, output = run(*installer, "--no-deps", "--require-hashes", "-r", locked)
        if status != 0:
            missing[extra] = reason(output)
        print("set-up: extra %s: %s" % (extra, "FAILED" if status else "installed"), flush=True)
    return missing


def compile_sources():
    """Compile all packages but their tests, on every core; pip would, one after the other.

    Packages may carry files that this Python cannot read, which nothing imports.
    """
    run(PYTHON, "-m", "compileall", "-q", "-j", "0", "-x", r"[/\\]tests[/\\]", ENVIRONMENT / "lib")


def main():
    """Bring the environment up to date and say which extras it lacks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--require", action="append", default=[], metavar="EXTRA")
    parser.add_argument("--only", action="append", metavar="EXTRA", help="no other extras now")
    parser.add_argument("--retry", action="store_true", help="try again the extras that failed")
    arguments = parser.parse_args()
    extras = sorted(path.stem for path in LOCKS.glob("*.txt") if path.stem != "base")
    unknown = sorted({*arguments.require, *(arguments.only or [])} - set(extras))
    if unknown:
        sys.exit("no such extra: %s (there are: %s)" % (", ".join(unknown), ", ".join(extras)))

    uv = shutil.which("uv")
    inputs = fingerprint()
    stamp = read_stamp()
    complete = stamp.get("inputs") == inputs
    installed, missing = (stamp["installed"], stamp["missing"]) if complete else ([], {})
    wanted = sorted({*(arguments.only or extras), *arguments.require} - {*installed, *missing})
    if arguments.retry or set(arguments.require) & set(missing):
        wanted = sorted({*wanted, *missing})
    if wanted or not complete:
        interpreter = find_interpreter(uv)
        if stamp.get("root") != str(ROOT):
            create_environment(uv, interpreter)
        installer = find_installer(uv, interpreter)
        if not complete:
            print("set-up: .venv with %s" % ("uv" if uv else "pip"), flush=True)
            write_stamp(None, [], {})
            base = LOCKS / "base.txt"
            install(installer, "locked dependencies", "--require-hashes", "-r", base)
            install(installer, "consortia", "--no-build-isolation", "-e", ROOT)
        missing = {name: why for name, why in missing.items() if name not in wanted}
        missing.update(install_extras(installer, wanted))
        if not uv:
            compile_sources()
        installed = sorted({*installed, *wanted} - set(missing))
        write_stamp(inputs, installed, missing)
    for extra, why in sorted(missing.items()):
        print("set-up: extra %s is NOT installed: %s" % (extra, why))
    if missing:
        print("set-up: to try again: python3 scripts/setup_environment.py --retry")
    needed = sorted(set(arguments.require) & set(missing))
    if needed:
        sys.exit("set-up: this needs the extra " + ", ".join(needed))


if __name__ == "__main__":
    main()

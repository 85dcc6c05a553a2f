"""A study's reference: NUTS on the pooled data, in a process of its own beside the run.

Run as ``python -P reference.py STUDY DIRECTORY``, this file samples the reference into a directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consortia.runtime.garbage import collect_seldom, set_imports_aside
from consortia.runtime.late import jax

if TYPE_CHECKING:
    from consortia.study.build import Built, Study

OTHERWISE = ("--no-reference", "--verify", "--engine", "--devices", "--coordinator", "--help")
"""Options of ``consortia run`` with which the reference is not sampled, or not as usual."""


@dataclass(frozen=True, eq=False)
class Aside:
    """A process that samples the reference; made by `begun_aside`."""

    study: Path  # whose reference it is
    directory: Path  # that it writes
    process: subprocess.Popen[bytes]

    def finished(self) -> bool:
        """Wait for its end; return True if the reference is there."""
        return self.process.wait() == 0


def left_away(built: Built, *, wanted: bool) -> str | None:
    """Find an obstacle to the reference that a study asks for; None where there is none."""
    if not wanted:
        return "--no-reference"
    if built.imputations:
        return "values are imputed; NUTS has one data set"
    if built.model.sandwich:
        return "the draws have sandwich widths and are not from a posterior; NUTS samples one"
    return "it needs the rows of all sites in one process" if built.rows.elsewhere else None


@contextlib.contextmanager
def begun_early(arguments: Sequence[str]) -> Iterator[Aside | None]:
    """Begin as `begun_aside`, before JAX is imported: the two processes import side by side.

    From the command's words alone it cannot be known whether the reference is wanted, or of which
    file; `begun_aside` ends a process that is of no use.
    """
    studies = [Path(word) for word in arguments[1:] if word.endswith(".toml")]
    usual = arguments[:1] == ["run"] and not any(word.startswith(OTHERWISE) for word in arguments)
    if usual and studies and _has_reference(studies[0]) and (os.cpu_count() or 1) > 1:
        with _begun(studies[0], {}) as aside:
            yield aside
    else:
        yield None


def _has_reference(study: Path) -> bool:
    """Return False where the study cannot be read, too: who loads it says why."""
    try:
        return find_spec("blackjax") is not None and "reference" in tomllib.loads(study.read_text())
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def begun_aside(
    study: Path, early: Aside | None = None, *, wanted: bool = True
) -> Iterator[Aside | None]:
    """Sample a study's reference in another process, which is ended with this context.

    None where that is not wanted, would not be faster, or is not possible: with one core, on an
    accelerator, whose memory is this process's, and without BlackJAX.
    One that has begun ``early``, perhaps of another study, is taken where it is of use.
    """
    if wanted:
        from consortia.engines.sharding import cores

        here = jax.process_count() == 1 and jax.default_backend() == "cpu" and cores() > 1
        wanted = here and find_spec("blackjax") is not None and bool(sys.executable)
    of_use = wanted and early is not None and early.study == study
    if early is not None and not of_use:
        early.process.kill()
    if not wanted:
        yield None
    elif of_use:
        yield early
    else:
        with _begun(study, {"JAX_NUM_CPU_DEVICES": str(jax.device_count())}) as aside:
            yield aside


@contextlib.contextmanager
def _begun(study: Path, environment: dict[str, str]) -> Iterator[Aside]:
    with tempfile.TemporaryDirectory(prefix="consortia-") as folder:
        directory = Path(folder) / "reference"
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, study, directory],
            env=os.environ | environment | {"JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE,  # closed when this process is gone, however it ends
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process alone
        )
        try:
            yield Aside(study, directory, process)
        finally:
            process.kill()
            process.communicate()


def reference_of(study: Study, built: Built, directory: Path, aside: Aside | None) -> Any:
    """Return the reference's draws, kept beside the run's in a run directory of their own.

    What another process did not finish is sampled here, where an error can be raised.
    """
    from consortia.errors import StoreError
    from consortia.store.durable import writing
    from consortia.store.runs import open_run

    if directory.exists():
        with contextlib.suppress(StoreError):  # it was cut short; it is made again as it was
            return _finished(directory)
    if aside is None or not aside.finished():
        return sampled(study, built, directory)
    with writing(directory):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.move(aside.directory, directory)
    return open_run(directory)


def sampled(study: Study, built: Built, directory: Path) -> Any:
    """Return the reference, sampled here and stored."""
    from consortia.diagnostics.reference import nuts

    assert study.reference is not None
    wanted = study.reference.model_dump(exclude={"method"})
    return stored(directory, nuts(built.model, built.rows, **wanted), built)


def stored(directory: Path, tree: Any, built: Built) -> Any:
    """Return a reference as it is read from a run directory of its own, in the place of another."""
    from consortia.store.metadata import with_labels
    from consortia.store.runs import RunStore, open_run

    if directory.exists():
        shutil.rmtree(directory)
    groups = {name: group.to_dataset() for name, group in tree.children.items()}
    store = RunStore(directory)
    store.claim()
    try:
        store.begin(tree.attrs, {}, max(tree["posterior"].sizes["draw"], 1))
        store.append({name: with_labels(group, built.labels) for name, group in groups.items()})
        store.finish(tree.attrs, {})
    finally:
        store.release()
    return open_run(directory)


def _finished(directory: Path) -> Any:
    """Return a reference that was sampled before the run was interrupted."""
    from consortia.errors import StoreError
    from consortia.store.runs import open_run

    tree = open_run(directory)
    if tree.attrs.get("state") != "finished":
        raise StoreError(f"{directory} is not finished")
    return tree


# --- the process of its own ----------------------------------------------------------------------


def main(study: str, directory: str) -> None:
    """Sample the reference of a study into a directory."""
    threading.Thread(target=_end_with_starter, args=(Path(directory),), daemon=True).start()
    collect_seldom()
    from consortia.run.compiled import keep_compiled_programs
    from consortia.study.build import load_study

    set_imports_aside()
    keep_compiled_programs()
    given = load_study(study)
    sampled(given, given.build(), Path(directory))


def _end_with_starter(directory: Path) -> None:
    """End when who started this process is gone, and leave nothing behind in its place."""
    while os.read(0, 1):  # without the lock of `sys.stdin`, which the main thread's end would want
        continue
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):  # others may have something there
        directory.parent.rmdir()
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])

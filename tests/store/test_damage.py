"""Damaged, swapped and foreign files, a full disk, two writers: a clear text and no lost run."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import consortia
from consortia.errors import StoreError
from consortia.run import execution, loop
from consortia.store import checkpoint, runs
from consortia.store import draws as appending
from tests.refusals import refused

OPTIONS: dict[str, Any] = {
    "chains": 1,
    "rounds": 24,
    "thin": 2,
    "warmup": 2,
    "seed": 1,
    "progress": False,
}
METHOD = consortia.fa_ld(0.05, 1)
MODEL = consortia.Model(
    log_prior=lambda theta: -0.5 * (theta**2).sum(),
    log_likelihood=lambda theta, batch: -0.5 * ((batch - theta[None]) ** 2).sum(axis=-1),
    init=np.zeros(2, np.float32),
)
SITES = consortia.Sites.from_list([np.ones((2, 2), np.float32), np.zeros((3, 2), np.float32)])


class Cut(Exception):  # noqa: N818 - no error, a cut
    """Stands for a kill."""


def cut_run(path: Path, at: int = 17) -> None:
    """A run that was killed after this round, saved every three rounds."""
    call = loop.RunLoop._call

    def short(self: Any, end: int, thin: int) -> None:
        if self.done >= at:
            raise Cut
        call(self, min(end, self.done + 3), thin)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "SECONDS_PER_CHUNK", -1.0)
        patch.setattr(execution, "STORED_BYTES", 1)
        patch.setattr(loop.RunLoop, "_call", short)
        with pytest.raises(Cut):
            consortia.sample(MODEL, SITES, METHOD, store=path, **OPTIONS)


def resumed(path: Path) -> np.ndarray:
    tree = consortia.resume(path, MODEL, SITES, METHOD, progress=False)
    return np.asarray(tree["posterior"]["theta"])


@pytest.fixture(scope="module")
def whole() -> np.ndarray:
    return np.asarray(consortia.sample(MODEL, SITES, METHOD, **OPTIONS)["posterior"]["theta"])


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "killed"
    cut_run(path)
    return path


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of other data, elsewhere."""
    path = tmp_path_factory.mktemp("runs") / "another"
    sites = SITES.map(lambda rows: rows + np.float32(1))
    consortia.sample(MODEL, sites, METHOD, store=path, **OPTIONS)
    return path


@pytest.fixture
def copy(killed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(killed, tmp_path / "copy")


def rounds_of(path: Path) -> list[int]:
    found, _ = checkpoint.Checkpoints(path).readable()
    return [one.done for one in found]


# --- checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["torn", "flipped", "empty", "absent"])
def test_a_damaged_checkpoint_costs_the_rounds_since_the_one_before(
    copy: Path, damage: str, whole: np.ndarray
) -> None:
    last, before = rounds_of(copy)
    latest = next(
        copy / name for name in checkpoint.NAMES if checkpoint.read(copy / name).done == last
    )
    content = bytearray(latest.read_bytes())
    content[len(content) // 2] ^= 4
    if damage == "absent":
        latest.unlink()
    else:
        parts = {"torn": bytes(content[:-100]), "flipped": bytes(content), "empty": b""}
        latest.write_bytes(parts[damage])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        np.testing.assert_array_equal(resumed(copy), whole)
    said = [str(warning.message) for warning in caught if "continuing" in str(warning.message)]
    if damage != "absent":
        assert said == [f"{latest.name} is damaged: continuing from round {before}"]
    record = consortia.open_run(copy).attrs
    assert json.loads(record["resumed_at"]) == [before]
    assert last - before <= 4  # one chunk


def test_both_damaged_is_refused_and_what_was_drawn_is_left(copy: Path) -> None:
    drawn = consortia.open_run(copy)["posterior"]["theta"].values
    for name in checkpoint.NAMES:
        (copy / name).write_bytes(b"nothing")
    with refused(StoreError, file=str(copy), match="cannot be continued.*Nothing was changed"):
        resumed(copy)
    import xarray

    kept = xarray.open_zarr(copy / "draws.zarr", group="posterior", consolidated=False)["theta"]
    np.testing.assert_array_equal(kept.values[:, : drawn.shape[1]], drawn)


@pytest.mark.parametrize(("version", "age"), [(0, "an older"), (99, "a newer")])
def test_another_format_version_is_told_from_damage(
    copy: Path, version: int, age: str, monkeypatch: Any
) -> None:
    last = checkpoint.read(copy / checkpoint.NAMES[0])
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", replace(checkpoint.FORMAT, version=version))
        checkpoint.write(copy / checkpoint.NAMES[0], last)
    with refused(StoreError, file=str(copy / checkpoint.NAMES[0]), match=f"{age} version"):
        resumed(copy)


@pytest.mark.parametrize(("version", "age"), [(1, "an older"), (99, "a newer")])
def test_a_record_of_another_format_is_told(copy: Path, version: int, age: str) -> None:
    record = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**record, "format": version}))
    with refused(StoreError, file=str(copy), match=f"{age} version"):
        consortia.open_run(copy)


def test_another_runs_checkpoint_is_refused(copy: Path, another: Path) -> None:
    for name in checkpoint.NAMES:
        shutil.copyfile(another / name, copy / name)
    with pytest.raises(StoreError):
        resumed(copy)


# --- draws ---------------------------------------------------------------------------------------


def test_draws_that_are_damaged_are_named_and_the_rest_stays(copy: Path) -> None:
    file = copy / "draws.zarr/posterior/theta/c/0/0/0"
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(bytes(content))
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with refused(StoreError, file=str(copy), match="posterior/theta: draws 0 to .* is damaged"):
        resumed(copy)
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_draws_of_another_run_are_told_though_their_file_is_whole(
    copy: Path, another: Path
) -> None:
    file = "draws.zarr/posterior/theta/c/0/0/0"
    assert (copy / file).stat().st_size == (another / file).stat().st_size
    shutil.copyfile(another / file, copy / file)
    with refused(StoreError, file=str(copy), match="posterior/theta: they are not those"):
        resumed(copy)


def test_the_record_of_another_run_that_has_ended_does_not_end_this_one(
    copy: Path, another: Path, whole: np.ndarray
) -> None:
    shutil.copyfile(another / "run.json", copy / "run.json")
    np.testing.assert_array_equal(resumed(copy), whole)


def test_draws_beyond_the_checkpoint_are_drawn_again(
    copy: Path, killed: Path, whole: np.ndarray
) -> None:
    # As after a kill between the draws and the checkpoint: the older one alone is left.
    last, _ = rounds_of(copy)
    for name in checkpoint.NAMES:
        if checkpoint.read(copy / name).done == last:
            (copy / name).unlink()
    stored = consortia.open_run(killed)["posterior"].sizes["draw"]
    assert consortia.open_run(copy)["posterior"].sizes["draw"] < stored
    np.testing.assert_array_equal(resumed(copy), whole)


# --- two writers, a full disk --------------------------------------------------------------------


def test_a_directory_that_is_being_written_is_refused(copy: Path, tmp_path: Path) -> None:
    writer = runs.RunStore(copy, existing=True)
    writer.claim(existing=True)
    with refused(StoreError, file=str(copy), match="another process"):
        resumed(copy)
    writer.release()
    resumed(copy)


@pytest.mark.parametrize("place", ["draws", "checkpoint"])
def test_a_full_disk_is_said_and_what_was_saved_is_gone_on_with(
    place: str, tmp_path: Path, whole: np.ndarray, monkeypatch: Any
) -> None:
    path, count = tmp_path / "run", 0

    def full(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count >= 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "SECONDS_PER_CHUNK", -1.0)
        patch.setattr(loop, "SECONDS_PER_CALL", 0.0)
        patch.setattr(execution, "STORED_BYTES", 1)
        if place == "draws":
            real: Any = appending.DrawStore.append
            patch.setattr(appending.DrawStore, "append", full)
        else:
            real = checkpoint.Format.pieces

            def half(*arguments: Any) -> Any:
                nonlocal count
                count += 1
                pieces = real(*arguments)
                if count < 9:  # the eighth is of round 7 and counts two draws
                    yield from pieces
                    return
                yield b"half of it"
                raise OSError(errno.ENOSPC, "No space left on device")

            patch.setattr(checkpoint.Format, "pieces", half)

        with refused(StoreError, file=str(path), match="No space left.*consortia resume"):
            consortia.sample(MODEL, SITES, METHOD, store=path, **OPTIONS)
    kept = consortia.open_run(path)["posterior"]["theta"].values
    assert kept.shape[1] > 0
    np.testing.assert_array_equal(kept, whole[:, : kept.shape[1]])
    np.testing.assert_array_equal(resumed(path), whole)


def test_a_disk_that_is_full_in_the_middle_of_a_chunk_leaves_the_chunks_before(
    tmp_path: Path,
) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("needs the program `unshare`")
    program = Path(__file__).parents[1] / "kills" / "small_disk.py"
    # In a mount namespace of its own, where a user may make a small disk.
    finished = subprocess.run(
        [unshare, "--map-root-user", "--mount", sys.executable, str(program), str(tmp_path)],
        env={"JAX_PLATFORMS": "cpu", **os.environ},
        capture_output=True,
        check=False,
        text=True,
    )
    if finished.returncode == 77 or "unshare" in finished.stderr[:20]:
        pytest.skip("needs leave to make mount namespaces")
    assert finished.returncode == 0, finished.stderr


# --- any damage ----------------------------------------------------------------------------------


def files_of(path: Path) -> list[str]:
    """What may be damaged: everything but the lock."""
    found = [str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()]
    return sorted(name for name in found if name != runs.LOCK)


def spoil(path: Path, other: Path, data: Any) -> str:
    """Damages one file in a way that is drawn; which and how."""
    names = files_of(path)
    # Checkpoints and record more often than the many small files of Zarr.
    special = [name for name in names if "/" not in name]
    name = data.draw(st.sampled_from(special) | st.sampled_from(names))
    file = path / name
    content = bytearray(file.read_bytes())
    kind = data.draw(st.sampled_from(["flip", "cut", "append", "swap", "other", "noise", "remove"]))
    if kind == "flip" and content:
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        del content[data.draw(st.integers(0, max(len(content) - 1, 0))) :]
    elif kind == "append":
        content += data.draw(st.binary(min_size=1, max_size=64))
    elif kind == "swap":
        content = bytearray((path / data.draw(st.sampled_from(names))).read_bytes())
    elif kind == "other" and (other / name).is_file():
        content = bytearray((other / name).read_bytes())
    elif kind == "noise":
        content = bytearray(data.draw(st.binary(max_size=200)))
    file.unlink()
    if kind != "remove":
        file.write_bytes(bytes(content))
    return f"{kind} {name}"


def check_any_damage(killed: Path, other: Path, whole: np.ndarray, folder: Path, data: Any) -> None:
    """Opening and resuming either give the right draws or refuse, in the package's own words."""
    shutil.rmtree(folder, ignore_errors=True)
    path = shutil.copytree(killed, folder / "run")
    untouched = data.draw(st.booleans())
    what = [] if untouched and data.draw(st.booleans()) else [spoil(path, other, data)]
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = consortia.open_run(path)
            if "posterior" in tree.children:
                assert tree["posterior"].sizes["draw"] <= whole.shape[1], what
        except StoreError:
            pass
        try:
            draws = resumed(path)
        except StoreError:
            after = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
            assert after == before, what  # nothing is lost that was there
            return
    np.testing.assert_array_equal(draws, whole, err_msg=str(what))


FUZZ: dict[str, Any] = {
    "phases": [Phase.generate],
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


@settings(max_examples=40, **FUZZ)
@given(data=st.data())
def test_any_damaged_file_gives_the_right_draws_or_a_clear_refusal(
    killed: Path, another: Path, whole: np.ndarray, tmp_path: Path, data: Any
) -> None:
    check_any_damage(killed, another, whole, tmp_path / "fuzz", data)


@pytest.mark.slow
@settings(max_examples=1000, **FUZZ)
@given(data=st.data())
def test_a_thousand_damaged_files_give_the_right_draws_or_a_clear_refusal(
    killed: Path, another: Path, whole: np.ndarray, tmp_path: Path, data: Any
) -> None:
    check_any_damage(killed, another, whole, tmp_path / "fuzz", data)


@settings(max_examples=200, **FUZZ)
@given(content=st.binary(max_size=400), keep_magic=st.booleans())
def test_what_is_no_checkpoint_is_damaged_or_foreign(
    tmp_path: Path, content: bytes, keep_magic: bool
) -> None:
    file = tmp_path / "any.bin"
    file.write_bytes((checkpoint.FORMAT.magic if keep_magic else b"") + content)
    with pytest.raises((checkpoint.Damaged, checkpoint.ForeignFormat)):
        checkpoint.read(file)

"""Run directories that somebody else made: opened, reported and exported as data, never run."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import grammar
from store.test_damage import METHOD, MODEL, OPTIONS, SITES, cut_run

import consortia
from consortia.errors import StoreError
from consortia.report.run_report import load_run
from consortia.store import checkpoint, runs

FEW, MANY = 24, 200
SECRET = "b3BlbnNzaC1rZXktdjE"


class Command:
    """Runs a command where it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run that ended, one that was killed, and one that keeps moments."""
    folder = tmp_path_factory.mktemp("bases")
    options = OPTIONS | {"rounds": 30, "chains": 2}
    consortia.sample(MODEL, SITES, METHOD, store=folder / "whole", **options)
    consortia.sample(MODEL, SITES, METHOD, store=folder / "moments", keep="moments", **options)
    cut_run(folder / "killed")
    return sorted(folder.iterdir())


def alter(rng: random.Random, path: Path, outside: Path) -> str:
    """Change one thing in a run directory; return what."""
    kind = rng.choice(sorted(ALTERATIONS))
    ALTERATIONS[kind](rng, path, outside)
    return kind


def record(rng: random.Random, path: Path, outside: Path) -> None:
    """Another value somewhere in the record, under a checksum that is right."""
    content = json.loads((path / runs.RECORD).read_text())
    version = content.pop("format")
    content.pop("checksum")
    changed = grammar.altered(rng, content)
    plain = grammar.loaded(changed)
    forged = {"format": version, "checksum": runs.checksum(plain)} if plain is not None else {}
    if isinstance(changed, dict):
        text = grammar.json_of(forged | changed)
    else:
        text = grammar.json_of(changed)
    (path / runs.RECORD).write_text(text, errors="surrogatepass")


def saved(rng: random.Random, path: Path, outside: Path) -> None:
    """Another value in the header of a checkpoint, or in its arrays, under a right checksum."""
    for name in checkpoint.NAMES:
        if (path / name).exists():
            (path / name).write_bytes(grammar.altered_message(rng, (path / name).read_bytes()))


def description(rng: random.Random, path: Path, outside: Path) -> None:
    """Another value in a description of Zarr's."""
    file = rng.choice(sorted((path / runs.DRAWS).rglob("zarr.json")))
    file.write_text(grammar.json_of(grammar.altered(rng, json.loads(file.read_text()))))


def larger(rng: random.Random, path: Path, outside: Path) -> None:
    """Arrays that are described as longer than they are, or as cut otherwise."""
    for file in (path / runs.DRAWS).rglob("zarr.json"):
        content = json.loads(file.read_text())
        if "shape" in content:
            axis = rng.randrange(len(content["shape"]))
            content["shape"][axis] = rng.choice((10**6, 10**9, 10**12, 2**63))
            if rng.random() < 0.5:
                content["chunk_grid"]["configuration"]["chunk_shape"][axis] = 10**9
            file.write_text(json.dumps(content))


def no_file(rng: random.Random, path: Path, outside: Path) -> None:
    """A link, a pipe, a directory, noise or nothing in the place of a file."""
    file = rng.choice(sorted(one for one in path.rglob("*") if one.is_file()))
    content = file.read_bytes()
    file.unlink()
    kind = rng.randrange(7)
    if kind == 0:
        file.symlink_to("/dev/zero")
    elif kind == 1:
        file.symlink_to(outside / "mine.txt")
    elif kind == 2:
        os.mkfifo(file)
    elif kind == 3:
        file.mkdir()
    elif kind == 4:
        file.write_bytes(rng.randbytes(rng.randrange(300)))
    elif kind == 5:
        file.write_bytes(content[: rng.randrange(len(content) + 1)])


def pickled(rng: random.Random, path: Path, outside: Path) -> None:
    """A hierarchy of Zarr 2 whose filter unpickles, hidden or open, beside or instead of ours."""
    group = path / runs.DRAWS
    if rng.random() < 0.7:
        shutil.rmtree(group)
    array = group / "posterior" / "draw"
    array.mkdir(parents=True, exist_ok=True)
    for folder in (group, group / "posterior"):
        (folder / ".zgroup").write_text('{"zarr_format": 2}')
    if rng.random() < 0.5:
        inner = {"zarr_consolidated_format": 1, "metadata": {".zgroup": {"zarr_format": 2}}}
        (group / "posterior" / ".zmetadata").write_text(json.dumps(inner))
    filters = [{"id": "vlen-utf8"}, {"id": "pickle", "protocol": 5}]
    described = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|O", "order": "C"}
    described |= {"compressor": None, "fill_value": "", "filters": filters}
    (array / ".zarray").write_text(json.dumps(described))
    (array / ".zattrs").write_text('{"_ARRAY_DIMENSIONS": ["draw"]}')
    (array / "0").write_bytes(pickle.dumps(Command(f"touch {outside / 'ran'}")))


def codec(rng: random.Random, path: Path, outside: Path) -> None:
    """Another codec, type or way of storing, in the place of ours."""
    arrays = sorted((path / runs.DRAWS).rglob("c"))
    file = rng.choice(arrays).parent / "zarr.json"
    content = json.loads(file.read_text())
    name = rng.choice(("numcodecs.pickle", "zstd", "gzip", "sharding_indexed", "blosc", "\x1b[2J"))
    content["codecs"].insert(rng.randrange(3), {"name": name, "configuration": {"protocol": 5}})
    content["data_type"] = rng.choice(
        (content["data_type"], "string", "bytes", "fixed_length_utf32")
    )
    file.write_text(json.dumps(content))


def study(rng: random.Random, path: Path, outside: Path) -> None:
    """A study with a factory that runs, files elsewhere, or a text that is none; and a command."""
    evil = f"open({str(outside / 'ran')!r}, 'w')\ndef make(**more): pass\n"
    (path / "evil.py").write_text(evil)
    model = rng.choice(
        ('factory = "evil:make"', 'kind = "logistic_regression"', 'factory = "this.x:make"')
    )
    files = json.dumps([str(outside / "secret.csv")] * rng.choice((1, 2)))
    text = (
        f"[data]\nfiles = {files}\ntarget = {rng.choice(('ill', 'y', SECRET[:3]))!r}\n"
        f"[model]\n{model}\n[algorithm]\nname = 'fa_ld'\nstep_size = 0.1\nlocal_steps = 1\n"
        "[run]\nrounds = 10\n"
    )
    kind = rng.randrange(5)
    if kind == 0:
        (path / "study.toml").symlink_to(outside / "secret.csv")
    elif kind == 1:
        (path / "study.toml").write_bytes(rng.randbytes(60))
    else:
        (path / "study.toml").write_text(text if kind < 4 else "[" * 5000)
    source = rng.choice((path / "study.toml", outside / "study.toml"))
    command: Any = {"study": str(source), "seed": None, "reference": True}
    if rng.random() < 0.6:
        command = grammar.altered(rng, command)
    (path / "command.json").write_text(grammar.json_of(command), errors="surrogatepass")


def reference(rng: random.Random, path: Path, outside: Path) -> None:
    """A reference, altered as the run itself may be."""
    shutil.copytree(path, path / "reference")
    kinds = sorted(set(ALTERATIONS) - {"reference", "study"})
    ALTERATIONS[rng.choice(kinds)](rng, path / "reference", outside)


ALTERATIONS = {
    one.__name__: one
    for one in (record, saved, description, larger, no_file, pickled, codec, study, reference)
}


def check(rng: random.Random, base: Path, folder: Path, *, whole: bool) -> str:
    """Open, load, report and export one altered directory; return what was altered."""
    shutil.rmtree(folder, ignore_errors=True)
    outside = folder / "outside"
    outside.mkdir(parents=True)
    (outside / "mine.txt").write_text("mine")
    (outside / "secret.csv").write_text(f"x,{SECRET}\n1,{SECRET}\n2,3\n")
    path = shutil.copytree(base, folder / "run")
    what = alter(rng, path, outside)

    def everything() -> str:
        tree = consortia.open_run(path)
        assert "posterior" not in tree.children or tree["posterior"].sizes["draw"] <= 30
        if not whole:
            return " ".join(load_run(path).skipped)
        with np.errstate(all="ignore"):
            from consortia.report.document import write_report

            write_report(path, path / "report.html")
        consortia.to_netcdf(path, folder / "run.nc")
        return (path / "report.html").read_text()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        page, error = grammar.own_error(everything)
    assert not (outside / "ran").exists(), what
    assert (outside / "mine.txt").read_text() == "mine", what
    for text in (page, str(error)):
        assert text is None or f"1,{SECRET}" not in text
    assert page is None or "\x1b" not in page
    return f"{what}: {type(error).__name__}"


@pytest.mark.parametrize(
    ("seed", "count"), [(1, FEW), pytest.param(2, MANY - FEW, marks=pytest.mark.slow)]
)
def test_an_altered_run_directory_is_read_as_data_or_refused(bases, tmp_path, seed, count):
    rng = random.Random(seed)
    found = Counter(
        check(rng, rng.choice(bases), tmp_path / "x", whole=False) for _ in range(count)
    )
    assert sum(found.values()) == count
    assert sum(n for what, n in found.items() if what.endswith("StoreError")) > count // 3, found


@pytest.mark.slow
def test_reports_of_altered_run_directories_hold_nothing_of_others(bases, tmp_path):
    rng = random.Random(3)
    for _ in range(MANY // 4):
        check(rng, rng.choice(bases), tmp_path / "x", whole=True)


@pytest.mark.parametrize("name", [runs.RECORD, "checkpoint-a.bin", "summary.txt", "study.toml"])
def test_what_is_written_replaces_a_link_and_leaves_what_it_points_to(tmp_path, name):
    from consortia.store.durable import replace_file

    (tmp_path / "mine").write_text("mine")
    for link in (tmp_path / name, tmp_path / f"{name}.part"):
        link.symlink_to(tmp_path / "mine")
    replace_file(tmp_path / name, [b"ours"])
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / name).read_bytes() == b"ours"
    assert not (tmp_path / name).is_symlink()


def test_a_directory_of_draws_that_is_a_link_is_refused(bases, tmp_path):
    path = shutil.copytree(bases[-1], tmp_path / "run")
    shutil.move(path / runs.DRAWS, tmp_path / "elsewhere")
    (path / runs.DRAWS).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="is a link"):
        consortia.open_run(path)

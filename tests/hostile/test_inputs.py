"""Bad inputs, generated: an error of our own, or a result of what was given and nothing else."""

from __future__ import annotations

import inspect
import io
import json
import os
import random
import warnings
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hostile import grammar
from typer.testing import CliRunner

import consortia
from consortia import models
from consortia.algorithms.registry import ALGORITHMS
from consortia.cli.commands import app
from consortia.core.contract import Method
from consortia.core.target import in_jax_width
from consortia.study.build import load_study

QUICK, MANY = 20, 160
"""Of each of the five kinds of inputs."""

SITES = consortia.Sites.from_list([{"x": np.ones((5, 2), np.float32), "y": np.ones(5, np.float32)}])
MODEL = models.linear_regression(2)
METHOD = consortia.fa_ld(0.05, 1)

counts = pytest.mark.parametrize(
    ("seed", "count"), [(1, QUICK), pytest.param(2, MANY, marks=pytest.mark.slow)]
)


def anything(rng: random.Random) -> Any:
    """A value of any kind that Python has for it."""
    found = grammar.loaded(grammar.value(rng)) if rng.random() < 0.4 else grammar.scalar(rng)
    found = float(found.text[:300]) if isinstance(found, grammar.Raw) else found
    kinds = (
        lambda: found,
        lambda: np.float64(rng.uniform(-1, 1)),
        lambda: np.asarray(rng.choice((1, 1.5, True, "a", None))),
        lambda: np.full(rng.choice(((0,), (3,), (2, 2), (1, 1, 1))), rng.uniform(-1, 2)),
        lambda: jnp.float32(rng.uniform(0, 1)),
        lambda: rng.choice((len, int, object(), b"bytes", 1j, range(3), {1, 2}, slice(2))),
        lambda: np.ma.masked_array([1.0, 2.0], [False, True]),
    )
    return rng.choice((*[kinds[0]] * 6, *kinds))()


class Started(BaseException):
    """The sampler would be compiled now."""


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    def started(*arguments: Any) -> None:
        raise Started

    monkeypatch.setattr("consortia.engines.local.LocalRun.advance", started)
    warnings.simplefilter("ignore")


def outcome(work: Any) -> tuple[str, Any]:
    """What came of it: the class of an error of ours, "started", or "" with a result."""
    try:
        found, error = grammar.own_error(work)
    except Started:
        return "started", None
    return ("" if error is None else type(error).__name__), found


@counts
def test_arguments_of_methods_and_models_are_kept_as_given_or_refused(seed, count):
    rng, found = random.Random(seed), Counter()
    for _ in range(count):
        if rng.random() < 0.7:
            entry = ALGORITHMS[rng.choice(sorted(ALGORITHMS))]
            factory, arguments = entry.factory, dict(entry.example)
        else:
            factory = getattr(models, rng.choice(("linear_regression", "logistic_regression")))
            arguments = {"features": 2}
        name = rng.choice(sorted(inspect.signature(factory).parameters))
        arguments[name] = given = anything(rng)
        what, made = outcome(lambda f=factory, a=arguments: f(**a))
        found[what] += 1
        if what == "" and isinstance(made, Method) and name in made.parameters():
            kept = made.parameters()[name]
            if isinstance(given, bool | int | float | str) and not isinstance(kept, dict | list):
                assert kept == given or (kept is None and given is None), (factory, name, given)
                assert isinstance(kept, bool) <= isinstance(given, bool), (factory, name, given)
    assert found["InputError"] > count // 3, found


@counts
def test_arguments_of_runs_are_refused_before_anything_is_compiled(seed, count, tmp_path):
    rng, found = random.Random(seed), Counter()
    names = [
        *("rounds", "chains", "seed", "thin", "warmup", "init", "engine", "store", "stop", "keep"),
        *("model", "sites", "algorithm", "on_plan", "metadata", "progress"),
    ]
    for number in range(count):
        given = {"chains": 1, "model": MODEL, "sites": SITES, "algorithm": METHOD, "rounds": 4}
        given |= {"progress": False, "store": tmp_path / str(number)}
        for _ in range(rng.choice((1, 1, 2))):
            name = rng.choice(names)
            given[name] = anything(rng)
            if name in ("on_plan", "init") and callable(given[name]):
                given[name] = None  # what a user's function raises is the user's
        if isinstance(given["store"], str) and not given["store"].startswith("\0"):
            given["store"] = str(tmp_path / given["store"].strip("./"))
        what, _ = outcome(lambda given=given: consortia.sample(**given))
        found[what] += 1
    assert found["InputError"] > count // 2, found


def column(rng: random.Random, rows: int) -> Any:
    """A column of data, good or bad."""
    kinds = (
        lambda: np.arange(rows, dtype=rng.choice(("i1", "u2", "i4", "i8", "u8", "f4", "f8"))),
        lambda: np.full(rows, grammar.whole(rng), object if rng.random() < 0.2 else None),
        lambda: np.full((rows, 2), rng.choice((np.nan, np.inf, 1e39, 1e300, -0.0))),
        lambda: np.ma.masked_array(np.ones(rows), np.arange(rows) % 2 == 0),
        lambda: np.full(rows, rng.choice(("a", "1", ""))),
        lambda: np.full(rows, np.datetime64("2020-01-01")),
        lambda: [1.0] * rows,
        lambda: np.ones(rows, rng.choice((bool, complex, np.float16, np.longdouble))),
        lambda: anything(rng),
    )
    return rng.choice(kinds)()


@counts
def test_rows_that_are_taken_are_the_numbers_that_were_given(seed, count):
    rng, found = random.Random(seed), Counter()
    model = consortia.Model(
        lambda theta: -(theta**2),
        lambda theta, rows: 0.0 * jnp.real(jnp.asarray(rows["y"], jnp.float32)) - theta**2,
        jnp.zeros(()),
    )
    for _ in range(count):
        shards = [
            {"y": column(rng, rows), **({"x": column(rng, rows)} if rng.random() < 0.3 else {})}
            for rows in (rng.choice((0, 1, 3)), rng.choice((1, 3)))
        ]
        what, sites = outcome(lambda shards=shards: consortia.Sites.from_list(shards))
        if what == "":
            what, _ = outcome(
                lambda sites=sites: consortia.sample(
                    model, sites, METHOD, rounds=4, progress=False, chains=1
                )
            )
        found[what] += 1
        if what == "started":
            for given, held in zip(shards, sites, strict=True):
                for name, leaf in held.items():
                    used, before = in_jax_width(leaf), np.asarray(given[name])
                    assert not isinstance(given[name], np.ma.MaskedArray)
                    np.testing.assert_allclose(used.astype(complex), before.astype(complex), 1e-6)
    assert found["InputError"] > count // 3, found


TEXT = """[data]
files = ["a.csv"]
target = "y"
[model]
kind = "linear_regression"
[algorithm]
name = "fa_ld"
step_size = 0.05
local_steps = 1
[run]
rounds = 10
chains = 1
"""


def file_of(rng: random.Random, path: Any) -> None:
    """A data file with something odd in it."""
    cells = (
        "1",
        "-3.5",
        "1e400",
        "nan",
        "",
        "abc",
        "#1",
        "2500000000",
        '"1"',
        "1,5",
        "\x1b[2J",
        "٣",
    )
    lines = [["x", rng.choice(("y", "y", "\u202ey", "x", "$\\frac{$"))]]
    lines += [[str(number), str(number / 2)] for number in range(4)]
    for _ in range(rng.randrange(3)):
        row = rng.randrange(len(lines))
        lines[row][rng.randrange(2)] = rng.choice(cells)
    if rng.random() < 0.2:
        lines[rng.randrange(5)].append("7")
    text = rng.choice(("\n", "\r\n", "\n\n")).join(
        rng.choice((",", ",", ";")).join(r) for r in lines
    )
    data = text.encode()
    if rng.random() < 0.3:
        packed = io.BytesIO()
        content = {"y": np.arange(5.0), "x": rng.choice((np.ones((5, 2)), np.array([{}], object)))}
        (np.savez if rng.random() < 0.5 else np.savez_compressed)(packed, **content)
        data, path = packed.getvalue(), path.with_suffix(".npz")
    kind = rng.randrange(5)
    if kind == 0:
        data = data[: rng.randrange(len(data))]
    elif kind == 1:
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        data = bytes(changed)
    path.write_bytes(data)


@counts
def test_studies_and_files_are_built_from_what_is_in_them_or_refused(seed, count, tmp_path):
    rng, found = random.Random(seed), Counter()
    for number in range(count):
        folder = tmp_path / str(number)
        folder.mkdir()
        file_of(rng, folder / "a.csv")
        text = TEXT.replace("a.csv", next(folder.iterdir()).name)
        for _ in range(rng.choice((0, 0, 1))):
            lines = text.splitlines()
            place = rng.randrange(len(lines))
            key = lines[place].partition("=")[0]
            deep = rng.choice(("[" * 5000, "9" * 5000, '"' + "a" * 5000 + '"', "1e9", "{}", "''"))
            lines[place] = f"{key}= {deep}"
            text = "\n".join(lines)
        (folder / "study.toml").write_text(text)
        what, built = outcome(lambda folder=folder: load_study(folder / "study.toml").build())
        found[what] += 1
        if what == "":
            rows = built.sites.site(0)
            assert np.isfinite(rows["y"]).all()
            assert all(
                name.isprintable() for name in built.labels.get("coefficients", ((),))[-1] or ()
            )
    assert found["InputError"] > count // 3, found


COMMANDS = (
    ("check", "{}"),
    ("run", "{}", "-q"),
    ("resume", "{}"),
    ("report", "{}"),
    ("export", "{}", "{}"),
    ("site", "check", "{}"),
    ("site", "check", "--study", "{}"),
    ("site", "ledger", "{}"),
    ("flower", "certificates", "{}", "--host", "{}"),
    ("flower", "key", "{}"),
    ("flower", "new", "{}", "--to", "{}"),
)


@counts
def test_commands_end_with_a_code_and_a_sentence(seed, count, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("a file")
    (tmp_path / "folder").mkdir()
    (tmp_path / "nested.toml").write_text("a = " + "[" * 5000)
    (tmp_path / "large.toml").write_text("a = " + "9" * 5000)
    (tmp_path / "lines.jsonl").write_text('{"a": 1}\n[[/x]\n')
    paths = ["file", "folder", "nested.toml", "large.toml", "lines.jsonl", "no such", "a" * 300]
    paths += ["/dev/zero", "/dev/null", "bücher.example", "", "\x1b[2J", "a b", "[/x]", "fifo"]
    os.mkfifo(tmp_path / "fifo")
    rng, found = random.Random(seed), Counter()
    for _ in range(count):
        command = rng.choice(COMMANDS)
        if command[0] == "report" and count == QUICK:
            continue  # it loads Matplotlib
        words = [word.format(rng.choice(paths)) for word in command]
        result, _ = grammar.own_error(lambda words=words: CliRunner().invoke(app, words))
        ended = result.exception is None or isinstance(result.exception, SystemExit)
        assert ended, (words, result.exception)
        assert "\x1b" not in result.output, words
        found[result.exit_code] += 1
    assert found[2] > count // 4, found


def test_a_forged_ledger_is_shown_without_its_markup(tmp_path):
    from consortia.federation.governance.ledger import Ledger

    ledger = Ledger(tmp_path / "ledger.jsonl")
    for name in ("[/x]", "\x1b]0;owned\x07", "\u202e" + "a" * 50):
        ledger.append("refused", run=name, site="north")
    shown = CliRunner().invoke(app, ["site", "ledger", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "[/x]" in shown.output
    assert "\x1b" not in shown.output
    assert "\u202e" not in shown.output
    assert json.loads(CliRunner().invoke(app, ["site", "ledger", str(tmp_path), "--json"]).output)


def test_jax_is_in_32_bits_here():
    assert not jax.config.jax_enable_x64

"""The golden draws can tell runs apart, and are the same each time they are made."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from golden import cases, draws, signatures

import consortia

SCRIPT = Path(draws.__file__)


def made(folder, label="fa_ld-1"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        _, tree = next(cases.runs(label, "local", folder))
    return cases.hashes(tree)


def test_hashes_are_the_same_with_the_same_seed_and_others_with_another(tmp_path, monkeypatch):
    before = made(tmp_path)
    assert draws.differences({"case": before}, {"case": made(tmp_path)}) == []
    monkeypatch.setattr(cases, "SEED", cases.SEED + 1)
    (line,) = draws.differences({"case": before}, {"case": made(tmp_path)})
    assert {"posterior/coefficients", "posterior/intercept"} <= set(line[6:].split(", "))


def test_secret_noise_is_the_same_by_counted_keys_alone(tmp_path, monkeypatch):
    label = "private_posterior-1"
    secret = made(tmp_path, label)
    for again in (made(tmp_path, label), counted(label, label, tmp_path, monkeypatch)):
        assert again["posterior/coefficients"] != secret["posterior/coefficients"]
    known, others = (counted(label, keys, tmp_path, monkeypatch) for keys in (label, "others"))
    assert counted(label, label, tmp_path, monkeypatch) == known
    assert others["posterior/coefficients"] != known["posterior/coefficients"]


def counted(label, keys, folder, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(cases.SecretNoise, "__init__", cases.count_keys(keys))
        return made(folder, label)


def test_what_is_gone_and_what_is_renamed_is_named():
    stored = {"a/local/fresh": {"posterior/x": "1"}, "b/local/fresh": {"posterior/x": "1"}}
    lines = draws.differences(stored, {"b/local/fresh": {"posterior/y": "1"}})
    assert lines == ["a/local/fresh: it is gone", "b/local/fresh: posterior/x, posterior/y"]


@pytest.mark.parametrize("fact", ["processor", "jax", "numpy"])
def test_hashes_of_another_machine_are_refused_before_anything_is_run(tmp_path, fact):
    file = tmp_path / "golden.json"
    file.write_text(json.dumps(draws.machine() | {fact: "another", "hashes": {}}))
    refused = subprocess.run(
        [sys.executable, SCRIPT, "--compare", file], capture_output=True, text=True
    )
    assert refused.returncode == 1
    assert f"{fact} is" in refused.stderr
    assert "use --from" in refused.stderr


def test_every_method_runs_on_every_engine_that_the_registry_names():
    pairs = {
        (case[0], engine)
        for label, case in cases.CASES.items()
        for engine in draws.JOBS
        if engine != "public" and cases.supported(label, engine)
    }
    for name, entry in cases.ALGORITHMS.items():
        engines = {"local", "single", "sharded"}
        if "mpi" in entry.engines and not cases.problem.is_asynchronous(name):
            engines |= {"mpi2", "mpi3"}
        if "flower" in entry.engines:
            engines.add("flower")
        assert {engine for method, engine in pairs if method == name} == engines, name


def test_all_that_is_public_has_a_signature():
    found = signatures.signatures()
    assert {f"public/{name}" for name in consortia.__all__} <= set(found)
    assert not any(" at 0x" in text["signature"] for text in found.values())
    assert "rounds" in found["public/sample"]["signature"]
    assert "events" in found["public/latency.recorded"]["signature"]


@pytest.mark.engines
@pytest.mark.slow
def test_they_are_the_same_when_made_again(tmp_path):
    file = tmp_path / "golden.json"
    subprocess.run([sys.executable, SCRIPT, "--write", file], check=True)
    again = subprocess.run([sys.executable, SCRIPT, "--compare", file], capture_output=True)
    assert again.returncode == 0, again.stdout.decode()[-4000:]

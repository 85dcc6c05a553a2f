"""Compiled programs are kept between processes, where the user has not said otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from consortia.run import compiled

JOB = """
import json, sys, warnings
import jax, numpy as np
import consortia

if len(sys.argv) > 1:
    jax.config.update("jax_compilation_cache_dir", sys.argv[1])
found = {"hits": 0, "misses": 0}

def listen(event, **details):
    kind = event.rpartition("_")[2]
    if event.startswith("/jax/compilation_cache/cache_") and kind in found:
        found[kind] += 1

jax.monitoring.register_event_listener(listen)
sites = consortia.Sites.from_list([{"y": np.arange(3.0, dtype=np.float32)}])
normal = lambda theta, rows: -0.5 * (rows["y"] - theta) ** 2
model = consortia.Model(lambda theta: -0.5 * theta**2, normal, np.zeros((), np.float32))
with warnings.catch_warnings(record=True) as given:
    warnings.simplefilter("always")
    consortia.sample(model, sites, consortia.fa_ld(0.1, 1), rounds=2, progress=False)
found["folder"] = jax.config.jax_compilation_cache_dir
found["warned"] = [str(one.message) for one in given]
print(json.dumps(found))
"""


def sampled(cache: Path, *arguments: str, **variables: str) -> dict:
    """Return the report of a process that samples on its cache."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    environment |= {"JAX_PLATFORMS": "cpu", "CONSORTIA_CACHE": str(cache)} | variables
    command = [sys.executable, "-c", JOB, *arguments]
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(outcome.stdout)


def test_a_second_process_compiles_nothing(tmp_path):
    first, second = sampled(tmp_path), sampled(tmp_path)
    assert Path(first["folder"]).is_relative_to(tmp_path / "compiled")
    assert Path(first["folder"]).stat().st_mode & 0o777 == 0o700
    assert first["hits"] == 0 < first["misses"]
    assert (second["hits"], second["misses"]) == (first["misses"], 0)


def test_the_users_own_choice_stands(tmp_path):
    own = sampled(tmp_path / "ours", str(tmp_path / "own"))
    assert own["folder"] == str(tmp_path / "own")
    declined = sampled(tmp_path / "ours", CONSORTIA_COMPILATION_CACHE="0")
    assert declined["folder"] is None
    assert not (tmp_path / "ours").exists()


def test_a_folder_in_which_others_may_write_is_not_taken(tmp_path):
    folder = tmp_path / "compiled"
    folder.mkdir()
    compiled._check_own(folder)
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="others may write"):
        compiled._check_own(folder)


def test_a_folder_that_cannot_be_made_is_said_and_nothing_is_kept(tmp_path):
    (tmp_path / "compiled").write_text("in the way")
    found = sampled(tmp_path)
    assert found["folder"] is None
    assert any("compiled programs are not kept" in text for text in found["warned"])


def test_the_oldest_programs_go_when_there_are_too_many(tmp_path):
    for age, name in enumerate("dcba"):
        (tmp_path / name).write_bytes(bytes(25))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    compiled.remove_oldest(tmp_path, 100)
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c", "d"]
    (tmp_path / "e").write_bytes(bytes(1))
    compiled.remove_oldest(tmp_path, 100)
    assert sorted(os.listdir(tmp_path)) == ["d", "e"]

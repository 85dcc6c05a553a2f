"""A run watched from its directory: what is said while it runs, after it, and to whom."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cli.irises import invoke
from parity import flower_sites

import consortia
from consortia.core.words import duration, size
from consortia.report import watching
from consortia.report.watching import MISSING_SECONDS, SILENT, Watch
from consortia.store.runs import RECORD, checksum, read_record
from consortia.store.status import STATUS, read_status


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of 20 draws of two chains at three sites."""
    path = tmp_path_factory.mktemp("watched") / "run"
    model = consortia.Model(
        log_prior=lambda theta: -0.5 * (theta**2).sum(),
        log_likelihood=lambda theta, batch: -0.5 * ((batch - theta[None]) ** 2).sum(axis=-1),
        init=np.zeros(2, np.float32),
    )
    sites = consortia.Sites.from_list([np.ones((n, 2), np.float32) for n in (2, 3, 4)])
    options = {"chains": 2, "rounds": 40, "thin": 2, "seed": 1, "progress": False}
    consortia.sample(
        model, sites, consortia.fa_ld(0.05, 1), store=path, on_divergence="ignore", **options
    )
    return path


NOW = 1.7e9
"""The time at which all tests look: no load of the machine makes a run silent."""


@pytest.fixture
def running(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same directory as it is while the run runs, two sites being late."""
    monkeypatch.setattr(watching, "time", SimpleNamespace(time=lambda: NOW))
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    record = json.loads((path / RECORD).read_text())
    version = record.pop("format")
    record.pop("checksum")
    record["state"] = "running"
    for key in ("end", "stopped"):
        record.pop(key)
    record = {"format": version, "checksum": checksum(record), **record}
    (path / RECORD).write_text(json.dumps(record))
    names = json.loads(record["sites"])
    status = json.loads((path / STATUS).read_text())
    status |= {"written": NOW, "state": "running", "rounds": 20, "seconds_left": 95.0}
    status |= {"rounds_per_second": 0.21, "bytes_up": 1_500_000}
    late = [(1.0, None), (1.2, MISSING_SECONDS + 5), (30.0, None)]
    status["sites"] = [
        {"name": name, "answered": answered, "waiting": waiting}
        for name, (answered, waiting) in zip(names, late, strict=True)
    ]
    (path / STATUS).write_text(json.dumps(status))
    return path


def test_of_a_run_that_ends_by_itself_no_time_is_left_to_be_said(running):
    status = json.loads((running / STATUS).read_text()) | {"seconds_left": None}
    (running / STATUS).write_text(json.dumps(status))
    assert "left until it has enough draws, 0.21 rounds/s" in " ".join(
        invoke("watch", running, "--once").stdout.split()
    )


def test_a_run_says_rounds_time_left_bytes_diagnostics_and_its_late_sites(running):
    outcome = invoke("watch", running, "--once")
    assert outcome.exit_code == 0, outcome.output
    text = " ".join(outcome.stdout.split())
    for words in (
        "20 of 40 at most",
        "left 95 s, 0.21 rounds/s",
        "1.5 MB up",
        "R-hat, ESS at most",
        "after 20 draws",
        "answers in 1.0 s",
        "MISSING: waited for since 65 s",
        "SLOW: answers in 30 s",
    ):
        assert words in text, words
    told = json.loads(invoke("watch", running, "--json").stdout)
    assert told["alive"] is True
    assert told["share"] == 0.5
    assert told["facts"]["sent"].startswith("at most ")
    assert len(told["sites"]) == 3


def test_a_run_of_a_formula_is_watched_by_natural_quantities(tmp_path):
    rng = np.random.default_rng(0)
    tables = {
        site: {"age": rng.normal(60, 9, 20), "t": rng.exponential(2.0, 20), "d": np.ones(20)}
        for site in ("oslo", "lima")
    }
    made = consortia.regression("Surv(t, d) ~ age", tables, family="weibull")
    options = {"chains": 2, "rounds": 20, "seed": 1, "progress": False, "store": tmp_path / "run"}
    method = consortia.fa_ld(1e-4, 1)
    consortia.sample(made.model, made.sites, method, on_divergence="ignore", **options)
    told = json.loads(invoke("watch", tmp_path / "run", "--json").stdout)
    assert {name for name, *_ in told["parameters"]} == {"age", "intercept", "shape"}


def test_a_run_that_writes_no_more_is_not_called_running(running):
    status = json.loads((running / STATUS).read_text())
    (running / STATUS).write_text(json.dumps(status | {"written": NOW - SILENT - 10}))
    view = Watch(running).look()
    assert not view.alive
    assert view.state.startswith("no sign of life for 40 s")
    assert all(state == "in processes of the run" for _, _, state in view.sites)


def test_a_finished_run_says_so_and_ends_the_watching(finished):
    view = Watch(finished).look()
    assert (view.state, view.alive, view.share) == ("finished", False, 1.0)
    assert read_status(finished)["rounds"] == 40
    record, _ = read_record(finished)
    up, down = (size(record[f"bytes_{way}"]) for way in ("up", "down"))
    assert dict(view.facts)["sent"] == f"{up} up, {down} down"


def test_what_is_no_run_or_no_status_of_ours_is_refused(running, tmp_path):
    assert invoke("watch", tmp_path / "nothing").exit_code == 3
    (running / STATUS).write_text('{"rounds": "many"}')
    outcome = invoke("watch", running)
    assert outcome.exit_code == 3
    assert "damaged" in outcome.stderr


@pytest.mark.slow
def test_sites_beyond_a_network_say_how_they_answer(tmp_path):
    sites = flower_sites.Sites(tmp_path / "sites", "fa_hmc", 3, 2)
    sites.sampled(store=tmp_path / "run")
    seen = {one["name"]: one for one in read_status(tmp_path / "run")["sites"]}
    assert list(seen) == list(sites.names)
    assert all(one["answered"] >= 0 and one["waiting"] is None for one in seen.values())


def test_times_and_sizes_have_their_units():
    assert [duration(one) for one in (3.2, 95, 200, 7300)] == [
        "3.2 s",
        "95 s",
        "3 min 20 s",
        "2 h 1 min",
    ]
    assert [size(one) for one in (12, 1500, 2.5e6, 3e13)] == ["12 B", "1.5 kB", "2.5 MB", "30 TB"]

"""The benchmarks run, and their hand-written peers do the same work as the library."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia

ROOT = Path(__file__).resolve().parents[2]

ROUNDING = 1e-4
"""Relative error in float32 of a few hundred gradient steps that are summed in another order."""


@pytest.fixture
def federated_hmc(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import federated_hmc

    return federated_hmc


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import measure

    return measure


def test_the_peers_of_fa_hmc_make_the_same_round(federated_hmc: ModuleType) -> None:
    problem = federated_hmc.Problem.synthetic(3, 5, 4, leapfrog_steps=3, local_steps=2)
    rng = np.random.default_rng(1)
    theta, momenta = rng.normal(size=4).astype(np.float32), rng.normal(size=(2, 4))
    momenta = momenta.astype(np.float32)
    expected = federated_hmc.numpy_round(problem, theta, momenta)
    assert not np.allclose(expected, theta, atol=1e-3)
    rounds = [federated_hmc.numpy_loop_round(problem, theta, momenta)]
    forms = (federated_hmc.automatic_gradient, True), (federated_hmc.hand_gradient, False)
    for gradient, batched in forms:
        one_round = jax.jit(federated_hmc.bare_round(problem, gradient, batched))
        rounds.append(np.asarray(one_round(theta, momenta, problem.x, problem.y)))
    for moved in rounds:
        np.testing.assert_allclose(moved, expected, rtol=ROUNDING)


@pytest.mark.slow
def test_the_library_has_the_law_of_the_peer_of_fa_hmc(federated_hmc: ModuleType) -> None:
    # One round from one start, of the peer and of the library, 4,000 times each: means of the four
    # coordinates within 5 standard errors (2e-6 of false alarm), variances within 15 % (their
    # relative error is 2.2 % each, so 4.8 standard errors of the difference).
    problem = federated_hmc.Problem.synthetic(3, 5, 4, leapfrog_steps=3, local_steps=2)
    times = 4000
    momenta = np.random.default_rng(0).standard_normal((times, 2, 4), np.float32)
    start = np.zeros(4, np.float32)
    peer = np.array([federated_hmc.numpy_round(problem, start, momentum) for momentum in momenta])
    model = consortia.models.logistic_regression(4)
    sites = consortia.Sites.from_list(
        [{"x": x, "y": y} for x, y in zip(problem.x, problem.y, strict=True)]
    )
    method = consortia.fa_hmc(federated_hmc.STEP_SIZE, 3, 2)
    tree = consortia.sample(model, sites, method, rounds=1, chains=times, progress=False)
    ours = tree["posterior"]["coefficients"].to_numpy()[:, 0]
    error = np.sqrt((peer.var(axis=0) + ours.var(axis=0)) / times)
    assert np.all(np.abs(peer.mean(axis=0) - ours.mean(axis=0)) < 5 * error)
    np.testing.assert_allclose(ours.var(axis=0), peer.var(axis=0), rtol=0.15)


def test_the_step_of_the_peer_of_sgld_is_the_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import langevin

    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(9, 3)), rng.integers(0, 2, 9).astype(float)
    theta, normal, index = rng.normal(size=3), rng.normal(size=3), np.array([4, 4, 0, 8])
    probability = 1 / (1 + np.exp(-x[index] @ theta))
    gradient = 9 / 4 * (probability - y[index]) @ x[index] + theta
    expected = theta - langevin.STEP * gradient + math.sqrt(2 * langevin.STEP) * normal
    narrow = [np.float32(value) for value in (theta, normal, x, y)]
    for form in (langevin.automatic_gradient, langevin.hand_gradient):
        step = langevin.bare_step(form)
        moved = step(narrow[0], jnp.asarray(index), *map(jnp.asarray, narrow[1:]))
        np.testing.assert_allclose(moved, expected, rtol=1e-5)
    by_numpy = langevin.numpy_gradient(theta, x[index], y[index], 9)
    np.testing.assert_allclose(by_numpy, gradient, rtol=1e-12)


def test_the_step_of_the_peer_of_gossip_is_the_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import gossip

    agents = 4
    x, y = gossip.data(agents)
    positions, normal = np.random.default_rng(3).normal(size=(2, agents, gossip.FEATURES))
    expected = np.zeros_like(positions)
    for i in range(agents):
        heard = (positions[i - 1] + positions[i] + positions[(i + 1) % agents]) / 3
        gradient = x[i].T @ (x[i] @ positions[i] - y[i]) + positions[i] / agents
        expected[i] = heard - gossip.STEP * gradient + math.sqrt(2 * gossip.STEP) * normal[i]
    narrow = [jnp.asarray(np.float32(value)) for value in (positions, normal, x, y)]
    for form in (gossip.automatic_gradient, gossip.hand_gradient):
        np.testing.assert_allclose(gossip.bare_step(form, *narrow), expected, atol=1e-5)


def test_the_update_of_the_peer_of_travelling_chains_is_the_equation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import travelling

    given = travelling.problem(3, 6)
    theta, normal, index, node = np.array([0.3, -1.0]), np.array([0.5, 2.0]), [4, 4, 0], 2
    batch = given.rows[node][index].astype(float)
    d = -theta + 6 / 3 * 3 * (batch - theta).sum(axis=0)
    own, pooled = 6 * (given.means[node] - theta), (6 * (given.means - theta)).sum(axis=0)
    h = travelling.STEP
    expected = theta + h / 2 * (d + pooled - 3 * own) + math.sqrt(h) * normal
    moved = travelling.update(
        jnp.asarray(theta, jnp.float32),
        jnp.asarray(index, jnp.int32),
        jnp.asarray(normal, jnp.float32),
        node,
        travelling.Problem(*map(jnp.asarray, given)),
    )
    np.testing.assert_allclose(moved, expected, rtol=1e-5)


def test_the_library_has_the_law_of_the_peers_of_travelling_chains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import travelling

    # After three visits all 100 chains of each have the stationary law, of variance 0.0055: a mean
    # of 100 is known to 0.0074 and a variance to 14 %; five of these, of differences.
    given = travelling.problem()
    ours = travelling.library(given, 3, "ours").run(1)["posterior"]["theta"].to_numpy()[:, -1]
    for peer in (travelling.bare(given, 3, 50), travelling.bare_same_numbers(given, 3)):
        ends = peer.run(1)[-1]
        assert np.all(np.abs(ends.mean(axis=0) - ours.mean(axis=0)) < 5 * 0.0074 * 2**0.5)
        assert np.all(np.abs(np.log(ends.var(axis=0) / ours.var(axis=0))) < 1.0)


def test_figures_are_medians_of_pairs_and_gates_judge_them(measure: ModuleType) -> None:
    times = {"ours": np.array([1.0, 2.0, 4.0]), "theirs": np.array([2.0, 3.0, 4.0])}
    row = measure.throughput("b", times, "ours", "theirs", gate=measure.Gate(">=", 1.6))
    assert (row.figure, row.least, row.greatest, row.pairs) == (1.5, 1.0, 2.0, 3)
    assert row.verdict == "FAIL"
    assert measure.Row.of_plain(json.loads(json.dumps(row.plain()))) == row
    slower = measure.time_ratio("b", times, "ours", "theirs", gate=measure.Gate("<=", 0.7))
    assert slower.verdict == "PASS"
    assert measure.Row("b", "w", skipped="no peer").verdict == "skipped"


def test_contenders_take_turns_after_one_call_each(measure: ModuleType) -> None:
    calls: list[Any] = []
    contenders = [
        measure.Contender(name, lambda seed, name=name: calls.append((name, seed)), work=2)
        for name in "ab"
    ]
    times = measure.interleaved(contenders, 2)
    assert calls == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert times["a"].shape == (2,)


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_its_rows(tmp_path: Path) -> None:
    command = ["-m", "benchmarks", "--scale", "tiny", "--only", "softmax", "--output", tmp_path]
    finished = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    assert "share of the core's product peak" in finished.stdout
    (written,) = tmp_path.glob("*-tiny.json")
    record = json.loads(written.read_text())["parts"]["softmax"]
    assert record["machine"]["versions"]["jax"] == jax.__version__
    assert [row["benchmark"] for row in record["rows"]] == ["softmax", "softmax"]
    assert all(row["figure"] > 0 for row in record["rows"])


@pytest.mark.engines
def test_the_benchmark_over_ranks_runs(tmp_path: Path) -> None:
    command = ["-m", "benchmarks", "--scale", "tiny", "--only", "mpi", "--output", str(tmp_path)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=True)
    (written,) = tmp_path.glob("*-tiny.json")
    rows = json.loads(written.read_text())["parts"]["mpi"]["rows"]
    assert rows
    assert all(row["figure"] or row["skipped"] for row in rows)


@pytest.mark.slow
def test_every_benchmark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    subprocess.run(
        [sys.executable, "-m", "benchmarks", "--scale", "tiny", "--output", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=True,
    )
    (written,) = tmp_path.glob("*-tiny.json")
    parts = json.loads(written.read_text())["parts"]
    rows = [row for part in parts.values() for row in part["rows"]]
    assert set(parts) == set(import_module("benchmarks.__main__").BENCHMARKS)
    assert all(part["rows"] for part in parts.values())
    assert all(row["figure"] is not None or row["skipped"] for row in rows)


@pytest.mark.slow
def test_the_guard_measures_and_its_table_can_be_kept_as_markdown(tmp_path: Path) -> None:
    written = tmp_path / "RESULTS.md"
    command = ["--only", "guard", "--scale", "tiny", "--results", written, "--output", tmp_path]
    subprocess.run(
        [sys.executable, "-m", "benchmarks", *map(str, command)],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=True,
    )
    text = written.read_text()
    assert "\n## guard\n" in text
    assert "| SGLD, bare scan / consortia |" in text
    assert f"jax {jax.__version__}" in text


def test_what_is_not_measured_now_stays_as_an_earlier_run_found_it(
    measure: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(figure: float) -> Callable[..., dict[str, Any]]:
        def part(name: str, scale: str, python: str) -> dict[str, Any]:
            row = measure.Row(name, f"{name}, {scale}", figure).plain()
            about = {"load_average": [0.5], "commit": "abc", "versions": {name: f"{figure:g}.0"}}
            return {"started": f"at {figure:g}", "machine": about, "rows": [row], "error": ""}

        return part

    run, table = import_module("benchmarks.__main__"), tmp_path / "RESULTS.md"
    written = ["--results", str(table), "--output", str(tmp_path)]
    monkeypatch.setattr(run, "_in_a_process", measured(1.0))
    assert run.main(["--only", "mpi", "gossip", *written]) == 0
    (before,) = tmp_path.glob("*-full.json")
    monkeypatch.setattr(run, "_in_a_process", measured(2.0))
    again = ["--only", "mpi", *written, "--beside", str(before.rename(tmp_path / "before.json"))]
    assert run.main(again) == 0
    text = table.read_text()
    assert "gossip 1.0, mpi 2.0" in text  # versions of each part's own environment
    assert "| gossip, full | 1 |" in text
    assert "| mpi, full | 2 |" in text
    assert text.index("## gossip\n\nat 1, load [0.5]") < text.index("## mpi\n\nat 2")
    with pytest.raises(SystemExit, match="its scale is full, now it is tiny"):
        run.main([*again, "--scale", "tiny"])

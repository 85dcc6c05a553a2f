"""The studies of the paper on stale gradients: figures 1 to 4, and Caffe's two networks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.dynamics.stochastic_steps import EulerHMC
from consortia.schedules.events import simulate
from experiments import records
from experiments.stale_gradients import (
    caffe,
    cifar,
    clock,
    impact,
    lenet,
    logistic,
    speedup,
    workers,
)

# --- the networks ----------------------------------------------------------------------------


def by_hand(params: Any, layers: tuple[str, ...], x: np.ndarray) -> np.ndarray:
    """Scores of images, layer by layer as Caffe computes them, one output at a time."""
    for layer in layers:
        name, _, how = layer.partition(":")
        if name.startswith("conv"):
            pad = int(how)
            x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
            w, b = params[f"{name}_weights"], params[f"{name}_biases"]
            sides = [range(length - 4) for length in x.shape[1:3]]
            x = np.stack(
                [
                    np.stack(
                        [np.tensordot(x[:, i : i + 5, j : j + 5], w, 3) + b for j in sides[1]], 1
                    )
                    for i in sides[0]
                ],
                1,
            )
        elif name in ("max", "mean"):
            size = int(how)
            ends = [math.ceil((length - size) / 2) + 1 for length in x.shape[1:3]]
            pick = getattr(np, name)  # a window is cut off where the image ends
            x = np.stack(
                [
                    np.stack(
                        [
                            pick(x[:, 2 * i : 2 * i + size, 2 * j : 2 * j + size], axis=(1, 2))
                            for j in range(ends[1])
                        ],
                        1,
                    )
                    for i in range(ends[0])
                ],
                1,
            )
        elif name == "relu":
            x = np.maximum(x, 0)
        else:
            x = x.reshape(len(x), -1) @ params[f"{name}_weights"] + params[f"{name}_biases"]
    return x


LENET = ("conv1:0", "max:2", "conv2:0", "max:2", "ip1", "relu", "ip2")
QUICK = (
    *("conv1:2", "max:3", "relu", "conv2:2", "relu", "mean:3", "conv3:2", "relu", "mean:3"),
    *("ip1", "ip2"),
)


@pytest.mark.parametrize(
    ("name", "parameters", "side"), [("lenet", 431_080, 28), ("cifar10_quick", 145_578, 32)]
)
def test_a_network_is_caffes(name: str, parameters: int, side: int) -> None:
    rng = np.random.default_rng(0)
    channels = 1 if name == "lenet" else 3
    x = rng.integers(0, 256, (3, side, side, channels)).astype(np.uint8)
    mean = rng.uniform(0, 255, (side, side, channels)).astype(np.float32)
    model = caffe.lenet() if name == "lenet" else caffe.cifar10_quick(mean)
    start = model.init(jax.random.key(1))
    assert sum(leaf.size for leaf in start.values()) == parameters
    # The start of Cifar10-quick is so small that its scores would hide an error: take larger ones.
    params = {k: np.asarray(v) + 0.03 * rng.normal(size=v.shape) for k, v in start.items()}
    inputs = x / 256 if name == "lenet" else (x - mean)
    scores = by_hand(params, LENET if name == "lenet" else QUICK, inputs.astype(np.float64))
    scores -= scores.max(axis=1, keepdims=True)
    expected = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    params = {k: jnp.asarray(v, jnp.float32) for k, v in params.items()}
    y = np.array([1, 7, 3])
    predicted = jax.jit(model.predict)(params, {"x": x})
    np.testing.assert_allclose(predicted, expected, rtol=2e-3, atol=1e-5)
    values = jax.jit(model.log_likelihood)(params, {"x": x, "y": y})
    of_labels = scores[range(3), y] - np.log(np.exp(scores).sum(axis=1))
    # Scores are sums of hundreds of terms, in single precision.
    np.testing.assert_allclose(values, of_labels, rtol=2e-3, atol=2e-2)


def test_caffes_starts_have_its_spreads() -> None:
    start = caffe.lenet().init(jax.random.key(0))
    # "xavier": uniform with variance one over the fan-in; 16,000 draws and more
    for name, fan_in in (("conv2", 500), ("ip1", 800)):
        weights = np.asarray(start[f"{name}_weights"])
        assert weights.var() * fan_in == pytest.approx(1, rel=0.03)
        assert np.abs(weights).max() <= math.sqrt(3 / fan_in)
    start = caffe.cifar10_quick(np.zeros((32, 32, 3))).init(jax.random.key(0))
    for name, spread in caffe.SPREADS.items():
        assert float(start[f"{name}_weights"].std()) == pytest.approx(spread, rel=0.1)
        assert not np.any(start[f"{name}_biases"])


def test_many_rows_go_through_a_network_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caffe, "MOST_ROWS", 4)
    model, rng = caffe.lenet(copies=3.0), np.random.default_rng(0)
    params = model.init(jax.random.key(0))
    rows = {"x": rng.integers(0, 256, (caffe.MOST_ROWS + 3, 28, 28, 1)).astype(np.uint8)}
    rows["y"] = rng.integers(0, 10, len(rows["x"]))
    few = {name: leaf[-4:] for name, leaf in rows.items()}
    whole = np.asarray(jax.jit(model.log_likelihood)(params, rows))
    np.testing.assert_allclose(whole[-4:], model.log_likelihood(params, few), rtol=1e-4)
    alone = caffe.lenet().log_likelihood(params, few)
    np.testing.assert_allclose(model.log_likelihood(params, few), 3 * np.asarray(alone), rtol=1e-5)


def test_without_noise_the_sampler_is_caffes_solver() -> None:
    rows, rate, momentum = 500, 0.01, 0.9
    site = consortia.Sites.from_list([{"x": np.zeros((rows, 1), np.float32)}])
    problem = workers.Problem(None, site, {}, rows, rate, 10, together=True)  # type: ignore[arg-type]
    step, friction = workers.settings(problem, 1.0)
    slope = np.array([3.0, -2.0])  # of the mean loss, θ times this
    dynamics = EulerHMC(friction, temperature=0.0)
    state = dynamics.start(jnp.array([1.0, 0.5]))
    theta, v = np.array([1.0, 0.5]), np.zeros(2)
    for _ in range(5):
        gradient = rows * slope * np.asarray(state.position)
        state = dynamics.step(
            state, jnp.asarray(gradient, jnp.float32), jnp.zeros(2), jnp.float32(step)
        )
        v = momentum * v - rate * slope * theta
        theta = theta + v
        np.testing.assert_allclose(state.position, theta, rtol=1e-5)


# --- what is reported ------------------------------------------------------------------------


def test_a_level_is_reached_for_good_and_not_by_chance() -> None:
    places = np.array([10.0, 20.0, 30.0, 40.0])
    reached = partial(workers.reached, places=places, level=1.0)
    assert reached(np.array([3.0, 0.9, 2.0, 0.0])) == pytest.approx(35)
    assert math.isnan(reached(np.array([3.0, 0.9, 0.5, 1.1])))
    assert math.isnan(reached(np.array([3.0, 0.9, np.nan, np.nan])))
    assert reached(np.full(4, 0.5)) == 10


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    values = np.array([1.0, 4.0, -2.0, 0.5])
    mean, error = workers.jackknife(lambda chosen: float(values[chosen].mean()), 4)
    assert mean == pytest.approx(values.mean())
    assert error == pytest.approx(values.std(ddof=1) / 2)


def test_servers_average_losses_and_predictions() -> None:
    values = np.log(np.array([[[0.2, 0.4]], [[0.6, 0.4]]]))
    one, two = workers.compare_servers(values, (1, 2))
    losses = -values.mean(axis=2)[:, 0]
    for loss in (one["loss"], two["loss"], one["loss_of_the_average"]):
        assert loss == pytest.approx([losses.mean()])
    assert two["loss_of_the_average"][0] == pytest.approx(-np.log([0.4, 0.4]).mean())
    ratio = one["standard_deviation"] / two["standard_deviation"]
    assert ratio == pytest.approx(math.sqrt(2))


# --- the programs ----------------------------------------------------------------------------


def results_of(program: Any) -> dict[str, Any]:
    return records.plain(program.study("quick", 0))


@pytest.mark.slow
def test_staleness_does_not_show_in_figure_one_and_does_at_a_fixed_step() -> None:
    results = results_of(impact)
    assert "largest stable step_size" in results["literal"]
    for entry in results["working"]:
        assert abs(entry["error"] - entry["exact"]) < 4 * entry["standard_error"]
    fresh, late = results["fixed"]
    for entry in (fresh, late):
        assert abs(entry["bias"] - entry["exact"]) < 4 * entry["standard_error"]
    assert late["bias"] > fresh["bias"] + 4 * fresh["standard_error"]


@pytest.mark.slow
def test_the_variance_on_a9a_falls_sooner_with_four_workers(
    require_data: Callable[[str], Path],
) -> None:
    require_data("a9a")
    one, four = results_of(speedup)["runs"]
    assert one["iteration_speedup"] == pytest.approx(1, abs=0.05)
    # 4.06 at laptop scale; the variances of 32 runs with the same starts are good to a quarter
    assert 2.5 < four["iteration_speedup"] < 6
    assert four["time_speedup"] < four["bound"] * 1.5


@pytest.mark.slow
def test_the_loss_on_a9a_falls_sooner_with_four_workers(
    require_data: Callable[[str], Path],
) -> None:
    require_data("a9a")
    results = results_of(logistic)
    _, four = results["rates"][0]["workers"]
    # 3.7 was seen, good to a tenth
    assert 2.5 < four["iteration_speedup"][0] < 5
    assert [entry["servers"] for entry in results["servers"]] == [1, 3]


@pytest.mark.slow
def test_lenet_learns_digits_sooner_with_two_workers(require_data: Callable[[str], Path]) -> None:
    require_data("mnist")
    results = results_of(lenet)
    assert results["note"] == "200 of 60000 training images, 100 test images"
    one, two = results["rates"][0]["workers"]
    # 2.12 and 2.02 were seen after four iterations a worker; chance gets 2.30
    assert 2.5 > one["final"][0] > two["final"][0] > 1.5
    assert two["diverged"] == [None]


@pytest.mark.slow
def test_cifar10_quick_runs(require_data: Callable[[str], Path]) -> None:
    require_data("cifar10")
    results = results_of(cifar)
    one, two = results["rates"][0]["workers"]
    # chance gets 2.303; two and four steps move it by some hundredths
    assert all(2.2 < entry["final"][0] < 2.4 for entry in (one, two))


@pytest.mark.parametrize("scale", ["quick", "small"])
def test_the_staleness_of_real_processes_is_that_of_workers_in_turn(scale: str) -> None:
    """The simulator's exact count, of as many updates; a cap on staleness would break it."""
    path = records.RESULTS / "stale-gradients" / f"clock.{scale}.json"
    results = json.loads(path.read_text())["results"]
    most = results["pauses"][f"{clock.PAUSE:g}"][-1]
    count, each = most["workers"], most["iterations"][-1]
    turns = consortia.latency.constant(1.0)
    trace = simulate(turns, workers=count, updates=count * each)
    found = clock.findings(results)["real-staleness"]
    assert found.law == pytest.approx(trace.mean_staleness[0] / (count - 1), rel=1e-12)
    assert found.value == pytest.approx(found.law, rel=1e-3)

"""Appendix 2 of the MA-HMC paper on MNIST: how images are split, and short runs of the studies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from experiments.decentralized import images, logistic, neural_network

SIDE = 4


@pytest.fixture
def train() -> images.Arrays:
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(0.1, 1, size=(30, SIDE**2)), np.ones(30)])
    return {"x": x.astype(np.float32), "y": (np.arange(30) % 10).astype(np.int32)}


def test_quarters_of_images_add_up_to_the_images_and_all_see_the_ones(
    train: images.Arrays,
) -> None:
    parts = images.quarters(train, SIDE)
    assert len(parts) == 4
    pixels = sum(part["x"][:, :-1] for part in parts)
    np.testing.assert_array_equal(pixels, train["x"][:, :-1])
    for part in parts:
        np.testing.assert_array_equal(part["x"][:, -1], 1)
        np.testing.assert_array_equal(part["y"], train["y"])
        assert (part["x"][0, :-1] > 0).sum() == SIDE**2 / 4
    first = parts[0]["x"][0, :-1].reshape(SIDE, SIDE)
    assert np.all(first[:2, :2] > 0)


def test_splits_by_rows_deal_out_each_image_once(train: images.Arrays) -> None:
    pairs = [(2 * i, 2 * i + 1) for i in range(5)]
    for parts in (images.random_rows(train, 4, 0), images.by_digits(train, pairs)):
        rows = np.concatenate([part["x"] for part in parts])
        assert sorted(rows[:, 0].tolist()) == sorted(train["x"][:, 0].tolist())
    assert set(images.by_digits(train, pairs)[3]["y"].tolist()) == {6, 7}


@pytest.mark.slow
def test_the_short_study_of_logistic_regression_runs_every_sampler_on_every_split(
    require_data: Callable[[str], Path],
) -> None:
    require_data("mnist")
    parts = logistic.study("quick", 0)["parts"]
    assert {name: len(found) for name, found in parts.items()} == {
        "centralized": 2,
        "partial view, rows": 4,
        "ring, two digits each": 4,
    }
    for found in parts.values():
        assert all(np.isfinite(entry["nll"]) for entry in found)
    # Chance is .1; tuned HMC on 400 rows is near .8.
    assert parts["centralized"][0]["accuracy"] > 0.7
    # 120 iterations are the way in: .66 was seen on the ring, whose step is six times larger, and
    # .24 at the step of the partial views.
    for name, least in (("ring, two digits each", 0.5), ("partial view, rows", 0.17)):
        found = {entry["label"]: entry for entry in parts[name]}
        assert found["MA-HMC, corrected"]["accuracy"] > least


@pytest.mark.slow
def test_the_short_study_of_the_network_runs_every_sampler(
    require_data: Callable[[str], Path],
) -> None:
    require_data("mnist")
    parts = neural_network.study("quick", 0)["parts"]
    assert [len(found) for found in parts.values()] == [2, 4, 0]  # no random rows
    for found in parts.values():
        assert all(np.isfinite(entry["nll"]) for entry in found)


def test_a_grid_of_steps_is_made_longer_until_the_best_is_inside() -> None:
    def loss(factor: float) -> float | None:
        return None if factor > 20 else abs(factor - 10.0)

    found = dict(neural_network.tries(loss, "a sampler", (1.0, 2.0, 4.0, 8.0)))
    assert found == {1.0: 9.0, 2.0: 8.0, 4.0: 6.0, 8.0: 2.0, 16.0: 6.0}
    assert neural_network.best(list(found.items())) == 8.0
    assert max(dict(neural_network.tries(loss, "a sampler", (12.0, 18.0, 22.0)))) == 22.0
    assert neural_network.tries(loss, "a sampler", (1.0,)) == [(1.0, None)]

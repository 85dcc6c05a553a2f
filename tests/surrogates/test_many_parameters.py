"""Proposals with many parameters: a quadratic regression on the heights of weighted points."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

import consortia
from consortia.surrogates.proposals import mixture, regression
from consortia.surrogates.proposals.memory import Weighted


def test_a_quadratic_regression_finds_a_gaussian_from_points_of_another():
    rng, d = np.random.default_rng(0), 20
    root = np.eye(d) + np.tril(rng.normal(size=(d, d))) / 10
    mean, precision = rng.normal(size=d) / 3, np.linalg.inv(root @ root.T)
    points = rng.standard_normal((6000, d))
    away = points - mean
    heights = -np.einsum("nd,de,ne->n", away, precision, away) / 2
    weighted = Weighted(points, heights, heights + (points**2).sum(axis=1) / 2)
    own = mixture.tempered(weighted.log_weights, 500)
    guess = np.eye(d) + np.tril(rng.normal(size=(d, d))) / 10
    found, covariance = regression.fit_quadratic(weighted, own, np.full(d, 0.1), guess, rng)
    # The ridge pulls by 30 against 6,000 squares and products of z, whose mean square is .3 to 2.
    np.testing.assert_allclose(found, mean, atol=0.02)
    np.testing.assert_allclose(covariance, root @ root.T, atol=0.03)


@pytest.mark.slow
def test_thirty_one_parameters_take_seven_messages():
    x, y = load_breast_cancer(return_X_y=True)
    x = np.column_stack([np.ones(len(x)), (x - x.mean(axis=0)) / x.std(axis=0)])
    parts = zip(np.array_split(x.astype(np.float32), 5), np.array_split(y, 5), strict=True)
    sites = consortia.Sites.from_list([{"x": a, "y": b.astype(np.int32)} for a, b in parts])
    counts = []
    for seed in range(1, 11):
        tree = consortia.sample(
            consortia.models.logistic_regression(x.shape[1]),
            sites,
            consortia.few_rounds(),
            progress=False,
            seed=seed,
        )
        counts.append(len(json.loads(tree.attrs["messages"])))
    # Of 30 seeds 29 took 5 to 7 and one 8; by moments of the weighted points 5 to 9.
    assert sorted(counts)[8] <= 7
    assert max(counts) <= 8

"""Proposals with many parameters: a quadratic regression on the heights of weighted points."""

from __future__ import annotations

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from sklearn.datasets import load_breast_cancer
from sparse import sparse

import consortia
from consortia.surrogates.proposals import mixture, rays, regression
from consortia.surrogates.proposals.learning import Missed, learn
from consortia.surrogates.proposals.memory import Memory, Weighted
from consortia.surrogates.proposals.warp import Plain

NOTHING = Missed([], 0)


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
    found, covariance, error = regression.fit_quadratic(weighted, own, np.full(d, 0.1), guess, rng)
    assert error < 0.1  # of log-densities with a standard deviation of 3
    # The ridge pulls by 30 against 6,000 squares and products of z, whose mean square is .3 to 2.
    np.testing.assert_allclose(found, mean, atol=0.02)
    np.testing.assert_allclose(covariance, root @ root.T, atol=0.03)


@pytest.mark.parametrize(("d", "parts"), [(60, 2), (61, 1)])
def test_a_quadratic_regression_serves_up_to_sixty_parameters(d, parts):
    rng = np.random.default_rng(1)
    begun = mixture.mixture_of([1.0], [np.zeros(d)], [np.eye(d)])
    points = mixture.draw(begun, rng, 4000)
    memory, heights = Memory(np.zeros((0, d))), -(points**2).sum(axis=1) / 2
    memory.add(points, heights, len(points), lambda at: mixture.log_density(begun, at))
    found = learn(
        memory, [], np.eye(d), NOTHING, rng, Plain(), guess=np.eye(d), bent=False, doubted=False
    )
    assert found.proposal is not None
    assert len(found.proposal.envelope.centres) == parts  # one is by the regression
    assert math.isfinite(found.error) == (parts == 2)
    assert not found.lost


@pytest.mark.parametrize(("quartic", "lost"), [(0.0, False), (0.02, True)])
def test_an_exploration_that_no_quadratic_follows_is_lost(quartic, lost):
    # Some 20 standard deviations beside the bulk, where no point has a weight of its own.
    rng, d = np.random.default_rng(2), 20
    begun = mixture.mixture_of([1.0], [np.full(d, 5.0)], [np.eye(d)])
    points = mixture.draw(begun, rng, 6000)
    heights = -(points**2).sum(axis=1) / 2 - quartic * (points**4).sum(axis=1)
    memory = Memory(np.zeros((0, d)))
    memory.add(points, heights, len(points), lambda at: mixture.log_density(begun, at))
    found = learn(
        memory, [], np.eye(d), NOTHING, rng, Plain(), guess=np.eye(d), bent=False, doubted=False
    )
    assert memory.weighted().effective < 10
    assert found.lost == lost


@pytest.mark.parametrize(
    ("family", "rows", "searched"),
    sparse(
        [("gaussian", (90, 110), False), ("student", (34, 47), True)],
        [("student", (34, 47), True)],
    ),
)
def test_a_mode_is_sought_where_an_exploration_is_lost(family, rows, searched):
    rng, d = np.random.default_rng(1), 16
    tables = {}
    for site, count in enumerate(rng.integers(*rows, size=5)):
        x = rng.normal(size=(count, d)) + rng.normal(size=d) * 0.7
        y = x[:, :8].sum(axis=1) / 8 + rng.standard_t(3, size=count)
        tables[f"s{site}"] = {**{f"x{j}": x[:, j] for j in range(d)}, "y": y}
    one = consortia.regression(f"y ~ {' + '.join(tables['s0'])[:-4]}", tables, family=family)
    tree = consortia.sample(
        one.model, one.sites, consortia.few_rounds(), progress=False, seed=1, metadata=one.metadata
    )
    purposes = [message["for"] for message in json.loads(tree.attrs["messages"])]
    assert purposes[:2] == ["local fits", "exploration"]  # local fits agree: none before it
    assert (purposes[2] == "mode") == searched
    assert "handed_over" not in tree.attrs


def test_proposals_cover_the_long_tail_of_a_skewed_posterior():
    # Logarithms of gamma numbers: skewed to the left, with a known normalisation.
    d, shape, rng = 20, 15.0, np.random.default_rng(0)
    mode, covariance = np.full(d, math.log(shape)), np.eye(d) / shape

    def log_density(points: np.ndarray) -> np.ndarray:
        return (shape * points - np.exp(points)).sum(axis=1) - d * special.gammaln(shape)

    begun = mixture.mixture_of([1.0], [mode], [1.5 * covariance])
    points = mixture.draw(begun, rng, 12_000)
    memory = Memory(np.zeros((0, d)))
    memory.add(points, log_density(points), len(points), lambda at: mixture.log_density(begun, at))
    found = learn(
        memory, [], covariance, NOTHING, rng, Plain(), guess=covariance, bent=False, doubted=False
    ).proposal
    assert found is not None

    lines = rays.lines_through(covariance, d, [])
    along = rays.points_of(lines, mode)
    heights = log_density(along)
    profiles = [rays.profile_of(*one) for one in rays.along_lines(lines, heights)]

    def missed(envelope: mixture.Mixture) -> float:
        ratio = heights - mixture.log_density(envelope, along)
        return rays.not_covered(profiles, [r for _, r in rays.along_lines(lines, ratio)])[0]

    centre, root = found.envelope.centres[0], found.envelope.roots[0]
    # Of this message .0014 and .0023; by rays along the axes, of which each has one long tail.
    assert missed(found.envelope) < 0.75 * missed(
        mixture.mixture_of([1.0], [centre], [root @ root.T])
    )


@pytest.mark.slow
def test_twenty_skewed_parameters_take_no_chains():
    rng, d = np.random.default_rng(5), 20
    x = rng.normal(size=(40, d))
    x[:, 0] = 1
    y = rng.poisson(np.exp(x @ (rng.normal(size=d) * 1.4 / math.sqrt(d))))
    parts = zip(np.array_split(x.astype(np.float32), 5), np.array_split(y, 5), strict=True)
    sites = consortia.Sites.from_list([{"x": a, "y": b.astype(np.float32)} for a, b in parts])

    def log_likelihood(theta, batch):
        predictor = batch["x"] @ theta
        return batch["y"] * predictor - jnp.exp(predictor)

    model = consortia.Model(lambda theta: -jnp.sum(theta**2) / 2, log_likelihood, np.zeros(d))
    counts = []
    for seed in range(1, 9):
        tree = consortia.sample(model, sites, consortia.few_rounds(), progress=False, seed=seed)
        assert "handed_over" not in tree.attrs
        counts.append(len(json.loads(tree.attrs["messages"])))
    # With these seeds 5 to 10, by the quadratic alone chains took over, after 24.
    assert np.mean(counts) < 8


@pytest.mark.slow
def test_thirty_one_parameters_take_six_messages():
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
    # Of 30 seeds 20 took 4, nine 5, one 6; with a search for the mode first 20 took 6 and ten 7.
    assert max(counts) <= 6


def test_points_beyond_all_coordinates_do_not_shift_those_that_are_held_out():
    # The coordinates suit few points, and the parameters themselves not all of them.
    class Nowhere(Plain):
        def white(self, points):
            return np.full(points.shape, np.nan), np.full(len(points), np.nan)

    rng, d = np.random.default_rng(3), 2
    begun = mixture.mixture_of([1.0], [np.zeros(d)], [4 * np.eye(d)])
    points = mixture.draw(begun, rng, 400)
    heights = -(points**2).sum(axis=1) / 2 - np.abs(np.sin(9 * points)).sum(axis=1)
    far = np.full((30, d), 1e7)
    memory = Memory(np.zeros((0, d)))
    memory.add(far, np.full(30, -50.0), 0, lambda at: mixture.log_density(begun, at))
    memory.add(points, heights, len(points), lambda at: mixture.log_density(begun, at))
    found = learn(
        memory, [], np.eye(d), NOTHING, rng, Nowhere(), guess=np.eye(d), bent=False, doubted=True
    )
    assert found.proposal is not None

"""FA-HMC against the published algorithm written out by hand, fed with the same numbers."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.algorithms.fa_hmc import FAHMC
from consortia.core import random
from consortia.core.target import Target
from consortia.engines import exchanges, rng
from consortia.engines.rng import Layout
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("x64")

SEED, D = 11, 3
SIZES = (4, 7, 2)
STEP, K, T, RHO = 0.07, 3, 2, 0.3


def log_prior(theta):
    return -0.5 * jnp.sum(theta**2)


def log_likelihood(theta, rows):
    return -jax.nn.softplus(-rows["y"] * (rows["x"] @ theta))


MODEL = consortia.Model(log_prior, log_likelihood, np.array([0.3, -0.2, 0.1]))


def shards():
    rng = np.random.default_rng(5)
    return [
        {"x": rng.normal(size=(n, D)) + k, "y": rng.choice([-1.0, 1.0], size=n)}
        for k, n in enumerate(SIZES)
    ]


def sampled(algorithm, rounds, **options):
    sites = consortia.Sites.from_list(shards())
    tree = consortia.sample(
        MODEL, sites, algorithm, rounds=rounds, chains=1, seed=SEED, progress=False, **options
    )
    return np.asarray(tree["posterior"]["theta"])[0]


@functools.cache
def drawing(algorithm):
    """Iteration ↦ what the engine draws, as one program."""
    phases = algorithm.build(Target(MODEL, MODEL.init)).phases
    layout = Layout(len(SIZES), 1, False, 1, 1)
    keys = rng.stage_keys(phases, rng.ROUND, random.base_key(SEED), layout)
    weights = jnp.ones(len(SIZES))
    return jax.jit(
        lambda at: rng.round_randomness(
            phases, keys, rng.Counter(at, 0), rng.Source(layout, weights)
        )
    )


def drawn(algorithm, iteration):
    """The numbers that the engine draws for one round: (shared, private by site)."""
    (made,) = drawing(algorithm)(iteration)
    shared = jax.tree.map(np.asarray, made.shared)
    private = [jax.tree.map(lambda leaf, c=c: np.asarray(leaf)[c], made.noise) for c in range(3)]
    return shared, private


def gradient(theta, rows, scale, prior_share):
    """scale · Σ −∇log p(z|θ) − λ ∇log p(θ) by hand."""
    margin = rows["y"] * (rows["x"] @ theta)
    slope = -rows["y"] / (1 + np.exp(margin))
    return scale * slope @ rows["x"] + prior_share * theta


class ByHand:
    """One run of the published algorithm; the fields that mutants change are methods."""

    def __init__(self, algorithm, weights=None):
        self.algorithm = algorithm
        sizes = np.array(SIZES)
        self.weights = sizes / sizes.sum() if weights is None else np.asarray(weights)
        self.data = shards()
        self.anchor = None

    def momentum(self, shared, private, c, t):
        rho = self.algorithm.momentum_correlation
        common = shared.momentum[t] if rho > 0 else 0  # √ρ ξ
        own = np.sqrt(1 - rho) * private[c].momentum[t] if rho < 1 else 0
        return np.sqrt(self.algorithm.temperature) * (common + self.private_scale(c) * own)

    def private_scale(self, c):
        return 1 / np.sqrt(self.weights[c])

    def prior_share(self, c):
        return self.weights[c]

    def scale(self, c, rows):
        return len(self.data[c]["y"]) / len(rows["y"])

    def rows(self, c, words):
        if words is None:
            return self.data[c]
        index = (words.astype(np.uint64) * np.uint64(SIZES[c])) >> np.uint64(32)
        return jax.tree.map(lambda leaf: leaf[index.astype(int)], self.data[c])

    def force(self, c, theta, words):
        rows = self.rows(c, words)
        own = gradient(theta, rows, self.scale(c, rows), self.prior_share(c)) / self.weights[c]
        if self.anchor is None:
            return own
        at = gradient(self.anchor, rows, self.scale(c, rows), self.prior_share(c))
        return own - at / self.weights[c] + self.mean_gradient(self.anchor)

    def mean_gradient(self, theta):
        parts = [gradient(theta, self.data[c], 1.0, self.prior_share(c)) for c in range(3)]
        return np.sum(parts, axis=0)

    def drift(self, step):
        return step**2 / 2

    def leapfrog(self, c, theta, p, words_first, words_inner):
        """2K − 1 gradients: the last half draw never reaches the position."""
        mass = self.algorithm.mass_matrix.values
        inverse = np.eye(D) if mass is None else np.linalg.inv(np.diag(mass))
        for k in range(K):
            first = words_first[0] if k == 0 else words_inner[k - 1][0]
            g = self.force(c, theta, first)
            new = theta + STEP * inverse @ p - self.drift(STEP) * inverse @ g
            if k < K - 1:
                second = words_inner[k][1]
                p = p - STEP / 2 * (self.force(c, theta, first) + self.force(c, new, second))
            theta = new
        return theta

    def average(self, positions):
        return np.sum([w * x for w, x in zip(self.weights, positions, strict=True)], axis=0)

    def next_anchor(self, start, end):
        return start

    def run(self, rounds):
        theta, draws = np.array(MODEL.init), []
        mass = self.algorithm.mass_matrix.values
        root = np.eye(D) if mass is None else np.diag(np.sqrt(mass))
        for iteration in range(rounds):
            shared, private = drawn(self.algorithm, iteration)
            ends = []
            for c in range(3):
                x = theta
                for t in range(T):
                    first, inner = [None], [[None, None]] * (K - 1)
                    if self.algorithm.batch_size is not None:
                        # inner[k] holds the two draws at point k + 1: that of the end of step k
                        # and that of the start of step k + 1; leapfrog() asks start first.
                        first = private[c].first[t]
                        inner = private[c].inner[t]
                    p = root @ self.momentum(shared, private, c, t)
                    x = self.leapfrog(c, x, p, first, inner)
                ends.append(x)
            end = self.average(ends)
            if self.algorithm.debias:
                self.anchor = self.next_anchor(theta, end)
            theta = end
            draws.append(theta)
        return np.array(draws)


SETTINGS = {
    "exact": {},
    "rho": {"momentum_correlation": RHO},
    "minibatch": {"batch_size": 5, "momentum_correlation": RHO},
    "weights, mass, temperature": {
        "weights": [0.5, 0.2, 0.3], "mass_matrix": [2.0, 1.0, 0.5], "temperature": 0.7,
        "momentum_correlation": RHO,
    },
    "de-biased": {"debias": True, "momentum_correlation": RHO},
    "de-biased minibatch": {"debias": True, "batch_size": 5, "momentum_correlation": RHO},
}  # fmt: skip


def algorithm_of(name):
    return consortia.fa_hmc(STEP, K, T, **SETTINGS[name])


def error_of(reference, rounds=3):
    """Largest difference between the sampler and a reference by hand."""
    return np.abs(sampled(reference.algorithm, rounds) - reference.run(rounds)).max()


def by_hand(name, kind=ByHand):
    return kind(algorithm_of(name), SETTINGS[name].get("weights"))


@pytest.mark.parametrize("name", SETTINGS)
def test_rounds_equal_the_published_algorithm_by_hand(name):
    assert error_of(by_hand(name)) < 1e-12


def kept_by_hand(algorithm, rounds, keep=True):
    """FA-LD with gradients of rows that are kept, or all of the round's start."""
    hand, draws, theta = ByHand(algorithm), [], np.array(MODEL.init)
    for iteration in range(rounds):
        shared, private = drawn(algorithm, iteration)
        ends = []
        for c, size in enumerate(SIZES):
            share, weight = hand.prior_share(c), hand.weights[c]

            def single(at, row, c=c, size=size, share=share):
                rows = jax.tree.map(lambda leaf: leaf[[row]], hand.data[c])
                return gradient(at, rows, size, share)

            kept = np.array([single(theta, row) for row in range(size)])
            moved = 0.0
            if hand.anchor is not None:
                exact = gradient(hand.anchor, hand.data[c], 1.0, share)
                moved = weight * hand.mean_gradient(hand.anchor) - exact
            x = theta
            for t in range(algorithm.local_steps):
                words = private[c].first[t].ravel().astype(np.uint64)
                rows = ((words * np.uint64(size)) >> np.uint64(32)).astype(int)
                new = {row: single(x, row) for row in rows}
                force = np.mean([new[row] - kept[row] for row in rows], axis=0)
                force += kept.mean(axis=0) + moved
                x = x + STEP * hand.momentum(shared, private, c, t) - STEP**2 / 2 * force / weight
                for row in new if keep else ():
                    kept[row] = new[row]
            ends.append(x)
        hand.anchor, theta = theta, hand.average(ends)
        draws.append(theta)
    return np.array(draws)


def test_kept_gradients_equal_the_algorithm_by_hand():
    """Batches of three of two to seven rows: rows are drawn twice, and come back."""
    algorithm = consortia.fa_ld(STEP, 6, debias=True, batch_size=3, keep_gradients=True)
    draws = sampled(algorithm, 3)
    assert np.abs(draws - kept_by_hand(algorithm, 3)).max() < 1e-12
    assert np.abs(draws - kept_by_hand(algorithm, 3, keep=False)).max() > 1e-6


@pytest.mark.parametrize(
    "other", [{"debias": False}, {"batch_size": None}, {"gradient_noise": 1.0}]
)
def test_gradients_are_kept_of_rows_in_minibatches_only(other):
    given = {"debias": True, "batch_size": 3, "keep_gradients": True}
    with refused(argument="keep_gradients", match="fa_ld"):
        consortia.fa_ld(STEP, 6, **given | other)


class DriftWithoutHalf(ByHand):
    def drift(self, step):
        return step**2


class PrivateMomentumWithoutWeight(ByHand):
    def private_scale(self, c):
        return 1.0


class UnweightedMean(ByHand):
    def average(self, positions):
        return np.mean(positions, axis=0)


class PriorCountedAtEverySite(ByHand):
    def prior_share(self, c):
        return 1.0


class BatchNotScaled(ByHand):
    def scale(self, c, rows):
        return 1.0


class AnchorOfTheSameSynchronisation(ByHand):
    def next_anchor(self, start, end):
        return end


class OneMomentumForAllSites(ByHand):
    def momentum(self, shared, private, c, t):
        return super().momentum(shared, [private[0]] * 3, c, t)


class CorrelationWithoutRoot(ByHand):
    def momentum(self, shared, private, c, t):
        own = private[c].momentum[t] * self.private_scale(c)
        return np.sqrt(RHO) * shared.momentum[t] + (1 - RHO) * own


@pytest.mark.parametrize(
    ("mutant", "name"),
    [
        (DriftWithoutHalf, "exact"),
        (PrivateMomentumWithoutWeight, "rho"),
        (UnweightedMean, "exact"),
        (PriorCountedAtEverySite, "exact"),
        (BatchNotScaled, "minibatch"),
        (AnchorOfTheSameSynchronisation, "de-biased"),
        (OneMomentumForAllSites, "rho"),
        (CorrelationWithoutRoot, "rho"),
    ],
)
def test_each_planted_bug_is_told_apart_from_the_algorithm(mutant, name):
    # The identity above holds to 1e-12; the weakest bug moves a draw by far more.
    assert error_of(by_hand(name, mutant)) > 1e-4


@pytest.mark.parametrize("method", [consortia.fa_hmc(0.1, 2, 3), consortia.fa_ld(0.1, 3)])
def test_the_bias_that_a_plan_shows_is_of_the_variant_that_runs(method):
    assert "sites differ" in method.claims.bias
    debiased = dataclasses.replace(method, debias=True).claims.bias
    assert debiased == "mean exact on Gaussian targets, variance O(eta^2)"


def test_fa_ld_is_fa_hmc_with_one_leapfrog_step_bit_for_bit():
    options = {"momentum_correlation": RHO, "batch_size": 3}
    long = sampled(consortia.fa_hmc(STEP, 1, T, **options), 4)
    np.testing.assert_array_equal(sampled(consortia.fa_ld(STEP, T, **options), 4), long)


def test_one_site_and_one_step_is_sgld_with_half_the_squared_step():
    site = shards()[1]
    algorithm = consortia.fa_ld(STEP, 1)
    tree = consortia.sample(
        MODEL,
        consortia.Sites.from_list([site]),
        algorithm,
        rounds=3,
        seed=SEED,
        progress=False,
        chains=1,
    )
    theta, half = np.array(MODEL.init), STEP**2 / 2
    for iteration in range(3):
        shared, _ = drawn(algorithm, iteration)
        noise = np.sqrt(2 * half) * shared.momentum[0]
        theta = theta - half * gradient(theta, site, 1.0, 1.0) + noise
        np.testing.assert_allclose(tree["posterior"]["theta"][0, iteration], theta, atol=1e-12)


def test_with_exact_gradients_one_draw_a_point_or_two_is_the_same():
    one = sampled(consortia.fa_hmc(STEP, K, T, gradient_draws=1), 3)
    np.testing.assert_array_equal(sampled(consortia.fa_hmc(STEP, K, T), 3), one)


def test_a_batch_without_replacement_of_a_whole_site_is_the_full_batch():
    site = consortia.Sites.from_list([shards()[1]])
    full, whole = (
        consortia.sample(MODEL, site, algorithm, rounds=3, seed=SEED, progress=False, chains=1)
        for algorithm in (
            consortia.fa_hmc(STEP, 1, T),
            consortia.fa_hmc(STEP, 1, T, batch_size=SIZES[1], replace=False),
        )
    )
    difference = full["posterior"]["theta"] - whole["posterior"]["theta"]
    assert float(np.abs(difference).max()) < 1e-12


def test_a_schedule_gives_each_round_its_own_step_and_weights_the_draws():
    steps = [0.1, 0.05, 0.02]
    algorithm = consortia.fa_hmc(steps, K, T)
    sites = consortia.Sites.from_list(shards())
    tree = consortia.sample(MODEL, sites, algorithm, rounds=3, seed=SEED, progress=False, chains=1)
    weight = np.asarray(tree["sample_stats"]["weight"])
    np.testing.assert_allclose(weight, np.square(steps) / 2, rtol=1e-12)
    first = sampled(consortia.fa_hmc(0.1, K, T), 1)
    np.testing.assert_allclose(tree["posterior"]["theta"][0, 0], first[0], atol=1e-12)


def test_cost_counts_gradients_and_rows_of_a_round():
    sizes = np.array(SIZES)
    exact = consortia.fa_hmc(STEP, K, T).cost(sizes, 3)
    assert (exact.gradients, exact.row_gradients) == (3 * K * T, K * T * 13)
    batch = consortia.fa_hmc(STEP, K, T, batch_size=5).cost(sizes, 3)
    assert (batch.gradients, batch.row_gradients) == (3 * (2 * K - 1) * T, 3 * (2 * K - 1) * T * 5)


def test_exchanges_of_a_star_count_each_site_up_and_down():
    from consortia.core.contract import Mean

    assert exchanges.communication(Mean(), 24, 24, 3) == (1, 72, 72)
    assert isinstance(consortia.fa_hmc(STEP, K, T), FAHMC)

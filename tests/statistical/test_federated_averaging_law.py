"""FA-HMC in several dimensions and with minibatches, against the law predicted for it.

The predicted law is that of the discrete algorithm, bias included. Gates are 4.5 standard errors of
the predicted mean and covariance, over 4,000 chains that start at one point: a correct sampler
passes each of the comparisons of this file together but once in some 10³ seeds, and the seeds are
fixed. Beside each gate stands what must fail it.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.oracles import Law, fa_hmc_law

pytestmark = pytest.mark.slow

CHAINS, GATE = 4000, 4.5


def draws_of(model: Any, sites: Any, method: Any, rounds: int, seed: int = 3) -> np.ndarray:
    """The last two draws of each chain, (chains, 2, d)."""
    tree = consortia.sample(
        model, sites, method, rounds=rounds, chains=CHAINS, seed=seed, progress=False
    )
    return np.asarray(tree.posterior.theta, np.float64)[:, -2:]


def deviations(draws: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> tuple[float, float]:
    """Largest deviation of a mean and of a covariance, in standard errors."""
    variance = np.diag(covariance)
    of_mean = np.abs(draws.mean(axis=0) - mean) / np.sqrt(variance / CHAINS)
    centred = draws - draws.mean(axis=0)
    scale = np.sqrt((np.outer(variance, variance) + covariance**2) / CHAINS)
    of_covariance = np.abs(centred.T @ centred / CHAINS - covariance) / scale
    return float(of_mean.max()), float(of_covariance.max())


def assert_follows(law: Law, draws: np.ndarray, rounds: int, start: Any) -> None:
    mean, covariance = deviations(
        draws, law.after(rounds, start).mean, law.after(rounds, start).covariance
    )
    assert mean < GATE
    assert covariance < GATE


# --- two coordinates whose curvatures do not commute ---------------------------------------------

WEIGHTS = np.array([0.2, 0.5, 0.3])
CENTRES = np.array([[0.0, 2.0], [3.0, -1.0], [-1.0, 4.0]])
CURVATURES = np.array(
    [[[2.0, 0.8], [0.8, 1.0]], [[0.5, -0.3], [-0.3, 1.5]], [[1.0, 0.4], [0.4, 3.0]]]
)
MASS = np.array([[2.0, 0.5], [0.5, 1.0]])
START = np.array([2.0, -3.0])

PLANE = consortia.Model(
    lambda theta: -1e-12 * jnp.sum(theta**2),
    lambda theta, rows: (
        -0.5
        * jnp.einsum("ni,nij,nj->n", theta[None] - rows["at"], rows["of"], theta[None] - rows["at"])
    ),
    jnp.asarray(START, jnp.float32),
)
PLANE_SITES = consortia.Sites.from_list(
    [
        {"at": centre[None].astype(np.float32), "of": (w * curvature)[None].astype(np.float32)}
        for w, centre, curvature in zip(WEIGHTS, CENTRES, CURVATURES, strict=True)
    ]
)

PLAIN: dict[str, Any] = {
    "step_size": 0.2,
    "leapfrog_steps": 4,
    "local_steps": 5,
    "momentum_correlation": 0.3,
    "mass_matrix": MASS,
    "temperature": 1.4,
    "gradient_noise": 2.0,
}
DEBIASED = PLAIN | {"debias": True, "step_size": 0.15}


@pytest.fixture(scope="module")
def plain() -> np.ndarray:
    """The last two draws after 40 rounds."""
    return draws_of(PLANE, PLANE_SITES, consortia.fa_hmc(**PLAIN, weights=WEIGHTS), 40)


@pytest.fixture(scope="module")
def debiased() -> np.ndarray:
    """The same of the de-biased variant."""
    return draws_of(PLANE, PLANE_SITES, consortia.fa_hmc(**DEBIASED, weights=WEIGHTS), 40)


def predicted(settings: dict[str, Any], weights: Any = WEIGHTS) -> Law:
    return fa_hmc_law(CENTRES, CURVATURES, weights, **settings)


@pytest.mark.parametrize(("run", "settings"), [("plain", PLAIN), ("debiased", DEBIASED)])
def test_means_and_covariances_of_two_coordinates_are_the_predicted_ones(
    run: str, settings: dict[str, Any], request: Any
) -> None:
    draws, law = request.getfixturevalue(run), predicted(settings)
    assert_follows(law, draws[:, 1], 40, START)
    assert_follows(law, draws[:, 0], 39, START)
    # Negative controls: noise a tenth too large, the coordinates exchanged, and other weights.
    mean, covariance = law.after(40, START).mean, law.after(40, START).covariance
    assert deviations(mean + 1.1 * (draws[:, 1] - mean), mean, covariance)[1] > GATE
    assert deviations(draws[:, 1, ::-1], mean, covariance)[1] > GATE
    other = predicted(settings, np.array([0.3, 0.4, 0.3])).after(40, START)
    assert deviations(draws[:, 1], other.mean, other.covariance)[0] > GATE


def test_debiasing_removes_a_bias_of_more_than_twenty_standard_errors(
    plain: np.ndarray, debiased: np.ndarray
) -> None:
    law = predicted(DEBIASED)
    biased = predicted(DEBIASED | {"debias": False})
    error = np.sqrt(biased.stationary.variance / CHAINS)
    assert np.abs(biased.stationary.bias / error).max() > 20
    centre = law.target.mean
    assert deviations(debiased[:, 1], centre, law.after(40, START).covariance)[0] < GATE
    assert deviations(plain[:, 1], centre, predicted(PLAIN).after(40, START).covariance)[0] > 20


def test_one_round_is_correlated_with_the_next_as_the_recursion_says(plain: np.ndarray) -> None:
    # Cov(x_{r+1}, x_r) = α Cov(x_r).
    law = predicted(PLAIN)
    before, after = plain[:, 0], plain[:, 1]
    crossed = (after - after.mean(axis=0)).T @ (before - before.mean(axis=0)) / CHAINS
    early, late = law.after(39, START).covariance, law.after(40, START).covariance
    expected = law.recursion.alpha[0] @ early
    scale = np.sqrt((np.outer(np.diag(late), np.diag(early)) + expected**2) / CHAINS)
    assert np.abs((crossed - expected) / scale).max() < GATE
    # The negative control: another coefficient.
    assert np.abs((crossed - 1.5 * expected) / scale).max() > GATE


# --- minibatches: on rows of one curvature their noise does not depend on the position -----------

BATCH = 3
ROW_COUNTS = (4, 12, 7)
PRECISIONS = (1.0, 0.3, 0.6)  # of one row, by site


def row_shards() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(4)
    shards = []
    for count, precision, centre in zip(ROW_COUNTS, PRECISIONS, (0.0, 2.0, -1.5), strict=True):
        at = centre + rng.exponential(size=count)
        shards.append({"at": at, "of": np.full(count, precision)})
    return shards


LINE = consortia.Model(
    lambda theta: -1e-12 * jnp.sum(theta**2),
    lambda theta, rows: -0.5 * rows["of"] * (theta[0] - rows["at"]) ** 2,
    jnp.zeros(1),
)


def minibatch_law(settings: dict[str, Any], *, replace: bool, scale: float = 1.0) -> Any:
    """∇̃f_c has variance n_c² p_c² s_c² / (B w_c²), times 1 − (B−1)/(n_c−1) without replacement."""
    counts = np.array(ROW_COUNTS, float)
    weights = counts / counts.sum()
    shards = row_shards()
    spread = np.array([shard["at"].var() for shard in shards])
    variance = (counts * np.array(PRECISIONS)) ** 2 * spread / BATCH
    if not replace:
        variance = variance * (1 - (BATCH - 1) / (counts - 1))
    means = [shard["at"].mean() for shard in shards]
    curvatures = counts * np.array(PRECISIONS) / weights
    noise = scale * variance / weights**2
    return fa_hmc_law(means, curvatures, weights, gradient_noise=noise, **settings)


@pytest.mark.parametrize(
    ("replace", "draws"), [(True, 2), (False, 2), (True, 1)], ids=["two", "without", "one"]
)
def test_minibatches_add_the_predicted_variance(replace: bool, draws: int) -> None:
    settings: dict[str, Any] = {
        "step_size": 0.2,
        "leapfrog_steps": 5,
        "local_steps": 2,
        "gradient_draws": draws,
    }
    method = consortia.fa_hmc(**settings, batch_size=BATCH, replace=replace)
    sites = consortia.Sites.from_list(row_shards())
    made = draws_of(LINE, sites, method, 30)[:, 1]
    law = minibatch_law(settings, replace=replace)
    assert_follows(law, made, 30, 0.0)
    # The noise of the gradients is seen: half or twice of it, or the other kind of draw, fails.
    wrong = [minibatch_law(settings, replace=replace, scale=scale) for scale in (0.5, 2.0)]
    wrong.append(minibatch_law(settings | {"gradient_draws": 3 - draws}, replace=replace))
    wrong.append(minibatch_law(settings, replace=not replace))
    for law in wrong:
        _, variance = deviations(made, law.after(30, 0.0).mean, law.after(30, 0.0).covariance)
        assert variance > GATE

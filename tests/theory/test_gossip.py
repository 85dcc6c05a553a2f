"""The exact law of gossip samplers: brute force, limits, bad input."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from consortia import graphs
from consortia.theory.agents import GaussianAgents
from consortia.theory.gossip import Response, de_sghmc_law, de_sgld_law
from consortia.theory.stability import largest_stable_step, mean_limit, step_bounds
from tests.refusals import refused

CORRECTED = {"correction": "extra", "noise": "common", "averaged_noise": True}


def scores(law, iterations=None):
    """W₂ of the average, and the mean W₂ of an agent."""
    moments = law.stationary if iterations is None else law.after(iterations, 0.0)
    return moments.w2, float(moments.agents.w2.mean())


# --- against brute force -------------------------------------------------------------------------


def rows_of_small():
    """Features and responses of five unlike agents in two dimensions, for unit noise."""
    rng = np.random.default_rng(4)
    shards = []
    for i in range(5):
        x = rng.normal(size=(3 + 2 * i, 2))
        y = x @ [1.0, -2.0 + i] + rng.normal(size=len(x))
        shards.append((x / math.sqrt(2), y / math.sqrt(2)))
    return shards


ROWS_OF_SMALL = rows_of_small()


@pytest.fixture(scope="module")
def small():
    """Their potentials."""
    return GaussianAgents.linear_regression(ROWS_OF_SMALL, prior_variance=3.0)


def simulated_moments(agents, matrix, iterations, start, *, friction=None, step, **options):
    """Mean and covariance by running the algorithm on every unit of noise and of start.

    The positions are an affine function of the noise; its coefficients are what the algorithm
    gives when one number is one and the rest are zero, less what it gives for zeros.
    """
    count, d = agents.pulls.shape
    heat = options.get("temperature", 1.0)
    common = options.get("noise") == "common"
    size = d if common else count * d

    def run(normals):
        x = np.broadcast_to(start, (count, d)).astype(float)
        v, q, last = np.zeros((count, d)), np.zeros((count, d)), np.zeros((count, d))
        before = x
        for k in range(iterations):
            gradient = np.einsum("nij,nj->ni", agents.curvatures, x) - agents.pulls
            if common:
                fresh = np.broadcast_to(normals[k] / math.sqrt(count), (count, d))
            else:
                fresh = normals[k].reshape(count, d)
            used = (last + fresh) / 2 if options.get("averaged_noise") else fresh
            mixed = matrix @ x
            moved = mixed - q if options.get("correction") else mixed
            if friction is None:
                moved = moved - step * gradient + math.sqrt(2 * step * heat) * used
                if options.get("momentum"):
                    moved, before = moved + options["momentum"] * (moved - before), moved
            else:
                v = v - step * (friction * v + gradient)
                v = v + math.sqrt(2 * friction * step * heat) * used
                moved = moved + step * v
            q = q + (x - mixed) / 2
            x, last = moved, fresh
        return x.ravel()

    centre = run(np.zeros((iterations, size)))
    responses = [run(unit.reshape(iterations, size)) - centre for unit in np.eye(iterations * size)]
    return centre.reshape(count, d), np.transpose(responses) @ responses


VARIANTS = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "extra": {"correction": "extra"},
    "common": {"noise": "common"},
    "averaged": {"averaged_noise": True},
    "corrected": CORRECTED,
    "D-ASG": {"momentum": 0.6, "temperature": 0.0},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("network", ["ring", "star", "identity"])
@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_the_law_of_de_sgld_is_what_the_algorithm_does(small, variant, network, iterations):
    options = VARIANTS[variant]
    matrix = np.asarray(graphs.resolve(network, 5))
    start = np.array([0.3, -1.0])
    moments = de_sgld_law(small, network, step_size=0.05, **options).after(iterations, start)
    mean, covariance = simulated_moments(small, matrix, iterations, start, step=0.05, **options)
    np.testing.assert_allclose(moments.agents.means, mean, rtol=0, atol=1e-13)
    np.testing.assert_allclose(moments.agents.covariance, covariance, rtol=0, atol=1e-13)


@pytest.mark.parametrize("variant", ["plain", "temperature", "extra", "common"])
@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_the_law_of_de_sghmc_is_what_the_algorithm_does(small, variant, iterations):
    options = VARIANTS[variant]
    matrix = np.asarray(graphs.resolve("ring", 5))
    law = de_sghmc_law(small, "ring", step_size=0.2, friction=2.0, **options)
    moments = law.after(iterations, 0.4)
    mean, covariance = simulated_moments(
        small, matrix, iterations, 0.4, friction=2.0, step=0.2, **options
    )
    np.testing.assert_allclose(moments.agents.means, mean, rtol=0, atol=1e-13)
    np.testing.assert_allclose(moments.agents.covariance, covariance, rtol=0, atol=1e-13)


@pytest.mark.parametrize("options", [{}, CORRECTED, {"batch_size": 3}, {"noise": "common"}])
def test_the_law_after_many_iterations_is_the_stationary_one(small, options):
    law = de_sgld_law(small, "ring", step_size=0.03, **options)
    late, settled = law.after(4000, 1.0), law.stationary
    np.testing.assert_allclose(late.agents.means, settled.agents.means, rtol=0, atol=1e-10)
    np.testing.assert_allclose(
        late.agents.covariance, settled.agents.covariance, rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("options", [CORRECTED, {"batch_size": 3}, {"batch_size": 3} | CORRECTED])
def test_the_law_along_a_run_is_the_law_at_each_time(small, options):
    law = de_sgld_law(small, "ring", step_size=0.03, **options)
    times = [7, 0, 3, 7]
    for k, moments in zip(times, law.along(times, 0.4), strict=True):
        alone = law.after(k, 0.4)
        # A time goes on from the one before it: the same products, in another order.
        close = partial(np.testing.assert_allclose, rtol=1e-14, atol=1e-16)
        close(moments.agents.means, alone.agents.means)
        close(moments.agents.covariance, alone.agents.covariance)


def every_batch(rows, size, replace):
    """All batches of rows with their probabilities."""
    import itertools

    if replace:
        batches = list(itertools.product(range(rows), repeat=size))
    else:
        batches = list(itertools.combinations(range(rows), size))
    return [(list(batch), 1 / len(batches)) for batch in batches]


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("anchor", [None, (0.5, -0.4)])
def test_the_noise_of_minibatches_is_that_of_all_batches(small, replace, anchor):
    # One step of agent 0 (3 rows, batches of 2) from a point: the mean square of the gradient
    # over every batch there is.
    x, y = ROWS_OF_SMALL[0]
    point = np.array([0.7, 0.2])
    values = []
    for batch, chance in every_batch(len(y), 2, replace):
        residual = x[batch] @ point - y[batch]
        if anchor is not None:
            residual = x[batch] @ (point - np.array(anchor))
        values.append((chance, len(y) / 2 * x[batch].T @ residual))
    mean = sum(p * g for p, g in values)
    expected = sum(p * np.outer(g - mean, g - mean) for p, g in values)
    step = 0.05
    options = {"batch_size": 2, "replace": replace, "control_variate": anchor}
    moments = de_sgld_law(small, "ring", step_size=step, **options).after(1, point)
    found = moments.agents.covariances[0] - 2 * step * np.eye(2)
    np.testing.assert_allclose(found, step**2 * expected, rtol=1e-10)


def test_the_second_step_of_minibatches_averages_over_the_first(small):
    # Monte Carlo in numpy, 400,000 runs of two steps of a lone agent: standard errors of the
    # variances are sqrt(2/400,000) = .2 %, and 1 % is five of them. Without the spread of the
    # position in the residuals the variance would be 8 % smaller.
    x, y = ROWS_OF_SMALL[1]
    step, batch, runs = 0.12, 2, 400_000
    rng = np.random.default_rng(0)
    position = np.tile([2.0, 2.0], (runs, 1))
    share = small.curvatures[1] - x.T @ x
    for _ in range(2):
        chosen = rng.integers(len(y), size=(runs, batch))
        residual = np.einsum("rbi,ri->rb", x[chosen], position) - y[chosen]
        gradient = len(y) / batch * np.einsum("rbi,rb->ri", x[chosen], residual)
        position = position - step * (gradient + position @ share)
        position = position + math.sqrt(2 * step) * rng.normal(size=(runs, 2))
    law = de_sgld_law(small, "identity", step_size=step, batch_size=batch)
    moments = law.after(2, np.array([2.0, 2.0]))
    np.testing.assert_allclose(
        np.diag(np.cov(position.T)), np.diag(moments.agents.covariances[1]), rtol=0.01
    )


@pytest.mark.parametrize("options", [{}, CORRECTED])
def test_sums_over_modes_and_over_powers_agree(small, options):
    recursion = de_sgld_law(small, "ring", step_size=0.05, **options).recursion
    modes, powers = (Response(recursion.step.matrix[0], recursion.entry) for _ in range(2))
    assert modes.accurate
    powers.accurate = False
    noise = np.random.default_rng(0).normal(size=(10, 10))
    noise = noise @ noise.T
    np.testing.assert_allclose(modes(noise), powers(noise), rtol=1e-9)


def test_parallel_eigenvectors_are_seen_and_summed_by_powers():
    # DE-SGHMC of one agent at critical damping: (1 − √(η²a))² = 1 − γη makes both eigenvalues one.
    step, curvature = 0.5, 1.0
    friction = (1 - (1 - step * math.sqrt(curvature)) ** 2) / step
    agents = GaussianAgents([[curvature]], means=[[0.0]])
    law = de_sghmc_law(agents, "identity", step_size=step, friction=friction)
    response = Response(law.recursion.step.matrix[0], law.recursion.entry)
    assert not response.accurate
    noise = np.array([[2 * friction * step]])
    np.testing.assert_allclose(response(noise), law.stationary.covariance, rtol=1e-12)
    late = law.after(2000, 0.0).agents.covariance
    np.testing.assert_allclose(law.stationary.agents.covariance, late, rtol=1e-9)


def test_minibatches_have_their_law_near_critical_damping_too():
    x, y = ROWS_OF_SMALL[4]
    agents = GaussianAgents.linear_regression([(x[:, :1], y)], prior_variance=3.0)
    step = 0.05
    friction = float((1 - (1 - step * math.sqrt(agents.smoothness)) ** 2) / step)
    law = de_sghmc_law(agents, "identity", step_size=step, friction=friction, batch_size=2)
    late = law.after(2000, 0.0).agents.covariance
    np.testing.assert_allclose(law.stationary.agents.covariance, late, rtol=1e-9)


def test_noise_variance_scales_rows_and_curvatures(small):
    doubled = [(x * math.sqrt(2), y * math.sqrt(2)) for x, y in ROWS_OF_SMALL]
    same = GaussianAgents.linear_regression(doubled, noise_variance=2.0, prior_variance=3.0)
    np.testing.assert_allclose(same.curvatures, small.curvatures, rtol=1e-14)
    np.testing.assert_allclose(same.pulls, small.pulls, rtol=1e-13)


@pytest.mark.usefixtures("x64")
def test_the_expansion_of_a_linear_model_is_the_model_itself(small):
    import consortia

    sites = consortia.Sites.from_list([{"x": x, "y": y} for x, y in ROWS_OF_SMALL])
    model = consortia.models.linear_regression(2, prior_scale=math.sqrt(3.0))
    found = GaussianAgents.near(model, sites, {"coefficients": np.array([0.4, -3.0])})
    np.testing.assert_allclose(found.curvatures, small.curvatures, rtol=1e-12)
    np.testing.assert_allclose(found.pulls, small.pulls, rtol=1e-12, atol=1e-12)
    laws = [
        de_sgld_law(agents, "ring", step_size=0.03, batch_size=2).stationary
        for agents in (found, small)
    ]
    np.testing.assert_allclose(laws[0].agents.covariance, laws[1].agents.covariance, rtol=1e-9)


# --- stability -----------------------------------------------------------------------------------

NETWORKS = {
    "complete": "complete",
    "ring": "ring",
    "star": "star",
    "parts": graphs.mixing_matrix([(0, 1), (2, 3), (3, 4)], agents=5),
    "identity": "identity",
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    "options",
    [{}, {"correction": "extra"}, {"friction": 0.0}, {"friction": 1.5}, {"momentum": 0.5}],
    ids=str,
)
def test_the_closed_limits_of_the_mean_are_where_the_spectral_radius_is_one(
    small, network, options
):
    mixing = NETWORKS[network]

    def radius(step):
        if "friction" in options:
            # A friction of 1e-9 stands for none, which the law refuses.
            friction = max(options["friction"], 1e-9)
            law = de_sghmc_law(small, mixing, step_size=step, friction=friction)
        else:
            cold = {"temperature": 0.0} if "momentum" in options else {}
            law = de_sgld_law(small, mixing, step_size=step, **options, **cold)
        return law.spectral_radius

    limit = mean_limit(small, mixing, **options)
    assert radius(1.0001 * limit) > 1.0
    steps = limit * np.linspace(0.02, 0.9999, 25)
    assert max(radius(step) for step in steps) < 1.0  # nor anywhere below
    below, beyond = step_bounds(small, mixing, **options)
    assert below <= limit * (1 + 1e-12)
    assert limit <= beyond * (1 + 1e-12)


def test_the_noise_of_minibatches_feeds_itself_from_the_largest_stable_step_on(small):
    limit = largest_stable_step(small, "ring", batch_size=1, tolerance=1e-4)
    inside, outside = (
        de_sgld_law(small, "ring", step_size=f * limit, batch_size=1) for f in (0.999, 1.001)
    )
    assert inside.stable
    assert inside.mean_square_radius < 1.0
    assert outside.spectral_radius < 1.0 < outside.mean_square_radius
    assert "feeds itself" in outside.instability
    # By brute force: beyond it the covariance grows, before it it comes to a halt.
    growth = []
    for share in (0.97, 1.03):
        law = de_sgld_law(small, "ring", step_size=share * limit, batch_size=1)
        traces = [np.trace(moments.agents.covariance) for moments in law.along([1000, 1001], 0.0)]
        growth.append(traces[1] / traces[0] - 1.0)
    assert growth[0] < 1e-6
    assert growth[1] > 1e-3


def test_a_network_whose_matrix_has_the_eigenvalue_minus_one_is_never_stable():
    swap = [[0.0, 1.0], [1.0, 0.0]]
    pair = GaussianAgents([1.0, 3.0], means=[0.0, 4.0])
    with refused(argument="step_size", match="is stable"):
        largest_stable_step(pair, swap)
    assert largest_stable_step(pair, swap, correction="extra") > 0.1


# --- limits --------------------------------------------------------------------------------------


def test_an_agent_is_off_by_the_root_of_steps_above_the_targets_variance_and_by_smaller_steps():
    many = GaussianAgents(np.ones(200), means=np.zeros(200))  # target variance 1/200

    def order(step):
        laws = [de_sgld_law(many, "complete", step_size=h) for h in (step, 4 * step)]
        return math.log(scores(laws[1])[1] / scores(laws[0])[1], 4)

    assert 0.5 < order(0.04) < 0.6
    assert order(1e-6) == pytest.approx(1.0, abs=0.01)


def test_de_sghmc_with_the_friction_of_one_over_the_step_is_de_sgld(small):
    hamiltonian = de_sghmc_law(small, "ring", step_size=0.2, friction=5.0).after(9, 1.0)
    langevin = de_sgld_law(small, "ring", step_size=0.04).after(9, 1.0)
    np.testing.assert_allclose(
        hamiltonian.agents.covariance, langevin.agents.covariance, rtol=1e-12
    )


# --- bad input -----------------------------------------------------------------------------------

PAIR = GaussianAgents([1.0, 3.0], means=[0.0, 4.0])


@pytest.mark.parametrize(
    ("make", "argument", "match"),
    [
        (lambda: GaussianAgents([1.0]), None, "one of means and pulls"),
        (lambda: GaussianAgents([1.0, 2.0, 3.0], means=[0.0, 1.0]), "curvatures", "for 2"),
        (
            lambda: GaussianAgents([[[1.0, 0.5], [0.0, 1.0]]], means=[[0, 0]]),
            "curvatures",
            "not symmetric",
        ),
        (lambda: GaussianAgents([2.0, -1.0], means=[0, 0]), "curvatures", "negative eigenvalue"),
        (
            lambda: GaussianAgents([0.0, 0.0], pulls=[0, 0]),
            "curvatures",
            "sum is not positive definite",
        ),
        (lambda: GaussianAgents.linear_regression([]), "shards", "shards is empty"),
        (lambda: de_sgld_law(PAIR, "complete", step_size=0.0), "step_size", None),
        (lambda: de_sgld_law(PAIR, np.eye(3), step_size=0.1), "mixing", "for 3"),
        (
            lambda: de_sgld_law(PAIR, "complete", step_size=0.1, correction="diging"),
            "correction",
            None,
        ),
        (lambda: de_sgld_law(PAIR, "complete", step_size=0.1, noise="none"), "noise", "'none'"),
        (
            lambda: de_sgld_law(PAIR, "complete", step_size=0.1, batch_size=1),
            "batch_size",
            "have no rows",
        ),
        (lambda: de_sghmc_law(PAIR, "complete", step_size=0.1, friction=0.0), "friction", None),
        (
            lambda: de_sgld_law(PAIR, "complete", step_size=0.1).after(3, [1.0, 2.0, 3.0]),
            "start",
            None,
        ),
        (
            lambda: de_sgld_law(PAIR, "complete", step_size=1.0).stationary,
            "step_size",
            "no stationary law",
        ),
        (lambda: largest_stable_step(PAIR, "complete", tolerance=0.5), "tolerance", None),
    ],
)
def test_a_wrong_argument_is_named(make, argument, match):
    with refused(argument=argument, match=match):
        make()


def test_more_rows_than_an_agent_has_are_refused_without_replacement(small):
    with refused(argument="batch_size", match="4.*only 3"):
        de_sgld_law(small, "ring", step_size=0.01, batch_size=4, replace=False)

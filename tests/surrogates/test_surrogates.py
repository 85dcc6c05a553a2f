"""Gaussian surrogates: values, the three recipes, the examination before a run."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sparse import sparse

import consortia
from consortia import surrogates
from consortia.core import random
from consortia.core.contract import Site
from consortia.core.target import Target
from consortia.surrogates import Gaussian, Recipe
from consortia.surrogates import curvature as curvatures
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("x64")

ROUNDING = 1e-10
"""In double precision, relative to numbers of order one after sums over some hundred rows."""


def located(d: int = 2, prior: float = 1.0) -> consortia.Model:
    """Rows x ~ N(θ, I), prior N(0, I / prior)."""

    def log_prior(theta: Any) -> Any:
        return -0.5 * prior * jnp.sum(theta**2)

    def log_likelihood(theta: Any, batch: Any) -> Any:
        return -0.5 * jnp.sum((batch["x"] - theta[None, :]) ** 2, axis=1)

    return consortia.Model(log_prior, log_likelihood, np.zeros(d))


def located_shards(sizes: tuple[int, ...] = (40, 10, 25)) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(n, 2)) + 3 * rng.normal(size=2)} for n in sizes]


def logistic_shards() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(2)
    shards = []
    for rows, slope in ((30, 1.0), (60, -2.0), (45, 0.5)):
        x = rng.normal(size=(rows, 3))
        y = (rng.uniform(size=rows) < 1 / (1 + np.exp(-slope * x[:, 0]))).astype(np.int32)
        shards.append({"x": x, "y": y})
    return shards


def drawn(phase: Any, site: int) -> Any:
    """The private numbers of one site."""
    key = random.node_key(jnp.asarray(random.base_key(0)), site)
    return random.declared(phase.noise, key, 0, 0, None)


class Fitted:
    """What the fit phases leave at the sites, run without an engine.

    Sites are padded to the longest, as an engine does, so that padding is left out in every test.

    Attributes:
        own: the natural parameters of each site.
        converged: whether each site could compute them.
        fitted: state and inbox with the site axis in front, as an engine holds them.
        weights: f_s.
    """

    def __init__(
        self,
        model: consortia.Model,
        shards: list[Any],
        recipe: Recipe,
        start: Any,
        *,
        covariance: str = "full",
        weights: Any = None,
        step_size: float = 1e-3,
        local_steps: int = 10,
        strength: float = 1.0,
        examine: bool = False,
    ) -> None:
        target = Target(model, model.init)
        settings = surrogates.Settings(covariance, strength, step_size, local_steps, None, True)
        first, second = surrogates.fit_phases(recipe, target, settings)
        sizes = np.array([len(shard["x"]) for shard in shards])
        self.weights = sizes / sizes.sum() if weights is None else np.asarray(weights)
        longest = int(sizes.max())
        sites = [
            Site(
                jax.tree.map(
                    lambda leaf: jnp.asarray(np.resize(leaf, (longest, *leaf.shape[1:]))), shard
                ),
                jnp.int32(size),
                jnp.asarray(weight),
                jnp.asarray(weight),
            )
            for shard, size, weight in zip(shards, sizes, self.weights, strict=True)
        ]
        begin = jnp.asarray(start, float)
        states, total = self._run(first, [()] * len(sites), begin, sites)
        self.own = [state.natural for state in states]
        self.converged = np.array([state.converged for state in states])
        if not examine:
            return
        states, factors = self._run(second, states, total, sites)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
        self.sites = [
            dataclasses.replace(site, fitted=(state, factors))
            for site, state in zip(sites, states, strict=True)
        ]
        self.fitted = (stacked, jnp.stack([factors] * len(sites)))

    @staticmethod
    def _run(phase: Any, states: list[Any], inbox: Any, sites: list[Site]) -> Any:
        local = jax.jit(lambda noise, state, site: phase.local(noise, (), state, inbox, site))
        results = [
            local(drawn(phase, number), state, site)
            for number, (state, site) in enumerate(zip(states, sites, strict=True))
        ]
        summed = jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *[r[1] for r in results])
        return [r[0] for r in results], summed

    def gradient(self, site: int, start: Any, theta: Any) -> np.ndarray:
        """∇log q_s(θ)."""
        return np.asarray(self.own[site].at(jnp.asarray(theta) - jnp.asarray(start, float)))


# --- values --------------------------------------------------------------------------------------


def test_gaussians_compare_and_hash_by_value():
    one = Gaussian([1.0, 2.0], [[2.0, 0.5], [0.5, 1.0]])
    same = Gaussian(np.array([1.0, 2.0]), np.array([[2.0, 0.5], [0.5, 1.0]]))
    assert one == same
    assert hash(one) == hash(same)
    assert one != Gaussian([1.0, 2.0], [[2.0, 0.4], [0.4, 1.0]])
    assert one != Gaussian([1.0, 2.1], [[2.0, 0.5], [0.5, 1.0]])


def test_methods_with_equal_gaussians_are_equal():
    def method(variance: float) -> Any:
        return consortia.fsgld(1e-3, 5, surrogate=[Gaussian([0.0], variance), ([1.0], [2.0])])

    assert method(0.5) == method(0.5)
    assert hash(method(0.5)) == hash(method(0.5))
    assert method(0.5) != method(0.6)


def test_a_gaussian_from_its_precision_is_that_from_the_inverse():
    covariance = np.array([[2.0, 0.5], [0.5, 1.0]])
    one = Gaussian([0.0, 0.0], covariance)
    two = Gaussian.from_precision([0.0, 0.0], np.linalg.inv(covariance))
    np.testing.assert_allclose(one.precision, two.precision, rtol=ROUNDING)


def test_a_gaussian_does_not_change_with_the_arrays_it_was_made_of():
    mean = np.zeros(2)
    gaussian = Gaussian(mean, 1.0)
    mean[0] = 5.0
    assert gaussian.mean[0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        gaussian.mean[0] = 1.0


@pytest.mark.parametrize(
    ("mean", "covariance", "argument", "match"),
    [
        ([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]], "covariance", "not positive definite"),
        ([0.0, 0.0], [[1.0, 0.0], [0.0, 0.0]], "covariance", "not positive definite"),
        ([0.0, 0.0], [1.0, -1.0], "covariance", "must be positive"),
        ([0.0, 0.0], 0.0, "covariance", "must be positive"),
        ([0.0, 0.0], [[1.0, 0.3], [0.0, 1.0]], "covariance", "not symmetric"),
        ([0.0, 0.0], np.eye(3), "covariance", r"\(3, 3\)"),
        ([0.0, np.nan], 1.0, "mean", "mean holds a value that is not finite"),
        ([0.0, 0.0], [1.0, np.inf], "covariance", "covariance holds a value that is not finite"),
        (0.0, 1.0, "mean", "mean has shape"),
        ("zero", 1.0, "mean", "'zero'"),
    ],
)
def test_what_is_no_gaussian_is_refused(mean: Any, covariance: Any, argument: str, match: str):
    with refused(argument=argument, match=match):
        Gaussian(mean, covariance)


@pytest.mark.parametrize(
    ("values", "argument", "match"),
    [
        ([([0.0], 1.0), ([0.0], -1.0)], "surrogate[1]", "covariance"),
        ([([0.0], 1.0), ([0.0, 1.0], 1.0)], "surrogate[1]", "for 2 parameters"),
        ([3.0], "surrogate[0]", "is 3.0"),
        ([], "surrogate", "empty list"),
        (7, "surrogate", "is 7"),
    ],
)
def test_a_list_with_a_bad_surrogate_is_refused_by_its_index(
    values: Any, argument: str, match: str
):
    with refused(argument=argument, match=match):
        consortia.fsgld(1e-3, 5, surrogate=values)


@pytest.mark.parametrize(
    ("arguments", "argument", "match"),
    [
        ({"kind": "mean_field"}, "surrogate", "'mean_field'"),
        ({"kind": "anchored", "curvature": "exact"}, "curvature", "'exact'"),
        ({"kind": "laplace", "ridge": 0.0}, "ridge", "ridge is 0"),
        ({"kind": "laplace", "ridge": -1.0}, "ridge", "ridge is -1"),
        ({"kind": "sgld_moments", "draws": 1}, "draws", "draws is 1"),
        ({"kind": "sgld_moments", "step_size": 0.0}, "step_size", "step_size is 0"),
        ({"kind": "anchored", "variance_floor": 0.0}, "variance_floor", "variance_floor is 0"),
    ],
)
def test_a_recipe_out_of_range_is_refused(arguments: dict[str, Any], argument: str, match: str):
    with refused(argument=argument, match=match):
        Recipe(**arguments)


# --- recipes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["anchored", "laplace"])
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_a_gaussian_likelihood_is_its_own_surrogate(kind: str, covariance: str):
    shards, start, theta = located_shards(), np.array([0.4, -0.2]), np.array([1.5, 0.7])
    ridge = 1e-9  # so small that it does not show in a rounded comparison
    fitted = Fitted(located(), shards, Recipe(kind, ridge=ridge), start, covariance=covariance)
    for site, shard in enumerate(shards):
        exact = (shard["x"] - theta).sum(axis=0)
        np.testing.assert_allclose(fitted.gradient(site, start, theta), exact, rtol=1e-8)


def test_an_anchored_surrogate_has_the_shards_gradient_at_the_anchor():
    shards = logistic_shards()
    model = consortia.models.logistic_regression(3)
    start = np.array([0.3, -0.5, 0.2])
    fitted = Fitted(model, shards, Recipe("anchored"), start, covariance="diagonal")
    for site, shard in enumerate(shards):
        p = 1 / (1 + np.exp(-shard["x"] @ start))
        np.testing.assert_allclose(
            fitted.gradient(site, start, start), shard["x"].T @ (shard["y"] - p), rtol=ROUNDING
        )


def test_an_anchored_precision_is_the_diagonal_of_fishers_information_of_a_logistic_regression():
    shards = logistic_shards()
    model = consortia.models.logistic_regression(3)
    start = np.array([0.3, -0.5, 0.2])
    diagonal = Fitted(model, shards, Recipe("anchored"), start, covariance="diagonal")
    full = Fitted(model, shards, Recipe("anchored"), start)
    for site, shard in enumerate(shards):
        p = 1 / (1 + np.exp(-shard["x"] @ start))
        fisher = (shard["x"] * (p * (1 - p))[:, None]).T @ shard["x"]
        np.testing.assert_allclose(diagonal.own[site].precision, np.diag(fisher), rtol=ROUNDING)
        np.testing.assert_allclose(full.own[site].precision, fisher, atol=1e-9)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_the_empirical_fisher_is_the_sum_of_squared_gradients(covariance: str):
    shards = logistic_shards()  # 30, 60, 45 rows: less than, and not a multiple of, a block
    shards.append({key: np.concatenate([shard[key] for shard in shards]) for key in ("x", "y")})
    model = consortia.models.logistic_regression(3)
    recipe = Recipe("anchored", curvature="empirical_fisher")
    start = np.array([0.3, -0.5, 0.2])
    fitted = Fitted(model, shards, recipe, start, covariance=covariance)
    for site, shard in enumerate(shards):
        residual = shard["y"] - 1 / (1 + np.exp(-shard["x"] @ start))
        gradients = shard["x"] * residual[:, None]
        square = gradients.T @ gradients
        wanted = square if covariance == "full" else np.diag(square)
        np.testing.assert_allclose(fitted.own[site].precision, wanted, atol=1e-9)


def test_a_laplace_surrogate_is_at_the_mode_with_the_curvature_there():
    shards, ridge = logistic_shards(), 0.5
    model = consortia.models.logistic_regression(3)
    start = np.array([0.3, -0.5, 0.2])
    fitted = Fitted(model, shards, Recipe("laplace", ridge=ridge), start)
    for site, shard in enumerate(shards):
        precision = np.asarray(fitted.own[site].precision)
        mode = start + np.linalg.solve(precision, np.asarray(fitted.own[site].gradient))
        p = 1 / (1 + np.exp(-shard["x"] @ mode))
        # The search ends within 1e-3 standard deviations of the mode, and Newton's last step
        # squares the distance, so that the gradient is below 1e-6 of a deviation's.
        slope = shard["x"].T @ (shard["y"] - p) - ridge * (mode - start)
        assert np.abs(slope).max() < 1e-5
        fisher = (shard["x"] * (p * (1 - p))[:, None]).T @ shard["x"]
        np.testing.assert_allclose(precision, fisher + ridge * np.eye(3), rtol=1e-5, atol=1e-7)


def test_a_diagonal_laplace_surrogate_has_the_variances_of_the_full_one():
    shards = logistic_shards()
    model = consortia.models.logistic_regression(3)
    recipe = Recipe("laplace")
    full = Fitted(model, shards, recipe, np.zeros(3))
    diagonal = Fitted(model, shards, recipe, np.zeros(3), covariance="diagonal")
    for wide, narrow in zip(full.own, diagonal.own, strict=True):
        variances = np.diag(np.linalg.inv(np.asarray(wide.precision)))
        np.testing.assert_allclose(1 / np.asarray(narrow.precision), variances, rtol=1e-8)


def test_the_ridge_makes_a_separable_site_and_one_of_few_rows_proper():
    x = np.random.default_rng(0).normal(size=(20, 3))
    shards = [{"x": x, "y": (x[:, 0] > 0).astype(np.int32)}, {"x": x[:2], "y": np.array([0, 1])}]
    model = consortia.models.logistic_regression(3)
    fitted = Fitted(model, shards, Recipe("laplace", ridge=0.01), np.zeros(3))
    assert np.all(fitted.converged)
    for natural in fitted.own:
        assert np.linalg.eigvalsh(np.asarray(natural.precision))[0] >= 0.01 - 1e-12


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_moments_are_those_of_local_langevin_draws(covariance: str):
    shards, start = located_shards(), np.zeros(2)
    recipe = Recipe("sgld_moments", draws=40_000, warmup=2_000, step_size=2e-3, ridge=0.01)
    fitted = Fitted(located(prior=100.0), shards, recipe, start, covariance=covariance)
    for site, shard in enumerate(shards):
        # The prior has no part in it. Local SGLD has the variance 1 / (λ (1 − h λ / 4)).
        curvature = len(shard["x"]) + 0.01
        variance = 1 / (curvature * (1 - 2e-3 * curvature / 4))
        mean = shard["x"].sum(axis=0) / curvature
        precision = np.asarray(fitted.own[site].precision)
        covariances = np.linalg.inv(np.diag(precision) if precision.ndim == 1 else precision)
        found = covariances @ np.asarray(fitted.own[site].gradient)
        # Relaxation takes 2 / (h λ) = 25 to 100 steps: at least 200 independent draws, so that a
        # variance is known to 10 %, a mean to 7 % of a deviation; three times that.
        np.testing.assert_allclose(np.diag(covariances), variance, rtol=0.3)
        np.testing.assert_allclose(found, mean, atol=0.21 * np.sqrt(variance))


@pytest.mark.parametrize(
    ("kind", "covariance"),
    sparse(
        itertools.product(("anchored", "laplace", "sgld_moments"), ("full", "diagonal")),
        [("anchored", "diagonal"), ("laplace", "full")],
    ),
)
def test_no_surrogate_is_narrower_than_the_variance_floor(kind: str, covariance: str):
    recipe = Recipe(kind, variance_floor=0.05, draws=2, warmup=0)
    fitted = Fitted(located(), located_shards(), recipe, np.zeros(2), covariance=covariance)
    for natural in fitted.own:
        precision = np.asarray(natural.precision)
        full = np.diag(precision) if precision.ndim == 1 else precision
        assert np.linalg.eigvalsh(full)[-1] <= 20 * (1 + ROUNDING)


def test_a_likelihood_with_negative_curvature_gives_a_semidefinite_surrogate():
    def log_likelihood(theta: Any, batch: Any) -> Any:
        residual = batch["x"][:, 0] - theta[0] * theta[1]
        return -0.5 * residual**2

    model = consortia.Model(lambda theta: -0.5 * jnp.sum(theta**2), log_likelihood, np.zeros(2))
    start = np.array([0.1, 0.1])  # a saddle lies at zero
    shards = [{"x": np.full((5, 1), 3.0)}, {"x": np.full((5, 1), 4.0)}]
    exact = jax.hessian(lambda t: -5 * log_likelihood(t, {"x": jnp.full((1, 1), 3.0)})[0])
    assert np.linalg.eigvalsh(np.asarray(exact(jnp.asarray(start))))[0] < -1
    fitted = Fitted(model, shards, Recipe("anchored"), start)
    for natural in fitted.own:
        assert np.linalg.eigvalsh(np.asarray(natural.precision))[0] > -1e-12


def test_curvatures_of_large_sites_come_from_a_sample_that_counts_for_all_rows():
    rows = 3000
    site = Site(
        {"x": jnp.arange(rows, dtype=float)[:, None]},
        jnp.int32(rows),
        jnp.asarray(1.0),
        jnp.asarray(1.0),
    )
    assert curvatures.sampled(site)
    bits = jax.random.bits(jax.random.key(0), (curvatures.MOST_ROWS,), jnp.uint32)
    chosen, weights = curvatures.some_rows(site, bits, jnp.zeros(()).dtype)
    assert float(weights.sum()) == pytest.approx(rows)
    # uniform over all rows: mean 1499.5 with standard error 3000 / sqrt(12 · 1024) = 27
    assert abs(float(chosen["x"].mean()) - 1499.5) < 4 * 27


# --- the examination before a run ----------------------------------------------------------------


def verdict(fitted: Fitted, step_size: float = 1e-3, local_steps: int = 10) -> Any:
    names = ("north", "east", "south")
    return surrogates.explain_divergence(
        fitted.fitted, names, step_size=step_size, local_steps=local_steps
    )


def test_good_surrogates_pass_without_a_word():
    fitted = Fitted(located(), located_shards(), Recipe("anchored"), np.zeros(2), examine=True)
    assert verdict(fitted) == (None, ())


def test_surrogates_that_turn_the_drift_around_are_refused_by_the_name_of_their_site():
    # Moments of a few strongly correlated draws: variances far too small, and unlike ones.
    recipe = Recipe("sgld_moments", draws=20, warmup=0, step_size=1e-6)
    arguments: dict[str, Any] = {"step_size": 1e-3, "local_steps": 50}
    fitted = Fitted(located(), located_shards(), recipe, np.zeros(2), examine=True, **arguments)
    reason, _ = verdict(fitted, **arguments)
    assert reason is not None
    assert "away from the posterior" in reason
    assert any(name in reason for name in ("north", "east", "south"))
    weakest = np.asarray(fitted.fitted[0].weakest).min(axis=1)
    assert repr(("north", "east", "south")[int(weakest.argmin())]) in reason


def examined(weakest: list[float], factor: float, converged: tuple[bool, ...] = ()) -> Any:
    """What fit phases leave when sites have these smallest curvatures."""
    count = len(weakest)
    values = np.array(weakest)[:, None] * np.ones(2)
    reached = np.array(converged or [True] * count)
    found = surrogates.Examination(None, reached, values, np.full((count, 2), 50.0))
    return found, np.full((count, 2, 3), factor)


def test_a_turn_that_the_other_sites_make_good_is_a_warning_with_its_growth():
    names = ("north", "east", "south")
    reason, warnings = surrogates.explain_divergence(
        examined([5.0, -300.0, 4.0], 0.9), names, step_size=1e-4, local_steps=20
    )
    assert reason is None
    assert len(warnings) == 1
    assert "'east'" in warnings[0]
    assert "exp(0.3)" in warnings[0]  # h T |J| / 2


def test_a_turn_too_small_to_notice_is_no_warning():
    found = examined([5.0, -3.0, 4.0], 0.9)
    names = ("north", "east", "south")
    told = surrogates.explain_divergence(found, names, step_size=1e-4, local_steps=20)
    assert told == (None, ())


def test_a_step_size_beyond_stability_is_refused_as_such():
    # 75 rows: the corrected drift has the curvature 76 at every site, and 4 / 76 is the limit.
    arguments: dict[str, Any] = {"step_size": 0.06, "local_steps": 3}
    fitted = Fitted(
        located(), located_shards(), Recipe("anchored"), np.zeros(2), examine=True, **arguments
    )
    reason, _ = verdict(fitted, **arguments)
    assert reason is not None
    assert "lower step_size" in reason
    arguments["step_size"] = 0.05
    fitted = Fitted(
        located(), located_shards(), Recipe("anchored"), np.zeros(2), examine=True, **arguments
    )
    assert verdict(fitted, **arguments) == (None, ())


def test_the_mean_square_factor_is_that_of_the_exact_law():
    shards, start = located_shards(), np.zeros(2)
    weights, h, steps = np.array([0.5, 0.2, 0.3]), 2e-3, 7
    fitted = Fitted(
        located(),
        shards,
        Recipe("anchored"),
        start,
        weights=weights,
        step_size=h,
        local_steps=steps,
        strength=0.4,
        examine=True,
    )
    law = consortia.oracles.travelling_law(
        **consortia.oracles.location_shards([shard["x"] for shard in shards]),
        probabilities=weights,
        step_size=h,
        local_steps=steps,
        prior_precision=1.0,
        strength=0.4,
    )
    np.testing.assert_allclose(fitted.fitted[1][0], law.mean_square_radius, rtol=1e-9)


def test_a_search_without_an_end_is_refused_by_the_name_of_its_site():
    found = examined([5.0, 4.0, 4.0], 0.9, (True, False, True))
    reason, _ = surrogates.explain_divergence(
        found, ("north", "east", "south"), step_size=1e-3, local_steps=10
    )
    assert reason is not None
    assert "'east'" in reason


@pytest.mark.parametrize("covariance", sparse(("full", "diagonal"), ("full",)))
def test_given_gaussians_are_examined_like_computed_ones(covariance: str):
    # On logistic rows the surrogates are not exact, and the two points of the examination differ.
    shards, start = logistic_shards(), np.array([0.3, -0.5, 0.2])
    model, weights = consortia.models.logistic_regression(3), np.array([0.5, 0.2, 0.3])
    settings: dict[str, Any] = {"step_size": 2e-3, "local_steps": 7, "strength": 0.4}
    fitted = Fitted(
        model,
        shards,
        Recipe("laplace", ridge=0.5),
        start,
        covariance=covariance,
        weights=weights,
        examine=True,
        **settings,
    )
    same = []
    for own in fitted.own:
        precision, gradient = np.asarray(own.precision), np.asarray(own.gradient)
        full = np.diag(precision) if precision.ndim == 1 else precision
        mean = start + np.linalg.solve(full, gradient)
        same.append(Gaussian.from_precision(mean, precision))
    phase = surrogates.look_phase(tuple(same), Target(model, model.init), lambda inbox: inbox)
    local = jax.jit(lambda noise, at, site, p=phase: p.local(noise, (), (), at, site)[0])
    looks = [
        local(drawn(phase, number), jnp.asarray(start), site)
        for number, site in enumerate(fitted.sites)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *looks)
    found, factors = surrogates.examined(tuple(same), stacked, **settings)
    np.testing.assert_allclose(found.weakest, fitted.fitted[0].weakest, rtol=1e-7)
    np.testing.assert_allclose(found.strongest, fitted.fitted[0].strongest, rtol=1e-7)
    np.testing.assert_allclose(factors[0], fitted.fitted[1][0], rtol=1e-7)
    assert found.weakest[0, 0] != found.weakest[0, 1]


def test_the_examination_takes_the_rows_of_the_surrogate_itself():
    # 3,000 rows, more than a curvature is computed from, few of which make up most of it: other
    # rows than the surrogate's would see another curvature, divided by a small probability.
    rng = np.random.default_rng(0)

    def log_likelihood(theta: Any, batch: Any) -> Any:
        return -0.5 * batch["w"] * jnp.sum((batch["x"] - theta[None, :]) ** 2, axis=1)

    model = consortia.Model(lambda theta: -0.5 * jnp.sum(theta**2), log_likelihood, np.zeros(2))
    shards = [{"x": rng.normal(size=(3000, 2)), "w": rng.pareto(1.0, 3000)} for _ in range(3)]
    fitted = Fitted(model, shards, Recipe("anchored"), np.zeros(2), examine=True)
    pooled = 1 + sum(np.asarray(own.precision)[0, 0] for own in fitted.own)
    np.testing.assert_allclose(fitted.fitted[0].weakest, pooled, rtol=1e-9)
    np.testing.assert_allclose(fitted.fitted[0].strongest, pooled, rtol=1e-9)


# --- the end of a chain --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variances", "step_size", "message"),
    [
        ((1 / 40, 1 / 10, 1 / 25), 1e-3, "still drove it back"),
        ((1 / 400, 1 / 10, 1 / 25), 1e-3, "drives a chain away"),
        ((1 / 40, 1 / 10, 1 / 25), 0.1, "lower step_size"),
    ],
)
def test_the_end_of_a_chain_is_explained_by_the_curvature_where_it_last_was(
    variances: Any, step_size: float, message: str
):
    shards = located_shards()
    given = tuple(Gaussian(s["x"].mean(axis=0), v) for s, v in zip(shards, variances, strict=True))
    weights = np.array([40, 10, 25]) / 75
    site = Site(
        {"x": jnp.asarray(shards[0]["x"])[None]},
        jnp.int32(40),
        jnp.asarray(weights[0]),
        jnp.asarray(weights[0]),
        (),
        jnp.int32(0),
        jnp.int32(0),
    )
    target = Target(located(), np.zeros(2))
    reason = surrogates.explain_end(
        target,
        site,
        "north",
        surrogates.given_correction(given)(site),
        jnp.array([0.3, 0.1]),
        kind="hessian",
        strength=1.0,
        step_size=step_size,
    )
    assert message in reason
    if "away" in message:
        # 1 + 40/f + (400 + 10 + 25) − 400/f at f = 40/75
        assert "curvature -239" in reason

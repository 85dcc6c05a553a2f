"""The posterior cut into the potentials of the sites, at full scale."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.core.contract import Site
from consortia.core.target import Target
from consortia.gradients import exact, minibatch
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("x64")

SIZES = (3, 8, 5)


def problem(prior: bool = True) -> tuple[Target, consortia.Sites]:
    """Softmax-like model with a pytree of parameters and an asymmetric prior."""
    rng = np.random.default_rng(0)
    shards = [{"x": rng.normal(size=(n, 2)), "y": rng.normal(size=n) ** 2} for n in SIZES]

    def log_prior(p: Any) -> Any:
        return -jnp.sum(jnp.exp(p["scale"])) + 3 * p["scale"] - jnp.sum((p["slope"] - 1) ** 4)

    def log_likelihood(p: Any, batch: Any) -> Any:
        residual = batch["y"] - batch["x"] @ p["slope"]
        return -0.5 * jnp.exp(p["scale"]) * residual**2 + 0.5 * p["scale"]

    init = {"scale": jnp.zeros(()), "slope": jnp.zeros(2)}
    model = consortia.Model(log_prior if prior else None, log_likelihood, init)
    return Target(model, init), consortia.Sites.from_list(shards)


def slice_of(sites: consortia.Sites, index: int, shares: Any, weights: Any = None) -> Site:
    """A site as a batched slice of the padded arrays."""
    weights = shares if weights is None else weights
    return Site(
        jax.tree.map(lambda leaf: jnp.asarray(leaf[index]), sites.padded()),
        jnp.int32(sites.sizes[index]),
        jnp.asarray(weights[index]),
        jnp.asarray(shares[index]),
    )


def indexed(sites: consortia.Sites, index: int, shares: Any) -> Site:
    """The same site as an index into the arrays of all sites."""
    return Site(
        jax.tree.map(jnp.asarray, sites.padded()),
        jnp.int32(sites.sizes[index]),
        jnp.asarray(shares[index]),
        jnp.asarray(shares[index]),
        (),
        jnp.int32(index),
    )


def site_potential(target: Target, site: Site, position: Any) -> Any:
    return target.potential(position, *site.all(), site)


def pooled_potential(target: Target, sites: consortia.Sites, position: Any) -> Any:
    """U = −log prior − Σ_i log p(z_i): every row of every site once, nothing averaged."""
    values = target.log_likelihood(position, jax.tree.map(jnp.asarray, sites.pooled()))
    assert values.shape == (sum(SIZES),)
    return -target.log_prior(position) - jnp.sum(values)


SHARES = {"rows": np.array(SIZES) / sum(SIZES), "equal": np.full(3, 1 / 3), "one": np.eye(3)[1]}


@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize("view", [slice_of, indexed])
def test_the_sites_potentials_and_gradients_sum_to_the_posteriors(
    view: Callable[..., Site], shares: np.ndarray
) -> None:
    target, sites = problem()
    position = jnp.asarray([0.3, -0.7, 1.9])
    views = [view(sites, index, shares) for index in range(3)]
    parts = [site_potential(target, site, position) for site in views]
    whole = pooled_potential(target, sites, position)
    assert abs(sum(parts) - whole) < 1e-10 * abs(whole)
    gradients = [jax.grad(site_potential, 2)(target, site, position) for site in views]
    expected = jax.grad(pooled_potential, 2)(target, sites, position)
    np.testing.assert_allclose(sum(gradients), expected, rtol=1e-10)
    oracle = [exact(target).bind(site)((), position) for site in views]
    np.testing.assert_allclose(sum(oracle), expected, rtol=1e-10)


def test_the_prior_counted_at_every_site_or_a_mean_of_rows_would_be_seen() -> None:
    # The negative controls of the test above.
    target, sites = problem()
    position = jnp.asarray([0.3, -0.7, 1.9])
    whole = float(pooled_potential(target, sites, position))
    views = [slice_of(sites, index, np.ones(3)) for index in range(3)]
    thrice = float(sum(site_potential(target, site, position) for site in views))
    assert abs(thrice - whole) > 1e-3 * abs(whole)
    views = [slice_of(sites, index, SHARES["rows"]) for index in range(3)]
    padded = sum(
        target.potential(position, rows, jnp.ones_like(mask), site)
        for site in views
        for rows, mask in [site.all()]
    )
    assert abs(float(padded) - whole) > 1e-3 * abs(whole)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_padding_changes_neither_value_nor_gradient(index: int) -> None:
    target, sites = problem()
    site = slice_of(sites, index, SHARES["rows"])
    size = SIZES[index]
    junk = jax.tree.map(lambda leaf: leaf.at[size:].set(1e6), site.data)
    spoiled = Site(junk, site.size, site.weight, site.prior_share)
    position = jnp.asarray([0.1, 0.2, 0.3])
    evaluate = jax.value_and_grad(site_potential, 2)
    value, gradient = evaluate(target, site, position)
    other, other_gradient = evaluate(target, spoiled, position)
    assert value == other
    np.testing.assert_array_equal(gradient, other_gradient)


def test_a_model_without_prior_has_the_likelihood_alone() -> None:
    target, sites = problem(prior=False)
    with_prior, _ = problem()
    position = jnp.asarray([0.3, -0.7, 1.9])
    assert target.log_prior(position) == 0
    difference = pooled_potential(with_prior, sites, position) - pooled_potential(
        target, sites, position
    )
    np.testing.assert_allclose(difference, -with_prior.log_prior(position), rtol=1e-12)


def test_positions_are_flat_inside_and_pytrees_at_the_edges() -> None:
    target, _ = problem()
    parameters = {"scale": jnp.asarray(2.0), "slope": jnp.asarray([3.0, 4.0])}
    flat = target.ravel(parameters)
    assert flat.shape == (target.dimension,) == (3,)
    back = target.unravel(flat)
    assert jax.tree.structure(back) == jax.tree.structure(parameters)
    assert all(bool(jnp.all(back[name] == parameters[name])) for name in parameters)


def test_a_model_without_parameters_is_refused() -> None:
    model = consortia.Model(None, lambda p, batch: batch["x"], {})
    with refused(argument="init"):
        Target(model, {})


# --- minibatches ---------------------------------------------------------------------------------


def batch_gradients(target: Target, site: Site, batches: Any, position: Any) -> np.ndarray:
    """The estimate from each batch of row numbers, (batches, d)."""
    rows = jnp.asarray(np.array(batches), jnp.int32)[:, None]  # one draw each
    evaluate = minibatch(target, rows.shape[-1]).bind(site)
    return np.asarray(jax.jit(jax.vmap(evaluate, (0, None)))(rows, position))


@pytest.mark.parametrize("view", [slice_of, indexed])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_minibatch_gradient_averaged_over_all_batches_is_the_exact_one(
    index: int, view: Callable[..., Site]
) -> None:
    target, sites = problem()
    site = view(sites, index, SHARES["rows"])
    position = jnp.asarray([0.3, -0.7, 1.9])
    expected = np.asarray(exact(target).bind(site)((), position))
    rows = range(SIZES[index])
    batches = {
        "one row": [[row] for row in rows],
        "two with replacement": list(itertools.product(rows, repeat=2)),
        "two without": list(itertools.combinations(rows, 2)),
    }
    for name, every in batches.items():
        mean = batch_gradients(target, site, every, position).mean(axis=0)
        np.testing.assert_allclose(mean, expected, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_batch_of_all_rows_is_the_exact_gradient_at_full_scale(index: int) -> None:
    target, sites = problem()
    site = slice_of(sites, index, SHARES["rows"])
    position = jnp.asarray([0.3, -0.7, 1.9])
    whole = batch_gradients(target, site, [range(SIZES[index])], position)[0]
    np.testing.assert_allclose(whole, exact(target).bind(site)((), position), rtol=1e-12)


def test_two_draws_of_a_batch_are_the_average_of_their_gradients() -> None:
    target, sites = problem()
    site = slice_of(sites, 1, SHARES["rows"])
    position = jnp.asarray([0.3, -0.7, 1.9])
    evaluate = minibatch(target, 2).bind(site)
    together = evaluate(jnp.asarray([[0, 3], [7, 3]], jnp.int32), position)
    apart = batch_gradients(target, site, [[0, 3], [7, 3]], position)
    np.testing.assert_allclose(together, np.mean(apart, axis=0), rtol=1e-12)


def test_a_model_shows_its_parameters_with_their_shapes():
    model = consortia.models.logistic_regression(3, intercept=True)
    shown = "Model of coefficients (3,), intercept (); a log-prior, a log-likelihood of each row"
    assert repr(model) == f"{shown}, predict"
    drawn = consortia.Model(None, lambda x, rows: rows, lambda key: 1 / 0)  # not called
    shown = "Model of parameters that init(key) returns; a flat prior"
    assert repr(drawn) == f"{shown}, a log-likelihood of each row"

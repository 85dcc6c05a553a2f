"""Chains of federated HMC that learn from each other forget their starts, and keep the law."""

from __future__ import annotations

import json
from typing import Any

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import consortia
from consortia.algorithms.federated_hmc import ensemble

CHAINS, SHAPE = 1024, 1.5
SCALES = np.array([0.25, 1.0, 4.0], np.float32)


def moved_once(chains: ensemble.Ensemble, key: Any, learning: bool) -> ensemble.Ensemble:
    """The chains after a trajectory on logarithms of Gamma variables, in units of `SCALES`."""

    def potential(place: Any) -> Any:
        return jnp.sum(jnp.exp(place * SCALES) - SHAPE * place * SCALES)

    first, second = jax.random.split(key)
    shape = chains.here.places.shape
    chains = ensemble.begun(chains, jax.random.normal(first, shape), jnp.asarray(learning))

    def step(_: Any, chains: ensemble.Ensemble) -> ensemble.Ensemble:
        return ensemble.moved(chains, *jax.vmap(jax.value_and_grad(potential))(chains.trial.places))

    chains = jax.lax.fori_loop(0, ensemble.due(chains), step, chains)
    return ensemble.ended(chains, jax.random.uniform(second, shape[:1]))


@pytest.fixture(scope="module")
def settled() -> tuple[ensemble.Ensemble, int]:
    """Chains one trajectory after they have settled, from unit scales, and their messages."""
    trajectory = jax.jit(moved_once, static_argnames="learning")
    key, messages, ready = jax.random.key(3), 0, False
    begins = jax.random.normal(key, (ensemble.SUPERCHAINS, SCALES.size)) / 4
    chains = ensemble.start(begins[ensemble.superchains(CHAINS)], jnp.eye(SCALES.size))
    for index in range(40):
        chains = trajectory(chains, jax.random.fold_in(key, index), not ready)
        messages += int(ensemble.due(chains))
        if ready:
            return chains, messages
        ready = bool(ensemble.settled(chains))
        if not ready:
            chains = jax.jit(ensemble.learned)(chains)
    raise AssertionError(ensemble.obstacles(chains.measured))


def standard_errors(found: np.ndarray, shape: float) -> np.ndarray:
    """Between mean and variance of independent draws and those of the logarithm of a Gamma."""
    mean, variance = special.digamma(shape), special.polygamma(1, shape)
    fourth = special.polygamma(3, shape) / variance**2 + 2
    shift = (found.mean(0) - mean) / np.sqrt(variance / len(found))
    return np.append(shift, (found.var(0) / variance - 1) / np.sqrt(fourth / len(found)))


def test_settled_chains_are_independent_draws_of_the_law(settled: Any) -> None:
    found = np.asarray(settled[0].here.places) * SCALES
    # Six gates of 4.5 standard errors; a Gamma of a fifth more is the control.
    assert np.abs(standard_errors(found, SHAPE)).max() < 4.5
    assert np.abs(standard_errors(found, 1.2 * SHAPE)).max() > 4.5


def test_they_settle_in_some_tens_of_messages_with_a_metric_of_their_own(settled: Any) -> None:
    chains, messages = settled
    assert messages <= 60
    variance = special.polygamma(1, SHAPE) / SCALES**2
    metric = np.asarray(jnp.diag(chains.root @ chains.root.T))
    # From so many chains, shrunk a little: the variances span a factor of 256.
    np.testing.assert_allclose(metric / variance, 1, atol=0.4)


def test_nested_r_hat_is_that_of_arviz() -> None:
    rng = np.random.default_rng(0)
    each = 20
    count = each * ensemble.SUPERCHAINS
    own = np.asarray(ensemble.superchains(count))
    values = rng.normal(size=(count, 2)) + [0.0, 0.5] * rng.normal(size=own.max() + 1)[own, None]
    found = np.asarray(ensemble.nested_r_hat(jnp.asarray(values, jnp.float32)))
    # ArviZ wants four draws of a chain; of equal ones the variance within it is none.
    wanted = [
        arviz_stats.rhat_nested(
            np.repeat(values[:, [place]], 4, axis=1),
            superchain_ids=own,
            method="identity",
            chain_axis=0,
            draw_axis=1,
        )
        for place in range(2)
    ]
    np.testing.assert_allclose(found, np.ravel(wanted), rtol=1e-4)
    assert found[0] < 1.05 < found[1]


def test_what_no_family_fits_goes_over_to_chains_that_have_its_law() -> None:
    def log_prior(p: Any) -> Any:
        return jnp.sum(p["x"] - jnp.exp(p["x"]))

    model = consortia.Model(log_prior, lambda p, r: 0 * r["y"] * p["x"][0], {"x": jnp.ones(40)})
    sites = consortia.Sites.from_list([{"y": np.zeros(1, np.float32)}] * 2)
    tree = consortia.sample(model, sites, consortia.few_rounds(), chains=4, progress=False)
    found = np.asarray(tree["posterior"]["x"], np.float64).reshape(-1, 40)
    # 80 gates of 4.5 standard errors, a false alarm in 2,000 seeds.
    assert np.abs(standard_errors(found, 1.0)).max() < 4.5
    lines = json.loads(tree.attrs["rounds_used"])
    kinds = [line["for"] for line in lines]
    assert kinds == sorted(kinds, key=["mode", "family", "chains", "draws"].index)
    assert (
        tree.attrs["communication_rounds"] == sum(line.get("messages", 1) for line in lines) <= 50
    )
    assert "no family" in tree.attrs["handed_over"]
    assert any("no family" in note for note in consortia.summary(tree).notes)

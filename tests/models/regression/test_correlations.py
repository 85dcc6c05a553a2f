"""Correlations: the density of Lewandowski, Kurowicka and Joe, with its Jacobian."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as st

from consortia.models.regression.correlations import LKJ, cholesky, read_lkj
from tests.refusals import refused


@pytest.mark.parametrize(("size", "shape"), [(2, 1.0), (3, 2.5), (4, 0.7)])
def test_the_density_is_a_power_of_the_determinant(size: int, shape: float, x64: None) -> None:
    rng, below = np.random.default_rng(size), np.tril_indices(size, -1)
    free = jnp.asarray(rng.normal(size=(5, len(below[0]))))

    def correlations(x: jax.Array) -> jax.Array:
        L = cholesky(x, size)
        return (L @ L.T)[below]

    @jax.jit
    def rest(x: jax.Array) -> jax.Array:
        L = cholesky(x, size)
        _, jacobian = jnp.linalg.slogdet(jax.jacfwd(correlations)(x))
        power = (shape - 1) * 2 * jnp.sum(jnp.log(jnp.diagonal(L)))
        return LKJ(shape).log_density(x, size) - jacobian - power

    constants = np.asarray(jax.vmap(rest)(free))
    np.testing.assert_allclose(constants, constants[0], atol=1e-9)
    L = np.asarray(cholesky(free[0], size))
    np.testing.assert_allclose(np.diag(L @ L.T), 1.0, atol=1e-12)


def test_it_integrates_to_one(x64: None) -> None:
    x = np.linspace(-12, 12, 24001)
    for shape in (0.6, 1.0, 3.0):
        values = jax.vmap(lambda one, s=shape: LKJ(s).log_density(one[None], 2))(jnp.asarray(x))
        assert np.trapezoid(np.exp(values), x) == pytest.approx(1.0, abs=1e-5)


def test_scores_are_standard_normal_where_correlations_are_uniform() -> None:
    x = np.linspace(-40, 40, 9, dtype=np.float32)
    value_and_slope = jax.vmap(jax.value_and_grad(lambda one: LKJ(1.0).log_density(one[None], 2)))
    found, slopes = value_and_slope(jnp.asarray(x))
    np.testing.assert_allclose(found, st.norm.logpdf(x), rtol=1e-6)
    np.testing.assert_allclose(slopes, -x, rtol=1e-6)


def test_factors_of_extreme_scores_are_finite_and_so_are_their_slopes() -> None:
    x = jnp.asarray([[-30.0], [-9.0], [0.0], [9.0], [30.0]], jnp.float32)
    slopes = jax.vmap(jax.jacfwd(lambda one: cholesky(one, 2)))(x)
    assert np.isfinite(np.asarray(slopes)).all()
    L = np.asarray(jax.vmap(lambda one: cholesky(one, 2))(x))
    np.testing.assert_allclose((L**2).sum(axis=2), 1, rtol=1e-6)
    # √(1 − ρ²) where ρ is 1 in single precision
    np.testing.assert_allclose(L[3, 1, 1], 2 * np.sqrt(st.norm.sf(9.0)), rtol=1e-4)


def test_draws_have_the_beta_law_of_each_correlation() -> None:
    free = LKJ(1.5).draw(np.random.default_rng(0), 2000, 3)
    L = np.asarray(jax.jit(jax.vmap(lambda x: cholesky(x, 3)))(free))
    R = L @ L.transpose(0, 2, 1)
    law = st.beta(1.5 + 0.5, 1.5 + 0.5, -1, 2)  # η + (K − 2)/2 of each
    for row, column in ((1, 0), (2, 0), (2, 1)):
        assert st.kstest(R[:, row, column], law.cdf).pvalue > 1e-3
    wrong = st.beta(1.5, 1.5, -1, 2)  # without (K − 2)/2
    assert st.kstest(R[:, 2, 1], wrong.cdf).pvalue < 1e-3


def test_words_that_are_none_are_refused() -> None:
    assert str(read_lkj("correlation", "lkj(2)")) == "lkj(2)"
    for words in ("lkj(0)", "normal(0, 1)", "lkj(two)", "lkj(-1)", "lkj(1e)"):
        with refused(argument="correlation", match=r"'lkj\(SHAPE\)'"):
            read_lkj("correlation", words)

"""The compiler computes what models are made of; a version that does not is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from consortia import models
from consortia.core import compiler
from consortia.core.compiler import WRONG, check_version
from consortia.core.target import Target
from consortia.errors import InputError

OPTION = f"--{WRONG['0.10.2']}="


@pytest.mark.parametrize(("points", "rows", "columns"), [(2000, 20, 2), (64, 1000, 30)])
def test_sums_of_products_that_are_fused_with_what_follows_are_right(points, rows, columns):
    """Of jaxlib 0.10.2 they were off by .6 to 1.6 of the largest, with either size."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(rows, columns)), rng.normal(size=(points, columns))
    y = rng.normal(size=rows)
    narrow = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)

    def log_likelihoods(w):
        return -0.5 * (narrow[1] - jnp.sum(narrow[0] * w[None], axis=1)) ** 2

    found = jax.jit(jax.vmap(log_likelihoods))(jnp.asarray(w, jnp.float32))
    np.testing.assert_allclose(found, -0.5 * (y - w @ x.T) ** 2, rtol=1e-3, atol=1e-3)


def test_a_version_that_sums_wrongly_is_refused_unless_the_cause_is_turned_off(monkeypatch):
    check_version()
    model = models.linear_regression(2)
    monkeypatch.setattr(compiler, "version", {"jaxlib": "0.10.2"}.__getitem__)
    monkeypatch.setenv("XLA_FLAGS", "")
    with pytest.raises(InputError, match=f"jaxlib 0.10.2 .* set XLA_FLAGS={OPTION} before JAX"):
        Target(model, model.init)
    monkeypatch.setenv("XLA_FLAGS", f"--xla_cpu_multi_thread_eigen=false {OPTION}")
    Target(model, model.init)

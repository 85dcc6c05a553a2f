r"""A site's own level, integrated out at the site by an adaptive Gauss-Hermite rule.

.. math::
    L_c = \int \prod_i p(y_i \mid \eta_i + \tau z)\, \varphi(z)\, dz
        \approx \sqrt2\, s \sum_k w_k e^{x_k^2} e^{g(\hat z + \sqrt2 s x_k)}, \qquad
    g(z) = \sum_i \log p(y_i \mid \eta_i + \tau z) + \log\varphi(z)

with ẑ the mode of g and s² = −1/g''(ẑ), held fixed when L is differentiated: the rule is then as
good for the gradient as it is for L.

Source: Pinheiro, Bates, "Approximations to the log-likelihood function in the nonlinear
mixed-effects model" (1995).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from consortia.models._shared import Array

NODES = 15
NEWTON_STEPS = 12
STEP_MOST = 2.0
"""Of a Newton step, in standard deviations of the level."""

GRID, REACH = 401, 8.0
"""Points and standard deviations to both sides of the mode, where a level is drawn."""


def log_integral(log_density: Callable[[Array], Array], dtype: np.dtype) -> Array:
    """Return log ∫ exp(log_density(z)) φ(z) dz, a scalar.

    Args:
        log_density: of z, a scalar; the sum over rows.
        dtype: of z.
    """

    def g(z: Array) -> Array:
        return log_density(z) - 0.5 * z**2 - 0.5 * math.log(2 * math.pi)

    mode, sd = _mode(g, dtype)
    nodes, weights = np.polynomial.hermite.hermgauss(NODES)
    at = mode + math.sqrt(2) * sd * jnp.asarray(nodes, dtype)
    constants = jnp.asarray(np.log(weights) + nodes**2, dtype)
    return jax.nn.logsumexp(jax.vmap(g)(at) + constants) + jnp.log(math.sqrt(2) * sd)


def drawn(log_density: Callable[[Array], Array], uniform: Array) -> Array:
    """Return z with the density ∝ exp(log_density(z)) φ(z), from a uniform number, on a grid."""

    def g(z: Array) -> Array:
        return log_density(z) - 0.5 * z**2

    mode, sd = _mode(g, uniform.dtype)
    at = mode + sd * jnp.linspace(-REACH, REACH, GRID, dtype=uniform.dtype)
    shares = jnp.cumsum(jax.nn.softmax(jax.vmap(g)(at)))
    return jnp.interp(uniform, shares, at)


def _mode(g: Callable[[Array], Array], dtype: np.dtype) -> tuple[Array, Array]:
    """Return ẑ and s; no derivative passes through them."""
    slope, curvature = jax.grad(g), jax.grad(jax.grad(g))

    def step(z: Array, _: None) -> tuple[Array, None]:
        # where g is convex, a step of the prior's length uphill
        move = slope(z) / jnp.maximum(-curvature(z), 1.0)
        return z + jnp.clip(move, -STEP_MOST, STEP_MOST), None

    mode, _ = jax.lax.scan(step, jnp.zeros((), dtype), length=NEWTON_STEPS)
    mode = jax.lax.stop_gradient(mode)
    sd = jax.lax.stop_gradient(1 / jnp.sqrt(jnp.maximum(-curvature(mode), 0.25)))
    return mode, sd

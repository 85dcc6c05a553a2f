"""Single steps of the stochastic dynamics, against the equations written out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from consortia.dynamics.stochastic_steps import EulerHMC, Langevin, SplittingHMC, State, Thermostat
from consortia.theory.staleness import stale_sghmc_law

pytestmark = pytest.mark.usefixtures("x64")

THETA = np.array([0.3, -1.2, 2.0])
Q = np.array([0.7, 0.1, -0.4])
G = np.array([1.0, -2.0, 0.5])
ZETA = np.array([-0.6, 0.9, 1.4])
H = 0.13


def step(dynamics, **state):
    given = State(*(jnp.asarray(value) for value in state.values()))
    return dynamics.step(given, jnp.asarray(G), jnp.asarray(ZETA), jnp.asarray(H))


def close(found, expected) -> None:
    # One step in double precision.
    np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize("T", [1.0, 0.4])
def test_langevin(T: float) -> None:
    after = step(Langevin(T), position=THETA)
    close(after.position, THETA - H * G + np.sqrt(2 * H * T) * ZETA)
    assert after.momentum == ()


@pytest.mark.parametrize("V", [0.0, 2.0, (1.0, 2.0, 3.0)])
def test_euler(V) -> None:
    B, T = 1.7, 0.8
    after = step(EulerHMC(B, T, V), position=THETA, momentum=Q)
    spread = np.sqrt(2 * B * H * T - H**2 * np.asarray(V))
    q = (1 - B * H) * Q - H * G + spread * ZETA
    close(after.momentum, q)
    close(after.position, THETA + H * q)


@pytest.mark.parametrize("V", [0.0, (1.0, 2.0, 3.0)])
def test_splitting(V) -> None:
    B, T = 1.7, 0.8
    dynamics = SplittingHMC(B, T, V)
    after = step(dynamics, position=THETA, momentum=Q)
    theta = THETA + H * Q / 2
    q = Q * np.exp(-B * H / 2)
    q = q - H * G + np.sqrt(2 * B * H * T - H**2 * np.asarray(V)) * ZETA
    q = q * np.exp(-B * H / 2)
    close(after.momentum, q)
    close(after.position, theta + H * q / 2)


@pytest.mark.parametrize("elementwise", [False, True])
def test_thermostat(elementwise: bool) -> None:
    D, T = 0.9, 1.3
    xi = np.array([0.2, 1.0, -0.5]) if elementwise else np.array(0.6)

    def excess(q):
        return q * q - T if elementwise else q @ q / 3 - T

    after = step(Thermostat(D, elementwise, T), position=THETA, momentum=Q, thermostat=xi)
    theta = THETA + H * Q / 2
    xi = xi + H / 2 * excess(Q)
    q = Q * np.exp(-xi * H / 2)
    q = q - H * G + np.sqrt(2 * D * H * T) * ZETA
    q = q * np.exp(-xi * H / 2)
    close(after.momentum, q)
    close(after.position, theta + H * q / 2)
    close(after.thermostat, xi + H / 2 * excess(q))


@pytest.mark.parametrize(
    ("dynamics", "half"),
    [(Langevin(), 0), (EulerHMC(1.0), 0), (SplittingHMC(1.0), 1), (Thermostat(1.0), 1)],
)
def test_symmetric_steps_want_the_gradient_at_the_half_step_point(dynamics, half: int) -> None:
    state = State(jnp.asarray(THETA), jnp.asarray(Q), jnp.asarray(0.3))
    close(dynamics.point(state, jnp.asarray(H)), THETA + half * H / 2 * Q)


@pytest.mark.parametrize("elementwise", [False, True])
def test_chains_start_at_rest_and_the_thermostat_at_the_friction(elementwise: bool) -> None:
    start = Thermostat(2.5, elementwise).start(jnp.asarray(THETA))
    assert np.array_equal(start.momentum, np.zeros(3))
    assert np.array_equal(start.thermostat, np.full((3,) if elementwise else (), 2.5))


def test_without_noise_the_splitting_conserves_energy_to_second_order() -> None:
    # Friction near 0 and zeta 0: a symplectic step, so that halving h divides the error by 4.
    def error(h: float, steps: int) -> float:
        dynamics = SplittingHMC(1e-12)
        state = State(jnp.ones(1), jnp.zeros(1))
        zero, size = jnp.zeros(1), jnp.asarray(h)
        worst = 0.0
        for _ in range(steps):
            state = dynamics.step(state, dynamics.point(state, size), zero, size)
            energy = float(state.position[0] ** 2 + state.momentum[0] ** 2) / 2
            worst = max(worst, abs(energy - 0.5))
        return worst

    assert error(0.2, 30) / error(0.1, 60) == pytest.approx(4, rel=0.05)


def test_more_gradient_noise_than_friction_is_not_a_number() -> None:
    after = step(EulerHMC(1.0, 1.0, 2.1 / H), position=THETA, momentum=Q)
    assert np.all(np.isnan(after.momentum))


def test_the_elementwise_thermostat_absorbs_staleness() -> None:
    """Anisotropic Gaussian, staleness 2, h = .1: the variances stay near the target's."""
    curvature = jnp.array([1.0, 2.0, 3.0, 4.0])
    chains, warmup, steps, h = 256, 400, 1200, jnp.asarray(0.1)
    dynamics = Thermostat(1.0, elementwise=True)

    def one(carry, key):
        state, sent = carry
        gradient = curvature[None] * sent[0]
        normal = jax.random.normal(key, (chains, 4))
        state = jax.vmap(dynamics.step, (0, 0, 0, None))(state, gradient, normal, h)
        point = jax.vmap(dynamics.point, (0, None))(state, h)
        return (state, jnp.concatenate([sent[1:], point[None]])), state.position

    start = jax.random.normal(jax.random.key(1), (chains, 4)) / jnp.sqrt(curvature)[None]
    carry = (jax.vmap(dynamics.start)(start), jnp.stack([start] * 3))
    keys = jax.random.split(jax.random.key(2), warmup + steps)
    _, path = jax.lax.scan(one, carry, keys)
    errors = np.asarray((path[warmup:] ** 2).mean(axis=(0, 1)) * curvature - 1)
    print("relative errors of the variances", errors)
    # Standard errors are about 1 %: 256 chains of some 50 independent draws each.
    assert np.sqrt(np.mean(errors**2)) < 0.1
    exact = [stale_sghmc_law(0.1, 1.0, curvature=c, staleness=2) for c in (1, 2, 4)]
    assert [law.stationary.variance_ratio[0] - 1 for law in exact] == pytest.approx(
        [0.25, 0.66, 3.69], abs=0.01
    )

"""Which forces leave the target as it is: rounded and dithered ones; error feedback does not.

The target is not Gaussian: sums of squares from rows at three sites, with a quartic prior. Its
moments come from quadrature. A force that is wrong is no excuse: the Metropolis test corrects it,
as long as the trajectory preserves volume and can be reversed.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.algorithms.federated_hmc import FederatedHMC
from consortia.algorithms.federated_hmc.wire import FullWidth, Grid, Quantized
from consortia.dynamics import metropolis
from consortia.dynamics.rank_statistics import rhat_and_ess_of

CENTRES = np.array([[0.9, -0.2, 0.1], [0.2, 0.4, -1.5], [1.3, -0.5, 0.2]], np.float32)


@pytest.fixture(scope="module")
def model():
    return consortia.Model(
        lambda theta: -0.25 * jnp.sum(theta**4),
        lambda theta, rows: -0.5 * jnp.sum((rows["x"] - theta[None]) ** 2, axis=-1) / 3,
        jnp.zeros(3),
    )


@pytest.fixture(scope="module")
def sites():
    return consortia.Sites.from_list([{"x": centre[None]} for centre in CENTRES])


@pytest.fixture(scope="module")
def moments():
    """E θ and E θ² of each coordinate, by quadrature."""
    grid = np.linspace(-6, 6, 20_001)
    result = []
    for column in CENTRES.T.astype(np.float64):
        logarithm = -0.25 * grid**4 - ((grid[:, None] - column) ** 2).sum(axis=1) / 6
        weights = np.exp(logarithm - logarithm.max())
        weights /= weights.sum()
        result.append([weights @ grid, weights @ grid**2])
    return np.array(result).T


# --- forces --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noisy(FullWidth):
    """Gradients with noise that is drawn anew at each evaluation; or at the first one only."""

    scale: float = 1.0
    first_only: bool = False

    def state(self, position):
        return jnp.zeros((), jnp.int32)  # evaluations of this trajectory

    def noise(self, target, rng):
        return rng.normal("noise", (target.dimension,))

    def evaluate(self, target, noise, shared, state, inbox, site):
        state, message, info = super().evaluate(target, noise, shared, state, inbox, site)
        return state, (*message, self.scale * noise), info

    def up(self, state, message):
        potential, gradient, noise = message
        wanted = (state == 0) | (not self.first_only)
        return potential, gradient + jnp.where(wanted, noise, 0), state + 1

    def adapted(self, state, iteration, warmup, learned):
        return jnp.zeros_like(state)


@dataclass(frozen=True)
class Truncated(FullWidth):
    """The summed gradient cut to whole numbers; what is cut off goes into the next one, or not.

    Without that feedback it is a function of the position.
    """

    feedback: bool = False

    def state(self, position):
        return jnp.zeros_like(position)  # what was cut off

    def up(self, state, message):
        potential, gradient = message
        wanted = gradient + state if self.feedback else gradient
        sent = jnp.trunc(wanted)
        return potential, sent, wanted - sent


@dataclass(frozen=True, kw_only=True)
class Sent(FederatedHMC):
    """Federated HMC over a wire of the test's own."""

    by: FullWidth

    @property
    def wire(self):
        return self.by


WIRES = {
    "exact": FullWidth(),
    "8 bits": Quantized(bits=8),
    "16 bits": Quantized(bits=16),
    "8 bits, dithered": Quantized(bits=8, dither=True, fresh_start=True),
    "noise at every gradient": Noisy(fresh_start=True),
    "whole numbers": Truncated(fresh_start=True),
}
WRONG = {
    "noise at the first gradient": Noisy(fresh_start=True, scale=2.0, first_only=True),
    "error feedback": Truncated(fresh_start=True, feedback=True),
}


def z_scores(model, sites, moments, wire):
    """Of E θ and E θ², from the ESS of each."""
    method = Sent(by=wire, step_size=0.55, leapfrog_steps=3, mass_matrix="identity")
    tree = consortia.sample(
        model, sites, method, rounds=8000, warmup=100, chains=40, progress=False
    )
    theta = np.asarray(tree["posterior"]["theta"], np.float64)
    result = []
    for values, expected in zip((theta, theta**2), moments, strict=True):
        ess = np.asarray(rhat_and_ess_of(np.moveaxis(values, -1, 0))[1])
        assert ess.min() > 10_000
        result.append((values.mean((0, 1)) - expected) / (values.std((0, 1)) / np.sqrt(ess)))
    print(np.round(result, 1), float(tree["sample_stats"]["acceptance_rate"].mean()))
    return np.abs(np.concatenate(result))


@pytest.mark.slow
@pytest.mark.parametrize("name", WIRES)
def test_the_target_is_left_as_it_is(model, sites, moments, name):
    # Six numbers a force, six forces.
    assert z_scores(model, sites, moments, WIRES[name]).max() < 4


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_other_forces_do_not(model, sites, moments, name):
    # The negative controls.
    assert z_scores(model, sites, moments, WRONG[name]).max() > 6


# --- what is sent --------------------------------------------------------------------------------


def evaluated(model, sites, wire, exponents, noise=()):
    """The messages of the sites at a point, and the gradient that the server makes of them."""
    target = consortia.core.target.Target(model, jnp.zeros(3))
    theta = jnp.asarray([0.3, -1.2, 0.7])
    messages, gradients = [], []
    for shard in sites.shards:
        one = jnp.asarray(1 / 3, jnp.float32)
        site = consortia.core.contract.Site(
            jax.tree.map(jnp.asarray, shard), jnp.int32(1), one, one
        )
        inbox = (theta, jnp.asarray(exponents, jnp.int8))
        messages.append(wire.evaluate(target, noise, (), (), inbox, site)[1])
        gradients.append(metropolis.potential_and_gradient(target, theta, site)[1])
    total = jax.tree.map(lambda *leaves: sum(jnp.asarray(leaf, jnp.int32) for leaf in leaves),
                         *[message[1:] for message in messages])  # fmt: skip
    grid = Grid(jnp.float32(0), jnp.asarray(exponents, jnp.int8), jnp.float32(0))
    _, gradient, grid = wire.up(grid, (messages[0][0], *total))
    return messages, gradient, sum(gradients), float(grid.clipped)


def test_rounded_gradients_are_within_half_a_grid_step_of_each_site(model, sites):
    messages, got, exact, clipped = evaluated(model, sites, Quantized(bits=8), [-5, -6, -4])
    assert all(message[1].dtype == jnp.int8 for message in messages)
    assert clipped == 0
    off = np.abs(got - exact)
    assert np.all(off <= 3 * 2.0 ** np.array([-6, -7, -5]) * (1 + 1e-5))
    assert np.any(off > 0)


def test_what_does_not_fit_is_cut_off_and_said(model, sites):
    messages, _, _, clipped = evaluated(model, sites, Quantized(bits=8), [-20, -6, -4])
    assert clipped == 3
    assert {abs(int(message[1][0])) for message in messages} == {127}


def test_dithered_gradients_are_right_on_average(model, sites):
    wire = Quantized(bits=8, dither=True, fresh_start=True)
    levels = (np.arange(20) + 0.5) / 20
    got = [
        np.asarray(evaluated(model, sites, wire, [-2] * 3, jnp.full(3, level, jnp.float32))[1])
        for level in levels
    ]
    exact = evaluated(model, sites, wire, [-2] * 3, jnp.full(3, 0.5))[2]
    # Twenty evenly spread dithers: each site's average is right to a twentieth of a step.
    np.testing.assert_allclose(np.mean(got, axis=0), exact, rtol=0, atol=3 * 0.25 / 20)


@pytest.mark.parametrize(("bits", "dither"), [(8, False), (8, True), (16, False)])
def test_fewer_bits_save_the_bytes_that_they_should(model, sites, bits, dither):
    plans = []
    for arguments in ({}, {"force": "quantized", "bits": bits, "dither": dither}):
        method = consortia.federated_hmc(
            step_size=0.3, leapfrog_steps=4, mass_matrix="identity", **arguments
        )
        consortia.sample(
            model, sites, method, rounds=1, progress=False, on_plan=plans.append, chains=1
        )
    # A dithered start is a new gradient, so one more round.
    assert plans[1].communication_rounds == 4 + dither
    assert plans[0].bytes_up == 4 * 3 * 4 * (3 + 2)
    # d numbers, U in two, and a byte that says whether one was cut off.
    assert plans[1].bytes_up == (4 + dither) * 3 * (3 * bits // 8 + 2 * 4 + 1)

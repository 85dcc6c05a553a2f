"""Figure 1 of FA-HMC with averages within trajectories: the answers, the law, finite draws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from experiments.fa_hmc import logistic, synchronisation
from experiments.fa_hmc.marginal_error import Clients
from experiments.fa_hmc.synchronisation import STEP, Settled, averages, settled


def clients(dimension: int, rows: int, count: int) -> Clients:
    data = logistic.rows(dimension, rows, 3)
    return Clients.of(data["x"].astype(np.float64), data["y"].astype(np.float64), count)


def test_averages_are_those_of_leapfrog_steps_taken_one_after_the_other() -> None:
    some = clients(4, 12, 3)
    rng = np.random.default_rng(0)
    kick, middles = rng.normal(size=(4, 2)), rng.normal(size=(3, 4, 1))
    curvatures = []
    for client in range(3):
        own = some.vectors[:, some.owner == client]
        curvatures.append(np.eye(4) + (own * (some.values[some.owner == client] - 1)) @ own.T)
    places, momenta, expected = [np.zeros((4, 2))] * 3, [kick] * 3, []
    for step in range(1, 22):
        for c, curvature in enumerate(curvatures):
            half = momenta[c] - STEP / 2 * curvature @ (places[c] - middles[c])
            places[c] = places[c] + STEP * half
            momenta[c] = half - STEP / 2 * curvature @ (places[c] - middles[c])
        if step % 3 == 0:
            places = [np.mean(places, axis=0)] * 3
            momenta = [np.mean(momenta, axis=0)] * 3
            expected.append(places[0])
        if step % 7 == 0:
            momenta = [np.zeros((4, 2))] * 3
    found = list(averages(some, kick, 7, 3, 0, 21, middles))
    assert [at for at, _ in found] == list(range(3, 22, 3))
    np.testing.assert_allclose([average for _, average in found], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("local", [1, 3])
def test_an_average_after_whole_trajectories_is_algorithm_3(
    local: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synchronisation, "MEMORY", 20)  # what is forgotten is below rounding then
    some = clients(12, 60, 5)
    (expected,) = some.marginal_errors(STEP, 100, local, (0.0,))
    found = settled(some, 100, 100 * local).error()
    assert found == pytest.approx(expected, rel=1e-4)  # single precision
    assert settled(some, 100, 50).error() < 0.7 * expected  # not the law of another T


def test_the_error_of_some_draws_is_that_of_draws() -> None:
    rng = np.random.default_rng(1)
    law = Settled(np.array([0.1]), np.array([1.2]), np.array([1.0]))
    levels = (np.arange(500) + 0.5) / 500
    drawn = np.sort(0.1 + 1.2 * rng.normal(size=(1000, 500)), axis=1)
    expected = np.abs(drawn - norm.ppf(levels)).mean(axis=1)
    # the normal law of quantiles has an error of order 1/n; that of these draws is below .5 %
    assert law.error(500) == pytest.approx(expected.mean(), rel=0.03)
    assert law.error(500) > 1.04 * law.error()
    assert law.draws_to(law.error(500)) == pytest.approx(500, rel=1e-6)
    assert law.draws_to(0.9 * law.error()) == np.inf

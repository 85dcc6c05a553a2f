"""Laws of Langevin dynamics with a preconditioner that adapts, against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from consortia.oracles import psgld_law, psgld_short_memory_variance, stale_sgld_law
from tests.refusals import refused

STEP, FLOOR, CHAINS = 0.1, 0.01, 4000
PRECISION = np.array([[2.0, 1.0], [1.0, 9.0]])
NOISE = np.array([[4.0, -1.0], [-1.0, 20.0]])


def simulated(step: float, precision, noise, *, late: int, alpha: float, steps: int) -> np.ndarray:
    """Return chains after so many steps from the target; the recursion alone."""
    rng = np.random.default_rng(0)
    root, own = np.linalg.cholesky(np.linalg.inv(precision)), np.linalg.cholesky(noise)
    past = [rng.normal(size=(CHAINS, len(root))) @ root.T] * (late + 1)
    squares, weight = np.zeros_like(past[0]), 0.0
    for _ in range(steps):
        gradient = past[0] @ precision + rng.normal(size=past[0].shape) @ own.T
        squares, weight = alpha * squares + gradient**2, alpha * weight + 1
        scaled = step / (FLOOR + np.sqrt(squares / weight))
        noisy = np.sqrt(2 * scaled) * rng.normal(size=past[0].shape)
        past = [*past[1:], past[-1] - scaled * gradient + noisy]
    return past[-1]


@pytest.mark.parametrize("late", [0, 3])
def test_the_recursion_has_the_predicted_law_and_not_that_of_another_staleness(late: int) -> None:
    draws = simulated(STEP, PRECISION, NOISE, late=late, alpha=1.0, steps=400)
    law = psgld_law(STEP, PRECISION, floor=FLOOR, staleness=late, gradient_noise=NOISE)
    error = math.sqrt(2 / CHAINS)

    def away(spread) -> float:
        return float(np.abs(draws.var(axis=0) / spread - 1).max() / error)

    assert away(law.stationary.variance) < 4
    assert np.corrcoef(draws.T)[0, 1] == pytest.approx(
        law.stationary.spread[0, 1] / math.sqrt(law.stationary.variance.prod()), abs=0.06
    )
    assert away(np.diag(np.linalg.inv(PRECISION))) > 6
    other = psgld_law(STEP, PRECISION, floor=FLOOR, staleness=3 - late, gradient_noise=NOISE)
    assert away(other.stationary.variance) > 6


def test_the_preconditioner_makes_the_gradients_that_it_is_made_of() -> None:
    law = psgld_law(STEP, 4.0, floor=FLOOR, gradient_noise=3.0)
    spread = float(law.stationary.variance[0])
    metric = 1 / (FLOOR + math.sqrt(16 * spread + 3))
    drift = STEP * metric
    assert spread == pytest.approx((1 - 4 * drift) ** 2 * spread + 2 * drift + 3 * drift**2)


def test_it_is_stable_where_a_step_alone_diverges() -> None:
    law = psgld_law(0.1, [1.0, 100.0], floor=FLOOR)
    assert law.stable
    assert not stale_sgld_law(0.1, [1.0, 100.0], 0).stable


def test_a_short_memory_widens_the_draws_however_small_the_step() -> None:
    one = np.eye(1)
    draws = simulated(0.01, one, 1e-12 * one, late=0, alpha=0.5, steps=800)
    found, error = float(draws.var()), math.sqrt(2 / CHAINS)
    short = psgld_short_memory_variance(1.0, floor=FLOOR)
    long = float(psgld_law(0.01, 1.0, floor=FLOOR).stationary.variance[0])
    assert abs(found / short - 1) < 4 * error
    assert abs(found / long - 1) > 10 * error


@pytest.mark.parametrize(("floor", "noise"), [(0.7, 0.0), (0.7, 2.0), (1e6, 0.0)])
def test_the_limit_of_a_short_memory_is_an_integral(floor: float, noise: float) -> None:
    from scipy.integrate import quad

    def moment(k: int) -> float:
        weight = lambda x: floor + math.sqrt(9 * x * x + noise)  # noqa: E731
        return quad(lambda x: x**k * weight(x) * math.exp(-1.5 * x * x), -8, 8, points=[0.0])[0]

    found = psgld_short_memory_variance(3.0, floor=floor, gradient_noise=noise)
    assert found == pytest.approx(moment(2) / moment(0), rel=1e-6)


@pytest.mark.parametrize(
    ("given", "argument", "match"),
    [
        ({"step_size": 0.0}, "step_size", None),
        ({"floor": 0.0}, "floor", None),
        ({"precision": [1.0, -1.0]}, "precision", None),
        ({"precision": [[1.0, 0.5], [0.0, 1.0]]}, "precision", "symmetric"),
        ({"gradient_noise": np.eye(3)}, "gradient_noise", "gradient_noise: shape"),
        ({"step_size": 1e9}, "step_size", "too long"),
    ],
)
def test_what_has_no_law_is_refused(given: dict, argument: str, match: str | None) -> None:
    settings = {"step_size": 0.1, "precision": [1.0, 2.0], "floor": 0.1, **given}
    with refused(argument=argument, match=match):
        psgld_law(settings.pop("step_size"), settings.pop("precision"), **settings)

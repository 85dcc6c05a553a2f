"""The exact law of federated averaging against a literal propagation of every random number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consortia.oracles import fa_hmc_law


def dense_problem(rng: np.random.Generator, clients: int = 3, d: int = 2):
    factors = rng.normal(size=(clients, d, d))
    curvatures = factors @ np.swapaxes(factors, 1, 2) / d + 0.3 * np.eye(d)
    weights = rng.uniform(0.5, 1.5, size=clients)
    return rng.normal(size=(clients, d)) * 3.0, curvatures, weights / weights.sum()


def propagate(
    means: np.ndarray,
    curvatures: np.ndarray,
    weights: np.ndarray,
    *,
    rounds: int,
    step_size: float,
    leapfrog_steps: int,
    local_steps: int,
    rho: float,
    noise: float,
    draws: int,
    debias: bool,
    mass: np.ndarray,
    temperature: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The averaged position as a linear function of the start, of 1 and of every random number.

    Written from the algorithm alone: each random number is a fresh column. Returns the columns of
    the start (d, d), the constant (d,) and the covariance of all the rest (d, d).
    """
    d = means.shape[1]
    columns = d + 1 + 4 * rounds * local_steps * (1 + len(weights) * (2 + 2 * leapfrog_steps)) * d
    used = d + 1

    def fresh() -> np.ndarray:
        nonlocal used
        variable = np.zeros((d, columns))
        variable[:, used : used + d] = np.eye(d)
        used += d
        return variable

    one = np.zeros(columns)
    one[d] = 1.0
    position = np.zeros((d, columns))
    position[:, :d] = np.eye(d)
    previous: np.ndarray | None = None
    root = np.linalg.cholesky(mass)
    slowness = np.linalg.inv(mass)
    for _ in range(rounds):
        gradients = [
            None if previous is None else L @ (previous - np.outer(m, one))
            for m, L in zip(means, curvatures, strict=True)
        ]
        correction = [np.zeros((d, columns))] * len(weights)
        if debias and previous is not None:
            # What is sent is noisy; a client knows its own gradient.
            sent = [gradient + np.sqrt(noise) * fresh() for gradient in gradients]
            total = sum(w * g for w, g in zip(weights, sent, strict=True))
            correction = [total - g for g in gradients]
        local = [position.copy() for _ in weights]
        for _ in range(local_steps):
            shared = fresh()
            for c, w in enumerate(weights):
                momentum = np.sqrt(rho) * shared + np.sqrt((1.0 - rho) / w) * fresh()
                momentum = np.sqrt(temperature) * root @ momentum
                x = local[c]
                start_noise = fresh()
                for _ in range(leapfrog_steps):
                    gradient = curvatures[c] @ (x - np.outer(means[c], one)) + correction[c]
                    half = momentum - step_size / 2.0 * (gradient + np.sqrt(noise) * start_noise)
                    x = x + step_size * slowness @ half
                    end_noise = fresh()
                    gradient = curvatures[c] @ (x - np.outer(means[c], one)) + correction[c]
                    momentum = half - step_size / 2.0 * (gradient + np.sqrt(noise) * end_noise)
                    start_noise = end_noise if draws == 1 else fresh()
                local[c] = x
        previous = position
        position = sum(w * x for w, x in zip(weights, local, strict=True))
    assert used <= columns
    rest = position[:, d + 1 :]
    return position[:, :d], position[:, d], rest @ rest.T


CASES = {
    "plain": {},
    "private momenta": {"rho": 0.0},
    "noisy gradients": {"noise": 4.0, "rho": 0.3},
    "noisy gradients, one draw a point": {"noise": 4.0, "draws": 1},
    "one leapfrog": {"leapfrog_steps": 1, "noise": 2.0},
    "mass matrix": {"mass": np.array([[2.0, 0.5], [0.5, 1.0]]), "noise": 3.0, "rho": 0.6},
    "temperature": {"temperature": 0.3, "noise": 1.0},
    "debiased": {"debias": True, "noise": 2.0, "rho": 0.5},
    "debiased, mass matrix": {"debias": True, "mass": np.array([[2.0, 0.5], [0.5, 1.0]])},
}


def both(case: dict[str, Any], rounds: int, problem: tuple[np.ndarray, np.ndarray, np.ndarray]):
    settings: dict[str, Any] = {
        "step_size": 0.23,
        "leapfrog_steps": 4,
        "local_steps": 3,
        "rho": 1.0,
        "noise": 0.0,
        "draws": 2,
        "debias": False,
        "mass": np.eye(2),
        "temperature": 1.0,
    } | case
    literal = propagate(*problem, rounds=rounds, **settings)
    law = fa_hmc_law(
        *problem,
        step_size=settings["step_size"],
        leapfrog_steps=settings["leapfrog_steps"],
        local_steps=settings["local_steps"],
        momentum_correlation=settings["rho"],
        gradient_noise=settings["noise"],
        gradient_draws=settings["draws"],
        debias=settings["debias"],
        mass_matrix=settings["mass"],
        temperature=settings["temperature"],
    )
    return law, literal


@pytest.mark.parametrize("rounds", [1, 2, 4])
@pytest.mark.parametrize("name", list(CASES))
def test_law_after_some_rounds_equals_the_propagation_of_every_random_number(name, rounds):
    law, (slope, constant, covariance) = both(
        CASES[name], rounds, dense_problem(np.random.default_rng(11))
    )
    start = np.array([1.3, -0.4])
    spread = np.array([[0.9, 0.2], [0.2, 0.4]])
    # Some hundred float64 operations on numbers of order ten.
    np.testing.assert_allclose(law.after(rounds, start).mean, slope @ start + constant, atol=1e-11)
    np.testing.assert_allclose(
        law.after(rounds, start, spread).covariance,
        covariance + slope @ spread @ slope.T,
        atol=1e-11,
    )
    np.testing.assert_allclose(law.after(rounds, start).variance, np.diag(covariance), atol=1e-11)


@pytest.mark.parametrize("case", [{"noise": 4.0, "rho": 0.3}, {"debias": True, "noise": 4.0}])
def test_diagonal_law_equals_the_propagation_of_every_random_number(case):
    means, _, weights = dense_problem(np.random.default_rng(5))
    curvatures = np.array([[1.0, 0.2], [0.5, 0.9], [1.7, 0.1]])
    mass = np.array([1.4, 0.6])
    full = np.stack([np.diag(row) for row in curvatures])
    _, (slope, constant, covariance) = both(
        case | {"mass": np.diag(mass)}, 3, (means, full, weights)
    )
    law = fa_hmc_law(
        means,
        curvatures,
        weights,
        step_size=0.23,
        leapfrog_steps=4,
        local_steps=3,
        momentum_correlation=case.get("rho", 1.0),
        gradient_noise=4.0,
        debias=case.get("debias", False),
        mass_matrix=mass,
    )
    assert law.target.spread.ndim == 1
    np.testing.assert_allclose(
        law.after(3, [1.0, 2.0]).mean, slope @ [1.0, 2.0] + constant, atol=1e-11
    )
    np.testing.assert_allclose(law.after(3, 0.0).covariance, covariance, atol=1e-11)


def test_the_literal_propagation_tells_one_draw_from_two_and_a_tenth_more_noise():
    problem = dense_problem(np.random.default_rng(11))
    law, (_, _, covariance) = both({"noise": 4.0}, 1, problem)
    _, (_, _, one_draw) = both({"noise": 4.0, "draws": 1}, 1, problem)
    _, (_, _, more) = both({"noise": 4.4}, 1, problem)
    for other in (one_draw, more):
        assert np.max(np.abs(other - law.after(1, 0.0).covariance)) > 1e-3 * np.max(covariance)


@pytest.mark.parametrize("debias", [False, True])
def test_gradient_noise_of_unlike_clients_counts_client_by_client(debias):
    noise = np.array([4.0, 0.0])
    clients = ([20.0, 1.0], [1.0, 0.25], [0.5, 0.5])
    settings = {"step_size": 0.1, "leapfrog_steps": 5, "local_steps": 3, "debias": debias}
    quiet = fa_hmc_law(*clients, **settings).recursion.innovation_covariance
    first = fa_hmc_law(*clients, gradient_noise=noise, **settings)
    second = fa_hmc_law(*clients, gradient_noise=noise[::-1], **settings)
    all_ = fa_hmc_law(*clients, gradient_noise=4.0, **settings)
    parts = (first.recursion.innovation_covariance - quiet) + (
        second.recursion.innovation_covariance - quiet
    )
    assert parts == pytest.approx(all_.recursion.innovation_covariance - quiet)
    assert first.recursion.innovation_covariance[0] < second.recursion.innovation_covariance[0]

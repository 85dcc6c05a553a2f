"""Settings left open are chosen by the law, near the best of a grid; a resumed run keeps them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sparse import sparse

import consortia
from consortia.errors import InputError
from consortia.theory import settings, tuning
from consortia.theory.bias import Problem, known_law

KINDS = ("alike", "unlike", "ill-conditioned", "unlike and ill-conditioned")
TARGET = tuning.BiasTarget()


def problem_of(kind: str, d: int = 3, count: int = 4) -> Problem:
    """Five Gaussian sites, each with one row that holds its mean and its precision."""
    rng = np.random.default_rng(3)
    rows = []
    for _ in range(count):
        sizes = np.logspace(0, 2, d) if "ill" in kind else np.full(d, 20.0)
        mean, turn = 0.02 * rng.normal(size=d), np.eye(d)
        if "unlike" in kind:
            turn, _ = np.linalg.qr(np.eye(d) + 0.1 * rng.normal(size=(d, d)))
            sizes, mean = sizes * rng.uniform(0.3, 3.0, d), 20 * mean / np.sqrt(sizes)
        precision = turn @ np.diag(sizes) @ turn.T
        rows.append({"m": mean[None], "A": precision[None]})

    def log_likelihood(p: Any, b: Any) -> Any:
        off = p["x"][None] - b["m"]
        return -0.5 * jnp.einsum("ni,nij,nj->n", off, b["A"], off)

    def log_prior(p: Any) -> Any:
        return -0.5e-4 * jnp.sum(p["x"] ** 2)

    init = {"x": np.zeros(d, np.float32)}
    model = consortia.Model(log_prior=log_prior, log_likelihood=log_likelihood, init=init)
    return Problem(model, consortia.Sites.from_list(rows))


def cost_of(problem: Problem, method: Any) -> float:
    """The cost of a draw, infinite where the target is missed."""
    law = known_law(method, problem)
    if not law.stable or not TARGET.met(law, problem.near.sd):
        return np.inf
    gradients = method.cost(problem.near.sizes, problem.near.mode.size).gradients
    gradients /= len(problem.near.sizes)
    return law.rounds_per_draw * (settings.GRADIENTS_OF_A_MESSAGE + gradients)


@pytest.mark.parametrize("kind", sparse(KINDS, ("alike", "unlike and ill-conditioned")))
def test_the_choice_costs_at_most_a_tenth_more_than_the_best_of_a_grid(kind: str) -> None:
    """A tenth: the grid's steps are a fifth apart, and the search ends where a move gains 2 %."""
    problem = problem_of(kind)
    choice = tuning.choose_step(problem, consortia.fa_hmc(), TARGET, rounds=10**5, chains=4)
    masses = {None: problem.near.precision[-1, -1], "curvature": 1.0}
    best = np.inf
    for K, T, debias, mass in itertools.product((1, 2, 3, 5, 8), (1, 2, 5), (False, True), masses):
        filled = settings.with_settings(
            consortia.fa_hmc(),
            {"leapfrog_steps": K, "local_steps": T, "debias": debias, "mass_matrix": mass},
            problem,
        )
        steps = np.geomspace(0.01, 3, 24) / np.sqrt(masses[mass])
        for step in steps:
            stepped = settings.dataclasses.replace(filled, step_size=float(step))
            best = min(best, cost_of(problem, stepped))
    assert cost_of(problem, choice.method) <= 1.1 * best


def test_given_settings_stay_and_others_are_chosen() -> None:
    """What the user fixes stays fixed; the step that suits one iteration is not that of eight."""
    problem = problem_of("unlike")
    choice = tuning.choose_step(
        problem,
        consortia.fa_hmc(None, leapfrog_steps=3, debias=False),
        TARGET,
        rounds=10**5,
        chains=4,
    )
    method: Any = choice.method
    assert method.leapfrog_steps == 3
    assert method.debias is False
    assert method.local_steps in consortia.algorithms.fa_hmc.ITERATIONS
    assert not tuning.unchosen(method)
    fixed: Any = tuning.choose_step(
        problem, consortia.fa_hmc(0.01), TARGET, rounds=10**6, chains=4
    ).method
    assert fixed.step_size.value == 0.01


def test_settings_that_are_given_leave_debias_and_the_mass_matrix_as_they_were() -> None:
    """A call of before has the meaning of before."""
    method = consortia.fa_hmc(0.1, 2, 3)
    assert method.debias is False
    assert method.mass_matrix.values is None
    assert not method.open_settings


def test_an_open_setting_is_refused_where_nothing_chooses_it() -> None:
    """The cost of a round is not known before K and T are."""
    with pytest.raises(InputError, match="leapfrog_steps or local_steps is None"):
        consortia.fa_hmc().cost(np.array([5]), 2)


def test_a_run_without_settings_is_right_and_resumes_with_those_that_it_chose(
    tmp_path: Path,
) -> None:
    """The draws have the moments of the posterior; a longer run begins with the same draws."""
    problem = problem_of("unlike and ill-conditioned")
    options: dict[str, Any] = {"chains": 4, "seed": 2, "progress": False}
    given = problem.model, problem.sites, consortia.fa_hmc()
    first = consortia.sample(*given, rounds=300, store=tmp_path / "run", **options)
    longer = consortia.resume(
        tmp_path / "run",
        problem.model,
        problem.sites,
        consortia.fa_hmc(),
        rounds=500,
        progress=False,
    )
    draws = longer["posterior"]["x"].to_numpy()
    np.testing.assert_array_equal(draws[:, :300], first["posterior"]["x"].to_numpy())
    off = (draws.reshape(-1, draws.shape[-1]) - problem.near.mode) / problem.near.sd
    # 2,000 draws that are nearly independent: four standard errors, and the target of bias
    assert np.abs(off.mean(axis=0)).max() < 0.05 + 4 / np.sqrt(1000)
    assert np.abs(off.std(axis=0) - 1).max() < 0.05 + 4 / np.sqrt(2000)


def _regression(kind: str, d: int, count: int, seed: int, shift: float) -> Any:
    """A logistic or Poisson regression at sites whose columns lie apart."""
    rng = np.random.default_rng(seed)
    slopes, rows = 0.4 * rng.normal(size=d), []
    for _ in range(count):
        x = rng.normal(size=(int(rng.integers(60, 400)), d)) + shift * rng.normal(size=d)
        x[:, 0] = 1
        eta = x @ slopes
        event = rng.random(len(eta)) < 1 / (1 + np.exp(-eta))
        y = event if kind == "logistic" else rng.poisson(np.exp(np.clip(eta, -4, 2)))
        rows.append({"x": x.astype(np.float32), "y": y.astype(np.float32)})

    def log_likelihood(p: Any, b: Any) -> Any:
        eta = b["x"] @ p["x"]
        return b["y"] * eta - (jax.nn.softplus(eta) if kind == "logistic" else jnp.exp(eta))

    init = {"x": np.zeros(d, np.float32)}
    model = consortia.Model(
        log_prior=lambda p: -jnp.sum(p["x"] ** 2) / 8, log_likelihood=log_likelihood, init=init
    )
    return model, consortia.Sites.from_list(rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        ("logistic", 4, 5, 0, 0.3),
        ("logistic", 12, 8, 2, 0.5),
        ("logistic", 6, 20, 3, 1.0),
        ("poisson", 4, 5, 4, 0.2),
        ("poisson", 8, 8, 6, 0.3),
    ],
)
def test_chosen_settings_meet_the_target_where_likelihoods_are_not_gaussian(target: Any) -> None:
    """Beside the exact posterior, with four Monte Carlo errors of both runs."""
    model, sites = _regression(*target)
    options: dict[str, Any] = {"chains": 4, "seed": 1, "progress": False}
    tree = consortia.sample(model, sites, consortia.fa_hmc(), rounds=2500, **options)
    exact = consortia.sample(
        model, sites, consortia.few_rounds(effective_size=20_000), rounds=200, **options
    )
    size = float(np.min(consortia.summary(tree)["ess_bulk"]))
    draws, others = (
        one["posterior"]["x"].to_numpy().reshape(-1, target[1]) for one in (tree, exact)
    )
    sd = others.std(axis=0)
    assert np.abs((draws.mean(axis=0) - others.mean(axis=0)) / sd).max() < 0.05 + 4 / size**0.5
    assert np.abs(draws.std(axis=0) / sd - 1).max() < 0.05 + 4 / (2 * size) ** 0.5
    assert size > 2000

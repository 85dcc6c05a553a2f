"""The law of many agents by their network's modes, beside that by the matrix of an iteration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.oracles import GaussianAgents
from consortia.theory import bias, tuning
from consortia.theory.bias import Problem, known_law
from consortia.theory.decentralized import decentralized_hmc_law
from consortia.theory.gossip import gossip_law
from tests.refusals import refused

SETTINGS: dict[str, dict[str, Any]] = {
    "DE-SGLD": {"step_size": 0.004},
    "averaged noise": {"step_size": 0.01, "averaged_noise": True},
    "EXTRA": {"step_size": 0.01, "correction": "extra"},
    "DE-SGHMC": {"step_size": 0.03, "friction": 8.0},
    "DE-SGHMC with EXTRA": {"step_size": 0.05, "friction": 8.0, "correction": "extra"},
    "MA-HMC": {"step_size": 0.07, "gossip_rounds": 2},
}


def agents_of(apart: float, *, count: int = 6, d: int = 4) -> GaussianAgents:
    """Agents whose curvatures have other axes and sizes, the more so the more they are apart."""
    rng = np.random.default_rng(1)
    curvatures = []
    for _ in range(count):
        turn, _ = np.linalg.qr(np.eye(d) + apart * rng.normal(size=(d, d)))
        sizes = np.linspace(5, 20, d) * np.exp(apart * rng.normal(size=d))
        curvatures.append(turn @ np.diag(sizes) @ turn.T)
    return GaussianAgents(curvatures, means=rng.normal(size=(count, d)))


def laws_of(name: str, agents: GaussianAgents, network: str = "ring") -> list[Any]:
    """The law by the matrix of an iteration, and by modes."""
    settings, laws = dict(SETTINGS[name]), []
    step = settings.pop("step_size")
    for by_modes in (False, True):
        agents.by_modes = by_modes
        if name == "MA-HMC":
            laws.append(decentralized_hmc_law(agents, network, step_size=step, **settings))
        else:
            laws.append(gossip_law(agents, network, step, **settings))
    return laws


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("network", ["ring", "complete"])
def test_agents_of_equal_curvatures_have_the_exact_law(name: str, network: str) -> None:
    """Nothing is left out then; of the complete network all modes but one have the eigenvalue 0."""
    exact, modes = laws_of(name, agents_of(0.0), network)
    assert modes.stable
    assert modes.spectral_radius == pytest.approx(exact.spectral_radius, abs=1e-5)
    np.testing.assert_allclose(modes.stationary.mean, exact.stationary.mean, atol=1e-6)
    np.testing.assert_allclose(modes.stationary.sd, exact.stationary.sd, rtol=1e-5)
    each = modes.stationary.agents.variances
    np.testing.assert_allclose(each, exact.stationary.agents.variances, rtol=1e-4)


@pytest.mark.parametrize("name", SETTINGS)
def test_what_unlike_curvatures_change_is_known_to_second_order(name: str) -> None:
    """A tenth of what equal curvatures leave out, or a thousandth of the sd; means are exact."""
    agents = agents_of(0.3)
    exact, modes = laws_of(name, agents)
    target = exact.target.sd
    np.testing.assert_allclose(modes.stationary.mean, exact.stationary.mean, atol=1e-6)
    alike = GaussianAgents([agents.curvatures.mean(axis=0)] * agents.count, pulls=agents.pulls)
    without = laws_of(name, alike)[0].stationary.sd
    left = np.abs(without - exact.stationary.sd) / target
    off = np.abs(modes.stationary.sd - exact.stationary.sd) / target
    assert off.max() < max(0.1 * left.max(), 1e-3)
    assert modes.recursion.apart > 0


def test_agents_that_diverge_are_not_called_stable() -> None:
    """One of them is five times as curved as the others, whose step this is."""
    agents = agents_of(0.0)
    curvatures = agents.curvatures.copy()
    curvatures[0] *= 5
    wild = GaussianAgents(curvatures, pulls=agents.pulls)
    for step, stable in ((0.01, True), (0.04, False)):
        wild.by_modes = True
        assert gossip_law(wild, "ring", step).stable is stable
        wild.by_modes = False
        assert gossip_law(wild, "ring", step).stable is stable


def problem_of(count: int, d: int, apart: float) -> Problem:
    """Gaussian sites, each with one row that holds its mean and precision."""
    agents = agents_of(apart, count=count, d=d)
    means = np.linalg.solve(agents.curvatures, agents.pulls[..., None])[..., 0]
    rows = [
        {"m": (0.1 * mean)[None], "A": part[None]}
        for mean, part in zip(means, agents.curvatures, strict=True)
    ]

    def log_likelihood(x: Any, b: Any) -> Any:
        off = x[None] - b["m"]
        return -0.5 * jnp.einsum("ni,nij,nj->n", off, b["A"], off)

    model = consortia.Model(
        log_prior=lambda x: -0.5e-4 * (x**2).sum(),
        log_likelihood=log_likelihood,
        init=np.zeros(d, np.float32),
    )
    return Problem(model, consortia.Sites.from_list(rows))


def test_a_large_network_has_a_law_and_one_of_very_unlike_sites_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The notes say by what; the reason says why not."""
    monkeypatch.setattr(bias, "LARGEST_SYSTEM", 12)
    method = consortia.de_sgld(0.015, "ring")
    prediction = bias.predict_bias(*_parts(problem_of(6, 4, 0.3)), method)
    assert "to second order" in str(prediction.basis)
    assert prediction.sd_ratio is not None
    refused = bias.predict_bias(*_parts(problem_of(6, 4, 1.5)), method)
    assert "differ so much" in str(refused.reason)


def _parts(problem: Problem) -> tuple[Any, Any]:
    return problem.model, problem.sites


def test_settings_compared_by_modes_meet_the_target_by_the_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The law by modes compares, that by the matrix of an iteration has the last word."""
    problem = problem_of(6, 4, 0.6)
    monkeypatch.setattr(bias, "COMPARED_SYSTEM", 12)
    target, method = tuning.BiasTarget(), consortia.de_sghmc(mixing="ring")
    choice = tuning.choose_step(problem, method, target, rounds=10**7, chains=4)
    law = known_law(choice.method, problem)
    assert law.basis == "the exact law of the average of the agents"
    assert target.met(law, problem.near)
    monkeypatch.setattr(bias, "COMPARED_SYSTEM", 700)
    exact = tuning.choose_step(problem, method, target, rounds=10**7, chains=4)
    # a fifth: the curvatures change the spread by some per cent, and the step with it
    assert choice.rounds_per_draw < 1.2 * exact.rounds_per_draw


@pytest.mark.parametrize("options", [{"noise": "common"}, {"mixing": "parts"}])
def test_what_has_no_law_by_modes_is_compared_by_the_matrix(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Common noise, and a network in two parts."""
    if "mixing" in options:
        options = {"mixing": np.kron(np.eye(2), np.full((3, 3), 1 / 3))}
    monkeypatch.setattr(bias, "COMPARED_SYSTEM", 1)
    problem, target = problem_of(6, 4, 0.0), tuning.BiasTarget(10.0, 10.0)
    method = consortia.de_sgld(**{"mixing": "ring"} | options)
    choice = tuning.choose_step(problem, method, target, rounds=10**7, chains=4)
    assert choice.tried[0].law.basis == "the exact law of the average of the agents"


def test_no_law_by_modes_is_had_of_minibatches_or_of_networks_in_parts() -> None:
    agents = agents_of(0.1)
    agents.by_modes = True
    with refused(argument="mixing", match="connected"):
        gossip_law(agents, np.kron(np.eye(2), np.full((3, 3), 1 / 3)), 0.01)
    with refused(argument="mixing", match="common noise"):
        gossip_law(agents, "ring", 0.01, noise="common")


def test_no_target_is_met_where_the_second_order_leaves_no_variance() -> None:
    law: Any = SimpleNamespace(stationary=SimpleNamespace(variance=np.array([1.0, -0.1])))
    near: Any = None  # is not asked
    assert tuning.BiasTarget(0.05, 0.05).taken(law, near) == np.inf

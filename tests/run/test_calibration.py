"""Simulation-based calibration: even ranks for exact methods, uneven ones for a planted mistake."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.diagnostics.ranks import Calibration
from tests.refusals import refused

RNG = np.random.default_rng(0)
SITES = {
    name: {
        "x": RNG.normal(size=size),
        "arm": RNG.choice(["a", "b"], size),
        "y": RNG.normal(size=size),
    }
    for name, size in (("oslo", 12), ("lima", 6), ("bern", 3))
}
EXACT = consortia.federated_hmc(leapfrog_steps=6, mass_matrix="identity")


def made(right: str = "x + arm", **more: Any) -> Any:
    return consortia.regression(f"y ~ {right}", SITES, **more)


def ranks(column: np.ndarray) -> Calibration:
    return Calibration(("a", "b"), np.stack([column, column[::-1]], axis=1), 63, 60.0)


def test_even_ranks_are_calibrated_and_uneven_ones_are_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    even = ranks(rng.integers(0, 64, 300))
    assert even.calibrated
    assert "are uniform" in str(even)
    for wrong in (rng.binomial(63, 0.5, 300), np.minimum(63, rng.integers(0, 80, 300))):
        assert not ranks(wrong).calibrated
    assert "not from the posterior" in str(ranks(np.zeros(100, int)))
    assert "which alone makes ranks uneven" in str(replace(even, ess=10.0))
    pytest.importorskip("matplotlib")
    assert even.figure(tmp_path / "sbc.svg").read_text(encoding="utf-8").count("<svg") == 1


def test_equal_seeds_give_equal_ranks_of_all_natural_parameters() -> None:
    one = made()
    fixed = consortia.federated_hmc(leapfrog_steps=2, step_size=0.1, mass_matrix="identity")
    options: dict[str, Any] = {"simulations": 2, "rounds": 8, "warmup": 2, "draws": 4, "seed": 5}
    done: list[int] = []
    first = consortia.sbc(one, fixed, **options, on_simulation=done.append)
    assert first.names == ("x", "arm[b]", "intercept", "sigma")
    assert done == [1, 2]
    assert ((first.ranks >= 0) & (first.ranks <= 4)).all()
    np.testing.assert_array_equal(first.ranks, consortia.sbc(one, fixed, **options).ranks)


def test_what_cannot_be_simulated_is_refused() -> None:
    weighted = made(weights="abs(x)")
    with refused(argument="weights"):
        consortia.sbc(weighted, EXACT)
    with refused(argument="rounds", match="10 .* 63"):
        consortia.sbc(made(), EXACT, rounds=10)


@pytest.mark.slow
def test_ranks_are_uniform_for_an_exact_method_and_not_for_a_planted_mistake() -> None:
    one = made("x + (1 | site)", prior={"sd": "half_normal(1)", "coefficients": "normal(0, 1)"})
    options: dict[str, Any] = {"simulations": 200, "rounds": 500, "warmup": 300, "seed": 3}
    exact = consortia.sbc(one, EXACT, **options)
    assert exact.calibrated, str(exact)

    def without_jacobian(params: Any) -> Any:
        return one.model.log_prior(params) - params["log_sigma"]

    # The Jacobian of a logarithm is missing: σ is off by about 1/(2 · 21 rows) of itself, a
    # fifth of its posterior sd; three times that is seen by 200 simulations.
    def wrong(params: Any) -> Any:
        return without_jacobian(params) - 2 * params["log_sigma"]

    mutant = replace(one, model=replace(one.model, log_prior=wrong))
    found = consortia.sbc(mutant, EXACT, **options)
    assert not found.calibrated, str(found)

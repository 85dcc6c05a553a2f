"""FA-HMC whose sites meet within trajectories: 20,000 chains beside the exact law of each round."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from sparse import sparse

import consortia
from consortia.errors import InputError
from consortia.oracles import fa_hmc_law
from consortia.theory.bias import predict_bias

CHAINS, ROUNDS = 20_000, 9
GATE = 4.0
CENTRES = np.array([[2.0, -1.0], [0.0, 1.0], [-1.0, 0.5]])
CURVATURES = np.array([[1.0, 3.0], [0.3, 1.0], [2.0, 0.2]])

CASES: dict[str, dict[str, Any]] = {
    "K = 1": {"step_size": 0.5, "leapfrog_steps": 1, "average_every": 3},
    "K = 2, at every step": {"step_size": 0.4, "leapfrog_steps": 2, "average_every": 1},
    "K = 5, every third": {"step_size": 0.3, "leapfrog_steps": 5, "average_every": 3},
    "K = 7, noisy": {
        "step_size": 0.2, "leapfrog_steps": 7, "average_every": 2, "gradient_noise": 3.0},
    "K = 4, private momenta": {
        "step_size": 0.3, "leapfrog_steps": 4, "average_every": 6, "momentum_correlation": 0.4,
        "gradient_noise": 1.0, "gradient_draws": 1},
    "K = 6, near stability": {"step_size": 1.05, "leapfrog_steps": 6, "average_every": 4},
    "K = 3, a mass": {
        "step_size": 0.4, "leapfrog_steps": 3, "average_every": 2, "mass_matrix": [2.0, 0.5]},
}  # fmt: skip


def model() -> consortia.Model:
    """Rows (y, s) of a site: ½ s (x − y)², and no prior to speak of."""
    return consortia.Model(
        log_prior=lambda x: -0.5e-9 * jnp.sum(x**2),
        log_likelihood=lambda x, rows: -0.5 * jnp.sum(
            rows["s"] * (rows["y"] - x[None, :]) ** 2, axis=-1),
        init=np.zeros(2, np.float32),
    )  # fmt: skip


def sites() -> consortia.Sites:
    """Return a row a site whose U_c has the curvature w_c L_c, at equal weights."""
    rows = zip(CENTRES, CURVATURES / 3, strict=True)
    return consortia.Sites.from_list(
        [{"y": y[None].astype(np.float32), "s": s[None].astype(np.float32)} for y, s in rows]
    )


def law(options: dict[str, Any]) -> Any:
    return fa_hmc_law(CENTRES, CURVATURES, np.full(3, 1 / 3), local_steps=1, **options)


def scores(draws: np.ndarray, moments: list[Any]) -> np.ndarray:
    """Return the distance of means and variances by round from a law, in standard errors."""
    sd = np.array([m.sd for m in moments])
    of_means = (draws.mean(axis=0) - [m.mean for m in moments]) / sd * np.sqrt(CHAINS)
    of_variances = (draws.var(axis=0) / sd**2 - 1) * np.sqrt(CHAINS / 2)
    return np.abs([of_means, of_variances])


def sampled(options: dict[str, Any], **more: Any) -> np.ndarray:
    usual = {"rounds": ROUNDS, "warmup": 0, "chains": CHAINS, "seed": 2, "progress": False}
    tree = consortia.sample(
        model(), sites(), consortia.fa_hmc(local_steps=1, **options), **usual | more
    )
    return np.asarray(next(iter(tree.posterior.data_vars.values())), np.float64)


@pytest.mark.parametrize(
    "name", sparse(CASES, ("K = 7, noisy", "K = 4, private momenta", "K = 3, a mass"))
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_draws_have_the_law_of_every_round(name):
    options = CASES[name]
    draws = sampled(options)
    rounds = range(1, ROUNDS + 1)
    assert scores(draws, law(options).along(rounds, 0.0)).max() < GATE
    # The negative control: averages a step later.
    other = {**options, "average_every": options["average_every"] + 1}
    assert scores(draws, law(other).along(rounds, 0.0)).max() > 2 * GATE


def test_averages_at_the_ends_of_trajectories_are_the_published_algorithm():
    within = law({"step_size": 0.3, "leapfrog_steps": 5, "average_every": 15}).stationary
    whole = fa_hmc_law(
        CENTRES, CURVATURES, np.full(3, 1 / 3), step_size=0.3, leapfrog_steps=5, local_steps=3
    ).stationary
    np.testing.assert_allclose(within.mean, whole.mean, rtol=1e-9)
    np.testing.assert_allclose(within.variance, whole.variance, rtol=1e-9)


def test_a_turned_problem_has_the_turned_law():
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 2)))[0]
    options = {"step_size": 0.3, "leapfrog_steps": 5, "average_every": 3, "gradient_noise": 2.0}
    full = turn @ (CURVATURES[:, :, None] * np.eye(2)) @ turn.T
    turned = fa_hmc_law(CENTRES @ turn.T, full, np.full(3, 1 / 3), local_steps=1, **options)
    plain = law(options).stationary
    np.testing.assert_allclose(turned.stationary.mean, turn @ plain.mean, rtol=1e-9)
    expected = turn @ plain.covariance @ turn.T
    np.testing.assert_allclose(turned.stationary.covariance, expected, rtol=1e-9)


def test_the_forecast_is_the_law_of_all_windows():
    options = {"step_size": 0.3, "leapfrog_steps": 5, "average_every": 3}
    found = predict_bias(model(), sites(), consortia.fa_hmc(local_steps=1, **options))
    expected = law(options).stationary
    np.testing.assert_allclose(found.shift * found.sd, expected.bias, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.sd_ratio, expected.sd_ratio, rtol=1e-4)


def test_an_unstable_step_is_told():
    assert not law({"step_size": 1.4, "leapfrog_steps": 5, "average_every": 2}).stable


@pytest.mark.parametrize("other", [{"local_steps": 2}, {"debias": True}])
def test_windows_go_with_no_local_steps_and_no_debiasing(other):
    given = {"step_size": 0.1, "leapfrog_steps": 5, "local_steps": 1, "average_every": 2}
    with pytest.raises(InputError, match="average_every=2 counts leapfrog steps"):
        consortia.fa_hmc(**given | other)

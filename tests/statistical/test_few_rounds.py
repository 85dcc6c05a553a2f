"""few_rounds has the law of NUTS in a few messages, from the model's start and from far away."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np
import pytest
from statistical.compared import check_law, effective
from statistical.posteriors import Case, made

import consortia
from consortia.core.target import Target
from consortia.diagnostics import reference
from consortia.errors import WarmupError

pytestmark = pytest.mark.slow
CASES = made()


def draws(tree: Any) -> np.ndarray:
    """All parameters, (chains, draws, d), in double precision."""
    posterior = tree["posterior"]
    parts = [np.asarray(posterior[name], np.float64) for name in sorted(posterior.data_vars)]
    return np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=-1)


def sampled(case: Case, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return consortia.sample(
            case.model, case.sites, consortia.few_rounds(), chains=4, progress=False, **options
        )


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.widths])
def test_a_linear_regression_has_its_own_moments_in_few_messages(name: str) -> None:
    case = CASES[name]
    tree = sampled(case)
    print(name, tree.attrs["communication_rounds"], "messages", tree.attrs["rounds_used"])
    assert tree.attrs["communication_rounds"] <= case.messages
    found = draws(tree)
    mean, sd = case.moments()
    ess = effective(found)
    shift, ratio = np.abs(found.mean((0, 1)) - mean) / sd, np.abs(found.std((0, 1)) / sd - 1)
    print("largest shift", shift.max(), "of an sd", ratio.max(), "smallest ESS", ess.min())
    assert np.all(shift < 0.05 + 4 / np.sqrt(ess))
    assert np.all(ratio < 0.05 + 4 / np.sqrt(2 * ess))


OTHERS = [name for name, case in CASES.items() if not case.refused and not case.widths]


@pytest.mark.parametrize("name", OTHERS)
def test_the_law_is_that_of_nuts_within_the_promised_messages(name: str) -> None:
    pytest.importorskip("blackjax")
    case = CASES[name]
    tree = sampled(case)
    print(name, tree.attrs["communication_rounds"], "messages", tree.attrs["rounds_used"])
    assert tree.attrs["communication_rounds"] <= case.messages
    wanted = reference.nuts(case.model, case.sites, draws=10_000, warmup=1000, chains=4)
    check_law(draws(tree), draws(wanted), name)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.messages == 7])
def test_ten_starts_of_scale_2_end_in_the_same_place(name: str) -> None:
    case = CASES[name]
    target = Target(case.model, case.model.init)
    rng, own = np.random.default_rng(1), draws(sampled(case))
    for seed in range(10):
        start = target.unravel(jax.numpy.asarray(2 * rng.normal(size=target.dimension), "f"))
        tree = sampled(case, init=start, seed=seed)
        print(name, tree.attrs["communication_rounds"])
        assert tree.attrs["communication_rounds"] <= case.messages
        check_law(draws(tree), own, name)


def found_or_refused(name: str) -> np.ndarray | None:
    """The draws; None where the run was refused, with what was reached and what to do."""
    refusal = ""
    try:
        return draws(sampled(CASES[name]))
    except WarmupError as error:
        refusal = str(error)
    print(refusal)
    assert " messages: " in refusal
    assert "federated_hmc" in refusal
    return None


def test_a_bent_posterior_is_right_or_refused() -> None:
    found = found_or_refused("banana")
    rng = np.random.default_rng(0)
    first = rng.normal(size=(4, 20_000))
    second = first**2 + 0.3 * rng.normal(size=first.shape)
    if found is not None:
        check_law(found, np.stack([first, second], axis=-1))


def test_a_funnel_is_right_or_refused() -> None:
    found = found_or_refused("funnel")
    if found is not None:
        neck = 3 * np.random.default_rng(0).normal(size=(4, 20_000, 1))
        check_law(found[..., :1], neck)

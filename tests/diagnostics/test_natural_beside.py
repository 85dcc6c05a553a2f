"""A result with natural quantities beside a reference: coordinates decide, what is shown names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

import consortia
from consortia.diagnostics.verdict import Check, Severity

Natural = Callable[[np.ndarray], dict[str, np.ndarray]]


def result(natural: Natural, seed: int, *, off: float = 0.0, draws: int = 1000) -> Any:
    """Return draws of two standard normal coordinates, the second of them off by so much."""
    u = np.random.default_rng(seed).normal(size=(4, draws, 2)) + np.array([0.0, off])
    groups = {
        "/posterior": xr.Dataset({n: (("chain", "draw"), v) for n, v in natural(u).items()}),
        "/unconstrained_posterior": xr.Dataset({"u": (("chain", "draw", "dim"), u)}),
    }
    tree = xr.DataTree.from_dict(groups)
    tree.attrs.update(algorithm="nuts", samples="the posterior")
    return tree


def measured(tree: Any, reference: Any) -> Check:
    """Return the check of the draws against a reference."""
    verdict = consortia.summary(tree, reference=reference).verdict
    assert verdict is not None
    return [one for one in verdict.checks if one.title == "How large is the measured bias?"][-1]


@pytest.mark.parametrize(
    "natural",
    [
        lambda u: {"shown": np.exp(u[..., 0])},  # the other coordinate is not shown
        lambda u: {"shown": u[..., 1] - 6 * u[..., 0]},  # and here it hardly counts
        lambda u: {"constant": np.full(u.shape[:2], 0.1), "shown": u[..., 0]},
        lambda u: {"infinite": np.where(u[..., 0] > 0, np.inf, 1.0), "shown": u[..., 0]},
    ],
)
def test_natural_quantities_hide_no_bias(natural: Natural) -> None:
    check = measured(result(natural, 1, off=2.0), result(natural, 2))
    assert check.severity is Severity.BAD
    assert "difference is in the mean of shown among what is shown;" in check.reason


def test_long_tails_of_natural_quantities_make_no_exact_sampler_bad() -> None:
    def natural(u: np.ndarray) -> dict[str, np.ndarray]:
        return {"sd": np.exp(2 * u[..., 0]), "other": u[..., 1]}

    found = [measured(result(natural, seed), result(natural, 100 + seed)) for seed in range(10)]
    assert {one.severity for one in found} == {Severity.GOOD}


def test_a_reference_may_have_more_variables_in_another_order() -> None:
    def natural(u: np.ndarray) -> dict[str, np.ndarray]:
        return {"large": 100 * np.exp(u[..., 0]), "small": u[..., 1]}

    tree, reference = result(natural, 1), result(natural, 2)
    other = result(lambda u: {"more": u[..., 0], **dict(reversed(natural(u).items()))}, 2)
    assert measured(tree, other) == measured(tree, reference)
    for one in (tree, other, reference):
        del one["unconstrained_posterior"]  # nor where there are no coordinates beside
    assert measured(tree, other) == measured(tree, reference)

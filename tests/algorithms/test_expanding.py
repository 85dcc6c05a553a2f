"""A method that expands the posterior first predicts, over phases, what pooled rows predict."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from insides import without_skewness

import consortia
from consortia.algorithms.expanding import Expanding, expanding
from consortia.diagnostics.verdict import prediction_in
from consortia.errors import DivergenceError
from consortia.theory.bias import Problem, predict_bias

RNG = np.random.default_rng(3)
X = RNG.normal(size=(60, 2))
ROWS = {
    "x": X.astype(np.float32),
    "y": (X @ [1.0, -1.0] + RNG.normal(size=60) > 0).astype(np.int32),
}
SITES = consortia.Sites.from_list(
    [{k: v[a:b] for k, v in ROWS.items()} for a, b in ((0, 20), (20, 45), (45, 60))]
)
MODEL = consortia.models.logistic_regression(2, intercept=True)


def run(method: Any, **options: Any) -> Any:
    return consortia.sample(MODEL, SITES, method, rounds=20, chains=2, progress=False, **options)


@pytest.mark.parametrize(
    "method",
    [
        consortia.fa_ld(step_size=0.1, local_steps=3),
        consortia.de_sgld(step_size=0.02, mixing="complete", batch_size=None),
    ],
    ids=lambda method: method.name,
)
def test_the_sites_own_hessians_give_the_prediction_of_pooled_rows(method):
    whole = without_skewness(Problem(MODEL, SITES), method)
    found = prediction_in(run(expanding(method)))
    assert found is not None
    assert found.reason is None
    # Single precision, with sums in another order.
    np.testing.assert_allclose(found.shift, whole.shift, rtol=2e-2, atol=1e-4)
    np.testing.assert_allclose(found.sd_ratio, whole.sd_ratio, rtol=1e-3)
    np.testing.assert_allclose(found.mean, whole.mean, rtol=1e-3)
    assert (found.gaussian, found.k_hat) == (whole.gaussian, None)
    assert found.basis == whole.basis
    assert np.abs(predict_bias(MODEL, SITES, method).shift - whole.shift).max() > 1e-3


def test_it_is_the_method_in_all_else():
    method = consortia.fa_ld(step_size=0.1, local_steps=3)
    first = expanding(method)
    assert isinstance(first, (Expanding, type(method)))
    assert expanding(first) is first
    assert first == expanding(consortia.fa_ld(step_size=0.1, local_steps=3))
    assert (first.name, first.parameters()) == (method.name, method.parameters())
    assert isinstance(dataclasses.replace(first, local_steps=4), Expanding)
    plain, other = run(method)["posterior"], run(first)["posterior"]
    for name in plain.data_vars:
        np.testing.assert_array_equal(plain[name], other[name])


def test_a_step_that_diverges_is_refused_after_the_expansion():
    with pytest.raises(DivergenceError):
        run(expanding(consortia.fa_ld(step_size=2.0, local_steps=3)), on_divergence="raise")

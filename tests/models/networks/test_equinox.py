"""Modules of Equinox as models: densities by hand, and what is refused."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import scipy.stats as st

import consortia
from tests.refusals import refused

eqx = pytest.importorskip("equinox", reason="the extra equinox is not installed")

RNG = np.random.default_rng(0)
ROWS = {"x": RNG.normal(size=(6, 5)).astype(np.float32), "y": np.arange(6) % 3}


def perceptron(key: Any) -> Any:
    return eqx.nn.MLP(5, 3, 4, 1, key=key)


@pytest.mark.parametrize("given", ["function", "module"])
def test_likelihood_and_prior_are_those_written_by_hand(given: str) -> None:
    module = perceptron if given == "function" else perceptron(jax.random.key(0))
    model = consortia.from_equinox(module, ROWS, prior={"*bias": "normal(0, 2)", "*": "fan_in(1)"})
    params = jax.tree.map(np.asarray, jax.jit(model.init)(jax.random.key(1)))
    again = model.init(jax.random.key(2))
    same = np.allclose(params["layers.0.weight"], again["layers.0.weight"])
    assert same == (given == "module")
    h = np.maximum(ROWS["x"] @ params["layers.0.weight"].T + params["layers.0.bias"], 0)
    scores = np.asarray(h @ params["layers.1.weight"].T + params["layers.1.bias"])
    expected = scores[np.arange(6), ROWS["y"]] - np.logaddexp.reduce(scores, axis=1)
    np.testing.assert_allclose(jax.jit(model.log_likelihood)(params, ROWS), expected, rtol=2e-5)
    prior = sum(
        st.norm(0, 2).logpdf(value).sum()
        if name.endswith("bias")
        else st.norm(0, 1 / np.sqrt(value.shape[1])).logpdf(value).sum()
        for name, value in params.items()
    )
    np.testing.assert_allclose(jax.jit(model.log_prior)(params), prior, rtol=1e-5)


class Normalised(eqx.Module):
    norm: Any
    last: Any

    def __init__(self, key: Any) -> None:
        self.norm = eqx.nn.BatchNorm(5, "batch", mode="batch")
        self.last = eqx.nn.Linear(5, 3, key=key)

    def __call__(self, x: Any) -> Any:
        return self.last(x)


def test_what_is_no_model_of_rows_is_refused_with_what_to_do() -> None:
    with refused(argument="module", match="LayerNorm"):
        consortia.from_equinox(Normalised, ROWS)

    def dropping(key: Any) -> Any:
        return eqx.nn.Sequential([eqx.nn.Dropout(0.5), eqx.nn.Linear(5, 3, key=key)])

    with refused(argument="module", match="Dropout"):
        consortia.from_equinox(dropping, ROWS)
    with refused(argument="module", match="int is neither"):
        consortia.from_equinox(3, ROWS)

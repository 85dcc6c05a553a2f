"""Modules of PyTorch as models: densities by hand, what is refused, and draws over ten clients."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import scipy.stats as st

import consortia
from consortia.errors import InputError

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
pytest.importorskip("torchax", reason="the extra torch is not installed")

RNG = np.random.default_rng(0)
ROWS = {"x": RNG.normal(size=(6, 5)).astype(np.float32), "y": np.arange(6) % 3}


def perceptron() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))


@pytest.mark.parametrize("given", ["function", "module"])
def test_likelihood_and_prior_are_those_written_by_hand(given: str) -> None:
    module = perceptron if given == "function" else perceptron()
    model = consortia.from_torch(module, ROWS, prior={"*bias": "normal(0, 2)", "*": "fan_in(1)"})
    params = jax.tree.map(np.asarray, jax.jit(model.init)(jax.random.key(1)))
    again = model.init(jax.random.key(2))
    assert np.allclose(params["0.weight"], again["0.weight"]) == (given == "module")
    h = np.maximum(ROWS["x"] @ params["0.weight"].T + params["0.bias"], 0)
    scores = h @ params["2.weight"].T + params["2.bias"]
    expected = scores[np.arange(6), ROWS["y"]] - np.logaddexp.reduce(scores, axis=1)
    np.testing.assert_allclose(jax.jit(model.log_likelihood)(params, ROWS), expected, rtol=2e-5)
    prior = sum(
        st.norm(0, 2).logpdf(value).sum()
        if name.endswith("bias")
        else st.norm(0, 1 / np.sqrt(value.shape[1])).logpdf(value).sum()
        for name, value in params.items()
    )
    np.testing.assert_allclose(jax.jit(model.log_prior)(params), prior, rtol=1e-5)


def test_gradients_are_those_of_pytorch() -> None:
    module = perceptron()
    model = consortia.from_torch(module, ROWS)
    params = jax.jit(model.init)(jax.random.key(0))
    ours = jax.grad(lambda p: model.log_likelihood(p, ROWS).sum())(params)
    loss = torch.nn.functional.cross_entropy(
        module(torch.tensor(ROWS["x"])), torch.tensor(ROWS["y"]), reduction="sum"
    )
    loss.backward()
    for name, weight in module.named_parameters():
        np.testing.assert_allclose(ours[name], -weight.grad.numpy(), atol=1e-5)


def test_what_is_no_model_of_rows_is_refused_with_what_to_do() -> None:
    linear, norm = torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(5)
    with pytest.raises(InputError, match=r"0 is a BatchNorm1d.*LayerNorm or GroupNorm"):
        consortia.from_torch(torch.nn.Sequential(norm, linear), ROWS)
    with pytest.raises(InputError, match=r"0 is a Dropout, which draws random numbers: leave"):
        consortia.from_torch(torch.nn.Sequential(torch.nn.Dropout(0.5), linear), ROWS)
    with pytest.raises(InputError, match="int is neither a torch.nn.Module"):
        consortia.from_torch(3, ROWS)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of a network's R-hat
def test_a_network_over_ten_clients_predicts_digits() -> None:
    digits = consortia.datasets.load("digits").rows
    rows = {"x": (digits["x"].reshape(-1, 64) / 16).astype(np.float32), "y": digits["y"]}
    train, test = consortia.datasets.train_test_split(rows, test_share=0.25, seed=0)
    sites = consortia.partition.dirichlet(train, 10, concentration=0.5, seed=1, minimum_rows=40)
    model = consortia.from_torch(
        lambda: torch.nn.Sequential(
            torch.nn.Linear(64, 24), torch.nn.ReLU(), torch.nn.Linear(24, 10)
        ),
        sites,
        prior="fan_in(1.4)",
    )
    method = consortia.fa_ld(step_size=0.02, local_steps=5, batch_size=32)
    tree = consortia.sample(
        model, sites, method, rounds=200, warmup=200, thin=10, seed=3, progress=False
    )
    shares = consortia.predict(tree, model, {"x": test["x"]})
    # Guessing is right for one in ten; a softmax regression for some 93 in 100.
    assert consortia.diagnostics.scores(shares.values, test["y"])["accuracy"] > 0.85

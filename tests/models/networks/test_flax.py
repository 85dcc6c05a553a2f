"""Modules of Flax as models: densities by hand, rows by themselves, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as st

import consortia
from tests.refusals import refused

nn = pytest.importorskip("flax.linen", reason="the extra flax is not installed")
nnx = pytest.importorskip("flax.nnx", reason="the extra flax is not installed")

RNG = np.random.default_rng(0)
ROWS = {
    "x": RNG.normal(size=(7, 5)).astype(np.float32),
    "y": np.arange(7) % 3,
    "t": RNG.normal(size=7).astype(np.float32),
    "n": np.arange(7),
}


def dense(width: int = 3) -> Any:
    return nn.Sequential([nn.Dense(4), nn.relu, nn.Dense(width)])


class Perceptron(nnx.Module):
    def __init__(self, width: int, rngs: Any) -> None:
        self.first = nnx.Linear(5, 4, rngs=rngs)
        self.last = nnx.Linear(4, width, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(nnx.relu(self.first(x)))


def by_hand(params: Any, names: tuple[str, str]) -> np.ndarray:
    first, last = names
    h = np.maximum(ROWS["x"] @ params[f"{first}.kernel"] + params[f"{first}.bias"], 0)
    return np.asarray(h @ params[f"{last}.kernel"] + params[f"{last}.bias"])


@pytest.mark.parametrize("kind", ["linen", "nnx", "nnx module"])
def test_likelihood_and_prior_are_those_written_by_hand(kind: str) -> None:
    module = {
        "linen": dense,
        "nnx": lambda: lambda rngs: Perceptron(3, rngs),
        "nnx module": lambda: Perceptron(3, nnx.Rngs(0)),
    }[kind]()
    model = consortia.from_flax(module, ROWS, prior={"*bias": "laplace(0, 2)", "*": "fan_in(1.4)"})
    names = ("layers_0", "layers_2") if kind == "linen" else ("first", "last")
    params = jax.tree.map(np.asarray, jax.jit(model.init)(jax.random.key(1)))
    assert set(params) == {f"{name}.{part}" for name in names for part in ("kernel", "bias")}
    params = {name: value + 0.1 for name, value in params.items()}
    scores = by_hand(params, names)
    expected = scores[np.arange(7), ROWS["y"]] - np.logaddexp.reduce(scores, axis=1)
    found = jax.jit(model.log_likelihood)(params, ROWS)
    np.testing.assert_allclose(found, expected, rtol=2e-5)
    prior = sum(
        st.laplace(0, 2).logpdf(value).sum()
        if name.endswith("bias")
        else st.norm(0, 1.4 / np.sqrt(value.shape[0])).logpdf(value).sum()
        for name, value in params.items()
    )
    np.testing.assert_allclose(jax.jit(model.log_prior)(params), prior, rtol=1e-5)
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(jax.jit(model.predict)(params, ROWS), shares, rtol=1e-4)


def test_chains_start_at_weights_of_their_own() -> None:
    one = consortia.from_flax(lambda rngs: Perceptron(3, rngs), ROWS)
    a, b = (one.init(jax.random.key(seed))["first.kernel"] for seed in (0, 1))
    assert not np.allclose(a, b)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli", "poisson"])
def test_likelihoods_by_name(likelihood: str) -> None:
    target = {"gaussian": "t", "bernoulli": "b", "poisson": "n"}[likelihood]
    rows = {**ROWS, "b": ROWS["n"] % 2}
    model = consortia.from_flax(dense(1), rows, likelihood=likelihood, target=target)
    params = jax.tree.map(np.asarray, jax.jit(model.init)(jax.random.key(1)))
    out = by_hand(params, ("layers_0", "layers_2"))[:, 0]
    law = {
        "gaussian": lambda: st.norm(out, np.exp(params["log_sigma"])).logpdf(rows["t"]),
        "bernoulli": lambda: st.bernoulli(1 / (1 + np.exp(-out))).logpmf(rows["b"]),
        "poisson": lambda: st.poisson(np.exp(out)).logpmf(rows["n"]),
    }[likelihood]()
    np.testing.assert_allclose(jax.jit(model.log_likelihood)(params, rows), law, rtol=1e-4)
    assert ("log_sigma" in params) == (likelihood == "gaussian")
    if likelihood == "gaussian":
        without = {**params, "log_sigma": jnp.asarray(0.5)}
        gap = model.log_prior(without) - model.log_prior(params)
        # exponential(1) of σ with the Jacobian of its logarithm
        assert float(gap) == pytest.approx((-np.exp(0.5) + 0.5) - (-1.0), abs=1e-4)


def test_functions_stand_for_likelihood_and_prior() -> None:
    model = consortia.from_flax(
        dense(2),
        ROWS,
        likelihood=lambda outputs, y: -jnp.abs(outputs[:, 0] - y.astype(float)) - jnp.log(2.0),
        prior=lambda weights: -jnp.sum(weights["layers_0.bias"] ** 2),
    )
    params = jax.tree.map(np.asarray, jax.jit(model.init)(jax.random.key(1)))
    out = by_hand(params, ("layers_0", "layers_2"))[:, 0]
    np.testing.assert_allclose(
        model.log_likelihood(params, ROWS), st.laplace(out).logpdf(ROWS["y"]), rtol=1e-5
    )
    assert model.predict is None
    assert float(model.log_prior(params)) == 0.0


class BatchNormalised(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(3)(nn.BatchNorm(use_running_average=False)(x))


class Centred(nn.Module):
    """Without any state, and yet of all rows."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(3)(x - jnp.mean(x, axis=0, keepdims=True))


class Dropping(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=False)(x))


class Stateful(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.norm, self.last = nnx.BatchNorm(5, rngs=rngs), nnx.Linear(5, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(self.norm(x))


class DroppingToo(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.drop, self.last = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(5, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(self.drop(x))


class ForEachNumber(nn.Module):
    """Scores for each number of a row, as of an image that was not made flat."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(3)(x[..., None])


@pytest.mark.parametrize(
    ("module", "argument", "match"),
    [
        (ForEachNumber(), "likelihood", r"\(5, 3\) .* \(5,\)"),
        (BatchNormalised(), "module", r"\(batch_stats\).*LayerNorm"),
        (Centred(), "module", "the other rows.*LayerNorm"),
        (Dropping(), "module", "random numbers .*Dropout"),
        (Stateful, "module", r"\(norm.mean, norm.var\).*LayerNorm"),
        (DroppingToo, "module", r"\(drop.rngs"),
        ("resnet", "module", "str is neither"),
        (lambda rngs: 3, "module", "returns a int"),
    ],
)
def test_what_is_no_model_of_rows_is_refused_with_what_to_do(
    module: Any, argument: str, match: str
) -> None:
    with refused(argument=argument, match=f"from_flax: .*{match}"):
        consortia.from_flax(module, ROWS)


def test_arguments_that_cannot_be_used_are_refused() -> None:
    for more, argument, match in (
        ({"likelihood": "catgorical"}, "likelihood", "'categorical'"),
        (
            {"likelihood": "bernoulli"},
            "likelihood",
            "3 .* 'bernoulli' takes 1",
        ),
        ({"prior": "normal(0)"}, "prior", "location, scale"),
        ({"prior": {"conv*": "normal(0, 1)"}}, "prior", "'conv\\*' .*layers_0.bias"),
        ({"prior": {"*bias": "normal(0, 1)"}}, "prior", "layers_0.kernel, layers_2.kernel"),
        ({"prior": "fan_in(-1)"}, "prior", "fan_in takes a scale > 0"),
        ({"inputs": "pixels"}, "rows", "'pixels'"),
    ):
        with refused(argument=argument, match=match):
            consortia.from_flax(dense(), ROWS, **more)
    model = consortia.from_flax(dense(), ROWS)
    assert "labels outside 0..2: 9" in str(model.check({**ROWS, "y": np.array([9] * 7)}))
    assert "rows of shape (4,), the network was made for (5,)" in str(
        model.check({**ROWS, "x": ROWS["x"][:, :4]})
    )


@pytest.mark.slow
def test_the_lines_on_the_page_of_networks_run_and_predict() -> None:
    page = Path(__file__).parents[3] / "docs" / "networks.md"
    code = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[0]
    rows = [{k: np.tile(ROWS[k][i::2], (30, 1) if k == "x" else 30) for k in "xy"} for i in (0, 1)]
    scope = {"sites": consortia.Sites.from_list(rows), "test": {k: ROWS[k] for k in "xy"}}
    exec(code.replace("rounds=200", "rounds=5, progress=False"), scope)
    assert scope["shares"].shape[-2:] == (7, 10)

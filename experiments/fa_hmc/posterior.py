r"""Section 5.3: what the posterior itself scores on Fashion-MNIST, beside figure 3.

FA-HMC at the paper's size (B = 1000, K = T = 50, 200 rounds) takes hours on two cores. What it
would come to without bias takes minutes: HMC with a Metropolis test on all rows, in coordinates in
which the posterior is nearly a standard normal.

The likelihood does not change when one vector is added to the coefficients of all classes, so this
direction keeps its prior and moves no prediction. The draws are of the others, contrasts C with
coefficients Q C, where the columns of Q are orthonormal and sum to zero: C too has the prior
N(0, I).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cholesky, helmert, solve_triangular
from scipy.optimize import minimize

import consortia
from consortia.data import datasets
from consortia.diagnostics import rhat_and_ess, scores
from experiments import records
from experiments.claims import Finding
from experiments.fa_hmc import classification
from experiments.fa_hmc.fashion_mnist import CLASSES, DATA
from experiments.fa_hmc.reference import Normal, reference_draws

SIDE = 28
STEP_SIZE, LEAPFROG_STEPS = 0.22, 8
"""Of the longest trajectory: from a seventh to a quarter of a turn of a normal law."""
TRIAL = {"step_size": 0.2, "leapfrog_steps": 10, "warmup": 1, "draws": 24}
"""Of the chains that find where the posterior is."""
LEAST_ACCEPTED = 0.4
AROUND = (1, 4)
"""Draws that the curvature is averaged over, of the law found before: first the mode alone."""


@dataclass(frozen=True)
class Scale:
    """How much is run.

    Attributes:
        train_rows: a random subset of the training rows; None for all.
        test_rows: of the held-out rows.
        side: pixels of an image's side, by averages of squares.
        draws: kept draws of a chain.
        warmup: draws before them.
        chains: independent chains.
    """

    train_rows: int | None
    test_rows: int | None
    side: int
    draws: int
    warmup: int
    chains: int = 2


SCALES = {
    "quick": Scale(3000, 2000, 7, 50, 10),
    "small": Scale(None, None, SIDE, 120, 30, 4),
    "full": Scale(None, None, SIDE, 500, 50, 4),
}


def contrasts(features: int) -> consortia.Model:
    """Return softmax regression with a standard normal prior, but for what no prediction feels."""
    softmax = consortia.models.softmax_regression(features, CLASSES)
    basis = helmert(CLASSES).T.astype(np.float32)

    def coefficients(params: Any) -> dict[str, jax.Array]:
        return {"coefficients": basis @ params["contrasts"]}

    assert softmax.predict is not None
    predict = softmax.predict
    return consortia.Model(
        log_prior=lambda params: -jnp.sum(params["contrasts"] ** 2) / 2,
        log_likelihood=lambda params, batch: softmax.log_likelihood(coefficients(params), batch),
        init={"contrasts": np.zeros((CLASSES - 1, features), np.float32)},
        predict=lambda params, batch: predict(coefficients(params), batch),
    )


def laplace(model: consortia.Model, rows: dict[str, np.ndarray]) -> Normal:
    """Return a normal law around the posterior's mode, about, with the mean curvature of its draws.

    The curvature at the mode itself is far too small for chains: there rows are certain which are
    not so at a draw. It takes all rows, since what a part of them does not see is unstable too.
    """
    shape = model.init["contrasts"].shape

    @jax.jit
    @jax.value_and_grad
    def loss(position: jax.Array, rows: Any) -> jax.Array:
        params = {"contrasts": position.reshape(shape)}
        assert model.log_prior is not None
        return -jnp.sum(model.log_likelihood(params, rows)) - model.log_prior(params)

    def wide(position: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = loss(position.astype(np.float32), rows)
        return float(value), np.asarray(slope, np.float64)

    found = minimize(
        wide, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 100}
    )
    mode = found.x.astype(np.float32)
    near = Normal(mode, np.zeros((mode.size, mode.size), np.float32))
    generator = np.random.default_rng(0)
    for draws in AROUND:
        normals = generator.normal(size=(draws, mode.size)).astype(np.float32)
        points = [mode + near.root @ one for one in normals]
        near = Normal(mode, _root(model, rows, [point.reshape(shape) for point in points]))
    return near


def around(model: consortia.Model, rows: dict[str, np.ndarray], draws: np.ndarray) -> Normal:
    """Return the normal law with the mean of the later draws, and their mean curvature.

    The posterior's mean is more than one standard deviation from the mode on average over the
    directions, and ten in some: in the coordinates of the law at the mode chains drift for long.

    Args:
        model: of contrasts.
        rows: all rows.
        draws: (chains, draws, d), of chains from elsewhere.
    """
    late = draws[:, draws.shape[1] // 2 :]
    points = late[:, [0, -1]].reshape(-1, *model.init["contrasts"].shape)
    return Normal(late.mean(axis=(0, 1)), _root(model, rows, list(points)))


def _root(
    model: consortia.Model, rows: dict[str, np.ndarray], points: list[np.ndarray]
) -> np.ndarray:
    """Return a root of the inverse of the mean curvature at some contrasts."""
    assert model.predict is not None
    probabilities = [np.asarray(model.predict({"contrasts": one}, rows)) for one in points]
    basis, x = helmert(CLASSES).T.astype(np.float32), rows["x"]
    means = [one @ basis for one in probabilities]
    count, features = points[0].shape
    curvature = np.empty((count, features, count, features), np.float32)
    for one in range(count):
        for other in range(one + 1):
            product = basis[:, one] * basis[:, other]
            weights = [
                probability @ product - mean[:, one] * mean[:, other]
                for probability, mean in zip(probabilities, means, strict=True)
            ]
            block = x.T @ (np.mean(weights, axis=0)[:, None] * x)
            curvature[one, :, other], curvature[other, :, one] = block, block.T
    size = count * features
    precision = curvature.reshape(size, size) + np.eye(size, dtype=np.float32)
    factor = cholesky(precision, lower=True, overwrite_a=True)
    identity = np.eye(size, dtype=np.float32)
    return solve_triangular(factor, identity, trans="T", lower=True)


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return the scores of the posterior's predictive average by the number of draws."""
    chosen = SCALES[scale]
    found = datasets.load(DATA)
    assert found.train is not None
    assert found.test is not None
    train = classification.subset(found.train, chosen.train_rows, seed)
    test = classification.subset(found.test, chosen.test_rows, seed)
    train, test = (datasets.images_to_rows(_coarse(part, chosen.side)) for part in (train, test))
    model = contrasts(train["x"].shape[1])
    first = laplace(model, train)
    records.say(f"mode and curvature of {first.mean.size} coefficients")
    trial = reference_draws(model, train, chains=chosen.chains, near=first, seed=seed, **TRIAL)
    drawn = reference_draws(
        model,
        train,
        draws=chosen.draws,
        step_size=STEP_SIZE,
        chains=chosen.chains,
        leapfrog_steps=LEAPFROG_STEPS,
        warmup=chosen.warmup,
        near=around(model, train, trial.draws),
        seed=seed,
    )
    records.say(
        f"accepted {drawn.acceptance:.2f}, R-hat {drawn.r_hat:.3f}, least ESS {drawn.ess:.0f}"
    )
    if drawn.acceptance < LEAST_ACCEPTED:
        raise RuntimeError(f"poor reference: {drawn.acceptance:.2f} of the proposals are accepted")
    curve, single, by_chain = _predictive(drawn.draws, model, test)
    mode = {"contrasts": first.mean.reshape(1, 1, *model.init["contrasts"].shape)}
    return {
        "acceptance": drawn.acceptance,
        "r_hat": drawn.r_hat,
        "ess": drawn.ess,
        "scores_r_hat": rhat_and_ess(single).max_r_hat,
        "coefficients": first.mean.size,
        "curve": curve,
        "by_chain": by_chain,
        "mode": _scores(consortia.predict(mode, model, test), test),
    }


def _predictive(
    draws: np.ndarray, model: consortia.Model, test: dict[str, np.ndarray]
) -> tuple[list[dict[str, float]], np.ndarray, list[dict[str, float]]]:
    """Return the scores by the number of draws, of all chains alike; of each draw; of each chain.

    Args:
        draws: (chains, draws, d).
        model: with ``predict``.
        test: held-out rows.
    """
    chains, count, _ = draws.shape
    assert model.predict is not None
    predict = jax.jit(model.predict)
    totals: list[Any] = [0.0] * chains
    single = np.empty((chains, count, len(classification.SCORES)))
    curve = []
    for number in range(count):
        for chain in range(chains):
            contrasts = draws[chain, number].reshape(model.init["contrasts"].shape)
            found = np.asarray(predict({"contrasts": contrasts}, test), np.float64)
            totals[chain] = totals[chain] + found
            single[chain, number] = list(_scores(found, test).values())
        if number + 1 in {*classification.CHECKPOINTS, count}:
            average = sum(totals) / (chains * (number + 1))
            curve.append({"draws": chains * (number + 1), **_scores(average, test)})
    return curve, single, [_scores(total / count, test) for total in totals]


def _scores(probability: Any, test: dict[str, np.ndarray]) -> dict[str, float]:
    found = scores(probability, test["y"])
    return {name: found[name] for name in classification.SCORES}


def _coarse(part: dict[str, np.ndarray], side: int) -> dict[str, np.ndarray]:
    """Return images of fewer pixels."""
    if side == SIDE:
        return part
    width = SIDE // side
    pixels = part["x"].reshape(-1, side, width, side, width).astype(np.float32)
    return {**part, "x": pixels.mean(axis=(2, 4))}


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the scores of all draws together, and whether the chains agree.

    The errors are those of the draws, by the spread of the chains' own predictions.
    """
    end, chains = results["curve"][-1], results["by_chain"]
    found = {}
    for score in classification.SCORES:
        error = np.std([chain[score] for chain in chains], ddof=1) / math.sqrt(len(chains))
        found[f"posterior-{score}"] = Finding(end[score], float(error))
    found["posterior-chains"] = Finding(
        max(results["r_hat"], results["scores_r_hat"]),
        shown=f"R-hat of a draw's scores {results['scores_r_hat']:.3f}, "
        f"of {results['coefficients']} coefficients at most {results['r_hat']:.3f}; "
        f"{end['draws']} draws, least ESS {results['ess']:.0f}, "
        f"{100 * results['acceptance']:.0f} % accepted",
    )
    return found


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw each score against the number of draws that the prediction averages."""
    curve = results["curve"]
    for axis, score in zip(axes, classification.SCORES, strict=True):
        values = [point[score] for point in curve]
        axis.semilogx([point["draws"] for point in curve], values, "o-", ms=2, label="posterior")
        axis.axhline(results["mode"][score], color="tab:gray", lw=0.8, ls=":", label="its mode")
        axis.set(xlabel="draws averaged", ylabel=score)
        axis.legend()

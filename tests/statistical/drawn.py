"""Studies drawn at random as files, a third of them wrong on purpose, and their true posteriors.

Every study has three parameters and five sites, so that its posterior is summed on a grid.
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import consortia
from consortia.theory.bias import Problem

SIZES = (8, 12, 20, 30, 30)
ROUNDS = 10_000
FEW = 60

FACTORS = {"linear": 1.0, "logistic": 1.0, "poisson": 0.5, "student": 1.0, "mixture": 1.0}
"""The models, with the factor of their linear predictor."""

METHODS = (
    "fa_hmc",
    "fa_ld",
    "de_sgld",
    "extra_sgld",
    "stale_sgld",
    "dsgld",
    "fsgld",
    "decentralized_hmc",
    "federated_hmc",
)


def normal_prior(x: Any) -> Any:
    return -0.5 * jnp.sum(x**2)


def _linear(x: Any, rows: Any) -> Any:
    return -0.5 * (rows["y"] - rows["x"] @ x) ** 2


def _logistic(x: Any, rows: Any) -> Any:
    t = rows["x"] @ x
    return rows["y"] * t - jnp.logaddexp(0.0, t)


def _poisson(x: Any, rows: Any) -> Any:
    t = FACTORS["poisson"] * (rows["x"] @ x)
    return rows["y"] * t - jnp.exp(t)


def _student(x: Any, rows: Any) -> Any:
    return -2.5 * jnp.log1p((rows["y"] - rows["x"] @ x) ** 2 / 4)


def _mixture(x: Any, rows: Any) -> Any:
    near, far = rows["y"] - x[0], rows["y"] + x[0] + 0.1 * x[1] + 0.05 * x[2]
    return 0.2 * jnp.logaddexp(-0.5 * near**2, -0.5 * far**2)


@functools.cache
def _model(name: str) -> consortia.Model:
    """One object each, so that equal programs are compiled once."""
    return consortia.Model(normal_prior, globals()[f"_{name}"], jnp.full(3, 0.3))


def linear() -> consortia.Model:
    """The factories that the study files name."""
    return _model("linear")


def logistic() -> consortia.Model:
    return _model("logistic")


def poisson() -> consortia.Model:
    return _model("poisson")


def student() -> consortia.Model:
    return _model("student")


def mixture() -> consortia.Model:
    return _model("mixture")


class Study(NamedTuple):
    """A study as objects, and as the tables of its file."""

    kind: str
    model: consortia.Model
    sites: consortia.Sites
    method: Any
    rounds: int
    wrong: str
    table: dict[str, Any]


def study(seed: int) -> Study:
    """Return a study drawn at random; every third is wrong on purpose."""
    rng = np.random.default_rng([7, seed])
    kind = str(rng.choice(list(FACTORS)))
    name = str(rng.choice(METHODS))
    wrong = "" if seed % 3 else str(rng.choice(["step", "step", "local steps", "rounds"]))
    apart = 1.5 if wrong == "local steps" else rng.choice([0.1, 1.0])
    unlike = rng.normal(0, apart, (len(SIZES), 3))
    scale = np.array([1.0, 1.0, rng.choice([1.0, 3.0])])
    rows = [_rows(rng, kind, size, scale, shift) for size, shift in zip(SIZES, unlike, strict=True)]
    sites = consortia.Sites.from_list(rows)
    model = _model(kind)
    steepest = float(np.linalg.eigvalsh(Problem(model, sites).near.precision)[-1])
    between = (0.5, 2.0) if wrong == "step" else (0.03, 0.4)
    whole = math.exp(rng.uniform(*np.log(between))) / steepest
    options: dict[str, Any] = {"step_size": math.sqrt(whole)}
    local = int(rng.integers(1, 6)) if wrong != "local steps" else 30
    if name in ("fa_hmc", "fa_ld"):
        options["local_steps"] = local
    if name == "fa_hmc":
        options |= {"leapfrog_steps": int(rng.integers(1, 4)), "debias": bool(rng.integers(2))}
    elif name in ("dsgld", "fsgld"):
        options = {"step_size": 2 * whole, "local_steps": local}
    elif name in ("de_sgld", "extra_sgld"):
        network = str(rng.choice(["ring", "complete"]))
        options = {"step_size": len(SIZES) * whole, "mixing": network}
        if name == "extra_sgld":
            name, options["correction"] = "de_sgld", "extra"
    elif name == "stale_sgld":
        options = {"step_size": whole, "workers": len(SIZES)}
    elif name == "decentralized_hmc":
        options = {"step_size": math.sqrt(len(SIZES) * whole) / 4, "mixing": "complete"}
    elif name == "federated_hmc":
        options = {}
    if name in ("de_sgld", "stale_sgld", "dsgld"):
        options["batch_size"] = 6 if rng.random() < 0.2 else None
    method = getattr(consortia, name)(**options)
    rounds = FEW if wrong == "rounds" else ROUNDS
    warmup = 300 if name == "federated_hmc" else 0
    if name == "federated_hmc":  # a trajectory a round
        rounds = FEW if wrong == "rounds" else 2000
    table = {
        "model": {"factory": f"statistical.drawn:{kind}"},
        "algorithm": {"name": name, **options},
        "run": {"rounds": rounds, "warmup": warmup, "chains": 4},
        "output": {"figure": False},
    }
    return Study(kind, model, sites, method, rounds, wrong, table)


def _rows(
    rng: np.random.Generator, kind: str, size: int, scale: np.ndarray, shift: np.ndarray
) -> dict[str, np.ndarray]:
    x = scale * rng.normal(size=(size, 3)) + 0.3 * shift
    mean = FACTORS[kind] * (x @ (np.array([0.5, -0.5, 0.2]) + 0.5 * shift))
    y = {
        "linear": mean + rng.normal(size=size),
        "logistic": rng.random(size) < 1 / (1 + np.exp(-mean)),
        "poisson": rng.poisson(np.exp(np.clip(mean, -3, 3))),
        "student": mean + rng.standard_t(4, size=size),
        "mixture": rng.choice([-1, 1], size) * 1.2 + 0.5 * rng.normal(size=size) + 0.2 * shift[0],
    }[kind]
    return {"x": x.astype(np.float32), "y": np.asarray(y, np.float32)}


def written(one: Study, folder: Path) -> Path:
    """Write a study and its sites' files into a folder; return the study file."""
    files = []
    for index, rows in enumerate(one.sites.shards):
        np.savez(folder / f"site{index}.npz", **rows)
        files.append(f"site{index}.npz")
    tables = {"data": {"files": files}, **one.table}
    lines = []
    for table, keys in tables.items():
        lines.append(f"[{table}]")
        lines += [f"{key} = {_toml(value)}" for key, value in keys.items()]
    path = folder / "study.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def _toml(value: Any) -> str:
    return '"none"' if value is None else json.dumps(value)


class Posterior(NamedTuple):
    mean: np.ndarray
    sd: np.ndarray


def posterior(one: Study, points: int = 72) -> Posterior:
    """Return the moments of a posterior from sums on a grid, which closes in on its mass."""
    density, rows = _density(one.kind), jax.device_put(one.sites.pooled())
    low, high = np.full(3, -6.0), np.full(3, 6.0)
    for _ in range(4):
        axes = [np.linspace(a, b, points) for a, b in zip(low, high, strict=True)]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(points, -1, 3)
        values = np.asarray(density(jnp.asarray(grid, jnp.float32), rows), np.float64).ravel()
        weights = np.exp(values - values.max())
        weights /= weights.sum()
        at = grid.reshape(-1, 3)
        mean = weights @ at
        sd = np.sqrt(weights @ (at - mean) ** 2)
        # Eight standard deviations, and the cells beside them: a coarse grid finds too few.
        room = 8 * sd + 2 * (high - low) / (points - 1)
        low, high = np.maximum(mean - room, low), np.minimum(mean + room, high)
    return Posterior(mean, sd)


@functools.cache
def _density(kind: str) -> Any:
    model = _model(kind)

    @jax.jit
    def values(grid: Any, rows: Any) -> Any:
        def of(x: Any) -> Any:
            return model.log_prior(x) + jnp.sum(model.log_likelihood(x, rows))

        return jax.lax.map(jax.vmap(of), grid)

    return values

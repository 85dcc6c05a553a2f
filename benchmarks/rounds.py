"""Communication rounds to the exact posterior: 1,000 effective draws of every parameter.

`few_rounds` and `federated_hmc`, each with nothing set by hand, on data at four unlike sites. A
figure counts the rounds of everything, the search for a start and the warm-up too; beside it stands
how far the farthest mean is from that of NUTS on the pooled rows, in posterior sds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import consortia
from benchmarks.measure import Gate, Row, row_of
from consortia.diagnostics.reference import nuts

NAME = "rounds"
SITES = 4
EFFECTIVE = 1000
CHAINS = 8
SIZES = {"full": (4000, 3), "quick": (1000, 1), "tiny": (100, 1)}
"""Draws of a chain of the reference, and seeds."""


@dataclass(frozen=True)
class Case:
    """A model and its data, and the rounds within which it is promised."""

    model: consortia.Model
    sites: consortia.Sites
    promised: int


def rows(scale: str) -> list[Row]:
    """The figures."""
    draws, seeds = SIZES[scale]
    return [
        row
        for name, case in (("logistic, d = 31", _logistic()), ("linear and log σ", _linear()))
        for row in _of_case(name, case, draws, seeds)
    ]


def _of_case(name: str, case: Case, draws: int, seeds: int) -> list[Row]:
    """Rounds of both methods, and where they end."""
    reference = nuts(case.model, case.sites, draws=draws)
    mean, sd = _moments(reference)
    counts: dict[str, list[int]] = {"few_rounds": [], "federated_hmc": []}
    shifts: dict[str, list[float]] = {"few_rounds": [], "federated_hmc": []}
    for seed in range(seeds):
        for method, tree in {
            "few_rounds": _few(case, seed),
            "federated_hmc": _many(case, seed),
        }.items():
            counts[method].append(int(tree.attrs["communication_rounds"]))
            shifts[method].append(float(np.max(np.abs(_moments(tree)[0] - mean) / sd)))
    few, many = np.array(counts["few_rounds"]), np.array(counts["federated_hmc"])
    detail = f"{np.median(few):g} / {np.median(many):g} rounds"
    # Monte Carlo errors of 1,000 and of the reference's effective draws, the worst of d means.
    far = Gate("<=", 0.15)
    return [
        row_of(NAME, f"rounds, few_rounds: {name}", few, Gate("<=", case.promised)),
        row_of(NAME, f"rounds, federated_hmc / few_rounds: {name}", many / few, None, detail),
        *(
            row_of(NAME, f"farthest mean from NUTS, sds, {method}: {name}", np.array(each), far)
            for method, each in shifts.items()
        ),
    ]


def _few(case: Case, seed: int) -> Any:
    method = consortia.few_rounds(effective_size=EFFECTIVE)
    return consortia.sample(case.model, case.sites, method, seed=seed, progress=False)


def _many(case: Case, seed: int) -> Any:
    """federated_hmc, stopped as soon as it has as many effective draws."""
    return consortia.sample(
        case.model,
        case.sites,
        consortia.federated_hmc(),
        rounds=20_000,
        warmup=500,
        chains=CHAINS,
        seed=seed,
        stop=consortia.stop_when(ess=EFFECTIVE, every=50),
        progress=False,
    )


def _moments(tree: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of every parameter."""
    values = [np.asarray(each.values, np.float64) for each in tree["posterior"].data_vars.values()]
    draws = np.concatenate([each.reshape(*each.shape[:2], -1) for each in values], axis=-1)
    draws = draws.reshape(-1, draws.shape[-1])
    return draws.mean(0), draws.std(0)


def _logistic() -> Case:
    """The tumours of `examples/breast_cancer.toml`: from screening to referral."""
    data = consortia.datasets.load("breast_cancer")
    rows, _ = consortia.datasets.standardise(data.train)
    sites = consortia.partition.by_column(rows, rows["x"][:, 20], sites=SITES)
    model = consortia.models.logistic_regression(rows["x"].shape[1], intercept=True)
    return Case(model, sites, 16)


def _linear() -> Case:
    """Diabetes: a linear regression whose spread is unknown, by age."""
    data = consortia.datasets.load("diabetes")
    rows, _ = consortia.datasets.standardise(data.train)
    y = (rows["y"] - np.mean(rows["y"])) / np.std(rows["y"])
    table = {"x": rows["x"], "y": y.astype(np.float32)}
    sites = consortia.partition.by_column(table, table["x"][:, 0], sites=SITES)

    def log_prior(p: Any) -> Any:
        return -0.5 * (jnp.sum(p["b"] ** 2) + p["log_sigma"] ** 2)

    def log_likelihood(p: Any, rows: Any) -> Any:
        return jax.scipy.stats.norm.logpdf(rows["y"], rows["x"] @ p["b"], jnp.exp(p["log_sigma"]))

    start = {"b": jnp.zeros(table["x"].shape[1]), "log_sigma": jnp.zeros(())}
    return Case(consortia.Model(log_prior, log_likelihood, start), sites, 14)

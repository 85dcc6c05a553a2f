"""Communication rounds to the exact posterior: 1,000 effective draws of every parameter.

`few_rounds` and `federated_hmc`, each with nothing set by hand, on data at four unlike sites. A
figure counts the rounds of everything, the search for a start and the warm-up too; beside it stands
how far the farthest mean is from that of NUTS on the pooled rows, in posterior sds. And what the
processors have of it: effective draws a CPU second of a second call, against a compiled NUTS.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import consortia
from benchmarks.measure import Gate, Row, row_of
from consortia.core.target import Target
from consortia.diagnostics import reference
from consortia.dynamics.independence import smallest_effective_size

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
        for row in [*_of_case(name, case, draws, seeds), _rate(name, case, draws, seeds)]
    ]


def _of_case(name: str, case: Case, draws: int, seeds: int) -> list[Row]:
    """Rounds of both methods, and where they end."""
    mean, sd = _moments(reference.nuts(case.model, case.sites, draws=draws))
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


def _rate(name: str, case: Case, draws: int, seeds: int) -> Row:
    """Effective draws a CPU second, with everything compiled: few_rounds over NUTS."""
    target = Target(case.model, case.model.init)
    starts = np.tile(target.flat(case.model.init), (4, 1))
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        chain = reference._chain(target, draws, 1000, 0.8)
        keys = jax.random.split(jax.random.key(0), 4)
        each = jax.jit(jax.vmap(chain, in_axes=(0, 0, None)))
        sampler = each.lower(keys, starts, case.sites.pooled()).compile()

    def by_nuts(seed: int) -> np.ndarray:
        keys = jax.random.split(jax.random.key(seed), 4)
        return np.asarray(sampler(keys, starts, case.sites.pooled())[0])

    contenders = {"few_rounds": lambda seed: _draws(_few(case, seed)), "NUTS": by_nuts}
    rates = {who: _rates(run, seeds) for who, run in contenders.items()}
    few, other = rates["few_rounds"], rates["NUTS"]
    detail = f"{np.median(few):.3g} / {np.median(other):.3g} effective draws a CPU second"
    what = f"effective draws a CPU second, few_rounds / BlackJAX's NUTS: {name}"
    return row_of(NAME, what, few / other, Gate(">=", 0.8), detail)


def _rates(run: Callable[[int], np.ndarray], seeds: int) -> np.ndarray:
    """Effective draws of the worst parameter a CPU second, of calls after the first."""
    run(0)
    found = []
    for seed in range(1, seeds + 1):
        began = time.process_time()
        draws = run(seed)
        found.append(smallest_effective_size(draws) / (time.process_time() - began))
    return np.array(found)


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
    draws = _draws(tree).reshape(-1, _draws(tree).shape[-1])
    return draws.mean(0), draws.std(0)


def _draws(tree: Any) -> np.ndarray:
    """All parameters, (chains, draws, d)."""
    values = [np.asarray(each.values, np.float64) for each in tree["posterior"].data_vars.values()]
    return np.concatenate([each.reshape(*each.shape[:2], -1) for each in values], axis=-1)


def _logistic() -> Case:
    """The tumours of `examples/breast_cancer.toml`: from screening to referral."""
    data = consortia.datasets.load("breast_cancer")
    rows, _ = consortia.datasets.standardise(data.train)
    sites = consortia.partition.by_column(rows, rows["x"][:, 20], sites=SITES)
    model = consortia.models.logistic_regression(rows["x"].shape[1], intercept=True)
    return Case(model, sites, 8)


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
    return Case(consortia.Model(log_prior, log_likelihood, start), sites, 4)

"""Rows that start later than 0, beside NUTS on the pooled rows with likelihoods written anew."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia

numpyro = pytest.importorskip("numpyro", reason="the extra numpyro is not installed")
dist = numpyro.distributions

pytestmark = pytest.mark.slow
MEAN_OFF, SD_OFF = 0.05, 0.05


def nuts(model: Any, *given: Any, draws: int = 10000) -> dict[str, np.ndarray]:
    kernel = numpyro.infer.NUTS(model)
    found = numpyro.infer.MCMC(kernel, num_warmup=1000, num_samples=draws, progress_bar=False)
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        found.run(jax.random.key(1), *given)
    return {name: np.asarray(values, float) for name, values in found.get_samples().items()}


def agree(own: np.ndarray, wanted: np.ndarray) -> None:
    """Check means within .05 sd and standard deviations within 5 %."""
    assert abs(own.mean() - wanted.mean()) < MEAN_OFF * wanted.std()
    assert abs(own.std() / wanted.std() - 1) < SD_OFF


def columns_of(rows: list[Any], names: tuple[str, ...]) -> dict[str, np.ndarray]:
    columns = map(np.array, zip(*rows, strict=True))
    return dict(zip(names, columns, strict=True))


def cohort(site: int, people: int) -> dict[str, np.ndarray]:
    """Return rows of people who enter late and whose treatment begins in between."""
    rng = np.random.default_rng(site)
    age, ward = rng.normal(site, 1, people), rng.choice(["A", "B"], people)
    entry, switch = rng.uniform(0, 2, people), rng.uniform(1, 6, people)
    rows = []
    for i in range(people):
        at = entry[i]
        for treated, until in ((0, switch[i]), (1, 12.0)):
            if until <= at:
                continue
            rate = 0.08 * (1 + site) * np.exp(0.4 * (age[i] - site) - 0.7 * treated)
            time = at + rng.exponential(1 / (rate * (1 + (ward[i] == "B"))))
            status = 0 if time > until else 1 + int(rng.random() < 0.3)
            rows.append((at, min(time, until), status, age[i], treated, ward[i]))
            at = until
            if status:
                break
    names = ("start", "stop", "status", "age", "treated", "ward")
    return {
        name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }


def test_cox_with_late_entries_time_varying_treatment_and_strata() -> None:
    sites = {f"site {one}": cohort(one, 40 + 40 * one) for one in range(3)}
    made = consortia.regression(
        "Surv(start, stop, status == 1) ~ age + treated + strata(ward)",
        sites,
        family="cox",
        prior={"coefficients": "normal(0, 2)"},
    )
    tree = consortia.sample(made.model, made.sites, consortia.few_rounds(), seed=1, progress=False)
    matrices = []
    for one in sites.values():
        for ward in ("A", "B"):
            here = one["ward"] == ward
            start, stop, seen = (one[name][here] for name in ("start", "stop", "status"))
            x = np.stack([one["age"][here], one["treated"][here]], axis=1)
            events = np.flatnonzero(seen == 1)
            risk = (start[None] < stop[events][:, None]) & (stop[None] >= stop[events][:, None])
            matrices.append((jnp.asarray(x, float), jnp.asarray(events), jnp.asarray(risk)))

    def pooled() -> None:
        b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        for place, (x, events, risk) in enumerate(matrices):
            eta = x @ b
            inside = jax.nn.logsumexp(jnp.where(risk, eta[None], -jnp.inf), axis=1)
            numpyro.factor(f"stratum {place}", jnp.sum(eta[events] - inside))

    wanted = nuts(pooled)["b"]
    own = np.asarray(made.natural(tree)["coefficients"]).reshape(-1, 2)
    for column in range(2):
        agree(own[:, column], wanted[:, column])


def entering_late(seed: int) -> dict[str, np.ndarray]:
    """Return people who enter late, with a second row from the time at which they are treated."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[float, float, int, float, float]] = []
    for _ in range(120 + 60 * seed):
        x, entry, change = rng.normal(0.5 * seed, 1), rng.uniform(0, 1), rng.uniform(1, 3)
        for start, stop, treated in ((entry, change, 0.0), (change, 5.0, 1.0)):
            hazard = np.exp(-1.2 + 0.6 * x - 0.7 * treated)
            # of a Weibull time with shape 1.4, given that it is later than start
            time = (start**1.4 + rng.exponential() / hazard) ** (1 / 1.4)
            rows.append((start, min(time, stop), int(time < stop), x, treated))
            if time < stop:
                break
    return columns_of(rows, ("start", "stop", "seen", "x", "treated"))


@pytest.mark.parametrize("family", ["weibull", "piecewise_exponential"])
def test_late_entry_and_a_covariate_that_changes(family: str) -> None:
    sites = {f"site {place}": entering_late(place) for place in range(3)}
    shape = {"shape": "half_normal(2)", "intercept": "normal(0, 2)"}
    hazards = {"log_hazard": "normal(-1, 2)"}
    made = consortia.regression(
        "Surv(start, stop, seen) ~ x + treated",
        sites,
        family=family,
        prior={"coefficients": "normal(0, 2)", **(shape if family == "weibull" else hazards)},
        breaks=None if family == "weibull" else [2.0],
    )
    method = consortia.few_rounds(effective_size=4000)
    tree = consortia.sample(made.model, made.sites, method, seed=1, progress=False)
    every = {
        name: np.concatenate([one[name] for one in sites.values()]) for name in sites["site 0"]
    }
    X = np.column_stack([every["x"], every["treated"]])
    centred, seen = jnp.asarray(X - X.mean(axis=0), float), jnp.asarray(every["seen"], float)
    begin, end = (jnp.asarray(every[name] / every["stop"].mean()) for name in ("start", "stop"))
    parts = [
        np.clip(every["stop"], low, high) - np.clip(every["start"], low, high)
        for low, high in ((0, 2), (2, np.inf))
    ]
    lived, late = jnp.asarray(np.stack(parts, axis=1)), jnp.asarray(every["stop"] > 2, int)

    def pooled() -> None:
        b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        eta = centred @ b
        if family == "weibull":
            k = numpyro.sample("shape", dist.HalfNormal(2.0))
            eta = eta + numpyro.sample("intercept", dist.Normal(0.0, 2.0))
            hazard = jnp.log(k) + (k - 1) * jnp.log(end) + eta
            gone = jnp.exp(eta) * (end**k - begin**k)
        else:
            h = numpyro.sample("h", dist.Normal(-1.0, 2.0).expand([2]).to_event(1))
            hazard, gone = h[late] + eta, jnp.exp(eta) * (lived @ jnp.exp(h))
        numpyro.factor("rows", jnp.sum(seen * hazard - gone))

    wanted, own = nuts(pooled), made.natural(tree)
    found = np.asarray(own["coefficients"]).reshape(-1, 2)
    for column in range(2):
        agree(found[:, column], wanted["b"][:, column])
    if family == "weibull":
        agree(np.asarray(own["shape"]).ravel(), wanted["shape"])
        at_zero = wanted["intercept"] - wanted["b"] @ X.mean(axis=0)
        agree(np.asarray(own["intercept"]).ravel(), at_zero)


def test_recurrent_events_with_a_shared_frailty() -> None:
    rng = np.random.default_rng(8)
    sites = {}
    for site in range(3):
        rows: list[tuple[float, float, int, float, str]] = []
        for person in range(40 + 20 * site):
            x, frailty, at = rng.normal(0.5 * site, 1), rng.normal(0, 0.8), 0.0
            while at < 6:
                time = at + rng.exponential(1 / (0.3 * np.exp(0.5 * x + frailty)))
                rows.append((at, min(time, 6.0), int(time < 6), x, f"p{person}"))
                at = time
        sites[f"site {site}"] = columns_of(rows, ("start", "stop", "seen", "x", "person"))
    made = consortia.regression(
        "Surv(start, stop, seen) ~ x + (1 | site:person)",
        sites,
        family="piecewise_exponential",
        breaks=[3.0],
        prior={"x": "normal(0, 2)", "log_hazard": "normal(-1, 2)", "sd": "half_normal(1)"},
    )
    tree = consortia.sample(made.model, made.sites, consortia.few_rounds(), seed=1, progress=False)
    every = {
        name: np.concatenate([one[name] for one in sites.values()]) for name in sites["site 0"]
    }
    person = np.unique(
        [f"{place} {one}" for place, (_, own) in enumerate(sites.items()) for one in own["person"]],
        return_inverse=True,
    )[1]
    x, mean = every["x"], every["x"].mean()
    edges = np.array([0.0, 3.0, np.inf])
    spent = np.stack(
        [
            np.clip(every["stop"], low, high) - np.clip(every["start"], low, high)
            for low, high in itertools.pairwise(edges)
        ],
        axis=1,
    )
    at = (every["stop"] > 3).astype(int)
    centred, seen, lived = (jnp.asarray(one, float) for one in (x - mean, every["seen"], spent))

    def pooled() -> None:
        b = numpyro.sample("b", dist.Normal(0.0, 2.0))
        sd = numpyro.sample("sd", dist.HalfNormal(1.0))
        hazard = numpyro.sample("h", dist.Normal(-1.0, 2.0).expand([2]).to_event(1))
        with numpyro.plate("people", int(person.max()) + 1):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        eta = b * centred + sd * z[person]
        numpyro.factor(
            "rows", jnp.sum(seen * (hazard[at] + eta) - jnp.exp(eta) * (lived @ jnp.exp(hazard)))
        )

    wanted, own = nuts(pooled), made.natural(tree)
    agree(np.asarray(own["coefficients"]).ravel(), wanted["b"])
    agree(np.asarray(own["sd"]).ravel(), wanted["sd"])

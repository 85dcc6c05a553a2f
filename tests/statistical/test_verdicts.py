"""Studies drawn at random, a third of them wrong on purpose: no wrong answer looks healthy.

The true error of a study is that of its exact law where the posterior is Gaussian, and elsewhere
that of its own long run beside NUTS on the pooled data.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.diagnostics.reference import nuts
from consortia.diagnostics.verdict import judge
from consortia.errors import ConsortiaError
from consortia.report.run_report import report_of
from consortia.theory.bias import Problem, law_of, predict_bias

pytestmark = pytest.mark.predicted

SIZES = (8, 12, 20, 30, 30)
WRONG, RIGHT = (0.5, 0.25), (0.1, 0.05)
"""Shift in posterior sds, and relative error of an sd: above the first an answer is wrong, below
the second it is right."""


def normal_prior(x: Any) -> Any:
    return -0.5 * jnp.sum(x**2)


def linear(x: Any, rows: Any) -> Any:
    return -0.5 * (rows["y"] - rows["x"] @ x) ** 2


def logistic(x: Any, rows: Any) -> Any:
    t = rows["x"] @ x
    return rows["b"] * t - jnp.logaddexp(0.0, t)


def poisson(x: Any, rows: Any) -> Any:
    t = 0.5 * (rows["x"] @ x)
    return rows["n"] * t - jnp.exp(t)


def student(x: Any, rows: Any) -> Any:
    return -2.5 * jnp.log1p((rows["y"] - rows["x"] @ x) ** 2 / 4)


def mixture(x: Any, rows: Any) -> Any:
    near, far = rows["x"][:, 0] - x[0], rows["x"][:, 0] + x[0] + 0.1 * x[1] + 0.05 * x[2]
    return 0.2 * jnp.logaddexp(-0.5 * near**2, -0.5 * far**2)


LIKELIHOODS = (linear, logistic, poisson, student, mixture)
MODELS = [consortia.Model(normal_prior, one, jnp.full(3, 0.3)) for one in LIKELIHOODS]
GAUSSIAN = 0


class Study(NamedTuple):
    model: consortia.Model
    sites: consortia.Sites
    method: Any
    gaussian: bool


def study(seed: int) -> Study:
    """A study drawn at random; every third has a step that is likely too long."""
    rng = np.random.default_rng([7, seed])
    which = int(rng.integers(len(MODELS)))
    unlike = rng.normal(0, rng.choice([0.1, 1.0]), (len(SIZES), 3))
    scale = np.array([1.0, 1.0, rng.choice([1.0, 4.0])])
    rows = []
    for size, shift in zip(SIZES, unlike, strict=True):
        x = scale * rng.normal(size=(size, 3)) + 0.3 * shift
        mean = x @ (np.array([0.5, -0.5, 0.2]) + 0.5 * shift)
        rows.append(
            {
                "x": x.astype(np.float32),
                "y": (mean + rng.normal(size=size)).astype(np.float32),
                "b": (rng.random(size) < 1 / (1 + np.exp(-mean))).astype(np.float32),
                "n": rng.poisson(np.exp(np.clip(0.5 * mean, -3, 3))).astype(np.float32),
            }
        )
    sites = consortia.Sites.from_list(rows)
    steepest = float(np.linalg.eigvalsh(Problem(MODELS[which], sites).near.precision)[-1])
    factor = math.exp(rng.uniform(math.log(0.6), math.log(2.5)))
    if seed % 3:
        factor = math.exp(rng.uniform(math.log(0.03), math.log(0.5)))
    kind, local = rng.choice(["fa_hmc", "fa_ld", "de_sgld", "stale", "dsgld"]), rng.integers(1, 8)
    root, whole = factor / math.sqrt(steepest), factor / steepest
    method: Any
    if kind == "fa_hmc":
        options = {"leapfrog_steps": int(rng.integers(1, 4)), "debias": bool(rng.integers(2))}
        method = consortia.fa_hmc(root, local_steps=int(local), **options)
    elif kind == "fa_ld":
        method = consortia.fa_ld(root, local_steps=int(local))
    elif kind == "de_sgld":
        method = consortia.de_sgld(
            len(SIZES) * whole, str(rng.choice(["ring", "complete"])), batch_size=None
        )
    elif kind == "stale":
        method = consortia.stale_sgld(whole, workers=len(SIZES), batch_size=None)
    else:
        method = consortia.dsgld(2 * whole, local_steps=int(local), batch_size=None)
    return Study(MODELS[which], sites, method, which == GAUSSIAN)


def true_error(one: Study, tree: Any) -> tuple[float, float]:
    """The largest shift and relative error of an sd; infinite where the chain diverges."""
    if one.gaussian:
        problem = Problem(one.model, one.sites)
        law = law_of(one.method, problem)
        if not law.stable:
            return math.inf, math.inf
        sd, moments, table = problem.near.sd, law.stationary, consortia.summary(tree)
        # The method's error, and that of these draws with the chance that is in them.
        shifts = (moments.mean / sd, (table["mean"] - problem.near.mode) / sd)
        spreads = (moments.sd / sd - 1, table["sd"] / sd - 1)
        return float(np.abs(shifts).max()), float(np.abs(spreads).max())
    reference = nuts(one.model, one.sites, draws=2000)
    table = consortia.summary(tree, reference=reference)
    return float(np.abs(table["shift"]).max()), float(np.abs(table["sd_ratio"] - 1).max())


@functools.cache
def outcome(seed: int, rounds: int) -> tuple[tuple[float, float], list[str]] | None:
    """The true error of a study, and the words of check, sample and report; None if it ended."""
    one = study(seed)
    check = judge(predict_bias(one.model, one.sites, one.method), rounds=4 * rounds).word
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            tree = consortia.sample(
                one.model, one.sites, one.method, rounds=rounds, chains=4, progress=False
            )
        except ConsortiaError:  # refused, or not finite: that looks like no answer at all
            return None
    found = consortia.summary(tree).verdict
    assert found is not None
    report = report_of(tree, model=one.model, sites=one.sites, algorithm=one.method).verdict.word
    return true_error(one, tree), [check, found.word, report]


def hold_to(seeds: range, rounds: int) -> tuple[int, int]:
    """Assert that no wrong answer is called good; return how many are right, and called bad."""
    right = bad = 0
    for seed in seeds:
        found = outcome(seed, rounds)
        if found is None:
            continue
        (shift, spread), (check, sample, report) = found
        assert sample == report, seed
        if shift > WRONG[0] or spread > WRONG[1]:
            assert "good" not in (check, sample, report), (seed, shift, spread, check, sample)
        if shift <= RIGHT[0] and spread <= RIGHT[1]:
            right += 1
            bad += "bad" in (check, sample, report)
    return right, bad


def test_of_a_few_studies_drawn_at_random_no_wrong_answer_is_called_good():
    gaussian = [seed for seed in range(20) if study(seed).gaussian][:3]
    for seed in gaussian:
        hold_to(range(seed, seed + 1), 1500)


@pytest.mark.slow
def test_of_200_studies_drawn_at_random_no_wrong_answer_is_good_and_few_right_ones_are_bad():
    right, bad = hold_to(range(200), 20_000)
    assert right >= 10  # else the share below says nothing
    assert bad <= 0.05 * right

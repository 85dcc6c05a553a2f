"""Section 5.3, table 1: a network on shards of alike and unlike labels, at the printed settings.

An MLP 18-18-18-8-2, S = 30 shards, h = 1e-4, m = 50, 40 local updates, even probabilities, a cold
start; the first fifth of the visits is dropped. The rows are SUSY's where that is at hand, and
else made up (`experiments.fsgld.susy`); 1,000 a shard: with the paper's 90,000 the printed step is
unstable (`experiments.fsgld.shards`). FSGLD has the published surrogates, diagonal Gaussians from
3,000 local SGLD draws, and runs although the examination before the run says that it diverges.

A cell is the mean over the draws of the log-likelihood of a row; ± is over the repetitions. Train
rows are those of all shards, or of the shard that the draw was made at.
"""

from __future__ import annotations

import re
import warnings
from functools import partial
from typing import Any

import numpy as np

import consortia
from consortia.errors import NonFiniteError
from consortia.surrogates import Recipe
from experiments import records
from experiments.claims import Finding, over_runs
from experiments.fsgld import neural_network
from experiments.fsgld.likelihood import mean_log_likelihoods
from experiments.fsgld.neural_network import BATCH, BURN, LOCAL_STEPS, even, positions, scores
from experiments.fsgld.susy import problem, susy_is_here
from experiments.fsgld.visits import visited

STEP = 1e-4
SHARES = {"alike": 100.0, "unlike": 0.5}

SCORED, DRAWS = 1000, 200
"""About so many train rows, and at most so many draws, are scored."""
CURVATURE = re.compile(r"\(curvature (-[\d.e+]+)\)")
"""Of the drift at the shard that repels most, in the warning before a run."""
COIN = float(np.log(0.5))
PRINTED = -0.67
"""FSGLD's cells on unlike shards."""

LOWEST = -1.8
"""Of the panels' axes."""

# shards, rows of each, visits, seeds
SCALES = {"quick": (4, 100, 100, 1), "small": (30, 1000, 2000, 3), "full": (30, 1000, 5000, 10)}


def cell(data: Any, method: Any, visits: int, seed: int) -> dict[str, Any]:
    """Return train and test scores of a chain, or why there are none."""
    model = neural_network.models()["network"]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            tree = neural_network.draws(model, data.sites, method, visits, seed)
        except NonFiniteError as error:
            words = [str(one.message) for one in told if "surrogate" in str(one.message)]
            return {"ended": f"non-finite in round {error.round}", "warned": words}
    every = max(data.sites.rows // SCORED, 1)
    train = {key: value[::every] for key, value in data.sites.pooled().items()}
    return {
        "train": float(scores(model, tree, train).mean()),
        "hand": at_hand(model, tree, data, visits, seed),
        "test": float(scores(model, tree, data.test).mean()),
    }


def at_hand(model: Any, tree: Any, data: Any, visits: int, seed: int) -> float:
    """Return the mean log-likelihood of the rows of the shard that each draw was made at."""
    drawn, warmup = positions(tree), int(BURN * visits)
    shards = visited(even(data), visits - warmup, warmup, seed)
    chosen = np.unique(np.linspace(0, len(shards) - 1, DRAWS).astype(int))
    values = []
    for shard in np.unique(shards[chosen]):
        own = data.sites.shards[int(shard)]
        every = max(len(own["y"]) // SCORED, 1)
        rows = {key: value[::every] for key, value in own.items()}
        here = chosen[shards[chosen] == shard]
        padded = np.resize(here, len(chosen))  # one shape, compiled once
        values.append(mean_log_likelihoods(model, drawn, rows, padded)[: len(here)])
    return float(np.concatenate(values).mean())


def constant(shares: np.ndarray) -> float:
    """Score a constant that knows the label share of each shard, on that shard."""
    p = np.clip(shares, 1e-12, 1 - 1e-12)
    return float(np.mean(p * np.log(p) + (1 - p) * np.log(1 - p)))


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return the cells of the table for each repetition."""
    return cells(*SCALES[scale], seed, real=scale == "full" and susy_is_here())


def cells(
    shards: int, rows: int, visits: int, seeds: int, seed: int, *, real: bool
) -> dict[str, Any]:
    """Return the cells of so many repetitions on so many shards of so many rows."""
    results: dict[str, Any] = {"data": "SUSY" if real else "made up", "cells": [], "constant": {}}
    for number in range(seed, seed + seeds):
        for label, concentration in SHARES.items():
            data = problem(number, concentration, shards=shards, rows=rows, real=real)
            results["constant"].setdefault(label, []).append(constant(data.shares))
            common: dict[str, Any] = {"probabilities": even(data)}
            methods = {
                "dsgld": consortia.dsgld(STEP, LOCAL_STEPS, BATCH, **common),
                "fsgld": consortia.fsgld(
                    STEP,
                    LOCAL_STEPS,
                    BATCH,
                    surrogate=Recipe("sgld_moments"),
                    covariance="diagonal",
                    examination="warn",
                    **common,
                ),
            }
            for name, method in methods.items():
                named = f"{name}-{label}-{number}"
                found = records.part(named, partial(cell, data, method, visits, number))
                results["cells"].append({"seed": number, "shards": label, "method": name, **found})
                records.say(f"seed {number}, {label}, {name}: {found}")
    return results


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the eight cells, and what stands beside them."""
    return cells_of(results) | beside(results)


def cells_of(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the eight cells."""
    found = {}
    for name in ("dsgld", "fsgld"):
        for label in SHARES:
            cells = [c for c in results["cells"] if (c["method"], c["shards"]) == (name, label)]
            ended = [c["ended"] for c in cells if "ended" in c]
            for part in ("train", "test"):
                values = [c[part] for c in cells if part in c]
                if ended:
                    words = f"{len(ended)} of {len(cells)} runs ended, the first {ended[0]}"
                    found[f"{name}-{label}-{part}"] = Finding(None, shown=words)
                    continue
                found[f"{name}-{label}-{part}"] = over_runs(values)
    return found | {"table1-spread": spread(results["cells"])}


def spread(cells: list[dict[str, Any]]) -> Finding:
    """Return the largest ratio of standard deviations over repetitions, FSGLD over DSGLD."""
    ratios = []
    for label in SHARES:
        for part in ("train", "test"):
            values = {
                name: [c.get(part) for c in cells if (c["method"], c["shards"]) == (name, label)]
                for name in ("dsgld", "fsgld")
            }
            if any(None in scored or len(scored) < 2 for scored in values.values()):
                return Finding(None, shown="no spread: runs ended, or there is one repetition")
            ratios.append(np.std(values["fsgld"]) / np.std(values["dsgld"]))
    runs = len(cells) // (2 * len(SHARES))
    return Finding(float(max(ratios)), float(max(ratios) / np.sqrt(runs - 1)))


def beside(results: dict[str, Any]) -> dict[str, Finding]:
    """Return DSGLD on the shard at hand, and what it is to be compared with.

    Runs of before had scores of all shards only.
    """
    if "constant" not in results:
        return {}
    unlike = [c for c in results["cells"] if c["shards"] == "unlike"]
    warned = [words for c in unlike if c["method"] == "fsgld" for words in c.get("warned", [])]
    found = {
        "dsgld-unlike-hand": over_runs([c["hand"] for c in unlike if c["method"] == "dsgld"]),
        "constant-hand": over_runs(results["constant"]["unlike"]),
        "coin": Finding(COIN - PRINTED),
    }
    curvatures = [float(one[1]) for words in warned if (one := CURVATURE.search(words))]
    if curvatures:
        found["repels"] = Finding(1 - STEP / 2 * min(curvatures))
    return found


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw the cells, a dot a repetition: alike shards, then unlike ones."""
    for axis, label in zip(axes, SHARES, strict=True):
        places = [(name, part) for name in ("dsgld", "fsgld") for part in ("train", "test")]
        for place, (name, part) in enumerate(places):
            cells = [c for c in results["cells"] if (c["method"], c["shards"]) == (name, label)]
            values = [c[part] for c in cells if part in c]
            axis.plot([place] * len(values), values, "o", ms=4, alpha=0.6)
            if not any(value > LOWEST for value in values):
                said = "below" if values else "diverged"
                axis.text(place, -1.7, said, ha="center", rotation=90, fontsize=6)
        axis.set_xticks(range(4), [f"{name.upper()}\n{part}" for name, part in places])
        axis.set(ylabel="log-likelihood a row", xlim=(-0.5, 3.5), ylim=(LOWEST, -0.2))

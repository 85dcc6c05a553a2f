"""Section 5.2, figure 5: metric learning on spoken letters, shards of unlike classes.

Ten shards of 1,000 pairs, half of them similar, made of two or three letters each that no other
shard has; f_s = 1/10, h = 1e-3, m = 256; 1,000 test pairs of all letters. Not printed, and chosen
here: K = 10 directions, the prior N(0, 10²) on their scales and N(0, 1) on the threshold, T = 10
updates a visit, and the unit of distance, by which squared projections are 0.1 on average: at
h = 1e-3 larger ones make the step unstable. The set at hand holds 1,560 of the 7,797 rows.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

import consortia
from consortia.core.random import user_key
from consortia.errors import InputError, NonFiniteError
from consortia.models.metric_learning import (
    leading_directions,
    metric_learning,
    squared_projections,
)
from experiments import records
from experiments.claims import Finding, over_pairs, over_spreads
from experiments.fsgld.averaging import federated_average, positions
from experiments.fsgld.likelihood import mean_log_likelihoods

SHARDS, TEST_PAIRS = 10, 1000
DIRECTIONS, MEAN_SQUARE = 10, 0.1
STEP, BATCH, LOCAL_STEPS = 1e-3, 256, 10
SURROGATES = ("sgld_moments", "laplace", "anchored")


@dataclass(frozen=True)
class Scale:
    """How much is run.

    Attributes:
        pairs: of a shard.
        rounds: visits of a chain.
        repeats: repetitions.
        surrogates: that are tried.
        more: repetitions beyond the paper's ten, of DSGLD and of anchored surrogates alone.
    """

    pairs: int
    rounds: int
    repeats: int
    surrogates: tuple[str, ...]
    more: int = 0


SCALES = {
    "quick": Scale(300, 60, 1, ("sgld_moments", "anchored")),
    "small": Scale(1000, 1000, 5, SURROGATES),
    "full": Scale(1000, 5000, 10, SURROGATES, more=20),
}

Rows = dict[str, np.ndarray]


class Problem(NamedTuple):
    """Shards of pairs, and test pairs of all letters."""

    sites: consortia.Sites
    test: Rows


def pairs_of(labels: np.ndarray, count: int, rng: np.random.Generator) -> Any:
    """Row numbers of ``count`` pairs, the first half similar; and the labels 1 and 0."""
    classes = np.unique(labels)
    members = {letter: np.flatnonzero(labels == letter) for letter in classes}
    first, second = np.empty(count, int), np.empty(count, int)
    for i in range(count):
        if i < count // 2:
            first[i], second[i] = rng.choice(members[rng.choice(classes)], 2, replace=False)
        else:
            one, two = rng.choice(classes, 2, replace=False)
            first[i], second[i] = rng.choice(members[one]), rng.choice(members[two])
    return first, second, (np.arange(count) < count // 2).astype(np.int32)


def problem(seed: int, pairs: int, rows: Rows | None = None) -> Problem:
    """Pairs of spoken letters at ten shards that share no letter.

    Args:
        seed: of the letters' places and the pairs.
        pairs: of each shard.
        rows: x and y in the place of the spoken letters.
    """
    rng = np.random.default_rng(seed)
    data = consortia.datasets.load("isolet").rows if rows is None else rows
    x, y = np.asarray(data["x"], np.float64), np.asarray(data["y"])
    letters = np.array_split(rng.permutation(np.unique(y)), SHARDS)
    directions = leading_directions(x, DIRECTIONS)

    def made(chosen: np.ndarray, count: int) -> Rows:
        first, second, similar = pairs_of(y[chosen], count, rng)
        squares = squared_projections(x[chosen[first]], x[chosen[second]], directions)
        return {"x": squares, "y": similar}

    shards = [made(np.flatnonzero(np.isin(y, group)), pairs) for group in letters]
    test = made(np.arange(len(y)), TEST_PAIRS)
    unit = np.concatenate([shard["x"] for shard in shards]).mean(axis=0) / MEAN_SQUARE
    scaled = [
        {"x": (part["x"] / unit).astype(np.float32), "y": part["y"]} for part in (*shards, test)
    ]
    return Problem(consortia.Sites.from_list(scaled[:-1]), scaled[-1])


def curve(
    model: consortia.Model, draws: dict[str, np.ndarray], rows: Rows, points: int = 60
) -> Any:
    """Mean log-likelihood of a row at evenly spaced draws."""
    count = len(draws["threshold"])
    chosen = np.unique(np.linspace(0, count - 1, min(points, count)).astype(int))
    return chosen, mean_log_likelihoods(model, draws, rows, chosen)


def climb(model: consortia.Model, draws: dict[str, np.ndarray], rows: Rows) -> Any:
    """Mean log-likelihood of a row at draws ever farther apart."""
    chosen = np.unique(np.geomspace(1, len(draws["threshold"]), 40).astype(int))
    return chosen, mean_log_likelihoods(model, draws, rows, chosen - 1)


def warm_start(model: consortia.Model, data: Problem, rounds: int, seed: int) -> Any:
    """Return a mode that no rows were pooled for, where chains start: federated averaging."""
    method = consortia.fa_ld(np.sqrt(STEP), LOCAL_STEPS, batch_size=BATCH, temperature=0.0)
    return federated_average(model, data.sites, method, rounds, seed)


def study(scale: str, seed: int) -> dict[str, Any]:
    """Log-likelihoods of train and test pairs over the visits, for DSGLD and FSGLD."""
    size = SCALES[scale]
    model = metric_learning(DIRECTIONS, prior_scale=10.0, threshold_scale=1.0)
    results: dict[str, Any] = {"runs": []}
    for repeat in range(seed, seed + size.repeats + size.more):
        data = problem(repeat, size.pairs)
        start = warm_start(model, data, size.rounds // 2, repeat)
        methods = {"dsgld": consortia.dsgld(STEP, LOCAL_STEPS, BATCH)}
        for kind in size.surrogates if repeat < seed + size.repeats else ("anchored",):
            methods[kind] = consortia.fsgld(STEP, LOCAL_STEPS, BATCH, surrogate=kind)
        for name, method in methods.items():
            made = partial(one_run, model, data, method, size.rounds, repeat, start)
            entry = records.part(f"{name}-{repeat}", made)
            results["runs"].append({"repeat": repeat, "method": name, **entry})
            said = entry.get("refused")
            if said is None:
                said = (
                    f"test {entry['late_test']:.4f} ± {entry['late_test_deviation']:.4f}, "
                    f"train {entry['late_train']:.4f}"
                )
            records.say(f"repeat {repeat}, {name}: {said}")
    return results


def one_run(
    model: consortia.Model, data: Problem, method: Any, rounds: int, seed: int, start: Any
) -> dict[str, Any]:
    """Scores of a run, or why it was refused or ended; a warning before it is kept too.

    The first chain starts at the mode, to which surrogates refer; the second, of which the way up
    is kept unless it ends, where the model says.
    """
    at_mode = jax.random.key_data(user_key(seed, 0))

    def starts(key: Any) -> Any:
        return start if (jax.random.key_data(key) == at_mode).all() else model.init

    def sampled(chains: int) -> Any:
        return consortia.sample(
            model, data.sites, method, rounds=rounds, chains=chains, seed=seed, init=starts,
            progress=False, on_divergence="ignore",
        )  # fmt: skip

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            tree, way = sampled(2), True
        except InputError as error:
            return {"refused": str(error)}
        except NonFiniteError:
            try:
                tree, way = sampled(1), False
            except NonFiniteError as error:
                return {"refused": str(error)}
    visits, train = curve(model, positions(tree), data.sites.pooled())
    test = curve(model, positions(tree), data.test)[1]
    late = visits >= rounds // 2
    climbed, climbing = climb(model, positions(tree, 1), data.test) if way else (None, None)
    return {
        "climbed": climbed,
        "way": climbing,
        "warnings": [str(warning.message) for warning in told],
        "visits": visits,
        "train": train,
        "test": test,
        "late_train": float(train[late].mean()),
        "late_test": float(test[late].mean()),
        "late_test_deviation": float(test[late].std()),
    }


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figure 5: FSGLD less DSGLD, paired by repetition."""
    runs = {(e["repeat"], e["method"]): e for e in results["runs"]}
    repeats = sorted({repeat for repeat, _ in runs})
    found = {}
    for part in ("train", "test"):
        for kind in ("anchored", "sgld_moments"):
            found[f"fig5-{part}-{kind}"] = ahead(runs, repeats, kind, f"late_{part}")
    if len(repeats) > 1:
        found["fig5-spread"] = over_spreads(
            *([runs[r, k]["late_test"] for r in repeats] for k in ("anchored", "dsgld"))
        )
    away = sum(runs[r, "anchored"]["way"] is None for r in repeats)
    found["fig5-faster"] = (
        Finding(None, shown=f"ran away in {away} of {len(repeats)} runs", pairs=len(repeats))
        if away
        else over_pairs(
            [
                math.log2(reached(runs[r, "dsgld"], runs[r, "dsgld"]))
                - math.log2(reached(runs[r, "anchored"], runs[r, "dsgld"]))
                for r in repeats
            ]
        )
    )
    if any(method == "laplace" for _, method in runs):
        found["appendix-f2"] = ahead(runs, repeats, "laplace", "late_test")
    return found


def ahead(runs: dict[Any, Any], repeats: list[int], kind: str, score: str) -> Finding:
    """Measure the lead of FSGLD over DSGLD; without a value where a run has no score."""
    repeats = [r for r in repeats if (r, kind) in runs]
    scored = [r for r in repeats if score in runs[r, kind]]
    gains = [runs[r, kind][score] - runs[r, "dsgld"][score] for r in scored]
    if len(gains) == len(repeats):
        return over_pairs(gains)
    without = f"refused or non-finite in {len(repeats) - len(gains)} of {len(repeats)} repetitions"
    told = f"; {over_pairs(gains).text} in the others" if gains else ""
    return Finding(None, shown=without + told, pairs=len(repeats))


def reached(entry: dict[str, Any], plain: dict[str, Any]) -> int:
    """Return the first visit with DSGLD's late score less its spread; the last if there is none."""
    level = plain["late_test"] - plain["late_test_deviation"]
    high = np.flatnonzero(np.asarray(entry["way"]) >= level)
    return int(entry["climbed"][high[0] if high.size else -1])


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw figure 5, mean and deviation over the repetitions, and the way up from elsewhere."""
    runs = [entry for entry in results["runs"] if "refused" not in entry]
    names = list(dict.fromkeys(entry["method"] for entry in runs))
    for axis, part in zip(axes[:2], ("train", "test"), strict=True):
        for name in names:
            entries = [entry for entry in runs if entry["method"] == name]
            values = np.array([entry[part] for entry in entries])
            label = "DSGLD" if name == "dsgld" else f"FSGLD, {name}"
            middle, spread, visits = values.mean(axis=0), values.std(axis=0), entries[0]["visits"]
            (line,) = axis.plot(visits, middle, lw=0.8, label=label)
            color = line.get_color()
            axis.fill_between(
                visits, middle - spread, middle + spread, alpha=0.2, color=color, lw=0
            )
        axis.set(xlabel="visits", ylabel="log-likelihood a pair")
        axis.legend(loc="lower right")
    for name in names:
        entries = [entry for entry in runs if entry["method"] == name and entry["way"] is not None]
        if not entries:
            continue
        label = "DSGLD" if name == "dsgld" else f"FSGLD, {name}"
        way = np.mean([entry["way"] for entry in entries], axis=0)
        axes[2].semilogx(entries[0]["climbed"], way, lw=0.9, label=label)
    axes[2].set(xlabel="visits from the model's own start", ylabel="log-likelihood of a test pair")
    axes[2].legend()

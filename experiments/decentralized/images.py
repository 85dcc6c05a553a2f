"""What the studies on MNIST share: how images are split among agents, runs, scores, a figure.

The published scripts give some agents a quarter of each image. The product of the agents' densities
is then not the posterior of a model of whole images, which centralized HMC samples; so the split by
rows stands beside the split by features, and tuned HMC on either split says what its product is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import consortia
from consortia.data import datasets
from consortia.diagnostics import scores
from experiments import records
from experiments.claims import Finding, over_pairs

Arrays = dict[str, np.ndarray]

PAPER_ROWS, SIDE, CLASSES = 54_000, 28, 10
CONSENSUS = (0.48, 0.01, 230.0)
"""β₀, δ₁ and b, as printed: stable on the networks of two and four, and on the ring of five."""


@dataclass(frozen=True)
class Scale:
    """How much of a study is run.

    Attributes:
        rows: training rows.
        test_rows: held-out rows.
        side: images are averaged to side × side pixels.
        iterations: of every sampler.
        untested: first iterations, which the published variant does not test and no score counts.
        tuned: warm-up and draws of the tuned HMC that says what the posterior is.
        seeds: runs of every sampler.
    """

    rows: int
    test_rows: int
    side: int
    iterations: int
    untested: int
    tuned: tuple[int, int]
    seeds: int = 1

    @property
    def prior_share(self) -> float:
        """The prior's precision falls with the number of rows, so that its part in U stays."""
        return self.rows / PAPER_ROWS

    @property
    def step_factor(self) -> float:
        """Steps grow so that ε² times the largest curvature stays about the paper's."""
        return float(np.sqrt(PAPER_ROWS / self.rows)) * SIDE / self.side


class Run(NamedTuple):
    """One sampler on one split; ``compare`` says whether its sds belong beside the posterior's."""

    label: str
    shards: list[Arrays]
    method: Any
    compare: bool = True


# --- data ----------------------------------------------------------------------------------------


def images(scale: Scale, seed: int, *, ones: bool) -> tuple[Arrays, Arrays]:
    """Random training and held-out rows of MNIST, as pixels/255 and, if wanted, a column of ones.

    Raises:
        consortia.datasets.DatasetMissing: the files are not here.
    """
    found = datasets.load("mnist")
    parts = []
    for part, rows in ((found.train, scale.rows), (found.test, scale.test_rows)):
        assert part is not None
        chosen = np.random.default_rng(seed).choice(len(part["y"]), rows, replace=False)
        pixels = part["x"][chosen].reshape(rows, SIDE, SIDE).astype(np.float32)
        width = SIDE // scale.side
        pixels = pixels.reshape(rows, scale.side, width, scale.side, width).mean(axis=(2, 4))
        arrays = {"x": pixels, "y": part["y"][chosen].astype(np.int32)}
        parts.append(datasets.images_to_rows(arrays, intercept=ones))
    return parts[0], parts[1]


def quarters(train: Arrays, side: int) -> list[Arrays]:
    """Four agents with all rows, and a quarter of each image; all see the column of ones."""
    row, column = np.divmod(np.arange(side * side), side)
    result = []
    for upper, left in ((True, True), (False, True), (False, False), (True, False)):
        seen = ((row < side // 2) == upper) & ((column < side // 2) == left)
        seen = np.append(seen, True)
        result.append({**train, "x": np.where(seen, train["x"], np.float32(0))})
    return result


def random_rows(train: Arrays, agents: int, seed: int) -> list[Arrays]:
    """Whole images, dealt out at random."""
    order = np.random.default_rng(seed).permutation(len(train["y"]))
    parts = np.array_split(order, agents)
    return [{name: array[part] for name, array in train.items()} for part in parts]


def by_digits(train: Arrays, groups: Iterable[Iterable[int]]) -> list[Arrays]:
    """Whole images, each agent with some of the digits."""
    parts = [np.isin(train["y"], list(group)) for group in groups]
    return [{name: array[part] for name, array in train.items()} for part in parts]


# --- samplers ------------------------------------------------------------------------------------


def centralized(step_size: float) -> Any:
    """The paper's baseline: HMC with one leapfrog step; on one site with all rows it is pooled."""
    return consortia.federated_hmc(
        step_size=step_size, leapfrog_steps=1, mass_matrix="identity", jitter=0.0
    )


def decentralized(step: float, ula_step: float, mixing: Any, untested: int) -> dict[str, Any]:
    """Both variants of MA-HMC and both of ULA."""
    ula = {"consensus": CONSENSUS, "draws": "agents"}
    published = {"variant": "published", "metropolis_from": untested, "draws": "agents"}
    return {
        "MA-HMC, published": consortia.decentralized_hmc(step, mixing, **published),
        "MA-HMC, corrected": consortia.decentralized_hmc(step, mixing, draws="agents"),
        "ULA, published": consortia.decentralized_ula(ula_step, mixing, noise="published", **ula),
        "ULA, corrected": consortia.decentralized_ula(ula_step, mixing, **ula),
    }


def tuned(name: str, model: Any, shards: list[Arrays], scale: Scale, seed: int) -> dict[str, Any]:
    """What the product of these agents' densities is: HMC that learns all it needs."""
    warmup, draws = scale.tuned
    tree = records.sampled(
        f"{name}-tuned",
        model,
        consortia.Sites.from_list(shards),
        consortia.federated_hmc(),
        rounds=draws,
        warmup=warmup,
        seed=seed + 1,
        chains=1,
    )
    return {name: np.asarray(array) for name, array in tree["posterior"].data_vars.items()}


def flat(draws: Mapping[str, np.ndarray]) -> np.ndarray:
    """All parameters of one chain, (draws, d)."""
    return np.concatenate([draws[name][0].reshape(draws[name].shape[1], -1) for name in draws], 1)


def predicted(draws: Mapping[str, np.ndarray], model: Any, test: Arrays) -> dict[str, float]:
    """Scores of the average prediction, NLL a row."""
    found = scores(consortia.predict(dict(draws), model, test), test["y"])
    result = {name: found[name] for name in ("accuracy", "ece")}
    return result | {"nll": found["nll"] / len(test["y"])}


def outcome(
    name: str,
    run: Run,
    model: Any,
    test: Arrays,
    scale: Scale,
    seed: int,
    reference: Mapping[str, np.ndarray] | None,
) -> dict[str, Any]:
    """Return the mean of `once` over the seeds, with standard errors where there are several.

    Each seed is a part of the study, under the split's name.
    """
    found = [
        records.part(
            f"{name}-{run.label}-{number}",
            partial(once, run, model, test, scale, number, reference),
        )
        for number in range(seed, seed + scale.seeds)
    ]
    result: dict[str, Any] = {"label": run.label}
    for score in found[0]:
        values = np.array([one[score] for one in found])
        result[score] = float(values.mean())
        if len(values) > 1:
            result[f"{score}_error"] = float(values.std(ddof=1) / np.sqrt(len(values)))
            result[f"{score}_by_seed"] = values
    told = [f"{score} {_told(value)}" for score, value in result.items() if "by_seed" not in score]
    records.say(f"{name}: {', '.join(told)}")
    return result


def once(
    run: Run,
    model: Any,
    test: Arrays,
    scale: Scale,
    seed: int,
    reference: Mapping[str, np.ndarray] | None,
) -> dict[str, Any]:
    """Scores of one sampler and, beside a reference, how its means and spreads compare."""
    thin = max((scale.iterations - scale.untested) // 200, 1)
    tree = consortia.sample(
        model,
        consortia.Sites.from_list(run.shards),
        run.method,
        rounds=scale.iterations - scale.untested,
        warmup=scale.untested,
        thin=thin,
        seed=seed,
        progress=False,
        on_divergence="ignore",
        chains=1,
    )
    draws = {name: np.asarray(array) for name, array in tree["posterior"].data_vars.items()}
    result: dict[str, Any] = predicted(draws, model, test)
    if "agents" in tree.children and set(draws) <= set(tree["agents"].data_vars):
        agents = {name: np.asarray(tree["agents"][name]) for name in draws}
        own = [
            predicted({name: array[:, :, i] for name, array in agents.items()}, model, test)
            for i in range(len(run.shards))
        ]
        result["least_agent_accuracy"] = min(one["accuracy"] for one in own)
    for group, name in (("agents", "accepted"), ("sample_stats", "acceptance_rate")):
        if group in tree.children and name in tree[group]:
            result["acceptance"] = float(np.asarray(tree[group][name]).mean())
    if reference is not None and run.compare:
        ours, theirs = flat(draws), flat(reference)
        sd = theirs.std(axis=0)
        result["median_sd_ratio"] = float(np.median(ours.std(axis=0) / sd))
        apart = np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) / sd
        result["median_mean_error_in_sds"] = float(np.median(apart))
    return result


def _told(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


def findings(results: dict[str, Any], name: str) -> dict[str, Finding]:
    """Return accuracies less that of tuned HMC, and NLL of MA-HMC less that of ULA, by split."""
    best = results["parts"]["centralized"][0]["accuracy"]
    found = {}
    for split, entries in results["parts"].items():
        by = {entry["label"]: entry for entry in entries}
        if "MA-HMC, published" not in by:
            continue
        ours, key = by["MA-HMC, published"], split.split(",")[0].replace(" ", "-")
        key = f"{key}-{split.rpartition(' ')[2]}" if "view" in split else key
        found[f"{name}-{key}-accuracy"] = Finding(ours["accuracy"] - best, _error(ours, "accuracy"))
        if "ULA, published" in by:
            other = by["ULA, published"]
            one, two = (entry.get("nll_by_seed", [entry["nll"]]) for entry in (ours, other))
            found[f"{name}-{key}-ula"] = over_pairs(list(np.subtract(one, two)))
    return found


def _error(entry: Mapping[str, Any], score: str) -> float | None:
    return entry.get(f"{score}_error")


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw NLL and accuracy on held-out rows of every sampler."""
    entries = [entry for part in results["parts"].values() for entry in part]
    names = [f"{part}: {e['label']}" for part, found in results["parts"].items() for e in found]
    for panel, score in zip(axes, ("nll", "accuracy"), strict=True):
        places = range(len(entries))
        errors = [_error(entry, score) or 0.0 for entry in entries]
        panel.errorbar([e[score] for e in entries], places, xerr=errors, fmt="o", ms=3)
        panel.set_yticks(places, names if score == "nll" else [], fontsize=5)
        panel.set_xlabel(f"{score} on held-out rows")
        panel.invert_yaxis()
        panel.grid(axis="x", alpha=0.3)

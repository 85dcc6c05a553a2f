"""What the studies on images share: tasks, predictive curves along the rounds, sweeps, figures.

The predictive probabilities are averaged over one draw a round, from the first round on, and
scored on held-out rows: accuracy, Brier score (sum over classes), expected calibration error (15
bins) and negative log-likelihood, summed over the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import consortia
from consortia.data import datasets, partition
from consortia.diagnostics import scores
from consortia.errors import NonFiniteError
from experiments import records
from experiments.claims import FEWEST_STEPS, Finding, over_pairs, untuned

CLIENTS = 10
CHECKPOINTS = (1, 2, 3, 5, 10, 20, 30, 40, 50, 75, 100, 125, 150, 175, 200)
SCORES = ("accuracy", "brier", "ece", "nll")
MOST_STEPS = 9
"""Step sizes up to which a grid is made longer."""
TEST_SHARE = 0.2
"""Of a set whose published training rows are not at hand, and is therefore split here."""


class Setting(NamedTuple):
    """One sampler: K, T, η and the rows of a gradient draw (None: all rows of the client)."""

    leapfrog_steps: int
    local_steps: int
    step_size: float
    batch_size: int | None


class Task(NamedTuple):
    """A data set dealt out to ten clients, with held-out rows.

    Attributes:
        name: of the data set.
        sites: the clients.
        test: held-out rows, the same structure as a client's.
        note: what makes it differ from the published set, or "".
    """

    name: str
    sites: consortia.Sites
    test: dict[str, np.ndarray]
    note: str

    @property
    def features(self) -> int:
        """Columns of x, the column of ones included."""
        return int(self.test["x"].shape[1])


def image_task(
    name: str, seed: int, *, train_rows: int | None = None, test_rows: int | None = None
) -> Task:
    """A set of images as pixels/255 and a column of ones, dealt out at random to ten clients.

    Args:
        name: of the data set; one without training rows is split, four fifths to train.
        seed: of the split, the partition and the subsets.
        train_rows: a random subset of so many training rows.
        test_rows: likewise of the held-out rows.

    Raises:
        consortia.datasets.DatasetMissing: the files are not here.
    """
    found = _loaded(name)
    note = datasets.AVAILABLE[name].caution
    train, test = found.train, found.test
    if train is None or test is None:
        train, test = datasets.train_test_split(found.rows, test_share=TEST_SHARE, seed=seed)
        note = f"{note}; {len(train['y'])} to train, {len(test['y'])} held out"
    train, test = (
        datasets.images_to_rows(subset(part, rows, seed))
        for part, rows in ((train, train_rows), (test, test_rows))
    )
    return Task(name, partition.iid(train, CLIENTS, seed=seed), test, note)


def _loaded(name: str) -> datasets.Dataset:
    """Return a data set; KMNIST with its training images where they are at hand."""
    if name == "kmnist":
        try:
            return datasets.kmnist(test_only=False)
        except datasets.DatasetMissing:
            records.say("kmnist: the training images are not here; the test images are split")
    return datasets.load(name)


def subset(arrays: dict[str, np.ndarray], rows: int | None, seed: int) -> dict[str, np.ndarray]:
    """Return so many random rows; all of them with None."""
    if rows is None:
        return arrays
    chosen = np.random.default_rng(seed).choice(len(arrays["y"]), rows, replace=False)
    return {name: array[chosen] for name, array in arrays.items()}


def curve(
    model: consortia.Model, task: Task, setting: Setting, *, rounds: int, seed: int
) -> list[dict[str, float]]:
    """The scores of the predictive average after 1, 2, 3, 5, ... rounds.

    Raises:
        consortia.errors.NonFiniteError: the step size is too large.
    """
    tree = records.sampled(
        f"{named(task, setting)}-{seed}",
        model,
        task.sites,
        consortia.fa_hmc(
            setting.step_size,
            setting.leapfrog_steps,
            setting.local_steps,
            batch_size=setting.batch_size,
        ),
        rounds=rounds,
        seed=seed,
        chains=1,
    )
    draws = {name: np.asarray(array) for name, array in tree["posterior"].data_vars.items()}
    points = []
    total: Any = 0.0
    begin = 0
    for end in sorted({*(point for point in CHECKPOINTS if point < rounds), rounds}):
        block = {name: array[:, begin:end] for name, array in draws.items()}
        total = total + (end - begin) * consortia.predict(block, model, task.test)
        found = scores(total / end, task.test["y"])
        points.append({"round": end, **{name: found[name] for name in SCORES}})
        begin = end
    return points


def attempt(
    model: consortia.Model, task: Task, setting: Setting, *, rounds: int, seed: int
) -> dict[str, Any]:
    """Return the curve of a setting, or the round in which it diverged; a part of the study."""

    def made() -> dict[str, Any]:
        try:
            return {"curve": curve(model, task, setting, rounds=rounds, seed=seed)}
        except NonFiniteError as error:
            return {"diverged_in_round": error.round}

    return records.part(f"{named(task, setting)}-{seed}-{rounds}-scores", made)


def named(task: Task, setting: Setting) -> str:
    """Name a setting so as to tell it from others of its study, as part of a file's name."""
    k, t, step, batch = setting
    return f"{task.name}-K{k}-T{t}-step{step:g}-B{batch or 'all'}"


class Lengths(NamedTuple):
    """Lengths and numbers of the runs of a sweep.

    Attributes:
        rounds: of the chosen step size.
        tune_rounds: of each step size that is tried; None for ``rounds``.
        runs: independent runs of each label's chosen step size.
        best_runs: those of the label with the least NLL, where more.
        most: steps up to which a grid is made longer.
    """

    rounds: int
    tune_rounds: int | None = None
    runs: int = 1
    best_runs: int = 1
    most: int = 0


def sweep(
    model: consortia.Model,
    task: Task,
    candidates: Mapping[str, Sequence[Setting]],
    lengths: Lengths,
    *,
    seed: int,
) -> list[dict[str, Any]]:
    """Each label's best step size, by the last NLL on the held-out rows.

    A grid without its best step inside is made longer at that end, by the ratio of its last two.

    Args:
        model: the model.
        task: the data.
        candidates: settings to choose from, by label; the shortest step first.
        lengths: of the runs, and their numbers.
        seed: of the first run; the others follow.

    Returns:
        For each label the setting, what was tried, and one curve a run. Where only finished parts
        are asked for, a label that was tuned and not run to its end is last, with the rounds of
        its tuning in its name, and one that was not tuned is absent.
    """
    results: list[dict[str, Any]] = []
    begun: list[dict[str, Any]] = []
    for label, settings in candidates.items():
        try:
            best, points, tried = tuned(model, task, label, settings, lengths, seed)
        except records.UnfinishedError as absent:
            records.say(f"{task.name} {label}: {absent}")
            continue
        one = {"label": label, "setting": best._asdict(), "tried": tried, "runs": [points]}
        if lengths.tune_rounds in (None, lengths.rounds):
            results.append(one)
            continue
        try:
            whole = again(model, task, label, best, lengths.rounds, seed)
            results.append({**one, "runs": [whole]})
        except records.UnfinishedError as absent:
            records.say(f"{task.name} {label}: {absent}")
            begun.append({**one, "label": f"{label}, {lengths.tune_rounds} rounds"})
    best_label = min(results, key=lambda one: one["runs"][0][-1]["nll"], default=None)
    for one in results:
        setting = Setting(**one["setting"])
        wanted = max(lengths.runs, lengths.best_runs if one is best_label else 0)
        for run in range(1, wanted):
            try:
                points = again(model, task, one["label"], setting, lengths.rounds, seed + run)
            except records.UnfinishedError as absent:
                records.say(f"{task.name} {one['label']}: {absent}")
                break
            one["runs"].append(points)
    return results + begun


def tuned(
    model: consortia.Model,
    task: Task,
    label: str,
    settings: Sequence[Setting],
    lengths: Lengths,
    seed: int,
) -> tuple[Setting, list[dict[str, float]], list[dict[str, Any]]]:
    """Return the setting with the least last NLL, its curve, and what was tried."""
    curves: dict[Setting, list[dict[str, float]]] = {}
    tried: list[dict[str, Any]] = []
    waiting = list(settings)
    while waiting:
        setting = waiting.pop(0)
        rounds = lengths.tune_rounds or lengths.rounds
        entry: dict[str, Any] = {"step_size": setting.step_size}
        found = attempt(model, task, setting, rounds=rounds, seed=seed)
        if "curve" in found:
            curves[setting] = found["curve"]
            entry |= curves[setting][-1]
        else:
            entry |= found
        tried.append(entry)
        records.say(f"{task.name} {label}, step size {setting.step_size:g}: {told(entry)}")
        if not waiting and len(tried) < lengths.most:
            waiting = beyond(setting, tried)
    if not curves:
        raise RuntimeError(f"{label}: every step size diverged; add smaller ones")
    best = min(curves, key=lambda setting: curves[setting][-1]["nll"])
    return best, curves[best], tried


def again(
    model: consortia.Model, task: Task, label: str, setting: Setting, rounds: int, seed: int
) -> list[dict[str, float]]:
    """Return a whole run of a chosen step size, which is not to diverge."""
    found = attempt(model, task, setting, rounds=rounds, seed=seed)
    if "curve" not in found:
        raise RuntimeError(f"{label}: the chosen step size diverged with seed {seed}")
    curve: list[dict[str, float]] = found["curve"]
    return curve


def beyond(setting: Setting, tried: Sequence[Mapping[str, Any]]) -> list[Setting]:
    """Return the next step of a grid whose best is not inside, or nothing."""
    found = {entry["step_size"]: entry.get("nll", math.inf) for entry in tried}
    steps, best = sorted(found), min(found, key=lambda step: found[step])
    if len(steps) >= FEWEST_STEPS and steps[0] < best < steps[-1]:
        return []
    ratio = steps[-1] / steps[-2] if len(steps) > 1 else 2.0
    longer = best == steps[-1] or (best != steps[0] and math.isfinite(found[steps[-1]]))
    step = steps[-1] * ratio if longer else steps[0] / ratio
    return [setting._replace(step_size=float(f"{step:.2g}"))]


def told(entry: Mapping[str, float]) -> str:
    """One line of scores."""
    if "diverged_in_round" in entry:
        return f"diverged in round {entry['diverged_in_round']}"
    return (
        f"after {entry['round']} rounds accuracy {entry['accuracy']:.4f}, "
        f"Brier {entry['brier']:.4f}, ECE {entry['ece']:.4f}, NLL {entry['nll']:.1f}"
    )


def last(parts: Sequence[Mapping[str, Any]], score: str) -> dict[str, tuple[float, float | None]]:
    """Return each label's last score, the mean over its runs with its standard error."""
    result = {}
    for part in parts:
        values = np.array([run[-1][score] for run in part["runs"]])
        error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else None
        result[part["label"]] = (float(values.mean()), error)
    return result


def spread(parts: Sequence[Mapping[str, Any]], label: str, score: str) -> float | None:
    """Return the standard deviation of the last score over a label's runs; None of fewer than 3."""
    values = [run[-1][score] for part in parts if part["label"] == label for run in part["runs"]]
    return float(np.std(values, ddof=1)) if len(values) > 2 else None


def with_fifty(
    local: Sequence[Mapping[str, Any]], leapfrog: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the sweep over T with T = 50, which is K = 10 of the sweep over K."""
    if not local:
        return list(leapfrog)
    ten = [{**part, "label": "T = 50"} for part in leapfrog if part["label"] == "K = 10"]
    return [*local, *ten]


def better(parts: Sequence[Mapping[str, Any]], score: str, one: str, other: str) -> Finding:
    """Return by how much per cent one label's loss is below the other's, paired by seed."""
    by = {part["label"]: [run[-1][score] for run in part["runs"]] for part in parts}
    gains = [100 * (1 - ours / theirs) for ours, theirs in zip(by[one], by[other], strict=False)]
    told = ", ".join(f"{label} {np.mean(values):.4g}" for label, values in by.items())
    found = over_pairs(gains)
    return replace(
        found, shown=f"{found.text}; {score}: {told}", untuned=coarse(parts, (one, other))
    )


def lead(parts: Sequence[Mapping[str, Any]], score: str, one: str) -> Finding:
    """Measure the lead of a label over the best other one, paired by seed."""
    sign = 1 if score == "accuracy" else -1
    by = {part["label"]: [sign * run[-1][score] for run in part["runs"]] for part in parts}
    ours = by.pop(one)
    best = max(by, key=lambda label: np.mean(by[label]))
    found = over_pairs([our - its for our, its in zip(ours, by[best], strict=False)])
    return replace(found, shown=f"{found.text}; the best other is {best}", untuned=coarse(parts))


def place(parts: Sequence[Mapping[str, Any]], score: str, one: str) -> int:
    """Return the place of a label in a score, counted from the worst, which is 1."""
    sign = 1 if score == "accuracy" else -1
    by = {part["label"]: sign * np.mean([run[-1][score] for run in part["runs"]]) for part in parts}
    return sorted(by, key=lambda label: by[label]).index(one) + 1


def finished(parts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the settings of a sweep that were run to their end, without those tuned alone."""
    return [part for part in parts if not part["label"].endswith(" rounds")]


def fewest_runs(parts: Sequence[Mapping[str, Any]]) -> int:
    """Count the runs with the same seeds that all labels have."""
    return min(len(part["runs"]) for part in parts)


def coarse(parts: Sequence[Mapping[str, Any]], labels: Sequence[str] | None = None) -> str:
    """Explain why the step sizes of these labels, or of all, were not tuned; "" where they were."""
    reasons = [
        untuned(
            part["label"],
            [entry["step_size"] for entry in part["tried"]],
            part["setting"]["step_size"],
        )
        for part in parts
        if labels is None or part["label"] in labels
    ]
    return "; ".join(filter(None, reasons))


def comparison(parts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return a sweep over K, or nothing where only its baseline K = 1 is finished."""
    return [] if [part["label"] for part in parts] == ["K = 1"] else list(parts)


def draw_curves(parts: Sequence[Mapping[str, Any]], axes: Any) -> None:
    """Draw the scores against the rounds, one panel a score: the mean over the runs, and ± sd."""
    for axis, score in zip(axes, SCORES, strict=False):
        for part in parts:
            runs = part["runs"]
            rounds = [point["round"] for point in runs[0]]
            values = np.array([[point[score] for point in run] for run in runs])
            line = axis.plot(rounds, values.mean(axis=0), "o-", ms=2, lw=0.9, label=part["label"])
            if len(runs) > 1:
                middle, spread = values.mean(axis=0), values.std(axis=0, ddof=1)
                color = line[0].get_color()
                axis.fill_between(rounds, middle - spread, middle + spread, alpha=0.2, color=color)
        axis.set(xlabel="communication rounds", ylabel=score)
        if parts:
            axis.legend()

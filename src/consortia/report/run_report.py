"""Facts about one run, gathered once for the terminal, the files, the figures, the page."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from consortia.core.model import Model
from consortia.core.parameters import POSTERIOR, UNCONSTRAINED, as_sampled, has_natural
from consortia.diagnostics import (
    Summary,
    calibration_curve,
    log_predictive_density,
    predict,
    rmse,
    scores,
    summary,
)
from consortia.diagnostics.prediction import BiasPrediction
from consortia.diagnostics.stein import Stein
from consortia.diagnostics.summary import tabulate
from consortia.diagnostics.verdict import Evidence, Tabled, Verdict, judge, prediction_in
from consortia.errors import ConsortiaError, StoreError, wrong
from consortia.store.durable import read_regular
from consortia.store.metadata import Labels, decoded, with_labels
from consortia.store.runs import REQUEST, open_run
from consortia.theory.bias import predict_bias

REFERENCE = "reference"
VERIFICATION = "verification.json"
"""Name of the file of a verified run: its Stein discrepancy, and what could not be computed."""

STUDY_BYTES = 2**20
"""Most bytes of a study file, and of the command that it was run with."""

DRAWS = (POSTERIOR, UNCONSTRAINED, "sample_stats")
"""Groups that a report reads."""

MOST_FITTED = 2000
"""Rows that the run was fitted to of which predictions are shown, evenly spaced."""

MOST_DRAWS = 4000
"""Predictions are averaged over at most so many draws, evenly spaced: an average is then good to
0.016 sd. Chosen, not measured."""


@dataclass(frozen=True)
class HeldOutScores:
    """Predictions on held-out rows and their scores."""

    values: dict[str, float]  # by name
    # confidence, accuracy and share of rows by bin, for a classifier; else None
    curve: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    means: np.ndarray | None = None  # predicted means (rows,), for a regression; else None
    # probability of the event (rows,), where there are two classes; else None
    event: np.ndarray | None = None


@dataclass(frozen=True)
class Worst:
    """The worst numbers of a table; NaN where they are not available."""

    r_hat: float  # largest R-hat
    ess: float  # smallest bulk or tail effective sample size
    # largest |mean − reference mean| / reference sd, and the coordinate it belongs to
    shift: tuple[float, str] | None
    shift_error: float  # largest Monte Carlo standard error of such a shift, both sides' errors
    sd_ratio: tuple[float, float] | None  # smallest and largest sd / reference sd

    def lines(self) -> list[str]:
        """Return the numbers in words."""
        r_hat = "not available" if math.isnan(self.r_hat) else f"at most {self.r_hat:.3f}"
        ess = "not available" if math.isnan(self.ess) else f"at least {self.ess:,.0f}"
        lines = [f"R-hat {r_hat}, effective sample size {ess}."]
        if self.shift is None or self.sd_ratio is None:
            return lines
        return [
            *lines,
            f"Means within {self.shift[0]:.2f} reference sd (farthest: {self.shift[1]}; "
            f"Monte Carlo error {self.shift_error:.2f}).",
            f"Standard deviations {self.sd_ratio[0]:.2f} to {self.sd_ratio[1]:.2f} times the "
            "reference's.",
        ]


@dataclass(frozen=True, eq=False)
class RunReport:
    """A run and what is known of it."""

    name: str  # short, to tell runs apart
    title: str  # one line
    tree: Any  # the result, with the coordinates that were sampled in its posterior
    table: Summary  # one row a parameter as it was sampled, beside the reference where there is one
    # the result with natural quantities in its posterior; where there are none, what was sampled
    shown: Any
    shown_table: Summary  # the table of it
    record: Mapping[str, Any]  # the run's attributes, those in JSON read
    reference: Any  # the result that it stands beside, or None
    shown_reference: Any  # the reference likewise, its variables in the same order, or None
    reference_table: Summary | None  # the table of that, or None
    reference_record: Mapping[str, Any] | None  # the reference's attributes, or None
    scores: HeldOutScores | None  # on the held-out rows, or None
    reference_scores: HeldOutScores | None  # the reference's, or None
    observed: np.ndarray | None  # held-out responses, or None
    held_out_rows: int  # how many rows are held out
    # the bias that the method's oracle predicts, or None without a study
    prediction: BiasPrediction | None
    places: np.ndarray | None  # of the rows of the table in the prediction's arrays, (d,), or None
    # predictions of the rows that the run was fitted to, where none is held out and they are
    # available; else None
    fitted: HeldOutScores | None
    fitted_observed: np.ndarray | None  # their responses, or None
    model: Any  # the model, or None without a study
    sites: Any  # the rows, or None likewise
    regression: Any  # of a formula, what gives results in the user's terms, or None
    algorithm: Any  # the method, or None likewise
    study: str | None  # the study file's text, or None
    skipped: tuple[str, ...]  # parts that are missing, each with the reason
    stein: Stein | None = None  # the draws beside the sites' gradients, where the run was verified
    natural: bool = False  # the model has natural quantities; they are what is shown

    @property
    def chains(self) -> int:
        """Chains of the result."""
        return int(self.tree["posterior"].sizes["chain"])

    @property
    def draws(self) -> int:
        """Kept draws of each chain."""
        return int(self.tree["posterior"].sizes["draw"])

    @property
    def names(self) -> list[str]:
        """The shown rows' names without ``variable[...]``, where the labels inside are enough."""
        return short_names(self.shown_table)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the study, from the record; nothing where it has none."""
        settings = self.record.get("settings")
        return settings if isinstance(settings, Mapping) else {}

    @property
    def fitted_settings(self) -> Mapping[str, Any]:
        """A formula's settings, from the record; those of the study of another model."""
        settings = self.settings.get("regression", self.settings)
        return settings if isinstance(settings, Mapping) else {}

    @functools.cached_property
    def sampled(self) -> Tabled:
        """The summary of what was sampled, beside the reference."""
        theirs = self.reference_table
        if self.natural and self.reference is not None:
            theirs = tabulate(self.reference)
        return Tabled(
            self.table.columns, short_names(self.table), None if theirs is None else theirs.columns
        )

    @property
    def named(self) -> Tabled:
        """The summary of what is shown, by short names."""
        return Tabled(self.shown_table.columns, self.names)

    @property
    def beside(self) -> str:
        """Reference of the run, in words; "" without one."""
        record = self.reference_record
        if record is None:
            return ""
        return "NUTS on the pooled data" if record["algorithm"] == "nuts" else record["algorithm"]

    @property
    def verdict(self) -> Verdict:
        """Verdict on the run, with its reasons."""
        shown = Tabled(self.shown_table.columns, self.shown_table.coordinates)
        evidence = Evidence.of(self.tree, self.table, self.sampled.reference, self.stein, shown)
        return judge(self.prediction, evidence)

    @property
    def worst(self) -> Worst:
        """The worst numbers of the chains as they were sampled, by the names of what is shown."""
        table, errors = self.table, self.sampled.shift_errors
        r_hat = float(table["r_hat"].max())
        ess = float(np.minimum(table["ess_bulk"], table["ess_tail"]).min())
        if errors is None:
            return Worst(r_hat, ess, None, math.nan, None)
        shift, ratio = table["shift"], table["sd_ratio"]
        worst = int(np.abs(shift).argmax())
        name = self.named.farthest_beside(self.sampled.names[worst])
        return Worst(
            r_hat,
            ess,
            (abs(float(shift[worst])), name),
            float(errors.max()),
            (float(ratio.min()), float(ratio.max())),
        )

    def predicted(self, column: str) -> np.ndarray | None:
        """Return ``shift`` or ``sd_ratio`` of the predicted bias, in the table's order, or None."""
        if self.prediction is None:
            return None
        values = {"shift": self.prediction.shift, "sd_ratio": self.prediction.sd_ratio}[column]
        return None if values is None else values[self.places]

    def json(self) -> str:
        """Return the numbers as JSON; what is not available is null."""

        def rows(table: Summary | None) -> list[dict[str, Any]] | None:
            if table is None:
                return None
            return [
                {"name": name} | {key: values[row] for key, values in table.columns.items()}
                for row, name in enumerate(table.coordinates)
            ]

        content = {
            "title": self.title,
            **self.verdict.plain(),
            "worst": vars(self.worst),
            "prediction": None if self.prediction is None else self.prediction.plain(),
            "stein": None if self.stein is None else self.stein.plain(),
            "parameters": rows(self.shown_table if self.natural else self.table),
            "unconstrained_parameters": rows(self.table if self.natural else None),
            "parameters_in_column_units": rows(self.shown_table if self.natural else None),
            "notes": self.shown_table.notes,
            "held_out_rows": self.held_out_rows,
            "scores": self.scores and self.scores.values,
            "reference_scores": self.reference_scores and self.reference_scores.values,
            "run": self.record,
            "reference": self.reference_record,
            "not_done": self.skipped,
        }
        return json.dumps(_plain(content), indent=1, allow_nan=False) + "\n"


def report_of(
    tree: Any,
    *,
    name: str = "run",
    title: str | None = None,
    model: Model | None = None,
    sites: Any = None,
    algorithm: Any = None,
    held_out: Any = None,
    labels: Labels | None = None,
    reference: Any = None,
    skipped: tuple[str, ...] = (),
    study: str | None = None,
    regression: Any = None,
    stein: Stein | None = None,
) -> RunReport:
    """Return the report of a result in memory.

    Args:
        tree: what `consortia.sample` or `consortia.open_run` returned.
        name: short, to tell runs apart.
        title: one line.
        model: for the predictive scores and the predicted bias.
        sites: for the predicted bias, which is not made without them, and who contributed what.
        algorithm: for the predicted bias and the picture of the network.
        held_out: rows for the predictive scores, a dict with the responses under ``y``.
        labels: by variable, the names along its axes, counted from the last one.
        reference: another result of the same model, e.g. of NUTS on the pooled data.
        skipped: what is left out, each with the reason.
        study: the study file's text.
        regression: of a formula, for the effects by site.
        stein: what `consortia.verify` found.

    Raises:
        InputError: the result holds no draws, or the reference is of another model.
    """
    if "posterior" not in getattr(tree, "children", ()):
        raise wrong("tree", " holds no draws: pass the result of consortia.sample.")
    for group in DRAWS:
        if group in tree.children:  # read once: every look would read the chunks of a store again
            tree[group].load()
    natural, both = has_natural(tree), (tree, reference)
    whole, whole_beside = (labelled(result, labels or {}) for result in both)
    tree, reference = map(as_sampled, both)
    shown, shown_reference = (labelled(result, labels or {}) for result in (tree, reference))
    table = shown_table = summary(shown, reference=shown_reference, units="sampled")
    reference = shown_reference = _in_order(shown_reference, shown)
    if natural:
        shown, shown_table = whole, summary(whole, reference=whole_beside)
        if whole_beside is not None:
            shown_reference = _in_order(whole_beside, shown)
    prediction = prediction_in(tree)
    at_hand = not (model is None or sites is None or algorithm is None)
    if at_hand and (prediction is None or prediction.open):
        prediction = predict_bias(cast(Model, model), sites, algorithm)
    record = _record(tree)
    rows = None if held_out is not None or sites is None else _fitted_rows(sites)
    return RunReport(
        name=name,
        title=title or record.get("title") or name,
        tree=tree,
        table=table,
        shown=shown,
        shown_table=shown_table,
        record=record,
        reference=reference,
        shown_reference=shown_reference,
        reference_table=None if shown_reference is None else tabulate(shown_reference),
        reference_record=None if reference is None else _record(reference),
        scores=held_out_scores(tree, model, held_out),
        reference_scores=held_out_scores(reference, model, held_out),
        observed=None if held_out is None else held_out.get("y"),
        held_out_rows=0 if held_out is None else len(next(iter(held_out.values()))),
        prediction=prediction,
        places=prediction.places(_names(tree)) if prediction and prediction.names else None,
        fitted=held_out_scores(tree, model, rows),
        fitted_observed=None if rows is None else rows.get("y"),
        model=model,
        sites=sites,
        regression=regression,
        algorithm=algorithm,
        study=study,
        skipped=(*skipped, *_without_scores(skipped, model, held_out)),
        stein=stein,
        natural=natural,
    )


def load_run(path: str | os.PathLike[str], *, code: bool = False) -> RunReport:
    """Return the report of a run directory, finished or not.

    The model, the held-out rows and the predicted bias come from the copy of the study in the
    directory; where that cannot be built any more, the report names it among what is skipped.

    Args:
        path: a directory written by ``consortia run`` or ``sample(..., store=...)``.
        code: run the study's factory, if it has one: it is code, and runs with your rights. One
            that `consortia run` ran before on this machine needs no such word.

    Raises:
        StoreError: there is no run, or no draw in it yet.
    """
    directory = Path(path)
    tree = open_run(directory)
    if "predictions" in tree.children:
        raise StoreError(
            f"{str(path)!r} holds predictions but no draws, so no report can be made: see the "
            "group `predictions` of consortia.open_run."
        )
    if "posterior" not in tree.children or not tree["posterior"].sizes.get("draw", 0):
        raise StoreError(
            f"{str(path)!r} holds no draws yet: wait for the first chunk of the run, then try "
            "again."
        )
    facts: dict[str, Any] = {"name": directory.name}
    _load(tree, directory)
    if (directory / REFERENCE).is_dir():
        reference = open_run(directory / REFERENCE)
        _load(reference, directory / REFERENCE)
        facts["reference"] = reference
    more: tuple[str, ...] = ()
    if os.path.lexists(directory / VERIFICATION):
        facts["stein"], more = _verified(directory)
    missing = f"the directory has no {REQUEST[0]}"
    if os.path.lexists(directory / REQUEST[0]):
        # Of an error nothing is said: a page may be passed on, a data file may not.
        missing = f"the study cannot be built here: `consortia check {REQUEST[0]}` says why"
        try:
            facts["study"] = read_regular(directory / REQUEST[0], STUDY_BYTES).decode()
            objects = _built(directory, code=code)
        except (ConsortiaError, OSError, ValueError, RecursionError):
            objects = None
        if isinstance(objects, str):
            missing = objects
        elif objects is not None:
            return report_of(tree, **facts, **objects, skipped=more)
    note = f"model, scores and predicted bias: {missing}"
    return report_of(tree, **facts, skipped=(note, *more))


def _verified(directory: Path) -> tuple[Stein | None, tuple[str, ...]]:
    """Return the finding of `consortia run --verify` in a directory.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        verification = json.loads(read_regular(directory / VERIFICATION, STUDY_BYTES))
        stein = None if verification["stein"] is None else Stein.read(verification["stein"])
        return stein, tuple(map(str, verification["skipped"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise StoreError(f"{directory / VERIFICATION} is damaged: {error}.") from error


def _load(tree: Any, directory: Path) -> None:
    """Read the draws of a result, and refuse anything but a result of ours.

    Raises:
        StoreError: there are no draws, they are damaged, or not those of chains.
    """
    if "posterior" not in tree.children:
        raise StoreError(f"{str(directory)!r} holds no draws.")
    for group in DRAWS:
        if group in tree.children:
            try:
                tree[group].load()
            except Exception as error:  # a checksum, a length, a codec: whatever Zarr finds
                raise StoreError(
                    f"{str(directory)!r}: the draws in {group!r} are damaged "
                    f"({type(error).__name__})."
                ) from error
    for name, array in tree["posterior"].data_vars.items():
        if array.dims[:2] != ("chain", "draw") or array.dtype.kind != "f":
            raise StoreError(f"{str(directory)!r}: {name!r} does not hold draws of chains.")


def _built(directory: Path, *, code: bool) -> dict[str, Any] | str:
    """Return the study's objects and its title, or why they are not made.

    Its data files are where the study came from.
    """
    from consortia.study.build import load_study  # half a second that a result in memory saves
    from consortia.study.code import WARNING, may_run

    request, origin = directory / REQUEST[1], None
    if os.path.lexists(request):
        command = json.loads(read_regular(request, STUDY_BYTES))
        source = command.get("study") if isinstance(command, dict) else None
        origin = Path(source) if isinstance(source, str) else None
    study = load_study(directory / REQUEST[0], origin=origin)
    if not may_run(*study.code, code=code):
        return f"the factory {study.model.factory} was not run: {WARNING} (--code runs it)"
    built = study.build()
    return {
        "title": study.title or study.name,
        "model": built.model,
        "sites": built.rows,
        "algorithm": built.algorithm,
        "held_out": built.held_out,
        "labels": built.labels,
        "regression": built.regression,
    }


def by_weight(values: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return draws repeated in proportion to their step weights, their order kept."""
    if weights is None:
        return values
    count = values.shape[1]
    out = np.empty_like(values)
    for chain, chain_weights in enumerate(np.broadcast_to(weights, values.shape[:2])):
        ends = np.cumsum(chain_weights) / chain_weights.sum()
        take = np.searchsorted(ends, (np.arange(count) + 0.5) / count)
        out[chain] = values[chain, np.minimum(take, count - 1)]
    return out


def short_names(table: Summary) -> list[str]:
    """Return the rows' names without ``variable[...]``, where the labels inside are enough."""
    return shortened(table.coordinates)


def shortened(coordinates: Sequence[str]) -> list[str]:
    """Return names without ``variable[...]``, as `short_names` does."""
    names, inner = list(coordinates), []
    for name in names:
        variable, _, rest = name.partition("[")
        label = rest.removesuffix("]")
        if label.replace(", ", "").isdigit():
            return names
        scale = ", in sd" if variable == "effects_in_sd" else ""  # labels are of effects
        end = ", intercept" if variable == "intercept" else ""  # labels are of a response's levels
        inner.append(f"{label}{end}{scale}" if label else name)
    return inner if len(set(inner)) == len(inner) else names


def labelled(tree: Any, labels: Labels) -> Any:
    """Return the result with names along the axes of its posterior's variables, where they fit."""
    if tree is None or not labels:
        return tree
    return _posterior_tree(tree, with_labels(tree["posterior"].to_dataset(), labels))


def _posterior_tree(tree: Any, posterior: Any) -> Any:
    """Return a result with another posterior, and without the groups that share no labels."""
    import xarray

    kept = (name for name in DRAWS[1:] if name in tree.children)
    groups = {"/posterior": posterior} | {f"/{name}": tree[name].to_dataset() for name in kept}
    made = xarray.DataTree.from_dict(groups)
    made.attrs.update(tree.attrs)
    return made


def _without_scores(skipped: tuple[str, ...], model: Model | None, held_out: Any) -> list[str]:
    """Explain the absence of predictive scores, where that is not explained already."""
    if model is not None and held_out is None:
        if any(note.startswith("predictive scores:") for note in skipped):
            return []
        return ["predictive scores: the study has no held-out rows"]
    if model is not None and model.predict is None:
        return ["predictive scores: the model has no predict function"]
    return []


def _in_order(reference: Any, of: Any) -> Any:
    """Return a reference with its variables in the order of a result."""
    if reference is None:
        return None
    return _posterior_tree(reference, reference["posterior"].to_dataset()[_names(of)])


def _names(tree: Any) -> list[str]:
    return list(tree["posterior"].data_vars)


def held_out_scores(tree: Any, model: Model | None, held_out: Any) -> HeldOutScores | None:
    """Return predictions of a result on held-out rows and their scores; None where one is None."""
    if tree is None or model is None or held_out is None or model.predict is None:
        return None
    means = np.asarray(predict(tree, model, held_out, max_draws=MOST_DRAWS))
    response = held_out.get("y")
    if means.ndim == 2 and response is not None:
        event = means[:, 1] if means.shape[1] == 2 else None
        return HeldOutScores(
            scores(means, response), calibration_curve(means, response), event=event
        )
    density = log_predictive_density(tree, model, held_out, max_draws=MOST_DRAWS)
    density_score = {"log_density_per_row": float(density.mean())}
    if means.ndim != 1 or response is None:
        return HeldOutScores(density_score)
    yes_or_no = bool(np.isin(response, (0, 1)).all() and (means > 0).all() and (means < 1).all())
    values = {"rmse": rmse(means, response)} | density_score
    return HeldOutScores(values, means=means, event=means if yes_or_no else None)


def _fitted_rows(sites: Any) -> dict[str, np.ndarray] | None:
    """Return rows of all sites, evenly spaced where there are many; None where some are not here.

    A model with a likelihood of a site has more than rows in a shard; it predicts from the same.
    """
    if sites.elsewhere or not all(isinstance(shard, Mapping) for shard in sites.shards):
        return None
    rows = {
        name: np.concatenate([np.asarray(shard[name]) for shard in sites.shards])
        for name in sites.shards[0]
    }
    every = max(1, -(-len(next(iter(rows.values()))) // MOST_FITTED))
    return {name: values[::every] for name, values in rows.items()}


def _record(tree: Any) -> dict[str, Any]:
    """Return all attributes, decoded."""
    return {name: decoded(value) for name, value in tree.attrs.items()}


def _plain(value: Any) -> Any:
    """Return the value as JSON has it: NumPy numbers as numbers, what is not finite as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

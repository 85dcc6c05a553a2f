"""What a report speaks of: one run with all that can be known of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from consortia.errors import ConsortiaError, InputError, StoreError
from consortia.report import Report, gather, labelled
from consortia.store.runs import REQUEST, open_run
from consortia.theory.bias import BiasPrediction, predict_bias

REFERENCE = "reference"


@dataclass(frozen=True, eq=False)
class Subject:
    """A run and what is known of it.

    Attributes:
        name: short, to tell runs apart.
        tree: the result, with names along the axes where there are some.
        report: its table, its predictions, its record.
        record: its attributes, JSON ones read.
        reference: the result that it stands beside, or None.
        prediction: the bias that the method's oracle predicts, or None where no study is at hand.
        places: of the rows of the table in the prediction's arrays, (d,), or None.
        model: the model, or None where no study is at hand.
        algorithm: the method, or None likewise.
        observed: held-out responses, or None.
        study: the study file's text, or None.
    """

    name: str
    tree: Any
    report: Report
    record: Mapping[str, Any]
    reference: Any
    prediction: BiasPrediction | None
    places: np.ndarray | None
    model: Any
    algorithm: Any
    observed: np.ndarray | None
    study: str | None

    @property
    def finished(self) -> bool:
        """Whether the run says how it ended."""
        return "stopped" in self.record

    @property
    def chains(self) -> int:
        """Chains of the result."""
        return int(self.tree["posterior"].sizes["chain"])

    @property
    def draws(self) -> int:
        """Kept draws of each chain."""
        return int(self.tree["posterior"].sizes["draw"])

    def predicted(self, column: str) -> np.ndarray | None:
        """``shift``, ``sd_ratio``, ``mean`` or ``sd`` of the prediction, in the table's order."""
        values = None if self.prediction is None else getattr(self.prediction, column)
        return None if values is None else values[self.places]


def load_run(path: str | os.PathLike[str]) -> Subject:
    """Everything that a run directory says, and what its study file adds to it.

    The model, the held-out rows and the predicted bias come from the copy of the study in the
    directory; where that cannot be built any more, the report names it and goes on.

    Args:
        path: a directory written by ``consortia run`` or ``sample(..., store=...)``; the run need
            not be finished.

    Raises:
        StoreError: there is no run, or no draw in it yet.
    """
    directory = Path(path)
    tree = open_run(directory)
    if "predictions" in tree.children:
        raise StoreError(
            f"{str(path)!r} keeps predictions and no draws, of which a report could be made: look "
            "at the group `predictions` of consortia.open_run."
        )
    if "posterior" not in tree.children or not tree["posterior"].sizes.get("draw", 0):
        raise StoreError(
            f"{str(path)!r} holds no draw yet: wait for the first chunk of the run, and ask again."
        )
    beside = directory / REFERENCE
    reference = open_run(beside) if beside.is_dir() else None
    study_file = directory / REQUEST[0]
    if not study_file.is_file():
        note = f"model, scores and predicted bias: there is no {REQUEST[0]} in the directory"
        return subject_of(tree, name=directory.name, reference=reference, skipped=(note,))
    text = study_file.read_text(encoding="utf-8")
    try:
        built, title = _built(directory)
    except ConsortiaError as error:
        note = f"model, scores and predicted bias: the study cannot be read again ({error})"
        return subject_of(
            tree, name=directory.name, reference=reference, skipped=(note,), study=text
        )
    return subject_of(
        tree,
        name=directory.name,
        title=title,
        model=built.model,
        sites=built.sites,
        algorithm=built.algorithm,
        held_out=built.held_out,
        labels=built.labels,
        reference=reference,
        study=text,
    )


def _built(directory: Path) -> tuple[Any, str]:
    """The study's objects and its title; its data files are where the study came from."""
    from consortia.study.build import load_study

    request, origin = directory / REQUEST[1], None
    if request.is_file():
        asked = json.loads(request.read_text(encoding="utf-8"))
        origin = Path(asked["study"]) if isinstance(asked, dict) and "study" in asked else None
    study = load_study(directory / REQUEST[0], origin=origin)
    return study.build(), study.title or study.name


def subject_of(
    tree: Any,
    *,
    name: str = "run",
    title: str | None = None,
    model: Any = None,
    sites: Any = None,
    algorithm: Any = None,
    held_out: Any = None,
    labels: Any = None,
    reference: Any = None,
    skipped: tuple[str, ...] = (),
    study: str | None = None,
) -> Subject:
    """A result in memory as the subject of a report.

    Args:
        tree: what `consortia.sample` or `consortia.open_run` returned.
        name: short, to tell runs apart.
        title: one line.
        model: for the predictive scores and the predicted bias.
        sites: likewise, for the predicted bias.
        algorithm: likewise.
        held_out: rows for the predictive scores, a dict with the responses under ``y``.
        labels: by variable, the names along its axes, counted from the last one.
        reference: another result of the same model, e.g. of NUTS on the pooled data.
        skipped: what is left out, each with the reason.
        study: the study file's text.

    Raises:
        InputError: the result holds no draws, or the reference is of another model.
    """
    if "posterior" not in getattr(tree, "children", ()):
        raise InputError("the result holds no draws: give what consortia.sample returned.")
    for group in ("posterior", "sample_stats"):
        if group in tree.children:  # read once: every look would read the chunks of a store again
            tree[group].load()
    report = gather(
        title or name, tree, model, held_out, reference=reference, labels=labels, skipped=skipped
    )
    prediction = None
    if None not in (model, sites, algorithm):
        prediction = predict_bias(model, sites, algorithm)
    shown = labelled(tree, labels or {})
    return Subject(
        name=name,
        tree=tree,
        report=report,
        record={key: _read(value) for key, value in tree.attrs.items()},
        reference=None if reference is None else labelled(reference, labels or {}),
        prediction=prediction,
        places=_places(shown, prediction),
        model=model,
        algorithm=algorithm,
        observed=None if held_out is None else held_out.get("y"),
        study=study,
    )


def _places(tree: Any, prediction: BiasPrediction | None) -> np.ndarray | None:
    """Where the rows of the result's table are in the flat position, variable by variable."""
    if prediction is None or not prediction.names:
        return None
    owners = np.array([name.partition("[")[0] for name in prediction.names], dtype=object)
    return np.concatenate([np.flatnonzero(owners == name) for name in tree["posterior"].data_vars])


def _read(value: Any) -> Any:
    """An attribute as it was before `consortia.store.results.plain_attributes`."""
    if isinstance(value, str) and value[:1] in ("{", "[", "t", "f", "n"):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            return value
    return value

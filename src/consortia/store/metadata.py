"""Names of what a run samples: its title, its parameters, its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consortia.errors import InputError, wrong

Labels = Mapping[str, Sequence[Sequence[str] | None]]


@dataclass(frozen=True)
class Metadata:
    """Descriptions that a run keeps beside its draws; see `consortia.sample`.

    Attributes:
        title: one line.
        labels: by variable, the names along its axes, counted from the last one: a sequence of
            names, or None for an axis without any; ``{"beta": [["age", "sex"]]}``.
        settings: plain values, as in JSON: the study, the model's kind and priors.

    Example:
        >>> Metadata(labels={"beta": [["age", "sex"]]}).labels["beta"]
        [['age', 'sex']]
    """

    title: str | None = None
    labels: Labels = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def record(self) -> dict[str, Any]:
        """The entries of a run's record; what is not known is left out."""
        entries = {
            "title": self.title,
            "settings": dict(self.settings),
        }
        return {name: value for name, value in entries.items() if value}

    @property
    def plain(self) -> dict[str, Any]:
        """The whole as JSON holds it, for `read`."""
        return self.record | {"labels": {name: list(axes) for name, axes in self.labels.items()}}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Metadata:
        """Restore it from the result of `plain`."""
        return cls(values.get("title"), values.get("labels", {}), values.get("settings", {}))


def check_metadata(metadata: Any, shapes: Mapping[str, tuple[int, ...]]) -> Metadata:
    """Return the metadata, or empty ones; refuse labels that do not fit the variables' shapes."""
    if metadata is None:
        return Metadata()
    if not isinstance(metadata, Metadata):
        raise wrong("metadata", f" is {metadata!r}: give a consortia.Metadata.")
    for name, axes in metadata.labels.items():
        if name not in shapes:
            raise InputError(
                f"metadata.labels: there is no variable {name!r}; there are: {', '.join(shapes)}."
            ).at("metadata.labels")
        if isinstance(axes, str) or any(isinstance(axis, str) for axis in axes):
            raise InputError(
                f"metadata.labels[{name!r}]: give a sequence of names for each axis, the last axis "
                "last, or None."
            ).at("metadata.labels")
        if len(axes) > len(shapes[name]):
            raise InputError(
                f"metadata.labels[{name!r}] names {len(axes)} axes, the variable has "
                f"{len(shapes[name])}."
            ).at("metadata.labels")
        for length, axis in zip(reversed(shapes[name]), reversed(axes), strict=False):
            if axis is not None and len(axis) != length:
                raise InputError(
                    f"metadata.labels[{name!r}] has {len(axis)} names for an axis of {length}."
                ).at("metadata.labels")
    return metadata


def with_labels(dataset: Any, labels: Labels) -> Any:
    """Return a dataset with names along the axes of its variables, where they fit."""
    names = {}
    for variable in dataset.data_vars:
        dims = [dim for dim in dataset[variable].dims if dim not in ("chain", "draw")]
        axes = labels.get(str(variable), ())
        for dim, axis in zip(reversed(dims), reversed(axes), strict=False):
            if axis is not None and len(axis) == dataset.sizes[dim]:
                names[dim] = np.array([str(name) for name in axis], dtype=object)
    return dataset.assign_coords(names) if names else dataset


def decoded(value: Any) -> Any:
    """Return an attribute as it was before `consortia.store.results.plain_attributes`."""
    if isinstance(value, str) and value[:1] in ("{", "[", "t", "f", "n"):
        try:
            return json.loads(value)
        except (json.JSONDecodeError, RecursionError):
            return value
    return value


def recorded(tree: Any, name: str) -> Any:
    """Return an entry of a result's record; None where there is none, as of draws in a mapping."""
    return decoded(getattr(tree, "attrs", {}).get(name))

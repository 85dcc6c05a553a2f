"""Errors of a study file, in sentences with the dotted key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel

from consortia.core.arguments import unknown
from consortia.data.harmonisation import Harmonisation
from consortia.study.tables import PARTITIONS


def explained(error: Mapping[str, Any], study: type[BaseModel]) -> str:
    """Return one of pydantic's errors on a study as a sentence with the dotted key."""
    location = [part for part in error["loc"] if isinstance(part, str)]
    table: Any = study
    if location[:1] == ["partition"] and len(location) > 1:  # pydantic puts the kind in between
        table = PARTITIONS[location.pop(1)]
    elif location[:1] == ["harmonise"]:
        table = Harmonisation
    elif len(location) > 1:
        table = _table(study, location[0])
    if error["type"] == "union_tag_invalid":
        kind = str(error["ctx"]["tag"])
        return f"partition.kind = {kind!r}: {unknown(kind, PARTITIONS)}."
    if error["type"] == "union_tag_not_found":
        return "partition.kind is missing."
    return explained_at(location, error, table)


def explained_at(location: Sequence[str], error: Mapping[str, Any], table: type[BaseModel]) -> str:
    """Return one of pydantic's errors on a key of a table as a sentence."""
    key, value = ".".join(location), error["input"]
    if error["type"] == "extra_forbidden":
        what = f"the table [{key}]" if isinstance(value, dict) else f"{key} = {value!r}"
        return f"{what}: {unknown(location[-1], table.model_fields)}."
    if error["type"] == "missing":
        field = table.model_fields[location[-1]]
        what = f" ({field.description})" if field.description else ""
        return f"{key} is missing{what}."
    if error["type"] == "value_error":
        text = str(error["ctx"]["error"]).rstrip(".")
        return f"{text}." if not location or text.startswith(f"{key}.") else f"[{key}] {text}."
    message = error["msg"].removeprefix("Input ").rstrip(".")
    return f"{key} = {value!r}: it {message}."


def _table(study: type[BaseModel], name: str) -> Any:
    annotation = study.model_fields[name].annotation
    return next((choice for choice in get_args(annotation) if choice is not type(None)), annotation)

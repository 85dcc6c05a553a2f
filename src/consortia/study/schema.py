"""The JSON schema of a study file: every table, and the arguments of every algorithm and model.

Editors complete and check a study against it; `consortia.study.build` remains the judge.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any

from consortia import latency, schedules
from consortia.algorithms.registry import ALGORITHMS
from consortia.models.regression.construction import regression
from consortia.study.build import Study
from consortia.study.formulas import NOT_IN_FILE
from consortia.study.model import FROM_DATA, MODELS
from consortia.study.options import SCHEDULES, arguments

KINDS = {int: "integer", float: "number", bool: "boolean", str: "string"}

TABLES = {
    "data": "Data",
    "model": "ModelTable",
    "propensity": "Propensity",
    "registered": "Registered",
    "algorithm": "AlgorithmTable",
    "run": "Run",
    "stop": "Stop",
    "reference": "Reference",
    "output": "Output",
}
"""The tables of a study file, by the names of their definitions; [partition] has several kinds."""


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a study file, with all arguments of algorithms and models."""
    schema = Study.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "A study file of consortia"
    schema["description"] = _first(Study)
    tables = schema["$defs"]
    factories = {name: entry.factory for name, entry in ALGORITHMS.items()}
    _decide(tables["AlgorithmTable"], "name", factories)
    _decide(tables["ModelTable"], "kind", MODELS)
    properties = tables["ModelTable"]["properties"]
    tables["ModelTable"]["allOf"].append(
        {
            "if": {"properties": {"formula": {"type": "string"}}, "required": ["formula"]},
            "then": {
                "properties": {part: {} for part in properties}
                | argument_schemas(regression, NOT_IN_FILE),
                "required": [],
                "additionalProperties": False,
            },
        }
    )
    for key, name in TABLES.items():
        table_entry = schema["properties"][key]
        if text := tables[name].get("description"):  # python -OO has none
            table_entry["description"] = text.split("\n\n")[0].replace("\n", " ")
    return schema


def _decide(table: dict[str, Any], key: str, factories: Mapping[str, Callable[..., Any]]) -> None:
    """Let the value of one key of a table decide about the others."""
    entries = table["properties"]
    entries[key]["description"] += "; it determines the other keys"
    choice = {"enum": list(factories)}
    if "anyOf" in entries[key]:
        entries[key]["anyOf"] = [choice, {"type": "null"}]
    else:
        entries[key] |= choice
    table["allOf"] = []
    for name, factory in factories.items():
        properties: dict[str, Any] = {part: {} for part in entries} | argument_schemas(factory)
        needed = [
            argument
            for argument, parameter in arguments(factory).items()
            if parameter.default is parameter.empty and argument not in FROM_DATA
        ]
        table["allOf"].append(
            {
                "if": {"properties": {key: {"const": name}}, "required": [key]},
                "then": {
                    "properties": properties,
                    "required": needed,
                    "additionalProperties": False,
                },
            }
        )


def argument_schemas(
    factory: Callable[..., Any], elsewhere: Collection[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return type, description and default of every argument that a study file may give.

    Those in ``elsewhere`` are given by the file in another place.
    """
    texts, hints = described(factory), typing.get_type_hints(factory)
    schemas = {}
    for name, parameter in arguments(factory).items():
        if name in elsewhere:
            continue
        schema = _type(name, hints.get(name, Any))
        if name in texts:
            schema["description"] = texts[name]
        if parameter.default is not parameter.empty:
            default = "none" if parameter.default is None else parameter.default
            if isinstance(default, (bool, int, float, str, list)):
                schema["default"] = default
            elif isinstance(default, tuple):
                schema["default"] = list(default)
        schemas[name] = schema
    return schemas


def described(factory: Callable[..., Any]) -> dict[str, str]:
    """Return the descriptions of arguments; others stand at an algorithm of the same file."""
    texts: dict[str, str] = {}
    for entry in ALGORITHMS.values():
        if entry.factory.__module__ == factory.__module__:
            texts = _documented(entry.factory) | texts
    return texts | _documented(factory)


def _documented(factory: Callable[..., Any]) -> dict[str, str]:
    """Return the section Args of a docstring, by argument."""
    text = inspect.getdoc(factory) or ""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", text, re.DOTALL | re.MULTILINE)
    texts: dict[str, str] = {}
    if section is None:
        return texts
    for entry in re.split(r"\n(?=    \S)", section[1].rstrip()):
        names, _, words = entry.strip().partition(":")
        for name in names.split(","):
            texts[name.strip()] = " ".join(words.replace("``", "`").split())
    return texts


def _type(name: str, hint: Any) -> dict[str, Any]:
    """Return the schema of an argument; "none" where None is allowed."""
    if name == "step_size":
        table = _choice_of_tables("schedule", SCHEDULES, schedules)
        numbers = {"type": "array", "items": {"anyOf": [{"type": "number"}, table]}}
        return {"anyOf": [{"type": "number"}, numbers, table, {"const": "none"}]}
    if name == "latency":
        return {"anyOf": [_choice_of_tables("model", latency.MODELS, latency), {"const": "none"}]}
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kinds: list[dict[str, Any]] = [{"type": KINDS[part]} for part in parts if part in KINDS]
    if len(kinds) < len([part for part in parts if part is not type(None)]):
        return {}
    if type(None) in parts:
        kinds.append({"const": "none"})
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def _choice_of_tables(key: str, names: tuple[str, ...], module: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "description": f"a function of {module.__name__} and its arguments",
        "properties": {key: {"enum": list(names)}},
        "required": [key],
    }


def _first(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")

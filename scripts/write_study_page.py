"""Writes docs/study-file.md and examples/study.schema.json from the schema of a study file.

Run it after a change of a study's keys: ``make docs``. A test compares both with the schema.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from consortia.study.schema import TABLES, json_schema

ROOT = Path(__file__).resolve().parents[1]
PAGE, SCHEMA = ROOT / "docs" / "study-file.md", ROOT / "examples" / "study.schema.json"

HEAD = """# The study file

One TOML file says what is sampled, from which data, and how. `consortia check STUDY.toml` validates
it, `consortia run STUDY.toml` runs it; `examples/` has several to start from.

Unknown keys are refused with the nearest known one. `"none"` stands for None. Rounds are counted in
iterations of the algorithm, rows in rows of a site's data, seconds in seconds of wall time; step
sizes and scales are in the units of the parameters and of the response as they are after
`[data]` has scaled them.

Editors that know TOML schemas (the language server *taplo* in many of them) complete and check a
study whose first line is `#:schema study.schema.json`; `consortia schema > study.schema.json`
writes that file, and no network is needed.

This page is written by `make docs`.
"""


def page() -> str:
    """docs/study-file.md."""
    schema = json_schema()
    tables, parts = schema["$defs"], [HEAD]
    parts.append(
        "## At the top\n\n"
        + _rows({name: schema["properties"][name] for name in ("title", "question")}, [])
    )
    for key, name in TABLES.items():
        parts.append(_section(f"[{key}]", tables[name], own=True))
        if key == "data":
            parts += _partitions(schema)
            parts.append(_section("[harmonise.SITE]", tables["Harmonisation"], own=True))
        if key in ("model", "algorithm"):
            parts += _choices(key, tables[name])
        if key == "model":
            parts.append(f"## `[compare]`\n\n{schema['properties']['compare']['description']}\n")
    return "\n".join(parts)


def _section(title: str, table: dict[str, Any], *, own: bool) -> str:
    text = table.get("description", "")
    body = _rows(table["properties"], table.get("required", []))
    return f"## `{title}`\n\n{text}\n\n{body}" if own else f"### {title}\n\n{body}"


def _partitions(schema: dict[str, Any]) -> list[str]:
    where = schema["properties"]["partition"]
    kinds = next(one for one in where["anyOf"] if "discriminator" in one)
    parts = [
        "## `[partition]`\n\nHow a data set is divided among sites; its keys depend on `kind`.\n"
    ]
    for kind, reference in kinds["discriminator"]["mapping"].items():
        table = schema["$defs"][reference.rpartition("/")[2]]
        keys = {key: one for key, one in table["properties"].items() if key != "kind"}
        needed = [key for key in table.get("required", []) if key != "kind"]
        parts.append(f'### `kind = "{kind}"`\n\n{table["description"]}\n\n{_rows(keys, needed)}')
    return parts


def _choices(key: str, table: dict[str, Any]) -> list[str]:
    parts = []
    for branch in table["allOf"]:
        ((how, choice),) = branch["if"]["properties"].items()
        keys = {name: one for name, one in branch["then"]["properties"].items() if one}
        chosen = f'"{choice["const"]}"' if "const" in choice else "..."
        parts.append(f"### `{key}.{how} = {chosen}`\n\n{_rows(keys, branch['then']['required'])}")
    return parts


def _rows(keys: dict[str, Any], required: list[str]) -> str:
    lines = ["| key | values | default | meaning |", "|---|---|---|---|"]
    for name, one in keys.items():
        if name in required:
            default = "needed"
        elif one.get("default") is None:
            default = "–"
        else:
            default = f"`{json.dumps(one['default'], ensure_ascii=False)}`"
        meaning = re.sub(":math:`([^`]*)`", r"$\1$", one.get("description", "")).replace("|", "\\|")
        lines.append(f"| `{name}` | {_values(one)} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def _values(one: dict[str, Any]) -> str:
    if "anyOf" in one:
        return " or ".join(dict.fromkeys(_values(part) for part in one["anyOf"])) or "any"
    if "const" in one:
        return f"`{json.dumps(one['const'])}`"
    if "enum" in one:
        return "a name" if len(one["enum"]) > 4 else ", ".join(f"`{v}`" for v in one["enum"])
    kind = one.get("type", "any")
    kind = {"null": "left out", "object": "table"}.get(kind, kind)
    for key, sign in (
        ("minimum", "≥"),
        ("exclusiveMinimum", ">"),
        ("maximum", "≤"),
        ("exclusiveMaximum", "<"),
    ):
        if key in one:
            kind += f" {sign} {one[key]:g}"
    return kind


def schema_text() -> str:
    """examples/study.schema.json."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    SCHEMA.write_text(schema_text(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)} and {SCHEMA.relative_to(ROOT)}")

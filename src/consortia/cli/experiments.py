"""``consortia experiments``: the published studies that this project repeats.

Their programs live beside the package in the source tree and are not part of the wheel.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

from consortia.cli.exits import reported
from consortia.cli.options import Json
from consortia.errors import InputError

REGISTRY = Path("experiments") / "registry.py"


def experiments(
    as_json: Json = False,
) -> None:
    """List the experiments: what they repeat, their commands, scales and data."""
    with reported(as_json):
        module, root = registry()
        entries = [described(entry) for entry in module.EXPERIMENTS]
        if as_json:
            content = {"root": str(root), "scales": module.SCALES, "experiments": entries}
            typer.echo(json.dumps(content, indent=1, ensure_ascii=False))
            return
        _show(entries, module.SCALES, root)


def registry() -> tuple[ModuleType, Path]:
    """Return the table of the experiments and the source tree that holds it.

    Raises:
        InputError: neither the current folder nor the one of this package is a source tree.
    """
    roots = (Path.cwd(), Path(__file__).resolve().parents[3])
    for root in roots:
        path = root / REGISTRY
        if path.is_file():
            found = importlib.util.spec_from_file_location("experiments_registry", path)
            assert found is not None
            assert found.loader is not None
            module = importlib.util.module_from_spec(found)
            found.loader.exec_module(module)
            return module, root
    raise InputError(
        "the experiments come with the source tree, not with the installed package: get the "
        "source, and repeat the command from its root."
    )


def described(entry: Any) -> dict[str, Any]:
    """Return an experiment as plain values, with what is at hand of its data."""
    needed = {name: present(name) for name in entry.data}
    optional = {name: present(name) for name in entry.optional}
    return {
        "name": f"{entry.paper}.{entry.name}",
        "repeats": entry.repeats,
        "command": entry.command,
        "data": needed,
        "optional_data": optional,
        "ready": all(needed.values()),
    }


def present(name: str) -> bool:
    """Return True if the files of a data set are here; checksums are compared in reading.

    A set has one folder of its name, in CONSORTIA_DATA or in the cache.
    """
    from consortia.data.downloads import directories

    folders = [directory / name for directory in directories()]
    return any(folder.is_dir() and any(folder.iterdir()) for folder in folders)


def _show(entries: list[dict[str, Any]], scales: dict[str, str], root: Path) -> None:
    from rich.markup import escape
    from rich.table import Table

    from consortia.report.terminal import console_of

    shown = Table(title="Experiments", title_justify="left", show_lines=True)
    for head in ("repeats", "command", "data"):
        shown.add_column(head, overflow="fold", no_wrap=head == "command")
    for entry in entries:
        data = [f"{name}: {'here' if here else 'absent'}" for name, here in entry["data"].items()]
        data += [
            f"{name}: {'here' if here else 'absent, can do without'}"
            for name, here in entry["optional_data"].items()
        ]
        cells = (entry["repeats"], entry["command"], "\n".join(data) or "none needed")
        shown.add_row(*map(escape, cells))
    console = console_of()
    console.print(shown)
    scales_text = "; ".join(f"{scale}: {meaning}" for scale, meaning in scales.items())
    console.print(f"From {root}, each with --scale ({scales_text}) and --seed.", markup=False)

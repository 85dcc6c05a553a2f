"""What the studies share: the command line, the record of a run, the figure."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import consortia

SCALES = ("quick", "laptop", "paper")
OUTPUT = Path("runs/experiments")
"""Each paper has a folder in it."""

Study = Callable[[str, int], dict[str, Any]]
Draw = Callable[[dict[str, Any], Any], None]


def main(
    paper: str,
    name: str,
    figure: str,
    study: Study,
    draw: Draw,
    *,
    panels: int,
    arguments: list[str] | None = None,
) -> dict[str, Any]:
    """Runs a study from the command line and writes its record and its figure.

    Args:
        paper: folder of the study.
        name: of the study; the files are called ``name-scale.json`` and ``name-scale.png``.
        figure: what it repeats, in words.
        study: ``(scale, seed) -> results``, plain numbers, lists and dicts.
        draw: ``(results, axes)`` draws the results into a row of matplotlib axes.
        panels: number of axes.
        arguments: the command line; that of the process when None.

    Returns:
        The record that was written.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.{paper}.{name}", description=figure
    )
    parser.add_argument(
        "--scale",
        choices=SCALES,
        default="quick",
        help="quick: seconds; laptop: minutes; paper: the paper's own numbers (default: quick)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of data and samplers (default: 0)")
    folder = OUTPUT / paper
    parser.add_argument("--out", type=Path, default=folder, help=f"folder (default: {folder})")
    parser.add_argument("--no-figure", action="store_true", help="write the JSON record only")
    chosen = parser.parse_args(arguments)

    started = time.monotonic()
    results = study(chosen.scale, chosen.seed)
    record = {
        "experiment": name,
        "repeats": figure,
        "scale": chosen.scale,
        "seed": chosen.seed,
        "seconds": round(time.monotonic() - started, 1),
        **_circumstances(),
        "results": results,
    }
    chosen.out.mkdir(parents=True, exist_ok=True)
    path = chosen.out / f"{name}-{chosen.scale}.json"
    path.write_text(json.dumps(plain(record), indent=1) + "\n")
    print(f"wrote {path}")
    if not chosen.no_figure and set(results) != {"skipped"}:
        _write_figure(results, draw, panels, path.with_suffix(".png"))
    return record


def say(text: str) -> None:
    """One line of progress, at once."""
    print(text, flush=True)


def plain(value: Any) -> Any:
    """The value in JSON's own types, floats to six significant digits."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _circumstances() -> dict[str, Any]:
    import jax

    return {
        "date": datetime.date.today().isoformat(),
        "versions": {"consortia": consortia.__version__, "jax": jax.__version__},
        "hardware": f"{os.cpu_count()} {platform.machine()} cores, {jax.devices()[0].platform}",
    }


def _write_figure(results: dict[str, Any], draw: Draw, panels: int, path: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print("no figure: it needs matplotlib; pip install consortia[plots]", file=sys.stderr)
        return
    figure = Figure(figsize=(4.4 * panels, 3.4), layout="constrained")
    draw(results, figure.subplots(1, panels, squeeze=False)[0])
    FigureCanvasAgg(figure).print_png(path)
    print(f"wrote {path}")

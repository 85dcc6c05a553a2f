"""The command line of the programs of this package."""

from __future__ import annotations

import sys
from typing import Any

from experiments.fa_hmc import command

SCALES = command.SCALES
OUTPUT = "runs/experiments/fsgld"

say = command.say


def main(
    name: str,
    figure: str,
    study: command.Study,
    draw: command.Draw,
    *,
    panels: int,
    arguments: list[str] | None = None,
) -> dict[str, Any]:
    """Runs a study from the command line and writes its record and its figure, to `OUTPUT`."""
    given = sys.argv[1:] if arguments is None else arguments
    # First, so that a folder on the command line comes later and counts.
    given = ["--out", OUTPUT, *given]
    return command.main(name, figure, study, draw, panels=panels, arguments=given)

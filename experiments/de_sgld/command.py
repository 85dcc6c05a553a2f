"""The command line of these studies: that of all studies, with a folder of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from experiments.fa_hmc import command as shared

OUTPUT = Path("runs/experiments/de_sgld")
PAPER = "Gürbüzbalaban et al. (2021)"

say = shared.say


def main(
    name: str, figure: str, study: shared.Study, draw: shared.Draw, *, panels: int, arguments: Any
) -> dict[str, Any]:
    """Runs a study and writes its record and its figure; see `experiments.fa_hmc.command.main`."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    return shared.main(
        name,
        f"{PAPER}, {figure}",
        study,
        draw,
        panels=panels,
        arguments=["--out", str(OUTPUT), *given],  # another --out after it counts
    )

"""The command line of these studies: that of all studies, with the name of their paper."""

from __future__ import annotations

from typing import Any

from experiments import command as shared

PAPER = "Gürbüzbalaban et al. (2021)"

say = shared.say


def main(
    name: str, figure: str, study: shared.Study, draw: shared.Draw, *, panels: int, arguments: Any
) -> dict[str, Any]:
    """Runs a study and writes its record and its figure; see `experiments.command.main`."""
    return shared.main(
        "de_sgld", name, f"{PAPER}, {figure}", study, draw, panels=panels, arguments=arguments
    )

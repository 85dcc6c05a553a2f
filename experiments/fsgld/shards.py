"""Section 5.3, table 1, with the paper's 90,000 rows a shard: what its printed step does there.

The settings are those of `experiments.fsgld.table`. The drift of a step is h N/2 times a row's
gradient, and N is 2.7 million.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.claims import Finding
from experiments.fsgld import table
from experiments.fsgld.susy import susy_is_here

LOWEST = -2.0

# shards, rows of each, visits, seeds
SCALES = {"quick": (4, 300, 60, 1), "small": (30, 90_000, 500, 1), "full": (30, 90_000, 5000, 10)}


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return the cells of the table."""
    return table.cells(*SCALES[scale], seed, real=scale == "full" and susy_is_here())


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Count the chains of four that stay finite and score better than −2 a row."""
    cells = results["cells"]
    seeds = len({one["seed"] for one in cells})
    kept = [one for one in cells if one.get("train", -np.inf) > LOWEST]
    ends = [f"{c['method']} {c['shards']}: {c.get('ended') or format(c['train'], '.3g')}"
            for c in cells]  # fmt: skip
    shown = f"{len(kept)}; {', '.join(ends)}"
    return {"rows-finite": Finding(len(kept) / seeds if kept else None, shown=shown)}


draw = table.draw

"""The result of a run that has ended, with R-hat and ESS."""

from __future__ import annotations

from typing import Any, Literal

from consortia.run.recording import Recorder
from consortia.store import results
from consortia.store.runs import RunStore, open_run

DIAGNOSTICS_SHARE = 0.02
"""R-hat and ESS may take this share of a run; `consortia.summary` computes the rest on demand."""

DIAGNOSED_PER_SECOND = 4e6
"""Numbers that R-hat and ESS get through in a second, measured on one core at 4 × 1,000 draws."""

LONG_CHAIN, LONG_CHAIN_RATE = 10_000, 1.5e6
"""Draws a chain beyond which they get through fewer: the same at 200,000 draws."""


def finished(
    recorder: Recorder,
    writer: RunStore | None,
    record: dict[str, Any],
    state: str,
    groups: dict[str, Any],
) -> Any:
    """Return the tree of a run that has ended, with R-hat and ESS."""
    rate = LONG_CHAIN_RATE if recorder.kept > LONG_CHAIN else DIAGNOSED_PER_SECOND
    numbers = rate * DIAGNOSTICS_SHARE * record["seconds"]
    coordinates = int(numbers / max(recorder.kept * record["chains"], 1))
    if writer is not None:
        recorder.write()
    return diagnosed(writer, record, recorder.groups() | groups, state, coordinates)


def diagnosed(
    writer: RunStore | None,
    record: dict[str, Any],
    groups: dict[str, Any],
    state: str,
    coordinates: Literal["auto"] | int = "auto",
) -> Any:
    """Return a result with R-hat and ESS, of so many coordinates at the most, kept if stored."""
    from consortia.diagnostics.convergence import add_diagnostics

    if writer is None:
        tree = results.tree_of(groups, record)
    else:
        writer.finish(record, groups, state)
        tree = open_run(writer.path)
    if "posterior" in tree.children:
        add_diagnostics(tree, max_coordinates=coordinates)
        if writer is not None:
            writer.finish(record, {"diagnostics": tree["diagnostics"].to_dataset()}, state)
    return tree if writer is None else open_run(writer.path)

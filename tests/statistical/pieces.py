"""Outcomes of long tests, kept in the folder CONSORTIA_PIECES so that a stopped one goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def kept(name: str, make: Callable[[], Any]) -> Any:
    """Return the value made before, or make it and keep it; plain values, as in JSON.

    Without CONSORTIA_PIECES nothing is kept. What is kept belongs to one version of the source:
    empty the folder after a change.
    """
    folder = os.environ.get("CONSORTIA_PIECES")
    place = None if folder is None else Path(folder) / f"{name}.json"
    if place is not None and place.exists():
        return json.loads(place.read_text())
    made = make()
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(made))
    return made

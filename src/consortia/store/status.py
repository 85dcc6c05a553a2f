"""Progress of a run, in a file beside its record, for whoever watches it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from consortia.errors import StoreError
from consortia.store.durable import fresh, read_regular, written_beside

STATUS = "status.json"
STATUS_BYTES = 2**24


def write_status(directory: Path, values: Mapping[str, Any]) -> None:
    """Put the values in the place of the last ones; they need not outlive the machine."""
    content = json.dumps(values).encode()
    with written_beside(directory / STATUS) as part, open(part, "wb", opener=fresh) as file:
        file.write(content)


def read_status(directory: Path) -> dict[str, Any] | None:
    """Return the last values; None where there are none yet.

    Raises:
        StoreError: the file is damaged, or none of ours.
    """
    path = directory / STATUS
    if not os.path.lexists(path):
        return None
    from consortia.store.record import Status, fits  # pydantic is heavy

    try:
        status = json.loads(read_regular(path, STATUS_BYTES))
    except (OSError, ValueError, RecursionError):
        status = None
    if not isinstance(status, dict) or not fits(Status, status):
        raise StoreError(f"{str(path)!r} is damaged: it is not what was written.")
    return status

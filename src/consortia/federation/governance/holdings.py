"""Rows that a run used, recorded as digests of each row that stay at the site.

A run of rows that were in a run before, or of most of them, draws on the same budget, whatever the
study is. Where only a few rows came or went since, the difference of what two runs release says
what those rows are: such a run is refused.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from consortia.data.digest import ROW_BYTES
from consortia.store.durable import replace_file

FOLDER = "rows"
MOST_OF = 0.5
"""Share of the smaller of two sets of rows above which they are taken for the same data."""


class Known(NamedTuple):
    """Facts about some rows."""

    data: str  # name of the data whose budget they draw on
    # fewest rows that came or went since a run before; None where none or all did
    changed: int | None


class Holdings:
    """The rows of all runs of a site.

    Args:
        folder: of the site; the digests lie in ``rows`` there, a file for each set of rows.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER

    def known(self, rows: Sequence[bytes]) -> Known:
        """Return which data some rows are of; new data have a new name."""
        own, data, changed = Counter(rows), None, None
        for name, held in self._held():
            same = (own & held).total()
            if same <= MOST_OF * min(own.total(), held.total()):
                continue
            data = data or name
            difference = own.total() + held.total() - 2 * same
            if difference == 0:
                return Known(name, None)
            changed = difference if changed is None else min(changed, difference)
        return Known(data or secrets.token_hex(8), changed)

    def keep(self, data: str, rows: Sequence[bytes]) -> None:
        """Note rows as some of the data of this name."""
        if any(held == Counter(rows) for name, held in self._held() if name == data):
            return
        self._folder.mkdir(exist_ok=True, mode=0o700)
        path = self._folder / f"{data}-{secrets.token_hex(4)}.bin"
        replace_file(path, [b"".join(sorted(rows))], own=True)

    def _held(self) -> Iterator[tuple[str, Counter[bytes]]]:
        for path in sorted(self._folder.glob("*.bin")):
            content = path.read_bytes()
            rows = (content[at : at + ROW_BYTES] for at in range(0, len(content), ROW_BYTES))
            yield path.stem.partition("-")[0], Counter(rows)

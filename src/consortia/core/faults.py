"""Faults of several inputs, collected so that one error lists them all."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from consortia.errors import InputError

COLON = re.compile(": ")
REMEDY = 60
"""Characters of the start and of the end of a message from which on its end is said once."""


class Faults:
    """Collected input errors; `check` raises all of them as one."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        self._errors: list[InputError] = []

    @contextlib.contextmanager
    def noted(self, **places: Any) -> Iterator[None]:
        """Collect an `InputError` in the place of raising it, with the place where it was."""
        try:
            yield
        except InputError as error:
            self.take(error.at(**places))

    def __bool__(self) -> bool:
        """Return True if there are any."""
        return bool(self._texts)

    def __str__(self) -> str:
        """Return a line for each fault; what several end with, such as a remedy, ends the last."""
        lines, seen = [], set[str]()
        for line in reversed(self._texts):
            ends = [line[colon.end() :] for colon in COLON.finditer(line, REMEDY)]
            again = next((end for end in ends if end in seen and len(end) >= REMEDY), None)
            lines.append(line if again is None else line.removesuffix(f": {again}"))
            seen.update(ends)
        return "\n".join(reversed(lines))

    def add(self, text: str, **places: Any) -> None:
        """Collect a message."""
        self.take(InputError(text).at(**places))

    def take(self, error: InputError) -> None:
        """Collect an error, and the lines of its message, each once."""
        faults = error.faults or (error,)
        for fault in faults:  # whole, where the error says what they share once
            self._texts.update(dict.fromkeys(str(fault).splitlines()))
        self._errors += faults

    def check(self) -> None:
        """Raise one `InputError`, a line for each fault, where there are any."""
        if self:
            raise self.joined()

    def joined(self, error: InputError | None = None) -> InputError:
        """Return the one error, a given one or a new one, at the place of the first."""
        error, first = error or InputError(str(self)), self._errors[0]
        error.at(first.argument, site=first.site, file=first.file, line=first.line)
        error.faults = tuple(self._errors)
        return error

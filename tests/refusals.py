"""Refusals of what a user gave, told apart by their fields and not by their wording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from consortia.errors import ConsortiaError, InputError


@contextmanager
def refused(
    error: type[ConsortiaError] = InputError, *, match: str | None = None, **fields: object
) -> Iterator[pytest.ExceptionInfo[ConsortiaError]]:
    """Expect an error with these fields, such as ``argument`` or ``site``.

    Give ``match``, a few words, where two errors of one call have equal fields, and where words are
    made of what was given, as a remedy: all other wording is in ``tests/golden/messages.md``.
    """
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert {name: getattr(caught.value, name) for name in fields} == fields, caught.value

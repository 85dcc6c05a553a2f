"""Parameters of tests of which a few run quickly, and all in ``make test-all``."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def sparse(values: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Mark the values that are not ``quick`` as slow; each quick one must be among the values."""
    values = list(values)
    assert [each for each in quick if each not in values] == []
    slow = [each for each in values if each not in quick]
    return [*quick, *(pytest.param(*_parts(each), marks=pytest.mark.slow) for each in slow)]


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)

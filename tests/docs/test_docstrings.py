"""Every public name says what it takes, returns and raises, and shows how it is called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import consortia
from consortia import errors

pytestmark = pytest.mark.lint

PUBLIC = [consortia, errors] + [
    getattr(consortia, name)
    for name in consortia.__all__
    if inspect.ismodule(getattr(consortia, name))
]


def public_names() -> Iterator[tuple[str, Any]]:
    """Each public class and function once, under the first name that it has."""
    seen = []
    for module in PUBLIC:
        for name in module.__all__:
            found = getattr(module, name)
            own = inspect.isclass(found) or inspect.isroutine(found)
            if own and all(found is not one for one in seen):
                seen.append(found)
                yield f"{module.__name__}.{name}", found


NAMES = dict(public_names())


def sections(found: Any) -> set[str]:
    text = inspect.getdoc(found) or ""
    named = set(re.findall(r"^(Args|Attributes|Returns|Raises|Example):$", text, re.MULTILINE))
    return named | ({"example in doctest"} if ">>>" in text else set())


def is_record(found: type) -> bool:
    """A class whose construction only keeps what it was given, and so refuses nothing."""
    if issubclass(found, BaseException) or getattr(found, "_is_protocol", False):
        return True
    if issubclass(found, tuple):
        return True
    made = [one for one in found.__mro__ if one.__module__.startswith("consortia")]
    checked = any("__post_init__" in vars(one) for one in made)
    return hasattr(found, "__dataclass_fields__") and not checked


def test_there_are_public_names_to_be_walked() -> None:
    assert len(NAMES) > 140
    assert {"consortia.sample", "consortia.fa_hmc"} <= NAMES.keys()


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_documented(name: str) -> None:
    found = NAMES[name]
    said = sections(found)
    assert "example in doctest" in said
    if inspect.isclass(found):
        takes = issubclass(found, BaseException) or found.__doc__ is None
        parameters = [] if takes else list(inspect.signature(found).parameters)
        assert not parameters or said & {"Args", "Attributes"}
        assert is_record(found) or "Raises" in said
    else:
        assert not inspect.signature(found).parameters or "Args" in said
        assert "Returns" in said
        assert "Raises" in said

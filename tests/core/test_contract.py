"""What the contract between algorithms and engines holds, and what the guide says of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from consortia.core import contract, queries
from consortia.core.contract import Adaptive, Method, ServerBased, SurrogateBased

CAPABILITIES = (Adaptive, SurrogateBased, ServerBased)
FAMILY = {"averaging_weights", "prior_shares"}
"""Members that one class overrides, from which several methods inherit: averages, visits."""

GUIDE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")


def classes(base: type) -> Iterator[type]:
    """Yield the classes of the package below another."""
    for one in base.__subclasses__():
        yield from classes(one)
        if one.__module__.startswith("consortia.") and one not in CAPABILITIES:
            yield one


def overriding(member: str, base: type = Method) -> set[str]:
    """Return the classes that have a member of their own."""
    return {one.__name__ for one in classes(base) if member in vars(one)}


def members(base: type) -> set[str]:
    return {name for name in vars(base) if not name.startswith("_")}


def test_no_member_of_method_is_for_one_class_alone():
    assert len(overriding("claims")) > 10
    alone = {name for name in members(Method) if len(overriding(name)) == 1}
    assert alone == FAMILY


def test_every_member_of_a_capability_is_overridden_by_a_method_that_has_it():
    for capability in CAPABILITIES:
        assert not members(capability) & members(Method)
        for name in members(capability):
            assert overriding(name, capability), name
            assert overriding(name) == overriding(name, capability), name


def section(head: str) -> str:
    return GUIDE[GUIDE.index(f"## {head}\n") :].split("\n## ", 1)[0]


def names_of_the_contract() -> set[str]:
    """Return the names of the classes of the contract, and of their fields and members."""
    found: set[str] = set()
    for module in (contract, queries):
        for name, one in vars(module).items():
            if isinstance(one, type):
                found |= {name, *members(one), *vars(one).get("__annotations__", ())}
    return found


def test_every_hook_that_the_guide_names_is_one_of_the_contract():
    said = set(re.findall(r"`(\w+)`", section("The contract in short") + section("Queries")))
    elsewhere = {"known", "site", "FewRounds", "Panel", "unmeasured", "maximum_numbers"}
    assert {"evaluation", "disclosure", "noise", "shared"} <= said
    assert said - elsewhere <= names_of_the_contract()
    assert not {"asked", "told"} & names_of_the_contract()


def test_the_guide_has_every_field_of_a_site_function():
    rows = re.findall(r"^\| `(\w+)` \|", section("Queries"), re.MULTILINE)
    assert rows == [field.name for field in dataclasses.fields(queries.SiteFunction)]

"""What the sites write unlike one another: kinds, words and scales of one column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from consortia.data.columns import Guess, TableFacts
from consortia.data.mending import key, mend, text
from consortia.data.preparation import Moments
from consortia.data.writing import same_loosely, truth_of
from consortia.errors import InputError

if TYPE_CHECKING:
    from consortia.data.harmonisation import Harmonisation

Located = Callable[[int, str, str], str]
"""Where a level of a column is at a site, by the site's index."""

KINDS = {"number": "numbers", "truth": "True and False", "date": "dates", "text": "texts"}

FACTOR, FEWEST = 5.0, 10
"""Mean and sd of a column that differ by more between sites may be in another unit; of fewer rows
they say little."""


def common_kind(
    name: str, facts: Sequence[TableFacts], names: Sequence[str], located: Located
) -> str:
    """Return the kind of a column at all sites.

    Raises:
        InputError: it is of several; with the lines that mend it where its words say yes or no.
    """
    of: dict[str, list[int]] = {}
    for place, one in enumerate(facts):
        if (kind := one.kinds.get(name, "empty")) != "empty":
            of.setdefault(kind, []).append(place)
    if len(of) < 2:
        return next(iter(of), "empty")
    found = " and ".join(
        f"{KINDS[kind]} at site {names[places[0]]!r}" for kind, places in of.items()
    )
    lines = [f"the column {name!r} holds {found}: make it of one kind."]
    for place in of.get("text", []):
        for level in _levels(name, facts[place]):
            truth = truth_of(level)
            there = {"number": ("0", "1"), "truth": ("False", "True")}.get(
                next(kind for kind in of if kind != "text"), ("", "")
            )
            value = "..." if truth is None else there[truth]
            line = mend(names[place], f"recode.{key(name)}", f"{text(level)} = {text(value)}")
            lines.append(f"{located(place, name, level)}: {name} is {level!r}: {line}")
    raise InputError("\n".join(lines))


def _levels(name: str, facts: TableFacts) -> Sequence[str]:
    return facts.levels.get(name, facts.levels.get("response", ()))[:4]


def check_writing(
    column: str, parts: Mapping[str, Sequence[str]], names: Sequence[str], located: Located
) -> None:
    """Refuse levels that differ between sites in their writing only, with the lines that mend it.

    Args:
        column: its name.
        parts: levels by site.
        names: of the sites.
        located: says where a level is.
    """
    every = [level for levels in parts.values() for level in levels]
    lines = []
    for group in [*same_loosely(every), *_equal_numbers(parts)]:
        having = {one: [site for site, levels in parts.items() if one in levels] for one in group}
        most = max(group, key=lambda one: len(having[one]))
        for other in (one for one in group if one != most):
            for site in having[other]:
                line = mend(site, f"recode.{key(column)}", f"{text(other)} = {text(most)}")
                lines.append(
                    f"{located(names.index(site), column, other)}: {column} is {other!r}, and "
                    f"{most!r} at {', '.join(having[most])}: {line}"
                )
    if lines:
        raise InputError("\n".join(lines))


def _equal_numbers(parts: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return groups of levels of different sites that are one number, such as 1 and 1.0.

    Two writings at one site are two codes.
    """
    groups: dict[float, list[str]] = {}
    for level in dict.fromkeys(level for levels in parts.values() for level in levels):
        try:
            groups.setdefault(float(level.replace(",", ".")), []).append(level)
        except ValueError:
            continue
    return [
        group
        for group in groups.values()
        if len(group) > 1 and not any({*group} <= {*levels} for levels in parts.values())
    ]


def merged_order(
    column: str, parts: Sequence[Sequence[str]], others: Sequence[str]
) -> tuple[str, ...]:
    """Return one order of levels that all declared orders agree with, undeclared levels last.

    Raises:
        InputError: they contradict one another.
    """
    graph: dict[str, list[str]] = {}
    for levels in parts:
        for before, level in zip(("", *levels), levels, strict=False):
            graph.setdefault(level, []).extend([before] if before else [])
    try:
        found = tuple(TopologicalSorter(graph).static_order())
    except CycleError:
        orders = " and ".join(", ".join(levels) for levels in parts)
        raise InputError(
            f"the column {column!r} is declared with the orders {orders}: give levels = "
            f"{{ {key(column)} = [...] }}."
        ) from None
    return (*found, *(one for one in others if one not in found))


class Apart(NamedTuple):
    """A column whose numbers are larger or smaller at one site by a factor.

    Attributes:
        column: its name.
        site: where.
        size: |mean| and sd there.
        usual: the same elsewhere.
    """

    column: str
    site: str
    size: np.ndarray
    usual: np.ndarray

    @property
    def guess(self) -> Guess:
        """What is said of it."""
        line = mend(self.site, "scale", f"{key(self.column)} = 1")
        said = (
            f"{self.site}: {self.column} may be on another scale: its mean is {self.size[0]:.3g} "
            f"and its sd {self.size[1]:.3g}, elsewhere {self.usual[0]:.3g} and {self.usual[1]:.3g}"
        )
        return Guess(self.column, said, f"{line} confirms it, another factor mends it")


def scales_apart(
    moments: Mapping[str, Mapping[str, Moments]], harmonise: Mapping[str, Harmonisation]
) -> list[Apart]:
    """Return which columns are on another scale at a site, where the study does not say so.

    Args:
        moments: by column and site.
        harmonise: what is changed in a site's table, by site.
    """
    found = []
    for column, every in moments.items():
        sizes = {
            site: np.abs([one.mean, one.sd])
            for site, one in every.items()
            if one.rows >= FEWEST and one.mean and one.sd > 0 and not one.levels
        }
        if len(sizes) < 2:
            continue
        usual = _usual(list(sizes.values()))
        for site, size in sizes.items():
            ratio = size / usual
            said = site in harmonise and column in harmonise[site].scale
            if not said and ((ratio > FACTOR).all() or (ratio < 1 / FACTOR).all()):
                found.append(Apart(column, site, size, usual))
    return found


def _usual(sizes: Sequence[np.ndarray]) -> np.ndarray:
    """Return the median of the sites; of two the first."""
    return sizes[0] if len(sizes) == 2 else np.median(sizes, axis=0)

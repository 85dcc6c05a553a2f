"""Differences between sites in how they write one column: kinds, words and scales."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from consortia.data.columns import Guess, TableFacts
from consortia.data.mending import key, mend, text
from consortia.data.preparation import Moments
from consortia.data.writing import (
    abbreviations,
    loosely,
    one_slip,
    preferred,
    same_loosely,
    truth_of,
)
from consortia.errors import InputError

if TYPE_CHECKING:
    from consortia.data.harmonisation import Harmonisation


class Place(NamedTuple):
    """First place of a level of a column at a site."""

    where: str  # the file and the line, or the site
    written: str  # how it is written there


Located = Callable[[str, str, str], Place]
"""Finds a level of a column at a site: site, column and level."""

KINDS = {"number": "numbers", "truth": "True and False", "date": "dates", "text": "strings"}

TRUTHS = {"number": ("0", "1"), "truth": ("False", "True")}
"""Values of no and yes in a column of a kind."""

COMPARED = 100
"""So many levels at most are compared letter by letter."""

RECODED = 12
"""Levels of a site that are named where they are of another kind."""

FACTOR, FEWEST = 5.0, 10
"""Mean and sd of a column that differ by more between sites may be in another unit; of fewer rows
they say little."""

UNLIKE_SITES = 2.0
"""So many standard deviations of the logarithm of skewed numbers are between sites of one unit."""

FAR = 5.0
"""So many standard deviations between the means of two sites, their values do not overlap."""

SAME_RATIO = 1.3
"""Up to which the ratio of two means is that of the standard deviations."""


def common_kind(
    name: str,
    facts: Mapping[str, TableFacts],
    levels: Mapping[str, Sequence[str]],
    located: Located,
) -> str:
    """Return the kind of a column at all sites; ``levels`` are those that it has, by site.

    Raises:
        InputError: it is of several; with the lines that mend it, or what nothing can propose.
    """
    of: dict[str, list[str]] = {}
    for site, column_facts in facts.items():
        if (kind := column_facts.kinds.get(name, "empty")) != "empty":
            of.setdefault(kind, []).append(site)
    if len(of) < 2:
        return next(iter(of), "empty")
    contents = " and ".join(f"{KINDS[kind]} at site {sites[0]!r}" for kind, sites in of.items())
    wanted = next(common for common in ("number", "truth", "date") if common in of)
    lines = [f"the column {name!r} holds {contents}: make it of one kind."]
    for other, sites in of.items():
        if "date" in (other, wanted) and other not in ("text", wanted):
            lines.append(
                f"site {sites[0]!r}: {name} holds {KINDS[other]}, of which no line makes "
                f"{KINDS[wanted]}: leave {name} out of the formula, or correct the file."
            )
        elif other != wanted:
            for site in sites:
                words = TRUTHS["truth"] if other == "truth" else levels.get(site, ())
                lines += _recodings(name, wanted, site, words, located)
    raise InputError("\n".join(lines))


def _recodings(
    name: str, wanted: str, site: str, levels: Sequence[str], located: Located
) -> list[str]:
    """Return a line for each level of a site where other sites have another kind."""
    lines = []
    for level in levels[:RECODED]:
        where, written = located(site, name, level)
        truth = truth_of(level)
        remark = f"{where}: {name} is {written!r}"
        recode = f"recode.{key(name)}"
        if truth is not None and wanted in TRUTHS:
            change = f"{text(written)} = {text(TRUTHS[wanted][truth])}"
            lines.append(f"{remark}: {mend(site, recode, change)}")
            continue
        missing = mend(site, "missing_values", f"{key(name)} = [{text(written)}]")
        other = mend(site, recode, f'{text(written)} = "..."')
        lines.append(
            f"{remark}, and nothing says which of the {KINDS[wanted]} of the other sites that is: "
            f"{missing} where it stands for a missing value, or the value in {other}"
        )
    if len(levels) > RECODED:
        lines.append(
            f"site {site!r}: {name} holds {len(levels) - RECODED} further strings, which need a "
            "line of recode, too."
        )
    return lines


def check_writing(column: str, parts: Mapping[str, Sequence[str]], located: Located) -> None:
    """Refuse levels that differ between sites in writing only, with the lines that mend it."""
    every = [level for levels in parts.values() for level in levels]
    lines = []
    for group in [*same_loosely(every), *(_equal_numbers(parts) or _equal_truths(every))]:
        having = {w: [site for site, levels in parts.items() if w in levels] for w in group}
        most = preferred(group, {w: len(sites) for w, sites in having.items()})
        for other in (w for w in group if w != most):
            for site in having[other]:
                line = mend(site, f"recode.{key(column)}", f"{text(other)} = {text(most)}")
                where = located(site, column, other).where
                lines.append(
                    f"{where}: {column} is {other!r}, and "
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


def _equal_truths(levels: Sequence[str]) -> list[list[str]]:
    """Return groups of words for yes, and for no, where all levels are such words."""
    groups: dict[bool, dict[str, str]] = {}
    for level in levels:
        truth = truth_of(level)
        if truth is None:
            return []
        groups.setdefault(truth, {}).setdefault(loosely(level), level)
    return [list(group.values()) for group in groups.values() if len(group) > 1]


def nearly_equal(column: str, parts: Mapping[str, Sequence[str]]) -> list[Guess]:
    """Find levels that may be the same: m and male, a word with a slip at fewer sites."""
    having: dict[str, list[str]] = {}
    for site, levels in parts.items():
        for level in levels:
            having.setdefault(level, []).append(site)
    words = abbreviations(having)
    if len(having) <= COMPARED:
        for level, sites in having.items():
            like = [w for w in having if one_slip(w, level) and len(having[w]) > len(sites)]
            words |= {level: like[0]} if len(like) == 1 else {}
    guesses = []
    for level, word in words.items():
        for site in having[level]:
            line = mend(site, f"recode.{key(column)}", f"{text(level)} = {text(word)}")
            sentence = f"{site}: {column}: {level!r} is another level than {word!r}"
            confirm = f"levels of {column} in [model] confirm it, {line} mends it"
            guesses.append(Guess(column, sentence, confirm))
    return guesses


def without_common_levels(
    column: str, parts: Mapping[str, Sequence[str]], names: Sequence[str]
) -> list[Guess]:
    """Find sites that share no level of a column with another site."""
    doubts = []
    having = Counter(level for name in names for level in {*parts.get(name, ())})
    for site in names[1:] if len(names) == 2 else names:
        words = {*parts.get(site, ())}
        if words and all(having[level] == 1 for level in words) and len(having) > len(words):
            others = {*having} - words
            sentence = (
                f"{site}: no level of {column} is at another site ({_few(words)}; {_few(others)})"
            )
            levels = f"levels of {column} with all of them, in [model], confirms it"
            if len(words | others) <= RECODED:
                listed = ", ".join(map(text, sorted(words | others)))
                levels = f"[model] levels = {{ {key(column)} = [{listed}] }} confirms it"
            same = f"{text(min(words))} = {text(min(others))}"
            recode = mend(site, f"recode.{key(column)}", same)
            doubts.append(Guess(column, sentence, f"{levels}; to merge words: {recode}"))
    return doubts


def _few(levels: set[str]) -> str:
    shown = sorted(levels)[:3]
    return ", ".join(map(repr, shown)) + (", ..." if len(levels) > len(shown) else "")


def supports_apart(
    moments: Mapping[str, Mapping[str, Moments]], harmonise: Mapping[str, Harmonisation]
) -> list[Guess]:
    """Find columns that hold other numbers at a site than at any other.

    They are two codes that differ from those elsewhere, two codes where others have measurements,
    or numbers around a mean that is many standard deviations away: degrees of another scale.
    """
    guesses: list[Guess] = []
    for column, every in moments.items():
        confirmed = [s for s in every if s in harmonise and column in harmonise[s].scale]
        lows = {name: at_site.lower_of_two for name, at_site in every.items()}
        several = len({*lows.values()} - {None}) > 1
        measured = [name for name, at_site in every.items() if not at_site.levels][:2]
        for site, at_site in every.items():
            contents = ""
            if at_site.rows >= FEWEST:
                codes = _unlike_codes(site, lows[site], lows if several else {}, measured)
                contents = codes or _far_away(site, every)
            if not contents or site in confirmed:
                continue
            line = mend(site, "scale", f"{key(column)} = 1")
            guess = f"{line} confirms it, or recode it, or leave {column} out"
            guesses.append(Guess(column, f"{site}: {column} is {contents}", guess))
            if len(every) == 2:  # the other one differs as much
                break
        if len(every) == 2 and confirmed:
            guesses = [guess for guess in guesses if guess.column != column]
    return guesses


def _unlike_codes(
    site: str, low: float | None, lows: Mapping[str, float | None], measured: Sequence[str]
) -> str:
    """Return that a column is two codes, and not the same ones elsewhere; "" where it is not so.

    ``low`` is the lower one, ``lows`` are those of all sites where they differ, and ``measured``
    sites, two at most, at which the column has no codes.
    """
    if low is None or abs(low) > 9:  # two years, or two ages
        return ""
    two = f"{low:g} or {low + 1:g} in all rows"
    for name, other in lows.items():
        if other not in (None, low) and low > min(0.0, other):  # 0 and 1 are as usual
            return f"{two}, and {other:g} or {other + 1:g} at {name}"
    elsewhere = next((name for name in measured if name != site), None)
    return "" if elsewhere is None else f"{two}, and a measurement at {elsewhere}"


def _far_away(site: str, every: Mapping[str, Moments]) -> str:
    """Return that the values are many standard deviations from those of other sites, or ""."""
    here = every[site]
    known = (m for name, m in every.items() if name != site and m.rows >= FEWEST)
    if here.levels or not all(_apart(here, other) for other in known):  # mostly the first is not
        return ""
    means = [m.mean for name, m in every.items() if name != site and m.rows >= FEWEST]
    if not means:
        return ""
    usual = float(np.median(means))
    return f"far from that of other sites: its mean is {here.mean:.3g}, elsewhere {usual:.3g}"


def _apart(moments: Moments, other: Moments) -> bool:
    """Return True if the values of two sites hardly overlap, or would not in one unit.

    In another unit, pounds for kilograms, means and standard deviations have one ratio.
    """
    small, large = sorted([float(moments.sd), float(other.sd)])
    if other.levels or small <= 0:
        return False
    gap = abs(moments.mean - other.mean)
    means = abs(moments.mean / other.mean) if moments.mean and other.mean else 0.0
    same = 1 / SAME_RATIO < means * (other.sd / moments.sd) < SAME_RATIO
    return bool(gap >= FAR * large or (gap >= FAR * small and same))


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
        order = tuple(TopologicalSorter(graph).static_order())
    except CycleError:
        orders = " and ".join(", ".join(levels) for levels in parts)
        raise InputError(
            f"the column {column!r} is declared with the orders {orders}: give levels = "
            f"{{ {key(column)} = [...] }}."
        ).at(column) from None
    return (*order, *(other for other in others if other not in order))


class Apart(NamedTuple):
    """A column whose numbers are larger or smaller at one site by a factor."""

    column: str  # its name
    site: str  # where
    size: np.ndarray  # |mean| and sd there
    usual: np.ndarray  # the same elsewhere

    @property
    def guess(self) -> Guess:
        """Message about it."""
        line = mend(self.site, "scale", f"{key(self.column)} = 1")
        sentence = (
            f"{self.site}: {self.column} may be on another scale: its mean is {self.size[0]:.3g} "
            f"and its sd {self.size[1]:.3g}, elsewhere {self.usual[0]:.3g} and {self.usual[1]:.3g}"
        )
        return Guess(self.column, sentence, f"{line} confirms it, another factor corrects it")


def scales_apart(
    moments: Mapping[str, Mapping[str, Moments]], harmonise: Mapping[str, Harmonisation]
) -> list[Apart]:
    """Find columns on another scale at a site, where the study does not say so."""
    columns = []
    for column, every in moments.items():
        sizes = {
            site: np.abs([numbers.mean, numbers.sd])
            for site, numbers in every.items()
            if numbers.rows >= FEWEST and numbers.mean and numbers.sd > 0 and not numbers.levels
        }
        if len(sizes) < 2:
            continue
        first, *others = sizes.values()
        usual = first if len(others) == 1 else np.median([first, *others], axis=0)
        for site, size in sizes.items():
            ratio = size / usual
            is_stated = site in harmonise and column in harmonise[site].scale
            skew = np.sqrt(np.log1p(max(size[1] / size[0], usual[1] / usual[0]) ** 2))
            factor = max(FACTOR, np.exp(UNLIKE_SITES * skew))
            if not is_stated and ((ratio > factor).all() or (ratio < 1 / factor).all()):
                columns.append(Apart(column, site, size, usual))
    return columns

"""A proposal of what makes the sites' tables agree: names, words, codes for missing values, scales.

It is made from case, blanks and Unicode forms, from the distance of words, and from counts; it is
shown with the counts and applied only as ``[harmonise.SITE]``, which somebody approves.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from consortia.data.codes import CODE, Outlier, suspicious
from consortia.data.columns import Column, Table, as_levels
from consortia.data.dialect import NUMBER, WORDS
from consortia.data.harmonisation import NONE, Harmonisation
from consortia.data.mending import key, rows_text, text
from consortia.data.preparation import Moments
from consortia.data.writing import (
    abbreviations,
    has_hidden,
    loosely,
    one_slip,
    preferred,
    same_loosely,
    truth_of,
)
from consortia.errors import InputError
from consortia.models.regression.unlike import Apart, scales_apart
from consortia.study.units import usual_factor

LEVELS_MAX = 50
"""A text with more levels is compared by case, blanks and Unicode form only."""

WORDS_MAX = 3
"""So many words in a column of numbers may stand for missing values."""

SAME_SHAPE = 1.5
"""Ratio up to which means and standard deviations agree on a factor: another unit moves both by it,
while of sites that differ one moves more."""

Kind = Literal["words", "numbers"]


class Suggestion(NamedTuple):
    """One change of one site's table."""

    site: str  # its name
    kind: Kind  # whether it is of names and words, or of numbers
    sentence: str  # what is changed, and the counts behind it, a sentence
    table: str  # of the site's changes: rename, recode, missing_values or scale
    entries: Mapping[str, Any]  # what it gets, by the name of a column


def suggestions(
    read: Callable[[Mapping[str, Harmonisation]], Mapping[str, Table]],
    start: Mapping[str, Harmonisation],
    accept: Callable[[Sequence[Suggestion]], bool],
    needed: Sequence[Suggestion] = (),
) -> dict[str, Harmonisation]:
    """Return changes of the tables, to begin with ``start`` and those that are accepted.

    ``accept`` shows suggestions of one kind; ``needed`` are those that ``start`` holds already.
    """
    made = dict(start)
    words = list(needed)
    proposed = dict(made)
    for find in (_names, _words):
        made_here = list(find(read(proposed)))
        words += made_here
        proposed = changed(proposed, made_here)
    if words and accept(words):
        made = proposed
    numbers = list(_numbers(read(made), made))
    if numbers and accept(numbers):
        made = changed(made, numbers)
    return made


def changed(
    given: Mapping[str, Harmonisation], suggestions: Sequence[Suggestion]
) -> dict[str, Harmonisation]:
    """Return the changes with the suggested ones."""
    made = dict(given)
    for suggestion in suggestions:
        before = made.get(suggestion.site, NONE)
        table = dict(getattr(before, suggestion.table))
        for name, entry in suggestion.entries.items():
            if suggestion.table == "recode":
                entry = {**table.get(name, {}), **entry}
            elif suggestion.table == "missing_values":
                entry = [*table.get(name, []), *entry]
            table[name] = entry
        made[suggestion.site] = before.model_copy(update={suggestion.table: table})
    return made


def toml(changes: Mapping[str, Harmonisation]) -> list[str]:
    """Return the tables ``[harmonise.SITE]`` as lines of a study file."""
    lines: list[str] = []
    for site, made in changes.items():
        head = f"harmonise.{key(site)}"
        plain = [
            f"{name} = {text(value)}"
            for name in ("encoding", "decimal", "sheet")
            if (value := getattr(made, name)) is not None
        ]
        if not made.approved:
            plain.append("approved = false # check what is below, then write true")
        lines += ["", *([f"[{head}]"] if plain else []), *plain]
        tables: dict[str, Mapping[str, Any]] = {"rename": made.rename, "scale": made.scale}
        tables["missing_values"] = made.missing_values
        tables |= {f"recode.{key(name)}": words for name, words in made.recode.items()}
        for name, table in tables.items():
            if table:
                lines.append(f"[{head}.{name}]")
                lines += [f"{key(k)} = {_value(v)}" for k, v in table.items()]
    return lines


def _value(value: str | int | float | list[Any]) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return text(value) if isinstance(value, str) else f"{value:.12g}"


# --- names ---------------------------------------------------------------------------------------


def _names(tables: Mapping[str, Table]) -> Iterator[Suggestion]:
    """Return renamings: to the name that most sites have."""
    counts = Counter(name for table in tables.values() for name in table)
    groups: dict[str, list[str]] = {}
    for name, _ in counts.most_common():
        groups.setdefault(_bare(name), []).append(name)
    groups = {column: sorted(group, key=has_hidden) for column, group in groups.items()}
    having = {group[0]: sum(counts[name] for name in group) for group in groups.values()}
    wanted = [name for name, count in having.items() if 2 * count >= len(tables) and count > 1]
    wanted += [name for name in next(iter(tables.values())) if len(tables) == 2]
    doubled: set[str] = set()
    for site, table in tables.items():
        for group in same_loosely(table):
            kept = preferred(group, counts)
            for old in (name for name in group if name != kept):
                sentence = f"{site}: the columns {kept!r} and {old!r} differ only in spelling"
                new = f"other {old}"
                doubled.add(old)
                sentence += f": {old!r} is called {new!r}"
                yield Suggestion(site, "words", sentence, "rename", {old: new})
    wanted = [name for name in wanted if name not in doubled]
    for site, table in tables.items():
        lacking = [name for name in dict.fromkeys(wanted) if name not in table]
        rare = [name for name in table if 2 * counts[name] < len(tables) or counts[name] == 1]
        extra = [name for name in rare if name not in doubled]
        for name in lacking:
            other = next(table_of for table_of in tables.values() if name in table_of)
            like = [new for new in extra if _bare(new) == _bare(name)]
            how = "differ only in spelling"
            if not like:
                like = [new for new in extra if _close_name(new, name)]
                how = "are spelled almost the same"
            if not like and len(lacking) == len(extra) == 1:
                like, how = list(extra), "are the only ones left, with similar values"
            like = [new for new in like if _compatible(table, new, other, name)]
            if len(like) != 1:
                continue
            extra.remove(like[0])
            yield Suggestion(
                site,
                "words",
                f"{site}: the column {like[0]!r} is {name!r} elsewhere ({counts[name]} of "
                f"{len(tables)} sites): the names {how}",
                "rename",
                {like[0]: name},
            )


def _bare(name: str) -> str:
    """Return a name without case, blanks and marks."""
    return re.sub(r"[\W_]+", "", loosely(name)) or name


def _close_name(left: str, other: str) -> bool:
    first, second = ({*re.split(r"[\W_]+", loosely(name))} - {""} for name in (left, other))
    return first <= second or second <= first or one_slip(left, other)


def _compatible(table: Table, name: str, other: Table, like: str) -> bool:
    """Return True if two columns may be one: of one kind, with common words or like numbers."""
    first, second = _column(table, name), _column(other, like)
    if first is None or second is None:
        return False
    kinds = {first.kind, second.kind}
    if kinds == {"number"}:
        first_moments, two = (Moments.of(c.values[~c.missing]) for c in (first, second))
        return bool(abs(first_moments.mean - two.mean) <= 2 * (first_moments.sd + two.sd))
    if kinds == {"text"} or "truth" in kinds:
        words = [{_meaning(level) for level in _counts(c)} for c in (first, second)]
        return bool(words[0] & words[1])
    return len(kinds) == 1


def _meaning(level: str) -> str:
    truth = truth_of(level)
    return loosely(level) if truth is None else str(truth)


# --- words ---------------------------------------------------------------------------------------


def _words(tables: Mapping[str, Table]) -> Iterator[Suggestion]:
    """Return recodings: of each word to the writing of most rows, of yes and no to most sites'."""
    for name in dict.fromkeys(name for table in tables.values() for name in table):
        columns = {site: _column(table, name) for site, table in tables.items() if name in table}
        known = {site: column for site, column in columns.items() if column is not None}
        yield from _missing_words(name, known)
        known = {site: c for site, c in known.items() if c.kind in ("text", "truth", "number")}
        if not any(column.kind == "text" for column in known.values()):
            continue
        counts = {site: _counts(column) for site, column in known.items()}
        if recoded := list(_truths(name, known, counts)):
            yield from recoded
        elif all(column.kind == "text" for column in known.values()):
            yield from _writings(name, counts)


def _counts(column: Column) -> Counter[str]:
    """Return the rows of each level; words that may stand for a missing value are none."""
    counts = Counter(as_levels(column)[~column.missing].tolist())
    return Counter({level: count for level, count in counts.items() if not _misses(level)})


def _misses(word: str) -> bool:
    return word in WORDS and word != "None"


def _missing_words(name: str, columns: Mapping[str, Column]) -> Iterator[Suggestion]:
    for site, column in columns.items():
        if column.kind != "text" or not _counts(column):
            continue
        counts = Counter(as_levels(column)[~column.missing].tolist())
        words = {word: count for word, count in counts.items() if _misses(word)}
        if column.doubt:
            words |= _words_among_numbers(counts)
        if words:
            listed = ", ".join(f"{word!r} in {rows_text(count)}" for word, count in words.items())
            sentence = f"{site}: {name}: {listed} stands for a missing value"
            yield Suggestion(site, "words", sentence, "missing_values", {name: list(words)})


def _words_among_numbers(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the few words in a column of numbers, such as unknown; none where one has digits."""
    words = {word: count for word, count in counts.items() if not NUMBER.fullmatch(word)}
    few = len(words) <= WORDS_MAX and 2 * sum(words.values()) < sum(counts.values())
    return words if few and not re.search(r"\d", "".join(words)) else {}


def _truths(
    name: str, columns: Mapping[str, Column], counts: Mapping[str, Counter[str]]
) -> Iterator[Suggestion]:
    """Return recodings of a column of yes and no that sites write unlike."""
    pairs: dict[str, dict[bool, str]] = {}
    for site, levels in counts.items():
        if not levels or any(truth_of(level) is None for level in levels):
            return
        by_truth: dict[bool, str] = {}
        for level, _ in levels.most_common():
            by_truth.setdefault(bool(truth_of(level)), level)
        pairs[site] = by_truth
    whole = [(pair[False], pair[True]) for pair in pairs.values() if len(pair) == 2]
    if not whole:
        return
    (no, yes), _ = Counter(whole).most_common(1)[0]
    for site, levels in counts.items():
        words = {level: (no, yes)[bool(truth_of(level))] for level in levels}
        words = {old: new for old, new in words.items() if old != new}
        if words:
            listed = ", ".join(
                f"{old!r} ({rows_text(levels[old])}) as {new!r}" for old, new in words.items()
            )
            sentence = f"{site}: {name}: {listed}"
            yield Suggestion(site, "words", sentence, "recode", {name: words})


def _writings(name: str, counts: Mapping[str, Counter[str]]) -> Iterator[Suggestion]:
    total: Counter[str] = Counter()
    for levels in counts.values():
        total.update(levels)
    writings: dict[str, list[str]] = {}
    for level, _ in total.most_common():
        writings.setdefault(loosely(level), []).append(level)
    chosen = {letters: preferred(group, total) for letters, group in writings.items()}
    short = abbreviations(total)
    if any(len(word) == 1 and word.isalpha() and word not in short for word in total):
        short = {}  # of m and f, männlich and weiblich: half of them are in another language
    rank = {level: index for index, (level, _) in enumerate(total.most_common())}
    few = len(total) <= LEVELS_MAX
    for site, levels in counts.items():
        others = Counter(
            chosen[loosely(level)]
            for where, levels_there in counts.items()
            if where != site
            for level in levels_there
        )
        words = {}
        for level in levels:
            new = chosen[loosely(level)]
            if few and new not in others:
                close = [candidate for candidate in others if one_slip(candidate, new)]
                if len(close) == 1 and rank[close[0]] < rank[new]:
                    new = close[0]
            new = short.get(new, new)
            if new != level:
                words[level] = new
        if words:
            listed = ", ".join(
                f"{old!r} ({rows_text(levels[old])}) as {new!r} "
                f"({rows_text(total[new])} at all sites)"
                for old, new in words.items()
            )
            sentence = f"{site}: {name}: {listed}"
            yield Suggestion(site, "words", sentence, "recode", {name: words})


# --- numbers -------------------------------------------------------------------------------------


def _numbers(
    tables: Mapping[str, Table], made: Mapping[str, Harmonisation]
) -> Iterator[Suggestion]:
    """Return codes for missing values, and factors of columns in another unit."""
    numbers: dict[str, dict[str, np.ndarray]] = {}
    for site, table in tables.items():
        for name in table:
            column = _column(table, name)
            if column is not None and column.kind == "number" and not column.doubt:
                numbers.setdefault(name, {})[site] = column.values[~column.missing]
    moments: dict[str, dict[str, Moments]] = {}
    for name, known in numbers.items():
        for site, (codes, usual) in _codes(known).items():
            listed = [f"{code.value:g} in {rows_text(code.rows)}" for code in (*codes, *usual)]
            if codes:
                sentence = (
                    f"{', '.join(listed[: len(codes)])} ({codes[0].why}) stands for a missing value"
                )
            elif usual:
                sentence = f"{', '.join(listed)} is a number: other sites have values near it"
            if codes or usual:
                # integers without a point
                plain = [int(v) if v == int(v) else v for v in (code.value for code in codes)]
                yield Suggestion(
                    site, "numbers", f"{site}: {name}: {sentence}", "missing_values", {name: plain}
                )
            moments.setdefault(name, {})[site] = Moments.of(_without(known[site], codes))
    units: dict[str, list[tuple[Apart, tuple[float, str] | None]]] = {}
    for apart in scales_apart(moments, made):
        ratios = apart.usual / apart.size
        scaled = max(ratios) <= SAME_SHAPE * min(ratios)
        unit = usual_factor(apart.column, float(ratios.prod() ** 0.5)) if scaled else None
        units.setdefault(apart.column, []).append((apart, unit))
    for name, of_sites in units.items():
        if len({unit for _, unit in of_sites}) > 1:
            continue  # no two units: the sites differ
        for apart, unit in of_sites:
            if unit is not None:
                sentence = f"{apart.guess.text}: times {unit[0]:.6g}{unit[1]}"
                yield Suggestion(apart.site, "numbers", sentence, "scale", {name: unit[0]})


def _codes(
    numbers: Mapping[str, np.ndarray],
) -> dict[str, tuple[list[Outlier], list[Outlier]]]:
    """Return the codes of each site, and what is near values of other sites with the same unit.

    A survival time of 999 days is not a code where another hospital has one of 991.
    """
    candidates = {
        site: [code for code in suspicious(known) if CODE.fullmatch(f"{code.value:g}")]
        for site, known in numbers.items()
    }
    plain = {site: _without(known, candidates[site]) for site, known in numbers.items()}
    divided = {}
    for site, codes in candidates.items():
        far = set()
        if codes:
            low, high = plain[site].min(), plain[site].max()
            same_unit = [
                known for known in plain.values() if known.size and low <= np.median(known) <= high
            ]
            pooled = np.concatenate([numbers[site], *same_unit])
            far = {code.value for code in suspicious(pooled)}
        usual = [code for code in codes if code.value not in far]
        divided[site] = [code for code in codes if code.value in far], usual
    return divided


def _without(values: np.ndarray, codes: Sequence[Outlier]) -> np.ndarray:
    return values[~np.isin(values, [code.value for code in codes])]


def _column(table: Table, name: str) -> Column | None:
    """Return a column; None of one that cannot be parsed, or has no value."""
    try:
        column = table[name]
    except InputError:
        return None
    return None if column.kind == "empty" else column

"""Names and words in one writing: without blanks around them, in the Unicode form NFC."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

LEAST_LETTERS = 4
"""Fewest letters of a word in which another letter is a slip of the pen."""

ZERO_WIDTH = "\u200b\u2060\ufeff\u00ad"
"""Characters without a width that are no part of a word, unlike the joiners of some scripts."""

JOINERS = "\u200c\u200d"
"""Joiners of some scripts, which change how a word is read."""


def one_writing(texts: Sequence[str]) -> list[str]:
    """Return strings stripped and in NFC."""
    stripped = [text.strip() for text in texts]
    if "".join(stripped).isascii():
        return stripped
    return [unicodedata.normalize("NFC", text.strip(ZERO_WIDTH).strip()) for text in stripped]


@lru_cache(10_000)  # names of columns are compared with each other again and again
def loosely(text: str) -> str:
    """Return a key that is equal for strings that differ in case, blanks or Unicode form only."""
    kept = "".join(
        letter
        for letter in unicodedata.normalize("NFKC", text)
        if unicodedata.category(letter) != "Cf"
    )
    return " ".join(unicodedata.normalize("NFKC", kept.casefold()).split())


def same_loosely(texts: Iterable[str]) -> list[list[str]]:
    """Return the groups of two or more strings that `loosely` makes equal."""
    groups: dict[str, list[str]] = {}
    for text in dict.fromkeys(texts):
        groups.setdefault(loosely(text), []).append(text)
    return [group for group in groups.values() if len(group) > 1]


def preferred(group: Iterable[str], counts: Mapping[str, int]) -> str:
    """Return the writing of a word that the others become: without hidden characters, then usual.

    ``counts`` are the rows or the sites of each.
    """
    return max(group, key=lambda word: (not has_hidden(word), counts[word]))


def has_hidden(text: str) -> bool:
    """Return True if a string has characters that nobody sees, or blanks other than plain ones."""
    return any(
        letter not in JOINERS
        and (unicodedata.category(letter) in ("Cf", "Cc") or (letter.isspace() and letter != " "))
        for letter in text
    )


def abbreviations(words: Iterable[str]) -> dict[str, str]:
    """Return the single letters with which exactly one of the other words begins, each with it."""
    every = list(dict.fromkeys(words))
    letters = {}
    for letter in (word for word in every if len(word) == 1 and word.isalpha()):
        longer = [
            word
            for word in every
            if len(word) > 1
            and loosely(word)[:1] == loosely(letter)
            and (len(word) > 2 or truth_of(word) is not None)
            and {*loosely(word)} != {*loosely(letter)}
        ]
        if len(longer) == 1:
            letters[letter] = longer[0]
    return letters


def one_slip(first: str, other: str) -> bool:
    """Return True if two strings differ in one letter of one long word, as by a slip of the pen.

    Digits, a first letter, a last letter that is another one and short words make other strings:
    ward 1 and 2, male and female, type A and B.
    """
    pair = [re.split(r"[\W_]+", loosely(text)) for text in (first, other)]
    if len(pair[0]) != len(pair[1]):
        return False
    unlike = [(a, b) for a, b in zip(*pair, strict=True) if a != b]
    if len(unlike) != 1 or min(map(len, unlike[0])) < LEAST_LETTERS:
        return False
    a, b = unlike[0]
    same = _common(a, b)
    end = _common(a[same:][::-1], b[same:][::-1])
    left, right = a[same : len(a) - end], b[same : len(b) - end]
    if not same or any(char.isdigit() for char in left + right):
        return False
    swapped = len(left) == 2 and left == right[::-1]
    replaced = len(left) == len(right) == 1 and end > 0
    added = len(left) + len(right) == 1 and (end > 0 or left + right != a[same - 1])  # gradeII
    return swapped or replaced or added


def _common(first: str, other: str) -> int:
    """Count the letters of the longest common beginning of two strings."""
    unlike = (index for index, (a, b) in enumerate(zip(first, other, strict=False)) if a != b)
    return next(unlike, min(len(first), len(other)))


TRUE = {"wahr", "vrai", "vero", "verdadero", "verdadeiro", "waar"}
FALSE = {"falsch", "faux", "falso", "onwaar"}
"""Words for True and False in spreadsheets of other languages."""

YES = frozenset(
    {"yes", "y", "true", "t", "ja", "j", "oui", "o", "si", "sí", "sim", "da", "1"} | TRUE
)
NO = frozenset({"no", "n", "false", "f", "nein", "non", "nao", "não", "nej", "nee", "0"} | FALSE)
"""Words for a boolean, as sites write them."""


def truth_of(text: str) -> bool | None:
    """Return the boolean that a word stands for; None of any other."""
    word = loosely(text)
    return True if word in YES else False if word in NO else None

"""Random tables at three sites: the design matrix that is meant, or a refusal with a remedy."""

from __future__ import annotations

import csv
import io
import random
import re
import sys
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

import insides
import numpy as np
import pytest

from consortia.cli.init import _alike
from consortia.data.columns import Table
from consortia.data.harmonisation import NONE
from consortia.data.mending import in_formula
from consortia.data.writing import loosely
from consortia.errors import InputError
from consortia.models.regression.construction import regression
from consortia.models.regression.model import Regression
from consortia.study.build import load_study
from consortia.study.likeness import toml
from consortia.study.proposal import propose

SITES = ("a", "b b", "ç.1")
DIALECTS = ((",", "."), (";", ","), ("\t", "."), ("|", ","))
ENCODINGS = ("utf-8", "utf-16", "latin-1")
WORDS = [
    "None",
    "Some",
    "no",
    "yes",
    "true",
    "I",
    "II",
    "ward A",
    "été",
    "ß",
    "5",
    "<5",
    "1a",
    "x,y",
    'say "so"',
    "a;b",
    "müller",
    "İ",
    "ﬁ",
    "-",
    "n/a",
    "C",
    "65+",
    "#1",
    "µg",
    "=1",
    "NA",
    ".",
]
MISSING = {"None", "NA", ".", "n/a"}
GOOD, REFUSED = "right", "refused"
PRINTABLE = [chr(one) for one in range(32, 0x500) if chr(one).isprintable() and chr(one) != "`"]


class Meant(NamedTuple):
    """A table as it is meant, of all sites.

    Attributes:
        name: of the response.
        response: 0 or 1, by site.
        numbers: by name and site; NaN where a value misses.
        levels: by name and site; "" where a value misses.
        wrapped: names of columns that the formula writes in ``C(...)``.
    """

    name: str
    response: dict[str, list[int]]
    numbers: dict[str, dict[str, list[float]]]
    levels: dict[str, dict[str, list[str]]]
    wrapped: set[str]


def name_of(rng: random.Random, taken: list[str]) -> str:
    """Return a name that no other is like."""
    while True:
        letters = PRINTABLE[: rng.choice([150, len(PRINTABLE)])]  # of Western Europe, or more
        text = "".join(rng.choice(letters) for _ in range(rng.randint(1, 12))).strip()
        if rng.random() < 0.5:
            text = rng.choice(["post-pre", "1", "u.v", "log(x)", "a:b", "x y", "class", "s", "0.5"])
        text = unicodedata.normalize("NFC", text)
        if text and loosely(text) not in [loosely(one) for one in [*taken, "site"]]:
            taken.append(text)
            return text


def number_text(value: float, mark: str, rng: random.Random, *, thousands: bool) -> str:
    text = f"{value:,.{rng.choice([0, 1, 2, 3])}f}" if thousands else f"{value:.2f}"
    return text.translate({ord("."): mark, ord(","): "." if mark == "," else ","})


def random_tables(seed: int, folder: Path) -> tuple[Meant, list[Path]]:
    """Write three tables, each in its own dialect and writing; return what is meant."""
    rng = random.Random(seed)
    names: list[str] = []
    response, number, words, code = (name_of(rng, names) for _ in range(4))
    folder.mkdir()
    pool = rng.sample(WORDS, rng.randint(2, 4))
    while {*pool} <= {"true", *MISSING}:  # truth values, of which some miss
        pool = rng.sample(WORDS, rng.randint(2, 4))
    codes = ["".join(rng.choice("0123456789") for _ in range(rng.randint(1, 18))) for _ in range(3)]
    unlike, misses = rng.random() < 0.2, rng.random() < 0.4
    wrapped = {code} | (
        {words} if all(re.search(r"[0-9]", one) or one in MISSING for one in pool) else set()
    )
    meant = Meant(response, {}, {number: {}}, {words: {}, code: {}}, wrapped)
    paths = []
    for place, site in enumerate(SITES):
        separator, mark = rng.choice(DIALECTS)
        rows = rng.randint(12, 30)
        scale, thousands = rng.choice([1, 1, 1000]), rng.random() < 0.3
        texts: dict[str, list[str]] = {name: [] for name in names}
        own: dict[str, list[Any]] = {name: [] for name in names}
        for row in range(rows):
            own[response].append(row % 2 if row < 4 else rng.randint(0, 1))
            texts[response].append(str(own[response][-1]))
            written = number_text(rng.gauss(50, 9) * scale, mark, rng, thousands=thousands)
            gap = misses and rng.random() < 0.1
            plain = written.replace("." if mark == "," else ",", "").replace(mark, ".")
            own[number].append(np.nan if gap else float(plain))
            texts[number].append(rng.choice(["", "NA", "."]) if gap else written)
            word = pool[row] if row < len(pool) else rng.choice(pool)
            gap = misses and rng.random() < 0.1
            own[words].append("" if gap else word)
            other = (
                rng.choice([str.upper, str.title, str.strip])(word) if unlike and place else word
            )
            other = rng.choice(["{}", " {}", "{}  "]).format(other)
            texts[words].append("" if gap else rng.choice(["NFC", "NFD"]) and other)
            own[code].append(codes[row] if row < len(codes) else rng.choice(codes))
            texts[code].append(own[code][-1])
        meant.response[site] = own[response]
        meant.numbers[number][site] = own[number]
        meant.levels[words][site], meant.levels[code][site] = own[words], own[code]
        order = rng.sample(names, len(names))
        content = io.StringIO()
        writer = csv.writer(content, delimiter=separator, lineterminator=rng.choice(["\n", "\r\n"]))
        heads = [one.upper() if unlike and rng.random() < 0.1 else one for one in order]
        form = rng.choice(["NFC", "NFD"])
        writer.writerow([unicodedata.normalize(form, one) for one in heads])
        for row in range(rows):
            writer.writerow([unicodedata.normalize(form, texts[one][row]) for one in order])
        path = folder / f"{site}.csv"
        path.write_bytes(encoded(content.getvalue(), rng.choice(ENCODINGS)))
        paths.append(path)
    return meant, paths


def encoded(text: str, encoding: str) -> bytes:
    """Return a text in an encoding, or in UTF-8 with its mark where that lacks a letter."""
    try:
        return text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode("utf-8-sig")


def formula_of(meant: Meant, response: str) -> str:
    terms = [
        f"C({in_formula(one)})" if one in meant.wrapped else in_formula(one)
        for one in (*meant.numbers, *meant.levels)
    ]
    # a term may be quoted where it need not be
    return f"`{response}` ~ " + " + ".join(terms)


def as_meant(made: Regression, meant: Meant) -> bool:
    """Return True if the columns of the model are those of the table that was meant."""
    spec, parsed = made.specification, made.specification.question.parsed
    names = {loosely(one): one for one in (*meant.numbers, *meant.levels, meant.name)}
    used = {
        names[loosely(name)]
        for factor in parsed.factors.values()
        for name in factor.columns
        if name != "site"
    }
    for site in SITES:
        table: Table = made.tables[site]
        matrix = insides.design_matrix(spec, table, site)
        kept = np.ones(len(meant.response[site]), bool)
        for name in used:
            if name in meant.numbers:
                kept &= ~np.isnan(meant.numbers[name][site])
            else:
                kept &= np.array([bool(one) for one in meant.levels[name][site]])
        if len(matrix) != kept.sum():
            return False
        y = np.array(meant.response[site])[kept]
        if not np.array_equal(np.asarray(made.sites.site(site)["y"]), y):  # type: ignore[union-attr]
            return False
        for (numbers, levels), found in zip(spec.keys, matrix.T, strict=True):
            wanted = np.ones(int(kept.sum()))
            for text in numbers:
                column = str(parsed.factors[text].column)
                changes = spec.question.harmonise.get(site, NONE)
                unit = changes.scale.get(column, 1.0)
                values = np.array(meant.numbers[names[loosely(column)]][site])[kept]
                wanted = wanted * values * unit
            for text, level in levels:
                column = str(parsed.factors[text].column)
                if column == "site":
                    wanted = wanted * (level == site)
                    continue
                texts = meant.levels[names[loosely(column)]][site]
                wanted = wanted * np.array([same(one, level) for one in texts])[kept]
            if not np.allclose(wanted, found, rtol=1e-12, atol=0):
                return False
    return True


def same(one: str, level: str) -> bool:
    return unicodedata.normalize("NFC", one) == level or loosely(one) == loosely(level)


def check_refusal(error: InputError, paths: list[Path]) -> None:
    """Assert that an error says where it is and what mends it."""
    for line in str(error).splitlines():
        where = any(site in line for site in (*SITES, *(str(path) for path in paths), "column"))
        remedy = re.search(
            r"harmonise|write|give|leave|correct|make it|name it|convert|keep|needs|mend", line
        )
        assert where, line
        assert remedy, line


def outcome(seed: int, folder: Path) -> tuple[str, str]:
    """Read random tables by a formula and by `init`, and return the outcome."""
    meant, paths = random_tables(seed, folder)
    response = meant.name
    try:
        made = regression(
            formula_of(meant, response), paths, family="bernoulli", missing="complete"
        )
        assert as_meant(made, meant), f"seed {seed}: another design matrix"
        read = GOOD
    except InputError as error:
        check_refusal(error, paths)
        read = REFUSED
    return read, proposed(seed, meant, response, paths)


def proposed(seed: int, meant: Meant, response: str, paths: list[Path]) -> str:
    """Run `init` on the tables, take all of its proposals, and return the outcome."""
    by_site = dict(zip(SITES, paths, strict=True))
    try:
        changes, tables = _alike(by_site, None, wanted=True, yes=True)
        found = propose(tables, response, family="bernoulli")
        text = found.toml([path.name for path in paths], "random", toml(changes))
        study = paths[0].parent / "study.toml"
        study.write_text(text, encoding="utf-8")
        made = load_study(study).build().regression
    except InputError as error:
        check_refusal(error, paths)
        return REFUSED
    assert made is not None
    words = {one for of in meant.levels.values() for own in of.values() for one in own}
    if not words & {"NA", "n/a", "."}:  # which are taken for missing values then
        by_numbers = {
            loosely(str(factor.column))
            for factor in made.specification.question.parsed.factors.values()
            if factor.kind == "plain" and factor.text not in made.specification.levels
        }
        if not by_numbers & {
            loosely(name) for name in meant.levels
        }:  # codes without C(...) are numbers
            assert as_meant(made, meant), f"seed {seed}: another design matrix by init"
    return GOOD


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.echo", lambda *args, **more: None)


def run(seeds: range, folder: Path) -> None:
    found = [outcome(seed, folder / str(seed)) for seed in seeds]
    read = [one for one, _ in found]
    # Most are read: refusals are of unlike writings, of undecided marks and of nearly numbers.
    assert read.count(GOOD) > len(read) / 3, read.count(GOOD)
    assert [one for _, one in found].count(GOOD) > len(read) / 3


def test_random_tables_are_read_as_they_are_meant_or_refused_with_a_remedy(tmp_path) -> None:
    run(range(40), tmp_path)


@pytest.mark.slow
def test_two_thousand_random_tables_are_read_as_they_are_meant_or_refused(tmp_path) -> None:
    run(range(40, 2040), tmp_path)


if __name__ == "__main__":
    print(outcome(int(sys.argv[1]), Path(sys.argv[2])))

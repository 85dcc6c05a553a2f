"""A formula as all sites use it: its columns, their names, and the basis of the coefficients.

Every process makes the same specification from the facts of all sites (`agreement`), and each site
its own rows with it (`design`): those that one table of all rows would have given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from consortia.core.fingerprints import of_value
from consortia.data.columns import Guess
from consortia.models.regression.coding import Key, columns_of, matrix_of
from consortia.models.regression.formula import Group
from consortia.models.regression.question import RESPONSE, Question, shared_levels

GAP = "missing"
"""The level of a factor, and the name of the mark of a number, whose value misses."""

INTERCEPT = "Intercept"


class Unit(NamedTuple):
    """Mean and standard deviation (Σ over n) of an expression over all rows; 1 for an sd of 0."""

    mean: float
    sd: float
    rows: int


class Block(NamedTuple):
    """Columns whose coefficients have a common standard deviation that is estimated."""

    name: str  # of that standard deviation
    columns: tuple[str, ...]  # names of the coefficients
    factor: str  # text of the factor that is multiplied, "" for none
    smooth: bool  # whether it is the curved part of a smooth; else a level or slope of each site
    level: str | None = None  # of a categorical factor, the level whose indicator is multiplied
    by: str = ""  # of a level or slope, the column of the groups
    shared: bool = False  # whether its groups are one set over all sites

    @property
    def term(self) -> str:
        """The coefficient that differs between groups; "Intercept" for a level."""
        return (self.factor or INTERCEPT) + ("" if self.level is None else f"[{self.level}]")


@dataclass(frozen=True)
class Specification:
    """A formula as all sites use it; every process makes the same from the facts."""

    question: Question  # the regression that was requested
    sites: tuple[str, ...]  # names
    rows: tuple[int, ...]  # of each site, those that are kept
    units: Mapping[str, Unit]  # of numbers, by expression
    # of factors, by expression, the reference first; of the response under "response()"
    levels: Mapping[str, tuple[str, ...]]
    fills: Mapping[str, float]  # what stands for a missing number, by column
    notes: tuple[str, ...] = ()  # what the user should know
    breaks: tuple[float, ...] = ()  # where the hazard may change, of a piecewise constant one
    # how many values miss of each column that is imputed
    imputed: Mapping[str, int] = field(default_factory=dict)
    readings: tuple[Guess, ...] = ()  # what was taken for what when the tables were read

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that decides what the columns are."""
        asked, parsed = self.question, self.question.parsed
        extra = {name: factor.text for name, factor in asked.extra.items()}
        return of_value(
            (
                *(parsed.text, asked.family.name, asked.missing, extra, self.sites, self.breaks),
                asked.integrated,
                *(dict(self.units), dict(self.levels), dict(self.fills)),
                *((asked.imputations, asked.imputation_seed) if self.imputed else ()),
                *(() if asked.nodes is None else (asked.nodes,)),
                *((asked.weights_are,) if asked.samples else ()),
                *(() if asked.ties == "efron" else (asked.ties,)),
                *(() if asked.keep is None else (asked.keep.text,)),
            )
        )

    @property
    def event(self) -> str | None:
        """The level of a binary response that counts as 1, in words; None of another response."""
        if self.question.family.response != "two" or RESPONSE not in self.levels:
            return None
        return f"{self.question.parsed.response[0].column} = {self.levels[RESPONSE][1]!r}"

    # --- columns ---

    @cached_property
    def terms(self) -> tuple[tuple[str, ...], ...]:
        """The terms, with those that mark missing numbers; () is the intercept."""
        marks = tuple((f"{GAP}({name})",) for name in self.fills)
        return (*self.question.parsed.terms, *marks)

    @property
    def has_intercept(self) -> bool:
        """True unless the formula takes it out."""
        return () in self.terms

    @cached_property
    def _columns(self) -> list[Key]:
        """The columns of the terms, the intercept's first where there is one."""
        return columns_of(sorted(self.terms, key=len), self.levels)

    @cached_property
    def keys(self) -> tuple[tuple[frozenset[str], frozenset[tuple[str, str]]], ...]:
        """Numeric factors and (factor, level) pairs that are multiplied, by column."""
        return tuple(
            (
                frozenset(text for text, index in key if index is None),
                frozenset((text, self.levels[text][i]) for text, i in key if i is not None),
            )
            for key in self._columns
        )

    @cached_property
    def varying(self) -> np.ndarray:
        """True for each column that is not constant."""
        return np.array([bool(numbers or levels) for numbers, levels in self.keys], bool)

    @cached_property
    def _order(self) -> dict[str, int]:
        """The factors of the terms in the order in which they are written."""
        texts = dict.fromkeys(text for term in self.terms for text in term)
        return {text: index for index, text in enumerate(texts)}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, without that of the intercept."""

        def name(numbers: frozenset[str], levels: frozenset[tuple[str, str]]) -> str:
            parts = {text: text for text in numbers} | {
                text: f"{text}[{level}]" for text, level in levels
            }
            return ":".join(parts[text] for text in sorted(parts, key=self._order.__getitem__))

        return tuple(name(*key) for key in self.keys if key[0] or key[1])

    @cached_property
    def term_of(self) -> tuple[str, ...]:
        """Text of the term of each column but the intercept's."""
        terms = []
        for numbers, levels in self.keys:
            texts = sorted({*numbers, *(text for text, _ in levels)}, key=self._order.__getitem__)
            if texts:
                terms.append(":".join(texts))
        return tuple(terms)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The columns with a common standard deviation, smooths first."""
        blocks = []
        for text, factor in self.question.parsed.factors.items():
            if factor.kind == "smooth":
                names = tuple(f"{text}[{number}]" for number in range(1, factor.knots - 1))
                blocks.append(Block(f"sd({text})", names, text, True))
        for group in self.question.parsed.groups:
            for text, level in self._inside(group):
                block = Block("", (), text, False, level, group.by, group.is_shared)
                labels = self.levels[shared_levels(group.by)] if group.is_shared else self.sites
                names = tuple(f"{block.term} | {label}" for label in labels)
                if self.question.stays(group):
                    names = ()
                blocks.append(block._replace(name=f"sd({block.term} | {group.by})", columns=names))
        return tuple(blocks)

    def _inside(self, group: Group) -> list[tuple[str, str | None]]:
        """Return factor and level of each coefficient that differs between groups."""
        coefficients: list[tuple[str, str | None]] = []
        for text in group.inside:
            coefficients += [(text, level) for level in self.levels.get(text, ("", None))[1:]]
        return coefficients

    @cached_property
    def bundles(self) -> tuple[range, ...]:
        """The blocks whose levels and slopes are correlated, by their indices."""
        start, bundles = sum(block.smooth for block in self.blocks), []
        for group in self.question.parsed.groups:
            count = len(self._inside(group))
            if group.correlated and count > 1:
                bundles.append(range(start, start + count))
            start += count
        return tuple(bundles)

    @cached_property
    def staying(self) -> tuple[int, ...]:
        """The blocks, by their indices, whose levels stay at the sites."""
        return tuple(
            i for i, block in enumerate(self.blocks) if not block.smooth and not block.columns
        )

    @property
    def grouping(self) -> str | None:
        """The column of the groups whose levels stay at the sites, or None."""
        return self.blocks[self.staying[0]].by if self.staying else None

    # --- the basis ---

    @cached_property
    def basis(self) -> np.ndarray:
        r"""R, (p, p), the intercept included: the columns that are sampled are X R, β = R b.

        A number stands in them centred and scaled by its mean and sd over all rows, in products
        too, where the columns that this needs are in the formula; else it is scaled only.
        """
        index = {key: number for number, key in enumerate(self.keys)}
        R = np.zeros((len(index), len(index)))
        for column, (numbers, levels) in enumerate(self.keys):
            scale = float(np.prod([self.units[text].sd for text in numbers]))
            parts = [(frozenset(some), weight) for some, weight in self._expanded(sorted(numbers))]
            if not all((some, levels) in index for some, _ in parts):
                parts = [(numbers, 1.0)]
            for some, weight in parts:
                R[index[some, levels], column] = weight / scale
        return R

    def _expanded(self, numbers: Sequence[str]) -> list[tuple[list[str], float]]:
        """Return Π (x − m) as a sum of products of some of the x, each with its weight."""
        parts: list[tuple[list[str], float]] = [([], 1.0)]
        for text in numbers:
            centre = self.units[text].mean
            parts = [
                product
                for some, weight in parts
                for product in (([*some, text], weight), (some, -weight * centre))
            ]
        return parts

    @cached_property
    def scales(self) -> np.ndarray:
        """Product of the sds of the numbers of each column but the intercept's."""
        return np.array(
            [
                np.prod([self.units[text].sd for text in numbers])
                for numbers, levels in self.keys
                if numbers or levels
            ]
        ).reshape(-1)

    # --- the matrix ---

    def inside(self, text: str) -> Unit:
        """Return mean and sd of the expression inside ``center`` or ``scale``."""
        return self.units[f"inside {text}"]

    def matrix(self, values: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
        """Compute the columns of the terms, (rows, p), the intercept's included."""
        return matrix_of(self._columns, values, rows)

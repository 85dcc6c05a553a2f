"""Formulas: what is regressed on what, taken apart into factors that are read from a table.

The grammar of terms is Wilkinson's (`terms`). A factor is a column, or arithmetic and a few
functions of columns; nothing else is evaluated, so that a formula in a study file is not executed.

A formula is ``response ~ terms`` with ``+ : * ^ -`` between terms; a factor is a column or
arithmetic of columns in ``I(...)``, with log, log2, log10, log1p, exp, expm1, sqrt, abs, minimum,
maximum; ``C(column, reference)`` makes levels of numbers; ``center`` and ``scale`` use mean and sd
of all rows; ``s(x, k=10)`` is a smooth function; ``site`` is the site's name; ``(1 | site)`` is a
level of each site around a common one, its spread estimated, ``(1 + x | site)`` a correlated slope
beside it, ``(1 + x || site)`` an independent one; ``(1 | ward)`` are levels of groups inside the
sites, ``(1 | site:ward)`` where one label at two sites is of two groups, ``(1 | site/ward)`` with a
level of each site beside them, and ``(1 | shared(surgeon))`` levels of groups that are at several
sites; ``offset(...)`` has the coefficient 1; ``Surv(time, event)`` is a time with event 1 if it was
seen, 0 if only its being later is known, as in ``Surv(time, cause == 2)`` and ``status == 'dead'``;
``Surv(start, stop, event)`` is at risk after start only, so that a covariate may change between
rows of one person, or an event may recur; ``strata(arm)`` gives each arm a baseline of cox;
``cluster(patient)`` gives estimates the spread of patients in the place of rows.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeGuard

import numpy as np

from consortia.core.arguments import unknown
from consortia.data.columns import Column, Table, as_levels, column_of, level
from consortia.data.mending import key, mend, text
from consortia.data.writing import loosely
from consortia.errors import InputError, located, wrong
from consortia.models.regression.r_words import check_words
from consortia.models.regression.remedies import missing_code
from consortia.models.regression.splines import WORDS, Basis, bases
from consortia.models.regression.terms import read_terms
from consortia.models.regression.tokens import Code, coded

Kind = Literal["plain", "centre", "scale", "levels", "smooth", "offset", "strata", "cluster"]
GroupKind = Literal["plain", "own", "shared"]

SITE = "site"
"""The name of the site, a column that every table has."""

FUNCTIONS = {
    **{name: getattr(np, name) for name in ("log", "log2", "log10", "log1p", "sqrt", "abs")},
    **{name: getattr(np, name) for name in ("exp", "expm1", "minimum", "maximum")},
    "I": lambda values: values,
}
OPERATORS: dict[type, Any] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
    ast.UAdd: np.positive,
    ast.USub: np.negative,
}
WHOLE: dict[str, Kind] = {"center": "centre", "scale": "scale", "C": "levels", "s": "smooth"}
"""Functions that need to know all data; they stand outermost in a factor."""

COLUMN_WORDS: dict[str, Kind] = {"strata": "strata", "cluster": "cluster"}
"""Words of columns that are in no term."""

LEAST_KNOTS, MOST_KNOTS = 4, 40
KNOTS = 10

BOUNDARY = "widen boundary, or take ns(...), a line beyond it"
LEFT_OUT = "leave such rows out by [data] keep"
INFINITE = f"write log1p(...) for log(...) of 0, or {LEFT_OUT}"
"""Remedies for values of a term."""

MARK = "\x00"
GROUP = re.compile(r"\(([^()|]*)(\|\|?)((?:\s*shared\s*\([^()|]*\))?[^()|]*)\)")
KIND = re.compile(
    r"(?P<site>\w+)\s*(?P<mark>[:/])\s*(?P<own>\w+)|shared\s*\(\s*(?P<shared>\w+)\s*\)"
)


class Group(NamedTuple):
    """A group term, ``(1 + x | site)``."""

    by: str  # the column of the groups, or the site's own name
    inside: tuple[str, ...]  # text of each factor that is multiplied, "" for the intercept
    correlated: bool  # whether levels and slopes are; not where two bars are written
    # "own" where the same label at two sites is of two groups, as ``site:ward`` says; "shared"
    # where it is of one, as ``shared(surgeon)`` does; "plain" where neither is said
    kind: GroupKind = "plain"

    @property
    def is_shared(self) -> bool:
        """True if its groups are one set over all sites."""
        return self.kind == "shared"

    @property
    def text(self) -> str:
        """The term of its levels as it is written."""
        by = {"own": f"{SITE}:{self.by}", "shared": f"shared({self.by})"}.get(self.kind, self.by)
        return f"(1 | {by})"


class Factor(NamedTuple):
    """One factor of a term."""

    text: str  # as it is written
    kind: Kind  # what is done with its values
    tree: ast.expr  # the expression inside
    columns: tuple[str, ...]  # of the table, that it needs
    reference: str | None = None  # of ``C(column, reference)``, or None
    knots: int = KNOTS  # of ``s(column, k=knots)``
    # of a column of ``bs``, ``ns`` or ``poly``, how it is made of the expression
    basis: Basis | None = None

    @property
    def column(self) -> str | None:
        """The one column that it is, or None where it is an expression."""
        plain = isinstance(self.tree, ast.Name) and self.basis is None
        return self.columns[0] if plain else None

    @property
    def is_curved(self) -> bool:
        """True of a smooth, and of a column of splines or powers."""
        return self.kind == "smooth" or self.basis is not None

    def values(self, table: Table, where: str) -> np.ndarray:
        """Return the expression, float64 (rows,); NaN where a value misses.

        Raises:
            InputError: an unknown column, one of strings, or a value that is not finite.
        """
        missing = np.any([table[name].missing for name in self.columns], axis=0)
        numbers = self.numbers(table, where)
        with np.errstate(all="ignore"):
            if self.basis is not None:
                beyond = self.basis.outside(numbers) & ~missing
                if beyond.any():
                    raise InputError(
                        f"{where}: {self.text} is outside its boundary in {int(beyond.sum())} of "
                        f"{len(beyond)} rows{self.first(table, beyond, BOUNDARY)}."
                    ).at(**self.place(table, beyond))
                numbers = self.basis.of(numbers)
        wrong = ~np.isfinite(numbers) & ~missing
        if wrong.any():
            remedy = INFINITE if self.column is None else LEFT_OUT
            raise InputError(
                f"{where}: {self.text} is not finite in {int(wrong.sum())} of {len(wrong)} rows"
                f"{self.first(table, wrong, remedy)}."
            ).at(**self.place(table, wrong))
        return np.where(missing, np.nan, numbers)

    def numbers(self, table: Table, where: str) -> np.ndarray:
        """Return the expression as it is computed, without a basis; it may not be finite."""
        with np.errstate(all="ignore"):
            return np.asarray(_evaluated(self.tree, table, self.text, where), float)

    def place(self, table: Table, wrong: np.ndarray) -> dict[str, Any]:
        """Return the column, and the place of the first of some rows."""
        source, row = table[self.columns[0]].source, int(np.flatnonzero(wrong)[0])
        return {"argument": self.columns[0]} | ({} if source is None else source.place(row))

    def first(self, table: Table, wrong: np.ndarray, remedy: str) -> str:
        """Describe the first of some rows: its place, its value, and the remedy."""
        name = self.columns[0]
        column, row = table[name], int(np.flatnonzero(wrong)[0])
        origin, code = "", ""
        if column.source is not None:
            value = as_levels(column)[row]
            origin = f", first in {column.source.row(row)}, where {name} is {value}"
            if column.kind == "number":
                code = missing_code(column.source.site, name, float(column.values[row]))
        return ": ".join(part for part in (origin, "; ".join(filter(None, (remedy, code)))) if part)

    def texts(self, table: Table, where: str) -> np.ndarray:
        """Return the values as names of levels, (rows,)."""
        assert self.column is not None
        return as_levels(column_of(table, self.column, where))


@dataclass(frozen=True)
class Parsed:
    """A formula, taken apart."""

    text: str  # as it is written
    response: tuple[Factor, ...]  # the factors on the left side; two in ``Surv(time, event)``
    survival: bool  # whether it is that
    terms: tuple[tuple[str, ...], ...]  # for each term the text of each factor; () is the intercept
    factors: Mapping[str, Factor]  # by text, those of the terms
    groups: tuple[Group, ...] = ()  # the group terms
    offset: Factor | None = None  # of ``offset(expression)``, or None
    entry: Factor | None = None  # the start of ``Surv(start, stop, event)``, or None
    strata: tuple[str, ...] = ()  # the columns of ``strata(...)``
    cluster: str | None = None  # the column of ``cluster(...)``, or None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the right side, each once, in order."""
        every = [*self.factors.values(), *([self.offset] if self.offset else [])]
        names = [name for factor in every for name in factor.columns]
        names += [*self.strata, *(group.by for group in self.groups)]
        return tuple(dict.fromkeys(name for name in names if name != SITE))

    @property
    def response_columns(self) -> tuple[str, ...]:
        """The columns of the left side."""
        factors = (*self.response, *([self.entry] if self.entry else []))
        return tuple(dict.fromkeys(name for factor in factors for name in factor.columns))


@located(argument="formula")
def parse(text: Any) -> Parsed:
    """Return a formula taken apart; no data are needed.

    Raises:
        InputError: it is not a formula, or it uses what cannot be used, with what can.
    """
    if not isinstance(text, str) or coded(text).text.count("~") != 1:
        raise InputError(f"formula is {text!r}: give 'response ~ terms', one ~ in it.")
    check_words(text)
    code = coded(text)
    rest, groups = _without_groups(code)
    left, right = read_terms(code.part(rest))
    if len(left) != 1 or len(left[0]) != 1:
        raise InputError(f"formula {text!r}: give one response before the ~.")
    response, survival, entry = _response(code.part(left[0][0]))
    terms, factors, offset = [], {}, None
    words: dict[str, tuple[str, ...]] = dict.fromkeys(COLUMN_WORDS, ())
    written = [[_columns_of(code.part(node)) for node in term] for term in right]
    for made in (product for term in written for product in itertools.product(*term)):
        kinds = {factor.kind for factor in made}
        if word := next((word for word in COLUMN_WORDS if word in kinds), None):
            if len(made) > 1:
                raise InputError(f"formula {text!r}: {word}(...) must be a separate term.")
            words[word] += made[0].columns
        elif "offset" in kinds:
            if len(made) > 1 or offset is not None:
                raise InputError(f"formula {text!r}: offset(...) must be a single, separate term.")
            offset = made[0]._replace(kind="plain")
        elif len(made) > 1 and "smooth" in kinds:
            raise InputError(f"formula {text!r}: s(...) has no interactions: write it alone.")
        else:
            terms.append(tuple(factor.text for factor in made))
            factors.update({factor.text: factor for factor in made})
    inside: list[Group] = []
    for group in groups:
        of_group = [_plain(_factor(code.part(node))) for node in group.inside if node]
        factors.update({plain.text: plain for plain in of_group if plain.text not in factors})
        names = iter(of_group)
        texts = tuple(next(names).text if node else "" for node in group.inside)
        inside.append(group._replace(inside=texts))
    if not terms and not groups:
        raise InputError(f"formula {text!r} has nothing after the ~.")
    if len(words["cluster"]) > 1:
        raise InputError(f"formula {text!r}: cluster(...) stands once, with one column.")
    strata, cluster = tuple(dict.fromkeys(words["strata"])), next(iter(words["cluster"]), None)
    more = (tuple(inside), offset, entry, strata, cluster)
    return Parsed(text, response, survival, tuple(terms), factors, *more)


def _columns_of(code: Code) -> list[Factor]:
    """Return the factors of a single term: the columns of a basis, or itself."""
    factor = _factor(code)
    if not _is_basis(factor.tree):
        return [factor]
    inner = factor.tree.args[0]
    return [
        factor._replace(text=f"{factor.text}{number}", tree=inner, basis=basis)
        for number, basis in enumerate(bases(factor.tree, factor.text), 1)
    ]


def _is_basis(tree: ast.expr) -> TypeGuard[ast.Call]:
    """Return True of a call that stands for several columns."""
    return isinstance(tree, ast.Call) and ast.unparse(tree.func) in WORDS


def expression(text: str) -> Factor:
    """Return the factor of an expression of columns, such as an exposure; no levels, no smooths."""
    return _plain(_factor(coded(text)))


def _factor(code: Code) -> Factor:
    """Return a factor from its text.

    Raises:
        InputError: it holds what cannot be evaluated.
    """
    text = code.shown
    try:
        tree = ast.parse(code.text.strip().replace("^", "**"), mode="eval").body
    except SyntaxError:
        tree = ast.Name(text.strip())  # a name with spaces, beside the formula
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = code.columns.get(node.id, node.id)
    outer = tree.func.id if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) else ""
    if outer == "offset" and isinstance(tree, ast.Call) and len(tree.args) == 1:
        return Factor(text, "offset", tree.args[0], _columns(tree.args[0], text))
    if outer in COLUMN_WORDS and isinstance(tree, ast.Call):
        names = tuple(argument.id for argument in tree.args if isinstance(argument, ast.Name))
        if not names or len(names) < len(tree.args):
            raise wrong("formula", f": {text}: {outer} takes names of columns.")
        return Factor(text, COLUMN_WORDS[outer], tree, names)
    if outer in WORDS and isinstance(tree, ast.Call) and tree.args:
        return Factor(text, "plain", tree, _columns(tree.args[0], text))
    if outer not in WHOLE:
        return Factor(text, "plain", tree, _columns(tree, text))
    assert isinstance(tree, ast.Call)
    kind = WHOLE[outer]
    more = [_constant(argument, text) for argument in tree.args[1:]]
    words = {str(argument.arg): _constant(argument.value, text) for argument in tree.keywords}
    allowed = {"levels": "reference", "smooth": "k"}.get(kind)
    if not tree.args or len(more) + len(words) > (allowed is not None) or words.keys() - {allowed}:
        takes = f" and {allowed}=" if allowed else ""
        raise wrong("formula", f": {text}: {outer} takes one expression{takes}.")
    inner, option = tree.args[0], next(iter([*more, *words.values()]), None)
    columns = _columns(inner, text)
    if kind == "levels":
        if not isinstance(inner, ast.Name):
            raise wrong("formula", f": {text}: C takes the name of a column.")
        return Factor(text, kind, inner, columns, None if option is None else level(option))
    if kind != "smooth" or option is None:
        return Factor(text, kind, inner, columns)
    if not isinstance(option, int) or not LEAST_KNOTS <= option <= MOST_KNOTS:
        raise wrong("formula", f": {text}: k is an integer from {LEAST_KNOTS} to {MOST_KNOTS}.")
    return Factor(text, kind, inner, columns, None, option)


# --- parts ---------------------------------------------------------------------------------------


def _response(code: Code) -> tuple[tuple[Factor, ...], bool, Factor | None]:
    """Return the factors of the left side, whether it is a time, and where that starts."""
    tree = ast.parse(code.text, mode="eval").body if "(" in code.text else None
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "Surv":
        inside = [ast.unparse(part) for part in tree.args]
        if len(inside) not in (2, 3) or tree.keywords:
            raise InputError(
                f"formula: {code.shown}: Surv takes the time and the event, in this order, or "
                "start, stop and event."
            ).at("formula")
        *start, stop, event = (_plain(_factor(code.part(part))) for part in inside)
        return (stop, event), True, start[0] if start else None
    return (_plain(_factor(code)),), False, None


def _without_groups(code: Code) -> tuple[str, list[Group]]:
    """Return a formula without its group terms, and these, their factors still to be read."""
    groups: list[Group] = []

    def taken(match: re.Match[str]) -> str:
        terms, bar, group = (part.strip() for part in match.groups())
        written = code.part(match[0]).shown
        kinds = _kinds(code, group)
        if not kinds:
            raise InputError(
                f"formula: {written}: give one column after the bar, {SITE} for the site itself, "
                f"{SITE}:column or {SITE}/column for groups inside it, or shared(column) for "
                "groups that are at several sites."
            ).at("formula")
        parts = [part.strip() for part in terms.split("+")]
        inside = ["" if part == "1" else part for part in parts if part != "0"]
        if "1" not in parts and "0" not in parts:
            inside.insert(0, "")
        if not inside:
            raise wrong("formula", f": {written} has nothing that differs between groups.")
        for by, kind in kinds:
            groups.append(Group(by, tuple(dict.fromkeys(inside)), bar == "|", kind))
        return MARK

    rest = GROUP.sub(taken, code.text)
    rest = re.sub(rf"\+\s*{MARK}", "", rest)
    rest = re.sub(rf"~\s*{MARK}\s*\+", "~", rest)
    rest = re.sub(rf"~\s*{MARK}\s*$", "~ 1", rest)
    if "|" in rest:
        raise wrong("formula", f" {code.shown!r}: put group terms in brackets, (1 | {SITE}).")
    if MARK in rest:
        raise wrong("formula", f" {code.shown!r}: add group terms with a plus.")
    return rest, groups


def _kinds(code: Code, group: str) -> list[tuple[str, GroupKind]]:
    """Return column and kind of the groups that stand after a bar; none where they cannot be."""
    if group in code.columns:
        return [(code.columns[group], "plain")]
    match = KIND.fullmatch(group)
    if match is None:
        return []
    if match["shared"]:
        name = code.columns.get(match["shared"], SITE)
        return [] if name == SITE else [(name, "shared")]
    outer, inner = (code.columns.get(match[part], "") for part in ("site", "own"))
    if match["mark"] == ":" and inner == SITE:  # as lme4 prints it, ward:site
        outer, inner = inner, outer
    if outer != SITE or inner in ("", SITE):
        return []
    return [(inner, "own")] if match["mark"] == ":" else [(SITE, "plain"), (inner, "own")]


def _plain(factor: Factor) -> Factor:
    if factor.kind in COLUMN_WORDS:
        text = f"{factor.kind}({', '.join(factor.columns)})"
        raise wrong("formula", f": {text} stands on the right side.")
    if factor.kind != "plain" or _is_basis(factor.tree):
        raise wrong("formula", f": {factor.text}: give a column or an expression of columns here.")
    return factor


def _columns(tree: ast.expr, text: str) -> tuple[str, ...]:
    """Return the columns of an expression; refuse what is not arithmetic of columns."""
    columns: list[str] = []

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            columns.append(node.id)
        elif (compared := _compared_word(node)) is not None:
            columns.append(compared[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            pass
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            walk(node.left)
            walk(node.right)
        elif isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
            walk(node.operand)
        elif isinstance(node, ast.Compare) and {type(op) for op in node.ops} <= OPERATORS.keys():
            for part in (node.left, *node.comparators):
                walk(part)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            if node.func.id in (*WHOLE, *WORDS, "offset", *COLUMN_WORDS):
                raise wrong("formula", f": {text}: {node.func.id} stands outermost in a factor.")
            if node.func.id not in FUNCTIONS:
                known = [*FUNCTIONS, *WHOLE, "offset"]
                raise InputError(
                    f"formula: {text}: {node.func.id!r} is not a function of formulas: "
                    f"{unknown(node.func.id, known)}."
                ).at("formula")
            for part in node.args:
                walk(part)
        else:
            raise InputError(
                f"formula: {text}: {ast.unparse(node)} cannot be evaluated; write columns, "
                f"numbers, arithmetic and {', '.join(FUNCTIONS)}."
            ).at("formula")

    walk(tree)
    if not columns:
        raise wrong("formula", f": {text} has no column in it.")
    return tuple(dict.fromkeys(columns))


def _compared_word(node: ast.AST) -> tuple[str, str] | None:
    """Return column and word of ``column == 'word'`` or ``column != 'word'``; else None."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
        return None
    left, right = node.left, node.comparators[0]
    if len(node.ops) > 1 or not isinstance(left, ast.Name) or not isinstance(right, ast.Constant):
        return None
    return (left.id, right.value) if isinstance(right.value, str) else None


def _is_word(column: Column, name: str, word: str, where: str) -> np.ndarray:
    """Mark the rows with a word; refuse one that the rows have in another writing."""
    texts = as_levels(column)
    same = texts == word
    if not same.any():
        for other in np.unique(texts[~column.missing]).tolist():
            if loosely(other) == loosely(word):
                site = "" if column.source is None else column.source.site
                line = mend(site, f"recode.{key(name)}", f"{text(other)} = {text(word)}")
                raise InputError(
                    f"{where}: {name} is {other!r} there, and {word!r} in the formula: {line}"
                )
    return same


def _constant(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    raise InputError(
        f"formula: {text}: {ast.unparse(node)} is neither a number nor a string in quotes."
    ).at("formula")


def _evaluated(node: ast.expr, table: Table, text: str, where: str) -> Any:
    def of(part: ast.expr) -> Any:
        return _evaluated(part, table, text, where)

    if (compared := _compared_word(node)) is not None:
        name, word = compared
        same = _is_word(column_of(table, name, where), name, word, where)
        return same == isinstance(node.ops[0], ast.Eq)  # type: ignore[attr-defined]
    if isinstance(node, ast.Name):
        column = column_of(table, node.id, where)
        if column.kind == "text" or column.doubt:
            doubt = column.doubt or "write C(...) for a factor, or encode it"
            what = "holds strings: " if column.kind == "text" else ""
            raise InputError(f"{where}: {text}: the column {node.id!r} {what}{doubt}.")
        return column.values
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](of(node.left), of(node.right))
    if isinstance(node, ast.UnaryOp):
        return OPERATORS[type(node.op)](of(node.operand))
    if isinstance(node, ast.Compare):
        parts: Sequence[Any] = [of(node.left), *map(of, node.comparators)]
        holds = [
            OPERATORS[type(op)](parts[index], parts[index + 1]) for index, op in enumerate(node.ops)
        ]
        return np.all(holds, axis=0)
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    return FUNCTIONS[node.func.id](*map(of, node.args))

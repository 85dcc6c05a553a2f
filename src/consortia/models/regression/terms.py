"""Terms of a formula: what ``+ - * / : ^`` and brackets between factors stand for.

A set of terms is a dict from the factors of a term, whose order has no meaning, to these in the
order in which they are written; the empty term is the intercept. ``a*b`` is ``a + b + a:b``,
``a/b`` is ``a + a:b``, and ``(a + b)^2`` the products of two.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import NoReturn

from consortia.errors import wrong
from consortia.models.regression.tokens import Code

Term = tuple[str, ...]
Terms = dict[frozenset[str], Term]

TOKEN = re.compile(r"\*\*|[0-9.]+|\w+|\S")
STRENGTH = {"+": 1, "-": 1, "*": 2, "/": 2, ":": 3, "^": 4, "**": 4}
"""Operators; a greater number binds its neighbours first."""


def read_terms(code: Code) -> tuple[list[Term], list[Term]]:
    """Read the terms of both sides of ``~``, those of fewer factors first.

    Raises:
        InputError: the text cannot be read as a formula.
    """
    left, _, right = code.text.partition("~")
    sides = _Reader(code, left).whole({}), _Reader(code, right).whole(_set_of([()]))
    return sorted(sides[0].values(), key=len), sorted(sides[1].values(), key=len)


class _Reader:
    """One side of a formula, read from left to right."""

    def __init__(self, code: Code, text: str) -> None:
        self.code, self.text, self.at = code, text, 0

    def whole(self, first: Terms) -> Terms:
        """Read all of the text, a sum that begins with some terms."""
        if self.next() == "" and not first:
            self.refuse("there is nothing before the ~")
        terms = self.summed(first)
        if self.next():
            self.refuse(f"an operator is missing before {self.shown(self.next())}")
        return terms

    def next(self) -> str:
        """Look at the token that comes next; "" at the end."""
        match = TOKEN.search(self.text, self.at)
        return match[0] if match else ""

    def take(self) -> str:
        """Return the next token, and move beyond it."""
        match = TOKEN.search(self.text, self.at)
        if match is None:
            self.refuse("a term is missing at the end")
        self.at = match.end()
        return match[0]

    def summed(self, terms: Terms) -> Terms:
        """Add to some terms, and take from them, what follows."""
        negative = False
        while True:
            while self.next() in ("+", "-"):  # several signs are one
                negative ^= self.take() == "-"
            if self.next() in ("0", "1"):
                negative ^= self.next() == "0"  # as R has it: "+ 0" is "- 1"
            more = self.product(2)
            if negative:
                terms = {key: term for key, term in terms.items() if key not in more}
            else:
                terms = terms | {key: term for key, term in more.items() if key not in terms}
            negative = False
            if self.next() not in ("+", "-"):
                return terms

    def product(self, least: int) -> Terms:
        """Read factors between operators that bind at least so strongly."""
        terms = self.factor()
        while STRENGTH.get(self.next(), 0) >= least:
            operator = self.take()
            if operator in ("^", "**"):
                terms = self.power(terms)
                continue
            more = self.product(STRENGTH[operator] + 1)
            if operator == "*":
                terms = _set_of([*terms.values(), *more.values(), *_crossed(terms, more)])
            elif operator == "/":
                everything = [factor for term in terms.values() for factor in term]
                nested = _crossed(_set_of([tuple(everything)]), more)
                terms = _set_of([*terms.values(), *nested])
            else:
                terms = _set_of(_crossed(terms, more))
        return terms

    def power(self, terms: Terms) -> Terms:
        """Read an exponent, and return the products of so many of the terms."""
        exponent = self.take()
        if not exponent.isdigit() or int(exponent) < 1:
            self.refuse(f"an exponent is a positive integer, not {self.shown(exponent)}")
        powers = terms
        for _ in range(int(exponent) - 1):
            larger = _set_of(_crossed(powers, terms))
            if list(larger.values()) == list(powers.values()):
                break
            powers = larger
        return powers

    def factor(self) -> Terms:
        """Read one factor, or terms in brackets."""
        token = self.take()
        if token == "(":
            terms = self.summed({})
            if self.next() != ")":
                self.refuse("a bracket is not closed")
            self.take()
            return terms
        if token in ("0", "1"):
            return _set_of([()])
        if token == ".":
            self.refuse("'.' stands for no columns here: name them")
        if token[0].isdigit() or token[0] == ".":
            self.refuse(
                f"{token} is not a term: 0 and 1 are, of the intercept; write I({token} * column) "
                "for a multiple"
            )
        if not token.isidentifier():
            self.refuse(f"a term is missing before {self.shown(token)}")
        if self.next() == "(":
            token = self.called(token)
        elif call := re.match(r"\.(?:\w+\.)*(\w+)\(", self.text[self.at :]):
            self.refuse(f"write {call[1]}(...) for {token}{call[0]}...)")
        return _set_of([(token,)])

    def called(self, name: str) -> str:
        """Read the arguments of a function; return its call as Python writes it."""
        began = self.at
        for match in re.finditer(r"'[^']*'|\"[^\"]*\"|[()]", self.text[began:]):
            self.at = began + match.end()
            written = self.text[began : self.at]
            bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", written)
            if match[0] == ")" and bare.count("(") == bare.count(")"):
                try:
                    return ast.unparse(ast.parse(name + written.strip(), mode="eval"))
                except SyntaxError as error:
                    self.refuse(f"{self.shown(name + written.strip())}: {error.msg}")
        self.refuse(f"the bracket of {name} is not closed")

    def shown(self, text: str) -> str:
        """Return a part of the formula as the user wrote it."""
        return self.code.part(text).shown

    def refuse(self, reason: str) -> NoReturn:
        """Raise the error of a formula that cannot be read."""
        raise wrong("formula", f" {self.code.shown!r} cannot be read: {reason}.")


def _set_of(terms: Iterable[Iterable[str]]) -> Terms:
    made: Terms = {}
    for factors in terms:
        term = tuple(dict.fromkeys(factors))
        made.setdefault(frozenset(term), term)
    return made


def _crossed(terms: Terms, more: Terms) -> list[Term]:
    return [(*term, *other) for term in terms.values() for other in more.values()]

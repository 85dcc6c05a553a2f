"""Terms and their columns, beside those of formulaic."""

from __future__ import annotations

import formulaic
import numpy as np
import pandas as pd
import pytest

from consortia.models.regression.coding import columns_of, matrix_of
from consortia.models.regression.formula import parse
from consortia.models.regression.terms import read_terms
from consortia.models.regression.tokens import Code
from tests.refusals import refused

LEVELS = {"f": ("0", "1", "2"), "g": ("0", "1"), "h": ("0", "1", "2", "3")}
NAMES = ["a", "b", *LEVELS]


def written(rng: np.random.Generator, depth: int = 0) -> str:
    """Return a random sum of terms."""
    parts = []
    for _ in range(rng.integers(1, 4)):
        part = str(rng.choice(NAMES))
        if depth < 2 and rng.random() < 0.3:
            part = f"({written(rng, depth + 1)})" + str(rng.choice(["", "", "**2", "**3"]))
        if rng.random() < 0.5:
            part += f" {rng.choice(['*', ':', '/'])} {rng.choice(NAMES)}"
        parts.append(part)
    signs = rng.choice(["+", "+", "+", "-", "+ -", "- -"], len(parts) - 1)
    text = parts[0]
    for sign, part in zip(signs, parts[1:], strict=True):
        text += f" {sign} {part}"
    return text


def right_side(seed: int) -> str:
    """Return a random right side, a third of them without an intercept."""
    rng = np.random.default_rng(seed)
    return str(rng.choice(["", "0 + ", "1 + "])) + written(rng) + str(rng.choice(["", "", " - 1"]))


@pytest.mark.parametrize("seed", range(200))
def test_terms_are_those_of_formulaic_in_their_order(seed: int) -> None:
    text = right_side(seed)
    wanted = [
        [factor.expr for factor in term.factors if factor.expr != "1"]
        for term in formulaic.Formula(f"y ~ {text}").rhs
    ]
    left, right = read_terms(Code(f"y ~ {text}", {}, {}))
    assert (left, [list(term) for term in right]) == ([("y",)], wanted), text


@pytest.mark.parametrize("seed", range(200))
def test_columns_are_those_of_formulaic(seed: int) -> None:
    text = right_side(seed)
    rng = np.random.default_rng(seed)
    values = {name: rng.normal(size=60) for name in "ab"}
    values |= {name: rng.integers(len(LEVELS[name]), size=60) for name in LEVELS}
    table = pd.DataFrame(
        {
            name: pd.Categorical(codes, categories=range(len(LEVELS[name])))
            if name in LEVELS
            else codes
            for name, codes in values.items()
        }
    )
    wanted = formulaic.model_matrix(text, table)
    columns = columns_of(read_terms(Code(f"y ~ {text}", {}, {}))[1], LEVELS)
    np.testing.assert_allclose(matrix_of(columns, values, 60), wanted.to_numpy(float), rtol=1e-12)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("y ~ .", r"'\.' stands for no columns here: name them"),
        ("y ~ a b", "an operator is missing before b"),
        ("y ~ a +", "a term is missing at the end"),
        ("y ~ a + * b", r"a term is missing before \*"),
        ("y ~ (a + b", "a bracket is not closed"),
        ("y ~ a + b)", r"an operator is missing before \)"),
        ("y ~ log(a + b", "the bracket of log is not closed"),
        ("y ~ log(a +)", r"log\(a \+\): invalid syntax"),
        ("y ~ (a + b)^c", "an exponent is a positive integer, not c"),
        ("y ~ (a + b)^0", "an exponent is a positive integer, not 0"),
        ("y ~ 2:a", r"2 is not a term: .* write I\(2 \* column\) for a multiple"),
        ("y ~ a == 2", "an operator is missing before ="),
        ("~ a", "there is nothing before the ~"),
        ("y ~ a + np.log(b)", r"write log\(\.\.\.\) for np\.log\(\.\.\.\)"),
        ("y ~ numpy.lib.sqrt(b)", r"write sqrt\(\.\.\.\) for numpy\.lib\.sqrt\("),
    ],
)
def test_a_formula_that_cannot_be_read_says_where(text: str, reason: str) -> None:
    with refused(argument="formula", match=f"cannot be read: {reason}"):
        parse(text)


def test_calls_are_written_alike_however_they_are_spaced() -> None:
    read = parse("y ~ I( a**2 ) + I(a ** 2):b + log (b) + C(f, 'x)')")
    assert read.terms == ((), ("I(a ** 2)",), ("log(b)",), ("C(f, 'x)')",), ("I(a ** 2)", "b"))

"""The words of R's formulas: what is the same, and what is said of the others."""

from __future__ import annotations

import re

import numpy as np
import pytest

import consortia
from consortia.models.regression.formula import FUNCTIONS, WHOLE, parse
from consortia.models.regression.r_words import HERE
from consortia.models.regression.splines import WORDS
from tests.refusals import refused


def test_a_power_is_written_with_a_roof() -> None:
    x = np.arange(1.0, 9.0)
    table = {"x": x, "y": x}
    made = consortia.regression("y ~ x + I(x^2) + I(2 * x^3 + 1)", {"oslo": table})
    assert made.names == ("x", "I(x ^ 2)", "I(2 * x ^ 3 + 1)")
    assert made.specification.units["I(x ^ 2)"].mean == pytest.approx(np.mean(x**2))
    cubes = made.specification.units["I(2 * x ^ 3 + 1)"]
    assert cubes.mean == pytest.approx(np.mean(2 * x**3 + 1))


@pytest.mark.parametrize("word", HERE)
def test_a_word_of_r_is_refused_with_what_to_do(word: str) -> None:
    with refused(argument="formula", match=re.escape(f"{word}(...): {HERE[word]}")):
        parse(f"y ~ a + {word}(x)")


def test_words_of_formulas_are_in_no_table_and_columns_may_have_the_names() -> None:
    assert not HERE.keys() & {*FUNCTIONS, *WHOLE, *WORDS, "offset", "Surv", "shared"}
    parsed = parse("y ~ poly + `factor` + C(`ns(x)`) + s(lag)")
    assert {"poly", "factor", "ns(x)", "lag"} <= {*parsed.columns}
    with refused(argument="formula"):
        parse("y ~ as.factor(arm) * rcs(age, 3)")

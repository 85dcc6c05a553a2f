"""R's names in formulas, and the names used here, or the reason why there is none."""

from __future__ import annotations

import re

from consortia.errors import wrong

HERE = {
    **dict.fromkeys(("factor", "as.factor", "as.character"), "write C(column)"),
    "relevel": "write C(column, 'reference'), or give levels with the reference first",
    **dict.fromkeys(
        ("ordered", "as.ordered"), "give levels in their order; C(column) makes levels of them"
    ),
    **dict.fromkeys(
        ("as.numeric", "as.integer", "as.double"), "a column of numbers is one; write its name"
    ),
    **dict.fromkeys(
        ("rcs", "cr", "pspline", "splines"),
        "write s(column, k=10), or ns(column, knots=[...], boundary=[...])",
    ),
    **dict.fromkeys(("te", "ti", "t2"), "a smooth takes one number; write s(a) + s(b)"),
    "pmin": "write minimum(a, b)",
    "pmax": "write maximum(a, b)",
    "cut": "write I(column > 50) for each bound, or make the levels at the sites",
    **dict.fromkeys(
        ("ifelse", "case_when", "is.na"), "make the column at the sites; I(column > 50) is 0 or 1"
    ),
    "interaction": "write a:b",
    "frailty": "write (1 | column), with family 'weibull' or 'piecewise_exponential'",
    **dict.fromkeys(("tt", "tvc"), "coefficients that depend on time are not supported"),
    **dict.fromkeys(("cbind", "trials"), "name the successes, and give trials='column'"),
    "weights": "give weights='column'",
    "re": "write (1 | column)",
    "random": "write (1 | column)",
    "us": "write (1 + x | column)",
    "diag": "write (1 + x || column)",
    **dict.fromkeys(
        ("mo", "monotonic"), "not supported; C(column) has a coefficient for each level"
    ),
    **dict.fromkeys(("mi", "me"), "give missing='impute'; measurement error is not supported"),
    **dict.fromkeys(
        ("gp", "ar", "arma", "ma", "cosy", "sar", "car"),
        "not supported: rows are independent given the levels of their groups",
    ),
    **dict.fromkeys(
        ("lag", "lead", "diff", "cumsum"),
        "not supported: rows have no order; make the column at the sites",
    ),
    **dict.fromkeys(("sin", "cos", "tan"), "make the column at the sites, or write s(column)"),
    **dict.fromkeys(
        ("mean", "median", "sd", "min", "max", "quantile", "rank"),
        "not supported: it would use one site's rows; center(column) and scale(column) use all",
    ),
    **dict.fromkeys(("lo", "loess", "lowess"), "write s(column)"),
    "nsk": "write s(column, k=10)",
    **dict.fromkeys(("Surv2", "Hist"), "write Surv(time, event)"),
    "identity": "write I(...)",
    "dummy": "write C(column)",
}
"""Advice by R's word; words that mean the same here are not in the table."""

CALL = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"|(?<![\w.])(?P<name>[A-Za-z][\w.]*)\s*\(")


def check_words(formula: str) -> None:
    """Refuse functions of R that have another name here, or none.

    Raises:
        InputError: with what to do for each of them.
    """
    names = dict.fromkeys(match["name"] for match in CALL.finditer(formula) if match["name"])
    advice = [f"{name}(...): {HERE[name]}" for name in names if name in HERE]
    if advice:
        raise wrong("formula", f" {formula!r}: {'; '.join(advice)}.")

r"""Weights of an emulated trial, from the posterior of a model of who was treated.

With e the probability of a patient's treatment a at the posterior mean of the coefficients, the
weights are those of Li, Morgan and Zaslavsky (2018):

.. math::
    \text{ATE}\; \frac{a}{e} + \frac{1 - a}{1 - e}, \qquad
    \text{ATT}\; a + (1 - a) \frac{e}{1 - e}, \qquad
    \text{overlap}\; a (1 - e) + (1 - a) e

Each is an expression of columns with these coefficients in it, which a second study takes as
``weights``: every site computes the weights of its own rows, and none leaves.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from consortia.core import arguments
from consortia.core.parameters import POSTERIOR, has_natural
from consortia.errors import InputError
from consortia.models.regression.coding import columns_of
from consortia.models.regression.earlier import fitted_run
from consortia.models.regression.formula import Factor, parse
from consortia.models.regression.question import RESPONSE

ESTIMANDS = ("ATE", "ATT", "overlap")
"""Populations of which the effect is estimated: all patients, the treated, and those who might
have had either treatment."""

DIGITS = 10
"""Significant digits of a coefficient in the expression."""


@arguments.hinted
def propensity_weights(
    run: Any,
    *,
    estimand: str = "ATE",
    stabilise: bool = True,
    trim: float = 0.0,
    draw: int | None = None,
) -> str:
    """Return weights for the effect of a treatment, as an expression of columns.

    Give it as ``weights`` of the outcome's `consortia.regression`, with
    ``weights_are="sampling"``: the draws then have the spread of a sandwich.

    Args:
        run: of family bernoulli, the treatment being its response: a result or its directory.
        estimand: "ATE", the effect in all patients, "ATT", in the treated, or "overlap", in those
            who might have had either.
        stabilise: of ATE, multiply the weights of an arm by its share of all rows.
        trim: probabilities of treatment below it, or above 1 - trim, are set to these.
        draw: of the run, chains one after the other, in the place of the posterior mean.

    Returns:
        The expression, of columns that the formula of treatment names.

    Raises:
        InputError: an argument cannot be used, or no expression of columns has the weights.

    Example:
        >>> import consortia, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> table = {"arm": rng.integers(0, 2, 50), "age": rng.normal(60, 9, 50)}
        >>> arms = consortia.regression("arm ~ age", {"a": table}, family="bernoulli")
        >>> run = consortia.sample(arms.model, arms.sites, consortia.few_rounds(), seed=1,
        ...     metadata=arms.metadata, progress=False)
        >>> text = propensity_weights(run, estimand="overlap")
        >>> text[:22], "*age" in text
        ('1/(1 + exp((2*arm - 1)', True)
    """
    arguments.one_of("estimand", estimand, ESTIMANDS)
    arguments.flag("stabilise", stabilise)
    if trim:
        arguments.positive("trim", trim, below=0.5)
    tree, settings = fitted_run(run)
    if settings.get("family") != "bernoulli" or "agreed" not in settings:
        raise InputError(
            "propensity_weights: expected a run of a formula with family 'bernoulli': sample "
            "'treatment ~ age + ...' first, with metadata=made.metadata."
        ).at("tree")
    if estimand == "ATE" and stabilise:
        check_share(settings["formula"], settings["agreed"]["levels"])
    treated, share = _treatment(settings)
    log_odds = _log_odds(tree, settings, draw)
    if trim:
        bound = f"{math.log1p(-trim) - math.log(trim):.{DIGITS}g}"
        log_odds = f"minimum(maximum({log_odds}, -{bound}), {bound})"
    if estimand == "overlap":
        return f"1/(1 + exp((2*{treated} - 1)*({log_odds})))"
    if estimand == "ATT":
        return f"exp((1 - {treated})*({log_odds}))"
    weights = f"1 + exp((1 - 2*{treated})*({log_odds}))"
    if not stabilise:
        return weights
    return f"({share:.{DIGITS}g}*{treated} + {1 - share:.{DIGITS}g}*(1 - {treated}))*({weights})"


def check_share(formula: str, levels: Mapping[str, Sequence[str]]) -> None:
    """Refuse to stabilise weights of a treatment of words, whose share no site sends."""
    if RESPONSE in levels:
        column = quoted(str(parse(formula).response[0].column))
        raise InputError(
            "stabilise: the share of treated rows is known only for a response of 0 and 1: write "
            f"I({column} == {levels[RESPONSE][1]!r}) ~ ... as the formula, or give stabilise = "
            "false."
        ).at("stabilise")


def _treatment(settings: Mapping[str, Any]) -> tuple[str, float]:
    """Return the expression that is 1 of treated rows, and their share, 0 where it is unknown."""
    response = parse(settings["formula"]).response[0]
    if (levels := settings["agreed"]["levels"].get(RESPONSE)) is not None:
        return f"({quoted(str(response.column))} == {levels[1]!r})", 0.0
    return _number(response), settings["agreed"]["numbers"][RESPONSE]["centre"]


def _log_odds(tree: Any, settings: Mapping[str, Any], draw: int | None) -> str:
    """Return the log odds of treatment at the posterior mean, or a draw, as an expression.

    Raises:
        InputError: a term cannot be written so.
    """
    parsed, agreed = parse(settings["formula"]), settings["agreed"]
    if parsed.groups:
        raise InputError(
            f"propensity: {parsed.groups[0].text} has levels that stay at their sites: write "
            "site, or the column, as a term of its own."
        ).at("formula")
    if agreed["fills"] or parsed.offset is not None:
        raise InputError(
            "propensity: a column that marks missing values, or an offset, is in no weight: give "
            "missing='complete', and no offset."
        ).at("formula")
    levels = {name: tuple(words) for name, words in settings["levels"].items()}
    columns = columns_of(sorted(parsed.terms, key=len), levels)
    posterior = tree[POSTERIOR]
    if not has_natural(tree) or "coefficients" not in posterior:
        raise InputError("propensity: the run has no coefficient in the units of its columns.")

    def at(name: str) -> Any:
        values = np.concatenate(np.asarray(posterior[name], float))
        if draw is None:
            return values.mean(axis=0)
        return values[arguments.whole("draw", draw, 0, len(values) - 1)]

    slopes, constant = at("coefficients"), at("intercept") if () in parsed.terms else 0.0
    parts = [f"{constant:.{DIGITS}g}"]
    for key, slope in zip([key for key in columns if key], slopes, strict=True):
        factors = [
            _number(parsed.factors[text])
            if index is None
            else f"({quoted(str(parsed.factors[text].column))} == {levels[text][index]!r})"
            for text, index in sorted(key, key=str)
        ]
        parts.append("*".join([f"{slope:.{DIGITS}g}", *factors]))
    return " + ".join(parts).replace("+ -", "- ")


def _number(factor: Factor) -> str:
    """Return a number of a term as an expression."""
    if factor.kind != "plain" or factor.basis is not None:
        raise InputError(
            f"propensity: {factor.text} is not arithmetic of columns: write the column in any "
            "unit, and powers such as age + I(age^2) in place of smooths and splines."
        ).at("formula")
    if factor.column is not None:
        return quoted(factor.column)
    return factor.text if isinstance(factor.tree, ast.Call) else f"({factor.text})"


def quoted(name: str) -> str:
    """Return the name of a column as it may stand in any expression."""
    return name if name.isidentifier() else f"`{name}`"

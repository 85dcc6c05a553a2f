"""The table ``[propensity]`` of a study file: weights by the probability of treatment.

Without ``weights`` the file is the study of who was treated, which any engine runs; with them, as
its run gives them, it is the study of the outcome. Both are studies like any other.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from consortia.errors import InputError, wrong
from consortia.models.regression.formula import parse
from consortia.models.regression.propensity import quoted
from consortia.store.metadata import recorded
from consortia.study.model import ModelTable
from consortia.study.tables import Table

HEAD = re.compile(r"^[ \t]*\[[ \t]*propensity[ \t]*\][ \t]*(#.*)?$", re.MULTILINE)
TABLES, REGISTERED = re.compile(r"^(?=[ \t]*\[)", re.MULTILINE), re.compile(r"\s*\[\s*registered\b")
WEIGHTED = ("weights", "weights_are")


class Propensity(Table):
    """Weights of the rows by the probability of their treatment, which a first run estimates.

    A study without `weights` is that of the treatment: it samples `formula` in place of the model.
    `consortia run` then samples the outcome, too; between institutions
    `consortia register STUDY --propensity DIR` writes the weights of that run here.
    """

    formula: str = Field(description="'treatment ~ terms': 1, true or the second of two words is "
                         "treated")  # fmt: skip
    estimand: Literal["ATE", "ATT", "overlap"] = Field(
        "ATE",
        description="population of the effect: all patients (ATE), the treated (ATT), or those who "
        "could have had either treatment (overlap)",
    )
    stabilise: bool = Field(
        True, description="of ATE, multiply the weights of an arm by its share of all rows"
    )
    trim: float = Field(
        0.0,
        ge=0,
        lt=0.5,
        description="probabilities below it, or above 1 less it, are set to these",
    )
    prior: dict[str, str] = Field(
        default_factory=dict, description="priors of the formula, as `model.prior`"
    )
    weights: str | None = Field(
        None, description="expression of columns that the first run has given"
    )

    def model(self, outcome: ModelTable) -> ModelTable:
        """Return the model that is sampled: of the treatment, or of the weighted outcome.

        Raises:
            ValueError: the outcome's has weights of its own, or it has no formula.
        """
        if outcome.formula is None:
            raise wrong("propensity", ": it needs model.formula")
        if clash := [f"model.{name}" for name in WEIGHTED if name in outcome.options]:
            raise wrong("propensity", f": it gives the weights: leave {' and '.join(clash)} out")
        options = outcome.options
        try:
            parsed, formula = parse(self.formula), self.formula
            words = (options.get("levels") or {}).get(parsed.response[0].column)
            if words is not None and len(words) == 2:  # so that sites send the treated rows' share
                treated = f"I({quoted(str(parsed.response[0].column))} == {words[1]!r})"
                formula = f"{treated} ~{self.formula.partition('~')[2]}"
                parsed = parse(formula)
        except InputError as error:
            raise ValueError(f"propensity.{error}") from None
        weights = self.weights or parsed.response[0].text  # to refuse the outcome before it is due
        more: dict[str, Any] = {"weights": weights, "weights_are": "sampling"}
        if isinstance(described := options.get("describe"), dict):
            more["describe"] = {"treated": parsed.response[0].text} | described
        weighted = ModelTable.model_validate({"formula": outcome.formula, **options, **more})
        if self.weights is not None:
            return weighted
        used = {*parsed.columns, *parsed.response_columns}
        given: dict[str, Any] = {"formula": formula, "family": "bernoulli"}
        levels = {k: v for k, v in (options.get("levels") or {}).items() if k in used}
        given |= {"levels": levels} if levels else {}
        given |= {"missing": options["missing"]} if "missing" in options else {}
        return ModelTable.model_validate(given | ({"prior": self.prior} if self.prior else {}))


def weights_of(table: Propensity | None, formula: str | None, run: Path) -> str:
    """Return the weights that follow from the run of who was treated, of this formula.

    Raises:
        InputError: it is the run of another formula.
    """
    from consortia.models.regression.propensity import propensity_weights
    from consortia.store.runs import open_run

    assert table is not None
    tree = open_run(run)
    then = (recorded(tree, "settings") or {}).get("regression", {}).get("formula")
    if then != formula:
        raise InputError(
            f"{run} is of the formula {then!r}, and the study of who was treated of {formula!r}: "
            "run this study first, before its weights are there."
        )
    return propensity_weights(
        tree, estimand=table.estimand, stabilise=table.stabilise, trim=table.trim
    )


def with_weights(text: str, weights: str) -> str:
    """Return the text of a study file with weights under ``[propensity]``.

    Levels and scales that it states are of the treatment's formula, and are left out.

    Raises:
        InputError: it has no such line.
    """
    if not HEAD.search(text):
        raise wrong("propensity", ": the study file has no line [propensity].")
    line = f"weights = '''{weights}'''" if '"' in weights else f'weights = "{weights}"'
    parts = [part for part in TABLES.split(text) if not REGISTERED.match(part)]
    return HEAD.sub(lambda match: f"{match[0]}\n{line}", "".join(parts), count=1)

"""The table ``[registered]`` of a study file: levels and scales, stated beforehand."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from consortia.models.regression.registration import UNKNOWN_ROWS, Registration
from consortia.models.regression.specification import Unit
from consortia.study.tables import Table

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Number(Table):
    """Coordinates of a number."""

    centre: Finite = Field(description="its mean, or what is near to it")
    scale: Finite = Field(gt=0, description="its standard deviation, or what is near to it")
    rows: int | None = Field(None, ge=1, description="rows that both are of, where that is known")


class Registered(Table):
    """Levels and scales of a formula, so that no site is queried for them.

    `consortia register` writes this table. A site with a level that is not here does not take part;
    centres and scales need not be those of the rows, but priors that `model.prior` does not give
    are in units of them.
    """

    levels: dict[str, Annotated[list[str], Field(min_length=2, max_length=1000)]] = Field(
        default_factory=dict,
        description="by factor as the formula writes it, all levels, the reference first; those of "
        "a response of words under `response()`, of groups of all sites under `shared(column)`",
    )
    numbers: dict[str, Number] = Field(
        default_factory=dict,
        description="by factor as the formula writes it `{ centre = ..., scale = ... }`, with "
        "`rows` where it is known; those of the response under `response()` (`time()` and "
        "`event()`), what a mean is multiplied with, by exposure and offset, under `exposure()`, "
        "another offset under `offset()`, the mean of weights of a sample under `weights()`",
    )
    fills: dict[str, Finite] = Field(
        default_factory=dict,
        description="with model.missing = 'indicator': by column what stands for a missing number",
    )

    @property
    def registration(self) -> Registration:
        """The same, as a formula takes it."""
        numbers = {
            name: Unit(one.centre, one.scale, UNKNOWN_ROWS if one.rows is None else one.rows)
            for name, one in self.numbers.items()
        }
        levels = {name: tuple(found) for name, found in self.levels.items()}
        return Registration(levels, numbers, self.fills)

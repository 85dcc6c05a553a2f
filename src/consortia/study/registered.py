"""The table ``[registered]`` of a study file: levels and scales, stated beforehand."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from consortia.errors import wrong
from consortia.models.regression.earlier import Earlier
from consortia.models.regression.registration import Registration
from consortia.study.tables import Table

Finite = Annotated[float, Field(allow_inf_nan=False)]
"""A number that is neither infinite nor NaN, which TOML could state."""


class Number(Table):
    """Centre and scale by which a numeric factor is standardised."""

    centre: Finite = Field(description="its mean, approximately")
    scale: Finite = Field(gt=0, description="its standard deviation, approximately")
    rows: int | None = Field(None, ge=1, description="number of rows behind both, if known")


class PriorFrom(Table):
    """A mixture of normal laws that is fitted to the draws of an earlier run."""

    run: str = Field(description="its name")
    draws: int = Field(ge=1, description="number of draws to which it was fitted")
    k_hat: Finite | None = Field(None, description="k-hat of its weights at these draws")
    weight: float = Field(1.0, gt=0, le=1, description="weight of each row behind it")
    robust: float = Field(0.0, ge=0, lt=1, description="share of the ordinary prior")
    labels: list[str] = Field(min_length=1, description="the parameters, as they are sampled")
    shares: list[Annotated[float, Field(gt=0)]] = Field(description="of the components")
    centres: list[list[Finite]] = Field(description="of the components")
    covariances: list[list[Finite]] = Field(description="their lower triangles, row by row")

    @model_validator(mode="after")
    def _of_one_size(self) -> PriorFrom:
        d, count = len(self.labels), len(self.shares)  # parameters and components
        sizes = [(self.centres, d), (self.covariances, d * (d + 1) // 2)]
        if any(len(a) != count or any(len(entry) != size for entry in a) for a, size in sizes):
            raise wrong("prior_from", f": {count} components of {d} parameters do not fit")
        Earlier.read(self.model_dump())  # refuses what is not a covariance
        return self


class Registered(Table):
    """Levels and scales of a formula, so that no site is queried for them.

    `consortia register` writes this table. A site with a level that is not here does not take part;
    centres and scales need not be those of the rows, but priors that `model.prior` does not give
    are in units of them.
    """

    # at most as many levels as `consortia.models.regression.agreement.LEVELS_REFUSED`
    levels: dict[str, Annotated[list[str], Field(min_length=2, max_length=1000)]] = Field(
        default_factory=dict,
        description="all levels of each factor, as the formula writes it, the reference first; "
        "those of a text response under `response()`, of groups shared by sites under "
        "`shared(column)`",
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
        description="with model.missing = 'indicator': the number that replaces a missing one",
    )
    # None, not empty: the fingerprint of a study without bounds is the one that it had before
    ranges: dict[str, Annotated[list[Finite], Field(min_length=2, max_length=2)]] | None = Field(
        None,
        description="by column its least and largest value `[low, high]`, as in the data "
        "dictionary; a site with a number outside does not take part",
    )

    prior_from: PriorFrom | None = Field(
        None,
        description="an earlier posterior in these units, used as the prior; `consortia register "
        "--prior-from DIR` writes it",
    )

    @property
    def registration(self) -> Registration:
        """Levels, scales and prior of this table, as a formula takes them."""
        return Registration.read(self.model_dump(exclude_none=True))

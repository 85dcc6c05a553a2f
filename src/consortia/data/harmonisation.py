"""Changes of one site's table as it is read, so that all sites' tables agree.

They are a table ``[harmonise.SITE]`` of a study file; the sites' files stay as they are.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field, field_validator

from consortia.core.arguments import unknown
from consortia.data.writing import one_writing
from consortia.errors import InputError, wrong


class Harmonisation(BaseModel):
    """Changes of one site's table, made at the site when its file is read.

    Columns are called by their names after `rename`, and values after `recode`. What a site's table
    holds beyond that stays unchanged, and so does its file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    rename: dict[str, str] = Field(
        default_factory=dict,
        description="column names at this site, each with its name in the study",
    )
    recode: dict[str, dict[str, str]] = Field(
        default_factory=dict,
        description="by column, values as written at this site, each with its value in the study",
    )
    missing_values: dict[str, list[str | int | float]] = Field(
        default_factory=dict,
        description="by column, the words and numbers that mean a missing value here, besides the "
        "empty field; [] means none",
    )
    scale: dict[str, float] = Field(
        default_factory=dict,
        description="by column, the factor that converts this site's numbers to the study's unit; "
        "1 means the same unit",
    )
    encoding: str | None = Field(None, description="encoding of this site's file, if not UTF-8")
    decimal: Literal[".", ","] | None = Field(None, description="decimal mark of this site's file")
    sheet: str | None = Field(
        None, description="sheet of this site's workbook, if several are not empty"
    )
    approved: bool = Field(
        True, description="false: proposed by `consortia init` and not yet confirmed"
    )

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, encoding: str | None) -> str | None:
        try:
            if encoding is not None:
                codecs.lookup(encoding)
        except (LookupError, ValueError):
            raise ValueError(f"encoding = {encoding!r}: unknown; try 'latin-1' or 'cp1252'") from (
                None
            )
        return encoding

    @field_validator("scale")
    @classmethod
    def _positive(cls, scale: dict[str, float]) -> dict[str, float]:
        for name, factor in scale.items():
            if not 0 < abs(factor) < float("inf"):
                raise ValueError(f"scale.{name} = {factor}: give a finite factor other than 0")
        return scale

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are changed, by their names in the study."""
        return tuple(dict.fromkeys([*self.recode, *self.missing_values, *self.scale]))

    def sentences(self, site: str) -> list[str]:
        """Describe what is changed of a site's table."""
        words = {"names of columns": self.rename} if self.rename else {}
        lines = []
        for name, entries in (words | self.recode).items():
            pairs = [f"{old!r} is {new!r}" for old, new in entries.items()]
            lines.append(f"{name}: {', '.join(pairs)}")
        for name, codes in self.missing_values.items():
            lines.append(
                f"{name}: missing is {', '.join(map(repr, codes)) or 'none of the values'}"
            )
        lines += [f"{name} is multiplied by {factor:g}" for name, factor in self.scale.items()]
        return [f"{site}: {line}" for line in lines]

    def new_names(self, names: Iterable[str], where: str) -> list[str]:
        """Return the names that columns have in the study.

        Raises:
            InputError: a column to be renamed is not there, or two would have one name.
        """
        names = list(names)
        for name in self.rename:
            if name not in names:
                raise InputError(
                    f"{where}: rename: {name!r} is not a column: {unknown(name, names)}."
                ).at(name)
        renamed = [self.rename.get(name, name) for name in names]
        for name in self.rename.values():
            if renamed.count(name) > 1:
                raise InputError(
                    f"{where}: rename: two columns would be called {name!r}: rename the other "
                    "one, too."
                )
        return renamed

    def check_columns(self, names: Iterable[str], where: str) -> None:
        """Refuse changes of columns that are not there."""
        names = list(names)
        for name in self.columns:
            if name not in names:
                fault = unknown(name, names)
                raise InputError(f"{where}: harmonise: {name!r} is not a column: {fault}.")


NONE = Harmonisation.model_validate({})
"""No change."""


def read_harmonisations(given: Any, names: Iterable[str]) -> dict[str, Harmonisation]:
    """Return the changes by site, from the argument ``harmonise`` of `consortia.regression`.

    Raises:
        InputError: a site is unknown, or a change cannot be read.
    """
    names = list(names)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(
            f"harmonise is {given!r}: give a dict of sites, such as {{'oslo': {{'rename': "
            "{'Age': 'age'}}}."
        ).at("harmonise")
    by_site = {}
    for site, changes in given.items():
        if site not in names:
            raise wrong("harmonise", f": site {site!r}: {unknown(str(site), names)}.")
        try:
            made = Harmonisation.model_validate(changes)
        except (pydantic.ValidationError, TypeError) as error:
            raise wrong("harmonise", f"[{site!r}]: {_first_fault(error)}.") from None
        by_site[str(site)] = in_one_writing(made)
    return by_site


def in_one_writing(made: Harmonisation) -> Harmonisation:
    """Return the changes with the names and words as tables have them."""

    def one(text: str) -> str:
        return one_writing([text])[0]

    return made.model_copy(
        update={
            "rename": {one(old): one(new) for old, new in made.rename.items()},
            "recode": {
                one(name): {one(old): one(new) for old, new in words.items()}
                for name, words in made.recode.items()
            },
            "missing_values": {one(name): codes for name, codes in made.missing_values.items()},
            "scale": {one(name): factor for name, factor in made.scale.items()},
        }
    )


def _first_fault(error: Exception) -> str:
    if isinstance(error, pydantic.ValidationError):
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return f"{where}: {first['msg'].removeprefix('Value error, ')}"
    return str(error)

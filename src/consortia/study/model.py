"""The tables ``[model]`` and ``[compare]`` of a study file, and the model that they make."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from inspect import Parameter
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, model_validator

from consortia import models
from consortia.core.arguments import unknown
from consortia.core.model import Model
from consortia.errors import InputError, wrong
from consortia.models.regression.question import Question
from consortia.study.code import files_of
from consortia.study.formulas import options_of, question_in
from consortia.study.options import arguments, called, check_options, given, shown
from consortia.study.tables import CLASSES_MAX, Prepared, Table

MODELS: dict[str, Callable[..., Model]] = {
    name: getattr(models, name) for name in models.__all__ if name != "local_losses"
}
"""The ready models by the name that ``model.kind`` takes, without that of functions in Python."""

LINEAR = ("linear_regression", "logistic_regression", "softmax_regression")
"""Models with coefficients of the columns, which can be converted to the columns' units."""

FROM_DATA = ("features", "classes")
"""Arguments of a model's factory that are filled in from the data when they are not given."""


class ModelTable(Table):
    """The model: a formula, a ready one, or a function of your own that returns a model.

    All other keys are arguments of `consortia.regression`, or of that function ("none" stands for
    None); features and classes follow from the data.
    """

    model_config = ConfigDict(extra="allow")
    kind: str | None = Field(None, description=f"a ready model: {', '.join(MODELS)}")
    factory: str | None = Field(
        None,
        pattern=r"^[\w.]+:\w+$",
        description="instead of kind: 'package.module:function'; modules next to the study file "
        "are found. A factory is code and runs with your rights",
    )

    formula: str | None = Field(
        None,
        description="instead of kind: 'response ~ terms' of columns of the sites' tables; see "
        "docs/formulas.md",
    )

    @model_validator(mode="after")
    def _known(self) -> ModelTable:
        if sum(choice is not None for choice in (self.kind, self.factory, self.formula)) != 1:
            raise ValueError("give exactly one of formula, kind and factory")
        if self.formula is not None:
            check_options("model", options_of, self.options)
            question_in(self.formula, self.options)
        if self.kind is not None:
            if self.kind not in MODELS:
                raise wrong("model.kind", f" = {self.kind!r}: {unknown(self.kind, MODELS)}")
            check_options("model", MODELS[self.kind], self.options, FROM_DATA)
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that were given."""
        if self.formula is not None:  # its tables are no schedules
            extra = self.model_extra or {}
            return {key: None if value == "none" else value for key, value in extra.items()}
        return given(self.model_extra)

    @property
    def settings(self) -> dict[str, Any]:
        """Kind and arguments of a ready model, with the defaults of those that were not given."""
        known = arguments(MODELS[self.kind or ""])
        made = {n: a.default for n, a in known.items() if a.default is not Parameter.empty}
        return made | {"kind": self.kind} | self.options

    @property
    def question(self) -> Question | None:
        """The question of a formula to every site; None without one."""
        return None if self.formula is None else question_in(self.formula, self.options)

    def make(self, data: Prepared, directory: Path) -> Model:
        """Return the model for these data."""
        factory = MODELS[self.kind] if self.kind else _imported(self.factory or "", directory)
        classes = None if data.class_names is None else len(data.class_names)
        known = {"features": data.features, "classes": classes}
        wanted = inspect.signature(factory).parameters
        options = {n: v for n, v in known.items() if n in wanted and v is not None} | self.options
        needed = "classes" in wanted and wanted["classes"].default is Parameter.empty
        if self.kind and needed and "classes" not in options:
            raise InputError(
                f"model.kind = {self.kind!r}: the response is not a class. Give the labels 0, 1, "
                f"..., fewer than {CLASSES_MAX:,}, as integers, and do not standardise them."
            ).at("model.kind")
        check_options("model", factory, options)
        made = called("model", factory, options)
        if not isinstance(made, Model):
            raise InputError(f"model.factory returned a {type(made).__name__}, not a Model.")
        return replace(made, natural=data.natural) if self.kind in LINEAR else made


def _imported(factory: str, directory: Path) -> Callable[..., Any]:
    """Return the function ``module:name``, from the study file's folder or as installed."""
    module_name, _, name = factory.partition(":")
    sys.path.insert(0, str(directory.resolve()))
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the user's own code raises
        raise InputError(f"model.factory = {factory!r} cannot be imported: {shown(error)}.").at(
            "model.factory"
        ) from error
    finally:
        sys.path.pop(0)
    files, origin = files_of(directory.resolve(), module_name), getattr(module, "__file__", None)
    if files and (origin is None or Path(origin).resolve() not in files):
        raise InputError(
            f"model.factory = {factory!r}: another module of this name is already imported, from "
            f"{origin}: rename this one, or start a new process."
        ).at("model.factory")
    function = getattr(module, name, None)
    if not callable(function):
        raise wrong("model.factory", f" = {factory!r}: {module_name} has no function {name!r}.")
    try:
        inspect.signature(function)
    except (TypeError, ValueError):
        raise InputError(
            f"model.factory = {factory!r}: its arguments are unknown: name a Python function."
        ).at("model.factory") from None
    return function

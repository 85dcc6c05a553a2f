"""Arguments of algorithms, models, schedules and latencies, as a study file writes them."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from consortia import latency, schedules
from consortia.core.arguments import unknown
from consortia.errors import ConsortiaError, InputError

SCHEDULES = (
    *("constant", "polynomial", "fa_hmc_stages", "fa_hmc_step_size", "stale_error_step_size"),
    *("stale_variance_step_size", "de_sgld_step_size", "de_sghmc_step_size"),
)
"""Functions of `consortia.schedules` that a table ``{ schedule = ..., ... }`` may name."""


def arguments(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a factory by name; ``**options`` are none."""
    entries = inspect.signature(factory).parameters
    return {name: value for name, value in entries.items() if value.kind is not value.VAR_KEYWORD}


def check_options(
    table: str, factory: Callable[..., Any], options: Mapping[str, Any], later: tuple[str, ...] = ()
) -> None:
    """Refuse arguments that a factory does not have, and name those it lacks."""
    known = arguments(factory)
    takes_any = len(known) < len(inspect.signature(factory).parameters)
    for key in options:
        if key not in known and not takes_any:
            raise InputError(f"{table}.{key}: {unknown(key, known)}.")
    for key, argument in known.items():
        optional = (
            argument.default is not argument.empty or argument.kind is argument.VAR_POSITIONAL
        )
        if not optional and key not in options and key not in later:
            raise InputError(f"{table}.{key} is missing: {table} needs it.")


def called(table: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Call the factory; a value that it cannot use is the study's mistake."""
    try:
        return factory(**options)
    except ConsortiaError:
        raise
    except (Exception, SystemExit) as error:  # the factory may be the user's own
        values = ", ".join(f"{key} = {str(value)[:60]}" for key, value in options.items())
        raise InputError(
            f"{table}: a value of {values or 'no options'} cannot be used ({shown(error)})."
        ) from error


def shown(error: BaseException) -> str:
    """Return an error of the user's own code in a line, with the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f", in line {frames[-1].lineno} of {frames[-1].filename}" if frames else ""
    return f"{type(error).__name__}: {str(error)[:300]}{where}"


def given(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments: "none" is None, a table what the function that it names makes."""
    given = {key: None if value == "none" else value for key, value in (options or {}).items()}
    tables = {key: value for key, value in given.items() if isinstance(value, dict)}
    return given | {key: _made(key, value) for key, value in tables.items()}


def _made(key: str, table: dict[str, Any]) -> Any:
    options = dict(table)
    of_latency = key == "latency"
    how, names = ("model", latency.MODELS) if of_latency else ("schedule", SCHEDULES)
    name = options.pop(how, None)
    if name not in names:
        raise InputError(f"algorithm.{key}.{how} = {name!r}: {unknown(str(name), names)}.").at(
            f"algorithm.{key}.{how}"
        )
    factory = getattr(latency if of_latency else schedules, name)
    check_options(f"algorithm.{key}", factory, options)
    return called(f"algorithm.{key}", factory, options)

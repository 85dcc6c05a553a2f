"""Arguments of algorithms, models, schedules and latencies, as a study file writes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from consortia import latency, schedules
from consortia.algorithms.registry import ALGORITHMS
from consortia.core.arguments import unknown
from consortia.errors import InputError

SCHEDULES = (
    *("constant", "polynomial", "fa_hmc_stages", "fa_hmc_step_size", "stale_error_step_size"),
    *("stale_variance_step_size", "de_sgld_step_size", "de_sghmc_step_size"),
)
"""Functions of `consortia.schedules` that a table ``{ schedule = ..., ... }`` may name."""


def arguments(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The arguments of a factory, and those that it hands on as ``**options``.

    An algorithm hands its options on to the one beside it, in the same module, that has them all.
    """
    own = inspect.signature(factory).parameters
    found = {name: value for name, value in own.items() if value.kind is not value.VAR_KEYWORD}
    if len(found) < len(own):
        for entry in ALGORITHMS.values():
            other = inspect.signature(entry.factory).parameters
            if entry.factory.__module__ == factory.__module__ and not _takes_any(other):
                for name, value in other.items():
                    if value.kind is value.KEYWORD_ONLY:
                        found.setdefault(name, value)
    return found


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(value.kind is value.VAR_KEYWORD for value in parameters.values())


def check_options(
    table: str, factory: Callable[..., Any], options: Mapping[str, Any], later: tuple[str, ...] = ()
) -> None:
    """Refuse arguments that a factory does not have, and name those it lacks."""
    known = arguments(factory)
    of_user = factory.__module__.partition(".")[0] != __name__.partition(".")[0]
    takes_any = of_user and _takes_any(inspect.signature(factory).parameters)
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
    """Return what the factory makes; a value that it cannot use is the study's mistake."""
    try:
        return factory(**options)
    except (TypeError, OverflowError) as error:
        shown = ", ".join(f"{key} = {str(value)[:60]}" for key, value in options.items())
        raise InputError(
            f"{table}: a value of {shown or 'no options'} cannot be used ({error})."
        ) from error


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
        raise InputError(f"algorithm.{key}.{how} = {name!r}: {unknown(str(name), names)}.")
    factory = getattr(latency if of_latency else schedules, name)
    check_options(f"algorithm.{key}", factory, options)
    return called(f"algorithm.{key}", factory, options)

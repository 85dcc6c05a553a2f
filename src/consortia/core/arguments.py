"""Checks of arguments and files that several rooms share; each names what is wrong, and where."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import re
import tomllib
from abc import ABCMeta
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from consortia.errors import InputError, KeywordError, located, wrong

P = ParamSpec("P")
R = TypeVar("R")

INT32_MAX = 2**31 - 1

VARIADIC = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD

TOML_BYTES = 2**20
"""Bytes of the largest study file or policy."""

NAMES_LISTED_MAX = 16
"""Allowed names that a message lists at most."""


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return an integer in [least, most]; ``most`` is the largest int32 when None."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise wrong(name, f" is {value!r}: it must be an integer.")
    if value < least:
        raise wrong(name, f" is {value}: it must be at least {least}.")
    most = INT32_MAX if most is None else most
    if value > most:
        raise wrong(name, f" is {value}: it must be at most {most}.")
    return int(value)


def optional_whole(name: str, value: Any, least: int) -> int | None:
    """Return None, or an integer of at least ``least``."""
    return None if value is None else whole(name, value, least)


def number(name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> float:
    """Return a finite number in [least, most]; bools and strings are refused."""
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.ndim or array.dtype.kind not in "iuf":
        raise wrong(name, f" is {value!r}: it must be a number.")
    result = float(array)
    if not math.isfinite(result) or not least <= result <= most:
        limit = f"in [{least:g}, {most:g}]" if math.isfinite(most) else f"at least {least:g}"
        finite = "finite" if math.isinf(least) and math.isinf(most) else f"finite and {limit}"
        raise wrong(name, f" is {result}: it must be {finite}.")
    return result


def optional_number(name: str, value: Any, least: float, most: float = math.inf) -> float | None:
    """Return None, or a finite number in [least, most]."""
    return None if value is None else number(name, value, least, most)


def positive(name: str, value: Any, below: float = math.inf) -> float:
    """Return a finite number above zero, and below ``below``."""
    result = number(name, value)
    if not 0 < result < below:
        limit = "positive" if math.isinf(below) else f"strictly between 0 and {below:g}"
        raise wrong(name, f" is {result}: it must be {limit}.")
    return result


def array(name: str, value: Any, wanted: str) -> np.ndarray:
    """Return finite numbers in double precision, or say that this is wanted."""
    try:
        values = np.array(value, np.float64)
    except (TypeError, ValueError):
        raise wrong(name, f" must be {wanted}, not {value!r}.") from None
    if not np.isfinite(values).all():
        raise wrong(name, " holds a value that is not finite.")
    return values


def flag(name: str, value: Any) -> bool:
    """Return a bool; strings and numbers are refused."""
    if not isinstance(value, (bool, np.bool_)):
        raise wrong(name, f" is {value!r}: it must be True or False.")
    return bool(value)


def one_of(name: str, value: Any, choices: Sequence[Any]) -> Any:
    """Return the value where it is one of the choices."""
    if isinstance(value, np.generic):
        value = value.item()
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        known = ", ".join(repr(choice) for choice in choices[:-1])
        raise wrong(name, f" is {value!r}: use {known} or {choices[-1]!r}.")
    return value


def keep(instance: Any, **values: Any) -> None:
    """Put checked values in the place of the fields of a frozen dataclass."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def freeze(instance: Any) -> None:
    """Make the arrays in the fields of a dataclass read-only."""
    for value in vars(instance).values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False


def site_weights(weights: Any, name: str = "weights") -> tuple[float, ...] | None:
    """Return the weights of the sites: None, or positive numbers that sum to one."""
    if weights is None:
        return None
    values = array(name, weights, "one number a site")
    if values.ndim != 1 or values.size == 0:
        raise wrong(name, f" has shape {values.shape}: give one number a site.")
    for site, value in enumerate(values):
        if value <= 0:
            raise InputError(
                f"{name}: that of site {site} is {value}, it must be positive, or the site has no "
                "part in the posterior."
            ).at(name)
    if abs(values.sum() - 1) > 1e-6:
        raise InputError(
            f"{name} sum to {values.sum():.8g}, they must sum to 1: divide them by their sum."
        ).at(name)
    return tuple((values / values.sum()).tolist())


def weights_fit(
    weights: Sequence[float] | None, names: Sequence[str], name: str = "weights"
) -> None:
    """Check that there is one weight for each site."""
    if weights is not None and len(weights) != len(names):
        raise wrong(name, f" has {len(weights)} values for {len(names)} sites: give one each.")


def batch_fits(
    batch_size: int | None,
    sizes: np.ndarray,
    names: Sequence[str],
    drawn: str = " without replacement",
    instead: str = "draw with replace=True",
) -> None:
    """Check that a batch is at most as large as the smallest site."""
    smallest = int(np.argmin(sizes))
    if batch_size is not None and batch_size > sizes[smallest]:
        raise InputError(
            f"batch_size={batch_size}{drawn}, but {names[smallest]!r} has only "
            f"{sizes[smallest]} rows: lower batch_size, or {instead}."
        ).at("batch_size")


def plain_parameters(method: Any) -> dict[str, Any]:
    """Return the fields of a method as values that JSON can hold, for the record of a run."""
    return {
        field.name: _plain(vars(method)[field.name])
        for field in dataclasses.fields(method)
        if field.name != "name"
    }


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if hasattr(value, "summary"):  # of a matrix its size, its form and a checksum
        return value.summary()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
        return {"kind": type(value).__name__, **fields}
    return repr(value)


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name with the closest spelling; None if none is close."""
    return next(iter(difflib.get_close_matches(name, list(allowed), 1, 0.5)), None)


def unknown(name: str, allowed: Iterable[str]) -> str:
    """Return the end of a message on a name that is not allowed: the nearest one, and all."""
    names = list(allowed)
    close = nearest(name, names)
    hint = "." if close is None else f"; did you mean {close!r}?"
    more = f" and {left} more" if (left := len(names) - NAMES_LISTED_MAX) > 0 else ""
    return f"unknown{hint} There are: {', '.join(names[:NAMES_LISTED_MAX])}{more}"


def hinted(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function; it names arguments that are missing, and the nearest of an unknown."""
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        check_call(function.__name__, parameters, len(args), options)
        return function(*args, **options)

    return call


class Hinted(ABCMeta):
    """Classes that answer an unknown keyword with the nearest that they know."""

    @property
    def called(cls) -> str:
        """The name in messages."""
        return cls.__name__

    @property
    def __signature__(cls) -> inspect.Signature:
        """The arguments of the class, which `__call__` would hide."""
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def __call__(cls, *args: Any, **options: Any) -> Any:
        """Return a new object of the class."""
        check_call(cls.called, inspect.signature(cls).parameters, len(args), options)
        return super().__call__(*args, **options)


def check_call(
    called: str,
    parameters: Mapping[str, inspect.Parameter],
    count: int,
    options: Collection[str],
) -> None:
    """Refuse arguments that are unknown, with the nearest name, unnamed, given twice, or missing.

    Args:
        called: the function's name in messages.
        parameters: its own, of a class method with ``cls``.
        count: arguments that are given by their places.
        options: names of those that are given by name.
    """
    names = [name for name in parameters if name != "cls"]
    for name in options:
        if name not in names:
            raise KeywordError(f"{called}: {name} is {unknown(name, names)}.").at(name)
    known = [parameters[name] for name in names]
    named = [each.name for each in known if each.kind is each.KEYWORD_ONLY]
    places = [e.name for e in known if e.kind not in (e.KEYWORD_ONLY, *VARIADIC)]
    needed = {e.name for e in known if e.default is e.empty and e.kind not in VARIADIC}
    words = {name: f"{name}=..." if name in named else name for name in names}
    count -= len(parameters) - len(names)
    extra = count - len(places)
    if extra > 0 and not any(each.kind is each.VAR_POSITIONAL for each in known):
        text = f"{called}: {count} values without a name, {len(places)} may be: write"
        shown = [words[name] for name in names if name not in named[extra:] or name in needed]
        raise KeywordError(f"{text} {called}({', '.join(shown)}).").at(*named[:1])
    if twice := [name for name in places[:count] if name in options]:
        raise KeywordError(f"{called}: {twice[0]} is given twice.").at(twice[0])
    given = {*places[:count], *options}
    if missing := [name for name in names if name in needed and name not in given]:
        shown = [words[name] for name in names if name in needed]
        text = f"{called}: {' and '.join(missing)} missing: write"
        raise KeywordError(f"{text} {called}({', '.join(shown)}).").at(missing[0])


def read_toml(path: Path, kind: str) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes of a TOML file, and its tables.

    Args:
        path: of the file.
        kind: what it should be, for the message.

    Raises:
        InputError: it is not there, cannot be read, or is not TOML.
    """
    with located(file=str(path)):
        try:
            if not path.exists():
                raise InputError(f"{path}: no such file; give the path of a {kind}.")
            if not path.is_file() or path.stat().st_size > TOML_BYTES:
                raise InputError(
                    f"{path} cannot be read: a {kind} is a file of at most {TOML_BYTES:,} bytes."
                )
            content = path.read_bytes()
            return content, tomllib.loads(content.decode())
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read: {error}") from error
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            reason = "it is nested too deep" if isinstance(error, RecursionError) else error
            line = re.search(r"at line (\d+)", str(error))
            fault = InputError(f"{path} is not TOML: {reason}")
            raise fault.at(line=int(line[1]) if line else None) from error
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            # an integer of more digits than Python reads
            raise InputError(f"{path} is not TOML: {error}") from error

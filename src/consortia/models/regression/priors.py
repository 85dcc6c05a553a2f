"""Priors in words: ``"normal(0, 1)"`` as a density, and as a source of draws.

The default of a coefficient is normal(0, 2.5 s_y / s_x), with s_x the sd of a number over all rows
(1 for a level, a product for interactions), and s_y that of the response for gaussian and student,
else 1; of the intercept, where all numbers have their mean, normal(m, 2.5 s_y) with m the mean
response (its logarithm with a log link, 0 with the logit); of sigma exponential(1 / s_y), as
rstanarm has them. As in brms are student_t(3, 0, 2.5) of thresholds, half_student_t(3, 2.5 s_y) of
spreads and inverse_gamma(0.4, 0.3) of negative_binomial's phi; other shapes have gamma(2, 0.1), a
Weibull shape half_normal(2).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from consortia.core.arguments import unknown
from consortia.core.arrays import Array, namespace
from consortia.core.tails import Tail
from consortia.errors import wrong


class _Form(NamedTuple):
    """A family of densities."""

    arguments: tuple[str, ...]  # names of the parameters; all but a location are positive
    log_density: Callable[..., Array]  # of value and parameters, on all of the real line or above 0
    scipy: Callable[..., Any]  # the same as a frozen law, of `scipy.stats` and the parameters
    lower: float = -math.inf  # end of the support, 0 or −∞


def _normal(v: Array, location: float, scale: float) -> Array:
    return -0.5 * ((v - location) / scale) ** 2 - math.log(scale) - 0.5 * math.log(2 * math.pi)


def _student(v: Array, freedom: float, location: float, scale: float) -> Array:
    constant = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    constant -= 0.5 * math.log(freedom * math.pi) + math.log(scale)
    square = ((v - location) / scale) ** 2
    return constant - (freedom + 1) / 2 * namespace(v).log1p(square / freedom)


def _laplace(v: Array, location: float, scale: float) -> Array:
    return -namespace(v).abs(v - location) / scale - math.log(2 * scale)


def _gamma(v: Array, shape: float, rate: float) -> Array:
    constant = shape * math.log(rate) - math.lgamma(shape)
    return constant + (shape - 1) * namespace(v).log(v) - rate * v


def _inverse_gamma(v: Array, shape: float, scale: float) -> Array:
    constant = shape * math.log(scale) - math.lgamma(shape)
    return constant - (shape + 1) * namespace(v).log(v) - scale / v


def _log_normal(v: Array, location: float, scale: float) -> Array:
    return _normal(namespace(v).log(v), location, scale) - namespace(v).log(v)


class _Half:
    """A law that is symmetric around 0, folded there."""

    def __init__(self, law: Any) -> None:
        self._law = law

    def rvs(self, size: Any, random_state: Any) -> np.ndarray:
        """Return draws."""
        return np.abs(self._law.rvs(size=size, random_state=random_state))

    def sf(self, value: float) -> float:
        """Return the probability above a value ≥ 0."""
        return float(2 * self._law.sf(value))


PLACE, FREEDOM = ("location", "scale"), "degrees of freedom"
LOG_2 = math.log(2.0)

FORMS: dict[str, _Form] = {
    "normal": _Form(PLACE, _normal, lambda stats, *arguments: stats.norm(*arguments)),
    "student_t": _Form((FREEDOM, *PLACE), _student, lambda stats, *arguments: stats.t(*arguments)),
    "cauchy": _Form(
        PLACE,
        lambda v, at, scale: _student(v, 1.0, at, scale),
        lambda stats, *arguments: stats.cauchy(*arguments),
    ),
    "laplace": _Form(PLACE, _laplace, lambda stats, *arguments: stats.laplace(*arguments)),
    "half_normal": _Form(
        ("scale",),
        lambda v, s: LOG_2 + _normal(v, 0.0, s),
        lambda stats, s: stats.halfnorm(0, s),
        0.0,
    ),
    "half_cauchy": _Form(
        ("scale",),
        lambda v, s: LOG_2 + _student(v, 1.0, 0.0, s),
        lambda stats, s: stats.halfcauchy(0, s),
        0.0,
    ),
    "half_student_t": _Form(
        (FREEDOM, "scale"),
        lambda v, freedom, s: LOG_2 + _student(v, freedom, 0.0, s),
        lambda stats, freedom, s: _Half(stats.t(freedom, 0, s)),
        0.0,
    ),
    "exponential": _Form(
        ("rate",),
        lambda v, rate: math.log(rate) - rate * v,
        lambda stats, rate: stats.expon(0, 1 / rate),
        0.0,
    ),
    "gamma": _Form(
        ("shape", "rate"),
        _gamma,
        lambda stats, shape, rate: stats.gamma(shape, 0, 1 / rate),
        0.0,
    ),
    "inverse_gamma": _Form(
        ("shape", "scale"),
        _inverse_gamma,
        lambda stats, shape, scale: stats.invgamma(shape, 0, scale),
        0.0,
    ),
    "log_normal": _Form(
        PLACE,
        _log_normal,
        lambda stats, at, scale: stats.lognorm(scale, 0, math.exp(at)),
        0.0,
    ),
}
"""The densities, by the word for each."""


@dataclass(frozen=True)
class Prior:
    """A prior density."""

    form: str  # one of `FORMS`
    arguments: tuple[float, ...]  # its parameters
    # whether these follow from the data, and are not as a user has written them
    scaled: bool = False

    def __str__(self) -> str:
        """Return it as it is written."""
        return f"{self.form}({', '.join(f'{number + 0.0:.4g}' for number in self.arguments)})"

    @property
    def lower(self) -> float:
        """The end of its support, 0 or −∞."""
        return FORMS[self.form].lower

    @property
    def tail(self) -> Tail:
        """Student's t, a Cauchy's too, else a law without the tail of a power; of the line."""
        *freedom, centre, scale = self.arguments
        powers = {"cauchy": 1.0, "student_t": 1 / freedom[0] if freedom else 0.0}
        return Tail(powers.get(self.form, 0.0), centre, scale)

    def log_density(self, values: Array, lower: float = -math.inf) -> Array:
        """Return the log-density of each value, cut off below ``lower``."""
        result = FORMS[self.form].log_density(values, *self.arguments)
        if lower > self.lower:
            result = result - math.log(self._law.sf(lower))
        return result

    def in_units(self) -> tuple[Prior, float, float]:
        """Split a law of the whole line into that of (v − c)/s, and the numbers c and s."""
        *rest, centre, scale = self.arguments
        return Prior(self.form, (*rest, 0.0, 1.0)), centre, scale

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], lower: float) -> np.ndarray:
        """Return draws above ``lower``."""
        draws = np.empty(shape)
        left = np.ones(shape, bool)
        while left.any():
            draws[left] = self._law.rvs(size=int(left.sum()), random_state=rng)
            left = draws <= lower
        return draws

    @property
    def _law(self) -> Any:
        import scipy.stats  # heavy: only who draws from a prior pays for it

        return FORMS[self.form].scipy(scipy.stats, *self.arguments)


def read_prior(key: str, text: Any, lower: float = -math.inf) -> Prior:
    """Return a prior from words such as ``"normal(0, 2.5)"``; it must have mass above ``lower``.

    Raises:
        InputError: the words are no prior.
    """
    if isinstance(text, Prior):
        return text
    match = re.fullmatch(r"\s*(\w+)\s*\(([^()]*)\)\s*", text) if isinstance(text, str) else None
    if match is None:
        raise wrong("prior", f" of {key!r} is {text!r}: write for instance 'normal(0, 1)'.")
    word, inside = match[1], [part.strip() for part in match[2].split(",") if part.strip()]
    if word not in FORMS:
        raise wrong("prior", f" of {key!r}: {word!r}: {unknown(word, FORMS)}.")
    form = FORMS[word]
    try:
        arguments = tuple(float(part) for part in inside)
    except ValueError:
        arguments = ()
    if len(arguments) != len(form.arguments) or not all(map(math.isfinite, arguments)):
        raise wrong("prior", f" of {key!r}: {word} takes {', '.join(form.arguments)} as numbers.")
    for name, value in zip(form.arguments, arguments, strict=True):
        if name != PLACE[0] and value <= 0:
            raise wrong("prior", f" of {key!r}: {word}: the {name} is {value:g}; it must be > 0.")
    if form.lower > lower:
        raise wrong(
            "prior",
            f" of {key!r}: {word} has no mass below 0, where this parameter may be: use normal, "
            "student_t, cauchy or laplace.",
        )
    return Prior(word, arguments)

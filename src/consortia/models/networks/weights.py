"""Priors of a network's weights: in words, for all or by name, or a function."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import jax.numpy as jnp

from consortia.errors import InputError, wrong
from consortia.models._shared import Array
from consortia.models.regression.priors import Prior, read_prior

FAN_IN = re.compile(r"\s*fan_in\s*\(([^()]*)\)\s*")

LogPrior = Callable[[Mapping[str, Array]], Array]
FanIn = Callable[[tuple[int, ...]], int]


def log_prior_of(prior: Any, shapes: Mapping[str, tuple[int, ...]], fan_in: FanIn) -> LogPrior:
    """Return the log-prior of named weights.

    Args:
        prior: words for all weights, words by the pattern of a name (the first that fits), or a
            function of the weights by name.
        shapes: of the weights, by name.
        fan_in: inputs of a weight with several axes, from its shape.

    Raises:
        InputError: the words are no prior, a pattern fits no weight, or a weight has no prior.
    """
    if callable(prior):
        return lambda weights: jnp.asarray(prior(weights))
    patterns = prior if isinstance(prior, Mapping) else {"*": prior}
    priors: dict[str, Prior] = {}
    for pattern, words in patterns.items():
        fits = [name for name in shapes if fnmatchcase(name, pattern)]
        if not fits:
            raise wrong("prior", f": {pattern!r} fits none of the weights: {', '.join(shapes)}.")
        for name in fits:
            priors.setdefault(name, _read(pattern, words, shapes[name], fan_in))
    without = [name for name in shapes if name not in priors]
    if without:
        raise wrong("prior", f": {', '.join(without)} have none: give one of '*', too.")

    def log_prior(weights: Mapping[str, Array]) -> Array:
        parts = [jnp.sum(priors[name].log_density(weights[name])) for name in sorted(priors)]
        return sum(parts[1:], start=parts[0])

    return log_prior


def _read(pattern: str, words: Any, shape: tuple[int, ...], fan_in: FanIn) -> Prior:
    match = FAN_IN.fullmatch(words) if isinstance(words, str) else None
    if match is None:
        return read_prior(pattern, words)
    try:
        scale = float(match[1])
    except ValueError:
        scale = 0.0
    if not 0 < scale < math.inf:
        raise InputError(f"prior of {pattern!r}: fan_in takes a scale > 0.").at("prior")
    inputs = fan_in(shape) if len(shape) > 1 else 1
    return Prior("normal", (0.0, scale / math.sqrt(inputs)))

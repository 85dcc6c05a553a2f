"""Likelihoods of a network's outputs, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from consortia.core.arguments import unknown
from consortia.errors import InputError
from consortia.models._shared import Array, log_class_probability, two_classes, wrong_labels


class Likelihood(NamedTuple):
    """A likelihood given a network's outputs."""

    # of outputs, targets and the parameters beside the network, (rows,)
    log_density: Callable[[Array, Any, dict[str, Array]], Array]
    # of outputs and the same: class probabilities or the mean; None where not known
    predict: Callable[[Array, dict[str, Array]], Array] | None
    wrong: Callable[[np.ndarray, int], str | None]  # what is wrong with targets, or None
    width: int | None  # numbers that the network returns for each row; None: one for each class
    extra: tuple[str, ...] = ()  # starting values of parameters beside the network, by name


def _fine(targets: np.ndarray, width: int) -> str | None:
    return None


def _whole(targets: np.ndarray, width: int) -> str | None:
    wrong = int(((targets < 0) | (targets != np.round(targets))).sum())
    return f"the target has {wrong} values that are not integers >= 0" if wrong else None


def _one(outputs: Array) -> Array:
    return outputs.reshape(outputs.shape[0])


def _gaussian(outputs: Array, targets: Any, extra: dict[str, Array]) -> Array:
    z = (jnp.asarray(targets).astype(outputs.dtype) - _one(outputs)) / jnp.exp(extra[SIGMA])
    return -0.5 * z**2 - extra[SIGMA] - 0.5 * math.log(2 * math.pi)


def _bernoulli(outputs: Array, targets: Any, extra: dict[str, Array]) -> Array:
    y = jnp.asarray(targets).astype(outputs.dtype)
    return -jax.nn.softplus((1 - 2 * y) * _one(outputs))


def _poisson(outputs: Array, targets: Any, extra: dict[str, Array]) -> Array:
    y = jnp.asarray(targets).astype(outputs.dtype)
    return y * _one(outputs) - jnp.exp(_one(outputs)) - gammaln(y + 1)


SIGMA = "log_sigma"
"""Logarithm of the standard deviation of a gaussian target, which is sampled."""

LIKELIHOODS = {
    "categorical": Likelihood(
        lambda outputs, targets, extra: log_class_probability(outputs, targets),
        lambda outputs, extra: jax.nn.softmax(outputs, axis=-1),
        wrong_labels,
        None,
    ),
    "bernoulli": Likelihood(
        _bernoulli,
        lambda outputs, extra: two_classes(_one(outputs)),
        lambda targets, width: wrong_labels(targets, 2),
        1,
    ),
    "gaussian": Likelihood(
        _gaussian, lambda outputs, extra: _one(outputs), _fine, 1, extra=(SIGMA,)
    ),
    "poisson": Likelihood(_poisson, lambda outputs, extra: jnp.exp(_one(outputs)), _whole, 1),
}
"""Likelihoods by name: of scores, of log-odds, of a mean, of a log-rate."""


def likelihood_of(asked: Any) -> Likelihood:
    """Return a likelihood by its name, or of a function of outputs and targets.

    Raises:
        InputError: it is none.
    """
    if callable(asked):

        def log_density(outputs: Array, targets: Any, extra: dict[str, Array]) -> Array:
            return jnp.asarray(asked(outputs, targets))

        return Likelihood(log_density, None, _fine, None)
    if asked not in LIKELIHOODS:
        raise InputError(
            f"likelihood is {asked!r}: {unknown(str(asked), LIKELIHOODS)}; or give a function of "
            "outputs and targets that returns (rows,)."
        ).at("likelihood")
    return LIKELIHOODS[asked]

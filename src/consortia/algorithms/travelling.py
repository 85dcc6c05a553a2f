r"""Chains that travel between sites: DSGLD, and FSGLD with conducive gradients.

A chain visits one site at a time, site s with probability :math:`f_s`, makes T updates there and is
passed on; several chains travel side by side. One update at site s is

.. math::
    \theta' = \theta + \tfrac h2 \bigl(d_s + \alpha g_s\bigr) + N(0, h I), \qquad
    d_s = \nabla\log p(\theta) + \frac{n_s}{f_s m}\sum_{i \in \text{batch}}\nabla\log p(z_i|\theta),
    \quad g_s = \nabla\log q(\theta) - \tfrac{1}{f_s}\nabla\log q_s(\theta)

with Gaussian surrogates :math:`q_s` of the sites' likelihoods and :math:`q = \prod_s q_s`. DSGLD is
α = 0. Nothing in an update grows with the number of sites.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from consortia import schedules, surrogates
from consortia.algorithms.travelling_method import TravellingLangevin
from consortia.core import arguments
from consortia.errors import InputError
from consortia.surrogates.fitting import COVARIANCES

RECORDS = ("visits", "updates")


def dsgld(
    step_size: Any,
    local_steps: int,
    batch_size: int | None = None,
    *,
    replace: bool = True,
    probabilities: Any = None,
    record: str = "visits",
) -> TravellingLangevin:
    r"""Distributed stochastic gradient Langevin dynamics (DSGLD): chains that travel.

    **Samples** a law near exp(−U) for T = 1 and sites that agree. Sites that differ add the
    variance of their pulls, up to the spread of the local posteriors' means as T grows: the chain
    then samples a mixture of local posteriors. The mean of the ends of visits is that of U only
    when the sites' curvatures are in proportion to f_s, or T = 1. Minibatches add variance, often
    many times the posterior's. `consortia.theory.travelling_law` gives all of it exactly on
    Gaussian targets; `fsgld` removes most.

    **Draw**: θ at the end of each visit, or after each update (``record="updates"``). Thinning the
    updates by a multiple of T keeps ends of visits only, where the spread is largest.

    **Step size**: h, drift h/2, noise variance h: one update equals an SGLD step with h' = h/2
    (θ − h'∇U + N(0, 2h')). It is constant within a visit; a round is a visit.

    Args:
        step_size: h > 0: a number, an array over rounds (warm-up included) or a function of the
            round's index; see `consortia.schedules`.
        local_steps: T ≥ 1, updates a visit.
        batch_size: m rows an update, at most those of the smallest site; None takes all rows of
            the visited site.
        replace: minibatches with replacement; without costs more.
        probabilities: f_s > 0 summing to one; n_s/n when None.
        record: ``"visits"`` or ``"updates"``.

    Returns:
        A value that `consortia.sample` takes; equal arguments give equal values.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> import consortia
        >>> consortia.dsgld(1e-4, local_steps=100, batch_size=10).local_steps
        100

    Source: Ahn, Shahbaba, Welling (2014), as in El Mekkaoui, Mesquita, Blomstedt, Kaski, "Federated
    stochastic gradient Langevin dynamics" (2021), equations 3 and 4.
    """
    return _travelling(
        "dsgld",
        step_size,
        local_steps,
        batch_size,
        replace=replace,
        probabilities=probabilities,
        record=record,
    )


def fsgld(
    step_size: Any,
    local_steps: int,
    batch_size: int | None = None,
    *,
    surrogate: Any = "anchored",
    strength: float = 1.0,
    covariance: str = "full",
    replace: bool = True,
    probabilities: Any = None,
    record: str = "visits",
) -> TravellingLangevin:
    r"""Federated stochastic gradient Langevin dynamics (FSGLD): `dsgld` with conducive gradients.

    **Samples** a law near exp(−U), with the variance that the minibatches add: on Gaussian sites
    with exact surrogates the mean is exact and the covariance independent of T, but with small
    batches it is many times the posterior's (11 times in the published example at h = 1e-4,
    m = 10; 1.05 times with full batches). `consortia.theory.travelling_law` predicts it. With
    surrogates that are not exact the biases of `dsgld` return in the measure of their error.

    **Draw** and **step size**: as in `dsgld`.

    A surrogate that is narrower than its likelihood can turn the drift at its site around. That
    is looked for before the run, which is refused when the chain would diverge; a chain that runs
    away in mid-run ends it with `consortia.errors.NonFiniteError`, which names the site and says
    whether its surrogate drove the chain away.

    Args:
        step_size: as in `dsgld`.
        local_steps: T ≥ 1, updates a visit.
        batch_size: as in `dsgld`.
        surrogate: ``"anchored"``, ``"laplace"`` or ``"sgld_moments"`` (the published one), a
            `consortia.surrogates.Recipe` with their options, the user's own
            `consortia.surrogates.Gaussian`, one a site, or None: DSGLD.
        strength: α ≥ 0; 1 is the published method, 0 is DSGLD bit for bit.
        covariance: ``"full"`` or ``"diagonal"``, of surrogates that are computed.
        replace: minibatches with replacement.
        probabilities: f_s > 0 summing to one; n_s/n when None.
        record: ``"visits"`` or ``"updates"``.

    Returns:
        A value that `consortia.sample` takes; equal arguments give equal values.

    Raises:
        InputError: an argument is out of its range, or a surrogate is not positive definite.

    Example:
        >>> import consortia
        >>> consortia.fsgld(1e-4, 100, batch_size=10, surrogate="laplace").strength
        1.0

    Source: El Mekkaoui, Mesquita, Blomstedt, Kaski (2021), equation 5 and algorithm 1. Equation 7
    drops the prior; it is kept here. The anchored surrogate is ours.
    """
    if isinstance(surrogate, str):
        surrogate = surrogates.Recipe(surrogate)
    elif surrogate is not None and not isinstance(surrogate, surrogates.Recipe):
        surrogate = surrogates.read_gaussians(surrogate)
    return _travelling(
        "fsgld",
        step_size,
        local_steps,
        batch_size,
        replace=replace,
        probabilities=probabilities,
        record=record,
        surrogate=surrogate,
        strength=strength,
        covariance=covariance,
    )


def _travelling(
    name: str,
    step_size: Any,
    local_steps: Any,
    batch_size: Any,
    *,
    replace: Any,
    probabilities: Any,
    record: Any,
    surrogate: Any = None,
    strength: Any = 0.0,
    covariance: Any = "full",
) -> TravellingLangevin:
    return TravellingLangevin(
        name=name,
        step_size=schedules.as_schedule(step_size),
        local_steps=arguments.whole("local_steps", local_steps, 1),
        batch_size=arguments.optional_whole("batch_size", batch_size, 1),
        replace=bool(replace),
        surrogate=surrogate,
        strength=arguments.number("strength", strength, 0.0, math.inf),
        covariance=arguments.one_of("covariance", covariance, COVARIANCES),
        given_probabilities=_probabilities(probabilities),
        record=arguments.one_of("record", record, RECORDS),
    )


def _probabilities(values: Any) -> tuple[float, ...] | None:
    """None, or positive probabilities that sum to one."""
    if values is None:
        return None
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"probabilities must be one number a site, not {values!r}.") from None
    if array.ndim != 1 or array.size == 0:
        raise InputError(f"probabilities has shape {array.shape}: give one number a site.")
    for site, value in enumerate(array):
        if not (np.isfinite(value) and value > 0):
            raise InputError(
                f"probabilities: that of site {site} is {value}; it must be positive, because a "
                "site that is never visited has no part in the posterior."
            )
    if abs(array.sum() - 1) > 1e-6:
        raise InputError(
            f"probabilities sum to {array.sum():.8g}, they must sum to 1: divide them by their sum."
        )
    return tuple((array / array.sum()).tolist())

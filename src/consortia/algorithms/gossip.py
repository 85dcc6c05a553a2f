r"""Gossip samplers: DE-SGLD and DE-SGHMC, and a correction of them.

N agents on a graph hold :math:`f_i = -\sum_{j \in i}\log p(z_j|x) - \tfrac1N \log p(x)`; they send
their positions to their neighbours only, who average them with a doubly stochastic matrix W:

.. math::
    \text{DE-SGLD} \quad & x_i' = \sum_j W_{ij} x_j - \eta g_i(x_i) + \sqrt{2\eta}\,\xi_i \\
    \text{DE-SGHMC} \quad & v_i' = v_i - \eta[\gamma v_i + g_i(x_i)] + \sqrt{2\gamma\eta}\,\xi_i,
    \qquad x_i' = \sum_j W_{ij} x_j + \eta v_i'

with :math:`g_i` an estimate of :math:`\nabla f_i`. All agents move from the old positions at once.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from consortia import graphs, schedules
from consortia.algorithms.gossip_method import Gossip
from consortia.core import arguments
from consortia.errors import InputError


def de_sgld(
    step_size: Any,
    mixing: Any,
    *,
    batch_size: int | None = None,
    replace: bool = True,
    correction: str | None = None,
    noise: str = "independent",
    averaged_noise: bool = False,
    control_variate: Any = None,
    draws: str = "average",
    temperature: float = 1.0,
) -> Gossip:
    r"""Decentralized stochastic gradient Langevin dynamics (DE-SGLD).

    .. math:: x_i' = \sum_j W_{ij} x_j - \eta g_i(x_i) + \sqrt{2\eta}\,\xi_i

    **Samples**: the average of the agents samples a law near exp(−U/temperature), U = Σ_i f_i, with
    a bias in W₂ of O(η), which grows with the disagreement of unlike agents on a slow network. A
    single agent does *not* sample it: each step adds noise of variance 2η to every agent, N times
    what the average sees, so that its law is far too wide, and off by O(√η) as soon as 2η exceeds
    the target's variance. On Gaussian targets `consortia.oracles.de_sgld_law` gives both laws.

    **Draw**: the plain average of the agents, one an iteration; with ``draws="agents"`` the result
    has every agent's own series beside it, in the group ``agents``.

    **Step size**: η, drift η, noise variance 2η at each agent: h' = η for the sum of the agents'
    dynamics, that is drift (η/N)∇U and noise variance 2η/N for the average.
    `consortia.sample` warns of a step that diverges by the curvatures at the start, and names the
    largest one that does not (`consortia.oracles.largest_stable_step`).

    **To do about the bias**: ``correction="extra", noise="common", averaged_noise=True`` brings
    every agent's law within O(η²) of the target's, for the same gradients and messages.

    Args:
        step_size: η > 0: a number, an array over iterations (warm-up included) or a function of
            the iteration's index; see `consortia.schedules`.
        mixing: W, doubly stochastic, agent i being site number i: what
            `consortia.graphs.mixing_matrix` returns, an array (sites, sites), a SciPy sparse
            matrix, or the name of a network (`consortia.graphs.NETWORKS`); or a
            `consortia.graphs.MixingSchedule` of matrices in turn, for links that come and go.
        batch_size: B rows a gradient; None takes all rows of the agent.
        replace: minibatches with replacement; without costs more and bounds B by the smallest site.
        correction: ``"extra"`` subtracts what each agent has disagreed with its neighbours so far,
            :math:`q_i' = q_i + (x_i - \sum_j W_{ij} x_j)/2`, so that unlike agents still meet at
            the mode. It needs a symmetric W and, on slow networks, many iterations to settle.
        noise: ``"independent"``, or ``"common"``: all agents add the same :math:`\xi/\sqrt N`. The
            average's law hardly changes and each agent follows it; but the agents then share a
            random seed, and whoever knows it can take the noise out of an agent's messages.
        averaged_noise: the noise of this step and the last one, halved:
            :math:`(\xi_k + \xi_{k+1})/2` (Leimkuhler, Matthews); removes the O(η) of the variance.
            Before the first step ξ is 0.
        control_variate: a point near the mode (an array like the flat position, or parameters like
            the model's) at which every agent keeps its exact gradient; minibatches then estimate
            only the difference. `de_sgld(..., correction="extra", temperature=0.0)` finds one.
        draws: ``"average"``, or ``"agents"`` to keep each agent's series too.
        temperature: factor of the noise's variance; the target is exp(−U/temperature). At 0 this is
            distributed (stochastic) gradient descent.

    Returns:
        A value that `consortia.sample` takes; equal arguments give equal values.

    Raises:
        InputError: an argument is out of its range, or W is not doubly stochastic (with the row
            or column).

    Example:
        >>> de_sgld(0.01, "ring").correction is None
        True

    Source: Gürbüzbalaban, Gao, Hu, Zhu, "Decentralized stochastic gradient Langevin dynamics and
    Hamiltonian Monte Carlo" (2021), eq. (2). EXTRA is that of Shi, Ling, Wu, Yin (2015), here with
    the noise outside its memory.
    """
    given = {"correction": correction, "noise": noise, "draws": draws}
    settings = _common(mixing, batch_size, replace, control_variate, temperature, given)
    return Gossip(
        name="de_sgld",
        step_size=schedules.as_schedule(step_size),
        friction=None,
        averaged_noise=bool(averaged_noise),
        **settings,
    )


def de_sghmc(
    step_size: Any,
    friction: float,
    mixing: Any,
    *,
    batch_size: int | None = None,
    replace: bool = True,
    correction: str | None = None,
    noise: str = "independent",
    control_variate: Any = None,
    draws: str = "average",
    temperature: float = 1.0,
) -> Gossip:
    r"""Decentralized stochastic gradient Hamiltonian Monte Carlo (DE-SGHMC).

    .. math:: v_i' = v_i - \eta[\gamma v_i + g_i(x_i)] + \sqrt{2\gamma\eta}\,\xi_i, \qquad
              x_i' = \sum_j W_{ij} x_j + \eta v_i'

    **Samples**: as `de_sgld`: the average a law near exp(−U/temperature), with a bias in W₂ that
    falls with η; a single agent a law that is far too wide. `consortia.oracles.de_sghmc_law` gives
    both exactly on Gaussian targets. ``correction="extra", noise="common"`` brings the agents to
    the average and takes the disagreement of unlike agents out of it.

    **Draw**: the plain average of the agents' positions, one an iteration; ``draws="agents"`` keeps
    each agent's series too.

    **Step size**: η, a step in time: drift of v η(γv + g), noise variance 2γη, and the position
    moves by η v'. With γ = 1/η one step is one of `de_sgld` with the step size η², h' = η².

    Args:
        step_size: η > 0, as in `de_sgld`.
        friction: γ > 0 with γη ≤ 1, per unit of time. The published theorem wants it near 1/η;
            settings that mix well violate it (`consortia.oracles.gossip_conditions`).
        mixing: W, as in `de_sgld`.
        batch_size: as in `de_sgld`.
        replace: as in `de_sgld`.
        correction: as in `de_sgld`, applied to the position.
        noise: as in `de_sgld`.
        control_variate: as in `de_sgld`.
        draws: as in `de_sgld`.
        temperature: as in `de_sgld`; at 0 this is distributed accelerated gradient descent.

    Returns:
        A value that `consortia.sample` takes.

    Raises:
        InputError: an argument is out of its range, or W is not doubly stochastic.

    Example:
        >>> de_sghmc(0.1, 7.0, "ring").friction
        7.0

    Source: Gürbüzbalaban, Gao, Hu, Zhu (2021), eqs. (20) and (21).
    """
    step = schedules.as_schedule(step_size)
    gamma = arguments.number("friction", friction, 0.0, math.inf)
    if gamma == 0:
        raise InputError("friction is 0: it must be positive.")
    if isinstance(step, schedules.Constant) and gamma * step.value > 1:
        raise InputError(
            f"friction * step_size is {gamma * step.value:g}: it must be at most 1, or velocities "
            "change their sign in every step; lower one of them."
        )
    given = {"correction": correction, "noise": noise, "draws": draws}
    settings = _common(mixing, batch_size, replace, control_variate, temperature, given)
    return Gossip(name="de_sghmc", step_size=step, friction=gamma, averaged_noise=False, **settings)


def _common(
    mixing: Any,
    batch_size: Any,
    replace: Any,
    control_variate: Any,
    temperature: Any,
    given: dict[str, Any],
) -> dict[str, Any]:
    """The checked arguments that both methods have."""
    choices = {
        "correction": (None, "extra"),
        "noise": ("independent", "common"),
        "draws": ("average", "agents"),
    }
    for name, value in given.items():
        if value not in choices[name]:
            text = " or ".join(repr(choice) for choice in choices[name])
            raise InputError(f"{name} is {value!r}: use {text}.")
    return {
        **given,
        "mixing": graphs.as_mixing(mixing),
        "batch_size": arguments.optional_whole("batch_size", batch_size, 1),
        "replace": bool(replace),
        "anchor": _anchor(control_variate, batch_size),
        "temperature": arguments.number("temperature", temperature, 0.0, math.inf),
    }


def _anchor(point: Any, batch_size: Any) -> tuple[float, ...] | None:
    if point is None:
        return None
    if batch_size is None:
        raise InputError("control_variate is for minibatches: give batch_size, or leave it out.")
    try:
        leaves = [np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(point)]
        values = np.concatenate(leaves)
    except (TypeError, ValueError):
        raise InputError(f"control_variate must be a point, not {point!r}.") from None
    if not np.all(np.isfinite(values)):
        raise InputError("control_variate holds a value that is not finite.")
    return tuple(values.tolist())

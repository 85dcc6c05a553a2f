r"""Decentralized Metropolis-adjusted HMC and decentralized ULA: agents on a network, without a hub.

m agents hold :math:`U_i = -\sum_{j \in i}\log p(z_j|\omega) - \tfrac1m\log p(\omega)` and mix with
their neighbours by a doubly stochastic W. In each iteration of MA-HMC

.. math::
    c_i = \nabla U_i(\omega_i), \quad a_i = p_i^\top \nabla^2 U_i(\omega_i) p_i, \qquad
    g \leftarrow W (g + c - c_{prev}), \quad \aleph \leftarrow W(\aleph + a - a_{prev}), \qquad
    \omega \leftarrow W \omega^*

where :math:`\omega^*_i` is :math:`\omega_i - \epsilon(p_i + \epsilon g_i)` as published, if it is
accepted, and :math:`\omega_i - \epsilon(p_i + \tfrac\epsilon2 g_i)` corrected. The trackers keep
:math:`\tfrac1m\sum_i g_i = \tfrac1m\sum_i \nabla U_i(\omega_i)`, the *average* gradient.
"""

from __future__ import annotations

import math
from typing import Any

from consortia import graphs, schedules
from consortia.algorithms.decentralized_method import DecentralizedHMC, DecentralizedULA
from consortia.core import arguments
from consortia.errors import InputError

VARIANTS = ("corrected", "published", "exact")


def decentralized_hmc(
    step_size: Any,
    mixing: Any,
    *,
    variant: str = "corrected",
    leapfrog_steps: int = 1,
    gossip_rounds: int = 1,
    metropolis_from: int = 0,
    draws: str = "average",
    draw_before_mixing: bool = False,
) -> DecentralizedHMC:
    r"""Decentralized Metropolis-adjusted Hamiltonian Monte Carlo (MA-HMC).

    **Samples**, by variant:

    - ``"corrected"``: a law near exp(−U), U = Σ_i U_i. Half the drift, ε²/2, beside noise of
      variance ε², and no Metropolis test. On Gaussian targets the mean is exact on any network
      however unlike the agents are; the variance of the average is off by O(ε²), that of an agent
      by what the agents disagree. `consortia.oracles.decentralized_hmc_law` gives both exactly.
      With this drift the published Taylor ratio is O(ε³): it carries no information, and is left
      out.
    - ``"published"``: **exp(−2U), not exp(−U)**. The drift ε² beside noise of variance ε² is the
      Langevin step of the *squared* density, and its acceptance test, by a Taylor expansion whose
      gradient term has the wrong sign, does not repair that: on Gaussian targets each posterior
      standard deviation comes out 0.707 times too small (exactly 1/√(2 − ε²λ/m) for agents that
      agree on a complete network, before any rejection), with one agent and with many. For
      comparison with published results only.
    - ``"exact"``: exp(−U) itself. All agents share the random numbers of (p, u), so that they move
      as one, and sum U and ∇U exactly at each proposal: centralized MALA, or HMC with
      ``leapfrog_steps``. The only variant that may be called Metropolis-exact over a network. The
      sums are exact all-reduces, counted here as one star round each, and need a connected one.

    **Draw**: the plain average of the agents after mixing, one an iteration; ``draws="agents"``
    keeps every agent's series beside it, in the group ``agents``.

    **Step size**: ε. Corrected: drift ε²/2 of the average gradient, that is ε²/(2m) of ∇U, noise
    variance ε² an agent, ε²/m for the average: h' = ε²/(2m). Exact: h' = ε²/2. Relaxation takes
    about 2m/(ε²λ_min) iterations for the smallest eigenvalue of ∇²U, so let ε grow with √m; it must
    stay below √(4m/λ_max), corrected.

    Args:
        step_size: ε > 0: a number, an array over iterations (warm-up included) or a function of
            the iteration's index.
        mixing: W, doubly stochastic, agent i being site number i: what
            `consortia.graphs.mixing_matrix` returns, an array (sites, sites), a SciPy sparse
            matrix, or the name of a network (`consortia.graphs.NETWORKS`).
        variant: see above.
        leapfrog_steps: L of ``"exact"``; the others have one.
        gossip_rounds: multiplications by W of each innovation of the trackers, one communication
            round each; the positions are multiplied once. Not for ``"exact"``.
        metropolis_from: first iteration (warm-up included) whose proposals are tested, before
            which all are accepted; of ``"published"``. The trackers run on across it.
        draws: ``"average"`` or ``"agents"``.
        draw_before_mixing: record agents before their positions are mixed. Their average is the
            same.

    Returns:
        A value that `consortia.sample` takes; equal arguments give equal values.

    Raises:
        InputError: an argument is out of its range, W is not doubly stochastic (with the row or
            column), or an argument does not belong to the variant.

    Example:
        >>> decentralized_hmc(0.02, "ring").variant
        'corrected'

    Source: Kungurtsev, Cobb, Javidi, Jalaian, "Decentralized Bayesian learning with
    Metropolis-adjusted Hamiltonian Monte Carlo" (2023), and the code published with it;
    ``"corrected"`` and ``"exact"`` are ours.
    """
    _one_of("variant", variant, VARIANTS)
    _one_of("draws", draws, ("average", "agents"))
    method = DecentralizedHMC(
        name="decentralized_hmc",
        step_size=schedules.as_schedule(step_size),
        mixing=_one_matrix(mixing),
        variant=variant,
        leapfrog_steps=arguments.whole("leapfrog_steps", leapfrog_steps, 1),
        gossip_rounds=arguments.whole("gossip_rounds", gossip_rounds, 1),
        metropolis_from=arguments.whole("metropolis_from", metropolis_from, 0),
        draws=draws,
        draw_before_mixing=bool(draw_before_mixing),
    )
    if variant != "exact" and method.leapfrog_steps > 1:
        raise InputError(
            f"leapfrog_steps={leapfrog_steps} is for variant='exact': {variant!r} takes one step "
            "with the tracked gradient."
        )
    if variant == "exact" and method.gossip_rounds > 1:
        raise InputError("gossip_rounds is not for variant='exact', whose sums are exact.")
    if variant == "exact" and (draws == "agents" or draw_before_mixing):
        raise InputError(
            "with variant='exact' all agents stand at one position: use draws='average'."
        )
    if variant != "published" and method.metropolis_from > 0:
        raise InputError(
            f"metropolis_from={metropolis_from} is for variant='published'; 'corrected' tests no "
            "proposal, 'exact' tests each."
        )
    return method


def decentralized_ula(
    step_size: Any,
    mixing: Any,
    *,
    decay: tuple[float, float] = (0.55, 230.0),
    consensus: tuple[float, float, float] = (0.48, 0.01, 230.0),
    noise: str = "corrected",
    draws: str = "average",
) -> DecentralizedULA:
    r"""Decentralized unadjusted Langevin algorithm (ULA) without gradient tracking.

    .. math::
        \omega_i \leftarrow \omega_i - \beta_t \sum_j A_{ij}(\omega_i - \omega_j)
        - \alpha_t m \nabla U_i(\omega_i) + \sqrt{2\alpha_t s}\, v_i, \qquad
        \alpha_t = \frac{\alpha_0}{(t + b_1)^{\delta_2}}, \quad
        \beta_t = \frac{\beta_0}{(t + b_2)^{\delta_1}}

    with the adjacency matrix A of the network.

    **Samples**, with ``noise="corrected"`` (s = m): a law near exp(−U) whose mean is off by O(α_t)
    when the agents are unlike, more on networks that mix slowly (1.5 standard deviations on a ring
    of twenty). With ``noise="published"`` (s = 1): exp(−mU), each standard deviation 1/√m times too
    small. `consortia.oracles.decentralized_ula_moments` gives the law at any iteration.

    **Draw**: the plain average of the agents, one an iteration; ``draws="agents"`` keeps each
    agent's series too. Steps decrease, so estimates are weighted by them.

    **Step size**: α₀, which is *not* the first step: that is α₀ b₁^(−δ₂), about α₀/20 by default.
    h' = α_t for the average.

    Args:
        step_size: α₀ > 0: a number; or an array over iterations or a function of the iteration's
            index, which the decay then multiplies.
        mixing: the network: agents i and j ≠ i are neighbours where W_ij > 0; the weights
            themselves do not count. As in `decentralized_hmc`.
        decay: (δ₂, b₁); (0, 1) keeps the step constant. The published theory wants
            1 > δ₂ > ½ + δ₁ (`consortia.schedules.decentralized_ula`).
        consensus: (β₀, δ₁, b₂). β_t times the largest eigenvalue of the graph's Laplacian must
            stay below 2, or the agents part; a complete network of five breaks it at the published
            values. A warning says so.
        noise: ``"corrected"`` or ``"published"``.
        draws: ``"average"`` or ``"agents"``.

    Returns:
        A value that `consortia.sample` takes.

    Raises:
        InputError: an argument is out of its range, or W is not doubly stochastic.

    Example:
        >>> decentralized_ula(1e-4, "ring").noise
        'corrected'

    Source: Parayil, Bai, George, Gurram, "Decentralized Langevin dynamics for Bayesian learning"
    (2020), with the constants of Kungurtsev et al. (2023), appendix 2.
    """
    _one_of("noise", noise, ("corrected", "published"))
    _one_of("draws", draws, ("average", "agents"))
    power, offset = _numbers("decay", decay, ("δ₂", "b₁"))
    first, slow, start = _numbers("consensus", consensus, ("β₀", "δ₁", "b₂"))
    return DecentralizedULA(
        name="decentralized_ula",
        step_size=schedules.as_schedule(step_size),
        mixing=_one_matrix(mixing),
        decay=(power, _above_zero("decay: b₁", offset)),
        consensus=(first, slow, _above_zero("consensus: b₂", start)),
        noise=noise,
        draws=draws,
    )


def _one_matrix(mixing: Any) -> graphs.MixingMatrix | str:
    matrix = graphs.as_mixing(mixing)
    if isinstance(matrix, graphs.MixingSchedule):
        raise InputError("mixing is a schedule of matrices: give one matrix, or de_sgld takes it.")
    return matrix


def _one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        raise InputError(f"{name} is {value!r}: use one of {known}.")


def _numbers(name: str, values: Any, parts: tuple[str, ...]) -> tuple[float, ...]:
    if not isinstance(values, (tuple, list)) or len(values) != len(parts):
        raise InputError(f"{name} is {values!r}: give the numbers ({', '.join(parts)}).")
    return tuple(
        arguments.number(f"{name}: {part}", value, 0.0, math.inf)
        for part, value in zip(parts, values, strict=True)
    )


def _above_zero(name: str, value: float) -> float:
    if value == 0:
        raise InputError(f"{name} is 0: it must be positive.")
    return value

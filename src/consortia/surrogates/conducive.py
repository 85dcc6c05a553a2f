"""The conducive gradient: a correction from Gaussian surrogates that has mean zero over sites."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float

from consortia.core.contract import Site
from consortia.gradients import Evaluate, GradientOracle
from consortia.runtime.late import Array, PyTree
from consortia.surrogates.correction import Correction, correction_of


def conducive(
    oracle: GradientOracle,
    strength: float = 1.0,
    correction: Callable[[Site], Correction] = correction_of,
) -> GradientOracle:
    r"""Return ∇U_c + α(∇log q_c − s_c ∇log q), q = Π_c q_c, for any estimate of ∇U_c.

    .. math:: \sum_c \Bigl(\nabla\log q_c - s_c \nabla\log q\Bigr) = 0, \qquad \sum_c s_c = 1

    s_c is the exchange's own weight of the site, ``site.weight``: the probability f_c of a visit
    where a chain travels, w_c of an average, 1/N of gossip, the share of updates at a parameter
    server. Divided by it, as all these do, the estimate of ∇U gets α(∇log q_c/s_c − ∇log q), which
    is −α times the conducive gradient g_c.

    Args:
        oracle: the estimate of ∇U_c.
        strength: α ≥ 0; 1 is the published method and 0 the oracle itself.
        correction: what a site knows of the surrogates; by default what the phases of
            `consortia.surrogates.fit_phases` have left there.

    Source: El Mekkaoui, Mesquita, Blomstedt, Kaski (2021), section 3; with weights in the place of
    probabilities it is ours.
    """
    if strength == 0:
        return oracle

    def bind(site: Site) -> Evaluate:
        inner, change = oracle.bind(site), correction(site)

        def evaluate(numbers: PyTree, position: Float[Array, " d"]) -> Float[Array, " d"]:
            return inner(numbers, position) + strength * change.at(position)

        return evaluate

    return oracle._replace(bind=bind)

r"""Membership inference: evidence in the published draws that a patient took part.

The strongest test of it knows all other rows. S independent draws of the posterior then have the
likelihood ratio :math:`\prod_s p(z|\theta_s) / Z`, whose logarithm is nearly normal under either
answer, with means that differ by its variance :math:`S v`, :math:`v = \operatorname{Var} \log
p(z|\theta)`. At a rate α of false alarms it finds a patient with probability
:math:`\Phi(\Phi^{-1}(\alpha) + \sqrt{S v})`.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

FALSE_ALARMS = 0.05


def found_out(
    log_likelihoods: Float[np.ndarray, "draws rows"], effective: float
) -> Float[np.ndarray, " rows"]:
    """Return with which probability each row is found to have taken part.

    Args:
        log_likelihoods: log p(z_i | θ_s) at draws of the posterior.
        effective: S, the effective number of draws that are published.
    """
    from scipy.stats import norm

    variance = log_likelihoods.var(axis=0, ddof=1)
    return norm.cdf(norm.ppf(FALSE_ALARMS) + np.sqrt(effective * variance))


def most_draws(log_likelihoods: Float[np.ndarray, "draws rows"]) -> float:
    """Return the effective draws with which the most exposed row is found with probability .5.

    Args:
        log_likelihoods: log p(z_i | θ_s) at draws of the posterior.
    """
    from scipy.stats import norm

    largest = log_likelihoods.var(axis=0, ddof=1).max()
    return float(norm.ppf(FALSE_ALARMS) ** 2 / largest) if largest > 0 else float("inf")

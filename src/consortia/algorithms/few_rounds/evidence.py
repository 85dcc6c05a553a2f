r"""The log evidence, from the weights of the proposals in the rounds of draws.

.. math:: \log \hat Z = -U(\theta_0) + \log|S| +
          \log \frac1N \sum_k \frac{e^{U(\theta_0) - U(\theta_k)}}{q(\zeta_k)}, \qquad
          \theta = m + S\zeta

which is unbiased for Z, since the family stands still while draws are made.
"""

from __future__ import annotations

import math

import numpy as np

from consortia.algorithms.few_rounds.family import FREEDOM
from consortia.algorithms.few_rounds.fitting import WORST_K_HAT
from consortia.algorithms.few_rounds.state import Hub, Limited, Stage


def evidence(hub: Hub) -> dict[str, float]:
    """Return log Z and its standard error; empty where the weights do not tell it."""
    seen = np.flatnonzero(np.asarray(hub.history.purpose) == Stage.DRAW)
    if not seen.size or isinstance(hub.search, Limited):
        return {}
    # The mean of weights with such tails is not known from these points.
    if np.median(np.asarray(hub.history.k_hat)[seen]) > WORST_K_HAT:
        return {}
    d, points = hub.centre.size, hub.memory.heights.shape[1]
    logs, shares = (np.asarray(a, float)[seen] for a in (hub.history.log_mean, hub.history.share))
    mean = np.logaddexp.reduce(logs) - math.log(seen.size)
    # The density of the family leaves this out.
    constant = math.lgamma((FREEDOM + d) / 2) - math.lgamma(FREEDOM / 2)
    constant -= d / 2 * math.log(FREEDOM * math.pi)
    volume = np.linalg.slogdet(np.asarray(hub.root, float))[1]
    height = hub.search.best.height
    potential = float(height.coarse) + float(height.fine)
    relative = np.mean(1 / shares - 1) / (points * seen.size)
    return {
        "log_evidence": float(mean - constant + volume - potential),
        "log_evidence_error": float(math.sqrt(relative)),
    }

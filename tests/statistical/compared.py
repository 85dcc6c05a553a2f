"""A sampler's draws beside those of NUTS: how far apart the two may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from consortia.dynamics.rank_statistics import rhat_and_ess_of


def effective(values: np.ndarray) -> np.ndarray:
    """Return the bulk effective sample sizes of (chains, draws, d), (d,)."""
    return np.asarray(rhat_and_ess_of(np.moveaxis(values, -1, 0))[1])


def nuts(model: Callable[[], Any], draws: int, method: str = "vectorized") -> dict[str, np.ndarray]:
    """Return NumPyro's draws of a model, (4, draws, ...) each."""
    import numpyro

    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model),
        num_warmup=1000,
        num_samples=draws,
        num_chains=4,
        chain_method=method,
        progress_bar=False,
    )
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        mcmc.run(jax.random.key(0))
    found = mcmc.get_samples(group_by_chain=True)
    return {name: np.asarray(values) for name, values in found.items()}


def check_law(found: np.ndarray, wanted: np.ndarray, what: str = "") -> None:
    """Means within .05 sd and sds within 5 %, and 4 standard errors of both beyond."""
    found, wanted = (np.asarray(one, float).reshape(*one.shape[:2], -1) for one in (found, wanted))
    ess = effective(found), effective(wanted)
    sd = wanted.std((0, 1))
    error = np.sqrt(found.var((0, 1)) / ess[0] + wanted.var((0, 1)) / ess[1]) / sd
    shift = np.abs(found.mean((0, 1)) - wanted.mean((0, 1))) / sd
    ratio = np.abs(found.std((0, 1)) / sd - 1)
    print(f"{what}: means {shift.max():.3f} sd, sds {ratio.max():.3f}", end="; ")
    print(f"standard errors {error.max():.3f} sd, least effective size {ess[0].min():.0f}")
    assert np.all(shift < 0.05 + 4 * error), (what, shift)
    # The variance of a standard deviation grows with the fourth moment.
    peaked = ((wanted - wanted.mean((0, 1))) ** 4).mean((0, 1)) / sd**4 - 1
    assert np.all(ratio < 0.05 + 2 * np.sqrt(peaked * (1 / ess[0] + 1 / ess[1]))), (what, ratio)

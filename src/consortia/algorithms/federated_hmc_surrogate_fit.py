"""The state of federated HMC with a surrogate's force, and how its chains start."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from consortia.algorithms import federated_hmc_surrogate_search as search
from consortia.core.contract import Site
from consortia.dynamics import metropolis
from consortia.surrogates import Gaussian

Array = jax.Array

QUARTER = math.pi / 2
"""The turn after which a proposal does not depend on the state."""

GUARD_REACH = 2.0
"""The guard's scale is 1 + this/√d; |ζ| has mean about √d and standard deviation 1/√2."""

TRIAL_SLOTS = 256
"""Draws of each turn on trial whose effective sample size is measured; a longer trial's first."""


@dataclass(frozen=True)
class SurrogateSettings:
    """The parameters of federated HMC with a surrogate's force.

    Attributes:
        surrogate: of the posterior; None to find it: the Laplace approximation at the mode.
        turns: in radians; of several the best is chosen in the warm-up.
        widening: factor of the surrogate's standard deviations.
        guard: share of independent proposals that come from a wider Gaussian.
    """

    name: str
    surrogate: Gaussian | None
    proposals: int
    turns: tuple[float, ...]
    widening: float
    guard: float

    @property
    def guarded(self) -> bool:
        """Whether some proposals come from a wider Gaussian; shorter turns need none."""
        return self.guard > 0 and self.turns == (QUARTER,)

    def guard_scale(self, dimension: int) -> float:
        """Its standard deviations in white coordinates: |ζ| is about 2 larger, some three sds."""
        return 1 + GUARD_REACH / math.sqrt(dimension)

    @property
    def independent(self) -> bool:
        """Whether proposals do not depend on the state, at least in part of the warm-up."""
        return self.turns[0] == QUARTER


# --- setup and states ----------------------------------------------------------------------------


def init(method: SurrogateSettings, position: Array) -> Any:
    """The server's state; its surrogate is filled in by ``setup``."""
    d, dtype = position.size, position.dtype
    zero, vector = jnp.zeros((), dtype), jnp.zeros_like(position)
    several = jnp.zeros((method.proposals, d), dtype)
    count, none = jnp.zeros((), jnp.int32), jnp.zeros(len(method.turns), dtype)
    tried = {
        "draws": jnp.zeros((len(method.turns), TRIAL_SLOTS, d), dtype),
        "made": jnp.zeros(len(method.turns), jnp.int32),
        "ess": none,
    }
    search_state = search.start(position) | {"next": position}
    hub = {
        "fit": search_state,
        "here": {
            "position": position,
            "white": vector,
            "potential": metropolis.Potential(zero, zero),
        },
        "proposals": {"positions": several, "white": several, "kind": count, "trial": count},
        "draws": several,
        "mean": vector,
        "root": jnp.eye(d, dtype=dtype),
        "moments": no_moments(vector, metropolis.Potential(zero, zero)),
        "rejections": count,
        "chosen": count,
        "last_rate": zero + 1,
        "tally": {"rounds": none, "rates": none},
        "tried": tried if len(method.turns) > 1 else (),
        "due": count,
        "seen": {"longest": count, "rounds": count, "rates": zero},
    }
    found = {
        "look": position,
        "mean": position,
        "precision": jnp.eye(d, dtype=dtype),
        "decrement": zero,
    }
    return (), hub | {"found": found}, found


def no_moments(like: Array, reference: metropolis.Potential) -> dict[str, Any]:
    """Weighted moments of white coordinates, before the first; weights are relative to U there."""
    zero = jnp.zeros((), like.dtype)
    return {
        "reference": reference,
        "top": zero - jnp.inf,
        "total": zero,
        "squares": zero,
        "first": like,
        "second": jnp.zeros((like.size, like.size), like.dtype),
    }


def recall(noise: Any, shared: Any, state: Any, inbox: Any, site: Site) -> Any:
    """The message is the surrogate that the fit has left here, the same at every site."""
    _, found = site.fitted
    return state, (found["mean"], found["root"]), {}


def adopt(method: SurrogateSettings, shared: Any, hub: Any, message: Any) -> Any:
    """Takes the surrogate over, and starts the chain at its mean."""
    mean, root = message
    return _started(hub, mean, method.widening * root)


def given(method: SurrogateSettings, shared: Any, hub: Any, message: Any) -> Any:
    """Takes over the user's own surrogate."""
    gaussian = method.surrogate
    assert gaussian is not None
    precision = gaussian.precision
    precision = np.diag(precision) if precision.ndim == 1 else precision
    root = np.linalg.inv(np.linalg.cholesky(precision)).T
    dtype = hub["mean"].dtype
    scaled = jnp.asarray(method.widening * root, dtype)
    return _started(hub, jnp.asarray(gaussian.mean, dtype), scaled)


def _started(hub: Any, mean: Array, root: Array) -> Any:
    here = hub["here"] | {"position": mean, "white": jnp.zeros_like(mean)}
    kept = {name: value for name, value in hub.items() if name not in ("fit", "found")}
    return kept | {"mean": mean, "root": root, "here": here}, mean[None], {}


def start(shared: Any, hub: Any, message: Any) -> Any:
    """Keeps U at the start."""
    potential = jax.tree.map(lambda leaf: leaf[0], message)
    here = hub["here"] | {"potential": potential}
    hub = hub | {"here": here, "moments": no_moments(hub["mean"], potential)}
    return hub, hub["proposals"]["positions"], {}

"""Answers of sites by NumPy: nothing is traced or compiled for what is evaluated a few times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core.host import HostSite
from consortia.core.queries import Conversation, SiteFunction
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.engines.panel import Answer
from consortia.engines.programs import SitePrograms
from consortia.runtime.threads import one_thread

COMPILED = "compiled"


def way_of(target: Target, rows: int, sites: int = 1) -> str:
    """Name the evaluation of so many sites with so many rows in all, for plan and record."""
    host = target.model.host
    return COMPILED if host is None else host.way(rows, sites)


class HostPrograms:
    """The site functions over the sites of this process, by NumPy.

    Args:
        target: the posterior.
        sites: the sites of this process, with their rows.
        shares: λ_c of each.
        compiled: makes the programs of functions that NumPy does not evaluate, such as gradients
            along trajectories.
    """

    def __init__(
        self,
        target: Target,
        sites: Sites,
        shares: np.ndarray,
        compiled: Callable[[], SitePrograms],
    ) -> None:
        self._target, self._compile, self._sites = target, compiled, sites
        self._programs: SitePrograms | None = None
        self.sites: list[HostSite] = [
            target.host_site(rows, int(size), float(share))
            for rows, size, share in zip(sites.shards, sites.sizes, shares, strict=True)
        ]

    def answer(self, function: SiteFunction, arrays: Answer, gather: Any = None) -> Answer:
        """Return these sites' answer to completed arrays, in double precision."""
        if function.evaluate is None:
            if self._programs is None:
                self._programs = self._compile()
            return self._programs.answer(function, arrays)
        with one_thread():
            each = [function.evaluate(self._target, arrays, site) for site in self.sites]
        replies = {
            name: np.stack([np.asarray(reply[name], np.float64) for reply in each])
            for name in each[0]
        }
        if not function.summed:
            return replies
        with np.errstate(invalid="ignore"):  # +inf and -inf of two sites are NaN
            return {name: values.sum(axis=0) for name, values in replies.items()}

    def start_values(self, positions: Float[np.ndarray, "chains d"]) -> tuple[Any, Any, Any]:
        """Return log-prior (chains,), U_c and whether its gradient is finite, (nodes, chains)."""
        with one_thread():
            values = np.stack([site.potentials(positions) for site in self.sites])
            slopes = [np.isfinite(site.gradients(positions)).all(axis=1) for site in self.sites]
        return self._target.log_priors(positions), values, np.stack(slopes)

    @property
    def memory(self) -> int:
        """Bytes of the rows."""
        return sum(np.asarray(leaf).nbytes for rows in self._sites.shards for leaf in rows.values())


def shares_of(method: Conversation, sites: Sites, which: np.ndarray) -> np.ndarray:
    """Return λ_c of these sites, by index."""
    return method.prior_shares(np.asarray(sites.sizes, np.int64))[which]

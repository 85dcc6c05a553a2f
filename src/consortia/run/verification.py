"""A run beside what can be known without the truth: an exact sampler, and the sites' gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from consortia.algorithms.registry import ALGORITHMS
from consortia.core import arguments
from consortia.core.model import Model
from consortia.core.parameters import join, sampled_draws, spaced, variables
from consortia.core.start import starting_parameters
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.diagnostics.stein import FEWEST, MOST, Stein, kernel_stein
from consortia.diagnostics.summary import Summary, summary
from consortia.engines.contract import Engine
from consortia.engines.local import LocalEngine
from consortia.errors import InputError, WarmupError
from consortia.run.sampling import sample
from consortia.run.specification import CHAINS
from consortia.theory.potentials import SitePotentials

EXACT, SEED = "few_rounds", 1
"""The sampler that a run is compared with, by its name in the registry, and its seed."""


@dataclass(frozen=True, eq=False, repr=False)
class Verification:
    """The result of `verify`; shown as the run's summary beside the reference, with its verdict."""

    tree: Any  # the run
    reference: Any  # the result of `consortia.few_rounds`, or None where it refused
    stein: Stein | None  # the draws beside the sites' gradients, or None
    skipped: tuple[str, ...] = ()  # what could not be had, each with the reason

    @property
    def summary(self) -> Summary:
        """The run beside the reference, with the verdict on both findings."""
        return summary(self.tree, reference=self.reference, stein=self.stein)

    def __repr__(self) -> str:
        """Return the summary, and what could not be had."""
        return "\n".join([str(self.summary), *(f"skipped: {reason}" for reason in self.skipped)])


@arguments.hinted
def verify(
    tree: Any,
    model: Model,
    sites: Sites,
    *,
    engine: Engine | None = None,
    seed: int = SEED,
    progress: bool = True,
) -> Verification | None:
    """Compare a run with the exact posterior of `few_rounds`, and with the sites' gradients.

    The sites answer three messages more as a rule, and take part in one phase: they evaluate
    the gradient of their log-likelihood at up to 500 of the draws, whose sum with the prior's is
    exact, for the kernel Stein discrepancy (`consortia.diagnostics.kernel_stein`).

    Args:
        tree: what `consortia.sample` returned; None in processes that keep nothing.
        model: of the run.
        sites: of the run.
        engine: of the run; all its processes make the same call.
        seed: of the exact sampler.
        progress: show a bar.

    Returns:
        The findings, with `summary` and its verdict; None in processes that keep nothing.

    Raises:
        InputError: the run has no draws, or those of another model.
        SiteMissingError, RankError: as `consortia.sample`.

    Example:
        >>> import consortia
        >>> found = consortia.verify(tree, model, sites)  # doctest: +SKIP
        >>> print(found.summary)  # doctest: +SKIP
    """
    model.check_posterior("verify")
    engine = LocalEngine() if engine is None else engine
    target = Target(model, starting_parameters(model, None, 0, 1)[0])
    gathered = engine.allgather(lambda: _points(tree, target).tolist() if engine.root else None)
    points = np.asarray(next(answer for answer in gathered if answer is not None), np.float64)
    skipped: list[str] = []
    reference = None
    options: dict[str, Any] = {"chains": CHAINS, "seed": seed, "engine": engine}
    try:
        reference = sample(model, sites, ALGORITHMS[EXACT].factory(), progress=progress, **options)
    except (InputError, WarmupError) as error:
        skipped.append(f"the exact sampler: {error}")
    stein = None
    try:
        if len(points) < FEWEST:
            raise InputError(f"fewer than {FEWEST} effective draws")
        potentials = SitePotentials(model, sites, target.unravel(points[0]), engine)
        stein = kernel_stein(points, potentials.scores(points))
    except InputError as error:
        skipped.append(f"the Stein discrepancy: {error}")
    return Verification(tree, reference, stein, tuple(skipped)) if engine.root else None


def _points(tree: Any, target: Target) -> np.ndarray:
    """Return flat positions (n, d), so many draws evenly spaced as they are effectively worth."""
    flat = join(sampled_draws(tree), variables(target.structure), leading=2).astype(float)
    chains, draws, _ = flat.shape
    table = summary(tree, units="sampled")
    worth = float(np.minimum(table["ess_bulk"], table["ess_tail"]).min())
    if not worth >= FEWEST:
        return np.zeros((0, target.dimension))
    each = max(int(min(worth, MOST, chains * draws)) // chains, 1)
    places = spaced(draws, each)
    return flat[:, places].reshape(-1, target.dimension)

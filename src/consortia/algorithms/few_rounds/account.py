"""What is said of a run from the server's last state: its rounds, its modes, its faults."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from consortia.algorithms.federated_hmc import ensemble
from consortia.algorithms.few_rounds import coordinates, evidence, modes
from consortia.algorithms.few_rounds.family import FREEDOM
from consortia.algorithms.few_rounds.fitting import WORST_K_HAT
from consortia.algorithms.few_rounds.limited import MOST_CURVED
from consortia.algorithms.few_rounds.state import Hub, Searches, Stage
from consortia.core.contract import Fault

WORST_CORRELATION = 0.3
"""Of the draws of a chain of federated HMC in successive rounds."""

OF_POINTS = "share", "k_hat", "acceptance"
OF_CHAINS = "messages", "acceptance", "nested_r_hat", "correlation", "step_size"
PURPOSES = {
    Stage.SEARCH: ("mode", ("decrement",)),
    Stage.FIT: ("family", OF_POINTS),
    Stage.DRAW: ("draws", OF_POINTS),
    Stage.WALK: ("chains", OF_CHAINS),
    Stage.WALK_DRAW: ("draws", OF_CHAINS),
}
"""What a round is for, in a word, and what is measured in it."""


def messages(hub: Hub, done: int) -> tuple[int, int, int]:
    """Return the communication rounds for the mode, of points and of the chains."""
    purpose, sent = (np.asarray(a)[:done] for a in (hub.history.purpose, hub.history.messages))
    of = np.bincount(purpose, sent, minlength=len(Stage)).astype(int).tolist()
    return of[Stage.SEARCH], of[Stage.FIT] + of[Stage.DRAW], of[Stage.WALK] + of[Stage.WALK_DRAW]


def report(hub: Hub) -> dict[str, Any]:
    """Return what each round was for, what was measured in it, and what came of all of them."""
    history = jax.tree.map(np.asarray, hub.history)._asdict()
    lines = []
    for index, purpose in enumerate(history["purpose"][: int(hub.rounds)].tolist()):
        word, measured = PURPOSES[purpose]
        points = {"points": hub.memory.heights.shape[1]} if measured is OF_POINTS else {}
        seen = {name: float(f"{float(history[name][index]):.3g}") for name in measured}
        finite = {name: value for name, value in seen.items() if math.isfinite(value)}
        lines.append({"for": word} | points | finite)
    facts: dict[str, Any] = {
        "rounds_used": lines,
        "family_components": int(np.sum(np.asarray(hub.family.shares) > 0)) if int(hub.fits) else 0,
    }
    facts |= evidence.evidence(hub)
    if told := _modes(hub):
        facts["modes"] = told
    if int(hub.stage) in (Stage.WALK, Stage.WALK_DRAW):
        facts["handed_over"] = (
            f"{_why(hub)}. {len(hub.walkers.idle)} chains of federated HMC, preconditioned by "
            "the last fit, each a few trajectories long, have made the draws"
        )
    if int(hub.stage) == Stage.FAILED and int(hub.fits) > 0:
        family = coordinates.unwhitened(hub)
        shares = np.asarray(family.shares / family.shares.sum())
        centres = np.asarray(family.centres)
        within = np.sum(np.asarray(family.roots) ** 2, axis=-1) * FREEDOM / (FREEDOM - 2)
        mean = shares @ centres
        facts["fitted_mean"] = mean.tolist()
        facts["fitted_variance"] = (shares @ (within + (centres - mean) ** 2)).tolist()
    return facts


def failure(hub: Hub) -> str | None:
    """Return what was reached where no family was found; None where one was."""
    if int(hub.stage) != Stage.FAILED:
        return None
    if not int(hub.walkers.trajectories):
        return (
            f"few_rounds: the mode was not reached in {int(hub.rounds)} rounds: the last step was "
            f"{math.sqrt(float(hub.search.decrement)):.2g} standard deviations long"
            f"{'' if int(hub.search.convex) else ', where the curvature is not positive'}. The "
            "posterior may be improper, or flat in a direction: give every parameter a proper "
            "prior, give init nearer to the mode, or use federated_hmc."
        )
    sent = int(np.sum(np.asarray(hub.history.messages)))
    obstacles = " and ".join(ensemble.obstacles(hub.walkers.measured)) or "more rounds are due"
    return (
        f"few_rounds: {_why(hub)}; and {len(hub.walkers.idle)} chains of federated HMC did not "
        f"settle in {sent} communication rounds in all: {obstacles}. Give every parameter "
        "a proper prior, use federated_hmc for some hundreds of rounds, from init=fitted_mean "
        "with mass_matrix=1/fitted_variance "
        "(attributes of error.tree), write scales of hierarchical models on the scale on which "
        "their data inform them (centred where there are many, non-centred where few), or "
        "integrate a site's own parameters out (integrate=True of a formula)."
    )


def faults(hub: Hub) -> tuple[Fault, ...]:
    """Return what the weights, the chains and the modes that were found say against the draws."""
    history = jax.tree.map(np.asarray, hub.history)
    texts = []
    walked, drawn = history.purpose == Stage.WALK_DRAW, history.purpose == Stage.DRAW
    correlation = np.max(history.correlation[walked], initial=0.0)
    if np.sum(walked) > 1 and correlation > WORST_CORRELATION:
        texts.append(
            f"few_rounds: the draws of a chain in successive rounds have a correlation of "
            f"{correlation:.2f}, which the effective sample size does not see: it is exact for "
            "one round of draws"
        )
    if drawn.any() and (k_hat := np.median(history.k_hat[drawn])) > WORST_K_HAT:
        texts.append(
            f"few_rounds: k-hat is {k_hat:.2f} in the rounds of draws, above {WORST_K_HAT}: "
            "the tails of the posterior may not have been seen, or it has no end (give every "
            "parameter a proper prior). Compare with federated_hmc"
        )
    missed = modes.missed(_modes(hub)) if drawn.any() or walked.any() else ""
    return (*map(Fault, texts), *([Fault(f"few_rounds: {missed}", True)] if missed else []))


def _modes(hub: Hub) -> list[dict[str, float]]:
    """Return what is told of several modes; empty where one was found, or nothing was drawn."""
    if not isinstance(hub.search, Searches):
        return []
    draws = np.asarray(hub.chains.draws, float).reshape(-1, hub.centre.size)
    return modes.told(hub.search.modes, draws)


def _why(hub: Hub) -> str:
    """Return why no family does: what was measured in the last round of one."""
    if not int(hub.fits):
        return (
            f"with more than {MOST_CURVED} parameters no family of proposals comes near enough to "
            "the posterior"
        )
    history = jax.tree.map(np.asarray, hub.history)
    last = np.flatnonzero(history.purpose == Stage.FIT)[-1]
    return (
        f"no family of proposals was reached in {int(hub.fits)} rounds (k-hat "
        f"{history.k_hat[last]:.2f}, effective share {history.share[last]:.2g}, acceptance "
        f"{history.acceptance[last]:.2g}): the posterior is too wide in its tails, too bent or of "
        "too many parameters for independent proposals"
    )

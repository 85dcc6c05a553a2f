"""Modes beside the one at which a posterior is expanded, on lines to where the prior reaches."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from consortia.core.prior import PriorScale
from consortia.surrogates import several_modes
from consortia.surrogates.newton import newton
from consortia.surrogates.proposals import FEW_PARAMETERS
from consortia.surrogates.proposals.mixture import normalised
from consortia.surrogates.proposals.rays import Line, along_lines, points_of, profile_of
from consortia.surrogates.several_modes import FORGOTTEN, Mode
from consortia.theory.potentials import SitePotentials

MOST_CLIMBS = 3
"""Rises from which another mode is climbed, each step a look at all sites' curvatures."""


class Lines:
    """Lines from a mode to draws of the prior, and with few parameters along each.

    Args:
        mode: of the posterior.
        scale: of the prior.
    """

    def __init__(self, mode: Float[np.ndarray, " d"], scale: PriorScale) -> None:
        self.mode, self.scale = mode, scale
        most = None if mode.size <= FEW_PARAMETERS else several_modes.LINES
        rng = np.random.default_rng(0)
        self.lines: list[Line] = several_modes.lines_to_prior(mode, scale, rng)[:most]

    @property
    def points(self) -> Float[np.ndarray, "r d"]:
        """Points of all lines, and the mode as the last."""
        return points_of(self.lines, self.mode)

    def other_modes(
        self,
        heights: Float[np.ndarray, " r"],
        covariance: Float[np.ndarray, "d d"],
        potentials: SitePotentials,
    ) -> tuple[tuple[float, ...], ...]:
        """Climb from rises by Newton steps, and return the modes that hold something.

        Args:
            heights: log-densities at the points.
            covariance: of the normal law at the mode.
            potentials: of the sites.
        """
        main = Mode(self.mode, covariance, potentials.whole(self.mode)[0], True)
        profiles = [profile_of(*pair) for pair in along_lines(self.lines, heights)]
        rises, modes = several_modes.rises(profiles, self.mode), [main]
        for rise in several_modes.spread_out(rises, modes, self.scale.sd)[:MOST_CLIMBS]:
            end = newton(potentials.whole, rise, width=np.float32)
            potential, _, curvature = potentials.whole(end.position)
            if end.converged and np.linalg.eigvalsh(curvature)[0] > 0:
                modes.append(Mode(end.position, np.linalg.inv(curvature), potential, True))
        kept = several_modes.distinct(modes)
        shares = normalised(several_modes.log_masses(kept))
        held = [
            mode.position for mode, share in zip(kept, shares, strict=True) if share > FORGOTTEN
        ]
        away = [position for position in held if several_modes.apart(position, [main.law])]
        return tuple(tuple(map(float, position)) for position in away)

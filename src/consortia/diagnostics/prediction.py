"""The predicted bias of a run: what its record keeps, and what the verdict reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core import arguments

ARRAYS = ("mean", "sd", "shift", "sd_ratio")

OPTIMISER = "at temperature 0 it is an optimiser, whose iterates are not draws from a posterior"

MODES_SOUGHT = "modes_sought"
"""Attribute of a run: whether it looked for modes that no chain has visited."""

FEWEST_DRAWS = 400
"""Draws from which on a verdict may be good, and other modes are sought."""

DISAGREEMENT = "disagreement"
"""Attribute of a run: Cochran's Q of the sites' own estimates and its degrees of freedom."""

ABSENT = "averages over the sites that take part"
"""Words of the basis of a prediction that takes the absence of sites into account."""


@dataclass(frozen=True, eq=False, repr=False)
class BiasPrediction:
    """The predicted bias of the draws, coordinate by coordinate; read-only."""

    reason: str | None = None  # why there is no prediction, or None where there is one
    basis: str = ""  # what the prediction rests on, in words
    notes: tuple[str, ...] = ()  # what it leaves out, and what else it says
    names: tuple[str, ...] = ()  # of the coordinates, "theta[3]", in the order of the flat position
    # of the posterior, (d,): its mode, and how far the mean is from it to first order
    mean: Float[np.ndarray, " d"] | None = None
    sd: Float[np.ndarray, " d"] | None = None  # of its Gaussian law at the mode, (d,)
    shift: Float[np.ndarray, " d"] | None = None  # (predicted mean − mean) / sd, (d,)
    # predicted standard deviation / sd, (d,), or None where it is not predicted
    sd_ratio: Float[np.ndarray, " d"] | None = None
    # True if the posterior is Gaussian, so that ``mean`` and ``sd`` are its own
    gaussian: bool = False
    # True if the chain has no stationary law near the mode; ``reason`` says so
    diverges: bool = False
    # Pareto shape of the importance ratios of the posterior to its Gaussian law; above 0.7 that law
    # does not stand for the posterior. None where it was not computed.
    k_hat: float | None = None
    # rounds that an independent draw takes in the slowest direction, near the mode; None where that
    # is not known
    rounds_per_draw: float | None = None
    # Cochran's Q of the sites' own estimates, from their expansion at the mode, and its degrees of
    # freedom; None where it is not known
    disagreement: tuple[float, int] | None = None
    # modes beside that of the prediction that hold something, if any; None: not looked for
    other_modes: tuple[tuple[float, ...], ...] | None = None
    unsure: str | None = None  # why the prediction may not hold on this posterior, or None
    # True if there is none, and trying again would say less than ``reason`` does
    settled: bool = False

    def __post_init__(self) -> None:
        arguments.freeze(self)

    @property
    def exact(self) -> bool:
        """True if the method keeps the posterior, so that there is nothing to predict."""
        return self.reason is None and self.shift is None

    @property
    def open(self) -> bool:
        """True if there is no prediction, and it may be worth trying again."""
        return self.reason is not None and not self.diverges and not self.settled

    def lines(self, names: Sequence[str] | None = None) -> list[str]:
        """Return the prediction in words, by these names of coordinates, or by none if empty."""
        if self.reason is not None:
            return [f"No prediction: {self.reason}."]
        if self.shift is None:
            return [f"Predicted bias: none ({self.basis}).", *self.notes]
        worst, names = int(np.abs(self.shift).argmax()), self.names if names is None else names
        farthest = f" (farthest: {names[worst]})" if names else ""
        lines = [f"Predicted means within {in_sd(abs(self.shift[worst]))}{farthest}."]
        if self.sd_ratio is not None:
            low, high = self.sd_ratio.min(), self.sd_ratio.max()
            if max(abs(low - 1), abs(high - 1)) < 5e-4:
                lines.append("Predicted standard deviations equal to the posterior's.")
            else:
                lines.append(
                    f"Predicted standard deviations {low:.4g} to {high:.4g} times the posterior's."
                )
        return [*lines, *self.notes, f"The prediction rests on {self.basis}."]

    def places(self, variables: Iterable[str]) -> np.ndarray:
        """Return the positions of these variables' coordinates among ``names``, in their order."""
        owners = np.array([name.partition("[")[0] for name in self.names], dtype=object)
        return np.concatenate([np.flatnonzero(owners == name) for name in variables])

    def __repr__(self) -> str:
        """Return the prediction in words."""
        return "\n".join(self.lines())

    def plain(self) -> dict[str, Any]:
        """Return plain values, as in JSON, for `read`."""
        arrays = {name: vars(self)[name] for name in ARRAYS}
        values = {name: None if a is None else a.tolist() for name, a in arrays.items()}
        others = {name: value for name, value in vars(self).items() if name not in ARRAYS}
        return json.loads(json.dumps(others | values))

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> BiasPrediction:
        """Restore it from the result of `plain`."""
        given = dict(values)
        for name in ARRAYS:
            given[name] = None if given[name] is None else np.array(given[name], float)
        if (modes := given.get("other_modes")) is not None:
            given["other_modes"] = tuple(tuple(mode) for mode in modes)
        return cls(**given | {name: tuple(given[name]) for name in ("notes", "names")})


def in_sd(shift: float) -> str:
    """Return a distance in words; below a thousandth of a standard deviation it is none."""
    return f"{shift:.2g} posterior sd" if shift >= 1e-3 else "0.001 posterior sd"

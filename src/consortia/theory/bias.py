"""The predicted bias of a method, with what it rests on, or why there is no prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consortia.core import parameters as naming
from consortia.core.contract import Method
from consortia.core.model import Model
from consortia.core.start import starting_parameters
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.errors import InputError
from consortia.theory.expansion import Array, expand
from consortia.theory.laws import EXACT, LAWS, Law


@dataclass(frozen=True, eq=False)
class Prediction:
    """How far the draws will be from the posterior, coordinate by coordinate.

    Attributes:
        reason: why there is no prediction, or None where there is one.
        basis: what the prediction rests on, in words.
        notes: what it leaves out, and what else it says.
        names: of the coordinates, "theta[3]", in the order of the flat position.
        mean: of the posterior's Gaussian law, (d,); the mode.
        sd: its standard deviations, (d,).
        shift: (predicted mean − mean) / sd, (d,).
        sd_ratio: predicted standard deviation / sd, (d,), or None where it is not predicted.
        gaussian: whether the posterior is Gaussian, so that ``mean`` and ``sd`` are its own.
    """

    reason: str | None = None
    basis: str = ""
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    mean: Array | None = None
    sd: Array | None = None
    shift: Array | None = None
    sd_ratio: Array | None = None
    gaussian: bool = False

    def lines(self, names: Sequence[str] | None = None) -> list[str]:
        """The prediction in words, with other names of the coordinates where they are given."""
        if self.reason is not None:
            return [f"No prediction: {self.reason}."]
        if self.shift is None:
            return [f"Predicted bias: none ({self.basis}).", *self.notes]
        worst = int(np.abs(self.shift).argmax())
        lines = [
            f"Predicted means within {abs(self.shift[worst]):.2g} posterior sd "
            f"(farthest: {(names or self.names)[worst]})."
        ]
        if self.sd_ratio is not None:
            lines.append(
                f"Predicted standard deviations {self.sd_ratio.min():.4g} to "
                f"{self.sd_ratio.max():.4g} times the posterior's."
            )
        return [*lines, *self.notes, f"It rests on {self.basis}."]


def predict_bias(model: Model, sites: Sites, algorithm: Method, *, init: Any = None) -> Prediction:
    """The bias that a method will have at its settings, without running it.

    Args:
        model: the model.
        sites: the data, read in one place.
        algorithm: what `consortia.fa_hmc` or another factory returns.
        init: where the search for the mode starts, instead of ``model.init``.

    Returns:
        The prediction. Where there is none (no oracle for the method or its settings, a posterior
        without a mode, a step that diverges) it says why under ``reason``.

    Example:
        >>> import consortia, jax.numpy as jnp
        >>> model = consortia.Model(
        ...     log_prior=lambda x: -0.5 * jnp.sum(x**2),
        ...     log_likelihood=lambda x, rows: -0.5 * (rows["y"] - x[0]) ** 2,
        ...     init=jnp.zeros(1))
        >>> sites = consortia.Sites.from_list([{"y": np.float32([1, 2])}, {"y": np.float32([5])}])
        >>> found = predict_bias(model, sites, consortia.fa_ld(step_size=0.5, local_steps=2))
        >>> found.gaussian, found.mean, found.sd_ratio.round(3)
        (True, array([2.]), array([1.155]))
    """
    if algorithm.name in EXACT:
        reason = EXACT[algorithm.name](algorithm)
        if reason is not None:
            return Prediction(basis=reason)
    if algorithm.name not in LAWS:
        return Prediction(reason=f"{algorithm.name} has no oracle")
    start = starting_parameters(model, init, 0, 1)[0]
    try:
        law: Law = LAWS[algorithm.name](algorithm, model, sites)
        gaussian = expand(model, sites, start)
        moments = law(gaussian)
    except InputError as error:
        return Prediction(reason=str(error).rstrip("."))
    sd = gaussian.sd
    own = "the Gaussian law of the posterior, which is exact here"
    near = (
        "the Gaussian law that the posterior has near its mode; how far the posterior is from that "
        "law is not in it"
    )
    return Prediction(
        basis=f"{moments.basis}, on {own if gaussian.gaussian else near}",
        notes=moments.notes,
        names=_names(model, start),
        mean=gaussian.mode,
        sd=sd,
        shift=moments.shift / sd,
        sd_ratio=None if moments.variance is None else np.sqrt(moments.variance) / sd,
        gaussian=gaussian.gaussian,
    )


def _names(model: Model, parameters: Any) -> tuple[str, ...]:
    """The coordinates as `consortia.summary` names them where a result has no labels."""
    names: list[str] = []
    for part in naming.variables(Target(model, parameters).structure):
        if not part.shape:
            names.append(part.name)
            continue
        places = np.ndindex(*part.shape)
        names += [f"{part.name}[{', '.join(map(str, place))}]" for place in places]
    return tuple(names)

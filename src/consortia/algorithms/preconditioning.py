r"""A method in coordinates in which the posterior is about as wide in every direction.

.. math::
    \theta = s \odot \phi, \qquad
    s_i = \bigl[\textstyle\sum_c H_c - \nabla^2\log p\bigr]_{ii}^{-1/2}

with :math:`H_c` the curvature of a site's −log-likelihood at the posterior's mode. The method
samples φ, and θ is recorded. One diagonal is shared by all sites, once, before the run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import field, make_dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core import arguments
from consortia.core.contract import (
    Adaptive,
    Algorithm,
    Evaluation,
    Method,
    Phase,
    Site,
    SurrogateBased,
)
from consortia.core.target import Target
from consortia.errors import InputError, wrong
from consortia.runtime.late import Array, PyTree, jnp

Flat = Float[Array, " d"]


class ScaledTarget(Target):
    """A target whose positions are φ = θ / s; its parameters are those of the model."""

    def __init__(self, target: Target, scales: tuple[float, ...]) -> None:
        vars(self).update(vars(target))
        self._scales = np.asarray(scales, target.dtype)

    def unravel(self, position: Array) -> PyTree:
        """Return the parameters at φ."""
        return super().unravel(position * jnp.asarray(self._scales))

    def ravel(self, parameters: PyTree) -> Array:
        """Return φ of parameters."""
        return super().ravel(parameters) / jnp.asarray(self._scales)

    def flat(self, parameters: PyTree) -> np.ndarray:
        """Return the same on the host."""
        return super().flat(parameters) / self._scales


class Preconditioned(Method):
    """A method in scaled coordinates; made by `preconditioned`."""

    plain: type[Method]  # the class of the method itself
    scales: tuple[float, ...] | None  # s; None until a run has found them

    def inner(self) -> Any:
        """Return the method itself, whose positions and step size are those of φ."""
        made: Any = object.__new__(self.plain)
        vars(made).update({name: value for name, value in vars(self).items() if name != "scales"})
        return made


@arguments.hinted
def preconditioned(method: Method, scales: Any = None) -> Any:
    r"""Return a method with a diagonal preconditioner from the curvatures of all sites.

    **Samples** what the method samples, in φ = θ / s, and records θ. Its bias has the law of the
    method on a posterior whose curvature has a diagonal of ones, and so has its step size the units
    of φ: with ``step_size=None`` it is chosen there. An ill-conditioned posterior then takes as
    many rounds as one whose parameters were scaled by hand.

    Args:
        method: an approximate method; positions, matrices and noise among its arguments are those
            of φ.
        scales: s, one positive number for each parameter in the order of the flat position; None
            has a run find them: each site evaluates gradient and Hessian of its log-likelihood at
            some ten points, as for the predicted bias, so that there must be a mode.

    Returns:
        A method of the same class with ``scales``, which its record keeps.

    Raises:
        InputError: the method learns a mass matrix itself, or a scale is not positive.

    Example:
        >>> import consortia
        >>> consortia.preconditioned(consortia.fa_ld(0.1, local_steps=2), [1.0, 25.0]).scales
        (1.0, 25.0)
    """
    if isinstance(method, Preconditioned):
        raise InputError("the method is preconditioned already.").at("method")
    if not isinstance(method, Method):
        raise InputError(
            f"preconditioned: expected a method such as consortia.fa_hmc(...), got {method!r}."
        ).at("method")
    learns = isinstance(method, Adaptive) and method.adapts
    if learns or not method.step_schedules:
        raise InputError(
            f"preconditioned: {method.name} has no step size that is given: it learns the scales "
            "itself, or needs none."
        ).at("method")
    made: Any = object.__new__(_scaled(type(method)))
    vars(made).update(vars(method))
    arguments.keep(made, scales=_read(scales))
    return made


def _read(scales: Any) -> tuple[float, ...] | None:
    if scales is None:
        return None
    values = np.asarray(scales, np.float64)
    if values.ndim != 1 or not (np.isfinite(values).all() and (values > 0).all()):
        raise wrong("scales", ": give one positive number for each parameter.")
    return tuple(values.tolist())


@functools.cache
def _scaled(kind: Any) -> Any:
    def finish(self: Any) -> None:
        kind.__post_init__(self)
        arguments.keep(self, scales=_read(self.scales))

    def build(self: Any, target: Target) -> Algorithm:
        if self.scales is None:
            raise InputError(f"{self.name}: a run finds the scales; here they must be given.")
        return in_scales(self.inner().build(ScaledTarget(target, self.scales)), self.scales)

    def check(self: Any, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        kind.check(self, sizes, names, dimension)
        if self.scales is not None and len(self.scales) != dimension:
            raise InputError(
                f"scales: {len(self.scales)} numbers for {dimension} parameters: give one each."
            ).at("scales")

    def explain_end(self: Any, target: Any, site: Site, name: str, position: Flat) -> str:
        scaled = ScaledTarget(target, self.scales)
        return str(kind.explain_end(self, scaled, site, name, position / np.asarray(self.scales)))

    members: dict[str, Any] = {"build": build, "check": check}
    if issubclass(kind, SurrogateBased):
        members["explain_end"] = explain_end
    members |= {"__post_init__": finish, "plain": kind, "__module__": kind.__module__}
    scales = ("scales", Any, field(default=None, kw_only=True))
    return make_dataclass(
        kind.__name__, [scales], bases=(Preconditioned, kind), frozen=True, namespace=members
    )


def in_scales(algorithm: Algorithm, scales: tuple[float, ...]) -> Algorithm:
    """Return an algorithm of φ that starts from θ and records θ."""

    def turned(phase: Phase) -> Phase:
        return phase._replace(evaluation=_evaluation(phase.evaluation, scales))

    draws, begin = algorithm.draws, algorithm.init
    return algorithm._replace(
        init=lambda position: begin(position / jnp.asarray(scales, position.dtype)),
        draws=draws._replace(hub=_times(draws.hub, scales), node=_times(draws.node, scales)),
        fit=tuple(map(turned, algorithm.fit)),
        setup=tuple(map(turned, algorithm.setup)),
        phases=tuple(map(turned, algorithm.phases)),
    )


def _times(
    draw: Callable[[PyTree, PyTree], Array] | None, scales: tuple[float, ...]
) -> Callable[[PyTree, PyTree], Array] | None:
    if draw is None:
        return None

    def scaled(state: PyTree, inbox: PyTree) -> Array:
        value = draw(state, inbox)
        factors = jnp.asarray(scales, value.dtype).reshape((1,) * (value.ndim - 1) + (-1,))
        return value * factors

    return scaled


def _evaluation(
    where: Callable[[PyTree], Evaluation] | None, scales: tuple[float, ...]
) -> Callable[[PyTree], Evaluation] | None:
    """Return the place where a site evaluates its rows, as positions θ, which it bounds."""
    if where is None:
        return None

    def scaled(inbox: PyTree) -> Evaluation:
        evaluation = where(inbox)
        return evaluation._replace(positions=evaluation.positions * np.asarray(scales, np.float32))

    return scaled

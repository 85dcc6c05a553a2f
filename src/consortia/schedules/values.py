"""Schedules as values, and the ways to make and to evaluate one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consortia.core import arguments
from consortia.errors import InputError, wrong
from consortia.runtime.late import Array, jax, jnp

Schedule = Callable[[Any], Array]


@dataclass(frozen=True)
class Constant(metaclass=arguments.Hinted):
    r"""The same step size at every iteration, also called `constant`.

    .. math:: h_t = h

    Not guaranteed: that the bias vanishes. Every uncorrected method keeps, at a constant step
    size, a bias of some power of it, which more iterations do not remove.

    Attributes:
        value: h > 0.

    Raises:
        InputError: the value is not positive and finite.

    Example:
        >>> constant(0.1)
        Constant(value=0.1)
        >>> float(constant(0.5)(7))
        0.5
    """

    value: float

    def __post_init__(self) -> None:
        arguments.keep(self, value=arguments.positive("step_size", self.value))

    def __call__(self, iteration: Any) -> Array:
        """Return the step size, of the shape of ``iteration``."""
        return jnp.full(_counts(iteration).shape, self.value, _float_type())


@dataclass(frozen=True)
class Polynomial(metaclass=arguments.Hinted):
    r"""A step size that falls with a power of the iteration, also called `polynomial`.

    .. math:: h_t = h_0 \left(\frac{b}{b + t}\right)^{p}, \qquad t = 0, 1, \dots

    With :math:`\tfrac12 < p \le 1` it satisfies :math:`\sum h_t = \infty` and
    :math:`\sum h_t^2 < \infty`, under which annealed stochastic gradient Langevin dynamics is
    asymptotically exact; ``satisfies_annealing_conditions`` says so. The conditions are
    about the step of the *diffusion*: where that is η²/2 (`fa_hmc`, `fa_ld`), ¼ < p ≤ ½ is needed.

    Not guaranteed: any accuracy after finitely many iterations; exactness of averages that weigh
    all iterations equally (weigh by the step size); the absence of a heterogeneity bias.

    Attributes:
        initial: :math:`h_0` > 0, the step size at iteration 0.
        offset: b > 0, about how many iterations pass before the step size starts to fall.
        power: p ≥ 0.

    Raises:
        InputError: a number is out of its range.

    Example:
        >>> polynomial(1.0, 10.0, 0.6).satisfies_annealing_conditions
        True
        >>> [round(float(polynomial(1.0, 10.0, 0.5)(t)), 3) for t in (0, 30)]
        [1.0, 0.5]

    Source: the conditions are those of El Mekkaoui, Mesquita, Blomstedt and Kaski, "Federated
    stochastic gradient Langevin dynamics", section 2, after Welling and Teh (2011).
    """

    initial: float
    offset: float
    power: float

    def __post_init__(self) -> None:
        arguments.keep(
            self,
            initial=arguments.positive("initial", self.initial),
            offset=arguments.positive("offset", self.offset),
            power=arguments.number("power", self.power, 0.0),
        )

    @property
    def sum_diverges(self) -> bool:
        """True if Σ h_t = ∞: the chain can reach everywhere."""
        return self.power <= 1.0

    @property
    def squares_summable(self) -> bool:
        """True if Σ h_t² < ∞: the noise of the gradients dies out."""
        return self.power > 0.5

    @property
    def satisfies_annealing_conditions(self) -> bool:
        """True if Σ h_t = ∞ and Σ h_t² < ∞, that is ½ < power ≤ 1."""
        return self.sum_diverges and self.squares_summable

    def __call__(self, iteration: Any) -> Array:
        """Return the step size, of the shape of ``iteration``."""
        t = _counts(iteration).astype(_float_type())
        return self.initial * (self.offset / (self.offset + t)) ** self.power


@dataclass(frozen=True)
class Stages(metaclass=arguments.Hinted):
    r"""Stages for FA-HMC, each twice as long, with a step size √2 times smaller; `fa_hmc_stages`.

    .. math:: t_s = 2^{s-1} t_1, \qquad \eta_s = \eta_1 / 2^{(s-1)/2}, \qquad s = 1, 2, \dots

    It removes the factor :math:`\log(d/\epsilon^2)` from the iterations that reach a distance
    :math:`\epsilon`, for strongly convex, smooth clients.

    Not guaranteed: anything when :math:`\eta_1` is not of the order that the proof asks for; the
    gain is a logarithm in an upper bound. The proof counts local iterations; a schedule counts
    synchronisations, so the first stage lasts :math:`t_1 / T` of them (`fa_hmc_first_stage`).

    Attributes:
        initial: :math:`\eta_1` > 0.
        first_stage: length of the first stage in synchronisations, 1 or more.

    Raises:
        InputError: a number is out of its range.

    Example:
        >>> print(evaluate(fa_hmc_stages(0.1, 2), range(8)).round(4))
        [0.1    0.1    0.0707 0.0707 0.0707 0.0707 0.05   0.05  ]

    Source: Liang et al., "Bayesian federated learning with Hamiltonian Monte Carlo" (2024),
    proposition 4.5 and its general form J.1 (the stages printed there are its case a = 4).
    """

    initial: float
    first_stage: int

    def __post_init__(self) -> None:
        arguments.keep(
            self,
            initial=arguments.positive("initial", self.initial),
            first_stage=arguments.whole("first_stage", self.first_stage, 1),
        )

    def __call__(self, iteration: Any) -> Array:
        """Return the step size, of the shape of ``iteration``."""
        # Stage s starts at first_stage * (2^(s-1) - 1), so s - 1 is the position of the highest
        # bit of t // first_stage + 1; a floating logarithm would be wrong at the boundaries.
        # An iteration beyond 2^31 - 2 cannot be counted here.
        stages = _counts(iteration).astype(jnp.int32) // jnp.int32(self.first_stage)
        earlier = jnp.int32(31) - jax.lax.clz(stages + jnp.int32(1))
        return self.initial * jnp.exp2(-0.5 * earlier.astype(_float_type()))


@dataclass(frozen=True)
class Tabulated:
    """One step size for each iteration; beyond its ``length`` it is NaN, never a repeated value.

    Attributes:
        values: (n,), positive and finite.

    Raises:
        InputError: there are no values, or one is not positive and finite.

    Example:
        >>> float(Tabulated((0.5, 0.25))(1))
        0.25
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        array = _table(self.values, "step_size")
        arguments.keep(self, values=tuple(array.tolist()))

    @property
    def length(self) -> int:
        """Number of iterations that have a value."""
        return len(self.values)

    def __call__(self, iteration: Any) -> Array:
        """Return the step size, of the shape of ``iteration``."""
        table = jnp.asarray(self.values, _float_type())
        return table.at[_counts(iteration)].get(mode="fill", fill_value=jnp.nan)


constant, polynomial, fa_hmc_stages = Constant, Polynomial, Stages


@dataclass(frozen=True)
class Unchosen:
    """A step size that is chosen before a run, by the bias that it will have.

    Raises:
        InputError: it is called.

    Example:
        >>> Unchosen() == as_schedule(None)
        True
    """

    def __call__(self, iteration: Array) -> Array:
        """Refuse: there is no step size yet."""
        raise wrong("step_size", " is None: `consortia.sample` chooses it; here it must be given.")


def as_schedule(
    value: float | Sequence[float] | np.ndarray | Array | Schedule | None,
    name: str = "step_size",
) -> Schedule:
    """Return a schedule from a number, from one value for each iteration, or from a function.

    Args:
        value: a positive number (becomes `Constant`), a one-dimensional array or sequence of
            positive numbers (becomes `Tabulated`, whose ``length`` the caller compares with the
            number of iterations), or a function of the iteration, which is returned as it is. A
            function runs inside a compiled loop: it must be written in ``jax.numpy``. None is a
            step size that `consortia.sample` chooses, see `consortia.theory.tuning`.
        name: the argument's name in messages.

    Returns:
        A function of the iteration, which gives the step size.

    Raises:
        InputError: a number is not positive and finite, or ``value`` is none of the three.

    Example:
        >>> as_schedule(0.1)
        Constant(value=0.1)
        >>> as_schedule([0.2, 0.1]).length
        2
    """
    if value is None:
        return Unchosen()
    if callable(value):
        return value
    array = _array(value, name)
    if array.ndim == 0:
        return Constant(arguments.positive(name, array.item()))
    return Tabulated(tuple(_table(array, name).tolist()))


BLOCK = 1024
"""Iterations that are evaluated at once on the host."""


def evaluate(schedule: Schedule, iterations: Iterable[int], name: str = "step_size") -> np.ndarray:
    """Return the step sizes at these iterations, on the host.

    Args:
        schedule: any function of the iteration, see `as_schedule`.
        iterations: iterations, counted from 0; also a ``range`` or an array.
        name: the argument's name in messages.

    Returns:
        Step sizes in JAX's default float type, ``(len(iterations),)``.

    Raises:
        InputError: the schedule cannot be traced, does not return one number for each iteration,
            or returns one that is not positive and finite.

    Example:
        >>> evaluate(polynomial(1.0, 1.0, 1.0), range(3)).round(3)
        array([1.   , 0.5  , 0.333], dtype=float32)
    """
    wanted = np.asarray(list(iterations), dtype=np.int32)
    if isinstance(schedule, Constant):
        result = np.full(len(wanted), schedule.value, _float_type())
    else:
        result = _evaluated(schedule, wanted, name)
    if result.shape != wanted.shape or not np.issubdtype(result.dtype, np.floating):
        raise InputError(
            f"{name}: the function returned {result.dtype} values of shape {result.shape[1:]} for "
            "one iteration; return one floating number"
        ).at(name)
    return _checked(result, wanted, name)


def _evaluated(schedule: Schedule, wanted: np.ndarray, name: str) -> np.ndarray:
    # In blocks of one shape, so that a run of another length compiles nothing.
    blocks = np.pad(wanted, (0, -len(wanted) % BLOCK), mode="edge" if len(wanted) else "constant")
    try:
        made = [jax.vmap(schedule)(block) for block in blocks.reshape(-1, BLOCK)]
    except jax.errors.ConcretizationTypeError as error:
        raise InputError(
            f"{name}: the function needs the value of the iteration while it is compiled; "
            "choose with jnp.where instead of if, or give an array"
        ).at(name) from error
    return np.concatenate([np.asarray(block) for block in made])[: len(wanted)]


def varying(schedule: Schedule, iterations: Iterable[int]) -> np.ndarray | None:
    """Return the step sizes at these iterations, as `evaluate` does; None for a constant one.

    Args:
        schedule: any function of the iteration, see `as_schedule`.
        iterations: iterations, counted from 0.

    Returns:
        Step sizes, ``(len(iterations),)``, or None.

    Raises:
        InputError: as `evaluate`.

    Example:
        >>> varying(constant(0.1), range(3)) is None
        True
    """
    return None if isinstance(schedule, Constant) else evaluate(schedule, iterations)


# --- arguments -----------------------------------------------------------------------------------


def _array(value: Any, name: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of unlike length
        raise wrong(name, f": got {value!r}; give numbers") from error
    # NumPy would convert complex numbers, bools and strings, none of which is a step size.
    if not (np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)):
        raise InputError(
            f"{name}: got {value!r}; give a number, an array with a value for each iteration, or "
            "a function of the iteration"
        ).at(name)
    return array.astype(np.float64)


def _table(values: Any, name: str) -> np.ndarray:
    array = _array(values, name)
    if array.ndim != 1 or not array.size:
        raise wrong(name, f": shape {array.shape}; give one value for each iteration, (n,)")
    return _checked(array, range(array.size), name)


def _checked(values: np.ndarray, iterations: Sequence[int] | np.ndarray, name: str) -> np.ndarray:
    """Return step sizes at these iterations, all of them positive and finite."""
    wrong = ~(np.isfinite(values) & (values > 0.0))
    if np.any(wrong):
        first = int(np.argmax(wrong))
        raise InputError(
            f"{name}: {values[first]} at iteration {iterations[first]}; step sizes must be "
            "positive and finite at every iteration"
        ).at(name)
    return values


def _counts(iteration: Any) -> Array:
    counts = jnp.asarray(iteration)
    if not jnp.issubdtype(counts.dtype, jnp.integer):
        raise wrong("iteration", f": got {counts.dtype}; a schedule is called with integers")
    return counts


def _float_type() -> Any:
    return jnp.result_type(float)

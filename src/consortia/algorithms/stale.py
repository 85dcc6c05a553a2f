r"""Asynchronous samplers with stale gradients: a parameter server and its workers.

A worker computes a gradient at the parameters that it last fetched and sends it; the server does
one step with it and answers only that worker. By the time a gradient arrives the server has done
τ other updates:

.. math:: \theta_{l+1} = \text{step}\bigl(\theta_l, \; g(\hat\theta_{l-\tau_l})\bigr)

where θ̂ is what the server broadcast then. With W workers τ is W − 1 on average, whatever their
speeds.

With several local steps a worker moves by itself before it sends. With θ̂ = y it fetches G, the sum
of the sites' last gradients, and takes T steps in which it evaluates its own gradient anew,

.. math:: z_{k+1} = z_k - h\bigl[G - \nabla U_c(y) + \nabla U_c(z_k)\bigr] + \sqrt{2h}\,\zeta_k

It sends the mean g_c of its T gradients and the sum of its noise, with which the server does one
step of size hT,

.. math:: \theta_{l+1} = \theta_l - hT \sum_c g_c + \sqrt{2h} \sum_k \zeta_k

With T = 1 that is the single step above. Without noise its only fixed point is the mode of the sum,
however different the sites are.

A worker's own random numbers are counted by its task, the shared ones by the server's update; a
worker does not know at which update its gradient will arrive, and so reads nothing that is shared.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from consortia import gradients, schedules
from consortia.core import arguments
from consortia.core.contract import (
    FRICTIONS,
    Algorithm,
    Claims,
    Cost,
    Draws,
    Evaluation,
    Info,
    Mailbox,
    Phase,
    SelfSetting,
    ServerBased,
    Site,
    no_numbers,
)
from consortia.core.random import RandomStreams
from consortia.core.target import Target, in_jax_width
from consortia.dynamics.stochastic_steps import (
    Dynamics,
    EulerHMC,
    Langevin,
    SplittingHMC,
    State,
    Thermostat,
)
from consortia.errors import InputError, wrong
from consortia.latency import lognormal
from consortia.runtime.late import Array, PyTree, jax, jnp
from consortia.schedules import Schedule

Vector = Float[Array, " d"]
Scalar = Float[Array, ""]
Count = Int[Array, ""]

SOURCE = "Chen, Ding, Li, Zhang, Carin (2016)"

CAP = 1.5
"""Caps on staleness that are tried: none, its mean W - 1, and this many times that. With log-normal
durations the mean drops a fifth of the gradients; a run that drops half of them is refused."""

# --- what the samplers have in common ------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The arguments that all samplers have; `StaleSGLD` describes them."""

    workers: int | Any = None
    staleness: int | None = None
    servers: int = 1
    max_staleness: int | None = None
    latency: Any = None
    temperature: float = 1.0
    replace: bool = True
    shares: Any = None
    aggregate: str | None = None
    weighting: str = "time"


class StaleGradients(Workers, SelfSetting, ServerBased):
    """The base of the samplers: their checks, and a phase of a gradient and a step."""

    step_size: Any
    batch_size: int | None

    @property
    def lightly_compiled(self) -> bool:
        """True of minibatches."""
        return self.batch_size is not None

    def __post_init__(self) -> None:
        if self.aggregate is not None:
            arguments.one_of("aggregate", self.aggregate, ("each", "latest"))
        arguments.one_of("weighting", self.weighting, ("time", "equal"))
        if self.latency is not None and not hasattr(self.latency, "durations"):
            raise wrong("latency", f" is {self.latency!r}: give a model of consortia.latency.")
        try:
            hash(self.latency)
        except TypeError as error:
            text = (
                ": programs are kept by it: write @dataclass(frozen=True), with tuples for lists."
            )
            raise wrong("latency", f" has no hash ({error}){text}") from None
        workers, late = self.workers, arguments.optional_whole("staleness", self.staleness, 0)
        if workers is None:
            if late is None:
                raise InputError(f"{self.name}: give workers=W, or staleness=W-1.").at("workers")
            workers = late + 1
        elif late is not None and workers != late + 1:
            raise InputError(
                f"workers={workers} and staleness={late}: W workers have the staleness W - 1; give "
                "one of them."
            ).at("workers")
        servers = arguments.whole("servers", self.servers, 1)
        steps = _each_server(self.step_size, servers)
        if self.weighting == "equal" and len(steps) > 1 and not _constant(steps):
            raise InputError(
                "weighting='equal' needs step sizes that are constant at each server: within a "
                "server draws are weighted by the step, and its sum over the run is not known "
                "beforehand."
            ).at("weighting")
        arguments.keep(
            self,
            step_size=steps if len(steps) > 1 else steps[0],
            batch_size=arguments.optional_whole("batch_size", self.batch_size, 1),
            workers=arguments.whole("workers", workers, 1),
            staleness=None,
            servers=servers,
            max_staleness=arguments.optional_whole("max_staleness", self.max_staleness, 0),
            latency=lognormal() if self.latency is None else self.latency,
            temperature=arguments.number("temperature", self.temperature, 0.0, math.inf),
            replace=arguments.flag("replace", self.replace),
            shares=arguments.site_weights(self.shares, "shares"),
        )
        if self.aggregate is None and not self._steps_open:
            arguments.keep(self, aggregate="latest")

    @property
    def _steps_open(self) -> bool:
        return any(isinstance(step, schedules.Unchosen) for step in self.step_schedules)

    @property
    def open_settings(self) -> Mapping[str, tuple[Any, ...]]:
        """The cap on staleness and what is summed, where these and the step are not given."""
        if not self._steps_open or self.workers == 1 or self.steps_a_task > 1:
            return {}
        values: dict[str, tuple[Any, ...]] = {}
        if self.max_staleness is None:
            late = self.workers - 1
            values["max_staleness"] = tuple(dict.fromkeys((None, math.ceil(CAP * late), late)))
        if self.aggregate is None:
            values["aggregate"] = ("latest", "each")
        return values

    @property
    @abstractmethod
    def dynamics(self) -> Dynamics:
        """The server's step with a gradient."""

    @property
    def noise_strength(self) -> float:
        """2BT, the variance of the injected noise over h; B = 1 without a momentum."""
        return 2 * self.temperature

    @property
    def steps_ahead(self) -> float:
        """The steps by which the broadcast point is moved on along the momentum."""
        return 0.0

    @property
    def steps_a_task(self) -> int:
        """T, the steps that a worker takes between two messages."""
        return 1

    @property
    def latest_only(self) -> bool:
        """True if the server keeps the last gradient of every site and sums them.

        Workers of one site all send its number, so that the sum is the gradient that came.
        """
        return self.aggregate != "each" and self.workers > 1

    @property
    def servers_alike(self) -> bool:
        """True if all servers have one step size; else R-hat, which compares them, has no use."""
        return len(self.step_schedules) == 1

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse a number of sites that is neither 1 nor the workers', and what does not fit."""
        sites = len(names)
        if sites not in (1, self.workers):
            raise InputError(
                f"there are {sites} sites and workers={self.workers}: give one site, from which "
                f"all workers of a server draw, or workers={sites}, so that each holds its own."
            ).at("workers")
        arguments.weights_fit(self.shares, names, "shares")
        if not self.replace:
            arguments.batch_fits(self.batch_size, sizes, names)
        self.latency.check(self.workers)

    def site_weights(self, sizes: np.ndarray) -> np.ndarray:
        """Return f_c as declared; an equal share until the trace of events gives it."""
        if self.shares is not None:
            return np.asarray(self.shares, np.float64)
        return np.full(len(sizes), 1.0 / len(sizes))

    def prior_shares(self, sizes: np.ndarray) -> np.ndarray:
        """Return λ_c = n_c/n."""
        return sizes / sizes.sum()

    def cost(self, sizes: np.ndarray, dimension: int) -> Cost:
        """Return the gradients of an accepted update; what dropped ones cost is in the trace."""
        rows, steps = self.batch_size, self.steps_a_task
        rows = round(float(np.mean(sizes))) if rows is None else rows
        return Cost(steps, steps * rows, vectors=1 + (steps > 1))

    def step_weights(self, iterations: np.ndarray) -> np.ndarray | None:
        """Return h of each update, of each server if they differ; None where all are equal.

        The average of all draws with these weights is that of the servers' estimates by time,
        Σ_s (T_s/T) φ̂_s with T_s = Σ_l h_l. Weights by time are close to those of least variance,
        but favour the server with the largest step and so the largest bias.
        """
        steps = self.step_schedules
        if _constant(steps) and (self.servers_alike or self.weighting == "equal"):
            return None
        weights = [schedules.evaluate(schedule, iterations) for schedule in steps]
        return weights[0] if self.servers_alike else np.stack(weights)

    def measure(
        self,
        gradients: Callable[[PyTree], PyTree],
        shares: np.ndarray | None,
        positions: Callable[[], np.ndarray],
        iteration: int,
    ) -> dict[str, Any]:
        r"""Return by how much unlike sites are predicted to widen each server's law.

        .. math:: \frac{h^2 V}{2 h B T}, \qquad
                  V = \operatorname{diag} \operatorname{Cov}_f(\nabla U_c / f_c)

        the variance that they add to a step over the injected one (B = 1 without a momentum), at
        the average of a server's chains: its largest value over the coordinates and their mean,
        (servers,) each. To leading order the variance of θ grows by this part of itself, if the
        order of the sites is random; workers that take turns add less. A thermostat takes it up.
        """
        if shares is None or self.latest_only or self.noise_strength == 0:
            return {}
        places = np.asarray(positions(), np.float64)
        if not np.all(np.isfinite(places)):
            return {}
        steps = [schedules.evaluate(schedule, [iteration])[0] for schedule in self.step_schedules]
        each = self.steps_a_task * np.broadcast_to(np.asarray(steps, np.float64), self.servers)
        chains = places.reshape(self.servers, -1, places.shape[-1])
        values = []
        for f, server_chains, over in zip(shares, chains, each / self.noise_strength, strict=True):
            g = np.asarray(gradients(in_jax_width(server_chains.mean(axis=0))), np.float64)
            between = (g**2 / f[:, None]).sum(axis=0) - g.sum(axis=0) ** 2
            values.append(over * np.maximum(between, 0))
        return {
            "site_noise_inflation": [float(value.max()) for value in values],
            "site_noise_inflation_mean": [float(value.mean()) for value in values],
        }

    def parameters(self) -> dict[str, Any]:
        """Return the parameters as plain values; the staleness is in the workers."""
        return {name: value for name, value in super().parameters().items() if name != "staleness"}

    def build(self, target: Target) -> Algorithm:
        """Return one phase: a gradient at a worker, `Mailbox`, a step at the server."""
        who = self.workers, self.servers, self.max_staleness, self.latency, self.shares
        phase = Phase(
            partial(_gradient, self, target),
            Mailbox(*who, by_share=not self.latest_only),
            hub=partial(_update, self),
            noise=partial(_rows, self, target),
            shared=partial(_step_and_noise, self, target),
        )
        draws = Draws(hub=lambda server, inbox: server.chain.position)
        return Algorithm(partial(_start, self), (phase,), draws)


# --- the samplers --------------------------------------------------------------------------------


@dataclass(frozen=True)
class StaleSGLD(StaleGradients):
    r"""Stochastic gradient Langevin dynamics with stale gradients (S²G-SGLD).

    .. math:: \theta_{l+1} = \theta_l - h g(\theta_{l-\tau_l}) + \sqrt{2hT}\,\zeta

    **Samples** a law near exp(−U/T) that is too wide: on a Gaussian target of precision λ the
    variance is too large by the factor 1 + hλ(τ + ½) to leading order in hλ, and minibatches add to
    it. `consortia.oracles.stale_sgld_law` gives it exactly; beyond hλ = 2 sin(π/(4τ + 2)) the chain
    diverges. More workers give more updates in the same time, and so less variance of an estimate,
    but its bias grows in proportion to W − 1.

    With ``adaptation`` = α it is preconditioned (pSGLD): h becomes hG in drift and noise, with

    .. math::
        G_i = \frac{1}{\text{floor} + \sqrt{v_i}}, \qquad
        v = \frac{\sum_k \alpha^k g_{l-k}^2}{\sum_k \alpha^k}

    and the law for α = 1 is `consortia.oracles.psgld_law`. With α < 1 the preconditioner depends on
    θ, and the correction term for that is left out, as in its paper's experiments: as h falls the
    draws tend to a law with up to twice the posterior's variance,
    `consortia.oracles.psgld_short_memory_variance`.

    With ``local_steps`` = T a worker takes T steps before it sends: one message instead of T. The
    law is about as wide as that of single steps of size hT with T times the batch: where
    minibatches limit the step, a draw takes a T-th of the messages; where staleness does, it takes
    as many. Workers with their own sites do not bias the mean, since every step uses the last
    gradients of all other sites; ``aggregate="each"`` leaves these out, and the mean is then far
    off.

    **Draw**: θ after each accepted update. Each server is a chain of its own.

    **Step size**: h, drift h, noise variance 2h: h' = h.

    Args:
        step_size: h > 0: a number, an array over updates (warm-up included) or a function of the
            update's index; with several servers also a list or tuple of one of these for each.
            None: chosen by the exact law, see `consortia.theory.settings`.
        batch_size: rows a gradient; None takes all rows that the worker sees.
        workers: W, workers per server. With one site all of them draw from it; with W sites worker
            c holds site c and sends ∇U_c/f_c, f_c being its share of the accepted updates.
        staleness: τ = W − 1, to give instead of ``workers``: the updates by which a gradient is
            late, exactly if workers take turns and else on average.
        servers: S independent servers with W workers each.
        max_staleness: gradients with a larger τ are dropped: the server's state and count stay and
            the worker fetches the state again. A slow site then takes part less often, or not at
            all, in which case the run is refused. None keeps every gradient; with
            ``step_size=None`` it is chosen by the law of the latencies (give a large number to keep
            all).
        latency: durations of tasks in simulated time, or a recorded trace, see
            `consortia.latency`; log-normal when None.
        temperature: T ≥ 0, factor of the noise's variance.
        replace: minibatches with replacement; without costs more and bounds their size.
        shares: f_c, positive and summing to one, where ``aggregate="each"`` divides by them and
            workers are real processes; when None they are counted in the simulated trace, after the
            warm-up.
        aggregate: where workers hold their own sites, ``"latest"``: the sum of the last gradient of
            every site (zero before the first), which needs no shares. ``"each"``: every gradient by
            itself, divided by f_c; the mean is then biased, since a worker fetches right after its
            own update, when the parameters are displaced towards its own site. With one site
            neither is needed. None: ``"latest"``, or with ``step_size=None`` the cheaper by the
            law.
        weighting: of the servers' estimates, ``"time"`` (Σh) or ``"equal"``.
        local_steps: T ≥ 1, steps that a worker takes between two messages; the latencies are then
            those of T gradients. Above 1 with one constant step size, without ``adaptation``.
        adaptation: α of the preconditioner, in (0, 1]: 1 weighs all gradients since the start
            equally, the warm-up's included; None: no preconditioner.
        floor: smallest denominator of the preconditioner, in the units of ∇U; above 0.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> StaleSGLD(0.01, workers=4).workers
        4

    Source: Chen, Ding, Li, Zhang, Carin, "Stochastic gradient MCMC with stale gradients" (2016),
    sections 3 and 4; sites with data of their own and local steps are additions. The
    preconditioner: Li, Chen, Carlson, Carin (2016), whose step is 2h/n and whose λ is floor/n, of
    n rows.
    """

    step_size: Any = None
    batch_size: int | None = None
    _: KW_ONLY
    local_steps: int = 1
    adaptation: float | None = None
    floor: float = 1e-3

    name = "stale_sgld"
    claims = Claims(
        samples="a law near the posterior, too wide by stale gradients",
        bias="variance O(h lambda (tau + 1/2)), tau = W - 1 on average, and that of minibatches",
        draw="the server's position after each accepted update",
        step_size="h: drift h, noise variance 2h, h' = h",
        source=f"{SOURCE}, sections 3 and 4",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        alpha = self.adaptation
        if alpha is not None:
            alpha = arguments.number("adaptation", alpha, 0.0, 1.0)
            if alpha == 0:
                raise wrong("adaptation", " is 0: give a number above 0 and up to 1, or None.")
            if self._steps_open:
                raise InputError(
                    "step_size is None, and with adaptation none is chosen: give a number; h G is "
                    "the step, with G about 1 / (the root mean square of a gradient)."
                ).at("step_size")
        floor = arguments.positive("floor", self.floor)
        steps = arguments.whole("local_steps", self.local_steps, 1)
        constant = isinstance(self.step_size, schedules.Constant | schedules.Unchosen)
        if steps > 1 and (alpha is not None or not constant):
            raise InputError(
                f"local_steps={steps} needs one constant step_size for all servers, and no "
                f"adaptation: got step_size={self.step_size!r} and adaptation={alpha}."
            ).at("local_steps")
        arguments.keep(self, adaptation=alpha, floor=floor, local_steps=steps)

    def build(self, target: Target) -> Algorithm:
        """Return the phase, with T steps at the worker where there are several."""
        algorithm = super().build(target)
        if self.local_steps == 1:
            return algorithm
        phase = algorithm.phases[0]._replace(
            local=partial(_task, self, target),
            hub=partial(_add, self),
            noise=partial(_rows_and_noise, self, target),
            shared=no_numbers,
            evaluation=lambda inbox: Evaluation(inbox.position),
        )
        return algorithm._replace(init=partial(_start_tasks, self), phases=(phase,))

    @property
    def steps_a_task(self) -> int:
        """T, the steps that a worker takes between two messages."""
        return self.local_steps

    @property
    def dynamics(self) -> Langevin:
        """A step of Langevin dynamics."""
        return Langevin(self.temperature, self.adaptation, self.floor)

    @property
    def title(self) -> str:
        """The name with the variant."""
        plain = super().title
        return plain if self.adaptation is None else f"{plain} (preconditioned, as pSGLD)"

    def measure(
        self,
        gradients: Callable[[PyTree], PyTree],
        shares: np.ndarray | None,
        positions: Callable[[], np.ndarray],
        iteration: int,
    ) -> dict[str, Any]:
        """Measure the sites' differences in a step; nothing where the step adapts to them."""
        if self.adaptation is not None:
            return {}
        return super().measure(gradients, shares, positions, iteration)


@dataclass(frozen=True)
class StaleMomentum(StaleGradients):
    """The arguments of the samplers whose server has a momentum; `StaleSGHMC` describes them."""

    step_size: Any = None
    friction: float | None = None
    batch_size: int | None = None
    extrapolate: bool | float = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        ahead = self.extrapolate
        if isinstance(ahead, bool):
            ahead = float(self.workers - 1) if ahead else 0.0
        arguments.keep(
            self,
            friction=None
            if self.friction is None
            else arguments.positive("friction", self.friction),
            extrapolate=arguments.number("extrapolate", ahead, 0.0, math.inf),
        )

    @property
    def open_settings(self) -> Mapping[str, tuple[Any, ...]]:
        """The friction, where it is not given, with those of all samplers."""
        friction = {"friction": FRICTIONS} if self.friction is None else {}
        return friction | dict(super().open_settings)

    @property
    def noise_strength(self) -> float:
        """2BT, the variance of the injected noise over h."""
        return 2 * float(self.given("friction")) * self.temperature

    @property
    def steps_ahead(self) -> float:
        """The steps by which the broadcast point is moved on along the momentum."""
        return float(self.extrapolate)


@dataclass(frozen=True)
class StaleSGHMC(StaleMomentum):
    r"""Stochastic gradient Hamiltonian Monte Carlo with stale gradients (S²G-SGHMC).

    .. math:: q' = (1 - Bh)\,q - h g + \sqrt{2BhT}\,\zeta, \qquad \theta' = \theta + h q'

    or its symmetric splitting, in which the server broadcasts θ + hq/2, the point at which the next
    step wants its gradient.

    **Samples** a law near exp(−U/T). With exact and fresh gradients the variance on a Gaussian
    target is off by O(h²), about six times less with the splitting; stale gradients add a relative
    error of λτh/B, minibatches of variance V one of hV/(2B). ``extrapolate`` removes most of the
    former on Gaussian targets (on stiff, non-convex ones it may do harm), ``subtract_noise`` the
    latter. `consortia.oracles.stale_sghmc_law` gives the law exactly.

    **Draw**: θ after each accepted update (after its last half drift), not what was broadcast.

    **Step size**: h, a step in time: noise of q 2Bh, and θ moves by h q'.

    Args:
        step_size: h > 0, as in `stale_sgld`.
        friction: B > 0 per unit of time; Euler's step needs Bh ≤ 1. The momentum factor of
            optimisers is 1 − Bh. None: chosen by the exact law.
        batch_size: as in `stale_sgld`.
        workers: as in `stale_sgld`.
        staleness: as in `stale_sgld`.
        integrator: ``"euler"`` or ``"splitting"``.
        extrapolate: broadcast the point moved on by (W − 1) h q, where the server will be when the
            gradient arrives; a number moves it by so many steps instead of W − 1.
        subtract_noise: V, the variance per coordinate of the gradient's noise (of ∇U in full
            scale), a number or an array (d,): 2BhT − h²V is injected instead of 2BhT.
        temperature: T, as in `stale_sgld`.

    The other arguments are those of `stale_sgld`.

    Raises:
        InputError: an argument is out of its range, or hV > 2BT.

    Example:
        >>> StaleSGHMC(0.05, 2.0, workers=4, extrapolate=True).friction
        2.0

    Source: Chen et al. (2016), algorithm 1; the splitting of Chen, Ding, Carin (2015).
    """

    _: KW_ONLY
    integrator: str = "euler"
    subtract_noise: Any = False

    name = "stale_sghmc"
    claims = Claims(
        samples="a law near the posterior, too wide by stale gradients",
        bias="variance O(h^2) with fresh exact gradients, lambda tau h / B with stale ones "
        "(extrapolate=True removes most of it), h V / (2 B) with noise V (subtract_noise=V)",
        draw="the server's position after each accepted update",
        step_size="h: a step in time, position moves h q; h' = h^2 where friction = 1/h",
        source=f"{SOURCE}, algorithm 1; the splitting of Chen, Ding, Carin (2015)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.one_of("integrator", self.integrator, ("euler", "splitting"))
        arguments.keep(self, subtract_noise=_noise_variance(self.subtract_noise))
        variance = np.max(self.subtract_noise)
        if self.friction is None:
            return
        for schedule in self.step_schedules:
            step = _largest(schedule)
            if self.integrator == "euler" and step * self.friction > 1:
                raise InputError(
                    f"friction * step_size is {step * self.friction:g}: it must be at most 1 with "
                    "integrator='euler', or momenta change their sign in every step."
                ).at("friction")
            if step * variance > self.noise_strength:
                raise InputError(
                    f"subtract_noise: step_size * V is {step * variance:.4g}, more than "
                    f"2 * friction * temperature = {self.noise_strength:.4g}: the gradient's own "
                    "noise is already too much; lower step_size, or raise friction or batch_size."
                ).at("subtract_noise")

    @property
    def dynamics(self) -> EulerHMC | SplittingHMC:
        """A step of underdamped Langevin dynamics."""
        step = EulerHMC if self.integrator == "euler" else SplittingHMC
        return step(self.given("friction"), self.temperature, self.subtract_noise)

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse noise variances for another number of parameters too."""
        super().check(sizes, names, dimension)
        variance = self.subtract_noise
        if isinstance(variance, tuple) and len(variance) != dimension:
            raise InputError(
                f"subtract_noise has {len(variance)} values, the model {dimension} parameters."
            ).at("subtract_noise")


@dataclass(frozen=True)
class StaleSGNHT(StaleMomentum):
    r"""The stochastic gradient Nosé–Hoover thermostat with stale gradients (S²G-SGNHT).

    The friction ξ of `stale_sghmc` becomes a variable that rises while the momenta are too large,
    :math:`\dot\xi = q\cdot q/d - T`, and so takes up noise of unknown variance; element-wise,
    :math:`\dot\xi_i = q_i^2 - T`, it also takes up most of what staleness adds to each coordinate.

    **Samples** a law near exp(−U/T) whose momentum has the right temperature; what is left of the
    bias has no closed form.

    **Draw**: θ after each accepted update. **Step size**: h, as in `stale_sghmc`; the splitting is
    symmetric and the server broadcasts θ + hq/2.

    Args:
        step_size: h > 0, as in `stale_sgld`.
        friction: D > 0, the strength of the injected noise and the start of ξ.
        batch_size: as in `stale_sgld`.
        workers: as in `stale_sgld`.
        staleness: as in `stale_sgld`.
        thermostat: ``"scalar"`` or ``"elementwise"``.
        extrapolate: as in `stale_sghmc`.
        temperature: as in `stale_sgld`.

    The other arguments are those of `stale_sgld`.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> StaleSGNHT(0.05, 2.0, workers=4).thermostat
        'scalar'

    Source: Ding et al. (2014) with stale gradients as in Chen et al. (2016).
    """

    _: KW_ONLY
    thermostat: str = "scalar"

    name = "stale_sgnht"
    claims = Claims(
        samples="a law near the posterior with the right temperature of the momenta",
        bias="no closed form; the thermostat takes up most of what noise and, with "
        "thermostat='elementwise', staleness add",
        draw="the server's position after each accepted update",
        step_size="h: a step in time, position moves h q; h' = h^2 where friction = 1/h",
        source=f"Ding et al. (2014), with stale gradients as in {SOURCE}",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.one_of("thermostat", self.thermostat, ("scalar", "elementwise"))

    @property
    def dynamics(self) -> Thermostat:
        """A step of the thermostat."""
        return Thermostat(
            self.given("friction"), self.thermostat == "elementwise", self.temperature
        )


stale_sgld, stale_sghmc, stale_sgnht = StaleSGLD, StaleSGHMC, StaleSGNHT

# --- one update ----------------------------------------------------------------------------------


class Server(NamedTuple):
    """A chain, and the last gradient of every site where their sum is taken, else ()."""

    chain: State
    latest: Float[Array, "workers d"] | tuple[()]


class UpdateRandomness(NamedTuple):
    """The random numbers of one update of the server, and the step sizes."""

    step_size: Scalar
    next_step_size: Scalar
    normal: Vector


def _start(method: StaleGradients, position: Vector) -> tuple[tuple[()], Server, Vector]:
    """Return the server's state, and the start as the parameters that all workers hold.

    A chain starts at rest, so that every point that may be broadcast is the start itself.
    """
    latest: Any = ()
    if method.latest_only:
        latest = jnp.zeros((method.workers, position.size), position.dtype)
    return (), Server(method.dynamics.start(position), latest), position


def _step_and_noise(method: StaleGradients, target: Target, rng: RandomStreams) -> UpdateRandomness:
    """Return h of this update and of the next one, and ζ."""
    now, after = (_step_size(method, target, rng, rng.iteration + ahead) for ahead in (0, 1))
    # A table has nothing for the step after the last one, which nobody will take.
    after = jnp.where(jnp.isfinite(after), after, now)
    return UpdateRandomness(now, after, rng.normal("noise", (target.dimension,)))


def _step_size(method: StaleGradients, target: Target, rng: RandomStreams, update: Count) -> Scalar:
    values = [jnp.asarray(schedule(update), target.dtype) for schedule in method.step_schedules]
    return values[0] if len(values) == 1 else jnp.stack(values)[rng.server]


def _rows(method: StaleGradients, target: Target, rng: RandomStreams) -> PyTree:
    """Return the random numbers of the gradient of a worker's task."""
    return gradients.estimate(target, method.batch_size, replace=method.replace).numbers(
        rng, "gradient", (1,)
    )


def _gradient(
    method: StaleGradients,
    target: Target,
    noise: PyTree,
    shared: tuple[()],
    state: tuple[()],
    inbox: Vector,
    site: Site,
) -> tuple[tuple[()], PyTree, Info]:
    """Send ∇U_c/f_c at the fetched point; (∇U_c, c) where the server keeps the latest."""
    oracle = gradients.estimate(target, method.batch_size, replace=method.replace)
    value = oracle.bind(site)(oracle.prepare(noise, site), inbox)
    if not method.latest_only:
        return state, value / jnp.asarray(site.weight, value.dtype), {}
    if site.number is None:
        raise TypeError("aggregate='latest' needs the index of the site")
    return state, (value, site.number), {}


def _update(
    method: StaleGradients, shared: UpdateRandomness, server: Server, message: PyTree
) -> tuple[Server, Vector, Info]:
    """Make one step at the server, and broadcast where the next gradient is wanted."""
    gradient, latest = message, server.latest
    if method.latest_only:
        site_gradient, site = message
        latest = jnp.asarray(latest).at[site].set(site_gradient)
        gradient = jnp.sum(latest, axis=0)
    dynamics, ahead = method.dynamics, shared.next_step_size
    chain = dynamics.step(server.chain, gradient, shared.normal, shared.step_size)
    point = dynamics.point(chain, ahead)
    if method.steps_ahead != 0:
        point = point + method.steps_ahead * ahead * chain.momentum
    return Server(chain, latest), point, {}


# --- several steps at a worker -------------------------------------------------------------------


class Broadcast(NamedTuple):
    """The reply of a server: θ, and the sum of the sites' last gradients where it keeps them."""

    position: Vector
    gradient: PyTree[Vector]  # () where it does not


class Task(NamedTuple):
    """The message of T steps: the sum of their noise, the mean of their gradients, and the site."""

    noise: Vector
    gradient: Vector
    site: PyTree[Count]  # () where the server needs none


class TaskNoise(NamedTuple):
    """The random numbers of a task: of its T gradients, and its ζ."""

    rows: PyTree
    normal: Float[Array, "T d"]


def _start_tasks(method: StaleSGLD, position: Vector) -> tuple[tuple[()], Server, Broadcast]:
    """Start as `_start` does, with a sum of no gradients beside the start."""
    state, server, start = _start(method, position)
    return state, server, Broadcast(start, jnp.zeros_like(start) if method.latest_only else ())


def _rows_and_noise(method: StaleSGLD, target: Target, rng: RandomStreams) -> TaskNoise:
    declare = gradients.estimate(target, method.batch_size, replace=method.replace).numbers
    shape = method.local_steps, target.dimension
    return TaskNoise(declare(rng, "gradient", (method.local_steps, 1)), rng.normal("steps", shape))


def _task(
    method: StaleSGLD,
    target: Target,
    noise: TaskNoise,
    shared: tuple[()],
    state: tuple[()],
    inbox: Broadcast,
    site: Site,
) -> tuple[tuple[()], Task, Info]:
    """Take T steps from the fetched point, with the other sites' last gradients."""
    oracle = gradients.estimate(target, method.batch_size, replace=method.replace)
    evaluate, rows = oracle.bind(site), oracle.prepare(noise.rows, site)
    weight, h = jnp.asarray(site.weight, inbox.position.dtype), _task_step(method, inbox.position)
    moves = jnp.sqrt(2 * method.temperature * h) * noise.normal

    def force(rows: PyTree, theta: Vector) -> Vector:
        gradient = evaluate(rows, theta)
        return gradient if method.latest_only else gradient / weight

    first, later = (jax.tree.map(itemgetter(part), rows) for part in (0, slice(1, None)))
    total = force(first, inbox.position)
    others = jnp.zeros_like(total)
    if method.latest_only:  # a site that is alone has the whole gradient
        others = jnp.where(weight < 1, inbox.gradient - total, others)

    def step(carry: tuple[Vector, Vector], drawn: tuple[PyTree, Vector]) -> tuple[Any, None]:
        theta, total = carry
        gradient = force(drawn[0], theta)
        return (theta - h * (others + gradient) + drawn[1], total + gradient), None

    carry = inbox.position - h * (others + total) + moves[0], total
    scanned, length = (later, moves[1:]), method.local_steps - 1
    (_, total), _ = jax.lax.scan(step, carry, scanned, length=length)
    named = site.number if method.latest_only else ()
    return state, Task(jnp.sum(moves, axis=0), total / method.local_steps, named), {}


def _add(
    method: StaleSGLD, shared: tuple[()], server: Server, task: Task
) -> tuple[Server, Broadcast, Info]:
    """Make the step of a task at the server, with the last gradients of the other sites."""
    gradient, latest = task.gradient, server.latest
    sent: PyTree = ()
    if method.latest_only:
        latest = jnp.asarray(latest).at[task.site].set(gradient)
        gradient = sent = jnp.sum(latest, axis=0)
    length = method.local_steps * _task_step(method, gradient)
    position = server.chain.position - length * gradient + task.noise
    return Server(State(position), latest), Broadcast(position, sent), {}


def _task_step(method: StaleSGLD, like: Vector) -> Scalar:
    """Return h, which is constant."""
    return jnp.asarray(method.step_size(0), like.dtype)


# --- arguments -----------------------------------------------------------------------------------


def _each_server(step_size: PyTree, servers: int) -> tuple[Schedule, ...]:
    """Read a list or tuple as one step size for each of several servers."""
    if servers == 1 or not isinstance(step_size, (list, tuple)):
        return (schedules.as_schedule(step_size),)
    if len(step_size) != servers:
        raise InputError(
            f"step_size has {len(step_size)} values for servers={servers}: give one number, or a "
            "list with one for each server (values over updates go into a NumPy array)."
        ).at("step_size")
    each = tuple(schedules.as_schedule(value) for value in step_size)
    return each[:1] if len(set(each)) == 1 else each


def _constant(steps: Sequence[Schedule]) -> bool:
    return all(isinstance(schedule, schedules.Constant) for schedule in steps)


def _largest(schedule: Schedule) -> float:
    """Return the largest step size where it is known beforehand, else 0."""
    if isinstance(schedule, schedules.Constant):
        return schedule.value
    if isinstance(schedule, schedules.Tabulated):
        return max(schedule.values)
    if isinstance(schedule, (schedules.Polynomial, schedules.Stages)):
        return schedule.initial
    return 0.0


def _noise_variance(given: PyTree) -> float | tuple[float, ...]:
    """Return V, 0 for False."""
    if given is False or given is None:
        return 0.0
    if given is True:
        raise InputError(
            "subtract_noise is True: give V, the variance of the gradient's noise per coordinate, "
            "a number or an array; consortia.gradient_noise_variance estimates it at a point."
        ).at("subtract_noise")
    wanted = "one variance, or one for each parameter, finite and not negative"
    values = arguments.array("subtract_noise", given, wanted)
    if values.ndim > 1 or not values.size or values.min() < 0:
        raise wrong("subtract_noise", f" is {given!r}: give {wanted}.")
    return float(values) if values.ndim == 0 else tuple(values.tolist())

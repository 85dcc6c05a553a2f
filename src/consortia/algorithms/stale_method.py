"""The value behind `consortia.stale_sgld`, `consortia.stale_sghmc` and `consortia.stale_sgnht`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from consortia import schedules
from consortia.algorithms import stale_phases as phases
from consortia.core import arguments
from consortia.core.contract import Algorithm, Claims, Cost, Draws, Mailbox, Method, Phase
from consortia.core.target import Target
from consortia.errors import InputError
from consortia.latency import Recorded

CLAIMS = {
    "stale_sgld": Claims(
        samples="a law near the posterior, too wide by stale gradients",
        bias="variance O(h lambda (tau + 1/2)), tau = W - 1 on average, and that of minibatches",
        draw="the server's position after each accepted update",
        step_size="h: drift h, noise variance 2h, h' = h",
        source="Chen, Ding, Li, Zhang, Carin (2016), sections 3 and 4",
    ),
    "stale_sghmc": Claims(
        samples="a law near the posterior, too wide by stale gradients",
        bias="variance O(h^2) with fresh exact gradients, lambda tau h / B with stale ones "
        "(extrapolate=True removes most of it), h V / (2 B) with noise V (subtract_noise=V)",
        draw="the server's position after each accepted update",
        step_size="h: a step in time, position moves h q; h' = h^2 where friction = 1/h",
        source="Chen, Ding, Li, Zhang, Carin (2016), algorithm 1; the splitting of "
        "Chen, Ding, Carin (2015)",
    ),
    "stale_sgnht": Claims(
        samples="a law near the posterior with the right temperature of the momenta",
        bias="no closed form; the thermostat takes up most of what noise and, with "
        "thermostat='elementwise', staleness add",
        draw="the server's position after each accepted update",
        step_size="h: a step in time, position moves h q; h' = h^2 where friction = 1/h",
        source="Ding et al. (2014), with stale gradients as in Chen, Ding, Li, Zhang, Carin (2016)",
    ),
}


class StaleGradients(phases.Settings, Method):
    """The parameters of a sampler with stale gradients; compares and hashes by value."""

    @property
    def claims(self) -> Claims:
        """What the method samples, by its name."""
        return CLAIMS[self.name]

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse a number of sites that is neither 1 nor the workers', and what does not fit."""
        sites = len(names)
        if sites not in (1, self.workers):
            raise InputError(
                f"there are {sites} sites and workers={self.workers}: give one site, from which "
                f"all workers of a server draw, or workers={sites}, so that each holds its own."
            )
        if self.remembers and sites != self.workers:
            raise InputError(
                f"aggregate='latest' is for workers that hold their own sites: there is one site "
                f"and workers={self.workers}."
            )
        if self.given_shares is not None and len(self.given_shares) != sites:
            raise InputError(
                f"shares has {len(self.given_shares)} values for {sites} sites: give one each."
            )
        if not self.replace:
            arguments.batch_fits(self.batch_size, sizes, names)
        variance = getattr(self.dynamics, "gradient_variance", 0.0)
        if isinstance(variance, tuple) and len(variance) != dimension:
            raise InputError(
                f"subtract_noise has {len(variance)} values, the model {dimension} parameters."
            )
        self.latency.check(self.workers)

    @property
    def step_schedules(self) -> tuple[schedules.Schedule, ...]:
        """h of each server."""
        return self.step_sizes

    def site_weights(self, sizes: np.ndarray) -> np.ndarray:
        """f_c as declared; an equal share until the trace of events tells it."""
        if self.given_shares is not None:
            return np.asarray(self.given_shares, np.float64)
        return np.full(len(sizes), 1.0 / len(sizes))

    def prior_shares(self, sizes: np.ndarray) -> np.ndarray:
        """λ_c = n_c/n."""
        return sizes / sizes.sum()

    def cost(self, sizes: np.ndarray) -> Cost:
        """One gradient an accepted update; what dropped ones cost is in the trace."""
        rows = self.batch_size
        return Cost(1, round(float(np.mean(sizes))) if rows is None else rows)

    def step_weights(self, iterations: np.ndarray) -> np.ndarray | None:
        """h of each update, of each server if they differ; None where all draws count alike.

        The average of all draws with these weights is that of the servers' estimates by time,
        Σ_s (T_s/T) φ̂_s with T_s = Σ_l h_l.
        """
        constant = all(isinstance(schedule, schedules.Constant) for schedule in self.step_sizes)
        if constant and (self.servers_alike or self.weighting == "equal"):
            return None
        weights = [schedules.evaluate(schedule, iterations) for schedule in self.step_sizes]
        return weights[0] if self.servers_alike else np.stack(weights)

    @property
    def servers_alike(self) -> bool:
        """Whether all servers have one law; else comparing them, as R-hat does, means nothing."""
        return len(set(self.step_sizes)) == 1

    def server_weights(self, warmup: int, rounds: int) -> np.ndarray:
        """Weights of the servers' own estimates, (servers,): T_s/T with T_s = Σ h, or equal.

        By time the weights are close to those of least variance, but they favour the server with
        the largest step and so the largest bias.
        """
        if self.weighting == "equal" or len(self.step_sizes) == 1:
            return np.full(self.servers, 1.0 / self.servers)
        span = range(warmup, warmup + rounds)
        times = np.array([schedules.evaluate(s, span).sum() for s in self.step_sizes], np.float64)
        return times / times.sum()

    def measure(
        self,
        gradients: Callable[[Any], Any],
        shares: np.ndarray | None,
        positions: np.ndarray,
        iteration: int,
    ) -> dict[str, Any]:
        """The predicted inflation by unlike sites at the end of a run, where there is any."""
        dynamics: Any = self.dynamics
        strength = 2 * getattr(dynamics, "friction", 1.0) * dynamics.temperature
        if shares is None or self.remembers or strength == 0:
            return {}
        steps = [schedules.evaluate(schedule, [iteration])[0] for schedule in self.step_sizes]
        each = np.broadcast_to(np.asarray(steps, np.float64), self.servers)
        return site_noise_inflation(gradients, shares, positions, each / strength)

    def parameters(self) -> dict[str, Any]:
        """The parameters as plain values; of a recorded trace its length."""
        plain = arguments.plain_parameters(self)
        plain["shares"] = plain.pop("given_shares")
        plain["step_size"] = plain.pop("step_sizes")
        if len(self.step_sizes) == 1:
            plain["step_size"] = plain["step_size"][0]
        if isinstance(self.latency, Recorded):
            plain["latency"] = self.latency.summary()
        return plain

    def build(self, target: Target) -> Algorithm:
        """One phase: a gradient at a worker, `Mailbox`, a step at the server."""
        phase = Phase(
            partial(phases.gradient, self, target),
            Mailbox(
                self.workers, self.servers, self.max_staleness, self.latency, self.given_shares
            ),
            hub=partial(phases.update, self),
            noise=partial(phases.noise, self, target),
            shared=partial(phases.shared, self, target),
        )
        return Algorithm(
            partial(phases.init, self), (phase,), Draws(hub=partial(phases.draw, self))
        )


def site_noise_inflation(
    gradients: Callable[[Any], Any],
    shares: np.ndarray,
    positions: np.ndarray,
    strengths: np.ndarray,
) -> dict[str, list[float]]:
    r"""By how much unlike sites are predicted to widen each server's law.

    .. math:: \frac{h^2 V}{2 h B T}, \qquad
              V = \operatorname{diag} \operatorname{Cov}_f(\nabla U_c / f_c)

    the variance that they add to a step over the injected one (B = 1 without a momentum). To
    leading order the variance of θ grows by this part of itself, if the order of the sites is
    random; workers that take turns add less. A thermostat takes it up.

    Args:
        gradients: ``position -> ∇U_c``, (d,) -> (sites, d).
        shares: f, (servers, sites).
        positions: where the chains are, server by server, (chains, d); each server's average is
            the point.
        strengths: h/(2BT) of each server, (servers,).

    Returns:
        The largest value over the coordinates and their mean, (servers,) each.
    """
    values = []
    chains = np.asarray(positions, np.float64).reshape(len(shares), -1, positions.shape[-1])
    for f, own, strength in zip(shares, chains, strengths, strict=True):
        g = np.asarray(gradients(jnp.asarray(own.mean(axis=0))), np.float64)
        between = (g**2 / f[:, None]).sum(axis=0) - g.sum(axis=0) ** 2
        values.append(strength * np.maximum(between, 0))
    return {
        "site_noise_inflation": [float(value.max()) for value in values],
        "site_noise_inflation_mean": [float(value.mean()) for value in values],
    }

"""From the settings of each method to its oracle's answer, on a posterior near its mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from consortia import graphs, oracles, schedules
from consortia.dynamics.langevin import Langevin
from consortia.dynamics.stochastic_gradient_hmc import EulerHMC
from consortia.errors import InputError
from consortia.surrogates import Gaussian
from consortia.theory.decentralized import decentralized_hmc_law
from consortia.theory.expansion import Array, Expansion

MOST_COORDINATES = 700
"""Rows of an iteration's matrix up to which a network's law is computed, in seconds."""

MOST_ROW_NUMBERS = 4_000_000
"""Rows times squared parameters up to which the noise of gossiped minibatches is computed."""

MOST_TRAVELLED = 40
"""Parameters up to which the law of a travelling chain is computed."""


class Moments(NamedTuple):
    """What a law says.

    Attributes:
        shift: of the mean from the mode, (d,).
        variance: of each coordinate, (d,), or None where it is not predicted.
        basis: which law, in words.
        notes: what is left out, and what else is known.
    """

    shift: Array
    variance: Array | None
    basis: str
    notes: tuple[str, ...] = ()


Law = Callable[[Expansion], Moments]


def _constant(method: Any) -> float:
    """The step size, where it is one number."""
    given = method.step_schedules
    if len(given) > 1:
        raise InputError("servers have step sizes of their own, and so laws of their own")
    if not isinstance(given[0], schedules.Constant):
        raise InputError("the step size varies from round to round, and the bias with it")
    return float(given[0].value)


def _settled(stable: bool) -> None:
    if not stable:
        raise InputError("the chain diverges near the mode: lower step_size")


# --- federated averaging -------------------------------------------------------------------------


def _averaging(method: Any, model: Any, sites: Any) -> Law:
    step = _constant(method)

    def law(near: Expansion) -> Moments:
        weights = method.site_weights(near.sizes)
        curvatures, gradients = near.pieces(weights, method.prior_shares(near.sizes))
        found = oracles.fa_hmc_law(
            -_solved(curvatures, gradients),
            curvatures,
            weights,
            step_size=step,
            leapfrog_steps=method.leapfrog_steps,
            local_steps=method.local_steps,
            momentum_correlation=method.momentum_correlation,
            gradient_noise=method.gradient_noise,
            gradient_draws=method.gradient_draws,
            debias=method.debias,
            mass_matrix=method.mass_matrix.values,
            temperature=method.temperature,
        )
        _settled(found.stable)
        basis = "the exact law of federated averaging"
        if method.batch_size is None:
            return Moments(found.stationary_mean, found.stationary_variance, basis)
        note = "Minibatches widen the draws by an amount that is not predicted."
        return Moments(found.stationary_mean, None, basis, (note,))

    return law


def _solved(curvatures: Array, gradients: Array) -> Array:
    """H_c⁻¹ g_c of every site; a flat direction, along which nothing pulls, is left where it is."""
    found = np.stack(
        [np.linalg.pinv(h, hermitian=True) @ g for h, g in zip(curvatures, gradients, strict=True)]
    )
    left = np.einsum("sij,sj->si", curvatures, found) - gradients
    if np.abs(left).max() > 1e-3 * max(np.abs(gradients).max(), 1e-12):
        raise InputError("a site's potential has no minimum of its own near the mode")
    return found


# --- gossip --------------------------------------------------------------------------------------


def _agents(near: Expansion, model: Any, sites: Any, *, rows: bool) -> oracles.GaussianAgents:
    if rows and sites.rows * near.mode.size**2 > MOST_ROW_NUMBERS:
        raise InputError("the noise of minibatches of so many rows is too large to be computed")
    share = np.full(len(near.sizes), 1 / len(near.sizes))
    curvatures = near.curvatures + share[:, None, None] * near.prior_curvature
    pulls = -(near.gradients + share[:, None] * near.prior_gradient)
    agents = oracles.GaussianAgents((curvatures + np.swapaxes(curvatures, 1, 2)) / 2, pulls=pulls)
    if rows:
        from consortia.core.start import starting_parameters
        from consortia.core.target import Target

        start = starting_parameters(model, None, 0, 1)[0]
        target = Target(model, start)
        mode = target.unravel(jnp.asarray(near.mode, target.dtype))
        expanded = oracles.GaussianAgents.near(model, sites, mode)
        assert expanded.rows is not None
        # Their pulls are H x − ∇ with the origin at 0; here the origin is the mode.
        agents.rows = tuple((h, p - h @ near.mode) for h, p in expanded.rows)
    return agents


def _small_network(copies: int, near: Expansion, mixing: Any) -> None:
    if isinstance(mixing, graphs.MixingSchedule):
        raise InputError("the network changes from round to round")
    if copies * len(near.sizes) * near.mode.size > MOST_COORDINATES:
        raise InputError(
            f"{len(near.sizes)} agents with {near.mode.size} parameters each are too many for the "
            "matrix of an iteration"
        )


def _gossip(method: Any, model: Any, sites: Any) -> Law:
    step = _constant(method)

    def law(near: Expansion) -> Moments:
        _small_network(1 + method.corrected + (method.friction is not None), near, method.mixing)
        batches = method.batch_size is not None
        agents = _agents(near, model, sites, rows=batches)
        options: dict[str, Any] = {"correction": method.correction, "noise": method.noise}
        options |= {"temperature": method.temperature}
        if batches:
            options |= {"batch_size": method.batch_size, "replace": method.replace}
            if method.anchor is not None:
                options["control_variate"] = np.asarray(method.anchor) - near.mode
        if method.friction is None:
            options["averaged_noise"] = method.averaged_noise
            found = oracles.de_sgld_law(agents, method.mixing, step_size=step, **options)
        else:
            options["friction"] = method.friction
            found = oracles.de_sghmc_law(agents, method.mixing, step_size=step, **options)
        return _of_network(found, near)

    return law


def _tracked(method: Any, model: Any, sites: Any) -> Law:
    step = _constant(method)

    def law(near: Expansion) -> Moments:
        _small_network(2, near, method.mixing)
        agents = _agents(near, model, sites, rows=False)
        found = decentralized_hmc_law(
            agents,
            method.mixing,
            step_size=step,
            variant=method.variant,
            gossip_rounds=method.gossip_rounds,
        )
        moments = _of_network(found, near)
        if not method.published:
            return moments
        return moments._replace(
            notes=(*moments.notes, "Published variant: while every proposal is accepted.")
        )

    return law


def _of_network(found: Any, near: Expansion) -> Moments:
    _settled(found.stable)
    moments = found.stationary
    ratio = np.sqrt(moments.agent_variance_ratios)
    note = (
        f"A single agent's standard deviations: {ratio.min():.3g} to {ratio.max():.3g} times the "
        "posterior's."
    )
    return Moments(
        moments.average_mean,
        np.diagonal(moments.average_covariance),
        "the exact law of the average of the agents",
        (note,),
    )


# --- stale gradients -----------------------------------------------------------------------------


def _stale(method: Any, model: Any, sites: Any) -> Law:
    step = _constant(method)
    dynamics = method.dynamics
    if method.aggregate == "latest":
        raise InputError("there is no oracle for aggregate='latest'")
    if getattr(dynamics, "temperature", 1.0) != 1.0:
        raise InputError("the oracle is for temperature 1")
    if not isinstance(getattr(dynamics, "gradient_variance", 0.0), float):
        raise InputError("there is no oracle for subtract_noise with a value a parameter")
    late = method.workers - 1
    if method.max_staleness is not None and method.max_staleness < 2 * late:
        raise InputError("dropped gradients change the staleness, which only the run will tell")

    def law(near: Expansion) -> Moments:
        values, vectors = np.linalg.eigh(near.precision)
        noise = np.einsum("ik,ij,jk->k", vectors, _noise_matrix(method, near), vectors)
        along = np.empty_like(values)
        for k, (curvature, own) in enumerate(zip(values, np.maximum(noise, 0), strict=True)):
            server = _server(step, dynamics, method.steps_ahead, float(own))
            found = oracles.stale_server_law(server, float(curvature), late)
            along[k] = found.variance
        return Moments(
            np.zeros_like(values),
            (vectors**2) @ along,
            f"the exact law with a constant staleness of {late}, the average of {method.workers} "
            "workers, and the gradients' noise at the mode, along each principal direction",
        )

    return law


def _server(step: float, dynamics: Any, ahead: float, noise: float) -> Any:
    if isinstance(dynamics, Langevin):
        return oracles.langevin_server(step, gradient_noise=noise)
    integrator = "euler" if isinstance(dynamics, EulerHMC) else "splitting"
    server = oracles.sghmc_server(
        step, dynamics.friction, integrator=integrator, extrapolate=ahead, gradient_noise=noise
    )
    taken = dynamics.gradient_variance  # taken out of the injected noise by the sampler
    return server._replace(noise_variance=server.noise_variance - step**2 * taken)


def _noise_matrix(method: Any, near: Expansion) -> Array:
    """Covariance of a gradient of U as it reaches the server, at the mode, (d, d)."""
    shares = method.site_weights(near.sizes)
    d = near.mode.size
    total = np.zeros((d, d))
    prior = method.prior_shares(near.sizes)
    for c, size in enumerate(near.sizes):
        if method.batch_size is not None:
            total += (
                oracles.minibatch_covariance(
                    near.row_covariances[c], int(size), method.batch_size, replace=method.replace
                )
                / shares[c]
            )
        if len(near.sizes) > 1:
            pull = near.gradients[c] + prior[c] * near.prior_gradient
            total += np.outer(pull, pull) / shares[c]
    return total


# --- travelling chains ---------------------------------------------------------------------------


def _travelling(method: Any, model: Any, sites: Any) -> Law:
    step = _constant(method)

    def law(near: Expansion) -> Moments:
        d = near.mode.size
        if d > MOST_TRAVELLED:
            raise InputError(f"the law of a travelling chain in {d} parameters is too large")
        shares = method.site_weights(near.sizes)
        noise = [
            oracles.minibatch_covariance(
                covariance, int(size), method.batch_size, replace=method.replace
            )
            for covariance, size in zip(near.row_covariances, near.sizes, strict=True)
        ]
        options: dict[str, Any] = {}
        notes: tuple[str, ...] = ()
        if method.corrects:
            options["strength"] = method.strength
            if isinstance(method.surrogate, tuple):
                options["surrogates"] = [_moved(own, near.mode) for own in method.surrogate]
            else:
                notes = (
                    "Surrogates are taken as each site's own Gaussian law at the mode; worse ones "
                    "add bias.",
                )
        prior = near.prior_curvature
        found = oracles.travelling_law(
            -_solved(near.curvatures, near.gradients),
            near.curvatures,
            shares,
            step_size=step,
            local_steps=method.local_steps,
            prior_mean=-np.linalg.pinv(prior, hermitian=True) @ near.prior_gradient,
            prior_precision=prior,
            gradient_noise=np.stack(noise),
            **options,
        )
        _settled(found.stable)
        if method.keeps_path:
            mean, covariance = found.over_updates()
        else:
            mean, covariance = found.mean(), found.covariance()
        basis = "the exact law of a travelling chain"
        if method.batch_size is not None:
            basis += ", with the minibatches' noise as it is at the mode"
        return Moments(mean, np.diagonal(covariance), basis, notes)

    return law


def _moved(surrogate: Gaussian, origin: Array) -> Gaussian:
    precision = surrogate.precision
    covariance = 1 / precision if precision.ndim == 1 else np.linalg.inv(precision)
    return Gaussian(surrogate.mean - origin, covariance)


# --- which method has which ----------------------------------------------------------------------


def _always_exact(method: Any) -> str | None:
    return "a Metropolis test on the summed log-density keeps the posterior exactly"


EXACT: Mapping[str, Callable[[Any], str | None]] = {
    "federated_hmc": _always_exact,
    "surrogate_hmc": _always_exact,
    "decentralized_exact_hmc": _always_exact,
}
"""Methods that are exact, or None for the settings at which they are not."""

LAWS: Mapping[str, Callable[[Any, Any, Any], Law]] = {
    "fa_hmc": _averaging,
    "fa_ld": _averaging,
    "dsgld": _travelling,
    "fsgld": _travelling,
    "de_sgld": _gossip,
    "de_sghmc": _gossip,
    "stale_sgld": _stale,
    "stale_sghmc": _stale,
    "decentralized_hmc": _tracked,
}
"""Methods with an oracle that the mode of a posterior is enough for."""

"""The reference: NUTS on the pooled data, which a simulation has and a consortium has not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from consortia.core import arguments, density, parameters, start
from consortia.core.model import Model
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.diagnostics.convergence import add_diagnostics
from consortia.diagnostics.natural import Quantities
from consortia.diagnostics.prediction import BiasPrediction
from consortia.errors import InputError, require_extra
from consortia.runtime import compiler
from consortia.store import results

Array = jax.Array
PyTree = Any

INITIAL_STEP_SIZE = 0.1


class Tuning(NamedTuple):
    """The state of a warm-up: BlackJAX's metric and step size, and the step in use."""

    metric: Any
    step: Any
    step_size: Array


def nuts(
    model: Model,
    sites: Sites,
    *,
    draws: int = 1000,
    warmup: int = 1000,
    chains: int = 4,
    seed: int = 0,
    init: Any = None,
    target_acceptance: float = 0.8,
) -> Any:
    r"""Sample the posterior from the pooled data of all sites, by BlackJAX's NUTS.

    .. math:: \pi(\theta) \propto p(\theta) \prod_c \prod_{i \in c} p(z_i \mid \theta)

    **Samples** that law itself: there is a Metropolis-type correction and no bias but that of a
    finite chain. Step size and diagonal mass matrix are adapted during the warm-up (Stan's
    windows) and then frozen. Everything is computed in JAX's default precision.

    Args:
        model: the model.
        sites: the data; they are put together here.
        draws: kept draws of each chain.
        warmup: draws of each chain for the adaptation, which are not kept; at least 20.
        chains: independent chains, run side by side.
        seed: 0 <= seed < 2**63.
        init: where to start instead of ``model.init``, as in `consortia.sample`.
        target_acceptance: what the step size is adapted to, in (0, 1).

    Returns:
        `xarray.DataTree` in the layout of `consortia.sample`: ``posterior`` with the same
        variables, ``sample_stats`` (diverging, acceptance_rate, energy, n_steps, step_size),
        ``diagnostics``; in the attributes the numbers of ``divergences`` and ``gradients``
        (leapfrog steps, warm-up included) and the ``seconds``, compilation included.

    Raises:
        MissingExtraError: BlackJAX is not installed.
        InputError: an argument is out of its range, or the density is not finite at the start.

    Source: Hoffman and Gelman, "The No-U-Turn Sampler" (2014).
    """
    _check_blackjax()
    draws = arguments.whole("draws", draws, 4)
    warmup = arguments.whole("warmup", warmup, 20)
    chains = arguments.whole("chains", chains, 1)
    seed = arguments.whole("seed", seed, 0, 2**63 - 1)
    rate = arguments.number("target_acceptance", target_acceptance, 0.05, 0.99)
    model.check_posterior("nuts")
    density.check_data(model, sites.held)
    starts = start.starting_parameters(model, init, seed, chains)
    target = Target(model, starts[0])
    positions: Any = np.stack([target.flat(start) for start in starts])
    rows = jax.device_put(tuple(sites) if model.by_site else sites.pooled())

    began = time.monotonic()
    # BlackJAX relies on NumPy's promotion rules; a caller may have forbidden them.
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        _check_start(target, rows, positions)
        once = compiler.for_once()
        keys = jax.jit(partial(_keys_of, seed, chains), compiler_options=once)()
        chain = jax.vmap(_chain(target, draws, warmup, rate), in_axes=(0, 0, None))
        small = sum(leaf.size for leaf in jax.tree.leaves(rows)) <= compiler.MOST_NUMBERS
        sampler = jax.jit(chain, compiler_options=compiler.for_once(level=2) if small else {})
        kept, statistics, gradients = jax.block_until_ready(sampler(keys, positions, rows))
    seconds = time.monotonic() - began

    of_run = {
        "parameters": {"target_acceptance": rate},
        "seed": seed,
        "warmup": warmup,
        "gradients": int(np.asarray(gradients, np.int64).sum()),
        "seconds": seconds,
    }
    tree = _recorded(target, sites, kept, statistics, of_run)
    add_diagnostics(tree)
    return tree


def _recorded(
    target: Target,
    sites: Sites,
    kept: Array,
    statistics: Mapping[str, Array],
    of_run: Mapping[str, Any],
) -> Any:
    """Return draws (chains, draws, d) in the layout of `consortia.sample`."""
    chains, draws, _ = kept.shape
    arrays = {name: np.asarray(values) for name, values in statistics.items()}
    records = results.Records(np.asarray(kept), None, arrays, {})
    groups = results.datasets(
        records, parameters.variables(target.structure), sites.names, first_draw=0, weights=None
    )
    return results.tree_of(
        Quantities(target.model).beside(groups),
        {
            "algorithm": "nuts",
            "samples": "the posterior of the pooled data",
            "bias": "none except that of finite chains",
            "prediction": BiasPrediction(basis="a Metropolis-type correction").plain(),
            "chains": chains,
            "rounds": draws,
            "thin": 1,
            "divergences": int(arrays["diverging"].sum()),
            "x64": target.dtype == np.float64,
            "versions": results.versions() | {"blackjax": _check_blackjax()},
            **of_run,
        },
    )


def _keys_of(seed: int, chains: int) -> Array:
    return jax.random.split(jax.random.key(np.uint64(seed)), chains)


def _chain(target: Target, draws: int, warmup: int, rate: float) -> Any:
    """Return ``(key, position, rows) -> (draws (draws, d), statistics (draws,), gradients)``.

    The parts are BlackJAX's; one loop runs the warm-up and the draws, because the kernel in two
    loops takes longer to compile.
    """
    import blackjax
    from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
    from blackjax.adaptation.step_size import dual_averaging_adaptation
    from blackjax.adaptation.window_adaptation import build_schedule

    kernel = blackjax.nuts.build_kernel()
    first_metric, observe, metric_of_window = mass_matrix_adaptation(True)
    first_step, tune, best_step = dual_averaging_adaptation(rate)
    slow, ends = np.asarray(build_schedule(warmup)).astype(bool).T

    def adapted(
        tuning: Tuning, slow: Array, ends: Array, position: Array, acceptance: Array
    ) -> Tuning:
        """Return the tuning after a step of Stan's windows; where one ends, its metric is taken."""
        metric = jax.lax.cond(slow, observe, lambda metric, _: metric, tuning.metric, position)
        step = tune(tuning.step, acceptance)
        metric, step = jax.lax.cond(
            ends,
            lambda: (metric_of_window(metric), first_step(best_step(step))),
            lambda: (metric, step),
        )
        return Tuning(metric, step, jnp.exp(step.log_step_size))

    def chain(key: Array, position: Array, rows: PyTree) -> tuple[Array, dict[str, Array], Array]:
        def log_density(theta: Array) -> Array:
            return _log_likelihood(target, theta, rows) + target.log_prior(theta)

        def step(carry: tuple[Any, Tuning], index: Array) -> Any:
            state, tuning = carry
            warmup_index = jnp.minimum(index, warmup - 1)  # the schedule ends with the warm-up
            window = jnp.asarray(slow)[warmup_index], jnp.asarray(ends)[warmup_index]
            metric = tuning.metric.inverse_mass_matrix
            state, info = kernel(keys[index], state, log_density, tuning.step_size, metric)
            tuning = jax.lax.cond(
                index < warmup,
                lambda: adapted(tuning, *window, state.position, info.acceptance_rate),
                lambda: tuning,
            )
            # The draws take the average of the dual averaging, not its last, noisy step.
            frozen = jnp.where(index < warmup - 1, tuning.step_size, best_step(tuning.step))
            statistics = {
                "diverging": info.is_divergent,
                "acceptance_rate": info.acceptance_rate,
                "energy": info.energy,
                "n_steps": info.num_integration_steps,
                "step_size": tuning.step_size,
            }
            return (state, tuning._replace(step_size=frozen)), (state.position, statistics)

        warm_key, draw_key = jax.random.split(key)
        keys = jnp.concatenate(
            [jax.random.split(warm_key, warmup), jax.random.split(draw_key, draws)]
        )
        tuning = Tuning(
            first_metric(position.size),
            first_step(INITIAL_STEP_SIZE),
            jnp.asarray(INITIAL_STEP_SIZE, position.dtype),
        )
        begun = (blackjax.nuts.init(position, log_density), tuning)
        _, (kept, statistics) = jax.lax.scan(step, begun, jnp.arange(warmup + draws))
        gradients = jnp.sum(statistics["n_steps"])
        return kept[warmup:], {name: of[warmup:] for name, of in statistics.items()}, gradients

    return chain


def _log_likelihood(target: Target, theta: Array, rows: PyTree) -> Array:
    """Return that of all rows; of each site by itself where the model has none of rows."""
    if not target.model.by_site:
        return jnp.sum(target.log_likelihood(theta, rows))
    of_sites = [
        jnp.sum(target.summands(theta, shard, jnp.ones(len(jax.tree.leaves(shard)[0]), bool)))
        for shard in rows
    ]
    return jnp.sum(jnp.stack(of_sites))


def _check_start(target: Target, rows: PyTree, positions: Array) -> None:
    def log_density(position: Array, rows: PyTree) -> Array:
        return _log_likelihood(target, position, rows) + target.log_prior(position)

    of_chains = jax.vmap(log_density, in_axes=(0, None))
    values = jax.jit(of_chains, compiler_options=compiler.for_once())(positions, rows)
    for chain, value in enumerate(np.asarray(values)):
        if not np.isfinite(value):
            raise InputError(
                f"the log-density of the pooled data is {value} at the start of chain {chain}: "
                "choose another init."
            ).at("init")


def _check_blackjax() -> str:
    """Return the version of BlackJAX; refuse, with what to install, where it is missing."""
    with require_extra("reference", "the NUTS reference needs BlackJAX"):
        import blackjax
    return blackjax.__version__

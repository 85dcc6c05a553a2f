"""The reference: NUTS on the pooled data, which a simulation has and a consortium has not."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from consortia.core import arguments, density, parameters, start
from consortia.core.model import Model
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.diagnostics.convergence import add_diagnostics
from consortia.diagnostics.prediction import BiasPrediction
from consortia.errors import InputError, MissingExtraError
from consortia.store import results

Array = jax.Array
PyTree = Any

INITIAL_STEP_SIZE = 0.1


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
    density.check_data(model, sites.held)
    starts = start.starting_parameters(model, init, seed, chains)
    target = Target(model, starts[0])
    positions = jnp.stack([target.ravel(start) for start in starts])
    rows = jax.tree.map(jnp.asarray, tuple(sites) if model.by_site else sites.pooled())

    began = time.monotonic()
    # BlackJAX relies on NumPy's promotion rules; a caller may have forbidden them.
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        _check_start(target, rows, positions)
        keys = jax.random.split(jax.random.key(np.uint64(seed)), chains)
        sampler = jax.jit(jax.vmap(_chain(target, draws, warmup, rate), in_axes=(0, 0, None)))
        kept, statistics, gradients = jax.block_until_ready(sampler(keys, positions, rows))
    seconds = time.monotonic() - began

    statistics = {name: np.asarray(values) for name, values in statistics.items()}
    records = results.Records(np.asarray(kept), None, statistics, {})
    groups = results.datasets(
        records, parameters.variables(target.structure), sites.names, first_draw=0, weights=None
    )
    tree = results.tree_of(
        groups,
        {
            "algorithm": "nuts",
            "parameters": {"target_acceptance": rate},
            "samples": "the posterior of the pooled data",
            "bias": "none but that of finite chains",
            "prediction": BiasPrediction(basis="a Metropolis-type correction").plain(),
            "seed": seed,
            "chains": chains,
            "rounds": draws,
            "warmup": warmup,
            "thin": 1,
            "divergences": int(statistics["diverging"].sum()),
            "gradients": int(np.asarray(gradients, np.int64).sum()),
            "seconds": seconds,
            "x64": target.dtype == np.float64,
            "versions": results.versions() | {"blackjax": _check_blackjax()},
        },
    )
    add_diagnostics(tree)
    return tree


def _chain(target: Target, draws: int, warmup: int, rate: float) -> Any:
    """Return ``(key, position, rows) -> (draws (draws, d), statistics (draws,), gradients)``."""
    import blackjax

    def chain(key: Array, position: Array, rows: PyTree) -> tuple[Array, dict[str, Array], Array]:
        def log_density(theta: Array) -> Array:
            return _log_likelihood(target, theta, rows) + target.log_prior(theta)

        adaptation = blackjax.window_adaptation(
            blackjax.nuts,
            log_density,
            initial_step_size=INITIAL_STEP_SIZE,
            target_acceptance_rate=rate,
            adaptation_info_fn=lambda state, info, adapted: info.num_integration_steps,
        )
        warm_key, draw_key = jax.random.split(key)
        (state, tuned), warm_steps = adaptation.run(warm_key, position, warmup)
        kernel = blackjax.nuts(log_density, **tuned).step

        def step(state: Any, key: Array) -> Any:
            state, info = kernel(key, state)
            statistics = {
                "diverging": info.is_divergent,
                "acceptance_rate": info.acceptance_rate,
                "energy": info.energy,
                "n_steps": info.num_integration_steps,
            }
            return state, (state.position, statistics)

        _, (kept, statistics) = jax.lax.scan(step, state, jax.random.split(draw_key, draws))
        statistics["step_size"] = jnp.full(draws, tuned["step_size"])
        return kept, statistics, jnp.sum(warm_steps) + jnp.sum(statistics["n_steps"])

    return chain


def _log_likelihood(target: Target, theta: Array, rows: PyTree) -> Array:
    """Return that of all rows; of each site by itself where the model has none of rows."""
    if not target.model.by_site:
        return jnp.sum(target.log_likelihood(theta, rows))
    of_sites = [
        jnp.sum(target.summands(theta, one, jnp.ones(len(jax.tree.leaves(one)[0]), bool)))
        for one in rows
    ]
    return jnp.sum(jnp.stack(of_sites))


def _check_start(target: Target, rows: PyTree, positions: Array) -> None:
    for chain, position in enumerate(positions):
        value = _log_likelihood(target, position, rows) + target.log_prior(position)
        if not np.isfinite(value):
            raise InputError(
                f"the log-density of the pooled data is {value} at the start of chain {chain}: "
                "choose another init."
            )


def _check_blackjax() -> str:
    """Return the version of BlackJAX; refuse, with what to install, where it is missing."""
    try:
        import blackjax
    except ImportError as error:
        raise MissingExtraError(
            "the NUTS reference needs BlackJAX: pip install 'consortia[reference]'"
        ) from error
    return blackjax.__version__

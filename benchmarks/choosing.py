"""CPU seconds in which settings are chosen by the law, once the curvatures at the mode are known.

Of Gaussian sites that differ in their means, sizes and axes, in 100 parameters; the rounds of
gossip are on a ring, stale gradients come from workers that hold a site each.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.measure import Gate, Row, row_of

NAME = "choosing"
PAIRS = {"full": 3, "quick": 1, "tiny": 1}
SITES = {"full": (4, 8, 16, 32), "quick": (4, 32), "tiny": (2,)}
PARAMETERS = {"full": 100, "quick": 100, "tiny": 3}
QUICK = Gate("<=", 2.0)


def rows(scale: str) -> list[Row]:
    """The figures."""
    return [_of_method(method, sites, scale) for sites in SITES[scale] for method in methods(sites)]


def methods(sites: int) -> dict[str, Any]:
    """The methods that choose their settings, for so many sites."""
    import consortia as c

    stale = {"workers": sites}
    return {
        "fa_hmc": c.fa_hmc(),
        "fa_ld": c.fa_ld(),
        "de_sgld": c.de_sgld(mixing="ring"),
        "de_sghmc": c.de_sghmc(mixing="ring"),
        "decentralized_hmc": c.decentralized_hmc(mixing="ring"),
        "stale_sgld": c.stale_sgld(**stale),
        "stale_sghmc": c.stale_sghmc(**stale),
    }


def problem_of(sites: int, parameters: int) -> Any:
    """Sites with one row each, which holds a mean and a precision."""
    import jax.numpy as jnp

    import consortia
    from consortia.theory.bias import Problem

    rng, rows = np.random.default_rng(3), []
    for _ in range(sites):
        turn, _ = np.linalg.qr(np.eye(parameters) + 0.1 * rng.normal(size=(parameters,) * 2))
        sizes = 20 * rng.uniform(0.3, 3.0, parameters)
        mean = 0.4 * rng.normal(size=parameters) / np.sqrt(sizes)
        rows.append({"m": mean[None], "A": (turn * sizes @ turn.T)[None]})

    def log_likelihood(x: Any, site: Any) -> Any:
        off = x[None] - site["m"]
        return -0.5 * jnp.einsum("ni,nij,nj->n", off, site["A"], off)

    model = consortia.Model(
        log_prior=lambda x: -0.5e-4 * jnp.sum(x**2),
        log_likelihood=log_likelihood,
        init=np.zeros(parameters, np.float32),
    )
    return Problem(model, consortia.Sites.from_list(rows))


def _of_method(name: str, sites: int, scale: str) -> Row:
    from consortia.errors import InputError
    from consortia.theory import tuning

    problem = problem_of(sites, PARAMETERS[scale])
    what = f"CPU seconds, {name}, {sites} sites"
    seconds, detail = [], f"curvatures known after {_timed(lambda: problem.near):.2f} s"
    for _ in range(PAIRS[scale]):
        method = methods(sites)[name]
        try:
            seconds.append(
                _timed(
                    lambda method=method: tuning.choose_step(
                        problem, method, tuning.BiasTarget(), rounds=10**9, chains=4
                    )
                )
            )
        except InputError as error:
            return Row(NAME, what, skipped=str(error))
    return row_of(NAME, what, np.array(seconds), QUICK, detail)


def _timed(run: Any) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began

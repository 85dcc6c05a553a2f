"""Sketch: parameters that stay at their site, in a hierarchical model sampled by Gibbs steps.

    y_ci ~ N(b_c, 1),  b_c ~ N(μ, τ²),  μ ~ N(0, s²)

Site c draws b_c given μ and its own rows; what crosses the network is Σ_c b_c; the hub draws μ.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.core.contract import Algorithm, Draws, Phase, Sum

pytestmark = pytest.mark.usefixtures("x64")

SPREAD, PRIOR = 0.8, 3.0  # τ, s
SIZES = (2, 5, 3)


def shards() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"y": rng.normal(size=n) + 2 * i} for i, n in enumerate(SIZES)]


SITES = consortia.Sites.from_list(shards())
# The flat position has a place for μ and one for the site's own b: the second is private.
MODEL = consortia.Model(
    None,
    lambda p, rows: -0.5 * (rows["y"] - p["b"]) ** 2,
    {"b": jnp.zeros(()), "mu": jnp.zeros(())},
)


def sketch(target: Any) -> Algorithm:
    def init(position: Any) -> Any:
        return jnp.zeros(()), jnp.zeros(()), jnp.zeros(())

    def local(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
        rows, mask = site.all()
        precision = jnp.asarray(site.size, jnp.float64) + 1 / SPREAD**2
        centre = (jnp.sum(jnp.where(mask, rows["y"], 0)) + inbox / SPREAD**2) / precision
        own = centre + noise / jnp.sqrt(precision)
        return own, (own, jnp.ones(())), {}

    def hub(shared: Any, state: Any, message: Any) -> Any:
        total, sites = message
        precision = sites / SPREAD**2 + 1 / PRIOR**2
        mean = total / SPREAD**2 / precision + shared / jnp.sqrt(precision)
        return mean, mean, {}

    return Algorithm(
        init,
        (
            Phase(
                local,
                Sum(),
                hub,
                noise=lambda rng: rng.normal("b", ()),
                shared=lambda rng: rng.normal("mu", ()),
            ),
        ),
        # At every node the shared μ and its own b; in the average over nodes only μ has a meaning.
        Draws(node=lambda state, inbox: jnp.stack([state, inbox]), agents=True),
    )


def posterior() -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of (b_1, b_2, b_3, μ), by their joint precision."""
    precision = np.zeros((4, 4))
    linear = np.zeros(4)
    for i, shard in enumerate(shards()):
        precision[i, i] = SIZES[i] + 1 / SPREAD**2
        precision[i, 3] = precision[3, i] = -1 / SPREAD**2
        linear[i] = shard["y"].sum()
    precision[3, 3] = 3 / SPREAD**2 + 1 / PRIOR**2
    covariance = np.linalg.inv(precision)
    return covariance @ linear, covariance


@pytest.mark.parametrize("engine", [{}, {"node_mode": "map"}])
def test_private_parameters_stay_at_their_sites_and_have_the_posteriors_law(
    runner: Any, engine: dict[str, Any]
) -> None:
    chains = 2000
    made = runner(sketch, MODEL, SITES, np.zeros((chains, 2)), **engine)
    records = made.advance(60, thin=60)  # Gibbs steps with correlation below .6: .6^60 is nothing
    own, mean = records.agents[:, 0, :, 0], records.agents[:, 0, :, 1]
    np.testing.assert_array_equal(mean, np.tile(mean[:, :1], (1, 3)))  # all hold the same μ
    np.testing.assert_allclose(records.draws[:, 0, 1], mean[:, 0], rtol=1e-14)
    draws = np.column_stack([own, mean[:, 0]])
    centre, covariance = posterior()
    error = np.sqrt(np.diag(covariance) / chains)
    # 4.5 standard errors over 4 means and 16 covariances; the seed is fixed.
    assert np.all(np.abs(draws.mean(axis=0) - centre) < 4.5 * error)
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2)
    gap = np.abs(np.cov(draws.T) - covariance)
    assert np.all(gap < 4.5 * scale / np.sqrt(chains))
    # The negative control: site 0's b in site 1's place.
    assert np.any(np.abs(draws[:, [1, 0, 2, 3]].mean(axis=0) - centre) > 4.5 * error)


def test_what_crosses_the_network_is_one_number_and_a_count(runner: Any) -> None:
    made = runner(sketch, MODEL, SITES, np.zeros((1, 2)))
    assert [sum(part) for part in zip(*made.run.traffic(made.carry), strict=True)] == [1, 48, 24]

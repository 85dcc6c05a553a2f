"""Sites that are given by their loss functions, as papers on federated averaging have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from consortia.core import arguments
from consortia.core.model import Model
from consortia.data.sites import Sites
from consortia.errors import wrong
from consortia.runtime.late import PyTree, jax, jnp

Loss = Callable[[Any], Any]


def local_losses(losses: Sequence[Loss], init: PyTree, weights: Any = None) -> tuple[Model, Sites]:
    r"""Return the model and the sites of :math:`\exp(-f)` with :math:`f = \sum_c w_c f_c`.

    Each :math:`f_c` is a function of the parameters that the site keeps to itself, its data and its
    part of the prior included. Elsewhere in this package a site has rows, and its potential is the
    sum over them, :math:`U_c = w_c f_c`.

    Args:
        losses: :math:`f_c(\theta)`, a function of the parameters in JAX for each site.
        init: the parameters at which chains start.
        weights: :math:`w_c`, positive and summing to one; 1/N when None. Give methods with an
            argument ``weights``, such as `consortia.fa_hmc`, the same ones: a client's gradient is
            then that of :math:`f_c`.

    Returns:
        The model and the sites, of one row each: minibatches are for models with rows.

    Raises:
        InputError: no loss, or weights that do not fit.

    Example:
        >>> import consortia, jax.numpy as jnp
        >>> losses = [lambda x: 0.5 * jnp.sum((x - 20) ** 2), lambda x: jnp.sum((x - 1) ** 2) / 8]
        >>> model, sites = local_losses(losses, jnp.zeros(2))
        >>> method = consortia.fa_hmc(0.02, leapfrog_steps=5, local_steps=10)
        >>> len(sites)
        2
    """
    given = tuple(losses)
    if not given:
        raise wrong("losses", ": got none; give a function of the parameters for each site.")
    shares = np.full(len(given), 1 / len(given))
    if weights is not None:
        shares = np.asarray(arguments.site_weights(weights, "weights"), np.float64)
    if len(shares) != len(given):
        raise wrong("weights", f" has {len(shares)} values for {len(given)} losses: give one each.")

    def log_likelihood(params: PyTree, batch: Any) -> Any:
        def of_site(site: Any) -> Any:
            value = jax.lax.switch(site, given, params)
            return -jnp.asarray(shares, value.dtype)[site] * value

        return jax.lax.map(of_site, batch["site"])

    def log_prior(params: PyTree) -> Any:
        return jnp.zeros(())  # it is in the losses

    rows = [{"site": np.array([c], np.int32)} for c in range(len(given))]
    return Model(log_prior, log_likelihood, init), Sites.from_list(rows)

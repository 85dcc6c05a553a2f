"""The pieces of a posterior that a site can compute, as functions of a flat position."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from consortia.core import trees
from consortia.core.blocks import sum_over_rows
from consortia.core.contract import Site
from consortia.core.host import Flat, HostPrior, HostSite
from consortia.core.model import Integration, Model
from consortia.core.parameters import is_function, structure_of
from consortia.errors import InputError
from consortia.runtime import late, wrong_sums
from consortia.runtime.late import Array, PyTree, float_type, jax, jnp, width_of


def parameters_of(model: Model, init: Any, key: Array) -> PyTree:
    """Return the starting parameters: ``init`` where it is given, else the model's own.

    A function is called with ``key``; anything else is taken as the pytree itself.
    """
    source = model.init if init is None else init
    return source(key) if is_function(source) else source


class Target:
    r"""The posterior π ∝ exp(−U) of a model, cut into the potentials of the sites.

    .. math:: U_c(\theta) = -\sum_{i\in c}\log p(z_i|\theta) - \lambda_c\log p(\theta),
              \qquad \sum_c U_c = U, \quad \sum_c\lambda_c = 1

    Positions are flat vectors (dimension,); the pytree exists only inside the model's functions.

    Args:
        model: the model.
        parameters: an example of its parameters (arrays or shapes), floating leaves only.
    """

    def __init__(self, model: Model, parameters: PyTree) -> None:
        self.model, self.dtype = model, float_type()
        self._unravel: Callable[[Any], PyTree]
        self.structure = structure_of(parameters)
        leaves = trees.leaves_of(self.structure)
        self.dimension = sum(math.prod(leaf.value.shape) for leaf in leaves)
        if self.dimension == 0:
            raise InputError(
                "Model.init has no parameters: give a pytree with at least one floating array."
            ).at("init")
        if model.host is None:
            wrong_sums.check()
            jax.eval_shape(self._ravel_example, self.structure)  # nothing is computed
        else:
            late.when_loaded(wrong_sums.check)
            self._unravel = self.layout.unravel

    def _ravel_example(self, example: PyTree) -> Array:
        from jax.flatten_util import ravel_pytree

        flat, self._unravel = ravel_pytree(example)
        return flat

    @cached_property
    def shapes(self) -> str:
        """Names, shapes and type of the parameters, as text."""
        leaves = trees.leaves_of(self.structure)
        return f"{self.dtype}: " + ", ".join(f"{leaf.path} {leaf.value.shape}" for leaf in leaves)

    def unravel(self, position: Array) -> PyTree:
        """Return the parameters as the model's own pytree."""
        return self._unravel(position)

    def ravel(self, parameters: PyTree) -> Array:
        """Return the flat position (dimension,) of a pytree of parameters."""
        leaves = [jnp.ravel(jnp.asarray(leaf, self.dtype)) for leaf in jax.tree.leaves(parameters)]
        return jnp.concatenate(leaves)

    def flat(self, parameters: PyTree) -> np.ndarray:
        """Return the same of parameters on the host, where nothing is compiled."""
        leaves = [np.asarray(leaf.value).astype(self.dtype) for leaf in trees.leaves_of(parameters)]
        return np.concatenate([leaf.ravel() for leaf in leaves])

    # --- on the host ---

    @cached_property
    def layout(self) -> Flat:
        """Places of the parameters in a flat position, of a model that NumPy evaluates."""
        assert self.model.host is not None
        return Flat(self.structure, self.model.host.units)

    @cached_property
    def _prior(self) -> HostPrior | None:
        """The prior, where NumPy evaluates it."""
        if self.model.host is None or self.model.log_prior is None:
            return None
        return HostPrior(self.model.log_prior, self.model.host.prior_slopes, self.layout)

    def host_site(self, rows: PyTree, size: int, share: float) -> HostSite:
        """Return the part of a site in the posterior, of a model that NumPy evaluates."""
        assert self.model.host is not None
        assert self._prior is not None
        return HostSite(self.model.host.site(rows), self._prior, self.layout, size, share)

    def log_priors(self, points: np.ndarray) -> np.ndarray:
        """Return log p(θ) at each of the points (n, d), in double precision."""
        if self._prior is not None:
            return self._prior.values(points)
        return np.asarray(self._compiled_priors(jnp.asarray(points, self.dtype)), np.float64)

    def prior_gradient(self, point: np.ndarray) -> np.ndarray:
        """Return ∇ log p(θ), (d,); nothing is compiled."""
        if self._prior is not None:
            return self._prior.gradients(np.asarray(point)[None])[0]
        return np.asarray(jax.grad(self.log_prior)(jnp.asarray(point, self.dtype)), np.float64)

    def prior_hessian(self, point: np.ndarray) -> np.ndarray:
        """Return ∇² log p(θ), (d, d); nothing is compiled."""
        if self._prior is not None:
            return self._prior.derivatives(np.asarray(point)[None]).matrices[0]
        return np.asarray(jax.hessian(self.log_prior)(jnp.asarray(point, self.dtype)), np.float64)

    def group_sds(self, points: np.ndarray) -> np.ndarray:
        """Return `Model.group_sd` at each of the points (n, d), in double precision."""
        assert self.model.group_sd is not None
        if self.model.host is None:
            return np.asarray(self._compiled_group_sd(jnp.asarray(points, self.dtype)), np.float64)
        sds = self.model.group_sd(self.layout.params(points))
        return np.concatenate([sds[n].reshape(len(points), -1) for n in sorted(sds)], axis=1)

    def group_bundles(self, points: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Compute the correlations between sites at points (n, d), see `HostDensity`.

        Of each bundle come the places of its K members and the factors L, (n, K, K).
        """
        if self.model.host is None:
            return []
        places, bundles = self.layout.places, list[tuple[np.ndarray, np.ndarray]]()
        for members, factors in self.model.host.group_bundles(self.layout.params(points)):
            bundles.append((np.array([places[name][0].start + i for name, i in members]), factors))
        return bundles

    @cached_property
    def _compiled_priors(self) -> Any:
        return jax.jit(jax.vmap(self.log_prior))

    @cached_property
    def _compiled_group_sd(self) -> Any:
        return jax.jit(jax.vmap(self.group_sd))

    def log_prior(self, position: Array) -> Array:
        """Return log p(θ), a scalar; 0 when the model has no prior."""
        if self.model.log_prior is None:
            return jnp.zeros((), self.dtype)
        return jnp.asarray(self.model.log_prior(self.unravel(position)), self.dtype)

    def log_likelihood(self, position: Array, rows: PyTree) -> Array:
        """Return log p(z_i | θ), one value per row."""
        return jnp.asarray(self.model.log_likelihood(self.unravel(position), rows), self.dtype)

    def summands(self, position: Array, rows: PyTree, mask: Array) -> Array:
        """Return the log-likelihood's summands at a site: one for each row, 0 for padding.

        Of a model with a likelihood of each site it is that one number, (1,).
        """
        of_site = self.model.site_log_likelihood
        if of_site is not None:
            value = of_site(self.unravel(position), rows, mask)
            return jnp.asarray(value, self.dtype).reshape(1)
        return jnp.where(mask, self.log_likelihood(position, rows), 0)

    def rules_with(self, nodes: int) -> Integration:
        """Return the model's rules of quadrature, of which one has so many nodes.

        Raises:
            InputError: none has.
        """
        rules = self.model.integration
        if rules is None or nodes not in (rules.default, *rules.choices):
            raise InputError(f"the model has no rule of quadrature with {nodes} nodes.").at("nodes")
        return rules

    def with_nodes(self, nodes: int) -> Target:
        """Return the posterior with another rule of quadrature inside its likelihood.

        Raises:
            InputError: the model has no rule with so many nodes.
        """
        of_site = self.rules_with(nodes).with_nodes(nodes)
        model = replace(self.model, log_likelihood=None, site_log_likelihood=of_site)
        return Target(model, self.structure)

    def group_sd(self, position: Array) -> Array:
        """Return `Model.group_sd` as a flat vector (dimension,); the model has it."""
        assert self.model.group_sd is not None
        return self.ravel(self.model.group_sd(self.unravel(position)))

    def potential(self, position: Array, rows: PyTree, mask: Array, site: Site) -> Array:
        """Return U_c(θ) from all rows of a site; ``mask`` (rows,) leaves the padding out."""
        share = jnp.asarray(site.prior_share, self.dtype)
        if self.model.site_log_likelihood is not None:  # a number that no block of rows has
            total = jnp.sum(self.summands(position, rows, mask))
        else:
            total = sum_over_rows(self.summands, position, rows, mask)
        return -total - share * self.log_prior(position)

    def batch_potential(self, position: Array, rows: PyTree, site: Site) -> Array:
        """Return −(n_c/B) Σ_batch log p(z_i|θ) − λ_c log p(θ), unbiased for U_c(θ)."""
        share = jnp.asarray(site.prior_share, self.dtype)
        values = self.log_likelihood(position, rows)
        scale = jnp.asarray(site.size, self.dtype) / values.shape[0]
        return -scale * jnp.sum(values) - share * self.log_prior(position)


def any_target(dimension: int = 1) -> Target:
    """Return a posterior of so many parameters, where any will do."""
    model = Model(None, lambda parameters, rows: parameters, jnp.zeros(dimension))
    return Target(model, model.init)


def in_jax_width(leaf: np.ndarray) -> np.ndarray:
    """Return the array in JAX's own width: 64-bit data become 32-bit while JAX runs in 32 bits."""
    return leaf.astype(width_of(leaf.dtype), copy=False)

r"""Draws of a linear predictor on standardised columns, turned back to the columns' own units.

.. math::
    \beta_j = s_y \tilde\beta_j / s_j, \qquad
    a = m_y + s_y \Bigl(\tilde a - \sum_j \tilde\beta_j m_j / s_j\Bigr), \qquad
    \log\sigma = \log\tilde\sigma + \log s_y

with m and s the means and standard deviations of the columns and of the response (0 and 1 where
they are as they were). Every draw is turned by itself, so that means, intervals and correlations
are those of the turned parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from consortia.core.parameters import has_natural
from consortia.errors import InputError
from consortia.store.metadata import Scaling, recorded, scaling_of

SLOPES, CONSTANT, NOISE = "coefficients", "intercept", "log_noise_scale"
"""The variables of the ready models that have a linear predictor."""


def scaling_in(tree: Any) -> Scaling | None:
    """Read the standardisation of a result's columns from its record; None without one."""
    return scaling_of({"scaling": recorded(tree, "scaling")})


def in_column_units(tree: Any, scaling: Scaling | None = None) -> Any:
    """Return a result whose coefficients are per unit of the columns as they were read.

    A model without an intercept has one in these units: the predictor where all columns are 0.

    Args:
        tree: result of a run.
        scaling: of its columns; that of its record when None.

    Returns:
        `xarray.DataTree` with the groups ``posterior`` and ``sample_stats``; the result itself
        where no column was standardised, or its posterior holds natural quantities.

    Raises:
        InputError: the scaling is of another number of columns.

    Example:
        >>> import xarray
        >>> draws = xarray.Dataset(
        ...     {
        ...         "coefficients": (("chain", "draw", "coefficient"), np.ones((1, 2, 1))),
        ...         "intercept": (("chain", "draw"), np.zeros((1, 2))),
        ...     })
        >>> tree = xarray.DataTree.from_dict({"posterior": draws})
        >>> scaling = Scaling(("age",), (60.0,), (10.0,), None)
        >>> found = in_column_units(tree, scaling)["posterior"]
        >>> float(found["coefficients"][0, 0, 0]), float(found["intercept"][0, 0])
        (0.1, -6.0)
    """
    import xarray

    scaling = scaling_in(tree) if scaling is None else scaling
    if scaling is None or has_natural(tree):
        return tree
    posterior = tree["posterior"].to_dataset()
    groups = {"/posterior": posterior.assign(turned(posterior, scaling))}
    if "sample_stats" in tree.children:
        groups["/sample_stats"] = tree["sample_stats"].to_dataset()
    made = xarray.DataTree.from_dict(groups)
    made.attrs.update({key: value for key, value in tree.attrs.items() if key != "scaling"})
    return made


def turned(posterior: Any, scaling: Scaling | None) -> dict[str, Any]:
    """Return the variables of a posterior that are others in the units of the columns."""
    if scaling is None or SLOPES not in posterior:
        return {}
    variables = {str(name): posterior[name] for name in posterior.data_vars}
    slopes = variables[SLOPES]
    means, sds = np.asarray(scaling.means), np.asarray(scaling.sds)
    centre, unit = scaling.response or (0.0, 1.0)
    if slopes.shape[-1] != len(sds):
        raise InputError(
            f"the scaling is of {len(sds)} columns, the result has {slopes.shape[-1]} coefficients."
        )
    if scaling.basis is not None:
        return _in_basis(variables, np.asarray(scaling.basis))
    every = np.asarray(slopes) * (unit / sds)
    shift = slopes.isel({slopes.dims[-1]: 0}, drop=True)  # as an intercept has: without columns
    shift = shift.copy(data=-unit * (np.asarray(slopes) @ (means / sds)) + centre)
    changed: dict[str, Any] = {}
    ones = [index for index, name in enumerate(scaling.columns) if name == CONSTANT]
    if CONSTANT in variables:
        intercept = variables[CONSTANT]
        changed[CONSTANT] = intercept.copy(data=np.asarray(intercept) * unit + np.asarray(shift))
    elif ones:  # a column of ones: its coefficient is the intercept
        every[..., ones[-1]] += np.asarray(shift)
    else:
        changed[CONSTANT] = shift
    if NOISE in variables:
        changed[NOISE] = variables[NOISE] + np.log(unit)
    return {SLOPES: slopes.copy(data=every)} | changed


def _in_basis(variables: Mapping[str, Any], basis: np.ndarray) -> dict[str, Any]:
    """Return (a, β) = R (ã, β̃); without an intercept there is none in these units either."""
    slopes = variables[SLOPES]
    values = np.asarray(slopes)
    coefficients = {SLOPES: slopes.copy(data=values @ basis[1:, 1:].T)}
    if CONSTANT in variables:
        intercept = variables[CONSTANT]
        coefficients[CONSTANT] = intercept.copy(data=np.asarray(intercept) + values @ basis[0, 1:])
    return coefficients

"""What tests need of the package's insides: the one place that names its private members.

A test that needs one more gets a function here, so that a change of the source changes this file
and no test.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any

import jax
import numpy as np
import pytest

from consortia.algorithms import fa_hmc, gossip
from consortia.core.contract import Method
from consortia.data.columns import rows_of
from consortia.diagnostics.prediction import BiasPrediction
from consortia.engines import local, programs
from consortia.models.regression import model as regression_model
from consortia.models.regression.density import Density
from consortia.models.regression.design import factor_values
from consortia.models.regression.specification import Specification
from consortia.run import progress
from consortia.store import runs
from consortia.theory import stability
from consortia.theory.bias import Problem, known_law, prediction_by

replies_of_sites = programs._replies
"""Replies of some sites, site axis first."""

is_in_notebook = progress._in_notebook
"""Whether progress is shown in a notebook."""

groups_of_rows = regression_model._groups_of
"""Index of the group of each row of a column."""

open_group = runs._group
"""Reader of a group of a stored run, by its path, name and kept draws."""

stale_step_settles = stability._settles
"""Whether a step of a stale method settles at a curvature and a staleness."""


def compute_side_by_side(patch: pytest.MonkeyPatch, width: int) -> None:
    """Let every program compute so many sites at once."""
    patch.setattr(programs.SitePrograms, "_width", lambda self, points: width)


def forget_programs(patch: pytest.MonkeyPatch) -> None:
    """Hide the programs of earlier runs."""
    patch.setattr(programs, "_programs", OrderedDict())


def clear_programs() -> None:
    """Forget all compiled programs of this process."""
    jax.clear_caches()
    for kept in (local._programs, local._starts, programs._programs):
        kept.clear()


def compiler_options(panel: Any, points: int) -> dict[str, Any]:
    """Return the options with which a panel compiles a function of so many points."""
    return panel._programs._options(points)


def data_of(panel: Any) -> Any:
    """Return the data of the sites of a panel."""
    return panel._programs.arrays


def memory_of_program(panel: Any, function: Any, arrays: Any, points: int) -> Any:
    """Return the memory of a site function's program, as XLA analyses it."""
    made, sites = panel._programs, panel._programs.arrays
    numbers = np.array([0, len(panel.names)], np.int32)
    program = made._program(function, points)
    return program.lower(made._width(points), sites, arrays, numbers).compile().memory_analysis()


def family_parameters(density: Density, params: Any) -> dict[str, Any]:
    """Return the family's own parameters on their natural scale."""
    return density._auxiliary(params)


def slopes_of_basis(density: Density) -> np.ndarray:
    """Return the matrix from the sampled slopes to those of the columns."""
    return density.slopes_of_basis


def design_matrix(agreed: Specification, table: Any, where: str) -> np.ndarray:
    """Return X, (rows, p), in the units of the columns; the intercept's included."""
    return agreed.matrix(factor_values(agreed, table, where), rows_of(table))


def law_of_prior(prior: Any) -> Any:
    """Return SciPy's law of a prior in words."""
    return prior._law


def show_in_notebook(patch: pytest.MonkeyPatch) -> None:
    """Let progress be shown as in a notebook, at every step."""
    patch.setattr(progress, "_in_notebook", lambda: True)
    patch.setattr(progress, "SECONDS_BETWEEN_MOVES", -1.0)


def end_shown(bar: Any, rounds: int) -> int:
    """Return the round up to which progress is shown after so many."""
    return bar._moment(rounds, 0).end


def moment_shown(shown: Any, rounds: int) -> Any:
    """Return the text of the progress after so many rounds."""
    return shown._moment(rounds, 0)


def wrap_gradients(patch: pytest.MonkeyPatch, method: str, wrapper: Any) -> None:
    """Wrap the gradient estimate with which "fa_hmc" or "gossip" builds its functions."""
    module, name = {"fa_hmc": (fa_hmc, "_oracle"), "gossip": (gossip, "_estimate")}[method]
    made = getattr(module, name)
    patch.setattr(module, name, lambda *given: wrapper(made(*given)))


def own_answer(potentials: Any, what: str, position: np.ndarray) -> Any:
    """Return a process's contribution to a request of all."""
    return potentials._own(what, position)


def without_skewness(problem: Problem, method: Method) -> BiasPrediction:
    """The prediction from the Gaussian law alone, as of sites that have sent no more than that."""
    vars(problem)["near"] = dataclasses.replace(problem.near, k_hat=None, offset=0.0)
    return prediction_by(method, problem, known_law(method, problem))

"""Step sizes over the iterations, and the step sizes that the papers prescribe.

Wherever an argument is called ``step_size`` it takes a number, an array with one value for each
iteration, or a function of the iteration; `as_schedule` makes a schedule of any of them. The
schedules of this module are values: hashable, equal when their numbers are, and callable with an
iteration counted from 0, a Python integer or an integer array, traced or not. An iteration is what
the algorithm counts: one synchronisation of `fa_hmc`, one visit of `fsgld`, one step of the rest.

The prescriptions come from theorems with unnamed constants, under assumptions (strong convexity,
smoothness) that real posteriors seldom meet. They give the *order* of a step size; each says
what it leaves open. What a step size means differs between the algorithms: see each of them.
"""

from __future__ import annotations

from consortia.schedules.prescriptions import (
    de_sghmc_step_size,
    de_sgld_step_size,
    fa_hmc_first_stage,
    fa_hmc_step_size,
    stale_error_step_size,
    stale_variance_step_size,
)
from consortia.schedules.values import (
    Constant,
    Polynomial,
    Schedule,
    Stages,
    Tabulated,
    Unchosen,
    as_schedule,
    constant,
    evaluate,
    fa_hmc_stages,
    polynomial,
    varying,
)

__all__ = [
    "Constant",
    "Polynomial",
    "Schedule",
    "Stages",
    "Tabulated",
    "Unchosen",
    "as_schedule",
    "constant",
    "de_sghmc_step_size",
    "de_sgld_step_size",
    "evaluate",
    "fa_hmc_first_stage",
    "fa_hmc_stages",
    "fa_hmc_step_size",
    "polynomial",
    "stale_error_step_size",
    "stale_variance_step_size",
    "varying",
]

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

from consortia.core import public
from consortia.schedules.participation import participation as participation
from consortia.schedules.prescriptions import de_sghmc_step_size as de_sghmc_step_size
from consortia.schedules.prescriptions import de_sgld_step_size as de_sgld_step_size
from consortia.schedules.prescriptions import fa_hmc_first_stage as fa_hmc_first_stage
from consortia.schedules.prescriptions import fa_hmc_step_size as fa_hmc_step_size
from consortia.schedules.prescriptions import stale_error_step_size as stale_error_step_size
from consortia.schedules.prescriptions import stale_variance_step_size as stale_variance_step_size
from consortia.schedules.values import Constant as Constant
from consortia.schedules.values import Polynomial as Polynomial
from consortia.schedules.values import Schedule as Schedule
from consortia.schedules.values import Stages as Stages
from consortia.schedules.values import Tabulated as Tabulated
from consortia.schedules.values import Unchosen as Unchosen
from consortia.schedules.values import as_schedule as as_schedule
from consortia.schedules.values import constant as constant
from consortia.schedules.values import evaluate as evaluate
from consortia.schedules.values import fa_hmc_stages as fa_hmc_stages
from consortia.schedules.values import polynomial as polynomial
from consortia.schedules.values import varying as varying

__all__ = public.names(vars())

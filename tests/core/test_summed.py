"""Which algorithms need the sums over the sites alone."""

from __future__ import annotations

import pytest

import consortia
from consortia.core.summed import AVERAGED, GATHERED, ONE_SITE, unsummed
from consortia.core.target import any_target
from consortia.diagnostics.site_sums import SiteSums


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (consortia.federated_hmc(step_size=0.1), None),
        (consortia.fa_hmc(1e-3, leapfrog_steps=3, local_steps=2), AVERAGED),
        (consortia.dsgld(1e-3, local_steps=2, batch_size=2), ONE_SITE),
        (SiteSums(), GATHERED),
    ],
)
def test_an_algorithm_says_why_sums_are_not_enough(
    method: consortia.core.contract.Method, why: str | None
) -> None:
    assert unsummed(method.build(any_target(2))) == why

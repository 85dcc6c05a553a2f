"""Section 5.2 of the FA-HMC paper: rounds against the dimension."""

from __future__ import annotations

import numpy as np
import pytest

from consortia.oracles import fa_hmc_law
from experiments.fa_hmc import dimension


@pytest.mark.parametrize(("d", "rounds"), dimension.EXPECTED_ROUNDS.items())
def test_the_rounds_equal_the_table(d: int, rounds: int) -> None:
    # The law is exact; one round of slack for a distance that rounding puts across the bound.
    assert abs(dimension.rounds_needed(d) - rounds) <= 1


def test_the_squared_rounds_at_1000_dimensions_end_the_axis_of_the_figure() -> None:
    assert dimension.rounds_needed(1000) ** 2 == pytest.approx(4.37e7, rel=0.001)


def test_one_coordinate_with_a_share_of_the_threshold_equals_the_whole_law() -> None:
    d = 3
    whole = fa_hmc_law(
        np.outer(dimension.MEANS, np.ones(d)),
        dimension.CURVATURES,
        (0.5, 0.5),
        step_size=dimension.step_size(d),
        leapfrog_steps=dimension.LEAPFROG_STEPS,
        local_steps=dimension.LOCAL_STEPS,
    )
    rounds = whole.rounds_to_w2_squared(dimension.THRESHOLD, dimension.START)
    assert dimension.rounds_needed(d) == rounds


def test_the_target_is_that_of_the_paper_with_a_standard_deviation_of_two() -> None:
    exact = dimension.law(2)
    np.testing.assert_allclose(exact.target.mean, [16.2])
    np.testing.assert_allclose(exact.target.variance, [1.6])


def test_the_slope_over_the_table_is_that_of_root_d_with_its_logarithm() -> None:
    # .5 without the logarithm; a step size that does not shrink with d gives about .1
    assert dimension.slope(dimension.EXPECTED_ROUNDS) == pytest.approx(0.587, abs=0.001)


@pytest.mark.slow
def test_sampler_and_law_agree_in_the_quick_run() -> None:
    results = dimension.study("quick", 0)
    assert len(results["rounds"]) == 21
    check = results["check"]
    # two scores of one fixed seed; 4.5 sigma is passed by chance in 1 run of 70,000 each
    assert abs(check["mean_z"]) < 4.5
    assert abs(check["variance_z"]) < 4.5
    # the start is 6 standard deviations away: the run must have come near the target
    assert check["w2_squared"] < 1

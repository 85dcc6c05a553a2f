"""Appendix 2 of the MA-HMC paper: linear regression at four agents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.decentralized import linear


@pytest.mark.slow
def test_the_quick_run_agrees_with_the_law_and_shows_both_findings(
    require_data: Callable[[str], Path],
) -> None:
    require_data("boston")
    results = linear.study("quick", 0)
    for split in ("rows", "features"):
        for check in results[split]["checks"]:
            # 2 × 2 × 13 scores of either kind at one fixed seed.
            assert check["largest_mean_z"] < 4.5
            assert check["largest_variance_z"] < 4.5
        laws = {(law["variant"], law["step_size"]): law for law in results[split]["laws"]}
        small = linear.PAPER_STEP
        for kind in ("least_sd_ratio", "largest_sd_ratio"):
            published = laws["published", small]["in_the_end"][kind]
            assert published == pytest.approx(0.7071, abs=1e-3)
            assert laws["corrected", small]["in_the_end"][kind] == pytest.approx(1, abs=1e-3)
        # The paper's 100,000 iterations are a small part of a relaxation time.
        assert laws["corrected", small]["relaxation"] > 5 * linear.PAPER_ITERATIONS
    # The split by features is another posterior: correlated features are counted twice.
    assert results["features_against_rows"]["mean_apart_in_sds"] > 2

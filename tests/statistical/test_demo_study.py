"""The demo study agrees with NUTS on the pooled data, by chosen and by given settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needs import needs

import consortia
from consortia.diagnostics import Summary, summary
from consortia.diagnostics.reference import nuts
from consortia.study.build import Built, load_study

pytestmark = pytest.mark.slow
needs("blackjax", extra="reference")

STUDY = Path(__file__).resolve().parents[2] / "examples" / "breast_cancer_fa_hmc.toml"
LONG_VISITS = consortia.fa_hmc(0.05, leapfrog_steps=2, local_steps=5, debias=True)
"""Five iterations between two averages, too long a way for plain averaging."""

LONG_RUN: dict[str, Any] = {"rounds": 30_000, "warmup": 500, "thin": 10}
LARGEST_SHIFT, RATIOS = 0.15, (0.9, 1.1)


@pytest.fixture(scope="module")
def built() -> Built:
    return load_study(STUDY).build()


@pytest.fixture(scope="module")
def reference(built: Built) -> Any:
    """4 × 5,000 draws: means to .01 sd, so that what is left is the run's own error."""
    tree = nuts(built.model, built.sites, draws=5000, warmup=1000, chains=4, seed=17)
    assert tree.attrs["divergences"] == 0
    assert summary(tree)["ess_bulk"].min() > 8000
    return tree


def run(built: Built, reference: Any, algorithm: Any, **changes: Any) -> Summary:
    """The study's run, with another algorithm, beside the long reference."""
    options = load_study(STUDY).run_options | changes
    tree = consortia.sample(built.model, built.sites, algorithm, **options, progress=False)
    return summary(tree, reference=reference)


@pytest.mark.parametrize("given", [False, True])
def test_means_and_spreads_agree_with_the_reference(built, reference, given):
    """With the settings that are chosen, and with those of long visits."""
    method, length = (LONG_VISITS, LONG_RUN) if given else (built.algorithm, {})
    table = run(built, reference, method, **length)
    # With an ESS of 1,000 a mean is known to .032 sd and an sd to about 2.5 %.
    assert table["ess_bulk"].min() > 1000
    assert table["r_hat"].max() < 1.01
    assert np.abs(table["shift"]).max() < LARGEST_SHIFT
    assert table["sd_ratio"].min() > RATIOS[0]
    assert table["sd_ratio"].max() < RATIOS[1]


def test_without_debias_the_same_trajectories_would_fail(built, reference):
    plain = dataclasses.replace(LONG_VISITS, debias=False)
    table = run(built, reference, plain, **LONG_RUN)
    assert np.abs(table["shift"]).max() > LARGEST_SHIFT

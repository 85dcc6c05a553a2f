"""The demo studies agree with NUTS on the pooled data, and the check can fail."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needs import needs

from consortia import sample
from consortia.diagnostics import Summary, summary
from consortia.diagnostics.reference import nuts
from consortia.study.build import Built, load_study

pytestmark = pytest.mark.slow
needs("blackjax", extra="reference")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STUDIES = ("breast_cancer_fa_hmc", "breast_cancer_debiased")
LARGEST_SHIFT, RATIOS = 0.15, (0.9, 1.1)


@pytest.fixture(scope="module")
def built() -> dict[str, Built]:
    return {name: load_study(EXAMPLES / f"{name}.toml").build() for name in STUDIES}


@pytest.fixture(scope="module")
def reference(built: dict[str, Built]) -> Any:
    """4 × 5,000 draws: means to .01 sd, so that what is left is the run's own error."""
    one = built["breast_cancer_fa_hmc"]
    tree = nuts(one.model, one.sites, draws=5000, warmup=1000, chains=4, seed=17)
    assert tree.attrs["divergences"] == 0
    assert summary(tree)["ess_bulk"].min() > 8000
    return tree


def run(name: str, built: Built, reference: Any, **changes: Any) -> Summary:
    """The study's run, whole unless said otherwise, beside the long reference."""
    options = load_study(EXAMPLES / f"{name}.toml").run_options | changes
    tree = sample(built.model, built.sites, built.algorithm, **options, progress=False)
    return summary(tree, reference=reference)


def test_both_studies_are_of_the_same_sites(built):
    one, two = (built[name].sites for name in STUDIES)
    assert one.names == two.names
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a["x"], b["x"])
        np.testing.assert_array_equal(a["y"], b["y"])


@pytest.mark.parametrize("name", STUDIES)
def test_means_and_spreads_agree_with_the_reference(built, reference, name):
    table = run(name, built[name], reference)
    # With an ESS of 1,000 a mean is known to .032 sd and an sd to about 2.5 %.
    assert table["ess_bulk"].min() > 1000
    assert table["r_hat"].max() < 1.01
    assert np.abs(table["shift"]).max() < LARGEST_SHIFT
    assert table["sd_ratio"].min() > RATIOS[0]
    assert table["sd_ratio"].max() < RATIOS[1]


def test_without_debias_the_same_trajectories_would_fail(built, reference):
    name = "breast_cancer_debiased"
    plain = dataclasses.replace(built[name].algorithm, debias=False)
    table = run(name, dataclasses.replace(built[name], algorithm=plain), reference)
    assert np.abs(table["shift"]).max() > LARGEST_SHIFT

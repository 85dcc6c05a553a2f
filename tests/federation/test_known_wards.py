"""Predictions of known wards after a study by letters: at the site that has them, and elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import consortia
from tests.federation.correspondence import published
from tests.federation.hospitals import NAMES
from tests.refusals import refused

RATES = {"north": (0.05, 0.5, 0.9), "south": (0.9, 0.2, 0.4), "west": (0.3, 0.3, 0.7)}
FORMULA = "died ~ x + (1 | site:ward)"
PATIENTS = {"ward": ["w0", "w1", "w2"], "x": [0.0, 1.0, -1.0]}


def rows_of(site: str) -> dict[str, Any]:
    """Return 50 patients of each ward of a hospital; wards of all hospitals have equal names."""
    rng = np.random.default_rng(NAMES.index(site))
    ward, x = np.repeat(np.arange(3), 50), rng.normal(size=150)
    level = np.array(RATES[site])[ward]
    died = rng.random(150) < 1 / (1 + (1 / level - 1) * np.exp(-0.5 * x))
    return {"ward": [f"w{one}" for one in ward], "x": x, "died": died.astype(int)}


@pytest.mark.slow
def test_a_site_predicts_its_wards_from_its_rows_and_nobody_else_can(tmp_path: Path) -> None:
    rows = {name: rows_of(name) for name in NAMES}
    files = ", ".join(f'"{name}.csv"' for name in NAMES)
    asked = (
        f'[data]\nfiles = [{files}]\n[model]\nformula = "{FORMULA}"\nfamily = "bernoulli"\n'
        '[algorithm]\nname = "few_rounds"\n[run]\nchains = 4\n[output]\nfigure = false\n'
    )
    run = published(tmp_path / "study", asked, rows)
    tree = consortia.open_run(run)
    every = consortia.regression(FORMULA, rows, family="bernoulli")
    parts = every.model, every.sites, consortia.few_rounds(effective_size=2000)
    alone = consortia.sample(*parts, seed=3, progress=False, metadata=every.metadata)
    for name in NAMES:
        here = consortia.regression(FORMULA, {name: rows[name]}, family="bernoulli",
                                    prior_from=run)  # fmt: skip
        found = np.asarray(here.predict(tree, PATIENTS, name)).reshape(-1, 3)
        wanted = np.asarray(every.predict(alone, PATIENTS, name)).reshape(-1, 3)
        sd = wanted.std(axis=0)
        assert np.abs((found.mean(axis=0) - wanted.mean(axis=0)) / sd).max() < 0.15
        np.testing.assert_allclose(found.std(axis=0), sd, rtol=0.12)
        assert wanted[:, 0].mean() == pytest.approx(RATES[name][0], abs=0.12)
    new = np.asarray(here.predict(tree, PATIENTS)).reshape(-1, 3)  # wards of a new site
    assert new.std(axis=0).min() > 0.2
    with refused(argument="ward", match="'w3'"):
        here.predict(tree, PATIENTS | {"ward": ["w0", "w1", "w3"]}, name)

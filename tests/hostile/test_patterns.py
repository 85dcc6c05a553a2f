"""A table of categorical columns, from whose log-likelihoods a server reads counts of patterns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from federation.hospitals import NAMES, study
from scipy.special import expit

from consortia.algorithms.few_rounds.site_functions import FUNCTIONS
from consortia.errors import SiteRefusedError
from consortia.federation.governance import verify
from consortia.federation.governance.proposal import proposed
from consortia.federation.governance.terms import terms_of
from consortia.federation.rehearsal.stage import Stage
from consortia.study.build import load_study


def stage_of(folder: Path, columns: int) -> tuple[Stage, np.ndarray]:
    """A study of three binary columns, and of a fourth which is rare; the rows of north."""
    rng = np.random.default_rng(3)
    tables = {}
    for name, count in (("north", 120), ("south", 300), ("west", 200)):
        x = (rng.random((count, 4)) < [0.5, 0.3, 0.4, 0.02])[:, :columns] * 1
        ill = rng.random(count) < expit(0.6 * x.sum(1) - 0.8)
        tables[name] = np.c_[x, ill * 1]
        lines = [",".join([*(f"x{n}" for n in range(columns)), "ill"])]
        lines += [",".join(map(str, row)) for row in tables[name]]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    path = folder / "study.toml"
    path.write_text(study())
    files = {name: folder / f"{name}.csv" for name in NAMES}
    text = proposed(terms_of(load_study(path)))
    return Stage(path, files, folder / "sites", text), tables["north"]


def test_no_answer_of_a_table_with_a_rare_pattern_leaves(tmp_path: Path) -> None:
    stage, _ = stage_of(tmp_path, 4)
    with pytest.raises(SiteRefusedError) as caught:
        stage.run()
    (name,) = caught.value.sites
    assert "does not permit this; the site has the details" in caught.value.reason
    folder = tmp_path / "sites" / name
    assert "minimum_pattern_rows: a pattern of the" in (folder / "errors.log").read_text()
    lines = verify(folder / "ledger.jsonl").entries
    assert {one.kind for one in lines if one.event == "released"} == {"description"}


def test_what_is_read_of_a_table_that_is_answered_has_no_rare_pattern(tmp_path: Path) -> None:
    stage, rows = stage_of(tmp_path, 3)
    stage.run()
    patterns, counts = np.unique(rows[:, :3], axis=0, return_counts=True)
    assert counts.min() >= 3
    # An honest server reads the number of each, as the threat model says: a log-likelihood is
    # linear in them, and in the totals of the response.
    z = np.c_[patterns, np.ones(len(patterns))]
    design, values = [], []
    for one in stage.log["north"]:
        if "potentials" not in one.answer.arrays:
            continue
        given = FUNCTIONS["log_densities"].complete(one.request.arrays)
        reference, points = (np.asarray(given[k], float) for k in ("reference", "points"))
        terms = [np.c_[np.logaddexp(0, at @ z.T), -at] for at in (points, reference[None])]
        prior = (points**2).sum(1) - (reference**2).sum()
        design.append(terms[0] - terms[1])
        values.append(one.answer.arrays["potentials"] - 120 / 620 * prior / 2)
    found = np.linalg.lstsq(np.concatenate(design), np.concatenate(values))[0]
    assert np.rint(found[:8]).tolist() == counts.tolist()

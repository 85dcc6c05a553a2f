"""A table of categorical columns, from whose log-likelihoods a server reads counts of patterns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from federation.hospitals import NAMES, study
from scipy.special import expit

from consortia.algorithms.few_rounds.site_functions import FUNCTIONS
from consortia.core.queries import highest_sent
from consortia.engines.messages.envelope import Envelope
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
    # An honest server reads about the number of each, as the threat model says: a log-likelihood is
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
        own = one.answer.arrays["potentials"]
        kept = one.answer.arrays.get("not finite: potentials", np.zeros(len(own))) == 0
        sd = 0.15
        kept &= own < highest_sent(120, 1, sd) - 5 * sd  # near the height roulette has moved some
        design.append(((terms[0] - terms[1]) / sd)[kept])
        values.append(((own - sd**2 / 2 - 120 / 620 * prior / 2) / sd)[kept])
    whitened = np.concatenate(design)
    estimate = np.linalg.lstsq(whitened, np.concatenate(values))[0][: len(counts)]
    errors = np.sqrt(np.diag(np.linalg.inv(whitened.T @ whitened)))[: len(counts)]
    # Eight numbers beyond 4 standard errors by chance: 5e-4. So small errors tell the counts.
    assert np.abs((estimate - counts) / errors).max() < 4
    assert errors.max() < 1


# --- beside a column of measurements --------------------------------------------------------------


def mixed_stage(folder: Path, more: str = "") -> Stage:
    """A study of four binary columns and a measurement, whose patterns of two rows are rare."""
    rng = np.random.default_rng(3)
    for name, count in (("north", 90), ("south", 300), ("west", 200)):
        x = (rng.random((count, 4)) < [0.5, 0.3, 0.2, 0.15]) * 1
        age = rng.normal(size=count).round(3)
        ill = (rng.random(count) < expit(0.5 * x.sum(1) + 0.3 * age - 0.8)) * 1
        lines = ["a,b,c,d,age,ill", *(",".join(map(str, r)) for r in np.c_[x, age, ill])]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    path = folder / "study.toml"
    path.write_text(study(f'name = "few_rounds"\n{more}'))
    files = {name: folder / f"{name}.csv" for name in NAMES}
    return Stage(path, files, folder / "sites", proposed(terms_of(load_study(path))))


def asked(stage: Stage, function: str, **arrays: np.ndarray) -> Envelope:
    """What north answers to a question of a lying server, as the first of its run."""
    stage.run(lambda request: request.kind == "query" and request.site == "north")
    assert stage.halted_at is not None
    index = sorted(FUNCTIONS).index(function)
    question = replace(
        stage.halted_at,
        label=(3, 0, index, 0),
        values={"function": function},
        arrays={name: np.asarray(values, np.float32) for name, values in arrays.items()},
    )
    return stage.ask("north", question)


def why(folder: Path) -> str:
    return (folder / "sites" / "north" / "errors.log").read_text()


def test_exact_sums_of_a_table_with_a_rare_pattern_do_not_leave(tmp_path: Path) -> None:
    points = np.random.default_rng(0).normal(size=(4, 6))
    points[:, 4] = 0  # what is left is a sum over patterns
    stage = mixed_stage(tmp_path, "gradients = true")
    answer = asked(stage, "derivatives", reference=np.zeros(6), points=points)
    assert answer.kind == "refusal"
    assert not answer.arrays
    assert "minimum_pattern_rows: a pattern of the" in why(tmp_path)


@pytest.mark.parametrize("function", ["derivatives", "slopes", "scores"])
def test_exact_sums_that_the_study_does_not_query_do_not_leave(
    tmp_path: Path, function: str
) -> None:
    answer = asked(mixed_stage(tmp_path), function, reference=np.zeros(6), points=np.zeros((1, 6)))
    assert answer.kind == "refusal"
    assert not answer.arrays
    assert f"functions: the study does not query the function {function}" in why(tmp_path)


def test_an_ordinary_study_with_such_a_table_has_its_posterior(tmp_path: Path) -> None:
    tree = mixed_stage(tmp_path).run()
    assert tree.attrs["communication_rounds"] <= 5


def test_a_share_of_the_prior_that_is_not_a_sites_is_refused(tmp_path: Path) -> None:
    stage = mixed_stage(tmp_path)
    zeros = np.zeros((3, 6))
    answer = asked(stage, "local_fits", reference=zeros[0], starts=zeros, share=np.array(3e3))
    assert answer.kind == "refusal"
    assert not answer.arrays
    assert "share is 3000.0, expected 1/3" in why(tmp_path)


@pytest.mark.parametrize("far", [[0, 0, 0, 0, 0, 60.0], [1e30, 0, 0, 0, 0, 0], [np.nan] * 6])
def test_a_reference_is_bounded_as_points_are(tmp_path: Path, far: list[float]) -> None:
    points = np.zeros((1, 6))
    answer = asked(mixed_stage(tmp_path), "log_densities", reference=far, points=points)
    assert answer.kind == "refusal"
    assert "maximum_position" in answer.values["reason"]


def test_a_rule_that_the_model_does_not_have_is_refused(tmp_path: Path) -> None:
    more = {"reference": np.zeros(6), "points": np.zeros((1, 6)), "rule": np.zeros(500)}
    answer = asked(mixed_stage(tmp_path), "log_densities", **more)
    assert answer.kind == "refusal"
    assert "no rule of quadrature with 500 nodes" in why(tmp_path)

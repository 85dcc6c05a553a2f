"""What answers give away of single rows where levels are integrated out at the sites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.algorithms.few_rounds.site_functions import FUNCTIONS
from consortia.core.queries import Revealed
from consortia.core.target import Target
from consortia.engines.flower.settled import CELL_STEP, Settled
from consortia.federation.governance.proposal import proposed
from consortia.federation.governance.terms import terms_of
from consortia.federation.rehearsal import rehearsed
from consortia.study.build import load_study
from consortia.surrogates.fit_rounding import CURVATURE_UNIT, PULL_UNIT, rounded_fits

PNEUMONIA = Path(__file__).parents[2] / "examples" / "pneumonia"

CASES = {
    "levels": ("y ~ x + z + (1 | site)", "bernoulli", {}),
    "weights": ("y ~ x + z + (1 | site)", "poisson", {"weights": "w"}),
    "slopes": ("y ~ x + z + (1 + x | site)", "bernoulli", {}),
    "groups": ("y ~ x + z + (1 | site:ward)", "poisson", {}),
    "response": ("y ~ x + z + (1 | site)", "gaussian", {}),
    "tails": ("y ~ x + z + (1 | site)", "bernoulli", {"prior": {"x": "cauchy(0, 1)"}}),
}


def site_of(case: str, rows: int = 14) -> tuple[Target, dict[str, np.ndarray]]:
    """A regression at two sites, and the rows of the first."""
    formula, family, options = CASES[case]
    tables = {}
    for seed, name in enumerate(("a", "b")):
        rng = np.random.default_rng(seed)
        table: dict[str, Any] = {"x": rng.normal(size=rows), "z": rng.normal(60, 9, rows)}
        table["w"], table["ward"] = rng.uniform(1, 2, rows), rng.choice(["u", "v", "t"], rows)
        draw = {"gaussian": rng.normal, "poisson": rng.poisson}.get(family)
        table["y"] = draw(2.0, size=rows) if draw else rng.integers(0, 2, rows)
        tables[name] = table
    made = consortia.regression(formula, tables, family=family, **options)
    held = {name: np.asarray(values) for name, values in made.sites.site("a").items()}
    return Target(made.model, made.model.init), held


def measure_of(target: Target, rows: dict[str, np.ndarray], folder: Path) -> Settled:
    return Settled(target, rows, len(rows["y"]), folder / "one.bin", 1)


def moved(
    measure: Settled, rows: dict[str, np.ndarray], row: int, unknown: int, sign: int
) -> dict[str, np.ndarray]:
    """The rows with one value of one row moved."""
    wide = {
        name: np.array(values, float) if values.dtype.kind == "f" else values
        for name, values in rows.items()
    }
    for name, moves in zip(sorted(wide), measure.unknowns.moves, strict=True):
        for index, column, ratio in moves:
            if index == unknown:
                step = sign * CELL_STEP * ratio * measure.unknowns.units[unknown]
                wide[name].reshape(len(wide["y"]), -1)[row, column] += step
    return wide


@pytest.mark.parametrize("case", CASES)
def test_the_derivatives_by_rows_are_those_of_the_site_s_log_density(
    case: str, tmp_path: Path
) -> None:
    target, rows = site_of(case, rows=8)
    measure, host = measure_of(target, rows, tmp_path), target.model.host
    assert host is not None
    points = np.random.default_rng(5).normal(0, 0.3, (3, target.dimension))
    flat, every = target.layout, np.arange(target.dimension)
    upper = np.triu_indices(target.dimension)

    def sums(held: dict[str, np.ndarray]) -> dict[int, np.ndarray]:
        site = host.site(held)

        def values(at: np.ndarray) -> np.ndarray:
            return site.values(flat.params(at), None)

        def gradients(at: np.ndarray) -> np.ndarray:
            return np.moveaxis(flat.differences(values, at, every), 0, 1)

        curvatures = np.moveaxis(flat.differences(gradients, points, every), 0, 1)
        return {0: values(points), 1: gradients(points), 2: curvatures[:, *upper]}

    made = measure._derivatives((0, 1, 2), points, ())
    assert measure.unknowns.each == {"response": 3, "weights": 4, "groups": 3}.get(case, 2)
    column = 0
    for row in measure.unknowns.rows:
        for unknown in range(measure.unknowns.each):
            ends = [sums(moved(measure, rows, row, unknown, sign)) for sign in (1, -1)]
            steps = 2 * CELL_STEP * measure.unknowns.units[unknown]
            for order in (0, 1):
                exact = (ends[0][order] - ends[1][order]).ravel() / steps
                unit = np.abs(made[order]).max()
                np.testing.assert_allclose(made[order][:, column], exact, atol=0.01 * unit)
            column += 1
    assert column == made[0].shape[1]


@pytest.mark.parametrize("case", ["levels", "slopes", "response"])
def test_a_widened_fit_says_no_more_than_is_measured(case: str, tmp_path: Path) -> None:
    target, rows = site_of(case, rows=16)
    measure, function = measure_of(target, rows, tmp_path), FUNCTIONS["local_fits"]
    start = np.zeros(target.dimension)
    arrays = {"starts": start[None], "reference": start, "share": np.array(0.5)}

    def fit(held: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert function.evaluate is not None
        return dict(function.evaluate(target, arrays, target.host_site(held, 16, 0.5)))

    def numbers(answer: dict[str, np.ndarray]) -> np.ndarray:
        w, wb, _, wv, *_ = answer["spread"]
        return np.concatenate([answer["precisions"][0], answer["pulls"][0], wb / w, wv / w])

    exact, (answer, errors) = fit(rows), rounded_fits(fit(rows), 16, np.random.default_rng(0), 1.0)
    v = exact["spread"][3] / exact["spread"][0]
    of_v, of_b = v * CURVATURE_UNIT / np.sqrt(16), np.sqrt(v) * PULL_UNIT
    spread = np.concatenate([of_b, of_v]) / np.sqrt(6)
    error = np.concatenate([errors["precisions"][0], errors["pulls"][0], spread])
    columns = []
    for row in measure.unknowns.rows:
        for unknown in range(measure.unknowns.each):
            ends = [numbers(fit(moved(measure, rows, row, unknown, sign))) for sign in (1, -1)]
            columns.append((ends[0] - ends[1]) / (2 * CELL_STEP) / error)
    said = np.stack(columns, axis=1)
    believed = np.concatenate(
        [measure._information(one) for one in function.reveals(target, arrays, answer, errors)]  # type: ignore[misc]
    )
    sd = [
        np.sqrt(np.diagonal(np.linalg.inv(part.T @ part + np.eye(part.shape[1]))))
        for part in (said, believed)
    ]
    assert sd[0].min() < 0.95  # it says something
    assert (sd[1] < 1.02 * sd[0]).mean() > 0.95
    assert sd[1].min() < 1.02 * sd[0].min()


def test_distances_between_rules_are_counted(tmp_path: Path) -> None:
    target, rows = site_of("levels")
    points = np.random.default_rng(5).normal(0, 2, (4, target.dimension))
    rules, measure = (3, 5, 60), measure_of(target, rows, tmp_path)
    apart = measure._derivatives((0,), points, rules)[0].reshape(4, 3, -1)
    last = _of_rule(target, rows, points, measure, 60)
    for index, nodes in enumerate(rules):
        # The middle of a coarse rule moves with the rows, too: of the same size, not the same.
        exact = np.linalg.norm(_of_rule(target, rows, points, measure, nodes) - last)
        assert 0.5 * exact <= np.linalg.norm(apart[:, index]) + 1e-6
    many = np.random.default_rng(6).normal(0, 2, (40, target.dimension))
    told = Revealed(many, (0,), errors={0: np.full((40, 3), 1e-7)}, rules=rules)
    assert measure.add([told]).settled > 0


def _of_rule(
    target: Target, rows: dict[str, np.ndarray], points: np.ndarray, measure: Settled, nodes: int
) -> np.ndarray:
    host, columns = target.model.host, []
    assert host is not None
    for row in measure.unknowns.rows:
        for unknown in range(measure.unknowns.each):
            ends = [
                host.site(moved(measure, rows, row, unknown, sign)).values(
                    target.layout.params(points), nodes
                )
                for sign in (1, -1)
            ]
            columns.append((ends[0] - ends[1]) / (2 * CELL_STEP * measure.unknowns.units[unknown]))
    return np.stack(columns, axis=1)


def test_a_study_with_levels_at_its_sites_needs_no_exception_from_the_policy() -> None:
    terms = terms_of(load_study(PNEUMONIA / "study.toml"))
    assert terms.measured
    text = proposed(terms)
    assert "unmeasured" not in text
    assert "maximum_settled_rows = 0" in text
    assert 'unmeasured = ["few_rounds"]' in proposed(replace(terms, measured=False))


def test_a_partial_likelihood_is_not_measured_and_the_policy_says_so(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(
        """[data]
files = ["a.csv", "b.csv", "c.csv"]
[model]
formula = "Surv(time, died) ~ age"
family = "cox"
[algorithm]
name = "few_rounds"
[run]
rounds = 100
"""
    )
    terms = terms_of(load_study(path))
    assert not terms.measured
    text = proposed(terms)
    assert "CANNOT be measured" in text
    assert 'unmeasured = ["few_rounds"]' in text


@pytest.mark.slow
def test_a_rehearsal_measures_what_leaves_of_levels_that_stay(tmp_path: Path) -> None:
    names = [f"{name}.csv" for name in ("aarhus", "bilbao", "cork")]
    for name in names:
        (tmp_path / name).write_text((PNEUMONIA / name).read_text())
    study = tmp_path / "study.toml"
    study.write_text(
        f"""[data]
files = {names}
[model]
formula = "died ~ age + arm + (1 | site)"
family = "bernoulli"
[algorithm]
name = "few_rounds"
[run]
rounds = 100
seed = 1
"""
    )
    findings = {one.attack: one for one in rehearsed(study, tmp_path / "aarhus.csv")}
    honest, lying = findings["an honest run"], findings["a server that lies"]
    assert honest.known
    assert not honest.refused
    assert honest.numbers["settled"] == 0
    assert lying.numbers["settled_before"] > 40
    assert lying.numbers["settled_after"] == 0

"""What answers give away of single rows where levels are integrated out at the sites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import least_squares
from sparse import sparse

import consortia
from consortia.core.queries import Revealed
from consortia.core.target import Target
from consortia.engines.messages.settled import CELL_STEP, Settled
from consortia.federation.governance.proposal import proposed
from consortia.federation.governance.terms import terms_of
from consortia.federation.rehearsal import rehearsed
from consortia.federation.rehearsal.attacks import MOST_ASKED
from consortia.study.build import load_study
from consortia.surrogates.fit_rounding import revealed_by_fits
from consortia.surrogates.newton import newton

PNEUMONIA = Path(__file__).parents[2] / "examples" / "pneumonia"

CASES = {
    "levels": ("y ~ x + z + (1 | site)", "bernoulli", {}),
    "weights": ("y ~ x + z + (1 | site)", "poisson", {"weights": "w"}),
    "slopes": ("y ~ x + z + (1 + x | site)", "bernoulli", {}),
    "groups": ("y ~ x + z + (1 | site:ward)", "poisson", {}),
    "response": ("y ~ x + z + (1 | site)", "gaussian", {}),
    "no columns": ("y ~ 1 + (1 | site)", "gaussian", {}),
    "times": ("Surv(w, y) ~ x + z + (1 | site)", "piecewise_exponential", {"breaks": [1.3, 1.6]}),
    "tails": ("y ~ x + z + (1 | site)", "bernoulli", {"prior": {"x": "cauchy(0, 1)"}}),
}


FRAILTIES = {
    "times": CASES["times"],
    "patients": ("Surv(w, y) ~ x + z + (1 | site:ward)", "weibull", {}),
}


FIXED = {"fixed": ("y ~ x + z", "bernoulli", {})}


def site_of(case: str, rows: int = 14) -> tuple[Target, dict[str, np.ndarray]]:
    """A regression at two sites, and the rows of the first."""
    formula, family, options = (CASES | FRAILTIES | FIXED)[case]
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


def test_times_in_the_intervals_of_a_hazard_are_one_response(tmp_path: Path) -> None:
    columns = measure_of(*site_of("times"), tmp_path).unknowns.columns
    assert list(columns.counted) == [True, True, False]  # x, z and the time


@np.errstate(over="ignore")
@pytest.mark.parametrize("log_sd", [1.0, 3.0, 4.0, 9.0])
@pytest.mark.parametrize("case", FRAILTIES)
def test_the_derivatives_by_rows_are_right_where_levels_are_far_too_wide(
    case: str, log_sd: float, tmp_path: Path
) -> None:
    target, rows = site_of(case, rows=8)
    measure, host = measure_of(target, rows, tmp_path), target.model.host
    assert host is not None
    points = np.random.default_rng(5).normal(0, 0.7, (6, target.dimension))
    points[:, target.layout.places["log_sd"][0]] = log_sd
    level = "intercept" if case == "patients" else "hazard_contrasts"
    points[:, target.layout.places[level][0].start] += np.array([8, -8] * 3)  # rates as wrong
    made, params = measure._derivatives((0,), points, ())[0], target.layout.params(points)
    for column, (row, unknown) in enumerate(np.ndindex(8, measure.unknowns.each)):
        ends = [host.site(moved(measure, rows, row, unknown, sign)) for sign in (1, -1)]
        high, low = (site.values(params, 240) for site in ends)
        exact = (high - low) / (2 * CELL_STEP * measure.unknowns.units[unknown])
        np.testing.assert_allclose(made[:, column], exact, atol=0.1 * np.abs(made).max())
    assert np.abs(made).max() < 100


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
    counts = {"response": 3, "weights": 4, "groups": 3, "no columns": 1, "times": 3}
    assert measure.unknowns.each == counts.get(case, 2)
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


def assert_as_by_moved_rows(
    measure: Any,
    rows: dict[str, np.ndarray],
    revealed: Any,
    leaving: Callable[[dict[str, np.ndarray]], np.ndarray],
    d: int,
    apart: int = 7,
) -> None:
    """Compare a measured Jacobian with differences of what leaves, at each row of so many."""
    jacobian = measure._information(revealed)
    for row in range(0, 60, apart):
        for unknown in range(each := measure.unknowns.each):
            column = int(np.flatnonzero(measure.unknowns.rows == row)[0]) * each + unknown
            ends = [leaving(moved(measure, rows, row, unknown, sign * 50)) for sign in (1, -1)]
            exact = (ends[0] - ends[1]) / (100 * CELL_STEP)
            for part in (slice(0, d), slice(d, None)):
                unit = np.abs(jacobian[part]).max()
                np.testing.assert_allclose(jacobian[part, column], exact[part], atol=0.02 * unit)


def mode_at(target: Target, rows: dict[str, np.ndarray], start: np.ndarray) -> np.ndarray:
    """The mode of half of the prior and 60 rows, to the last digit."""
    own = target.host_site(rows, 60, 0.5)
    mode = newton(own.pieces, start).position
    for _ in range(4):
        _, [gradient], [precision] = own.derivatives(mode[None])
        mode = mode - np.linalg.solve(precision, gradient)
    return mode


def test_what_a_fit_without_a_spread_gives_away_is_its_mode_in_turned_coordinates(
    tmp_path: Path,
) -> None:
    """By moved rows: T A T' where A was, and T A of the mode, however far the reference is."""
    target, rows = site_of("fixed", 60)
    measure, d = measure_of(target, rows, tmp_path), target.dimension
    reference, upper = np.array([40.0, -30.0, 20.0]), np.triu_indices(3)
    mode = mode_at(target, rows, np.zeros(d))
    precision = target.host_site(rows, 60, 0.5).derivatives(mode[None]).matrices[0]
    answer = {"precisions": precision[upper][None], "pulls": (precision @ (mode - reference))[None]}
    answer = {name: np.repeat(values, 2, axis=0) for name, values in answer.items()}
    turn = np.array([[1.0, 0.5, 0.0], [0.0, 2.0, 0.0], [0.3, 0.0, 1.0]])
    errors = {name: np.ones_like(values) for name, values in answer.items()}
    arrays = {"reference": reference, "share": np.array(0.5), "starts": np.zeros((1, d))}
    turned = errors | {"turns": np.stack([turn] * 2)}
    (revealed,) = revealed_by_fits(target, arrays, answer, turned)

    def leaving(at: dict[str, np.ndarray]) -> np.ndarray:
        there = target.host_site(at, 60, 0.5).derivatives(mode[None]).matrices[0]
        return np.concatenate(
            [turn @ precision @ mode_at(target, at, mode), -(turn @ there @ turn.T)[upper]]
        )

    assert_as_by_moved_rows(measure, rows, revealed, leaving, d)


@pytest.mark.parametrize("apart", sparse([7, 20], [20]))
@pytest.mark.parametrize("case", ["levels", "slopes", "no columns"])
def test_what_a_fit_gives_away_is_measured_in_the_numbers_that_leave(
    case: str, apart: int, tmp_path: Path
) -> None:
    """By moved rows: the covariance given all others, its regression, the rest, and T p.

    The mode leaves, too, so that A is taken where it was.
    """
    target, rows = site_of(case, 60)
    measure, d, host = measure_of(target, rows, tmp_path), target.dimension, target.model.host
    assert host is not None
    reference = np.array(target.ravel(target.model.init), float)
    arrays = {"reference": reference, "share": np.array(0.5), "starts": reference[None]}

    def mode_of(at: dict[str, np.ndarray]) -> np.ndarray:
        return mode_at(target, at, reference)

    mode = mode_of(rows)

    def fit(at: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        precision = target.host_site(at, 60, 0.5).derivatives(mode[None]).matrices[0]
        return precision, precision @ (mode_of(at) - reference)

    between = target.group_sds(reference[None])[0] ** 2 / 0.5
    varies = between > 0

    def leaving(at: dict[str, np.ndarray]) -> np.ndarray:
        precision, pull = fit(at)
        covariance = np.linalg.inv(precision[np.ix_(varies, varies)])
        regression = covariance @ precision[np.ix_(varies, ~varies)]
        made, turned = -precision, pull.copy()  # as derivatives of a log-density have it
        made[np.ix_(varies, varies)] = covariance
        made[np.ix_(varies, ~varies)], made[np.ix_(~varies, varies)] = -regression, -regression.T
        made[np.ix_(~varies, ~varies)] += precision[np.ix_(~varies, varies)] @ regression
        turned[varies], turned[~varies] = (
            covariance @ pull[varies],
            pull[~varies] - (regression.T @ pull[varies]),
        )
        return np.concatenate([turned, made[np.triu_indices(d)]])

    precision, pull = fit(rows)
    answer = {
        "precisions": np.stack([precision[np.triu_indices(d)]] * 2),
        "pulls": np.stack([pull] * 2),
        "between": between,
    }
    errors = {name: np.ones_like(answer[name]) for name in ("precisions", "pulls")}
    (revealed,) = revealed_by_fits(target, arrays, answer, errors)
    assert_as_by_moved_rows(measure, rows, revealed, leaving, d, apart)


@pytest.mark.parametrize("case", sparse(range(12), [2]))
def test_an_attack_on_frailties_reads_no_more_rows_than_are_called_settled(
    case: int, tmp_path: Path
) -> None:
    """By least squares for all columns and times of the site, at points that are far out, too."""
    rng, count = np.random.default_rng(case), 5
    target, rows = site_of(list(FRAILTIES)[case % 2], rows=count)
    host, layout = target.model.host, target.layout
    assert host is not None
    points = rng.normal(0, rng.choice([0.5, 1.5]), (int(rng.integers(10, 80)), target.dimension))
    points[:, layout.places["log_sd"][0]] += rng.uniform(-1, 3)
    params, noise = layout.params(points), rng.choice([0.0, 0.01, 0.15])
    values = np.column_stack([rows["x"], rows["y"]]).astype(float)
    middle, sd = values.mean(axis=0), values.std(axis=0)

    @np.errstate(all="ignore")
    def sums(flat: np.ndarray) -> np.ndarray:
        table = middle + sd * flat.reshape(count, 3)
        changed = {"x": table[:, :2], "y": np.maximum(table[:, 2], 0.01)}
        return np.nan_to_num(host.site(rows | changed).values(params, None), neginf=-1e6)

    at = sums(((values - middle) / sd).ravel())
    errors = noise * (1 + 0.02 * np.abs(at - at[0]) / 0.15)
    answer = at + errors * rng.normal(size=len(at))
    revealed = Revealed(points, (0,), errors={0: errors[:, None]})
    statement = measure_of(target, rows, tmp_path).add([revealed])
    weights = 1 / np.maximum(errors, 1e-9 * np.abs(answer).max())
    starts = rng.normal(size=(3, 3 * count))
    solved = np.stack(
        [
            least_squares(lambda flat: (sums(flat) - answer) * weights, start, max_nfev=15).x
            for start in starts
        ]
    ).reshape(3, count, 3)[..., :2]
    agreed = (np.ptp(solved, axis=0) < 0.1).any(axis=1)
    right = np.abs(solved[0] - (values[:, :2] - middle[:2]) / sd[:2]) < 0.1
    assert (agreed & right.any(axis=1)).sum() <= statement.settled <= count


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
        first = (PNEUMONIA / name).read_text().splitlines()[:61]  # of many rows none shows
        (tmp_path / name).write_text("\n".join(first) + "\n")
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
    assert lying.numbers["settled_before"] > 0  # for all the noise of its answers
    assert lying.numbers["settled_after"] == 0
    # All its questions are answered, with as much noise as that takes: none is refused.
    assert lying.numbers["messages_after"] == lying.numbers["messages_before"] == MOST_ASKED
    assert lying.numbers["refused"] == ""
    assert not findings["who took part, from the draws alone"].known

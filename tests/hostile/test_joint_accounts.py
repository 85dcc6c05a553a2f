"""What all answers about a file settle, over versions of its rows and over studies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.core.queries import Revealed
from consortia.core.target import Target
from consortia.data.digest import RowDigests, of_cells
from consortia.engines.messages import settled as measuring
from consortia.engines.messages.accounts import Account, same_rows
from consortia.engines.messages.settled import Settled

KEY = b"a site's secret"
ROWS = 24


def table(rows: int = ROWS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    made = {"age": rng.normal(60, 9, rows), "dose": rng.normal(size=rows)}
    made["crp"] = rng.gamma(2.0, size=rows)
    return made | {"ill": rng.integers(0, 2, rows)}


def digests_of(columns: dict[str, np.ndarray]) -> RowDigests:
    return of_cells({n: (v, np.zeros(len(v), bool)) for n, v in columns.items()}, KEY)


def settled(
    path: Path, columns: dict[str, np.ndarray], formula: str, *, joint: bool = True
) -> Settled:
    made = consortia.regression(formula, {"a": columns}, family="bernoulli")
    rows = {name: np.float32(values) for name, values in made.sites.site("a").items()}
    count = len(columns["ill"])
    digests = digests_of(columns) if joint else None
    return Settled(Target(made.model, made.model.init), rows, count, path, 1, digests)


def ask(measure: Settled, seed: int, points: int = 12, noise: float = 0.05) -> int:
    """Return the rows that are settled after log-densities at some points."""
    at = np.random.default_rng(seed).normal(0, 1, (points, measure._target.dimension))
    errors = {0: np.full((points, 1), noise)}
    return measure.add([Revealed(at, (0,), None)._replace(errors=errors)]).settled


def information(path: Path) -> float:
    account = Account.read(path)
    assert account is not None
    return float(np.square(account.root).sum())


def test_a_version_with_more_rows_counts_what_the_one_before_has_told(tmp_path: Path) -> None:
    whole, path = table(), tmp_path / "file.bin"
    first = {name: values[:-4] for name, values in whole.items()}
    ask(settled(path, first, "ill ~ age + dose"), 0)
    told = information(path)
    again = settled(path, whole, "ill ~ age + dose")
    ask(again, 1)
    alone = tmp_path / "alone.bin"
    ask(settled(alone, whole, "ill ~ age + dose"), 1)
    # the sum of both: the rows of the first are all in the second, in other units
    assert information(path) == pytest.approx(told + information(alone), rel=1e-6)
    assert told > 0.3 * information(alone)


def test_a_study_with_a_covariate_more_counts_what_the_one_before_has_told(tmp_path: Path) -> None:
    path, columns = tmp_path / "file.bin", table()
    for order in (("ill ~ age + dose", "ill ~ age + dose + crp"), ("ill ~ crp", "ill ~ age")):
        told = 0.0
        for number, formula in enumerate(order):
            ask(settled(path, columns, formula), number)
            alone = tmp_path / "alone.bin"
            ask(settled(alone, columns, formula), number)
            told += information(alone)
            alone.unlink()
        account = Account.read(path)
        assert account is not None
        assert information(path) == pytest.approx(told, rel=1e-6)
        assert {*account.columns.names} <= {"age", "dose", "crp"}
        path.unlink()


def test_two_studies_that_settle_nothing_each_settle_rows_together(tmp_path: Path) -> None:
    whole = table()
    first = {name: values[:-4] for name, values in whole.items()}
    path, noise = tmp_path / "file.bin", 1.2e-3
    alone = [
        ask(settled(tmp_path / f"{seed}.bin", columns, "ill ~ age", joint=False), seed, 14, noise)
        for seed, columns in enumerate((first, whole))
    ]
    assert alone == [0, 0]
    together = [
        ask(settled(path, columns, "ill ~ age"), seed, 14, noise)
        for seed, columns in enumerate((first, whole))
    ]
    assert together[0] == 0
    assert together[1] > 0


def test_rows_are_known_again_in_any_order_and_with_one_corrected_value() -> None:
    columns = table()
    before = digests_of(columns)
    order = np.random.default_rng(1).permutation(ROWS)
    moved = {name: values[order].copy() for name, values in columns.items()}
    moved["dose"][3] = 9.9  # corrected
    moved["age"][5], moved["dose"][5] = 50.0, 0.0  # another patient, but for two cells
    moved["weight"] = np.arange(ROWS) + 0.5  # a column more
    found = same_rows(before, digests_of(moved))
    wanted = order.copy()
    wanted[5] = -1
    np.testing.assert_array_equal(found, wanted)


def test_rows_that_are_alike_are_known_once_each() -> None:
    columns = {"age": np.array([60.0, 60.0, 61.0]), "ill": np.array([0, 0, 1])}
    more = {name: np.concatenate([values, values[:1]]) for name, values in columns.items()}
    found = same_rows(digests_of(columns), digests_of(more))
    assert sorted(found.tolist()) == [-1, 0, 1, 2]


def test_an_answer_about_a_large_file_looks_at_the_rows_of_those_before(tmp_path: Path) -> None:
    columns, path = table(2000), tmp_path / "file.bin"
    first = settled(path, columns, "ill ~ age + dose")
    ask(first, 0)
    again = settled(path, columns, "ill ~ age + dose")
    np.testing.assert_array_equal(first.unknowns.rows, again.unknowns.rows)
    wider: Any = settled(path, columns, "ill ~ age + dose + crp")
    assert len(wider.unknowns.rows) == 100
    ask(wider, 1)
    shared = np.isin(wider.unknowns.rows, first.unknowns.rows).mean()
    assert shared >= 0.5  # the others lie far out in crp


@pytest.mark.parametrize("rows", [10, 2000])
def test_rows_that_a_study_does_not_look_at_stay_in_the_account(tmp_path: Path, rows: int) -> None:
    """A study of a subgroup, and a wider one of a large file, would else make a site forget."""
    whole, path = table(2000 if rows == 2000 else ROWS), tmp_path / "file.bin"
    ask(settled(path, whole, "ill ~ age + dose"), 0)

    def told(of: RowDigests) -> float:
        account = Account.read(path)
        assert account is not None
        return float(np.square(account.of(of, ("age", "dose"))).sum())

    first = Account.read(path)
    assert first is not None
    few = {name: values[:rows] for name, values in whole.items()}
    study = settled(path, few, "ill ~ age + dose + crp")
    gone = same_rows(study._digests, first.rows) < 0
    left_out = np.flatnonzero(gone & ~first.are_sums)  # sums of before count as known
    others = RowDigests(first.rows.names, first.rows.cells[left_out])
    before = told(others)
    assert len(left_out) > 10
    assert before > 0
    ask(study, 1)
    assert told(others) == pytest.approx(before, rel=1e-6)


def test_a_study_that_runs_beside_a_wider_one_keeps_its_columns(tmp_path: Path) -> None:
    path, columns = tmp_path / "file.bin", table()
    narrow = settled(path, columns, "ill ~ age")
    ask(settled(path, columns, "ill ~ age + crp"), 0)
    told = information(path)
    ask(narrow, 1)
    account = Account.read(path)
    assert account is not None
    assert {*account.columns.names} == {"age", "crp"}
    alone = tmp_path / "alone.bin"
    ask(settled(alone, columns, "ill ~ age"), 1)
    assert information(path) == pytest.approx(told + information(alone), rel=1e-6)


def test_sums_over_other_rows_hide_no_more_than_these_rows_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What else there is of rows that are not looked at counts as known, sums of them do not."""
    columns, formula = table(120), "ill ~ age + dose + crp"
    columns["crp"][5] = 40.0  # far out
    deviations, looked_at = {}, {}
    for name, most in (("all", 10_000), ("sums", 30), ("known", 30)):
        monkeypatch.setattr(measuring, "MOST_UNKNOWNS", most)
        monkeypatch.setattr(measuring, "MOST_SUMS", 0 if name == "known" else 200)
        measure = settled(tmp_path / name, columns, formula)
        ask(measure, 0, 60)
        account = Account.read(tmp_path / name)
        assert account is not None
        assert account.are_sums.sum() == (4 if name == "sums" else 0)
        deviations[name] = measure._deviations(account.root)
        looked_at[name] = measure.unknowns.rows
    assert (looked_at["sums"] == looked_at["known"]).all()
    every = deviations["all"][looked_at["sums"]]
    assert len(every) == 10
    # less is known for every row that is unknown besides: the order holds exactly
    assert (deviations["known"] <= deviations["sums"] + 1e-6).all()
    assert (deviations["sums"] <= every + 1e-6).all()
    assert np.median(deviations["sums"] / deviations["known"]) > 1.2


def test_sums_count_as_known_once_answers_are_of_other_rows_or_columns(tmp_path: Path) -> None:
    """What these say of the sums is not noted: it could take them off the answers of both."""
    path, columns = tmp_path / "file.bin", table(400)
    fewer = {name: values[:-20] for name, values in columns.items()}
    ask(settled(path, columns, "ill ~ age + dose"), 0)
    again = settled(path, columns, "ill ~ age + dose")
    ask(again, 1)
    account = Account.read(path)
    assert account is not None
    assert account.are_sums.sum() == 3
    for other in (settled(path, fewer, "ill ~ age"), settled(path, columns, "ill ~ age + crp")):
        for measure in (other, again):
            ask(measure, 2)
            account = Account.read(path)
            assert account is not None
            assert not account.are_sums.any()
            told = account.of(measure._digests, measure._columns.names)
            shape = len(told), measure.unknowns.total, -1
            told = told.reshape(shape)
            assert not told[:, measure._are_sums].any()
            assert np.abs(told[:, ~measure._are_sums]).max() > 0

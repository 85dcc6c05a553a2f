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
from consortia.engines.messages import accounts
from consortia.engines.messages import settled as measuring
from consortia.engines.messages.accounts import Account, same_rows
from consortia.engines.messages.settled import Settled
from consortia.store.checkpoint import Checkpoint, read, write

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


def account_of(path: Path) -> Account:
    account = Account.read(path)
    assert account is not None
    return account


def information(path: Path) -> float:
    return float(np.square(account_of(path).root).sum())


def information_on(account: Account, rows: np.ndarray, names: tuple[str, ...]) -> float:
    """The information on some values of rows that an account has, by their index there."""
    of_columns = [account.columns.names.index(name) for name in names]
    parts = account.root.reshape(len(account.root), len(account.are_sums), -1)
    return float(np.square(parts[:, rows][..., of_columns]).sum())


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
        account = account_of(path)
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


def test_rows_are_known_again_where_most_columns_were_written_anew() -> None:
    """Two columns with fewer decimals: of each row two cells of four are others."""
    rng = np.random.default_rng(2)
    columns = {name: rng.normal(60, 9, ROWS).round(3) for name in ("age", "dose", "crp", "weight")}
    order = rng.permutation(ROWS)
    export = {name: values[order].copy() for name, values in columns.items()}
    export |= {name: export[name].round(1) for name in ("dose", "crp")}
    export["age"][4] = 61.0005  # another patient
    wanted = order.copy()
    wanted[4] = -1
    export["weight"][4] = 71.0005
    found = same_rows(digests_of(columns), digests_of(export))
    np.testing.assert_array_equal(found, wanted)
    # What is left tells no rows apart: those of other patients would be taken for them.
    few = {"age": columns["age"], "dose": columns["dose"], "arm": np.arange(ROWS) % 2}
    other = few | {"age": few["age"].round(1), "dose": few["dose"].round(1)}
    assert (same_rows(digests_of(few), digests_of(other)) < 0).all()
    # Other patients, with equal values here and there, are none of those before.
    others = {name: rng.normal(60, 9, ROWS).round(3) for name in columns}
    others["age"][:9], others["dose"][:9] = columns["age"][:9], columns["dose"][:9]
    assert (same_rows(digests_of(columns), digests_of(others)) < 0).all()


@pytest.mark.parametrize("number", [100, 500, 2000])
def test_other_patients_with_coarse_values_are_none_of_those_before(number: int) -> None:
    """Age in years, height in cm, and two laboratory values that nobody else has."""
    rng = np.random.default_rng(4)
    hospitals = [
        {
            "age": rng.normal(60, 10, number).round(),
            "sex": rng.integers(0, 2, number),
            "height": rng.normal(170, 9, number).round(),
            "crp": rng.gamma(2, 3, number),
            "dose": rng.gamma(2, 1, number),
        }
        for _ in range(2)
    ]
    found = same_rows(*map(digests_of, hospitals))
    assert (found >= 0).sum() <= 0.01 * number


def test_rows_that_are_known_stay_so_where_others_were_written_anew() -> None:
    rng = np.random.default_rng(5)
    columns = {
        "age": rng.normal(60, 10, 200).round(),
        "height": rng.normal(170, 9, 200).round(),
        "crp": rng.gamma(2, 3, 200),
        "dose": rng.gamma(2, 1, 200),
    }
    anew = rng.random(200) < 0.55
    export = {name: values.copy() for name, values in columns.items()}
    export |= {
        name: np.where(anew, columns[name] * 3 + 1, columns[name]) for name in ("crp", "dose")
    }
    found = same_rows(digests_of(columns), digests_of(export))
    np.testing.assert_array_equal(found[~anew], np.flatnonzero(~anew))
    assert np.isin(found[anew], [-1, *range(200)]).all()
    wrong = (found >= 0) & (found != np.arange(200))
    assert not wrong.any()


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
    more = np.setdiff1d(wider.unknowns.rows, first.unknowns.rows)
    assert np.isin(first.unknowns.rows, wider.unknowns.rows).all()
    assert columns["crp"][more].min() > np.median(columns["crp"])  # far out in a new column
    ask(wider, 1)
    account = account_of(path)
    # Earlier answers say of these rows what nobody has noted.
    known = account.known[np.isin(wider.unknowns.rows, more).nonzero()[0]]
    assert known[:, [account.columns.names.index(name) for name in ("age", "dose")]].all()
    assert not known[:, account.columns.names.index("crp")].any()
    assert known.sum() == account.known.sum()
    # They were a part of sums: a value cannot be unknown twice.
    assert account_of(path).are_sums.sum() == 0 < len(first.unknowns.others)


def test_rows_that_a_version_lacks_stay_in_the_account(tmp_path: Path) -> None:
    """A study of a subgroup would else make a site forget."""
    whole, path = table(), tmp_path / "file.bin"
    ask(settled(path, whole, "ill ~ age + dose"), 0)
    first = account_of(path)
    before = information_on(first, np.arange(10, ROWS), ("age", "dose"))
    ask(settled(path, {n: of[:10] for n, of in whole.items()}, "ill ~ age + dose + crp"), 1)
    kept = account_of(path)
    known = same_rows(kept.rows, RowDigests(first.rows.names, first.rows.cells[10:]))
    assert (known >= 0).all()
    assert before > 0
    assert information_on(kept, known, ("age", "dose")) == pytest.approx(before, rel=1e-6)


def test_rows_that_a_wider_study_cannot_look_at_are_known_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says of them is not noted: taken for unknown, they would seem less known."""
    monkeypatch.setattr(measuring, "MOST_UNKNOWNS", 30)
    monkeypatch.setattr(measuring, "ALL_UNKNOWN", 60)
    columns, path = table(40), tmp_path / "file.bin"
    ask(settled(path, columns, "ill ~ age"), 0)
    assert len(account_of(path).are_sums) == 40
    ask(settled(path, columns, "ill ~ age + dose + crp"), 1)
    account = account_of(path)
    assert len(account.are_sums) == 20
    assert len(account.others) == 20
    again = settled(path, columns, "ill ~ age")
    assert len(again.unknowns.rows) == 20
    ask(again, 2)
    assert len(account_of(path).are_sums) == 20


def test_a_study_that_runs_beside_a_wider_one_keeps_its_columns(tmp_path: Path) -> None:
    path, columns = tmp_path / "file.bin", table()
    narrow = settled(path, columns, "ill ~ age")
    ask(settled(path, columns, "ill ~ age + crp"), 0)
    told = information(path)
    ask(narrow, 1)
    account = account_of(path)
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
        monkeypatch.setattr(measuring, "ALL_UNKNOWN", most)
        monkeypatch.setattr(measuring, "MOST_SUMS", 0 if name == "known" else 200)
        measure = settled(tmp_path / name, columns, formula)
        ask(measure, 0, 60)
        account = account_of(tmp_path / name)
        assert account.are_sums.sum() == (4 if name == "sums" else 0)
        deviations[name] = measure._deviations(account)
        looked_at[name] = measure.unknowns.rows
    assert (looked_at["sums"] == looked_at["known"]).all()
    every = deviations["all"][looked_at["sums"]]
    assert len(every) == 10
    # less is known for every row that is unknown besides: the order holds exactly
    assert (deviations["known"] <= deviations["sums"] + 1e-6).all()
    assert (deviations["sums"] <= every + 1e-6).all()
    assert np.median(deviations["sums"] / deviations["known"]) > 1.2


STUDIES = {
    "other columns": [(120, "ill ~ age + dose"), (120, "ill ~ age + crp"), (120, "ill ~ dose")],
    "more rows": [(90, "ill ~ age + dose + crp"), (120, "ill ~ age + dose"), (90, "ill ~ dose")],
    "fewer rows": [(120, "ill ~ age + crp"), (30, "ill ~ age + crp"), (120, "ill ~ age + crp")],
    "more columns": [(120, "ill ~ age"), (100, "ill ~ age + dose + crp"), (120, "ill ~ crp")],
}


def after(path: Path, most: int, name: str, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Return the uncertainty of all values after some studies; NaN where it counts as known."""
    monkeypatch.setattr(measuring, "MOST_UNKNOWNS", most)
    monkeypatch.setattr(measuring, "ALL_UNKNOWN", 2 * most)
    columns = table(120)
    columns["age"][100:] = columns["age"][:20]  # the same patients twice, but for a column
    columns["dose"][100:] = columns["dose"][:20]
    for seed, (rows, formula) in enumerate(STUDIES[name]):
        ask(settled(path, {n: of[:rows] for n, of in columns.items()}, formula), seed, 60)
    account = account_of(path)
    deviations = measuring._deviations(account.root, np.ones(account.known.size, bool))
    by_row = np.where(account.known, np.nan, deviations.reshape(account.known.shape))
    by_name = by_row[:, np.argsort(account.columns.names)]
    known = same_rows(account.rows, digests_of(columns))
    return np.where(known[:, None] >= 0, by_name[known], np.nan)


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("most", [60, 150])
def test_no_value_seems_less_known_than_if_all_rows_were_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    """Some rows are looked at, sums over others are unknown: what is else counts as known."""
    every = after(tmp_path / "all", 10_000, name, monkeypatch)
    few = after(tmp_path / "few", most, name, monkeypatch)
    assert np.isfinite(every).all()
    assert np.isfinite(few).any(axis=1).sum() >= 10
    assert not (few > every + 1e-6).any()


def test_new_rows_of_a_version_have_sums_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The difference of two versions would else tell the new rows that are looked at."""
    monkeypatch.setattr(measuring, "MOST_UNKNOWNS", 60)
    monkeypatch.setattr(measuring, "ALL_UNKNOWN", 60)
    columns, formula, told = table(120), "ill ~ age + dose + crp", []
    for name in ("age", "dose", "crp"):  # the same rows are farthest out in both
        middle = columns[name].mean()
        columns[name][:20] = middle + 4 * (columns[name][:20] - middle)
    for name, most in (("sums", 200), ("known", 0)):
        monkeypatch.setattr(measuring, "MOST_SUMS", most)
        for seed, rows in enumerate((90, 120)):
            few = {n: of[:rows] for n, of in columns.items()}
            ask(settled(tmp_path / name, few, formula), seed, 60)
        account = account_of(tmp_path / name)
        told.append(settled(tmp_path / name, columns, formula).spent())
        assert account.weights.shape == (100, 8 if most else 0)
    assert told[1] > 1.5 * told[0]


def test_rows_that_an_account_has_forgotten_count_as_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As new rows they would be unknown again, though answers were about them."""
    monkeypatch.setattr(accounts, "MOST_KEPT", 30)
    path, columns, formula = tmp_path / "file.bin", table(120), "ill ~ age + dose"
    ask(settled(path, columns, formula), 0)
    ask(settled(path, {name: values[:20] for name, values in columns.items()}, formula), 1)
    kept = account_of(path)
    assert len(kept.are_sums) == 20 + 15
    assert len(kept.others) == 85
    monkeypatch.setattr(measuring, "MOST_UNKNOWNS", 60)
    monkeypatch.setattr(measuring, "ALL_UNKNOWN", 60)
    again = settled(path, columns, formula)
    forgotten = same_rows(RowDigests(kept.rows.names, kept.others), digests_of(columns)) >= 0
    assert forgotten.sum() == 85
    assert not forgotten[again.unknowns.rows].any()
    assert len(again.unknowns.rows) == 30
    assert not again.unknowns.sums.size
    ask(again, 2)
    assert len(account_of(path).others) == 90


def test_two_studies_at_once_look_at_the_same_values(tmp_path: Path) -> None:
    """Each has chosen by the account before; the answers of both come in turn."""
    path, columns = tmp_path / "file.bin", table(800)
    both = [settled(path, columns, formula) for formula in ("ill ~ age + dose", "ill ~ age + crp")]
    for seed, measure in enumerate([*both, *both, both[0]]):
        ask(measure, seed)
    account = account_of(path)
    assert not account.weights.size  # rows far out in crp were among the sums
    assert len(account.are_sums) + len(account.others) == 800
    numbers = [set(np.flatnonzero(same_rows(account.rows, digests_of(columns)) >= 0))]
    numbers += [set(measure.unknowns.rows) for measure in both]
    assert numbers[0] == numbers[1] == numbers[2]


def test_accounts_of_earlier_versions_of_the_package_have_no_unknown_sums(tmp_path: Path) -> None:
    path, columns = tmp_path / "file.bin", table(400)
    ask(settled(path, columns, "ill ~ age + dose"), 0)
    stored = read(path)
    arrays = {
        name: of for name, of in stored.arrays.items() if name not in ("others", "weights", "known")
    }
    write(path, Checkpoint({"columns": stored.header["columns"]}, arrays))
    again = settled(path, columns, "ill ~ age + dose")
    assert not again.unknowns.sums.size
    ask(again, 1)
    assert not account_of(path).are_sums.any()

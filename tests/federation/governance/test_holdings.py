"""The same rows are known again in another run or study, and what two runs would give away."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation.hospitals import study
from federation.same_rows import COMPARED, METHOD, Consortium, Hospitals

from consortia.data.digest import RowDigests, of_cells
from consortia.errors import SiteRefusedError
from consortia.federation.governance.gate import LEDGER
from consortia.federation.governance.holdings import Holdings, rows_changed
from consortia.federation.governance.ledger import Ledger
from consortia.study.build import load_study
from tests.refusals import refused

SECRET = b"secret"


def rows(*numbers: int, **more: np.ndarray) -> RowDigests:
    """Rows of two measurements and a group, which follow from a number, and more columns."""
    of = np.array(numbers)
    columns = {"age": of * 1.5, "dose": np.sqrt(of + 2.0), "arm": of % 2, **more}
    known = np.zeros(len(of), bool)
    return of_cells({name: (values, known) for name, values in columns.items()}, SECRET)


def test_rows_are_known_again_and_what_came_or_went_is_counted(tmp_path: Path) -> None:
    holdings = Holdings(tmp_path)
    first = holdings.known(rows(*range(20)))
    assert first.changed is None
    holdings.keep(first.data, rows(*range(20)))
    assert holdings.known(rows(*reversed(range(20)))) == (first.data, None)
    assert holdings.known(rows(*range(21))) == (first.data, 1)
    assert holdings.known(rows(*range(1, 21))) == (first.data, 2)
    assert holdings.known(rows(*range(20), 0)) == (first.data, 1)  # a row twice
    assert holdings.known(rows(*range(8))) == (first.data, 12)
    other = holdings.known(rows(*range(15, 40)))
    assert other.data != first.data
    assert other.changed is None


def test_a_set_of_rows_is_compared_with_all_that_were_in_runs_before(tmp_path: Path) -> None:
    holdings = Holdings(tmp_path)
    name = holdings.known(rows(*range(20))).data
    holdings.keep(name, rows(*range(20)))
    holdings.keep(name, rows(*range(40)))
    assert holdings.known(rows(*range(39))) == (name, 1)
    assert holdings.known(rows(*range(19))) == (name, 1)
    assert holdings.known(rows(*range(40))) == (name, None)
    assert holdings.known(rows(*range(50, 90)), [rows(*range(50, 87))]).changed == 3


def test_a_column_more_less_renamed_or_brought_up_to_date_hides_no_patient() -> None:
    before = rows(*range(30))
    rng = np.random.default_rng(0)
    assert rows_changed(rows(*range(30), crp=rng.normal(size=30)), before) == 0
    assert rows_changed(rows(*range(31), crp=rng.normal(size=31)), before) == 1
    assert rows_changed(before, rows(*range(29), crp=rng.normal(size=29))) == 1
    renamed = before._replace(names=before.names + np.uint64(1))
    assert rows_changed(rows(*range(31)), renamed) == 1
    followed = np.arange(31.0) * 7
    later = np.where(np.arange(31) % 3 == 0, followed + 1, followed)  # a third of the patients
    old, new = rows(*range(30), time=followed[:30]), rows(*range(31), time=later)
    assert rows_changed(new, old) == 1
    corrected = np.arange(30.0) * 7
    corrected[4] += 1
    assert rows_changed(rows(*range(30), time=corrected), old) == 2
    assert rows_changed(rows(*range(100, 130)), before) is None


def cells(path: Path, secret: bytes = SECRET) -> np.ndarray:
    (text,) = load_study(path.with_name("study.toml")).used_rows(path, 0, secret)
    return text.cells


def test_digests_are_of_values_and_of_the_secret_in_every_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(study(METHOD, rounds=2))
    text = tmp_path / "north.csv"
    text.write_text("x,name,ill\n1,Zo\u00eb,1\n-3.5,b,0\n1,Zo\u00eb,1\n,b,0\n")
    found = cells(text)
    assert len(found) == 4
    assert found[0].tolist() == found[2].tolist() != found[1].tolist()
    assert found[3, 0] not in found[:3, 0]
    assert not (found == cells(text, b"other")).any()
    text.write_text("x;name;ill\r\n1,000;Zoe\u0308;1\r\n-3,50;b;0\r\n1,0;Zo\u00eb;1\r\n;b;0\r\n")
    np.testing.assert_array_equal(cells(text), found)
    arrays = tmp_path / "north.npz"
    np.savez(arrays, x=np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]]), ill=np.array([0, 1, 0]))
    found = cells(arrays)
    assert found.shape == (3, 3)
    assert found[0].tolist() == found[2].tolist() != found[1].tolist()


def test_a_second_run_with_one_patient_more_is_refused_by_name(tmp_path: Path) -> None:
    hospitals = Consortium(tmp_path)
    hospitals.lines(119)
    hospitals.run()
    hospitals.lines(120)
    with pytest.raises(SiteRefusedError) as caught:
        hospitals.run()
    assert caught.value.sites == ("north",)
    assert "does not permit this (minimum_rows_changed); the site" in caught.value.reason
    assert "data.require" in caught.value.reason
    errors = (tmp_path / "sites" / "north" / "errors.log").read_text()
    assert "minimum_rows_changed: 1 row came or went since an earlier run" in errors
    # Another study of the same rows, and other rows enough, are permitted.
    hospitals.lines(119)
    hospitals.run(rounds=3)
    hospitals.lines(100)
    hospitals.run()


def test_all_runs_and_studies_of_the_same_rows_draw_on_one_budget(tmp_path: Path) -> None:
    hospitals = Consortium(tmp_path)
    hospitals.run()
    ledger = Ledger(tmp_path / "sites" / "north" / LEDGER)
    ((data, values),) = ledger.data.values()
    assert values == 480
    each = ledger.numbers_of_data(data)

    def limited(times: float) -> Any:
        key = "maximum_numbers_per_value"
        return lambda text: re.sub(f"# {key} = .*", f"{key} = {times}", text)

    hospitals.lines(100)  # most of them the same
    with refused(SiteRefusedError, sites=("west",), match="maximum_numbers_per_value"):
        hospitals.run(rounds=3, policy=limited(1.5 * each / 480))
    hospitals.lines(120)
    hospitals.run(policy=limited(3.5 * each / 480))


# --- rows that a study uses -----------------------------------------------------------------------


def test_two_studies_of_one_file_that_differ_by_a_patient_are_refused(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    hospitals.described("ill ~ age + dose")
    before = hospitals.left
    with pytest.raises(SiteRefusedError):
        hospitals.described("ill ~ age + dose + crp")
    assert hospitals.left == before
    assert "minimum_rows_changed: 1 row came or went" in hospitals.errors
    assert '[data] require = ["crp"]' in hospitals.errors
    hospitals.described("ill ~ age * dose")  # other terms of the same rows


def test_both_orders_of_the_two_are_refused(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    hospitals.described("ill ~ age + dose + crp")
    with pytest.raises(SiteRefusedError):
        hospitals.described("ill ~ age + dose")


def test_studies_that_require_the_same_columns_use_the_same_rows(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    first = hospitals.described("ill ~ age + dose", 'require = ["crp"]')
    hospitals.described("ill ~ age + dose + crp")
    facts = first.log["north"][0].answer.values["facts"]
    lines = hospitals.files["north"].read_text().split()
    assert facts["rows"] == len(lines) - 2  # the header, and the patient without crp


def test_two_models_of_one_study_that_differ_by_a_patient_are_refused(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    with pytest.raises(SiteRefusedError):
        hospitals.described("ill ~ age + dose", more=COMPARED, loo="loo = true\n")
    assert hospitals.left == 0
    hospitals.described("ill ~ age + dose", 'require = ["crp"]', COMPARED, "loo = true\n")


def test_an_export_in_another_writing_with_a_patient_more_is_refused(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    path = hospitals.files["north"]
    head, *lines = path.read_text().split()
    path.write_text("\n".join([head, *lines[:-1]]) + "\n")
    hospitals.described("ill ~ age + dose")
    anew = [[f"{float(value):.6f}" if value else "" for value in line.split(",")] for line in lines]
    rows = [",".join(["7", *cells]) for cells in reversed(anew)]
    path.write_text("\n".join([f"visit,{head}", *rows]) + "\n")
    with pytest.raises(SiteRefusedError):
        hospitals.described("ill ~ age + dose")
    assert "minimum_rows_changed: 1 row came or went" in hospitals.errors
    path.write_text("\n".join([f"visit,{head}", *rows[1:]]) + "\n")  # the same patients
    hospitals.described("ill ~ age + dose")
    ledger = Ledger(tmp_path / "sites" / "north" / LEDGER)
    assert len({data for data, _ in ledger.data.values()}) == 1


def test_a_value_recoded_as_missing_at_one_site_is_refused(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    hospitals.described("ill ~ age + dose")
    age = hospitals.files["north"].read_text().split()[7].partition(",")[0]
    with pytest.raises(SiteRefusedError):
        hospitals.described(
            "ill ~ age + dose", loo=f'[harmonise.north.missing_values]\nage = ["{age}"]\n'
        )
    assert "minimum_rows_changed" in hospitals.errors


def test_a_server_that_asks_for_no_description_is_counted_all_the_same(tmp_path: Path) -> None:
    hospitals = Consortium(tmp_path)
    hospitals.lines(119)
    stage = hospitals.run()
    agreed = next(one.request for one in stage.log["north"] if one.request.kind == "agreement")
    again = replace(agreed, run="a" * len(agreed.run))
    assert stage.ask("north", again).kind == "agreement"
    ledger = Ledger(tmp_path / "sites" / "north" / LEDGER)
    assert ledger.data[again.run] == ledger.data[agreed.run]


def test_required_columns_are_checked(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    with pytest.raises(SiteRefusedError):
        hospitals.described("ill ~ age", 'require = ["bmi"]')
    assert "data.require: 'bmi' is not a column" in hospitals.errors
    path = tmp_path / "other.toml"
    path.write_text(study(METHOD, rounds=2).replace("[data]", '[data]\nrequire = ["age"]'))
    with refused(argument="data.require", match="model.formula"):
        load_study(path)

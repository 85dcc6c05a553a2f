"""The same rows are known again in another run or study, and what two runs would give away."""

from __future__ import annotations

import functools
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation.hospitals import HOSPITALS, NAMES, study

from consortia.data.digest import of_each_row
from consortia.errors import SiteRefusedError
from consortia.federation import app
from consortia.federation.governance.gate import LEDGER
from consortia.federation.governance.holdings import Holdings
from consortia.federation.governance.ledger import Ledger
from consortia.federation.governance.proposal import proposed
from consortia.federation.governance.terms import terms_of
from consortia.federation.rehearsal.stage import Stage
from consortia.study.build import load_study

METHOD = "\n".join(['name = "fa_ld"', "step_size = 0.05", "local_steps = 1"])


def rows(*numbers: int) -> list[bytes]:
    return [number.to_bytes(8, "big") for number in numbers]


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


def test_digests_are_of_rows_and_of_the_secret_in_every_kind_of_file(tmp_path: Path) -> None:
    text = tmp_path / "a.csv"
    text.write_text("x,y\n1,2\n3,4\n1,2\n\n")
    found = of_each_row(text, b"secret")
    assert len(found) == 3
    assert found[0] == found[2] != found[1]
    assert of_each_row(text, b"other")[0] != found[0]
    text.write_text("x,y\r\n3,4\r\n1,2\r\n")
    assert of_each_row(text, b"secret") == [found[1], found[0]]
    arrays = tmp_path / "a.npz"
    np.savez(arrays, x=np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]]), y=np.array([0, 1, 0]))
    found = of_each_row(arrays, b"secret")
    assert found[0] == found[2] != found[1]


class Consortium:
    """Three hospitals whose folders stay while their processes, files and studies change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = {name: folder / f"{name}.csv" for name in NAMES}
        for name, path in self.files.items():
            shutil.copy(HOSPITALS / f"{name}.csv", path)

    def lines(self, count: int) -> None:
        whole = (HOSPITALS / "north.csv").read_text().splitlines()
        self.files["north"].write_text("\n".join(whole[: 1 + count]) + "\n")

    def run(self, rounds: int = 2, policy: Any = None) -> Stage:
        path = self.folder / f"study{rounds}.toml"
        path.write_text(study(METHOD, rounds=rounds, chains=2))
        text = proposed(terms_of(load_study(path))).replace("maximum_runs = 3", "maximum_runs = 9")
        text = text if policy is None else policy(text)
        stage = Stage(path, self.files, self.folder / "sites", text)
        for name in NAMES:
            node = {"site": name, "data": str(self.files[name])}
            node["folder"] = str(self.folder / "sites" / name)
            answer = app.site_of(stage.study, node, {}, private=True).answer
            stage._sites[name] = functools.partial(stage._answered, name, answer, None)
        stage.run()
        return stage


def test_a_second_run_with_one_patient_more_is_refused_by_name(tmp_path: Path) -> None:
    hospitals = Consortium(tmp_path)
    hospitals.lines(119)
    hospitals.run()
    hospitals.lines(120)
    with pytest.raises(SiteRefusedError) as caught:
        hospitals.run()
    assert caught.value.sites == ("north",)
    assert "does not permit this; the site" in caught.value.reason  # nothing of rows is told
    errors = (tmp_path / "sites" / "north" / "errors.log").read_text()
    assert "minimum_rows_changed: 1 rows came or went since an earlier run" in errors
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
    with pytest.raises(SiteRefusedError, match="maximum_numbers_per_value"):
        hospitals.run(rounds=3, policy=limited(1.5 * each / 480))
    hospitals.lines(120)
    hospitals.run(policy=limited(3.5 * each / 480))

"""A site counts what privacy costs its rows, over all runs, and refuses beyond its limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from consortia.core.privacy import epsilon_of, loss_of
from consortia.errors import SiteRefusedError
from consortia.federation.governance.ledger import Ledger
from consortia.federation.rehearsal.stage import Stage
from tests.federation.hospitals import HOSPITALS, NAMES, study
from tests.refusals import refused

METHOD = 'name = "private_posterior"\nepsilon = 5.0\ndelta = 1e-6'
POLICY = """models = ["any"]
maximum_rounds = 10
minimum_rows = 50
maximum_epsilon = {epsilon}
"""
FILES = {name: HOSPITALS / f"{name}.csv" for name in NAMES}


def stage(folder: Path, method: str = METHOD, epsilon: float = 5.0) -> Stage:
    path = folder / "study.toml"
    path.write_text(study(method, rounds=1))
    return Stage(path, FILES, folder / "sites", POLICY.format(epsilon=epsilon))


def test_a_run_spends_its_epsilon_once_and_a_second_is_refused(tmp_path: Path) -> None:
    there = stage(tmp_path)
    tree = there.run()
    assert tree.attrs["epsilon"] == pytest.approx(5.0)
    ledger = Ledger(tmp_path / "sites" / "north" / "ledger.jsonl")
    (data, _), *_ = ledger.data.values()
    assert epsilon_of(ledger.loss_of_data(data), 1e-6) == pytest.approx(5.0)
    assert ledger.share_of_run(tree.attrs["flower_run"]) == pytest.approx(1.0)
    with refused(SiteRefusedError, sites=("north",), match="maximum_epsilon"):
        there.run()


def test_what_a_run_asks_again_costs_nothing_and_what_it_asks_beyond_is_refused(
    tmp_path: Path,
) -> None:
    there = stage(tmp_path, epsilon=50.0)
    there.run()
    queries = [one for one in there.log["north"] if one.request.kind == "query"]
    assert len(queries) == 4
    again = there.ask("north", queries[-1].request)
    for name, values in queries[-1].answer.arrays.items():
        assert (again.arrays[name] == values).all()
    last = queries[-1].request
    beyond = {name: values + 0 for name, values in last.arrays.items()}
    beyond["nonce"] = beyond["nonce"] + 1
    label = (last.label[0], 4, *last.label[2:])
    asked = type(last)(last.kind, last.run, last.site, last.study, label, last.values, beyond)
    assert "site's policy" in there.ask("north", asked).values["reason"]
    ledger = Ledger(tmp_path / "sites" / "north" / "ledger.jsonl")
    (data, _), *_ = ledger.data.values()
    assert ledger.loss_of_data(data) == pytest.approx(loss_of(5.0, 1e-6))


def test_noise_is_that_of_the_run_and_the_site(tmp_path: Path) -> None:
    there = stage(tmp_path, epsilon=50.0)
    there.run()
    there.run()
    first, second = (
        [one for one in there.log["north"] if one.request.kind == "query"][at] for at in (0, 4)
    )
    assert (first.request.arrays["position"] == second.request.arrays["position"]).all()
    assert (first.answer.arrays["gradient"] != second.answer.arrays["gradient"]).all()


def test_part_of_the_noise_does_not_leave_one_site_alone(tmp_path: Path) -> None:
    there = stage(tmp_path, f"{METHOD}\nhonest = 0.7")
    with refused(SiteRefusedError, sites=("north",), match=r"\(honest\)"):
        there.run()
    assert not Ledger(tmp_path / "sites" / "north" / "ledger.jsonl").losses

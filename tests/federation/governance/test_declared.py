"""The numbers that an officer is told: never fewer than leave, of every method."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation.hospitals import HOSPITALS, NAMES, study
from sparse import sparse

from consortia.algorithms.registry import ALGORITHMS
from consortia.core.queries import Conversation
from consortia.engines.messages.nonfinite import PREFIX
from consortia.federation.governance import verify
from consortia.federation.governance.declared import declared_numbers, declared_of
from consortia.federation.governance.gate import LEDGER
from consortia.federation.governance.ledger import Ledger
from consortia.federation.governance.proposal import proposed
from consortia.federation.governance.terms import terms_of
from consortia.federation.rehearsal.stage import Stage
from consortia.study.build import load_study
from tests.refusals import refused

CARRIED = [name for name, entry in ALGORITHMS.items() if "flower" in entry.engines]


def study_of(folder: Path, name: str, **more: Any) -> Path:
    values = ALGORITHMS[name].example | more
    lines = [f"{key} = {repr(value).lower() if isinstance(value, bool) else repr(value)}"
             for key, value in ({"name": name} | values).items()]  # fmt: skip
    path = folder / "study.toml"
    path.write_text(study("\n".join(lines), rounds=3, chains=2))
    return path


def stage_of(path: Path, policy: Any = None) -> Stage:
    text = proposed(terms_of(load_study(path)))
    files = {name: HOSPITALS / f"{name}.csv" for name in NAMES}
    return Stage(path, files, path.parent / "sites", text if policy is None else policy(text))


# One of each kind: a conversation, noisy sums, rounds, visits, rounds with acceptance.
@pytest.mark.parametrize(
    "name",
    sparse(CARRIED, ("few_rounds", "private_posterior", "fa_ld", "dsgld", "federated_hmc")),
)
def test_no_more_numbers_leave_than_were_declared(tmp_path: Path, name: str) -> None:
    path = study_of(tmp_path, name)
    study = load_study(path)
    (declared,) = declared_of(study, HOSPITALS / "north.csv", 0)
    stage = stage_of(path)
    stage.run()
    ledger = Ledger(tmp_path / "sites" / "north" / LEDGER)
    ((_, left),) = ledger.numbers.items()
    sent = [named for one in stage.log["north"] for named in one.answer.arrays.items()]
    in_arrays = sum(array.size for name, array in sent if not name.startswith(PREFIX))
    assert in_arrays <= left <= declared.most
    if not isinstance(study.method, Conversation):
        assert declared.usual == declared.most
        assert left > declared.most / 4  # repetitions, and visits of a chain, count at their most


def test_a_policy_stops_a_run_whatever_kind_of_message_would_hold_too_many(tmp_path: Path) -> None:
    path = study_of(tmp_path, "fa_ld")
    (declared,) = declared_of(load_study(path), HOSPITALS / "north.csv", 0)

    def limited(most: int) -> Any:
        return lambda text: re.sub("# maximum_numbers = .*", f"maximum_numbers = {most}", text)

    stage_of(path, limited(declared.most)).run()
    (tmp_path / "less").mkdir()
    path = study_of(tmp_path / "less", "fa_ld")
    with refused(Exception, sites=("north",), match="maximum_numbers") as caught:
        stage_of(path, limited(declared.most - 1)).run()
    assert caught.value.round == 2  # type: ignore[attr-defined]
    lines = verify(tmp_path / "less" / "sites" / "north" / LEDGER).entries
    assert [one.round for one in lines if one.kind == "round"] == [0, 1]


def test_every_function_that_a_conversation_may_ask_declares_its_largest_answer() -> None:
    for name in CARRIED:
        method = ALGORITHMS[name].factory(**ALGORITHMS[name].example)
        if not isinstance(method, Conversation):
            continue
        of_few, of_many = method.declared_sizes(4), method.declared_sizes(300)
        assert of_few.keys() == set(method.functions)
        assert of_many.keys() <= set(method.functions)
        assert max(one.up for one in of_few.values()) <= declared_numbers(method, 4, 2, 3).most


def test_an_answer_that_is_larger_than_declared_is_refused(tmp_path: Path) -> None:
    stage = stage_of(study_of(tmp_path, "few_rounds", gradients=True))
    stage.run(lambda request: request.kind == "query" and request.site == "north")
    first = stage.halted_at
    assert first is not None

    def asked(points: int, number: int) -> Any:
        names = sorted(stage.study.method.functions)  # type: ignore[attr-defined]
        label = (3, number, names.index("derivatives"), 0)
        arrays = {
            "reference": np.zeros(4, np.float32),
            "points": np.zeros((points, 4), np.float32),
        }
        values = {"function": "derivatives"}
        return stage.ask("north", replace(first, label=label, values=values, arrays=arrays))

    assert asked(8, 0).kind == "query"
    assert "(messages)" in asked(9, 1).values["reason"]
    errors = (tmp_path / "sites" / "north" / "errors.log").read_text()
    assert "135 numbers that depend on rows, more than the 120 that the method declares" in errors


def test_a_model_with_integrated_levels_has_more_messages_and_numbers(tmp_path: Path) -> None:
    studies = []
    for term, more in (
        ("", ""),
        (" + (1 | site)", "integrate = true\nprior.sd = 'half_normal(1)'"),
    ):
        path = tmp_path / f"{len(more)}.toml"
        path.write_text(
            '[data]\nfiles = ["north.csv", "south.csv", "west.csv"]\n[model]\n'
            f'formula = "ill ~ age{term}"\nfamily = "bernoulli"\n{more}\n'
            '[algorithm]\nname = "few_rounds"\n'
        )
        studies.append(load_study(path))
    plain, integrated = (terms_of(one).usual for one in studies)
    assert (plain, integrated) == (5, 7)
    of_plain, of_integrated = (
        declared_of(one, HOSPITALS / "north.csv", 0)[0].usual for one in studies
    )
    # Five queries and three, of 4,002 numbers each, and 65 of the rule of quadrature: 5/3 without.
    assert of_integrated == pytest.approx(1.69 * of_plain, rel=0.005)

"""The gate: what may not leave does not, and what left is in the ledger."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.engines.messages.questions import Leaving, Place, Question
from consortia.engines.messages.settled import Statement
from consortia.errors import (
    ConsortiaError,
    InputError,
    LedgerError,
    NonFiniteError,
    PolicyError,
    RunClosedError,
)
from consortia.federation.governance import Gate, StudyTerms, open_gate, refusal, verify
from consortia.federation.governance.gate import ERRORS, LEDGER, MOST_STRANGERS, PHRASES
from tests.refusals import refused

TERMS = StudyTerms(
    run="41",
    study="a" * 64,
    model="b" * 64,
    algorithm="fa_hmc",
    parameters={},
    rounds=10,
    chains=2,
    sites=3,
    exchanges=13,
    messages=("description", "round"),
    version=consortia.__version__,
)
ARRAYS = {"position": np.array([3.0, 4.0]), "step": np.array(2)}
PAYLOAD = b"".join(array.tobytes() for array in ARRAYS.values())


def gate_of(folder: Path, terms: StudyTerms = TERMS, **limits: Any) -> Gate:
    """A gate whose policy has these limits."""
    values = {"studies": ["a" * 64], "maximum_rounds": 20, "minimum_rows": 5} | limits
    path = folder / "site-policy.toml"
    path.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items()))
    return open_gate(folder / "site", path, site="north", terms=terms)


def asked(kind: str, round: int | None, digest: str = "aa") -> Question:
    """What is asked at a place of the run."""
    return Question(kind, () if round is None else (2, round, 0, 0), digest)


def lines(folder: Path) -> list[Any]:
    path = folder / "site" / LEDGER
    return list(verify(path).entries) if path.exists() else []


def test_a_message_leaves_as_it_is_and_has_its_line(tmp_path: Path) -> None:
    gate = gate_of(tmp_path)
    assert gate.release(Leaving("round", asked("round", 3), PAYLOAD, ARRAYS)) is PAYLOAD
    opened, line = lines(tmp_path)
    assert opened.event == "opened"
    assert opened.details["study"] == TERMS.study
    policy = (tmp_path / "site-policy.toml").read_bytes()
    assert opened.details["policy"] == hashlib.sha256(policy).hexdigest()
    assert (line.event, line.run, line.site, line.kind, line.round) == (
        *("released", "41", "north"),
        *("round", 3),
    )
    assert line.bytes == len(PAYLOAD)
    assert line.sha256 == hashlib.sha256(PAYLOAD).hexdigest()
    assert line.arrays == (("position", "<f8", (2,)), ("step", "<i8", ()))


def test_a_forbidden_study_stops_before_anything_else_and_leaves_no_line(tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        gate_of(tmp_path, dataclasses.replace(TERMS, study="c" * 64, rounds=21))
    assert caught.value.rules == ("studies", "maximum_rounds")
    assert lines(tmp_path) == []


def test_a_site_with_too_few_rows_is_stopped(tmp_path: Path) -> None:
    gate = gate_of(tmp_path)
    gate.rows(5)
    with refused(PolicyError, rules=("minimum_rows",), match="minimum_rows"):
        gate.rows(4)


NOT_FINITE = {"position": np.array([1.0, np.inf])}
BAD: dict[str, tuple[dict[str, Any], tuple[str, int | None, bytes, dict[str, np.ndarray]], str]] = {
    "a kind that the study has not": ({}, ("fit", 0, b"", {}), "messages"),
    "a round after the last of the study": ({}, ("round", 10, b"", {}), "maximum_rounds"),
    "a round before the first": ({}, ("round", -1, b"", {}), "maximum_rounds"),
    "no round": ({}, ("round", None, b"", {}), "maximum_rounds"),
    "too many bytes": ({"maximum_bytes": 23}, ("round", 0, PAYLOAD, ARRAYS), "maximum_bytes"),
    "too large a norm": ({"maximum_norm": 4.99}, ("round", 0, PAYLOAD, ARRAYS), "maximum_norm"),
    "numbers that are not finite": ({}, ("round", 0, bytes(16), NOT_FINITE), "messages"),
    "arrays of objects": (
        {},
        ("round", 0, b"", {"a": np.array(["text"], object)}),
        "messages",
    ),
    "bytes beside the arrays": (
        {},
        ("round", 0, PAYLOAD + bytes(6000), ARRAYS),
        "messages",
    ),
}


OF_ROWS = {name for name in BAD if "kind" not in name and "round" not in name}
"""These are found once the message is computed; their rules are not named to anybody."""


@pytest.mark.parametrize("what", BAD)
def test_a_message_that_may_not_leave_has_no_line(tmp_path: Path, what: str) -> None:
    limits, message, rule = BAD[what]
    gate = gate_of(tmp_path, **limits)
    with pytest.raises(PolicyError) as caught:
        gate.release(Leaving(message[0], asked(*message[:2]), *message[2:]))
    assert caught.value.rules == (rule,)
    assert caught.value.of_rows == (what in OF_ROWS)
    assert [line.event for line in lines(tmp_path)] == ["opened"]


def test_the_limits_themselves_are_permitted(tmp_path: Path) -> None:
    gate = gate_of(tmp_path, maximum_bytes=24, maximum_norm=5.0, maximum_messages=1)
    gate.release(Leaving("round", asked("round", 9), PAYLOAD, ARRAYS))
    with pytest.raises(PolicyError) as caught:
        gate.release(Leaving("round", asked("round", 8), PAYLOAD, ARRAYS))
    assert caught.value.rules == ("maximum_messages",)
    gate.release(Leaving("round", asked("round", 9), PAYLOAD, ARRAYS))  # the same again


def test_the_same_is_not_sent_again_without_end(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("consortia.federation.governance.gate.MOST_REPEATS", 3)
    gate = gate_of(tmp_path, maximum_messages=1)
    for _ in range(3):
        gate.release(Leaving("round", asked("round", 0), PAYLOAD, ARRAYS))
    assert rules_of(gate.admit, "round", asked("round", 0)) == ("maximum_messages",)


def test_messages_are_counted_over_all_processes_and_by_run(tmp_path: Path) -> None:
    first = gate_of(tmp_path, maximum_messages=2)
    second = gate_of(tmp_path, maximum_messages=2)
    other = gate_of(tmp_path, dataclasses.replace(TERMS, run="42"), maximum_messages=2)
    first.release(Leaving("round", asked("round", 0), b"1", {}))
    second.release(Leaving("round", asked("round", 1), b"1", {}))
    with refused(PolicyError, rules=("maximum_messages",), match="maximum_messages"):
        first.release(Leaving("round", asked("round", 2), b"1", {}))
    other.release(Leaving("round", asked("round", 0), b"1", {}))


def test_runs_are_counted(tmp_path: Path) -> None:
    gate_of(tmp_path, maximum_runs=1)
    gate_of(tmp_path, maximum_runs=1)
    with refused(PolicyError, rules=("maximum_runs",), match="maximum_runs"):
        gate_of(tmp_path, dataclasses.replace(TERMS, run="42"), maximum_runs=1)


def test_the_ledger_tells_when_another_policy_came_into_force(tmp_path: Path) -> None:
    for minimum in (5, 5, 6):
        gate_of(tmp_path, minimum_rows=minimum)
    assert [line.event for line in lines(tmp_path)] == ["opened", "opened"]


def test_nothing_leaves_while_the_ledger_is_broken(tmp_path: Path) -> None:
    gate = gate_of(tmp_path)
    path = tmp_path / "site" / LEDGER
    path.write_bytes(path.read_bytes().replace(b"north", b"south"))
    with refused(LedgerError, line=1):
        gate_of(tmp_path)
    with refused(LedgerError, line=1):
        gate.refusal(ValueError("x"))


# --- what leaves of an error ---------------------------------------------------------------------

SECRET = "Jane Doe, 4.567891"


class NamedError(Exception):
    """An error whose class, too, is the study's."""


@pytest.mark.parametrize(
    "kind",
    [
        *(ValueError, KeyError, OSError, MemoryError, NamedError, KeyboardInterrupt, TimeoutError),
        *(ConsortiaError, InputError, LedgerError, PolicyError, UnicodeError, SystemExit),
    ],
)
def test_of_an_error_a_fixed_phrase_leaves_and_its_text_stays(
    tmp_path: Path, kind: type[BaseException]
) -> None:
    gate = gate_of(tmp_path)
    try:
        try:
            raise RuntimeError(f"cause {SECRET}")
        except RuntimeError as cause:
            raise kind(SECRET) from cause
    except BaseException as error:
        text = gate.refusal(error).decode()
    assert not any(word in text for word in ("Jane", "Doe", "4.56", "NamedError", "cause"))
    assert any(text.startswith(phrase) for _, phrase in PHRASES)
    number = text.split()[-1]
    kept = tmp_path / "site" / ERRORS
    assert kept.stat().st_mode & 0o077 == 0
    told = kept.read_text()
    assert number in told
    assert f"cause {SECRET}" in told
    line = lines(tmp_path)[-1]
    assert (line.event, line.bytes) == ("refused", len(text.encode()))
    assert line.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert "Jane" not in (tmp_path / "site" / LEDGER).read_text()


def test_an_error_that_is_not_finite_tells_no_position(tmp_path: Path) -> None:
    error = NonFiniteError(SECRET, round=1, chain=0, site="north", position=np.array([4.5]))
    assert gate_of(tmp_path).refusal(error).startswith(b"a number at the site is not finite;")


def test_of_a_policy_s_refusal_the_rules_leave_and_no_number(tmp_path: Path) -> None:
    gate = gate_of(tmp_path, maximum_messages=987654)
    with pytest.raises(PolicyError) as caught:
        gate.admit("round", asked("round", 123))
    text = gate.refusal(caught.value).decode()
    assert text.startswith("the site's policy does not permit this (maximum_rounds); ")
    assert "123 " not in text
    assert "987654" not in text


CALLS_OF_ROWS: dict[str, Callable[[Gate], Any]] = {
    "minimum_rows": lambda gate: gate.rows(49),
    "maximum_parameters_per_row": lambda gate: gate.rows(50, 11),
    "maximum_norm": lambda gate: gate.release(Leaving("round", asked("round", 0), PAYLOAD, ARRAYS)),
}


@pytest.mark.parametrize("rule", CALLS_OF_ROWS)
def test_a_rule_that_depends_on_rows_is_never_named(tmp_path: Path, rule: str) -> None:
    gate = gate_of(tmp_path, minimum_rows=50, maximum_parameters_per_row=0.2, maximum_norm=1.0)
    with pytest.raises(PolicyError) as caught:
        CALLS_OF_ROWS[rule](gate)
    assert {*caught.value.rules} == {rule}
    text = gate.refusal(caught.value).decode()
    assert text.startswith("the site's policy does not permit this; the site has the details")
    assert rule in (tmp_path / "site" / ERRORS).read_text()


# --- what is asked -------------------------------------------------------------------------------


def rules_of(call: Any, *arguments: Any, **more: Any) -> tuple[str, ...]:
    with pytest.raises(PolicyError) as caught:
        call(*arguments, **more)
    return caught.value.rules


def test_a_place_has_one_answer_and_the_same_question_has_it_again(tmp_path: Path) -> None:
    gate = gate_of(tmp_path)
    assert not gate.admit("round", asked("round", 3))
    gate.release(Leaving("round", asked("round", 3), PAYLOAD, ARRAYS))
    assert gate.admit("round", asked("round", 3))
    gate.release(Leaving("round", asked("round", 3), PAYLOAD, ARRAYS))
    other = asked("round", 3, "bb")
    assert rules_of(gate.admit, "round", other) == ("maximum_answers",)
    assert rules_of(gate_of(tmp_path).release, Leaving("round", other, b"", {})) == (
        "maximum_answers",
    )
    assert not gate.admit("round", asked("round", 4, "bb"))
    assert not gate_of(tmp_path, maximum_answers=2).admit("round", other)


def test_after_some_refusals_a_run_is_closed_and_a_larger_number_opens_it(tmp_path: Path) -> None:
    gate = gate_of(tmp_path, maximum_refusals=2)
    for _ in range(2):
        with pytest.raises(PolicyError) as caught:
            gate.admit("round", asked("round", 10))
        gate.refusal(caught.value)
    written = len(lines(tmp_path))
    with pytest.raises(RunClosedError) as closed:
        gate.admit("round", asked("round", 0))
    assert gate.refusal(closed.value) == b"the run is closed at the site"
    assert len(lines(tmp_path)) == written
    another = gate_of(tmp_path, dataclasses.replace(TERMS, run="42"), maximum_refusals=2)
    another.admit("round", asked("round", 0))
    gate_of(tmp_path, maximum_refusals=3)  # the policy is written anew
    assert not gate.admit("round", asked("round", 0))


def test_one_refusal_that_depends_on_rows_closes_the_run(tmp_path: Path) -> None:
    gate = gate_of(tmp_path, maximum_norm=1.0)
    with pytest.raises(PolicyError) as caught:
        gate.release(Leaving("round", asked("round", 0), PAYLOAD, ARRAYS))
    gate.refusal(caught.value)
    with pytest.raises(RunClosedError):
        gate.admit("round", asked("round", 1))


def test_rows_are_not_looked_at_far_out_or_far_from_the_last_time(tmp_path: Path) -> None:
    gate = gate_of(tmp_path, maximum_position=5.0, maximum_step=2.0, maximum_points=8)
    nowhere = np.zeros((0, 0))
    gate.place(Place(8, 5.0, 2.0, nowhere), again=False)
    gate.place(Place(8, 5.0, 9.0, nowhere), again=True)
    for place, rule in (
        (Place(9, 1.0, 1.0, nowhere), "maximum_points"),
        (Place(8, 5.1, 1.0, nowhere), "maximum_position"),
        (Place(8, 1.0, 2.1, nowhere), "maximum_step"),
        (Place(8, float("nan"), 1.0, nowhere), "maximum_position"),
    ):
        assert rules_of(gate.place, place, again=False) == (rule,)


def test_a_policy_that_changes_takes_effect_at_the_next_question(tmp_path: Path) -> None:
    gate = gate_of(tmp_path)
    gate.admit("round", asked("round", 0))
    gate_of(tmp_path, maximum_runs=1)
    gate.admit("round", asked("round", 0))
    path = tmp_path / "site-policy.toml"
    path.write_text(path.read_text().replace("a" * 64, "c" * 64))
    assert rules_of(gate.admit, "round", asked("round", 0)) == ("studies",)


def test_of_strangers_without_end_the_ledger_has_some_lines(tmp_path: Path) -> None:
    where = {"folder": tmp_path / "site", "site": "north"}
    texts = {refusal(OSError(), run=f"{n:08x}", **where)[:34] for n in range(MOST_STRANGERS + 5)}
    assert texts == {b"a file of the site cannot be used;", b"a file of the site cannot be used"}
    assert len(lines(tmp_path)) == MOST_STRANGERS
    assert len((tmp_path / "site" / ERRORS).read_text().split("OSError")) == MOST_STRANGERS + 1
    gate_of(tmp_path)  # a permitted run: they are counted anew
    refusal(OSError(), run="ab", **where)
    assert len(lines(tmp_path)) == MOST_STRANGERS + 2


def test_a_refusal_needs_no_gate_and_is_in_the_ledger(tmp_path: Path) -> None:
    where = {"folder": tmp_path / "site", "site": "north", "run": "9"}
    left = refusal(OSError(SECRET), **where, wrap=lambda text: b"<" + text.encode() + b">")
    assert left.startswith(b"<a file of the site cannot be used;")
    assert lines(tmp_path)[0].bytes == len(left)
    assert lines(tmp_path)[0].sha256 == hashlib.sha256(left).hexdigest()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused(LedgerError, file=str(tmp_path / "file" / "site"), match="cannot be made"):
        refusal(OSError(), folder=tmp_path / "file" / "site", site="north", run="9")


# --- rows that answers settle --------------------------------------------------------------------


def test_an_answer_with_which_too_many_rows_would_be_settled_does_not_leave(tmp_path: Path) -> None:
    gate = gate_of(tmp_path, dataclasses.replace(TERMS, measured=True), maximum_settled_rows=2)
    gate.settled(Statement(2, 50, 50))
    with refused(PolicyError, rules=("maximum_settled_rows",), match="settle 3.*of 50") as caught:
        gate.settled(Statement(3, 50, 50))
    assert caught.value.rules == ("maximum_settled_rows",)
    assert caught.value.of_rows  # not even its name leaves
    assert rules_of(gate.settled, None) == ("unmeasured",)
    gate.release(Leaving("round", asked("round", 0), PAYLOAD, ARRAYS, 0, Statement(2, 40, 50)))
    assert lines(tmp_path)[-1].details["settled"] == "2 of 50 rows (of 40 that were drawn)"


def test_without_the_key_and_for_named_algorithms_nothing_need_be_known(tmp_path: Path) -> None:
    for name in ("none", "named", "other"):
        (tmp_path / name).mkdir()
    gate_of(tmp_path / "none").settled(None)
    limits = {"maximum_settled_rows": 0, "unmeasured": ["fa_hmc"]}
    gate_of(tmp_path / "named", **limits).settled(None)
    with refused(PolicyError, rules=("unmeasured",)):
        gate_of(tmp_path / "other", maximum_settled_rows=0)


def test_a_run_of_one_study_is_not_that_of_another(tmp_path: Path) -> None:
    studies = {"studies": ["a" * 64, "c" * 64]}
    gate_of(tmp_path, **studies)
    gate_of(tmp_path, dataclasses.replace(TERMS, run="42", study="c" * 64), **studies)
    with refused(PolicyError, rules=("studies",), match="its run is"):
        gate_of(tmp_path, dataclasses.replace(TERMS, study="c" * 64), **studies)

"""A study by letters is the study of one process, and nothing wrong is taken for an answer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import consortia
from consortia.cli.commands import app
from consortia.engines.letters.encryption import decrypt, encrypt
from consortia.engines.letters.sealing import Letter, LetterError, digest, seal, unfold
from consortia.engines.messages import identities
from consortia.engines.messages.envelope import decode
from consortia.engines.messages.identities import body_of
from consortia.errors import (
    InputError,
    LedgerError,
    PolicyError,
    SiteImplausibleError,
    SiteRefusedError,
    StoreError,
)
from consortia.federation.governance import verify
from consortia.federation.governance.ledger import Ledger
from consortia.federation.letters import coordinating
from consortia.federation.letters.answering import Declined, Shown
from consortia.federation.letters.coordinating import open_study
from consortia.study.build import load_study
from tests.federation.correspondence import Correspondence, as_one_process
from tests.federation.hospitals import HOSPITALS, NAMES, study
from tests.refusals import refused


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> list[Correspondence]:
    """Return the same study before the answers to letters 1 to 4, and at its end."""
    root = tmp_path_factory.mktemp("letters")
    found = [Correspondence(root / "0")]
    with pytest.MonkeyPatch.context() as patched:
        as_one_process(patched)
        found[0].proceed()
        for number in range(1, 5):
            now = found[-1].copied(root / str(number))
            for name in NAMES:
                now.answer(name, number)
            now.proceed()
            found.append(now)
    return found


def test_letters_make_the_draws_of_one_process_in_four_letters_each(stages, tmp_path: Path) -> None:
    end = stages[-1]
    assert sorted(path.name for path in (end.shared / "north").iterdir()) == [
        *(f"answer-{number:03d}.letter" for number in range(1, 5)),
        *(f"question-{number:03d}.letter" for number in range(1, 5)),
    ]
    up = [sum(end.reply(name, number).stat().st_size for number in range(1, 5)) for name in NAMES]
    assert max(up) < 60_000
    path = tmp_path / "study.toml"
    path.write_text(study())
    built = load_study(path).build(data_folder=HOSPITALS)
    options = {"rounds": 60, "chains": 4, "seed": 1, "progress": False}
    one = consortia.sample(built.model, built.rows, built.algorithm, **options)
    by_letters = consortia.open_run(end.coordinator / "run")
    assert by_letters.attrs["state"] == "finished"
    for name in one.posterior:
        np.testing.assert_allclose(by_letters.posterior[name], one.posterior[name], atol=1e-4)


def test_signed_letters_with_secure_sums_have_the_draws_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_one_process(monkeypatch)
    now = Correspondence(tmp_path / "signed", keys=True)
    now.proceed()
    for number in range(1, 5):
        for name in NAMES:
            now.answer(name, number)
        found = now.proceed()
    assert found.result is not None
    up = [sum(now.reply(name, number).stat().st_size for number in range(1, 5)) for name in NAMES]
    assert max(up) < 60_000
    path = tmp_path / "study.toml"
    path.write_text(study())
    built = load_study(path).build(data_folder=HOSPITALS)
    options = {"rounds": 60, "chains": 4, "seed": 1, "progress": False}
    one = consortia.sample(built.model, built.rows, built.algorithm, **options)
    by_letters = consortia.open_run(found.result)
    for name in one.posterior:
        np.testing.assert_allclose(by_letters.posterior[name], one.posterior[name], atol=1e-4)
    keys = identities.coordinator_ring(now.root / "keys")
    data = now.reply("north", 4).read_bytes()
    plain = decrypt(data, keys.private, keys.sites["north"], identities.TO_COORDINATOR)
    sent = decode(body_of(unfold(plain)[0].messages[0]))
    assert set(sent.arrays) == {"masked", "masked, packed"}


def test_letters_need_keys_or_a_study_without_secure_sums(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(study())
    with refused(argument="keys"):
        open_study(path, tmp_path / "coordinator", tmp_path / "post")


def test_every_site_has_a_ledger_of_its_answers(stages) -> None:
    for name in NAMES:
        found = verify(stages[-1].site(name) / "ledger.jsonl")
        assert found.problem is None
        kinds = [one.kind for one in found.entries if one.left]
        assert kinds == ["description", "description", "query", "query", "query"]


def test_a_run_that_has_ended_is_not_run_again(stages, tmp_path: Path) -> None:
    end = stages[-1].copied(tmp_path / "end")
    before = (end.coordinator / "run" / "run.json").read_bytes()
    found = end.proceed()
    assert found.result == end.coordinator / "run"
    assert (end.coordinator / "run" / "run.json").read_bytes() == before


# --- false answers -------------------------------------------------------------------------------


def resealed(data: bytes, key: bytes, **changes: object) -> bytes:
    return seal(replace(unfold(data)[0], **changes), key)


def key_of(kept: Correspondence, name: str) -> bytes:
    letter, _ = unfold(kept.question(name, 1).read_bytes())
    return bytes.fromhex(letter.values["key"])


def forged(data: bytes, key: bytes) -> bytes:
    return resealed(data, bytes(32))


FAULTS: dict[str, tuple[Callable[[bytes, bytes], bytes], str]] = {
    "truncated": (lambda data, key: data[:-9], "not a whole letter"),
    "empty": (lambda data, key: b"", "not a whole letter"),
    "changed": (lambda data, key: data[:70] + bytes([data[70] ^ 1]) + data[71:], "not a whole"),
    "forged": (forged, "forged, or was changed"),
    "of another site": (lambda data, key: resealed(data, key, site="south"), "forged"),
    "of no site": (lambda data, key: resealed(data, key, site="east"), "site that the study"),
    "of another run": (lambda data, key: resealed(data, key, run="0" * 32), "another run or study"),
    "from the future": (lambda data, key: resealed(data, key, number=3), "from the future"),
    "a question": (lambda data, key: resealed(data, key, kind="question"), "not an answer"),
    "of another letter": (lambda data, key: resealed(data, key, about="0" * 64), "another letter"),
    "of another message": (
        lambda data, key: resealed(data, key, messages=(unfold(data)[0].messages[0],) * 2),
        "something else than the letter asks",
    ),
    "too short": (
        lambda data, key: resealed(data, key, messages=unfold(data)[0].messages[:1]),
        "fewer replies",
    ),
}


@pytest.fixture(scope="module")
def second(stages, tmp_path_factory) -> Correspondence:
    """Return the study when letter 2 is answered by north alone, and nothing was read."""
    now = stages[1].copied(tmp_path_factory.mktemp("second") / "now")
    with pytest.MonkeyPatch.context() as patched:
        as_one_process(patched)
        now.answer("north", 2)
    return now


@pytest.mark.parametrize("fault", FAULTS)
def test_a_false_answer_is_refused_by_name_and_the_right_one_taken(
    second, tmp_path: Path, fault: str
) -> None:
    now = second.copied(tmp_path / "now")
    good = now.reply("north", 2).read_bytes()
    change, reason = FAULTS[fault]
    bad = tmp_path / "from-mail.letter"
    bad.write_bytes(change(good, key_of(now, "north")))
    now.reply("north", 2).unlink()
    found = now.proceed(bad)
    assert reason in found.refused[bad]
    assert found.accepted == []
    assert found.awaited == dict.fromkeys(NAMES, 2)
    now.reply("north", 2).write_bytes(good)
    found = now.proceed()
    assert found.accepted == [("north", 2)]
    assert found.awaited == {"south": 2, "west": 2}


def test_a_double_is_named_and_another_answer_is_late(stages, tmp_path: Path) -> None:
    now = stages[2].copied(tmp_path / "now")
    data = now.reply("north", 2).read_bytes()
    (now.shared / "north" / "copy.letter").write_bytes(data)
    letter, _ = unfold(data)
    last = decode(letter.messages[1])
    curvatures = {name: values + 1 for name, values in last.arrays.items()}
    other = replace(last, arrays=curvatures).encode()
    late = tmp_path / "late.letter"
    late.write_bytes(resealed(data, key_of(now, "north"), messages=(letter.messages[0], other)))
    found = now.proceed(late)
    double, otherwise = found.refused.values()
    assert "double of" in double
    assert "answered otherwise before" in otherwise
    assert found.awaited == dict.fromkeys(NAMES, 3)


# --- an answer that is accepted and of no use ----------------------------------------------------


def of_other_arrays(data: bytes) -> tuple[bytes, ...]:
    """Return the replies of an answer, of the query without one of its arrays."""
    agreement, reply = unfold(data)[0].messages
    found = decode(reply)
    kept = {name: found.arrays[name] for name in sorted(found.arrays)[1:]}
    return agreement, replace(found, arrays=kept).encode()


def of_infinite_numbers(data: bytes) -> tuple[bytes, ...]:
    agreement, reply = unfold(data)[0].messages
    found = decode(reply)
    infinite = {name: np.full_like(values, np.inf) for name, values in found.arrays.items()}
    return agreement, replace(found, arrays=infinite).encode()


def of_another_version(data: bytes) -> tuple[bytes, ...]:
    found = decode(unfold(data)[0].messages[0])
    versions = {**found.values["versions"], "jax": "0.0.1"}
    return (replace(found, values={**found.values, "versions": versions}).encode(),)


def without_facts(data: bytes) -> tuple[bytes, ...]:
    found = decode(unfold(data)[0].messages[0])
    return (replace(found, values={**found.values, "facts": {}}).encode(),)


USELESS: dict[Callable[[bytes], tuple[bytes, ...]], tuple[int, str]] = {
    of_other_arrays: (2, "malformed: it holds other arrays than this function answers"),
    of_infinite_numbers: (2, "not finite, without a mark"),
    of_another_version: (1, "it runs jax 0.0.1"),
    without_facts: (1, "malformed: these are no facts of a site"),
}


@pytest.mark.parametrize("change", USELESS)
def test_an_answer_of_no_use_is_put_aside_and_the_site_answers_again(
    stages, second, tmp_path: Path, change: Callable[[bytes], tuple[bytes, ...]]
) -> None:
    number, reason = USELESS[change]
    source = (stages[1], second)[number - 1]
    now = (stages[0], second)[number - 1].copied(tmp_path / "now")
    good, key = source.reply("north", number).read_bytes(), key_of(now, "north")
    now.reply("north", number).write_bytes(resealed(good, key, messages=change(good)))
    before = now.question("north", number).read_bytes()
    found = now.proceed()
    assert found.accepted == [("north", number)]
    assert found.aside["north"][0] == number
    assert reason in found.aside["north"][1]
    assert found.awaited == dict.fromkeys(NAMES, number)
    assert now.question("north", number).read_bytes() == before
    found = now.proceed()  # the same comes again, and the coordinator knows it
    assert "it was set aside: " in found.refused[now.reply("north", number)]
    assert reason in found.refused[now.reply("north", number)]
    assert (found.accepted, found.aside) == ([], {})
    now.reply("north", number).write_bytes(good)
    found = now.proceed()
    assert found.accepted == [("north", number)]
    assert found.awaited == {"south": number, "west": number}


def test_the_coordinator_puts_an_answer_about_another_file_aside(stages, tmp_path: Path) -> None:
    now = stages[0].copied(tmp_path / "now")
    for name in ("north", "south"):
        now.reply(name, 1).write_bytes(stages[1].reply(name, 1).read_bytes())
    rows = now.site("west") / "rows.csv"
    text = rows.read_text()
    rows.write_text(text.replace("age", "height", 1))
    assert now.answer("west", 1).error is None
    with refused(file=str(now.coordinator / "west.csv"), match="columns"):
        now.proceed()
    rows.write_text(text)
    words = ["letter", "next", str(now.coordinator), "--again"]
    assert CliRunner().invoke(app, [*words, "east"]).exit_code == 2
    done = CliRunner().invoke(app, [*words, "west"])
    assert "answer 1 of west was set aside" in done.stderr
    assert "west: letter 1 is in" in done.stdout
    assert now.answer("west", 1).error is None
    found = now.proceed()
    assert found.accepted == [("west", 1)]
    assert found.awaited == dict.fromkeys(NAMES, 2)
    with refused(StoreError, site="west", match="no open letter"):
        now.proceed(again=["west"])


def test_answers_are_put_aside_together_or_not_at_all(stages, tmp_path: Path) -> None:
    now = stages[0].copied(tmp_path / "now")
    now.reply("west", 1).write_bytes(stages[1].reply("west", 1).read_bytes())
    assert now.proceed().accepted == [("west", 1)]
    for other, error in (("east", InputError), ("north", StoreError)):  # none, or has not answered
        with pytest.raises(error):
            now.proceed(again=["west", other])
        assert not (now.coordinator / "aside").exists()
    assert now.proceed(again=["west", "west"]).aside.keys() == {"west"}


def test_an_answer_is_put_aside_to_the_end_after_a_kill(
    stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = stages[0].copied(tmp_path / "now")
    now.reply("west", 1).write_bytes(stages[1].reply("west", 1).read_bytes())
    now.proceed()

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            now.proceed(again=["west"])
    found = now.proceed()
    assert "it was set aside: " in found.refused[now.reply("west", 1)]
    assert found.awaited == dict.fromkeys(NAMES, 1)


def test_of_a_sum_that_several_may_have_spoiled_nothing_is_put_aside(
    stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(*arguments: Any) -> None:
        raise SiteImplausibleError(NAMES, reason="a sum is not finite", waited=0.0)

    now = stages[1].copied(tmp_path / "now")
    monkeypatch.setattr(coordinating, "serve", spoiled)
    with refused(SiteImplausibleError, sites=("north", "south", "west"), match="not finite"):
        now.proceed()
    assert not (now.coordinator / "aside").exists()


def test_an_answer_with_which_letters_were_written_stays(stages, tmp_path: Path) -> None:
    now = stages[1].copied(tmp_path / "now")
    now.question("west", 2).unlink()
    (now.coordinator / "sent" / "2-002.letter").unlink()  # as after a kill between two letters
    with refused(StoreError, site="west", match="has been used"):
        now.proceed(again=["west"])
    end = stages[-1].copied(tmp_path / "end")
    with refused(StoreError, site="west", match="has been used"):
        end.proceed(again=["west"])


# --- lost, restored, changed ---------------------------------------------------------------------


def test_a_lost_letter_is_written_again_with_the_same_bytes(stages, tmp_path: Path) -> None:
    now = stages[2].copied(tmp_path / "now")
    path = now.question("west", 3)
    before = path.read_bytes()
    path.unlink()
    now.proceed()
    assert path.read_bytes() == before


def test_a_coordinator_put_back_writes_the_same_letters(stages, tmp_path: Path) -> None:
    now = stages[3].copied(tmp_path / "now")
    older = stages[1].copied(tmp_path / "older")
    for name in NAMES:  # the answers of later letters are in the shared folder
        for path in (now.shared / name).iterdir():
            (older.shared / name / path.name).write_bytes(path.read_bytes())
    found = older.proceed()
    assert sorted(found.accepted) == [(name, number) for name in NAMES for number in (2, 3)]
    assert found.awaited == dict.fromkeys(NAMES, 4)
    for name in NAMES:
        assert older.question(name, 4).read_bytes() == now.question(name, 4).read_bytes()


def test_a_site_put_back_does_not_answer(stages, tmp_path: Path) -> None:
    older = stages[1].copied(tmp_path / "older")
    path = older.question("north", 3)
    path.write_bytes(stages[2].question("north", 3).read_bytes())
    with refused(LedgerError, match="older copy"):
        older.answer("north", 3)
    assert not older.reply("north", 3).exists()


@pytest.mark.parametrize("name", ["sent/0-001.letter", "received/1-002.letter", "study.toml"])
def test_a_changed_file_of_the_coordinator_is_named(stages, tmp_path: Path, name: str) -> None:
    now = stages[2].copied(tmp_path / "now")
    path = now.coordinator / name
    data = path.read_bytes()
    path.write_bytes(data.replace(b"seed = 1", b"seed = 2") if name == "study.toml" else data[:-1])
    with refused(StoreError, file=str(path)):
        now.proceed()


# --- a site -------------------------------------------------------------------------------------


def test_a_site_shows_what_is_asked_and_nothing_leaves_unless_permitted(
    stages, tmp_path: Path
) -> None:
    now = stages[2].copied(tmp_path / "now")
    seen: list[Shown] = []

    def no(shown: Shown) -> bool:
        seen.append(shown)
        return False

    before = verify(now.site("north") / "ledger.jsonl").entries
    with pytest.raises(Declined):
        now.answer("north", 3, permit=no)
    assert "4,002 numbers that depend on your rows would leave" in " ".join(seen[0].lines)
    assert not now.reply("north", 3).exists()
    assert verify(now.site("north") / "ledger.jsonl").entries == before


@pytest.mark.slow
def test_nothing_is_spent_of_a_budget_before_a_person_has_permitted_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_one_process(monkeypatch)
    private = 'name = "private_posterior"\nepsilon = 5.0\ndelta = 1e-6'
    now = Correspondence(tmp_path / "now", private)
    for name in NAMES:
        policy = now.site(name) / "site-policy.toml"
        policy.write_text(f"maximum_epsilon = 5.0\n{policy.read_text()}")
    now.proceed()
    for name in NAMES:
        now.answer(name, 1)
    now.proceed()
    with pytest.raises(Declined):
        now.answer("north", 2, permit=lambda shown: False)
    assert not Ledger(now.site("north") / "ledger.jsonl").losses
    now.answer("north", 2)
    assert Ledger(now.site("north") / "ledger.jsonl").losses


def of_site(now: Correspondence, change: Callable[[bytes], bytes]) -> None:
    path = now.question("north", 2)
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:-1], "not a whole letter"),
        (lambda data: resealed(data, bytes(32)), "forged"),
        (lambda data: resealed(data, bytes(32), kind="answer"), "not a question"),
        (lambda data: resealed(data, bytes(32), run="1" * 32), "first letter was not answered"),
        (lambda data: resealed(data, bytes(32), site="south"), "for 'south'"),
    ],
)
def test_a_site_refuses_a_false_question(
    stages, tmp_path: Path, change: Callable[[bytes], bytes], reason: str
) -> None:
    now = stages[1].copied(tmp_path / "now")
    of_site(now, change)
    with refused(LetterError, file=str(now.question("north", 2)), match=reason):
        now.answer("north", 2)
    assert not now.reply("north", 2).exists()


def test_a_policy_is_needed_and_may_forbid_the_study(stages, tmp_path: Path) -> None:
    now = stages[0].copied(tmp_path / "now")
    policy = now.site("north") / "site-policy.toml"
    text = policy.read_text()
    policy.unlink()
    with refused(file=str(policy), match="site check --study"):
        now.answer("north", 1)
    shutil.rmtree(now.site("north") / "letters")
    policy.write_text(f'algorithms = ["fa_hmc"]\n{text}')
    with refused(PolicyError, rules=("algorithms",)):
        now.answer("north", 1)
    assert not now.reply("north", 1).exists()
    assert not (now.site("north") / "letters").exists()


@pytest.mark.parametrize("name", NAMES)
def test_the_study_that_a_hospital_needs_is_in_its_first_letter(
    stages, name: str, tmp_path: Path
) -> None:
    now = stages[0].copied(tmp_path / "now")
    wanted = (now.root / "study.toml").read_bytes()
    (now.root / "study.toml").unlink()
    (now.site(name) / "site-policy.toml").unlink()
    policy = now.site(name) / "site-policy.toml"
    with refused(file=str(policy), match="site check --study") as caught:
        now.answer(name, 1)
    (kept,) = (
        Path(word)
        for word in str(caught.value).split()
        if word.endswith(".toml") and Path(word).name != "site-policy.toml"
    )
    assert kept.read_bytes() == wanted


def test_a_refusal_is_told_and_replaced_by_a_later_answer(stages, tmp_path: Path) -> None:
    now = stages[2].copied(tmp_path / "now")
    policy = now.site("north") / "site-policy.toml"
    text = policy.read_text()
    policy.write_text(f"{text}maximum_points = 10\n")
    found = now.answer("north", 3)
    assert isinstance(found.error, PolicyError)
    assert found.error.rules == ("maximum_points",)
    with refused(SiteRefusedError, sites=("north",)):
        now.proceed()
    policy.write_text(text)
    assert now.answer("north", 3).error is None
    assert now.proceed().accepted == [("north", 3)]


def test_letters_carry_no_method_of_thousands_of_messages(tmp_path: Path) -> None:
    with refused(argument="algorithm.name", match="few_rounds"):
        Correspondence(tmp_path / "now", 'name = "fa_ld"\nstep_size = 0.1\nlocal_steps = 4')


def test_equal_letters_have_equal_bytes_and_the_digest_is_that_of_all() -> None:
    letter = Letter("question", "0" * 32, "north", 1, (b"one", b"two"), values={"x64": False})
    data = seal(letter, bytes(32))
    assert data == seal(letter, bytes(32))
    assert unfold(data)[0] == letter
    assert digest(data) != digest(seal(replace(letter, number=2), bytes(32)))


def test_the_commands_ask_and_say_where_letters_are(stages, tmp_path: Path) -> None:
    now = stages[2].copied(tmp_path / "now")
    question = str(now.question("north", 3))
    words = ["letter", "answer", question, "--folder", str(now.site("north"))]
    declined = CliRunner().invoke(app, words, input="n\n")
    assert declined.exit_code == 1
    assert "4,002 numbers that depend on your rows would leave" in declined.output
    assert not now.reply("north", 3).exists()
    answered = CliRunner().invoke(app, [*words, "--yes", "--json"])
    assert answered.exit_code == 0
    assert json.loads(answered.stdout)["answer"] == str(now.reply("north", 3))
    found = CliRunner().invoke(app, ["letter", "next", str(now.coordinator), "--json"])
    assert json.loads(found.stdout)["awaited"] == {"south": 3, "west": 3}
    again = ["letter", "open", str(now.root / "study.toml"), "--folder", str(now.coordinator)]
    assert CliRunner().invoke(app, again).exit_code == 3


@pytest.mark.parametrize("fault", ["a column is missing", "the keys are gone", "no number"])
def test_what_a_site_refuses_by_itself_is_printed_there_with_exit_code_2(
    tmp_path: Path, fault: str
) -> None:
    now = Correspondence(tmp_path / "now", keys=fault == "the keys are gone")
    now.proceed()
    folder = now.site("north")
    rows = (folder / "rows.csv").read_text()
    if fault == "a column is missing":
        (folder / "rows.csv").write_text(rows.replace("ill", "sick", 1))
        words = "ill"
    elif fault == "no number":
        head, line, *rest = rows.splitlines()
        damaged = ",".join(["x1x", *line.split(",")[1:]])
        (folder / "rows.csv").write_text("\n".join([head, damaged, *rest, ""]))
        words = "rows.csv, line 2, column"
    else:
        (folder / identities.FILE).unlink()
        words = identities.FILE
    asked = ["letter", "answer", str(now.question("north", 1)), "--folder", str(folder), "--yes"]
    outcome = CliRunner().invoke(app, [*asked, "--data", str(folder / "rows.csv")])
    assert outcome.exit_code == 2, outcome.output
    assert words in outcome.stderr
    assert "Traceback" not in outcome.output
    # Without its key a site cannot read who asks: it writes no refusal.
    assert ("has refused letter 1" in outcome.stderr) is (fault != "the keys are gone")
    assert "answer 1 of north" not in outcome.stdout


def test_a_letter_is_read_and_written_by_its_two_ends_alone(tmp_path: Path) -> None:
    now = Correspondence(tmp_path / "signed", keys=True)
    now.proceed()
    sent = {name: now.question(name, 1).read_bytes() for name in NAMES}
    assert all(b"few_rounds" not in data and b"formula" not in data for data in sent.values())
    north, south = (identities.read_identity(now.site(name)) for name in ("north", "south"))
    coordinator = identities.read_identity(now.root / "keys")
    public = identities.public_of
    plain = decrypt(sent["north"], north, public(coordinator), identities.TO_SITE)
    assert "few_rounds" in unfold(plain)[0].values["study"]
    with pytest.raises(LetterError, match="encrypted to another key"):
        decrypt(sent["north"], south, public(coordinator), identities.TO_SITE)
    changed = bytearray(sent["north"])
    changed[-1] ^= 1
    with pytest.raises(LetterError, match="was changed on its way"):
        decrypt(bytes(changed), north, public(coordinator), identities.TO_SITE)
    # A letter of somebody else, and one without a signature, are not looked at.
    for forged in (encrypt(plain, "north", south, public(north), identities.TO_SITE), plain):
        now.question("north", 1).write_bytes(forged)
        with refused(LetterError, file=str(now.question("north", 1)), match="signed"):
            now.answer("north", 1)
    now.question("north", 1).write_bytes(sent["north"])
    for name in NAMES:
        now.answer(name, 1)
    path = now.reply("north", 1)
    good = path.read_bytes()
    assert b"agreement" not in good
    answer = decrypt(good, coordinator, public(north), identities.TO_COORDINATOR)
    towards = identities.TO_COORDINATOR
    forged = encrypt(answer, "north", south, public(coordinator), towards)
    for data, words in ((forged, "not signed by the key"), (answer, "not encrypted")):
        path.write_bytes(data)
        found = now.proceed()
        assert words in found.refused[path]
    path.write_bytes(good)
    assert now.proceed().accepted == [("north", 1)]


def test_a_key_of_two_sites_and_one_of_low_order_are_refused_by_name(tmp_path: Path) -> None:
    north, south = (identities.make_identity(tmp_path / name).hex() for name in ("n", "s"))
    assert identities.faulty_key(None, {"north": north, "south": south}) is None
    fault = identities.faulty_key(north, {"oslo": south, "lima": north})
    assert fault is not None
    assert "the coordinator and lima have the same key" in fault
    for point in ("01" + 31 * "00", "ec" + 30 * "ff" + "7f", 32 * "00", 31 * "00" + "80"):
        fault = identities.faulty_key(None, {"oslo": point})
        assert fault is not None
        assert "of oslo is a point of low order" in fault


@pytest.mark.parametrize(
    "text", [".".join(["a"] * 50_000) + " = 1", "a = " + "[" * 6_000, "#" * 600_000]
)
def test_a_study_that_takes_minutes_to_parse_is_refused_before(tmp_path: Path, text: str) -> None:
    now = Correspondence(tmp_path / "now")
    now.proceed()
    path = now.question("north", 1)
    data, key = path.read_bytes(), key_of(now, "north")
    values = {**unfold(data)[0].values, "study": text}
    path.write_bytes(resealed(data, key, values=values))
    with refused(LetterError, match="at most 500,000 and 5,000"):
        now.answer("north", 1)


@pytest.mark.parametrize(
    "name",
    ["", "..", ".hidden", "/etc/site", "a/b", "a\\b", "a\0b", "a\u202eb", "C:x", "con", "x "],
)
def test_a_letter_for_a_site_that_is_a_path_is_not_opened(name: str) -> None:
    letter = Letter("question", "0" * 32, name, 1, (b"x",))
    with pytest.raises(LetterError, match="as no site can be named"):
        unfold(seal(letter, bytes(32)))

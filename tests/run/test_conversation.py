"""Runs of a conversation: replay, damage, stopping rules, what ends them, and their record."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from engines import toy_conversation as toy
from sparse import sparse

import consortia
from consortia.core.queries import Batch
from consortia.engines.conversing import LocalPanel
from consortia.errors import (
    InputError,
    NonFiniteError,
    RankError,
    SiteMissingError,
    StoreError,
    WarmupError,
)
from consortia.run.interrupts import held
from consortia.store import answers
from consortia.store.status import read_status
from tests.refusals import refused

MESSAGES = 8
"""Of a run of the toy: sizes, four of the search, three of draws."""


class Cut(BaseException):
    """Stands for a kill."""


def cut_run(path, at, error=Cut, **more):
    """A run that ends in the middle of message ``at``, counted from 1."""
    plain, asked = LocalPanel.ask, []

    def ask(self, query, number):
        asked.append(query)
        if len(asked) == at:
            raise error
        return plain(self, query, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalPanel, "ask", ask)
        with pytest.raises(error if isinstance(error, type) else type(error)):
            toy.sampled(store=path, **more)


def resumed(path, method=None, **more):
    options = {"progress": False} | more
    return consortia.resume(path, toy.MODEL, toy.sites(), method or toy.Toy(), **options)


def assert_same_draws(one, other):
    for group in ("posterior", "sample_stats"):
        for name, values in one[group].data_vars.items():
            np.testing.assert_array_equal(values, other[group][name], err_msg=name)
    for fact in ("communication_rounds", "messages", "bytes_up", "bytes_down", "row_gradients"):
        assert one.attrs[fact] == other.attrs[fact]


@pytest.fixture(scope="module")
def whole():
    return toy.sampled()


@pytest.fixture
def asked(monkeypatch):
    """The purposes of the queries that reach the sites."""
    found, plain = [], LocalPanel.ask

    def ask(self, query, number):
        found.append(query.purpose)
        return plain(self, query, number)

    monkeypatch.setattr(LocalPanel, "ask", ask)
    return found


@pytest.mark.parametrize("at", sparse(range(1, MESSAGES + 1), (1, 4, MESSAGES)))
def test_a_run_that_was_cut_at_any_message_is_resumed_bit_for_bit(tmp_path, whole, at):
    cut_run(tmp_path / "run", at)
    assert_same_draws(resumed(tmp_path / "run"), whole)


def test_only_what_is_missing_is_asked_again(tmp_path, asked):
    cut_run(tmp_path / "run", 7)
    asked.clear()
    resumed(tmp_path / "run")
    assert asked == ["draws", "draws"]


def test_a_longer_run_is_the_one_that_had_been_that_long(tmp_path, asked):
    toy.sampled(store=tmp_path / "run")
    asked.clear()
    longer = resumed(tmp_path / "run", rounds=5)
    assert asked == ["draws", "draws"]
    assert_same_draws(longer, toy.sampled(rounds=5))
    assert json.loads(longer.attrs["resumed_at"]) == [3]


def test_a_finished_run_is_returned_as_it_is(tmp_path, asked, whole):
    toy.sampled(store=tmp_path / "run")
    asked.clear()
    assert_same_draws(resumed(tmp_path / "run"), whole)
    assert asked == []


@pytest.mark.parametrize("thin", [3, 7])
def test_thinned_draws_are_every_nth_whatever_the_batches_and_cuts(tmp_path, whole, thin):
    cut_run(tmp_path / "run", 8, thin=thin)
    tree = resumed(tmp_path / "run")
    every = whole["posterior"]["intercept"].values[:, thin - 1 :: thin]
    np.testing.assert_array_equal(tree["posterior"]["intercept"], every)


def test_moments_are_kept_over_a_cut(tmp_path, whole):
    cut_run(tmp_path / "run", 8, keep="moments")
    tree, alone = resumed(tmp_path / "run"), toy.sampled(keep="moments")
    for name, values in alone["moments"].data_vars.items():
        np.testing.assert_array_equal(values, tree["moments"][name])


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("harm", "number"),
    sparse(
        itertools.product(("changed", "cut short", "removed", "a link"), (1, 5, 6)),
        (("changed", 1), ("cut short", 5), ("removed", 6), ("a link", 5)),
    ),
)
def test_a_damaged_answer_ends_the_replay_and_is_asked_again(tmp_path, asked, whole, number, harm):
    cut_run(tmp_path / "run", 8)
    path = answers.Answers(tmp_path / "run").path(number)
    content = path.read_bytes()
    path.unlink()
    if harm == "changed":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif harm == "cut short":
        path.write_bytes(content[:-9])
    elif harm == "a link":
        (tmp_path / "elsewhere").write_bytes(content)
        path.symlink_to(tmp_path / "elsewhere")
    what = "is missing" if harm == "removed" else "is damaged"
    asked.clear()
    with pytest.warns(UserWarning, match=f"00000{number}.bin of answers {what}.*from message"):
        tree = resumed(tmp_path / "run")
    assert len(asked) == MESSAGES - number + 1
    assert_same_draws(tree, whole)


def test_a_folder_of_answers_that_is_a_link_is_left_alone(tmp_path, asked, whole):
    cut_run(tmp_path / "run", 8)
    shutil.move(tmp_path / "run" / "answers", tmp_path / "elsewhere")
    (tmp_path / "run" / "answers").symlink_to(tmp_path / "elsewhere")
    asked.clear()
    with pytest.warns(UserWarning, match="answers is a link: the sites answer again"):
        tree = resumed(tmp_path / "run")
    assert len(asked) == MESSAGES
    assert len(list((tmp_path / "elsewhere").iterdir())) == 7
    assert_same_draws(tree, whole)


def test_an_answer_to_another_query_is_refused_and_nothing_is_lost(tmp_path, whole):
    cut_run(tmp_path / "run", 8)
    stored = answers.Answers(tmp_path / "run")
    found, _ = stored.read(3)
    stored.keep(3, "0" * 64, found.arrays)
    with refused(StoreError, match=r"message 3 \(search\)"):
        resumed(tmp_path / "run")
    stored.keep(3, found.query, found.arrays)
    assert_same_draws(resumed(tmp_path / "run"), whole)


@pytest.mark.parametrize("part", ["draws.zarr", "checkpoint-a.bin", "checkpoint-b.bin"])
def test_damaged_draws_and_checkpoints_are_made_again_from_the_answers(
    tmp_path, asked, whole, part
):
    cut_run(tmp_path / "run", 8)
    asked.clear()
    path = tmp_path / "run" / part
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.write_bytes(b"nothing")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tree = resumed(tmp_path / "run")
    assert asked == ["draws"]
    assert_same_draws(tree, whole)


# --- ends ----------------------------------------------------------------------------------------


def test_a_stopping_rule_ends_the_run_between_two_batches(tmp_path):
    rule = consortia.stop_when(ess=20, every=10)
    tree = toy.sampled(store=tmp_path / "run", stop=rule, rounds=9)
    assert tree.attrs["end"] == "stopping rule"
    assert "ESS" in tree.attrs["stopped"]
    batches = tree.attrs["iterations_run"]
    assert 1 <= batches < 9
    path = tmp_path / "again"
    cut_run(path, 5 + batches, stop=rule, rounds=9)
    assert_same_draws(resumed(path), tree)


def test_a_budget_that_is_spent_ends_the_run():
    tree = toy.sampled(stop=consortia.stop_when(budget=0.0), rounds=9)
    assert tree.attrs["stopped"].startswith("the budget of 0 s is spent")
    assert tree.attrs["iterations_run"] == 1


def test_an_interrupt_keeps_the_draws_so_far(tmp_path, monkeypatch, whole):
    plain = LocalPanel.ask

    def ask(self, query, number):
        found = plain(self, query, number)
        if len(found) == 1 and query.purpose == "draws":
            signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(LocalPanel, "ask", ask)
    with held(), pytest.warns(UserWarning, match="interrupted after message 6; the draws so far"):
        tree = consortia.sample(
            toy.MODEL, toy.sites(), toy.Toy(), chains=2, seed=11, store=tmp_path, progress=False
        )
    assert tree.attrs["state"] == "interrupted"
    monkeypatch.undo()
    assert_same_draws(resumed(tmp_path), whole)


@pytest.mark.parametrize(
    ("error", "end"),
    [(SiteMissingError(("oslo",), waited=1.0), "site missing"), (RankError("late"), "rank lost")],
)
def test_a_site_or_rank_that_is_lost_leaves_the_draws_before(tmp_path, whole, error, end):
    cut_run(tmp_path / "run", 8, error)
    assert error.tree.attrs["end"] == end
    assert error.tree["posterior"].sizes["draw"] == 64
    assert_same_draws(resumed(tmp_path / "run"), whole)


def test_a_failure_is_raised_with_what_there_is():
    with pytest.raises(WarmupError, match="no mode was found") as caught:
        toy.sampled(method=toy.Toy(fails=True))
    assert caught.value.tree.attrs["end"] == "warm-up refused"
    assert caught.value.tree.attrs["communication_rounds"] == 5


def test_faults_are_warned_of_and_recorded(monkeypatch):
    monkeypatch.setattr(toy, "accepts", lambda rng, gain: False)
    with pytest.warns(UserWarning, match="a fault of the toy"):
        tree = consortia.sample(toy.MODEL, toy.sites(), toy.Toy(), chains=2, progress=False)
    assert json.loads(tree.attrs["faults"]) == [
        {"text": "a fault of the toy", "wrong": False, "unseen": False}
    ]


@dataclass(frozen=True)
class Lost(toy.Toy):
    """A toy whose second batch is not finite."""

    def converse(self, known):
        yield Batch(np.zeros((known.chains, 4, 3)), {})
        draws = np.zeros((known.chains, 4, 3))
        draws[1, 2, 0] = np.nan
        yield Batch(draws, {})


def test_draws_that_are_not_finite_end_the_run():
    with refused(NonFiniteError, chain=1, round=1, match="in batch 1") as caught:
        toy.sampled(method=Lost())
    assert caught.value.tree["posterior"].sizes["draw"] == 4


@dataclass(frozen=True)
class Wrong(toy.Toy):
    """A toy that yields something else."""

    def converse(self, known):
        yield 3


def test_what_is_neither_query_nor_batch_is_refused():
    with pytest.raises(InputError, match="toy yields a int, expected a Query or a Batch"):
        toy.sampled(method=Wrong())


# --- what others read ----------------------------------------------------------------------------


def test_the_record_says_what_was_asked_and_sent(whole):
    told = json.loads(whole.attrs["messages"])
    assert [one["for"] for one in told] == ["sizes", *["search"] * 4, *["draws"] * 3]
    assert [one["points"] for one in told] == [0, 1, 1, 1, 1, 64, 64, 64]
    # Of 37 rows at 4 and 3 x 64 points, at 5 sites.
    assert whole.attrs["gradients"] == 5 * (4 + 3 * 64)
    assert whole.attrs["row_gradients"] == 37 * (4 + 3 * 64)


def test_progress_and_status_count_messages(tmp_path, capsys):
    toy.sampled(store=tmp_path / "run", progress=True)
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (line["rounds"], line["of"], line["draws"]) == (8, 50, 96)
    status = read_status(tmp_path / "run")
    assert (status["rounds"], status["of"], status["state"]) == (8, 50, "ended")
    assert status["bytes_up"] > 0


def test_summary_and_report_read_such_a_run(tmp_path, whole):
    from consortia.report.run_report import report_of

    assert "intercept" in str(consortia.summary(whole))
    assert report_of(whole).verdict is not None


def test_a_run_can_be_verified(whole):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = consortia.verify(whole, toy.MODEL, toy.sites(), progress=False)
    assert found.summary is not None

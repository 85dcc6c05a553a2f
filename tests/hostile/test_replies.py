"""Altered replies of a site to an honest server, and altered requests to a site."""

from __future__ import annotations

import collections
import random

import jax
import numpy as np
import pytest
from hostile import grammar
from parity import flower_sites
from parity.test_flower_faults import alone, assert_same_draws

import consortia
from consortia.core.printable import is_printable
from consortia.data.facts import SiteFacts
from consortia.engines.messages.asking import REFUSAL
from consortia.engines.messages.envelope import Envelope, EnvelopeError, decode
from consortia.engines.messages.transport import Arrival
from consortia.errors import ConsortiaError, SiteMissingError, SiteRefusedError

FACTS, HELLO, BEGIN, ROUNDS, REQUESTS = 150, 30, 20, 100, 40
NORTH = flower_sites.FIRST_NODE


@pytest.fixture(scope="module", autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


class Altering:
    """Puts altered replies to messages of one kind before the good ones, or in their place.

    Without ``lies`` those are left out that can still be read: any site may say other numbers.
    """

    def __init__(self, seed: int, kind: str, each: int, *, good: bool = True, lies: bool = True):
        self.rng, self.kind, self.each = random.Random(seed), kind, each
        self.good, self.lies, self.sent = good, lies, 0

    def __call__(self, node: int, message: str, request: bytes, good: Arrival) -> list[Arrival]:
        if node != NORTH or decode(request).kind != self.kind:
            return [good]
        made = []
        while len(made) < self.each:
            payload = grammar.altered_message(self.rng, good.payload)
            if self.lies or not readable_lie(payload, good.payload):
                made.append(Arrival(message, node, payload))
        self.sent += len(made)
        return [*made, *([good] if self.good else [])]


def readable_lie(payload: bytes, good: bytes) -> bool:
    """Whether a reply is whole and differs in nothing but numbers, which any site may send."""
    try:
        found, right = decode(payload), decode(good)
    except EnvelopeError:
        return False
    return found.kind == REFUSAL or found.values.get("request") == right.values.get("request")


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 20), pytest.param(2, FACTS - 20, marks=pytest.mark.slow)]
)
def test_altered_facts_are_rejected_or_are_facts_and_nothing_else(tmp_path, seed, count):
    sites = flower_sites.Sites(tmp_path, "fa_hmc", 3, 1, warmup=0)
    altering = Altering(seed, "description", 1, good=False)
    outcomes: collections.Counter[str] = collections.Counter()
    for _ in range(count):
        engine = sites.engine(altering, deadline=0.03, resend=1.0)
        read, error = grammar.own_error(lambda engine=engine: sites._read(engine))
        outcomes[type(error).__name__] += 1
        if error is None:
            assert read.names == sites.names
            assert all(1 <= size < 2**31 for size in read.sizes.tolist())
            continue
        assert sites.names[0] in str(error) or "facts" in str(error) or "site" in str(error)
        for line in engine._channel.rejected.lines:
            assert is_printable(line)
            assert len(line) < 600
    assert sum(outcomes.values()) == altering.sent == count
    assert outcomes["SiteMissingError"] > count // 2, outcomes


def test_altered_replies_of_who_is_there_are_refused_or_too_late(tmp_path):
    sites = flower_sites.Sites(tmp_path, "fa_hmc", 3, 1, warmup=0)
    altering = Altering(7, "description", 1, good=False)
    outcomes: collections.Counter[str] = collections.Counter()
    for _ in range(HELLO):
        engine = sites.engine(altering, deadline=0.03)
        _, error = grammar.own_error(engine.barrier)
        outcomes[type(error).__name__] += 1
        if error is not None:
            assert isinstance(error, SiteMissingError | SiteRefusedError)
            assert sites.names[0] in str(error)
    assert outcomes["SiteMissingError"] > HELLO // 3, outcomes


@pytest.mark.slow
def test_altered_rounds_are_rejected_and_the_draws_are_those_of_honest_sites(tmp_path):
    sites = flower_sites.Sites(tmp_path, "fa_hmc", 3, 1, warmup=0)
    rounds = 10
    altering = Altering(11, "round", ROUNDS // rounds, lies=False)
    over = sites.sampled(sites.engine(altering), rounds=rounds)
    assert altering.sent == ROUNDS
    assert over.attrs["rejected_replies"] == ROUNDS
    assert_same_draws(over, alone(sites, rounds=rounds))


@pytest.mark.slow
def test_altered_beginnings_are_rejected_or_refused(tmp_path):
    sites = flower_sites.Sites(tmp_path, "fa_hmc", 3, 1, warmup=0)
    altering = Altering(13, "agreement", 1, good=False)
    for _ in range(BEGIN):
        engine = sites.engine(altering, deadline=0.1, resend=1.0)
        tree, error = grammar.own_error(lambda engine=engine: sites.sampled(engine, rounds=1))
        assert tree is not None or isinstance(error, ConsortiaError)


def test_a_site_answers_every_altered_request_and_no_error_leaves_it(tmp_path):
    sites = flower_sites.Sites(tmp_path, "fa_hmc", 3, 1, warmup=0)
    requests: list[bytes] = []

    def watched(node: int, message: str, request: bytes, good: Arrival) -> list[Arrival]:
        if node == NORTH:
            requests.append(request)
        return [good]

    sites.sampled(sites.engine(watched), rounds=2)
    rng, site = random.Random(17), sites.handler(0)
    kinds: collections.Counter[str] = collections.Counter()
    for _ in range(REQUESTS):
        payload = grammar.altered_message(rng, rng.choice(requests))
        reply, _ = grammar.own_error(lambda payload=payload: decode(site.answer(payload)))
        kinds[reply.kind] += 1
    assert kinds[REFUSAL] > REQUESTS // 2, kinds


@pytest.mark.parametrize("seed", range(2))
def test_facts_are_read_as_they_were_written_and_altered_ones_with_an_error_without_them(seed):
    rows = {"x": np.random.default_rng(seed).normal(size=(7, 3)), "y": np.arange(7) % 2}
    engine = flower_sites.OneSite(0)
    method = consortia.fa_ld(step_size=0.1, local_steps=1)
    consortia.read_sites(lambda index: rows, ["a"], method, engine)
    moments = consortia.data.preparation.Moments.of(rows["x"]).plain()
    plain = engine.facts.plain() | {
        "moments": {"x": moments},
        "columns": ["a", "b", "c"],
        "labels": [True, 0, 1],
    }
    assert SiteFacts.read(plain).plain() == plain
    rng, texts = random.Random(seed), []
    for _ in range(300):
        try:
            found = SiteFacts.read(grammar.loaded(grammar.altered(rng, plain)))
        except ValueError as error:
            texts.append(str(error))
            continue
        assert 1 <= found.rows < 2**31
        assert found.rows == (found.moments["x"][0] if "x" in found.moments else found.rows)
        assert found.plain() == SiteFacts.read(found.plain()).plain()
    assert len(texts) > 150
    assert all(is_printable(text) and len(text) < 200 for text in texts)


def test_a_text_of_a_message_is_no_longer_than_a_refusal_can_hold():
    long = Envelope("round", "a" * 2000, "north", "study")
    with pytest.raises(EnvelopeError, match="run is too long"):
        decode(long.encode())
    with pytest.raises(EnvelopeError, match="the most is 1048576"):
        Envelope("round", "a", "north", "study", values={"facts": "a" * 2**20}).encode()

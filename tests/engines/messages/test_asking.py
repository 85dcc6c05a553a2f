"""How often the server looks for replies, and that its deadline is kept; on a clock of the test."""

from __future__ import annotations

import pytest

from consortia.engines.messages import asking
from consortia.engines.messages.asking import RequestChannel
from consortia.engines.messages.envelope import Envelope, EnvelopeError, digest
from consortia.engines.messages.transport import Arrival, Transport
from consortia.errors import SiteMissingError
from tests.refusals import refused


class Clock:
    """Seconds that pass while someone sleeps, and a hundredth with every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Slow(Transport):
    """A node that answers after so many seconds."""

    kind, seconds = "in this test", 0.0

    def __init__(self, clock: Clock, takes: float) -> None:
        self.clock, self.takes, self.looks = clock, takes, 0
        self.asked: dict[str, tuple[float, bytes]] = {}

    def nodes(self) -> list[int]:
        return [7]

    def push(self, messages, ttl):
        names = [f"message {len(self.asked) + place}" for place in range(len(messages))]
        for name, (_, body) in zip(names, messages, strict=True):
            self.asked[name] = (self.clock.now, body)
        return names

    def replies(self, messages):
        self.looks += 1
        self.clock.now += 0.01
        arrivals = []
        for name in messages:
            if name in self.asked and self.clock.now >= self.asked[name][0] + self.takes:
                _, body = self.asked.pop(name)
                answer = Envelope(
                    "round", "run", "north", "study", values={asking.REQUEST: digest(body)}
                )
                arrivals.append(Arrival(name, 7, answer.encode()))
        return arrivals


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(asking, "time", made)
    return made


def asked(clock, takes, deadline=10_000.0):
    node = Slow(clock, takes)
    channel = RequestChannel(node, ("north",), "run", "study", deadline, resend=1e9)
    channel.node[0] = 7
    answers = channel.ask({0: channel.request("round", 0)}, lambda site, answer: answer.kind)
    assert answers == {0: "round"}
    return node


@pytest.mark.parametrize(
    ("takes", "later", "looks"),
    [(0.05, 0.05, 6), (1.0, 0.22, 10), (20.0, 1.1, 60), (600.0, 3.1, 280)],
)
def test_an_answer_is_seen_soon_and_looks_grow_slower_than_the_wait(clock, takes, later, looks):
    node = asked(clock, takes)
    assert takes <= clock.now <= takes + later
    assert node.looks <= looks


def test_a_long_pause_does_not_pass_the_deadline(clock):
    with pytest.raises(SiteMissingError):
        asked(clock, takes=1e6, deadline=601.0)
    assert 601.0 <= clock.now <= 601.1


def test_answers_that_cannot_be_read_are_named_where_the_run_stops(clock):
    channel = RequestChannel(Slow(clock, 0.5), ("north",), "run", "study", 20.0, resend=1e9)
    channel.node[0] = 7

    def unread(site, answer):
        raise EnvelopeError("array 'x' is float64, not float32")

    with refused(SiteMissingError, sites=("north",), match="'north'.*'x'.*is float64"):
        channel.ask({0: channel.request("round", 0)}, unread)


class Failing(Slow):
    """A node that fails at the first message, and answers each later one after so many seconds."""

    def replies(self, messages):
        if "message 0" in messages and "message 0" in self.asked:
            self.asked.pop("message 0")
            return [Arrival("message 0", 7, None, "it failed")]
        return super().replies(messages)

    def push(self, messages, ttl):
        self.pushed = [*getattr(self, "pushed", []), self.clock.now]
        names = [f"message {len(self.pushed) - 1}" for _ in messages]
        self.asked |= {
            name: (self.clock.now, body) for name, (_, body) in zip(names, messages, strict=True)
        }
        return names


def test_after_a_failure_a_request_is_sent_once_more_and_then_awaited(clock):
    node = Failing(clock, takes=60.0)
    channel = RequestChannel(node, ("north",), "run", "study", 600.0, resend=120.0)
    channel.node[0] = 7
    channel.ask({0: channel.request("round", 0)}, lambda site, answer: answer.kind)
    first, second = node.pushed
    assert asking.AGAIN <= second - first < asking.AGAIN + 1

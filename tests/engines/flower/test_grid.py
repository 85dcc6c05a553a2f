"""Flower's grid as a transport: its bytes, and its errors in words of our own."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, RecordDict

import consortia
from consortia.engines.messages.transport import Arrival
from tests.refusals import refused


class Grid:
    """A grid of one node, which has answered a message and failed at another."""

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, names: Iterable[str]) -> Iterable[Any]:
        content = RecordDict({"consortia": ConfigRecord({"message": b"up"})})
        error = SimpleNamespace(code=2, reason="row 17: 93 years")
        for name, failed in zip(names, (False, True), strict=True):
            metadata = SimpleNamespace(reply_to_message_id=name, src_node_id=7)
            yield SimpleNamespace(
                metadata=metadata, content=content, error=error, has_error=lambda it=failed: it
            )


def test_a_grid_gives_bytes_and_no_text_of_an_error() -> None:
    transport = consortia.FlowerEngine(Grid(), ["north"]).transport_of(Grid())
    assert transport.kind == "Flower"
    assert transport.remote
    assert transport.replies(["first", "second"]) == [
        Arrival("first", 7, b"up"),
        Arrival("second", 7, None, "its app raised an error"),
    ]


def test_no_deadline_is_for_ever() -> None:
    for name in ("deadline", "join_deadline", "resend"):
        options: dict[str, Any] = {name: float("inf")}
        with refused(argument=name):
            consortia.FlowerEngine(Grid(), ["north"], **options)

"""A network on this machine: what happens before any program of Flower is needed."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from consortia.errors import DeploymentError
from consortia.federation.loopback import Loopback


def test_a_run_that_prints_without_end_is_ended_at_its_deadline(tmp_path: Path) -> None:
    network = Loopback(tmp_path, [])
    network.superlink = SimpleNamespace(running=True)  # type: ignore[assignment]
    over = threading.Event()

    def printed():
        while not over.wait(0.01):
            yield b"asking again\n"

    lines = network._lines(SimpleNamespace(stdout=printed()), 0.2)
    try:
        with pytest.raises(DeploymentError, match=r"has not ended after 0\.2 s"):
            list(itertools.islice(lines, 1000))
    finally:
        over.set()

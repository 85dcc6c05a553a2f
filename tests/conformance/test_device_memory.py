"""What a run holds on the device does not grow with its length."""

from __future__ import annotations

from typing import Any

import jax
import pytest

import consortia
from consortia.engines import local
from consortia.run.recording import Recorder

QUICK = "fa_hmc", "stale_sghmc"
"""A synchronous and an asynchronous algorithm: the loop and the recorder keep draws for all."""


@pytest.fixture
def live_bytes(monkeypatch: Any) -> list[int]:
    """Bytes of all arrays on the device after each chunk."""
    seen: list[int] = []
    add = Recorder.add

    def counted(self: Any, buffers: Any, filled: int) -> None:
        add(self, buffers, filled)
        seen.append(sum(array.nbytes for array in jax.live_arrays()))

    monkeypatch.setattr(Recorder, "add", counted)
    monkeypatch.setattr(local, "MOST_SLOTS", 5)
    return seen


def peak(live_bytes: list[int]) -> int:
    """The largest of them, after the first chunks have set the level."""
    assert len(live_bytes) >= 9
    level = max(live_bytes[2:])
    live_bytes.clear()
    return level


@pytest.mark.usefixtures("with_rounds")
def test_a_stored_run_holds_one_chunk_whatever_its_length(
    rich: Any, model: Any, sites: Any, tmp_path: Any, live_bytes: list[int]
) -> None:
    levels = []
    for rounds in (47, 200):
        consortia.sample(
            model,
            sites,
            rich.method(),
            rounds=rounds,
            chains=2,
            store=tmp_path / str(rounds),
            progress=False,
        )
        levels.append(peak(live_bytes))
    assert levels[1] <= levels[0]


def test_draws_that_were_taken_do_not_keep_the_buffers_of_their_chunk(
    model: Any, sites: Any, monkeypatch: Any, live_bytes: list[int]
) -> None:
    # A stopping rule is judged every 4 draws; a chunk's buffers hold 1,000. Whoever keeps views of
    # the buffers keeps 250 times the draws.
    monkeypatch.setattr(local, "MOST_SLOTS", 1000)
    levels = []
    for rounds in (40, 400):
        consortia.sample(
            model,
            sites,
            consortia.fa_ld(0.02, 2),
            rounds=rounds,
            chains=2,
            stop=consortia.stop_when(budget=1e9, every=4),
            progress=False,
        )
        levels.append(peak(live_bytes))
    drawn = 360 * 2 * 3 * 4  # bytes of the draws that the longer run has more
    assert levels[1] - levels[0] < 2 * drawn

"""The collector of garbage while something of ours runs: seldom, and then as the user has it."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from consortia.runtime.garbage import SELDOM, collected_seldom, seldom_collected


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("before", [(700, 10, 10), (0, 10, 10), (50_000, 5, 5)])
def test_it_is_seldom_within_and_as_before_afterwards(before):
    gc.set_threshold(*before)
    with seldom_collected():
        assert gc.get_threshold() == (SELDOM if before[0] == 700 else before)
    assert gc.get_threshold() == before


def test_it_is_as_before_after_an_error():
    gc.set_threshold(700, 10, 10)

    @collected_seldom
    def failing() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert gc.get_threshold() == (700, 10, 10)


MODEL = """
class Named:
    def __del__(self):
        print("finalised")

one = Named()
one.itself = one
"""


@pytest.mark.parametrize(("made", "told"), [("after", ["finalised"]), ("before", [])])
def test_a_model_that_is_imported_after_the_rest_was_set_aside_is_finalised(tmp_path, made, told):
    (tmp_path / "model.py").write_text(MODEL)
    aside = "from consortia.runtime.garbage import set_imports_aside; set_imports_aside()"
    lines = [aside, "import model"] if made == "after" else ["import model", aside]
    command = [sys.executable, "-c", "; ".join(lines)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == told

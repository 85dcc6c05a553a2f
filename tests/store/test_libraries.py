"""What holds the draws is imported beside the body, and there when the body is done."""

import sys
import threading

import pytest

from consortia.store.libraries import imported_aside

SLOW = """
import sys, threading, time
from circling import second      # which imports this module again
time.sleep(.2)
whole = threading.current_thread().name
"""


@pytest.fixture
def circle(tmp_path, monkeypatch):
    """A package whose modules import each other, slowly."""
    package = tmp_path / "circling"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "first.py").write_text(SLOW)
    (package / "second.py").write_text("import circling.first\n")
    (package / "broken.py").write_text("raise ImportError('half of it is missing')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield package
    for name in [name for name in sys.modules if name.startswith("circling")]:
        del sys.modules[name]


def test_modules_are_whole_when_the_body_is_done(circle):
    with imported_aside(["circling.first"]):
        there = hasattr(sys.modules.get("circling.first"), "whole")
    assert not there  # the body did not wait
    assert sys.modules["circling.first"].whole != threading.current_thread().name


def test_they_are_whole_after_an_interrupted_body_too(circle):
    with pytest.raises(KeyboardInterrupt), imported_aside(["circling.first"]):
        raise KeyboardInterrupt
    assert sys.modules["circling.first"].whole


def test_what_cannot_be_imported_is_told_to_who_needs_it(circle, capfd):
    with imported_aside(["circling.broken"]):
        pass
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ImportError, match="half of it"):
        import circling.broken  # noqa: F401


def test_no_thread_where_all_is_there():
    before = threading.active_count()
    with imported_aside(["sys", "threading"]):
        assert threading.active_count() == before

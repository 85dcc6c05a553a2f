"""The check of an app's hash in front of Flower's SuperNode."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consortia.federation import supernode

GOOD, BAD = b"good app", b"bad app"


@dataclasses.dataclass
class Fab:
    hash_str: str
    content: bytes
    verifications: dict[str, str]


def flower() -> SimpleNamespace:
    """Flower's module as far as it matters: an app is verified when there are trusted entities."""
    module = SimpleNamespace(stored=[])

    def pull(*, state: Any, get_fab: Any, trusted_entities: Any, run: int) -> str:
        if state.get_run(run) is not None:
            return "stored"
        fab = get_fab("claimed", run)
        if trusted_entities:
            if not fab.verifications.get("valid_license", ""):
                return "not supported"
            if not module._verify_fab(fab, trusted_entities):
                return "refused"
        module.stored.append(fab.content)
        runs[run] = SimpleNamespace(fab_hash="claimed")
        return "stored"

    runs: dict[int, Any] = {}
    module.state = SimpleNamespace(get_run=runs.get)

    module._pull_and_store_message = pull
    module._verify_fab = lambda fab, entities: False
    return module


def received(module: SimpleNamespace, content: bytes, run: int = 1) -> str:
    def get_fab(fab_hash: str, run: int) -> Fab:
        return Fab(fab_hash, content, {})

    return module._pull_and_store_message(
        state=module.state, get_fab=get_fab, trusted_entities=None, run=run
    )


def test_an_approved_app_is_stored_and_another_is_not() -> None:
    module = flower()
    supernode.approve(module, lambda: [hashlib.sha256(GOOD).hexdigest()])
    assert received(module, GOOD) == "stored"
    assert received(module, BAD, run=2) == "refused"
    assert module.stored == [GOOD]


def test_the_hash_that_the_server_claims_does_not_count() -> None:
    module = flower()
    supernode.approve(module, lambda: ["claimed"])
    assert received(module, BAD) == "refused"


def test_an_app_that_is_taken_out_of_the_policy_gets_no_further_message(tmp_path: Path) -> None:
    policy = tmp_path / "site-policy.toml"
    approved = f'apps = ["{hashlib.sha256(GOOD).hexdigest()}"]'
    policy.write_text(approved)
    module = flower()
    supernode.approve(module, lambda: supernode.apps_of(str(policy)))
    assert received(module, GOOD) == received(module, GOOD) == "stored"
    policy.write_text("apps = []")
    assert received(module, GOOD) == "refused"
    for text in ("apps = [", "apps = 7", "maximum_rounds = 3"):
        policy.write_text(text)
        assert received(module, GOOD) == "refused"
    policy.write_text(approved)
    assert received(module, GOOD) == "stored"
    policy.unlink()
    assert received(module, GOOD) == "refused"
    assert module.stored == [GOOD]


def test_any_app_is_stored_only_where_that_was_asked_for() -> None:
    module = flower()
    supernode.approve(module, lambda: ["any"])
    assert received(module, BAD) == "stored"
    module = flower()
    supernode.approve(module, list)
    assert received(module, GOOD) == "refused"


def test_a_flower_that_receives_apps_otherwise_is_not_started() -> None:
    module = flower()
    del module._verify_fab
    with pytest.raises(SystemExit, match=r"install flwr>=1\.41,<1\.43"):
        supernode.approve(module, list)


def test_the_installed_flower_has_both_places_between_which_the_check_stands() -> None:
    pytest.importorskip("flwr")
    import importlib
    import inspect

    module = importlib.import_module("flwr.supernode.start_client_internal")
    assert all(callable(getattr(module, name)) for name in supernode.HOOKS)
    source = inspect.getsource(module._pull_and_store_message)
    verified, stored = source.index("_verify_fab("), source.index("store_fab(")
    assert verified < stored
    assert source.index("get_fab(") < verified
    assert source.index("state.get_run(") < source.index("get_fab(")


def test_pauses_are_short_after_a_message_and_grow_to_flower_s_own(monkeypatch):
    slept: list[float] = []
    now = [1000.0]
    monkeypatch.setattr(supernode.time, "sleep", slept.append)
    monkeypatch.setattr(supernode.time, "monotonic", lambda: now[0])
    found = iter([None, 7, None])
    internal = SimpleNamespace(_pull_and_store_message=lambda **_: next(found))
    clock = supernode.Clock(internal)
    assert internal._pull_and_store_message() is None
    clock.sleep(3)
    assert internal._pull_and_store_message() == 7
    clock.sleep(3)
    now[0] += 10
    clock.sleep(3)
    assert internal._pull_and_store_message() is None
    now[0] += 50
    clock.sleep(3)
    now[0] += 3600
    clock.sleep(3)
    assert slept == pytest.approx([3, supernode.PAUSE, 10 * supernode.SHARE, 3, 3])


def test_the_installed_flower_pauses_where_the_clock_is() -> None:
    internal = pytest.importorskip("flwr.supernode.start_client_internal")
    assert "time.sleep(3)" in inspect.getsource(internal.start_client_internal)

"""Flower's SuperNode, for approved apps only; a program that imports nothing of consortia.

    python supernode.py HASH,HASH... [the options of flower-supernode]
    python supernode.py @POLICY [the options of flower-supernode]

A run of Flower brings the code that its sites run. Here that code (the app as one file, a FAB) is
hashed before it is unpacked: an app that is not among the approved is never unpacked, and its
server learns that it could not be verified. With a policy the hashes are those under ``apps`` in
that file at each message: an app that is taken out gets none of them any more. Flower has such a
check for apps that its own hub has signed; this is the same check, at the same place, by hash.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import sys
import time
import tomllib
from collections.abc import Callable, Collection, Mapping
from typing import Any

ANY = "any"
HOOKS = ("_pull_and_store_message", "_verify_fab")
"""Functions of Flower between which an app is received, checked, and stored."""

PAUSE, SHARE = 0.2, 0.05
"""Seconds between two looks for a message, or this share of the time since the last, if longer.

A look takes 3 ms of a core at the SuperLink, which answers those of all sites. Flower's own pause,
three seconds, is the longest: a minute after a message, and before the first."""


class Runs:
    """Flower's state of a node, in which a run is unknown unless its app is approved now.

    Of an unknown run Flower gets the app anew and has it verified, which then refuses it.
    """

    def __init__(
        self, state: Any, hashes: Mapping[int, str], approved: Callable[[str], bool]
    ) -> None:
        self._state, self._hashes, self._approved = state, hashes, approved

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def get_run(self, run: int) -> Any:
        """Return the known facts of a run, or None."""
        known = self._state.get_run(run)
        if known is None or self._approved(self._hashes.get(run, known.fab_hash)):
            return known
        return None


def approve(internal: Any, approved: Callable[[], Collection[str]]) -> None:
    """Make Flower's module ``start_client_internal`` refuse all apps but the approved ones.

    Args:
        internal: the module.
        approved: returns the hashes that are approved now.

    Raises:
        SystemExit: the module is not that of a version for which this was written.
    """
    if not all(callable(getattr(internal, name, None)) for name in HOOKS):
        raise SystemExit(
            "this version of flwr receives apps otherwise, so they cannot be checked: install "
            'flwr>=1.41,<1.43 (pip install "consortia[flower]").'
        )
    pull = internal._pull_and_store_message
    hashes: dict[int, str] = {}

    def is_approved(digest: str) -> bool:
        now = approved()
        return digest in now or ANY in now

    def pull_approved(**arguments: Any) -> Any:
        get_fab = arguments["get_fab"]

        def get(fab_hash: str, run: int) -> Any:
            fab = get_fab(fab_hash, run)
            hashes[run] = hashlib.sha256(fab.content).hexdigest()
            return type(fab)(fab.hash_str, fab.content, {"valid_license": "approved by hash"})

        state = Runs(arguments["state"], hashes, is_approved)
        checked = {"state": state, "get_fab": get, "trusted_entities": {"approved by hash": ""}}
        return pull(**arguments | checked)

    def verify(fab: Any, trusted_entities: Any) -> bool:
        digest = hashlib.sha256(fab.content).hexdigest()
        accepted = is_approved(digest)
        word = "is approved" if accepted else "is NOT approved and will not be unpacked"
        print(f"The app {digest} {word}.", flush=True)
        return accepted

    internal._pull_and_store_message = pull_approved
    internal._verify_fab = verify


class Clock:
    """Substitute for ``time`` in Flower's SuperNode: pauses are short while a run sends messages.

    Args:
        internal: the module, whose receiving of messages is watched.
    """

    def __init__(self, internal: Any) -> None:
        self._last = -math.inf
        pull = internal._pull_and_store_message

        def watched(**arguments: Any) -> Any:
            run = pull(**arguments)
            if run is not None:
                self._last = time.monotonic()
            return run

        internal._pull_and_store_message = watched

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """Sleep for so long, or shorter."""
        time.sleep(min(seconds, max(PAUSE, SHARE * (time.monotonic() - self._last))))


def apps_of(policy: str) -> frozenset[str]:
    """Return the hashes under ``apps`` of a policy as it is now; none where it cannot be read."""
    try:
        with open(policy, "rb") as file:
            apps = tomllib.load(file).get("apps", [])
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        print(f"{policy} cannot be read, no app is approved: {type(error).__name__}", flush=True)
        return frozenset()
    return frozenset(apps if isinstance(apps, list) else ())


def main() -> None:
    """Start the SuperNode."""
    internal: Any = importlib.import_module("flwr.supernode.start_client_internal")
    from flwr.supernode.cli import flower_supernode

    given = sys.argv.pop(1)
    hashes = frozenset(given.split(","))
    approve(internal, lambda: apps_of(given[1:]) if given.startswith("@") else hashes)
    internal.time = Clock(internal)
    flower_supernode()


if __name__ == "__main__":
    main()

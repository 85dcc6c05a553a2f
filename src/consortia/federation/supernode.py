"""Flower's SuperNode, for approved apps only; a program that imports nothing of consortia.

    python supernode.py HASH,HASH... [the options of flower-supernode]

A run of Flower brings the code that its sites run. Here that code (the app as one file, a FAB) is
hashed before it is unpacked: an app that is not among the approved is never unpacked, and its
server learns that it could not be verified. Flower has such a check for apps that its own hub has
signed; this is the same check, at the same place, by hash.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Collection
from typing import Any

ANY = "any"
HOOKS = ("_pull_and_store_message", "_verify_fab")
"""Functions of Flower between which an app is received, checked, and stored."""


def approve(internal: Any, approved: Collection[str]) -> None:
    """Have Flower's module ``start_client_internal`` refuse all apps but the approved ones.

    Raises:
        SystemExit: the module is not that of a version for which this was written.
    """
    if not all(callable(getattr(internal, name, None)) for name in HOOKS):
        raise SystemExit(
            "this version of flwr receives apps otherwise, so they cannot be checked: install "
            'flwr>=1.41,<1.42 (pip install "consortia[flower]").'
        )
    pull = internal._pull_and_store_message

    def pull_approved(**arguments: Any) -> Any:
        get_fab = arguments["get_fab"]

        def get(fab_hash: str, run: int) -> Any:
            fab = get_fab(fab_hash, run)
            return type(fab)(fab.hash_str, fab.content, {"valid_license": "approved by hash"})

        checked = {"get_fab": get, "trusted_entities": {"approved by hash": ""}}
        return pull(**arguments | checked)

    def verify(fab: Any, trusted_entities: Any) -> bool:
        found = hashlib.sha256(fab.content).hexdigest()
        accepted = found in approved or ANY in approved
        word = "is approved" if accepted else "is NOT approved and will not be unpacked"
        print(f"The app {found} {word}.", flush=True)
        return accepted

    internal._pull_and_store_message = pull_approved
    internal._verify_fab = verify


def main() -> None:
    """Start the SuperNode."""
    internal = importlib.import_module("flwr.supernode.start_client_internal")
    from flwr.supernode.cli import flower_supernode

    approved = frozenset(sys.argv.pop(1).split(","))
    approve(internal, approved)
    flower_supernode()


if __name__ == "__main__":
    main()

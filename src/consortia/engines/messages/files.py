"""The files of a run on a site's own disk, from which a restarted process resumes.

One folder a run. Every file is written whole or not at all, with a checksum, and nothing is
pickled. The state of the site after a message is a file of its own, named by where in the run it
stands; it stays until the server will not ask for it again.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from consortia.engines.messages.stages import Label
from consortia.errors import StoreError
from consortia.store.checkpoint import FORMAT, Checkpoint, read, write
from consortia.store.durable import fresh_private, part_of, write_through

IDENTITY = re.compile(r"[0-9a-f]{8,64}")
NO_IDENTITY = "(no identity)"
"""Name in logs of a run that a message names in another way."""
SECRET = "secret"
STATE = re.compile(r"state-(\d+)-(\d+)-(\d+)-(\d+)\.bin")


class RunFiles:
    """The files of one run at one site.

    Args:
        folder: of the site; it is made, for the site's own user only.
        run: identity of the run.

    Raises:
        StoreError: that is not an identity.
    """

    def __init__(self, folder: Path, run: str) -> None:
        if not IDENTITY.fullmatch(run):
            raise StoreError("the identity of a run has 8 to 64 digits 0-9 and a-f")
        self.folder = folder / "runs" / run
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def keep(self, name: str, arrays: Mapping[str, np.ndarray], **header: Any) -> None:
        """Write a file in the place of the one of that name."""
        write(self.folder / f"{name}.bin", Checkpoint(dict(header), dict(arrays)))

    def note(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Write a file in place, so that nothing waits for the disk: a crash may lose it."""
        content = b"".join(FORMAT.pieces({}, dict(arrays)))
        handle = os.open(self.folder / f"{name}.bin", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.write(handle, content)
            if os.fstat(handle).st_size > len(content):
                os.ftruncate(handle, len(content))
        finally:
            os.close(handle)

    def noted(self, name: str) -> Mapping[str, np.ndarray] | None:
        """Return the note, or None where there is none, or a crash has damaged it."""
        try:
            note = self.kept(name)
        except StoreError:
            return None
        return None if note is None else note.arrays

    def kept(self, name: str) -> Checkpoint | None:
        """Return a file's content, or None where there is none.

        Raises:
            StoreError: it is damaged.
        """
        path = self.folder / f"{name}.bin"
        return read(path) if path.exists() else None

    def keep_reply(self, request: str, arrays: Mapping[str, np.ndarray], **header: Any) -> None:
        """Write the answer to a request, by the request's digest, in place of the one before."""
        name = f"reply-{request}"
        self.keep(name, arrays, **header)
        for path in self.folder.glob("reply-*.bin"):
            if path.stem != name:
                path.unlink(missing_ok=True)

    def reply(self, request: str) -> Checkpoint | None:
        """Return the answer to a request, if it was kept.

        Raises:
            StoreError: it is damaged.
        """
        return self.kept(f"reply-{request}")

    def keep_state(self, label: Label, arrays: Mapping[str, np.ndarray], oldest: Label) -> None:
        """Write the state after a message, and remove those from before ``oldest``."""
        self.keep(_name(label), arrays)
        for path in self.folder.glob("state-*.bin"):
            match = STATE.fullmatch(path.name)
            if match is not None and Label(*map(int, match.groups())) < oldest:
                path.unlink(missing_ok=True)

    def state(self, label: Label) -> Mapping[str, np.ndarray]:
        """Return the state after a message.

        Raises:
            StoreError: the site has none, or it is damaged.
        """
        checkpoint = self.kept(_name(label))
        if checkpoint is None:
            raise StoreError(f"{self.folder} holds no state after {tuple(label)}")
        return checkpoint.arrays


def _name(label: Label) -> str:
    return "state-" + "-".join(map(str, label))


def identity_of(run: str) -> str:
    """Return the identity of a run, or `NO_IDENTITY` where a text is none."""
    return run if IDENTITY.fullmatch(run) else NO_IDENTITY


def secret_of(folder: Path) -> bytes:
    """Return the site's own secret, which is made at the first call."""
    path = folder / SECRET
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = part_of(path)
        with open(partial, "wb", opener=fresh_private) as file:
            write_through(file, secrets.token_hex(32).encode())
        try:
            os.link(partial, path)  # who comes first makes it
        except FileExistsError:
            pass
        finally:
            partial.unlink()
    return bytes.fromhex(path.read_text(encoding="ascii"))

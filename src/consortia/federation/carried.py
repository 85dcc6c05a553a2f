"""A study whose file travels with its messages, over a network that runs tasks at its sites.

Each network is a transport; what a site keeps (policy, key, ledger) lies in a folder that lasts.
The site's own ``site.toml`` there gives its rows, ``data``, and perhaps its name, ``site``.
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

from consortia.core.arguments import read_toml
from consortia.engines.messages.transport import Transport
from consortia.errors import wrong
from consortia.federation.app import answer, serve
from consortia.federation.letters.coordinating import check_study
from consortia.store.durable import replace_file
from consortia.study.build import study_of

SITE = "site.toml"
"""File in a site's folder with what the site itself says of its rows."""

DEADLINE_SECONDS = 600.0
"""Time that a site has for an answer, unless the task says otherwise."""


def keep_study(text: str, folder: Path) -> Path:
    """Write a study that came as text into a folder; return its file.

    Raises:
        InputError: it is not a study, or one that brings code or sends thousands of messages.
    """
    path = folder / "studies" / hashlib.sha256(text.encode()).hexdigest()[:16] / "study.toml"
    try:
        check_study(study_of(tomllib.loads(text), path), "tasks")
    except tomllib.TOMLDecodeError as error:
        raise wrong("study", f" that came with the task is not TOML: {error}.") from None
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [text.encode()])
    return path


def answer_carried(
    text: str, message: bytes, folder: Path, site: str = "", data: str = ""
) -> bytes:
    """Return a site's reply to a message of a study.

    Args:
        text: the study file.
        message: of the server.
        folder: where the site keeps what must last.
        site: its name in studies, where `SITE` gives none.
        data: the file of its rows, likewise.

    Raises:
        InputError: the study cannot be used here, or name or rows are not known.
    """
    path = folder / SITE
    given = read_toml(path, "the settings of a site")[1] if path.is_file() else {}
    node = {"site": given.get("site", site), "data": given.get("data", data)}
    for name, value in node.items():
        if not value or not isinstance(value, str):
            raise wrong(name, f' is not known: write it in {path} as "...".').at(file=str(path))
    return answer(keep_study(text, folder), message, {**node, "folder": str(folder)}, {})


def serve_carried(
    text: str,
    transport: Transport,
    folder: Path,
    output: Path | None = None,
    deadline: float = DEADLINE_SECONDS,
) -> str:
    """Run a study over a transport, or resume it; return the summary of its posterior.

    Args:
        text: the study file.
        transport: carries the messages.
        folder: of the coordinator: its key and ``identities.toml`` are in ``keys`` there.
        output: directory of the run; by default beside the study in the folder.
        deadline: seconds that a site has for an answer.

    Raises:
        ConsortiaError: as `consortia.sample`.
    """
    from consortia import open_run, summary

    path = keep_study(text, folder)
    output = output or path.with_name("run")
    keys = folder / "keys"
    given = {"output": str(output), "quiet": True, "keys": str(keys) if keys.is_dir() else ""}
    serve(path, transport, {**given, "deadline": deadline, "join-deadline": deadline})
    return summary(open_run(output)).text()

"""vantage6: a study as an algorithm with one central and one partial function.

The image is that of ``docker/vantage6``. At each node `FOLDER` lies on the node's own volume, which
outlasts its containers.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vantage6.algorithm.tools.decorators import algorithm_client
from vantage6.common.task_status import has_task_failed, has_task_finished

from consortia.engines.messages.transport import Arrival, Transport
from consortia.federation.carried import DEADLINE_SECONDS, answer_carried, serve_carried

FOLDER = "/mnt/data/consortia"
"""Folder of a node, where ``algorithm_env`` gives no ``CONSORTIA_FOLDER``."""

SECONDS_BETWEEN_LOOKS = 1.0


class TaskTransport(Transport):
    """vantage6's tasks as a `consortia.engines.messages.transport.Transport`.

    Args:
        client: of the central function.
        organizations: their numbers.
        study: the study file, which each task carries.
    """

    kind = "vantage6"
    seconds = 10.0

    def __init__(self, client: Any, organizations: Sequence[int], study: str) -> None:
        self._client, self._organizations, self._study = client, list(organizations), study
        self._open: dict[str, int] = {}  # names of tasks, each with its organization

    def nodes(self) -> list[int]:
        """Return the organizations."""
        return self._organizations

    def push(self, messages: Sequence[tuple[int, bytes]], ttl: float) -> list[str]:
        """Make a task of each message."""
        names = []
        for organization, payload in messages:
            given = {"study": self._study, "message": base64.b64encode(payload).decode()}
            task = self._client.task.create(
                input_={"method": "answer", "kwargs": given},
                organizations=[organization],
                name="consortia",
            )
            names.append(str(task["id"]))
            self._open[names[-1]] = organization
        return names

    def replies(self, messages: Sequence[str]) -> list[Arrival]:
        """Return the results of the tasks that have ended since."""
        arrived = []
        for name in [message for message in messages if message in self._open]:
            (run,) = self._client.run.from_task(int(name))
            if not has_task_finished(run["status"]):
                continue
            organization = self._open.pop(name)
            if has_task_failed(run["status"]):
                arrived.append(Arrival(name, organization, None, "its task failed"))
                continue
            (text,) = self._client.result.from_task(int(name))
            arrived.append(Arrival(name, organization, base64.b64decode(text)))
        if not arrived:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return arrived


@algorithm_client
def central(
    client: Any,
    study: str,
    organizations: list[int] | None = None,
    deadline: float = DEADLINE_SECONDS,
) -> str:
    """Run a study over organizations of the collaboration; return its summary.

    Args:
        client: of vantage6, which its wrapper gives.
        study: the study file, as text.
        organizations: their numbers; by default all.
        deadline: seconds that a node has for each answer.
    """
    every = organizations or [organization["id"] for organization in client.organization.list()]
    transport = TaskTransport(client, every, study)
    return serve_carried(study, transport, _folder(), deadline=deadline)


def answer(study: str, message: str) -> str:
    """Answer one message of the server, as this node's policy permits.

    The rows are the node's database that the task names first, or those of ``site.toml``.
    """
    label = os.environ.get("USER_REQUESTED_DATABASE_LABELS", "").partition(",")[0]
    data = os.environ.get(f"{label.upper()}_DATABASE_URI", "") if label else ""
    site = os.environ.get("CONSORTIA_SITE", "")
    reply = answer_carried(study, base64.b64decode(message), _folder(), site, data)
    return base64.b64encode(reply).decode()


def _folder() -> Path:
    return Path(os.environ.get("CONSORTIA_FOLDER", FOLDER))

"""NVFlare: a study as a job, of a controller at the server and an executor at each client.

At the server and at each client the folder `FOLDER` of the startup kit's ``local`` holds what must
last there: keys, and at a client policy, ledger and ``site.toml``. No job can bring or read it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.job_config.api import FedJob
from nvflare.recipe.spec import Recipe

from consortia.engines.messages.transport import Arrival, Transport
from consortia.errors import DeploymentError
from consortia.federation.carried import DEADLINE_SECONDS, answer_carried, serve_carried

FOLDER, TASK, MESSAGE, RUN = "consortia", "answer", "message", "consortia"

ENDED = (
    "NVFlare has ended the job: somebody aborted it, or a client has left, which the server's log "
    "names. Run the job again once all clients are there."
)


class TaskTransport(Transport):
    """NVFlare's tasks as a `consortia.engines.messages.transport.Transport`."""

    kind = "NVFlare"
    seconds = 1.0

    def __init__(self, controller: Controller, context: Any, ended: Any) -> None:
        self._controller, self._context, self._ended = controller, context, ended
        self._names = [client.name for client in context.get_engine().get_clients()]
        self._arrived: list[Arrival] = []
        self._lock, self._count = threading.Lock(), 0

    def nodes(self) -> list[int]:
        """Return the indices of the clients."""
        return list(range(len(self._names)))

    def push(self, messages: Sequence[tuple[int, bytes]], ttl: float) -> list[str]:
        """Send each client a task, of no use after ``ttl`` seconds."""
        return [self._pushed(node, payload, ttl) for node, payload in messages]

    def _pushed(self, node: int, payload: bytes, ttl: float) -> str:
        self._count += 1
        name = f"message {self._count}"

        def receive(client_task: Any, fl_ctx: Any) -> None:
            result = client_task.result
            data = None if result is None else result.get(MESSAGE)
            arrival = Arrival(name, node, data, "" if data else "its task failed")
            with self._lock:
                self._arrived.append(arrival)

        data = Shareable()
        data[MESSAGE] = payload
        task = Task(TASK, data, timeout=max(int(ttl), 1), result_received_cb=receive)
        self._controller.send(task, self._context, targets=[self._names[node]])
        return name

    def replies(self, messages: Sequence[str]) -> list[Arrival]:
        """Return the replies since the last call.

        Raises:
            DeploymentError: NVFlare has ended the job.
        """
        if self._ended.triggered:
            raise DeploymentError(ENDED)
        with self._lock:
            arrived, self._arrived = self._arrived, []
        return arrived


class StudyController(Controller):
    """The coordinator of a study.

    Args:
        study: the study file, as text.
        deadline: seconds that a client has for each answer.
    """

    def __init__(self, study: str, deadline: float = DEADLINE_SECONDS) -> None:
        super().__init__()
        self.study, self.deadline = study, deadline

    def start_controller(self, fl_ctx: Any) -> None:
        """Do nothing before the study."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Do nothing after it."""

    def process_result_of_unknown_task(self, *given: Any, **named: Any) -> None:
        """Drop an answer that nothing waits for."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Run the study; its directory is in that of the job, which a download brings."""
        workspace = fl_ctx.get_workspace()
        output = Path(workspace.get_run_dir(fl_ctx.get_job_id())) / RUN
        transport, folder = TaskTransport(self, fl_ctx, abort_signal), _folder(fl_ctx)
        summary = serve_carried(self.study, transport, folder, output, deadline=self.deadline)
        self.log_info(fl_ctx, summary)


class StudyExecutor(Executor):
    """A site of a study.

    Args:
        study: the study file, as text.
    """

    def __init__(self, study: str) -> None:
        super().__init__()
        self.study = study

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: Any, abort_signal: Any
    ) -> Shareable:
        """Answer one message of the coordinator, as this site's policy permits."""
        folder = _folder(fl_ctx)
        reply = make_reply(ReturnCode.OK)
        reply[MESSAGE] = answer_carried(
            self.study, shareable[MESSAGE], folder, fl_ctx.get_identity_name()
        )
        return reply


def _folder(context: Any) -> Path:
    """Return the folder of a server or client; in a simulation, of one of several in a machine."""
    shared = Path(context.get_workspace().get_site_config_dir()) / FOLDER
    return named if (named := shared / context.get_identity_name()).is_dir() else shared


class StudyRecipe(Recipe):
    """A study as a job for any environment of NVFlare: simulation, proof of concept, production.

    Args:
        study: the study file.
        clients: fewest that must be there; by default as many as the study has sites.
        name: of the job.
        deadline: seconds that a client has for each answer.
    """

    def __init__(
        self,
        study: str | Path,
        clients: int | None = None,
        name: str = "consortia",
        deadline: float = DEADLINE_SECONDS,
    ) -> None:
        from consortia.study.build import load_study

        text = Path(study).read_text(encoding="utf-8")
        sites = load_study(study).data.files or ()
        job = FedJob(name=name, min_clients=clients or len(sites))
        job.set_app_packages(["consortia"])  # else its sources would travel, as custom code
        job.to_server(StudyController(text, deadline))
        job.to_clients(StudyExecutor(text), tasks=[TASK])
        super().__init__(job)

"""Flower: its grid as a transport, and its two apps. Nothing else here imports ``flwr``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from consortia.engines.messages.transport import Arrival, Transport
from consortia.errors import require_extra

with require_extra("flower", "the engine 'flower' needs Flower"):
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

TYPE = "query"
"""Type of all messages, as Flower counts them."""

RECORD, PAYLOAD = "consortia", "message"
"""Keys in a message's content under which the bytes are."""

ERRORS = {
    1: "its app could not be loaded",
    2: "its app raised an error",
    3: "the message was lost or too late",
    4: "its answer was lost or too late",
    5: "the node is not connected",
    6: "it refused the message",
    7: "it refused the app",
    8: "its app crashed",
}
"""Flower's codes of errors, in words; a text that comes with them is not looked at."""

FAILED = b"the site met an error that its log may not have"
"""Phrase for an error beyond a site's gate and ledger, whose text stays there."""

SIMULATION_SECONDS, DEPLOYMENT_SECONDS = 0.5, 6.0
"""A message to three sites, as measured on busy cores: simulated in one machine; with a SuperNode
each whose processes are forked."""


class GridTransport(Transport):
    """A Flower grid as a `consortia.engines.messages.transport.Transport`."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        simulated = type(grid).__name__ == "InMemoryGrid"
        self.remote = not simulated
        self.kind = "Flower's simulation" if simulated else "Flower"
        self.seconds = SIMULATION_SECONDS if simulated else DEPLOYMENT_SECONDS

    def nodes(self) -> list[int]:
        """Return the nodes that are connected now."""
        return [int(node) for node in self._grid.get_node_ids()]

    def push(self, messages: Sequence[tuple[int, bytes]], ttl: float) -> list[str]:
        """Send the messages; Flower forgets them after ``ttl`` seconds."""
        made = [
            Message(RecordDict({RECORD: ConfigRecord({PAYLOAD: payload})}), node, TYPE, ttl=ttl)
            for node, payload in messages
        ]
        return [str(name) for name in self._grid.push_messages(made)]

    def replies(self, messages: Sequence[str]) -> list[Arrival]:
        """Return the replies since the last call."""
        arrivals = []
        for reply in self._grid.pull_messages(messages):
            about = (reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
            if reply.has_error():
                phrase = ERRORS.get(reply.error.code, "Flower has an error for it")
                arrivals.append(Arrival(*about, None, phrase))
            else:
                arrivals.append(Arrival(*about, _payload(reply)))
        return arrivals


def _payload(message: Message) -> bytes:
    """Return the bytes in a message; none where there are none."""
    record = message.content.get(RECORD)
    payload = record.get(PAYLOAD) if isinstance(record, ConfigRecord) else None
    return payload if isinstance(payload, bytes) else b""


def server_app_of(serve: Callable[[GridTransport, Mapping[str, Any]], None]) -> ServerApp:
    """Return a ServerApp that runs ``serve`` with a transport and the configuration of the run."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(GridTransport(grid), context.run_config)

    return app


def client_app_of(answer: Callable[[bytes, Mapping[str, Any], Mapping[str, Any]], bytes]) -> Any:
    """Return a ClientApp that answers bytes with bytes."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        try:
            reply = answer(_payload(message), context.node_config, context.run_config)
        except Exception:  # Flower would send the text of whatever it is to the server
            reply = FAILED
        content = RecordDict({RECORD: ConfigRecord({PAYLOAD: reply})})
        return Message(content, reply_to=message)

    return app

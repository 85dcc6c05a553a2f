"""Transport of messages between the server and the sites: bytes there, bytes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Arrival:
    """Reply to a message."""

    message: str  # the message that is answered, as `Transport.push` named it
    sender: int  # the node that the answer came from, as the transport knows it
    payload: bytes | None  # the bytes, or None where the transport has only an error to tell
    error: str = ""  # in that case a fixed phrase of the transport, never a text from a site
    # the answer is awaited, and this one was made here, as nearly all sites give it
    granted: bool = False


class Transport(Protocol):
    """A network of nodes; a node is known by a number for as long as it keeps its key.

    ``kind`` says what it is in the record of a run, ``seconds`` how long a message takes there,
    as a first guess; ``riding`` how many of the messages before the first query travel with it.
    ``remote``: it is connected to other machines, so that the coordinator needs keys for secure
    sums; ``stored``: a reply that has come is kept, and comes again for the same request.
    """

    kind: str
    seconds: float
    riding: int = 0
    remote: bool = True
    stored: bool = False

    def nodes(self) -> list[int]:
        """Return the nodes that are connected now."""

    def push(self, messages: Sequence[tuple[int, bytes]], ttl: float) -> list[str]:
        """Send each node its bytes; return the names of the messages, in order. Do not wait.

        They are of no use after ``ttl`` seconds.
        """

    def replies(self, messages: Sequence[str]) -> list[Arrival]:
        """Return the replies to these messages since the last call. Do not wait."""


class InProcess(Transport):
    """Sites as functions of this process, for tests and trials without a network.

    Args:
        sites: node number to the function that answers a message; a site that raises is a node
            that the transport has lost.
    """

    kind = "in process"
    seconds = 0.001
    remote = False

    def __init__(self, sites: Mapping[int, Callable[[bytes], bytes]]) -> None:
        self._sites = dict(sites)
        self._waiting, self._count = list[Arrival](), 0

    def nodes(self) -> list[int]:
        """Return the nodes that are connected now."""
        return list(self._sites)

    def push(self, messages: Sequence[tuple[int, bytes]], ttl: float) -> list[str]:
        """Send each node its bytes; return the names of the messages, in order. Do not wait."""
        return [self._answered(node, payload) for node, payload in messages]

    def _answered(self, node: int, payload: bytes) -> str:
        self._count += 1
        message = f"message {self._count}"
        try:
            arrival = Arrival(message, node, self._sites[node](payload))
        except Exception as error:
            arrival = Arrival(message, 0, None, f"the node failed ({type(error).__name__})")
        self._waiting.append(arrival)
        return message

    def replies(self, messages: Sequence[str]) -> list[Arrival]:
        """Return the replies to these messages since the last call. Do not wait."""
        arrived, self._waiting = self._waiting, []
        return arrived

"""Values, and changes of values, that somebody hostile or unlucky may send: generated."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from consortia.errors import ConsortiaError

SECONDS, BYTES = 30, 2 * 2**30
"""The longest that anything may take, and the most memory that it may add."""

TEXTS = (
    "",
    "y",
    "x",
    "north",
    "\x1b]0;owned\x07",
    "\u202egnp.exe",
    "[/x]",
    "../..",
    "NaN",
    "é" * 300,
)
RAW_NUMBERS = ("1e400", "-1e400", "NaN", "Infinity", "0.1", "-0.0", "1e308", "9" * 5000)


class Raw:
    """Text that stands in JSON as it is."""

    def __init__(self, text: str) -> None:
        self.text = text


def whole(rng: random.Random) -> int:
    """A whole number near a limit of some kind."""
    near = 1 << rng.choice((0, 1, 7, 15, 31, 32, 53, 62, 63, 64, 100))
    return rng.choice((-1, 1)) * near + rng.choice((-1, 0, 0, 1))


def scalar(rng: random.Random) -> Any:
    """A value without parts."""
    return rng.choice(
        (
            lambda: None,
            lambda: rng.random() < 0.5,
            lambda: whole(rng),
            lambda: rng.uniform(-3, 3),
            lambda: rng.choice(TEXTS),
            lambda: Raw(rng.choice(RAW_NUMBERS)),
        )
    )()


def value(rng: random.Random, depth: int = 2) -> Any:
    """Any value that JSON can hold, and some that it cannot."""
    kind = rng.randrange(8) if depth else 0
    if kind == 6:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 7:
        return {rng.choice(TEXTS): value(rng, depth - 1) for _ in range(rng.randrange(3))}
    return scalar(rng)


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a tree of lists and dicts there are values, the tree itself included."""
    yield path
    if isinstance(tree, (list, dict)):
        keys = tree if isinstance(tree, dict) else range(len(tree))
        for key in keys:
            yield from places(tree[key], (*path, key))


def altered(rng: random.Random, tree: Any) -> Any:
    """The tree with a value at a random place replaced, removed, doubled or nested deep."""
    tree = copy.deepcopy(tree)
    path = rng.choice(list(places(tree)))
    if not path:
        return value(rng)
    holder = tree
    for key in path[:-1]:
        holder = holder[key]
    key, kind = path[-1], rng.choice(("set", "set", "set", "remove", "double", "nest", "more"))
    if kind == "set":
        holder[key] = value(rng)
    elif kind == "remove":
        del holder[key]
    elif kind == "double":
        holder[key] = [holder[key], holder[key]]
    elif kind == "nest":
        holder[key] = Raw("[" * 3000 + "]" * 3000)
    elif isinstance(holder, dict):
        holder[rng.choice(TEXTS)] = value(rng)
    else:
        holder.insert(0, value(rng))
    return tree


def json_of(tree: Any) -> str:
    """The text of a tree, with what is raw as it is."""
    if isinstance(tree, Raw):
        return tree.text
    if isinstance(tree, list):
        return f"[{', '.join(map(json_of, tree))}]"
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {json_of(v)}" for k, v in tree.items()) + "}"
    return json.dumps(tree)


def parts_of(message: bytes) -> tuple[Any, bytes]:
    """The header of a message as a tree, and what comes behind it."""
    length = int.from_bytes(message[44:52], "little")
    return json.loads(message[52 : 52 + length]), message[52 + length :]


def message_of(start: bytes, header: str, rest: bytes) -> bytes:
    """A message with a checksum that is right."""
    text = header.encode("utf-8", "surrogatepass")
    body = len(text).to_bytes(8, "little") + text + rest
    return start + hashlib.sha256(start + body).digest() + body


def altered_message(rng: random.Random, message: bytes) -> bytes:
    """A message with something else in its header, its arrays or its bytes."""
    kind = rng.randrange(6)
    if kind == 0:
        flipped = bytearray(message)
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    if kind == 1:
        return message[: rng.randrange(len(message))] + rng.randbytes(rng.randrange(40))
    (header, table), rest = parts_of(message)
    if kind == 2 and table:
        table = altered(rng, table)
    elif kind == 3:
        rest = rest + rng.randbytes(rng.choice((1, 8, 4096)))
    else:
        header = altered(rng, header)
    return message_of(message[:12], json_of([header, table]), rest)


def own_error(work: Callable[[], Any]) -> tuple[Any, ConsortiaError | None]:
    """What comes of some work: a result, or an error of our own; any other error passes."""
    with bounded():
        try:
            return work(), None
        except ConsortiaError as error:
            found = error
    assert "\x1b" not in str(found)
    assert "\u202e" not in str(found)
    return None, found


@contextmanager
def bounded() -> Iterator[None]:
    """Fail what takes longer than `SECONDS`, or adds more than `BYTES` to this process."""

    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"it took longer than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - size)
    assert grown < BYTES, f"it took {grown} bytes"


def loaded(tree: Any) -> Any:
    """The tree as JSON's reader gives it; what it does not read at all is None."""
    try:
        return json.loads(json_of(tree))
    except (ValueError, RecursionError):
        return None

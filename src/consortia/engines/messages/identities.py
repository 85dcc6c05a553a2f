"""Keys by which sites and coordinator know one another, and signatures of all that they send.

Flower's own keys tell a SuperLink which SuperNode it talks to. Messages pass through the SuperLink,
which could change them; a signature holds from one end to the other.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consortia.core.arguments import read_toml
from consortia.errors import InputError, PolicyError
from consortia.store.durable import fresh_private, write_through

FILE = "identity-key"
"""Name of the private key in the folder of a site or of the coordinator."""

RING = "identities.toml"
"""Name of the file beside the coordinator's key that has the public keys of all."""

COORDINATOR, SITES = "coordinator", "identities"
"""Keys of a policy, and of that file."""

SUMS = "sums"
"""Key of that file: of sites the keys of secure sums that they have prepared for a study."""

PUBLIC = re.compile(r"[0-9a-f]{64}")
TO_SITE, TO_COORDINATOR = b"consortia message to a site 1", b"consortia message to coordinator 1"
"""Prefixes of what is signed: no message of one direction passes for one of the other."""

MARK, SIGNATURE_BYTES = b"CONSIGN1", 64


@dataclass(frozen=True)
class KeyRing:
    """A private key, and the public keys of all, as a policy or a coordinator's file names them."""

    private: bytes  # Ed25519 key of whoever holds the ring, 32 bytes
    coordinator: bytes  # public key
    sites: Mapping[str, bytes]  # public keys, by name


def make_identity(folder: Path) -> bytes:
    """Make the private key in a folder; return the public one.

    Raises:
        InputError: there is such a file already.
    """
    ed25519 = _ed25519()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ed25519.Ed25519PrivateKey.generate()
    path = folder / FILE
    try:
        with open(path, "wb", opener=fresh_private) as file:
            write_through(file, key.private_bytes_raw().hex().encode() + b"\n")
    except FileExistsError:
        raise InputError(f"{path} already exists: choose another folder, or keep it.") from None
    return bytes(key.public_key().public_bytes_raw())


def read_identity(folder: Path) -> bytes:
    """Return the private key in a folder.

    Raises:
        InputError: there is none.
    """
    path = folder / FILE
    try:
        text = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise InputError(
            f"{path} is not there: make it with `consortia site key {folder}`, and give what it "
            "prints to all who take part."
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    if not PUBLIC.fullmatch(text):
        raise InputError(f"{path} is not a key: expected 64 digits 0-9 and a-f.")
    return bytes.fromhex(text)


def public_of(private: bytes) -> bytes:
    """Return the public key of a private one."""
    return bytes(
        _ed25519().Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    )


def site_ring(
    folder: Path, name: str, coordinator: str | None, sites: Mapping[str, str]
) -> KeyRing | None:
    """Return the keys of a site whose policy names these; None where it names none.

    Raises:
        InputError: the site has no key.
        PolicyError: the policy names another key of this site, or none.
    """
    if coordinator is None:
        return None
    fault = faulty_key(coordinator, sites)
    if fault is not None:
        raise PolicyError(f"identities: {fault}.", rules=("identities",))
    private = read_identity(folder)
    public = public_of(private).hex()
    if sites.get(name) != public:
        named = "no key" if name not in sites else f"the key {sites[name][:8]}…"
        raise PolicyError(
            f"identities: the policy names {named} of {name!r}, and {folder / FILE} is that of "
            f"{public[:8]}…: correct the line in every policy.",
            rules=("identities",),
        )
    keys = {site: bytes.fromhex(key) for site, key in sites.items()}
    return KeyRing(private, bytes.fromhex(coordinator), keys)


def coordinator_ring(folder: Path) -> KeyRing:
    """Return the keys of a coordinator, from `FILE` and `RING` in its folder.

    Raises:
        InputError: a file is missing, or is not what it should be.
    """
    coordinator, public = _read_public(folder / RING)
    private = read_identity(folder)
    if public_of(private) != coordinator:
        raise InputError(
            f"{folder / RING} names another key of the coordinator than {folder / FILE}: correct "
            "the line here and in every policy."
        )
    return KeyRing(private, coordinator, public)


def _read_public(path: Path) -> tuple[bytes, dict[str, bytes]]:
    """Return the public keys of the coordinator and of the sites in a file."""
    _, given = read_toml(path, "file of identities")
    coordinator, sites = given.get(COORDINATOR), given.get(SITES)
    keys = sites if isinstance(sites, dict) else {}
    texts = [coordinator, *keys.values()]
    if not keys or not all(isinstance(text, str) and PUBLIC.fullmatch(text) for text in texts):
        raise InputError(
            f"{path}: expected {COORDINATOR} = KEY and, below it, a table [{SITES}] of SITE = KEY, "
            "each of 64 digits 0-9 and a-f, as in the sites' policies."
        )
    fault = faulty_key(str(coordinator), keys)
    if fault is not None:
        raise InputError(f"{path}: {fault}.")
    public = {name: bytes.fromhex(key) for name, key in keys.items()}
    return bytes.fromhex(str(coordinator)), public


def lines_in(path: Path) -> str:
    """Return the lines of a policy that name the keys in a file.

    Raises:
        InputError: it has none.
    """
    return lines_of(*_read_public(path))


def lines_of(coordinator: bytes, sites: Mapping[str, bytes]) -> str:
    """Return the lines of a policy, or of the coordinator's file, that name all keys."""
    names = "\n".join(f'"{name}" = "{key.hex()}"' for name, key in sites.items())
    return f'{COORDINATOR} = "{coordinator.hex()}"\n\n[{SITES}]\n{names}\n'


def made_keys(coordinator: Path, sites: Mapping[str, Path]) -> str:
    """Make the keys of all, where one person has all folders; return the lines of a policy.

    Args:
        coordinator: folder, in which the file of identities is written, too.
        sites: their folders, by name.
    """
    public = {name: make_identity(folder) for name, folder in sites.items()}
    lines = lines_of(make_identity(coordinator), public)
    (coordinator / RING).write_text(lines, encoding="utf-8")
    return lines


# --- messages ------------------------------------------------------------------------------------


def signed(body: bytes, private: bytes, purpose: bytes) -> bytes:
    """Return a message behind its signature."""
    key = _ed25519().Ed25519PrivateKey.from_private_bytes(private)
    return MARK + bytes(key.sign(purpose + body)) + body


def body_of(message: bytes) -> bytes:
    """Return a message without a signature, which nobody has looked at."""
    begin = len(MARK) + SIGNATURE_BYTES
    return message[begin:] if message.startswith(MARK) else message


def is_signed(message: bytes, public: bytes | None, purpose: bytes) -> bool:
    """Return True if a message has the signature of a key; never where there is no key."""
    from cryptography.exceptions import InvalidSignature

    if public is None or not message.startswith(MARK):
        return False
    begin = len(MARK) + SIGNATURE_BYTES
    key = _ed25519().Ed25519PublicKey.from_public_bytes(public)
    try:
        key.verify(message[len(MARK) : begin], purpose + message[begin:])
    except InvalidSignature:
        return False
    return True


PRIME = 2**255 - 19


def montgomery(public: bytes) -> bytes:
    """Return the X25519 key of an Ed25519 one, u = (1 + y) / (1 - y)."""
    y = int.from_bytes(public, "little") % 2**255
    return ((1 + y) * pow(1 - y, -1, PRIME) % PRIME).to_bytes(32, "little")


def exchanging(private: bytes) -> Any:
    """Return the X25519 private key of an Ed25519 one (RFC 8032, section 5.1.5, step 1)."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(hashlib.sha512(private).digest()[:32])


def is_low_order(public: bytes) -> bool:
    """Return True if a public key is one with which any two agree on the same secret."""
    from cryptography.hazmat.primitives.asymmetric import x25519

    try:
        point = x25519.X25519PublicKey.from_public_bytes(montgomery(public))
        x25519.X25519PrivateKey.from_private_bytes(bytes(31) + b"\x40").exchange(point)
    except ValueError:
        return True
    return False


def faulty_key(coordinator: str | None, sites: Mapping[str, str]) -> str | None:
    """Describe the fault of public keys in digits, by name; None where there is none."""
    owners: dict[str, str] = {}
    every = {**({} if coordinator is None else {"the coordinator": coordinator}), **sites}
    for name, key in every.items():
        if key in owners:
            return f"{owners[key]} and {name} have the same key {key[:8]}…: each needs its own"
        owners[key] = name
        if is_low_order(bytes.fromhex(key)):
            return f"the key {key[:8]}… of {name} is a point of low order and not a usable key"
    return None


def _ed25519() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ed25519

    return ed25519

"""Letters that nobody but their reader can open: signed whole, and encrypted to an identity.

The Ed25519 keys by which all know one another are those of X25519, too, by the birational map of
the two curves (RFC 7748, section 4.1). A letter is signed, and then encrypted by ChaCha20-Poly1305
under a key that is agreed on with the reader's key and one of this letter alone, which follows from
the writer's secret and the letter: equal letters give equal bytes.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

from consortia.engines.letters.sealing import LetterError, is_site_name
from consortia.engines.messages.identities import (
    body_of,
    exchanging,
    is_low_order,
    is_signed,
    montgomery,
    signed,
)

MARK = b"CONSCRYP"
KEY_BYTES, MOST_NAME_BYTES = 32, 1000
PURPOSE = b"consortia letter 1 "


def encrypt(letter: bytes, site: str, private: bytes, reader: bytes, purpose: bytes) -> bytes:
    """Return a letter that the reader alone can open.

    Args:
        letter: its bytes.
        site: that it goes to, or comes from; it stands outside, to be read by all.
        private: Ed25519 key of the writer.
        reader: public Ed25519 key of the reader.
        purpose: of the signature; another one in each direction.

    Raises:
        LetterError: the reader's key cannot be used.
    """
    x25519, aead = _primitives()
    text = hashlib.sha256(letter).digest()
    seed = hashlib.blake2b(PURPOSE + purpose + reader + text, key=private, digest_size=32).digest()
    once = x25519.X25519PrivateKey.from_private_bytes(seed)
    name = site.encode()
    head = MARK + struct.pack(">H", len(name)) + name + once.public_key().public_bytes_raw()
    key = _agreed(once, reader, head, reader, purpose)
    return head + bytes(aead(key).encrypt(bytes(12), signed(letter, private, purpose), head))


def is_encrypted(data: bytes) -> bool:
    """Return True if a file is a letter that was encrypted."""
    return data.startswith(MARK)


def site_in(data: bytes) -> str:
    """Return the name of the site outside of an encrypted letter, which nobody has checked.

    Raises:
        LetterError: it has none.
    """
    return _parts(data)[0]


def decrypt(data: bytes, private: bytes, writer: bytes | None, purpose: bytes) -> bytes:
    """Return the letter in an encrypted file, once its signature is checked.

    Args:
        data: of the file.
        private: Ed25519 key of the reader.
        writer: public key of the writer; None: it is not known yet, and the signature not checked.
        purpose: as of `encrypt`.

    Raises:
        LetterError: it is for another reader, was changed, or is not signed by the writer.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    x25519, aead = _primitives()
    _, head, content = _parts(data)
    secret = exchanging(private)
    public = Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    try:
        peer = x25519.X25519PublicKey.from_public_bytes(head[-KEY_BYTES:])
        key = _derived(secret.exchange(peer), head, public, purpose)
        message = aead(key).decrypt(bytes(12), content, head)
    except (InvalidTag, ValueError):
        raise LetterError("it is encrypted to another key, or was changed on its way") from None
    if writer is not None and not is_signed(message, writer, purpose):
        raise LetterError("it is not signed by the key that is known of its writer")
    return body_of(message)


def _parts(data: bytes) -> tuple[str, bytes, bytes]:
    """Return the site's name, all that stands outside, and what is encrypted."""
    begin = len(MARK) + 2
    size = int.from_bytes(data[len(MARK) : begin], "big")
    end = begin + size + KEY_BYTES
    try:
        name = data[begin : begin + size].decode()
    except UnicodeDecodeError:
        name = ""
    if len(data) <= end or size > MOST_NAME_BYTES or not is_site_name(name):
        raise LetterError("it is not a whole letter, or names a site as no site can be named")
    return name, data[:end], data[end:]


def _agreed(once: Any, reader: bytes, head: bytes, public: bytes, purpose: bytes) -> bytes:
    if is_low_order(reader):
        raise LetterError("the key of its reader is a point of low order and not a usable key")
    peer = _primitives()[0].X25519PublicKey.from_public_bytes(montgomery(reader))
    return _derived(once.exchange(peer), head, public, purpose)


def _derived(shared: bytes, head: bytes, reader: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(PURPOSE + purpose + reader + head, key=shared, digest_size=32).digest()


def _primitives() -> tuple[Any, Any]:
    from cryptography.hazmat.primitives.asymmetric import x25519
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return x25519, ChaCha20Poly1305

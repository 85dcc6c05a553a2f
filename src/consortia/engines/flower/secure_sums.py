r"""Sums over sites of which the server learns nothing but the sum.

Each pair of sites has a secret in common, by X25519 with keys that each site signs by its Ed25519
identity. For every question both draw the same mask from it, by HKDF-SHA-256 and ChaCha20; one adds
it and the other takes it away. Numbers are integers mod :math:`2^{64}` at a resolution of
:math:`2^{-32}`, so that a masked vector is uniform to whoever has not the secrets of its pairs,
and the masks of all sites cancel exactly. Where a site is missing the sum is noise: it is all or
nothing.

A mask is bound to session, roster, place and the digest of the question. A second vector for one
question would give its difference from the first away, and is refused. With C sites, C - 1 that
collude know what the last one sent.

A member lives as long as its process: of a session nothing is written but that it has begun. The
messages of a deployment do not carry masked sums yet.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.errors import MissingExtraError, PolicyError
from consortia.store.durable import fresh_private, write_through

BITS = 32
"""Binary digits behind the point."""

MINIMUM_SITES = 3
"""Of two sites each computes the other's numbers from the sum and its own."""

PURPOSE = b"consortia secure sums 1"
"""Of signatures and masks, which fit nothing else."""

FOLDER = "sums"


class Key(NamedTuple):
    """What a site sends of itself before the first sum: its key of the session, signed."""

    public: bytes
    signature: bytes


class SumMember:
    """One site in the sums of one session.

    Args:
        name: of the site.
        identity: its Ed25519 private key, 32 bytes.
        session: which run; a site begins each session once.
        folder: of the site, where it notes that a session has begun.

    Attributes:
        key: that is sent to the other sites.

    Raises:
        PolicyError: the session was begun before, and its keys are gone.
    """

    def __init__(self, name: str, identity: bytes, session: bytes, folder: Path) -> None:
        ed25519, x25519, _ = _primitives()
        self.name, self._session = name, session
        self._note_begun(folder / FOLDER)
        self._secret = x25519.X25519PrivateKey.generate()
        public = self._secret.public_key().public_bytes_raw()
        signer = ed25519.Ed25519PrivateKey.from_private_bytes(identity)
        self.key = Key(public, signer.sign(_signed(session, name, public)))
        self._roster, self._names, self._shared = b"", [], {}  # type: ignore[var-annotated]
        self._answered: dict[bytes, bytes] = {}

    def agree(
        self,
        keys: Mapping[str, Key],
        identities: Mapping[str, bytes],
        minimum: int = MINIMUM_SITES,
    ) -> None:
        """Take the keys of all sites, as the server relays them.

        Args:
            keys: by the site's name, this one's included.
            identities: public Ed25519 keys that this site's own policy names, 32 bytes each.
            minimum: sites.

        Raises:
            PolicyError: they are other sites than the policy names, too few, a key is not signed by
                its site, or other keys were agreed on before.
        """
        from cryptography.exceptions import InvalidSignature

        ed25519, x25519, _ = _primitives()
        if keys.keys() != identities.keys() or self.name not in keys:
            raise _refused(f"the sites {sorted(keys)} are not those that the policy names")
        if len(keys) < minimum:
            raise _refused(f"there are {len(keys)} sites, fewer than {minimum}")
        if keys[self.name] != self.key:
            raise _refused(f"the key of {self.name!r} is not its own")
        for name, key in keys.items():
            known = ed25519.Ed25519PublicKey.from_public_bytes(identities[name])
            try:
                known.verify(key.signature, _signed(self._session, name, key.public))
            except InvalidSignature:
                text = f"the key of {name!r} is not signed by the identity that the policy names"
                raise _refused(text) from None
        names = sorted(keys)
        parts = (_framed(name.encode()) + keys[name].public for name in names)
        roster = hashlib.sha256(b"".join(parts)).digest()
        if self._roster not in (b"", roster):
            raise _refused("other keys were agreed on before in this session")
        self._roster, self._names = roster, names
        self._shared = {
            name: self._secret.exchange(x25519.X25519PublicKey.from_public_bytes(keys[name].public))
            for name in names
            if name != self.name
        }

    def masked(self, values: Float[np.ndarray, " n"], place: str, question: str) -> np.ndarray:
        """Return the masked numbers, uint64 (n,).

        Args:
            values: to be added over the sites.
            place: in the run.
            question: digest of all that was asked.

        Raises:
            PolicyError: nothing was agreed on, a number is not finite or too large, or the question
                was answered before with other numbers.
        """
        if not self._shared:
            raise _refused("no keys were agreed on in this session")
        plain = fixed_point(values, len(self._names))
        asked = _framed(place.encode()) + _framed(question.encode())
        now = hashlib.sha256(plain.tobytes()).digest()
        if not hmac.compare_digest(self._answered.setdefault(asked, now), now):
            raise _refused(f"{place} was answered before with other numbers: the data have changed")
        total = plain.copy()
        for peer, shared in self._shared.items():
            mask = self._mask(peer, shared, asked, plain.size)
            total = total + mask if self.name < peer else total - mask
        return total

    def _mask(self, peer: str, shared: bytes, asked: bytes, count: int) -> np.ndarray:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        _, _, hashes = _primitives()
        pair = b"".join(_framed(name.encode()) for name in sorted((self.name, peer)))
        info = PURPOSE + _framed(self._session) + asked + pair
        key = HKDF(hashes.SHA256(), 32, salt=self._roster, info=info).derive(shared)
        stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
        return np.frombuffer(stream.update(bytes(8 * count)), "<u8")

    def _note_begun(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / hashlib.sha256(self._session).hexdigest()
        try:
            with open(path, "wb", opener=fresh_private) as file:
                write_through(file, self.name.encode())
        except FileExistsError:
            text = "this session was begun before by this site, and its keys are gone: begin anew"
            raise _refused(text) from None


def fixed_point(values: Float[np.ndarray, " n"], sites: int) -> np.ndarray:
    """Return numbers as integers mod 2^64, so small that the sum over the sites cannot wrap.

    Raises:
        PolicyError: one is not finite or too large.
    """
    scaled = np.rint(np.asarray(values, np.float64) * 2.0**BITS)
    if not (np.isfinite(scaled).all() and np.abs(scaled).max(initial=0) < 2.0**63 / sites):
        most = 2.0 ** (63 - BITS) / sites
        raise _refused(f"a number is not finite, or not smaller than {most:g}")
    return scaled.astype(np.int64).view(np.uint64)


def unmasked(vectors: Sequence[np.ndarray]) -> Float[np.ndarray, " n"]:
    """Return the sum of the masked numbers of all sites; without one of them it is noise."""
    total = np.zeros_like(vectors[0])
    for vector in vectors:
        total = total + vector  # wraps by design
    return total.view(np.int64) / 2.0**BITS


def _signed(session: bytes, name: str, public: bytes) -> bytes:
    return PURPOSE + _framed(session) + _framed(name.encode()) + public


def _framed(part: bytes) -> bytes:
    """Return a part behind its length, so that no two sequences of parts are the same bytes."""
    return struct.pack(">I", len(part)) + part


def _refused(text: str) -> PolicyError:
    return PolicyError(f"secure sums: {text}.", rules=("secure_sums",))


def _primitives() -> tuple[Any, Any, Any]:
    try:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
    except ImportError as error:
        raise MissingExtraError(
            'secure sums need the extra flower: pip install "consortia[flower]".'
        ) from error
    return ed25519, x25519, hashes

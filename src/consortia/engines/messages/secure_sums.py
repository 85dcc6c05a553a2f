r"""Sums over sites of which the server learns nothing but the sum.

Each pair of sites has a secret in common, by X25519 with keys that each site signs by its Ed25519
identity; HKDF-SHA-256 makes a key of the pair from it, once a session. For every question both draw
the same mask, by one HMAC-SHA-256 and one call of ChaCha20; one adds it and the other takes it
away. Numbers are integers mod :math:`2^{128}` (`consortia.engines.messages.fixed_point`), so that a
masked vector is uniform to anybody without the secrets of its pairs, and the masks of all sites
cancel exactly. Where a site is missing the sum is noise: it is all or nothing. With C sites, C - 1
that collude know what the last one sent.

A site's key is derived from a secret of the site, the study and the rows, and is signed for that
study. It is known before there is a run, so that it travels with what a site says of itself, or is
prepared earlier. A *session* is a run, its study and all that it began with (facts of the sites,
model, start); it enters the key of each pair. A mask is bound to session, roster, place and the
digest of the question, in which the beginning is named too.

No mask hides two vectors, since all that decides a vector decides its mask. A vector is a function
of the site's rows, of what the run began with, of the question, and of noise that follows from
these and from the site's secret:

- *A folder restored, a process started anew, a run resumed*: equal key, session and question, hence
  equal bits. A second vector for one question, which is then an error, is refused by the gate of
  the site, whose ledger has the digest of the first.
- *Changed rows, another secret*: another key, which is not in the roster that all agreed on.
- *A second run of the study, another beginning of one run*: another session. Sites that were given
  different beginnings have pairs whose keys differ: the sum is noise, and an honest server learns
  of it, as a site compares the beginning that a question names with its own.
- *Two studies in one run*: another key and another session.
- *Phases* (`federated_hmc`): as queries, since their sites keep no state of their
  own between two messages. Of a method whose sites do, a question names the state by its place
  only: there the ledger alone stands against a second vector, and a folder restored to before it
  could send one. So it is with moments of columns (`consortia.engines.messages.pooled`).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from consortia.engines.messages.envelope import EnvelopeError
from consortia.engines.messages.masked import Arrays, Layout
from consortia.errors import PolicyError

MINIMUM_SITES = 3
"""Fewest sites; of two, each computes the other's numbers from the sum and its own."""

PURPOSE = b"consortia secure sums 2"
"""Prefix of what is signed and derived, which fits nothing else."""


SUM_KEYS = "sum keys"
"""Plain value of a message: of a description the key of a site, of a question those of all."""

BEGUN = "begun"
"""Plain value of a question: digest of what the run began with."""


PUBLIC_BYTES, SIGNATURE_BYTES = 32, 64


class Key(NamedTuple):
    """Message of a site before the first sum: its key of the study, signed."""

    public: bytes
    signature: bytes


class SumMember:
    """One site in the sums of one run.

    Args:
        name: of the site.
        identity: its Ed25519 private key, 32 bytes.
        study: fingerprint of the study.
        secret: from which the key of the study is derived; another one for other rows.

    Attributes:
        key: that is sent to the other sites.
    """

    def __init__(self, name: str, identity: bytes, study: str, secret: bytes) -> None:
        ed25519, x25519, hashes, hkdf = _primitives()
        self.name, self._study = name, study
        info = PURPOSE + b" key" + framed(name.encode()) + framed(study.encode())
        derived = hkdf.HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(secret)
        self._secret = x25519.X25519PrivateKey.from_private_bytes(derived)
        public = self._secret.public_key().public_bytes_raw()
        signer = ed25519.Ed25519PrivateKey.from_private_bytes(identity)
        self.key = Key(public, signer.sign(_signed(study, name, public)))
        self._agreed: tuple[Any, ...] = ()
        self._roster, self._names = b"", []  # type: ignore[var-annotated]
        self._pairs: dict[str, bytes] = {}
        self._answered: dict[bytes, bytes] = {}

    def agree(
        self,
        keys: Mapping[str, Key],
        identities: Mapping[str, bytes],
        session: bytes,
        minimum: int = MINIMUM_SITES,
    ) -> None:
        """Take the keys of all sites, as the server relays them, for one session.

        Args:
            keys: by the site's name, this one's included.
            identities: public Ed25519 keys that this site's own policy names, 32 bytes each.
            session: which run of the study, and all that decides what its questions mean, as this
                site has it.
            minimum: sites.

        Raises:
            PolicyError: they are other sites than the policy names, too few, a key is not signed by
                its site for this study, or other keys or another session were agreed on before.
        """
        given = dict(keys), dict(identities), session, minimum
        if given == self._agreed:
            return
        if keys.keys() != identities.keys() or self.name not in keys:
            raise _refused(f"the sites {sorted(keys)} are not those that the policy names")
        if len(keys) < minimum:
            raise _refused(f"there are {len(keys)} sites, fewer than {minimum}")
        if keys[self.name] != self.key:
            text = (
                f"the key of {self.name!r} is not its own: its rows have changed, or it was swapped"
            )
            raise _refused(text)
        for name, key in keys.items():
            if not is_key_of(key, name, self._study, identities[name]):
                text = f"the key of {name!r} is not signed by the identity that the policy names"
                raise _refused(f"{text}, for this study")
        names = sorted(keys)
        owners: dict[bytes, str] = {}
        for name in names:
            first = owners.setdefault(keys[name].public, name)
            if first != name:
                raise _refused(f"{first!r} and {name!r} have the same key")
        parts = (framed(name.encode()) + keys[name].public for name in names)
        roster = hashlib.sha256(b"".join(parts)).digest()
        public = {name: keys[name].public for name in names}
        if self._roster not in (b"", roster + session):
            raise _refused("other keys were agreed on before in this run, or another beginning")
        self._roster, self._names = roster + session, names
        self._pairs = pair_keys(self.name, self._secret, public, roster, b" pair", session)
        self._agreed = given

    def masked(
        self,
        values: Arrays,
        label: str,
        question: str,
        bounds: Mapping[str, float] | None = None,
    ) -> dict[str, np.ndarray]:
        """Return the arrays that leave: of `Layout`, masked.

        Args:
            values: to be added over the sites, by name.
            label: of the place in the run.
            question: digest of the whole request.
            bounds: largest numbers of arrays that declare them, by name.

        Raises:
            PolicyError: nothing was agreed on, a number is beyond its bound, or the question was
                answered before with other numbers.
        """
        if not self._pairs:
            raise _refused("no keys were agreed on in this run")
        layout = Layout.of(values, bounds or {}, len(self._names))
        total = layout.encoded(values)
        asked = framed(label.encode()) + framed(question.encode())
        now = hashlib.sha256(b"".join(array.tobytes() for array in total)).digest()
        if not hmac.compare_digest(self._answered.setdefault(asked, now), now):
            raise _refused(f"{label} was answered before with other numbers: the data have changed")
        for peer, key in self._pairs.items():
            mask = layout.integers(mask_bytes(key, asked, layout.mask_bytes))
            total = layout.added(total, mask if self.name < peer else layout.negated(mask))
        return layout.packed(total)


def pair_keys(
    name: str,
    secret: Any,
    public: Mapping[str, bytes],
    roster: bytes,
    purpose: bytes,
    session: bytes,
) -> dict[str, bytes]:
    """Return the key that a site has in common with each other one, by its name.

    Args:
        name: of the site.
        secret: its X25519 key.
        public: X25519 keys of all, 32 bytes, by name.
        roster: digest of names and keys.
        purpose: of the keys, which have no other.
        session: what is masked with them.

    Raises:
        PolicyError: a key is a point of low order.
    """
    _, x25519, hashes, hkdf = _primitives()
    pairs = {}
    for other, key in public.items():
        if other == name:
            continue
        pair = b"".join(framed(member.encode()) for member in sorted((name, other)))
        info = PURPOSE + purpose + framed(session) + pair
        derive = hkdf.HKDF(hashes.SHA256(), 32, salt=roster, info=info).derive
        try:
            pairs[other] = derive(secret.exchange(x25519.X25519PublicKey.from_public_bytes(key)))
        except ValueError:
            raise _refused(f"the key of {other!r} is a point of low order") from None
    return pairs


def mask_bytes(pair: bytes, asked: bytes, count: int) -> bytes:
    """Return the mask of a pair of sites for one question, under a key that has no other use."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    key = hmac.digest(pair, asked, "sha256")
    return Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(count))


def is_key_of(key: Key, name: str, study: str, identity: bytes) -> bool:
    """Return True if a key is signed by a site, which has this identity, for this study."""
    from cryptography.exceptions import InvalidSignature

    known = _primitives()[0].Ed25519PublicKey.from_public_bytes(identity)
    try:
        known.verify(key.signature, _signed(study, name, key.public))
    except InvalidSignature:
        return False
    return True


def plain_key(key: Key) -> list[str]:
    """Return a key as plain values."""
    return [part.hex() for part in key]


def key_of(value: Any) -> Key:
    """Return the key that plain values are.

    Raises:
        EnvelopeError: they are none.
    """
    if isinstance(value, list) and len(value) == 2:
        public, signature = value
        if _is_hex(public, PUBLIC_BYTES) and _is_hex(signature, SIGNATURE_BYTES):
            return Key(bytes.fromhex(public), bytes.fromhex(signature))
    raise EnvelopeError("a key of a site is not a public key and its signature")


def keys_of(value: Any) -> dict[str, Key]:
    """Return the keys of all sites that plain values are.

    Raises:
        EnvelopeError: they are none.
    """
    if not isinstance(value, dict):
        raise EnvelopeError("the keys of the sites are not a table by their names")
    return {name: key_of(plain) for name, plain in value.items()}


def _is_hex(value: Any, count: int) -> bool:
    return isinstance(value, str) and re.fullmatch(f"[0-9a-f]{{{2 * count}}}", value) is not None


def _signed(study: str, name: str, public: bytes) -> bytes:
    return PURPOSE + framed(study.encode()) + framed(name.encode()) + public


def framed(part: bytes) -> bytes:
    """Return a part behind its length, so that no two sequences of parts are the same bytes."""
    return struct.pack(">I", len(part)) + part


def _refused(text: str) -> PolicyError:
    return PolicyError(f"secure sums: {text}.", rules=("secure_sums",))


def _primitives() -> tuple[Any, Any, Any, Any]:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
    from cryptography.hazmat.primitives.kdf import hkdf

    return ed25519, x25519, hashes, hkdf

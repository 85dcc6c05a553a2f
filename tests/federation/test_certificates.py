"""Certificates and keys: a client that trusts the authority gets through, others do not."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from consortia.federation.certificates import Certificates, make_certificates, make_node_key
from tests.refusals import refused

serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("made"), ["127.0.0.1", "link.example.org"])


def shake_hands(server: Certificates, authority: Path, host: str) -> None:
    """A TLS handshake in memory."""
    trusted = ssl.create_default_context(cafile=str(authority))
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(server.server, server.server_key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusted.wrap_bio(to_client, to_server, server_hostname=host)
    answering = own.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, answering):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    client.do_handshake()


@pytest.mark.parametrize("host", ["127.0.0.1", "link.example.org"])
def test_a_client_that_trusts_the_authority_gets_through(made: Certificates, host: str) -> None:
    shake_hands(made, made.authority, host)


@pytest.mark.parametrize("host", ["10.0.0.1", "other.example.org"])
def test_a_server_under_another_name_is_refused(made: Certificates, host: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(made, made.authority, host)


def test_a_server_of_another_authority_is_refused(made: Certificates, tmp_path: Path) -> None:
    other = make_certificates(tmp_path, ["127.0.0.1"])
    with pytest.raises(ssl.SSLCertVerificationError, match="local issuer"):
        shake_hands(other, made.authority, "127.0.0.1")


def test_private_keys_are_for_their_owner_only(made: Certificates, tmp_path: Path) -> None:
    make_node_key(tmp_path / "north")
    for key in (made.authority_key, made.server_key, tmp_path / "north"):
        assert key.stat().st_mode & 0o077 == 0


def test_a_node_key_is_the_pair_of_its_public_file(tmp_path: Path) -> None:
    public = make_node_key(tmp_path / "north")
    private = serialization.load_ssh_private_key((tmp_path / "north").read_bytes(), None)
    assert private.key_size == 384
    ssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    assert private.public_key().public_bytes(*ssh) == public.read_bytes().strip()


def test_nothing_is_written_over(made: Certificates, tmp_path: Path) -> None:
    with refused(file=str(made.authority), match="exists"):
        make_certificates(made.authority.parent, ["127.0.0.1"])
    make_node_key(tmp_path / "north")
    with refused(file=str(tmp_path / "north"), match="exists"):
        make_node_key(tmp_path / "north")
    with refused(argument="hosts"):
        make_certificates(tmp_path / "none", [])

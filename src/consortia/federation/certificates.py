"""The files that TLS and registered keys need, made without further tools."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from consortia.errors import InputError, wrong

DAYS = 365
DAYS_MAX = 36_500

LABEL = "[A-Za-z0-9_][A-Za-z0-9_-]{0,62}"
HOST = re.compile(rf"(?!.{{254}}){LABEL}(\.{LABEL})*\.?")

CLOCK_SKEW = datetime.timedelta(days=1)
"""Certificates are valid from so long ago, for machines whose clocks are late."""


class Certificates(NamedTuple):
    """The files that `make_certificates` wrote."""

    authority: Path  # certificate of the authority; every machine gets a copy
    authority_key: Path  # its private key; it stays with who makes certificates
    server: Path  # certificate of the SuperLink
    server_key: Path  # its private key; it stays on the SuperLink's machine


def make_certificates(
    folder: str | os.PathLike[str], hosts: Sequence[str], days: int = DAYS
) -> Certificates:
    """Make an authority and, signed by it, a certificate for the machine of the SuperLink.

    Args:
        folder: where the files are written: ``ca.crt``, ``ca.key``, ``server.crt``, ``server.key``.
        hosts: the names and addresses under which the sites reach the SuperLink.
        days: how long the certificates are valid.

    Raises:
        InputError: there is no host, or the folder holds such a file already.
    """
    x509, hashes, serialization, ec = _cryptography()
    if not hosts:
        raise wrong("hosts", ": give the names or addresses by which sites reach the SuperLink.")
    hosts = [read_host(host) for host in hosts]
    if not 0 < days <= DAYS_MAX:
        raise wrong("days", f" is {days}: it must be 1 to {DAYS_MAX}.")
    folder = Path(folder)
    names = ("ca.crt", "ca.key", "server.crt", "server.key")
    paths = Certificates(*(folder / name for name in names))
    there = next((path for path in paths if path.exists()), None)
    if there is not None:
        raise InputError(f"{there} exists: choose another, or remove it.").at(file=str(there))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    start = datetime.datetime.now(datetime.UTC)

    def begun(name: str, issuer: Any, key: Any) -> Any:
        subject = _name(x509, name)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer or subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start - CLOCK_SKEW)
            .not_valid_after(start + datetime.timedelta(days=days))
        )

    usage = dict.fromkeys(
        (
            *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
            *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
        ),
        False,
    )
    authority_key = ec.generate_private_key(ec.SECP384R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = (
        begun("consortia authority", None, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(**usage | {"key_cert_sign": True, "crl_sign": True}), critical=True
        )
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    server_key = ec.generate_private_key(ec.SECP384R1())
    server = (
        begun("consortia SuperLink", authority.subject, server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**usage | {"digital_signature": True}), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .add_extension(
            x509.SubjectAlternativeName([_alternative(x509, host) for host in hosts]),
            critical=False,
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .sign(authority_key, hashes.SHA384())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    pkcs8 = serialization.PrivateFormat.PKCS8
    _write(paths.authority, authority.public_bytes(pem), 0o644)
    _write(paths.authority_key, authority_key.private_bytes(pem, pkcs8, plain), 0o600)
    _write(paths.server, server.public_bytes(pem), 0o644)
    _write(paths.server_key, server_key.private_bytes(pem, pkcs8, plain), 0o600)
    return paths


def make_node_key(path: str | os.PathLike[str]) -> Path:
    """Make the key by which a SuperNode is known, as ``ssh-keygen -t ecdsa -b 384`` would.

    Args:
        path: of the private key, which never leaves the site; beside it ``path.pub`` is written,
            which the SuperLink's machine registers.

    Returns:
        The path of the public key.

    Raises:
        InputError: there is such a file already.
    """
    _, _, serialization, ec = _cryptography()
    private, public = Path(path), Path(f"{path}.pub")
    if private.exists() or public.exists():
        raise InputError(f"{private} exists: choose another, or remove it.").at(file=str(private))
    private.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(ec.SECP384R1())
    openssh = serialization.PrivateFormat.OpenSSH
    plain = serialization.NoEncryption()
    _write(private, key.private_bytes(serialization.Encoding.PEM, openssh, plain), 0o600)
    encoded = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write(public, encoded + b"\n", 0o644)
    return public


def _cryptography() -> tuple[Any, Any, Any, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    return x509, hashes, serialization, ec


def _name(x509: Any, name: str) -> Any:
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)])


def read_host(host: str) -> str:
    """Return the name or address of a machine, an address without brackets.

    Raises:
        InputError: it is neither.
    """
    bare = host.removeprefix("[").removesuffix("]")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        if not HOST.fullmatch(host):
            raise InputError(
                f"host is {host!r}: give an address, or a name of letters, digits, '-' and '.' "
                "(of a name with other letters its form with 'xn--')."
            ).at("host") from None
    return host


def _alternative(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(path: Path, content: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(content)

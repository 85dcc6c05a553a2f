"""What keeps a site from its SuperLink is said before it waits."""

from __future__ import annotations

import http.server
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from needs import needs

from consortia.errors import DeploymentError
from consortia.federation import reaching
from consortia.federation.certificates import Certificates, make_certificates
from consortia.federation.reaching import check_superlink
from tests.refusals import refused

needs("cryptography")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("made"), ["127.0.0.1"])


class Quiet(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        return None


@pytest.fixture(scope="module")
def address(made: Certificates) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server, made.server_key)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(10)


def test_a_superlink_that_can_be_used_is_told_of_with_no_word(
    made: Certificates, address: str
) -> None:
    assert check_superlink(address, made.authority) is None


def test_a_superlink_of_another_authority_is_refused(address: str, tmp_path: Path) -> None:
    other = make_certificates(tmp_path, ["127.0.0.1"])
    with refused(DeploymentError, file=str(other.authority), match=r"copy the ca\.crt"):
        check_superlink(address, other.authority)


def test_a_superlink_under_another_name_is_refused(made: Certificates, address: str) -> None:
    with refused(DeploymentError, file=str(made.authority), match="--host"):
        check_superlink(address.replace("127.0.0.1", "localhost"), made.authority)


@pytest.mark.parametrize(("early", "word"), [(8, "early"), (-320, "late"), (4, None), (-290, None)])
def test_a_wrong_clock_is_told(
    made: Certificates,
    address: str,
    monkeypatch: pytest.MonkeyPatch,
    early: float,
    word: str | None,
) -> None:
    monkeypatch.setattr(reaching, "now", lambda: time.time() + early)
    try:
        found = check_superlink(address, made.authority)
    except DeploymentError as error:
        found = str(error)
    if word is None:
        assert found is None
    else:
        assert f"s {word} against" in str(found)


def test_an_absent_superlink_is_no_error_but_told(made: Certificates) -> None:
    told = check_superlink("127.0.0.1:1", made.authority)
    assert told is not None
    assert "nobody answers" in told


def test_what_is_no_address_or_no_certificate_is_refused(
    made: Certificates, tmp_path: Path
) -> None:
    with refused(argument="address"):
        check_superlink("127.0.0.1", made.authority)
    (tmp_path / "ca.crt").write_text("x")
    with refused(argument="authority"):
        check_superlink("127.0.0.1:1", tmp_path / "ca.crt")

"""Checks of a SuperLink before Flower's SuperNode would wait for it in silence."""

from __future__ import annotations

import http.client
import ssl
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import time as now

from consortia.errors import DeploymentError, InputError
from consortia.federation.processes import hint

EARLY_SECONDS, LATE_SECONDS = 5.0, 300.0
"""Seconds by which a SuperLink lets a site's clock be early or late, when it signs in."""

ROUNDING_SECONDS = 1.0
"""The server sends its clock in whole seconds."""

DEADLINE_SECONDS = 10.0


def check_superlink(address: str, authority: Path) -> str | None:
    """Refuse a SuperLink whose certificate or clock the SuperNode could not use.

    Args:
        address: host:port.
        authority: certificate of the authority that signed the SuperLink's.

    Returns:
        None; or, where nobody answers, why: a SuperNode tries on.

    Raises:
        InputError: the address or the file cannot be used.
        DeploymentError: the certificate is of another authority or machine, or one of the two
            clocks is wrong.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"the address {address!r} is not HOST:PORT.").at("address")
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"{authority} is not a certificate: {error}").at("authority") from error
    connection = http.client.HTTPSConnection(
        host.strip("[]"), int(port), timeout=DEADLINE_SECONDS, context=context
    )
    try:
        connection.request("HEAD", "/")
        sent = connection.getresponse().getheader("date")
    except ssl.SSLCertVerificationError as error:
        advice = hint(f"[SSL: CERTIFICATE_VERIFY_FAILED] {error}")
        raise DeploymentError(f"the SuperLink at {address} is not trusted: {error}.{advice}").at(
            file=str(authority)
        ) from error
    except (OSError, http.client.HTTPException) as error:
        return f"nobody answers at {address} ({error})"
    finally:
        connection.close()
    if sent is None:
        return None
    early = now() - parsedate_to_datetime(sent).timestamp()
    if early > EARLY_SECONDS + ROUNDING_SECONDS or -early > LATE_SECONDS:
        word = "early" if early > 0 else "late"
        raise DeploymentError(
            f"this machine's clock is {abs(early):.0f} s {word} against the SuperLink's ({sent}), "
            f"which would not let it in: it may be {EARLY_SECONDS:g} s early or {LATE_SECONDS:g} s "
            "late. Set both by NTP."
        )
    return None

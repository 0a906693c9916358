"""The errors of a client whose address does not lead to a Kafka listener for its ``security.protocol``.

Most such cases have no certain sign. A listener that expects TLS closes a connection without it. A listener that
authenticates answers ApiVersions and closes at the next request. A program that is no broker may do anything. So the
errors name what happened, and which settings lead to that.
"""

from __future__ import annotations

from typing import Final

from spark_kafkalite.errors import HandshakeFailed
from spark_kafkalite.security.settings import SecurityProtocol
from spark_kafkalite.security.tls_records import is_tls

# How answers begin that are none of a broker's.
_HTTP: Final = (b"HTTP", b"<htm", b"<HTM", b"<!do", b"<!DO")


def nothing_said(name: str, protocol: SecurityProtocol, happened: str) -> HandshakeFailed:
    """Return the error for a peer that closes, or is silent, before its first answer; ``happened`` is which of the
    two."""
    if protocol.encrypts:
        plain = "SASL_PLAINTEXT" if protocol.uses_sasl else "PLAINTEXT"
        hint = f"a listener without TLS does so (then set security.protocol={plain})"
    else:
        hint = f"a listener with TLS does so (then set security.protocol={_over_tls(protocol)})"
    return HandshakeFailed(
        f"{name}: {happened}, though it takes connections: {hint}, and so do a broker that hangs or stops, "
        f"and what is no Kafka broker (then correct the address); this client has security.protocol={protocol.value}"
    )


def closed_at_first_request(name: str, protocol: SecurityProtocol) -> HandshakeFailed:
    """Return the error for a broker that answers ApiVersions and closes at the first request after it."""
    sasl = "SASL_SSL" if protocol.encrypts else "SASL_PLAINTEXT"
    return HandshakeFailed(
        f"{name}: it is a broker, and closed the connection at the first request: a listener that authenticates by "
        f"SASL does so (then set security.protocol={sasl}, sasl.mechanism and credentials; this client has "
        f"security.protocol={protocol.value}). So does a broker that cannot read from its disk what it has begun to "
        "send: its log names the partition and the file, and it answers the next request with KAFKA_STORAGE_ERROR"
    )


def no_tls(name: str, problem: str, first_bytes: bytes) -> HandshakeFailed:
    """Return the error for a TLS handshake that does not come about; ``first_bytes`` are the peer's, if it sent any."""
    error = HandshakeFailed(f"{name}: {problem}")
    error.is_certain = bool(first_bytes) and not is_tls(first_bytes)
    return error


def stranger(name: str, protocol: SecurityProtocol, first_bytes: bytes) -> HandshakeFailed:
    """Return the error for a first answer that no broker sends in this protocol, judged by its first bytes.

    ``is_certain`` when the bytes show what it is.
    """
    certain = True
    if is_tls(first_bytes) and not protocol.encrypts:
        what = (
            f"it speaks TLS, and security.protocol={protocol.value} does not: set "
            f"security.protocol={_over_tls(protocol)}"
        )
    elif first_bytes[:4] in _HTTP:
        what = "it speaks HTTP and is no Kafka broker: correct the address"
    elif first_bytes[:4] == b"SSH-":
        what = "it speaks SSH and is no Kafka broker: correct the address"
    else:
        certain = False
        what = f"its answer is none of a Kafka broker (it begins with {first_bytes[:8]!r}): correct the address"
    error = HandshakeFailed(f"{name}: {what}")
    error.is_certain = certain
    return error


def _over_tls(protocol: SecurityProtocol) -> str:
    """Return the protocols that reach a listener with TLS."""
    # Without credentials the client cannot find out whether the listener wants any.
    return "SASL_SSL" if protocol.uses_sasl else "SSL, or SASL_SSL if it asks for credentials"

"""What a failed TLS handshake means to a user: one line that names the host, the reason and the setting to change."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from typing import Any, Final

from spark_kafkalite.errors import HandshakeFailed, SslHandshakeFailed
from spark_kafkalite.printable import first_of
from spark_kafkalite.security.certificate import ends_s
from spark_kafkalite.security.tls_records import is_tls

# Codes of OpenSSL's certificate verification (x509_vfy.h).
_NOT_YET_VALID: Final = 9
_HAS_EXPIRED: Final = 10
_UNTRUSTED: Final = frozenset({2, 18, 19, 20, 21, 27})
WRONG_NAME: Final = frozenset({62, 64})

# How OpenSSL's names of the alerts end by which a peer refuses a certificate, or asks for one (RFC 8446, section 6.2).
# Java sends bad_certificate for none at all, and certificate_unknown for one that it does not trust.
_CERTIFICATE_ALERTS: Final = (
    "ALERT_BAD_CERTIFICATE",
    "ALERT_UNSUPPORTED_CERTIFICATE",
    "ALERT_CERTIFICATE_REVOKED",
    "ALERT_CERTIFICATE_EXPIRED",
    "ALERT_CERTIFICATE_UNKNOWN",
    "ALERT_UNKNOWN_CA",
    "ALERT_ACCESS_DENIED",
    "ALERT_DECRYPT_ERROR",
    "ALERT_CERTIFICATE_REQUIRED",
    "ALERT_HANDSHAKE_FAILURE",
)
_VERSION_REASONS: Final = frozenset(
    {
        "TLSV1_ALERT_PROTOCOL_VERSION",
        "UNSUPPORTED_PROTOCOL",
        "NO_PROTOCOLS_AVAILABLE",
        "WRONG_SSL_VERSION",
    }
)
_CIPHER_REASONS: Final = frozenset({"NO_SHARED_CIPHER", "NO_CIPHERS_AVAILABLE", "TLSV1_ALERT_INSUFFICIENT_SECURITY"})
_MOST_NAMES: Final = 8
_LONGEST_NAME: Final = 253


def refuses_certificate(error: ssl.SSLError) -> bool:
    """Return whether the peer refuses our certificate, or wants one."""
    return (error.reason or "").endswith(_CERTIFICATE_ALERTS)


def plain_reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason in words."""
    return (error.reason or "broken").replace("_", " ").lower()


def handshake_failure(
    error: ssl.SSLError, connection: ssl.SSLObject, host: str | None, first_bytes: bytes
) -> SslHandshakeFailed | HandshakeFailed:
    """Return the error to raise. ``first_bytes`` are the first few that the peer sent."""
    is_server = connection.server_side
    # A broker's log names the client in front of it.
    start = "" if is_server else f"TLS with {host or 'the peer'}: "
    # The bytes tell more than OpenSSL, which names the same thing differently from version to version.
    if len(first_bytes) >= 2 and not is_tls(first_bytes):
        return HandshakeFailed(start + _not_tls_text(first_bytes, is_server))
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return HandshakeFailed(start + _closed_text(first_bytes, is_server))
    return SslHandshakeFailed(start + _text(error, connection))


def _not_tls_text(first_bytes: bytes, is_server: bool) -> str:
    if is_server:
        return "it spoke plaintext to a listener with TLS; a client of it needs security.protocol=SSL or SASL_SSL"
    if first_bytes.startswith(b"HTTP"):
        return "an HTTP server answers there, not a broker with TLS; see the port in bootstrap.servers"
    return (
        "what answers there does not speak TLS; see the port in bootstrap.servers, or, for a listener without TLS, set "
        "security.protocol=PLAINTEXT or SASL_PLAINTEXT"
    )


def _closed_text(first_bytes: bytes, is_server: bool) -> str:
    if is_server:
        return "it closed the connection"
    if first_bytes:
        return "the peer closed the connection during the handshake"
    return (
        "the peer closed the connection without an answer, as a listener without TLS does; if it is one, set "
        "security.protocol=PLAINTEXT or SASL_PLAINTEXT"
    )


def _text(error: ssl.SSLError, connection: ssl.SSLObject) -> str:
    is_server, reason = connection.server_side, error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _verification_text(error, connection)
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it showed no certificate, and ssl.client.auth=required asks for one"
    if reason in _VERSION_REASONS:
        whose = "this listener has" if is_server else "we offer"
        settings = "ssl.enabled.protocols" if is_server else "ssl.enabled.protocols, ssl.protocol"
        return f"no TLS version in common; {whose} {_versions(connection.context)} ({settings})"
    if reason in _CIPHER_REASONS:
        more = ", or the kind of the broker's key" if is_server else ""
        return f"no cipher suite in common (ssl.cipher.suites{more})"
    if refuses_certificate(error):
        return _refusal_text(error, connection)
    return f"the handshake failed: {plain_reason(error)}"


def _versions(context: ssl.SSLContext) -> str:
    lowest, highest = context.minimum_version, context.maximum_version
    names = [version.name.replace("v1_", "v1.") for version in (lowest, highest)]
    return " to ".join(dict.fromkeys(names))


def _refusal_text(error: ssl.SSLError, connection: ssl.SSLObject) -> str:
    alert = (error.reason or "").partition("ALERT_")[2].lower()
    key_from = getattr(connection.context, "key_from", None)
    if connection.server_side:
        text = f"the client refuses this broker's certificate{_ended(connection.context)}"
    elif key_from is not None:
        text = f"the broker refuses our certificate, which is from {key_from}{_ended(connection.context)}"
    else:
        text = "the broker wants a client certificate; set ssl.keystore.location"
    if alert == "handshake_failure" and not connection.server_side:
        text += "; or it has no cipher suite in common with us (ssl.cipher.suites)"
    return f"{text} (its alert: {alert})"


def _ended(context: ssl.SSLContext) -> str:
    # Not every alert tells it: Java's is certificate_unknown.
    chain: tuple[bytes, ...] = getattr(context, "chain", ())
    seconds = min((ends_s(each) for each in chain), default=None)
    if seconds is None or seconds > time.time():
        return ""
    return f" and ended on {_day(seconds)}; it must be renewed"


# Our refusals -------------------------------------------------------------------------------------------------------


def _verification_text(error: ssl.SSLCertVerificationError, connection: ssl.SSLObject) -> str:
    chain = _unverified_chain(connection)
    code = error.verify_code
    whose = "the client's certificate" if connection.server_side else "the broker's certificate"
    if code in _UNTRUSTED:
        trusted_from = getattr(connection.context, "trusted_from", None)
        trusted = (
            f"no certificate from {trusted_from} has signed it"
            if trusted_from
            else "no authority that this system trusts has signed it; set ssl.truststore.location"
        )
        issuer = _name(chain[0].get("issuer")) if chain else ""
        by = f", issued by {issuer}," if issuer else ""
        return f"{whose}{by} is not trusted: {trusted} ({error.verify_message})"
    if code in (_HAS_EXPIRED, _NOT_YET_VALID):
        return _date_text(code, chain, whose)
    if code in WRONG_NAME:
        names = _names(chain[0]) if chain else ""
        return (
            f"the broker's certificate is not for this host{names}; connect by a name that it has (bootstrap.servers; "
            "advertised.listeners of the broker), or switch the check off by an empty "
            "ssl.endpoint.identification.algorithm"
        )
    return f"{whose} is refused: {error.verify_message} (ssl.truststore.location)"


def _unverified_chain(connection: ssl.SSLObject) -> list[Mapping[str, Any]]:
    """Return the contents of the peer's certificates, the peer's own first; empty when this Python cannot return them.

    For texts only. The public way, SSLObject.get_unverified_chain, is new in Python 3.13, and gives bytes.
    """
    try:
        return [certificate.get_info() for certificate in connection._sslobj.get_unverified_chain()]  # type: ignore[attr-defined]
    except Exception:
        return []


def _date_text(code: int, chain: list[Mapping[str, Any]], whose: str) -> str:
    now = time.time()
    field = "notAfter" if code == _HAS_EXPIRED else "notBefore"
    what = "has expired" if code == _HAS_EXPIRED else "is not valid yet"
    for number, certificate in enumerate(chain):
        seconds = ssl.cert_time_to_seconds(certificate[field])
        if (seconds < now) == (code == _HAS_EXPIRED):
            if number:
                whose = f"the certificate of {_name(certificate['subject'])}, which it depends on,"
            bound = "ended" if code == _HAS_EXPIRED else "begins"
            return f"{whose} {what}: it {bound} on {_day(seconds)}, and today is {_day(now)}; it must be renewed"
    return f"{whose}, or one that it depends on, {what}; today is {_day(now)}"


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _names(certificate: Mapping[str, Any]) -> str:
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    if not names:
        common = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
        if not common:
            return ", and names none"
        names = common
    return f", but for {first_of([_safe(name) for name in names], _MOST_NAMES)}"


def _name(name: Any) -> str:
    """Return the common name in a subject or issuer, else the organisation."""
    parts = {kind: value for part in name or () for kind, value in part}
    return _safe(parts.get("commonName") or parts.get("organizationName") or "")


def _safe(name: str) -> str:
    """Return a stranger's text as one short printable line."""
    return "".join(sign if sign.isprintable() else "?" for sign in name[:_LONGEST_NAME])

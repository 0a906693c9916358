"""The TLS context of a listener, made from its ``ssl.*`` settings, and what can be known of it before a client comes.

A certificate that is not valid yet is an error, and so is a key that does not belong to it. An expired certificate is a
warning, so that its broker starts, and leads its partitions as soon as the certificate is renewed.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Mapping
from typing import Any, Final

from spark_kafkalite.errors import ConfigError, HandshakeFailed, KafkaliteError, SslHandshakeFailed
from spark_kafkalite.security.certificate import alternative_names, begins_s, ends_s, subject_text
from spark_kafkalite.security.key_stores import client_key, trusted_certificates
from spark_kafkalite.security.tls import (
    TlsContext,
    TlsStream,
    limit_versions_and_ciphers,
    load_certificates,
    load_key,
)
from spark_kafkalite.security.tls_errors import WRONG_NAME

_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
# OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which the standard library has no name.
_NO_CHECK_TIME: Final = ssl.VerifyFlags(0x200000)
_MOST_STEPS: Final = 10


def server_context(values: Mapping[str, Any]) -> TlsContext:
    """Return the context of a listener. ``values`` are all ``ssl.*`` settings, parsed.

    Raises ConfigError for keys and certificates that are missing or cannot be used.
    """
    key = client_key(values)
    if key is None:
        raise ConfigError(
            "ssl.keystore.location is not set; a listener with TLS needs a file with the broker's key and certificate"
        )
    context = TlsContext(ssl.PROTOCOL_TLS_SERVER)
    # Without tickets there are no resumed sessions, whose client would not show its certificate again.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    limit_versions_and_ciphers(context, values)
    load_key(context, key)
    asked = values["ssl.client.auth"]
    trusted = trusted_certificates(values)
    if trusted is not None:
        # As in Java, a trusted certificate need not be one of an authority: it may be the client's own.
        context.verify_flags = ssl.VERIFY_X509_TRUSTED_FIRST | ssl.VERIFY_X509_PARTIAL_CHAIN
        load_certificates(context, trusted.certificates, trusted.source)
        context.trusted_from = trusted.source
    elif asked != "none":
        # The authorities that the system trusts would let in anybody with a certificate of a public one.
        raise ConfigError(
            f"ssl.client.auth={asked}: ssl.truststore.location is not set; it names the authorities that sign the "
            "certificates of clients"
        )
    context.verify_mode = _CLIENT_AUTH[asked]
    for number, certificate in enumerate(context.chain):
        begins = begins_s(certificate)
        if begins > time.time():
            which = f"certificate {number + 1} of its chain" if number else "the certificate"
            raise ConfigError(f"{key.source}: {which} is not valid before {_moment(begins)}; see this host's clock")
    return context


def expiry_warning(context: TlsContext) -> str | None:
    """Return a text about a certificate that has ended or ends within a week; None for one that lives on."""
    end_s = min(map(ends_s, context.chain))
    left_s = end_s - time.time()
    if left_s < 0:
        return f"{context.key_from}: the certificate ended on {_moment(end_s)}; clients refuse it until it is renewed"
    if left_s < 7 * 86_400:
        return f"{context.key_from}: the certificate ends on {_moment(end_s)}; it must be renewed before"
    return None


def names_host(context: TlsContext, host: str) -> bool:
    """Return whether the context's certificate names a host, as clients check it. OpenSSL decides, by a handshake."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.verify_flags = ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    client.load_verify_locations(cadata=context.chain[0])
    server, incoming, outgoing = TlsStream(context, server_side=True), ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = client.wrap_bio(incoming, outgoing, server_hostname=host)
    for _ in range(_MOST_STEPS):
        try:
            handshake.do_handshake()
        except ssl.SSLWantReadError:
            server.received(memoryview(outgoing.read()))
            with contextlib.suppress(SslHandshakeFailed, HandshakeFailed):
                server.handshake()
            incoming.write(server.take_output())
        except ssl.SSLCertVerificationError as error:
            return error.verify_code not in WRONG_NAME
        except ssl.SSLError:
            break
        else:
            break
    return True


def check_accepts_itself(server: TlsContext, client: TlsContext, host: str) -> None:
    """Raise ConfigError if a broker with the context ``client`` and one with ``server`` would refuse each other.

    The brokers of a cluster have the same settings, so this finds out at the start of one. An expired certificate is
    left to :func:`expiry_warning`.
    """
    flags = server.verify_flags, client.verify_flags
    server.verify_flags |= _NO_CHECK_TIME
    client.verify_flags |= _NO_CHECK_TIME
    try:
        of_server, of_client = _handshake(server, client, host)
    finally:
        server.verify_flags, client.verify_flags = flags
    # The server's reason is that of the one that refuses; the client then has its alert only.
    problem = (
        of_server if isinstance(of_server, SslHandshakeFailed) and "its alert" not in str(of_server) else of_client
    )
    if problem is not None:
        raise ConfigError(f"{server.key_from}: other brokers with these settings would refuse this one: {problem}")


def check_replaces(new: TlsContext, old: TlsContext, values: Mapping[str, Any]) -> None:
    """Raise ConfigError if the certificate of ``new`` has another subject than that of ``old``, or lacks names of it.

    Source: org.apache.kafka.common.security.ssl.SslFactory.CertificateEntries.
    """
    before, after = subject_text(old.chain[0]), subject_text(new.chain[0])
    if before != after and not values["ssl.allow.dn.changes"]:
        raise ConfigError(
            f"{new.key_from}: the subject of the new certificate is {after}, and was {before}; set "
            "ssl.allow.dn.changes=true if that is meant"
        )
    if alternative_names(old.chain[0]) - alternative_names(new.chain[0]) and not values["ssl.allow.san.changes"]:
        raise ConfigError(
            f"{new.key_from}: the new certificate lacks names that the old one has; set ssl.allow.san.changes=true if "
            "that is meant"
        )


def _handshake(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext, host: str
) -> tuple[KafkaliteError | None, KafkaliteError | None]:
    """Do a handshake in memory; return what the server and the client raise."""
    server = TlsStream(server_context, server_side=True)
    client = TlsStream(client_context, host=host)
    problems: dict[TlsStream, KafkaliteError] = {}
    for _ in range(_MOST_STEPS):
        for stream, other in ((client, server), (server, client)):
            if stream not in problems:
                try:
                    stream.handshake()
                except (SslHandshakeFailed, HandshakeFailed) as error:
                    problems[stream] = error
            other.received(memoryview(stream.take_output()))
    return problems.get(server), problems.get(client)


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))

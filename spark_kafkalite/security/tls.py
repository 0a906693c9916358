"""TLS for both ends of a connection, without a socket: contexts made from settings, and a stream over two buffers.

A non-blocking ``SSLSocket`` corrupts the stream when a write is repeated with other bytes, and a blocking one ignores
the kernel's receive timeout; an ``SSLObject`` over two ``MemoryBIO`` does neither, since it never touches a socket.

``tls_errors`` explains to a user what a failed handshake means.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final

from spark_kafkalite.errors import ConfigError, HandshakeFailed, SslHandshakeFailed
from spark_kafkalite.platform_calls import secret_file
from spark_kafkalite.security.key_stores import (
    ClientKey,
    chain_pem,
    client_key,
    trusted_certificates,
)
from spark_kafkalite.security.tls_errors import handshake_failure, plain_reason, refuses_certificate

# Plaintext that is encrypted in one go. A buffer keeps the size that it once had: 40 KiB with this, 90 with twice as
# much, and 1.1 MiB when a MiB goes in at once. Only smaller pieces cost more time, 10 % at 16 KiB.
_PIECE_BYTES: Final = 32 * 1024

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
# All that OpenSSL has, without those that do not authenticate the broker by a certificate, or do not encrypt.
_ALL_CIPHERS: Final = "ALL:!aNULL:!eNULL:!PSK:!SRP"
_TLS_1_3_CIPHERS: Final = frozenset(
    {
        "TLS_AES_128_GCM_SHA256",
        "TLS_AES_256_GCM_SHA384",
        "TLS_CHACHA20_POLY1305_SHA256",
        "TLS_AES_128_CCM_SHA256",
        "TLS_AES_128_CCM_8_SHA256",
    }
)
# Long enough to tell a record of TLS from an answer of HTTP.
_FIRST_BYTES: Final = 5


# Contexts -----------------------------------------------------------------------------------------------------------


class TlsContext(ssl.SSLContext):
    """A context that knows where its certificates are from, for the texts of errors.

    ``chain`` are those that it shows to the peer (DER), its own first.
    """

    trusted_from: str | None = None
    key_from: str | None = None
    chain: tuple[bytes, ...] = ()


def client_context(values: Mapping[str, Any]) -> TlsContext:
    """Return the TLS context of a client, made from the parsed ``ssl.*`` settings.

    Raises ConfigError for keys and certificates that cannot be used.
    """
    # By hand: what ssl.create_default_context sets depends on the version of Python, and from 3.13 on it refuses
    # certificates as keytool makes them (VERIFY_X509_STRICT).
    context = TlsContext(ssl.PROTOCOL_TLS_CLIENT)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # As in Java, a trusted certificate need not be one of an authority: it may be the broker's own.
    context.verify_flags = ssl.VERIFY_X509_TRUSTED_FIRST | ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = values["ssl.endpoint.identification.algorithm"] == "https"
    limit_versions_and_ciphers(context, values)
    trusted = trusted_certificates(values)
    if trusted is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        load_certificates(context, trusted.certificates, trusted.source)
        context.trusted_from = trusted.source
    key = client_key(values)
    if key is not None:
        load_key(context, key)
    return context


def limit_versions_and_ciphers(context: ssl.SSLContext, values: Mapping[str, Any]) -> None:
    """Have the context offer what ``ssl.enabled.protocols``, ``ssl.protocol`` and ``ssl.cipher.suites`` name.

    Raises ConfigError.
    """
    enabled = values["ssl.enabled.protocols"] or tuple(_VERSIONS)
    newest = _VERSIONS.get(values["ssl.protocol"], ssl.TLSVersion.TLSv1_3)
    versions = [_VERSIONS[name] for name in enabled if _VERSIONS[name] <= newest]
    if not versions:
        raise ConfigError(
            f"ssl.protocol={values['ssl.protocol']} is older than every version in ssl.enabled.protocols="
            f"{','.join(enabled)}; leave one of them out"
        )
    suites = values["ssl.cipher.suites"]
    if suites:
        # A suite belongs to one version, and the suites of TLS 1.3 cannot be chosen from Python: all of them, or none.
        chosen = _openssl_ciphers(suites)
        possible = {ssl.TLSVersion.TLSv1_2: bool(chosen), ssl.TLSVersion.TLSv1_3: len(chosen) < len(suites)}
        versions = [version for version in versions if possible[version]]
        if not versions:
            raise ConfigError(
                f"ssl.cipher.suites={','.join(suites)}: none of them belongs to a version in ssl.enabled.protocols="
                f"{','.join(enabled)}"
            )
        if chosen:
            context.set_ciphers(":".join(chosen))
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _openssl_ciphers(suites: Sequence[str]) -> list[str]:
    """Return OpenSSL's names of the suites of TLS 1.2. Raises ConfigError for a name that OpenSSL does not know."""
    every = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    every.set_ciphers(_ALL_CIPHERS)
    known = {cipher["name"] for cipher in every.get_ciphers()}
    chosen = []
    for suite in suites:
        name = openssl_cipher_name(suite)
        if name in _TLS_1_3_CIPHERS:
            continue
        if name not in known:
            usual = ", ".join(cipher["name"] for cipher in ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).get_ciphers())
            raise ConfigError(
                f"ssl.cipher.suites={suite}: {ssl.OPENSSL_VERSION} does not know it, or it does not protect; the usual "
                f"ones are {usual}"
            )
        chosen.append(name)
    return chosen


def openssl_cipher_name(suite: str) -> str:
    """Return OpenSSL's name of a suite with the IANA's (TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA: ECDHE-RSA-AES128-SHA).

    Other names come back as they are.
    """
    exchange, separator, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    if not separator:
        return suite
    for said, short in (("_CBC", ""), ("AES_", "AES"), ("CAMELLIA_", "CAMELLIA"), ("ARIA_", "ARIA"), ("CCM_8", "CCM8")):
        cipher = cipher.replace(said, short)
    if cipher.startswith("CHACHA20"):
        cipher = cipher.removesuffix("_SHA256")
    if cipher.startswith("ARIA"):
        exchange = exchange.replace("ECDHE_RSA", "ECDHE")  # OpenSSL's whim
    return "-".join((*(() if exchange == "RSA" else (exchange,)), cipher)).replace("_", "-")


def load_certificates(context: ssl.SSLContext, certificates: Sequence[bytes], source: str) -> None:
    """Have the context trust certificates (DER). Raises ConfigError for what is none."""
    # One by one: in a row, OpenSSL takes one that is cut short for the end.
    for number, certificate in enumerate(certificates, 1):
        try:
            context.load_verify_locations(cadata=certificate)
        except (ssl.SSLError, ValueError):
            raise ConfigError(f"{source}: certificate {number} of {len(certificates)} is damaged") from None


def load_key(context: TlsContext, key: ClientKey) -> None:
    """Have the context show a key's certificate. Raises ConfigError for a key that does not fit or cannot be used."""
    # What is wrong with a certificate shows here, and what is left is wrong with the key.
    load_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), key.chain, key.source)
    # Python takes keys from files only. On Linux this one has no name, and its content never reaches a disk.
    with secret_file(key.key + chain_pem(key.chain)) as path:
        # Without a callable OpenSSL would ask for the password at the terminal.
        try:
            context.load_cert_chain(path, password=lambda: key.password or "")
        except ssl.SSLError as error:
            if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):
                problem = "the first certificate does not belong to the private key"
            elif error.reason:
                problem = f"not usable: {error.reason.replace('_', ' ').lower()}"
            elif key.password is None:
                problem = "the private key is damaged, or of a kind that OpenSSL cannot read"
            else:
                problem = "the private key cannot be decrypted: wrong ssl.key.password, or damaged"
            raise ConfigError(f"{key.source}: {problem}") from None
        except ValueError:
            raise ConfigError("ssl.key.password: longer than the 1024 bytes that OpenSSL takes") from None
    context.key_from, context.chain = key.source, key.chain


# Streams ------------------------------------------------------------------------------------------------------------


class TlsStream:
    """One end of a TLS connection. For one thread at a time; the caller moves the bytes.

    Ciphertext that came from the peer goes in by :meth:`received`. Ciphertext for the peer comes out of
    :meth:`take_output`. Call it after every other call, even one that raised: it then has the alert with the reason for
    the peer. After :meth:`ended`, call :meth:`handshake` or :meth:`read_into` once more to learn what the end means.
    """

    __slots__ = ("_encrypted", "_first_bytes", "_has_ended", "_host", "_incoming", "_object", "_outgoing")

    def __init__(self, context: ssl.SSLContext, *, server_side: bool = False, host: str | None = None) -> None:
        """``host`` is the name or address connected to, which the peer's certificate must name if the context requires
        it."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        # Neither the zone of an address nor the dot of an absolute name is part of what a certificate names.
        name = None if host is None else host.partition("%")[0].removesuffix(".")
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side, name)
        self._host = host
        self._encrypted: list[bytes] = []
        self._first_bytes = b""
        # Whether the peer has said that nothing follows, or the socket has: what came before may be unread.
        self._has_ended = False

    def __repr__(self) -> str:
        return f"TlsStream({self._host}, {self._object.version() or 'before the handshake'})"

    def received(self, ciphertext: memoryview) -> None:
        """Take bytes that came from the peer."""
        if len(self._first_bytes) < _FIRST_BYTES:
            self._first_bytes += bytes(ciphertext[: _FIRST_BYTES - len(self._first_bytes)])
        self._incoming.write(ciphertext)

    def ended(self) -> None:
        """Take note that the peer sends no more bytes."""
        self._has_ended = True
        self._incoming.write_eof()

    def handshake(self) -> bool:
        """Go on with the handshake; return whether it is done, else more bytes must be received.

        Raises SslHandshakeFailed, with one line that names the setting to change, and HandshakeFailed when the peer
        ended it or does not speak TLS.
        """
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise self._failure(error) from None
        return True

    def negotiated(self) -> tuple[str, str]:
        """Return the version (``TLSv1.3``) and OpenSSL's name of the cipher suite; call it after the handshake."""
        cipher = self._object.cipher()
        return self._object.version() or "", "" if cipher is None else cipher[0]

    def peer_certificate(self) -> bytes | None:
        """Return the peer's certificate (DER), which has been verified; None where it showed none."""
        return self._object.getpeercert(True)

    def peer_certificate_expires(self) -> str | None:
        """Return the end of the peer's certificate in OpenSSL's words, None where it was not verified."""
        expires = (self._object.getpeercert() or {}).get("notAfter")
        return expires if isinstance(expires, str) else None

    def read_into(self, view: memoryview) -> int | None:
        """Decrypt into ``view`` (not empty); return how many bytes, 0 at the stream's end, None when more must come.

        At most one record's worth, 16 KiB, in a call. An end without a close_notify alert is an end, too: Kafka's
        programs often just close, and frames have lengths. Raises SslHandshakeFailed when the peer refuses our
        certificate (TLS 1.3 reports that only here), ConnectionError for bytes that are not of the stream.
        """
        if not self._incoming.pending and not self._object.pending() and not self._has_ended:
            # OpenSSL would say so by an exception, which takes as long as the decryption of some KiB.
            return None
        try:
            count: int = self._object.read(len(view), view)  # type: ignore[assignment]
        except ssl.SSLWantReadError:
            return None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            count = 0
        except ssl.SSLError as error:
            if refuses_certificate(error):
                raise self._failure(error) from None
            raise ConnectionError(f"TLS with {self._host or 'the peer'}: {plain_reason(error)}") from None
        if count == 0:
            self._has_ended = True
        return count

    @property
    def has_input(self) -> bool:
        """Whether bytes that were received wait to be read: the socket does not report them.

        False after :meth:`read_into` has returned None, until more is received: an incomplete record does not count.
        """
        return self._object.pending() > 0 or self._incoming.pending > 0

    def write(self, data: memoryview) -> None:
        """Encrypt all of ``data``. Raises ConnectionError when the stream is broken.

        The ciphertext waits in memory: a caller with much to send passes some 64 KiB at a time.
        """
        try:
            for start in range(0, len(data), _PIECE_BYTES):
                self._object.write(data[start : start + _PIECE_BYTES])
                if len(data) > _PIECE_BYTES:
                    self._encrypted.append(self._outgoing.read())
        except ssl.SSLError as error:
            raise ConnectionError(f"TLS with {self._host or 'the peer'}: {plain_reason(error)}") from None

    @property
    def has_output(self) -> bool:
        """Whether :meth:`take_output` has something."""
        return self._outgoing.pending > 0 or bool(self._encrypted)

    def take_output(self) -> bytes:
        """Return the ciphertext that is to be sent, empty when there is none."""
        last = self._outgoing.read()
        if not self._encrypted:
            return last
        output = b"".join((*self._encrypted, last))
        self._encrypted.clear()
        return output

    def close(self) -> None:
        """Send a close_notify alert to the peer, if there was a handshake; :meth:`take_output` then has it."""
        try:
            self._object.unwrap()
        except (ssl.SSLError, ValueError):
            pass  # it waits for the peer's farewell, which nobody reads; or there is nobody to say it to

    def _failure(self, error: ssl.SSLError) -> SslHandshakeFailed | HandshakeFailed:
        return handshake_failure(error, self._object, self._host, self._first_bytes)

"""Two TlsStreams wired back to back, and the contexts and settings for them."""

from __future__ import annotations

import ssl
from typing import Any

import trustme

from spark_kafkalite.security.settings import SECURITY_SETTINGS
from spark_kafkalite.security.tls import TlsStream, client_context
from spark_kafkalite.settings import SettingGroup

HOST = "broker.example"
SETTINGS = SettingGroup("client", SECURITY_SETTINGS)


def parsed(**given: object) -> dict[str, Any]:
    """Settings by keyword: ``ssl_truststore_location=...``."""
    return SETTINGS.defaults() | SETTINGS.parse({name.replace("_", "."): value for name, value in given.items()})


def pem_of(authority: trustme.CA) -> str:
    return authority.cert_pem.bytes().decode()


def server_context(
    authority: trustme.CA,
    *names: str,
    client_authority: trustme.CA | None = None,
    client_certificate: ssl.VerifyMode = ssl.CERT_REQUIRED,
    version: str | None = None,
    **issuing: Any,
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*(names or (HOST,)), **issuing).configure_cert(context)
    context.num_tickets = 0
    if client_authority is not None:
        client_authority.configure_trust(context)
        context.verify_mode = client_certificate
    if version is not None:
        only = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}[version]
        context.minimum_version = context.maximum_version = only
    return context


class Pair:
    """A client and a server, and what moves bytes between them, at most ``step`` at a time."""

    def __init__(self, client: ssl.SSLContext, server: ssl.SSLContext, host: str = HOST, step: int = 1_000_000) -> None:
        self.client = TlsStream(client, host=host)
        self.server = TlsStream(server, server_side=True)
        self.step = step
        self.server_error: Exception | None = None

    def handshake(self) -> None:
        """Bring both through the handshake; raise what the client raises, keep what the server does."""
        done: set[TlsStream] = set()
        coming = {self.client: b"", self.server: b""}
        while True:
            for stream, other in ((self.client, self.server), (self.server, self.client)):
                try:
                    if stream not in done and stream.handshake():
                        done.add(stream)
                except Exception as error:
                    if stream is self.client:
                        raise
                    self.server_error = error
                    done.add(stream)
                coming[other] += stream.take_output()
                piece, coming[stream] = coming[stream][: self.step], coming[stream][self.step :]
                stream.received(memoryview(piece))
            if len(done) == 2 and not any(coming.values()):
                return


def move(source: TlsStream, destination: TlsStream) -> int:
    output = source.take_output()
    destination.received(memoryview(output))
    return len(output)


def read_all(stream: TlsStream, room: int = 65_536) -> bytes:
    """What can be read now."""
    view = memoryview(bytearray(room))
    got = bytearray()
    while count := stream.read_into(view):
        got += view[:count]
    return bytes(got)


def trusting(authority: trustme.CA, **given: object) -> ssl.SSLContext:
    return client_context(parsed(ssl_truststore_certificates=pem_of(authority), **given))

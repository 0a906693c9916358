"""A pipeline over TLS: what has left the socket and is not read yet, and what is encrypted and not sent yet."""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import trustme

from spark_kafkalite.client.config import ClientConfig
from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.pipeline import InFlight, Pipeline
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.network.served_versions import SUPPORTED
from spark_kafkalite.client.network.sockets import send_all
from spark_kafkalite.client.network.tls_socket import TlsSocket
from spark_kafkalite.security.client_security import ClientSecurity
from spark_kafkalite.security.settings import SecurityProtocol
from spark_kafkalite.security.tls import TlsStream
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.frame import framed
from spark_kafkalite.wire.header import read_request_header
from spark_kafkalite.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from tests.patience import PATIENCE_S

HOST = "broker.example"


class Ends:
    """A pipeline, and the broker's end of its connection, which the test is."""

    def __init__(self) -> None:
        authority = trustme.CA()
        client = ssl.create_default_context()
        authority.configure_trust(client)
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.num_tickets = 0
        authority.issue_cert(HOST).configure_cert(server)
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.broker = TlsSocket(theirs, TlsStream(server, server_side=True))
        thread = threading.Thread(target=self._greet)
        thread.start()
        security = ClientSecurity(SecurityProtocol.SSL, client, None)
        config = replace(ClientConfig((f"{HOST}:1",)), security=security)
        connection = BrokerConnection.over(ours, HOST, 1, config, Deadline.after_ms(20_000))
        thread.join(PATIENCE_S)
        self.pipeline = Pipeline(connection, 0.0)

    def _greet(self) -> None:
        self.broker.handshake(Deadline.after_ms(20_000))
        length = int.from_bytes(self.receive(4), "big")
        (_, version, correlation_id, _), _ = read_request_header(memoryview(self.receive(length)))
        served = [ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in SUPPORTED.items()]
        answer = codec.encode_response(ApiVersionsResponse(api_keys=served), version, correlation_id)
        send_all(self.broker, [framed(answer)])

    def receive(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            view = memoryview(bytearray(count - len(data)))
            received = self.broker.recv_into(view)
            assert received != 0
            data += view[: received or 0]
        return bytes(data)

    def ask(self, number: int, body: bytes = b"") -> None:
        self.pipeline.send(InFlight(number, 0.0, []), [number.to_bytes(4, "big"), body], answered=True)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.pipeline.close()
    made.broker.close()


def is_readable(pipeline: Pipeline) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(pipeline, selectors.EVENT_READ)
        return bool(selector.select(0))


def test_answers_that_have_left_the_socket_are_all_read(ends: Ends) -> None:
    """The end of a cut-off answer and whole ones behind it come at once: the socket tells of them once."""
    for number in range(1, 6):
        ends.ask(number)
    answers = b"".join(framed(number.to_bytes(4, "big") + b"x" * 1000 * number) for number in range(1, 6))
    got: list[int] = []
    for part in (answers[:500], answers[500:]):
        send_all(ends.broker, [part])
        while is_readable(ends.pipeline):
            got += [request.correlation_id for request, _ in ends.pipeline.read()]
    assert got == [1, 2, 3, 4, 5]
    assert not ends.pipeline.in_flight


def test_what_is_encrypted_and_not_sent_is_written_when_the_socket_takes_it(ends: Ends) -> None:
    """All plaintext may be taken while ciphertext waits: without asking for more room the broker never gets its end."""
    body = b"y" * 60_000
    ends.ask(1, body)
    assert ends.pipeline.wants_write
    got = bytearray()
    reader = threading.Thread(target=lambda: got.extend(ends.receive(4 + 4 + len(body))))
    reader.start()
    with selectors.DefaultSelector() as selector:
        selector.register(ends.pipeline, selectors.EVENT_WRITE)
        while ends.pipeline.wants_write:
            assert selector.select(PATIENCE_S)
            ends.pipeline.write()
    reader.join(PATIENCE_S)
    assert bytes(got) == framed((1).to_bytes(4, "big") + body)

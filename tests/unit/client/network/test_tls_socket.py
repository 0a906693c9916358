"""A TLS socket over small system buffers: every byte arrives, once and in order, blocking or not."""

from __future__ import annotations

import random
import selectors
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest
import trustme

from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.network.sockets import limit_receiving, send_all, views_after
from spark_kafkalite.client.network.tls_socket import TlsSocket
from spark_kafkalite.errors import HandshakeFailed, SslHandshakeFailed
from spark_kafkalite.security.tls import TlsStream
from tests.patience import PATIENCE_S
from tests.seeds import SEED

HOST = "broker.example"


@pytest.fixture(scope="module")
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of client and server."""
    authority = trustme.CA()
    client = ssl.create_default_context()
    authority.configure_trust(client)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST).configure_cert(server)
    # Else the first thing to be received is no bytes.
    server.num_tickets = 0
    return client, server


class Ends:
    """Both ends of a connection, over a pair of sockets whose buffers are small."""

    def __init__(self, contexts: tuple[ssl.SSLContext, ssl.SSLContext], host: str = HOST) -> None:
        ours, theirs = socket.socketpair()
        for sock in (ours, theirs):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.client = TlsSocket(ours, TlsStream(contexts[0], host=host))
        self.server = TlsSocket(theirs, TlsStream(contexts[1], server_side=True))
        self.server_error: Exception | None = None

    def handshake(self) -> None:
        def serve() -> None:
            try:
                self.server.handshake(Deadline.after_ms(20_000))
            except Exception as error:
                self.server_error = error

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            self.client.handshake(Deadline.after_ms(20_000))
        finally:
            thread.join(PATIENCE_S)

    def close(self) -> None:
        self.client.close()
        self.server.close()


@pytest.fixture
def ends(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> Iterator[Ends]:
    made = Ends(contexts)
    made.handshake()
    yield made
    made.close()


def pieces_of(source: random.Random, count: int) -> list[bytes]:
    sizes = [source.choice([1, 4, 100, 16_383, 16_384, 16_385, 70_000, 300_000]) for _ in range(count)]
    return [source.randbytes(size) for size in sizes]


def receive(sock: TlsSocket, count: int, room: int) -> bytes:
    """Receive that many bytes from a blocking socket, into views of ``room`` bytes."""
    data = bytearray()
    view = memoryview(bytearray(room))
    while len(data) < count:
        received = sock.recv_into(view)
        assert received != 0, "the stream has ended"
        data += view[: received or 0]
    return bytes(data)


@pytest.mark.parametrize("room", [7, 4096, 1 << 20])
def test_blocking_ends_carry_all_pieces_in_order(ends: Ends, room: int) -> None:
    pieces = pieces_of(random.Random(SEED), 12 if room > 100 else 3)
    sent = b"".join(pieces)
    thread = threading.Thread(target=send_all, args=(ends.client, list(pieces)))
    thread.start()
    assert receive(ends.server, len(sent), room) == sent
    thread.join(PATIENCE_S)
    assert not ends.client.has_unsent


def test_non_blocking_ends_carry_all_pieces_both_ways_at_once(ends: Ends) -> None:
    source = random.Random(SEED)
    sent = {ends.client: b"".join(pieces_of(source, 15)), ends.server: b"".join(pieces_of(source, 15))}
    waiting = {
        # In pieces of any size, as frames and their parts are.
        end: [memoryview(data)[start : start + 9_999] for start in range(0, len(data), 9_999)]
        for end, data in sent.items()
    }
    got: dict[TlsSocket, bytearray] = {ends.client: bytearray(), ends.server: bytearray()}
    other = {ends.client: ends.server, ends.server: ends.client}
    view = memoryview(bytearray(5_000))
    with selectors.DefaultSelector() as selector:
        for end in (ends.client, ends.server):
            end.setblocking(False)
            selector.register(end, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while any(len(got[other[end]]) < len(data) for end, data in sent.items()):
            for key, events in selector.select(PATIENCE_S):
                end = key.fileobj
                assert isinstance(end, TlsSocket)
                if events & selectors.EVENT_WRITE:
                    try:
                        while waiting[end]:
                            waiting[end] = views_after(waiting[end], end.sendmsg(waiting[end][:64]))
                        end.flush()
                    except BlockingIOError:
                        assert end.has_unsent
                if events & selectors.EVENT_READ:
                    read(end, view, got[end])
                wanted = selectors.EVENT_WRITE if waiting[end] or end.has_unsent else 0
                selector.modify(end, selectors.EVENT_READ | wanted)
    for end, data in sent.items():
        assert bytes(got[other[end]]) == data


def read(end: TlsSocket, view: memoryview, got: bytearray) -> None:
    """Read what one readiness of the socket brings, as the producer's pipeline does."""
    try:
        received = end.recv_into(view)
    except BlockingIOError:
        return
    assert received != 0
    got += view[: received or 0]
    while received and end.has_input:
        received = end.recv_decrypted(view)
        got += view[: received or 0]


def test_a_blocking_receive_ends_at_the_kernels_timeout(ends: Ends) -> None:
    limit_receiving(ends.client, Deadline.after_ms(50))
    with pytest.raises(BlockingIOError):
        ends.client.recv_into(memoryview(bytearray(10)))


def test_a_part_of_a_record_is_nothing_yet(ends: Ends) -> None:
    """Half of a record makes readable sockets and no bytes: who waits looks at the deadline again, and goes on."""
    stream = ends.server._stream
    stream.write(memoryview(b"x" * 1000))
    record = stream.take_output()
    ends.server._sock.sendall(record[:500])
    view = memoryview(bytearray(2000))
    assert ends.client.recv_into(view) is None
    ends.server._sock.sendall(record[500:])
    assert ends.client.recv_into(view) == 1000


def test_who_closes_is_at_the_end_of_the_stream(ends: Ends) -> None:
    ends.server.shutdown(socket.SHUT_RDWR)
    assert ends.client.recv_into(memoryview(bytearray(10))) == 0


def test_a_wrong_name_is_refused_and_told_to_the_peer(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    ends = Ends(contexts, host="other.example")
    with pytest.raises(SslHandshakeFailed, match=HOST):
        ends.handshake()
    # The alert came: else it would be a closed connection.
    assert isinstance(ends.server_error, SslHandshakeFailed)
    ends.close()


def test_a_client_certificate_that_is_missing_is_told_though_the_peer_has_closed(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    """With TLS 1.3 the client is done before the server looks; the reason waits while the client sends already."""
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(server)
    authority.issue_cert(HOST).configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    ends = Ends((client, server))
    ends.handshake()
    assert isinstance(ends.server_error, (SslHandshakeFailed, HandshakeFailed))
    ends.server.close()
    with pytest.raises(SslHandshakeFailed, match="certificate"):
        send_all(ends.client, [b"x" * 10])
    ends.close()

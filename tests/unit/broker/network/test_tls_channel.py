"""A channel under TLS over a real pair of sockets. The other end is a blocking client, or does not do its part."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import trustme

from spark_kafkalite.broker.network.tls_channel import TlsBuffers, TlsChannel
from spark_kafkalite.security.tls import TlsStream
from tests.patience import PATIENCE_S
from tests.unit.security.tls_pairs import HOST, server_context, trusting

DATA = os.urandom(3_000_000)


@cache
def authority() -> trustme.CA:
    return trustme.CA()


class End:
    """The server's channel, and the client's blocking TLS socket, whose calls run in a thread where they have to."""

    def __init__(self, version: str) -> None:
        self.ours, theirs = socket.socketpair()
        self.channel = TlsChannel(
            self.ours,
            TlsStream(server_context(authority(), version=version), server_side=True),
            TlsBuffers(),
        )
        theirs.settimeout(PATIENCE_S)
        self.theirs = theirs
        self.client: ssl.SSLSocket | None = None

    def shake_hands(self) -> ssl.SSLSocket:
        def connect() -> None:
            self.client = trusting(authority()).wrap_socket(self.theirs, server_hostname=HOST)

        thread = threading.Thread(target=connect)
        thread.start()
        while not self.channel.handshake():
            self.wait(write=self.channel.read_needs_write)
        thread.join(PATIENCE_S)
        assert self.client is not None
        return self.client

    def wait(self, *, write: bool = False) -> None:
        readable, writable, _ = select.select(
            [] if write else [self.ours], [self.ours] if write else [], [], PATIENCE_S
        )
        assert readable or writable, "the peer does nothing"

    def receive(self, length: int, room: int = 100_000) -> bytes:
        view, got = memoryview(bytearray(room)), bytearray()
        while len(got) < length:
            count = self.channel.recv_into(view)
            if count == 0:
                break
            if count is None:
                self.wait()
                continue
            got += view[:count]
        return bytes(got)


@pytest.fixture(params=["TLSv1.2", "TLSv1.3"])
def end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[End]:
    # A pair of sockets in memory has no options of TCP.
    monkeypatch.setattr("spark_kafkalite.broker.network.tls_channel.prepare", lambda one: one.setblocking(False))
    one = End(request.param)
    yield one
    one.channel.close()
    one.theirs.close()
    if one.client is not None:
        one.client.close()


def test_bytes_go_through_in_both_directions(end: End) -> None:
    assert end.channel.needs_handshake
    client = end.shake_hands()
    assert not end.channel.needs_handshake
    writer = threading.Thread(target=client.sendall, args=(DATA,))
    writer.start()
    assert end.receive(len(DATA)) == DATA
    writer.join(PATIENCE_S)
    got = bytearray()

    def read() -> None:
        while len(got) < len(DATA):
            got.extend(client.recv(65_536))

    reader = threading.Thread(target=read)
    reader.start()
    at = 0
    while at < len(DATA):
        taken = end.channel.send(memoryview(DATA)[at:], False)
        if taken is None:
            end.wait(write=True)
        else:
            at += taken
    while not end.channel.flush():
        end.wait(write=True)
    assert end.channel.unsent_bytes == 0
    reader.join(PATIENCE_S)
    assert bytes(got) == DATA


def test_what_is_taken_waits_in_the_channel_until_it_is_flushed(end: End) -> None:
    client = end.shake_hands()
    taken = 0
    while (count := end.channel.send(memoryview(DATA)[taken:], False)) is not None:
        taken += count
        assert taken < len(DATA)
    held = end.channel.unsent_bytes
    assert 0 < held < 70_000
    assert not end.channel.flush()
    got = bytearray()

    def read() -> None:
        while len(got) < taken:
            got.extend(client.recv(65_536))

    reader = threading.Thread(target=read)
    reader.start()
    while not end.channel.flush():
        end.wait(write=True)
    reader.join(PATIENCE_S)
    assert bytes(got) == DATA[:taken]


def test_a_range_of_a_file_is_sent_up_to_its_end(end: End, tmp_path: Path) -> None:
    client = end.shake_hands()
    (tmp_path / "log").write_bytes(DATA[:50_000])
    with (tmp_path / "log").open("rb") as file:
        assert end.channel.send_file(file.fileno(), 10_000, 100_000) == 40_000
        assert end.channel.send_file(file.fileno(), 50_000, 10) == 0
    got = bytearray()
    while len(got) < 40_000:
        got += client.recv(65_536)
    assert bytes(got) == DATA[10_000:50_000]


def test_bytes_that_were_decrypted_and_not_taken_are_announced(end: End) -> None:
    client = end.shake_hands()
    client.sendall(b"x" * 5000)
    end.wait()
    assert end.channel.recv_into(memoryview(bytearray(100))) == 100
    assert end.channel.has_buffered
    assert len(end.receive(4900)) == 4900
    assert end.channel.recv_into(memoryview(bytearray(100))) is None
    assert not end.channel.has_buffered


class CountingSocket:
    """Counts the calls that receive."""

    def __init__(self, connected: socket.socket) -> None:
        self._connected = connected
        self.receives = 0

    def recv_into(self, buffer: memoryview) -> int:
        self.receives += 1
        return self._connected.recv_into(buffer)

    def __getattr__(self, name: str) -> object:
        return getattr(self._connected, name)


def test_a_small_request_is_received_with_one_call(end: End) -> None:
    client = end.shake_hands()
    end.channel.recv_into(memoryview(bytearray(100)))
    end.channel._socket = counting = CountingSocket(end.ours)  # type: ignore[assignment]
    for number in range(1, 4):
        client.sendall(b"x" * 200)
        end.wait()
        assert end.channel.recv_into(memoryview(bytearray(1000))) == 200
        assert counting.receives == number


@pytest.mark.parametrize("farewell", [True, False])
def test_the_end_of_the_stream_comes_after_its_bytes(end: End, farewell: bool) -> None:
    client = end.shake_hands()
    client.sendall(b"last")
    if farewell:
        client.settimeout(0)
        with pytest.raises(ssl.SSLWantReadError):
            client.unwrap()
    else:
        client.close()
    assert end.receive(100) == b"last"
    assert end.channel.recv_into(memoryview(bytearray(100))) == 0


def test_a_damaged_record_is_an_error_and_no_bytes(end: End) -> None:
    client = end.shake_hands()
    raw = socket.socket(fileno=os.dup(client.fileno()))
    raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
    raw.close()
    end.wait()
    with pytest.raises(ConnectionError, match=r"TLS with the peer: ") as raised:
        end.channel.recv_into(memoryview(bytearray(100)))
    assert raised.value.strerror


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        (b"\0\0\0\x20" + bytes(32), ConnectionError, "spoke plaintext to a listener with TLS"),
        (b"GET / HTTP/1.0\r\n\r\n", ConnectionError, "spoke plaintext to a listener with TLS"),
        (b"\x16\x03\x01\xff\xff" + bytes(100), ConnectionError, "the handshake failed: packet length too long"),
        (None, ConnectionResetError, "closed the connection"),
    ],
)
def test_a_peer_that_does_not_speak_tls_ends_the_connection(
    end: End, said: bytes | None, error: type[OSError], message: str
) -> None:
    if said is None:
        end.theirs.close()
    else:
        end.theirs.sendall(said)
    with pytest.raises(error, match=message) as raised:
        while not end.channel.handshake():
            end.wait()
    # Only a peer that just goes is not held against it.
    assert isinstance(raised.value, ConnectionResetError) == (said is None)


def test_a_handshake_is_bounded_in_bytes(end: End) -> None:
    # Handshake records that are fragments of one message of 16 MiB.
    head = b"\x16\x03\x03\x10\x04" + b"\x01\xff\xff\xff"
    sender = threading.Thread(target=_send_until_closed, args=(end.theirs, head + bytes(4096)))
    sender.start()
    with pytest.raises(ConnectionError):
        for _ in range(100):
            end.wait()
            assert not end.channel.handshake()
    end.channel.close()
    sender.join(PATIENCE_S)


class KeyChanges:
    """Stands for a stream whose peer sends changes of keys and nothing else: there is never any data."""

    has_input = has_output = False

    def __init__(self) -> None:
        self.pieces: list[int] = []

    def received(self, ciphertext: memoryview) -> None:
        self.pieces.append(len(ciphertext))

    def read_into(self, view: memoryview) -> None:
        return None


def _send_in_clear(client: ssl.SSLSocket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        socket.socket.sendall(client, data)


def test_a_peer_that_sends_no_data_is_ended_before_it_is_much_work(end: End) -> None:
    client = end.shake_hands()
    client.sendall(DATA[:100_000])
    assert end.receive(100_000) == DATA[:100_000]
    real, barren = end.channel._stream, KeyChanges()
    end.channel._stream = barren  # type: ignore[assignment]
    try:
        sender = threading.Thread(target=_send_in_clear, args=(client, bytes(27) * 30_000))
        sender.start()
        with pytest.raises(ConnectionError, match="without any data"):
            end.receive(1)
        # A change of keys takes 27 bytes, and the loop up to 30 us.
        assert sum(barren.pieces) <= 64 * 1024 + 16 * 1024
    finally:
        end.channel._stream = real
        client.shutdown(socket.SHUT_RDWR)
        sender.join(PATIENCE_S)


def test_records_of_one_byte_are_taken_without_an_end(end: End) -> None:
    client = end.shake_hands()

    def send() -> None:
        for at in range(5_000):
            client.sendall(DATA[at : at + 1])

    sender = threading.Thread(target=send)
    sender.start()
    # Some 110 KB of TLS.
    assert end.receive(5_000) == DATA[:5_000]
    sender.join(PATIENCE_S)


def _send_until_closed(peer: socket.socket, record: bytes) -> None:
    with contextlib.suppress(OSError):
        while True:
            peer.sendall(record)


def test_a_handshake_that_arrives_byte_by_byte_is_completed(end: End) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(authority()).wrap_bio(incoming, outgoing, server_hostname=HOST)
    end.theirs.setblocking(False)
    done = {"client": False, "server": False}
    while not all(done.values()):
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
            done["client"] = True
        for byte in outgoing.read():
            end.theirs.sendall(bytes([byte]))
            done["server"] = done["server"] or end.channel.handshake()
        with contextlib.suppress(BlockingIOError):
            incoming.write(end.theirs.recv(65_536))

"""Both ends of a TLS connection without a socket: handshake, bytes in all cuts, ends, and what the buffers hold."""

from __future__ import annotations

import random
import ssl
from datetime import UTC, datetime, timedelta
from functools import cache

import pytest
import trustme

from tests.unit.security.tls_pairs import HOST, Pair, move, read_all, server_context, trusting

VERSIONS = ("TLSv1.2", "TLSv1.3")


@cache
def authority() -> trustme.CA:
    return trustme.CA()


def pair(version: str | None = None, host: str = HOST, step: int = 1_000_000) -> Pair:
    return Pair(trusting(authority()), server_context(authority(), version=version), host, step)


def test_the_end_of_the_peers_certificate() -> None:
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(days=9)
    both = Pair(trusting(authority()), server_context(authority(), not_after=ends))
    both.handshake()
    expires = both.client.peer_certificate_expires()
    assert expires is not None
    assert ssl.cert_time_to_seconds(expires) == ends.timestamp()


# Bytes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("step", [1, 7, 1_000_000])
def test_handshake_and_bytes_in_both_directions_in_any_cuts(version: str, step: int) -> None:
    both = pair(version, step=step)
    both.handshake()
    assert version in repr(both.client)
    assert HOST in repr(both.client)
    message = random.Random(5).randbytes(40_000)
    for source, destination in ((both.client, both.server), (both.server, both.client)):
        source.write(memoryview(message))
        ciphertext = memoryview(source.take_output())
        got = b""
        for start in range(0, len(ciphertext), step):
            destination.received(ciphertext[start : start + step])
            got += read_all(destination, 999)
            assert not destination.has_input
        assert got == message


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_received_and_not_read_is_said_to_wait(version: str) -> None:
    both = pair(version)
    both.handshake()
    assert not both.client.has_input
    both.server.write(memoryview(b"a" * 100))
    both.server.write(memoryview(b"b" * 100))
    move(both.server, both.client)
    view = memoryview(bytearray(60))
    counts = []
    while both.client.has_input:
        counts.append(both.client.read_into(view))
    assert counts == [60, 40, 60, 40]
    assert both.client.read_into(view) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_an_incomplete_record_does_not_count_as_waiting(version: str) -> None:
    both = pair(version)
    both.handshake()
    both.server.write(memoryview(b"a" * 100))
    ciphertext = memoryview(both.server.take_output())
    view = memoryview(bytearray(200))
    for end in range(len(ciphertext) - 1):
        both.client.received(ciphertext[end : end + 1])
        assert both.client.read_into(view) is None
        assert not both.client.has_input
    both.client.received(ciphertext[-1:])
    assert both.client.has_input
    assert both.client.read_into(view) == 100


def test_a_large_write_comes_out_whole() -> None:
    both = pair()
    both.handshake()
    message = random.Random(6).randbytes(200_017)
    both.client.write(memoryview(message))
    both.client.write(memoryview(b"end"))
    both.server.received(memoryview(both.client.take_output()))
    assert both.client.take_output() == b""
    assert read_all(both.server) == message + b"end"


def test_buffers_stay_small_whatever_is_written() -> None:
    class Measured:
        largest = 0

        def __init__(self, buffer: ssl.MemoryBIO) -> None:
            self.buffer = buffer

        def read(self) -> bytes:
            self.largest = max(self.largest, self.buffer.pending)
            return self.buffer.read()

    both = pair()
    both.handshake()
    measured = Measured(both.client._outgoing)
    both.client._outgoing = measured  # type: ignore[assignment]
    both.client.write(memoryview(bytes(5_000_000)))
    assert len(both.client.take_output()) > 5_000_000
    # A buffer never gives back what it once had.
    assert 32_768 < measured.largest < 40_000


@pytest.mark.parametrize("version", VERSIONS)
def test_a_farewell_ends_the_stream_after_what_was_sent(version: str) -> None:
    both = pair(version)
    both.handshake()
    both.server.write(memoryview(b"last words"))
    both.server.close()
    move(both.server, both.client)
    view = memoryview(bytearray(100))
    assert both.client.read_into(view) == 10
    assert both.client.read_into(view) == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_an_end_without_a_farewell_ends_the_stream(version: str) -> None:
    both = pair(version)
    both.handshake()
    both.server.write(memoryview(b"whole"))
    both.server.write(memoryview(b"cut"))
    both.client.received(memoryview(both.server.take_output())[:-1])
    both.client.ended()
    view = memoryview(bytearray(100))
    assert both.client.read_into(view) == 5
    assert both.client.read_into(view) == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_changed_bytes_break_the_stream(version: str) -> None:
    both = pair(version)
    both.handshake()
    both.server.write(memoryview(b"pay 100"))
    ciphertext = bytearray(both.server.take_output())
    ciphertext[-1] ^= 1
    both.client.received(memoryview(ciphertext))
    with pytest.raises(ConnectionError, match=rf"^TLS with {HOST}: decryption failed or bad record mac$"):
        both.client.read_into(memoryview(bytearray(100)))


def test_a_farewell_before_the_handshake_says_nothing() -> None:
    both = pair()
    both.client.close()

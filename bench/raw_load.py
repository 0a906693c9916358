"""Load without a client library: ready-made requests, one connection or many, and how long each answer took.

One process and one selector drive all connections, so that what is measured is the broker and not a client's threads.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from bench.measurement import thread_seconds
from spark_kafkalite.wire import codec, packed
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.frame import HEAD_BYTES, LENGTH, FrameBuffer, FrameReader, framed, lend_memory
from spark_kafkalite.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.lab.batches import make_batch

_PRODUCE_VERSION, _FETCH_VERSION, _LIST_OFFSETS_VERSION, _METADATA_VERSION = 9, 12, 7, 12
_MAX_RESPONSE_BYTES = 1 << 30
# Every so many answers one is looked into; looking into all would measure the looking.
_LOOK_EVERY = 50


def batch_of(records: int, value: bytes = b"x" * 100, timestamp_ms: int | None = None) -> bytes:
    at = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
    return bytes(make_batch([value] * records, timestamp_ms=at))


def produce_request(topic: str, partitions: Sequence[int], batch: bytes, acks: int = -1) -> bytes:
    parts = [(number, batch) for number in partitions]
    pieces, _ = packed.pack_produce_request(1, "bench", _PRODUCE_VERSION, acks, 30_000, [(topic, parts)])
    return framed(b"".join(bytes(piece) for piece in pieces))  # type: ignore[arg-type]


def fetch_request(
    topic: str, offsets: Sequence[tuple[int, int]], max_bytes: int, max_wait_ms: int = 0, min_bytes: int = 1
) -> bytes:
    """``offsets``: (partition, offset) of each partition to fetch from, in one request."""
    asked = [packed.FetchPartition(partition, offset, max_bytes) for partition, offset in offsets]
    fetch = packed.FetchRequest([(topic, asked)], max_wait_ms=max_wait_ms, min_bytes=min_bytes)
    return framed(packed.pack_fetch_request(1, "bench", _FETCH_VERSION, fetch))


def metadata_request(topic: str) -> bytes:
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    return framed(codec.encode_request(asked, _METADATA_VERSION, 1, "bench"))


def offset_request(topic: str, timestamp: int) -> bytes:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
    return framed(codec.encode_request(request, _LIST_OFFSETS_VERSION, 1, "bench"))


def offset_in(response: bytes) -> int:
    return int(
        codec.decode_response(ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION, response)[1].topics[0].partitions[0].offset
    )


def fetched_in(response: bytes) -> packed.FetchedPartition:
    return packed.parse_fetch_response(response, _FETCH_VERSION).topics[0][1][0]


def check_produced(response: bytes) -> None:
    for topic, partitions in packed.parse_produce_response(response, _PRODUCE_VERSION).topics:
        for outcome in partitions:
            if outcome.error_code:
                raise RuntimeError(f"{topic}-{outcome.partition}: error {outcome.error_code} {outcome.error_message}")


class Link:
    """One blocking connection."""

    def __init__(self, bootstrap: str, timeout_s: float = 60.0) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = FrameReader(_MAX_RESPONSE_BYTES, memoryview(bytearray(HEAD_BYTES + (1 << 16))))

    def send(self, request: bytes) -> None:
        self.socket.sendall(request)

    def receive(self) -> bytes:
        frames = self._frames
        while (frame := frames.next_frame()) is None:
            frames.keep_rest(lend_memory)
            count = self.socket.recv_into(frames.room()[0])
            if not count:
                raise ConnectionError("closed by the broker")
            if (completed := frames.received(count)) is not None:
                return bytes(completed)
        return bytes(frame)

    def call(self, request: bytes) -> bytes:
        self.send(request)
        return self.receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


@dataclass
class Load:
    """What a closed loop measured."""

    seconds: float
    requests: int
    latencies_s: list[float] = field(repr=False)


@dataclass
class _Client:
    socket: socket.socket
    request: bytes
    sent_s: deque[float] = field(default_factory=deque)
    unread: FrameBuffer = field(default_factory=lambda: FrameBuffer(_MAX_RESPONSE_BYTES))


def closed_loop(
    bootstrap: str,
    requests: Sequence[bytes],
    in_flight: int,
    seconds: float,
    check: Callable[[bytes], None] = check_produced,
    hello: bytes = b"",
) -> Load:
    """Send each request over and over on a connection of its own, ``in_flight`` unanswered ones at a time.

    ``check`` looks into some of the responses and raises for a bad one. ``hello`` is sent first, and its answer read.
    """
    selector = selectors.DefaultSelector()
    host, _, port = bootstrap.rpartition(":")
    latencies: list[float] = []
    answered = open_requests = 0
    for request in requests:
        connected = socket.create_connection((host, int(port)), 60)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hello:
            connected.sendall(hello)
            (size_bytes,) = LENGTH.unpack(connected.recv(4, socket.MSG_WAITALL))
            connected.recv(size_bytes, socket.MSG_WAITALL)
        selector.register(connected, selectors.EVENT_READ, _Client(connected, request))
    now = time.perf_counter
    began_s = now()
    until_s = began_s + seconds
    for key in selector.get_map().values():
        client: _Client = key.data
        for _ in range(in_flight):
            client.sent_s.append(now())
            client.socket.sendall(client.request)
            open_requests += 1
    ended_s = began_s
    while open_requests:
        for key, _ in selector.select(60):
            client = key.data
            data = client.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("closed by the broker")
            client.unread.feed(data)
            again = 0
            while (frame := client.unread.next_frame()) is not None:
                ended_s = now()
                latencies.append(ended_s - client.sent_s.popleft())
                if answered % _LOOK_EVERY == 0:
                    check(frame)
                answered += 1
                again += 1
            open_requests -= again
            if again and ended_s < until_s:
                for _ in range(again):
                    client.sent_s.append(now())
                client.socket.sendall(client.request * again)
                open_requests += again
    for key in list(selector.get_map().values()):
        key.data.socket.close()
    selector.close()
    return Load(ended_s - began_s, answered, latencies)


def paced(bootstrap: str, request: bytes, seconds: float, pause_s: float) -> list[float]:
    """Send a produce again and again, each ``pause_s`` after the last answer; return how long the answers took, in
    seconds."""
    took_s = []
    with Link(bootstrap) as link:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            began_s = time.perf_counter()
            answer = link.call(request)
            took_s.append(time.perf_counter() - began_s)
            check_produced(answer)
            time.sleep(pause_s)
    return took_s


def request_cpu_us(pid: int, bootstrap: str, request: bytes, in_flight: int, seconds: float) -> float:
    """Return the CPU time of a broker for one such request, with ``in_flight`` unanswered ones at a time."""
    before_s = thread_seconds(pid)
    load = closed_loop(bootstrap, [request], in_flight, seconds, lambda _: None)
    return (thread_seconds(pid) - before_s) * 1e6 / load.requests


def fill(bootstrap: str, topic: str, batch: bytes, count: int, *, partition: int = 0, in_flight: int = 16) -> None:
    """Append a batch ``count`` times."""
    request = produce_request(topic, [partition], batch, acks=1)
    with Link(bootstrap) as link:
        for number in range(count):
            link.send(request)
            if number >= in_flight:
                check_produced(link.receive())
        for _ in range(min(count, in_flight)):
            check_produced(link.receive())

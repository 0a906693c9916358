"""Peers that are slow, silent, greedy or hostile: each costs itself its connection and nobody else anything."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.testing.batches import make_batch
from spark_kafkalite.testing.cluster import BrokerProcess
from spark_kafkalite.wire.messages.api_versions import ApiVersionsRequest
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests import processor
from tests.interop.support.raw_client import RawClient

pytestmark = pytest.mark.timeout(60)

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    overrides = {
        "socket.request.max.bytes": 8_000_000,
        "queued.max.request.bytes": 16_000_000,
        "request.read.timeout.ms": 500,
        "connections.max.idle.ms": 1500,
        "max.connections.per.ip": 300,
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", overrides=overrides) as running:
        yield running


@pytest.fixture(autouse=True)
def broker_lives(broker: BrokerProcess) -> Iterator[None]:
    yield
    with RawClient(broker.bootstrap) as client:
        assert client.call(ApiVersionsRequest(), 2).error_code == 0


def create(client: RawClient, name: str) -> None:
    client.call(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 1)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 8_000_001),
        struct.pack(">i", 4) + b"\x00\x03\x00\x01",
        struct.pack(">ihhih", 14, 3, 1, 1, -1) + struct.pack(">i", 2**31 - 1),
        struct.pack(">ihhih", 15, 3, 9, 1, -1) + b"\x00\xff\xff\xff\xff\x0f"[:5],
        struct.pack(">ihhih", 10, 0, 9, 1, 300),
    ],
    ids=["http", "tls", "negative", "empty", "too large", "short header", "array", "compact array", "cut client id"],
)
def test_garbage_closes_the_connection(broker: BrokerProcess, garbage: bytes) -> None:
    with RawClient(broker.bootstrap) as client:
        client.socket.sendall(garbage)
        assert client.is_closed()


def test_a_slow_request_is_given_up(broker: BrokerProcess) -> None:
    with RawClient(broker.bootstrap) as client:
        client.socket.sendall(struct.pack(">i", 1000) + b"x")
        began = time.monotonic()
        assert client.is_closed()
        assert 0.4 < time.monotonic() - began < 5


def test_an_idle_connection_is_closed_and_a_waiting_one_is_not(broker: BrokerProcess) -> None:
    with RawClient(broker.bootstrap) as idle, RawClient(broker.bootstrap) as waiting:
        create(waiting, "quiet")
        waiting.send_fetch("quiet", 0, max_wait_ms=3500)
        assert idle.is_closed()
        assert waiting.receive_fetch().topics[0][1][0].error_code == 0


def test_announced_requests_take_no_memory_until_they_arrive(broker: BrokerProcess) -> None:
    before = broker.resident_bytes()
    clients = [RawClient(broker.bootstrap) for _ in range(100)]
    for client in clients:
        client.socket.sendall(struct.pack(">i", 7_900_000) + b"x" * 100)
    time.sleep(0.2)
    assert broker.resident_bytes() - before < 20 * MEGABYTE
    for client in clients:
        client.close()


def test_many_large_requests_at_once_stay_within_the_limit_and_all_arrive(broker: BrokerProcess) -> None:
    """Twelve requests of 5 MB, all half-sent: more than may be in memory together, so they must take turns."""
    with RawClient(broker.bootstrap) as client:
        create(client, "large")
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    before = broker.resident_bytes()
    frame = struct.pack(">hhih", 0, 3, 7, -1) + struct.pack(">hhii", -1, -1, 1000, 0)
    clients = [RawClient(broker.bootstrap) for _ in range(12)]
    # A produce request without topics, padded: trailing bytes are the sender's business.
    payload = frame + bytes(5_000_000 - len(frame))
    for client in clients:
        client.socket.setblocking(False)
    left = {client: memoryview(struct.pack(">i", len(payload)) + payload) for client in clients}
    largest = 0
    until = time.monotonic() + 30
    while any(left.values()) and time.monotonic() < until:
        for client, rest in left.items():
            if rest:
                try:
                    left[client] = rest[client.socket.send(rest[:200_000]) :]
                except BlockingIOError:
                    continue
                except ConnectionError:
                    pytest.fail("the broker closed a connection that sent steadily")
        largest = max(largest, broker.resident_bytes() - before)
    assert not any(left.values())
    assert largest < 40 * MEGABYTE
    for client in clients:
        client.socket.settimeout(10)
        assert client.receive_frame()[:4] == struct.pack(">i", 7)
        client.close()
    assert request.client_software_name == "x"


def test_a_peer_that_does_not_read_is_not_read(broker: BrokerProcess) -> None:
    with RawClient(broker.bootstrap) as client:
        create(client, "unread")
        client.produce("unread", make_batch([bytes(900_000)], timestamp_ms=time.time_ns() // 1_000_000))
    before = broker.resident_bytes()
    greedy = socket.create_connection(("127.0.0.1", broker.port))
    greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    greedy.setblocking(False)
    ask = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", -1)
    data = (struct.pack(">i", len(ask)) + ask) * 10_000
    sent = 0
    until = time.monotonic() + 2
    while time.monotonic() < until:
        try:
            sent += greedy.send(data)
        except BlockingIOError:
            time.sleep(0.01)
        except ConnectionError:
            break
    assert broker.resident_bytes() - before < 30 * MEGABYTE
    greedy.close()
    assert sent > 0


def test_connections_per_address_are_limited(broker: BrokerProcess) -> None:
    opened = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(320)]
    try:
        opened[-1].settimeout(5)
        assert opened[-1].recv(1) == b""
    finally:
        for one in opened:
            one.close()
    time.sleep(0.1)


def test_running_out_of_descriptors_does_not_spin(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", command_prefix=("prlimit", "--nofile=60")) as broker:
        opened = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(100)]
        time.sleep(0.3)
        used = processor.used_s(broker.pid)
        time.sleep(1.0)
        assert processor.used_s(broker.pid) - used < 0.3
        for one in opened:
            one.close()
        time.sleep(0.3)
        with RawClient(broker.bootstrap) as client:
            assert client.call(ApiVersionsRequest(), 2).error_code == 0

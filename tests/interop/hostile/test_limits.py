"""Peers that are slow, silent, greedy or hostile: each costs itself its connection and no other peer anything."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages import alter_client_quotas as quotas
from spark_kafkalite.wire.messages.api_versions import ApiVersionsRequest
from spark_kafkalite.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.interop.security.asked_rights import login
from tests.interop.security.test_authorization import SECURED
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch
from tests.patience import PATIENCE_S, wait_until

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    overrides = {
        "socket.request.max.bytes": 8_000_000,
        "queued.max.request.bytes": 16_000_000,
        "max.connections.per.ip": 300,
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", overrides=overrides) as running:
        yield running


@pytest.fixture(scope="module")
def hasty_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Closes slow and idle connections soon; so it does with those of a test that stands still."""
    overrides = {"request.read.timeout.ms": 500, "connections.max.idle.ms": 3000}
    with BrokerProcess(tmp_path_factory.mktemp("hasty") / "data", overrides=overrides) as running:
        yield running


@pytest.fixture(autouse=True)
def broker_lives(broker: BrokerProcess) -> Iterator[None]:
    yield
    wait_until(lambda: is_served(broker), "the broker serves")


def is_served(broker: BrokerProcess) -> bool:
    """Whether a new connection is served, and not turned away."""
    try:
        with RawClient(broker.bootstrap, PATIENCE_S) as client:
            return bool(client.call(ApiVersionsRequest(), 2).error_code == 0)
    except ConnectionError:
        return False


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
    with RawClient(broker.bootstrap, PATIENCE_S) as client:
        client.socket.sendall(garbage)
        assert client.is_closed()


def test_a_slow_request_is_given_up(hasty_broker: BrokerProcess) -> None:
    with RawClient(hasty_broker.bootstrap, PATIENCE_S) as client:
        began_s = time.monotonic()
        client.socket.sendall(struct.pack(">i", 1000) + b"x")
        assert client.is_closed()
        assert time.monotonic() - began_s > 0.4


def test_an_idle_connection_is_closed_and_a_waiting_one_is_not(hasty_broker: BrokerProcess) -> None:
    with (
        RawClient(hasty_broker.bootstrap, PATIENCE_S) as idle,
        RawClient(hasty_broker.bootstrap, PATIENCE_S) as waiting,
    ):
        create(waiting, "quiet")
        waiting.send_fetch("quiet", 0, max_wait_ms=6000)
        assert idle.is_closed()
        assert waiting.receive_fetch().topics[0][1][0].error_code == 0


def test_announced_requests_take_no_memory_until_they_arrive(broker: BrokerProcess) -> None:
    before = broker.resident_bytes()
    clients = [RawClient(broker.bootstrap, PATIENCE_S) for _ in range(100)]
    for client in clients:
        client.socket.sendall(struct.pack(">i", 7_900_000) + b"x" * 100)
    # What has arrived before a request is read before the request is.
    for _ in range(5):
        assert is_served(broker)
    assert broker.resident_bytes() - before < 20 * MEGABYTE
    for client in clients:
        client.close()


def test_many_large_requests_at_once_stay_within_the_limit_and_all_arrive(broker: BrokerProcess) -> None:
    """Twelve requests of 5 MB, all half-sent: more than may be in memory together, so they must take turns."""
    with RawClient(broker.bootstrap, PATIENCE_S) as client:
        create(client, "large")
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    before = broker.resident_bytes()
    frame = struct.pack(">hhih", 0, 3, 7, -1) + struct.pack(">hhii", -1, -1, 1000, 0)
    clients = [RawClient(broker.bootstrap, PATIENCE_S) for _ in range(12)]
    # A produce request without topics, padded: trailing bytes are the sender's business.
    payload = frame + bytes(5_000_000 - len(frame))
    for client in clients:
        client.socket.setblocking(False)
    left = {client: memoryview(struct.pack(">i", len(payload)) + payload) for client in clients}
    largest = 0

    def all_sent() -> bool:
        nonlocal largest
        for client, rest in left.items():
            if rest:
                try:
                    left[client] = rest[client.socket.send(rest[:200_000]) :]
                except BlockingIOError:
                    continue
        largest = max(largest, broker.resident_bytes() - before)
        return not any(left.values())

    # A ConnectionError ends the test: the broker must not close a connection that sends steadily.
    wait_until(all_sent, lambda: f"all sent, {sum(map(len, left.values()))} bytes are left", poll_s=0)
    assert largest < 40 * MEGABYTE
    for client in clients:
        client.socket.settimeout(PATIENCE_S)
        assert client.receive_frame()[:4] == struct.pack(">i", 7)
        client.close()
    assert request.client_software_name == "x"


def test_a_peer_that_does_not_read_is_not_read(broker: BrokerProcess) -> None:
    with RawClient(broker.bootstrap, PATIENCE_S) as client:
        create(client, "unread")
        client.produce("unread", make_batch([bytes(900_000)], timestamp_ms=time.time_ns() // 1_000_000))
    before = broker.resident_bytes()
    greedy = socket.create_connection(("127.0.0.1", broker.port))
    greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    greedy.setblocking(False)
    ask = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", -1)
    data = (struct.pack(">i", len(ask)) + ask) * 10_000

    def takes_more() -> bool:
        """Send as much as the socket takes; return whether the broker has read any of it while it served others."""
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += greedy.send(data)
        for _ in range(20):
            assert is_served(broker)
        return sent > 0

    assert takes_more()
    wait_until(lambda: not takes_more(), "the broker stops reading")
    assert broker.resident_bytes() - before < 30 * MEGABYTE
    greedy.close()


def test_connections_per_address_are_limited(broker: BrokerProcess) -> None:
    opened = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(320)]
    try:
        opened[-1].settimeout(PATIENCE_S)
        assert opened[-1].recv(1) == b""
    finally:
        for one in opened:
            one.close()


# What is less than a client over its quota is kept waiting, and than a request may take to arrive.
SOON_S = 12.0
LITTLE_MEMORY = {"queued.max.request.bytes": str(4 * 1024 * 1024), "connections.max.idle.ms": "-1"}


def answered_s(client: RawClient) -> float:
    """Return how long a small Produce takes."""
    began_s = time.monotonic()
    client.send_produce([("t", [(0, make_batch([b"v"]))])], acks=1)
    client.receive_produce()
    return time.monotonic() - began_s


def test_clients_over_their_quota_leave_the_others_memory(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", overrides=LITTLE_MEMORY) as broker,
        contextlib.ExitStack() as stack,
    ):
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("t", 1, 1)
        good = stack.enter_context(RawClient(broker.bootstrap))
        quota = quotas.EntryDataRequest(
            entity=[quotas.EntityDataRequest(entity_type="client-id", entity_name="greedy")],
            ops=[quotas.OpData(key="producer_byte_rate", value=1000.0, remove=False)],
        )
        altered = good.call(quotas.AlterClientQuotasRequest(entries=[quota]), 1)
        assert [each.error_code for each in altered.entries] == [0]
        batch = make_batch([bytes(1000)] * 200)

        def flood(client: RawClient) -> None:
            with contextlib.suppress(OSError):
                for _ in range(5):
                    client.send_produce([("t", [(0, batch)])], acks=1)

        greedy = [stack.enter_context(RawClient(broker.bootstrap, client_id="greedy")) for _ in range(100)]
        floods = [threading.Thread(target=flood, args=(client,)) for client in greedy]
        for each in floods:
            each.start()
        longest_s = max(answered_s(good) for _ in range(200))
        # They wait for each other's turn, and not until those that are muted are read again.
        assert longest_s < SOON_S
        for client in greedy:
            client.socket.shutdown(socket.SHUT_RDWR)
        for each in floods:
            each.join(PATIENCE_S)


def test_requests_that_stop_arriving_hinder_the_others_for_seconds_only(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", overrides=LITTLE_MEMORY) as broker,
        contextlib.ExitStack() as stack,
    ):
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("t", 1, 1)
        good = stack.enter_context(RawClient(broker.bootstrap))
        answered_s(good)
        for sent_bytes in (5_000_000, 600_000):
            slow = stack.enter_context(RawClient(broker.bootstrap))
            slow.socket.sendall(struct.pack(">i", 8_000_000) + bytes(sent_bytes))
        assert max(answered_s(good) for _ in range(200)) < SOON_S


@pytest.mark.parametrize("by", ["address", "user"])
def test_a_client_with_many_connections_leaves_the_others_memory(tmp_path: Path, by: str) -> None:
    """A hundred requests that stop half-way: of another address, or of another user at the same one."""
    overrides = {**SECURED, **LITTLE_MEMORY} if by == "user" else LITTLE_MEMORY
    with BrokerProcess(tmp_path / "data", overrides=overrides) as broker, contextlib.ExitStack() as stack:

        def connected(name: str, address: str) -> RawClient:
            if by == "user":
                return stack.enter_context(login(broker.bootstrap, name))
            target, source = ("127.0.0.1", broker.port), (address, 0)
            return stack.enter_context(RawClient.over(socket.create_connection(target, PATIENCE_S, source)))

        good = connected("admin", "127.0.0.1")
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        good.call(CreateTopicsRequest(topics=[topic], timeout_ms=20_000), 7)
        answered_s(good)
        greedy = [connected("alice", "127.0.0.2").socket for _ in range(100)]
        for each in greedy:
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                each.send(struct.pack(">i", 8_000_000) + bytes(400_000))
        for _ in range(100):
            answered_s(good)
        # The broker closes one of them after the other, each after seconds. It has not waited for that.
        assert sum(map(is_closed, greedy)) < 20


def is_closed(peer: socket.socket) -> bool:
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True

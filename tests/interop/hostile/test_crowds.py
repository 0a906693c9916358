"""Crowds of bad peers next to a well-behaved client: idle, slow, greedy, many at once, and large compressed batches.

test_limits.py shows what a single bad peer gets. Here the well-behaved client goes on, and the broker keeps its memory
and does not spin: while it answers requests, its loop has nothing else to do. ``bench/latency.py`` measures how long
the client's turns take next to a crowd.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.api_versions import ApiVersionsRequest
from tests.interop.support.good_client import GoodClient, forget_peak, peak_bytes
from tests.interop.support.metered_broker import MeteredBroker
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch
from tests.patience import PATIENCE_S, wait_until

MEGABYTE = 1_000_000
MEBIBYTE = 1024 * 1024
IDLE_CONNECTIONS = 2_000
INVALID_RECORD = 87
THREADS = "num.io.threads"
# What many small objects of requests, sockets and threads add.
SMALL_OBJECTS = 16 * MEBIBYTE
# Two arenas of freed memory add their ends, of at most twice the largest block below 4 MiB.
FREED = 25 * MEGABYTE


def started(broker: BrokerProcess) -> BrokerProcess:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic("good", 1, 1)
    return broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MeteredBroker]:
    with MeteredBroker(tmp_path / "data") as running:
        started(running)
        yield running


def connected(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), PATIENCE_S)


def open_files(broker: BrokerProcess) -> int:
    return len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))


@contextlib.contextmanager
def many_descriptors(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"this process may open {hard} files, {count} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def wait_for_files(broker: BrokerProcess, most: int) -> None:
    wait_until(lambda: open_files(broker) <= most, lambda: f"at most {most} files open, of {open_files(broker)}")


def test_two_thousand_idle_connections(broker: MeteredBroker) -> None:
    with many_descriptors(IDLE_CONNECTIONS + 500):
        with GoodClient(broker) as good:
            resident, files = broker.resident_bytes(), open_files(broker)
            idle = [connected(broker) for _ in range(IDLE_CONNECTIONS)]
            # Some have said something before, and half a size: they must not keep a buffer either.
            for number, one in enumerate(idle[:1000]):
                one.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1) + (b"\0\0" if number % 2 else b""))
            wait_until(lambda: open_files(broker) >= files + IDLE_CONNECTIONS, "all connections accepted")
            good.goes_on()
            per_connection = (broker.resident_bytes() - resident) / IDLE_CONNECTIONS
            print(f"{per_connection:.0f} bytes of resident memory for each idle connection")
            assert per_connection < 10_000
        broker.wait_for_rest()
        for one in idle:
            one.close()
        wait_for_files(broker, files + 5)


def test_a_flood_of_connections(broker: MeteredBroker) -> None:
    with GoodClient(broker) as good:
        files, resident = open_files(broker), broker.resident_bytes()
        for number in range(5_000):
            try:
                one = connected(broker)
            except OSError:
                continue
            if number % 3 == 0:
                one.sendall(b"\x00\x00\x00\x50half a request")
            if number % 3 == 1:  # a reset instead of an orderly end
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
            if number == 2_500:
                good.goes_on()
        wait_for_files(broker, files + 5)
        assert broker.resident_bytes() - resident < 10 * MEGABYTE


def test_a_crowd_that_sends_a_byte_at_a_time(tmp_path: Path) -> None:
    """They announce a mebibyte each and never get there; each is given up after request.read.timeout.ms."""
    overrides = {"request.read.timeout.ms": 700}
    with BrokerProcess(tmp_path / "data", overrides=overrides) as broker, GoodClient(started(broker)) as good:
        files, resident = open_files(broker), broker.resident_bytes()
        left = [connected(broker) for _ in range(300)]
        for one in left:
            one.sendall(struct.pack(">i", MEBIBYTE) + b"\x00\x00\x00\x09")

        def all_closed() -> bool:
            for one in list(left):
                try:
                    one.send(b"x")
                except ConnectionError:
                    one.close()
                    left.remove(one)
            return not left

        wait_until(all_closed, lambda: f"all connections closed, {len(left)} are open", poll_s=0.1)
        good.goes_on()
        wait_for_files(broker, files + 5)
        assert broker.resident_bytes() - resident < 15 * MEGABYTE


def test_consumers_that_do_not_read_what_they_ask_for(broker: MeteredBroker) -> None:
    with RawClient(broker.bootstrap, PATIENCE_S) as client:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("large", 1, 1)
        for _ in range(10):
            batch = make_batch([bytes(900_000)], timestamp_ms=time.time_ns() // 1_000_000)
            assert client.produce("large", batch).error_code == 0
    resident = broker.resident_bytes()
    greedy = []
    with GoodClient(broker) as good:
        for _ in range(40):
            one = RawClient(broker.bootstrap)
            one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                for number in range(200):
                    one.send_fetch("large", number % 10, partition_max_bytes=5_000_000)
            greedy.append(one)
        good.goes_on()
    # It does not spin on peers that do not read, once it has sent what their sockets take.
    broker.wait_for_rest()
    grown = broker.resident_bytes() - resident
    print(f"{grown / MEGABYTE:.1f} MB for 40 consumers that do not read")
    assert grown < SMALL_OBJECTS
    for one in greedy:
        one.close()


def test_a_good_client_goes_on_when_no_descriptor_is_left(tmp_path: Path) -> None:
    crowd_size, requests = 200, 2_000
    with MeteredBroker(tmp_path / "data", command_prefix=("prlimit", "--nofile=64")) as broker:
        files = open_files(broker)
        with RawClient(started(broker).bootstrap, PATIENCE_S) as asking:
            with GoodClient(broker) as good:
                crowd = [connected(broker) for _ in range(crowd_size)]
                wait_until(lambda: open_files(broker) > files + 10, "some of the connections accepted")
                good.goes_on()
                for one in crowd:
                    one.close()
            # A broker without descriptors cannot write its readings, so the whole crowd's events count.
            wait_for_files(broker, files + 10)
            broker.read()
            crowd = [connected(broker) for _ in range(crowd_size)]
            for _ in range(requests):
                assert asking.call(ApiVersionsRequest(), 2).error_code == 0
            for one in crowd:
                one.close()
            wait_for_files(broker, files + 10)
            events = broker.read().events
            print(f"{events} events for {requests} requests and a crowd of {crowd_size}")
            # A loop that spins on what it cannot accept has twice as many as requests.
            assert events < requests + 5 * crowd_size
        with connected_again(broker) as again:
            assert again.produce("good", make_batch([b"x"], timestamp_ms=time.time_ns() // 1_000_000)).error_code == 0


@contextlib.contextmanager
def connected_again(broker: BrokerProcess) -> Iterator[RawClient]:
    """Connect once there is room again; a connection that is turned away meanwhile is closed at once."""
    clients: list[RawClient] = []

    def served() -> bool:
        client = RawClient(broker.bootstrap, PATIENCE_S)
        try:
            client.call(ApiVersionsRequest(), 2)
        except ConnectionError:
            client.close()
            return False
        clients.append(client)
        return True

    wait_until(served, "a connection is served", poll_s=0.05)
    with clients[0] as client:
        yield client


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_that_unpack_to_too_much(broker: MeteredBroker, codec: str) -> None:
    """200 MiB of zeros: refused when 64 MiB are passed, with no more memory than that, and another client goes on."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic("bombed", 4, 1, {"max.message.bytes": str(32 * MEBIBYTE)})])
    bomb = make_batch([bytes(200 * MEBIBYTE)], timestamp_ms=time.time_ns() // 1_000_000, codec=codec)
    with GoodClient(broker) as good, RawClient(broker.bootstrap, PATIENCE_S) as client:
        resident = broker.resident_bytes()
        forget_peak(broker)
        for number in range(3):
            outcome = client.produce("bombed", bomb, number, timeout_ms=int(PATIENCE_S * 1000))
            assert (outcome.error_code, outcome.base_offset) == (INVALID_RECORD, -1), outcome
            assert "max.decompressed.batch.bytes" in (outcome.error_message or "")
        alone = peak_bytes(broker) - resident
        clients = [RawClient(broker.bootstrap, PATIENCE_S) for _ in range(6)]
        for number, one in enumerate(clients):
            one.send_produce([("bombed", [(number % 4, bomb)])], timeout_ms=int(PATIENCE_S * 1000))
        good.goes_on()
        for one in clients:
            assert one.receive_produce().topics[0][1][0].error_code == INVALID_RECORD
            one.close()
        together = peak_bytes(broker) - resident
        wait_until(lambda: broker.resident_bytes() - resident < FREED, "the memory of the batches released")
        kept = broker.resident_bytes() - resident
        print(
            f"{codec}: {len(bomb)} bytes; {alone / MEGABYTE:.0f} MB at most for one at a time, "
            f"{together / MEGABYTE:.0f} MB for six at once, {kept / MEGABYTE:.0f} MB afterwards"
        )
        # What came in, twice, and what it may unpack to; together, as many as there are threads for them.
        unpacked, threads = (BROKER_SETTINGS.defaults()[name] for name in ("max.decompressed.batch.bytes", THREADS))
        assert alone < 2 * len(bomb) + unpacked + FREED
        assert together < len(clients) * 2 * len(bomb) + threads * unpacked + FREED

"""Crowds of bad peers beside a well-behaved client: idle, slow, greedy, many at once, and batches that unpack to a lot.

What a single bad peer gets is test_limits.py's business; here it is what the others notice, and what the broker pays.
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
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.testing.batches import make_batch
from spark_kafkalite.testing.cluster import BrokerProcess
from tests import processor
from tests.interop.support.good_client import GoodClient, forget_peak, peak_bytes
from tests.interop.support.raw_client import RawClient

pytestmark = pytest.mark.timeout(90)

MEGABYTE = 1_000_000
MEBIBYTE = 1024 * 1024
IDLE_CONNECTIONS = 2_000
INVALID_RECORD = 87


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    overrides = {"request.read.timeout.ms": 700}
    with BrokerProcess(tmp_path / "data", overrides=overrides) as running:
        with Admin(bootstrap_servers=running.bootstrap) as admin:
            admin.create_topic("good", 1, 1)
        yield running


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


def test_two_thousand_idle_connections(tmp_path: Path) -> None:
    with many_descriptors(IDLE_CONNECTIONS + 500), BrokerProcess(tmp_path / "data") as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("good", 1, 1)
        with GoodClient(broker):
            resident, files = broker.resident_bytes(), open_files(broker)
            idle = [socket.create_connection(("127.0.0.1", broker.port), 10) for _ in range(IDLE_CONNECTIONS)]
            # Some have said something before, and half a size: they must not keep a buffer either.
            for number, one in enumerate(idle[:1000]):
                one.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1) + (b"\0\0" if number % 2 else b""))
            until = time.monotonic() + 20
            while open_files(broker) < files + IDLE_CONNECTIONS and time.monotonic() < until:
                time.sleep(0.05)
            assert open_files(broker) >= files + IDLE_CONNECTIONS
            per_connection = (broker.resident_bytes() - resident) / IDLE_CONNECTIONS
            print(f"{per_connection:.0f} bytes of resident memory for each idle connection")
            assert per_connection < 10_000
            before_s = processor.used_s(broker.pid)
            time.sleep(1)
            assert processor.used_s(broker.pid) - before_s < 0.9
            for one in idle:
                one.close()
            while open_files(broker) > files + 5 and time.monotonic() < until:
                time.sleep(0.05)
            assert open_files(broker) <= files + 5


def test_a_flood_of_connections(broker: BrokerProcess) -> None:
    with GoodClient(broker):
        files, resident = open_files(broker), broker.resident_bytes()
        for number in range(5_000):
            try:
                one = socket.create_connection(("127.0.0.1", broker.port), 10)
            except OSError:
                continue
            if number % 3 == 0:
                one.sendall(b"\x00\x00\x00\x50half a request")
            if number % 3 == 1:  # a reset instead of an orderly end
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
        until = time.monotonic() + 10
        while open_files(broker) > files + 5 and time.monotonic() < until:
            time.sleep(0.05)
        assert open_files(broker) <= files + 5
        assert broker.resident_bytes() - resident < 10 * MEGABYTE


def test_a_crowd_that_sends_a_byte_at_a_time(broker: BrokerProcess) -> None:
    """They announce a mebibyte each and never get there; each is given up after request.read.timeout.ms."""
    with GoodClient(broker):
        files, resident = open_files(broker), broker.resident_bytes()
        slow = [socket.create_connection(("127.0.0.1", broker.port), 10) for _ in range(300)]
        for one in slow:
            one.sendall(struct.pack(">i", MEBIBYTE) + b"\x00\x00\x00\x09")
        until = time.monotonic() + 15
        left = slow
        while left and time.monotonic() < until:
            still = []
            for one in left:
                try:
                    one.send(b"x")
                    still.append(one)
                except ConnectionError:
                    one.close()
            left = still
            time.sleep(0.1)
        assert left == []
        assert open_files(broker) <= files + 5
        assert broker.resident_bytes() - resident < 15 * MEGABYTE


def test_consumers_that_do_not_read_what_they_ask_for(broker: BrokerProcess) -> None:
    with RawClient(broker.bootstrap) as client:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("large", 1, 1)
        for _ in range(10):
            batch = make_batch([bytes(900_000)], timestamp_ms=time.time_ns() // 1_000_000)
            assert client.produce("large", batch).error_code == 0
    with GoodClient(broker):
        resident = broker.resident_bytes()
        greedy = []
        for _ in range(40):
            one = RawClient(broker.bootstrap)
            one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                for number in range(200):
                    one.send_fetch("large", number % 10, partition_max_bytes=5_000_000)
            greedy.append(one)
        time.sleep(1.0)
        before_s = processor.used_s(broker.pid)
        time.sleep(1.0)
        assert processor.used_s(broker.pid) - before_s < 0.9, "the broker spins on peers that do not read"
        grown = broker.resident_bytes() - resident
        print(f"{grown / MEGABYTE:.1f} MB for 40 consumers that do not read")
        assert grown < 30 * MEGABYTE
        for one in greedy:
            one.close()


def test_a_good_client_goes_on_when_no_descriptor_is_left(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", command_prefix=("prlimit", "--nofile=64")) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("good", 1, 1)
        with GoodClient(broker) as good:
            crowd = [socket.create_connection(("127.0.0.1", broker.port), 10) for _ in range(200)]
            time.sleep(0.5)
            turns, before_s = len(good.took_s), processor.used_s(broker.pid)
            time.sleep(1.0)
            assert processor.used_s(broker.pid) - before_s < 0.9
            assert len(good.took_s) > turns + 10
            for one in crowd:
                one.close()
        with connected_again(broker) as again:
            assert again.produce("good", make_batch([b"x"], timestamp_ms=time.time_ns() // 1_000_000)).error_code == 0


@contextlib.contextmanager
def connected_again(broker: BrokerProcess) -> Iterator[RawClient]:
    """Connect once there is room again; those that are turned away meanwhile are closed at once."""
    until = time.monotonic() + 10
    while True:
        client = RawClient(broker.bootstrap)
        client.socket.settimeout(0.3)
        try:
            closed = client.socket.recv(1) == b""
        except TimeoutError:
            closed = False
        except ConnectionError:
            closed = True
        if not closed or time.monotonic() > until:
            break
        client.close()
    client.socket.settimeout(10)
    with client:
        yield client


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_that_unpack_to_too_much(broker: BrokerProcess, codec: str) -> None:
    """200 MiB of zeros: refused when 64 MiB are passed, with no more memory than that, and nobody else waits."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic("bombed", 4, 1, {"max.message.bytes": str(32 * MEBIBYTE)})])
    bomb = make_batch([bytes(200 * MEBIBYTE)], timestamp_ms=time.time_ns() // 1_000_000, codec=codec)
    with GoodClient(broker), RawClient(broker.bootstrap, 60) as client:
        resident = broker.resident_bytes()
        forget_peak(broker)
        for number in range(3):
            outcome = client.produce("bombed", bomb, number, timeout_ms=30_000)
            assert (outcome.error_code, outcome.base_offset) == (INVALID_RECORD, -1), outcome
            assert "max.decompressed.batch.bytes" in (outcome.error_message or "")
        alone = peak_bytes(broker) - resident
        clients = [RawClient(broker.bootstrap, 60) for _ in range(6)]
        for number, one in enumerate(clients):
            one.send_produce([("bombed", [(number % 4, bomb)])], timeout_ms=30_000)
        for one in clients:
            assert one.receive_produce().topics[0][1][0].error_code == INVALID_RECORD
            one.close()
        together = peak_bytes(broker) - resident
        time.sleep(0.2)
        kept = broker.resident_bytes() - resident
        print(
            f"{codec}: {len(bomb)} bytes; {alone / MEGABYTE:.0f} MB at most for one at a time, "
            f"{together / MEGABYTE:.0f} MB for six at once, {kept / MEGABYTE:.0f} MB afterwards"
        )
        # What came in, twice, and what it may unpack to; together, as many as there are threads for them.
        assert alone < 2 * len(bomb) + 64 * MEBIBYTE + 40 * MEGABYTE
        assert together < 6 * 2 * len(bomb) + 4 * (64 * MEBIBYTE) + 60 * MEGABYTE
        assert kept < 40 * MEGABYTE

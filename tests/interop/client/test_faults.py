"""Our clients when connections break, brokers die, stand still or talk nonsense."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, Producer, Record
from spark_kafkalite.client.config import ClientConfig
from spark_kafkalite.client.network import cluster as cluster_module
from spark_kafkalite.client.network import connection as connection_module
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import BrokerUnreachable, ClosedError, DeliveryTimeout, KafkaliteError, NoBrokerThere
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.free_ports import free_ports
from tests.interop.support.collect import collected
from tests.patience import PATIENCE_S
from tests.seeds import SEED, SOAK

KILLS = 3 if SOAK else 1


class CuttingProxy:
    """Forwards one broker's port and cuts every connection after a random number of bytes, while ``cutting`` is set."""

    def __init__(self, port: int, seed: int) -> None:
        self._target = port
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cutting = False
        self.cuts = 0
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, broker]
                # Answers are cut too: the batch is then in the log, and its producer does not know.
                self._start(self._forward, client, broker, self._random.randrange(2_000, 60_000))
                self._start(self._forward, broker, client, self._random.randrange(100, 2_000))

    def _forward(self, source: socket.socket, target: socket.socket, budget: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4_096):
                if self.cutting:
                    budget -= len(data)
                    if budget < 0:
                        self.cuts += 1
                        break
                target.sendall(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            sock.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)


@pytest.fixture
def proxy(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[CuttingProxy]:
    """A proxy that all connections of our clients to the broker go through, whatever address is advertised."""
    port = int(bootstrap.rpartition(":")[2])
    running = CuttingProxy(port, SEED)
    connect = connection_module.connect

    def connect_through(host: str, to_port: int, config: ClientConfig, deadline: Deadline) -> socket.socket:
        return connect(host, running.port if to_port == port else to_port, config, deadline)

    monkeypatch.setattr(connection_module, "connect", connect_through)
    yield running
    running.close()


def read_values(bootstrap: str, topic: str, count: int) -> dict[int, list[int]]:
    """Return the numbers in each partition, in the order of the log: all that are there, ``count`` at least."""
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=50) as consumer:
        partitions = consumer.partitions_for(topic)
        consumer.assign(partitions)
        # What is there beyond them would be a repetition.
        there = sum(consumer.end_offsets(partitions).values())
        return by_partition(collected(lambda: consumer.poll(300, 10_000), max(there, count)))


def by_partition(records: list[Record]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(int(record.value or b""))
    return found


def assert_each_once_in_order(found: dict[int, list[int]], count: int) -> None:
    assert sorted(number for numbers in found.values() for number in numbers) == list(range(count))
    for numbers in found.values():
        assert numbers == sorted(numbers)


def test_cut_connections_neither_lose_nor_repeat_nor_reorder(bootstrap: str, topic: str, proxy: CuttingProxy) -> None:
    count = 6_000
    with Producer(
        bootstrap_servers=bootstrap, batch_size=1_500, linger_ms=1, retry_backoff_ms=5, reconnect_backoff_ms=5,
        reconnect_backoff_max_ms=50, retry_backoff_max_ms=50,
    ) as producer:  # fmt: skip
        producer.send(topic, b"0").result(PATIENCE_S)
        proxy.cutting = True
        deliveries = []
        for number in itertools.count(1):
            # How many batches there are, and so how many cuts, depends on the machine.
            if number >= count and proxy.cuts > 5:
                count = number
                break
            deliveries.append(producer.send(topic, b"%d" % number))
            if number % 100 == 0:
                time.sleep(0.005)
        producer.flush(PATIENCE_S)
        proxy.cutting = False
        offsets = [delivery.result(0) for delivery in deliveries]
    found = read_values(bootstrap, topic, count)
    assert_each_once_in_order(found, count)
    for number, metadata in enumerate(offsets, start=1):
        assert found[metadata.partition][metadata.offset] == number


def test_a_consumer_reads_on_through_cut_connections(bootstrap: str, topic: str, proxy: CuttingProxy) -> None:
    with Producer(bootstrap_servers=bootstrap, batch_size=1_000) as producer:
        for number in range(2_000):
            producer.send(topic, b"%d" % number)
    with Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=1_000,
        fetch_max_bytes=1_000, reconnect_backoff_ms=1, reconnect_backoff_max_ms=10, fetch_max_wait_ms=50,
    ) as consumer:  # fmt: skip
        consumer.assign(consumer.partitions_for(topic))
        consumer.poll(5_000, 1)
        consumer.seek_to_beginning()
        proxy.cutting = True
        records = collected(lambda: consumer.poll(200, 100), 2_000)
        proxy.cutting = False
    assert proxy.cuts > 5
    assert_each_once_in_order(by_partition(records), 2_000)


def test_a_killed_broker_costs_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        bootstrap = broker.bootstrap
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic("t", 2, 1)
        with (
            Producer(bootstrap_servers=bootstrap, batch_size=2_000, linger_ms=1) as producer,
            Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=50) as consumer,
        ):
            consumer.assign([("t", 0), ("t", 1)])
            deliveries = []
            seen: list[Record] = []
            for turn in range(KILLS):
                for number in range(turn * 2_000, (turn + 1) * 2_000):
                    deliveries.append(producer.send("t", b"%d" % number))
                    if number % 2_000 == 1_000:
                        broker.kill()
                        broker.start()
                    if number % 100 == 0:
                        time.sleep(0.002)
                seen += consumer.poll(1_000, 500)
            producer.flush(PATIENCE_S)
            offsets = [delivery.result(0) for delivery in deliveries]
            collected(lambda: consumer.poll(500, 1_000), KILLS * 2_000, seen)
        found = read_values(bootstrap, "t", KILLS * 2_000)
    assert_each_once_in_order(found, KILLS * 2_000)
    # The consumer that was there all the time saw the same.
    assert by_partition(seen) == found
    for number, metadata in enumerate(offsets):
        assert found[metadata.partition][metadata.offset] == number


def test_a_broker_that_stands_still_is_waited_for(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with Producer(
            bootstrap_servers=broker.bootstrap, linger_ms=0, request_timeout_ms=700, delivery_timeout_ms=60_000
        ) as producer:
            producer.send("t", b"0", partition=0).result(PATIENCE_S)
            broker.pause()
            deliveries = [producer.send("t", b"%d" % number, partition=0) for number in range(1, 4)]
            # Long enough for a request to time out, and to be sent again into the same standstill.
            time.sleep(1.6)
            broker.resume()
            assert [delivery.result(PATIENCE_S).offset for delivery in deliveries] == [1, 2, 3]
        assert read_values(broker.bootstrap, "t", 4) == {0: [0, 1, 2, 3]}


def test_records_that_are_never_acknowledged_expire(tmp_path: Path) -> None:
    errors: list[Exception | None] = []
    with (
        BrokerProcess(tmp_path / "data") as broker,
        Producer(
            bootstrap_servers=broker.bootstrap, linger_ms=0, request_timeout_ms=1_000, delivery_timeout_ms=8_000
        ) as producer,
    ):
        producer.send("t", b"0").result(PATIENCE_S)
        broker.pause()
        delivery = producer.send("t", b"1", on_delivery=lambda metadata, error: errors.append(error))
        with pytest.raises(TimeoutError):
            delivery.result(0.1)
        with pytest.raises(DeliveryTimeout, match=r"delivery\.timeout\.ms=8000.*may or may not be in the log"):
            delivery.result(PATIENCE_S)
        broker.resume()
        # What comes later is in order again.
        assert producer.send("t", b"2").result(PATIENCE_S).offset in (1, 2)
    assert [type(error) for error in errors] == [DeliveryTimeout]


def test_a_broker_that_goes_on_refusing_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"retry.backoff.max.ms": 100, "request.timeout.ms": 1000, "delivery.timeout.ms": 6000}
    with BrokerProcess(tmp_path / "data") as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("t")
        broker.stop()
        broker.overrides["log.dir.min.free.bytes"] = 2**60
        broker.start()
        with Producer(settings, bootstrap_servers=broker.bootstrap, linger_ms=0) as producer:
            for value in (b"0", b"1"):
                with pytest.raises(DeliveryTimeout, match=r"log\.dir\.min\.free\.bytes"):
                    producer.send("t", value).result(PATIENCE_S)
    (warning,) = [record.getMessage() for record in caplog.records if "retrying within" in record.getMessage()]
    assert warning.startswith("producer: t-0: the broker refused a batch of 1 records")
    assert "log.dir.min.free.bytes" in warning
    assert warning.endswith("(KAFKA_STORAGE_ERROR, code 56); retrying within delivery.timeout.ms=6000")


def test_full_memory_fails_after_max_block(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        # The first record's topic is made within that time, too.
        producer = Producer(
            bootstrap_servers=broker.bootstrap, buffer_memory=10_000, batch_size=1_000, max_block_ms=6_000, linger_ms=0
        )
        producer.send("t", b"0").result(PATIENCE_S)
        broker.pause()
        started = time.monotonic()
        with pytest.raises(KafkaliteError, match=r"buffer\.memory=10000 stayed full for max\.block\.ms=6000"):
            for _ in range(100):
                producer.send("t", b"x" * 900)
        assert time.monotonic() - started > 5.9
        left = producer.send_batch  # still usable afterwards
        broker.resume()
        left("t", [b"y"]).result(PATIENCE_S)
        broker.pause()
        waiting = producer.send("t", b"z")
        producer.close(0.2)
        with pytest.raises(ClosedError, match="closed before the record was acknowledged"):
            waiting.result(0)
        broker.resume()


def test_a_wrong_advertised_address_is_named(tmp_path: Path) -> None:
    port, dead_port = free_ports(2)
    address = f"127.0.0.1:{port}"
    overrides = {
        "listeners": f"PLAINTEXT://{address}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{dead_port}",
    }
    with BrokerProcess(tmp_path / "data", overrides=overrides):
        with Admin(bootstrap_servers=address, default_api_timeout_ms=6_000) as admin:
            assert [node.port for node in admin.describe_cluster().brokers] == [dead_port]
            with pytest.raises(BrokerUnreachable) as raised:
                admin.create_topic("t", 1, 1)
        with (
            Producer(
                bootstrap_servers=address, request_timeout_ms=3_000, delivery_timeout_ms=6_000, linger_ms=0
            ) as producer,
            pytest.raises(DeliveryTimeout) as expired,
        ):
            producer.send("t", b"x").result(PATIENCE_S)
    for error in (raised.value, expired.value):
        assert f"broker 1 at 127.0.0.1:{dead_port}, the address that the cluster advertises for it" in str(error)
        assert "advertised.listeners" in str(error)


@contextlib.contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve a port with something that is not a broker; yields its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(PATIENCE_S)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client, contextlib.suppress(OSError):
                    client.recv(4_096)
                    answer(client)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(PATIENCE_S)


ANSWERS: dict[str, Callable[[socket.socket], None]] = {
    "a web server": lambda client: client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "nothing": lambda client: None,
    "a negative length": lambda client: client.sendall(b"\xff\xff\xff\xff"),
    "a huge length": lambda client: client.sendall(b"\x7f\xff\xff\xff" + bytes(100)),
    "another correlation id": lambda client: client.sendall(b"\x00\x00\x00\x0c" + bytes(11) + b"\x01"),
    "a cut answer": lambda client: client.sendall(b"\x00\x00\x00\xff\x00\x00\x00\x01"),
    "an array that never ends": lambda client: client.sendall(
        b"\x00\x00\x00\x0b\x00\x00\x00\x01\x00\x00\xff\xff\xff\xff\x0f"
    ),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_what_is_not_a_broker_is_refused(what: str) -> None:
    with serving(ANSWERS[what]) as address:
        cluster = ClusterClient(ClientConfig((address,)))
        with pytest.raises((BrokerUnreachable, NoBrokerThere), match=address):
            cluster.refresh([], Deadline.after_ms(600))
        cluster.close()


def test_a_silent_server_is_left_for_the_next(our_broker: BrokerProcess) -> None:
    def keep_silent(client: socket.socket) -> None:
        client.settimeout(PATIENCE_S)
        client.recv(1)

    with serving(keep_silent) as address:
        cluster = ClusterClient(ClientConfig((address, our_broker.bootstrap)))
        assert cluster.refresh([], Deadline.after_ms(6_000)).nodes
        cluster.close()


def test_all_addresses_are_named_with_their_reasons() -> None:
    cluster = ClusterClient(ClientConfig(("127.0.0.1:1", "no-such-host.invalid:9092")))
    with pytest.raises(BrokerUnreachable) as raised:
        cluster.refresh([], Deadline.after_ms(1_500))
    assert "127.0.0.1:1: connection refused" in str(raised.value)
    assert "no-such-host.invalid:9092: the host name cannot be resolved" in str(raised.value)
    cluster.close()


@pytest.mark.parametrize("group_id", [None, "nobody-there"])
def test_a_consumer_that_no_broker_answers_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, group_id: str | None
) -> None:
    monkeypatch.setattr(cluster_module, "_SILENCE_S", 0.1)
    settings = {} if group_id is None else {"group_id": group_id}
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with Consumer(bootstrap_servers=address, **settings) as consumer:
        if group_id is None:
            consumer.assign([("t", 0)])
        else:
            consumer.subscribe(["t"])
        assert consumer.poll(1_000) == []
    texts = [each.getMessage() for each in caplog.records]
    (said,) = [text for text in texts if "no broker answers" in text and address in text]
    assert "connection refused" in said

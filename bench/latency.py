"""How long does a client wait: for a start, for a flush, and next to clients that do wrong?

Each figure has a control in the same run, on the same machine: an interpreter that only imports what a broker imports,
the same client on a broker that does nothing else, the same records without a flush. Where a maximum counts, it is the
least of three: what is too long is too long each time, and noise is not.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from bench.measurement import Row, percentile
from spark_kafkalite import Admin
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.interop.broker import held_fsync
from tests.interop.broker.held_fsync import HeldFsync
from tests.interop.hostile.mutating_peer import DAMAGED_TOPIC, RESEALED_TOPIC
from tests.interop.support.good_client import GoodClient
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch

_ROOT = Path(__file__).resolve().parent.parent
_MEBIBYTE = 1 << 20
_PATIENCE_S = 60.0
_IDLE_CONNECTIONS, _SLOW_CONNECTIONS, _GREEDY_CONSUMERS = 1_000, 300, 40
_PARTITIONS = 1_000
_IMPORTS = (
    "from spark_kafkalite.cli import main, broker; from spark_kafkalite.broker import server; "
    "from spark_kafkalite.broker.requests import handlers; handlers.load()"
)


def rows(quick: bool) -> Iterator[Row]:
    """Measure, and yield a row for each figure."""
    rounds = 3 if quick else 10
    with tempfile.TemporaryDirectory(prefix="kafkalite-bench-") as directory:
        yield from _starts(Path(directory) / "starts", rounds)
        yield from _flushes(Path(directory) / "flushes", 50 * rounds)
        yield from _crowds(Path(directory) / "crowds", 1.0 if quick else 5.0)


def _least_of_three(measure: Callable[[], float]) -> list[float]:
    return [min(measure() for _ in range(3))]


def _seconds(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


# Starts ---------------------------------------------------------------------------------------------------------------


def _starts(directory: Path, rounds: int) -> Iterator[Row]:
    started: list[float] = []
    imported: list[float] = []
    for number in range(rounds + 1):
        importing_s = _seconds(lambda: subprocess.run([sys.executable, "-c", _IMPORTS], check=True))
        with BrokerProcess(directory / str(number)) as broker:
            starting_s = broker.start_seconds
        if number:  # the first one fills the page cache
            started.append(starting_s)
            imported.append(importing_s)
    yield Row(
        "start of a broker until it serves", "s", started, imported, "an interpreter that imports the same",
        higher_is_better=False, target=2.0,
    )  # fmt: skip
    many: list[float] = []
    few: list[float] = []
    with BrokerProcess(directory / "many") as wide, BrokerProcess(directory / "few") as narrow:
        with Admin(bootstrap_servers=wide.bootstrap, request_timeout_ms=int(_PATIENCE_S * 1000)) as admin:
            admin.create_topic("t", _PARTITIONS, 1)
        for _ in range(3):
            for broker, found in ((wide, many), (narrow, few)):
                broker.restart()
                found.append(broker.start_seconds)
    yield Row(
        f"start with {_PARTITIONS:,} partitions", "s", many, few, "the same broker without topics",
        higher_is_better=False, target=4.0,
    )  # fmt: skip


# Flushes --------------------------------------------------------------------------------------------------------------


def _flushes(directory: Path, count: int) -> Iterator[Row]:
    with BrokerProcess(directory / "data", command_prefix=held_fsync.command_prefix(directory)) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("plain", 1, 1)
            admin.create_topic("flushed", 1, 1, {"visibility.policy": "flushed", "flush.messages": "1"})
            admin.create_topic("held", 1, 1, {"flush.before.ack": "true"})
        _until_shown_ms(broker, "plain", 20)
        _until_shown_ms(broker, "flushed", 20)
        plain, flushed, synced = [], [], []
        for _ in range(5):
            plain += _until_shown_ms(broker, "plain", count // 5)
            flushed += _until_shown_ms(broker, "flushed", count // 5)
            synced += _fdatasync_ms(directory, count // 5)
        control = [statistics.median(plain) + statistics.median(synced)]
        yield Row(
            "produce to waiting consumer, shown after the flush", "ms", [statistics.median(flushed)], control,
            "without a flush, and an fdatasync", higher_is_better=False, target=2.0,
        )  # fmt: skip
        with RawClient(broker.bootstrap, _PATIENCE_S) as waiting:
            assert waiting.produce("held", _batch(b"first")).error_code == 0

            def slowest_while_held() -> float:
                with HeldFsync(directory) as held:
                    waiting.send_produce([("held", [(0, _batch(b"x"))])], timeout_ms=int(_PATIENCE_S * 1000))
                    held.wait_for_calls()
                    slowest_ms = percentile(_until_shown_ms(broker, "plain", count), 0.99)
                waiting.receive_produce()
                return slowest_ms

            held = _least_of_three(slowest_while_held)
            alone = _least_of_three(lambda: percentile(_until_shown_ms(broker, "plain", count), 0.99))
        yield Row(
            "produce to waiting consumer while another topic's flush is held up, p99", "ms", held, alone,
            "no flush is held up", higher_is_better=False, target=2.0,
        )  # fmt: skip


def _batch(value: bytes) -> bytearray:
    return make_batch([value], timestamp_ms=time.time_ns() // 1_000_000)


def _until_shown_ms(broker: BrokerProcess, topic: str, count: int) -> list[float]:
    """Produce, wait until a fetch that waits shows the record, and so on."""
    found = []
    with RawClient(broker.bootstrap, _PATIENCE_S) as producer, RawClient(broker.bootstrap, _PATIENCE_S) as consumer:
        end = producer.produce(topic, _batch(b"x")).base_offset + 1
        for offset in range(end, end + count):
            consumer.send_fetch(topic, offset, max_wait_ms=int(_PATIENCE_S * 1000))
            began_s = time.perf_counter()
            assert producer.produce(topic, _batch(b"x"), acks=1).base_offset == offset
            assert consumer.receive_fetch().topics[0][1][0].records
            found.append(1000 * (time.perf_counter() - began_s))
    return found


def _fdatasync_ms(directory: Path, count: int) -> list[float]:
    found = []
    descriptor = os.open(directory / "synced", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        for _ in range(count):
            os.write(descriptor, bytes(100))
            found.append(1000 * _seconds(lambda: os.fdatasync(descriptor)))
    finally:
        os.close(descriptor)
    return found


# Crowds ---------------------------------------------------------------------------------------------------------------


def _crowds(directory: Path, seconds: float) -> Iterator[Row]:
    settings = {
        "auto.create.topics.enable": False,
        "max.partitions.per.request": 20,
        "offsets.topic.num.partitions": 5,
    }
    with BrokerProcess(directory / "data", overrides=settings) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics([NewTopic(name, 1, 1) for name in ("large", DAMAGED_TOPIC, RESEALED_TOPIC)])
            admin.create_topics([NewTopic("bombed", 4, 1, {"max.message.bytes": str(32 * _MEBIBYTE)})])
        with RawClient(broker.bootstrap, _PATIENCE_S) as client:
            for _ in range(10):
                assert client.produce("large", make_batch([bytes(900_000)])).error_code == 0
        crowds: list[tuple[str, Callable[[BrokerProcess], AbstractContextManager[None]]]] = [
            (f"{_IDLE_CONNECTIONS:,} idle connections", _idle),
            (f"{_SLOW_CONNECTIONS} connections that send a byte at a time", _slow),
            (f"{_GREEDY_CONSUMERS} consumers that do not read", _greedy),
            ("batches of zeros that unpack to 200 MiB", _bombs),
            ("damaged requests on 8 connections", _damaged),
        ]
        turns = _Turns(broker)
        turns.of(seconds)
        for what, crowd in crowds:
            alone: list[list[float]] = []
            beside: list[list[float]] = []
            for _ in range(3):
                alone.append(turns.of(seconds))
                with crowd(broker):
                    beside.append(turns.of(seconds))
            figures: tuple[tuple[str, Callable[[list[float]], float], float | None], ...] = (
                ("p99", lambda ms: percentile(ms, 0.99), 10.0),
                ("slowest", max, None),
            )
            for name, take, target in figures:
                yield Row(
                    f"a client's produce and fetch next to {what}, {name}", "ms",
                    [min(map(take, beside))], [min(map(take, alone))], "the same client alone",
                    higher_is_better=False, target=target,
                    note="" if target is None else "the crowd's own work shares the processors",
                )  # fmt: skip


class _Turns:
    """A well-behaved client, each time with a topic of its own, and the times of its turns in ms."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._number = 0

    def of(self, seconds: float) -> list[float]:
        self._number += 1
        topic = f"good-{self._number}"
        with Admin(bootstrap_servers=self._broker.bootstrap) as admin:
            admin.create_topic(topic, 1, 1)
        with GoodClient(self._broker, topic) as good:
            time.sleep(seconds)
            good.goes_on()
        return [1000 * took_s for took_s in good.took_s]


@contextlib.contextmanager
def _connections(broker: BrokerProcess, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as opened:
        yield [
            opened.enter_context(socket.create_connection((broker.host, broker.port), _PATIENCE_S))
            for _ in range(count)
        ]


@contextlib.contextmanager
def _idle(broker: BrokerProcess) -> Iterator[None]:
    with _connections(broker, min(_IDLE_CONNECTIONS, _descriptors() - 100)):
        yield


def _descriptors() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@contextlib.contextmanager
def _in_the_background(work: Callable[[], None]) -> Iterator[None]:
    """Do it over and over until the end of the block."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def _slow(broker: BrokerProcess) -> Iterator[None]:
    with _connections(broker, _SLOW_CONNECTIONS) as connections:
        for one in connections:
            one.sendall(struct.pack(">i", _MEBIBYTE))

        def send() -> None:
            for one in connections:
                one.send(b"x")
            time.sleep(0.05)

        with _in_the_background(send):
            yield


@contextlib.contextmanager
def _greedy(broker: BrokerProcess) -> Iterator[None]:
    with ExitStack() as clients:
        for _ in range(_GREEDY_CONSUMERS):
            one = clients.enter_context(RawClient(broker.bootstrap, _PATIENCE_S))
            one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                for number in range(200):
                    one.send_fetch("large", number % 10, partition_max_bytes=5_000_000)
        yield


@contextlib.contextmanager
def _bombs(broker: BrokerProcess) -> Iterator[None]:
    bombs = [bytes(make_batch([bytes(200 * _MEBIBYTE)], codec=codec)) for codec in ("gzip", "zstd")]
    with RawClient(broker.bootstrap, _PATIENCE_S) as client:

        def send() -> None:
            for bomb in bombs:
                assert client.produce("bombed", bomb, timeout_ms=int(_PATIENCE_S * 1000)).error_code

        with _in_the_background(send):
            yield


@contextlib.contextmanager
def _damaged(broker: BrokerProcess) -> Iterator[None]:
    command: Sequence[str] = (
        sys.executable, "-m", "tests.interop.hostile.mutating_peer", broker.bootstrap, "1", "1000000", "8",
    )  # fmt: skip
    peer = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.DEVNULL)
    try:
        yield
        if peer.poll() is not None:
            raise RuntimeError("the peer that sends damaged requests has ended")
    finally:
        peer.kill()
        peer.wait()

"""Do clients come to their quotas, and what does a client at its quota cost another one?

Each client produces, or fetches, as fast as it can for half a minute, with a quota of 1 MB/s. What counts is what is in
the log, or was read, between the first record and the end. The second table measures another client that produces one
record at a time, while a client at its quota produces at the same broker, and while none does.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import confluent_kafka

from bench.measurement import Row, percentile
from bench.raw_load import batch_of
from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.model import LATEST_TIMESTAMP, TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.java_process import java_arguments
from tests.lab import apache_kafka, jars

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # type: ignore[import-untyped]

QUOTA: Final = 1_000_000
_RECORD: Final = os.urandom(10_000)
_MOST: Final = 1.1
_STARTED_WITHIN_S: Final = 60.0
_PAIRS: Final = 10


class Stop(Protocol):
    """An event of threads, or of processes."""

    def is_set(self) -> bool: ...

    def wait(self) -> object: ...


Produce = Callable[[str, str, str, Stop], None]


def _ours(bootstrap: str, topic: str, acks: str, stop: Stop) -> None:
    settings = {"bootstrap.servers": bootstrap, "client.id": topic, "acks": acks, "buffer.memory": 4_000_000}
    with Producer({**settings, "enable.idempotence": acks == "all"}) as producer:
        while not stop.is_set():
            producer.send(topic, value=_RECORD)


def _librdkafka(bootstrap: str, topic: str, acks: str, stop: Stop) -> None:
    settings = {"bootstrap.servers": bootstrap, "client.id": topic, "acks": acks}
    producer = confluent_kafka.Producer({**settings, "queue.buffering.max.kbytes": 4000})
    while not stop.is_set():
        try:
            producer.produce(topic, _RECORD)
        except BufferError:
            producer.poll(0.01)


def _kafka_python(bootstrap: str, topic: str, acks: str, stop: Stop) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        client_id=topic,
        acks=acks if acks == "all" else int(acks),
        enable_idempotence=False,
    )
    while not stop.is_set():
        # It has no bound of its own for what waits.
        for sent in [producer.send(topic, _RECORD) for _ in range(200)]:
            sent.get(60)
    producer.close(timeout=0)


def _java(bootstrap: str, topic: str, acks: str, stop: Stop) -> None:
    tool = subprocess.Popen(
        java_arguments(
            jars.class_path(jars.fetch(jars.APACHE_KAFKA)),
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", "1000000", "--record-size", str(len(_RECORD)), "--throughput", "-1"),
            *("--producer-props", f"bootstrap.servers={bootstrap}", f"client.id={topic}", f"acks={acks}"),
            *("buffer.memory=4000000", f"enable.idempotence={'true' if acks == 'all' else 'false'}"),
        ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stop.wait()
    tool.kill()
    tool.wait()


_PRODUCERS: Final[dict[str, Produce]] = {
    "kafkalite": _ours,
    "librdkafka": _librdkafka,
    "kafka-python": _kafka_python,
    "Java": _java,
}


@contextmanager
def _running(produce: Produce, bootstrap: str, topic: str, acks: str) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=produce, args=(bootstrap, topic, acks, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _end(admin: Admin, topic: str) -> int:
    partition = TopicPartition(topic, 0)
    found = admin.list_offsets({partition: LATEST_TIMESTAMP})[partition]
    return 0 if found is None else found.offset


def _produced(admin: Admin, bootstrap: str, name: str, acks: str, seconds: float) -> float:
    """Return the bytes a second that a producer has brought into the log."""
    topic = f"{name}-{acks}"
    admin.create_topic(topic, 1, 1)
    admin.alter_client_quotas({"client-id": topic}, {"producer_byte_rate": QUOTA})
    with _running(_PRODUCERS[name], bootstrap, topic, acks):
        until_s = time.monotonic() + _STARTED_WITHIN_S
        while not _end(admin, topic):
            if time.monotonic() > until_s:
                raise RuntimeError(f"{name} has produced nothing in {_STARTED_WITHIN_S:.0f} s")
            time.sleep(0.01)
        begun_s = time.monotonic()
        time.sleep(seconds)
        return _end(admin, topic) * len(_RECORD) / (time.monotonic() - begun_s)


def _readers(bootstrap: str, topic: str) -> Iterator[tuple[str, Callable[[], int], Callable[[], Any]]]:
    """Give each consumer's name, what polls it and returns how many records came, and what closes it."""
    ours = Consumer({"bootstrap.servers": bootstrap, "client.id": "kafkalite", "auto.offset.reset": "earliest"})
    ours.assign([TopicPartition(topic, 0)])
    yield "kafkalite", lambda: len(list(ours.poll(100) or ())), ours.close
    settings = {"bootstrap.servers": bootstrap, "client.id": "librdkafka", "group.id": "bench"}
    theirs = confluent_kafka.Consumer({**settings, "queued.max.messages.kbytes": 1000})
    theirs.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    yield "librdkafka", lambda: sum(each.error() is None for each in theirs.consume(100, 0.1)), theirs.close
    python = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, client_id="kafka-python", auto_offset_reset="earliest", fetch_max_bytes=1 << 20
    )
    python.assign([kafka.TopicPartition(topic, 0)])
    yield "kafka-python", lambda: sum(map(len, python.poll(100).values())), python.close


def _fetched(poll: Callable[[], int], seconds: float) -> float:
    """Return the bytes of records a second that a consumer has read."""
    until_s, count = time.monotonic() + _STARTED_WITHIN_S, 0
    while not count and time.monotonic() < until_s:
        count = poll()
    begun_s = time.monotonic()
    while time.monotonic() < begun_s + seconds:
        count += poll()
    return count * len(_RECORD) / (time.monotonic() - begun_s)


def _latency_ms(bootstrap: str, seconds: float) -> float:
    """Return the 99th percentile of the time from a produce of one record to its answer."""
    from tests.interop.support.raw_client import RawClient

    batch, took_ms = batch_of(1), []
    with RawClient(bootstrap, client_id="another") as client:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            begun_s = time.perf_counter()
            client.produce("another", batch)
            took_ms.append((time.perf_counter() - begun_s) * 1000)
            time.sleep(0.002)
    return percentile(took_ms, 0.99)


def rows(quick: bool) -> Iterator[Row]:
    """Measure all clients."""
    seconds = 10.0 if quick else 30.0
    names = [name for name in _PRODUCERS if name != "Java" or apache_kafka.available() is None]
    with (
        tempfile.TemporaryDirectory() as directory,
        BrokerProcess(Path(directory) / "data") as broker,
        Admin(bootstrap_servers=broker.bootstrap) as admin,
    ):
        for name in names:
            for acks in ("0", "1", "all"):
                yield _row(f"{name} produces, acks={acks}", _produced(admin, broker.bootstrap, name, acks, seconds))
        admin.create_topic("read", 1, 1)
        with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
            for _ in range(int(seconds * 1.5 * QUOTA) // len(_RECORD)):
                producer.send("read", value=_RECORD)
        admin.alter_client_quotas({"client-id": None}, {"consumer_byte_rate": QUOTA})
        for name, poll, close in _readers(broker.bootstrap, "read"):
            yield _row(f"{name} fetches", _fetched(poll, seconds))
            close()
        yield _beside(admin, broker.bootstrap, 2 if quick else _PAIRS)


def _beside(admin: Admin, bootstrap: str, pairs: int) -> Row:
    """Measure another client next to one at its quota, and alone, in turn."""
    admin.create_topic("another", 1, 1)
    processes = multiprocessing.get_context("spawn")
    next_to_one, alone = [], []
    for _ in range(pairs):
        # In a process of its own: the interpreter's lock is not what is measured.
        stop = processes.Event()
        limited = processes.Process(target=_ours, args=(bootstrap, "kafkalite-1", "1", stop))
        limited.start()
        time.sleep(4)
        next_to_one.append(_latency_ms(bootstrap, 3.0))
        stop.set()
        limited.join()
        time.sleep(1)
        alone.append(_latency_ms(bootstrap, 3.0))
    return Row(
        "produce of one record, 99th percentile, next to a client at its quota",
        "ms",
        next_to_one,
        alone,
        "without that client",
        higher_is_better=False,
        target=1.1,
    )


def _row(what: str, rate: float) -> Row:
    return Row(what, "of 1 MB/s", [rate / QUOTA], [], "", at_most=_MOST, higher_is_better=False)

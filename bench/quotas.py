"""Do clients come to their quotas?

Each client produces, or fetches, as fast as it can for half a minute, with a quota of 1 MB/s. What counts is what is in
the log, or was read, between the first record and the end. What a client at its quota costs another one is a part of
``security_cost``.
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
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, Protocol

import confluent_kafka

from bench.measurement import Row
from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.model import LATEST_TIMESTAMP, TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.java_process import java_arguments
from tests.lab import apache_kafka, jars

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

QUOTA: Final = 1_000_000
_RECORD: Final = os.urandom(10_000)
_MOST: Final = 1.1
_STARTED_WITHIN_S: Final = 60.0


class Stop(Protocol):
    """An event of threads, or of processes."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def wait(self) -> object: ...


Produce = Callable[[str, str, str, Stop], None]


def _ours(bootstrap: str, topic: str, acks: str, stop: Stop) -> None:
    settings = {"bootstrap.servers": bootstrap, "client.id": topic, "acks": acks, "buffer.memory": 4_000_000}
    with Producer({**settings, "enable.idempotence": acks == "all"}) as producer:
        while not stop.is_set():
            producer.send(topic, value=_RECORD)


def produce_by_librdkafka(bootstrap: str, topic: str, acks: str, stop: Stop) -> None:
    settings = {"bootstrap.servers": bootstrap, "client.id": topic, "acks": acks}
    producer = confluent_kafka.Producer({**settings, "queue.buffering.max.kbytes": 4000})
    while not stop.is_set():
        try:
            producer.produce(topic, _RECORD)
        except BufferError:
            producer.poll(0.01)
    # Else it warns of what it has not sent.
    producer.purge()
    producer.flush(10)


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
    "librdkafka": produce_by_librdkafka,
    "kafka-python": _kafka_python,
    "Java": _java,
}


@contextmanager
def _running(produce: Produce, bootstrap: str, topic: str, acks: str) -> Iterator[None]:
    stop = threading.Event()
    with _until_left(threading.Thread(target=produce, args=(bootstrap, topic, acks, stop), daemon=True), stop):
        yield


@contextmanager
def running_in_process(produce: Produce, bootstrap: str, topic: str, acks: str) -> Iterator[None]:
    """Have a client produce in a process of its own: it shares no interpreter with what is measured."""
    processes = multiprocessing.get_context("spawn")
    stop = processes.Event()
    with _until_left(processes.Process(target=produce, args=(bootstrap, topic, acks, stop), daemon=True), stop):
        yield


@contextmanager
def _until_left(worker: threading.Thread | BaseProcess, stop: Stop) -> Iterator[None]:
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()


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


def _row(what: str, rate: float) -> Row:
    return Row(what, "of 1 MB/s", [rate / QUOTA], [], "", at_most=_MOST, higher_is_better=False)

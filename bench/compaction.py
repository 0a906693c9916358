"""What does compaction cost those who produce and consume meanwhile?

Two brokers with the same steady load of keyed records on a compacted topic; one compacts it without a pause, the other
not at all. Measured on each in turn: one record at a time, produced and consumed, on a topic beside it. The "peer" is
our broker without compaction.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.measurement import Row, percentile
from spark_kafkalite import Admin, Producer
from spark_kafkalite.processes.cluster import BrokerProcess

_VALUE_BYTES = 1000
_KEYS = 60_000
# Bytes a second of the load: as much as one core's share of a small broker, and never an idle cleaner.
_LOAD_RATE = 4_000_000
_WITHOUT = "the same broker without compaction"


def rows(quick: bool) -> Iterator[Row]:
    """Measure both brokers in turn and yield a row for each figure."""
    messages, rounds, first_bytes = (500, 3, 40_000_000) if quick else (2_000, 5, 200_000_000)
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    cleanings = 0
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        brokers = {
            compacts: running.enter_context(
                BrokerProcess(
                    directory / str(compacts),
                    overrides={
                        "log.cleaner.enable": str(compacts).lower(),
                        "log.cleaner.backoff.ms": 10,
                        "log.segment.delete.delay.ms": 1000,
                        "log.cleaner.min.cleanable.ratio": 0,
                    },
                )
            )
            for compacts in (True, False)
        }
        for broker in brokers.values():
            with Admin(bootstrap_servers=broker.bootstrap) as admin:
                admin.create_topic("load", 1, 1, {"cleanup.policy": "compact", "segment.bytes": str(4_000_000)})
                admin.create_topic("probe", 1, 1)
            _produce(broker, first_bytes)
        for number in range(rounds + 1):
            for compacts, broker in brokers.items():
                with _load(broker):
                    measured = _latencies(broker.bootstrap, messages)
                # The first round is the warm-up.
                if number:
                    found[compacts].append(measured)
        cleanings = brokers[True].stderr_path.read_text(encoding="utf-8").count(": cleaned ")
    for index, what in enumerate(("end to end under load, one at a time, p50", "the same, p99")):
        yield Row(
            what,
            "ms",
            [each[index] for each in found[True]],
            [each[index] for each in found[False]],
            _WITHOUT,
            higher_is_better=False,
            target=2.0,
            note=f"{_LOAD_RATE / 1e6:.0f} MB/s of keyed records beside it, {cleanings} cleanings",
        )


def _record(chance: random.Random) -> tuple[bytes, bytes]:
    return b"key-%d" % chance.randrange(_KEYS), chance.randbytes(_VALUE_BYTES // 2).hex().encode()


def _produce(broker: BrokerProcess, size_bytes: int) -> None:
    chance = random.Random(1)
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=5) as producer:
        for _ in range(size_bytes // _VALUE_BYTES):
            key, value = _record(chance)
            producer.send("load", value, key)


@contextmanager
def _load(broker: BrokerProcess) -> Iterator[None]:
    """Produce keyed records at a steady rate meanwhile."""
    stopping = threading.Event()

    def run() -> None:
        chance = random.Random(2)
        ready = [_record(chance) for _ in range(1000)]
        with Producer(bootstrap_servers=broker.bootstrap, linger_ms=5) as producer:
            began, sent = time.monotonic(), 0
            while not stopping.wait(0.01):
                while sent < (time.monotonic() - began) * _LOAD_RATE / _VALUE_BYTES:
                    key, value = ready[sent % 1000]
                    producer.send("load", value, key)
                    sent += 1

    thread = threading.Thread(target=run, name="load")
    thread.start()
    try:
        time.sleep(0.5)
        yield
    finally:
        stopping.set()
        thread.join()


def _latencies(bootstrap: str, messages: int) -> tuple[float, float]:
    """Return p50 and p99 in milliseconds from produce to receipt, one record at a time."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
    taken: list[float] = []
    try:
        _, high = consumer.get_watermark_offsets(TopicPartition("probe", 0), timeout=10)
        consumer.assign([TopicPartition("probe", 0, high)])
        # Unmeasured ones first: connections, the consumer's first fetch.
        for number in range(messages + 100):
            began = time.perf_counter()
            producer.produce("probe", b"x" * 100)
            producer.flush(10)
            if consumer.poll(10) is None:
                raise TimeoutError(f"message {number} did not come back")
            if number >= 100:
                taken.append((time.perf_counter() - began) * 1e3)
    finally:
        consumer.close()
    return percentile(taken, 0.5), percentile(taken, 0.99)

"""The broker is killed with SIGKILL at random moments while four producers send; nothing that it acknowledged is lost.

Two idempotent producers (ours and confluent-kafka's) live through all rounds: what they sent is in the log exactly
once and in order. Two with ``acks=1`` and without idempotence may repeat records, and do not lose any that was
acknowledged either: a crash of the process leaves the page cache alone. A consumer of ours reads along, across the
kills: every offset once, none skipped, and the same that is in the log at the end.

Segments are small, so that kills also hit rolls. Each failure names its seed; ``KAFKALITE_SEED`` repeats the moments of
a run (not the kernel's scheduling). The soak kills 500 times.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.client.produce.delivery import RecordMetadata
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.patience import PATIENCE_S, wait_until
from tests.seeds import SEED, SOAK

ROUNDS = 500 if SOAK else 15
# Records a second of each producer: enough for something to be in flight at every moment.
RATE = 1500
MAX_UNACKNOWLEDGED = 4000

# One request at a time, so that a retry does not overtake: order is kept without idempotence too.
PLAIN_OURS = {"acks": "1", "enable_idempotence": False, "max_in_flight_requests_per_connection": 1}

Acknowledged = dict[int, bytes]


class Writer:
    """A producer in a thread of its own, which sends its record numbers to its topic until it is stopped."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.acknowledged: Acknowledged = {}
        self.acknowledged_count = 0
        self.sent = 0
        self.failures: list[object] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writer-{topic}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send no more, and wait until everything is acknowledged or has failed."""
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.topic}: still sending {PATIENCE_S} s after it was stopped"

    def value(self, number: int) -> bytes:
        return b"%s %08d " % (self.topic.encode(), number) + b"x" * (number % 120)

    def _run(self) -> None:
        try:
            send, poll, close = self._open()
            began = time.monotonic()
            while not self._stopping.is_set():
                due = int((time.monotonic() - began) * RATE)
                while self.sent < due and self.sent - self.acknowledged_count < MAX_UNACKNOWLEDGED:
                    send(self.value(self.sent))
                    self.sent += 1
                poll()
            close()
        except Exception as error:  # it has to fail the test, not this thread
            self.failures.append(error)

    def _open(self) -> tuple[Callable[[bytes], object], Callable[[], object], Callable[[], object]]:
        raise NotImplementedError


class OurWriter(Writer):
    def __init__(self, bootstrap: str, topic: str, **settings: object) -> None:
        super().__init__(topic)
        self._producer = Producer(
            bootstrap_servers=bootstrap, linger_ms=1, batch_size=4000, delivery_timeout_ms=110_000, **settings
        )

    def _open(self) -> tuple[Callable[[bytes], object], Callable[[], object], Callable[[], object]]:
        producer = self._producer

        def send(value: bytes) -> None:
            def delivered(metadata: RecordMetadata | None, error: Exception | None) -> None:
                self.acknowledged_count += 1
                if metadata is None:
                    self.failures.append(error)
                elif metadata.offset >= 0:  # a late duplicate: acknowledged, and the broker does not say where it is
                    self.acknowledged[metadata.offset] = value

            producer.send(self.topic, value, partition=0, on_delivery=delivered)

        return send, lambda: time.sleep(0.002), producer.close


class ConfluentWriter(Writer):
    def __init__(self, bootstrap: str, topic: str, **settings: object) -> None:
        super().__init__(topic)
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 1,
                "batch.num.messages": 40,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
                "retry.backoff.max.ms": 50,
                "log_level": 0,
                **settings,
            }
        )

    def _open(self) -> tuple[Callable[[bytes], object], Callable[[], object], Callable[[], object]]:
        producer = self._producer

        def delivered(error: object, message: confluent_kafka.Message) -> None:
            self.acknowledged_count += 1
            if error is not None:
                self.failures.append(error)
            elif message.offset() >= 0:
                self.acknowledged[message.offset()] = message.value()

        def close() -> None:
            assert producer.flush(PATIENCE_S) == 0, f"{self.topic}: not everything was acknowledged"

        return (
            lambda value: producer.produce(self.topic, value, partition=0, on_delivery=delivered),
            lambda: producer.poll(0.002),
            close,
        )


class Reader:
    """Our consumer, reading all topics along in a thread."""

    def __init__(self, bootstrap: str, topics: list[str]) -> None:
        self.found: dict[str, list[tuple[int, bytes | None]]] = {topic: [] for topic in topics}
        self.failures: list[object] = []
        self._bootstrap = bootstrap
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with Consumer(bootstrap_servers=self._bootstrap, auto_offset_reset="none") as consumer:
                consumer.assign([(topic, 0) for topic in self.found])
                for topic in self.found:
                    consumer.seek((topic, 0), 0)
                while not self._stopping.is_set():
                    for record in consumer.poll(50, 5000):
                        self.found[record.topic].append((record.offset, record.value))
        except Exception as error:  # it has to fail the test, not this thread
            self.failures.append(error)

    def read_until(self, counts: dict[str, int]) -> None:
        """Stop when every topic has been read to this many records."""
        wait_until(
            lambda: self.failures or all(len(self.found[topic]) >= count for topic, count in counts.items()),
            lambda: f"the reader to find {counts}; the last are {[found[-1:] for found in self.found.values()]}",
        )
        self._stopping.set()
        self._thread.join(PATIENCE_S)


def read_log(bootstrap: str, topic: str) -> list[bytes | None]:
    """Return every record of partition 0; its offsets must be 0, 1, 2, ..."""
    values: list[bytes | None] = []
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        end = next(iter(consumer.end_offsets([(topic, 0)]).values()))
        while len(values) < end:
            records = consumer.poll(int(PATIENCE_S * 1000), 50_000)
            assert records, f"{topic}: only {len(values)} of {end} records"
            for record in records:
                assert record.offset == len(values), f"{topic}: offset {record.offset} after {len(values)} records"
                values.append(record.value)
        assert len(values) == end
    return values


def ahead(writers: dict[str, Writer], before: dict[str, int]) -> list[str]:
    """Return the writers that have had acknowledgements since ``before``."""
    return [name for name, writer in writers.items() if writer.acknowledged_count > before[name]]


def wait_for_all(writers: dict[str, Writer], before: dict[str, int]) -> None:
    """Wait until every writer has had an acknowledgement since ``before``."""

    def missing() -> str:
        failed = {name: writer.failures[:1] for name, writer in writers.items() if writer.failures}
        return f"acknowledgements to {set(writers) - set(ahead(writers, before))}; failures {failed}, seed {SEED}"

    wait_until(lambda: len(ahead(writers, before)) == len(writers), missing, poll_s=0.005)


@pytest.mark.timeout(3000 if SOAK else 600)
def test_kill_9_during_produce_loses_nothing_acknowledged_and_repeats_nothing(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    overrides = {"log.segment.bytes": 300_000, "log.flush.interval.messages": 700}
    topics = ["ours", "confluent", "ours-acks-1", "confluent-acks-1"]
    with BrokerProcess(tmp_path / "data", overrides=overrides) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics([NewTopic(name, 1, 1) for name in topics])
        writers: dict[str, Writer] = {
            "ours": OurWriter(broker.bootstrap, "ours"),
            "confluent": ConfluentWriter(broker.bootstrap, "confluent", **{"enable.idempotence": True}),
            "ours-acks-1": OurWriter(broker.bootstrap, "ours-acks-1", **PLAIN_OURS),
            "confluent-acks-1": ConfluentWriter(broker.bootstrap, "confluent-acks-1", acks=1, **{"max.in.flight": 1}),
        }
        reader = Reader(broker.bootstrap, topics)
        for writer in writers.values():
            writer.start()
        for number in range(ROUNDS):
            before = {name: writer.acknowledged_count for name, writer in writers.items()}
            # Every other time in the middle of all streams, else at any moment while the producers are coming back.
            if number % 2 == 0:
                wait_for_all(writers, before)
                time.sleep(rng.uniform(0.0, 0.15))
            else:
                time.sleep(rng.choice((0.0, rng.uniform(0.0, 0.1), rng.uniform(0.1, 0.6))))
            broker.kill()
            broker.start()
        for writer in writers.values():
            writer.stop()
        assert {name: writer.failures for name, writer in writers.items() if writer.failures} == {}, f"seed {SEED}"
        logs = {name: read_log(broker.bootstrap, name) for name in topics}
        reader.read_until({name: len(log) for name, log in logs.items()})
        sizes = {name: (writer.sent, len(logs[name])) for name, writer in writers.items()}
        print(f"{ROUNDS} kills; sent and in the log: {sizes}")
    for name, writer in writers.items():
        log = logs[name]
        lost = [offset for offset, value in writer.acknowledged.items() if offset >= len(log) or log[offset] != value]
        assert lost == [], f"seed {SEED}: {name}: acknowledged at these offsets, and not there: {lost[:10]}"
        assert len(writer.acknowledged) > 0.5 * writer.sent
        expected = [writer.value(number) for number in range(writer.sent)]
        if name in ("ours", "confluent"):
            assert log == expected, f"seed {SEED}: {name}: not every record once and in order"
        else:
            first_seen = list(dict.fromkeys(log))
            assert first_seen == expected, f"seed {SEED}: {name}: a record is missing or out of order"
    assert reader.failures == [], f"seed {SEED}"
    for name, found in reader.found.items():
        assert found == list(enumerate(logs[name])), f"seed {SEED}: {name}: the reader saw something else"

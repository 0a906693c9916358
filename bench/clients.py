"""Our clients beside confluent-kafka and kafka-python: one Python process, one broker (ours), values of 100 bytes.

Every client uses the broker in turn, on topics of its own with four partitions. Throughput of producers is records a
second until everything is acknowledged; consumers are compared by records per second of this process's CPU time, for
the broker's part of the work is the same for all. Confluent's consumer is asked for batches of 500, its fastest way.
Latencies are of single records, one at a time, with acks=all.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import confluent_kafka
import pyarrow as pa

from bench.measurement import Row, percentile, warm_page_cache
from spark_kafkalite import Admin, Consumer, Producer, TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess

with warnings.catch_warnings():
    # It reads its schemas with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

VALUE = b"x" * 100
PARTITIONS = 4

Timed = tuple[float, float]
"""Records a second of wall time, and a second of this process's CPU time."""


class Bench:
    """One broker, with topics that are made for each run and removed after it."""

    def __init__(
        self,
        bootstrap: str,
        ours: Mapping[str, object] | None = None,
        confluent: Mapping[str, object] | None = None,
        value: bytes = VALUE,
    ) -> None:
        """``ours`` and ``confluent`` are what those clients need beside the address."""
        self.bootstrap = bootstrap
        self._ours = {"bootstrap.servers": bootstrap, **(ours or {})}
        self._confluent = {"bootstrap.servers": bootstrap, **(confluent or {})}
        self._value = value
        self._admin = Admin(self._ours)
        self._topics = 0

    def new_topic(self) -> str:
        self._topics += 1
        name = f"bench-{self._topics}"
        self._admin.create_topic(name, PARTITIONS, 1, {"file.delete.delay.ms": "0"})
        return name

    def drop(self, topic: str) -> None:
        self._admin.delete_topics([topic])

    def timed(self, count: int, run: Callable[[], None]) -> Timed:
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        return count / (time.perf_counter() - wall), count / (time.process_time() - cpu)

    # Producers ------------------------------------------------------------------------------------------------------

    def produce_columns(self, count: int) -> Timed:
        rows = 65_536
        table = pa.table({"value": pa.array([self._value] * rows, pa.binary())})
        topic = self.new_topic()
        with Producer(self._ours, acks=1) as producer:
            producer.send_batch(topic, [self._value]).result(30)

            def run() -> None:
                for _ in range(count // rows):
                    producer.send_batch(topic, table)
                producer.flush(120)

            result = self.timed(count // rows * rows, run)
        self.drop(topic)
        return result

    def produce_records(self, count: int) -> Timed:
        topic = self.new_topic()
        with Producer(self._ours, acks=1) as producer:
            producer.send(topic, self._value).result(30)

            def run() -> None:
                send, value = producer.send, self._value
                for _ in range(count):
                    send(topic, value)
                producer.flush(120)

            result = self.timed(count, run)
        self.drop(topic)
        return result

    def produce_confluent(self, count: int) -> Timed:
        topic = self.new_topic()
        producer = confluent_kafka.Producer(
            {
                **self._confluent,
                "acks": 1,
                "batch.size": 1_000_000,
                "linger.ms": 10,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        producer.produce(topic, self._value)
        producer.flush(30)

        def run() -> None:
            produce, poll, value = producer.produce, producer.poll, self._value
            for number in range(count):
                try:
                    produce(topic, value)
                except BufferError:
                    while producer.poll(0.1) == 0 and len(producer) > 500_000:
                        pass
                    produce(topic, value)
                if not number & 0x3FFF:
                    poll(0)
            producer.flush(120)

        result = self.timed(count, run)
        self.drop(topic)
        return result

    def produce_kafka_python(self, count: int) -> Timed:
        topic = self.new_topic()
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap, acks=1, enable_idempotence=False, linger_ms=10, batch_size=65_536
        )
        producer.send(topic, self._value).get(30)

        def run() -> None:
            value = self._value
            for _ in range(count):
                producer.send(topic, value)
            producer.flush(120)

        result = self.timed(count, run)
        producer.close()
        self.drop(topic)
        return result

    # Consumers ------------------------------------------------------------------------------------------------------

    def fill(self, count: int) -> str:
        topic = self.new_topic()
        with Producer(self._ours, max_request_size=65_536) as producer:
            table = pa.table({"value": pa.array([self._value] * 65_536, pa.binary())})
            for _ in range(count // 65_536 + 1):
                producer.send_batch(topic, table)
        return topic

    def _consume(self, topic: str, count: int, take: Callable[[Consumer], int]) -> Timed:
        with Consumer(self._ours, auto_offset_reset="earliest") as consumer:
            consumer.assign([(topic, number) for number in range(PARTITIONS)])

            def run() -> None:
                left = count
                while left > 0:
                    left -= take(consumer)

            return self.timed(count, run)

    def consume_columns(self, topic: str, count: int) -> Timed:
        def take(consumer: Consumer) -> int:
            batch = consumer.poll_columns(1_000)
            return 0 if batch is None else int(batch.num_rows)

        return self._consume(topic, count, take)

    def consume_records(self, topic: str, count: int) -> Timed:
        def take(consumer: Consumer) -> int:
            records = consumer.poll(1_000, 500)
            for record in records:
                _ = record.value
            return len(records)

        return self._consume(topic, count, take)

    def consume_confluent(self, topic: str, count: int) -> Timed:
        consumer = self._confluent_consumer()
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])

        def run() -> None:
            left = count
            while left > 0:
                messages = consumer.consume(500, 1)
                for message in messages:
                    message.value()
                left -= len(messages)

        result = self.timed(count, run)
        consumer.close()
        return result

    def consume_kafka_python(self, topic: str, count: int) -> Timed:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
        )
        consumer.assign([kafka.TopicPartition(topic, number) for number in range(PARTITIONS)])

        def run() -> None:
            left = count
            while left > 0:
                for records in consumer.poll(1_000, 500).values():
                    for record in records:
                        _ = record.value
                    left -= len(records)

        result = self.timed(count, run)
        consumer.close()
        return result

    def _confluent_consumer(self) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            {
                **self._confluent,
                "group.id": "bench",
                "enable.auto.commit": False,
                "check.crcs": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 500,
            }
        )

    # Latency, in milliseconds -----------------------------------------------------------------------------------------

    def acknowledge(self, count: int) -> list[float]:
        """From send() to its acknowledgement, one record at a time."""
        topic = self.new_topic()
        with Producer(self._ours, linger_ms=0) as producer:
            found = _each_ms(count, lambda: producer.send(topic, VALUE, partition=0).result(30))
        self.drop(topic)
        return found

    def acknowledge_confluent(self, count: int) -> list[float]:
        topic = self.new_topic()
        producer = confluent_kafka.Producer({**self._confluent, "linger.ms": 0})

        def once() -> None:
            producer.produce(topic, VALUE, partition=0)
            producer.flush(30)

        found = _each_ms(count, once)
        self.drop(topic)
        return found

    def end_to_end(self, count: int) -> list[float]:
        """From send() to the record in the hands of a waiting consumer."""
        topic = self.new_topic()
        with (
            Producer(self._ours, linger_ms=0) as producer,
            Consumer(self._ours, auto_offset_reset="earliest") as consumer,
        ):
            consumer.assign([TopicPartition(topic, 0)])

            def once() -> None:
                producer.send(topic, VALUE, partition=0)
                while not consumer.poll(1_000):
                    pass

            found = _each_ms(count, once)
        self.drop(topic)
        return found

    def end_to_end_confluent(self, count: int) -> list[float]:
        topic = self.new_topic()
        producer = confluent_kafka.Producer({**self._confluent, "linger.ms": 0})
        consumer = self._confluent_consumer()
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])

        def once() -> None:
            producer.produce(topic, VALUE, partition=0)
            producer.poll(0)
            while not consumer.poll(1):
                pass

        found = _each_ms(count, once)
        consumer.close()
        self.drop(topic)
        return found

    def close(self) -> None:
        self._admin.close()


def _each_ms(count: int, once: Callable[[], object]) -> list[float]:
    for _ in range(50):
        once()
    found = []
    for _ in range(count):
        started = time.perf_counter()
        once()
        found.append((time.perf_counter() - started) * 1000)
    return found


def in_turn(rounds: int, *runs: Callable[[], Timed]) -> list[list[Timed]]:
    """Run each in turn, after a first round that is not counted."""
    results: list[list[Timed]] = [[] for _ in runs]
    for number in range(rounds + 1):
        for which, run in enumerate(runs):
            result = run()
            if number:
                results[which].append(result)
    return results


def _wall(results: Sequence[Timed]) -> list[float]:
    return [wall for wall, _ in results]


def _cpu(results: Sequence[Timed]) -> list[float]:
    return [cpu for _, cpu in results]


def rows(quick: bool) -> Iterator[Row]:
    """Measure and yield one row after the other."""
    count = 500_000 if quick else 3_000_000
    slow_count = 30_000 if quick else 150_000
    rounds = 2 if quick else 5
    warm_page_cache(count * 120 * 2)
    with tempfile.TemporaryDirectory() as directory, BrokerProcess(Path(directory) / "data") as broker:
        bench = Bench(broker.bootstrap)
        columns, peer = in_turn(
            rounds, lambda: bench.produce_columns(count), lambda: bench.produce_confluent(count // 2)
        )
        yield Row("produce, columns", "records/s", _wall(columns), _wall(peer), "confluent-kafka", target=5)
        yield Row(
            "produce, columns, per CPU second", "records/CPU s", _cpu(columns), _cpu(peer), "confluent-kafka",
            note="what the client itself costs; records/s above also depend on the broker's share of the two cores",
        )  # fmt: skip
        records, peer = in_turn(
            rounds, lambda: bench.produce_records(slow_count * 4), lambda: bench.produce_kafka_python(slow_count)
        )
        yield Row("produce, record by record", "records/s", _wall(records), _wall(peer), "kafka-python", target=5)

        topic = bench.fill(count)
        columns, records, peer, slow = in_turn(
            rounds,
            lambda: bench.consume_columns(topic, count),
            lambda: bench.consume_records(topic, count // 2),
            lambda: bench.consume_confluent(topic, count // 2),
            lambda: bench.consume_kafka_python(topic, slow_count),
        )
        bench.drop(topic)
        yield Row("consume, columns", "records/CPU s", _cpu(columns), _cpu(peer), "confluent-kafka", target=5)
        yield Row("consume, record objects", "records/CPU s", _cpu(records), _cpu(peer), "confluent-kafka", target=1)
        yield Row("consume, record objects, wall", "records/s", _wall(records), _wall(peer), "confluent-kafka")
        yield Row("consume, record objects ", "records/CPU s", _cpu(records), _cpu(slow), "kafka-python")

        times = 500 if quick else 3_000
        for what, ours, theirs in (
            ("produce to ack", bench.acknowledge, bench.acknowledge_confluent),
            ("end to end", bench.end_to_end, bench.end_to_end_confluent),
        ):
            our_runs, peer_runs = [], []
            for _ in range(rounds):
                our_runs.append(ours(times))
                peer_runs.append(theirs(times))
            for fraction in (0.5, 0.99):
                yield Row(
                    f"{what}, p{fraction * 100:.0f}",
                    "ms",
                    [percentile(run, fraction) for run in our_runs],
                    [percentile(run, fraction) for run in peer_runs],
                    "confluent-kafka",
                    higher_is_better=False,
                    note="of the clients, on one broker; the broker's own latency is a row of broker.py",
                )
        bench.close()

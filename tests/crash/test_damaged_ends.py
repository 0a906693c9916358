"""A real broker is stopped cleanly, somebody damages its files, and it is started again: the damage costs what it has
taken, the broker says so, and everything else is served."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kafkalite.client.admin.admin import Admin
from spark_kafkalite.client.config import ClientConfig
from spark_kafkalite.client.consume.consumer import Consumer
from spark_kafkalite.client.consume.range_fetcher import RangeFetcher, columns_from
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.produce.producer import Producer
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.interop.support.java_clients import JavaClients
from tests.patience import PATIENCE_S, wait_until

RECORDS = 30


def segments(data: Path, topic: str) -> list[Path]:
    return sorted((data / f"{topic}-0").glob("*.log"))


def remove(path: Path) -> None:
    for suffix in (".log", ".index", ".timeindex"):
        path.with_suffix(suffix).unlink()


def zero_end(path: Path) -> None:
    """Overwrite the last batch; all are of the size that the first one says."""
    with path.open("r+b") as file:
        size_bytes = int.from_bytes(file.read(12)[8:], "big") + 12
        file.seek(-size_bytes, 2)
        file.write(bytes(size_bytes))


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 50)


# Which segment is damaged, by its place, and how.
DAMAGES: dict[str, Callable[[list[Path]], None]] = {
    "end-removed": lambda found: remove(found[-1]),
    "end-cut": lambda found: cut(found[-1]),
    "end-emptied": lambda found: found[-1].write_bytes(b""),
    "end-overwritten": lambda found: zero_end(found[-1]),
    "middle-removed": lambda found: remove(found[2]),
    "middle-cut": lambda found: cut(found[2]),
    "all-removed": lambda found: [remove(path) for path in found] and None,
    "directory-removed": lambda found: shutil.rmtree(found[0].parent),
    "sound": lambda found: None,
}


def send(broker: BrokerProcess, texts: list[bytes]) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for text in texts:
            sent = [producer.send(topic, text, partition=0) for topic in DAMAGES]
            producer.flush()
            for delivery in sent:
                delivery.result(PATIENCE_S)


def read(broker: BrokerProcess, topic: str) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while not found or found[-1][1] != b"last":
            found += [(record.offset, record.value) for record in consumer.poll(5000)]
    return found


def read_to_the_end(consumer: Consumer, key: TopicPartition, poll: Callable[[int], object]) -> list[object]:
    """Return what polls return until the consumer is at the log's end."""
    found = []

    def is_at_the_end() -> bool:
        found.append(poll(200))
        return consumer.position(key) >= RECORDS

    wait_until(is_at_the_end, f"{key}: {poll} to come to the end")
    assert consumer.position(key) == RECORDS
    return found


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that has been started on damaged logs, and to which nobody has produced since."""
    with BrokerProcess(tmp_path / "data") as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            for topic in DAMAGES:
                admin.create_topic(topic, 1, configs={"segment.bytes": "1000"})
        send(broker, [b"%03d" % number + b"." * 100 for number in range(RECORDS)])
        assert broker.stop() == 0
        for topic, damage in DAMAGES.items():
            damage(segments(broker.data_dir, topic))
        broker.start()
        # Zeros in the place of a batch are found by the first reader; until then a fetch of them is refused.
        with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
            consumer.offsets_for_times({TopicPartition(topic, 0): 0 for topic in DAMAGES})
        yield broker


def test_readers_come_to_the_end_before_anybody_produces(damaged: BrokerProcess) -> None:
    for topic in DAMAGES:
        key = TopicPartition(topic, 0)
        found: list[object] = []
        with Consumer(bootstrap_servers=damaged.bootstrap, auto_offset_reset="none") as consumer:
            consumer.assign([key])
            start = consumer.beginning_offsets([key])[key]
            assert consumer.end_offsets([key]) == {key: RECORDS}, topic
            for poll in (consumer.poll, consumer.poll_columns):
                consumer.seek(key, start)
                found += read_to_the_end(consumer, key, poll)
        cluster = ClusterClient(ClientConfig((damaged.bootstrap,)))
        try:
            with RangeFetcher(cluster, key, start, RECORDS, timeout_ms=int(PATIENCE_S * 1000)) as fetcher:
                offsets = [each.offset_at(row) for each in columns_from(fetcher) for row in range(each.count)]
        finally:
            cluster.close()
        records = [each for polled in found if isinstance(polled, list) for each in polled]
        assert offsets == [record.offset for record in records], topic


@pytest.mark.kafka
def test_java_consumers_come_to_the_end_before_anybody_produces(damaged: BrokerProcess, tmp_path: Path) -> None:
    (tmp_path / "java").mkdir()
    commands = [f"drain {topic}" for topic in DAMAGES]
    outputs = JavaClients(tmp_path / "java").run(damaged.bootstrap, commands)
    assert outputs == {command: [str(RECORDS)] for command in commands}


def test_damage_during_a_stop_costs_what_it_has_taken(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            for topic in DAMAGES:
                admin.create_topic(topic, 1, configs={"segment.bytes": "1000"})
        texts = [b"%03d" % number + b"." * 100 for number in range(RECORDS)]
        send(broker, texts)
        assert broker.stop() == 0
        for topic, damage in DAMAGES.items():
            found = segments(broker.data_dir, topic)
            assert len(found) >= 4
            damage(found)
        broker.start()
        send(broker, [b"again"])
        log = broker.stderr_path.read_text()
        # Not flushed, so recovery after this has to take the holes for what they are.
        broker.kill()
        broker.start()
        send(broker, [b"last"])
        for topic in DAMAGES:
            stored = read(broker, topic)
            kept = stored[:-2]
            assert stored[-2:] == [(RECORDS, b"again"), (RECORDS + 1, b"last")], topic
            assert all(texts[offset] == value for offset, value in kept), topic
            missing = RECORDS - len(kept)
            lines = [line for line in log.splitlines() if f" {topic}-0: " in line and "offsets are missing" in line]
            if topic == "sound":
                assert not missing and not lines
            else:
                assert missing and f": {topic}-0: {missing} offsets are missing in" in lines[0]
            if topic in ("all-removed", "directory-removed"):
                assert missing == RECORDS
        assert broker.stop() == 0

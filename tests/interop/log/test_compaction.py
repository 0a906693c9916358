"""Compaction of a live broker: what consumers find afterwards, meanwhile, and after kills of broker and child.

The broker looks for work every 200 ms and rolls quiet segments soon, so that what is compacted is known: the last
record of each key. Each failure of the test with kills names its seed. The soak kills ten times as often.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.client.admin.configs import ConfigChange
from spark_kafkalite.client.produce.delivery import RecordMetadata
from spark_kafkalite.errors import InvalidRecord
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.files.small_files import read_offsets
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from tests.interop.support.python_clients import CODECS, PRODUCERS, READERS, knows
from tests.interop.support.raw_client import RawClient
from tests.interop.support.records import Sent
from tests.lab import apache_kafka
from tests.lab.apache_kafka import kafka_tool
from tests.patience import PATIENCE_S, wait_until
from tests.pool.process_tree import has_ended
from tests.seeds import SEED, SOAK

KILLS = 80 if SOAK else 8
# At what the broker or its child is killed, in an order that the seed gives: at any moment, after a cleaning, in one.
KILLED_AT = ("moment", "moment", "cleaned", "child")
OVERRIDES = {
    "log.cleaner.backoff.ms": 200,
    "log.segment.delete.delay.ms": 100,
    "log.initial.task.delay.ms": 86_400_000,
}
COMPACT = {
    "cleanup.policy": "compact",
    "segment.bytes": "60000",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "300",
}

State = dict[bytes, bytes]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("compaction") / "data", overrides=OVERRIDES) as running:
        yield running


def cleaned_until(broker: BrokerProcess, topic: str) -> int:
    """How far the topic's partition 0 has been cleaned, as the broker's checkpoint says."""
    return read_offsets(OsFs(), str(broker.data_dir / "cleaner-offset-checkpoint")).get(TopicPartition(topic, 0), 0)


def wait_until_cleaned(broker: BrokerProcess, topic: str, end_offset: int) -> None:
    wait_until(lambda: cleaned_until(broker, topic) >= end_offset, f"{topic} cleaned up to {end_offset}")
    wait_until(lambda: not list((broker.data_dir / f"{topic}-0").glob("cleaner-swap")), "the swap ended")


def create(broker: BrokerProcess, topic: str, **configs: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, 1, 1, COMPACT | {name.replace("_", "."): value for name, value in configs.items()})


def end_offset_of(broker: BrokerProcess, topic: str) -> int:
    with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
        return int(consumer.end_offsets([(topic, 0)])[TopicPartition(topic, 0)])


def size_of(broker: BrokerProcess, topic: str) -> int:
    """What DescribeLogDirs says of the topic's partition 0."""
    asked = [DescribableLogDirTopic(topic=topic, partitions=[0])]
    with RawClient(broker.bootstrap) as client:
        (found,) = client.call(DescribeLogDirsRequest(topics=asked), 1).results
    return int(found.topics[0].partitions[0].partition_size)


def cleaners_of(broker: int) -> list[int]:
    """Return the cleaner processes that a broker has started and that live.

    One that does not run its own program yet is left out. Until then the broker's thread stands still (vfork), and
    whatever stops that process stops the broker.
    """
    found = []
    with contextlib.suppress(FileNotFoundError):
        for child in Path(f"/proc/{broker}/task/{broker}/children").read_text(encoding="ascii").split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if b"cleaner_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


def files_ending(broker: BrokerProcess, topic: str, *suffixes: str) -> list[str]:
    directory = broker.data_dir / f"{topic}-0"
    return [path.name for path in directory.iterdir() if path.name.endswith(suffixes)] if directory.exists() else []


def log_text(broker: BrokerProcess) -> str:
    return broker.stderr_path.read_text(encoding="utf-8")


def history(count: int, keys: int) -> list[Sent]:
    """Records of which each key has several, with headers, deletions in between and none at the end."""
    chance = random.Random(count)
    now_ms = time.time_ns() // 1_000_000
    sent = [
        Sent(
            b"key-%d" % chance.randrange(keys),
            b"" if number % 50 == 7 else b"value %d " % number + b"ab" * chance.randrange(40),
            now_ms + number,
            (("number", b"%d" % number),),
        )
        for number in range(count)
    ]
    return [*sent, Sent(b"the end", b"of it", now_ms + count)]


def last_of_each(records: list[Sent]) -> dict[int, Sent]:
    """What compaction leaves, by offset."""
    last = {record.key: offset for offset, record in enumerate(records)}
    return {offset: records[offset] for offset in sorted(last.values())}


# What is left ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_all_clients_find_the_last_record_of_each_key(broker: BrokerProcess, codec: str) -> None:
    topic = f"codec-{codec}"
    create(broker, topic)
    records = history(3000, 100)
    PRODUCERS["confluent"](broker.bootstrap, topic, records, codec, "all", True)
    wait_until_cleaned(broker, topic, len(records))
    wanted = last_of_each(records)
    for client, read in READERS.items():
        if not knows(client, codec):
            continue
        found = {each.offset: each for each in read(broker.bootstrap, topic, len(wanted))}
        assert {
            offset: Sent(each.key, each.value, each.timestamp_ms, each.headers) for offset, each in found.items()
        } == wanted, client


def test_offsets_times_and_sizes_are_right_after_a_cleaning_and_after_a_restart(broker: BrokerProcess) -> None:
    topic = "looked-up"
    create(broker, topic)
    records = history(5000, 50)
    PRODUCERS["confluent"](broker.bootstrap, topic, records, "none", "all", True)
    wait_until_cleaned(broker, topic, len(records))
    wanted = last_of_each(records)
    for _ in range(2):
        with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
            assert size_of(broker, topic) < 60_000
            assert consumer.end_offsets([(topic, 0)])[TopicPartition(topic, 0)] == len(records)
            for number in range(0, len(records), 1999):
                following = min(offset for offset in wanted if offset >= number)
                consumer.assign([(topic, 0)])
                consumer.seek((topic, 0), number)
                found = consumer.poll(int(PATIENCE_S * 1000), 1)
                assert found[0].offset == following
                by_time = consumer.offsets_for_times({TopicPartition(topic, 0): records[number].timestamp_ms})
                assert by_time[TopicPartition(topic, 0)].offset == following  # type: ignore[union-attr]
        broker.restart()


def test_records_without_a_key_are_refused(broker: BrokerProcess) -> None:
    create(broker, "keyless")
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        with pytest.raises(InvalidRecord):
            producer.send("keyless", b"value").result(PATIENCE_S)
        assert producer.send("keyless", b"value", b"key").result(PATIENCE_S).offset == 0
    errors: list[confluent_kafka.KafkaError] = []
    theirs = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    theirs.produce("keyless", b"value", on_delivery=lambda error, _: errors.append(error))
    assert theirs.flush(PATIENCE_S) == 0
    assert errors[0].code() == confluent_kafka.KafkaError.INVALID_RECORD


def test_deletions_are_forgotten_after_their_time_and_readers_get_past_them(broker: BrokerProcess) -> None:
    topic = "deleted"
    create(broker, topic, delete_retention_ms="300")
    now_ms = time.time_ns() // 1_000_000
    records = [Sent(b"%d" % (number % 20), b"x", now_ms + number) for number in range(100)]
    records += [Sent(b"%d" % number, None, now_ms + 100 + number) for number in range(20)]
    PRODUCERS["confluent"](broker.bootstrap, topic, records, "none", "all", True)
    wait_until_cleaned(broker, topic, len(records))

    def values() -> list[bytes | None]:
        with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
            consumer.assign([(topic, 0)])
            consumer.seek((topic, 0), 0)
            found: list[bytes | None] = []

            def at_the_end() -> bool:
                found.extend(record.value for record in consumer.poll(200))
                return bool(consumer.position((topic, 0)) == len(records))

            wait_until(at_the_end, "the reader at the end", poll_s=0)
            return found

    wait_until(lambda: values() == [], "no deletion left")


# Other changes meanwhile ----------------------------------------------------------------------------------------------


@pytest.fixture
def slow_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker whose cleaner takes minutes over what takes a moment."""
    overrides = OVERRIDES | {"log.cleaner.io.max.bytes.per.second": 20_000}
    with BrokerProcess(tmp_path / "data", overrides=overrides) as running:
        create(running, "slow")
        create(running, "other")
        PRODUCERS["confluent"](running.bootstrap, "slow", history(20_000, 100), "none", "all", True)
        wait_until(lambda: files_ending(running, "slow", ".cleaned") or cleaners_of(running.pid), "a cleaning begun")
        wait_until(lambda: cleaners_of(running.pid), "a child")
        yield running


def delete_topic(broker: BrokerProcess) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_topics(["slow"])


def compact_no_more(broker: BrokerProcess) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.incremental_alter_configs([ConfigChange("cleanup.policy", "set", "delete")], topic="slow")


@pytest.mark.parametrize(
    ("change", "reason"),
    [(delete_topic, "it has been deleted"), (compact_no_more, "its cleanup.policy is not compact any more")],
)
def test_a_cleaning_is_called_off(
    slow_broker: BrokerProcess, change: Callable[[BrokerProcess], None], reason: str
) -> None:
    (child,) = cleaners_of(slow_broker.pid)
    change(slow_broker)
    wait_until(lambda: f"called off: {reason}" in log_text(slow_broker), reason)
    if change is not delete_topic:  # which takes the child's files away: it may have noticed by itself
        wait_until(lambda: child not in cleaners_of(slow_broker.pid), "the child's end")
    wait_until(lambda: not files_ending(slow_broker, "slow", ".cleaned"), "the end of what it has written")
    # The next one is taken.
    with Producer(bootstrap_servers=slow_broker.bootstrap) as producer:
        for number in range(200):
            producer.send("other", b"%d" % number, b"same key")
    wait_until_cleaned(slow_broker, "other", 200)


def test_a_stop_does_not_wait_for_a_cleaning(slow_broker: BrokerProcess) -> None:
    (child,) = cleaners_of(slow_broker.pid)
    # The cleaning takes minutes.
    assert slow_broker.stop(PATIENCE_S) == 0
    assert not Path(f"/proc/{child}").exists()
    assert not files_ending(slow_broker, "slow", ".cleaned", "cleaner-swap")
    slow_broker.start()


def test_a_child_does_not_outlive_its_broker(slow_broker: BrokerProcess) -> None:
    (child,) = cleaners_of(slow_broker.pid)
    os.kill(slow_broker.pid, signal.SIGKILL)
    wait_until(lambda: has_ended(child), "the child's end")
    slow_broker.kill()
    slow_broker.start()
    assert end_offset_of(slow_broker, "slow") == 20_001


def test_a_log_that_cannot_be_cleaned_is_left_alone_and_the_others_go_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES | {"log.cleaner.enable": "false"}) as broker:
        for topic in ("damaged", "sound"):
            create(broker, topic)
            PRODUCERS["confluent"](broker.bootstrap, topic, history(3000, 10), "none", "all", True)
        broker.stop()
        path = tmp_path / "data" / "damaged-0" / f"{0:020d}.log"
        data = bytearray(path.read_bytes())
        data[70] ^= 1
        path.write_bytes(data)
        broker.overrides["log.cleaner.enable"] = "true"
        broker.start()
        wait_until_cleaned(broker, "sound", 3001)
        wait_until(lambda: "damaged-0 cannot be cleaned" in log_text(broker), "the damage said")
        assert re.search(
            r"damaged-0 cannot be cleaned: .*00000000000000000000.log: position 0, offset 0: .*CRC", log_text(broker)
        )
        assert path.read_bytes() == data
        assert not files_ending(broker, "damaged", ".cleaned")


def test_a_compacted_topic_stays_readable_when_it_is_compacted_no_more(tmp_path: Path) -> None:
    records = history(3000, 20)
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES) as broker:
        create(broker, "once")
        PRODUCERS["confluent"](broker.bootstrap, "once", records, "none", "all", True)
        wait_until_cleaned(broker, "once", len(records))
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.incremental_alter_configs([ConfigChange("cleanup.policy", "set", "delete")], topic="once")
        PRODUCERS["confluent"](broker.bootstrap, "once", records[:10], "none", "all", True)
        broker.kill()
        (tmp_path / "data" / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
        broker.start()
        wanted = [*last_of_each(records), *range(len(records), len(records) + 10)]
        assert [each.offset for each in READERS["ours"](broker.bootstrap, "once", len(wanted))] == wanted


def test_compact_and_delete_both_apply(tmp_path: Path) -> None:
    overrides = OVERRIDES | {"log.initial.task.delay.ms": 100, "log.retention.check.interval.ms": 200}
    with BrokerProcess(tmp_path / "data", overrides=overrides) as broker:
        create(broker, "both", cleanup_policy="compact,delete", retention_ms="3600000")
        records = history(3000, 20)
        PRODUCERS["confluent"](broker.bootstrap, "both", records, "none", "all", True)
        wait_until_cleaned(broker, "both", len(records))
        assert 0 < size_of(broker, "both") < 60_000

        def keep_for(milliseconds: int) -> None:
            # Not before: a cleaning may take longer than records are kept.
            with Admin(bootstrap_servers=broker.bootstrap) as admin:
                change = ConfigChange("retention.ms", "set", str(milliseconds))
                admin.incremental_alter_configs([change], topic="both")

        keep_for(3000)
        wait_until(lambda: size_of(broker, "both") == 0, "everything removed")
        keep_for(3_600_000)
        again = Sent(b"again", b"x", time.time_ns() // 1_000_000)
        PRODUCERS["confluent"](broker.bootstrap, "both", [again], "none", "all", True)
        with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
            consumer.assign([("both", 0)])
            consumer.seek_to_beginning()
            assert [record.offset for record in consumer.poll(int(PATIENCE_S * 1000))] == [len(records)]


# Kills ----------------------------------------------------------------------------------------------------------------


class KeyedWriter:
    """Our idempotent producer in a thread, which sets and deletes a few keys as fast as it is acknowledged."""

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        self.state: State = {}
        self.sent = self.acknowledged = 0
        self.failures: list[object] = []
        self._topic = topic
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self._producer = Producer(
            bootstrap_servers=bootstrap, linger_ms=1, batch_size=4000, delivery_timeout_ms=110_000
        )
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self.sent - self.acknowledged > 2000:
                    time.sleep(0.001)
                    continue
                key = b"key-%d" % self._chance.randrange(200)
                value = None if self._chance.random() < 0.1 else b"%d " % self.sent + b"x" * self._chance.randrange(90)
                self._producer.send(self._topic, value, key, partition=0, on_delivery=self._delivered)
                self.sent += 1
                if value is None:
                    self.state.pop(key, None)
                else:
                    self.state[key] = value
                if not self.sent % 20:
                    time.sleep(0.001)
            self._producer.close()
        except Exception as error:  # it has to fail the test, not this thread
            self.failures.append(error)

    def _delivered(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        self.acknowledged += 1
        if metadata is None:
            self.failures.append(error)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive(), "the writer does not end"


class StateReader:
    """Our consumer in a thread, which keeps the state that the records say, across kills and compaction."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.state: State = {}
        self.position = 0
        self.failures: list[object] = []
        self._bootstrap = bootstrap
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with Consumer(bootstrap_servers=self._bootstrap, auto_offset_reset="none") as consumer:
                consumer.assign([(self._topic, 0)])
                consumer.seek((self._topic, 0), 0)
                while not self._stopping.is_set():
                    for record in consumer.poll(100):
                        assert record.offset >= self.position, "the reader went back"
                        assert record.key is not None
                        if record.value is None:
                            self.state.pop(record.key, None)
                        else:
                            self.state[record.key] = record.value
                        self.position = record.offset + 1
                    self.position = max(self.position, consumer.position((self._topic, 0)))
        except Exception as error:  # it has to fail the test, not this thread
            self.failures.append(error)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)


def state_of(read: Callable[[str, str, int], list[object]], bootstrap: str, topic: str, count: int) -> State:
    state: State = {}
    for each in read(bootstrap, topic, count):
        if each.value is None:  # type: ignore[attr-defined]
            state.pop(each.key, None)  # type: ignore[attr-defined]
        else:
            state[each.key] = each.value  # type: ignore[attr-defined]
    return state


@pytest.mark.timeout(240 + 20 * KILLS)
def test_kills_of_broker_and_child_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    topic = "killed"
    kills = {"broker": 0, "child": 0}
    cleanings = 0
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES) as broker:
        # Deletions stay for as long as the reader may be away, and until the test has counted what is left.
        create(broker, topic, delete_retention_ms="3600000")
        writer = KeyedWriter(broker.bootstrap, topic, SEED)
        reader = StateReader(broker.bootstrap, topic)
        for kind in chance.sample(KILLED_AT * (KILLS // len(KILLED_AT)), KILLS):
            if kind == "child":
                child = wait_until(lambda: cleaners_of(broker.pid), "a child")[0]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                kills["child"] += 1
                continue
            if kind == "cleaned":
                wait_until(lambda: ": cleaned " in log_text(broker), "a cleaning ended")
            else:
                time.sleep(chance.random() * 2.5)
            cleanings += log_text(broker).count(": cleaned ")
            broker.kill()
            broker.start()
            kills["broker"] += 1
        writer.stop()
        # It goes on to clean a log over which its child has been killed.
        cleanings += log_text(broker).count(": cleaned ")
        broker.restart()
        end_offset = end_offset_of(broker, topic)
        what = f"seed {SEED}, {kills}, {cleanings} cleanings, {writer.sent} records"
        assert not writer.failures, what
        assert end_offset == writer.sent, what
        wait_until(lambda: reader.position >= end_offset or reader.failures, f"{what}: the reader at the end")
        reader.stop()
        assert not reader.failures, what
        assert reader.state == writer.state, what
        wait_until_cleaned(broker, topic, end_offset)
        offsets = [each.offset for each in READERS["ours"](broker.bootstrap, topic, 200)]
        assert len(offsets) <= 200, what
        for client in ("ours", "confluent", "kafka-python"):
            assert state_of(READERS[client], broker.bootstrap, topic, len(offsets)) == writer.state, (what, client)
        broker.restart()
        assert state_of(READERS["ours"], broker.bootstrap, topic, len(offsets)) == writer.state, what


# Apache Kafka's tools -------------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_apache_kafkas_tools_read_what_is_left(tmp_path: Path) -> None:
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    records = history(4000, 60)
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES | {"log.cleaner.enable": "false"}) as broker:
        create(broker, "java")
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.incremental_alter_configs([ConfigChange("index.interval.bytes", "set", "500")], topic="java")
        for number, codec in enumerate(CODECS):
            part = records[number * 800 : (number + 1) * 800] if codec != CODECS[-1] else records[number * 800 :]
            PRODUCERS["confluent"](broker.bootstrap, "java", part, codec, "all", True)
        broker.stop()
        directory = tmp_path / "data" / "java-0"
        assert dumped_offsets(directory) == list(range(len(records)))
        broker.overrides["log.cleaner.enable"] = "true"
        broker.start()
        wait_until_cleaned(broker, "java", len(records))
        wanted = last_of_each(records)
        shown = kafka_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", broker.bootstrap,
            "--topic", "java", "--partition", "0", "--offset", "earliest", "--max-messages", str(len(wanted)),
            "--timeout-ms", f"{PATIENCE_S * 1000:.0f}",
            "--formatter-property", "print.key=true", "--formatter-property", "print.offset=true",
        ).stdout.splitlines()  # fmt: skip
        assert [line.split("\t")[1].encode() for line in shown] == [record.key for record in wanted.values()]
        broker.stop()
        assert dumped_offsets(directory) == list(wanted)


def dumped_offsets(directory: Path) -> list[int]:
    """The offsets that Apache Kafka's DumpLogSegments finds; it must find no fault with segments or indexes."""
    files = sorted(path for path in directory.iterdir() if path.suffix in (".log", ".index", ".timeindex"))
    answer = kafka_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--print-data-log", "--files", ",".join(map(str, files))
    ).stdout
    assert not re.findall(r"(?i)mismatch|corrupt|invalid|not found|out of order|isvalid: false", answer)
    return [int(each) for each in re.findall(r"\| offset: (\d+) ", answer)]

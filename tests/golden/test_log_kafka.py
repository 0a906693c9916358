"""Log directories of Apache Kafka in our log, and ours in Apache Kafka's own tool."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.records.columns import add_batch
from tests.lab import apache_kafka
from tests.lab.batches import header_of, make_batch
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.kafka]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
KEY = TopicPartition("golden", 0)
START_MS = 1_700_000_000_000
Loader = Callable[[Path], LogManager]


def value(serial: int) -> bytes:
    """What record number ``serial`` holds; codecs can do little with it."""
    return b"value %d " % serial + random.Random(serial).randbytes(100)


def load(directory: Path) -> LogManager:
    config = TopicConfig.from_properties({"segment.bytes": "20000"})
    manager = LogManager(OsFs(), [str(directory)], SYSTEM_CLOCK, config_of=lambda topic: config)
    manager.open()
    manager.load()
    return manager


def copy_logs(source: Path, target: Path) -> None:
    """Copy a log directory without what says that it is of a KRaft node, which a broker of ours refuses."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("meta.properties", "__cluster_metadata-*"))


def records(log: PartitionLog) -> list[tuple[int, int, bytes | None]]:
    found, offset = [], int(log.log_start_offset)
    while (piece := log.read(offset, 1 << 20, log.log_end_offset)) is not None:
        builder, data, position = kernel.ColumnBuilder(False), piece.read(), 0
        for header in kernel.scan_headers(data):
            add_batch(builder, data, position, header)
            position += header.size_bytes
            offset = header.next_offset
        columns = builder.finish()
        found += [(columns.offset_at(n), columns.timestamp_at(n), columns.value_at(n)) for n in range(columns.count)]
    return found


@pytest.fixture(scope="module")
def kafka_directories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two log directories with the same 1,000 records: as kill -9 left it, and as a clean stop did."""
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    base = tmp_path_factory.mktemp("golden-kafka")
    with apache_kafka.ApacheKafka(base / "node") as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        config = {"segment.bytes": str(1 << 20), "index.interval.bytes": "1000", "internal.segment.bytes": "20000"}
        # The records have times of 2023: Apache Kafka's retention would delete them.
        config["retention.ms"] = "-1"
        admin.create_topics([NewTopic(KEY.topic, 1, 1, config=config)])[KEY.topic].result(PATIENCE_S)
        for number, codec in enumerate(CODECS):
            producer = Producer(
                {
                    "bootstrap.servers": kafka.bootstrap,
                    "compression.type": codec,
                    "enable.idempotence": True,
                    "batch.num.messages": 20,
                    "linger.ms": 50,
                }
            )
            for index in range(200):
                serial = number * 200 + index
                producer.produce(KEY.topic, value(serial), timestamp=START_MS + serial * 10)
            assert producer.flush(PATIENCE_S) == 0
        kafka.kill()
        crashed = base / "crashed"
        shutil.copytree(kafka.log_directory, crashed)
        kafka.start()
        kafka.stop()
        return crashed, kafka.log_directory


@pytest.mark.parametrize("clean", [False, True])
def test_directory_of_apache_kafka_opens(kafka_directories: tuple[Path, Path], tmp_path: Path, clean: bool) -> None:
    directory = tmp_path / "copy"
    copy_logs(kafka_directories[clean], directory)
    manager = load(directory)
    log = manager.logs[KEY]
    assert manager.was_clean is clean
    assert log.topic_id is not None
    assert (log.recovered_segments == 0) is clean
    assert log.cut_bytes == 0
    assert [(offset, time) for offset, time, _ in records(log)] == [(n, START_MS + n * 10) for n in range(1000)]
    assert [each for _, _, each in records(log)] == [value(n) for n in range(1000)]
    for wanted in (0, 1, 333, 999):
        found = log.offset_for_timestamp(START_MS + wanted * 10, 1000)
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (wanted, START_MS + wanted * 10)
    # Kafka itself forgets, when it loads, producers whose records are old; those of the last segment it finds again.
    assert len(log.producers.state.producers) in (range(1, len(CODECS) + 1) if clean else [len(CODECS)])
    assert log.epochs.entries
    assert len(log.segments) > 3, "the test wants several segments"
    manager.shutdown()


def test_indexes_are_those_that_apache_kafka_writes(kafka_directories: tuple[Path, Path], tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    copy_logs(kafka_directories[True], directory)
    partition = directory / str(KEY)
    sealed = sorted(partition.glob("*.log"))[:-1]
    theirs = {path.name: path.read_bytes() for log in sealed for path in partition.glob(f"{log.stem}.*index")}
    for name in theirs:
        (partition / name).unlink()
    config = TopicConfig.from_properties({"segment.bytes": "20000", "index.interval.bytes": "1000"})
    manager = LogManager(OsFs(), [str(directory)], SYSTEM_CLOCK, config_of=lambda topic: config)
    manager.open()
    manager.load()
    manager.shutdown()
    assert theirs
    assert {name: (partition / name).read_bytes() for name in theirs} == theirs


def test_apache_kafkas_tool_finds_no_fault_with_ours(tmp_path: Path) -> None:
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    manager = load(tmp_path / "ours")
    log = manager.create(KEY, bytes(range(16)))
    log.update_config(TopicConfig.from_properties({"segment.bytes": "10000", "index.interval.bytes": "1000"}))
    for number in range(300):
        batch = make_batch(
            [b"value %d" % (number * 6 + each) for each in range(6)],
            timestamp_ms=START_MS + number,
            codec=CODECS[number % len(CODECS)],
            producer_id=77,
            producer_epoch=0,
            base_sequence=number * 6,
        )
        log.append_as_leader(batch, header_of(batch), number // 100)
    manager.shutdown()
    partition = tmp_path / "ours" / str(KEY)
    files = sorted(path for path in partition.iterdir() if path.suffix in (".log", ".index", ".timeindex"))
    assert len(files) > 6
    answer = apache_kafka.kafka_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--print-data-log", "--files", ",".join(map(str, files))
    ).stdout
    assert not re.findall(r"(?i)mismatch|corrupt|invalid|not found|out of order|isvalid: false", answer)
    assert [int(each) for each in re.findall(r"\| offset: (\d+) ", answer)] == list(range(1800))
    assert re.findall(r"payload: (.*)", answer) == [f"value {number}" for number in range(1800)]
    snapshots = sorted(partition.glob("*.snapshot"))
    answer = apache_kafka.kafka_tool("org.apache.kafka.tools.DumpLogSegments", "--files", str(snapshots[-1])).stdout
    assert re.search(r"producerId: 77 producerEpoch: 0 .*lastSequence: 1799", answer), answer
    answer = apache_kafka.kafka_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--index-sanity-check", "--files",
        ",".join(str(path) for path in files if path.suffix == ".index"),
    ).stdout  # fmt: skip
    assert "passed sanity check" in answer

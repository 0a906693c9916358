"""What our cleaner leaves of a log beside what Apache Kafka's leaves of the same one, and its own tool on ours."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.records.layout import DELETE_HORIZON_BIT
from tests.lab import apache_kafka
from tests.patience import PATIENCE_S, wait_until
from tests.unit.log.compaction.cleaned_log import Batch, CleanedLog, SourceSegment, batches_in

pytestmark = [pytest.mark.kafka]

TOPIC = "cleaned"
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
START_MS = 1_700_000_000_000
RETENTION_MS = 86_400_000


def produce(bootstrap: str) -> None:
    for number in range(20):
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": CODECS[number % len(CODECS)],
                "enable.idempotence": True,
                "batch.num.messages": 7,
                "linger.ms": 20,
            }
        )
        for serial in range(number * 21, number * 21 + 21):
            # Some keys stay for ever, some come again, some are deleted, and one producer is left nothing.
            key = b"once %d" % serial if serial % 10 == 0 and number != 3 else b"key %d" % (serial % 30)
            value = None if serial % 9 == 8 else b"value %d " % serial + b"x" * 30
            producer.produce(TOPIC, value, key, timestamp=START_MS + serial, headers=[("h", b"%d" % serial)])
        assert producer.flush(PATIENCE_S) == 0


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CleanedLog, list[Batch]]]:
    """Our copy of a log that Kafka wrote, not cleaned yet, and the same log as Kafka's cleaner left it."""
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    base = tmp_path_factory.mktemp("cleaned-kafka")
    ours = CleanedLog(OsFs(), str(base / "ours"))
    overrides = {"log.cleaner.backoff.ms": "200", "log.cleaner.threads": "1"}
    with apache_kafka.ApacheKafka(base / "node", overrides=overrides) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        config = {"segment.bytes": str(1 << 20), "internal.segment.bytes": "1500", "cleanup.policy": "delete"}
        config["retention.ms"] = "-1"
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(PATIENCE_S)
        produce(kafka.bootstrap)
        partition = kafka.log_directory / f"{TOPIC}-0"
        *sealed, active = sorted(partition.glob("*.log"))
        assert len(sealed) > 5, "the test wants several segments"
        for path in sealed:
            shutil.copy(path, base / "ours")
            ours.sources.append(SourceSegment(int(path.stem), path.stat().st_size, -1))
        ours.end_offset = int(active.stem)
        entries = [
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("min.cleanable.dirty.ratio", "0.01", incremental_operation=AlterConfigOpType.SET),
        ]
        resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=entries)
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
        checkpoint = kafka.log_directory / "cleaner-offset-checkpoint"
        wait_until(
            lambda: checkpoint.exists() and f"{TOPIC} 0 {ours.end_offset}\n" in checkpoint.read_text(),
            "the end of Apache Kafka's cleaning",
            poll_s=0.1,
        )
        data = b"".join(path.read_bytes() for path in sorted(partition.glob("*.log"))[:-1])
    yield ours, [batch for batch in batches_in(data) if batch.header.base_offset < ours.end_offset]


def test_our_cleaner_leaves_what_apache_kafkas_does(both: tuple[CleanedLog, list[Batch]]) -> None:
    ours, theirs = both
    before = ours.records()
    files = sorted(Path(ours.directory).glob("*.log"))
    assert_tool_agrees(files, list(before))
    # The producers that Kafka still knows: all of them have just written.
    last_offsets = {batch.header.producer_id: batch.header.last_offset for batch in ours.batches()}
    now_ms = int(time.time() * 1000)
    result = ours.clean(
        now_ms, delete_retention_ms=RETENTION_MS, last_offset_by_producer=last_offsets, segment_bytes=4000
    )
    assert 0 < result.records_kept < result.records_read
    found = ours.batches()
    assert any(batch.header.attributes & DELETE_HORIZON_BIT for batch in found)
    by_base = {batch.header.base_offset: batch for batch in theirs}
    # Kafka's active producers have their last batch in the active segment where they went on there.
    assert {base for base, batch in by_base.items() if batch.records} == {
        batch.header.base_offset for batch in found if batch.records
    }
    for batch in found:
        if not batch.records:
            continue
        header, other = batch.header, by_base[batch.header.base_offset].header
        assert batch.records == by_base[header.base_offset].records
        same = header._replace(batch_length=0, crc=0, base_timestamp=0)
        assert same == other._replace(batch_length=0, crc=0, base_timestamp=0)
        if header.attributes & DELETE_HORIZON_BIT:
            assert abs(header.base_timestamp - other.base_timestamp) < 60_000
    assert_tool_agrees(sorted(Path(ours.directory).glob("*.log")), list(ours.records()))


def assert_tool_agrees(files: list[Path], offsets: list[int]) -> None:
    indexes = [path for log in files for path in (log.with_suffix(".index"), log.with_suffix(".timeindex"))]
    names = [str(path) for path in (*files, *indexes) if path.exists()]
    answer = apache_kafka.kafka_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--print-data-log", "--deep-iteration", "--files", ",".join(names)
    ).stdout
    assert not re.findall(r"(?i)mismatch|corrupt|invalid|not found|out of order|isvalid: false", answer)
    assert [int(each) for each in re.findall(r"\| offset: (\d+) ", answer)] == offsets

"""The captured log directory of Apache Kafka (see log/README.md) opens here, and our files are the same bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_kafkalite.log import producer_snapshot
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.producer_state import ProducerStateManager
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.records.columns import add_batch
from spark_kafkalite.testing.manual_clock import ManualClock

CAPTURED = Path(__file__).parent / "log" / "apache-kafka-4.3.0"
KEY = TopicPartition("golden", 0)
SETTINGS = {"segment.bytes": "1500", "index.interval.bytes": "200"}


def load(directory: Path) -> LogManager:
    config = TopicConfig.from_properties(SETTINGS)
    manager = LogManager(OsFs(), [str(directory)], ManualClock(), config_of=lambda topic: config)
    manager.open()
    manager.load()
    return manager


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    shutil.copytree(CAPTURED, tmp_path / "log")
    return tmp_path / "log"


def records(log: PartitionLog) -> list[tuple[int, int, bytes | None, bytes | None]]:
    found, offset = [], 0
    while (piece := log.read(offset, 1 << 20, log.log_end_offset)) is not None:
        builder, data, position = kernel.ColumnBuilder(False), piece.read(), 0
        for header in kernel.scan_headers(data):
            add_batch(builder, data, position, header)
            position += header.size_bytes
            offset = header.next_offset
        columns = builder.finish()
        found += [
            (columns.offset_at(row), columns.timestamp_at(row), columns.key_at(row), columns.value_at(row))
            for row in range(columns.count)
        ]
    return found


EXPECTED = [(n, 1_700_000_000_000 + 10 * n, b"key %d" % (n % 3), b"value %d " % n + b"x" * 40) for n in range(60)]


@pytest.mark.parametrize("clean", [True, False])
def test_captured_directory_opens(directory: Path, clean: bool) -> None:
    if not clean:
        (directory / ".kafka_cleanshutdown").unlink()
        (directory / "recovery-point-offset-checkpoint").unlink()
    manager = load(directory)
    log = manager.logs[KEY]
    assert manager.was_clean is clean
    assert log.recovered_segments == (0 if clean else 2)
    assert records(log) == EXPECTED
    assert manager.high_watermark(KEY) == 60
    assert len(log.producers.state.producers) == 5
    assert log.topic_id is not None
    assert log.epochs.entries == [(0, 0)]
    for offset, timestamp, _, _ in EXPECTED:
        found = log.offset_for_timestamp(timestamp, 60)
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (offset, timestamp)


def test_rebuilt_files_are_the_captured_bytes(directory: Path) -> None:
    partition = directory / str(KEY)
    captured = {path.name: path.read_bytes() for path in partition.iterdir()}
    for path in partition.iterdir():
        if path.suffix in (".index", ".timeindex") or path.name == "leader-epoch-checkpoint":
            path.unlink()
    (directory / ".kafka_cleanshutdown").unlink()
    (directory / "recovery-point-offset-checkpoint").unlink()
    load(directory).shutdown()
    rebuilt = {path.name: path.read_bytes() for path in partition.iterdir()}
    assert rebuilt.keys() == captured.keys()
    for name in captured:
        # The order of producers in a snapshot is that of a hash table, and we keep the time of the append there.
        if not name.endswith(".snapshot"):
            assert rebuilt[name] == captured[name], name


def test_captured_snapshot_is_what_we_would_write(directory: Path) -> None:
    data = (directory / str(KEY) / "00000000000000000060.snapshot").read_bytes()
    state = ProducerStateManager()
    producer_snapshot.load(state, data, 60, "captured")
    assert producer_snapshot.encode(state) == data
    assert [entry.batches[-1].last_sequence for entry in state.producers.values()] == [11] * 5


def test_appends_go_on_in_the_captured_log(directory: Path) -> None:
    manager = load(directory)
    log = manager.logs[KEY]
    batch = kernel.OpenBatch(10_000)
    batch.append(1_700_000_001_000, None, b"ours", [])
    data = bytearray(batch.build())
    assert log.append_as_leader(data, kernel.read_header(data), 1).base_offset == 60
    manager.shutdown()
    again = load(directory)
    assert again.was_clean
    assert records(again.logs[KEY])[60] == (60, 1_700_000_001_000, None, b"ours")

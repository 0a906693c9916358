"""Reads the logs of stopped brokers, ours and Apache Kafka's, from their files into a history."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.files.small_files import (
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    read_offsets,
    read_topic_id,
    topic_id_text,
)
from spark_kafkalite.log.loading.loader import topic_partition_of
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records.columns import add_batch
from spark_kafkalite.records.kernel import ColumnBuilder, read_header
from spark_kafkalite.records.layout import HEADER_BYTES
from tests.chaos.history import Batch, Complaint, Leftover, Log
from tests.chaos.values import name_of

_CHECKPOINTS = (CLEANER_OFFSET_FILE, HIGH_WATERMARK_FILE, LOG_START_OFFSET_FILE, RECOVERY_POINT_FILE)
_LEFT_BEHIND = (".cleaned", ".swap", ".tmp")
# What a broker says when something broke that nobody had thought of, or that may not be.
_BROKEN = ("Traceback", "never retrieved", "never awaited", "AssertionError", "committed records are gone")


def logs_of(broker: int, log_directory: Path, topics: Mapping[str, str]) -> Iterator[Log]:
    """Give the logs of these topics (id: name) in one log directory."""
    fs = OsFs()
    high_watermarks = read_offsets(fs, str(log_directory / HIGH_WATERMARK_FILE))
    starts = read_offsets(fs, str(log_directory / LOG_START_OFFSET_FILE))
    for directory in sorted(log_directory.iterdir()):
        at = topic_partition_of(directory.name) if directory.is_dir() else None
        raw_id = read_topic_id(fs, str(directory / "partition.metadata")) if at is not None else None
        topic_id = topic_id_text(raw_id) if raw_id is not None else ""
        if at is not None and topic_id in topics:
            yield _log(broker, directory, at, topic_id, high_watermarks.get(at, -1), starts.get(at, 0))


def _log(broker: int, directory: Path, at: TopicPartition, topic_id: str, high_watermark: int, start: int) -> Log:
    log = Log(
        topic=topic_id, partition=at.partition, broker=broker, start=start, end=start, high_watermark=high_watermark,
        batches=[],
    )  # fmt: skip
    segments = sorted(directory.glob("*.log"))
    if segments:
        log.start = max(start, int(segments[0].stem))
        log.end = int(segments[-1].stem)
    for path in segments:
        try:
            for batch in _batches(path):
                log.batches.append(batch)
                log.end = batch.last_offset + 1
        except KafkaliteError as error:
            log.problem = f"{path.name}: {error}"
    # What lies before the log's start is not there, although its segment is.
    log.batches = [batch for batch in log.batches if batch.last_offset >= log.start]
    return log


def _batches(path: Path) -> Iterator[Batch]:
    data = path.read_bytes()
    position = 0
    while position < len(data):
        header = read_header(data, position)
        builder = ColumnBuilder(False)
        add_batch(builder, data, position, header)
        columns = builder.finish()
        yield Batch(
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            epoch=header.partition_leader_epoch,
            digest=hashlib.sha256(data[position : position + header.size_bytes]).hexdigest()[:16],
            records=[
                (columns.offset_at(row), name_of(columns.value_at(row)), _key(columns.key_at(row)))
                for row in range(columns.count)
            ],
            writer=f"{header.producer_id}/{header.producer_epoch}" if header.producer_id >= 0 else "",
        )
        position += max(header.size_bytes, HEADER_BYTES)


def _key(key: bytes | None) -> str | None:
    return None if key is None else key.decode("ascii", "replace")


def leftovers_of(broker: int, log_directory: Path) -> Iterator[Leftover]:
    """Give the files of unfinished work in the logs of a broker that was stopped in order, and the lines of checkpoints
    that name no log."""
    for name in _CHECKPOINTS:
        for topic, partition in sorted(read_offsets(OsFs(), str(log_directory / name))):
            if not (log_directory / f"{topic}-{partition}").is_dir():
                yield Leftover(broker=broker, path=f"{name}: {topic} {partition}")
    for directory in sorted(path for path in log_directory.iterdir() if path.is_dir()):
        if not directory.name.endswith(("-delete", "-stray")):
            for path in sorted(directory.iterdir()):
                if path.name.endswith(_LEFT_BEHIND):
                    yield Leftover(broker=broker, path=f"{directory.name}/{path.name}")


def complaints_of(broker: int, output: Path) -> Iterator[Complaint]:
    """Give what a broker of ours has written of things that nobody had thought of."""
    for line in output.read_text(encoding="utf-8", errors="replace").splitlines():
        if any(word in line for word in _BROKEN):
            yield Complaint(broker=broker, text=line)

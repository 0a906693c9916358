"""The checks of ``kafkalite dump-log``. They print findings file by file, and change nothing.

- Segments (``.log``): every batch's header, CRC and records (decompressed and walked). Offsets must ascend from the
  segment's base offset, and the file must end with a whole batch. After compaction there may be gaps between batches,
  batches without records, and batches with fewer records than offsets.
- Indexes: entries must ascend, and each must name an existing batch.
- ``.snapshot``, checkpoints and ``partition.metadata``: they must be readable, and the last must name the partition of
  its directory, if it names one.
"""

from __future__ import annotations

import bisect
import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from spark_kafkalite.cli.output import echo, print_json
from spark_kafkalite.cli.record_text import record_to_json
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.log import producer_snapshot
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.files.small_files import (
    CLEANER_OFFSET_FILE,
    DAMAGED_RANGES_FILE,
    HIGH_WATERMARK_FILE,
    LEADER_EPOCH_FILE,
    LOG_START_OFFSET_FILE,
    META_FILE,
    OWN_LOG_START_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    read_damaged_ranges,
    read_epochs,
    read_meta,
    read_offsets,
    read_own_starts,
    read_partition_metadata,
    topic_id_text,
)
from spark_kafkalite.log.loading.loader import topic_partition_of
from spark_kafkalite.log.producer_state import ProducerIdLimits, ProducerStateManager
from spark_kafkalite.log.segments.offset_index import OffsetIndex
from spark_kafkalite.log.segments.time_index import TimeIndex
from spark_kafkalite.model import Record, TimestampType, TopicPartition
from spark_kafkalite.records.columns import batch_payload
from spark_kafkalite.records.compression import CODEC_NAMES
from spark_kafkalite.records.kernel import ColumnBuilder, check_crc, read_header, walk_records
from spark_kafkalite.records.layout import MAX_INT64, BatchHeader

SEGMENT_SUFFIXES: Final = (".log", ".index", ".timeindex", ".snapshot")
# Kafka's indexes of transactions. This package neither writes nor reads them.
UNKNOWN_SUFFIX: Final = ".txnindex"
OFFSET_CHECKPOINTS: Final = (
    RECOVERY_POINT_FILE,
    LOG_START_OFFSET_FILE,
    OWN_LOG_START_FILE,
    HIGH_WATERMARK_FILE,
    CLEANER_OFFSET_FILE,
)
SMALL_FILES: Final = (LEADER_EPOCH_FILE, DAMAGED_RANGES_FILE, PARTITION_METADATA_FILE, META_FILE, *OFFSET_CHECKPOINTS)


class BatchSpan(NamedTuple):
    """A batch's position in its segment, and the values that its index entries must have."""

    position: int
    last_offset: int
    max_timestamp: int


@dataclass(slots=True)
class Report:
    """The findings in one file."""

    path: Path
    batches: int = 0
    records: int = 0
    entries: int = 0
    damage: list[str] = field(default_factory=list)
    # Whether the format is unknown here. Then the file was not checked.
    unknown: bool = False


class Printer:
    """How findings are printed: lines like those of Kafka's tool, JSON lines, or damage and summaries only."""

    def __init__(self, *, as_json: bool, details: bool, records: bool) -> None:
        self.as_json = as_json
        self.details = details
        self.records = records

    def line(self, kind: str, fields: dict[str, Any]) -> None:
        """Print one finding."""
        if self.as_json:
            print_json({"type": kind, **fields})
        else:
            echo(" ".join(f"{name}: {_text(value)}" for name, value in fields.items()))


def check_file(
    path: Path, printer: Printer, spans: dict[Path, list[BatchSpan]], advance: Callable[[int], None]
) -> Report:
    """Check and show one file."""
    report = Report(path)
    if path.is_symlink():
        report.damage.append("it is a symbolic link, which a broker does not follow; name the file that it leads to")
        return report
    if printer.details and not printer.as_json:
        echo(f"Dumping {path}")
    try:
        if path.suffix == ".log":
            spans.clear()
            spans[path] = _check_segment(path, report, printer, advance)
            return report
        if path.suffix in (".index", ".timeindex"):
            segment = path.with_suffix(".log")
            if segment not in spans and segment.exists() and not segment.is_symlink():
                quiet = Printer(as_json=True, details=False, records=False)
                # Damage of the segment itself is reported when the segment is checked.
                spans[segment] = _check_segment(segment, Report(segment), quiet, lambda _: None)
            _check_index(path, report, printer, spans.get(segment))
        elif path.suffix == ".snapshot":
            _check_snapshot(path, report, printer)
        elif path.name == LEADER_EPOCH_FILE:
            for epoch, start_offset in read_epochs(OsFs(), str(path)):
                report.entries += 1
                if printer.details:
                    printer.line("epoch", {"epoch": epoch, "startOffset": start_offset})
        elif path.name == DAMAGED_RANGES_FILE:
            for start_offset, end_offset in read_damaged_ranges(OsFs(), str(path)):
                report.entries += 1
                report.damage.append(f"offsets {start_offset} to {end_offset - 1} are missing, or cannot be read")
        elif path.name == PARTITION_METADATA_FILE:
            _check_metadata(path, report, printer)
        elif path.name in OFFSET_CHECKPOINTS:
            read = read_own_starts if path.name == OWN_LOG_START_FILE else read_offsets
            for key, offset in read(OsFs(), str(path)).items():
                report.entries += 1
                if printer.details:
                    printer.line("checkpoint", {"topic": key.topic, "partition": key.partition, "offset": offset})
        elif path.name == META_FILE:
            meta = read_meta(OsFs(), str(path))
            if printer.details:
                printer.line("meta", dict(meta or {}))
        elif path.suffix == UNKNOWN_SUFFIX:
            report.unknown = True
        else:
            raise click.UsageError(f"{path}: not a file of a log; those end in {', '.join(SEGMENT_SUFFIXES)}")
    except KafkaliteError as error:
        report.damage.append(str(error).removeprefix(f"{path}: "))
    advance(path.stat().st_size)
    return report


# Segments -----------------------------------------------------------------------------------------------------------


def _check_segment(path: Path, report: Report, printer: Printer, advance: Callable[[int], None]) -> list[BatchSpan]:
    """Check all batches of a segment; return their positions."""
    base_offset = _base_offset(path, report)
    spans: list[BatchSpan] = []
    with path.open("rb") as file:
        size = path.stat().st_size
        if size == 0:
            return spans
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            size = len(view)
            position, next_offset = 0, base_offset
            while position < size:
                try:
                    header = read_header(view, position)
                except KafkaliteError as error:
                    # Without a header the position of the next batch is unknown.
                    report.damage.append(f"position {position}: {error}; {size - position} bytes are not readable")
                    break
                if header.size_bytes > size - position:
                    report.damage.append(
                        f"position {position}: the file ends in the middle of the batch at offset "
                        f"{header.base_offset}: {size - position} of {header.size_bytes} bytes exist"
                    )
                    break
                fault = _fault(view, position, header, next_offset)
                if fault is not None:
                    report.damage.append(f"position {position}, offset {header.base_offset}: {fault}")
                report.batches += 1
                report.records += header.record_count
                _print_batch(view, position, header, fault, printer, path)
                spans.append(BatchSpan(position, header.last_offset, header.max_timestamp))
                next_offset = max(next_offset, header.next_offset)
                position += header.size_bytes
                advance(header.size_bytes)
    return spans


def _base_offset(path: Path, report: Report) -> int:
    if not path.stem.isdecimal():
        report.damage.append(f"the name is not a base offset: {path.name}")
        return 0
    if int(path.stem) > MAX_INT64:
        report.damage.append(f"the name is larger than any offset: {path.name}; the largest is {MAX_INT64}")
        return 0
    return int(path.stem)


def _fault(view: memoryview, position: int, header: BatchHeader, next_offset: int) -> str | None:
    """Return a text about the damage of a batch, None if it is sound."""
    try:
        check_crc(view, position, header.size_bytes)
        if header.base_offset < next_offset:
            return f"its offset is below {next_offset}, where the batch before it ends"
        if header.last_offset_delta < 0:
            return f"its last offset delta is {header.last_offset_delta}"
        if not header.is_control:
            # Compaction removes records and keeps the batch's offsets, so it may have fewer records than offsets.
            walk_records(batch_payload(view, position, header), header)
    except KafkaliteError as error:
        return str(error)
    return None


def _print_batch(
    view: memoryview, position: int, header: BatchHeader, fault: str | None, printer: Printer, path: Path
) -> None:
    if not printer.details:
        return
    time_name = "LogAppendTime" if header.timestamp_type is TimestampType.LOG_APPEND_TIME else "CreateTime"
    printer.line(
        "batch",
        {
            "baseOffset": header.base_offset,
            "lastOffset": header.last_offset,
            "count": header.record_count,
            "baseSequence": header.base_sequence,
            "lastSequence": header.last_sequence,
            "producerId": header.producer_id,
            "producerEpoch": header.producer_epoch,
            "partitionLeaderEpoch": header.partition_leader_epoch,
            "isTransactional": header.is_transactional,
            "isControl": header.is_control,
            "position": position,
            time_name: header.max_timestamp,
            "size": header.size_bytes,
            "magic": header.magic,
            "compresscodec": CODEC_NAMES.get(header.codec, str(header.codec)),
            "crc": header.crc,
            "isvalid": fault is None,
            # The time until which compaction keeps the batch's tombstones, stored in place of the base timestamp.
            **({"deleteHorizonMs": header.delete_horizon_ms} if header.delete_horizon_ms >= 0 else {}),
        },
    )
    if not printer.records or fault is not None or header.is_control:
        return
    topic, _, partition = path.absolute().parent.name.rpartition("-")
    topic_partition = (
        TopicPartition(topic, int(partition)) if topic and partition.isdecimal() else TopicPartition("", 0)
    )
    builder = ColumnBuilder(True)
    builder.add_batch(view, position, header, batch_payload(view, position, header) if header.codec else None)
    columns = builder.finish()
    for row in range(columns.count):
        record = Record(columns, row, *topic_partition)
        echo(record_to_json(record) if printer.as_json else _record_line(record, time_name))


def _record_line(record: Record, time_name: str) -> str:
    def size(data: bytes | None) -> int:
        return -1 if data is None else len(data)

    text = (
        f"| offset: {record.offset} {time_name}: {record.timestamp} keySize: {size(record.key)} "
        f"valueSize: {size(record.value)} headerKeys: [{','.join(name for name, _ in record.headers)}]"
    )
    if record.key is not None:
        text += f" key: {record.key.decode('utf-8', 'backslashreplace')}"
    if record.value is not None:
        text += f" payload: {record.value.decode('utf-8', 'backslashreplace')}"
    return text


# Indexes and small files --------------------------------------------------------------------------------------------


def _check_index(path: Path, report: Report, printer: Printer, spans: list[BatchSpan] | None) -> None:
    """Check that entries ascend and agree with the segment."""
    base_offset = _base_offset(path, report)
    is_time = path.suffix == ".timeindex"
    entry = (TimeIndex if is_time else OffsetIndex).ENTRY
    data = path.read_bytes()
    if len(data) % entry.size:
        report.damage.append(f"its size, {len(data)} bytes, is not a multiple of {entry.size}")
    # Kafka pre-allocates the index of its active segment: zeros at the end are unused space, not entries.
    used = len(data) // entry.size
    while used and not any(data[(used - 1) * entry.size : used * entry.size]):
        used -= 1
    if spans is None:
        report.damage.append(f"the segment {path.with_suffix('.log').name} is missing")
    by_position = {span.position: span for span in spans or ()}
    last_offsets = [span.last_offset for span in spans or ()]
    previous: tuple[int, int] | None = None
    for number in range(used):
        first, second = entry.unpack_from(data, number * entry.size)
        report.entries += 1
        offset = base_offset + (second if is_time else first)
        if printer.details:
            fields = {"timestamp": first, "offset": offset} if is_time else {"offset": offset, "position": second}
            printer.line("timestamp" if is_time else "position", fields)
        if previous is not None and (first <= previous[0] or second < previous[1]):
            report.damage.append(f"entry {number}: ({first}, {second}) does not ascend after {previous}")
        previous = (first, second)
        if spans is None:
            continue
        if is_time:
            place = bisect.bisect_left(last_offsets, offset)
            if place == len(last_offsets):
                report.damage.append(f"entry {number}: offset {offset} is beyond the end of the segment")
            elif spans[place].max_timestamp > first:
                report.damage.append(
                    f"entry {number}: timestamp {first} at offset {offset}, where the segment has "
                    f"{spans[place].max_timestamp}"
                )
        else:
            span = by_position.get(second)
            if span is None:
                report.damage.append(f"entry {number}: no batch begins at position {second}")
            elif span.last_offset != offset:
                report.damage.append(
                    f"entry {number}: offset {offset}, but the batch at position {second} ends with {span.last_offset}"
                )


def _check_snapshot(path: Path, report: Report, printer: Printer) -> None:
    # All producers, even if a broker would keep fewer.
    state = ProducerStateManager(ProducerIdLimits(max_ids=MAX_INT64))
    producer_snapshot.load(state, path.read_bytes(), _base_offset(path, report), str(path))
    if state.forgotten_seen_ms >= 0 and printer.details:
        printer.line("forgotten", {"forgottenProducersLastTimestamp": state.forgotten_seen_ms})
    for producer_id, producer in state.producers.items():
        report.entries += 1
        if printer.details:
            fields = {
                "producerId": producer_id,
                "producerEpoch": producer.producer_epoch,
                "lastSequence": producer.last_sequence,
                "lastTimestamp": producer.last_seen_ms,
                "currentTxnFirstOffset": producer.transaction_first_offset,
            }
            printer.line("producer", fields)


def _check_metadata(path: Path, report: Report, printer: Printer) -> None:
    metadata = read_partition_metadata(OsFs(), str(path))
    if metadata is None:
        return
    topic_id, partition = metadata
    key = topic_partition_of(path.absolute().parent.name)
    if key is not None and not metadata.may_be_of(key.partition):
        report.damage.append(f"the log is that of partition {partition}: give the directory its name back")
    if printer.details:
        printer.line("metadata", {"topicId": topic_id_text(topic_id), "partition": partition})


def _text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)

"""A log made of sealed segments, written batch by batch, cleaned by jobs, and read back: for tests of the cleaner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from spark_kafkalite.log.compaction.clean_job import CleanJob, CleanResult
from spark_kafkalite.log.compaction.cleaner import clean
from spark_kafkalite.log.compaction.plan import SourceSegment
from spark_kafkalite.log.files.fs import Fs, read_whole, write_whole
from spark_kafkalite.log.segments.segment import CLEANED_SUFFIX
from spark_kafkalite.model import Headers
from spark_kafkalite.records import kernel
from spark_kafkalite.records.columns import add_batch
from spark_kafkalite.records.layout import CRC_POSITION, CRC_START, HEADER_STRUCT, BatchHeader

NOW_MS = 1_700_000_000_000
DIRECTORY = "/data/t-0"
SUFFIXES = (".log", ".index", ".timeindex")


class Rec(NamedTuple):
    """What a test says of a record, and finds of it."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = NOW_MS
    headers: Headers = []


class Batch(NamedTuple):
    """What a reader finds of a batch."""

    header: BatchHeader
    records: dict[int, Rec]


def stored(
    base_offset: int,
    records: Sequence[Rec],
    *,
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    **header: int,
) -> bytes:
    """Return a batch as a log holds it; ``header`` are fields to set."""
    batch = kernel.OpenBatch(1 << 28)
    for record in records:
        assert batch.append(record.timestamp_ms, record.key, record.value, record.headers) >= 0
    producer_id, epoch, sequence = producer
    data = batch.build(codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    kernel.stamp(data, 0, base_offset, 5)
    if header:
        changed = kernel.read_header(data)._replace(**header)
        HEADER_STRUCT.pack_into(data, 0, *changed)
        seal(data)
    return bytes(data)


def seal(data: bytearray) -> None:
    """Set the CRC right."""
    from crc32c import crc32c

    data[CRC_POSITION:CRC_START] = crc32c(bytes(data[CRC_START:])).to_bytes(4, "big")


def batches_in(data: bytes) -> list[Batch]:
    """Decode and check some whole batches."""
    found, at = [], 0
    for header in kernel.scan_headers(data):
        builder = kernel.ColumnBuilder(True)
        add_batch(builder, data, at, header)
        columns = builder.finish()
        rows = range(columns.count)
        records = {
            columns.offset_at(row): Rec(
                columns.key_at(row), columns.value_at(row), columns.timestamp_at(row), columns.headers_at(row)
            )
            for row in rows
        }
        assert header.is_control or len(records) == header.record_count
        found.append(Batch(header, records))
        at += header.size_bytes
    assert at == len(data)
    return found


class CleanedLog:
    """Sealed segments in a directory; ``clean`` cleans them and puts the result in place."""

    def __init__(self, fs: Fs, directory: str = DIRECTORY) -> None:
        self.fs = fs
        self.directory = directory
        self.sources: list[SourceSegment] = []
        self.end_offset = 0
        self.checkpoint = 0
        fs.make_directories(directory)

    def path(self, base_offset: int, suffix: str = ".log") -> str:
        return f"{self.directory}/{base_offset:020d}{suffix}"

    def add_segment(self, batches: Sequence[bytes], base_offset: int | None = None) -> int:
        """Write batches as the next segment and return its base offset."""
        headers = [kernel.read_header(each) for each in batches]
        base = headers[0].base_offset if base_offset is None else base_offset
        write_whole(self.fs.open(self.path(base), create=True), b"".join(batches))
        self.sources.append(
            SourceSegment(base, sum(map(len, batches)), max((header.max_timestamp for header in headers), default=-1))
        )
        self.end_offset = max([base, *(header.next_offset for header in headers)])
        return base

    def job(self, now_ms: int = NOW_MS, **changes: object) -> CleanJob:
        job = CleanJob(
            self.directory,
            tuple(self.sources),
            self.checkpoint,
            self.end_offset,
            0,
            now_ms,
            1000,
            1 << 20,
            1 << 20,
            256,
            1 << 20,
            1 << 20,
            {},
        )
        return job._replace(**changes)  # type: ignore[arg-type]

    def clean(
        self, now_ms: int = NOW_MS, on_bytes: Callable[[int], None] = lambda count: None, **changes: object
    ) -> CleanResult:
        """Clean, and swap the files as the broker does."""
        result = clean(self.fs, self.job(now_ms, **changes), on_bytes)
        for group in result.groups:
            assert read_whole(self.fs, self.path(group.base_offset) + CLEANED_SUFFIX) is not None
            for base in group.sources:
                self.fs.unlink(self.path(base))
            for suffix in SUFFIXES:
                self.fs.rename(
                    self.path(group.base_offset, suffix) + CLEANED_SUFFIX, self.path(group.base_offset, suffix)
                )
            at = next(number for number, each in enumerate(self.sources) if each.base_offset == group.base_offset)
            self.sources[at : at + len(group.sources)] = [
                SourceSegment(group.base_offset, group.size_bytes, group.max_timestamp_ms)
            ]
        self.checkpoint = result.end_offset
        return result

    def data(self) -> bytes:
        return b"".join(read_whole(self.fs, self.path(each.base_offset)) for each in self.sources)

    def batches(self) -> list[Batch]:
        return batches_in(self.data())

    def records(self) -> dict[int, Rec]:
        return {offset: record for batch in self.batches() for offset, record in batch.records.items()}

    def values(self) -> dict[int, tuple[bytes | None, bytes | None]]:
        return {offset: (record.key, record.value) for offset, record in self.records().items()}

"""The copy that compaction makes: how fast the key map is built, and how fast segments are copied (no peer).

One thread, as the child process has, and its CPU time: how fast the disk takes what is written depends on the disk,
and the broker throttles it anyway. Half of the records have a later one of their key. Megabytes are those of the
segment that is read; building and copying each read it once. The bounds are ours: 100 MB/s when nothing is compressed.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.measurement import Row, warm_page_cache
from spark_kafkalite.log.compaction.clean_job import CleanJob
from spark_kafkalite.log.compaction.cleaner import clean
from spark_kafkalite.log.compaction.plan import SourceSegment
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.segments.segment import CLEANED_SUFFIX
from spark_kafkalite.records import kernel
from spark_kafkalite.records.compression import CODECS

NOW_MS = 1_700_000_000_000
BATCH_BYTES = 16_384


class Segment(NamedTuple):
    """A segment to clean."""

    directory: Path
    size_bytes: int
    record_count: int


def rows(quick: bool) -> Iterator[Row]:
    """Measure values of 100 bytes and 1 KB without a codec, and the smaller ones with zstd."""
    size_bytes = (20 if quick else 400) << 20
    rounds = 2 if quick else 5
    warm_page_cache(2 * size_bytes)
    for value_bytes, codec in ((100, "none"), (1000, "none"), (100, "zstd")):
        with tempfile.TemporaryDirectory() as directory:
            segment = _write_segment(Path(directory), size_bytes, value_bytes, codec)
            mapping, copying = zip(*(_clean(segment) for _ in range(rounds)), strict=True)
        what = f"{value_bytes} B values, {codec}"
        for doing, seconds in (("build the key map", mapping), ("filter and copy", copying)):
            bound = [] if codec == "zstd" else [100.0] * rounds
            speeds = [segment.size_bytes / each / 1e6 for each in seconds]
            yield Row(f"{doing}, {what}", "MB/s", speeds, bound, "bound", target=1 if bound else None)
            speeds = [segment.record_count / each / 1e6 for each in seconds]
            yield Row(f"{doing}, {what}", "M records/s", speeds, [], "none")


def _write_segment(directory: Path, size_bytes: int, value_bytes: int, codec: str) -> Segment:
    """Write batches of about 16 KiB before compression; values that codecs can do half with."""
    chance = random.Random(1)
    per_batch = max(1, BATCH_BYTES // (value_bytes + 30))
    keys = size_bytes // (value_bytes + 30) // 2
    values = [chance.randbytes(value_bytes // 2).hex().encode() for _ in range(1000)]
    written = offset = 0
    with (directory / f"{0:020d}.log").open("wb") as file:
        while offset < 2 * keys:
            batch = kernel.OpenBatch(1 << 24)
            for _ in range(per_batch):
                batch.append(NOW_MS, b"key-%010d" % chance.randrange(keys), chance.choice(values))
            data = batch.build(CODECS[codec])
            kernel.stamp(data, 0, offset, 0)
            written += file.write(data)
            offset += per_batch
    return Segment(directory, written, offset)


def _clean(segment: Segment) -> tuple[float, float]:
    """Return the seconds that the key map took, and those of the copy with its sync."""
    job = CleanJob(
        directory=str(segment.directory),
        sources=(SourceSegment(0, segment.size_bytes, NOW_MS),),
        first_dirty_offset=0,
        until_offset=segment.record_count,
        log_start_offset=0,
        now_ms=NOW_MS,
        delete_retention_ms=86_400_000,
        segment_bytes=1 << 30,
        segment_index_bytes=10 << 20,
        index_interval_bytes=4096,
        dedupe_buffer_bytes=128 << 20,
        max_decompressed_bytes=64 << 20,
        last_offset_by_producer={},
    )
    seen = 0
    mapped_s = 0.0

    def on_bytes(count: int) -> None:
        # The first pass has read all of the file before the second reads the first piece again.
        nonlocal seen, mapped_s
        if seen < segment.size_bytes:
            mapped_s = time.process_time()
        seen += count

    started_s = time.process_time()
    clean(OsFs(), job, on_bytes)
    ended_s = time.process_time()
    for path in segment.directory.glob(f"*{CLEANED_SUFFIX}"):
        path.unlink()
    return mapped_s - started_s, ended_s - mapped_s

"""Random logs, cleaned again and again by random jobs, against a model that knows nothing of files or key maps.

The model holds batches as lists of records and says after each cleaning exactly what must be there. A failure prints
its seed. Plain random numbers, not hypothesis: for operations as large as these it takes fifty times as long to draw
them as to run them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from spark_kafkalite.log.compaction import cleaner_files
from spark_kafkalite.log.compaction.clean_job import CleanResult
from spark_kafkalite.log.files.fs import read_whole
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from spark_kafkalite.testing.memory_fs import MemoryFs
from tests.seeds import SEED, SOAK
from tests.unit.log.compaction.cleaned_log import NOW_MS, CleanedLog, Rec, batches_in, stored

RETENTION_MS = 1000
KEYS = [b"k%d" % n for n in range(6)] + [b"", b"long" * 40]
TRANSACTIONAL_ID, OTHER_ID = 900, 901


class NewBatch(NamedTuple):
    """A batch to append: producers are numbered, None is none; ``gap`` offsets before it are missing."""

    records: list[Rec]
    codec: int
    producer: int | None
    gap: int
    append_time: bool
    transactional: bool
    marker: bool


class Cleaning(NamedTuple):
    """A cleaning to run: on a share of the segments, with room for some keys, after some time."""

    after_ms: int
    slots: int
    share: float
    segment_bytes: int
    active: set[int]
    checkpoint_lost: bool
    log_start_share: float


def random_operations(chance: random.Random) -> list[list[NewBatch] | Cleaning]:
    """Up to a dozen appends and cleanings in any order."""
    return [
        _random_cleaning(chance)
        if chance.random() < 0.5
        else [_random_batch(chance) for _ in range(chance.randint(1, 5))]
        for _ in range(chance.randint(2, 12))
    ]


def _random_record(chance: random.Random) -> Rec:
    return Rec(
        None if chance.random() < 0.1 else chance.choice(KEYS),
        chance.choice([None, b"", b"value" * 30, b"%d" % chance.randrange(1000)]),
        chance.choice([NOW_MS + chance.randint(-50, 50), NOW_MS, -1, 0, 2**45]),
        chance.choice([[], [], [("h", b"1"), ("n", None)]]),
    )


def _random_batch(chance: random.Random) -> NewBatch:
    return NewBatch(
        [_random_record(chance) for _ in range(chance.randint(1, 6))],
        codec=chance.choice([0, 0, 0, 1, 2, 3, 4]),
        producer=chance.choice([None, 0, 1, 2]),
        gap=chance.choice([0, 0, 0, 3]),
        append_time=chance.random() < 0.2,
        transactional=chance.random() < 0.1,
        marker=chance.random() < 0.1,
    )


def _random_cleaning(chance: random.Random) -> Cleaning:
    return Cleaning(
        after_ms=chance.choice([0, 1, 500, 999, 1000, 5000]),
        slots=chance.choice([2, 4, 9, 1000, 1000]),
        share=chance.choice([1.0, 1.0, 0.5]),
        segment_bytes=chance.choice([1, 400, 1200, 1 << 20]),
        active={number for number in range(3) if chance.random() < 0.5},
        checkpoint_lost=chance.random() < 0.1,
        log_start_share=chance.choice([0.0, 0.0, 0.0, 0.3, 0.7]),
    )


@dataclass
class ModelBatch:
    """What must be found of a batch; ``raw`` are its bytes as long as not one of them may change."""

    raw: bytes | None
    header: BatchHeader
    records: dict[int, Rec]

    @property
    def has_horizon(self) -> bool:
        return bool(self.header.attributes & DELETE_HORIZON_BIT)


class Model:
    """The log, and what was ever written to it."""

    def __init__(self) -> None:
        self.log = CleanedLog(MemoryFs())
        self.now_ms = NOW_MS
        self.batches: list[ModelBatch] = []
        self.written: dict[int, Rec] = {}
        self.sequences = [0, 0, 0]
        self.last_offsets: dict[int, int] = {}
        self.log_start_offset = 0

    def append(self, new_batches: list[NewBatch]) -> None:
        raws = []
        end_offset = first = self.log.end_offset
        for new in new_batches:
            base = end_offset + new.gap
            raws.append(self._make(new, base))
            header = kernel.read_header(raws[-1])
            (batch,) = batches_in(raws[-1])
            self.batches.append(ModelBatch(raws[-1], header, batch.records))
            self.written.update(batch.records)
            if header.producer_id >= 0:
                self.last_offsets[header.producer_id] = header.last_offset
            end_offset = header.next_offset
        self.log.add_segment(raws, first)

    def _make(self, new: NewBatch, base: int) -> bytes:
        attributes = new.codec | (LOG_APPEND_TIME_BIT if new.append_time else 0)
        if new.marker:
            marker = Rec(b"\0\0\0\0", b"\0" * 6)
            attributes = CONTROL_BIT | TRANSACTIONAL_BIT
            return stored(base, [marker], producer=(TRANSACTIONAL_ID, 0, -1), attributes=attributes)
        producer = (-1, -1, -1)
        if new.transactional:
            attributes |= TRANSACTIONAL_BIT
            producer = (OTHER_ID, 0, 0)
        elif new.producer is not None:
            producer = (new.producer, 4, self.sequences[new.producer])
            self.sequences[new.producer] += len(new.records)
        return stored(base, new.records, codec=new.codec, producer=producer, attributes=attributes)

    def clean(self, how: Cleaning) -> None:
        log = self.log
        if not log.sources:
            return
        self.now_ms += how.after_ms
        if how.checkpoint_lost:
            log.checkpoint = 0
        count = max(1, round(len(log.sources) * how.share))
        until = log.sources[count].base_offset if count < len(log.sources) else log.end_offset
        first_end = log.sources[1].base_offset if len(log.sources) > 1 else log.end_offset
        self.log_start_offset = max(self.log_start_offset, int(how.log_start_share * (first_end - 1)))
        first_dirty = min(max(log.checkpoint, self.log_start_offset), until)
        active = {producer: offset for producer, offset in self.last_offsets.items() if producer in how.active}
        untouched = [read_whole(log.fs, log.path(each.base_offset)) for each in log.sources[count:]]
        before = log.checkpoint
        result = log.clean(
            self.now_ms,
            sources=tuple(log.sources[:count]),
            until_offset=until,
            first_dirty_offset=first_dirty,
            log_start_offset=self.log_start_offset,
            dedupe_buffer_bytes=24 * how.slots,
            segment_bytes=how.segment_bytes,
            delete_retention_ms=RETENTION_MS,
            last_offset_by_producer=active,
        )
        log.checkpoint = max(before, result.end_offset)
        end = self._expected_end(first_dirty, until, how.slots * 9 // 10)
        assert result.end_offset == end
        assert end > first_dirty or first_dirty == until, "there must be progress"
        self._expect_cleaned(first_dirty, end, until, active)
        assert untouched == [
            read_whole(log.fs, log.path(each.base_offset)) for each in log.sources if each.base_offset >= until
        ]
        self._check(result, end)

    def _expected_end(self, first_dirty: int, until: int, capacity: int) -> int:
        keys = set()
        for batch in self.batches:
            if batch.header.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT):
                continue
            for offset, record in batch.records.items():
                if first_dirty <= offset < until and record.key is not None:
                    if record.key not in keys and len(keys) == capacity:
                        return offset
                    keys.add(record.key)
        return until

    def _expect_cleaned(self, first_dirty: int, end: int, until: int, active: dict[int, int]) -> None:
        last_offsets = {
            record.key: offset
            for batch in self.batches
            for offset, record in batch.records.items()
            if offset < end and not batch.header.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)
        }
        left = []
        for batch in self.batches:
            header = batch.header
            if header.base_offset < end and not header.is_control:
                kept = {
                    offset: record
                    for offset, record in batch.records.items()
                    if offset >= self.log_start_offset
                    and self._stays(batch, offset, record, first_dirty, end, last_offsets)
                }
                tombstones = any(record.key is not None and record.value is None for record in kept.values())
                stays_empty = active.get(header.producer_id) == header.last_offset or header.next_offset == until
                if not kept and not stays_empty:
                    continue
                if tombstones and not header.is_transactional and not batch.has_horizon and header.next_offset <= end:
                    batch.header = header._replace(
                        attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=self.now_ms + RETENTION_MS
                    )
                    batch.raw = None
                if len(kept) < len(batch.records):
                    batch.raw = None
                if batch.raw is None and not kept:
                    batch.header = header._replace(
                        attributes=header.attributes & ~(DELETE_HORIZON_BIT | 7),
                        base_timestamp=-1,
                        max_timestamp=-1,
                    )
                elif batch.raw is None and not header.attributes & LOG_APPEND_TIME_BIT:
                    largest = max(record.timestamp_ms for record in kept.values())
                    batch.header = batch.header._replace(max_timestamp=largest)
                batch.records = kept
            left.append(batch)
        self.batches = left

    def _stays(
        self,
        batch: ModelBatch,
        offset: int,
        record: Rec,
        first_dirty: int,
        end: int,
        last_offsets: dict[bytes | None, int],
    ) -> bool:
        if offset >= end:
            return True
        if record.key is None or last_offsets.get(record.key, -1) > offset:
            return False
        is_past_horizon = batch.has_horizon and batch.header.base_timestamp <= self.now_ms and offset < first_dirty
        return not (record.value is None and is_past_horizon and not batch.header.is_transactional)

    def _check(self, result: CleanResult, end: int) -> None:
        found = self.log.batches()
        assert len(found) == len(self.batches)
        data, at = self.log.data(), 0
        for batch, expected in zip(found, self.batches, strict=True):
            raw = data[at : at + batch.header.size_bytes]
            at += len(raw)
            assert expected.raw in (None, raw)
            assert batch.records == expected.records
            counted = expected.header._replace(
                record_count=1 if expected.header.is_control else len(expected.records),
                batch_length=batch.header.batch_length,
                crc=batch.header.crc,
            )
            assert batch.header == counted
            expected.raw, expected.header = raw, batch.header
        horizons = [
            batch.header.base_timestamp
            for batch in self.batches
            if batch.has_horizon and not batch.header.is_transactional and batch.header.base_offset < end
            if any(record.value is None for record in batch.records.values())
        ]
        assert result.next_horizon_ms == min(horizons, default=-1)
        assert sum(group.size_bytes for group in result.groups) == result.bytes_written
        assert state(self.log.records(), self.log_start_offset) == state(self.written, self.log_start_offset)


def state(records: dict[int, Rec], log_start_offset: int) -> dict[bytes, Any]:
    """What a reader from the start makes of a log."""
    found: dict[bytes, Any] = {}
    for offset in sorted(records):
        record = records[offset]
        if record.key is None or offset < log_start_offset:
            continue
        if record.value is None:
            found.pop(record.key, None)
        else:
            found[record.key] = offset, record.value, record.headers
    return found


SEEDS_PER_CASE = 1_000 if SOAK else 40


@pytest.mark.parametrize("piece_bytes", [70, 300, 1000, 1 << 20])
def test_random_cleanings_of_random_logs(monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
    monkeypatch.setattr(cleaner_files, "_PIECE_BYTES", piece_bytes)
    for seed in range(SEED, SEED + SEEDS_PER_CASE):
        try:
            run(seed)
        except BaseException:
            print(f"run({seed}) fails")
            raise


def run(seed: int) -> None:
    operations = random_operations(random.Random(seed))
    model = Model()
    for operation in operations:
        if isinstance(operation, Cleaning):
            model.clean(operation)
        else:
            model.append(operation)
    # To the end: nothing is left to do then but for horizons.
    everything = Cleaning(0, 1000, 1.0, 1 << 20, set(), False, 0.0)
    model.clean(everything)
    keys = [
        record.key for batch in model.batches for record in batch.records.values() if not batch.header.is_transactional
    ]
    assert len(keys) == len(set(keys)) and None not in keys
    model.clean(everything._replace(after_ms=RETENTION_MS))
    kept = [record for batch in model.batches for record in batch.records.values() if not batch.header.is_transactional]
    assert all(record.value is not None for record in kept)

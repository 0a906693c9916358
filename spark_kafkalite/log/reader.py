"""Finds batches in a log: the slice to send for an offset, and records by time.

Both go from the segments' sorted base offsets to a segment, from its sparse index to a position, and then walk batch
headers. Reads at the end of the log, and reads that go on where another ended, find their position in a small table
instead: that is what nearly all consumers do.

A look-up by time may have to walk far: past a million batches of one timestamp, of which the time index has only the
first. Where reads may not wait, it stops after some batches with WalkGoesOn and remembers how far it came, so that the
same look-up goes on from there. A compressed batch is unpacked by a thread (DecodeFirst).

Nothing here knows the log's bounds; ``PartitionLog`` checks them and names the partition in errors.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_kafkalite.errors import KafkaError
from spark_kafkalite.log.files.fs import File
from spark_kafkalite.log.files.needs_thread import NeedsThread, NotInMemory, may_wait
from spark_kafkalite.log.loading.damage import DamageLines
from spark_kafkalite.log.segments.segment import LOOK_UP_BYTES, Found, LogSlice, Segment
from spark_kafkalite.log.segments.segment_list import Segments
from spark_kafkalite.records.columns import add_batch
from spark_kafkalite.records.compression import NONE
from spark_kafkalite.records.kernel import ColumnBuilder
from spark_kafkalite.records.layout import HEADER_BYTES, BatchHeader

# How many batch starts are remembered; the whole table is dropped when it is full.
_REMEMBERED_POSITIONS = 256
# How far back a producer's batches are looked for, first and if there were few: some ten milliseconds' work.
_LATE_BYTES = (1 << 20, 8 << 20)
_FEW_BATCHES = 1000
# How many batches a look-up by time walks before others get their turn: a few milliseconds' work.
_WALKED_AT_ONCE = 1000
# How much of the log a thread reads for a walk that has missed, and how many walks are remembered.
_WALK_WINDOW_BYTES = 512 << 10
_REMEMBERED_WALKS = 64


class TimestampOffset(NamedTuple):
    """A record found by time."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class _Asked(NamedTuple):
    """Which record of a batch is looked for."""

    base_offset: int
    timestamp_ms: int
    start_offset: int
    until_offset: int


class WalkGoesOn(NeedsThread):
    """A look-up has walked long enough for one turn; nothing has to be read."""

    goes_on = True

    def __init__(self) -> None:
        super().__init__("the look-up goes on")

    def work(self) -> None:
        pass


class DecodeFirst(NeedsThread):
    """A look-up came to a compressed batch, which a thread unpacks: that may be 64 MiB out of a few kilobytes."""

    goes_on = True

    def __init__(
        self,
        results: dict[_Asked, TimestampOffset | KafkaError | OSError | None],
        asked: _Asked,
        file: File,
        found: Found,
        damage: DamageLines,
    ) -> None:
        super().__init__(f"the batch at {found.position} of {file.path} is compressed")
        self._results = results
        self._asked = asked
        self._file = file
        self._found = found
        self._damage = damage

    def work(self) -> None:
        header = self._found.header
        try:
            data = self._file.pread(header.size_bytes, self._found.position)
            self._damage.look(data, header, self._file.path, self._found.position)
            self._results[self._asked] = _record_at_or_after(data, header, self._asked)
        except (KafkaError, OSError) as error:
            # For the look-up, which begins anew, to raise.
            self._results[self._asked] = error


class LogReader:
    """Reads the segments of one log."""

    __slots__ = ("_boundaries", "_damage", "_decoded", "_positions", "_segments", "_walks")

    def __init__(self, segments: Segments, damage: DamageLines) -> None:
        self._segments = segments
        self._damage = damage
        # Base offset of a batch to its position in its segment.
        self._positions: dict[int, int] = {}
        # (Base offset of a segment, position in it, limit in bytes) to the end of the batches that were read: others
        # read the same with the same limit, such as the consumers of other groups.
        self._boundaries: dict[tuple[int, int, int], int] = {}
        # How far look-ups by time have come: (timestamp, base offset of the segment) to a position in it.
        self._walks: dict[tuple[int, int], int] = {}
        # What threads have found in compressed batches, until the look-up takes it.
        self._decoded: dict[_Asked, TimestampOffset | KafkaError | OSError | None] = {}

    def remember(self, base_offset: int, position: int) -> None:
        """Note where a batch starts in its segment."""
        positions = self._positions
        if len(positions) >= _REMEMBERED_POSITIONS:
            positions.clear()
        positions[base_offset] = position

    def forget_positions(self) -> None:
        """Drop what is remembered; needed when batches move or go."""
        self._positions.clear()
        self._boundaries.clear()
        self._walks.clear()
        # A new one: threads that decode what may be gone keep the old one.
        self._decoded = {}

    def slice(
        self,
        start_offset: int,
        max_bytes: int,
        until_offset: int,
        end_offset: int,
        at_least_one: bool,
        ends_at_damage: bool = False,
        read_bytes: int = LOOK_UP_BYTES,
    ) -> LogSlice | None:
        """See ``PartitionLog.read``; the offsets have been checked against the log. ``ends_at_damage``: what lies at
        ``until_offset`` cannot be read. ``read_bytes``: how much is read for headers at a time. Raises CorruptMessage,
        SegmentCut, OSError."""
        segment = self._segments.floor(start_offset)
        position = self._positions.get(start_offset)
        if position is None:
            located = self._locate(segment, start_offset, until_offset, read_bytes)
            if located is None:
                return None
            segment, position = located
        following = self._segments.after(segment) if segment is not self._segments.active else None
        segment_end = end_offset if following is None else following.base_offset
        if ends_at_damage and until_offset <= segment_end:
            until_position = segment.end_before(until_offset)
        elif until_offset >= segment_end:
            until_position = segment.size_bytes
        else:
            until_position = self._until_position(segment, until_offset, read_bytes)
        if until_position <= position:
            return None
        end = until_position
        if end - position > max_bytes:
            end = self._boundary_within(segment, position, max_bytes, until_position, read_bytes)
            if end - position > max_bytes and not at_least_one:
                return None
        if following is not None:
            segment.check_reaches(end)
        return LogSlice(segment.file, position, end - position, start_offset, segment.sending)

    def _locate(
        self, segment: Segment, start_offset: int, until_offset: int, read_bytes: int
    ) -> tuple[Segment, int] | None:
        """Return the first batch that ends at or after ``start_offset``: here, or after a gap in a later segment."""
        candidate: Segment | None = segment
        while candidate is not None and candidate.base_offset < until_offset:
            found = candidate.find(start_offset, read_bytes=read_bytes)
            if found is not None:
                if found.header.base_offset == start_offset:
                    self.remember(start_offset, found.position)
                return (candidate, found.position) if found.header.base_offset < until_offset else None
            candidate = self._segments.after(candidate)
        return None

    def _until_position(self, segment: Segment, until_offset: int, read_bytes: int) -> int:
        position = self._positions.get(until_offset)
        if position is None:
            found = segment.find(until_offset, read_bytes=read_bytes)
            position = segment.size_bytes if found is None else found.position
        return position

    def _boundary_within(
        self, segment: Segment, position: int, max_bytes: int, until_position: int, read_bytes: int
    ) -> int:
        """As ``Segment.boundary_within``, but what was found before is not looked for again."""
        boundaries, key = self._boundaries, (segment.base_offset, position, max_bytes)
        end = boundaries.get(key, until_position + 1)
        if end > until_position:
            end = segment.boundary_within(position, max_bytes, until_position, read_bytes=read_bytes)
            self._remember_boundary(segment, end)
            if len(boundaries) >= _REMEMBERED_POSITIONS:
                boundaries.clear()
            boundaries[key] = end
        return end

    def _remember_boundary(self, segment: Segment, position: int) -> None:
        """Note which offset begins where a read ended, for the read that goes on from there."""
        if position < segment.size_bytes:
            try:
                found = next(segment.headers(position, position + 1, read_bytes=HEADER_BYTES))
            except NeedsThread:
                # Not worth waiting for: that read will find its way by the index.
                return
            self.remember(found.header.base_offset, position)

    def late_batches_of(self, producer_id: int) -> list[tuple[int, BatchHeader]]:
        """Return (base offset, header) of a producer's batches near the end of the log, in order.

        Near enough for what a producer may have in flight, and bounded, because the caller waits: large batches are
        looked for further back than small ones, which take longer to walk.
        """
        found: list[tuple[int, BatchHeader]] = []
        for window_bytes in _LATE_BYTES:
            found, walked = [], 0
            for segment, start in self._last_bytes(window_bytes):
                for _, header in segment.headers(start, read_bytes=65536):
                    walked += 1
                    if header.producer_id == producer_id:
                        found.append((header.base_offset, header))
            if walked > _FEW_BATCHES:
                break
        return found

    def _last_bytes(self, window_bytes: int) -> list[tuple[Segment, int]]:
        """Return segments and positions in them from which on the log is about ``window_bytes`` long."""
        late: list[tuple[Segment, int]] = []
        for segment in self._segments.backwards():
            late.append((segment, segment.boundary_before(max(0, segment.size_bytes - window_bytes))))
            window_bytes -= segment.size_bytes
            if window_bytes <= 0:
                break
        return late[::-1]

    def at_or_after(self, timestamp_ms: int, start_offset: int, until_offset: int) -> TimestampOffset | None:
        """Return the first record at or after ``timestamp_ms`` with an offset in the range; None when there is none."""
        for segment in self._segments.from_offset(start_offset):
            if segment.base_offset >= until_offset:
                break
            if segment.max_timestamp[0] < timestamp_ms:
                continue
            record, ended = self._walk(segment, timestamp_ms, start_offset, until_offset)
            if record is not None or ended:
                return record
        return None

    def _walk(
        self, segment: Segment, timestamp_ms: int, start_offset: int, until_offset: int
    ) -> tuple[TimestampOffset | None, bool]:
        """Look for the record in one segment; return it, and whether ``until_offset`` was reached."""
        key = timestamp_ms, segment.base_offset
        offset = max(segment.offset_before(timestamp_ms), start_offset)
        position = max(segment.position_before(offset), self._walks.pop(key, 0))
        walked = 0
        try:
            for found in segment.headers(position):
                position = found.position
                if found.header.base_offset >= until_offset:
                    return None, True
                if walked >= _WALKED_AT_ONCE and not may_wait():
                    raise WalkGoesOn
                walked += 1
                if found.header.max_timestamp < timestamp_ms or found.header.last_offset < offset:
                    continue
                record = self._record_at_or_after(segment, found, timestamp_ms, start_offset, until_offset)
                if record is not None:
                    return record, False
        except NeedsThread as missing:
            if len(self._walks) >= _REMEMBERED_WALKS:
                self._walks.clear()
            self._walks[key] = position
            if walked > 1:
                missing.goes_on = True
                if isinstance(missing, NotInMemory):
                    missing.window_bytes = _WALK_WINDOW_BYTES
            raise
        return None, False

    def with_max_timestamp(self, start_offset: int, until_offset: int) -> TimestampOffset | None:
        """Return the first record with the largest timestamp of those in the range; None when there is none."""
        best: tuple[int, Segment, Found] | None = None
        for segment in self._segments.from_offset(start_offset):
            if segment.base_offset >= until_offset:
                break
            found = _max_timestamp_batch(segment, start_offset, until_offset)
            if found is not None and (best is None or found.header.max_timestamp > best[0]):
                best = found.header.max_timestamp, segment, found
        if best is None:
            return None
        return self._record_at_or_after(best[1], best[2], best[0], start_offset, until_offset)

    def _record_at_or_after(
        self, segment: Segment, found: Found, timestamp_ms: int, start_offset: int, until_offset: int
    ) -> TimestampOffset | None:
        header = found.header
        asked = _Asked(header.base_offset, timestamp_ms, start_offset, until_offset)
        if header.codec == NONE or may_wait():
            data = segment.read_batch(found)
            self._damage.look(data, header, segment.log_path, found.position)
            return _record_at_or_after(data, header, asked)
        if asked not in self._decoded:
            if len(self._decoded) >= _REMEMBERED_WALKS:
                self._decoded.clear()
            raise DecodeFirst(self._decoded, asked, segment.file, found, self._damage)
        record = self._decoded.pop(asked)
        if isinstance(record, Exception):
            raise record
        return record


def _max_timestamp_batch(segment: Segment, start_offset: int, until_offset: int) -> Found | None:
    """Return the first batch with the largest timestamp in the part of a segment that may be read."""
    timestamp, offset = segment.max_timestamp
    if timestamp < 0:
        return None
    if start_offset <= offset < until_offset:
        return segment.find(offset)
    best: Found | None = None
    # The largest time is hidden or gone. Up to its last entry that may be read, the time index knows the largest one.
    known = segment.largest_before(until_offset)
    walk_from = start_offset if known is None else max(known[1], start_offset)
    for found in segment.headers(segment.position_before(walk_from)):
        header = found.header
        if header.base_offset >= until_offset:
            break
        if header.last_offset < start_offset or header.max_timestamp < 0:
            continue
        if best is None or header.max_timestamp > best.header.max_timestamp:
            best = found
    return best


def _record_at_or_after(data: bytes, header: BatchHeader, asked: _Asked) -> TimestampOffset | None:
    """Return the first record of a batch at or after a time, None when its header promised too much."""
    builder = ColumnBuilder(False)
    add_batch(builder, data, 0, header, first_offset=asked.start_offset, until_offset=asked.until_offset)
    columns = builder.finish()
    for row in range(columns.count):
        record_ms = columns.timestamp_at(row)
        if record_ms >= asked.timestamp_ms:
            return TimestampOffset(columns.offset_at(row), record_ms, header.partition_leader_epoch)
    return None

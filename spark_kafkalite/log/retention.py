"""Which segments of a log retention may delete: Kafka's rules as one pure function.

Only whole segments go, from the oldest on, up to the first that stays. A segment goes when one of the three holds:

=========  =============================  ==================================================================
rule       with ``cleanup.policy``        holds when
=========  =============================  ==================================================================
log start  any                            the next segment begins at or below the log start offset
                                          (DeleteRecords; never the active segment)
size       delete, retention.bytes >= 0   without it the log still takes retention.bytes or more: the log
                                          stays up to one segment above the limit, never below it
time       delete, retention.ms >= 0      its largest timestamp is more than retention.ms ago; when no
                                          record has one, that of the file's last write
=========  =============================  ==================================================================

and none of these forbids it:

* it ends beyond ``until_offset``: what is not committed (with ``visibility.policy=flushed``, not shown) never goes;
* it is the active segment and empty. An active segment that is not empty may expire: it is rolled first.

Time is the wall clock's. Set back, it makes everything look younger: nothing goes that would not have gone, and what is
due goes later. Set forward, it makes everything look older, and what is too old by it goes, as in Kafka. A broker
cannot distinguish a clock that was put right from one that was put wrong, so hosts should step their clocks only before
the broker starts. A record from the future keeps its segment, and all later ones, until its time has come.

Source: UnifiedLog.deleteOldSegments and LogSegment.largestTimestamp of Apache Kafka 3.9.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from typing import Final, NamedTuple

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.segments.segment import Segment
from spark_kafkalite.log.segments.segment_list import Segments
from spark_kafkalite.log.segments.time_index import TimeIndex
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.records.layout import BatchHeader

# What a walk of a segment reads at once.
_READ_BYTES: Final = 1 << 20


class Reason(Enum):
    """Why a segment goes."""

    LOG_START = "below the log start offset"
    SIZE = "beyond retention.bytes"
    TIME = "older than retention.ms"


class SegmentFacts(NamedTuple):
    """What the rules ask about a segment."""

    # Where the next one begins; the log end for the active one.
    next_base_offset: int
    size_bytes: int
    # None when it would have to be read first.
    largest_timestamp_ms: int | None
    is_active: bool = False


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """What holds for one log at one moment. -1 for a limit is no limit."""

    deletes: bool
    retention_ms: int
    retention_bytes: int
    log_start_offset: int
    # Segments that end beyond it stay.
    until_offset: int
    now_ms: int

    @classmethod
    def of(cls, config: TopicConfig, *, log_start_offset: int, until_offset: int, now_ms: int) -> RetentionRules:
        """Return the rules of a topic's settings."""
        return cls(
            "delete" in config.cleanup_policy,
            config.retention_ms,
            config.retention_bytes,
            log_start_offset,
            until_offset,
            now_ms,
        )

    def is_expired(self, timestamp_ms: int) -> bool:
        """Return whether a segment with this largest timestamp is too old."""
        return self.deletes and 0 <= self.retention_ms < self.now_ms - timestamp_ms


class RetentionPlan(NamedTuple):
    """What may go."""

    # Of each segment that goes, oldest first.
    reasons: tuple[Reason, ...]
    # Where the log begins afterwards; None when nothing goes.
    log_start_offset: int | None
    # The last of them is the active one.
    includes_active: bool
    # The next one's largest timestamp decides and is not known: read it, and ask again.
    needs_timestamp: bool


def plan_retention(segments: Iterable[SegmentFacts], size_bytes: int, rules: RetentionRules) -> RetentionPlan:
    """Return which of a log's ``segments``, given from the oldest on, may go; ``size_bytes`` is what they take."""
    reasons: list[Reason] = []
    new_start: int | None = None
    includes_active = needs_timestamp = False
    # How much may go before the log falls below retention.bytes.
    excess_bytes = size_bytes - rules.retention_bytes if rules.deletes and rules.retention_bytes >= 0 else -1
    for segment in segments:
        if segment.next_base_offset > rules.until_offset or (segment.is_active and not segment.size_bytes):
            break
        if not segment.is_active and segment.next_base_offset <= rules.log_start_offset:
            reason = Reason.LOG_START
        elif excess_bytes - segment.size_bytes >= 0:
            reason = Reason.SIZE
        elif not rules.deletes or rules.retention_ms < 0:
            break
        elif segment.largest_timestamp_ms is None:
            needs_timestamp = True
            break
        elif rules.is_expired(segment.largest_timestamp_ms):
            reason = Reason.TIME
        else:
            break
        excess_bytes -= segment.size_bytes
        reasons.append(reason)
        new_start = segment.next_base_offset
        includes_active = segment.is_active
    return RetentionPlan(tuple(reasons), new_start, includes_active, needs_timestamp)


def segment_facts(segments: Segments, log_end_offset: int) -> Iterator[SegmentFacts]:
    """Yield the facts of a log's segments, oldest first, as they are asked for."""
    previous: Segment | None = None
    for segment in segments:
        if previous is not None:
            yield SegmentFacts(segment.base_offset, previous.size_bytes, previous.largest_timestamp_ms)
        previous = segment
    active = segments.active
    yield SegmentFacts(log_end_offset, active.size_bytes, active.largest_timestamp_ms, is_active=True)


# Timestamps of sealed segments ---------------------------------------------------------------------------------------


class TimestampSource(NamedTuple):
    """Where the largest timestamp of a segment can be read."""

    directory: str
    base_offset: int
    size_bytes: int
    index_entries: int
    time_index_entries: int

    @classmethod
    def of(cls, segment: Segment) -> TimestampSource:
        """Return where to read that of ``segment``."""
        return cls(
            segment.log_path.rpartition("/")[0],
            segment.base_offset,
            segment.size_bytes,
            segment.offset_index.count,
            segment.time_index.count,
        )

    def read(self, fs: Fs) -> int:
        """Read it, from files of its own: the log's belong to the loop. FileNotFoundError when they have gone."""
        segment = _SegmentReadAside(
            OpenFiles(fs),
            self.directory,
            self.base_offset,
            self.size_bytes,
            index_entries=self.index_entries,
            time_index_entries=self.time_index_entries,
        )
        # A segment that cannot be read goes by its file's time.
        timestamp_ms = -1
        with contextlib.suppress(FileNotFoundError, CorruptMessage):
            timestamp_ms = segment.max_timestamp[0]
        return timestamp_ms if timestamp_ms >= 0 else fs.modified_ms(segment.log_path)


class _SegmentReadAside(Segment):
    """A segment as it was when the loop was asked: meanwhile the cleaner may give its name to other files.

    So what is found to be damaged may be sound files of another segment: this writes nothing and logs nothing. The
    segment of the log finds real damage at its next look-up.
    """

    __slots__ = ()

    def rebuild_indexes(self, reason: str) -> BatchHeader | None:
        """Rebuild the time index in memory; see ``Segment.rebuild_indexes``."""
        newest, last = (-1, self.base_offset), None
        with contextlib.suppress(CorruptMessage):
            for found in self.headers(0, read_bytes=_READ_BYTES):
                last = found.header
                newest = max(newest, (last.max_timestamp, last.last_offset), key=itemgetter(0))
        self.time_index = TimeIndex(self.files, self.time_index.path, self.base_offset)
        self.time_index.maybe_append(*newest)
        return last


def read_largest_timestamps(fs: Fs, sources: Sequence[TimestampSource], expired_before_ms: int) -> list[int]:
    """Read one segment after the other until the first that is not expired; may run in any thread.

    A segment that has gone meanwhile ends it too. OSError comes out when the disk fails.
    """
    found: list[int] = []
    for source in sources:
        try:
            timestamp_ms = source.read(fs)
        except FileNotFoundError:
            break
        found.append(timestamp_ms)
        if timestamp_ms >= expired_before_ms:
            break
    return found

"""Records that are missing from the middle or the end of a log, and the warning about them at a start.

A disk, a restored backup or a person may take away what a log had on the disk: a segment, a part of one, the whole
directory. Nothing brings it back, and readers pass over a hole without a word, so a start looks for holes and writes
one ERROR line for each log, with the offsets and how many they are.

A start uses:

* After a clean stop, the sizes of all segments, which the stop has left in the clean-shutdown marker next to Kafka's
  fields (``"segments":{"t-0":[[base offset, bytes],...]}``; Kafka checks the name of the file only). So no segment is
  read, and a hole is logged once. The marker also has the leader epoch of each log's last record
  (``"epochs":{"t-0":3}``), for ``epoch_check``.
* Where there are none (after a crash, or a stop of Apache Kafka) the end of each sealed segment is compared with the
  name of the next one. This does not work for a compacted log, whose gaps are intended. The start of the log is in the
  file of leader epochs, and its end in two files that have to agree: a damaged one makes no hole.

The log goes on behind a hole at its end, with the offset that it had come to: an offset that was given once is never
given to another record, which a consumer that had come so far would miss. The hole is spanned by a batch without
records, at the beginning of a new segment: readers pass it as they pass what compaction has emptied, and come to the
end of the log although nothing follows yet. (Without a record before it the log starts behind the hole instead.)
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.damaged_ranges import without
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.files.small_files import CLEAN_SHUTDOWN_FILE, LOG_START_OFFSET_FILE, CheckpointError
from spark_kafkalite.log.segments.segment import LOG_SUFFIX, LOOK_UP_BYTES, Segment
from spark_kafkalite.log.segments.segment_list import Segments
from spark_kafkalite.model import NO_LEADER_EPOCH
from spark_kafkalite.printable import first_of
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import HEADER_BYTES, MAX_INT64

logger = logging.getLogger(__name__)

# Base offset to bytes, of each segment of a log.
SegmentSizes = Mapping[int, int]

_SEGMENTS: Final = "segments"
_EPOCHS: Final = "epochs"
# What a walk over a whole segment reads at once.
READ_BYTES: Final = 1 << 20
# How many holes of a log its line names.
_NAMED: Final = 5


class Hole(NamedTuple):
    """Offsets that are missing; ``end_offset`` is exclusive."""

    start_offset: int
    end_offset: int
    reason: str


def report(where: str, holes: Iterable[Hole]) -> None:
    """Write the line about the holes of one log, if there are any. ``where``: its directory."""
    found = [hole for hole in holes if hole.end_offset > hole.start_offset]
    if not found:
        return
    count = sum(hole.end_offset - hole.start_offset for hole in found)
    texts = [f"{hole.start_offset} to {hole.end_offset - 1} ({hole.reason})" for hole in found]
    logger.error(
        "%s: %d offsets are missing in %s: %s. A replica copies them from its leader, if that has them. If no "
        "other broker has them, readers pass over them: restore the files from a backup while the broker is stopped, "
        "or produce the records again",
        where.rpartition("/")[2],
        count,
        where,
        first_of(texts, _NAMED, "holes"),
    )


class StoppedLog(NamedTuple):
    """What a clean stop writes about one log: its segments, and the leader epoch of its last record (-1: not known)."""

    segments: SegmentSizes
    last_record_epoch: int = NO_LEADER_EPOCH


def marker_text(logs: Mapping[str, StoppedLog]) -> bytes:
    """Return the content of the clean stop's marker: Kafka's two fields, and the facts about each log."""
    segments = {name: sorted(log.segments.items()) for name, log in logs.items()}
    epochs = {name: log.last_record_epoch for name, log in logs.items() if log.last_record_epoch >= 0}
    fields = {"version": 0, "brokerEpoch": -1, _SEGMENTS: segments, _EPOCHS: epochs}
    return json.dumps(fields, separators=(",", ":")).encode()


def read_marker(data: bytes) -> dict[str, StoppedLog]:
    """Return the marker's facts about each log; empty when it is Apache Kafka's (empty, or JSON with other fields), or
    a damaged one of this broker. Raises CheckpointError for content that no broker writes: then it is no sign of a
    clean stop."""
    try:
        found = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        raise CheckpointError(f"{CLEAN_SHUTDOWN_FILE}: its {len(data)} bytes are not JSON") from None
    try:
        # A broker of an earlier version names no epochs.
        epochs = dict(found.get(_EPOCHS, {}))
        marked = {
            str(name): StoppedLog(dict(sizes), epochs.get(name, NO_LEADER_EPOCH))
            for name, sizes in found[_SEGMENTS].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
    numbers = (number for log in marked.values() for pair in log.segments.items() for number in pair)
    are_sound = all(type(number) is int and 0 <= number <= MAX_INT64 for number in numbers)
    return marked if are_sound and all(type(log.last_record_epoch) is int for log in marked.values()) else {}


class SoundEnd(NamedTuple):
    """Where the whole batches of a segment end."""

    end_offset: int
    position: int
    # What follows is the beginning of a batch that has been cut.
    is_torn: bool


def sound_end(segment: Segment, position: int) -> SoundEnd:
    """Walk the batches of a segment from the one at ``position`` on, by their headers."""
    end = segment.base_offset
    try:
        for found in segment.headers(position, read_bytes=READ_BYTES if not position else LOOK_UP_BYTES):
            end, position = found.header.next_offset, found.position + found.header.size_bytes
    except CorruptMessage:
        left_bytes = segment.size_bytes - position
        try:
            is_torn = kernel.read_header(segment.file.pread(HEADER_BYTES, position)).size_bytes > left_bytes
        except CorruptMessage:
            is_torn = left_bytes < HEADER_BYTES
        return SoundEnd(end, position, is_torn)
    return SoundEnd(end, position, False)


def compare(
    found: dict[int, int], stopped_with: SegmentSizes, log_start_offset: int, sealed: Callable[[int], Segment]
) -> tuple[list[Hole], bool]:
    """Find out which segments are not what the clean stop has left; return the holes, and whether the last segment is
    one of them.

    ``found``: the bytes of each existing segment, which becomes the bytes that can be read of it. A sealed segment that
    was cut loses the rest of its last batch: readers could not read past it.
    """
    holes: list[Hole] = []
    bases = sorted(stopped_with)
    for base, next_base in itertools.pairwise(bases):
        size_bytes, left_bytes = stopped_with[base], found.get(base)
        if left_bytes is not None and left_bytes >= size_bytes:
            found[base] = size_bytes
        elif next_base > log_start_offset:
            name, end = f"{base:020d}{LOG_SUFFIX}", base
            reason = f"{name} is missing"
            if left_bytes is not None:
                reason = f"{name} was cut from {size_bytes} bytes to {left_bytes}"
                segment = sealed(base)
                end, position, _ = sound_end(segment, 0)
                if position < left_bytes:
                    segment.file.truncate(position)
                    found[base] = position
            holes.append(Hole(max(end, log_start_offset), next_base, reason))
    return holes, found.get(bases[-1], -1) < stopped_with[bases[-1]]


def is_within(hole: Hole, holes: Iterable[Hole]) -> bool:
    """Return whether others cover a hole."""
    return not without([hole[:2]], [each[:2] for each in holes])


def gaps(segments: Segments, from_offset: int, until_base_offset: int = MAX_INT64) -> list[Hole]:
    """Return what is missing between the segments of a log that has not been compacted beyond ``from_offset``, before
    the segment that begins at ``until_base_offset``."""
    holes = []
    for segment, following in segments.sealed_from(segments.first.base_offset):
        if following.base_offset > until_base_offset:
            break
        if following.base_offset > from_offset:
            hole = gap_before(segment, following.base_offset)
            if hole is not None:
                holes.append(hole._replace(start_offset=max(hole.start_offset, from_offset)))
    return holes


def gap_before(segment: Segment, next_base_offset: int) -> Hole | None:
    """Return what is missing between a sealed segment's end and the next segment, None when nothing is.

    Reads the segment's end, a few kilobytes. The beginning of a batch that has been cut is left out of the segment:
    no reader could get past it.
    """
    found = sound_end(segment, segment.boundary_before(segment.size_bytes))
    if found.end_offset >= next_base_offset:
        return None
    what = "is empty" if not segment.size_bytes else "ends there"
    if found.is_torn:
        segment.size_bytes = found.position
    elif found.position < segment.size_bytes:
        what = f"is damaged at position {found.position}"
    name = segment.log_path.rpartition("/")[2]
    return Hole(found.end_offset, next_base_offset, f"{name} {what}, the next segment begins later")


def believed_start(
    files: OpenFiles, directory: str, found: SegmentSizes, snapshots: Collection[int], log_start_offset: int
) -> int:
    """Return the checkpoint's log start, or the first segment's when the log never came so far.

    No log start is written before the high watermarks have come as far (``log_starts``), so only damage makes one that
    nothing else has come up to.
    """
    last = max(found, default=-1)
    if last < 0 or log_start_offset <= max(snapshots, default=0):
        return log_start_offset
    end = sound_end(Segment(files, directory, last, found[last]), 0).end_offset
    if log_start_offset <= end:
        return log_start_offset
    first = min(found)
    logger.error(
        "%s: the log start offset in %s is %d, beyond the log end %d; it is not believed, and the %d offsets %d to %d "
        "stay; if records were to be deleted, delete them again",
        directory.rpartition("/")[2],
        LOG_START_OFFSET_FILE,
        log_start_offset,
        end,
        end - first,
        first,
        end - 1,
    )
    return first

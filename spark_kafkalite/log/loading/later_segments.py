"""Segments of the sound batches behind damage that shows after a fast start, when the end of the log is read.

After a clean stop the next start trusts the last segment and does not read it. If its batches cannot be walked to the
end, it is damaged in the middle. What a recovery does with such a segment is done here (see ``resume``), in a thread;
then the log takes the new segments up, and cuts the damaged one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.loading.behind import Behind
from spark_kafkalite.log.loading.resume import FittingBatches
from spark_kafkalite.log.segments.active_segment import ActiveSegment, EndLost


class LaterSegment(NamedTuple):
    """A segment that takes up what lies behind damage. ``end_offset`` is exclusive."""

    segment: ActiveSegment
    end_offset: int


class LaterSegments(NamedTuple):
    """All of them in order, empty where nothing sound lies behind. ``kept``: the names of the files that keep the
    bytes between them, "" for none."""

    segments: Sequence[LaterSegment]
    kept: str


def find_later(
    files: OpenFiles,
    directory: str,
    damaged: ActiveSegment,
    lost: EndLost,
    *,
    until_offset: int,
    epoch_at: Callable[[int], int],
    most_batch_bytes: int,
    has_gaps: bool,
) -> LaterSegments:
    """Make segments of the sound batches behind the place where ``damaged`` is ``lost``, and keep the other bytes.

    ``until_offset``: where the log ended when the broker stopped; the others as in :class:`.FittingBatches`. The
    damaged segment stays as it is. After a crash the next recovery makes the files again. OSError when the disk fails.
    """
    behind = Behind(files.fs, directory)
    bounds = FittingBatches(damaged.base_offset, until_offset, lost.leader_epoch, epoch_at, most_batch_bytes, has_gaps)
    found: list[LaterSegment] = []
    base_offset, position, end_offset = damaged.base_offset, lost.position, lost.end_offset
    while True:
        bounds = bounds._replace(base_offset=base_offset)
        sizes = behind.split(base_offset, position, end_offset, bounds)
        if found:
            found[-1].segment.cut_unsound()
        if not sizes:
            break
        for base_offset, size_bytes in sizes.items():
            segment = ActiveSegment(files, directory, base_offset, size_bytes, damaged.created_ms)
            last = segment.rebuild_indexes(f"its batches lay behind damage in segment {damaged.base_offset}")
            assert last is not None, "a run begins with a sound batch"
            found.append(LaterSegment(segment, last.next_offset))
            bounds = bounds._replace(leader_epoch=last.partition_leader_epoch)
        # The last one has all that was left of the file, which may be damaged again.
        position, end_offset = segment.sound_bytes, found[-1].end_offset
        if position == segment.size_bytes:
            break
    return LaterSegments(found, behind.passed())

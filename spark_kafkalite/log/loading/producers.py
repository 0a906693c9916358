"""The producers of a log that has lost records: none of them, or those that the rest of the log shows."""

from __future__ import annotations

import logging

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.directories.disk import FailureKind, kind_of
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.log_files import snapshot_offsets
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.loading.scan import READ_BYTES
from spark_kafkalite.log.markers import marker_in_file
from spark_kafkalite.log.producer_snapshot import load_newest_snapshot, snapshot_path
from spark_kafkalite.log.producer_state import ProducerIdLimits, ProducerStateManager
from spark_kafkalite.log.segments.segment_list import Segments

logger = logging.getLogger(__name__)


def forget_producers(
    fs: Fs, directory: str, end_offset: int, limits: ProducerIdLimits | None = None
) -> ProducerStateManager:
    """Return the state of no producers, of a log that begins at ``end_offset``; removes all snapshots."""
    for offset in snapshot_offsets(fs, directory):
        fs.unlink(snapshot_path(directory, offset))
    producers = ProducerStateManager(limits)
    producers.map_end_offset = end_offset
    return producers


def rebuild_producers(
    files: OpenFiles,
    directory: str,
    segments: Segments,
    end_offset: int,
    now_ms: int,
    limits: ProducerIdLimits | None = None,
) -> ProducerStateManager:
    """Return the producers as of ``end_offset``, where the log has been truncated; removes snapshots beyond it.

    What damaged segments before the last one have of producers is left out, from where they cannot be read on: they are
    truncated, too, when they are healed.
    """
    producers = load_newest_snapshot(files.fs, directory, snapshot_offsets(files.fs, directory), end_offset, limits)
    from_offset = producers.map_end_offset
    for segment in segments.from_offset(from_offset):
        try:
            for position, header in segment.headers(0, read_bytes=READ_BYTES):
                if header.producer_id >= 0 and header.base_offset >= from_offset:
                    marker = marker_in_file(segment.file, position, header)
                    producers.update(header, header.base_offset, now_ms, marker)
        except (CorruptMessage, OSError) as error:
            passes = isinstance(error, OSError) and kind_of(error) is FailureKind.NO_RESOURCES
            if passes or segment is segments.active:
                raise
            logger.debug("producers in the rest of %s are not known: %s", segment.log_path, error)
    producers.map_end_offset = end_offset
    return producers

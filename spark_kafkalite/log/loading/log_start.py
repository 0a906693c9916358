"""The start of a log that is loaded, when ``log-start-offset-checkpoint`` is beyond the start that the broker has
written.

Before a broker puts a start into force two files have it: the checkpoint, and the broker's own copy of that
(``log_starts``). A larger start in the checkpoint alone did not come from this broker: a person has edited it, or
copied the file of another broker. The copy has a checksum. If that is missing or wrong, both files were edited, or the
disk has damaged the copy, and no start counts as the broker's own. A start that is not its own would remove records,
from this replica at once, and from all when this one leads. So it is not in force, and has to be confirmed first:

- a follower uses its leader's log start, as ever;
- a leader waits for an in-sync follower whose log starts just there (``FollowerLogs.confirms_start``), or for
  retention, which depends on the records alone;
- the only replica of a partition has no other one to ask, and deletes.

What is not confirmed is forgotten with the next checkpoint. A crash between the files, or before the segments are
removed, leaves no such start. In a directory without the copy, as Apache Kafka and older versions leave it, the
checkpoint is believed.
"""

from __future__ import annotations

import logging
from bisect import bisect_right

from spark_kafkalite.log.files.small_files import LOG_START_OFFSET_FILE, OWN_LOG_START_FILE
from spark_kafkalite.log.loading.holes import SegmentSizes

logger = logging.getLogger(__name__)


def start_in_force(found: SegmentSizes, own_offset: int, said_offset: int) -> int:
    """Return where a log with the segments ``found`` starts. The broker has written ``own_offset``; the checkpoint has
    ``said_offset``. Segments that do not exist count as deleted, as far as the checkpoint covers them."""
    return max(own_offset, min(said_offset, min(found, default=said_offset)))


def tell_of_unconfirmed_start(directory: str, found: SegmentSizes, start_offset: int, said_offset: int) -> None:
    """Log which records the checkpoint would remove, and how it can be confirmed."""
    bases = sorted(found)
    below = bases[: max(bisect_right(bases, said_offset) - 1, 0)]
    segments = "no whole segment"
    if below:
        last, size_bytes = bases[len(below)] - 1, sum(found[base] for base in below)
        segments = f"with {len(below)} segments of {size_bytes} bytes, offsets {below[0]} to {last}"
    logger.error(
        "%s: the log start offset in %s is %d, and this broker has not written that (see %s); the log starts at %d. "
        "Records %d to %d (%s) stay until the start is confirmed: by the log start of the leader, if this broker "
        "follows; by an in-sync follower that starts there, or by retention, if this broker leads. Without other "
        "replicas they are deleted soon: to keep them, stop the broker and correct the file",
        directory.rpartition("/")[2],
        LOG_START_OFFSET_FILE,
        said_offset,
        OWN_LOG_START_FILE,
        start_offset,
        start_offset,
        said_offset - 1,
        segments,
    )

"""The periodic checkpoints of all log directories: what is written, by whom, and what a failure means.

The manager notes the offsets of its logs in the :class:`OffsetCheckpoint` of each directory (in the loop, at once), any
thread runs the :class:`CheckpointJob` (it syncs), and the manager looks at its errors. Recovery points go first: they
are the only ones that a later start pays for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spark_kafkalite.log.disk import LogDirectory
from spark_kafkalite.log.offset_checkpoint import OffsetCheckpoint
from spark_kafkalite.model import TopicPartition


class CheckpointJob:
    """Checkpoints to write, by directory; ``errors`` holds what went wrong, and where.

    ``removed`` are logs that the files named before and that what is written now leaves out, each with the removal that
    is meant.
    """

    __slots__ = ("_checkpoints", "errors", "removed")

    def __init__(
        self,
        checkpoints: Mapping[LogDirectory, Sequence[OffsetCheckpoint]],
        removed: Mapping[TopicPartition, object],
    ) -> None:
        self._checkpoints = checkpoints
        self.removed = removed
        self.errors: dict[LogDirectory, OSError] = {}

    def run(self) -> None:
        """Write; may run in any thread. Never raises OSError: ``errors`` is filled instead."""
        for disk, checkpoints in self._checkpoints.items():
            try:
                # On a full disk too, by way of the reserve.
                disk.persist(_writer_of(checkpoints))
            except OSError as error:
                self.errors[disk] = error


def _writer_of(checkpoints: Sequence[OffsetCheckpoint]) -> Callable[[], None]:
    def write() -> None:
        for checkpoint in checkpoints:
            checkpoint.write()

    return write

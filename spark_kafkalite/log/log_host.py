"""What a log gets from its log directory: the same for all logs in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spark_kafkalite.clock import Clock
from spark_kafkalite.log.directories.disk import LogDirectory
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.loading.scan import OnBytes
from spark_kafkalite.log.producer_state import ProducerIdLimits


def _nothing(*_: object) -> None: ...


def _nothing_to_write(*_: object) -> Callable[[], None]:
    return _nothing


@dataclass(frozen=True, slots=True)
class LogHost:
    """Files, clock, disk and limits, and who is told what. ``on_bytes`` is told of what a recovery scans.

    ``on_dirty`` is called with the log at the first unflushed record. The two that note something are called by the
    log's owner, and return what writes it, in any thread: ``note_recovery_points``, for the checkpoints of recovery
    points and cleaned logs, before what lies above a lowered one changes, and ``note_truncated`` with the log, for the
    checkpoint of its start, which has to follow a truncation.
    """

    files: OpenFiles
    clock: Clock
    disk: LogDirectory
    producer_limits: ProducerIdLimits = field(default_factory=ProducerIdLimits)
    on_dirty: Callable[[Any], None] = _nothing
    note_recovery_points: Callable[[], Callable[[], None]] = _nothing_to_write
    note_truncated: Callable[[Any], Callable[[], None]] = _nothing_to_write
    on_bytes: OnBytes = _nothing

    @classmethod
    def alone(cls, files: OpenFiles, log_dir: str, clock: Clock) -> LogHost:
        """Return what is enough for logs that nobody else keeps."""
        return cls(files, clock, LogDirectory(files.fs, log_dir))

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
    """Files, clock, disk and limits, and the callbacks. ``on_bytes`` is called with the bytes that a recovery scans.

    ``on_dirty`` is called with the log at the first unflushed record. The log's owner calls the two that note
    something; they return what writes it, in any thread. ``note_recovery_points`` is for the checkpoints of recovery
    points and cleaned logs, before what lies above a lowered one changes. ``note_truncated``, with the log, is for the
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
        """Return what is enough for logs without a manager."""
        return cls(files, clock, LogDirectory(files.fs, log_dir))

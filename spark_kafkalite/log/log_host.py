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


@dataclass(frozen=True, slots=True)
class LogHost:
    """Files, clock, disk and limits, and who is told what. ``on_bytes`` is told of what a recovery scans.

    ``on_dirty`` is called with the log at the first unflushed record, ``on_recovery_point_lowered`` when the
    checkpoints of recovery points and cleaned logs must be written before anything else happens, ``on_truncated`` with
    the log when the checkpoint of its start has to follow a truncation.
    """

    files: OpenFiles
    clock: Clock
    disk: LogDirectory
    producer_limits: ProducerIdLimits = field(default_factory=ProducerIdLimits)
    on_dirty: Callable[[Any], None] = _nothing
    on_recovery_point_lowered: Callable[[], None] = _nothing
    on_truncated: Callable[[Any], None] = _nothing
    on_bytes: OnBytes = _nothing

    @classmethod
    def alone(cls, files: OpenFiles, log_dir: str, clock: Clock) -> LogHost:
        """Return what is enough for logs that nobody else keeps."""
        return cls(files, clock, LogDirectory(files.fs, log_dir))

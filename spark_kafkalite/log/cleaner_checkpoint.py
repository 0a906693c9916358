"""``cleaner-offset-checkpoint`` of one log directory: how far each log has been cleaned.

Logs that were never cleaned are not in it. A start takes two things from it: where the dirty part of a log begins, and
below which offset a log may have gaps whatever its settings are today (``scan``).

The logs' owner says what is to be in the file, any thread writes it: what was said last, and only if that is new.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from spark_kafkalite.log.checkpoint import CLEANER_OFFSET_FILE, write_offsets
from spark_kafkalite.log.fs import Fs
from spark_kafkalite.model import TopicPartition


class CleanerCheckpoint:
    """The file and what it is to hold."""

    def __init__(self, fs: Fs, log_dir: str) -> None:
        self._fs = fs
        self._path = f"{log_dir}/{CLEANER_OFFSET_FILE}"
        self._wanted: dict[TopicPartition, int] = {}
        self._written: dict[TopicPartition, int] | None = None
        self._lock = threading.Lock()

    def set(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Have the next ``write`` write this."""
        # A new object each time, so that a thread which is writing the old one is not disturbed.
        self._wanted = {key: offset for key, offset in offsets.items() if offset > 0}

    def write(self) -> None:
        """Bring the file up to date; may be called in any thread. OSError when the disk fails."""
        with self._lock:
            wanted = self._wanted
            if wanted == self._written or (not wanted and self._written is None and not self._fs.exists(self._path)):
                return
            write_offsets(self._fs, self._path, wanted)
            self._written = wanted

"""One offset checkpoint of a log directory: a number for each log, in a file that is replaced as a whole.

The logs' owner sets the content of the file (``set``), any thread writes it (``write``): writing syncs, and the event
loop must not wait for that. The content is replaced as a whole and never changed. So a writer takes the newest content,
a delayed writer finds its work done, and an older content never overwrites a newer one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.small_files import write_offsets
from spark_kafkalite.model import TopicPartition


class OffsetCheckpoint:
    """A file and what it is to hold. With ``leaves_out_zero`` logs whose offset is 0 are not in it."""

    __slots__ = ("_fs", "_leaves_out_zero", "_lock", "_wanted", "_written", "path")

    def __init__(self, fs: Fs, path: str, *, leaves_out_zero: bool = False) -> None:
        self.path = path
        self._fs = fs
        self._leaves_out_zero = leaves_out_zero
        self._wanted: Mapping[TopicPartition, int] = {}
        # What the file says; None while nobody knows.
        self._written: Mapping[TopicPartition, int] | None = None
        self._lock = threading.Lock()

    def set(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Have the next ``write`` write this."""
        self._wanted = {key: offset for key, offset in offsets.items() if offset > 0 or not self._leaves_out_zero}

    def write(self) -> None:
        """Return once the newest offsets are on the disk; may run in any thread. OSError when the disk fails."""
        with self._lock:
            wanted = self._wanted
            if wanted == self._written:
                return
            # After a failure nobody knows what the file says.
            self._written = None
            self._replace(wanted)
            self._written = wanted

    def _replace(self, wanted: Mapping[TopicPartition, int]) -> None:
        if wanted or self._fs.exists(self.path):
            write_offsets(self._fs, self.path, wanted)

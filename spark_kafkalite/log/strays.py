"""Logs that were set aside, and their removal after ``stray.log.retention.ms``.

A log is set aside (``retiring``) when no topic owns it, or when it is of an older topic of the same name, or when this
broker is no replica of its partition any more. Its directory then ends in ``-stray``, and is left for somebody to look
at. When that was stands in ``stray-since`` in it, as milliseconds since the epoch: written by the first look that finds
the directory, so that those of Apache Kafka and of earlier versions have their time, too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from spark_kafkalite.log.files.fs import Fs, remove_tree, replace_file
from spark_kafkalite.log.files.small_files import CheckpointError, read_small

logger = logging.getLogger(__name__)

STRAY_SUFFIX: Final = "-stray"
_SINCE_FILE: Final = "stray-since"


class StraysJob:
    """One look through some log directories. ``run`` may be called in any thread."""

    __slots__ = ("_fs", "_log_dirs", "_now_ms", "_retention_ms")

    def __init__(self, fs: Fs, log_dirs: Sequence[str], now_ms: int, retention_ms: int) -> None:
        self._fs = fs
        self._log_dirs = log_dirs
        self._now_ms = now_ms
        self._retention_ms = retention_ms

    def run(self) -> None:
        """Remove what has been there for longer; never raises: what cannot be removed is logged, and tried again."""
        for log_dir in self._log_dirs:
            try:
                names = [each.name for each in self._fs.entries(log_dir) if each.is_directory]
            except OSError:
                # Whoever reads logs there finds out what that means.
                continue
            for name in names:
                if name.endswith(STRAY_SUFFIX):
                    self._look_at(f"{log_dir}/{name}")

    def _look_at(self, directory: str) -> None:
        try:
            kept_ms = self._now_ms - self._since_ms(f"{directory}/{_SINCE_FILE}")
            if kept_ms >= self._retention_ms:
                remove_tree(self._fs, directory)
                logger.info("removed %s, %d hours after it was set aside", directory, kept_ms // 3_600_000)
        except (OSError, CheckpointError) as error:
            logger.warning("cannot remove %s: %s; trying again", directory, error)

    def _since_ms(self, path: str) -> int:
        if self._fs.exists(path):
            text = read_small(self._fs, path)
            # A power cut may have emptied it.
            if text.strip().isdigit():
                return int(text)
        replace_file(self._fs, path, b"%d\n" % self._now_ms, sync=False)
        return self._now_ms

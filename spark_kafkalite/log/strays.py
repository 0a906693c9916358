"""Logs that were set aside, and their removal: by ``stray.log.retention.ms``, by a deletion, or by an operator alone.

A log is set aside (``retiring``) when no topic owns it, when it belongs to an older topic of the same name, or when
this broker is no replica of its partition any more. Its directory then ends in ``-stray``, and is left for an operator
to inspect. What becomes of it depends on its topic (``StrayFate``): the retention applies only where the registry has
the topic, so that other replicas have the records. ``stray-since`` in it has the time when it was set aside, in
milliseconds since the epoch. The first look that finds the directory writes it, so that those of Apache Kafka and of
earlier versions have their time, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from spark_kafkalite.log.files.awaiting_logs import STRAY_SUFFIX
from spark_kafkalite.log.files.fs import Fs, remove_tree, replace_file
from spark_kafkalite.log.files.small_files import PARTITION_METADATA_FILE, CheckpointError, read_small, read_topic_id

logger = logging.getLogger(__name__)

_SINCE_FILE: Final = "stray-since"
_MOST_DIGITS: Final = 20


class StrayFate(Enum):
    """What becomes of a log that was set aside."""

    KEPT = "kept until an operator removes it"
    KEPT_FOR_A_TIME = "removed after stray.log.retention.ms"
    DELETED = "removed at once: its topic has been deleted, or its partition moved to other brokers"


# Of the name of the log's directory and the topic's id, None where the log does not have one.
FateOf = Callable[[str, bytes | None], StrayFate]


class StraysJob:
    """One look through some log directories. ``run`` may be called in any thread."""

    __slots__ = ("_fate_of", "_fs", "_log_dirs", "_now_ms", "_retention_ms")

    def __init__(self, fs: Fs, log_dirs: Sequence[str], now_ms: int, retention_ms: int, fate_of: FateOf) -> None:
        """``retention_ms`` -1: for ever."""
        self._fate_of = fate_of
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
            fate = self._fate_of(directory.rpartition("/")[2], self._topic_id_of(directory))
            if fate is StrayFate.DELETED:
                remove_tree(self._fs, directory)
                logger.info(
                    "removed %s, because its topic has been deleted or its partition has been moved to other brokers",
                    directory,
                )
            if fate is not StrayFate.KEPT_FOR_A_TIME or self._retention_ms < 0:
                return
            kept_ms = self._now_ms - self._since_ms(f"{directory}/{_SINCE_FILE}")
            if kept_ms >= self._retention_ms:
                remove_tree(self._fs, directory)
                logger.info("removed %s, %d hours after it was set aside", directory, kept_ms // 3_600_000)
        except (OSError, CheckpointError) as error:
            logger.warning("cannot remove %s: %s; trying again", directory, error)

    def _topic_id_of(self, directory: str) -> bytes | None:
        try:
            return read_topic_id(self._fs, f"{directory}/{PARTITION_METADATA_FILE}")
        except CheckpointError:
            return None

    def _since_ms(self, path: str) -> int:
        if self._fs.exists(path):
            text = read_small(self._fs, path)
            # A power cut may have emptied it, or something else damaged it.
            if len(text) <= _MOST_DIGITS and text.strip().isdigit():
                return int(text)
        replace_file(self._fs, path, b"%d\n" % self._now_ms, sync=False)
        return self._now_ms

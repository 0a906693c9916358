"""How full the disk of a log directory is, and from when on that is worth a warning.

A broker refuses records when its disk is nearly full (``disk.LogDirectory``). Warnings at 85 and 95 percent leave time
to do something before that. :class:`FullnessWarnings` warns once when a disk crosses a level, and again only after the
disk has been more than two percentage points below it. ``kafkalite cluster status`` uses the same levels and words.
"""

from __future__ import annotations

import logging
from typing import Final

from spark_kafkalite.log.files.fs import Space

logger = logging.getLogger(__name__)

# In percent, the highest first.
WARNED_AT: Final = (95, 85)
_ARMED_AGAIN_BELOW: Final = 2

WHAT_TO_DO: Final = (
    "enlarge the disk, or have old records deleted (retention.ms, retention.bytes, kafkalite topics delete-records); a "
    "broker whose disk is full takes no records (log.dir.min.free.bytes)"
)


def used_percent(space: Space) -> float:
    """Return how much of a file system is not free for this process, in percent."""
    return 100 * (space.total_bytes - space.free_bytes) / space.total_bytes if space.total_bytes > 0 else 0.0


def warned_level(percent: float) -> int:
    """Return the highest level that a disk has reached, 0 for none."""
    return next((level for level in WARNED_AT if percent >= level), 0)


def fullness_text(path: str, space: Space) -> str:
    """Return how full the disk of a log directory is."""
    return f"the disk of log directory {path} is {int(used_percent(space))} % full ({space.free_bytes} bytes are free)"


class FullnessWarnings:
    """Logs one warning for each crossing of a level by one log directory's disk."""

    def __init__(self, path: str) -> None:
        self._path = path
        # The highest level that has been warned of; 0: none.
        self._warned = 0

    def look(self, space: Space) -> None:
        """Take how much room there is now."""
        percent = used_percent(space)
        level = warned_level(percent)
        if level > self._warned:
            logger.warning("%s: %s", fullness_text(self._path, space), WHAT_TO_DO)
            self._warned = level
        elif percent < self._warned - _ARMED_AGAIN_BELOW:
            logger.info("%s", fullness_text(self._path, space))
            self._warned = level

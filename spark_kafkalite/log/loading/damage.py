"""The warning about a batch whose CRC is wrong, written when its bytes are read anyway.

Fetches go from the file to the socket and read no byte of a batch, so its consumers meet the damage. The look-up of a
record by time and the load of groups have the bytes in memory: they check them, log what is wrong, and go on. The
cleaner, recovery and ``dump-log`` have log lines of their own, which name the same.
"""

from __future__ import annotations

import logging
import re
from typing import Final, Protocol

from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import CorruptMessage, InvalidRecord
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import BatchHeader

logger = logging.getLogger(__name__)

_EVERY_S: Final = 60.0
# The position in the kernel's text is that in the piece that was read.
_PLACE_IN_PIECE: Final = re.compile(r"^record batch at position \d+: ")


def without_place(error: CorruptMessage | InvalidRecord) -> str:
    """Return the kernel's text of what is wrong, without the position in the piece that it was given."""
    return _PLACE_IN_PIECE.sub("", str(error), 1)


class TakesDamage(Protocol):
    """What knows of a log's damage."""

    def batch_is_damaged(self, base_offset: int, next_offset: int) -> None:
        """Know of a damaged batch; in any thread."""


class DamageLines:
    """Logs which batches of one log are damaged, at most once a minute. Any thread may call it."""

    __slots__ = ("_clock", "_known_damage", "_left_out", "_next_s", "_topic_partition")

    def __init__(self, topic_partition: TopicPartition, clock: Clock, known_damage: TakesDamage | None = None) -> None:
        """``known_damage`` gets each damaged batch, in the thread that looks."""
        self._topic_partition = topic_partition
        self._clock = clock
        self._known_damage = known_damage
        self._next_s = 0.0
        self._left_out = 0

    def look(self, data: bytes | memoryview, header: BatchHeader, path: str, position: int) -> bool:
        """Return whether the batch, the whole of ``data``, has its CRC, and log it if not. ``position`` is the batch's
        in the file, -1 when it is not known."""
        try:
            kernel.check_crc(data, 0, header.size_bytes)
            return True
        except CorruptMessage as error:
            if self._known_damage is not None:
                self._known_damage.batch_is_damaged(header.base_offset, header.next_offset)
            self._tell(header.base_offset, path, position, without_place(error))
            return False

    def _tell(self, offset: int, path: str, position: int, reason: str) -> None:
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s:
            self._left_out += 1
            return
        more = f" ({self._left_out} more were met since the last line)" if self._left_out else ""
        self._next_s, self._left_out = now_s + _EVERY_S, 0
        logger.error(
            "%s: the batch at offset %d is damaged, at position %d of %s: %s%s; its consumers cannot read it; "
            "kafkalite dump-log shows all that is damaged",
            self._topic_partition,
            offset,
            position,
            path,
            reason,
            more,
        )

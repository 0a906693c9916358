"""When a leader checks batches that consumers ask for again and again (rule R23 in docs/replication.md). Pure.

A fetch goes from the file to the socket, so a leader does not see that the bytes of a batch have changed on its disk. A
consumer sees it by the CRC, and Kafka's protocol has no field to report it. But that consumer makes no progress: it
fetches from the same offset on its connection again, or ends and begins there on another connection. A consumer that
makes progress fetches from each offset once. So what counts is an offset from which batches were given on a connection

- that was given no batches of the partition before, or
- that was given batches from that offset on, or from a later one.

Consumers that all begin at one offset count there, too; a check of batches that are sound costs little. A thread makes
it and reads a few megabytes. Checks are bounded per offset, per partition and per broker, whatever clients do.
"""

from __future__ import annotations

from typing import Final

from spark_kafkalite.model import TopicPartition

# How often batches are given at one offset, as described above, before they are checked.
GIVEN_BEFORE_CHECK: Final = 3
# How long the checks of a broker, and those of one partition, are apart.
CHECKS_APART_S: Final = 1.0
PARTITION_APART_S: Final = 10.0
# How long the checks of one offset are apart in the end: each time twice as long.
OFFSET_APART_S: Final = 1800.0
_REMEMBERED_S: Final = 2 * OFFSET_APART_S
# Offsets that are counted. When there are more, counting begins again.
_MOST_COUNTED: Final = 1024

_Place = tuple[TopicPartition, int]


class Rereads:
    """The counts of one broker. The constants of this module bound its memory."""

    __slots__ = ("_checked", "_counts")

    def __init__(self) -> None:
        self._counts: dict[_Place, int] = {}
        # When each offset was checked last, the latest at the end, and for how long it is not checked again. There is
        # one check a second, and they are forgotten after an hour.
        self._checked: dict[_Place, tuple[float, float]] = {}

    def is_due(self, topic_partition: TopicPartition, offset: int, now_s: float) -> bool:
        """Count that batches were given from an offset on, as described above; return whether to check them now."""
        place = topic_partition, offset
        checked_s, apart_s = self._checked.get(place, (0.0, 0.0))
        if apart_s and now_s - checked_s < apart_s:
            return False
        count = self._counts.get(place, 0) + 1
        if count < GIVEN_BEFORE_CHECK or not self._may_check(topic_partition, now_s):
            if len(self._counts) >= _MOST_COUNTED:
                self._counts.clear()
            self._counts[place] = count
            return False
        self._counts.pop(place, None)
        self._checked.pop(place, None)
        self._checked[place] = now_s, min(2 * apart_s, OFFSET_APART_S) if apart_s else PARTITION_APART_S
        while now_s - self._checked[oldest := next(iter(self._checked))][0] >= _REMEMBERED_S:
            del self._checked[oldest]
        return True

    def _may_check(self, topic_partition: TopicPartition, now_s: float) -> bool:
        for (partition, _), (checked_s, _) in reversed(self._checked.items()):
            ago_s = now_s - checked_s
            if ago_s >= PARTITION_APART_S:
                break
            if ago_s < CHECKS_APART_S or partition == topic_partition:
                return False
        return True

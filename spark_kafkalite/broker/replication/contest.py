"""What a leader does when its batches, or an in-sync replica, contradict what it is about to answer a follower.

A follower truncates its log to where the leader reports that the logs part. The leader takes that place from its file
of leader epochs. So it checks the batches there before it answers (:meth:`Contest.check`): one header on each side.
Where they contradict the file, it compares the file with all batches in a thread, and completes it.

It does the same when an in-sync replica reports that it would have to truncate committed records. A member of the ISR
has all that is committed, and so has its leader. So one of three things is wrong: the follower's file of leader epochs,
the leader's, or the leader's log. The follower has compared its own file with its batches before it contests
(``rules.following``). Now the leader does the same in a thread. Where its file was wrong, it answers the next fetch
from the right epochs, and following goes on. Where the logs still part below the follower's high watermark, the
leader's log lacks records that are committed: it leaves the ISR, and with it the leadership, to the members that have
them (``isr_leaving``).

Until then the follower is asked to fetch again. It stays a member meanwhile, so nothing is committed without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from typing import Final

from spark_kafkalite.errors import ClosedError, KafkaStorageError, OffsetNotAvailable
from spark_kafkalite.log.epoch_completion import epoch_completion
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.net.io_threads import IoThreads, run_in_threads

logger: Final = logging.getLogger(__name__)


class _Stage(Enum):
    UNHEARD = "unheard"
    COMPARING = "comparing"
    COMPARED = "compared"
    LACKING = "lacking"


class Contest:
    """One leader's, in one leader epoch. Lives in the event loop."""

    __slots__ = ("_io", "_log", "_on_lacking", "_stage")

    def __init__(self, log: PartitionLog, io: IoThreads, on_lacking: Callable[[TopicPartition], None]) -> None:
        """``on_lacking`` is called, once, when the log lacks committed records."""
        self._log = log
        self._io = io
        self._on_lacking = on_lacking
        self._stage = _Stage.UNHEARD

    def check(self, diverging: tuple[int, int]) -> None:
        """Raise OffsetNotAvailable (78) while it is not known where the leader epoch ends: the file has (epoch, end),
        and the batches there contradict it.

        NeedsThread where they have to be read first, CorruptMessage (2) where they are damaged.
        """
        if self._stage in (_Stage.UNHEARD, _Stage.COMPARING) and not self._log.ends_epoch(*diverging):
            self._begin()
            raise OffsetNotAvailable(
                f"{self._log.topic_partition}: the leader compares its log with its leader epochs, because epoch "
                f"{diverging[0]} does not end at offset {diverging[1]}"
            )

    def _begin(self) -> None:
        if self._stage is _Stage.UNHEARD:
            self._stage = _Stage.COMPARING
            run_in_threads(self._io, epoch_completion(self._log), self._compared)

    def refusal(self, replica_id: int, high_watermark: int, diverging: tuple[int, int]) -> OffsetNotAvailable:
        """Return what an in-sync follower is answered whose log would have to be cut below its high watermark.

        ``diverging``: the largest common leader epoch, and where it ends here.
        """
        topic_partition = self._log.topic_partition
        if self._stage is not _Stage.COMPARED:
            self._begin()
        else:
            self._stage = _Stage.LACKING
            logger.error(
                "%s: broker %d, which is in sync, has committed records up to offset %d, but the log of this broker, "
                "its leader, parts from them at offset %d, the end of leader epoch %d here. This log lacks committed "
                "records: the broker resigns as leader, and copies them",
                topic_partition, replica_id, high_watermark, diverging[1], diverging[0],
            )  # fmt: skip
            self._on_lacking(topic_partition)
        return OffsetNotAvailable(
            f"{topic_partition}: the leader compares its log with its leader epochs, because broker {replica_id} would "
            f"have to cut off committed records, below {high_watermark}"
        )

    def _compared(self, error: KafkaStorageError | ClosedError | None) -> None:
        if error is not None:
            logger.error("%s: %s", self._log.topic_partition, error)
        self._stage = _Stage.COMPARED

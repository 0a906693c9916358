"""What a leader does when its batches, or an in-sync replica, contradict what it is about to answer a follower.

A follower truncates its log to where the leader reports that the logs part. The leader takes that place from its file
of leader epochs. So it checks the batches there before it answers (:meth:`Contest.check`): one header on each side.
Where they contradict the file, it compares the file with all batches in a thread, and completes it.

It does the same when an in-sync or eligible replica reports that it would have to truncate committed records. Each of
them has all that is committed (R4, R16), and so has its leader. So one of three things is wrong: the follower's file of
leader epochs, the leader's, or the leader's log. The follower has compared its own file with its batches before it
contests (``rules.following``). Now the leader does the same in a thread. Where its file was wrong, it answers the next
fetch from the right epochs, and following goes on. Where the logs still part below the follower's high watermark, the
leader's log lacks records that are committed: it leaves the ISR, and with it the leadership, to the members that have
them (``isr_leaving``). If it is the only member, it leaves both to the eligible replica that contests.

Another replica has what was committed when it left the ISR, and all that the leader had when its epoch began. While
nothing has been committed since from where the logs part, it may lead, too (rule R24). But a member or an eligible
replica that has not reported its log in this epoch may have more, so that one is waited for.

Until then the follower is asked to fetch again. A member stays one meanwhile, so nothing is committed without it: a
comparison of a large log may take longer than ``replica.lag.time.max.ms``. Nothing is committed while a replica is
eligible, either (R16). While a replica outside the ISR contests, no other one joins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from enum import Enum
from typing import Final, NamedTuple

from spark_kafkalite.errors import ClosedError, KafkaStorageError, OffsetNotAvailable
from spark_kafkalite.log.epoch_completion import epoch_completion
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.model import BrokerId, TopicPartition
from spark_kafkalite.net.io_threads import IoThreads, run_in_threads

logger: Final = logging.getLogger(__name__)


class _Stage(Enum):
    UNHEARD = "unheard"
    COMPARING = "comparing"
    COMPARED = "compared"
    LACKING = "lacking"


class Claim(NamedTuple):
    """``broker`` has committed records which this log is known to lack, from ``offset`` on. ``is_named``: the state
    names it as a member of the ISR, or as eligible."""

    broker: BrokerId
    offset: int
    is_named: bool


class Contest:
    """One leader's, in one leader epoch. Lives in the event loop."""

    __slots__ = ("_awaited", "_io", "_log", "_on_lacking", "_stage", "claim")

    def __init__(self, log: PartitionLog, io: IoThreads, on_lacking: Callable[[TopicPartition], None]) -> None:
        """``on_lacking`` is called when the log lacks committed records, and again whenever a follower repeats that."""
        self._log = log
        self._io = io
        self._on_lacking = on_lacking
        self._stage = _Stage.UNHEARD
        self.claim: Claim | None = None
        self._awaited: Collection[int] = ()

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

    def refusal(
        self, replica_id: int, high_watermark: int, diverging: tuple[int, int], awaited: Collection[int] | None = None
    ) -> OffsetNotAvailable:
        """Return what a follower is answered whose log would have to be cut below its high watermark.

        ``diverging``: the largest common leader epoch, and where it ends here. ``awaited`` is None where the state
        names the follower as in sync or eligible; else those that it names, and that have not reported their logs.
        """
        topic_partition = self._log.topic_partition
        self._begin()
        if self._stage is _Stage.COMPARED:
            self._stage = _Stage.LACKING
            logger.error(
                "%s: broker %d, which is %s, has committed records up to offset %d, but the log of "
                "this broker, its leader, parts from them at offset %d, the end of leader epoch %d here. This log "
                "lacks committed records: the broker resigns as leader, and copies them",
                topic_partition, replica_id, "in sync or eligible" if awaited is None else "out of sync",
                high_watermark, diverging[1], diverging[0],
            )  # fmt: skip
        if self._stage is _Stage.LACKING:
            # The registry may not have been reached before, or that replica may not have been registered.
            self.claim = Claim(BrokerId(replica_id), diverging[1], awaited is None)
            self._tell_of_awaited(awaited or ())
            self._on_lacking(topic_partition)
        return OffsetNotAvailable(
            f"{topic_partition}: the leader compares its log with its leader epochs, because broker {replica_id} would "
            f"have to cut off committed records, below {high_watermark}"
        )

    def _tell_of_awaited(self, awaited: Collection[int]) -> None:
        if awaited and awaited != self._awaited:
            topic, number = self._log.topic_partition
            logger.error(
                "%s: this broker leads on, and commits nothing, until brokers %s have reported their logs: the state "
                "names them, so they may have more. If they do not return, stop this broker and choose a leader with "
                "kafkalite cluster elect --unclean --replica %s:%d=BROKER",
                self._log.topic_partition, ", ".join(map(str, sorted(awaited))), topic, number,
            )  # fmt: skip
        self._awaited = awaited

    def _compared(self, error: KafkaStorageError | ClosedError | None) -> None:
        if error is not None:
            logger.error("%s: %s", self._log.topic_partition, error)
        self._stage = _Stage.COMPARED

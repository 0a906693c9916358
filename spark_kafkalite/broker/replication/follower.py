"""What a replica does while another broker leads its partition, or none does.

A :class:`Follower` lives for one leader epoch of another broker, as a ``leader.Leader`` does for one of its own. What
to ask and what to do with answers is decided by ``rules.following``; here it is done: appends, truncations in threads,
flushes, the bounds. Fetches and connections are those of ``replica_fetcher``, which asks :meth:`Follower.ask`, gives
answers to :meth:`Follower.take`, and is called through ``on_ready`` when there may be something else to ask.

It serves no clients: they are sent to the leader.

There is no await in this file: between reading and changing state nothing else runs, and that is the lock. What takes
long yields (``slices``): an append of much, run by run, and goes on only while this is the partition's role. While a
truncation is under way its threads have the log to themselves; the partition takes no other role before its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from spark_kafkalite.broker.metrics.counters import LogMeters
from spark_kafkalite.broker.quotas.replication_throttle import is_listed
from spark_kafkalite.broker.replication.bounds import Bounds
from spark_kafkalite.broker.replication.flusher import Flusher
from spark_kafkalite.broker.replication.next_leader import LeaderMoves, NextLeader
from spark_kafkalite.broker.replication.replica_services import ReplicaServices
from spark_kafkalite.broker.replication.rules.following import (
    Append,
    Asked,
    CheckEpochs,
    Contested,
    Following,
    LeaderAnswer,
    OwnState,
    Refused,
    RefuseLogStart,
    SetAside,
    StartAnew,
    StopFollowing,
    Truncate,
)
from spark_kafkalite.broker.replication.rules.healing import BeginAnew, CutBack, ForgetBelow, LeaderSays, healing
from spark_kafkalite.errors import ClosedError, CorruptMessage, KafkaStorageError, NotLeaderOrFollower
from spark_kafkalite.log.copying import copy_in_turns
from spark_kafkalite.log.damaged_ranges import Ranges
from spark_kafkalite.log.epoch_completion import epoch_completion
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.steps import Piece, Steps
from spark_kafkalite.log.truncation import full_truncation, truncation_to
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.net.io_threads import Lane, run_in_threads
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.error_codes import name_of
from spark_kafkalite.wire.packed import FetchedPartition
from spark_kafkalite.wire.packed.replica_damage import REFUSED, UNCOUNTED, ReplicaDamage

logger = logging.getLogger(__name__)

# A leader that has not heard yet that it leads, or of a new topic, is no news. One that has not after so many tries is:
# with the default replica.fetch.backoff.ms they take three seconds and a half.
_FAILURES_TO_TELL = 8
# Of itself a follower is asked only where its log is to be cut.
_UNASKED = OwnState()


class NoLeader:
    """The replica of a partition without a leader, as far as this broker knows, or of one that is not served."""

    __slots__ = ("_next_leader", "_reason")

    leader_id = -1

    def __init__(
        self, topic_partition: TopicPartition, reason: str = "", next_leader: NextLeader | None = None
    ) -> None:
        """``next_leader`` is awaited, if given: another broker is about to lead."""
        self._reason = reason or f"{topic_partition} has no leader"
        self._next_leader = next_leader

    @property
    def awaits_leader(self) -> bool:
        """Whether requests may wait for the next leader."""
        return self._next_leader is not None and self._next_leader.is_awaited

    def refusal(self) -> NotLeaderOrFollower:
        """Return what requests are answered with, also those that had waited for a leader which this has followed."""
        if self._next_leader is not None and self.awaits_leader:
            return LeaderMoves(self._reason, self._next_leader)
        return NotLeaderOrFollower(self._reason)

    def end(self) -> None:
        """Answer requests that wait for the next leader: the partition has another role."""
        if self._next_leader is not None:
            self._next_leader.end()


class Follower:
    """See the module's text. Made by the partition, which ends it, too."""

    __slots__ = (
        "_awaits_flush",
        "_bounds",
        "_damaged_ranges",
        "_flusher",
        "_on_log_start",
        "_on_parted",
        "_on_refused",
        "_on_settled",
        "_rules",
        "_services",
        "_told",
        "_told_of_damage",
        "_uncut",
        "damage_stage",
        "epoch",
        "has_ended",
        "is_listed",
        "is_refusing",
        "leader_id",
        "log",
        "on_ready",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        leader_id: int,
        epoch: int,
        log: PartitionLog,
        bounds: Bounds,
        flusher: Flusher,
        services: ReplicaServices,
        *,
        on_refused: Callable[[KafkaStorageError], None],
        on_settled: Callable[[], None],
        on_log_start: Callable[[int], None],
        on_parted: Callable[[], None],
    ) -> None:
        """Follow broker ``leader_id`` in ``epoch``. ``on_refused`` is called when the log takes nothing, ``on_settled``
        when a truncation has ended, ``on_log_start`` where the log should start, with the leader's, and ``on_parted``
        when the log is to be set aside."""
        self.topic_partition = topic_partition
        self.leader_id = leader_id
        self.epoch = epoch
        self.log = log
        self.has_ended = False
        self.on_ready: Callable[[], None] = _nothing
        self._bounds = bounds
        self._flusher = flusher
        self._services = services
        self._on_refused = on_refused
        self._on_settled = on_settled
        self._on_log_start = on_log_start
        self._on_parted = on_parted
        self._rules = Following(services.follower_backoff_s)
        # What was said last of why nothing is copied.
        self._told = ""
        # What was said last of damage that this leader cannot heal, and where the log could not be cut back for it.
        self._told_of_damage = ""
        self._uncut: frozenset[int] = frozenset()
        # What the leader is told of damage, as of when.
        self.damage_stage = 0
        self._damaged_ranges: Ranges = ()
        # Whether the leader last sent what is refused: its CRC or header is wrong.
        self.is_refusing = False
        # Whether nothing is asked until the log is flushed.
        self._awaits_flush = False
        # Whether the topic names this replica among those that are throttled.
        self.is_listed = False
        self.obey()

    def obey(self) -> None:
        """Apply the settings that the log has now."""
        listed = self.log.config.follower_replication_throttled_replicas
        self.is_listed = is_listed(listed, self.topic_partition.partition, self._services.broker_id)
        self.on_ready()

    @property
    def is_throttled(self) -> bool:
        """Whether what this replica copies is bounded by the broker's throttle: not while it is in sync."""
        return self.is_listed and not self._services.is_member(self.topic_partition)

    def state_changed(self) -> None:
        """Ask again after a change of the registry's state: a member of the ISR is not throttled."""
        if self.is_listed:
            self.on_ready()

    def refusal(self) -> NotLeaderOrFollower:
        """Return what requests are answered with, also those that had waited for a leader which this has followed."""
        return NotLeaderOrFollower(f"{self.topic_partition} is led by broker {self.leader_id}")

    def end(self) -> None:
        """Ask nothing and take nothing any more: the leader epoch is over, or nothing is served."""
        self.has_ended = True
        self.on_ready = _nothing

    # Asking ---------------------------------------------------------------------------------------------------------

    def ask(self, now_s: float) -> Asked | None:
        """Return what the next fetch asks for, None while nothing is to be asked: until ``on_ready`` is called, or it
        is :attr:`ready_at_s`."""
        log = self.log
        if self.has_ended or log.disk.hanging is not None:
            return None
        if not log.local.is_ready:
            if not log.local.is_usable:
                return None
            if not self._rules.is_busy:
                self._prepare()
        damage = log.local.known_damage
        if damage.stage != self.damage_stage:
            self.damage_stage, self._damaged_ranges = damage.stage, damage.ranges
            self._rules.say_anew()
        # Rule V4: a fetch that may have this broker join the ISR as a replica that a reassignment adds reports only
        # what is flushed, because the replicas that go delete their files when it has joined. The leader adds no
        # replica that ends below its high watermark, and that never goes back.
        flushed_only = self._bounds.acknowledges_flushed or (
            log.local.log_end_offset >= self._rules.leader_high_watermark
            and self._services.joins_flushed(self.topic_partition)
        )
        asked = self._rules.ask(log, now_s, flushed_only=flushed_only)
        if asked is not None and self._damaged_ranges:
            asked = asked._replace(log_start_offset=int(log.undeleted_start_offset))
        self._awaits_flush = asked is None and flushed_only and log.recovery_point < log.log_end_offset
        if self._awaits_flush:
            self._flusher.request()
        return asked

    @property
    def ready_at_s(self) -> float:
        """Until when nothing is asked, because of an error."""
        return self._rules.ready_at_s

    @property
    def why_stopped(self) -> str | None:
        """Why nothing is copied, until the next leader epoch or a hand-over; None where following goes on."""
        match self._rules.stopped:
            case StopFollowing(offset):
                why = (
                    f"its log parts from that of broker {self.leader_id}, leader of epoch {self.epoch}, at offset "
                    f"{offset}, below its high watermark {self._bounds.high_watermark}"
                )
            case RefuseLogStart(start, end):
                why = (
                    f"the log of broker {self.leader_id}, leader of epoch {self.epoch}, starts at offset {start}, "
                    f"behind its own end {end}"
                )
            case None if self._rules.is_contesting:
                return (
                    f"its log parts from that of broker {self.leader_id}, leader of epoch {self.epoch}, below its high "
                    f"watermark {self._bounds.high_watermark}; it keeps its records and waits for that broker to hand "
                    "over"
                )
            case SetAside() | None:
                return None
        return f"{why}; it keeps its records and copies nothing until the next leader epoch"

    @property
    def is_parted(self) -> bool:
        """Whether the log is to be set aside, and all copied again."""
        return isinstance(self._rules.stopped, SetAside)

    def _prepare(self) -> None:
        """Have a thread read what a fast start has left unread."""
        self._rules.is_busy = True
        self._run(self.log.readiness.steps())

    # Damage ---------------------------------------------------------------------------------------------------------

    def damage_changed(self) -> None:
        """Report to the leader that other ranges are damaged here than before."""
        self.on_ready()

    def damage_said(self, topic_id: bytes, partition: int) -> ReplicaDamage:
        """Return the damage that the next request reports: here as of the last call of :meth:`ask`."""
        flags = REFUSED if self.is_refusing else 0
        return ReplicaDamage(topic_id, partition, self.epoch, self.damage_stage, self._damaged_ranges, flags)

    def leader_said(self, said: ReplicaDamage) -> None:
        """Truncate the log to copy it again, if the leader's report of damage here and there allows it."""
        log, damage, rules = self.log, self.log.local.known_damage, self._rules
        if self.has_ended or said.leader_epoch != self.epoch or not damage.ranges or rules.stopped is not None:
            return
        if said.stage != damage.stage or rules.is_busy or not log.local.is_ready:
            return
        says = LeaderSays(bool(said.flags & UNCOUNTED), said.ranges, said.log_start_offset)
        match healing(damage.ranges, says, lambda offset: offset not in self._uncut):
            case CutBack(offset):
                self._heal(truncation_to(log, offset), offset)
            case BeginAnew(offset):
                self._heal(full_truncation(log, offset), offset)
            case ForgetBelow(offset):
                damage.accept(0, offset)
                damage.tell()
            case None if says.is_uncounted:
                missing = ", ".join(f"{start} to {end - 1}" for start, end in said.ranges)
                if missing != self._told_of_damage:
                    logger.warning(
                        "%s: broker %d lacks offsets %s itself; what is damaged here waits for a leader that has them",
                        self.topic_partition, self.leader_id, missing,
                    )  # fmt: skip
                    self._told_of_damage = missing

    def _heal(self, steps: Steps[None], offset: int) -> None:
        logger.warning(
            "%s: cut back from offset %d to %d, to copy from broker %d what this broker has lost",
            self.topic_partition, self.log.log_end_offset, offset, self.leader_id,
        )  # fmt: skip
        self._rules.is_busy = True
        run_in_threads(self._services.io, steps, partial(self._healed, offset))

    def _healed(self, offset: int, error: KafkaStorageError | ClosedError | None) -> None:
        if error is not None and self.log.local.is_usable and not self.log.disk.is_read_only:
            logger.warning("%s: not cut back to offset %d: %s", self.topic_partition, offset, error)
            self._uncut |= {offset}
        self._settled(error)

    # Answers --------------------------------------------------------------------------------------------------------

    def take(self, asked: Asked, fetched: FetchedPartition, now_s: float) -> Work[None]:
        """Do what the leader's answer to what was asked asks for. Its records stay valid until that is done."""
        if self.has_ended or not self.log.local.is_usable:
            return
        if self.log.disk.hanging is not None:
            # It was asked before the disk hung, and is asked again.
            self._rules.failed(now_s)
            return
        answer = LeaderAnswer(
            fetched.error_code,
            fetched.high_watermark,
            fetched.log_start_offset,
            bool(fetched.records),
            fetched.diverging_epoch,
            fetched.last_stable_offset if fetched.error_code else -1,
        )
        own = _UNASKED
        if fetched.diverging_epoch is not None or fetched.error_code:
            own = self._own_state()
        effect = self._rules.answered(asked, answer, self.log, now_s, own)
        match effect:
            case Append():
                yield from self._append(fetched.records, now_s)
            case Truncate(offset):
                self._cut(truncation_to(self.log, offset), offset)
            case StartAnew(offset):
                self._cut(full_truncation(self.log, offset), offset)
            case CheckEpochs():
                self._run(epoch_completion(self.log))
            case Contested(offset):
                self._tell(
                    f"broker {self.leader_id}, leader of epoch {self.epoch}, reports that the logs part at offset "
                    f"{offset}, below the high watermark {own.high_watermark} of this replica, which keeps its "
                    "records. The leader compares its log with its leader epochs"
                )
            case StopFollowing(offset):
                logger.error(
                    "%s: broker %d, leader of epoch %d, reports once more that the logs part below the high "
                    "watermark %d, at offset %d; this replica keeps its %d offsets and copies nothing until the next "
                    "leader epoch. Compare the logs of both brokers with kafkalite dump-log. Then elect another "
                    "replica, or remove the directory of the log that is wrong while its broker is stopped",
                    self.topic_partition, self.leader_id, self.epoch, own.high_watermark, offset,
                    self.log.log_end_offset - self.log.log_start_offset,
                )  # fmt: skip
            case SetAside(offset):
                logger.error(
                    "%s: broker %d, leader of epoch %d, lacks committed records that this replica has: the logs part "
                    "at offset %d, below the high watermark %d. Others may have been committed in their place, so the "
                    "leader's are copied. This log is set aside; kafkalite dump-log "
                    "--print-data-log prints its records from offset %d on, and a producer can write them again",
                    self.topic_partition, self.leader_id, self.epoch, offset, own.high_watermark, offset,
                )  # fmt: skip
                self._on_parted()
            case RefuseLogStart(start, end):
                logger.error(
                    "%s: the log of broker %d, leader of epoch %d, starts at offset %d, behind its own end %d; this "
                    "replica deletes nothing because of that, keeps its %d offsets and copies nothing until the next "
                    "leader epoch. Restart broker %d, which then compares its file of log starts with its log, or "
                    "elect another replica",
                    self.topic_partition, self.leader_id, self.epoch, start, end,
                    self.log.log_end_offset - self.log.log_start_offset, self.leader_id,
                )  # fmt: skip
            case Refused(code, problem):
                self._refused(code, problem)
        self._follow_bounds()

    def _own_state(self) -> OwnState:
        services, where, high_watermark = self._services, self.topic_partition, self._bounds.high_watermark
        is_member, is_eligible = services.is_member(where), services.is_eligible(where)
        # By the record before it the high watermark was learned under this leader epoch, or a later one.
        learned_in = self.log.epochs.epoch_at(high_watermark - 1)
        is_former = not (is_member or is_eligible or self._damaged_ranges)
        is_sound = is_former and learned_in >= services.unclean_epoch_of(where)
        return OwnState(high_watermark, is_member, is_eligible, is_sound)

    def prepare_append(self) -> None:
        """Have a thread begin what an append of the leader's records will wait for, if anything. So the logs of one
        answer are prepared at the same time, though they are appended to one after the other."""
        local = self.log.local
        pending = local.identity.pending() if local.is_usable and not self.has_ended else None
        if pending is not None:
            # The append has the outcome.
            self._services.io.submit(pending.work, lambda _: None, lambda _: None, Lane.SYNC)

    def has_no_news(self, asked: Asked) -> None:
        """Note that the leader's answer to a request that asked this has no entry for this partition."""
        if not self.has_ended:
            self._rules.has_no_news(asked)
            self._follow_bounds()

    def _follow_bounds(self) -> None:
        log, bounds = self.log, self._bounds
        bounds.commit(self._rules.high_watermark(log))
        rules = self._rules
        if rules.leader_log_start_offset > log.log_start_offset and not rules.is_busy:
            start = rules.log_start(log, bounds.high_watermark)
            if start > log.log_start_offset:
                self._on_log_start(start)

    def _append(self, records: Any, now_s: float) -> Work[None]:
        log = self.log
        try:
            for piece in copy_in_turns(log, records, self.epoch):
                yield from self._between(piece)
                if self.has_ended or not log.local.is_usable:
                    # Another role has the log by now.
                    return
        except CorruptMessage as error:
            self._rules.failed(now_s)
            self.is_refusing = True
            topic, number = self.topic_partition
            self._tell(
                f"what broker {self.leader_id} sends is refused and fetched again: {error}; if that stays, kafkalite "
                f"cluster compare {topic}:{number} has its log compared with those in sync, and healed"
            )
        except (KafkaStorageError, ClosedError) as error:
            self._rules.failed(now_s)
            self._tell(str(error))
            if isinstance(error, KafkaStorageError):
                self._on_refused(error)
        except MemoryError:
            self._rules.failed(now_s)
            self._tell("there is no memory for what is copied; trying again")
        else:
            self._rules.appended()
            self.is_refusing = False
            if self._services.meters is not None:
                self._count(self._services.meters, len(records))
            if self._told:
                logger.info("%s is copied from broker %d again", self.topic_partition, self.leader_id)
                self._told = ""
        finally:
            # Also of what was appended before an error.
            self._flusher.appended(len(records), self._bounds.acknowledges_flushed)

    def _count(self, meters: LogMeters, size_bytes: int) -> None:
        meters.topics.of(self.topic_partition.topic).replication_bytes_in += size_bytes
        if self._services.is_added(self.topic_partition):
            meters.reassignment_bytes_in += size_bytes

    def _between(self, piece: Piece[None] | None) -> Work[None]:
        """Let others have their turn, and a thread do what it is wanted for, before an append goes on."""
        if piece is None:
            yield None
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def failed(error: BaseException) -> None:
            piece.fail(error)
            done.set_result(None)

        self._services.io.submit(piece.run, done.set_result, failed, Lane.CHECK)
        yield done

    def _refused(self, code: int, problem: str) -> None:
        if problem or self._rules.failures >= _FAILURES_TO_TELL:
            self._tell(f"broker {self.leader_id} answered {problem or name_of(code)}; fetching again")

    def _tell(self, problem: str) -> None:
        """Log, once, why nothing is copied."""
        if problem != self._told:
            logger.warning("%s is not copied: %s", self.topic_partition, problem)
            self._told = problem

    # Truncation -----------------------------------------------------------------------------------------------------

    def _cut(self, steps: Steps[None], offset: int) -> None:
        log, bounds = self.log, self._bounds
        text = "%s: cut back from offset %d to %d, where its log parts from that of broker %d, leader of epoch %d"
        arguments = (self.topic_partition, log.log_end_offset, offset, self.leader_id, self.epoch)
        if offset < bounds.high_watermark:
            # Only a leader that was elected although it was not in sync has so little; see rule R16.
            text += "; that is below the high watermark %d: committed records are gone, as after an unclean election"
            logger.error(text, *arguments, bounds.high_watermark)
        else:
            logger.info(text, *arguments)
        bounds.truncated(offset)
        self._run(steps)

    def _run(self, steps: Steps[None]) -> None:
        run_in_threads(self._services.io, steps, self._settled)

    def _settled(self, error: KafkaStorageError | ClosedError | None) -> None:
        self._bounds.truncated(self.log.log_end_offset)
        if error is not None and self.log.local.is_usable:
            # Nothing has changed, because the disk is read-only for now.
            self._rules.failed(asyncio.get_running_loop().time())
        else:
            # With an error too: the log has failed or is closed, and nothing is asked.
            self._rules.cut()
        if isinstance(error, KafkaStorageError):
            self._on_refused(error)
        self._on_settled()
        self.on_ready()

    def flushed(self) -> None:
        """Ask for more where that has waited for the flush."""
        if self._bounds.acknowledges_flushed or self._awaits_flush:
            self.on_ready()

    def log_start_moved(self) -> None:
        """Have the leader know where this log starts now."""
        self.on_ready()

    def __repr__(self) -> str:
        return f"<Follower {self.topic_partition} of broker {self.leader_id} epoch={self.epoch}>"


def _nothing() -> None: ...

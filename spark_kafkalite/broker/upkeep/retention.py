"""Deletes old segments: checks every log each ``log.retention.check.interval.ms``, and sooner when asked to.

The rules are ``log/retention.py``'s. The order in which a segment goes, so that neither a reader nor a crash ever finds
a hole between log start and log end:

1. An active segment that has expired is rolled; what is to go is flushed, so that the segments behind it, and the
   producers' snapshot, are on the disk.
2. The new log start is written to its checkpoint, in a thread.
3. The log start moves: fetches below it get OFFSET_OUT_OF_RANGE from now on.
4. The files are renamed; answers that are being sent keep theirs open. They are unlinked later, in a thread.

All state is the loop's, and everything is decided again when a thread returns. A check of many logs is cut into slices;
timestamps that are not in memory (after a start) are read in threads. A log whose disk failed is left alone.

DeleteRecords moves log starts the same way, and leaves the files to the next look.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial

from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.log_starts import LogStartJob
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.retention import (
    Reason,
    RetentionPlan,
    RetentionRules,
    TimestampSource,
    plan_retention,
    read_largest_timestamps,
    segment_facts,
)
from spark_kafkalite.log.segments.segment import Segment
from spark_kafkalite.net.io_threads import IoThreads, Lane
from spark_kafkalite.slices import Slices, Work

logger = logging.getLogger(__name__)

_SOON_S = 0.5
# Logs whose timestamps are read, or whose starts are written, in one go.
_HANDED_OVER_AT_ONCE = 500
# Segments of one log that are renamed in one go; four renames each.
_RENAMED_AT_ONCE = 16


class Retention:
    """Removes old segments of the hosted partitions."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        io: IoThreads,
        clock: Clock,
        logs: LogManager,
        replicas: Replicas,
        slices: Slices,
    ) -> None:
        self._loop = loop
        self._slices = slices
        self._io = io
        self._clock = clock
        self._logs = logs
        self._replicas = replicas
        self._interval_s = config["log.retention.check.interval.ms"] / 1000
        self._initial_delay_s = config["log.initial.task.delay.ms"] / 1000
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._stopped = False
        self._work: deque[Callable[[], None]] = deque()
        self._working = False
        self._queued: set[Partition] = set()
        self._soon: set[Partition] = set()
        # Found since a thread was last given some.
        self._moves: dict[PartitionLog, tuple[Partition, int, str]] = {}
        self._reads: list[tuple[Partition, list[Segment]]] = []
        # Where the logs of leaders start, for those that this broker follows.
        self._leader_starts: dict[Partition, int] = {}
        # Logs whose start is on its way to the disk.
        self._moving: set[PartitionLog] = set()

    def start(self) -> None:
        """Begin."""
        self._call_later("check", self._initial_delay_s, self._check)

    def stop(self) -> None:
        """End: nothing more is removed."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._work.clear()
        self._reads.clear()
        self._moves.clear()

    def look_soon(self, partition: Partition) -> None:
        """Check one partition in half a second, whenever the next check comes."""
        self._soon.add(partition)
        if "soon" not in self._timers:
            self._call_later("soon", _SOON_S, self._look_at_those_asked_for)

    def follow_leader(self, partition: Partition, offset: int) -> None:
        """Have the log of a follower start where its leader's does."""
        self._leader_starts[partition] = offset
        self._queue(partition)
        self._start_work()

    async def advance_log_starts(self, moves: Mapping[Partition, int]) -> dict[Partition, KafkaStorageError]:
        """Move log starts forward, on the disk first; return what could not be moved.

        The caller has checked the offsets against what consumers may see. Segments below go soon.
        """
        wanted = {partition.log: offset for partition, offset in moves.items() if offset > partition.log_start_offset}
        if not wanted:
            return {}
        done: asyncio.Future[dict[PartitionLog, KafkaStorageError]] = self._loop.create_future()

        def finish(job: LogStartJob) -> None:
            failed = self._logs.log_starts.finish(job)
            if not done.done():
                done.set_result(failed)

        job = self._logs.log_starts.promise(wanted)
        self._io.submit(job.run, lambda _: finish(job), done.set_exception, Lane.SYNC)
        failed = await done
        for partition in moves:
            self.look_soon(partition)
        return {partition: failed[partition.log] for partition in moves if partition.log in failed}

    # Slices ---------------------------------------------------------------------------------------------------------

    def _call_later(self, name: str, delay_s: float, work: Callable[[], None]) -> None:
        if not self._stopped:
            self._timers[name] = self._loop.call_later(delay_s, work)

    def _check(self) -> None:
        self._call_later("check", self._interval_s, self._check)
        for partition in self._replicas:
            self._queue(partition)
        self._start_work()

    def _look_at_those_asked_for(self) -> None:
        del self._timers["soon"]
        asked, self._soon = self._soon, set()
        for partition in asked:
            self._queue(partition)
        self._start_work()

    def _queue(self, partition: Partition) -> None:
        if partition not in self._queued:
            self._queued.add(partition)
            self._work.append(partial(self._look_at, partition))

    def _start_work(self) -> None:
        if self._work and not self._working and not self._stopped:
            self._working = True
            self._slices.start(self._work_on(), self._worked)

    def _work_on(self) -> Work[None]:
        while self._work:
            piece = self._work.popleft()
            try:
                piece()
            except (KafkaStorageError, OSError) as error:
                logger.error("retention: %s", error)
            if len(self._reads) + len(self._moves) >= _HANDED_OVER_AT_ONCE:
                self._hand_over()
            yield None
        self._hand_over()

    def _worked(self, _: None, error: BaseException | None) -> None:
        self._working = False
        if error is not None:
            logger.critical("retention has failed", exc_info=error)
        self._start_work()

    def _hand_over(self) -> None:
        self._submit_reads()
        self._submit_moves()

    # One log --------------------------------------------------------------------------------------------------------

    def _look_at(self, partition: Partition) -> None:
        self._queued.discard(partition)
        log = partition.log
        if _is_out_of_use(partition):
            self._leader_starts.pop(partition, None)
            return
        if log in self._moving:
            if partition in self._leader_starts:
                self.look_soon(partition)
            return
        start = min(self._leader_starts.pop(partition, 0), partition.high_watermark)
        why = "its leader's log starts there"
        said, leader = log.unconfirmed_start_offset, partition.leader
        is_possible = start < said <= partition.high_watermark
        if is_possible and leader is not None and leader.follower_logs.confirms_start(said):
            start, why = said, "log-start-offset-checkpoint had it when the broker started"
        if start > log.log_start_offset:
            self._moves[log] = partition, start, why
            self._moving.add(log)
            return
        until_offset = partition.visible_end_offset
        plan = self._plan(log, until_offset)
        if plan.includes_active:
            partition.roll()
        if plan.log_start_offset is not None and plan.log_start_offset > log.local.removable_until_offset:
            partition.request_flush()
            self.look_soon(partition)
            plan = self._plan(log, min(until_offset, log.local.removable_until_offset))
        if plan.needs_timestamp:
            # All that goes, goes at once when it is known.
            segments = list(log.segments)[len(plan.reasons) :]
            if segments[-1].largest_timestamp_ms is not None:
                # The active segment says it itself, unless nothing was appended since a fast start.
                segments.pop()
            self._reads.append((partition, segments))
        elif plan.log_start_offset is not None and plan.log_start_offset > log.log_start_offset:
            self._moves[log] = partition, plan.log_start_offset, _why(plan)
            self._moving.add(log)
        elif log.hidden_segments:
            self._remove(partition, _why(plan))

    def _plan(self, log: PartitionLog, until_offset: int) -> RetentionPlan:
        rules = RetentionRules.of(
            log.config,
            log_start_offset=log.log_start_offset,
            until_offset=until_offset,
            now_ms=self._clock.wall_ms(),
        )
        return plan_retention(segment_facts(log.segments, log.log_end_offset), log.size_bytes, rules)

    def _remove(self, partition: Partition, why: str) -> None:
        """Rename what lies below the log start, some segments at a time."""
        log = partition.log
        if _is_out_of_use(partition):
            return
        count, before_bytes = log.hidden_segments, log.size_bytes
        if not count:
            return
        self._logs.delete_files(log, log.drop_hidden(_RENAMED_AT_ONCE))
        left = log.hidden_segments
        logger.info(
            "%s: removed %d segments (%d bytes): %s; the log starts at offset %d",
            partition.topic_partition,
            count - left,
            before_bytes - log.size_bytes,
            why,
            log.log_start_offset,
        )
        if left:
            self._work.append(partial(self._remove, partition, why))

    # Threads --------------------------------------------------------------------------------------------------------

    def _submit_reads(self) -> None:
        """Have the timestamps read that a look could not do without."""
        if not self._reads:
            return
        reads, self._reads = self._reads, []
        fs, now_ms = self._logs.fs, self._clock.wall_ms()
        work = [
            ([TimestampSource.of(segment) for segment in segments], now_ms - partition.log.config.retention_ms)
            for partition, segments in reads
        ]

        def read() -> list[list[int] | OSError]:
            found: list[list[int] | OSError] = []
            for sources, expired_before_ms in work:
                try:
                    found.append(read_largest_timestamps(fs, sources, expired_before_ms))
                except OSError as error:
                    found.append(error)
            return found

        def take_up(found: list[list[int] | OSError]) -> None:
            for (partition, segments), timestamps in zip(reads, found, strict=True):
                if isinstance(timestamps, OSError):
                    logger.error("retention: %s: %s", partition.topic_partition, timestamps)
                    continue
                for segment, timestamp_ms in zip(segments, timestamps, strict=False):
                    segment.note_largest_timestamp(timestamp_ms)
                # Nothing read: the segments have gone meanwhile, and the next check sees what is there instead.
                if timestamps:
                    self._queue(partition)
            self._start_work()

        self._io.submit(read, take_up, _raise)

    def _submit_moves(self) -> None:
        """Have the checkpoints of the new log starts written, all at once."""
        if not self._moves:
            return
        moves, self._moves = self._moves, {}
        job = self._logs.log_starts.promise({log: offset for log, (_, offset, _) in moves.items()})

        def finish() -> None:
            failed = self._logs.log_starts.finish(job)
            for error in list(failed.values())[:1]:
                logger.error("retention of %d logs: %s", len(failed), error)
            for log, (partition, _, why) in moves.items():
                self._moving.discard(log)
                if log not in failed and log.hidden_segments:
                    self._work.append(partial(self._remove, partition, why))
            self._start_work()

        self._io.submit(job.run, lambda _: finish(), _raise, Lane.SYNC)


def _is_out_of_use(partition: Partition) -> bool:
    log = partition.log
    return partition.storage_error is not None or not log.local.is_usable or log.disk.hanging is not None


def _why(plan: RetentionPlan) -> str:
    counts = Counter(plan.reasons)
    return ", ".join(f"{counts[reason]} {reason.value}" for reason in Reason if reason in counts)


def _raise(error: BaseException) -> None:
    # The work catches what a disk may do; anything else is a bug and belongs in the loop's log.
    raise error

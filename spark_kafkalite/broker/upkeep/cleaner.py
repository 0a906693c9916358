"""Chooses the compacted log that is cleaned next, and completes or calls off each cleaning.

``log.cleaner.threads`` tasks of the event loop, each with a child process of its own (``cleaner_child``), look every
``log.cleaner.backoff.ms`` for the log that needs it most. A task rolls the active segment of logs that nothing is
written to, lets the child copy, and swaps (``log.swap``). While one log is cleaned ``log.cleaning`` is set, and no
other code removes segments of it; everything else (appends, reads, flushes, a log start that moves) goes on as ever.

A cleaning is called off when the log is truncated, deleted or not compacted any more, when its directory is offline,
and when the broker stops: the child is killed and what it wrote is removed. Once the swap is committed it is ended,
which takes a few renames and syncs.

A log that cannot be cleaned is left alone for an hour, a full disk and a dead child for less; the others go on.
Source: kafka.log.LogCleaner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final
from weakref import WeakKeyDictionary

from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.settings.dynamic_config import DynamicConfig
from spark_kafkalite.broker.upkeep.cleaner_child import CleanerChild, CleanerDied
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import CorruptMessage, KafkaStorageError
from spark_kafkalite.log.compaction.clean_job import CleanJob, CleanResult, UncleanableLog
from spark_kafkalite.log.compaction.cleanable import clean_job, compaction_state, roll_is_due
from spark_kafkalite.log.compaction.plan import CompactionPlan, most_urgent, plan_compaction
from spark_kafkalite.log.directories.disk import FailureKind, kind_of
from spark_kafkalite.log.files.small_files import SWAP_FILE
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.segments.swap import Swap, remove_cleaned
from spark_kafkalite.net.io_threads import IoThreads, Lane
from spark_kafkalite.slices import Slices

logger = logging.getLogger(__name__)

# How soon a cleaning is called off once there is a reason.
_LOOK_S: Final = 0.1
# A child that has had nothing to do for this long ends; starting one takes about 0.1 s of a processor.
_IDLE_S: Final = 30.0
_UNCLEANABLE_S: Final = 3600.0
_NO_ROOM_S: Final = 60.0
_FINISH_AGAIN_S: Final = 1.0
# A log over which a child has died has to wait this long, twice as long after each further time.
_DEATH_S: Final = 0.25


class _CalledOff(Exception):
    """The cleaning ends here, for the reason given, and has changed nothing."""


class Cleaner:
    """The compaction of one broker's logs."""

    def __init__(
        self,
        settings: DynamicConfig,
        logs: LogManager,
        replicas: Replicas,
        io: IoThreads,
        clock: Clock,
        slices: Slices,
    ) -> None:
        self._slices = slices
        self._settings = settings
        self._logs = logs
        self._replicas = replicas
        self._io = io
        self._clock = clock
        self._stop_wanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        # When a task last looked for a log to clean, in monotonic seconds; None as long as none is to look.
        self._looked_s: float | None = None
        # Logs whose last cleaning has failed, and until which monotonic time they are left alone.
        self._deferred: WeakKeyDictionary[PartitionLog, float] = WeakKeyDictionary()
        # How often in a row a child has died over a log.
        self._deaths: WeakKeyDictionary[PartitionLog, int] = WeakKeyDictionary()
        # When the first tombstones of a log's clean part may go; -1 when it has none.
        self._next_horizon_ms: WeakKeyDictionary[PartitionLog, int] = WeakKeyDictionary()

    def start(self) -> None:
        """Begin to look for logs to clean, unless ``log.cleaner.enable`` is off."""
        if self._settings.current["log.cleaner.enable"]:
            self._looked_s = self._clock.monotonic_s()
            self._start_tasks(self._settings.current)
            self._settings.add_listener(lambda _, new: self._start_tasks(new))

    def _start_tasks(self, config: BrokerConfig) -> None:
        """Start the tasks that ``log.cleaner.threads`` wants more; those that it wants no more end by themselves."""
        if self._stop_wanted.is_set():
            return
        loop = asyncio.get_running_loop()
        for number in range(len(self._tasks), config["log.cleaner.threads"]):
            self._tasks.append(loop.create_task(self._work(), name=f"cleaner-{number}"))

    @property
    def seconds_since_look(self) -> float | None:
        """Since a task last looked for a log to clean; None with ``log.cleaner.enable`` off."""
        return None if self._looked_s is None else self._clock.monotonic_s() - self._looked_s

    @property
    def dead_count(self) -> int:
        """How many tasks have ended although they are wanted."""
        return 0 if self._stop_wanted.is_set() else sum(task.done() for task in self._tasks)

    @property
    def uncleanable(self) -> dict[str, int]:
        """How many compacted logs each log directory has whose last cleaning failed."""
        counts = {directory.path: 0 for directory in self._logs.directories}
        for log in self._deferred:
            if not log.closed and log.config.is_compacted:
                counts[log.disk.path] = counts.get(log.disk.path, 0) + 1
        return counts

    async def stop(self) -> None:
        """Call off what is being copied and end what is being swapped; nothing is cleaned afterwards."""
        self._stop_wanted.set()
        await asyncio.gather(*self._tasks)

    async def _work(self) -> None:
        child = CleanerChild()
        busy_s = self._clock.monotonic_s()
        while not self._stop_wanted.is_set() and not self._is_superfluous():
            try:
                found = await self._next()
                if found is not None:
                    await self._clean(child, *found)
                    busy_s = self._clock.monotonic_s()
            except Exception:
                # A bug; the other logs, and this one after a while, are still to be cleaned.
                logger.exception("cleaning failed")
                found = None
            if found is None:
                if self._clock.monotonic_s() - busy_s > _IDLE_S:
                    await child.close()
                await self._pause(self._settings.current["log.cleaner.backoff.ms"] / 1000)
        await child.close()

    def _is_superfluous(self) -> bool:
        """Take the running task out if there are more than ``log.cleaner.threads``; return whether."""
        if len(self._tasks) <= self._settings.current["log.cleaner.threads"]:
            return False
        task = asyncio.current_task()
        assert task is not None
        self._tasks.remove(task)
        return True

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.001)):
                await self._stop_wanted.wait()

    # Choosing -------------------------------------------------------------------------------------------------------

    async def _next(self) -> tuple[Partition, CompactionPlan] | None:
        """Return the partition whose log is to be cleaned now, marked as being cleaned; None when none is."""
        self._looked_s = self._clock.monotonic_s()
        turn = self._slices.turn()
        plans: list[CompactionPlan] = []
        partitions: dict[int, Partition] = {}
        for partition in list(self._replicas):
            await turn.pause()
            plan = self._plan(partition)
            if plan is not None:
                plans.append(plan)
                partitions[id(plan)] = partition
        chosen = most_urgent(plans)
        if chosen is None:
            return None
        # Others may have had their turn since.
        partition = partitions[id(chosen)]
        plan = self._plan(partition)
        if plan is None:
            return None
        partition.log.cleaning = True
        return partition, plan

    def _plan(self, partition: Partition) -> CompactionPlan | None:
        """Return what to clean of a log now, None when that is nothing; roll its active segment if it is time."""
        log = partition.log
        config = log.config
        if not config.is_compacted or log.cleaning or self._reason_against(partition, log.local.generation) is not None:
            return None
        if self._deferred.get(log, 0.0) > self._clock.monotonic_s():
            return None
        now_ms = self._clock.wall_ms()
        if log.cleaned_until_offset and log not in self._next_horizon_ms:
            # Cleaned before the last start; when tombstones may go is in the file, and this is not before it.
            self._next_horizon_ms[log] = now_ms + config.delete_retention_ms
        try:
            if roll_is_due(log, now_ms):
                partition.roll()
                partition.request_flush()
            horizon_ms = self._next_horizon_ms.get(log, -1)
            return plan_compaction(compaction_state(log, partition.last_stable_offset, horizon_ms), config, now_ms)
        except KafkaStorageError as error:
            logger.error("%s", error)
        except (OSError, CorruptMessage) as error:
            self._defer(log, _UNCLEANABLE_S, str(error))
        return None

    def _reason_against(self, partition: Partition, generation: int) -> str | None:
        """Return why the log of a partition must not be cleaned (any more), None when it may."""
        log = partition.log
        if self._stop_wanted.is_set():
            return "the broker stops"
        if log.closed or self._replicas.find(partition.topic_partition) is not partition:
            return "it has been deleted"
        if log.failure is not None or partition.storage_error is not None:
            return "its log directory is offline"
        if log.disk.hanging is not None:
            return "its log directory does not answer"
        if log.local.generation != generation:
            return "it has been truncated"
        if not log.config.is_compacted:
            return "its cleanup.policy is not compact any more"
        return None

    def _defer(self, log: PartitionLog, seconds: float, reason: str) -> None:
        self._deferred[log] = self._clock.monotonic_s() + seconds
        logger.error(
            "%s cannot be cleaned: %s; it is left as it is and tried again in %g s; other logs are still cleaned",
            log.topic_partition,
            reason,
            seconds,
        )

    # Cleaning -------------------------------------------------------------------------------------------------------

    async def _clean(self, child: CleanerChild, partition: Partition, plan: CompactionPlan) -> None:
        log = partition.log
        config = self._settings.current
        generation = log.local.generation
        began_s = self._clock.monotonic_s()
        try:
            if log.swap is not None:
                # Left by the last start, or by a cleaning that could not be ended.
                await self._finish(partition)
            job = clean_job(
                log,
                plan,
                self._clock.wall_ms(),
                config["log.cleaner.dedupe.buffer.size"] // max(config["log.cleaner.threads"], 1),
                config["max.decompressed.batch.bytes"],
            )
            result = await self._copy(child, partition, job, generation)
            await self._swap(partition, result, generation)
        except _CalledOff as reason:
            logger.info("the cleaning of %s is called off: %s", log.topic_partition, reason)
        except (UncleanableLog, CorruptMessage) as error:
            self._defer(log, _UNCLEANABLE_S, str(error))
            if isinstance(error, CorruptMessage):
                await self._survey(log, plan, str(error))
        except CleanerDied as error:
            self._deaths[log] = deaths = self._deaths.get(log, 0) + 1
            self._defer(log, min(_DEATH_S * 2**deaths, _UNCLEANABLE_S), str(error))
        except KafkaStorageError as error:
            self._replicas.storage_failed(partition, error)
        except OSError as error:
            if self._reason_against(partition, generation) is None:
                is_broken = kind_of(error) is FailureKind.BROKEN
                self._defer(log, _UNCLEANABLE_S if is_broken else _NO_ROOM_S, str(error))
                if is_broken:
                    await self._survey(log, plan, str(error))
        else:
            self._deaths.pop(log, None)
            self._deferred.pop(log, None)
            self._next_horizon_ms[log] = result.next_horizon_ms
            self._report(log, plan, result, self._clock.monotonic_s() - began_s)
        finally:
            log.cleaning = False

    async def _survey(self, log: PartitionLog, plan: CompactionPlan, reason: str) -> None:
        """Have it known what of the sources cannot be read, where other brokers have it."""
        damage = log.local.known_damage
        if damage.is_kept:
            bases = [source.base_offset for source in plan.sources]
            await self._io.run(lambda: damage.survey_segments(bases, reason), Lane.READ)
            damage.tell()

    async def _copy(self, child: CleanerChild, partition: Partition, job: CleanJob, generation: int) -> CleanResult:
        """Have the child copy, and kill it when there is a reason to. Raises the child's error, and _CalledOff."""
        config = self._settings.current
        bytes_per_second = config["log.cleaner.io.max.bytes.per.second"] / max(config["log.cleaner.threads"], 1)
        copying = asyncio.get_running_loop().create_task(
            child.clean(job, bytes_per_second, lambda count: self._report_progress(partition, count))
        )
        while True:
            await asyncio.wait((copying,), timeout=_LOOK_S)
            reason = self._reason_against(partition, generation)
            if reason is None and not copying.done():
                continue
            if not copying.done():
                copying.cancel()
                await asyncio.wait((copying,))
            if copying.cancelled() or copying.exception() is not None or reason is not None:
                await self._io.run(lambda: remove_cleaned(self._logs.fs, job.directory))
            if reason is not None:
                raise _CalledOff(reason)
            return copying.result()

    async def _swap(self, partition: Partition, result: CleanResult, generation: int) -> None:
        """Put what was copied in its place, and record that in the checkpoint."""
        log, fs = partition.log, self._logs.fs
        if result.groups:
            swap = log.swap = Swap(fs, log, result.groups, result.end_offset)
            try:
                committed = await self._io.run(swap.commit, Lane.SYNC)
            except (OSError, CorruptMessage) as error:
                await self._uncommitted(partition, error)
                raise
            reason = self._reason_against(partition, generation)
            if not committed:
                log.swap = None
                await self._io.run(lambda: remove_cleaned(fs, log.directory))
                raise _CalledOff(reason or "it has been truncated")
            while not swap.applied:
                if log.closed or log.failure is not None:
                    raise _CalledOff("it is out of use; the next start ends it")
                swap.apply_next()
                await asyncio.sleep(0)
            self._logs.delete_files(log, swap.retired)
        else:
            log.cleaned_until_offset = result.end_offset
        await self._finish(partition)

    async def _finish(self, partition: Partition) -> None:
        """Record in the checkpoint how far a log has been cleaned, and forget its swap; wait while the disk is full."""
        log, disk = partition.log, partition.log.disk
        swap = log.swap
        checkpoint = self._logs.checkpoints.cleaned_offsets(log)

        def finish() -> None:
            while True:
                try:
                    if swap is not None:
                        swap.sync_names()
                    checkpoint.write()
                    if swap is not None:
                        swap.forget()
                    return
                except OSError as error:
                    if kind_of(error) is not FailureKind.NO_ROOM or not disk.release_reserve():
                        raise

        while True:
            try:
                await self._io.run(finish, Lane.SYNC)
                log.swap = None
                return
            except OSError as error:
                if not log.local.is_usable or self._stop_wanted.is_set():
                    raise _CalledOff("the next start ends it") from error
                if kind_of(error) is FailureKind.BROKEN:
                    raise KafkaStorageError(f"cannot end the cleaning of {log.directory}: {error}") from error
                logger.warning("cannot end the cleaning of %s yet: %s", log.topic_partition, error)
                await self._pause(_FINISH_AGAIN_S)

    async def _uncommitted(self, partition: Partition, error: Exception) -> None:
        """Clear up after a swap that failed before its commit. KafkaStorageError when it may have been committed."""
        log, fs = partition.log, self._logs.fs
        is_doubtful = isinstance(error, OSError) and (
            kind_of(error) is FailureKind.BROKEN or fs.exists(f"{log.directory}/{SWAP_FILE}")
        )
        if is_doubtful and not log.closed:
            raise KafkaStorageError(f"cannot put cleaned segments in place in {log.directory}: {error}") from error
        log.swap = None
        await self._io.run(lambda: remove_cleaned(fs, log.directory))

    # Reporting ------------------------------------------------------------------------------------------------------

    def _report_progress(self, partition: Partition, count: int) -> None:
        logger.debug("cleaning %s: %.1f MB read and written", partition.topic_partition, count / 1e6)

    def _report(self, log: PartitionLog, plan: CompactionPlan, result: CleanResult, seconds: float) -> None:
        source_bytes = sum(source.size_bytes for source in plan.sources)
        moved_bytes = result.bytes_read + result.bytes_written
        logger.info(
            "cleaned %s: offsets %d to %d, dirty from %d (%.0f %%); %d of %d records kept (%.1f %%), %d segments of "
            "%.1f MB became %d of %.1f MB; read and wrote %.1f MB in %.2f s (%.1f MB/s)",
            log.topic_partition,
            plan.sources[0].base_offset,
            result.end_offset,
            plan.first_dirty_offset,
            plan.dirty_ratio * 100,
            result.records_kept,
            result.records_read,
            100 * result.records_kept / max(result.records_read, 1),
            sum(len(group.sources) for group in result.groups),
            source_bytes / 1e6,
            len(result.groups),
            result.bytes_written / 1e6,
            moved_bytes / 1e6,
            seconds,
            moved_bytes / 1e6 / max(seconds, 0.001),
        )

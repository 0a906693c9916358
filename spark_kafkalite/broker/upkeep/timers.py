"""The broker's timers: checkpoints, notes on the registry, removal of deleted logs, flushes that are due.

Flushes by count and by time are started for each partition by its Flusher (``broker/replication/flusher.py``); the look
here is for a log that became dirty otherwise: a look-up that found its end lost. A checkpoint is written only when its
content has changed, because writing it needs an fsync.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from spark_kafkalite.broker.registry_notes import RegistryNotes
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.directories.checkpoints import CheckpointJob
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.net.io_threads import IoThreads, Lane
from spark_kafkalite.slices import Slices

logger = logging.getLogger(__name__)

_FLUSH_LOOK_S = 1.0
_DELETIONS_LOOK_S = 1.0
_PRODUCERS_LOOK_S = 60.0
_STRAYS_LOOK_S = 3600.0
# What the log directories do not know of a registry that is lost; each note is an fsync, and only when it has moved.
_REGISTRY_NOTE_S = 1.0


class Upkeep:
    """Repeating work of one broker's loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slices: Slices,
        config: BrokerConfig,
        io: IoThreads,
        logs: LogManager,
        replicas: Replicas,
        registry_notes: RegistryNotes,
    ) -> None:
        self._loop = loop
        self._io = io
        self._logs = logs
        self._replicas = replicas
        self._checkpoint_s = config["log.flush.offset.checkpoint.interval.ms"] / 1000
        self._high_watermarks_s = config["replica.high.watermark.checkpoint.interval.ms"] / 1000
        self._noted_high_watermarks: dict[TopicPartition, int] = {}
        self._stray_retention_ms: int = config["stray.log.retention.ms"]
        self._checkpointed: dict[object, tuple[int, int]] = {}
        self._checkpointing = False
        self._registry_notes = registry_notes
        self._noted_zxid = 0
        self._noting = False
        self._slices = slices
        self._expiring = False
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def start(self) -> None:
        """Begin."""
        self._repeat("flush", _FLUSH_LOOK_S, self._look_at_flushes)
        self._repeat("checkpoint", self._checkpoint_s, self._checkpoint)
        self._repeat("high watermarks", self._high_watermarks_s, self._checkpoint_high_watermarks)
        every_s = _STRAYS_LOOK_S
        if self._stray_retention_ms >= 0:
            every_s = min(every_s, self._stray_retention_ms / 1000 + 1)
        self._repeat("strays", every_s, self._look_at_strays)
        self._look_at_strays()
        self._repeat("deletions", _DELETIONS_LOOK_S, self._look_at_deletions)
        self._repeat("producers", _PRODUCERS_LOOK_S, self._expire_producers)
        self._repeat("registry", _REGISTRY_NOTE_S, self._note_registry)
        self._note_registry()

    def stop(self) -> None:
        """End; nothing is called afterwards."""
        for timer in self._timers.values():
            timer.cancel()

    def _repeat(self, name: str, every_s: float, work: Callable[[], None]) -> None:
        def run() -> None:
            self._repeat(name, every_s, work)
            try:
                work()
            except KafkaStorageError as error:
                logger.error("%s", error)

        self._timers[name] = self._loop.call_later(every_s, run)

    def _look_at_flushes(self) -> None:
        for log in self._logs.due_flushes():
            partition = self._replicas.find(log.topic_partition)
            if partition is not None:
                partition.request_flush()

    def _expire_producers(self) -> None:
        def done(_: None, error: BaseException | None) -> None:
            self._expiring = False
            if error is not None:
                logger.error("cannot forget silent producers: %s", error)

        if not self._expiring:
            self._expiring = True
            self._slices.start(self._logs.expire_producers(), done)

    def _look_at_deletions(self) -> None:
        job = self._logs.due_deletions()
        if job is not None:
            self._io.submit(job.run, lambda _: None, lambda error: logger.error("removing files failed: %s", error))

    def _note_registry(self) -> None:
        zxid = self._registry_notes.zxid
        if self._noting or zxid == self._noted_zxid:
            return
        self._noting = True

        def done(_: object) -> None:
            self._noting, self._noted_zxid = False, zxid

        self._io.submit(lambda: self._registry_notes.write(zxid), done, done, lane=Lane.SYNC)

    def _look_at_strays(self) -> None:
        job = self._logs.look_at_strays(self._stray_retention_ms, self._replicas.fate_of_stray)
        self._io.submit(job.run, lambda _: None, lambda error: logger.error("removing old logs failed: %s", error))

    def _checkpoint_high_watermarks(self) -> None:
        """Write those that other replicas have a part in; alone, a broker's is the end of its log."""
        offsets = self._replicas.high_watermarks(replicated=True)
        if self._checkpointing or offsets == self._noted_high_watermarks:
            return
        self._run_checkpoint(self._logs.checkpoints.start_high_watermarks(offsets))
        self._noted_high_watermarks = offsets

    def _checkpoint(self) -> None:
        offsets: dict[object, tuple[int, int]] = {
            key: (log.recovery_point, log.log_start_offset) for key, log in self._logs.logs.items()
        }
        if self._checkpointing or offsets == self._checkpointed:
            return
        job = self._logs.checkpoints.start(self._replicas.high_watermarks())

        def written() -> None:
            self._checkpointed = offsets

        self._run_checkpoint(job, written)

    def _run_checkpoint(self, job: CheckpointJob, written: Callable[[], None] = lambda: None) -> None:
        self._checkpointing = True

        def done(error: BaseException | None) -> None:
            self._checkpointing = False
            try:
                if error is not None:
                    raise KafkaStorageError(f"cannot write the checkpoints: {error}")
                self._logs.finish_checkpoint(job)
                written()
            except KafkaStorageError as problem:
                logger.error("%s", problem)

        self._io.submit(job.run, lambda _: done(None), done, lane=Lane.SYNC)

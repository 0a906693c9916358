"""When one partition's log is flushed (fsync), and what follows: acknowledgements, or an offline log directory.

A flush is asked for after every append that waits for one (``flush.before.ack``, ``flush.messages=1``), after
``flush.messages`` records, after ``flush.ms``, when a segment has rolled, and when changed settings ask for it. It
begins after the present pass of the loop and runs in a thread; one runs at a time, and what is appended meanwhile gets
the next one: group commit.

The flushed end offset is the log's end as the flush began, never what fsync may have caught besides. An fsync that
failed is not tried again: the kernel has forgotten by then which pages did not reach the disk.

Apart from that the kernel is asked to begin writing every 32 MiB, so that a later fsync does not find gigabytes to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from spark_kafkalite.broker.metrics.counters import LogMeters
from spark_kafkalite.broker.waiting.purgatory import Purgatory
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.flush import FlushJob
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.net.io_threads import IoThreads, Lane

logger = logging.getLogger(__name__)

# flush.ms beyond a year (the default is for ever) needs no timer.
_LONGEST_TIMER_MS = 365 * 86_400_000
# After a flush that could not begin.
_RETRY_S = 0.25
# Dirty pages of one log before the kernel is asked to write them.
_WRITEBACK_BYTES = 32 * 1024 * 1024


class Flusher:
    """Flushes one log and notifies its partition."""

    __slots__ = (
        "_announced_end_offset",
        "_clock",
        "_closed",
        "_io",
        "_log",
        "_meters",
        "_on_failed",
        "_on_flushed",
        "_purgatory",
        "_running",
        "_timer",
        "_unwritten_bytes",
        "_wanted",
    )

    def __init__(
        self,
        log: PartitionLog,
        clock: Clock,
        purgatory: Purgatory,
        io: IoThreads,
        on_flushed: Callable[[], None],
        on_failed: Callable[[BaseException], None],
        meters: LogMeters | None = None,
    ) -> None:
        """``on_flushed`` is called when the flushed end offset has moved, ``on_failed`` when the disk has failed."""
        self._log = log
        self._clock = clock
        self._purgatory = purgatory
        self._io = io
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._meters = meters
        self._running = False
        self._wanted = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._unwritten_bytes = 0
        self._announced_end_offset: int = log.recovery_point

    def appended(self, size_bytes: int, waits_for_flush: bool) -> None:
        """Do what an append of ``size_bytes`` asks for."""
        local = self._log.local
        self._unwritten_bytes += size_bytes
        config = local.config
        if waits_for_flush or local.has_sealed_unflushed or local.unflushed_records >= config.flush_messages:
            self.request()
        elif self._unwritten_bytes >= _WRITEBACK_BYTES:
            self._start_writeback()
        if config.flush_ms < _LONGEST_TIMER_MS and self._timer is None:
            self._start_timer()

    def request(self) -> None:
        """Flush in a thread what has been appended until the flush begins; a running flush is followed by another."""
        self._wanted = True
        if not self._running and not self._closed:
            self._running = True
            # After this pass of the loop, so that all its appends share the flush.
            self._purgatory.call_after_pass(self._start)

    def config_changed(self, waits_for_flush: bool) -> None:
        """Flush when the log's new settings require it; ``waits_for_flush``: what is unflushed has to wait for it
        now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        local = self._log.local
        if local.unflushed_records and (waits_for_flush or local.unflushed_records >= local.config.flush_messages):
            self.request()
        if local.config.flush_ms < _LONGEST_TIMER_MS:
            self._start_timer()

    def close(self) -> None:
        """Begin no further flush."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def forget_partition(self) -> None:
        """Notify no partition any more, and let go of it: see ``collector``."""
        self._on_flushed = _nothing
        self._on_failed = _nothing

    def _start_timer(self) -> None:
        deadline_s = self._log.local.flush_deadline_s()
        if deadline_s is not None and not self._closed:
            delay_s = deadline_s - self._clock.monotonic_s()
            self._timer = self._purgatory.call_later(delay_s, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self.request()

    def _start(self) -> None:
        self._wanted = False
        # A truncation takes it back.
        self._announced_end_offset = min(self._announced_end_offset, self._log.recovery_point)
        job = None if self._closed else self._log.start_flush()
        if job is None:
            self._running = False
            return
        self._unwritten_bytes = 0
        self._io.submit(job.run, lambda _: self._done(job), lambda error: self._could_not_run(job, error), Lane.SYNC)

    def _could_not_run(self, job: FlushJob, error: BaseException) -> None:
        # Nobody knows what was synced.
        job.error = OSError(f"the flush broke off: {error!r}")
        self._done(job)

    def _done(self, job: FlushJob) -> None:
        self._running = False
        if self._meters is not None:
            self._meters.flushes.observe(self._clock.monotonic_s() - job.started_s)
            self._meters.failed_flushes += job.error is not None and not job.can_be_repeated
        try:
            self._log.finish_flush(job)
        except KafkaStorageError as error:
            if self._log.failure is not None:
                self._on_failed(error)
            elif not self._closed:
                # Nothing was synced for want of a descriptor; whoever waits for the flush waits a little longer.
                logger.warning("%s; trying again", error)
                self._purgatory.call_later(_RETRY_S, self.request)
            return
        if self._log.recovery_point != self._announced_end_offset:
            self._announced_end_offset = self._log.recovery_point
            self._on_flushed()
        if self._wanted:
            self.request()
        elif self._timer is None and self._log.config.flush_ms < _LONGEST_TIMER_MS:
            self._start_timer()

    def _start_writeback(self) -> None:
        """Have the kernel begin to write; in a thread, because that blocks when the disk's queue is full."""
        active = self._log.segments.active
        file, end = active.file, active.size_bytes
        start = max(end - self._unwritten_bytes, 0)
        self._unwritten_bytes = 0
        self._io.submit(
            lambda: file.start_writeback(start, end - start),
            lambda _: None,
            lambda error: logger.warning("starting to write %s back failed: %s", self._log.topic_partition, error),
        )


def _nothing(*_: object) -> None: ...

"""Batches of one partition that a thread checks first, and the later ones that must not overtake them.

A batch goes to a thread when checking it is too much for the loop (a large one, more so if it is compressed). So does a
batch that must be compressed again, because the topic's ``compression.type`` names another codec than the producer's.
So does one for a log that is not ready for appends (``log.readiness``). The thread gets the batch and the rules of that
moment, and returns the batch to append; nothing else is shared with it. A large one goes to a thread once more, which
writes it behind the log's end (``log.segments.write_ahead``), again and again if the end changes meanwhile. Everything
handed in later queues behind, in order, and is then appended by the loop without a thread where it needs none.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeVar

from spark_kafkalite.errors import KafkaError, KafkaStorageError
from spark_kafkalite.log.files.needs_thread import NeedsThread
from spark_kafkalite.log.partition_log import AppendResult
from spark_kafkalite.log.segments.write_ahead import WriteAhead
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.net.io_threads import IoThreads, Lane
from spark_kafkalite.records import layout
from spark_kafkalite.records.admission import AdmissionRules, check_size, walk
from spark_kafkalite.records.assemble import SectionFacts, assemble
from spark_kafkalite.records.compression import CODECS, GZIP, LZ4, NONE, ZSTD, decompress
from spark_kafkalite.records.layout import BatchHeader

AppendOutcome = AppendResult | KafkaError
T = TypeVar("T")


class Recompression(NamedTuple):
    """The codec in which a topic keeps its batches, whatever they arrive in; ``level`` None is the codec's own."""

    codec: int
    level: int | None


class Checked(NamedTuple):
    """A batch that has been admitted; ``batch`` is writable and may be another one than was produced."""

    batch: memoryview
    header: BatchHeader


def recompression_of(config: TopicConfig) -> Recompression | None:
    """Return the codec that the topic's settings ask for, None to keep batches as they come."""
    if config.compression_type == "producer":
        return None
    if config.compression_type == "uncompressed":
        return Recompression(NONE, None)
    codec = CODECS[config.compression_type]
    levels = {
        GZIP: config.compression_gzip_level,
        LZ4: config.compression_lz4_level,
        ZSTD: config.compression_zstd_level,
    }
    level = levels.get(codec)
    # -1 is "the library's own" for gzip; a real level of zstd may be negative.
    return Recompression(codec, None if codec == GZIP and level == -1 else level)


def check_in_thread(
    batch: memoryview, header: BatchHeader, rules: AdmissionRules, recompression: Recompression | None
) -> Checked:
    """Walk a batch's records and bring it into the topic's codec. Raises the errors of admission."""
    header = walk(batch, 0, header, rules)
    if recompression is None or recompression.codec == header.codec:
        return Checked(batch, header)
    section = decompress(
        header.codec, batch[layout.HEADER_BYTES : header.size_bytes], rules.max_decompressed_bytes, as_java=True
    )
    buffer = bytearray(layout.HEADER_BYTES)
    buffer += section
    assembled = assemble(
        buffer,
        SectionFacts(header.record_count, header.base_timestamp, header.max_timestamp),
        recompression.codec,
        recompression.level,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
    )
    # What little arrived may be much in the topic's codec, or without one.
    check_size(len(assembled), rules)
    return Checked(memoryview(assembled), layout.BatchHeader(*layout.HEADER_STRUCT.unpack_from(assembled)))


def _without_frames(error: KafkaError) -> KafkaError:
    """Make a value of an error that was raised.

    The frames in its traceback hold the batch and all that it unpacked to; one of them would hold the error as well, so
    that tens of megabytes for each refused batch waited for the garbage collector.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


class QueuedBatch:
    """A batch for the queue, and the function that gets its outcome.

    ``batch`` stays as it is until ``release`` is called, which may be after ``on_done``: a thread may still be at work
    on it. ``header``: it has been admitted and needs a thread; None: not checked.
    """

    __slots__ = ("ahead", "batch", "header", "in_thread", "on_done", "produce_version", "release")

    def __init__(
        self,
        batch: memoryview,
        produce_version: int,
        header: BatchHeader | None,
        on_done: Callable[[AppendOutcome], None],
        release: Callable[[], None],
    ) -> None:
        self.batch = batch
        self.produce_version = produce_version
        self.header = header
        self.on_done = on_done
        self.release = release
        self.in_thread = False
        self.ahead: WriteAhead | None = None


class Appender:
    """What the queue needs of its leader."""

    def try_append(self, batch: memoryview, produce_version: int) -> AppendResult | BatchHeader:
        """Append at once, or return the header of a batch that needs a thread. Raises KafkaError."""
        raise NotImplementedError

    def append_checked(self, checked: Checked, ahead: WriteAhead | None) -> AppendResult | WriteAhead:
        """Append a batch that a thread has checked, or return what a thread has to write first; ``ahead`` is what was
        returned last time. Raises KafkaError."""
        raise NotImplementedError

    def thread_rules(self) -> tuple[AdmissionRules, Recompression | None]:
        """Return the rules that hold now."""
        raise NotImplementedError

    def before_append(self) -> NeedsThread | None:
        """Return what a thread has to do before the next append, if anything."""
        raise NotImplementedError


class AppendQueue:
    """The queue of one leader; empty nearly always."""

    __slots__ = ("_appender", "_end", "_io", "waiting")

    def __init__(self, appender: Appender, io: IoThreads) -> None:
        self._appender = appender
        # Why nothing is taken any more.
        self._end: KafkaError | None = None
        self._io = io
        # For others to see whether there is any.
        self.waiting: deque[QueuedBatch] = deque()

    def add(self, queued: QueuedBatch) -> None:
        """Append a batch after those that were handed in before it; its ``on_done`` gets the result or the error."""
        if self._end is not None:
            queued.release()
            queued.on_done(self._end)
            return
        self.waiting.append(queued)
        if len(self.waiting) == 1:
            self._work_off()

    def close(self, error: KafkaError) -> None:
        """Answer everything with an error, from now on too, and let go of the leader (see ``collector``). A thread that
        still works does so in vain."""
        self._end = error
        while self.waiting:
            self._done(self.waiting[0], error)
        self._appender = Appender()

    def _work_off(self) -> None:
        """Append from the head until one needs a thread."""
        while self.waiting:
            queued = self.waiting[0]
            outcome: AppendResult | BatchHeader | KafkaError
            try:
                header = queued.header
                outcome = self._appender.try_append(queued.batch, queued.produce_version) if header is None else header
            except (KafkaError, MemoryError) as error:
                outcome = _outcome_of(error)
            if isinstance(outcome, BatchHeader):
                self._start_thread(queued, outcome)
                return
            if not self._done(queued, outcome):
                return

    def _start_thread(self, queued: QueuedBatch, header: BatchHeader) -> None:
        rules, recompression = self._appender.thread_rules()
        own_rules = replace(rules)
        missing = self._appender.before_append()

        def work() -> Checked:
            if missing is not None:
                # The append meets the error as well.
                with contextlib.suppress(OSError, KafkaError):
                    missing.work()
            return check_in_thread(queued.batch, header, own_rules, recompression)

        lane = Lane.SYNC if missing is not None and missing.syncs else Lane.CHECK
        self._submit(queued, work, lambda checked: self._append(queued, checked), lane)

    def _submit(
        self, queued: QueuedBatch, work: Callable[[], T], on_done: Callable[[T], None], lane: Lane = Lane.CHECK
    ) -> None:
        """Have a thread work on the batch at the head."""

        def is_wanted() -> bool:
            queued.in_thread = False
            if self._is_head(queued):
                return True
            queued.release()
            return False

        def done(result: T) -> None:
            if is_wanted():
                on_done(result)

        def failed(error: BaseException) -> None:
            if is_wanted():
                self._done(queued, _outcome_of(error))
                self._work_off()

        queued.in_thread = True
        self._io.submit(work, done, failed, lane)

    def _append(self, queued: QueuedBatch, checked: Checked) -> None:
        """Append the batch at the head, or have a thread write it first."""
        outcome: AppendOutcome
        try:
            appended = self._appender.append_checked(checked, queued.ahead)
        except (KafkaError, MemoryError) as error:
            outcome = _outcome_of(error)
        else:
            if isinstance(appended, WriteAhead):
                queued.ahead = appended
                self._submit(queued, appended.run, lambda _: self._append(queued, checked))
                return
            outcome = appended
        if self._done(queued, outcome):
            self._work_off()

    def _is_head(self, queued: QueuedBatch) -> bool:
        return bool(self.waiting) and self.waiting[0] is queued

    def _done(self, queued: QueuedBatch, outcome: AppendOutcome) -> bool:
        """Answer the head and return True; False when ``close`` has answered it already, for example because its own
        append has taken the partition offline."""
        if not self._is_head(queued):
            return False
        self.waiting.popleft()
        if queued.ahead is not None:
            # Of use only to what has been appended.
            queued.ahead.stop()
        if not queued.in_thread:
            queued.release()
        queued.on_done(outcome)
        return True


def _outcome_of(error: BaseException) -> KafkaError:
    """Return what a batch is answered with when a thread has failed."""
    if isinstance(error, KafkaError):
        return _without_frames(error)
    if isinstance(error, MemoryError):
        return KafkaStorageError("the broker is out of memory; nothing was written, try again")
    return KafkaError(f"the batch could not be checked: {error!r}")

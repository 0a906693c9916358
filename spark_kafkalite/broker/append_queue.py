"""Batches of one partition that wait for a thread, and those that came after them and must not overtake them.

A batch goes to a thread when walking its records is too much for the loop (a large compressed one), or when the
topic's ``compression.type`` names another codec than the producer's, so that it must be compressed anew; or when the
log's end has to be read first, which a fast start has put off (``PartitionLog.unread_tail``). The thread
gets the batch and the rules of that moment, and gives back the batch to append; nothing else is shared with it.
Everything handed in later queues behind, in order, and is then appended by the loop without a thread where it needs
none.

A queued batch is a copy: the request's memory is gone by then. It counts as request memory until it is answered.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from spark_kafkalite.broker.io_threads import IoThreads, Lane
from spark_kafkalite.broker.request_memory import RequestMemory
from spark_kafkalite.errors import KafkaError, KafkaStorageError
from spark_kafkalite.log.config import TopicConfig
from spark_kafkalite.log.fs import NotInMemory
from spark_kafkalite.log.partition_log import AppendResult
from spark_kafkalite.records import layout
from spark_kafkalite.records.admission import AdmissionRules, check_size, walk
from spark_kafkalite.records.assemble import SectionFacts, assemble
from spark_kafkalite.records.compression import CODECS, GZIP, LZ4, NONE, ZSTD, decompress
from spark_kafkalite.records.layout import BatchHeader

AppendOutcome = AppendResult | KafkaError


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
    section = decompress(header.codec, batch[layout.HEADER_BYTES : header.size_bytes], rules.max_decompressed_bytes)
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


class _Queued:
    """A batch in the queue."""

    __slots__ = ("batch", "header", "on_done", "produce_version")

    def __init__(
        self,
        batch: memoryview,
        produce_version: int,
        header: BatchHeader | None,
        on_done: Callable[[AppendOutcome], None],
    ) -> None:
        self.batch = batch
        self.produce_version = produce_version
        self.header = header
        self.on_done = on_done


class Appender:
    """What the queue needs of its partition."""

    def try_append(self, batch: memoryview, produce_version: int) -> AppendResult | BatchHeader:
        """Append at once, or return the header of a batch that needs a thread. Raises KafkaError."""
        raise NotImplementedError

    def append_checked(self, checked: Checked) -> AppendResult:
        """Append a batch that a thread has checked. Raises KafkaError, also when leadership has gone meanwhile."""
        raise NotImplementedError

    def thread_rules(self) -> tuple[AdmissionRules, Recompression | None]:
        """Return the rules that hold now."""
        raise NotImplementedError

    def read_first(self) -> NotInMemory | None:
        """Return what a thread loads before the next append, if anything."""
        raise NotImplementedError


class AppendQueue:
    """The queue of one partition; empty nearly always."""

    __slots__ = ("_appender", "_end", "_io", "_memory", "_queue")

    def __init__(self, appender: Appender, io: IoThreads, memory: RequestMemory) -> None:
        self._appender = appender
        # Why nothing is taken any more.
        self._end: KafkaError | None = None
        self._io = io
        self._memory = memory
        self._queue: deque[_Queued] = deque()

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(
        self,
        batch: memoryview,
        produce_version: int,
        header: BatchHeader | None,
        on_done: Callable[[AppendOutcome], None],
    ) -> None:
        """Append a batch after those that were handed in before it; ``on_done`` gets the result or the error.

        ``batch`` must stay valid until then. ``header``: it has been admitted and needs a thread; None: not looked at.
        """
        if self._end is not None:
            on_done(self._end)
            return
        self._memory.take(len(batch))
        self._queue.append(_Queued(batch, produce_version, header, on_done))
        if len(self._queue) == 1:
            self._work_off()

    def fail(self, error: KafkaError) -> None:
        """Answer everything in the queue with an error; a thread that still works does so in vain."""
        while self._queue:
            self._head_done(error)

    def close(self, error: KafkaError) -> None:
        """Answer everything with an error, from now on too, and let go of the partition: see ``collector``."""
        self._end = error
        self.fail(error)
        self._appender = Appender()

    def _work_off(self) -> None:
        """Append from the head until one needs a thread."""
        while self._queue:
            queued = self._queue[0]
            outcome: AppendResult | BatchHeader | KafkaError
            try:
                header = queued.header
                outcome = self._appender.try_append(queued.batch, queued.produce_version) if header is None else header
            except KafkaError as error:
                outcome = _without_frames(error)
            if isinstance(outcome, BatchHeader):
                self._start_thread(queued, outcome)
                return
            self._head_done(outcome)

    def _start_thread(self, queued: _Queued, header: BatchHeader) -> None:
        rules, recompression = self._appender.thread_rules()
        own_rules = replace(rules)
        missing = self._appender.read_first()

        def work() -> Checked:
            if missing is not None:
                # The append meets the error as well.
                with contextlib.suppress(OSError, KafkaError):
                    missing.load()
            return check_in_thread(queued.batch, header, own_rules, recompression)

        self._io.submit(
            work,
            lambda checked: self._checked(queued, checked),
            lambda error: self._checked(queued, error),
            Lane.CHECK,
        )

    def _checked(self, queued: _Queued, checked: Checked | BaseException) -> None:
        if not self._queue or self._queue[0] is not queued:
            return  # Answered meanwhile with an error, by fail().
        outcome: AppendOutcome
        if isinstance(checked, KafkaError):
            outcome = _without_frames(checked)
        elif isinstance(checked, MemoryError):
            outcome = KafkaStorageError("the broker is out of memory; nothing was written, try again")
        elif isinstance(checked, BaseException):
            outcome = KafkaError(f"the batch could not be checked: {checked!r}")
        else:
            try:
                outcome = self._appender.append_checked(checked)
            except KafkaError as error:
                outcome = _without_frames(error)
        self._head_done(outcome)
        self._work_off()

    def _head_done(self, outcome: AppendOutcome) -> None:
        queued = self._queue.popleft()
        self._memory.give_back(len(queued.batch))
        queued.on_done(outcome)

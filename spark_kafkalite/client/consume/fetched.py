"""Fetched batches of one partition, not yet decoded, and how they become columns.

A :class:`FetchedBatches` is a piece of a Fetch answer with a cursor. The cursor moves by batch ends, not by the offsets
of records, so that compacted gaps, control batches and hidden (aborted) batches are passed. Decoding may stop in the
middle of a batch, when the columns are full, and goes on there; a compressed batch is decompressed once for that.

The memory of an answer belongs to a :class:`BufferPool` again once every partition's piece of it is used up: columns
are copies, so nothing refers to it then. First touches of fresh memory cost more than the copying, which is why buffers
are kept.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

from spark_kafkalite.client.consume.fetch_requests import PartitionFetched
from spark_kafkalite.client.consume.isolation import AbortedTransactions
from spark_kafkalite.client.consume.passed_offsets import PassedOffsets
from spark_kafkalite.errors import CorruptMessage, InvalidRecord
from spark_kafkalite.model import IsolationLevel, TopicPartition
from spark_kafkalite.records.columns import Buffer, ColumnBuilder, Columns, batch_payload
from spark_kafkalite.records.kernel import check_crc, read_header, scan_headers
from spark_kafkalite.records.layout import MAX_INT64, BatchHeader
from spark_kafkalite.wire.frame import Memory

# What one batch may decompress to: eight times what brokers of ours accept by default.
MAX_DECOMPRESSED_BYTES: Final = 512 << 20
# A batch that begins so far behind the high watermark has a wrong base offset. A broker may return records with a high
# watermark that is a little older.
_BEHIND_THE_END: Final = 1 << 20
_KEPT_BUFFERS: Final = 4
_KEPT_BUFFER_BYTES: Final = 32 << 20


class BufferPool:
    """A few receive buffers to be used again. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[Memory] = []

    def take(self) -> Memory | None:
        """Return the largest free buffer, None when there is none."""
        with self._lock:
            return self._free.pop() if self._free else None

    def give(self, buffer: Memory) -> None:
        """Take a buffer back; what is too large or too much is dropped."""
        if len(buffer) > _KEPT_BUFFER_BYTES:
            return
        with self._lock:
            self._free.append(buffer)
            self._free.sort(key=len)
            del self._free[: max(0, len(self._free) - _KEPT_BUFFERS)]


class AnswerMemory:
    """The buffer of one answer; its last user returns it to its pool."""

    def __init__(self, pool: BufferPool, buffer: Memory) -> None:
        self._pool = pool
        self._buffer: Memory | None = buffer
        self._users = 0
        self._lock = threading.Lock()

    def add_user(self) -> None:
        """Count one more piece of the answer that is still to be decoded."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        """Count one user less."""
        with self._lock:
            self._users -= 1
            buffer = self._buffer if self._users <= 0 else None
            if buffer is not None:
                self._buffer = None
        if buffer is not None:
            self._pool.give(buffer)


class FetchedBatches:
    """Batches of one partition as fetched; ``next_offset`` is where its reader has got to."""

    __slots__ = (
        "_aborted",
        "_at",
        "_check_crcs",
        "_headers",
        "_hidden",
        "_index",
        "_least_offset",
        "_memory",
        "_passed",
        "_payload",
        "_records",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "next_offset",
        "size_bytes",
        "topic_partition",
        "until_offset",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        fetched: PartitionFetched,
        first_offset: int,
        *,
        until_offset: int = MAX_INT64,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        check_crcs: bool = True,
        memory: AnswerMemory | None = None,
        passed: PassedOffsets | None = None,
        least_offset: int = 0,
    ) -> None:
        """Wrap one partition's result; offsets below ``first_offset`` and from ``until_offset`` on are left out.

        ``passed`` gets the counts of every batch when its decoding begins. ``least_offset``: no batch begins before it,
        as another one ends there.

        Batches behind one whose header cannot be read are left out, and so is that one. Raises CorruptMessage (2),
        naming partition and offset, when it is the first, and for bytes that would be fetched for ever, because they
        hold no whole batch, or none that reaches ``first_offset``.
        """
        self.topic_partition = topic_partition
        self.next_offset = first_offset
        self.until_offset = until_offset
        self._passed = passed
        self.high_watermark = fetched.high_watermark
        self.last_stable_offset = fetched.last_stable_offset
        self.log_start_offset = fetched.log_start_offset
        records = fetched.records if fetched.records is not None else memoryview(b"")
        self._records = records
        self.size_bytes = len(records)
        try:
            self._headers = scan_headers(records)
        except CorruptMessage as error:
            self._headers = _headers_before_damage(records)
            if not self._headers:
                raise unreadable(topic_partition, first_offset, error) from error
        if self._headers and self._is_outside(self._headers[-1]):
            # The next fetch would begin there. This one is fetched again, and is the first then.
            last = self._headers.pop()
            if not self._headers:
                text = f"its header has the base offset {last.base_offset}, the high watermark is {self.high_watermark}"
                raise unreadable(topic_partition, first_offset, CorruptMessage(text))
        if self.size_bytes and (not self._headers or self._headers[-1].next_offset <= first_offset):
            raise unreadable(topic_partition, first_offset, self._no_progress())
        committed = isolation == IsolationLevel.READ_COMMITTED
        self._aborted = AbortedTransactions(fetched.aborted) if committed else None
        self._check_crcs = check_crcs
        self._index = 0
        self._least_offset = least_offset
        self._at = 0
        self._hidden: bool | None = None
        self._payload: Buffer | None = None
        self._memory = memory
        if memory is not None:
            memory.add_user()
        if not self._headers:
            self.release()

    def __repr__(self) -> str:
        left = len(self._headers) - self._index
        return f"FetchedBatches({self.topic_partition}, next_offset={self.next_offset}, {left} batches left)"

    def _no_progress(self) -> CorruptMessage:
        """Since KIP-74 brokers send the first batch whole however large it is, and begin with the one asked for."""
        if not self._headers:
            return CorruptMessage(
                f"the {self.size_bytes} bytes from there on hold no whole batch, so its length is wrong"
            )
        return CorruptMessage(f"the headers of the batches from there on end at offset {self._headers[-1].next_offset}")

    @property
    def first_base_offset(self) -> int:
        """Base offset of the first batch, -1 without one."""
        return self._headers[0].base_offset if self._headers else -1

    @property
    def end_offset(self) -> int:
        """The first offset after these batches, at most ``until_offset``; where the next fetch goes on."""
        if not self._headers:
            return self.next_offset
        return max(self.next_offset, min(self._headers[-1].next_offset, self.until_offset))

    @property
    def batch_end(self) -> int:
        """Where the batch before the cursor ends, 0 when that is not known."""
        return self._least_offset

    @property
    def is_exhausted(self) -> bool:
        """Whether everything has been decoded or passed."""
        return self._index >= len(self._headers)

    def decode_into(self, builder: ColumnBuilder) -> None:
        """Add records until the builder is full or these batches are used up.

        Raises CorruptMessage (2) or InvalidRecord (87) naming partition and offset; the cursor stays before the batch.
        """
        while self._index < len(self._headers):
            header = self._headers[self._index]
            if header.base_offset >= self.until_offset:
                if self._passed is not None:
                    self._passed.removed += max(0, self.until_offset - self.next_offset)
                self.next_offset = max(self.next_offset, self.until_offset)
                self._index = len(self._headers)
                break
            try:
                stopped = self._decode_batch(builder, header)
            except (CorruptMessage, InvalidRecord) as error:
                following = self._headers[self._index + 1 : self._index + 2]
                # The next batch knows better than one that is damaged.
                behind = following[0].base_offset if following else header.next_offset
                raise unreadable(self.topic_partition, header.base_offset, error, behind) from error
            if stopped:
                return
            self._least_offset = next_offset = header.next_offset
            self.next_offset = max(self.next_offset, min(next_offset, self.until_offset))
            self._index += 1
            self._at += header.size_bytes
            self._hidden = None
            self._payload = None
        self.release()

    @property
    def is_inside_batch(self) -> bool:
        """Whether a batch is decompressed in memory, of which more rows are to come."""
        return self._payload is not None and not self.is_exhausted

    def _decode_batch(self, builder: ColumnBuilder, header: BatchHeader) -> bool:
        """Decode one batch from the cursor on; returns whether the builder was full before its end."""
        if self._hidden is None and not self._least_offset <= header.base_offset <= self.next_offset:
            self._check_offsets(header)
        passed = header.next_offset <= self.next_offset
        if self._hidden is None:
            # The CRC covers the last offset, which tells what is passed.
            if self._check_crcs and (not passed or header.last_offset_delta < 0):
                check_crc(self._records, self._at, header.size_bytes)
            # Asked for every batch, also those that are passed: markers before the position count.
            hidden = self._aborted is not None and self._aborted.hides(self._records, self._at, header)
            self._hidden = hidden or header.is_control
            if self._passed is not None and not passed:
                self._passed.count_batch(
                    header, self.next_offset, self.until_offset, hidden, lambda: self._payload_of(header)
                )
        if passed or self._hidden:
            return False
        if _is_full(builder):
            return True
        if header.codec:
            self._payload_of(header)
        builder.add_batch(self._records, self._at, header, self._payload, self.next_offset, self.until_offset)
        if _is_full(builder) and builder.next_offset < min(header.next_offset, self.until_offset):
            self.next_offset = max(self.next_offset, builder.next_offset)
            return True
        return False

    def _is_outside(self, header: BatchHeader) -> bool:
        """Return whether a batch begins far outside of the log, by a base offset that has changed."""
        return header.base_offset < 0 or 0 <= self.high_watermark < header.base_offset - _BEHIND_THE_END

    def _check_offsets(self, header: BatchHeader) -> None:
        """Raise CorruptMessage for a batch whose offsets cannot be right. Its CRC does not cover the base offset: a
        reader would drop records that seem to lie before its position, or deliver them with other offsets."""
        last_offset, after = header.last_offset, self._index + 1
        if header.base_offset < self._least_offset:
            raise CorruptMessage(
                f"its header has the offsets {header.base_offset} to {last_offset}, and {self._least_offset} or more "
                "are expected"
            )
        # One that begins where it is expected is right, and the next one is not.
        if after < len(self._headers) and last_offset >= self._headers[after].base_offset:
            raise CorruptMessage(
                f"its header has the offsets {header.base_offset} to {last_offset}, and the next batch begins at "
                f"{self._headers[after].base_offset}"
            )

    def _payload_of(self, header: BatchHeader) -> Buffer:
        if self._payload is None:
            self._payload = batch_payload(self._records, self._at, header, MAX_DECOMPRESSED_BYTES)
        return self._payload

    def leader_epoch_before(self, offset: int) -> int | None:
        """Return the leader epoch of the last batch that begins before an offset, None when none does; also after the
        batches' memory has been released. Before epochs were written it is -1."""
        index = bisect_left(self._headers, offset, key=_base_offset)
        return self._headers[index - 1].partition_leader_epoch if index else None

    def last_leader_epoch(self, before: int) -> int:
        """Return the leader epoch of the last record before ``end_offset``; ``before`` when there is no batch."""
        found = self.leader_epoch_before(self.end_offset)
        return before if found is None else found

    def release(self) -> None:
        """Give the memory back; done by itself once everything is decoded. The batches cannot be read afterwards."""
        self._index = len(self._headers)
        self._records = memoryview(b"")
        self._payload = None
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.release()


def unreadable(
    topic_partition: TopicPartition, offset: int, reason: CorruptMessage | InvalidRecord, behind: int = -1
) -> CorruptMessage | InvalidRecord:
    """Return the error of a batch that cannot be read, at ``offset``, and what the user can do about it.

    ``behind`` is where the next batch begins, -1 when that is not known.
    """
    place = f"to offset {behind}" if behind > offset else "behind it"
    return type(reason)(
        f"{topic_partition}: the batch at offset {offset} cannot be read: {reason}; repair the broker's log, or seek "
        f"{place} to go on without the batch"
    )


def _headers_before_damage(records: Buffer) -> list[BatchHeader]:
    """Return the headers of the batches before the first whose header cannot be read."""
    headers: list[BatchHeader] = []
    position = 0
    while True:
        try:
            headers.append(read_header(records, position))
        except CorruptMessage:
            return headers
        position += headers[-1].size_bytes


def _base_offset(header: BatchHeader) -> int:
    return header.base_offset


def _is_full(builder: ColumnBuilder) -> bool:
    return builder.is_full


def columns_from(
    buffers: Iterable[FetchedBatches],
    *,
    with_headers: bool = False,
    max_rows: int = 65_536,
    max_bytes: int = 16 << 20,
) -> Iterator[Columns]:
    """Yield columns of at most ``max_rows`` rows or ``max_bytes`` (of keys, values and headers), in order.

    Small batches are joined and large ones cut. All buffers must be of one partition. Columns without rows are not
    yielded.
    """
    builder = ColumnBuilder(with_headers, max_rows, max_bytes)
    for buffer in buffers:
        while not buffer.is_exhausted:
            buffer.decode_into(builder)
            if builder.is_full:
                yield builder.finish()
    if builder.count:
        yield builder.finish()

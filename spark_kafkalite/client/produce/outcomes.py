"""What becomes of a sent batch: acknowledged, sent again, split in two, failed, or expired.

What an answer means
- success, or DUPLICATE_SEQUENCE_NUMBER (46): the batch is in the log;
- OUT_OF_ORDER_SEQUENCE_NUMBER (45), UNKNOWN_PRODUCER_ID (59): sent again. When no earlier batch is outstanding the
  broker has lost the sequence: its log lost its end, or a batch was given up. The partition's sequences then start
  over under the next epoch (KIP-360);
- MESSAGE_TOO_LARGE (10) for a batch of several records: split into halves, which take its place (KIP-126);
- INVALID_TIMESTAMP (32), INVALID_RECORD (87), and MESSAGE_TOO_LARGE for one record, where a batch knows the rows of its
  records: the records that the broker names fail alone, and the others take the batch's place. Where the broker names
  none, halves find them;
- another retriable error: sent again after a pause, until ``delivery.timeout.ms``;
- anything else: the batch fails with it.

A batch that fails is logged with its reason and counted until its outcome is read (:mod:`.undelivered`).

Only the thread that has the sender's turn uses it; a batch is settled once, under the accumulator's lock. Users'
callbacks wait until the sender's thread runs them, outside of all locks (:meth:`Outcomes.run_callbacks`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from spark_kafkalite.client.config import ProducerConfig
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Backoff, is_retriable, needs_refresh
from spark_kafkalite.client.produce.accumulator import Accumulator, PartitionQueue, expiry_error
from spark_kafkalite.client.produce.delivery import ProducerBatch
from spark_kafkalite.client.produce.produce_requests import ProduceOutcome
from spark_kafkalite.client.produce.producer_metrics import ProducerMetrics
from spark_kafkalite.client.produce.undelivered import Undelivered
from spark_kafkalite.errors import (
    BrokerUnreachable,
    DuplicateSequenceNumber,
    InvalidRecord,
    InvalidTimestamp,
    KafkaliteError,
    LeaderNotAvailable,
    MessageTooLarge,
    OutOfOrderSequenceNumber,
    RecordListTooLarge,
    UnknownProducerId,
)
from spark_kafkalite.records.builder import build_batches
from spark_kafkalite.records.columns import ColumnBuilder, add_batch
from spark_kafkalite.records.compression import CODECS
from spark_kafkalite.records.kernel import read_header
from spark_kafkalite.records.layout import MAX_INT32
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.rights import refusal

_LOG = logging.getLogger("spark_kafkalite.client")

_ATTEMPTS_IN_SILENCE: Final = 5
_LEADERLESS_IN_SILENCE_S: Final = 10.0
_LOST_SEQUENCE: Final = frozenset({OutOfOrderSequenceNumber.code, UnknownProducerId.code})
_TOO_LARGE: Final = frozenset({MessageTooLarge.code, RecordListTooLarge.code})
_OF_A_RECORD: Final = frozenset({InvalidTimestamp.code, InvalidRecord.code})


class Outcomes:
    """Gives batches their outcome, or another try."""

    def __init__(
        self, config: ProducerConfig, cluster: ClusterClient, accumulator: Accumulator, metrics: ProducerMetrics
    ) -> None:
        self._metrics = metrics
        self._config = config
        self._cluster = cluster
        self._accumulator = accumulator
        self.undelivered = Undelivered()
        # Settled, with their callbacks not run yet; under the accumulator's lock.
        self._settled: list[ProducerBatch] = []
        self._telling = False
        self._refusing: set[tuple[str, int]] = set()  # Partitions that were warned of.
        # Since when partitions with batches that are due have had no leader, and whether that was warned of.
        self._leaderless: dict[tuple[str, int], float] = {}
        self._told_of_leaderless = False
        self._next_expiry_s = 0.0
        # Why batches wait, for those that expire.
        self.last_problem: KafkaliteError | None = None

    @property
    def has_callbacks(self) -> bool:
        """Whether batches were settled since the callbacks were run."""
        return bool(self._settled)

    def take(
        self,
        batches: Sequence[tuple[PartitionQueue, ProducerBatch]],
        answer: Mapping[tuple[str, int], ProduceOutcome],
        now_s: float,
    ) -> None:
        """Deal with the answer to a request that held these batches."""
        for queue, batch in batches:
            outcome = answer.get((batch.topic, batch.partition))
            if outcome is None:
                self.retry(queue, batch, BrokerUnreachable("the broker's answer leaves the partition out"), now_s)
            elif outcome.error_code in (0, DuplicateSequenceNumber.code):
                base_offset = -1 if outcome.error_code else outcome.base_offset
                if self._refusing:
                    self._refusing.discard((batch.topic, batch.partition))
                self.settle(queue, batch, base_offset, outcome.log_append_time_ms, None)
            else:
                self._refused(queue, batch, outcome, now_s)

    def _refused(self, queue: PartitionQueue, batch: ProducerBatch, outcome: ProduceOutcome, now_s: float) -> None:
        detail = f": {outcome.error_message}" if outcome.error_message else ""
        error = refusal(
            ApiKey.PRODUCE,
            outcome.error_code,
            f"{batch.topic}-{batch.partition}: the broker refused a batch of {batch.record_count} records "
            f"({batch.size_bytes} bytes){detail}",
        )
        if outcome.error_code in _LOST_SEQUENCE and batch.base_sequence >= 0:
            self.retry(queue, batch, error, now_s)
        elif not batch.done and (refused := _refused_alone(batch, outcome)):
            self._take_out(queue, batch, refused, outcome.error_code)
        elif not batch.done and batch.record_count > 1 and _may_be_halved(batch, outcome.error_code):
            self._split(queue, batch, error)
        elif is_retriable(error):
            if needs_refresh(error):
                self._cluster.request_refresh()
            self._tell_of_retries(batch, error)
            self.retry(queue, batch, error, now_s)
        else:
            self.settle(queue, batch, -1, -1, error)

    def _tell_of_retries(self, batch: ProducerBatch, error: KafkaliteError) -> None:
        """Warn, once until the partition takes records again, when a batch is refused for longer than leaders move."""
        name = (batch.topic, batch.partition)
        if batch.attempts >= _ATTEMPTS_IN_SILENCE and name not in self._refusing:
            self._refusing.add(name)
            _LOG.warning(
                "producer: %s; retrying within delivery.timeout.ms=%d", error, self._config.delivery_timeout_ms
            )

    def wait_for_leaders(self, queues: Sequence[PartitionQueue], now_s: float) -> None:
        """Note which partitions have batches that are due, and no leader: these, and no others any more.

        Warn when some have had none for longer than leaders move, once until all have one.
        """
        before = self._leaderless
        if not queues:
            if before:
                self._leaderless, self._told_of_leaderless = {}, False
            return
        names = [(queue.topic, queue.partition) for queue in queues]
        self._leaderless = {name: before.get(name, now_s) for name in names}
        late = [name for name, since_s in self._leaderless.items() if now_s - since_s >= _LEADERLESS_IN_SILENCE_S]
        topic, partition = late[0] if late else names[0]
        self.last_problem = LeaderNotAvailable(f"{topic}-{partition} has no live leader")
        if late and not self._told_of_leaderless:
            self._told_of_leaderless = True
            others = len(names) - 1
            _LOG.warning(
                "producer: %s-%d%s no live leader; waiting within delivery.timeout.ms=%d for a broker that may lead",
                topic,
                partition,
                f" and {others} other partition{'s' * (others != 1)} have" if others else " has",
                self._config.delivery_timeout_ms,
            )

    def _split(self, queue: PartitionQueue, batch: ProducerBatch, error: KafkaliteError) -> None:
        assert batch.encoded is not None
        codec = self._config.codec_of(batch.topic)
        try:
            parts = split_batch(batch, CODECS[codec], self._config.levels.get(codec))
        except KafkaliteError:
            _LOG.exception("a batch that is too large cannot be split")
            self.settle(queue, batch, -1, -1, error)
            return
        self._metrics.split()
        # Records that are looked for in halves are reported one by one when they are found.
        _LOG.log(logging.WARNING if batch.rows is None else logging.DEBUG, "%s; it is split in %d", error, len(parts))
        with self._accumulator.lock:
            self._accumulator.replace(queue, batch, [part for _, part in parts])
            batch.settle_as_parts(parts)

    def _take_out(
        self, queue: PartitionQueue, batch: ProducerBatch, refused: Mapping[int, str], error_code: int
    ) -> None:
        """Fail these records of a batch, each with its reason, and have what is left of the batch sent in its place."""
        codec = self._config.codec_of(batch.topic)
        parts = split_around(batch, refused, CODECS[codec], self._config.levels.get(codec))
        with self._accumulator.lock:
            self._accumulator.replace(queue, batch, [part for first, part in parts if first not in refused])
            batch.settle_as_parts(parts)
            for first, part in parts:
                if first in refused:
                    text = f"{part.topic}-{part.partition}: the broker refused a record{refused[first]}"
                    part.is_refused = True
                    self._fail(part, refusal(ApiKey.PRODUCE, error_code, text))

    def retry(self, queue: PartitionQueue, batch: ProducerBatch, error: KafkaliteError, now_s: float) -> None:
        """Put a batch back to its place, to be sent after a pause; it fails with ``error`` when no try is left."""
        batch.last_error = error
        if batch.attempts > self._config.retries:
            self.settle(queue, batch, -1, -1, error)
            return
        client = self._config.client
        pause_s = Backoff(client.retry_backoff_ms, client.retry_backoff_max_ms, attempts=batch.attempts - 1).next_s()
        self._metrics.retried(batch, now_s)
        with self._accumulator.lock:
            if isinstance(error, (OutOfOrderSequenceNumber, UnknownProducerId)):
                self._accumulator.lose_sequence(queue, batch, now_s + pause_s)
            else:
                self._accumulator.requeue(queue, batch, now_s + pause_s)

    def settle(
        self,
        queue: PartitionQueue,
        batch: ProducerBatch,
        base_offset: int,
        log_append_time_ms: int,
        error: KafkaliteError | None,
    ) -> None:
        """Give a batch its outcome, unless it has one, and take it out of the accumulator."""
        with self._accumulator.lock:
            if not batch.done:
                if error is not None:
                    self._fail(batch, error)
                else:
                    batch.settle(base_offset, log_append_time_ms, None)
                    self._settled.append(batch)
            self._accumulator.finish(queue, batch)

    def _fail(self, batch: ProducerBatch, error: Exception) -> None:
        """Give a batch its error; the accumulator's lock is held."""
        self._metrics.failed(batch)
        batch.failed = self.undelivered.add(batch.topic_partition, batch.record_count, error)
        batch.settle(-1, -1, error)
        self._settled.append(batch)

    def run_callbacks(self) -> None:
        """Log what failed, and call the users' functions of what was settled; no lock may be held.

        A handler of the log is a user's function too, and may itself send.
        """
        if not self._settled:
            return
        with self._accumulator.lock:
            settled, self._settled = self._settled, []
            self._telling = True
        try:
            self._tell(settled)
        finally:
            self._telling = False

    def _tell(self, settled: Sequence[ProducerBatch]) -> None:
        for batch in settled:
            if batch.error is not None and not batch.is_refused:
                count, where = batch.record_count, batch.topic_partition
                _LOG.error("producer: %d record%s for %s failed: %s", count, "s"[count == 1 :], where, batch.error)
            if batch.callbacks or batch.watcher:
                batch.run_callbacks(_report_callback)

    @property
    def has_to_tell(self) -> bool:
        """Whether a batch has its outcome and some callbacks of users have not been called with it."""
        return bool(self._settled) or self._telling

    def expire(self, now_s: float) -> float:
        """Fail what was not acknowledged within ``delivery.timeout.ms``; return when to look again."""
        if now_s < self._next_expiry_s:
            return self._next_expiry_s
        with self._accumulator.lock:
            expired, next_s = self._accumulator.expire(now_s)
        # Batches made from now on expire later than this.
        self._next_expiry_s = now_s + self._config.delivery_timeout_ms / 1000 if next_s is None else next_s
        for queue, batch in expired:
            error = expiry_error(batch, self._config.delivery_timeout_ms, batch.last_error or self.last_problem)
            with self._accumulator.lock:
                self._fail(batch, error)
                # In flight it stays with its partition until its answer comes: nothing may overtake it.
                if batch not in queue.in_flight:
                    self._accumulator.finish(queue, batch)
        return self._next_expiry_s

    def fail(self, queues: Iterable[PartitionQueue], error: Exception) -> None:
        """Fail every batch of these partitions that has no outcome."""
        with self._accumulator.lock:
            for queue in queues:
                for batch in list(queue.batches()):
                    if not batch.done:
                        self._fail(batch, error)
                    self._accumulator.finish(queue, batch)

    def fail_all(self, error: Exception) -> None:
        """Fail every batch that has no outcome."""
        with self._accumulator.lock:
            queues = self._accumulator.active_queues()
        self.fail(queues, error)


def _refused_alone(batch: ProducerBatch, outcome: ProduceOutcome) -> dict[int, str]:
    """Return the records that fail alone: the index of each, and the broker's reason behind a colon, if it gave one."""
    if batch.rows is None or outcome.error_code not in _OF_A_RECORD | _TOO_LARGE:
        return {}
    named = {}
    if outcome.error_code in _OF_A_RECORD:
        named = {
            # What is told of one record needs no number of it.
            index: f": {text.removeprefix(f'record {index}: ')}" if text else ""
            for index, text in outcome.record_errors
            if 0 <= index < batch.record_count
        }
    if not named and batch.record_count == 1:
        return {0: f": {outcome.error_message}" if outcome.error_message else ""}
    return named


def _may_be_halved(batch: ProducerBatch, error_code: int) -> bool:
    return error_code in _TOO_LARGE or (batch.rows is not None and error_code in _OF_A_RECORD)


def _report_callback(error: Exception) -> None:
    _LOG.error("on_delivery raised an error, which is ignored", exc_info=error)


# Cuts a batch that a broker refused into parts, without losing order, timestamps or headers. One that is too large is
# cut into halves, one with records that are refused for themselves around these. The batch is decoded to columns and
# encoded again, which is slow and rare: it happens when a topic's ``max.message.bytes`` is below the producer's
# ``batch.size``, when records compress worse than hoped, or when a topic has rules for records.


def split_batch(batch: ProducerBatch, codec: int, level: int | None) -> list[tuple[int, ProducerBatch]]:
    """Return (index of the first record, part) of two parts of an encoded batch with at least two records."""
    assert batch.record_count > 1
    middle = batch.record_count // 2
    return _parts(batch, [(0, middle), (middle, batch.record_count)], codec, level)


def split_around(
    batch: ProducerBatch, refused: Collection[int], codec: int, level: int | None
) -> list[tuple[int, ProducerBatch]]:
    """Return the parts of an encoded batch as :func:`split_batch` does: the records at the indexes ``refused``, each a
    part of its own, and what is before, between and behind them.
    """
    ranges = []
    first = 0
    for index in sorted(refused):
        ranges += [(first, index), (index, index + 1)]
        first = index + 1
    ranges.append((first, batch.record_count))
    return _parts(batch, [each for each in ranges if each[0] < each[1]], codec, level)


def _parts(
    batch: ProducerBatch, ranges: list[tuple[int, int]], codec: int, level: int | None
) -> list[tuple[int, ProducerBatch]]:
    assert batch.encoded is not None
    builder = ColumnBuilder(True)
    header = read_header(batch.encoded, 0)
    add_batch(builder, batch.encoded, 0, header, verify_crc=False)
    columns = builder.finish()
    parts: list[tuple[int, ProducerBatch]] = []
    for first, until in ranges:
        built = next(
            build_batches(columns, max_bytes=MAX_INT32, now_ms=-1, first=first, until=until, codec=codec, level=level)
        )
        part = ProducerBatch(
            batch.topic, batch.partition, batch.created_s, 0, encoded=built.batch, record_count=until - first
        )
        parts.append((first, part))
    return parts

"""Produce (key 0), versions 3 to 10: appends one batch to each named partition.

Advertised from version 0 on, although versions 0 to 2 are not served (such a request closes the connection):
librdkafka up to 2.11.0 sends gzip, snappy and lz4 uncompressed unless version 0 is in the range. Apache Kafka 4 does
the same.

v3  batches of magic 2 only
v5  log start offset in the answer
v7  zstd
v8  error texts in the answer
v9  flexible
v10 current leaders and their addresses, next to the errors of partitions that others lead (KIP-951)

Each partition has its own outcome. A batch is checked and appended straight from the request's memory; one that a
thread must work on is queued with its partition, and later batches of that partition queue behind it; their memory is
kept until then. The brokers' own topics are refused.

The answer leaves when every partition has one: an error, or an append that is acknowledged (``acks=1``: appended;
``acks=all``: below the high watermark; ``flush.before.ack``: flushed besides). What is not acknowledged when the
request's timeout is over is answered with REQUEST_TIMED_OUT, and stays in the log. With ``acks=0`` there is no answer;
an error closes the connection, so that the client looks again where the leader is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.replication.append_queue import AppendOutcome, QueuedBatch
from spark_kafkalite.broker.replication.bounds import ACKS_ALL
from spark_kafkalite.broker.replication.leader import Leader
from spark_kafkalite.broker.replication.next_leader import LeaderMoves, NextLeader
from spark_kafkalite.broker.requests.dispatch import SMALL_REQUEST_BYTES, handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.broker.requests.leader_hints import LeaderHints
from spark_kafkalite.broker.waiting.purgatory import DelayedOperation
from spark_kafkalite.errors import (
    InvalidRequiredAcks,
    InvalidTopic,
    KafkaError,
    RequestTimedOut,
    TransactionalIdAuthorizationFailed,
)
from spark_kafkalite.log.partition_log import AppendResult
from spark_kafkalite.model import INTERNAL_TOPICS, TopicPartition
from spark_kafkalite.net.outbox import Response, as_response
from spark_kafkalite.records.admission import INLINE_BATCH_BYTES
from spark_kafkalite.records.layout import BatchHeader
from spark_kafkalite.slices import Work
from spark_kafkalite.wire import rights
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.packed import (
    ProducedPartition,
    ProduceRequest,
    pack_produce_response,
    pack_produce_response_in_slices,
    parse_produce,
    parse_produce_in_slices,
)

Outcomes = list[tuple[str, list[ProducedPartition]]]

_EMPTY = memoryview(b"")
# What is sent after a request with acks=0.
_NO_ANSWER = b""
# Steps of the parser, of a hundred batches and more each.
_PARSED_AT_ONCE = 5
# More batches than these are appended in slices: each takes some 50 us.
_APPENDED_AT_ONCE = 50


@handles(ApiKey.PRODUCE, 3, 10, advertised_from=0, raw=True)
def handle(
    context: BrokerContext, exchange: Exchange, frame: memoryview, position: int
) -> bytes | Work[Response | None] | None:
    """Append; return the answer (empty for ``acks=0``), or None when it comes later, or what takes several slices."""
    if len(frame) <= SMALL_REQUEST_BYTES:
        produce = parse_produce(frame, position, exchange.api_version)
    else:
        parsing = parse_produce_in_slices(frame, position, exchange.api_version)
        try:
            for _ in range(_PARSED_AT_ONCE):
                next(parsing)
        except StopIteration as parsed:
            produce = parsed.value
        else:
            return _in_slices(context, exchange, exchange.keep(frame), position)
    if len(frame) > INLINE_BATCH_BYTES or sum(len(batches) for _, batches in produce.topics) > _APPENDED_AT_ONCE:
        return _in_slices(context, exchange, exchange.keep(frame), position)
    producing = _Producing(context, exchange, produce)
    for name, batches in produce.topics:
        if not producing.append(name, batches, producing.begin(name)):
            return _NO_ANSWER
    if producing.waits():
        return None
    if produce.acks == 0:
        return _NO_ANSWER
    return pack_produce_response(
        exchange.correlation_id,
        exchange.api_version,
        producing.outcomes,
        exchange.throttle_time_ms(),
        producing.hints.endpoints,
    )


def _in_slices(context: BrokerContext, exchange: Exchange, frame: memoryview, position: int) -> Work[Response | None]:
    produce = yield from parse_produce_in_slices(frame, position, exchange.api_version)
    producing = _Producing(context, exchange, produce)
    for name, batches in produce.topics:
        produced = producing.begin(name)
        for batch in batches:
            yield None
            if not producing.append(name, (batch,), produced):
                return _NO_ANSWER
    if producing.waits():
        return None
    if produce.acks == 0:
        return _NO_ANSWER
    body = yield from pack_produce_response_in_slices(
        exchange.correlation_id,
        exchange.api_version,
        producing.outcomes,
        exchange.throttle_time_ms(),
        producing.hints.endpoints,
    )
    return as_response(body)


class _Producing:
    """One request on its way through its batches."""

    __slots__ = (
        "_acks",
        "_context",
        "_delayed",
        "_exchange",
        "_refusal",
        "_timeout_ms",
        "_topic_refusal",
        "hints",
        "outcomes",
    )

    def __init__(self, context: BrokerContext, exchange: Exchange, produce: ProduceRequest) -> None:
        self._context = context
        self._exchange = exchange
        self._acks = produce.acks
        self._timeout_ms = produce.timeout_ms
        self._refusal = _refusal(produce)
        # What is wrong with the topic that was begun last.
        self._topic_refusal: KafkaError | None = None
        self._delayed: DelayedProduce | None = None
        self.hints = LeaderHints(context, exchange)
        self.outcomes: Outcomes = []

    def begin(self, name: str) -> list[ProducedPartition]:
        """Begin with a topic; return where its outcomes go."""
        exchange = self._exchange
        may_write = exchange.session.rights is None or exchange.may(Operation.WRITE, ResourceType.TOPIC, name)
        self._topic_refusal = None if may_write else rights.refused(ResourceType.TOPIC)
        produced: list[ProducedPartition] = []
        self.outcomes.append((name, produced))
        return produced

    def append(
        self, name: str, batches: Sequence[tuple[int, memoryview | None]], produced: list[ProducedPartition]
    ) -> bool:
        """Append batches; False when the connection has been closed for one that was refused."""
        context, exchange, acks = self._context, self._exchange, self._acks
        meter = None if context.meters is None else context.meters.topics.known(name)
        if meter is not None:
            meter.produce_requests += len(batches)
        for number, records in batches:
            batch = _EMPTY if records is None else records
            topic_partition = TopicPartition(name, number)
            leader = None
            try:
                if self._refusal is not None:
                    raise self._refusal
                if self._topic_refusal is not None:
                    raise self._topic_refusal.with_traceback(None)
                if name in INTERNAL_TOPICS:
                    raise InvalidTopic(f"{name} is an internal topic; only brokers write to it")
                leader = context.replicas.get(topic_partition).check_leader()
                leader.check_acks(acks)
                if acks != ACKS_ALL:
                    context.lease.check_leads(context.clock.monotonic_s())
                if not leader.must_queue:
                    appended = leader.try_append(batch, exchange.api_version)
                    if isinstance(appended, AppendResult):
                        if appended.last_offset < leader.acknowledged_end_offset(acks) or acks == 0:
                            produced.append(_success(number, appended, leader))
                            continue
                        self._delay().await_acknowledgement(leader, appended, produced)
                        continue
                    header = appended
                else:
                    header = None
                self._delay().append_later(leader, batch, header, produced)
            except KafkaError as error:
                if isinstance(error, LeaderMoves) and acks != 0:
                    self._delay().await_next_leader(topic_partition, error, produced)
                    continue
                if meter is not None:
                    meter.failed_produce_requests += 1
                produced.append(_failure(topic_partition, _said(context, leader, error), self.hints))
                if acks == 0:
                    exchange.close(f"a produce with acks=0 to {topic_partition} failed: {error}")
                    return False
        return True

    def _delay(self) -> DelayedProduce:
        if self._delayed is None:
            self._delayed = DelayedProduce(self._context, self._exchange, self._acks, self.outcomes, self.hints)
        return self._delayed

    def waits(self) -> bool:
        """Begin to wait for outcomes that are open, if there are any; the answer comes later then."""
        if self._delayed is None:
            return False
        self._delayed.start(self._timeout_ms)
        return True


def _refusal(produce: ProduceRequest) -> KafkaError | None:
    """Return what is wrong with the request as a whole."""
    if produce.acks not in (-1, 0, 1):
        return InvalidRequiredAcks(f"acks={produce.acks} is none of -1 (all), 0 and 1")
    if produce.transactional_id is not None:
        return TransactionalIdAuthorizationFailed(
            f"transactional.id {produce.transactional_id!r}: transactions are not served by this broker"
        )
    return None


def _success(number: int, appended: AppendResult, leader: Leader) -> ProducedPartition:
    return ProducedPartition(number, 0, appended.base_offset, appended.log_append_time_ms, leader.log.log_start_offset)


def _said(context: BrokerContext, leader: Leader | None, error: KafkaError) -> KafkaError:
    """Return the answer to an error that a batch has met; ``leader`` is None where its partition has none here."""
    now_s = context.clock.monotonic_s()
    return context.lease.said(error if leader is None else leader.refusals.said(error, now_s), now_s)


def _failure(topic_partition: TopicPartition, error: KafkaError, hints: LeaderHints) -> ProducedPartition:
    # Clients fail the named record for what is wrong with it, and the others only for being in its batch (KIP-467).
    index = getattr(error, "record_index", None)
    record_errors = () if index is None else ((index, str(error)),)
    return ProducedPartition(
        topic_partition.partition,
        error.code,
        log_start_offset=getattr(error, "log_start_offset", -1),
        record_errors=record_errors,
        error_message=str(error) or None,
        current_leader=hints.of(topic_partition, error),
    )


class DelayedProduce(DelayedOperation):
    """A produce request of which some partition's outcome is still open.

    Completed by: the last open partition's error, or its acknowledgement (the high watermark or the flushed offset
    passes the batch), or the end of the leader epoch it was appended under. A batch that was not appended while another
    broker is about to lead completes with the news of that leader (``replication.next_leader``). The request's timeout
    and the connection's end complete it, too. Every open partition has REQUEST_TIMED_OUT as its outcome until it gets
    another one, so that the timeout has nothing to do but to answer.
    """

    __slots__ = (
        "_acks",
        "_awaiting",
        "_context",
        "_exchange",
        "_hints",
        "_leaderless",
        "_outcomes",
        "_queued",
        "_started",
    )

    def __init__(
        self, context: BrokerContext, exchange: Exchange, acks: int, outcomes: Outcomes, hints: LeaderHints
    ) -> None:
        super().__init__(exchange.connection)
        self._context = context
        self._exchange = exchange
        self._acks = acks
        self._outcomes = outcomes
        self._hints = hints
        self._queued = 0
        # For each partition (its leader then) what was appended, in order, and where the outcome of it goes.
        self._awaiting: dict[Leader, deque[tuple[AppendResult, list[ProducedPartition], int]]] = {}
        # Of partitions that nobody leads any more: what is refused, and where the outcome of it goes.
        self._leaderless: dict[NextLeader, list[tuple[TopicPartition, KafkaError, list[ProducedPartition], int]]] = {}
        self._started = False
        exchange.defer()
        exchange.call_if_abandoned(self.abandon)

    def await_acknowledgement(self, leader: Leader, appended: AppendResult, produced: list[ProducedPartition]) -> None:
        """Leave the outcome of an append open until it is acknowledged."""
        produced.append(_open_outcome(leader.topic_partition.partition))
        self._watch(leader, appended, produced, len(produced) - 1)

    def await_next_leader(
        self, topic_partition: TopicPartition, refusal: LeaderMoves, produced: list[ProducedPartition]
    ) -> None:
        """Leave the outcome of a refused batch open until the answer can name the leader."""
        produced.append(_open_outcome(topic_partition.partition))
        self._refuse(topic_partition, refusal, produced, len(produced) - 1)

    def append_later(
        self, leader: Leader, batch: memoryview, header: BatchHeader | None, produced: list[ProducedPartition]
    ) -> None:
        """Queue a batch with its partition, and leave its outcome open."""
        produced.append(_open_outcome(leader.topic_partition.partition))
        index = len(produced) - 1
        self._queued += 1
        kept, release = self._exchange.keep_part(batch)
        leader.append_later(
            QueuedBatch(
                kept,
                self._exchange.api_version,
                header,
                lambda outcome: self._appended(leader, outcome, produced, index),
                release,
            )
        )

    def start(self, timeout_ms: int) -> None:
        """Begin to wait; the request has been read to its end."""
        if self.finished:
            return
        self._started = True
        if not self.try_complete() and self._acks != 0:
            self.wait_at_most(timeout_ms / 1000, self._context.purgatory.deadlines)

    def _appended(self, leader: Leader, outcome: AppendOutcome, produced: list[ProducedPartition], index: int) -> None:
        self._queued -= 1
        number = leader.topic_partition.partition
        if isinstance(outcome, KafkaError):
            if self._acks == 0:
                self._exchange.close(f"a produce with acks=0 to {leader.topic_partition} failed: {outcome}")
            if self._context.meters is not None:
                self._context.meters.topics.of(leader.topic_partition.topic).failed_produce_requests += 1
            self._refuse(leader.topic_partition, _said(self._context, leader, outcome), produced, index)
        elif self._acks == 0 or outcome.last_offset < leader.acknowledged_end_offset(self._acks):
            produced[index] = self._acknowledged(number, outcome, leader)
        elif not self.finished:
            self._watch(leader, outcome, produced, index)
        self.try_complete()

    def _refuse(
        self, topic_partition: TopicPartition, error: KafkaError, produced: list[ProducedPartition], index: int
    ) -> None:
        """Have an error as a partition's outcome; if its next leader may be known in a moment, wait for that."""
        produced[index] = _failure(topic_partition, error, self._hints)
        if isinstance(error, LeaderMoves) and error.next_leader.is_awaited and self._acks and not self.finished:
            if error.next_leader not in self._leaderless:
                error.next_leader.add(self)
            self._leaderless.setdefault(error.next_leader, []).append((topic_partition, error, produced, index))

    def _acknowledged(self, number: int, appended: AppendResult, leader: Leader) -> ProducedPartition:
        """Return the outcome of what is acknowledged now: what was checked before the append may not hold any more."""
        try:
            leader.check_acknowledged(self._acks)
            if self._acks != ACKS_ALL:
                # This broker may have stood still since (rule R6).
                self._context.lease.check_leads(self._context.clock.monotonic_s())
        except KafkaError as error:
            return _failure(leader.topic_partition, error, self._hints)
        return _success(number, appended, leader)

    def _watch(self, leader: Leader, appended: AppendResult, produced: list[ProducedPartition], index: int) -> None:
        if self.finished:
            return
        waiting = self._awaiting.get(leader)
        if waiting is None:
            waiting = self._awaiting[leader] = deque()
            leader.ack_waiters.add(self)
        waiting.append((appended, produced, index))

    def try_complete(self) -> bool:
        if self.finished or not self._started:
            return False
        for leader, waiting in list(self._awaiting.items()):
            number = leader.topic_partition.partition
            if leader.end_reason is not None:
                # The bounds may speak of another leader's records by now (rule R15). It is in this log, and so does not
                # wait for the next leader (``replication.next_leader``).
                for _, produced, index in waiting:
                    produced[index] = _failure(leader.topic_partition, leader.end_reason, self._hints)
            else:
                acknowledged_end = leader.acknowledged_end_offset(self._acks)
                while waiting and waiting[0][0].last_offset < acknowledged_end:
                    appended, produced, index = waiting.popleft()
                    produced[index] = self._acknowledged(number, appended, leader)
                if waiting:
                    continue
            del self._awaiting[leader]
            leader.ack_waiters.remove(self)
        for next_leader, refused in list(self._leaderless.items()):
            if not next_leader.is_awaited:
                for topic_partition, error, produced, index in refused:
                    produced[index] = _failure(topic_partition, error, self._hints)
                del self._leaderless[next_leader]
        if self._awaiting or self._queued or self._leaderless:
            return False
        self._answer()
        return True

    def expire(self) -> None:
        self._answer()

    def fail(self) -> None:
        self._exchange.close("a handler failed")

    def release(self) -> None:
        for leader in self._awaiting:
            leader.ack_waiters.remove(self)
        for next_leader in self._leaderless:
            next_leader.remove(self)

    def _answer(self) -> None:
        if not self.finish():
            return
        exchange = self._exchange
        if self._acks == 0:
            exchange.answer(_NO_ANSWER)
        else:
            exchange.answer(
                pack_produce_response(
                    exchange.correlation_id,
                    exchange.api_version,
                    self._outcomes,
                    exchange.throttle_time_ms(),
                    self._hints.endpoints,
                )
            )


def _open_outcome(number: int) -> ProducedPartition:
    return ProducedPartition(
        number,
        RequestTimedOut.code,
        error_message="not acknowledged within the request's timeout; it may be in the log",
    )

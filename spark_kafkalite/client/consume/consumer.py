"""The consumer: subscribe as a member of a group or assign partitions by hand, seek, poll records or columns, commit.

Fetching runs ahead in the background (:mod:`.read_ahead`); ``poll()`` decodes and returns what was fetched, or waits
(:mod:`.polling`). A partition's position is the offset of the next record that the user gets; it moves when a poll
returns, by the ends of batches, so that gaps left by compaction and transaction markers are passed. Records of one
partition come in order of their offsets; partitions take turns.

With a ``group.id`` every poll first looks after the group (:mod:`~spark_kafkalite.client.group.group_consumer`): it
takes part in rebalances, calls the user's callbacks, and commits what *earlier* polls returned, if that is automatic. A
consumer that assigns by hand is no member, and may commit as long as its group has none.

Errors of a partition (a bad CRC, no position with ``auto.offset.reset=none``, missing permission) are raised by the
next poll that would return its records, and by every later one until a ``seek()``; other partitions go on when it is
paused.

Thread-safe: calls from several threads are done one after the other. ``close()`` and ``wakeup()`` may come from any
thread at any time, also while another one polls: that one gets ClosedError, or returns early with nothing.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Self

from spark_kafkalite.client.config import consumer_config
from spark_kafkalite.client.consume.consumer_metrics import ConsumerMetrics, lags_and_leads
from spark_kafkalite.client.consume.consumer_phase import ConsumerPhase, consumer_lifecycle
from spark_kafkalite.client.consume.list_offsets import OffsetAndTimestamp, offsets_for
from spark_kafkalite.client.consume.polling import DecodedRows, RowSource
from spark_kafkalite.client.consume.read_ahead import ReadAhead
from spark_kafkalite.client.consume.subscription import Partitions, as_partitions, select_topics
from spark_kafkalite.client.group.commits import CommitCallback
from spark_kafkalite.client.group.group_consumer import GroupConsumer, RebalanceCallback
from spark_kafkalite.client.group.offsets import as_committed, fetch_offsets
from spark_kafkalite.client.metrics import ClientMetrics
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.metadata import TopicInfo
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import ClosedError, ConfigError
from spark_kafkalite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, CommittedOffset, Record, TopicPartition
from spark_kafkalite.records.layout import MAX_INT64

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_COLUMN_ROWS = 65_536
# poll() decodes more rows than it returns and keeps the rest as columns.
_DECODED_ROWS = 16_384
# How long an iteration waits in one piece.
_ITERATION_WAIT_MS = 1_000
# How long close() may take to commit and to leave the group.
_CLOSE_MS = 5_000


class Consumer:
    """Reads partitions, as a member of a group or by itself. Use it as a context manager, or call :meth:`close`."""

    def __init__(
        self, settings: Mapping[str, object] | None = None, *, clock: Clock = SYSTEM_CLOCK, **keywords: object
    ) -> None:
        """``settings`` have Kafka's names; ``keywords`` are the same in snake case (``bootstrap_servers=...``)."""
        self.config = consumer_config(settings, keywords)
        self._clock = clock
        self._cluster = ClusterClient(self.config.client, clock)
        self._metrics = ConsumerMetrics(clock.monotonic_s)
        self._group: GroupConsumer | None = None
        if self.config.group is not None:
            self._group = GroupConsumer(self.config.group, self._cluster, clock, self._metrics)
        fetch_committed = None if self._group is None else self._group.fetch_committed
        self._ahead = ReadAhead(
            self.config, self._cluster, clock, fetch_committed=fetch_committed, metrics=self._metrics
        )
        if self._group is not None:
            self._group.attach(self._ahead)
        self._rows = RowSource(self._ahead)
        self._using = threading.RLock()
        self._life = consumer_lifecycle()

    def __repr__(self) -> str:
        closed = self._life.state is ConsumerPhase.CLOSED
        state = "closed" if closed else f"{len(self._ahead.states)} partitions assigned"
        group = "" if self.group_id is None else f"group {self.group_id!r}, "
        return f"Consumer({','.join(self.config.client.bootstrap_servers)}, {group}{state})"

    # Assignment and positions ---------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Read these topics, or all whose whole name matches ``pattern``, together with the other members of the group.

        Replaces the last subscription. The callbacks get lists of partitions, in the thread that polls. ``on_revoked``
        is called before partitions are given up (commit what is done there), ``on_assigned`` when there are new ones
        (seek there). ``on_lost`` is called when partitions were taken away unasked and another member may read them
        already; without it ``on_revoked`` is called. What they raise, that poll raises. An empty list of topics
        unsubscribes.
        """
        self._check_open()
        group = self._require_group("subscribe()")
        if topics is not None and not isinstance(topics, str):
            topics = list(topics)
        if topics == [] and pattern is None:
            self.unsubscribe()
            return
        for callback in (on_assigned, on_revoked, on_lost):
            if callback is not None and not callable(callback):
                raise ConfigError(f"subscribe(): {callback!r} is not a callback: it cannot be called")
        selection = select_topics(topics, pattern, exclude_internal=group.config.exclude_internal_topics)
        with self._using:
            if not group.is_subscribed and self._ahead.states:
                raise ConfigError("subscribe(): partitions are assigned by hand; call unsubscribe() first")
            group.subscribe(selection, on_assigned, on_revoked, on_lost, auto_create=self.config.allow_auto_create)

    def unsubscribe(self) -> None:
        """Leave the group at once, or give up the partitions that were assigned by hand."""
        self._check_open()
        with self._using:
            self._rows.settle()
            if self._group is not None:
                self._group.unsubscribe("the consumer has unsubscribed", self._deadline(None))
            self._ahead.assign(())

    def assign(self, partitions: Partitions) -> None:
        """Read these partitions from now on, instead of those before; partitions that stay keep their position.

        No group decides: this consumer is no member. With a ``group.id`` it starts from the group's offsets.
        """
        self._check_open()
        wanted = as_partitions(partitions)
        with self._using:
            self._rows.settle()
            if self._group is not None:
                if self._group.is_subscribed:
                    raise ConfigError("assign(): this consumer has subscribed to topics; call unsubscribe() first")
                self._group.before_assign()
            self._ahead.assign(wanted)

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions."""
        with self._ahead.lock:
            return set(self._ahead.states)

    def partitions_for(self, topic: str, timeout_ms: int | None = None) -> list[TopicPartition]:
        """Return the topic's partitions. Raises UnknownTopicOrPartition (3)."""
        return [TopicPartition(topic, info.partition) for info in self.topic_info(topic, timeout_ms).partitions]

    def topic_info(self, topic: str, timeout_ms: int | None = None) -> TopicInfo:
        """Return the cluster's metadata of a topic."""
        self._check_open()
        return self._cluster.topic(topic, self._deadline(timeout_ms))

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        """Go on from an offset; the next poll returns the record there, or the first one after it."""
        if not 0 <= offset <= MAX_INT64:
            raise ConfigError(
                f"seek to offset {offset}: it must be 0 to 2^63 - 1; for the ends use seek_to_beginning/end"
            )
        self._move([partition], offset, None)

    def seek_to_beginning(self, partitions: Partitions | None = None) -> None:
        """Go to the first offset of the given partitions, or of all assigned ones; it is looked up when polling."""
        self._move(partitions, None, EARLIEST_TIMESTAMP)

    def seek_to_end(self, partitions: Partitions | None = None) -> None:
        """Go to the end of the given partitions, or of all assigned ones; it is looked up when polling."""
        self._move(partitions, None, LATEST_TIMESTAMP)

    def seek_to_time(self, timestamp_ms: int, partitions: Partitions | None = None) -> None:
        """Go to the first record at or after a time; to the end where there is none."""
        if timestamp_ms < 0:
            raise ConfigError(f"seek to time {timestamp_ms}: it must be milliseconds since the epoch, at least 0")
        self._move(partitions, None, timestamp_ms)

    def _move(self, partitions: Partitions | None, position: int | None, reset_to: int | None) -> None:
        self._check_open()
        with self._using:
            self._ahead.move(None if partitions is None else as_partitions(partitions), position, reset_to)

    def position(self, partition: TopicPartition | tuple[str, int], timeout_ms: int | None = None) -> int:
        """Return the offset of the next record that poll() will return, waiting until it is known."""
        self._check_open()
        (wanted,) = as_partitions([partition])
        self._rows.settle()
        return self._ahead.wait_for_position(wanted, self._deadline(timeout_ms))

    def pause(self, partitions: Partitions) -> None:
        """Return no records of these partitions until resume(); positions stay, and so does what was fetched."""
        self._ahead.set_paused(as_partitions(partitions), True)

    def resume(self, partitions: Partitions) -> None:
        """Undo pause()."""
        self._ahead.set_paused(as_partitions(partitions), False)

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        with self._ahead.lock:
            return {each for each, state in self._ahead.states.items() if state.paused}

    # The group ------------------------------------------------------------------------------------------------------

    @property
    def group_id(self) -> str | None:
        """The group's name, None without one."""
        return self.config.group_id

    @property
    def member_id(self) -> str:
        """The id that the coordinator gave this member, "" outside of the group."""
        return "" if self._group is None else self._group.member.member_id

    @property
    def generation_id(self) -> int:
        """The number of the rebalance whose assignment is in force, -1 outside of the group."""
        return -1 if self._group is None else self._group.member.generation_id

    def enforce_rebalance(self, reason: str = "the consumer asks for a rebalance") -> None:
        """Have the group rebalance; the next poll joins again."""
        self._require_group("enforce_rebalance()").request_rejoin(reason)

    def commit(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Store offsets in the group and return once they are replicated; by default all positions.

        An offset is the next one to read. Raises a KafkaError that names group, member and what to do when the group
        has moved on (22, 25, 27), and the last reason after ``timeout_ms`` (``default.api.timeout.ms``).
        """
        self._check_open()
        group = self._require_group("commit()")
        with self._using:
            wanted = None if offsets is None else as_committed(offsets)
            self._rows.settle()
            group.commit(wanted, self._deadline(timeout_ms))
            self._rows.processed(wanted)

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Have offsets stored in the background, in the order of the calls; by default all positions.

        A later poll, or close, calls ``callback(offsets, error or None)``.
        """
        self._check_open()
        group = self._require_group("commit_async()")
        with self._using:
            wanted = None if offsets is None else as_committed(offsets)
            self._rows.settle()
            group.commit_async(wanted, callback)
            self._rows.processed(wanted)

    def committed(
        self, partitions: Partitions, timeout_ms: int | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return what the group has committed for each partition, None where nothing is."""
        self._check_open()
        group = self._require_group("committed()")
        wanted = as_partitions(partitions)
        found = fetch_offsets(group.coordinator, wanted, self._deadline(timeout_ms))
        return {each: found.get(each) for each in wanted}

    def _require_group(self, what: str) -> GroupConsumer:
        if self._group is None:
            raise ConfigError(f"{what} needs a group: set group.id")
        return self._group

    # Offsets --------------------------------------------------------------------------------------------------------

    def beginning_offsets(self, partitions: Partitions, timeout_ms: int | None = None) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return self._ends(partitions, EARLIEST_TIMESTAMP, timeout_ms)

    def end_offsets(self, partitions: Partitions, timeout_ms: int | None = None) -> dict[TopicPartition, int]:
        """Return the offset after the last record that this consumer may see, as its isolation.level decides.

        While a leader that was elected just now does not know that, it is what the last fetch saw.
        """
        return self._ends(partitions, LATEST_TIMESTAMP, timeout_ms)

    def _ends(self, partitions: Partitions, which: int, timeout_ms: int | None) -> dict[TopicPartition, int]:
        self._check_open()
        wanted, isolation = dict.fromkeys(as_partitions(partitions), which), self.config.isolation
        last_known = self._ahead.ends_seen(isolation) if which == LATEST_TIMESTAMP else {}
        found = offsets_for(
            self._cluster, wanted, self._deadline(timeout_ms), isolation=isolation, last_known=last_known
        )
        return {each: answer.offset for each, answer in found.items() if answer is not None}

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return for each partition the first record at or after a time (ms), None where there is none."""
        self._check_open()
        wanted = dict(zip(as_partitions(timestamps), timestamps.values(), strict=True))
        return offsets_for(self._cluster, wanted, self._deadline(timeout_ms), isolation=self.config.isolation)

    def high_watermark(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        """Return the end of the partition as the last fetch saw it, None before the first; no request is made."""
        (wanted,) = as_partitions([partition])
        with self._ahead.lock:
            high_watermark = self._ahead.assigned(wanted).high_watermark
        return high_watermark if high_watermark >= 0 else None

    def metrics(self) -> ClientMetrics:
        """Return what this consumer has done, under the names of Kafka's consumer; no request is made.

        As :meth:`.Producer.metrics`; the groups of topics and partitions are ``consumer-fetch-manager-metrics.orders``
        and ``consumer-fetch-manager-metrics.orders-0``.
        """
        ends = self._ahead.ends_seen(self.config.isolation)
        with self._ahead.lock:
            lags, leads = lags_and_leads(ends, self._ahead.states)
        assigned = None if self._group is None else len(self.assignment())
        return self._metrics.read(lags, leads, assigned)

    # Polling --------------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> list[Record]:
        """Return up to ``max_records`` records (default ``max.poll.records``), waiting up to ``timeout_ms`` for the
        first.

        Empty at timeout. It returns fewer, and the others next time, where they take more than 16 MiB. A record's key
        and value are made when they are asked for. Raises ConfigError when nothing is
        subscribed to or assigned: there would be nothing to wait for.
        """
        wanted = self.config.max_poll_records if max_records is None else max_records
        if wanted < 1:
            raise ConfigError(f"max_records={wanted}: must be at least 1")
        deadline = Deadline.after_ms(timeout_ms, self._clock)
        with self._using:
            self._rows.begin_poll()
            most = max(wanted, _DECODED_ROWS)
            return self._rows.take_records(wanted, lambda waits: self._next_rows(deadline if waits else None, most))

    def poll_columns(self, timeout_ms: float = 0, max_rows: int = _MAX_COLUMN_ROWS) -> pa.RecordBatch | None:
        """Return rows of one partition as an Arrow record batch, waiting up to ``timeout_ms``; None at timeout.

        The columns are those of the Spark source: key, value, topic, partition, offset, timestamp, timestampType,
        headers. A timestamp that Arrow's microseconds cannot hold is the furthest one that they can.
        """
        if max_rows < 1:
            raise ConfigError(f"max_rows={max_rows}: must be at least 1")
        with self._using:
            self._rows.begin_poll()
            decoded = self._next_rows(Deadline.after_ms(timeout_ms, self._clock), max_rows)
            return None if decoded is None else self._rows.as_record_batch(decoded, max_rows)

    def __iter__(self) -> Iterator[Record]:
        """Yield records for ever, until the consumer is closed.

        Each counts as processed when the next one is asked for; positions are behind the last one yielded.
        """
        while self._life.state is not ConsumerPhase.CLOSED:
            try:
                with self._using:
                    self._rows.begin_poll()
                    decoded = self._next_rows(Deadline.after_ms(_ITERATION_WAIT_MS, self._clock), _DECODED_ROWS)
            except ClosedError:
                return
            if decoded is not None:
                yield from self._rows.one_by_one(decoded, self.config.max_poll_records, self._clock)

    def _next_rows(self, deadline: Deadline | None, max_rows: int) -> DecodedRows | None:
        """Return rows that may be returned now, None when there are none until the deadline, or a wake-up."""
        group, rows = self._group, self._rows
        if deadline is None:
            return rows.next_rows(None, max_rows, True)
        rows.check_open()
        if not self._ahead.states and (group is None or not group.is_subscribed):
            # In the words of org.apache.kafka.clients.consumer.KafkaConsumer.poll.
            first = "assign(), or set group.id and call subscribe()" if group is None else "subscribe() or assign()"
            raise ConfigError(f"Consumer is not subscribed to any topics or assigned any partitions; call {first}")
        while True:
            if group is not None:
                group.step()
            decoded = rows.next_rows(deadline, max_rows, True, None if group is None else group.is_due)
            if decoded is not None:
                return decoded
            if rows.take_woken() or deadline.passed():
                return None

    def wakeup(self) -> None:
        """Have a poll that waits, or the next one that would, return at once with nothing. From any thread."""
        self._rows.wakeup()

    # The end --------------------------------------------------------------------------------------------------------

    def close(self, timeout_ms: int = _CLOSE_MS) -> None:
        """Commit if that is automatic, leave the group, stop fetching and close all connections.

        While an exception is being handled, what the last poll returned is not committed and comes again. Committing
        and leaving take ``timeout_ms`` at most; ``on_revoked`` is called, which may commit, and what it raises is
        raised when everything is closed. A static member does not leave. May be called more than once, and from any
        thread.
        """
        self._rows.close()
        self._life.advance(ConsumerPhase.CLOSING)
        deadline = Deadline.after_ms(timeout_ms, self._clock)
        try:
            # Whoever polls gets ClosedError and lets go, and whoever closes already is waited for; a callback that does
            # not return is not.
            if self._group is not None and self._using.acquire(timeout=deadline.left_s()):
                try:
                    if self._life.state is ConsumerPhase.LEAVING:
                        # Only the thread that leaves can be here: a callback closes the consumer that calls it.
                        return
                    if self._life.advance(ConsumerPhase.LEAVING):
                        self._leave_group(self._group, deadline)
                finally:
                    self._using.release()
        except BaseException:
            self._shut()
            raise
        self._shut()

    def _leave_group(self, group: GroupConsumer, deadline: Deadline) -> None:
        try:
            self._rows.settle()
            if sys.exc_info()[0] is not None:
                # At the end of a with block, or in finally: nobody knows how much was processed.
                self._rows.take_back()
            group.close(deadline)
        finally:
            self._life.advance(ConsumerPhase.LEFT)

    def _shut(self) -> None:
        """End the threads and close the connections; on_revoked, which may commit, has been called."""
        self._life.advance(ConsumerPhase.CLOSED)
        self._ahead.close()
        self._cluster.close()
        if self._group is not None:
            self._group.wait_closed()

    def _check_open(self) -> None:
        if self._life.state is ConsumerPhase.CLOSED:
            raise ClosedError("the consumer has been closed")

    def _deadline(self, timeout_ms: int | None) -> Deadline:
        return Deadline.after_ms(
            self.config.client.default_api_timeout_ms if timeout_ms is None else timeout_ms, self._clock
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

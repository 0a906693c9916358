"""One pass over the partitions of a fetch: what each of them has for the reader now.

Partitions are read in the order of the request, or of their session's list, within the request's ``max_bytes`` and each
one's own limit; both are soft for the first partition that has anything. That one gives at least one batch, however
large. A slice's end is fixed when it is read and lies at a batch's end below what the reader may see.

A follower's session first has the partitions for which commits wait. Of those that the follower still copies, one
answer has little then: producers with acks=all wait for the end of an answer. Apache Kafka serves both alike.

A leader throttles followers that are not in sync (KIP-73). While its throttle owes something, their partitions have no
records, and their session holds them until it allows more; the other partitions go on.

Nothing here waits for the disk: indexes and headers that are not in the page cache are read by a thread, and then the
reading begins again.

Batches that a consumer was given, and fetches again, may be damaged. Each connection keeps from which offset on it was
last given batches of each partition. Leaders are notified of batches that do not begin behind that (rule R23). Batches
that no other broker has are left to the consumers.

A follower's fetch offset acknowledges everything below. Its leader notes that (``Leader.follower_fetched``) once for
each offset. An offset outside of the leader's log, or of a log that has parted from the leader's, acknowledges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.authorization.authorizer import SessionRights
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.quotas.replication_throttle import ReplicationThrottle
from spark_kafkalite.broker.replication.leader import Leader
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.reader import FOLLOWER, Reader
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.broker.requests.fetch_damage import damage_answer, take_damage
from spark_kafkalite.broker.requests.fetch_sessions import FetchSession, SessionPartition
from spark_kafkalite.broker.requests.leader_hints import LeaderHints
from spark_kafkalite.broker.waiting.page_cache import read_into_cache
from spark_kafkalite.errors import (
    InconsistentTopicId,
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
    TopicAuthorizationFailed,
    UnknownTopicId,
)
from spark_kafkalite.log.directories.disk import text_of
from spark_kafkalite.log.files.needs_thread import NeedsThread, without_waiting
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.segments.segment import LogSlice
from spark_kafkalite.model import Incarnation, TopicPartition
from spark_kafkalite.net.outbox import FileRange
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.packed import FetchedPartition, FetchPartition, FetchRequest, Topic

# Partitions that are looked at between two yields: about a millisecond.
_READ_AT_ONCE = 64
# Partitions that are read, and whose answers are packed, in one go.
_INLINE_PARTITIONS = 1000
# Of how many partitions a connection keeps what it was given, in about 70 bytes each; when there are more, it begins
# again. That a consumer is new then is only one count for each offset.
_MOST_GIVEN = 250
# What an answer has at most of partitions that a follower still copies, while commits wait for others of its session.
_COPIED_BYTES = 1 << 20


class OldSlice(NamedTuple):
    """What may have to be read from the disk before it is sent: what of which log, and where it is in the answer."""

    found: LogSlice
    records: FileRange
    log: PartitionLog

    def read_into_cache(self) -> bool:
        """Read it, in a thread; return whether all of it could be read. What cannot be is known to be damaged then."""
        try:
            read_into_cache(self.found)
        except OSError as error:
            local = self.log.local
            # Where a truncation has cut it off meanwhile nothing is found either, and nothing more is sent.
            local.known_damage.survey(self.found.start_offset, local.log_end_offset, text_of(error))
            return False
        return True


class Fetching:
    """One request on its way to its answer. ``session`` is its fetch session, None for a request without one.

    ``reader`` is what the request reads as, which decides what it sees and what it waits for.
    """

    __slots__ = (
        "context",
        "damage",
        "exchange",
        "is_acknowledged",
        "max_bytes",
        "reader",
        "replica_id",
        "request",
        "session",
    )

    def __init__(
        self, context: BrokerContext, exchange: Exchange, request: FetchRequest, session: FetchSession | None = None
    ) -> None:
        self.context = context
        self.exchange = exchange
        self.request = request
        self.session = session
        self.replica_id = request.replica_id
        self.reader = Reader.of(request.replica_id, request.isolation_level) if session is None else session.reader
        # What a follower has said of its damaged logs; leaders know.
        self.damage = take_damage(context, request) if request.damage and request.replica_id >= 0 else None
        self.max_bytes: int = min(max(request.max_bytes, 0), context.config["fetch.max.bytes"])
        if exchange.quota is not None:
            self.max_bytes = exchange.quota.most_fetch_bytes(self.max_bytes)
        # Without a session: whether a follower's leaders know the offsets that are asked for.
        self.is_acknowledged = False

    @property
    def session_id(self) -> int:
        """What the answer names as the session; 0 for none."""
        return self.session.session_id if self.session is not None else 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be read, whatever happens."""
        return self.session is None and not self.request.topics

    @property
    def is_followers_next(self) -> bool:
        """Whether a follower goes on with its session, and would wait where there is nothing."""
        session, request = self.session, self.request
        if self.replica_id < 0 or session is None or session.is_new or session.is_hurried:
            return False
        return request.max_wait_ms > 0 and request.min_bytes > 0

    @property
    def is_long(self) -> bool:
        """Whether reading takes more than a few milliseconds now. Asked before it, as a session's list is taken."""
        if self.session is not None:
            return len(self.session.news) > _INLINE_PARTITIONS
        topics = self.request.topics
        return len(topics) > _INLINE_PARTITIONS or sum(1 + len(asked) for _, asked in topics) > _INLINE_PARTITIONS

    def damage_answer(self) -> bytes:
        """Return the leaders' answers to a follower's report of its damaged logs."""
        return damage_answer(self.context, self.request, self.damage) if self.damage else b""

    def acknowledge(
        self, leader: Leader, topic: Topic, asked: FetchPartition, in_session: SessionPartition | None
    ) -> None:
        """Report to a leader what its follower has, unless it knows."""
        if in_session.is_acknowledged if in_session is not None else self.is_acknowledged:
            return
        incarnation = Incarnation(self.request.replica_epoch)
        said = self.damage.get((topic, asked.partition)) if self.damage and isinstance(topic, bytes) else None
        leader.follower_fetched(
            self.replica_id,
            incarnation,
            asked.fetch_offset,
            self.session,
            asked.log_start_offset,
            said.stage if said is not None else 0,
        )
        if in_session is not None:
            in_session.is_acknowledged = True


def tell_leaders(fetching: Fetching) -> bool:
    """Report to the leaders what their follower has, of the partitions that its request names, before anything is read;
    return whether all know. Where one does not, because something is wrong, the reading finds out what it is.
    """
    session, replicas = fetching.session, fetching.context.replicas
    assert session is not None
    all_know = True
    for topic, named in fetching.request.topics:
        for one in named:
            in_session = session.partitions.get((topic, one.partition))
            if in_session is None:
                continue
            if in_session.topic_partition is None:
                all_know = False
                continue
            # Not what is named here: the same may be named again.
            asked = in_session.asked
            try:
                _, leader = _led_in(in_session, in_session.topic_partition, replicas, fetching.reader)
                starts_inside = asked.fetch_offset >= leader.log.log_start_offset
                if starts_inside and leader.divergence(asked.last_fetched_epoch, asked.fetch_offset) is None:
                    fetching.acknowledge(leader, in_session.topic, asked, in_session)
            except KafkaError:
                all_know = False
                continue
            all_know = all_know and in_session.is_acknowledged
    return all_know


def has_unread(session: FetchSession) -> bool:
    """Whether a reading of a follower's session would find what it can be answered with: more of a log, another log
    start, or what :func:`tell_leaders` could not report. Otherwise a reading is not worth its cost: the next change
    wakes the fetch.
    """
    for partition in session.news:
        if partition.led is None or not partition.is_acknowledged:
            return True
        log = partition.led[1].log
        if partition.asked.fetch_offset < log.local.log_end_offset:
            return True
        if partition.log_start_offset != log.undeleted_start_offset:
            return True
    return False


def _led(
    replicas: Replicas, topic_partition: TopicPartition, topic: Topic, asked: FetchPartition
) -> tuple[Partition, Leader]:
    """Return a partition and what leads it here. Raises the errors of ``Replicas.get`` and ``Partition.check_leader``,
    InconsistentTopicId (103)."""
    partition = replicas.get(topic_partition)
    if partition.topic_id != topic and type(topic) is bytes:
        raise InconsistentTopicId(f"{topic_partition} is of another topic of that name")
    return partition, partition.check_leader(asked.current_leader_epoch)


def _led_in(
    in_session: SessionPartition, topic_partition: TopicPartition, replicas: Replicas, reader: Reader
) -> tuple[Partition, Leader]:
    """As :func:`_led` for a session's partition, which watches the leader from then on. What was found holds for as
    long as the partition is served and it is its role, which ends with all else that would be refused."""
    asked, led = in_session.asked, in_session.led
    if led is not None:
        partition, leader = led
        is_asked = asked.current_leader_epoch in (leader.epoch, -1)
        if is_asked and partition.role is leader and replicas.get(topic_partition) is partition:
            return led
        in_session.led = None
    led = _led(replicas, topic_partition, in_session.topic, asked)
    in_session.watch(led[1].waiters_with(reader))
    in_session.led = led
    return led


class Reading:
    """What one pass found. The code that makes one calls :meth:`put_back` or :meth:`answered` before the next is
    made."""

    __slots__ = (
        "_fetching",
        "_first_copied",
        "_found",
        "_given",
        "_left_bytes",
        "_may_read",
        "_patience",
        "_replicas",
        "_rights",
        "_throttle",
        "_throttled_bytes",
        "_unread",
        "has_errors",
        "hints",
        "is_enough",
        "is_long",
        "leaders",
        "needs_thread",
        "old_slices",
        "reassignment_bytes",
        "size_bytes",
        "topics",
    )

    def __init__(self, fetching: Fetching, *, may_wait: bool = False) -> None:
        """What is needed and is not in memory ends up in ``needs_thread``, unless reading may wait for the disk."""
        self._fetching = fetching
        context = fetching.context
        self._replicas = context.replicas
        self._left_bytes = fetching.max_bytes
        # Of a session: the first partition of those that its follower copies, where these come last.
        self._first_copied: SessionPartition | None = None
        # None where the reader may read everything; the topic that was asked about last, and whether it may be read.
        self._rights = fetching.exchange.session.rights if fetching.replica_id < 0 else None
        self._may_read: tuple[str, bool] = ("", False)
        self._patience = nullcontext() if may_wait else without_waiting()
        # The leaders that the answer names.
        self.hints = LeaderHints(context, fetching.exchange)
        # Of a session: what it tells the reader, and what there was no room to read.
        self._found: list[tuple[SessionPartition, FetchedPartition]] = []
        self._unread: list[SessionPartition] = []
        # Which leaders' batches a consumer gets that other brokers have, too, and from which offset on.
        self._given: list[tuple[Leader, int]] = []
        self.size_bytes = 0
        # What replicas get that a reassignment adds.
        self.reassignment_bytes = 0
        # What bounds the copying of replicas that are not in sync, once it has, and what this copies of them.
        self._throttle: ReplicationThrottle | None = None
        self._throttled_bytes = 0
        self.is_enough = False
        # Whether it has an error for a partition.
        self.has_errors = False
        # Whether the answer takes more than a millisecond or two to pack.
        self.is_long = False
        self.old_slices: list[OldSlice] = []
        self.needs_thread: list[NeedsThread] = []
        # Of the partitions that were read without a session.
        self.leaders: list[Leader] = []
        self.topics: list[tuple[Topic, list[FetchedPartition]]] = []

    # Passes ---------------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Read all that is to be read at once."""
        session = self._fetching.session
        with self._patience:
            if session is not None:
                self._read_news(session, self._news(session))
            else:
                for topic, asked in self._fetching.request.topics:
                    fetched: list[FetchedPartition] = []
                    self.topics.append((topic, fetched))
                    self._read_topic(topic, asked, fetched)
        self._finish()

    def read_in_slices(self) -> Work[None]:
        """Read all that is to be read."""
        self.is_long = self._fetching.is_long
        session = self._fetching.session
        if session is not None:
            news = self._news(session)
            for first in range(0, len(news), _READ_AT_ONCE):
                if first:
                    yield None
                with self._patience:
                    self._read_news(session, news[first : first + _READ_AT_ONCE])
        else:
            yield from self._read_topics_in_slices()
        self._finish()

    def _read_topics_in_slices(self) -> Work[None]:
        since = 0
        for topic, asked in self._fetching.request.topics:
            fetched: list[FetchedPartition] = []
            self.topics.append((topic, fetched))
            for first in range(0, len(asked), _READ_AT_ONCE):
                some = asked[first : first + _READ_AT_ONCE]
                since += len(some)
                if since > _READ_AT_ONCE:
                    since = 0
                    yield None
                with self._patience:
                    self._read_topic(topic, some, fetched)

    def _finish(self) -> None:
        if not self.needs_thread:
            self._fetching.is_acknowledged = True
        if self.size_bytes >= self._fetching.request.min_bytes:
            self.is_enough = True

    def put_back(self) -> None:
        """Have the session's next reading read the same again: this one is not used for an answer."""
        session = self._fetching.session
        if session is not None and not session.is_closed:
            session.put_back([*(partition for partition, _ in self._found), *self._unread])

    def answered(self) -> None:
        """Advance the session: its reader receives this."""
        session = self._fetching.session
        if self._throttle is not None:
            self._throttle.charge(self._throttled_bytes)
        if self._given:
            before = self._fetching.exchange.session.given_offsets
            for leader, offset in self._given:
                topic_partition = leader.topic_partition
                if before.get(topic_partition, offset) >= offset:
                    # The consumer has made no progress, or is new.
                    leader.given_again(offset)
                    if len(before) > _MOST_GIVEN:
                        before.clear()
                before[topic_partition] = offset
        if session is None:
            return
        session.answers_at(self._fetching.context.purgatory.now_s())
        grouped: dict[Topic, list[FetchedPartition]] = {}
        again = []
        for partition, fetched in self._found:
            grouped.setdefault(partition.topic, []).append(fetched)
            if partition.answered(fetched):
                again.append(partition)
        self.topics = list(grouped.items())
        if not session.is_closed:
            session.put_back(self._unread, again)
            session.is_new = False

    # Partitions -----------------------------------------------------------------------------------------------------

    def _read_topic(self, topic: Topic, asked: Sequence[FetchPartition], fetched: list[FetchedPartition]) -> None:
        for one in asked:
            result = self._fetched(self._named(topic, one.partition), topic, one, None)
            if result is not None:
                fetched.append(result)

    def _news(self, session: FetchSession) -> list[SessionPartition]:
        """Take what a session has news of. What a follower only copies comes last, if it has other partitions."""
        if session.held:
            session.release_held()
        news = session.take_news()
        if self._fetching.reader is FOLLOWER and len(session.partitions) > 1:
            replica_id = self._fetching.replica_id
            copied = {
                each: None for each in news if each.led is not None and not each.led[1].in_sync.counts(replica_id)
            }
            if 0 < len(copied) < len(session.partitions):
                self._first_copied = next(iter(copied))
                # However much there is of the others, the copying goes on.
                self._left_bytes -= self._copied_bytes
                return [*(each for each in news if each not in copied), *copied]
        return news

    @property
    def _copied_bytes(self) -> int:
        return min(_COPIED_BYTES, self._fetching.max_bytes // 2)

    def _read_news(self, session: FetchSession, news: Sequence[SessionPartition]) -> None:
        is_consumer = self._fetching.reader is not FOLLOWER
        for partition in news:
            if partition is self._first_copied:
                self._left_bytes = self._copied_bytes
            asked = partition.asked
            # The first answer names all partitions, and a follower's leader is to know what it asks for, room or not.
            if self._left_bytes <= 0 and not session.is_new and (is_consumer or partition.is_acknowledged):
                self._unread.append(partition)
                self.is_enough = True
                continue
            if partition.topic_partition is None:
                partition.topic_partition = self._named(partition.topic, asked.partition)
            result = self._fetched(partition.topic_partition, partition.topic, asked, partition)
            if result is None:
                self._unread.append(partition)
            elif session.is_new or partition.is_news(result):
                self._found.append((partition, result))
                if not is_consumer and result.log_start_offset != partition.log_start_offset >= 0:
                    # A follower that leads next is not to bring deleted records back.
                    self.is_enough = True

    def _named(self, topic: Topic, number: int) -> TopicPartition | None:
        """Return the name of a partition, None where its topic's id is unknown."""
        if isinstance(topic, str):
            return TopicPartition(topic, number)
        name = self._fetching.context.cluster.topic_name(topic)
        return None if name is None else TopicPartition(name, number)

    def _is_readable(self, topic: str, rights: SessionRights) -> bool:
        """Whether the client may read a topic. Each reading asks: ACLs may have changed since the request that named
        it."""
        known, may_read = self._may_read
        if known != topic:
            may_read = rights.may(ApiKey.FETCH, Operation.READ, ResourceType.TOPIC, topic)
            self._may_read = topic, may_read
        return may_read

    def _fetched(
        self,
        topic_partition: TopicPartition | None,
        topic: Topic,
        asked: FetchPartition,
        in_session: SessionPartition | None,
    ) -> FetchedPartition | None:
        """Return what a partition has, or its error; None when a thread is needed first."""
        if topic_partition is None:
            return self._refused(asked, UnknownTopicId.code)
        if self._rights is not None and not self._is_readable(topic_partition.topic, self._rights):
            return self._refused(asked, TopicAuthorizationFailed.code)
        leader: Leader | None = None
        try:
            if in_session is not None:
                partition, leader = _led_in(in_session, topic_partition, self._replicas, self._fetching.reader)
            else:
                partition, leader = _led(self._replicas, topic_partition, topic, asked)
                self.leaders.append(leader)
            return self._read(partition, leader, topic, asked, in_session)
        except KafkaError as error:
            self.is_enough = self.has_errors = True
            context = self._fetching.context
            said = context.lease.said(error, context.clock.monotonic_s())
            log_start_offset = log_end_offset = -1
            if leader is not None and isinstance(said, OffsetOutOfRange) and self._fetching.replica_id >= 0:
                # A follower that ends before the log's start goes on from there, unless the log's end lies before it as
                # well. Apache Kafka's follower asks for both (ListOffsets).
                log_start_offset = leader.log.undeleted_start_offset
                log_end_offset = int(leader.log.log_end_offset)
            return FetchedPartition(
                asked.partition,
                said.code,
                last_stable_offset=log_end_offset,
                log_start_offset=log_start_offset,
                current_leader=self.hints.of(topic_partition, said),
            )
        except NeedsThread as missing:
            # The other partitions go on, so that a thread gets all that is missing at once.
            self.needs_thread.append(missing)
            return None

    def _refused(self, asked: FetchPartition, error_code: int) -> FetchedPartition:
        self.is_enough = self.has_errors = True
        return FetchedPartition(asked.partition, error_code)

    def _read(
        self,
        partition: Partition,
        leader: Leader,
        topic: Topic,
        asked: FetchPartition,
        in_session: SessionPartition | None,
    ) -> FetchedPartition:
        replica_id, reader = self._fetching.replica_id, self._fetching.reader
        diverging = None
        # A follower's leader who knows what it has, has compared the logs in this epoch.
        is_compared = in_session is not None and in_session.is_acknowledged and asked.current_leader_epoch >= 0
        starts_inside = asked.fetch_offset >= leader.log.log_start_offset
        if not is_compared and asked.last_fetched_epoch >= 0 and starts_inside:
            diverging = leader.divergence(asked.last_fetched_epoch, asked.fetch_offset)
            if diverging is not None:
                incarnation = Incarnation(self._fetching.request.replica_epoch)
                leader.check_divergence(replica_id, incarnation, asked.fetch_offset, asked.high_watermark, diverging)
        records: FileRange | bytes = b""
        throttle = leader.throttle_of(replica_id) if leader.is_throttled and reader is FOLLOWER else None
        if throttle is not None and starts_inside and throttle.owed_s() > 0:
            # What it has may make the follower one for which commits wait.
            self._fetching.acknowledge(leader, topic, asked, in_session)
            throttle = leader.throttle_of(replica_id)
        if diverging is not None:
            self.is_enough = True
        elif throttle is not None and starts_inside and throttle.owed_s() > 0:
            if in_session is not None and asked.fetch_offset < leader.end_offset_for(reader):
                in_session.session.hold(in_session, throttle)
        else:
            limit = min(asked.partition_max_bytes, self._left_bytes)
            if throttle is not None:
                limit = min(limit, throttle.most_at_once - self._throttled_bytes)
            # Otherwise a batch that is larger than the limit would never be copied.
            at_least_one = self.size_bytes == 0 or (in_session is not None and in_session is self._first_copied)
            try:
                found = leader.read(asked.fetch_offset, max(limit, 0), at_least_one=at_least_one, reader=reader)
            except KafkaStorageError:
                # This log lacks that offset. Where the follower's log ends shows whether the follower lacks it, too.
                if replica_id >= 0 and not is_compared:
                    self._fetching.acknowledge(leader, topic, asked, in_session)
                raise
            if replica_id >= 0 and not is_compared:
                self._fetching.acknowledge(leader, topic, asked, in_session)
            if found is not None:
                records = self._taken(leader, found)
                if reader is FOLLOWER:
                    if replica_id in leader.in_sync.state.adding:
                        self.reassignment_bytes += found.length
                elif leader.has_followers:
                    self._given.append((leader, asked.fetch_offset))
                if throttle is not None:
                    self._throttle = throttle
                    self._throttled_bytes += found.length
            else:
                if limit <= 0:
                    self.is_enough = True
                if in_session is not None and asked.fetch_offset < leader.end_offset_for(reader):
                    # There is something that there was no room for.
                    self._unread.append(in_session)
        bounds, flushed_end_offset = partition.bounds, leader.log.local.recovery_point
        return FetchedPartition(
            asked.partition,
            0,
            bounds.high_watermark if reader is FOLLOWER else bounds.visible_end_offset(flushed_end_offset),
            bounds.stable_end_offset(flushed_end_offset),
            leader.log.undeleted_start_offset if reader is FOLLOWER else leader.log.log_start_offset,
            records,
            [] if self._fetching.request.isolation_level else None,
            -1,
            diverging,
        )

    def _taken(self, leader: Leader, found: LogSlice) -> FileRange:
        self.size_bytes += found.length
        self._left_bytes -= found.length
        damage = leader.log.local.known_damage
        records = FileRange(found.file, found.position, found.length, found.sending, damage, found.start_offset)
        is_recent, reaches_end = leader.log.local.place_of(found)
        if not is_recent:
            self.old_slices.append(OldSlice(found, records, leader.log))
        # What a limit or the end of a segment has cut off is there already: waiting would not make it come.
        if not reaches_end:
            self.is_enough = True
        return records

    def leave_out(self, unread: Sequence[OldSlice]) -> None:
        """Answer with KAFKA_STORAGE_ERROR in the place of slices that could not be read. Their sessions' partitions are
        read again for the next answer, as after every one with records."""
        left_out = {id(one.records) for one in unread}
        for _, partitions in self.topics:
            for number, fetched in enumerate(partitions):
                if id(fetched.records) in left_out:
                    partitions[number] = FetchedPartition(fetched.partition, KafkaStorageError.code)
        for one in unread:
            one.log.local.known_damage.tell()

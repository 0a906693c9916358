"""Fetch sessions (KIP-227): a reader names what is new in its requests, the broker what has news in its answers.

One mechanism for consumers and followers. A session belongs to the connection that opened it, one to a connection, and
ends with that connection. No client goes on with a session on another connection, no client can guess another's
session, and its memory has an owner.

The cost of a fetch is that of the partitions that have news. A :class:`SessionPartition` watches its leader, again
under each leader epoch (``purgatory.WaitingList``). Each change that an answer would contain (more to read, another
high watermark or log start, the end of the epoch) puts it on the session's list. A reading takes that list; what it
finds to be as the reader knows it stays off until the next news. A partition that was answered with records, an error
or a divergence stays on, behind all others: the reader may fetch more without naming it, and no partition starves.

Sessions of clients are limited in number (``max.incremental.fetch.session.cache.slots``) and in what they hold. A
client without a session names all its partitions in each request. Those of followers are always kept.

Source: KIP-227, kafka.server.FetchSession.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import inf
from typing import Final, Protocol

from spark_kafkalite.broker.quotas.replication_throttle import ReplicationThrottle
from spark_kafkalite.broker.replication.leader import Leader
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.reader import Reader
from spark_kafkalite.broker.replication.rules.in_sync import AsksFollowers
from spark_kafkalite.broker.waiting.purgatory import DelayedOperation, WaitingList
from spark_kafkalite.model import MAX_TOPIC_NAME_LENGTH, TopicPartition
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.packed import FetchedPartition, FetchPartition, FetchRequest, Topic

# What one session of a client may name, and all of them together: about 70 MB.
MOST_PARTITIONS: Final = 10_000
MOST_PARTITIONS_IN_ALL: Final = 100_000
# A session that has not been used, or that has been there, for so long may give its slot to another one. Source:
# kafka.server.KafkaServer.MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS.
EVICTION_S: Final = 120.0
# Epochs of requests that name all their partitions: "open a session" and "no session".
OPENING_EPOCH: Final = 0
NO_SESSION_EPOCH: Final = -1
_LAST_EPOCH: Final = 2**31 - 1
# Partitions that are taken up between two yields.
_TAKEN_AT_ONCE: Final = 256


class WaitingFetch(DelayedOperation):
    """A fetch that waits for news; see ``handlers.fetch.DelayedFetch``."""

    __slots__ = ()

    def end_wait(self) -> None:
        """Answer at once with what there is."""
        raise NotImplementedError


class SessionPartition:
    """One partition of a session: what was last asked of it, and what the reader last received."""

    __slots__ = (
        "asked",
        "high_watermark",
        "is_acknowledged",
        "led",
        "log_start_offset",
        "session",
        "topic",
        "topic_partition",
        "waits_in",
    )

    def __init__(self, session: FetchSession, topic: Topic, asked: FetchPartition) -> None:
        self.session = session
        self.topic = topic
        # None while nobody knows the topic of this id.
        self.topic_partition = TopicPartition(topic, asked.partition) if isinstance(topic, str) else None
        self.asked = asked
        self.high_watermark = -1
        self.log_start_offset = -1
        # Whether the leader knows of the offset that was asked for; only followers' do they want to know.
        self.is_acknowledged = False
        # The partition and its leader here, once they were found: see ``fetch_reading``.
        self.led: tuple[Partition, Leader] | None = None
        self.waits_in: WaitingList | None = None

    def watch(self, waits_in: WaitingList) -> None:
        """Watch this list from now on, and no other."""
        if self.waits_in is not waits_in:
            self.unwatch()
            self.waits_in = waits_in
            waits_in.watchers[self] = None
            # Another leader, who is to hear of an offset only if that was asked for under its epoch.
            if self.asked.current_leader_epoch >= 0:
                self.is_acknowledged = False

    def unwatch(self) -> None:
        """Stop watching."""
        self.led = None
        if self.waits_in is not None:
            self.waits_in.watchers.pop(self, None)
            self.waits_in = None

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that the reader last asked under; -1: unknown."""
        return self.asked.current_leader_epoch

    def news(self) -> None:
        """Be read again, now if a fetch waits."""
        session = self.session
        session.news[self] = None
        session.is_woken = True
        if session.waiting is not None and self.waits_in is not None:
            self.waits_in.wake_one(session.waiting)

    def let_go(self) -> None:
        """Hold what has ended no longer."""
        self.led = None

    def changed(self) -> None:
        """Be read again for the next answer, whenever that is."""
        self.session.news[self] = None

    def is_news(self, fetched: FetchedPartition) -> bool:
        """Whether this is news to the reader. Source: CachedPartition.maybeUpdateResponseData."""
        return bool(
            fetched.records
            or fetched.error_code
            or fetched.high_watermark != self.high_watermark
            or fetched.log_start_offset != self.log_start_offset
            or fetched.diverging_epoch is not None
        )

    def answered(self, fetched: FetchedPartition) -> bool:
        """Note what the reader receives; return whether it is to be read again, whatever happens."""
        self.high_watermark = fetched.high_watermark
        self.log_start_offset = fetched.log_start_offset
        return bool(fetched.records or fetched.error_code or fetched.diverging_epoch is not None)


class FetchSession:
    """The partitions that one reader fetches. Made and closed by :class:`FetchSessions`.

    ``last_fetch_s`` is when its last request came, in the loop's seconds: a fetch of each of its partitions at the
    offset that was last asked for. ``heard_s`` is when the latest answer was made that a follower had certainly got
    when it sent that request; a follower has at most two requests on their way (``replica_fetcher``).
    """

    __slots__ = (
        "_answered_before_s",
        "_answered_s",
        "_questions",
        "counted",
        "epoch",
        "heard_s",
        "held",
        "held_by",
        "is_by_id",
        "is_closed",
        "is_new",
        "is_of_client",
        "is_void",
        "is_woken",
        "last_fetch_s",
        "news",
        "opened_s",
        "partitions",
        "reader",
        "session_id",
        "waiting",
    )

    def __init__(self, session_id: int, now_s: float, *, is_by_id: bool, is_of_client: bool) -> None:
        self.session_id = session_id
        # That the next request must have.
        self.epoch = 1
        self.is_by_id = is_by_id
        self.is_of_client = is_of_client
        # What its last request read as.
        self.reader = Reader.UNCOMMITTED if is_of_client else Reader.FOLLOWER
        # With how many partitions it is counted.
        self.counted = 0
        self.opened_s = self.last_fetch_s = now_s
        self.partitions: dict[tuple[Topic, int], SessionPartition] = {}
        # What the next reading looks at, in this order.
        self.news: dict[SessionPartition, None] = {}
        # What a throttle keeps from being read, and which.
        self.held: dict[SessionPartition, None] = {}
        self.held_by: ReplicationThrottle | None = None
        # Whether there is more to read somewhere than the last reading could know.
        self.is_woken = False
        # Until its first answer, which names all partitions, news or not.
        self.is_new = True
        self.is_closed = False
        # Whether the next request is refused, so that the reader opens another session.
        self.is_void = False
        self.waiting: WaitingFetch | None = None
        # When the last answer was made, and the last one before the last request came.
        self._answered_s = self._answered_before_s = self.heard_s = -inf
        # What leaders ask of the follower; meanwhile its fetches do not wait.
        self._questions: list[AsksFollowers] = []

    def put(self, topic: Topic, asked: FetchPartition) -> None:
        """Add a partition, or ask something else of it."""
        key = topic, asked.partition
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = SessionPartition(self, topic, asked)
        else:
            partition.asked = asked
            partition.is_acknowledged = False
        self.news[partition] = None

    def forget(self, topic: Topic, number: int) -> None:
        """Drop a partition, if the session has it."""
        partition = self.partitions.pop((topic, number), None)
        if partition is not None:
            self.news.pop(partition, None)
            self.held.pop(partition, None)
            partition.unwatch()

    def hold(self, partition: SessionPartition, throttle: ReplicationThrottle) -> None:
        """Read a partition again when a throttle allows it, or there is other news of it."""
        self.held[partition] = None
        self.held_by = throttle

    @property
    def held_s(self) -> float | None:
        """For how many seconds a throttle keeps partitions from being read; None where it holds none."""
        return self.held_by.owed_s() if self.held_by is not None and self.held else None

    def release_held(self) -> None:
        """Have the next reading cover what a throttle has held, if that allows it now."""
        if self.held and self.held_s == 0:
            held, self.held = self.held, {}
            self.news.update(held)

    def read_as(self, reader: Reader) -> Work[None]:
        """Read everything again for a reader of another kind, which sees another end and waits for it."""
        self.reader = reader
        partitions = list(self.partitions.values())
        for first in range(0, len(partitions), _TAKEN_AT_ONCE):
            if first:
                yield None
            for partition in partitions[first : first + _TAKEN_AT_ONCE]:
                partition.unwatch()
                self.news[partition] = None

    def begin_next(self, now_s: float) -> None:
        """Note that the next request has come."""
        self.last_fetch_s = now_s
        self.epoch = self.epoch + 1 if self.epoch < _LAST_EPOCH else 1
        # The last request but one had been answered before the follower sent this one; the last one perhaps not.
        self.heard_s, self._answered_before_s = self._answered_before_s, self._answered_s

    def answers_at(self, now_s: float) -> None:
        """Note that an answer is made."""
        self._answered_s = now_s

    @property
    def is_hurried(self) -> bool:
        """Whether a leader waits for the next request, so that this one is to be answered at once."""
        return bool(self._questions)

    def name_again(self) -> None:
        """Have the reader name all its partitions again: a leader has forgotten its report of one."""
        self.is_void = True

    def hurry(self, question: AsksFollowers) -> None:
        """Have each request answered at once, also the one that waits, until a leader's question is answered."""
        self._questions.append(question)
        self.end_wait()

    def hurry_no_more(self, question: AsksFollowers) -> None:
        """A leader's question is answered, or waits no longer for this session."""
        self._questions.remove(question)

    def tell_questions(self) -> None:
        """Have the leaders that ask check the last request."""
        for question in list(self._questions):
            question.look()

    def read_again(self) -> None:
        """Have the next reading cover every partition: the reader's rights may have changed."""
        for partition in self.partitions.values():
            self.news[partition] = None
        self.is_woken = True

    def take_news(self) -> list[SessionPartition]:
        """Take the list of what is to be read, and begin an empty one."""
        taken = list(self.news)
        self.news = {}
        self.is_woken = False
        return taken

    def put_back(self, first: Sequence[SessionPartition], last: Sequence[SessionPartition] = ()) -> None:
        """Put partitions on the list again, before and behind those that have got there meanwhile."""
        if first:
            news = dict.fromkeys(first)
            news.update(self.news)
            self.news = news
        for partition in last:
            self.news[partition] = None

    def end_wait(self) -> None:
        """Have a fetch that waits answered with what there is."""
        if self.waiting is not None:
            self.waiting.end_wait()


class FetchingClient(Protocol):
    """The end of a connection that may have a session; ``network.session.Session`` is one."""

    fetch_session: FetchSession | None


class FetchSessions:
    """All sessions of the broker."""

    __slots__ = ("_clients", "_partition_count", "_random", "waiting_without")

    def __init__(self) -> None:
        self._clients: dict[int, FetchSession] = {}
        # Fetches without a session that wait, of clients with limited rights.
        self.waiting_without: dict[WaitingFetch, None] = {}
        # Of clients' sessions.
        self._partition_count = 0
        self._random = random.SystemRandom()

    def __len__(self) -> int:
        """How many sessions clients have."""
        return len(self._clients)

    def of_clients(self) -> list[FetchSession]:
        """Return all sessions of clients."""
        return list(self._clients.values())

    @property
    def partition_count(self) -> int:
        """How many partitions the sessions of clients have."""
        return self._partition_count

    def open(self, fetch: FetchRequest, now_s: float, slots: int, *, is_by_id: bool) -> Work[FetchSession | None]:
        """Open a session for a request that names all its partitions; None where there is no room."""
        is_of_client = fetch.replica_id < 0
        size = sum(len(asked) for _, asked in fetch.topics)
        if not size or (is_of_client and (_names_no_topic(fetch) or not self._has_room(size, now_s, slots))):
            return None
        session_id = 0
        while not session_id or session_id in self._clients:
            session_id = self._random.randrange(1, 2**31)
        session = FetchSession(session_id, now_s, is_by_id=is_by_id, is_of_client=is_of_client)
        if is_of_client:
            # Before the first yield, so that those who come meanwhile find what room there is left.
            self._clients[session_id] = session
            self._count(session, size)
        try:
            yield from self._take_up(session, fetch)
        except GeneratorExit:
            # The connection has closed before it has got the session.
            self.close(session)
            raise
        self._count(session, len(session.partitions))
        return session

    def _count(self, session: FetchSession, size: int) -> None:
        if session.is_of_client:
            self._partition_count += size - session.counted
            session.counted = size

    def _has_room(self, size: int, now_s: float, slots: int) -> bool:
        if size > MOST_PARTITIONS or self._partition_count + size > MOST_PARTITIONS_IN_ALL:
            return False
        return len(self._clients) < slots or (slots > 0 and self._evict_for(size, now_s))

    def _evict_for(self, size: int, now_s: float) -> bool:
        """Close a session that is worth less than one of this size; return whether there was one."""
        sessions = self._clients.values()
        oldest = min(sessions, key=lambda session: session.last_fetch_s)
        if now_s - oldest.last_fetch_s <= EVICTION_S:
            settled = [session for session in sessions if now_s - session.opened_s > EVICTION_S]
            if not settled:
                return False
            oldest = min(settled, key=lambda session: (len(session.partitions), session.last_fetch_s))
            if len(oldest.partitions) > size:
                return False
        self.close(oldest)
        return True

    def update(self, session: FetchSession, fetch: FetchRequest) -> Work[bool]:
        """Take up what the next request of a session adds, changes and forgets.

        False where that makes it too large, or names what can be no topic: then it is closed.
        """
        if session.is_of_client and _names_no_topic(fetch):
            self.close(session)
            return False
        before = session.counted
        yield from self._take_up(session, fetch)
        for topic, numbers in fetch.forgotten_topics:
            for number in numbers:
                session.forget(topic, number)
        if session.is_of_client and not session.is_closed:
            size = len(session.partitions)
            self._count(session, size)
            if size > before and (size > MOST_PARTITIONS or self._partition_count > MOST_PARTITIONS_IN_ALL):
                self.close(session)
        return not session.is_closed

    def _take_up(self, session: FetchSession, fetch: FetchRequest) -> Work[None]:
        since = 0
        for topic, asked in fetch.topics:
            for one in asked:
                session.put(topic, one)
                since += 1
                if since == _TAKEN_AT_ONCE:
                    since = 0
                    yield None

    def close_of(self, client: FetchingClient) -> None:
        """End the session of a connection, if it has one."""
        session, client.fetch_session = client.fetch_session, None
        if session is not None:
            self.close(session)

    def close(self, session: FetchSession) -> None:
        """End a session; a fetch that waits is answered."""
        if session.is_closed:
            return
        session.end_wait()
        session.is_closed = True
        self._clients.pop(session.session_id, None)
        self._count(session, 0)
        for partition in session.partitions.values():
            partition.unwatch()
        session.partitions = {}
        session.news = {}
        session.held = {}


def _names_no_topic(fetch: FetchRequest) -> bool:
    """Whether a name is longer than any topic's: sessions would keep names of 32 KiB that a client makes up."""
    return any(len(topic) > MAX_TOPIC_NAME_LENGTH for topic, _ in fetch.topics)

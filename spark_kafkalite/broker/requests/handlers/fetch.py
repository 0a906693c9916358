"""Fetch (key 1), versions 4 to 17: whole batches from the log, now or when there are enough.

v4   isolation level, last stable offset, aborted transactions
v5   log start offset
v7   sessions: a request names what changes, an answer what has news (``requests.fetch_sessions``); a session belongs to
     the connection that opened it
v9   current leader epoch in the request (fencing)
v11  preferred read replica (never one here)
v12  flexible; last fetched epoch and diverging epoch
v13  topics are named by their ids
v15  the replica that fetches is named in a tagged field, with its epoch: here its incarnation
v16  current leaders and their addresses, next to the errors that refuse a partition (KIP-951)
v17  directory ids, which are not used here

Only a connection that has proven which broker is at its other end may fetch as a replica.

An answer that is not complete enough waits (:class:`DelayedFetch`). A follower's fetch waits unread. Its leaders
receive at once what the follower has, because producers wait for that; no client waits for the answer. The fetch is
read when nothing else is to be done, and only where its partitions have more than the follower: mostly it arrives
before the next records. A fetch that names a partition with other news is read at once. The follower's next request may
end the wait, and an answer without that partition means that the logs fit.

Nothing here waits for the disk: a thread first reads what is not in the page cache. That holds for the indexes and
headers that the reading uses (``requests.fetch_reading``), and for the records, which leave with ``sendfile`` (ranges
behind the recently written part are probed).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.metrics.counters import TopicMeters
from spark_kafkalite.broker.replication.leader import Leader
from spark_kafkalite.broker.replication.reader import Reader
from spark_kafkalite.broker.requests.dispatch import SMALL_REQUEST_BYTES, handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.broker.requests.fetch_reading import Fetching, OldSlice, Reading, has_unread, tell_leaders
from spark_kafkalite.broker.requests.fetch_sessions import NO_SESSION_EPOCH, OPENING_EPOCH, FetchSession, WaitingFetch
from spark_kafkalite.broker.waiting.page_cache import MOST_LOOK_UPS, in_thread, is_cached
from spark_kafkalite.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
    KafkaError,
)
from spark_kafkalite.net.io_threads import Lane
from spark_kafkalite.net.outbox import FileRange, Response
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.slices import Work, filled, run_whole
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.packed import (
    FETCH_BY_ID,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    Topic,
    dismantle_topics,
    pack_fetch_response,
    pack_fetch_response_in_slices,
    parse_fetch,
    parse_fetch_in_slices,
)

_quiet = QuietLog(logging.getLogger(__name__))

# For how long a fetch waits at least that a throttle holds.
_LEAST_HELD_S = 0.01
# Before it an answer has no error of its own.
_SESSIONS_VERSION = 7


@handles(ApiKey.FETCH, 4, 17, raw=True)
def handle(
    context: BrokerContext, exchange: Exchange, frame: memoryview, position: int
) -> Response | Work[Response | None] | None:
    """Read; return the answer, or None when it comes later, or what takes several slices."""
    if len(frame) > SMALL_REQUEST_BYTES:
        return _in_slices(context, exchange, exchange.keep(frame), position)
    fetch = parse_fetch(frame, position, exchange.api_version)
    try:
        fetching = run_whole(_begun(context, exchange, fetch))
    except KafkaError as error:
        return _refused(exchange, fetch, error)
    if fetching.is_long:
        return _read_in_slices(fetching)
    if fetching.is_followers_next and tell_leaders(fetching):
        DelayedFetch(fetching).start_unread()
        return None
    result = Reading(fetching)
    result.read()
    return _answer(fetching, result)


def _in_slices(context: BrokerContext, exchange: Exchange, frame: memoryview, position: int) -> Work[Response | None]:
    fetch = yield from parse_fetch_in_slices(frame, position, exchange.api_version)
    try:
        fetching = yield from _begun(context, exchange, fetch)
    except KafkaError as error:
        return _refused(exchange, fetch, error)
    return (yield from _read_in_slices(fetching))


def _read_in_slices(fetching: Fetching) -> Work[Response | None]:
    result = Reading(fetching)
    yield from result.read_in_slices()
    return _answer(fetching, result)


# The session ----------------------------------------------------------------------------------------------------------


def _begun(context: BrokerContext, exchange: Exchange, fetch: FetchRequest) -> Work[Fetching]:
    """Return what is to be fetched, in the session that the request is of or opens, if any.

    Raises ClusterAuthorizationFailed (31), FetchSessionIdNotFound (70), InvalidFetchSessionEpoch (71),
    FetchSessionTopicIdError (106). Source: kafka.server.FetchManager.newContext.
    """
    client = exchange.connection.session
    if fetch.replica_id >= 0:
        client.check_replica(fetch.replica_id)
    before = client.fetch_session
    if fetch.session_epoch == NO_SESSION_EPOCH:
        if before is not None and fetch.session_id == before.session_id:
            context.fetch_sessions.close_of(client)
        return Fetching(context, exchange, (yield from _each_once(fetch)))
    by_id = exchange.api_version >= FETCH_BY_ID
    if fetch.session_epoch == OPENING_EPOCH:
        context.fetch_sessions.close_of(client)
        slots = context.config["max.incremental.fetch.session.cache.slots"]
        received_s = exchange.connection.received_s
        session = yield from context.fetch_sessions.open(fetch, received_s, slots, is_by_id=by_id)
        if session is not None:
            client.fetch_session = session
            client.call_when_closed(context.fetch_sessions.close_of)
            session.reader = Reader.of(fetch.replica_id, fetch.isolation_level)
            return Fetching(context, exchange, fetch, session)
        return Fetching(context, exchange, (yield from _each_once(fetch)))
    session = _next_of(before, fetch, by_id=by_id)
    session.begin_next(exchange.connection.received_s)
    if not (yield from context.fetch_sessions.update(session, fetch)):
        raise FetchSessionIdNotFound("the fetch session has more partitions than one may have")
    reader = Reader.of(fetch.replica_id, fetch.isolation_level)
    if reader is not session.reader:
        yield from session.read_as(reader)
    if session.is_hurried:
        session.tell_questions()
    if not session.partitions:
        context.fetch_sessions.close_of(client)
        return Fetching(context, exchange, fetch._replace(topics=()))
    return Fetching(context, exchange, fetch, session)


def _next_of(session: FetchSession | None, fetch: FetchRequest, *, by_id: bool) -> FetchSession:
    """Return the session of an incremental fetch."""
    if session is None or session.is_closed or session.is_void or session.session_id != fetch.session_id:
        raise FetchSessionIdNotFound(f"this connection has no fetch session {fetch.session_id}")
    if session.epoch != fetch.session_epoch:
        raise InvalidFetchSessionEpoch(f"epoch {fetch.session_epoch} asked, {session.epoch} is next")
    if session.is_by_id != by_id:
        raise FetchSessionTopicIdError("the fetch session has begun with the other kind of topics")
    return session


def _refused(exchange: Exchange, fetch: FetchRequest, error: KafkaError) -> Response:
    topics: list[tuple[Topic, list[FetchedPartition]]] = []
    if exchange.api_version < _SESSIONS_VERSION:
        topics = [
            (topic, [FetchedPartition(one.partition, error.code) for one in asked]) for topic, asked in fetch.topics
        ]
    return pack_fetch_response(  # type: ignore[return-value]
        exchange.correlation_id, exchange.api_version, topics, exchange.throttle_time_ms(), error.code
    )


def _each_once(fetch: FetchRequest) -> Work[FetchRequest]:
    """Return the request with each partition once: a later mention replaces an earlier one, in its place.

    Source: FetchRequest.fetchData.
    """
    topics = fetch.topics
    if len(topics) == 1 and len(topics[0][1]) == 1:
        return fetch
    named = yield from filled(set(), (topic for topic, _ in topics))
    is_repeated = len(topics) != len(named)
    for _, asked in topics:
        if len(asked) > 1 and not is_repeated:
            numbers = yield from filled(set(), (one.partition for one in asked))
            is_repeated = len(asked) != len(numbers)
    if not is_repeated:
        return fetch
    merged: dict[Topic, dict[int, FetchPartition]] = {}
    for topic, asked in topics:
        yield from filled(merged.setdefault(topic, {}), ((one.partition, one) for one in asked))
    yield from dismantle_topics(topics)
    once = yield from filled([], ((topic, list(asked.values())) for topic, asked in merged.items()))
    return fetch._replace(topics=once)


# The answer -----------------------------------------------------------------------------------------------------------


def _answer(fetching: Fetching, result: Reading) -> Response | None:
    """Return the answer, or None when it comes later."""
    if result.needs_thread:
        fetching.exchange.defer()
        _read_again(fetching, result)
        return None
    is_hurried = fetching.session is not None and fetching.session.is_hurried
    if result.is_enough or fetching.request.max_wait_ms <= 0 or fetching.is_empty or is_hurried:
        return _response(fetching, result)
    DelayedFetch(fetching).start(result)
    return None


def _read_again(fetching: Fetching, result: Reading) -> None:
    """Have a thread do what the reading needs one for, read again, and answer with the result."""
    _start_held(fetching, _reading_again(fetching, result), partial(_report, fetching.exchange))


def _start_held(fetching: Fetching, work: Work[None], on_end: Callable[[BaseException | None], None]) -> None:
    """Work in slices. The connection waits meanwhile, if its session is in between two states."""
    connection = fetching.exchange.connection if fetching.session is not None else None

    def ended(_: None, error: BaseException | None) -> None:
        if connection is not None:
            connection.release()
        on_end(error)

    if connection is not None:
        connection.hold()
    fetching.context.slices.start(fetching.exchange.counted(work), ended)


def _reading_again(fetching: Fetching, result: Reading) -> Work[None]:
    context, exchange = fetching.context, fetching.exchange
    look_ups = 1
    while result.needs_thread:
        result.put_back()
        try:
            yield from in_thread(context.io, context.loop, result.needs_thread)
        except Exception as error:
            exchange.close(f"reading a log failed: {error}")
            return
        if exchange.abandoned:
            return
        result = Reading(fetching, may_wait=look_ups >= MOST_LOOK_UPS)
        yield from result.read_in_slices()
        look_ups += 1
    _answer_deferred(fetching, result)


def _answer_deferred(fetching: Fetching, result: Reading) -> None:
    """Answer an exchange that was deferred."""
    response = _response(fetching, result)
    if response is not None:
        fetching.exchange.answer(response)


def _response(fetching: Fetching, result: Reading) -> Response | None:
    """Return the answer, or None when it comes later, because a thread reads first or packing it takes long."""
    context, exchange = fetching.context, fetching.exchange
    # The quota decides before the session takes the answer for received: the answer of a throttled fetch is empty.
    throttle_ms = exchange.throttle_time_ms(result.size_bytes)
    if throttle_ms > 0:
        return _throttled(fetching, result, throttle_ms)
    result.answered()
    meters = context.meters
    if meters is not None:
        if result.reassignment_bytes:
            meters.reassignment_bytes_out += result.reassignment_bytes
        _count(meters.topics, context, fetching, result)
    cold = [one for one in result.old_slices if not is_cached(one.found)] if result.old_slices else None
    if cold or result.is_long:
        exchange.defer()

        def pack(unread: Sequence[OldSlice]) -> None:
            result.leave_out(unread)
            context.slices.start(_pack(fetching, result), lambda _, error: _report(exchange, error))

        if cold:
            context.io.submit(
                lambda: [one for one in cold if not one.read_into_cache()],
                pack,
                lambda error: exchange.close(f"reading a log failed: {error}"),
                Lane.READ,
            )
        else:
            pack(())
        return None
    return pack_fetch_response(  # type: ignore[return-value]
        exchange.correlation_id,
        exchange.api_version,
        result.topics,
        0,
        0,
        fetching.session_id,
        result.hints.endpoints,
        fetching.damage_answer(),
    )


def _throttled(fetching: Fetching, result: Reading, throttle_ms: int) -> Response:
    """Return the answer to a client over its quota (KIP-219): nothing but the time for which it is throttled.

    Its session goes on: the next answer has what this one would have had. One that this request has opened is closed,
    because its first answer has to name all partitions; the client opens another one. Source:
    FetchSession.getThrottledResponse.
    """
    exchange, session = fetching.exchange, fetching.session
    result.put_back()
    session_id = fetching.session_id
    if session is not None and session.is_new:
        session_id = 0
        if exchange.session.fetch_session is session:
            fetching.context.fetch_sessions.close_of(exchange.session)
    return pack_fetch_response(  # type: ignore[return-value]
        exchange.correlation_id, exchange.api_version, (), throttle_ms, 0, session_id
    )


def _count(meters: TopicMeters, context: BrokerContext, fetching: Fetching, result: Reading) -> None:
    """Count what the answer has of each topic: once a topic, not once a partition, where that is enough."""
    topics, is_consumer = result.topics, fetching.replica_id < 0
    for topic, partitions in topics:
        meter = meters.by_topic.get(topic) or meters.fetched(topic, context.cluster.topic_name)
        size = result.size_bytes
        if len(topics) > 1:
            size = sum(one.records.length for one in partitions if isinstance(one.records, FileRange))
        if not is_consumer:
            meter.replication_bytes_out += size
            continue
        meter.bytes_out += size
        meter.fetch_requests += len(partitions)
        if result.has_errors:
            meter.failed_fetch_requests += sum(one.error_code != 0 for one in partitions)


def _pack(fetching: Fetching, result: Reading) -> Work[None]:
    exchange = fetching.exchange
    response = yield from pack_fetch_response_in_slices(
        exchange.correlation_id,
        exchange.api_version,
        result.topics,
        0,
        0,
        fetching.session_id,
        result.hints.endpoints,
        fetching.damage_answer(),
    )
    exchange.answer(response)  # type: ignore[arg-type]
    yield from dismantle_topics(result.topics)
    if fetching.session is None:
        yield from dismantle_topics(fetching.request.topics)


def _report(exchange: Exchange, error: BaseException | None) -> None:
    """Close the connection of work that failed."""
    if error is not None:
        _quiet.log(logging.ERROR, "bug", "answering a fetch failed", exc_info=error)
        exchange.close("a handler failed")


class DelayedFetch(WaitingFetch):
    """A fetch that waits for ``min_bytes``.

    Completed by: enough bytes below its bound in its partitions (an append, the high watermark, a flush). Any
    partition's error completes it, too, and so does the end of the leader epoch in which the wait began, of any of them
    (leadership lost, a new epoch, topic deleted). So do its ``max_wait_ms``, the next request of its fetch session, and
    the connection's end.
    """

    __slots__ = ("_context", "_fetching", "_is_held", "_is_long", "_is_looking", "_leaders", "_look_again")

    def __init__(self, fetching: Fetching) -> None:
        super().__init__(fetching.exchange.connection)
        self._fetching = fetching
        self._context = fetching.context
        # Of a fetch without a session, whose partitions are watched by this alone.
        self._leaders: list[Leader] = []
        # Whether it waits for a throttle.
        self._is_held = False
        self._is_long = False
        self._is_looking = False
        self._look_again = False
        fetching.exchange.defer()
        fetching.exchange.call_if_abandoned(self.abandon)

    def start(self, first: Reading) -> None:
        """Begin to wait on the partitions of the first reading."""
        first.put_back()
        session = self._fetching.session
        if session is None:
            self._is_long = first.is_long
            self._leaders = first.leaders
            for leader in self._leaders:
                leader.waiters_with(self._fetching.reader).add(self)
            if self._fetching.exchange.has_limits:
                self._context.fetch_sessions.waiting_without[self] = None
        else:
            session.waiting = self
        self._set_deadline()
        if session is not None and session.is_woken:
            # By what has come while the first reading went on, in slices.
            self.try_complete()

    def start_unread(self) -> None:
        """Begin to wait without a reading; where there is something already, the first one follows when nothing else is
        to be done."""
        session = self._fetching.session
        assert session is not None
        session.waiting = self
        self._set_deadline()
        if has_unread(session):
            self._context.purgatory.wake_last(self)

    def _set_deadline(self) -> None:
        session = self._fetching.session
        self.wait_at_most(self._fetching.request.max_wait_ms / 1000, self._context.purgatory.deadlines)
        if session is not None and session.held:
            self._wait_for_throttle()

    def _wait_for_throttle(self) -> None:
        """Wait no longer than what a throttle holds has to."""
        session = self._fetching.session
        held_s = session.held_s if session is not None and not self._is_held else None
        if held_s is not None and held_s < self._fetching.request.max_wait_ms / 1000:
            self._is_held = True
            # Not less than a little: others may use up what is allowed next.
            self.wait_at_most(max(held_s, _LEAST_HELD_S), self._context.purgatory.deadlines)

    def try_complete(self) -> bool:
        session = self._fetching.session
        if not (self._is_long if session is None else self._fetching.is_long):
            exchange = self._fetching.exchange
            counts_time = exchange.quota is not None and exchange.resume()
            try:
                result = Reading(self._fetching)
                result.read()
                if self._is_final(result) and self.finish():
                    self._answer(result)
                    return True
                result.put_back()
                if not self.finished:
                    self._wait_for_throttle()
                return False
            finally:
                if counts_time:
                    exchange.pause()
        # A look at thousands of partitions takes several slices, in which others may wake this again.
        if self._is_looking:
            self._look_again = True
        else:
            self._is_looking = True
            _start_held(self._fetching, self._look(), self._looked)
        return self.finished

    def _look(self) -> Work[None]:
        result = Reading(self._fetching)
        yield from result.read_in_slices()
        if self._is_final(result) and self.finish():
            self._answer(result)
        else:
            result.put_back()
            if not self.finished:
                self._wait_for_throttle()

    def _is_final(self, result: Reading) -> bool:
        """Whether a reading is to be answered with, or gone on with in a thread."""
        return result.is_enough or bool(result.needs_thread) or any(leader.end_reason for leader in self._leaders)

    def _looked(self, error: BaseException | None) -> None:
        self._is_looking = False
        if error is not None:
            self.report_bug(error)
        elif self._look_again and not self.finished:
            self._look_again = False
            self.try_complete()

    def expire(self) -> None:
        if self.finish():
            _start_held(self._fetching, self._last_look(), self._looked)

    def _last_look(self) -> Work[None]:
        result = Reading(self._fetching)
        yield from result.read_in_slices()
        self._answer(result)

    def end_wait(self) -> None:
        """Answer at once without a look: what has news stays on the session's list, for the next request."""
        session = self._fetching.session
        if session is None or session.is_new:
            # The first answer names all partitions. Who asks for more already does so without the session.
            self.expire()
        elif self.finish():
            _answer_deferred(self._fetching, Reading(self._fetching))

    def _answer(self, result: Reading) -> None:
        if result.needs_thread:
            _read_again(self._fetching, result)
        else:
            _answer_deferred(self._fetching, result)

    def fail(self) -> None:
        self._fetching.exchange.close("a handler failed")

    def release(self) -> None:
        session = self._fetching.session
        if session is not None:
            session.waiting = None
        elif self._fetching.exchange.has_limits:
            self._context.fetch_sessions.waiting_without.pop(self, None)
        for leader in self._leaders:
            leader.waiters_with(self._fetching.reader).remove(self)

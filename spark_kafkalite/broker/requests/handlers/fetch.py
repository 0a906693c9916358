"""Fetch (key 1), versions 4 to 12: whole batches from the log, now or when there are enough.

v4   isolation level, last stable offset, aborted transactions
v5   log start offset
v7   sessions: always declined (session id 0), so every request names all its partitions; the next fetch of a session
     that a client believes in (an epoch above 0) is FETCH_SESSION_ID_NOT_FOUND
v9   current leader epoch in the request (fencing)
v11  preferred read replica (never one here)
v12  flexible; last fetched epoch and diverging epoch

Partitions are read in the order of the request, within its ``max_bytes`` and each one's own limit; both are soft for
the first partition that has anything, which gives at least one batch, however large. A slice's end is fixed when it
is read and lies at a batch's end below what consumers may see.

An answer that is not complete enough waits (:class:`DelayedFetch`). Nothing here waits for the disk: indexes and
headers that are not in the page cache are read by a thread, and then the reading begins anew; the same with the
records, which leave with ``sendfile`` (ranges behind the recently written part are probed).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.event_log import QuietLog
from spark_kafkalite.broker.io_threads import Lane
from spark_kafkalite.broker.network.outbox import FileRange, Response
from spark_kafkalite.broker.replication.leader import CONSUMER, Leader
from spark_kafkalite.broker.requests.dispatch import SMALL_REQUEST_BYTES, handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.broker.requests.page_cache import MOST_LOOK_UPS, in_thread, read_into_cache, uncached
from spark_kafkalite.broker.requests.purgatory import DelayedOperation
from spark_kafkalite.errors import FetchSessionIdNotFound, KafkaError
from spark_kafkalite.log.files.needs_thread import NeedsThread, without_waiting
from spark_kafkalite.log.segments.segment import LogSlice
from spark_kafkalite.model import UNKNOWN_INCARNATION, TopicPartition
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.packed import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    Topic,
    pack_fetch_response,
    pack_fetch_response_in_slices,
    parse_fetch,
    parse_fetch_in_slices,
)

_quiet = QuietLog(logging.getLogger(__name__))

# Partitions that are looked at between two yields: about a millisecond.
_READ_AT_ONCE = 64
# Partitions whose answers are packed in one go: as much.
_PACKED_AT_ONCE = 1000
# Smaller slices are cheaper to copy than to send as a range of their own.
_COPIED_BYTES = 4096
# "Open a session" (0) and "no session" (-1): the epochs of requests that name all their partitions.
_FULL_FETCH_EPOCHS = (0, -1)


@handles(ApiKey.FETCH, 4, 12, raw=True)
def handle(
    context: BrokerContext, exchange: Exchange, frame: memoryview, position: int
) -> Response | Work[Response | None] | None:
    """Read; return the answer, or None when it comes later, or what takes several slices."""
    if len(frame) > SMALL_REQUEST_BYTES:
        return _in_slices(context, exchange, exchange.keep(frame), position)
    fetch = _each_once(parse_fetch(frame, position, exchange.api_version))
    result = _Reading(context, fetch)
    if _is_full(fetch):
        result.read()
    return _answer(context, exchange, fetch, result)


def _in_slices(context: BrokerContext, exchange: Exchange, frame: memoryview, position: int) -> Work[Response | None]:
    fetch = yield from parse_fetch_in_slices(frame, position, exchange.api_version)
    fetch = _each_once(fetch)
    result = _Reading(context, fetch)
    if _is_full(fetch):
        yield from result.read_in_slices()
    return _answer(context, exchange, fetch, result)


def _is_full(fetch: FetchRequest) -> bool:
    """Whether a fetch names all its partitions. Others are of a session, which nobody has here.

    A full one is served whatever its session id, which says at most what session to close. Before the versions with
    sessions all are full. Source: KIP-227, kafka.server.FetchManager.newContext.
    """
    return fetch.session_epoch in _FULL_FETCH_EPOCHS


def _answer(context: BrokerContext, exchange: Exchange, fetch: FetchRequest, result: _Reading) -> Response | None:
    """Return the answer, or None when it comes later."""
    if not _is_full(fetch):
        code, throttle_ms = FetchSessionIdNotFound.code, exchange.throttle_time_ms()
        return pack_fetch_response(exchange.correlation_id, exchange.api_version, [], throttle_ms, code)  # type: ignore[return-value]
    if result.needs_thread:
        exchange.defer()
        _read_again(context, exchange, fetch, result)
        return None
    if result.is_enough or fetch.max_wait_ms <= 0 or not fetch.topics:
        return _response(context, exchange, result)
    DelayedFetch(context, exchange, fetch).start(result)
    return None


def _each_once(fetch: FetchRequest) -> FetchRequest:
    """Return the request with each partition once: a later mention replaces an earlier one, in its place.

    Source: FetchRequest.fetchData.
    """
    topics = fetch.topics
    if len(topics) == 1 and len(topics[0][1]) == 1:
        return fetch
    if len(topics) == len({name for name, _ in topics}) and all(
        len(asked) == 1 or len(asked) == len({one.partition for one in asked}) for _, asked in topics
    ):
        return fetch
    merged: dict[Topic, dict[int, FetchPartition]] = {}
    for name, asked in topics:
        merged.setdefault(name, {}).update((one.partition, one) for one in asked)
    return fetch._replace(topics=[(name, list(asked.values())) for name, asked in merged.items()])


class _Reading:
    """What one pass over the request's partitions found."""

    __slots__ = (
        "_fetch",
        "_left_bytes",
        "_may_wait",
        "_replicas",
        "is_enough",
        "is_long",
        "leaders",
        "needs_thread",
        "old_slices",
        "size_bytes",
        "slice_count",
        "topics",
    )

    def __init__(self, context: BrokerContext, fetch: FetchRequest, *, may_wait: bool = False) -> None:
        """What is needed and is not in memory ends up in ``needs_thread``, unless reading may wait for the disk."""
        self._fetch = fetch
        self._replicas = context.replicas
        self._left_bytes = min(max(fetch.max_bytes, 0), context.config["fetch.max.bytes"])
        self.size_bytes = 0
        self.is_enough = False
        # Whether the answer takes more than a millisecond or two to pack.
        self.is_long = False
        self.slice_count = 0
        self.old_slices: list[LogSlice] = []
        self.needs_thread: list[NeedsThread] = []
        # Of the partitions that were read.
        self.leaders: list[Leader] = []
        self.topics: list[tuple[Topic, list[FetchedPartition]]] = []
        self._may_wait = may_wait

    def read(self) -> None:
        """Read all partitions at once."""
        if self._may_wait:
            self._read_all()
        else:
            with without_waiting():
                self._read_all()
        self._finish()

    def _read_all(self) -> None:
        for name, asked in self._fetch.topics:
            fetched: list[FetchedPartition] = []
            self.topics.append((name, fetched))
            self._read_some(name, asked, fetched)

    def read_in_slices(self) -> Work[None]:
        """Read all partitions."""
        self.is_long = sum(1 + len(asked) for _, asked in self._fetch.topics) > _PACKED_AT_ONCE
        since = 0
        for name, asked in self._fetch.topics:
            fetched: list[FetchedPartition] = []
            self.topics.append((name, fetched))
            for first in range(0, len(asked), _READ_AT_ONCE):
                some = asked[first : first + _READ_AT_ONCE]
                since += len(some)
                if since > _READ_AT_ONCE:
                    since = 0
                    yield None
                if self._may_wait:
                    self._read_some(name, some, fetched)
                else:
                    with without_waiting():
                        self._read_some(name, some, fetched)
        self._finish()

    def _finish(self) -> None:
        if self.size_bytes >= self._fetch.min_bytes:
            self.is_enough = True

    def _read_some(self, name: Topic, asked: Sequence[FetchPartition], fetched: list[FetchedPartition]) -> None:
        assert isinstance(name, str)
        replicas = self._replicas
        for one in asked:
            try:
                leader = replicas.get(TopicPartition(name, one.partition)).check_leader(one.current_leader_epoch)
                fetched.append(self._read(leader, one))
                self.leaders.append(leader)
            except KafkaError as error:
                self.is_enough = True
                fetched.append(FetchedPartition(one.partition, error.code))
            except NeedsThread as missing:
                # The other partitions go on, so that a thread gets all that is missing at once.
                self.needs_thread.append(missing)

    def _read(self, leader: Leader, asked: FetchPartition) -> FetchedPartition:
        replica_id = self._fetch.replica_id
        if replica_id >= 0:
            leader.follower_fetched(replica_id, UNKNOWN_INCARNATION, asked.fetch_offset)
        limit = min(asked.partition_max_bytes, self._left_bytes)
        at_least_one = self.size_bytes == 0
        found = leader.read(asked.fetch_offset, max(limit, 0), at_least_one=at_least_one, replica_id=replica_id)
        records: FileRange | bytes = b""
        if found is not None:
            self.size_bytes += found.length
            self._left_bytes -= found.length
            self.slice_count += 1
            if not leader.log.local.is_recent(found):
                self.old_slices.append(found)
            records = FileRange(found.file, found.position, found.length, found.sending)
            # What a limit or the end of a segment has cut off is there already: waiting would not make it come.
            if not leader.log.local.reaches_end(found):
                self.is_enough = True
        elif limit <= 0:
            self.is_enough = True
        visible_end = leader.end_offset_for(CONSUMER)
        return FetchedPartition(
            asked.partition,
            0,
            visible_end,
            visible_end,
            leader.log.log_start_offset,
            records,
            [] if self._fetch.isolation_level else None,
        )


def _read_again(context: BrokerContext, exchange: Exchange, fetch: FetchRequest, result: _Reading) -> None:
    """Have a thread do what the reading needs one for, read anew, and answer with whatever that gives."""
    context.slices.start(_reading_again(context, exchange, fetch, result), partial(_report, exchange))


def _reading_again(context: BrokerContext, exchange: Exchange, fetch: FetchRequest, result: _Reading) -> Work[None]:
    look_ups = 1
    while result.needs_thread:
        try:
            yield from in_thread(context.io, context.loop, result.needs_thread)
        except Exception as error:
            exchange.close(f"reading a log failed: {error}")
            return
        if exchange.abandoned:
            return
        result = _Reading(context, fetch, may_wait=look_ups >= MOST_LOOK_UPS)
        yield from result.read_in_slices()
        look_ups += 1
    _answer_deferred(context, exchange, result)


def _report(exchange: Exchange, _: None, error: BaseException | None) -> None:
    """Close the connection of work that failed."""
    if error is not None:
        _quiet.log(logging.ERROR, "bug", "answering a fetch failed", exc_info=error)
        exchange.close("a handler failed")


def _answer_deferred(context: BrokerContext, exchange: Exchange, result: _Reading) -> None:
    """Answer an exchange that was deferred."""
    response = _response(context, exchange, result)
    if response is not None:
        exchange.answer(response)


def _response(context: BrokerContext, exchange: Exchange, result: _Reading) -> Response | None:
    """Return the answer, or None when it comes later, because a thread reads first or packing it takes long."""
    cold = uncached(result.old_slices) if result.old_slices else None
    is_long = result.is_long
    if cold or is_long:
        exchange.defer()

        def pack(_: None = None) -> None:
            context.slices.start(_pack(exchange, result), partial(_report, exchange))

        if cold:
            context.io.submit(
                lambda: read_into_cache(cold),
                pack,
                lambda error: exchange.close(f"reading a log failed: {error}"),
                Lane.READ,
            )
        else:
            pack()
        return None
    _copy_small_slices(result)
    return pack_fetch_response(  # type: ignore[return-value]
        exchange.correlation_id, exchange.api_version, result.topics, exchange.throttle_time_ms(result.size_bytes)
    )


def _pack(exchange: Exchange, result: _Reading) -> Work[None]:
    _copy_small_slices(result)
    response = yield from pack_fetch_response_in_slices(
        exchange.correlation_id, exchange.api_version, result.topics, exchange.throttle_time_ms(result.size_bytes)
    )
    exchange.answer(response)  # type: ignore[arg-type]


def _copy_small_slices(result: _Reading) -> None:
    if result.size_bytes and result.slice_count * _COPIED_BYTES >= result.size_bytes:
        result.topics = [(name, [_with_bytes(one) for one in fetched]) for name, fetched in result.topics]


def _with_bytes(fetched: FetchedPartition) -> FetchedPartition:
    records = fetched.records
    if type(records) is FileRange and records.length <= _COPIED_BYTES and records.is_whole:
        data = records.file.pread(records.length, records.position)  # type: ignore[attr-defined]
        # As _replace does, in half the time: nearly every fetch of a consumer that keeps up comes here.
        return FetchedPartition(*fetched[:5], data, *fetched[6:])
    return fetched


class DelayedFetch(DelayedOperation):
    """A fetch that waits for ``min_bytes``.

    Completed by: enough bytes below its bound in its partitions (an append, the high watermark, a flush); any
    partition's error; the end of the leader epoch in which the wait began, of any of them (leadership lost or given
    anew, topic deleted); its ``max_wait_ms``; the connection's end.
    """

    __slots__ = ("_context", "_exchange", "_fetch", "_is_long", "_is_looking", "_leaders", "_look_again")

    def __init__(self, context: BrokerContext, exchange: Exchange, fetch: FetchRequest) -> None:
        super().__init__()
        self._context = context
        self._exchange = exchange
        self._fetch = fetch
        self._leaders: list[Leader] = []
        self._is_long = False
        self._is_looking = False
        self._look_again = False
        exchange.defer()
        exchange.call_if_abandoned(self.abandon)

    def start(self, first: _Reading) -> None:
        """Begin to wait on the partitions of the first reading."""
        self._is_long = first.is_long
        self._leaders = first.leaders
        for leader in self._leaders:
            leader.waiters_with(self._fetch.replica_id).add(self)
        self.start_timer(self._context.loop, self._fetch.max_wait_ms / 1000)

    def try_complete(self) -> bool:
        if not self._is_long:
            result = _Reading(self._context, self._fetch)
            result.read()
            if not self._is_final(result) or not self.finish():
                return False
            self._answer(result)
            return True
        # A look at thousands of partitions takes several slices, in which others may wake this again.
        if self._is_looking:
            self._look_again = True
        else:
            self._is_looking = True
            self._context.slices.start(self._look(), self._looked)
        return self.finished

    def _look(self) -> Work[None]:
        result = _Reading(self._context, self._fetch)
        yield from result.read_in_slices()
        if self._is_final(result) and self.finish():
            self._answer(result)

    def _is_final(self, result: _Reading) -> bool:
        """Whether a reading is to be answered with, or gone on with in a thread."""
        return result.is_enough or bool(result.needs_thread) or any(leader.end_reason for leader in self._leaders)

    def _looked(self, _: None, error: BaseException | None) -> None:
        self._is_looking = False
        if error is not None:
            self.report_bug(error)
        elif self._look_again and not self.finished:
            self._look_again = False
            self.try_complete()

    def expire(self) -> None:
        if self.finish():
            self._context.slices.start(self._last_look(), self._looked)

    def _last_look(self) -> Work[None]:
        result = _Reading(self._context, self._fetch)
        yield from result.read_in_slices()
        self._answer(result)

    def _answer(self, result: _Reading) -> None:
        if result.needs_thread:
            _read_again(self._context, self._exchange, self._fetch, result)
        else:
            _answer_deferred(self._context, self._exchange, result)

    def fail(self) -> None:
        self._exchange.close("a handler failed")

    def release(self) -> None:
        for leader in self._leaders:
            leader.waiters_with(self._fetch.replica_id).remove(self)

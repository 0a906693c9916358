"""Fetches what this broker follows: one connection to each leader, and an incremental fetch session on it (KIP-227).

A :class:`LeaderFetcher` keeps the partitions that one broker leads, and what its session at the leader holds for each.
A request names only those for which the session has to change: what has been appended since, what is new, what is not
to be asked any more. So a round costs what has news, not what is followed. Which records are asked for and what answers
mean is decided by each partition's ``follower.Follower``.

One request is on its way at a time, and a second one when there is something to ask that the first does not contain (a
partition whose leader has changed): the leader then ends the wait of the first. Answers are worked on in slices, where
they lie in the connection's buffer; the next request leaves when all of it is done.

Whatever fails is tried again, sooner at first and later every ``replica.fetch.backoff.ms`` (KAFKA-7414): the
connection, with a session of its own; the session, when the leader does not know it any more; each partition by itself.
For an answer that is too large for the memory there is it asks for less, and leaves a partition out for a while whose
next batch alone is too large (``SmallerFetches``), so that the others go on. Likewise it leaves throttled partitions
out while they exceed their rate (``ThrottledFetches``).

Everything here happens in the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from spark_kafkalite.broker.quotas.replication_throttle import ReplicationThrottle
from spark_kafkalite.broker.replication.follower import Follower
from spark_kafkalite.broker.replication.rules.following import Asked
from spark_kafkalite.broker.replication.smaller_fetches import SmallerFetches
from spark_kafkalite.broker.replication.throttled_fetches import ThrottledFetches
from spark_kafkalite.errors import InnerWireUnsupported, KafkaliteError, NoMemoryForAnswer
from spark_kafkalite.model import Incarnation
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo
from spark_kafkalite.slices import NotFinished, Slices, Work, run_slice
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.error_codes import name_of
from spark_kafkalite.wire.packed import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    pack_fetch_body,
    parse_fetch_answer,
)
from spark_kafkalite.wire.packed.replica_damage import ReplicaDamage, pack_damage, parse_damage

logger = logging.getLogger(__name__)

FETCH_VERSION: Final = 17
# Partitions that one request names; others follow with the next, so that making one takes a few milliseconds.
_NAMED_AT_ONCE: Final = 1000
# Partitions of an answer that are worked on before others may have their turn.
_TAKEN_AT_ONCE: Final = 16
_FIRST_BACKOFF_S: Final = 0.05
_TIMER_SLACK_S: Final = 0.002

# A partition as requests name it: the topic's id, and the number.
Key = tuple[bytes, int]


class LeaderConnection(Protocol):
    """A connection to a leader; see ``network.peer.PeerConnection``."""

    def send(self, api_key: int, version: int, body: bytes, on_answer: Callable[[memoryview], None], /) -> None: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def close(self) -> None: ...


Connect = Callable[[BrokerInfo, Callable[[KafkaliteError], None]], LeaderConnection]


class FetchSettings(NamedTuple):
    """How followers fetch: the ``replica.fetch.*`` settings, and the broker that asks."""

    broker_id: int
    incarnation: Incarnation
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 10 << 20
    partition_max_bytes: int = 1 << 20
    backoff_s: float = 1.0


class _Followed:
    """A partition, and what the session holds for it: ``asked``, since request number ``asked_in``; None: nothing.

    ``before`` is what it held up to that request; an answer may still be to that.
    """

    __slots__ = ("asked", "asked_in", "before", "follower", "timer")

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.asked: Asked | None = None
        self.asked_in = 0
        self.before: Asked | None = None
        self.timer: asyncio.TimerHandle | None = None

    def say(self, asked: Asked | None, request: int) -> None:
        self.before, self.asked, self.asked_in = self.asked, asked, request

    def asked_by(self, request: int) -> Asked | None:
        """Return what the session held when a request had been sent."""
        return self.asked if request >= self.asked_in else self.before


class _SentFetch(NamedTuple):
    """A request that is to be answered: its number, whether it begins a session, and what it names."""

    number: int
    is_first: bool
    named: list[Key]


class LeaderFetcher:
    """Follows what one broker leads."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slices: Slices,
        leader_id: int,
        broker: Callable[[int], BrokerInfo | None],
        connect: Connect,
        settings: FetchSettings,
        throttle: ReplicationThrottle,
    ) -> None:
        """``broker`` gives the registration of a broker, None when it has none; ``throttle`` is that of all leaders."""
        self._loop = loop
        self._slices = slices
        self.leader_id = leader_id
        self._broker = broker
        self._connect = connect
        self._settings = settings
        self._followed: dict[Key, _Followed] = {}
        # What the session is perhaps to know something else of.
        self._changed: dict[Key, None] = {}
        # What the session says of partitions that are not followed any more.
        self._gone: set[Key] = set()
        # Those that are or were damaged here, or that are refused, of which each request says so.
        self._damaged: dict[Key, Follower] = {}
        self._connection: LeaderConnection | None = None
        self._known: BrokerInfo | None = None
        self._unanswered: deque[_SentFetch] = deque()
        self._request_count = 0
        self._session_id = 0
        self._session_epoch = 0
        # The last request of the session before.
        self._void_until = 0
        self._smaller = SmallerFetches(loop.time)
        self._throttled = ThrottledFetches(throttle, settings.partition_max_bytes)
        self._throttle_timer: asyncio.TimerHandle | None = None
        self._is_working = False
        self._is_scheduled = False
        self._failures = 0
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False

    # Partitions -----------------------------------------------------------------------------------------------------

    def add(self, key: Key, follower: Follower) -> None:
        """Follow a partition from now on."""
        self.remove(key)
        self._followed[key] = _Followed(follower)
        follower.on_ready = lambda: self._look_at(key, follower)
        self._look_at(key, follower)

    def remove(self, key: Key) -> None:
        """Follow a partition no longer; the next request removes it from the leader's session."""
        followed = self._followed.pop(key, None)
        if followed is None:
            return
        followed.follower.on_ready = _nothing
        self._damaged.pop(key, None)
        self._throttled.drop(key)
        if followed.timer is not None:
            followed.timer.cancel()
        if followed.asked is not None:
            self._gone.add(key)
        self._changed.pop(key, None)
        self._send_soon()

    def __len__(self) -> int:
        return len(self._followed)

    def _look_at(self, key: Key, follower: Follower) -> None:
        """See whether the session is to know something else of a partition."""
        followed = self._followed.get(key)
        if followed is not None and followed.follower is follower:
            self._changed[key] = None
            self._send_soon()

    def close(self) -> None:
        """End: nothing is asked or taken any more."""
        self._closed = True
        for followed in self._followed.values():
            followed.follower.on_ready = _nothing
            if followed.timer is not None:
                followed.timer.cancel()
        self._followed.clear()
        self._disconnect()
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()

    # Connection -----------------------------------------------------------------------------------------------------

    def _disconnect(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._unanswered.clear()
        self._forget_session()

    def _forget_session(self) -> None:
        """Begin again with a session of which the leader knows nothing; answers to earlier requests do not count."""
        self._session_id = self._session_epoch = 0
        self._void_until = self._request_count
        self._gone.clear()
        for key, followed in self._followed.items():
            followed.say(None, self._request_count + 1)
            followed.before = None
            self._changed[key] = None

    def _connected(self) -> LeaderConnection | None:
        """Return the connection, a new one if need be; None while there is to be none."""
        if self._connection is None and self._retry is None:
            self._known = self._broker(self.leader_id) or self._known
            try:
                if self._known is None:
                    raise KafkaliteError("it is not registered")
                connection = self._connect(self._known, self._lost)
            except KafkaliteError as error:
                self._lost(error)
            else:
                self._connection = connection
        return self._connection

    def _lost(self, error: KafkaliteError) -> None:
        """Connect again after a while."""
        if self._closed or not self._followed:
            return
        # Which version the other one has is told elsewhere, once; it stays so until it registers again.
        is_foreign = isinstance(error, InnerWireUnsupported)
        if isinstance(error, NoMemoryForAnswer):
            for key, delay_s in self._smaller.too_large(error, self._settings.partition_max_bytes):
                followed = self._followed.get(key)
                if followed is not None:
                    self._loop.call_later(delay_s + _TIMER_SLACK_S, self._look_at, key, followed.follower)
        elif not self._failures and not is_foreign:
            logger.warning(
                "broker %d, from which %d partitions are copied, cannot be reached: %s; trying again",
                self.leader_id,
                len(self._followed),
                error,
            )
        self._disconnect()
        backoff_s = (
            self._settings.backoff_s
            if is_foreign
            else min(_FIRST_BACKOFF_S * 2 ** min(self._failures, 20), self._settings.backoff_s)
        )
        self._failures += 1
        self._retry = self._loop.call_later(backoff_s, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._send_soon()

    def leader_changed(self) -> None:
        """Try at once to connect to a leader that has registered."""
        if self._retry is not None:
            self._retry.cancel()
            self._try_again()

    # Requests -------------------------------------------------------------------------------------------------------

    def _send_soon(self) -> None:
        """Send what there is to ask after this pass of the loop, in which more may come."""
        if not self._is_scheduled and not self._closed:
            self._is_scheduled = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._is_scheduled = False
        if not self._followed:
            # A session that nobody asks in any more is the leader's to forget.
            self._disconnect()
        if self._closed or self._is_working or not self._followed or len(self._unanswered) > 1:
            return
        connection = self._connected()
        if connection is None:
            return
        if self._unanswered and not (self._session_id and self._has_more_to_ask()):
            return
        now_s, settings = self._loop.time(), self._settings
        throttled = self._throttled
        if not throttled.is_empty:
            self._look_at_throttled()
        is_first = not self._session_id
        number = self._request_count + 1
        named: list[Key] = []
        forgotten, self._gone = self._gone, set()
        asked_by_topic: dict[bytes, list[FetchPartition]] = {}
        for key in list(self._changed):
            if len(named) >= _NAMED_AT_ONCE:
                break
            if key not in self._changed:
                # Asking another one has met a disk that fails, which has taken this one away.
                continue
            if key in forgotten:
                # Followed anew, under another leader epoch: it comes with the next request, as one of which the session
                # has said nothing yet. Else it would not tell what has not changed since.
                continue
            del self._changed[key]
            followed = self._followed[key]
            follower = followed.follower
            is_throttled = follower.is_listed and follower.is_throttled
            if not is_throttled and not throttled.is_empty:
                throttled.drop(key)
            is_left_out = self._smaller.leaves_out(key) or (is_throttled and not throttled.ask(key))
            asked = None if is_left_out else follower.ask(now_s)
            if follower.is_refusing or follower.damage_stage:
                self._damaged[key] = follower
            elif self._damaged:
                self._damaged.pop(key, None)
            if asked is None:
                if not is_left_out:
                    # It is somebody else's turn until it can be asked again.
                    throttled.drop(key)
                self._wait_for(key, followed, now_s)
                if followed.asked is not None:
                    forgotten.add(key)
                    followed.say(None, number)
            elif asked != followed.asked:
                named.append(key)
                followed.say(asked, number)
                most = throttled.fetch_bytes if is_throttled else settings.partition_max_bytes
                asked_by_topic.setdefault(key[0], []).append(
                    FetchPartition(
                        key[1],
                        asked.fetch_offset,
                        self._smaller.of(most),
                        follower.epoch,
                        asked.last_fetched_epoch,
                        asked.log_start_offset,
                        asked.high_watermark,
                    )
                )
        if not throttled.is_empty:
            self._wait_for_throttle()
        if is_first and not named:
            return
        self._request_count = number
        self._unanswered.append(_SentFetch(number, is_first, named))
        request = FetchRequest(
            list(asked_by_topic.items()),
            settings.max_wait_ms,
            settings.min_bytes,
            self._smaller.of(settings.max_bytes),
            replica_id=settings.broker_id,
            replica_epoch=settings.incarnation,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            forgotten_topics=_by_topic(sorted(forgotten)) if forgotten else (),
            damage=pack_damage(each.damage_said(*key) for key, each in self._damaged.items()) if self._damaged else b"",
        )
        # After the largest it goes on with 1: 0 begins a session.
        self._session_epoch = self._session_epoch % 0x7FFF_FFFF + 1
        connection.send(ApiKey.FETCH, FETCH_VERSION, pack_fetch_body(FETCH_VERSION, request), self._answered)
        if self._changed:
            self._send_soon()

    def _has_more_to_ask(self) -> bool:
        """Whether there is something to ask that the request under way does not contain."""
        now_s = self._loop.time()
        for key in list(self._changed):
            followed = self._followed.get(key)
            if followed is None or self._smaller.leaves_out(key):
                continue
            if followed.follower.is_throttled and self._throttled.holds(key):
                continue
            asked = followed.follower.ask(now_s)
            if asked is not None and asked != followed.asked:
                return True
        return False

    # Throttle -------------------------------------------------------------------------------------------------------

    def _look_at_throttled(self) -> None:
        """Have the session follow the throttle: some partitions are to be asked for now, or not any more."""
        self._changed.update(dict.fromkeys(self._throttled.due()))

    def _wait_for_throttle(self) -> None:
        """Go on with the throttled partitions when nothing is owed any more."""
        wait_s = self._throttled.owed_s if self._throttle_timer is None else 0
        if wait_s > 0:
            self._throttle_timer = self._loop.call_later(wait_s + _TIMER_SLACK_S, self._throttle_is_over)

    def _throttle_is_over(self) -> None:
        self._throttle_timer = None
        self._look_at_throttled()
        self._send_soon()

    def throttle_changed(self) -> None:
        """Obey another rate."""
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
        self._changed.update(dict.fromkeys(self._throttled.everything))
        self._throttle_is_over()

    def _wait_for(self, key: Key, followed: _Followed, now_s: float) -> None:
        """Ask again when the wait after an error is over; everything else calls when it is ready."""
        if followed.timer is not None:
            followed.timer.cancel()
            followed.timer = None
        if followed.follower.ready_at_s > now_s:
            follower = followed.follower
            # Not before: loops call a little early.
            at_s = follower.ready_at_s + _TIMER_SLACK_S
            followed.timer = self._loop.call_at(at_s, lambda: self._look_at(key, follower))

    # Answers --------------------------------------------------------------------------------------------------------

    def _answered(self, body: memoryview) -> None:
        request = self._unanswered.popleft()
        if request.number <= self._void_until:
            self._send_soon()
            return
        try:
            answer = parse_fetch_answer(body, FETCH_VERSION)
            said = parse_damage(answer.damage)
        except KafkaliteError as error:
            self._lost(error)
            return
        if answer.error_code:
            self._refused(answer.error_code)
            return
        self._failures = 0
        if request.is_first:
            self._session_id = answer.session_id
        connection = self._connection
        assert connection is not None
        work = self._take(connection, request, answer, said)
        self._is_working = True
        try:
            # The connection's turn counts the time.
            run_slice(work, self._slices.now)
        except NotFinished as unfinished:
            connection.hold()
            self._slices.go_on(work, unfinished.future, lambda _, error: self._worked(connection, error))
            return
        except Exception as error:
            self._could_not_work(connection, error)
        self._is_working = False
        # Who waits for acks=all waits for this one. It leaves with the connection's present turn.
        self._send()

    def _worked(self, connection: LeaderConnection, error: BaseException | None) -> None:
        """Go on after an answer that took more than a slice."""
        self._is_working = False
        if self._connection is connection:
            connection.release()
        if error is not None:
            self._could_not_work(connection, error)
        self._send_soon()

    def _could_not_work(self, connection: LeaderConnection, error: BaseException) -> None:
        logger.critical("an answer of broker %d could not be worked on", self.leader_id, exc_info=error)
        if self._connection is connection:
            self._lost(KafkaliteError(f"an error in this broker: {error}"))

    def _refused(self, code: int) -> None:
        if code in _SESSION_ERRORS:
            logger.debug("broker %d: %s; beginning a new session", self.leader_id, name_of(code))
            self._forget_session()
            self._send_soon()
        else:
            self._lost(KafkaliteError(f"it answers with {name_of(code)}"))

    def _take(
        self, connection: LeaderConnection, request: _SentFetch, answer: FetchResponse, said: Sequence[ReplicaDamage]
    ) -> Work[None]:
        """Give each partition its part of the answer."""
        if len(answer.topics) > 1 or (answer.topics and len(answer.topics[0][1]) > 1):
            yield from self._prepare(answer)
        silent = dict.fromkeys(request.named)
        since = 0
        for topic_id, partitions in answer.topics:
            assert isinstance(topic_id, bytes)
            for fetched in partitions:
                if self._connection is not connection:
                    return
                key = topic_id, fetched.partition
                silent.pop(key, None)
                followed = self._followed.get(key)
                asked = followed.asked_by(request.number) if followed is not None else None
                if followed is not None and asked is not None:
                    yield from followed.follower.take(asked, fetched, self._loop.time())
                    if self._followed.get(key) is followed:
                        self._changed[key] = None
                size_bytes = len(fetched.records) if isinstance(fetched.records, memoryview) else 0
                if size_bytes and not self._throttled.is_empty:
                    self._throttled.took(key, size_bytes)
                since += 1 + (size_bytes >> 16)
                if since >= _TAKEN_AT_ONCE:
                    since = 0
                    yield None
        turned = None if self._throttled.is_empty else self._throttled.answered(self._loop.time())
        if turned is not None:
            self._changed[turned] = None
        for key in silent:
            followed = self._followed.get(key)
            asked = followed.asked_by(request.number) if followed is not None else None
            if followed is not None and asked is not None:
                followed.follower.has_no_news(asked)
        for each in said:
            followed = self._followed.get((each.topic_id, each.partition))
            if followed is not None:
                followed.follower.leader_said(each)
        if request.is_first and not answer.session_id:
            # The leader has no session to give: everything is asked with each request.
            for key, followed in self._followed.items():
                followed.say(None, request.number)
                self._changed[key] = None
            self._session_epoch = 0

    def _prepare(self, answer: FetchResponse) -> Work[None]:
        """Have threads prepare logs that get their first records with an answer, all at the same time."""
        since = 0
        for topic_id, partitions in answer.topics:
            assert isinstance(topic_id, bytes)
            for fetched in partitions:
                followed = self._followed.get((topic_id, fetched.partition)) if fetched.records else None
                if followed is not None and not followed.follower.log.local.identity.is_synced:
                    followed.follower.prepare_append()
                    since += 1
                    if since % _TAKEN_AT_ONCE == 0:
                        yield None

    def __repr__(self) -> str:
        return f"<LeaderFetcher of broker {self.leader_id} partitions={len(self._followed)}>"


_SESSION_ERRORS: Final = (70, 71)  # FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH


def _by_topic(keys: Iterable[Key]) -> list[tuple[bytes, list[int]]]:
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, number in keys:
        by_topic.setdefault(topic_id, []).append(number)
    return list(by_topic.items())


def _nothing() -> None: ...

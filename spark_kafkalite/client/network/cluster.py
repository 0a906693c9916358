"""A client's view of the cluster and its way into it: metadata, leaders, and requests to any, one or the right broker.

Owns the metadata cache (:mod:`.metadata`), one pooled connection per broker for short requests, and the thread that
refreshes metadata when a caller reports it stale or it grows old. Producers and consumers open connections of their own
with :meth:`ClusterClient.connect`, because a long poll or a stream of produce requests must not wait behind anything.

Any broker answers metadata: those known are asked first, then the bootstrap addresses, each until the deadline. When
none can be reached, the error names every address that was tried and why it failed. It also names which of them the
cluster advertised, since a wrong ``advertised.listeners`` is the usual reason. :mod:`.first_contact` decides when to
give up before the deadline.

Thread-safe. ``close()`` may be called from any thread; those that wait get ClosedError or BrokerUnreachable.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from spark_kafkalite.client.client_config import ClientConfig, parse_address
from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.first_contact import FirstContact
from spark_kafkalite.client.network.half_open import HalfOpen
from spark_kafkalite.client.network.metadata import (
    ClusterSnapshot,
    Node,
    PartitionInfo,
    TopicInfo,
    merge,
    not_live,
    topic_error,
    with_leaders,
)
from spark_kafkalite.client.network.pooled_connection import PooledConnection
from spark_kafkalite.client.network.retry import OF_ONE_LISTENER, TO_BE_MENDED, Backoff, Deadline
from spark_kafkalite.client.waiting_lock import waiting_lock
from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import (
    AdvertisedUnreachable,
    BrokerUnreachable,
    ClosedError,
    KafkaliteError,
    LeaderNotAvailable,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

if TYPE_CHECKING:
    from spark_kafkalite.wire.packed import NodeEndpoint

_LOG = logging.getLogger("spark_kafkalite.client")

# After how long without an answer from any broker it is said that there is none; it is tried on.
_SILENCE_S = 5.0


class ClusterClient:
    """Metadata and short requests; shared by the parts of one client."""

    def __init__(
        self,
        config: ClientConfig,
        clock: Clock = SYSTEM_CLOCK,
        open_connection: Callable[..., BrokerConnection] = BrokerConnection.open,
    ) -> None:
        """``open_connection`` replaces ``BrokerConnection.open`` in tests."""
        self.config = config
        self._clock = clock
        self._open_connection = open_connection
        self._half_open = HalfOpen()
        self._lock = waiting_lock()
        self._changed = threading.Condition(self._lock)
        self._snapshot = ClusterSnapshot()
        self._refreshed_s: float | None = None
        self._interesting: set[str] = set()
        self._auto_create = False
        self._watches_all = self._knows_all = False
        self._pool: dict[int | str, PooledConnection] = {}
        self._listeners: list[Callable[[ClusterSnapshot], None]] = []
        self._refresher: threading.Thread | None = None
        self._refresh_wanted = False
        self._closed = self._silence_reported = False
        self._contact = FirstContact(clock)
        # Why the background cannot refresh, until it can: what waits for no more than time is not noted.
        self._failure: KafkaliteError | None = None

    def __repr__(self) -> str:
        snapshot = self._snapshot
        state = "closed" if self._closed else f"{len(snapshot.nodes)} brokers, {len(snapshot.topics)} topics known"
        return f"ClusterClient({','.join(self.config.bootstrap_servers)}, {state})"

    # Metadata -------------------------------------------------------------------------------------------------------

    @property
    def snapshot(self) -> ClusterSnapshot:
        """The cluster as last seen; no request is made."""
        return self._snapshot

    def add_listener(self, listener: Callable[[ClusterSnapshot], None]) -> None:
        """Have ``listener`` called, on whichever thread refreshes, after every refresh.

        Also when the refresh in the background fails; :meth:`take_failure` then returns why.
        """
        with self._lock:
            self._listeners.append(listener)

    def refresh(
        self, topics: Iterable[str] | None, deadline: Deadline, *, allow_auto_create: bool = False
    ) -> ClusterSnapshot:
        """Ask for metadata of the named topics (None: of all topics) and return the new picture.

        Raises BrokerUnreachable when no broker answers before the deadline. Errors of single topics are in the picture.
        """
        asked = None if topics is None else set(topics)
        answer = self._ask(asked, deadline, allow_auto_create)
        with self._lock:
            self._snapshot = snapshot = merge(self._snapshot, answer, asked)
            self._refreshed_s = self._clock.monotonic_s()
            self._knows_all = asked is None or self._knows_all
            self._changed.notify_all()
        self._tell_listeners()
        return snapshot

    def take_leaders(
        self, leaders: Mapping[TopicPartition, tuple[int, int]], endpoints: Iterable[NodeEndpoint] = ()
    ) -> None:
        """Take over the leaders (node id, leader epoch) that a broker named when it refused a request, if they are new.

        Listeners are called before this returns; no request is made.
        """
        with self._lock:
            before = self._snapshot
            self._snapshot = with_leaders(before, leaders, endpoints)
            if self._snapshot is before:
                return
            self._changed.notify_all()
        self._tell_listeners()

    def _tell_listeners(self) -> None:
        with self._lock:
            snapshot, listeners = self._snapshot, list(self._listeners)
        for listener in listeners:
            listener(snapshot)

    def _ask(self, asked: set[str] | None, deadline: Deadline, allow_auto_create: bool) -> MetadataResponse:
        """Return an answer about the named topics (None: about all) and the brokers."""
        request = MetadataRequest(
            topics=None if asked is None else [MetadataRequestTopic(name=name) for name in sorted(asked)],
            allow_auto_topic_creation=allow_auto_create,
        )
        answer: MetadataResponse = self.request_any(ApiKey.METADATA, request, deadline)
        return answer

    def topic(self, name: str, deadline: Deadline, *, allow_auto_create: bool = False) -> TopicInfo:
        """Return a topic, from the cache while that is young, waiting for one that is being created.

        Raises UnknownTopicOrPartition (3), or the broker's other error for the topic, when the deadline passes or the
        error is permanent.
        """
        backoff = self._backoff()
        info = self._snapshot.topics.get(name)
        if info is not None and not info.error_code and info.partitions and not self._is_old():
            return info
        with self._lock:
            self._interesting.add(name)
            self._auto_create = self._auto_create or allow_auto_create
        while True:
            info = self.refresh([name], deadline, allow_auto_create=allow_auto_create).topics.get(name)
            code = UnknownTopicOrPartition.code if info is None else info.error_code
            if info is not None and not code and info.partitions:
                return info
            error = topic_error(name, code, allow_auto_create=allow_auto_create)
            waits = error.retriable and (allow_auto_create or code != UnknownTopicOrPartition.code)
            pause_s = backoff.next_s()
            if not waits or deadline.left_s() < pause_s:
                if not waits:
                    with self._lock:
                        self._interesting.discard(name)
                raise error
            self.pause(pause_s)

    def all_topics(self, deadline: Deadline) -> Mapping[str, TopicInfo]:
        """Ask for every topic of the cluster."""
        return self.refresh(None, deadline).topics

    def _is_old(self) -> bool:
        refreshed_s = self._refreshed_s
        return refreshed_s is None or (self._clock.monotonic_s() - refreshed_s > self.config.metadata_max_age_ms / 1000)

    def watch_topics(self, topics: Iterable[str], *, auto_create: bool = False) -> None:
        """Have topics refreshed in the background, when ``metadata.max.age.ms`` has passed and when asked for."""
        with self._lock:
            self._interesting.update(topics)
            self._auto_create = self._auto_create or auto_create
            self._start_refresher()

    def unwatch_topics(self, topics: Iterable[str]) -> None:
        """Refresh these topics no longer by itself."""
        with self._lock:
            self._interesting.difference_update(topics)

    def watch_all_topics(self, wanted: bool) -> None:
        """Have all topics refreshed in the background, those to come too; ``knows_all_topics`` after the first time."""
        with self._lock:
            self._watches_all, self._knows_all = wanted, False
        if wanted:
            self.request_refresh()

    @property
    def knows_all_topics(self) -> bool:
        """Whether the snapshot has every topic, since ``watch_all_topics()``."""
        return self._knows_all

    def take_failure(self) -> KafkaliteError | None:
        """Return why metadata cannot be refreshed in the background without a user's help; once for each try."""
        failure, self._failure = self._failure, None
        return failure

    def request_refresh(self) -> None:
        """Have the metadata refreshed soon, in the background; returns at once."""
        with self._lock:
            if self._closed:
                return
            self._refresh_wanted = True
            self._start_refresher()
            self._changed.notify_all()

    def _start_refresher(self) -> None:
        """Start the thread that refreshes in the background, unless it runs. The caller holds the lock."""
        if self._refresher is None and not self._closed:
            self._refresher = threading.Thread(
                target=self._refresh_forever, name="kafkalite-client-metadata", daemon=True
            )
            self._refresher.start()

    def _refresh_forever(self) -> None:
        backoff = self._backoff()
        reported = ""
        while True:
            with self._lock:
                while not self._closed and not self._refresh_wanted:
                    self._changed.wait(max(1.0, self.config.metadata_max_age_ms / 1000))
                    if self._is_old():
                        break
                if self._closed:
                    return
                self._refresh_wanted = False
                topics, auto_create = set(self._interesting), self._auto_create
                watches_all = self._watches_all
            try:
                self.refresh(None if watches_all else topics, self._deadline(), allow_auto_create=auto_create)
                reported = ""
                self._failure = None
                # Even without errors: who reports stale metadata on every answer must not make us ask on every answer.
                if backoff.attempts and self._all_have_leaders(topics):
                    backoff.reset()
            except KafkaliteError as error:
                if self._is_closed():
                    return
                if isinstance(error, TO_BE_MENDED):
                    self._failure = error
                    self._tell_listeners()
                if reported != str(error):
                    # Once for each outage, not once for each try.
                    reported = str(error)
                    _LOG.warning("metadata could not be refreshed, trying again: %s", error)
                with self._lock:
                    self._refresh_wanted = True
            try:
                self.pause(backoff.next_s())
            except ClosedError:
                return

    def _all_have_leaders(self, topics: set[str]) -> bool:
        snapshot = self._snapshot
        infos = [snapshot.topics.get(name) for name in topics]
        return all(info is not None and all(each.leader >= 0 for each in info.partitions) for info in infos)

    def pause(self, seconds: float) -> None:
        """Sleep, but wake when the client is closed. Raises ClosedError then."""
        deadline = self._clock.monotonic_s() + seconds
        with self._lock:
            while not self._closed and (left_s := deadline - self._clock.monotonic_s()) > 0:
                self._changed.wait(left_s)
        self._check_open()

    # Requests -------------------------------------------------------------------------------------------------------

    @property
    def has_reached_advertised(self) -> bool:
        """Whether a broker was ever reached at an address that the cluster advertises."""
        return self._contact.made_as_advertised

    def connect(self, node_id: int, deadline: Deadline) -> BrokerConnection:
        """Open a new connection to a broker, which the caller owns.

        Raises BrokerUnreachable, naming the advertised address and why it cannot be reached.
        """
        node = self._node(node_id)
        try:
            connection = self._open(node.host, node.port, deadline)
            self._contact.made_as_advertised = True
            return connection
        except BrokerUnreachable as error:
            raise self._advertised_unreachable(node, error) from error

    def _open(self, host: str, port: int, deadline: Deadline) -> BrokerConnection:
        return self._open_connection(host, port, self.config, deadline, self._half_open)

    def _advertised_unreachable(self, node: Node, error: BrokerUnreachable) -> AdvertisedUnreachable:
        return AdvertisedUnreachable(
            f"{node}, the address that the cluster advertises for it, cannot be reached: {error}. Check that the "
            "broker runs and that its advertised.listeners names an address this host can reach "
            f"(bootstrap.servers: {','.join(self.config.bootstrap_servers)})",
            is_first=not self._contact.made_as_advertised,
        )

    def _node(self, node_id: int) -> Node:
        node = self._snapshot.nodes.get(node_id)
        if node is None:
            raise BrokerUnreachable(not_live(node_id, self._snapshot))
        return node

    def request_to(self, node_id: int, api_key: int, message: Any, deadline: Deadline) -> Any:
        """Send one request to a broker over its pooled connection. Raises BrokerUnreachable, UnsupportedVersion."""
        node = self._node(node_id)
        try:
            answer = self._pooled(node.node_id, node.host, node.port).request(api_key, message, deadline)
            self._contact.made_as_advertised = True
            return answer
        except BrokerUnreachable as error:
            self._check_open()
            raise self._advertised_unreachable(node, error) from error

    def request_any(self, api_key: int, message: Any, deadline: Deadline) -> Any:
        """Send one request to whichever broker answers first, going round until the deadline.

        Raises BrokerUnreachable at the deadline. Raises an error that a new connection would not fix
        (SslHandshakeFailed and its like) when each broker was tried once. Raises SaslAuthenticationFailed at once when
        a broker has refused the credentials, and NoBrokerThere as :mod:`.first_contact` decides.
        """
        backoff = Backoff(self.config.reconnect_backoff_ms, self.config.reconnect_backoff_max_ms)
        report_at_s = self._clock.monotonic_s() + _SILENCE_S
        last: BrokerUnreachable | None = None
        while True:
            self._check_open()
            try:
                return self._ask_each(api_key, message, deadline)
            except BrokerUnreachable as error:
                # Not what the last round says, if it was cut short: a broker without time to answer seems silent.
                if last is None or not deadline.passed():
                    last = error
                told = str(error)
            pause_s = backoff.next_s()
            if deadline.left_s() <= pause_s:
                raise BrokerUnreachable(f"no broker answers; tried {last}") from last.__cause__
            if not self._silence_reported and self._clock.monotonic_s() >= report_at_s:
                # Once for each outage: who polls a consumer would else wait and never read why.
                self._silence_reported = True
                _LOG.warning("no broker answers, trying again; tried %s", told)
            self.pause(pause_s)

    def _ask_each(self, api_key: int, message: Any, deadline: Deadline) -> Any:
        """Return the first answer of the brokers, each asked once, in turn. Raises as :meth:`request_any`.

        BrokerUnreachable then has the reasons of all, and the first of them as its cause.
        """
        failures: list[BrokerUnreachable] = []
        told: list[str] = []
        refused: KafkaliteError | None = None
        candidates = self._candidates()
        for number, (key, host, port, label) in enumerate(candidates):
            try:
                # One silent broker must not use up the time of the others.
                share = deadline.earlier_of(max(1_000, deadline.left_s() * 500))
                opened_by = self._contact.try_until(share, len(candidates) - number)
                answer = self._pooled(key, host, port).request(api_key, message, share, opened_by)
                self._contact.made = True
                # Others are addresses of bootstrap.servers.
                self._contact.made_as_advertised |= isinstance(key, int)
                self._silence_reported = False
                return answer
            except BrokerUnreachable as error:
                self._check_open()
                failures.append(error)
                told.append(f"{label} {error}" if label else str(error))
            except OF_ONE_LISTENER as error:
                refused = refused or error
            if deadline.passed():
                break
        if refused is not None:
            raise refused
        reasons = "; ".join(told)
        if len(failures) == len(candidates):
            self._contact.check(failures, reasons)
        raise BrokerUnreachable(reasons) from failures[0]

    def request_controller(self, api_key: int, message: Any, deadline: Deadline) -> Any:
        """Send one request to the controller, or to any broker when none is known."""
        if not self._snapshot.nodes:
            self.refresh([], deadline)
        controller_id = self._snapshot.controller_id
        if controller_id in self._snapshot.nodes:
            return self.request_to(controller_id, api_key, message, deadline)
        return self.request_any(api_key, message, deadline)

    def _candidates(self) -> list[tuple[int | str, str, int, str]]:
        nodes = list(self._snapshot.nodes.values())
        random.shuffle(nodes)
        # A broker with an open connection answers soonest.
        nodes.sort(key=lambda node: node.node_id not in self._pool)
        candidates: list[tuple[int | str, str, int, str]] = [
            (node.node_id, node.host, node.port, f"broker {node.node_id} (advertised address)") for node in nodes
        ]
        known = {(node.host, node.port) for node in nodes}
        servers = list(self.config.bootstrap_servers)
        for server in servers:
            host, port = parse_address(server)
            if (host, port) not in known:
                candidates.append((server, host, port, ""))
        return candidates

    def _pooled(self, key: int | str, host: str, port: int) -> PooledConnection:
        with self._lock:
            # Nobody would close one that is made now.
            self._check_open()
            pooled = self._pool.get(key)
            if pooled is None or (pooled.host, pooled.port) != (host, port):
                if pooled is not None:
                    pooled.close()
                pooled = self._pool[key] = PooledConnection(host, port, self.config, self._clock, self._open)
            return pooled

    # Partitions -----------------------------------------------------------------------------------------------------

    def leading(self, topic_partition: TopicPartition) -> PartitionInfo:
        """Return what is known of a partition with a live leader. UnknownTopicOrPartition or LeaderNotAvailable."""
        info = self._snapshot.partition(topic_partition)
        if info is None:
            topic = self._snapshot.topics.get(topic_partition.topic)
            known = "the topic is not known"
            if topic is not None and not topic.error_code:
                known = f"the topic has {len(topic.partitions)} partitions"
            raise UnknownTopicOrPartition(f"{topic_partition}: there is no such partition: {known}")
        if info.leader not in self._snapshot.nodes:
            raise LeaderNotAvailable(f"{topic_partition}: no live broker leads it at present")
        return info

    # The end --------------------------------------------------------------------------------------------------------

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self.config.request_timeout_ms, self._clock)

    def _backoff(self) -> Backoff:
        return Backoff(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms)

    def _is_closed(self) -> bool:
        return self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this client has been closed")

    def close(self) -> None:
        """Close all connections and end the background thread. May be called more than once."""
        with self._lock:
            self._closed = True
            pool, self._pool = list(self._pool.values()), {}
            refresher = self._refresher
            self._changed.notify_all()
        for pooled in pool:
            pooled.close()
        self._half_open.close()
        if refresher is not None and refresher is not threading.current_thread():
            refresher.join(timeout=5)

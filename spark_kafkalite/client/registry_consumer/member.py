"""One consumer's membership in a group without a master: registration, watches, rebalancing, sessions.

At the start, in this order (and again with every new session): 1. register under /consumers/G/ids; 2. watch that
directory; 3. watch /brokers/ids; 4. with a topic filter, watch /brokers/topics; 5. rebalance. Rebalancing also watches
the node of every topic that is read, for partitions that are added. When a watch fires, the member rebalances. It reads
consumers and topics again, and computes its share (:mod:`.rebalance`). It gives up what is no longer its own and claims
the rest by making ephemeral owner nodes, both in one transaction of the registry. Partitions that stay with their
thread are not touched.

When a claimed partition still has another owner, the member gives up all it owns, waits until that owner node goes or
``rebalance.backoff.ms`` have passed, and begins again. Rebalancing fails when that takes ``rebalance.max.retries`` such
pauses; a consumer that starts then gives up, a running one reports it and goes on trying.

Invariants: nothing is read of a partition without its owner node, and what was read is committed before the node goes.
A session that has expired took the nodes with it: then nothing is read or committed any more until the member has
joined again. This process may learn of that only after a delay (the network is cut, or the process was frozen), so
reading needs a lease. The member asks for its registration every sixth of the session's time. Each answer allows
reading for the session's time, counted from the moment of asking.

An operation whose answer was lost is looked up by the nodes' ephemeral owners before anything else is claimed.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Final, Protocol

from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.registry_consumer.rebalance import assignment_of, topics_of
from spark_kafkalite.client.registry_link import RegistryLink
from spark_kafkalite.client.waiting_lock import waiting_lock
from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import ClosedError, KafkaliteError, RebalanceFailed, RegistryError
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry import consumer_nodes, znodes
from spark_kafkalite.registry.consumer_nodes import ConsumerRegistration, SubscriptionPattern
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import (
    MAX_MULTI_OPERATIONS,
    Create,
    Delete,
    NodeExists,
    NoNode,
    Operation,
    SessionExpired,
    SessionState,
    Store,
    WatchEvent,
)
from spark_kafkalite.registry.znodes import TopicAssignment

_LOG = logging.getLogger("spark_kafkalite.client")

_GRACE_MS: Final = 2_000


class RebalanceListener(Protocol):
    """The part of a connector that reads the partitions: what a member calls when they change."""

    def joined(self) -> None:
        """A new session has begun; nothing is owned."""

    def acquire(self, threads: Mapping[TopicPartition, str]) -> None:
        """These partitions are owned now: find their offsets and read on. May raise; then they are released again."""

    def release(self, partitions: set[TopicPartition]) -> None:
        """Stop reading these, and commit what was processed: their owner nodes go when this returns."""

    def lost(self) -> None:
        """Stop reading at once, and commit nothing: others may own the partitions. Must not wait for anything."""

    def leased(self, until_s: float) -> None:
        """Records may be handed out until then (monotonic seconds). Must not wait for anything."""


class RegistryMember:
    """A registered consumer. :meth:`start` blocks until the first rebalance is done; then a thread does the rest."""

    def __init__(
        self,
        link: RegistryLink,
        open_store: Callable[[], Store],
        group_id: str,
        consumer_id: str,
        registration: ConsumerRegistration,
        reader: RebalanceListener,
        *,
        max_retries: int,
        backoff_ms: int,
        exclude_internal: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._link = link
        self._open_store = open_store
        self._group_id = group_id
        self._consumer_id = consumer_id
        self._registration = registration
        self._reader = reader
        self._max_retries = max_retries
        self._backoff_ms = backoff_ms
        self._exclude_internal = exclude_internal
        self._clock = clock
        self._filtered = registration.pattern is not SubscriptionPattern.STATIC
        self._lock = waiting_lock()
        self._changed = threading.Condition(self._lock)
        self._wanted = False
        self._expired = True
        self._closing = False
        self._thread: threading.Thread | None = None
        self._renewer: threading.Thread | None = None
        # What is surely owned, and what may be: they differ only after an answer was lost.
        self._owned: dict[TopicPartition, str] = {}
        self._claimed: set[TopicPartition] = set()
        self._directories: set[str] = set()
        # Those that came to their end.
        self.rebalances = 0

    def __repr__(self) -> str:
        return f"RegistryMember({self._consumer_id} of {self._group_id!r}, {len(self._owned)} partitions)"

    @property
    def owned(self) -> dict[TopicPartition, str]:
        """The partitions owned now, and the thread of each."""
        return dict(self._owned)

    # Start, work and end --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Join the group and rebalance. Raises RebalanceFailed, or what keeps the registry from answering."""
        deadline = Deadline.after_ms(self._max_retries * self._backoff_ms, self._clock)
        while True:
            try:
                self._work()
                break
            except (RegistryError, OSError) as error:
                if isinstance(error, MalformedNode) or deadline.passed():
                    raise
                _LOG.warning("consumer %s starts again: %s", self._consumer_id, error)
                self._pause(min(self._backoff_ms / 1000, max(0.0, deadline.left_s())))
        self._thread = threading.Thread(target=self._run, name="kafkalite-registry-member", daemon=True)
        self._thread.start()
        self._renewer = threading.Thread(target=self._renew_leases, name="kafkalite-registry-lease", daemon=True)
        self._renewer.start()

    def _work(self) -> None:
        """Have a session, and the partitions that are ours."""
        with self._lock:
            self._wanted = False
            expired = self._expired
        if expired:
            self._join()
        self._rebalance()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not (self._wanted or self._expired or self._closing):
                    self._changed.wait()
                if self._closing:
                    return
            try:
                self._work()
            except ClosedError:
                return
            except Exception as error:
                if self._is_closing():
                    return  # close() has ended the session under it
                if not isinstance(error, (KafkaliteError, OSError)):
                    _LOG.exception("consumer %s failed to rebalance", self._consumer_id)
                else:
                    _LOG.warning("consumer %s keeps trying to rebalance: %s", self._consumer_id, error)
                with self._lock:
                    self._wanted = True
                self._pause(self._backoff_ms / 1000, woken_by_changes=False)

    def _is_closing(self) -> bool:
        with self._lock:
            return self._closing

    def _pause(self, seconds: float, *, woken_by_changes: bool = True) -> None:
        """Wait, but not after the end, nor (by default) once something has changed."""
        until_s = self._clock.monotonic_s() + seconds
        with self._lock:
            while not self._closing and not (woken_by_changes and (self._wanted or self._expired)):
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0:
                    return
                self._changed.wait(left_s)

    def close(self) -> None:
        """End the session, and with it registration and ownership. What was read must be committed before."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        store = self._link.close()
        if store is not None:
            store.close()
        for thread in (self._thread, self._renewer):
            if thread is not None and thread is not threading.current_thread():
                thread.join(5)

    # Sessions and watches: in the store's thread, which must not wait ----------------------------------------------

    def _on_event(self, event: WatchEvent) -> None:
        self._want()

    def _want(self) -> None:
        with self._lock:
            self._wanted = True
            self._changed.notify_all()

    def _on_session(self, store: Store, state: SessionState) -> None:
        if not self._link.is_present(store):
            return
        if state is SessionState.LOST:
            self._on_lost()
        elif state is SessionState.CONNECTED:
            # Again: look at everything that may have happened meanwhile.
            self._want()

    def _on_lost(self) -> None:
        self._reader.lost()
        with self._lock:
            self._expired = True
            self._changed.notify_all()

    # Joining --------------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """Open a session and take steps 1 to 4."""
        store = self._open_store()
        try:
            former = self._link.replace(store)
        except ClosedError:
            store.close()
            raise
        if former is not None:
            former.close()
        with self._lock:
            self._expired = False
        self._owned = {}
        self._claimed = set()
        self._directories = set()
        self._reader.joined()
        store.add_session_listener(partial(self._on_session, store))
        if store.state is SessionState.LOST:
            self._on_lost()
            raise SessionExpired("the new session with the registry was lost at once")
        asked_s = self._clock.monotonic_s()
        self._register(store)
        self._reader.leased(asked_s + store.session_timeout_ms / 1000)
        self._link.children(store, consumer_nodes.consumer_ids_path(self._group_id), self._on_event)
        self._link.children(store, znodes.BROKER_IDS, self._on_event)
        if self._filtered:
            self._link.children(store, znodes.TOPICS, self._on_event)

    def _register(self, store: Store) -> None:
        """Make the registration node, waiting for one that a former session left behind."""
        path = consumer_nodes.consumer_id_path(self._group_id, self._consumer_id)
        deadline = Deadline.after_ms(store.session_timeout_ms + _GRACE_MS, self._clock)
        while True:
            try:
                self._link.wait(store.create(path, self._registration.encode(), ephemeral=True, make_parents=True))
                return
            except NodeExists:
                stat = self._link.wait(store.exists(path, self._on_event))
                if stat is None:
                    continue
                if stat.ephemeral_owner == store.session_id:
                    return
                if deadline.passed():
                    raise RebalanceFailed(
                        f"consumer id {self._consumer_id!r} is in use in group {self._group_id!r} by session "
                        f"{stat.ephemeral_owner:#x}: stop that consumer, or set another consumer.id"
                    ) from None
                self._pause(min(0.5, max(0.0, deadline.left_s())), woken_by_changes=False)
                self._check_going_on()

    def _renew_leases(self) -> None:
        """Ask for the registration again and again, one question at a time."""
        path = consumer_nodes.consumer_id_path(self._group_id, self._consumer_id)
        while True:
            asked_s = self._clock.monotonic_s()
            pause_s = 0.1
            with contextlib.suppress(RegistryError):
                store = self._link.store
                session_s = store.session_timeout_ms / 1000
                pause_s = session_s / 6
                self._link.wait(store.exists(path))
                self._reader.leased(asked_s + session_s)
            with self._lock:
                if self._closing or self._changed.wait_for(lambda: self._closing, pause_s):
                    return

    def _check_going_on(self) -> None:
        with self._lock:
            if self._closing:
                raise ClosedError("the consumer has been shut down")
            if self._expired:
                raise SessionExpired("the session with the registry has expired")

    # Rebalancing ----------------------------------------------------------------------------------------------------

    def _rebalance(self) -> None:
        """Come to own what is this consumer's share, and nothing else."""
        deadline = Deadline.after_ms(self._max_retries * self._backoff_ms, self._clock)
        while True:
            self._check_going_on()
            with self._lock:
                self._wanted = False
            try:
                obstacle = self._try_rebalance()
            except SessionExpired:
                self._on_lost()
                raise
            except MalformedNode:
                raise
            except KafkaliteError as error:
                if isinstance(error, ClosedError):
                    raise
                obstacle = str(error)
                self._release_all()
            if not obstacle:
                self.rebalances += 1
                return
            left_s = deadline.left_s()
            if left_s <= 0:
                raise RebalanceFailed(
                    f"consumer {self._consumer_id} of group {self._group_id!r} could not rebalance within "
                    f"rebalance.max.retries={self._max_retries} pauses of rebalance.backoff.ms={self._backoff_ms}: "
                    f"{obstacle}"
                )
            _LOG.info("consumer %s will rebalance again: %s", self._consumer_id, obstacle)
            # Spread, so that those who were in each other's way do not meet again.
            self._pause(min(left_s, self._backoff_ms / 1000 * random.uniform(0.5, 1.0)))

    def _try_rebalance(self) -> str:
        """Take one turn of Algorithm 1; returns what was in the way, "" for nothing."""
        store = self._link.store
        consumers = self._consumers(store)
        if self._consumer_id not in consumers:
            self._register(store)
            return "its registration was gone"
        topics = self._topics(store)
        wanted = assignment_of(self._consumer_id, consumers, topics, exclude_internal=self._exclude_internal)
        if self._claimed != self._owned.keys():
            self._release_all()
        leaving = {each for each, thread in self._owned.items() if wanted.get(each) != thread}
        coming = {each: thread for each, thread in wanted.items() if self._owned.get(each) != thread}
        if leaving:
            self._reader.release(leaving)
        if leaving or coming:
            obstacle = self._claim(store, leaving, coming)
            if obstacle:
                return obstacle
            self._owned = wanted
            self._claimed = set(wanted)
        if coming:
            self._reader.acquire(coming)
        return ""

    def _consumers(self, store: Store) -> dict[str, ConsumerRegistration]:
        ids = self._link.children(store, consumer_nodes.consumer_ids_path(self._group_id), self._on_event)
        self._link.children(store, znodes.BROKER_IDS, self._on_event)
        nodes = self._link.wait_found(
            [store.get(consumer_nodes.consumer_id_path(self._group_id, each)) for each in ids]
        )
        consumers = {}
        for consumer_id, node in zip(ids, nodes, strict=True):
            if node is None:
                continue  # gone since; the watch tells
            try:
                consumers[consumer_id] = ConsumerRegistration.decode(self._group_id, consumer_id, node[0])
            except MalformedNode as error:
                _LOG.warning("a consumer is left out of the assignment: %s", error)
        return consumers

    def _topics(self, store: Store) -> dict[str, dict[int, tuple[int, ...]]]:
        """Return the partitions of all topics that this consumer reads, with their replicas."""
        if self._filtered:
            names = self._link.children(store, znodes.TOPICS, self._on_event)
            names = topics_of(self._registration, names, exclude_internal=self._exclude_internal)
        else:
            names = sorted(self._registration.subscription)
        nodes = self._link.wait_found([store.get(znodes.topic_path(name), self._on_event) for name in names])
        topics = {}
        for name, node in zip(names, nodes, strict=True):
            data = self._link.get(store, znodes.topic_path(name), self._on_event) if node is None else node[0]
            if data is not None:
                partitions = TopicAssignment.decode(name, data).partitions
                topics[name] = {number: tuple(map(int, replicas)) for number, replicas in partitions.items()}
        return topics

    def _claim(self, store: Store, leaving: set[TopicPartition], coming: Mapping[TopicPartition, str]) -> str:
        """Replace owner nodes; returns what was in the way, and then nothing is owned any more."""
        for topic in {each.topic for each in coming}:
            directory = consumer_nodes.topic_owners_path(self._group_id, topic)
            if directory not in self._directories:
                self._link.create_persistent(store, directory)
                self._directories.add(directory)
        self._claimed |= coming.keys()
        operations: list[Operation] = [Delete(self._owner_path(each)) for each in sorted(leaving)]
        operations += [
            Create(self._owner_path(each), consumer_nodes.encode_owner(thread), ephemeral=True)
            for each, thread in sorted(coming.items())
        ]
        try:
            for start in range(0, len(operations), MAX_MULTI_OPERATIONS):
                self._link.wait(store.multi(operations[start : start + MAX_MULTI_OPERATIONS]))
        except (NodeExists, NoNode) as error:
            self._directories.clear()
            self._release_all()
            if isinstance(error, NodeExists) and self._link.wait(store.exists(error.path, self._on_event)) is None:
                self._want()  # it went meanwhile
            return str(error)
        return ""

    def _release_all(self) -> None:
        """Stop reading everything and remove every owner node of this session."""
        store = self._link.store
        self._reader.release(set(self._owned))
        self._owned = {}
        partitions = sorted(self._claimed)
        nodes = self._link.wait_found([store.get(self._owner_path(each)) for each in partitions])
        deletions: list[Future[None]] = [
            store.delete(self._owner_path(each))
            for each, node in zip(partitions, nodes, strict=True)
            if node is not None and node[1].ephemeral_owner == store.session_id
        ]
        self._link.wait_found(deletions)
        self._claimed = set()

    def _owner_path(self, topic_partition: TopicPartition) -> str:
        return consumer_nodes.owner_path(self._group_id, *topic_partition)

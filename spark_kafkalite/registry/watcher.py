"""Keeps the view of the cluster fresh from one session's watches.

Every watched node is read with its next watch in one call; an event only causes a new read, whose result is applied
when it is newer than what is known (rule R2: a node's mzxid only moves forward). A partition's state counts only under
the topic id that its parent had (R10): a topic made again under its name is read afresh.

Changes are published as one immutable snapshot when the reads that belong together have all arrived, or at the latest
20 ms after the first of them, or when they are many: so no listener has thousands of changes to follow at once. After a
reconnection, and every minute as a safety net, everything is read again.

The first snapshot of a session waits until every read of it has succeeded, and the registry's server has caught up with
what was written before (``sync``): it replaces that of the former session, and what it lacks counts as deleted.

Answers and events come through one queue (``node_reads``), and everything here but the public methods runs from it, in
slices: one call after the other, so that between the slices of one no other changes what is known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from spark_kafkalite.model import BrokerEpoch, BrokerId, topic_name_problem
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster_state import (
    BrokerInfo,
    ClusterState,
    TopicState,
    diff_work,
)
from spark_kafkalite.registry.cluster_view import ClusterView
from spark_kafkalite.registry.node_reads import NodeReads
from spark_kafkalite.registry.store import (
    SessionExpired,
    SessionState,
    Stat,
    Store,
)
from spark_kafkalite.registry.watched_topic import WatchedTopic
from spark_kafkalite.slices import Slices, Work

_LOG = logging.getLogger(__name__)

PUBLISH_WITHIN_S: Final = 0.02
REREAD_EVERY_S: Final = 60.0
# Changes of topics and partitions that one snapshot brings, so that what listeners do about it stays within a slice.
PUBLISH_AT_MOST: Final = 500
# What is done for so many partitions takes no more than a part of a millisecond.
_PARTITIONS_AT_ONCE: Final = 50


class ClusterWatcher:
    """Watches brokers, topics, settings, partition states and the controller. Lives in one event loop."""

    def __init__(self, store: Store, view: ClusterView, *, slices: Slices | None = None) -> None:
        """``view`` gets what is read; ``slices``: the long work of the running loop, its own when nobody shares them.

        To be made in the loop that it will live in.
        """
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._view = view
        self._reads = NodeReads(self._loop, slices or Slices(self._loop), self._publish_if_due)
        self._cluster_id = ""
        self._brokers: dict[int, BrokerInfo] = {}
        self._topics: dict[str, WatchedTopic] = {}
        # Topics that exist, and nothing more is known: of each the mzxid of what cannot be read.
        self._unreadable_topics: dict[str, int] = {}
        self._bad_names: set[str] = set()
        self._controller_id = znodes.NO_LEADER
        # Of each entity: the node's mzxid and what it holds.
        self._broker_configs: dict[str, tuple[int, Mapping[str, str]]] = {}
        self._dirty_topics: set[str] = set()
        # What the snapshot's topics are a view of.
        self._published_topics: dict[str, TopicState] = {}
        self._dirty = False
        # Changes of topics and partitions since the last publication.
        self._changes = 0
        # Whether everything has been read and published once.
        self._loaded = False
        self._closed = False
        self._publish_timer: asyncio.TimerHandle | None = None
        self._reread_timer: asyncio.TimerHandle | None = None
        # Those who wait for the reads that are pending.
        self._waiting: set[asyncio.Future[None]] = set()
        self._publish_by_s = 0.0

    @property
    def view(self) -> ClusterView:
        """Where the snapshots are published."""
        return self._view

    async def start(self, cluster_id: str) -> ClusterState:
        """Read everything once, publish it and keep watching. The base nodes must exist.

        Raises SessionExpired when the session ends before that.
        """
        self._cluster_id = cluster_id
        self._store.add_session_listener(self._session_changed)
        self._dirty = True
        self._read_all()
        await self._settled(lambda: self._loaded)
        return self._view.state

    def close(self) -> None:
        """Stop publishing, because the session is over; those who wait for it get SessionExpired."""
        self._closed = True
        self._reads.close()
        for timer in (self._publish_timer, self._reread_timer):
            if timer is not None:
                timer.cancel()
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(_ended())

    async def caught_up(self, timeout_s: float | None = None) -> ClusterState:
        """Wait until everything that was written to the registry before this call is published, and return that.

        Raises TimeoutError, SessionExpired, and the error of a registry that does not answer.
        """
        synced: Future[None] | None = None

        def answered(done: Future[None]) -> None:
            nonlocal synced
            synced = done

        # Through the queue: the events of those writes come before that answer, so their reads are pending by then.
        self._store.sync().add_done_callback(lambda done: self._reads.put(answered, done))
        await asyncio.wait_for(self._settled(lambda: synced is not None and self._is_settled), timeout_s)
        assert synced is not None
        synced.result()
        return self._view.state

    @property
    def _is_settled(self) -> bool:
        return self._reads.pending == 0 and not self._dirty

    async def _settled(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition``, looked at after each answer and event, holds. Raises SessionExpired."""
        while not condition():
            if self._closed:
                raise _ended()
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.add(waiter)
            try:
                await waiter
            finally:
                self._waiting.discard(waiter)

    # Reading --------------------------------------------------------------------------------------------------------

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            # Behind the answers that the broken connection has cost.
            self._reads.put(self._read_all)

    def _read_all(self) -> None:
        """Read everything, once the server has caught up: after a reconnection it may be another one."""
        if self._closed:
            return
        if self._reread_timer is not None:
            self._reread_timer.cancel()
        self._reread_timer = self._loop.call_later(REREAD_EVERY_S, self._reads.put, self._read_all)
        self._reads.failed = False
        self._reads.read(self._store.sync, self._read_everything)

    def _read_everything(self, _: object = None) -> Work[None]:
        self._read_broker_list()
        self._read_broker_config_list()
        self._read_topic_list()
        self._read_controller()
        for name in list(self._topics):
            self._read_topic(name)
            yield None
        for broker_id in list(self._brokers):
            self._read_broker(broker_id)

    # Publishing -----------------------------------------------------------------------------------------------------

    def _publish_if_due(self) -> Work[None]:
        """Publish when nothing is awaited any more, or something has waited long, or much has changed."""
        pending = self._reads.pending
        # What is not read yet is no reason to call it deleted.
        if not self._loaded and (pending or self._reads.failed):
            return
        if self._dirty:
            if pending and self._changes < PUBLISH_AT_MOST:
                now_s = self._loop.time()
                if self._publish_timer is None:
                    # Also if nothing else arrives.
                    self._publish_by_s = now_s + PUBLISH_WITHIN_S
                    self._publish_timer = self._loop.call_at(self._publish_by_s, self._reads.put, _nothing)
                if now_s < self._publish_by_s:
                    return
            yield from self._publish()
        self._loaded = self._loaded or self._is_settled
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _publish(self) -> Work[None]:
        if self._publish_timer is not None:
            self._publish_timer.cancel()
            self._publish_timer = None
        names, self._dirty_topics = self._dirty_topics, set()
        self._dirty, self._changes = False, 0
        old = self._view.state
        topics: Mapping[str, TopicState] = MappingProxyType(self._published_topics)
        if names:
            # A copy of the dict itself: that of a view of it would take ten times as long.
            changed = self._published_topics.copy()
            for name in names:
                topic = self._topics.get(name)
                published = None if topic is None else topic.publish()
                if published is None:
                    changed.pop(name, None)
                else:
                    changed[name] = published
                yield None
            self._published_topics = changed
            topics = MappingProxyType(changed)
        new = ClusterState(
            self._cluster_id,
            MappingProxyType(dict(self._brokers)),
            topics,
            BrokerId(self._controller_id),
            MappingProxyType({entity: config for entity, (_, config) in self._broker_configs.items()}),
            frozenset(self._unreadable_topics),
        )
        # The first snapshot follows one that another session has read: any topic may differ.
        compared: Iterable[str] = names if self._loaded else {*old.topics, *topics}
        change = yield from diff_work(old, new, compared)
        # The session may have ended between the slices: what is published then is the next one's.
        if not self._closed:
            self._view.publish(new, change)

    def _changed_topic(self, name: str) -> None:
        self._dirty = True
        self._changes += 1
        self._dirty_topics.add(name)

    # Brokers and the controller -------------------------------------------------------------------------------------

    def _read_broker_list(self) -> None:
        watch = self._reads.watch(self._read_broker_list)
        self._reads.read(lambda: self._store.children(znodes.BROKER_IDS, watch), self._apply_broker_list)

    def _apply_broker_list(self, names: list[str] | None) -> None:
        listed = {found for name in names or () if (found := znodes.broker_id_of(name)) is not None}
        for broker_id in [known for known in self._brokers if known not in listed]:
            del self._brokers[broker_id]
            self._dirty = True
        for broker_id in listed:
            # Also the known ones: one may have gone and come back between two reads of the list.
            self._read_broker(broker_id)

    def _read_broker(self, broker_id: int) -> None:
        path = znodes.broker_path(broker_id)
        watch = self._reads.watch(self._read_broker, broker_id)
        self._reads.read(lambda: self._store.get(path, watch), self._apply_broker, broker_id)

    def _apply_broker(self, broker_id: int, result: tuple[bytes, Stat] | None) -> None:
        if result is None:
            if self._brokers.pop(broker_id, None) is not None:
                self._dirty = True
            return
        data, stat = result
        known = self._brokers.get(broker_id)
        if known is not None and known.epoch > stat.czxid:
            return
        found = znodes.BrokerRegistration.decode(broker_id, data)
        info = BrokerInfo(BrokerId(broker_id), found.host, found.port, found.rack, BrokerEpoch(stat.czxid))
        if info != known:
            self._brokers[broker_id] = info
            self._dirty = True

    def _read_controller(self) -> None:
        # exists, not get: while there is no controller the watch must wait for the next one.
        watch = self._reads.watch(self._read_controller)
        self._reads.read(lambda: self._store.exists(znodes.CONTROLLER, watch), _nothing)
        self._reads.read(lambda: self._store.get(znodes.CONTROLLER), self._apply_controller)

    def _apply_controller(self, result: tuple[bytes, Stat] | None) -> None:
        controller_id = znodes.NO_LEADER if result is None else znodes.decode_controller(result[0])
        if controller_id != self._controller_id:
            self._controller_id = controller_id
            self._dirty = True

    # Settings of brokers ----------------------------------------------------------------------------------------------

    def _read_broker_config_list(self) -> None:
        watch = self._reads.watch(self._read_broker_config_list)
        self._reads.read(lambda: self._store.children(znodes.BROKER_CONFIGS, watch), self._apply_broker_config_list)

    def _apply_broker_config_list(self, entities: list[str] | None) -> None:
        for entity in {*self._broker_configs, *(entities or ())}:
            self._read_broker_config(entity)

    def _read_broker_config(self, entity: str) -> None:
        watch = self._reads.watch(self._read_broker_config, entity)
        path = znodes.broker_config_path(entity)
        self._reads.read(lambda: self._store.get(path, watch), self._apply_broker_config, entity)

    def _apply_broker_config(self, entity: str, result: tuple[bytes, Stat] | None) -> None:
        known = self._broker_configs.get(entity)
        if result is None:
            if known is not None:
                del self._broker_configs[entity]
                self._dirty = True
            return
        data, stat = result
        if known is None or known[0] < stat.mzxid:
            config = znodes.decode_config(znodes.broker_config_path(entity), data)
            self._broker_configs[entity] = stat.mzxid, MappingProxyType(config)
            self._dirty = True

    # Topics -----------------------------------------------------------------------------------------------------------

    def _read_topic_list(self) -> None:
        watch = self._reads.watch(self._read_topic_list)
        self._reads.read(lambda: self._store.children(znodes.TOPICS, watch), self._apply_topic_list)

    def _apply_topic_list(self, names: list[str] | None) -> Work[None]:
        # Names that were looked at before are not again: the list is read anew for every few topics that are made.
        listed = {name for name in names or () if name in self._topics or self._is_topic_name(name)}
        for name in [known for known in {*self._topics, *self._unreadable_topics} if known not in listed]:
            self._forget_topic(name)
            yield None
        for name in listed - self._topics.keys():
            self._read_topic(name)
            yield None

    def _is_topic_name(self, name: str) -> bool:
        problem = topic_name_problem(name)
        if problem is not None and name not in self._bad_names:
            self._bad_names.add(name)
            _LOG.error("ignoring the registry node %s: %s", znodes.topic_path(name), problem)
        return problem is None

    def _forget_topic(self, name: str) -> None:
        if self._unreadable_topics.pop(name, None) is not None:
            self._dirty = True
        topic = self._topics.pop(name, None)
        if topic is not None:
            self._changed_topic(name)
            self._forget_watchers(name, topic)

    def _forget_watchers(self, name: str, topic: WatchedTopic) -> None:
        self._reads.forget_watch(self._read_topic, name)
        self._reads.forget_watch(self._read_config, name)
        for number in topic.assignment.partitions:
            self._reads.forget_watch(self._read_state, name, number, topic.generation)

    def _read_topic(self, name: str) -> None:
        path, watch = znodes.topic_path(name), self._reads.watch(self._read_topic, name)
        self._reads.read(lambda: self._store.get(path, watch), self._apply_topic, name)

    def _apply_topic(self, name: str, result: tuple[bytes, Stat] | None) -> Work[None]:
        if result is None:
            self._forget_topic(name)
            return
        data, stat = result
        topic = self._topics.get(name)
        if topic is not None and topic.assignment_zxid > stat.mzxid:
            return
        try:
            assignment = yield from znodes.TopicAssignment.decode_work(name, data)
        except znodes.MalformedNode as malformed:
            if topic is not None and topic.generation == stat.czxid:
                raise
            if self._unreadable_topics.get(name) != stat.mzxid:
                self._forget_topic(name)
                _LOG.error(
                    "topic %s is not served, its logs are kept: %s; write what it should hold, or delete the topic",
                    name,
                    malformed,
                )
                self._unreadable_topics[name] = stat.mzxid
                self._dirty = True
            return
        if self._unreadable_topics.pop(name, None) is not None:
            self._dirty = True
        if topic is None or topic.generation != stat.czxid:
            if topic is not None:
                self._forget_watchers(name, topic)
            topic = self._topics[name] = WatchedTopic(stat.czxid, assignment, stat.mzxid)
        elif topic.assignment_zxid != stat.mzxid:
            topic.assignment, topic.assignment_zxid = assignment, stat.mzxid
        topic.changed_partitions.update(assignment.partitions)
        self._changed_topic(name)
        self._read_config(name)
        for index, number in enumerate(assignment.partitions):
            self._read_state(name, number, topic.generation)
            if index % _PARTITIONS_AT_ONCE == 0:
                yield None

    def _read_config(self, name: str) -> None:
        topic = self._topics.get(name)
        if topic is not None:
            present = topic.config_zxid >= 0
            self._read_watched(znodes.topic_config_path(name), self._read_config, (name,), self._apply_config, present)

    def _apply_config(self, name: str, result: tuple[bytes, Stat] | None) -> None:
        topic = self._topics.get(name)
        if topic is None:
            return
        zxid = -1 if result is None else result[1].mzxid
        if topic.config is not None and zxid == topic.config_zxid:
            return
        if result is None and topic.config is not None:
            self._reads.when_settled(partial(self._read_config, name))
        try:
            config = {} if result is None else znodes.decode_config(znodes.topic_config_path(name), result[0])
        except znodes.MalformedNode as malformed:
            if topic.config is not None:
                raise
            # Without settings the topic would not be served at all.
            _LOG.error("topic %s has the default settings: %s", name, malformed)
            config = {}
        topic.config, topic.config_zxid = config, zxid
        self._changed_topic(name)

    def _read_state(self, name: str, number: int, generation: int) -> None:
        topic = self._topics.get(name)
        if topic is None or topic.generation != generation:
            return  # an event of a topic that has been deleted or made again
        arguments = (name, number, generation)
        present = number in topic.states
        self._read_watched(znodes.state_path(name, number), self._read_state, arguments, self._apply_state, present)

    def _read_watched(
        self,
        path: str,
        read_again: Callable[..., None],
        arguments: tuple[Any, ...],
        apply: Callable[..., None],
        present: bool,
    ) -> None:
        """Read a node that may not exist, leaving a watch either way.

        Only ``exists`` leaves a watch on a node to come; most are there, and one call does for them. One that was there
        and is not any more is read again later (``when_settled``), when it is known whether its topic is there.
        """
        watch = self._reads.watch(read_again, *arguments)

        def got(result: tuple[bytes, Stat] | None) -> None:
            if result is None and not present:
                self._reads.read(lambda: self._store.exists(path, watch), found)
            apply(*arguments, result)

        def found(stat: Stat | None) -> None:
            if stat is not None:
                # It came between the two reads.
                read_again(*arguments)

        self._reads.read(lambda: self._store.get(path, watch), got)

    def _apply_state(self, name: str, number: int, generation: int, result: tuple[bytes, Stat] | None) -> None:
        topic = self._topics.get(name)
        if topic is None or topic.generation != generation:
            return
        if result is None:
            if topic.states.pop(number, None) is not None:
                topic.changed_partitions.add(number)
                self._changed_topic(name)
                # A get that finds nothing leaves no watch; the next read waits for the node to come back.
                self._reads.when_settled(partial(self._read_state, name, number, generation))
            return
        data, stat = result
        known = topic.states.get(number)
        if known is not None and known[1].mzxid >= stat.mzxid:
            return
        if stat.czxid < topic.generation:
            return
        state: znodes.LeaderAndIsr | None = None
        try:
            state = znodes.LeaderAndIsr.decode(name, number, data)
        except znodes.MalformedNode as malformed:
            if known is not None and known[0] is not None:
                raise
            _LOG.error(
                "partition %s-%d is offline: %s; write what it should hold, or delete the topic",
                name,
                number,
                malformed,
            )
        topic.states[number] = (state, stat)
        topic.changed_partitions.add(number)
        self._changed_topic(name)


def _nothing(*_: object) -> None: ...


def _ended() -> SessionExpired:
    return SessionExpired("the registry session has ended; the cluster is read again in the next one")

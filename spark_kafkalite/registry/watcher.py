"""Keeps a ClusterState fresh from the registry's watches.

Every watched node is read with its next watch in one call; an event only causes a new read, whose result is applied
when it is newer than what is known (rule R2: a node's mzxid only moves forward). A partition's state counts only under
the topic id that its parent had (R10): a topic made again under its name is read afresh.

Changes are published as one immutable snapshot when the reads that belong together have all arrived, or at the latest
20 ms after the first of them. Listeners run in the loop and get (old, new); ``cluster_state.diff`` says what differs.
After a reconnection, and every minute as a safety net, everything is read again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.model import BrokerEpoch, BrokerId, topic_name_problem
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster_state import BrokerInfo, ClusterState, PartitionState, TopicState
from spark_kafkalite.registry.store import (
    NoNode,
    SessionState,
    Stat,
    Store,
    Watcher,
    WatchEvent,
    answer,
    call_in_loop,
)

_LOG = logging.getLogger(__name__)

ChangeListener = Callable[[ClusterState, ClusterState], None]

PUBLISH_WITHIN_S: Final = 0.02
REREAD_EVERY_S: Final = 60.0


@dataclass(slots=True)
class _Topic:
    """A topic while it is read. ``published`` is made again when ``changed``; ``generation`` is the node's czxid."""

    generation: int
    assignment: znodes.TopicAssignment
    assignment_zxid: int
    config: dict[str, str] | None = None
    config_zxid: int = -1
    # None: the node cannot be read.
    states: dict[int, tuple[znodes.LeaderAndIsr | None, Stat]] = field(default_factory=dict)
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    changed_partitions: set[int] = field(default_factory=set)
    published: TopicState | None = None


class ClusterWatcher:
    """Watches brokers, topics, settings, partition states and the controller. Lives in one event loop."""

    def __init__(self, store: Store, on_change: ChangeListener | None = None) -> None:
        self._store = store
        self._listeners: list[ChangeListener] = [] if on_change is None else [on_change]
        self._state = ClusterState()
        self._brokers: dict[int, BrokerInfo] = {}
        self._topics: dict[str, _Topic] = {}
        # Topics that exist, and nothing more is known: of each the mzxid of what cannot be read.
        self._unreadable_topics: dict[str, int] = {}
        self._bad_names: set[str] = set()
        self._watchers: dict[tuple[Any, ...], Watcher] = {}
        self._vanished: list[Callable[[], None]] = []
        self._controller_id = znodes.NO_LEADER
        # Of each entity: the node's mzxid and what it holds.
        self._broker_configs: dict[str, tuple[int, Mapping[str, str]]] = {}
        self._dirty_topics: set[str] = set()
        self._dirty = False
        self._pending = 0
        self._loaded = False
        self._closed = False
        self._publish_timer: asyncio.TimerHandle | None = None
        self._reread_timer: asyncio.TimerHandle | None = None
        self._changed: set[asyncio.Future[None]] = set()
        self._loop: asyncio.AbstractEventLoop

    @property
    def state(self) -> ClusterState:
        """The last published snapshot."""
        return self._state

    def add_listener(self, listener: ChangeListener) -> None:
        """Have ``listener(old, new)`` called after each publication, in the order of adding."""
        self._listeners.append(listener)

    async def start(self, cluster_id: str) -> ClusterState:
        """Read everything once, publish it and keep watching. The base nodes must exist."""
        self._loop = asyncio.get_running_loop()
        self._state = replace(self._state, cluster_id=cluster_id)
        self._store.add_session_listener(lambda state: call_in_loop(self._loop, self._on_session, state))
        self._dirty = True
        self._read_all()
        await self.wait_for(lambda _: self._loaded)
        return self._state

    def close(self) -> None:
        """Stop publishing. Watches that are still out there fire into nothing."""
        self._closed = True
        for timer in (self._publish_timer, self._reread_timer):
            if timer is not None:
                timer.cancel()
        for waiter in self._changed:
            waiter.cancel()

    async def wait_for(self, condition: Callable[[ClusterState], bool], timeout_s: float | None = None) -> ClusterState:
        """Wait until a published snapshot satisfies ``condition`` and return it. Raises TimeoutError."""

        async def wait() -> ClusterState:
            while not condition(self._state):
                waiter = self._loop.create_future()
                self._changed.add(waiter)
                try:
                    await waiter
                finally:
                    self._changed.discard(waiter)
            return self._state

        return await asyncio.wait_for(wait(), timeout_s)

    async def caught_up(self, timeout_s: float | None = None) -> ClusterState:
        """Wait until everything that was written to the registry before this call is published, and return that."""
        await answer(self._store.sync())
        # The events of those writes came before that answer, so their reads are already counted as pending.
        return await self.wait_for(lambda _: self._pending == 0 and not self._dirty, timeout_s)

    # Reading --------------------------------------------------------------------------------------------------------

    def _read_all(self) -> None:
        self._read_broker_list()
        self._read_broker_config_list()
        self._read_topic_list()
        self._read_controller()
        for name in list(self._topics):
            self._read_topic(name)
        for broker_id in list(self._brokers):
            self._read_broker(broker_id)
        if self._reread_timer is not None:
            self._reread_timer.cancel()
        self._reread_timer = self._loop.call_later(REREAD_EVERY_S, self._read_all)

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED and not self._closed:
            self._read_all()

    def _watch(self, read_again: Callable[..., None], *arguments: Any) -> Watcher:
        """Return the one watcher of this node: a store keeps equal watchers once, so repeated reads add none."""
        key = (read_again.__name__, *arguments)
        watcher = self._watchers.get(key)
        if watcher is None:

            def on_event(_: WatchEvent) -> None:
                call_in_loop(self._loop, self._read_after_event, read_again, arguments)

            watcher = self._watchers[key] = on_event
        return watcher

    def _read_after_event(self, read_again: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if not self._closed:
            read_again(*arguments)

    def _read(self, future: Future[Any], apply: Callable[..., None], *arguments: Any) -> None:
        """Have ``apply(*arguments, result)`` called in the loop; the result is None when the node does not exist."""
        self._pending += 1
        future.add_done_callback(lambda done: call_in_loop(self._loop, self._arrived, done, apply, arguments))

    def _arrived(self, done: Future[Any], apply: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._pending -= 1
        if self._closed:
            return
        error = done.exception()
        if error is None or isinstance(error, NoNode):
            try:
                apply(*arguments, None if error else done.result())
            except RegistryError as malformed:
                # What was known before stands; a broker must not stop because another program wrote a bad node.
                _LOG.error("ignoring a registry node: %s", malformed)
            except Exception:
                # A fault here costs what the node says, not the news of all others.
                _LOG.exception("a registry node could not be taken up")
        else:
            # The session is suspended or over: everything is read again when it is back.
            _LOG.warning("a registry read failed: %s", error)
        if self._pending == 0 and self._vanished:
            # By now the deletion of their topic has been seen, if that was why they went: no watch is left behind.
            vanished, self._vanished = self._vanished, []
            for read_again in vanished:
                read_again()
        if self._pending == 0:
            self._publish()
        elif self._dirty and self._loaded and self._publish_timer is None:
            self._publish_timer = self._loop.call_later(PUBLISH_WITHIN_S, self._publish)

    def _publish(self) -> None:
        if self._publish_timer is not None:
            self._publish_timer.cancel()
            self._publish_timer = None
        self._loaded = self._loaded or self._pending == 0
        if self._dirty:
            self._dirty = False
            old, self._state = self._state, self._snapshot()
            for listener in list(self._listeners):
                try:
                    listener(old, self._state)
                except Exception:
                    _LOG.exception("a listener failed on a cluster change")
        for waiter in self._changed:
            if not waiter.done():
                waiter.set_result(None)

    def _snapshot(self) -> ClusterState:
        topics = self._state.topics
        if self._dirty_topics:
            changed = dict(topics)
            for name in self._dirty_topics:
                topic = self._topics.get(name)
                published = None if topic is None else _publishable(topic)
                if published is None:
                    changed.pop(name, None)
                else:
                    changed[name] = published
            self._dirty_topics.clear()
            topics = MappingProxyType(changed)
        return ClusterState(
            self._state.cluster_id,
            MappingProxyType(dict(self._brokers)),
            topics,
            BrokerId(self._controller_id),
            MappingProxyType({entity: config for entity, (_, config) in self._broker_configs.items()}),
            frozenset(self._unreadable_topics),
        )

    def _changed_topic(self, name: str) -> None:
        self._dirty = True
        self._dirty_topics.add(name)

    # Brokers and the controller -------------------------------------------------------------------------------------

    def _read_broker_list(self) -> None:
        self._read(
            self._store.children(znodes.BROKER_IDS, self._watch(self._read_broker_list)), self._apply_broker_list
        )

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
        self._read(self._store.get(path, self._watch(self._read_broker, broker_id)), self._apply_broker, broker_id)

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
        watched = self._store.exists(znodes.CONTROLLER, self._watch(self._read_controller))
        self._read(watched, lambda _: None)
        self._read(self._store.get(znodes.CONTROLLER), self._apply_controller)

    def _apply_controller(self, result: tuple[bytes, Stat] | None) -> None:
        controller_id = znodes.NO_LEADER if result is None else znodes.decode_controller(result[0])
        if controller_id != self._controller_id:
            self._controller_id = controller_id
            self._dirty = True

    # Settings of brokers ----------------------------------------------------------------------------------------------

    def _read_broker_config_list(self) -> None:
        watch = self._watch(self._read_broker_config_list)
        self._read(self._store.children(znodes.BROKER_CONFIGS, watch), self._apply_broker_config_list)

    def _apply_broker_config_list(self, entities: list[str] | None) -> None:
        for entity in {*self._broker_configs, *(entities or ())}:
            self._read_broker_config(entity)

    def _read_broker_config(self, entity: str) -> None:
        watch = self._watch(self._read_broker_config, entity)
        self._read(self._store.get(znodes.broker_config_path(entity), watch), self._apply_broker_config, entity)

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
        self._read(self._store.children(znodes.TOPICS, self._watch(self._read_topic_list)), self._apply_topic_list)

    def _apply_topic_list(self, names: list[str] | None) -> None:
        listed = {name for name in names or () if self._is_topic_name(name)}
        for name in [known for known in {*self._topics, *self._unreadable_topics} if known not in listed]:
            self._forget_topic(name)
        for name in listed - self._topics.keys():
            self._read_topic(name)

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

    def _forget_watchers(self, name: str, topic: _Topic) -> None:
        self._watchers.pop((self._read_topic.__name__, name), None)
        self._watchers.pop((self._read_config.__name__, name), None)
        for number in topic.assignment.partitions:
            self._watchers.pop((self._read_state.__name__, name, number, topic.generation), None)

    def _read_topic(self, name: str) -> None:
        path = znodes.topic_path(name)
        self._read(self._store.get(path, self._watch(self._read_topic, name)), self._apply_topic, name)

    def _apply_topic(self, name: str, result: tuple[bytes, Stat] | None) -> None:
        if result is None:
            self._forget_topic(name)
            return
        data, stat = result
        topic = self._topics.get(name)
        if topic is not None and topic.assignment_zxid > stat.mzxid:
            return
        try:
            assignment = znodes.TopicAssignment.decode(name, data)
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
            topic = self._topics[name] = _Topic(stat.czxid, assignment, stat.mzxid)
        elif topic.assignment_zxid != stat.mzxid:
            topic.assignment, topic.assignment_zxid = assignment, stat.mzxid
        topic.changed_partitions.update(assignment.partitions)
        self._changed_topic(name)
        self._read_config(name)
        for number in assignment.partitions:
            self._read_state(name, number, topic.generation)

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
            self._vanished.append(partial(self._read_config, name))
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

        Only ``exists`` leaves a watch on a node to come; one that was there a moment ago needs one call, not two.
        """
        watch = self._watch(read_again, *arguments)
        if present:
            self._read(self._store.get(path, watch), apply, *arguments)
        else:
            self._read(self._store.exists(path, watch), lambda _: None)
            self._read(self._store.get(path), apply, *arguments)

    def _apply_state(self, name: str, number: int, generation: int, result: tuple[bytes, Stat] | None) -> None:
        topic = self._topics.get(name)
        if topic is None or topic.generation != generation:
            return
        if result is None:
            if topic.states.pop(number, None) is not None:
                topic.changed_partitions.add(number)
                self._changed_topic(name)
                # A get that finds nothing leaves no watch; the next read waits for the node to come back.
                self._vanished.append(partial(self._read_state, name, number, generation))
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


def _publishable(topic: _Topic) -> TopicState | None:
    """Return the topic for the snapshot, None while its config has not been read."""
    if topic.config is None:
        return None
    if topic.changed_partitions or topic.published is None or len(topic.partitions) != len(topic.assignment.partitions):
        partitions = {}
        for number, replicas in topic.assignment.partitions.items():
            known = topic.partitions.get(number)
            if known is None or number in topic.changed_partitions:
                known = _partition_state(replicas, topic.states.get(number))
            partitions[number] = known
        topic.partitions = partitions
        topic.changed_partitions.clear()
    topic.published = TopicState(
        topic.assignment.topic_id, MappingProxyType(topic.partitions), MappingProxyType(topic.config)
    )
    return topic.published


def _partition_state(
    replicas: tuple[BrokerId, ...], found: tuple[znodes.LeaderAndIsr | None, Stat] | None
) -> PartitionState:
    if found is None:
        return PartitionState(replicas)
    state, stat = found
    if state is None:
        return PartitionState(replicas, version=stat.version, modified_zxid=stat.mzxid, unreadable=True)
    return PartitionState(
        replicas, state.leader, state.leader_epoch, state.isr, state.controller_epoch, stat.version, stat.mzxid
    )

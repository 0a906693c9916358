"""Keeps the view of the cluster current through one session's watches.

An event of a watch only causes a new read, whose result is applied when it is newer than what is known (rule R2: a
node's mzxid only moves forward). Brokers' and few other nodes are watched one by one; topics (``topic_reads``) by two
watches of trees, so that a session has a few watches and two for each broker, however many topics there are.

Changes are published as one immutable snapshot when the reads that belong together have all arrived, or at the latest
20 ms after the first of them, or when they are many. So no listener has thousands of changes to follow at once. After a
reconnection everything is read again. As a safety net that also happens every minute, or less often where it would be a
load.

No snapshot lacks a topic that the controller has deleted without listing it (``deleted_topic_ids``). The controller
writes that list first, so its event comes before the topic is seen gone, and nothing is published until the node is
read.

The first snapshot of a session waits until every read of it has succeeded, and the registry's server has caught up with
what was written before (``sync``). It replaces that of the former session, and what it lacks counts as deleted.

Answers and events come through one queue (``node_reads``), and everything here but the public methods runs from it, in
slices: one call after the other, so that between the slices of one no other changes what is known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Set
from concurrent.futures import Future
from types import MappingProxyType
from typing import Final

from spark_kafkalite.model import BrokerEpoch, BrokerId
from spark_kafkalite.registry import deleted_topics, znodes
from spark_kafkalite.registry.cluster.cluster_state import (
    BrokerInfo,
    ClusterState,
    diff_work,
)
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.node_reads import NodeReads
from spark_kafkalite.registry.cluster.topic_reads import WATCHED_TREES, TopicReads
from spark_kafkalite.registry.deleted_topics import DeletedTopics
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import (
    SessionExpired,
    SessionState,
    Stat,
    Store,
    answer,
)
from spark_kafkalite.slices import Slices, Work

_LOG = logging.getLogger(__name__)

PUBLISH_WITHIN_S: Final = 0.02
REREAD_EVERY_S: Final = 60.0
# Where there are so many nodes that the minute is longer: to read one costs some 0.1 ms, here and at the registry.
_REREAD_S_A_NODE: Final = 0.005
# Changes of topics and partitions that one snapshot brings, so that what listeners do about it stays within a slice.
PUBLISH_AT_MOST: Final = 500


class ClusterWatcher:
    """Watches brokers, topics, settings, partition states and the controller. Lives in one event loop."""

    def __init__(self, store: Store, view: ClusterView, *, slices: Slices | None = None) -> None:
        """``view`` gets the snapshots; ``slices``: the long work of the running loop, its own when it is not shared.

        To be made in the loop that it will live in.
        """
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._view = view
        self._reads = NodeReads(store, self._loop, slices or Slices(self._loop), self._publish_if_due)
        self._cluster_id = ""
        self._brokers: dict[int, BrokerInfo] = {}
        self._topics = TopicReads(store, self._reads, self._changed)
        self._controller_id = znodes.NO_LEADER
        # Of each entity: the node's mzxid and what it holds.
        self._broker_configs: dict[str, tuple[int, Mapping[str, str]]] = {}
        self._deleted_topic_ids: Set[str] = frozenset()
        # The last read of that node, and the last one that has been answered.
        self._deleted_topics_asked = 0
        self._deleted_topics_read = 0
        # Whether there is something to publish.
        self._dirty = False
        # Whether everything has been read and published once.
        self._loaded = False
        self._closed = False
        self._publish_timer: asyncio.TimerHandle | None = None
        self._reread_timer: asyncio.TimerHandle | None = None
        # Those who wait for the reads that are pending.
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._publish_by_s = 0.0

    @property
    def view(self) -> ClusterView:
        """Where the snapshots are published."""
        return self._view

    async def start(self, cluster_id: str) -> ClusterState:
        """Read everything once, publish it and keep watching. The base nodes must exist.

        Raises SessionExpired when the session ends before that, ConnectionLoss when a watch may not have been left,
        RegistryTooOld.
        """
        self._cluster_id = cluster_id
        self._store.add_session_listener(self._session_changed)
        for path in WATCHED_TREES:
            await answer(self._store.watch_tree(path, self._topics.changed))
        self._dirty = True
        self._read_all()
        await self._settled(lambda: self._loaded)
        return self._view.state

    def close(self) -> None:
        """Stop publishing, because the session is over; callers that wait for it get SessionExpired."""
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
        async with asyncio.timeout(timeout_s):
            await self._settled(lambda: synced is not None and self._is_settled)
        assert synced is not None
        synced.result()
        return self._view.state

    @property
    def _is_settled(self) -> bool:
        return self._reads.pending == 0 and not self._dirty

    async def _settled(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition``, checked after each answer and event, holds. Raises SessionExpired."""
        while not condition():
            if self._closed:
                raise _ended()
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting[waiter] = None
            try:
                await waiter
            finally:
                self._waiting.pop(waiter, None)

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
        every_s = max(REREAD_EVERY_S, _REREAD_S_A_NODE * self._topics.node_count)
        self._reread_timer = self._loop.call_later(every_s, self._reads.put, self._read_all)
        self._reads.begin_round()
        self._reads.read(self._store.sync, self._read_everything)

    def _read_everything(self, _: object = None) -> Work[None]:
        self._read_broker_list()
        self._read_broker_config_list()
        self._read_controller()
        self._read_deleted_topics()
        for broker_id in list(self._brokers):
            self._read_broker(broker_id)
        yield from self._topics.read_all()

    # Publishing -----------------------------------------------------------------------------------------------------

    def _publish_if_due(self) -> Work[None]:
        """Publish when nothing is awaited any more, or something has waited long, or much has changed."""
        pending = self._reads.pending
        # What is not read yet is no reason to call it deleted. Events may come before anything is read: a start leaves
        # its watches first.
        if not self._loaded and (pending or self._reads.is_incomplete):
            return
        if self._dirty and self._deleted_topics_read == self._deleted_topics_asked:
            if pending and self._topics.changes < PUBLISH_AT_MOST:
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
        old = self._view.state
        differing = yield from self._topics.publish()
        topics = self._topics.published
        new = ClusterState(
            self._cluster_id,
            MappingProxyType(dict(sorted(self._brokers.items()))),
            MappingProxyType(topics),
            BrokerId(self._controller_id),
            MappingProxyType({entity: config for entity, (_, config) in self._broker_configs.items()}),
            frozenset(self._topics.unreadable),
            self._deleted_topic_ids,
            frozenset(self._topics.without_id),
        )
        # The first snapshot follows one that another session has read: any topic may differ.
        compared: Mapping[str, Collection[int] | None] = differing
        if not self._loaded:
            compared = dict.fromkeys((*old.topics, *topics))
        change = yield from diff_work(old, new, compared)
        # The session may have ended between the slices: what is published then is the next one's.
        if not self._closed:
            self._view.publish(new, change)
        # Not before: who waits for what is read to be published may look between the slices.
        self._dirty = False

    def _changed(self) -> None:
        self._dirty = True

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
        try:
            found = znodes.BrokerRegistration.decode(broker_id, data)
        except MalformedNode as malformed:
            malformed.remedy = f"delete the node, and broker {broker_id} registers again"
            raise
        info = BrokerInfo.of(found, BrokerEpoch(stat.czxid))
        if info != known:
            self._brokers[broker_id] = info
            self._dirty = True

    def _read_controller(self) -> None:
        # exists, not get: while there is no controller the watch must wait for the next one.
        watch = self._reads.watch(self._read_controller)
        self._reads.read(lambda: self._store.exists(znodes.CONTROLLER, watch), _nothing)
        self._reads.read(lambda: self._store.get(znodes.CONTROLLER), self._apply_controller)

    def _apply_controller(self, result: tuple[bytes, Stat] | None) -> None:
        # A persistent node is no broker's: candidates remove it.
        is_held = result is not None and result[1].ephemeral_owner
        try:
            controller_id = znodes.decode_controller(result[0]) if result is not None and is_held else znodes.NO_LEADER
        except MalformedNode as malformed:
            malformed.remedy = "delete the node, and a broker becomes the controller"
            raise
        if controller_id != self._controller_id:
            self._controller_id = controller_id
            self._dirty = True

    # Deleted topics ---------------------------------------------------------------------------------------------------

    def _read_deleted_topics(self) -> None:
        watch = self._reads.watch(self._read_deleted_topics)
        self._deleted_topics_asked += 1
        # exists, not get: while there is no such node the watch must wait for it.
        self._reads.read(lambda: self._store.exists(deleted_topics.PATH, watch), _nothing)
        read = self._deleted_topics_asked
        self._reads.read(lambda: self._store.get(deleted_topics.PATH), self._apply_deleted_topics, read)

    def _apply_deleted_topics(self, read: int, result: tuple[bytes, Stat] | None) -> None:
        self._deleted_topics_read = read
        try:
            deleted = DeletedTopics() if result is None else DeletedTopics.decode(result[0])
        except MalformedNode as malformed:
            _LOG.error("logs of topics that vanish now are set aside and not deleted: %s", malformed)
            deleted = DeletedTopics()
        if deleted.deleted_ms.keys() != self._deleted_topic_ids:
            self._deleted_topic_ids = deleted.deleted_ms.keys()
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
            return  # settings that were known stay: the controller makes their node again (lost_nodes)
        data, stat = result
        if known is None or known[0] < stat.mzxid:
            config = znodes.decode_config(znodes.broker_config_path(entity), data)
            self._broker_configs[entity] = stat.mzxid, MappingProxyType(config)
            self._dirty = True


def _nothing(*_: object) -> None: ...


def _ended() -> SessionExpired:
    return SessionExpired("the registry session has ended; the cluster is read again in the next one")

"""Reports to the registry what this broker's logs have of partitions without a leader, so that the best one can lead.

A partition is reported when its state names no leader, and no broker can lead it by itself. Each broker that its
replicas, its ISR or its eligible replicas name reports where its log ends, under which leader epoch, and what it lacks
(``registry.report_nodes``). The log stands still then. A report is for one state of the partition and for this
incarnation of the broker; what changes either, or the log, makes another one. Nothing is written or checked while all
partitions have leaders.

Many partitions lose their leaders at once, so many reports share a node, and what changes within a moment is written
together. Nodes are ephemeral: they go with the session, and the next one begins with none. Where the outcome of a write
is not known, all of this broker's nodes are removed and written again. No name is used twice: an election that relies
on a node checks its version, and versions begin at 0 again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from spark_kafkalite.broker.replication.follower import NoLeader
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.model import NO_LEADER_EPOCH, BrokerId, Incarnation, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import ClusterChange, ClusterState, PartitionState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.controller.election import elect
from spark_kafkalite.registry.report_nodes import (
    EMPTY,
    FULL_NODE_BYTES,
    MAX_EPOCHS,
    MAX_NODES,
    MISSING,
    OFFLINE,
    LogReport,
    broker_of_report,
    encode_log,
    encode_node,
    report_path,
)
from spark_kafkalite.registry.store import (
    Create,
    Delete,
    NodeExists,
    NoNode,
    Operation,
    SessionExpired,
    SetData,
    Store,
    answer,
)
from spark_kafkalite.registry.znodes import LOG_REPORTS, NO_LEADER, NO_TOPIC_ID, uuid_text
from spark_kafkalite.slices import Slices, Work

logger: Final = logging.getLogger(__name__)

# What changes within this time is written together; what need not be there any more may stay for a moment.
_GATHER_S: Final = 0.1
_REMOVED_WITHIN_S: Final = 1.0
# How long what the registry has said may take to be acted upon here, before logs are reported that stand by then.
_SETTLED_S: Final = 10.0
# Until logs are looked at again that could not be reported, and until a failed write is repeated.
_AGAIN_S: Final = 2.0
_RETRY_S: Final = 0.2
# Nodes that share a write; half a megabyte together.
_WRITTEN_AT_ONCE: Final = 12
_LOOKED_AT_ONCE: Final = 50


@dataclass(slots=True)
class _Node:
    """One of this broker's nodes: its logs as they are encoded, and whether the registry has it as it is here."""

    number: int = -1
    logs: dict[TopicPartition, bytes] = field(default_factory=dict)
    size_bytes: int = 0
    exists: bool = False
    is_written: bool = True

    def put(self, key: TopicPartition, log: bytes) -> None:
        self.remove(key)
        self.logs[key] = log
        self.size_bytes += len(log) + 1
        self.is_written = False

    def remove(self, key: TopicPartition) -> None:
        log = self.logs.pop(key, None)
        if log is not None:
            self.size_bytes -= len(log) + 1
            self.is_written = False


class LogReports:
    """See the module's text. Lives in the broker's event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slices: Slices,
        view: ClusterView,
        replicas: Replicas,
        broker_id: int,
        incarnation: Incarnation,
        store: Callable[[], Store],
    ) -> None:
        """``store`` gives the present session with the registry, or raises SessionExpired."""
        self._loop = loop
        self._slices = slices
        self._view = view
        self._replicas = replicas
        self._me = BrokerId(broker_id)
        self._incarnation = incarnation
        self._store = store
        # The partitions that nobody leads, or whose topic's node names no id; those of them, and of what is reported,
        # that are to be looked at.
        self._leaderless: set[TopicPartition] = set()
        self._to_look: set[TopicPartition] = set()
        self._wanted = asyncio.Event()
        # Each run begins at a place of its own.
        self._pages = _Pages(incarnation)
        # The session that has the nodes, and whether there may be others of this broker.
        self._written_in: Store | None = None
        self._has_left_some = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to report. Before clients are served: all partitions are looked through."""
        self._leaderless.update(
            TopicPartition(name, number)
            for name, topic in self._view.state.topics.items()
            for number, state in topic.partitions.items()
            if (state.leader == NO_LEADER or topic.topic_id == NO_TOPIC_ID) and state.has_state
        )
        self._view.add_listener(self._cluster_changed)
        self._task = self._loop.create_task(self._work())

    async def stop(self) -> None:
        """End; the nodes go with the session."""
        self._view.remove_listener(self._cluster_changed)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _cluster_changed(self, _: ClusterState, new: ClusterState, change: ClusterChange) -> None:
        for key in change.changed_partitions:
            state = new.partition(key)
            has_id = state is None or new.topics[key.topic].topic_id != NO_TOPIC_ID
            if state is not None and (state.leader == NO_LEADER or not has_id) and state.has_state:
                self._leaderless.add(key)
                self._to_look.add(key)
            elif key in self._leaderless:
                self._leaderless.discard(key)
                self._to_look.add(key)
        gone = change.deleted_topics or change.unreadable_topics
        if change.new_brokers or change.gone_brokers or change.bounced_brokers or gone:
            # Who lives decides whether somebody can lead; a new session has none of the reports.
            self._to_look |= self._leaderless
        if self._to_look:
            self._wanted.set()

    def log_changed(self, partition: Partition) -> None:
        """Check a log again that has failed, or has been truncated."""
        if partition.topic_partition in self._leaderless:
            self._to_look.add(partition.topic_partition)
            self._wanted.set()

    async def _work(self) -> None:
        while True:
            await self._wanted.wait()
            # What belongs together comes within a moment.
            await asyncio.sleep(_GATHER_S)
            self._wanted.clear()
            try:
                await self._replicas.wait_until(lambda: self._replicas.is_idle, _SETTLED_S)
                await self._slices.run(self._look())
                if not self._pages.has_news:
                    await asyncio.sleep(_REMOVED_WITHIN_S)
                    await self._slices.run(self._look())
                await self._write()
            except SessionExpired:
                # The next registration shows as a change of the cluster.
                self._written_in = None
            except RegistryError as error:
                logger.debug("what the logs have could not be reported: %s", error)
                self._written_in, self._has_left_some = None, True
                self._loop.call_later(_RETRY_S, self._wanted.set)
            except Exception:
                logger.exception("what the logs have could not be reported")
                self._written_in, self._has_left_some = None, True
                self._to_look |= self._leaderless
                self._loop.call_later(_AGAIN_S, self._wanted.set)

    # What is reported -----------------------------------------------------------------------------------------------

    def _look(self) -> Work[None]:
        """Bring the nodes up to what the logs have now."""
        cluster, keys = self._view.state, list(self._to_look)
        self._to_look = set()
        later = []
        for index, key in enumerate(dict.fromkeys(keys)):
            if index % _LOOKED_AT_ONCE == 0:
                yield None
                cluster = self._view.state
            state_now = cluster.partition(key)
            if state_now is not None and cluster.topics[key.topic].topic_id == NO_TOPIC_ID:
                self._look_for_id(key, state_now)
                continue
            if state_now is None or not self._is_asked(state_now, cluster):
                self._pages.remove(key)
                if state_now is None:
                    self._leaderless.discard(key)
                continue
            report = self._report(key, cluster.topics[key.topic].topic_id, state_now)
            if report is None:
                later.append(key)
            else:
                self._pages.put(key, encode_log(key, report))
        if later:
            self._to_look.update(later)
            self._loop.call_later(_AGAIN_S, self._wanted.set)

    def _look_for_id(self, key: TopicPartition, state: PartitionState) -> None:
        """Report which topic's log this is, so that the topic's node gets its id back."""
        topic_id = self._replicas.topic_id_of_log(key)
        if topic_id is None or topic_id == NO_TOPIC_ID or not state.has_state:
            self._pages.remove(key)
        else:
            report = LogReport(state.created_zxid, state.version, gone=OFFLINE, topic_id=uuid_text(topic_id))
            self._pages.put(key, encode_log(key, report))

    def _is_asked(self, state: PartitionState, cluster: ClusterState) -> bool:
        """Return whether this broker's log of the partition is to be reported."""
        return (
            state.leader == NO_LEADER
            and state.has_state
            and not state.unreadable
            and (self._me in state.replicas or self._me in state.isr or self._me in state.eligible)
            and elect(state, cluster.brokers).leader == NO_LEADER
        )

    def _report(self, key: TopicPartition, topic_id: bytes, state: PartitionState) -> LogReport | None:
        """Return what the log has; None where that may still change, or is not known yet."""
        gone = ""
        partition = self._replicas.find(key)
        if partition is None:
            if self._me not in state.replicas or self._replicas.has_lost(key, topic_id):
                gone = MISSING
            elif self._replicas.is_offline(key):
                gone = OFFLINE
            else:
                return None
        elif partition.topic_id != topic_id:
            return None
        elif partition.storage_error is not None:
            gone = OFFLINE
        elif partition.is_truncating or not isinstance(partition.role, NoLeader) or partition.state_order < state.order:
            return None
        if gone or partition is None:
            return LogReport(state.created_zxid, state.version, gone=gone)
        is_named = self._me in state.isr or self._me in state.eligible
        report = _report_of(partition.log, state, partition.bounds.remembered_high_watermark, is_named=is_named)
        # Also one under which nothing was appended: it is not to be another leader's.
        return replace(report, leader_epoch=max(partition.leader_epoch, partition.log.epochs.latest))

    # Writing --------------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Write the nodes that differ from what the registry has. Raises RegistryError."""
        if not self._pages and self._written_in is None and not self._has_left_some:
            return
        store = self._store()
        if store is not self._written_in:
            await self._remove_all(store)
            self._written_in, self._has_left_some = store, False
        turn = self._slices.turn()
        changed = self._pages.changed()
        for first in range(0, len(changed), _WRITTEN_AT_ONCE):
            some = changed[first : first + _WRITTEN_AT_ONCE]
            operations: list[Operation] = []
            for node in some:
                operations.append(self._operation(node))
                # What comes meanwhile is written by the next round.
                node.is_written, node.exists = True, bool(node.logs)
                await turn.pause()
            await answer(store.multi(operations))

    def _operation(self, node: _Node) -> Operation:
        path = report_path(self._me, node.number)
        if not node.logs:
            return Delete(path)
        data = encode_node(self._me, self._incarnation, node.logs.values())
        return SetData(path, data) if node.exists else Create(path, data, ephemeral=True)

    async def _remove_all(self, store: Store) -> None:
        """Remove what an earlier session, or a write of unknown outcome, may have left of this broker's nodes."""
        self._pages.forget_written()
        try:
            names = await answer(store.children(LOG_REPORTS))
        except NoNode:
            # Made by the first broker that reports; a cluster that has lost nothing has none.
            names = []
            with contextlib.suppress(NodeExists):
                await answer(store.create(LOG_REPORTS, make_parents=True))
        for name in names:
            if broker_of_report(name) == self._me:
                with contextlib.suppress(NoNode):
                    await answer(store.delete(f"{LOG_REPORTS}/{name}"))


class _Pages:
    """The reports of many logs, spread over nodes of bounded size."""

    def __init__(self, first_number: int) -> None:
        self._number = first_number
        self._nodes: list[_Node] = []
        self._places: dict[TopicPartition, _Node] = {}
        # Whether something was put that has not been written.
        self.has_news = False

    def __bool__(self) -> bool:
        return bool(self._places)

    def put(self, key: TopicPartition, log: bytes) -> None:
        """Report a log, in place of its earlier report."""
        node = self._places.get(key)
        if node is not None and node.logs[key] == log:
            return
        if node is not None and node.size_bytes - len(node.logs[key]) + len(log) > FULL_NODE_BYTES:
            node.remove(key)
            node = None
        if node is None:
            node = self._with_room(len(log))
            self._places[key] = node
        node.put(key, log)
        self.has_news = True

    def _with_room(self, size_bytes: int) -> _Node:
        for node in reversed(self._nodes):
            if node.size_bytes + size_bytes < FULL_NODE_BYTES:
                return node
        node = _Node()
        self._nodes.append(node)
        return node

    def remove(self, key: TopicPartition) -> None:
        """Report a log no more."""
        node = self._places.pop(key, None)
        if node is not None:
            node.remove(key)

    def changed(self) -> list[_Node]:
        """Return the nodes that the registry does not have as they are; they count as written from now on."""
        self.has_news = False
        changed = [node for node in self._nodes if not node.is_written and (node.logs or node.exists)]
        for node in changed:
            if not node.exists:
                # One that is made again has another name.
                self._number += 1
                node.number = self._number % MAX_NODES
        return changed

    def forget_written(self) -> None:
        """Have every node written again: the registry has none."""
        for node in self._nodes:
            node.exists, node.is_written = False, not node.logs


def _report_of(log: PartitionLog, state: PartitionState, high_watermark: int, *, is_named: bool) -> LogReport:
    """Return what a log has that stands still. ``is_named``: by the state it has all that is committed."""
    known = LogReport(state.created_zxid, state.version, damaged=log.damaged_ranges, high_watermark=high_watermark)
    end, last_epoch = whole_end(log)
    if not end and is_named:
        return replace(known, gone=EMPTY)
    entries = [each for each in log.epochs.entries if each[1] < end or each[0] == last_epoch]
    epochs = tuple(entries[-MAX_EPOCHS:])
    start = int(log.undeleted_start_offset)
    return replace(known, last_epoch=last_epoch, end_offset=end, epochs=epochs, log_start_offset=start)


def whole_end(log: PartitionLog) -> tuple[int, int]:
    """Return where a log ends, without damage at its end, and the leader epoch of the last record before that."""
    start = int(log.log_start_offset)
    end, damaged = int(log.log_end_offset), log.damaged_ranges
    if damaged and damaged[-1][1] >= end:
        end = damaged[-1][0]
    # Retention may have left no record: the epoch that goes on there says what was.
    return end, log.epochs.epoch_at(end - 1 if end > start else end) if end else NO_LEADER_EPOCH

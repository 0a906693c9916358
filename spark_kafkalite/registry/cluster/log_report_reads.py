"""What brokers report of their logs, as one session reads it: on demand, and only the nodes that have changed.

The first reading leaves watches on the list of nodes and on each of them; a later one reads again the nodes whose
watches have fired. So while every partition has a leader, and no election asks, nothing is read. A node that cannot be
read is ignored, and logged once for each of its versions.

Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from spark_kafkalite.model import BrokerId, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, ClusterState, PartitionState
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.report_nodes import (
    LogReport,
    ReportNode,
    broker_of_report,
    counted,
    decode_node,
)
from spark_kafkalite.registry.store import Check, NoNode, SessionState, Stat, Store, WatchEvent, answer, call_in_loop
from spark_kafkalite.registry.znodes import LOG_REPORTS
from spark_kafkalite.slices import Slices, Work

_LOG: Final = logging.getLogger(__name__)

# Nodes that are asked for at a time.
_READ_AT_ONCE: Final = 20
_LOGS_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class _TakenNode:
    """What a node has (None: it cannot be read, or is gone) and when that was written (-1: it is gone).

    ``is_placed``: its logs are among those by partition, and none of an earlier version is. A reading that is cancelled
    may leave some of both there. Until another one has placed the node, ``replaced`` has the earlier versions.
    """

    report: ReportNode | None
    mzxid: int
    is_placed: bool = True
    replaced: tuple[ReportNode, ...] = ()


class LogReportReads:
    """See the module's text."""

    def __init__(self, store: Store, slices: Slices, on_change: Callable[[], None] = lambda: None) -> None:
        """``on_change`` is called in the loop when there is something to read again."""
        self._store = store
        self._slices = slices
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._reading = asyncio.Lock()
        self._list_is_known = False
        self._nodes: dict[str, _TakenNode] = {}
        self._stale: set[str] = set()
        self._by_partition: dict[TopicPartition, dict[BrokerId, ReportNode]] = {}
        store.add_session_listener(self._session_changed)

    def counted(
        self, key: TopicPartition, state: PartitionState, live: Mapping[int, BrokerInfo]
    ) -> dict[BrokerId, LogReport]:
        """Return what brokers have reported of a partition, as far as it counts for this state."""
        return counted(key, state, live, self._by_partition.get(key, {}))

    def topic_ids(self, cluster: ClusterState, topic: str) -> set[str]:
        """Return which topics' logs brokers have reported of a topic whose node names no id, as text."""
        keys = {TopicPartition(topic, number): state for number, state in cluster.topics[topic].partitions.items()}
        found = (report for key, state in keys.items() for report in self.counted(key, state, cluster.brokers).values())
        return {report.topic_id for report in found if report.topic_id}

    def checks(self, key: TopicPartition) -> tuple[Check, ...]:
        """Return the checks for a write that depends on the reports of a partition, as they were last read."""
        nodes = self._by_partition.get(key, {}).values()
        return tuple(Check(f"{LOG_REPORTS}/{each.name}", each.version) for each in nodes)

    async def read(self) -> None:
        """Bring everything up to what was written before this call. Raises RegistryError."""
        async with self._reading:
            # One server of an ensemble may be behind the others.
            await answer(self._store.sync())
            if not self._list_is_known:
                await self._read_list()
            while self._stale:
                names = [self._stale.pop() for _ in range(min(len(self._stale), _READ_AT_ONCE))]
                try:
                    found = await asyncio.gather(*map(self._read_node, names))
                    for name, node in zip(names, found, strict=True):
                        await self._take(name, node)
                except BaseException:
                    self._stale.update(names)
                    raise

    async def _read_list(self) -> None:
        self._list_is_known = True
        try:
            names = await self._names()
            listed = {name for name in names if broker_of_report(name) is not None}
            self._stale.update(listed - self._nodes.keys())
            for name in self._nodes.keys() - listed:
                await self._take(name, None)
        except BaseException:
            self._list_is_known = False
            raise

    async def _names(self) -> list[str]:
        while True:
            try:
                return await answer(self._store.children(LOG_REPORTS, self._list_changed))
            except NoNode:
                # The first broker that reports makes it; only this leaves a watch until then.
                if await answer(self._store.exists(LOG_REPORTS, self._list_changed)) is None:
                    return []

    async def _read_node(self, name: str) -> tuple[bytes, Stat] | None:
        try:
            return await answer(self._store.get(f"{LOG_REPORTS}/{name}", self._node_changed))
        except NoNode:
            return None

    async def _take(self, name: str, found: tuple[bytes, Stat] | None) -> None:
        known = self._nodes.get(name, _TakenNode(None, -1))
        mzxid = -1 if found is None else found[1].mzxid
        taken = known
        if known.mzxid != mzxid:
            report = None if found is None else await self._decoded(name, *found)
            replaced = known.replaced if known.report is None else (*known.replaced, known.report)
            taken = _TakenNode(report, mzxid, is_placed=False, replaced=replaced)
            self._nodes[name] = taken
        if not taken.is_placed:
            await self._slices.run(self._place(taken.report, taken.replaced))
            self._nodes[name] = _TakenNode(taken.report, mzxid)
        if found is None:
            self._nodes.pop(name, None)

    async def _decoded(self, name: str, data: bytes, stat: Stat) -> ReportNode | None:
        try:
            return replace(await self._slices.run(decode_node(name, data)), version=stat.version)
        except MalformedNode as malformed:
            _LOG.error("what a broker has reported of its logs does not count: %s", malformed)
            return None

    def _place(self, report: ReportNode | None, replaced: tuple[ReportNode, ...]) -> Work[None]:
        """Put a node's logs among those by partition, and take away what its earlier versions have there.

        A log of both versions can be read at each moment.
        """
        index = 0
        if report is not None:
            for key in report.logs:
                self._by_partition.setdefault(key, {})[report.broker_id] = report
                if (index := index + 1) % _LOGS_AT_ONCE == 0:
                    yield None
        for old in replaced:
            for key in old.logs:
                found = self._by_partition.get(key)
                # This version, or another node of the broker, may have it by now.
                if found is not None and found.get(old.broker_id) is old:
                    del found[old.broker_id]
                    if not found:
                        del self._by_partition[key]
                if (index := index + 1) % _LOGS_AT_ONCE == 0:
                    yield None

    # In the store's thread ------------------------------------------------------------------------------------------

    def _list_changed(self, _: WatchEvent) -> None:
        call_in_loop(self._loop, self._has_changed, None)

    def _node_changed(self, event: WatchEvent) -> None:
        call_in_loop(self._loop, self._has_changed, event.path.rpartition("/")[2])

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            # What has changed meanwhile is not known.
            call_in_loop(self._loop, self._all_may_have_changed)

    def _all_may_have_changed(self) -> None:
        self._stale.update(self._nodes)
        self._has_changed(None)

    def _has_changed(self, name: str | None) -> None:
        if name is None:
            self._list_is_known = False
        else:
            # Also one that is being read for the first time, and so is not among the nodes yet.
            self._stale.add(name)
        self._on_change()

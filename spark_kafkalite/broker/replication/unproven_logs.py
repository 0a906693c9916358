"""Takes back, at a start, that a log is whole which is not, though the run that has written it is proven (R11, R12).

A broker proves earlier runs of itself, and so all logs that they have written. Some of these may be damaged, missing or
not to be opened: then the states of their partitions must not mean this broker's log any more, before it registers as
one that has what the earlier run had. So it writes these states again, without itself. It registers only afterwards,
and so it is not elected for a log that it has not proven.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_kafkalite.broker.replication.rules.leaving import state_without_proof
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.model import BrokerId, TopicPartition
from spark_kafkalite.printable import first_of
from spark_kafkalite.registry.cluster.cluster_state import PartitionState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.state_nodes import GuardedNodes, StateChange
from spark_kafkalite.registry.cluster.state_writer import StateWriter, StateWrites, WritePace
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import NodeError, Store
from spark_kafkalite.slices import Slices

logger: Final = logging.getLogger(__name__)

_PACE: Final = WritePace(together=100, steps=4, alone=100, retry_s=0.2)
# Logs that the line names.
_NAMED: Final = 5


@dataclass(eq=False, slots=True)
class _TakenBack:
    """A partition whose state is not to mean this broker's log, with the state as it was last read."""

    key: TopicPartition
    topic_id: bytes
    state: PartitionState


class UnprovenLogs(StateWrites[_TakenBack]):
    """See the module's text. Used once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slices: Slices,
        view: ClusterView,
        broker_id: int,
        store: Callable[[], Store],
    ) -> None:
        """``store`` gives the present session with the registry, or raises SessionExpired."""
        self._loop = loop
        self._slices = slices
        self._view = view
        self._me = BrokerId(broker_id)
        self._store = store
        self._has_failed = False

    async def take_back(self, logs: Mapping[TopicPartition, str]) -> bool:
        """Have no state mean these logs, each with the reason; return whether that is so now.

        Tries on while the registry does not answer; other failed writes are logged.
        """
        cluster, writes = self._view.state, []
        for key in sorted(logs):
            topic, state = cluster.topics.get(key.topic), cluster.partition(key)
            if topic is not None and state is not None and state.has_state and not state.unreadable:
                writes.append(_TakenBack(key, topic.topic_id, state))
        wanted = [each for each in writes if state_without_proof(each.state, self._me) is not None]
        if wanted:
            logger.warning(
                "not proven to be whole: %s; what other replicas have is led by those until this broker has caught up",
                first_of([f"the log of {each.key} {logs[each.key]}" for each in wanted], _NAMED, "logs"),
            )
            writer = StateWriter(self._loop, self._slices, GuardedNodes(self._store), self, _PACE)
            await writer.write_all(wanted)
        return not self._has_failed

    # What a writer asks -----------------------------------------------------------------------------------------------

    def change(self, write: _TakenBack) -> StateChange | None:
        after = state_without_proof(write.state, self._me)
        return None if after is None else StateChange(write.key, write.topic_id, write.state, after)

    def written(self, write: _TakenBack, change: StateChange, state: PartitionState) -> None:
        """Nothing more: the watcher sees it."""

    def found(self, write: _TakenBack, change: StateChange, state: PartitionState | None) -> None:
        if state is not None:
            write.state = state

    def failed(self, writes: Sequence[_TakenBack], error: Exception) -> bool:
        if isinstance(error, RegistryError) and not isinstance(error, (NodeError, MalformedNode)):
            logger.debug("%d states could not be written at once: %s", len(writes), error)
            return True
        self._has_failed = True
        logger.warning("the state of %s cannot be written: %s; no log counts as whole", writes[0].key, error)
        return False

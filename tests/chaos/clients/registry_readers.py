"""Registry consumers: a group that shares a topic through the registry, and who looks at what it has committed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from concurrent.futures import TimeoutError as NotInTime

from spark_kafkalite import ConsumerConnector
from spark_kafkalite.client.registry_consumer.message_stream import MessageStream
from spark_kafkalite.errors import ConsumerTimeout, KafkaliteError, RegistryError
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry import consumer_nodes
from spark_kafkalite.registry.store import NoNode, SessionState, Store
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.chaos.clients.client import HARD_END_S, REQUEST_TIMEOUT_MS, ChaosClient, Place
from tests.chaos.clients.readers import ChaosReader, Row
from tests.chaos.history import Assigned, Client, Committed

_TURN_S = 0.2
_SESSION_MS = 6_000
# The registry answers by way of the process in which all clients are.
_CONNECT_MS = int(HARD_END_S * 1000)
_PAUSE_S = 0.5
_ANSWER_S = 10.0
# Nobody counts the generations of such a group: each is one of its own.
_generations = itertools.count(1)


class _Connector(ConsumerConnector):
    """``changes`` counts how often it may have got other partitions, from before it hands out any of their records."""

    changes = 0

    def acquire(self, threads: Mapping[TopicPartition, str]) -> None:
        self.changes += 1
        super().acquire(threads)


class StreamReader(ChaosReader):
    """A member of a registry consumers' group with one stream; it commits by itself, every second."""

    def __init__(self, who: str, place: Place, group: str) -> None:
        super().__init__(who, place)
        self.group = group
        self._noted = -1

    def description(self) -> Client:
        return Client(who=self.who, kind="member", group=self.group, drains=True)

    def run(self) -> None:
        with _Connector(
            zookeeper_connect=self.place.registry,
            group_id=self.group,
            zookeeper_session_timeout_ms=_SESSION_MS,
            zookeeper_connection_timeout_ms=_CONNECT_MS,
            auto_offset_reset="smallest",
            auto_commit_interval_ms=1_000,
            consumer_timeout_ms=int(_TURN_S * 1_000),
            socket_timeout_ms=REQUEST_TIMEOUT_MS,
            rebalance_backoff_ms=500,
            # The registry and this process share the processor with all others.
            rebalance_max_retries=int(2 * HARD_END_S),
        ) as connector:
            topic = self.place.topic
            (stream,) = connector.create_message_streams({topic: 1})[topic]
            while not self.is_done:
                self._read(connector, stream)

    def _read(self, connector: _Connector, stream: MessageStream) -> None:
        """Read for a moment, and note it."""
        begun = time.monotonic()
        rows: list[Row] = []
        try:
            while time.monotonic() < begun + _TURN_S:
                before = connector.changes
                record = next(stream)
                if (after := connector.changes) != self._noted:
                    self.note_rows(begun, rows)
                    rows = []
                    self._note_assigned(connector)
                    # A change during this record came before or after it: the next one is noted as another again.
                    self._noted = before if before != after else after
                rows.append((record.partition, record.offset, record.value))
        except ConsumerTimeout:
            pass
        except KafkaliteError as error:
            self.note_failure(begun, error)
            self.stopping.wait(_TURN_S)
        finally:
            self.note_rows(begun, rows)

    def _note_assigned(self, connector: _Connector) -> None:
        now = time.monotonic()
        self.place.history.note(
            Assigned(
                who=self.who, begun=now, ended=now, group=self.group, generation=next(_generations),
                partitions=[self.place.at(each.partition) for each in connector.owned_partitions],
            )
        )  # fmt: skip


class RegistryOffsetObserver(ChaosClient):
    """Looks into the registry for what a group of registry consumers has committed."""

    def __init__(self, who: str, place: Place, group: str) -> None:
        super().__init__(who, place)
        self.group = group

    def description(self) -> Client:
        return Client(who=self.who, kind="observer")

    def run(self) -> None:
        store: Store | None = None
        while not self.stopping.wait(_PAUSE_S):
            # A registry that is away says nothing.
            try:
                if store is None or store.state is SessionState.LOST:
                    store = open_zookeeper(self.place.registry)
                self._look(store)
            except (RegistryError, NotInTime):
                continue
        if store is not None:
            store.close()

    def _look(self, store: Store) -> None:
        for partition in range(self.place.partitions):
            path = consumer_nodes.offset_path(self.group, self.place.topic, partition)
            begun = time.monotonic()
            try:
                data, _ = store.get(path).result(_ANSWER_S)
                offset = int(data)
            except NoNode:
                offset = -1
            self.place.history.note(
                Committed(
                    who=self.who, begun=begun, ended=time.monotonic(), topic=self.place.topic_id, partition=partition,
                    group=self.group, offset=offset,
                )
            )  # fmt: skip

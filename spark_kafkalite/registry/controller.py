"""The controller: the one broker that elects leaders and changes the list of topics.

Claiming the role creates the ephemeral /controller and raises /controller_epoch in one multi. Every later write is a
multi that begins with a check of that epoch node's version: a controller that was deposed without noticing fails there
and steps down (KAFKA-6082). Partition states are written at the version that was read, because leaders write them too
(their ISR). Brokers are never told anything: they watch the registry (rule R9).

Elections and topic changes run one after the other, each on a snapshot that has caught up with the registry. Only the
controller creates and deletes topics, so between that snapshot and the writes no topic can be replaced by another one
whose node versions happen to be equal.

A topic of more partitions than fit into one multi is written in several: a crash between leaves partitions without
state, which the next controller gives one, or a marker in /admin/delete_topics, whose deletion it finishes.
Source: kafka.controller.KafkaController and kafka.zk.KafkaZkClient of Apache Kafka 3.9.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import (
    KafkaError,
    KafkaStorageError,
    NotController,
    RegistryError,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import (
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicPartition,
)
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster_state import ClusterState, PartitionState, TopicState, diff
from spark_kafkalite.registry.election import elect, needs_election
from spark_kafkalite.registry.store import (
    MAX_MULTI_OPERATIONS,
    BadVersion,
    Check,
    ConnectionLoss,
    Create,
    Delete,
    NodeExists,
    NoNode,
    Operation,
    OutOfRoom,
    SessionExpired,
    SetData,
    Store,
    answer,
)
from spark_kafkalite.registry.topic_plan import NewTopic, planned_extension, planned_topic
from spark_kafkalite.registry.watcher import ClusterWatcher
from spark_kafkalite.registry.znodes import LeaderAndIsr, TopicAssignment

__all__ = ["Controller", "NewTopic"]

_LOG = logging.getLogger(__name__)

NO_EPOCH: Final = ControllerEpoch(-1)


class Controller:
    """This broker's candidacy for the role, and the role while it has it. Lives in the watcher's event loop."""

    def __init__(
        self,
        store: Store,
        watcher: ClusterWatcher,
        broker_id: BrokerId,
        clock: Clock = SYSTEM_CLOCK,
        *,
        unclean_election: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """``unclean_election`` says whether a topic's ``unclean.leader.election.enable`` is on."""
        self._unclean_election = unclean_election
        self._store = store
        self._watcher = watcher
        self._broker_id = broker_id
        self._clock = clock
        self._epoch = NO_EPOCH
        self._epoch_version = -1
        self._working = asyncio.Lock()
        self._claiming = False
        self._to_check: set[TopicPartition] = set()
        self._check_all = False
        self._electing = False
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"Controller(broker {self._broker_id}, {f'epoch {self._epoch}' if self.is_active else 'not active'})"

    @property
    def is_active(self) -> bool:
        """Whether this broker has the role, as far as it knows: its writes are checked all the same."""
        return self._epoch != NO_EPOCH

    @property
    def epoch(self) -> ControllerEpoch:
        """The epoch under which this broker has the role, -1 when it has not."""
        return self._epoch

    async def start(self) -> None:
        """Try to get the role and, with it, bring every partition into order. The watcher must have started."""
        self._watcher.add_listener(self._on_change)
        await self._claim()

    async def close(self) -> None:
        """Give up the role, so that the next broker has it at once."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.is_active:
            self._resign()
            with contextlib.suppress(RegistryError):
                stat = await answer(self._store.exists(znodes.CONTROLLER))
                if stat is not None and stat.ephemeral_owner == self._store.session_id:
                    await answer(self._store.delete(znodes.CONTROLLER))

    # The role -------------------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        if self._claiming or self.is_active or self._closed:
            return
        self._claiming = True
        try:
            if not await self._take_role():
                return
        finally:
            self._claiming = False
        _LOG.info("broker %d is the controller, epoch %d", self._broker_id, self._epoch)
        async with self._working:
            await self._finish_deletions()
        self._check_all = True
        await self._elect_pending()

    async def _take_role(self) -> bool:
        """Create /controller and raise the epoch in one step; return whether this session has the role."""
        while True:
            with contextlib.suppress(NodeExists):
                await answer(self._store.create(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(0)))
            data, stat = await answer(self._store.get(znodes.CONTROLLER_EPOCH))
            epoch = znodes.decode_controller_epoch(data) + 1
            claim = znodes.encode_controller(self._broker_id, self._clock.wall_ms())
            try:
                await answer(
                    self._store.multi(
                        [
                            Create(znodes.CONTROLLER, claim, ephemeral=True),
                            SetData(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch), stat.version),
                        ]
                    )
                )
            except (NodeExists, BadVersion, ConnectionLoss):
                # The answer to a claim that succeeded may have been lost: then the node is this session's.
                holder = await answer(self._store.exists(znodes.CONTROLLER))
                if holder is None:
                    continue
                if holder.ephemeral_owner != self._store.session_id:
                    return False
                data, stat = await answer(self._store.get(znodes.CONTROLLER_EPOCH))
                self._epoch, self._epoch_version = znodes.decode_controller_epoch(data), stat.version
                return True
            self._epoch, self._epoch_version = ControllerEpoch(epoch), stat.version + 1
            return True

    def _resign(self) -> None:
        self._epoch, self._epoch_version = NO_EPOCH, -1

    async def _write(self, operations: Sequence[Operation]) -> list[Any]:
        """Do a multi that is fenced by the controller epoch. Raises NotController once another broker has the role."""
        if not self.is_active:
            raise NotController(f"broker {self._broker_id} is not the controller")
        try:
            results = await answer(
                self._store.multi([Check(znodes.CONTROLLER_EPOCH, self._epoch_version), *operations])
            )
        except BadVersion as error:
            if error.operation_index != 0:
                raise
            _LOG.warning("broker %d is no longer the controller", self._broker_id)
            self._resign()
            raise NotController(f"broker {self._broker_id} is no longer the controller") from error
        except SessionExpired as error:
            self._resign()
            raise NotController(f"broker {self._broker_id} has lost its registry session") from error
        return results[1:]

    def check_everything(self) -> None:
        """Look for partitions that need a leader: what the registry had no room for may succeed now."""
        if self.is_active and not self._closed:
            self._check_all = True
            self._spawn(self._elect_pending())

    # Elections --------------------------------------------------------------------------------------------------------

    def _on_change(self, old: ClusterState, new: ClusterState) -> None:
        if self._closed:
            return
        if not self.is_active:
            if new.controller_id == znodes.NO_LEADER:
                self._spawn(self._claim())
            return
        change = diff(old, new)
        brokers_changed = change.new_brokers or change.gone_brokers or change.bounced_brokers
        # Settings may have allowed an unclean election.
        if brokers_changed or change.changed_configs or old.broker_configs != new.broker_configs:
            self._check_all = True
        self._to_check.update(change.changed_partitions)
        if self._candidates(new):
            self._spawn(self._elect_pending())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("the controller's work failed: %s", task.exception(), exc_info=task.exception())

    def _candidates(self, state: ClusterState) -> list[tuple[TopicPartition, PartitionState]]:
        """Return the partitions, of those to check, that an election can help; the others are checked off."""
        wanted: Iterable[TopicPartition] = self._to_check
        if self._check_all:
            wanted = (
                TopicPartition(name, number) for name, topic in state.topics.items() for number in topic.partitions
            )
        found = []
        for topic_partition in wanted:
            partition = state.partition(topic_partition)
            if partition is None or not needs_election(partition, state.brokers):
                continue
            leaderless = partition.has_state and partition.leader == znodes.NO_LEADER
            unclean = self._unclean_election(topic_partition.topic)
            if leaderless and elect(partition, state.brokers, unclean=unclean).leader == znodes.NO_LEADER:
                continue
            found.append((topic_partition, partition))
        self._check_all = False
        self._to_check = {topic_partition for topic_partition, _ in found}
        return found

    async def _elect_pending(self) -> None:
        """Elect where it is needed, until nothing is. One pass at a time; a change meanwhile only adds to it."""
        if self._electing:
            return
        self._electing = True
        # What a write was refused for; the same again after catching up means that the node cannot be read.
        refused: dict[TopicPartition, PartitionState] = {}
        try:
            while self.is_active:
                async with self._working:
                    state = await self._watcher.caught_up()
                    candidates = [each for each in self._candidates(state) if refused.get(each[0]) is not each[1]]
                    self._to_check.intersection_update(topic_partition for topic_partition, _ in candidates)
                    if not candidates:
                        return
                    # Submitted together, answered together: one registry round for all partitions of a dead broker.
                    outcomes = await asyncio.gather(
                        *(self._elect_one(topic_partition, state) for topic_partition, _ in candidates),
                        return_exceptions=True,
                    )
                for (topic_partition, partition), outcome in zip(candidates, outcomes, strict=True):
                    if isinstance(outcome, (BadVersion, NodeExists)):
                        refused[topic_partition] = partition
                    if isinstance(outcome, (ConnectionLoss, NotController)):
                        return  # the next session or controller begins with a check of everything
                    if isinstance(outcome, BaseException) and not isinstance(outcome, (BadVersion, NoNode, NodeExists)):
                        _LOG.error("electing a leader for %s failed: %s", topic_partition, outcome)
                        self._to_check.discard(topic_partition)
        finally:
            self._electing = False

    async def _elect_one(self, topic_partition: TopicPartition, cluster: ClusterState) -> None:
        name, number = topic_partition
        topic = cluster.topics[name]
        partition = topic.partitions[number]
        elected = elect(partition, cluster.brokers, unclean=self._unclean_election(name))
        epoch = LeaderEpoch(partition.leader_epoch + 1)
        data = LeaderAndIsr(elected.leader, epoch, elected.isr, self._epoch).encode()
        path = znodes.state_path(name, number)
        if partition.has_state:
            await self._write([SetData(path, data, partition.version)])
        else:
            with contextlib.suppress(NodeExists):
                await answer(self._store.create(znodes.partitions_path(name)))
            with contextlib.suppress(NodeExists):
                await answer(self._store.create(znodes.partition_path(name, number)))
            await self._write([Create(path, data)])
        _LOG.info("%s: leader %d, epoch %d, ISR %s", topic_partition, elected.leader, epoch, list(elected.isr))

    # Topics -----------------------------------------------------------------------------------------------------------

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicAssignment | KafkaError]:
        """Create topics with their leaders elected; give each one's assignment, or the error that it met.

        Brokers see them a moment later (``ClusterWatcher.wait_for``). Raises NotController (41).
        """
        results: dict[str, TopicAssignment | KafkaError] = {}
        async with self._working:
            state = await self._current_state()
            for topic in topics:
                try:
                    assignment = planned_topic(topic, state)
                    if not validate_only:
                        await self._create_topic(topic, assignment, state)
                    results[topic.name] = assignment
                except NotController:
                    raise
                except (KafkaError, RegistryError) as error:
                    results[topic.name] = _as_kafka_error(error, f"creating topic {topic.name}")
        return results

    async def _create_topic(self, topic: NewTopic, assignment: TopicAssignment, cluster: ClusterState) -> None:
        config_path, config = znodes.topic_config_path(topic.name), znodes.encode_config(topic.config)
        left_over = await answer(self._store.exists(config_path))
        operations: list[Operation] = [
            SetData(config_path, config) if left_over else Create(config_path, config),
            Create(znodes.topic_path(topic.name), assignment.encode()),
            Create(znodes.partitions_path(topic.name)),
        ]
        for number, replicas in assignment.partitions.items():
            operations += self._partition_operations(topic.name, number, replicas, cluster)
        try:
            await self._write_in_pieces(operations)
        except NodeExists as error:
            raise TopicAlreadyExists(f"topic {topic.name} exists") from error

    def _partition_operations(
        self, name: str, number: int, replicas: tuple[BrokerId, ...], cluster: ClusterState
    ) -> list[Operation]:
        elected = elect(PartitionState(replicas), cluster.brokers)
        state = LeaderAndIsr(elected.leader, LeaderEpoch(0), elected.isr, self._epoch)
        return [
            Create(znodes.partition_path(name, number)),
            Create(znodes.state_path(name, number), state.encode()),
        ]

    async def _write_in_pieces(self, operations: Sequence[Operation]) -> None:
        piece = MAX_MULTI_OPERATIONS - 1
        for first in range(0, len(operations), piece):
            await self._write(operations[first : first + piece])

    async def create_partitions(
        self, name: str, total: int, assignment: Sequence[Sequence[int]] | None = None, *, validate_only: bool = False
    ) -> TopicAssignment:
        """Extend a topic to ``total`` partitions; ``assignment`` lists the replicas of the new ones only.

        Raises UnknownTopicOrPartition (3), InvalidPartitions (37), InvalidReplicaAssignment (39), NotController (41).
        """
        async with self._working:
            state = await self._current_state()
            topic = _known(state, name)
            try:
                data, stat = await answer(self._store.get(znodes.topic_path(name)))
                old = TopicAssignment.decode(name, data)
                added = planned_extension(name, old, total, assignment, state)
                extended = TopicAssignment(topic.topic_id, {**old.partitions, **added})
                if validate_only:
                    return extended
                operations: list[Operation] = [SetData(znodes.topic_path(name), extended.encode(), stat.version)]
                for number, replicas in added.items():
                    operations += self._partition_operations(name, number, replicas, state)
                await self._write_in_pieces(operations)
            except RegistryError as error:
                raise _as_kafka_error(error, f"adding partitions to topic {name}") from error
            return extended

    async def delete_topics(self, names: Iterable[str]) -> dict[str, KafkaError | None]:
        """Remove topics from the registry; brokers remove the data when they see it. Raises NotController (41)."""
        results: dict[str, KafkaError | None] = {}
        async with self._working:
            state = await self._current_state()
            for name in names:
                try:
                    if name not in state.unreadable_topics:
                        _known(state, name)
                    await self._delete_topic(name)
                    results[name] = None
                except NotController:
                    raise
                except (KafkaError, RegistryError) as error:
                    results[name] = _as_kafka_error(error, f"deleting topic {name}")
        return results

    async def _delete_topic(self, name: str) -> None:
        marker = znodes.deleted_topic_path(name)
        deletions: list[Operation] = [Delete(path) for path in reversed(await self._subtree(znodes.topic_path(name)))]
        if await answer(self._store.exists(znodes.topic_config_path(name))):
            deletions.append(Delete(znodes.topic_config_path(name)))
        marked = await answer(self._store.exists(marker)) is not None
        if not marked and len(deletions) >= MAX_MULTI_OPERATIONS:
            await self._write([Create(marker)])
            marked = True
        if marked:
            deletions.append(Delete(marker))
        await self._write_in_pieces(deletions)

    async def _subtree(self, path: str) -> list[str]:
        """Return the paths at and below ``path``, parents first; none when it does not exist."""
        found: list[str] = []
        level = [path] if await answer(self._store.exists(path)) else []
        while level:
            found += level
            children = await asyncio.gather(*(answer(self._store.children(parent)) for parent in level))
            level = [f"{parent}/{name}" for parent, names in zip(level, children, strict=True) for name in names]
        return found

    async def _finish_deletions(self) -> None:
        """Finish what a former controller, or a tool that writes the marker, has begun."""
        for name in await answer(self._store.children(znodes.DELETED_TOPICS)):
            _LOG.info("finishing the deletion of topic %s", name)
            await self._delete_topic(name)

    async def _current_state(self) -> ClusterState:
        if not self.is_active:
            raise NotController(f"broker {self._broker_id} is not the controller")
        return await self._watcher.caught_up()


def _known(state: ClusterState, name: str) -> TopicState:
    topic = state.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"topic {name} does not exist")
    return topic


def _as_kafka_error(error: KafkaError | RegistryError, what: str) -> KafkaError:
    """Turn a registry's error into one with a wire code."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, OutOfRoom):
        return KafkaStorageError(f"{what}: {error}")
    return RequestTimedOut(f"{what}: the registry did not answer ({error}); it may or may not have been done")

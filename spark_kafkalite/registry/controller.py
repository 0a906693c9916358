"""The controller: the one broker that elects leaders and changes the list of topics.

Claiming the role creates the ephemeral /controller and raises /controller_epoch in one multi. Every later write is a
multi that begins with a check of that epoch node's version: a controller that was deposed without noticing fails there
and steps down (KAFKA-6082). Partition states are written at the version that was read, because leaders write them too
(their ISR). Brokers are never told anything: they watch the registry (rule R9).

Elections and topic changes run one after the other, each on a snapshot that has caught up with the registry. Only the
controller creates and deletes topics, so between that snapshot and the writes no topic can be replaced by another one
whose node versions happen to be equal.

Requests of thousands of topics or partitions are planned in slices (``slices``) and written some at a time, each topic
in a multi of its own and those of a batch in one commit of the registry. Of elections, too, many share a multi.

A topic of more partitions than fit into one multi is written in several: a crash between leaves partitions without
state, which the next controller gives one, or a marker in /admin/delete_topics, whose deletion it finishes.
Source: kafka.controller.KafkaController and kafka.zk.KafkaZkClient of Apache Kafka 3.9.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import (
    InvalidPartitions,
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
from spark_kafkalite.registry import topic_writes, znodes
from spark_kafkalite.registry.cluster_state import ClusterChange, ClusterState, PartitionState, TopicState
from spark_kafkalite.registry.election import elect, needs_election
from spark_kafkalite.registry.store import (
    BadVersion,
    Check,
    ConnectionLoss,
    Create,
    Delete,
    NodeError,
    NodeExists,
    NoNode,
    Operation,
    OutOfRoom,
    SessionExpired,
    SetData,
    Store,
    answer,
)
from spark_kafkalite.registry.topic_plan import Extension, NewTopic, planned_extension, planned_topics
from spark_kafkalite.registry.watcher import ClusterWatcher
from spark_kafkalite.registry.znodes import LeaderAndIsr, TopicAssignment
from spark_kafkalite.slices import Slices, Work

__all__ = ["Controller", "Extension", "NewTopic"]

_LOG = logging.getLogger(__name__)

NO_EPOCH: Final = ControllerEpoch(-1)
# Elections that share a multi; and nodes that are looked at together.
_ELECTED_AT_ONCE: Final = 100
_LISTED_AT_ONCE: Final = 100

_Candidates = Sequence[tuple[TopicPartition, PartitionState]]


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
        slices: Slices | None = None,
    ) -> None:
        """``unclean_election`` says whether a topic's ``unclean.leader.election.enable`` is on; ``slices``: the long
        work of the loop that it will live in, its own when nobody shares them."""
        self._shared_slices = slices
        self._slices: Slices
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
        self._slices = self._shared_slices or Slices(asyncio.get_running_loop())
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

    def _on_change(self, old: ClusterState, new: ClusterState, change: ClusterChange) -> None:
        if self._closed:
            return
        if not self.is_active:
            if new.controller_id == znodes.NO_LEADER:
                self._spawn(self._claim())
            return
        if change.new_brokers or change.gone_brokers or change.bounced_brokers:
            self._check_all = True
        # Settings may have allowed an unclean election.
        if old.broker_configs != new.broker_configs:
            self._check_all = True
        for name in change.changed_configs:
            self._to_check.update(TopicPartition(name, number) for number in new.topics[name].partitions)
        for topic_partition in change.changed_partitions:
            partition = new.partition(topic_partition)
            if partition is not None and needs_election(partition, new.brokers):
                self._to_check.add(topic_partition)
        if (self._check_all or self._to_check) and not self._electing:
            self._spawn(self._elect_pending())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("the controller's work failed: %s", task.exception(), exc_info=task.exception())

    def _candidates(self, state: ClusterState) -> Work[_Candidates]:
        """Return the partitions, of those to check, that an election can help; the others are checked off."""
        wanted: Iterable[TopicPartition] = self._to_check
        if self._check_all:
            wanted = (
                TopicPartition(name, number) for name, topic in state.topics.items() for number in topic.partitions
            )
        # What is added from here on is for the next look.
        self._check_all, self._to_check = False, set()
        found = []
        for topic_partition in wanted:
            yield None
            partition = state.partition(topic_partition)
            if partition is None or not needs_election(partition, state.brokers):
                continue
            leaderless = partition.has_state and partition.leader == znodes.NO_LEADER
            unclean = self._unclean_election(topic_partition.topic)
            if leaderless and elect(partition, state.brokers, unclean=unclean).leader == znodes.NO_LEADER:
                continue
            found.append((topic_partition, partition))
        return found

    async def _elect_pending(self) -> None:
        """Elect where it is needed, until nothing is. One pass at a time; a change meanwhile only adds to it."""
        if self._electing:
            return
        self._electing = True
        # What a write was refused for; the same again after catching up means that the node cannot be read.
        refused: dict[TopicPartition, PartitionState] = {}
        try:
            while self.is_active and (self._check_all or self._to_check):
                async with self._working:
                    state = await self._watcher.caught_up()
                    found = await self._slices.run(self._candidates(state))
                    candidates = (each for each in found if refused.get(each[0]) is not each[1])
                    while batch := list(islice(candidates, _ELECTED_AT_ONCE)):
                        if not await self._elect(batch, state, refused):
                            return  # the next session or controller begins with a check of everything
        finally:
            self._electing = False

    async def _elect(
        self, batch: _Candidates, state: ClusterState, refused: dict[TopicPartition, PartitionState]
    ) -> bool:
        """Elect leaders of some partitions; return whether this broker may go on. Notes what was refused."""
        try:
            operations = [self._election(*candidate, state) for candidate in batch if candidate[1].has_state]
            if operations:
                await self._write(operations)
        except (ConnectionLoss, NotController):
            return False
        except RegistryError:
            # None of them has happened: each is tried by itself, to find the one that it was for.
            alone = batch
        else:
            alone = [candidate for candidate in batch if not candidate[1].has_state]
        outcomes = await asyncio.gather(
            *(self._elect_one(*candidate, state) for candidate in alone), return_exceptions=True
        )
        for candidate, outcome in zip(alone, outcomes, strict=True):
            if isinstance(outcome, (ConnectionLoss, NotController)):
                return False
            if isinstance(outcome, (BadVersion, NoNode, NodeExists)):
                # Somebody else has written it meanwhile, or it cannot be read.
                self._to_check.add(candidate[0])
                if not isinstance(outcome, NoNode):
                    refused[candidate[0]] = candidate[1]
            elif isinstance(outcome, BaseException):
                _LOG.error("electing a leader for %s failed: %s", candidate[0], outcome)
        return True

    def _election(self, topic_partition: TopicPartition, partition: PartitionState, cluster: ClusterState) -> SetData:
        """Return the write that gives a partition with a state its leader."""
        path = znodes.state_path(*topic_partition)
        return SetData(path, self._elected(topic_partition, partition, cluster), partition.version)

    def _elected(self, topic_partition: TopicPartition, partition: PartitionState, cluster: ClusterState) -> bytes:
        leader, isr = elect(partition, cluster.brokers, unclean=self._unclean_election(topic_partition.topic))
        epoch = LeaderEpoch(partition.leader_epoch + 1)
        _LOG.info("%s: leader %d, epoch %d, ISR %s", topic_partition, leader, epoch, list(isr))
        return LeaderAndIsr(leader, epoch, isr, self._epoch).encode()

    async def _elect_one(
        self, topic_partition: TopicPartition, partition: PartitionState, cluster: ClusterState
    ) -> None:
        if partition.has_state:
            await self._write([self._election(topic_partition, partition, cluster)])
            return
        name, number = topic_partition
        for path in (znodes.partitions_path(name), znodes.partition_path(name, number)):
            with contextlib.suppress(NodeExists):
                await answer(self._store.create(path))
        await self._write([Create(znodes.state_path(name, number), self._elected(topic_partition, partition, cluster))])

    # Topics -----------------------------------------------------------------------------------------------------------

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicAssignment | KafkaError]:
        """Create topics with their leaders elected; give each one's assignment, or the error that it met.

        Brokers see them a moment later (``ClusterWatcher.wait_for``). Raises NotController (41).
        """
        async with self._working:
            state = await self._current_state()
            planned = await self._slices.run(planned_topics(topics, state))
            if not validate_only:
                accepted = ((topic, topic.size) for topic in topics if isinstance(planned[topic.name], TopicAssignment))
                for batch in topic_writes.batches(accepted):
                    outcomes = await asyncio.gather(
                        *(self._create_topic(topic, planned[topic.name], state) for topic in batch),
                        return_exceptions=True,
                    )
                    _take_outcomes(planned, {topic.name: "creating" for topic in batch}, outcomes)
        return planned

    async def _create_topic(
        self, topic: NewTopic, assignment: TopicAssignment | KafkaError, cluster: ClusterState
    ) -> TopicAssignment:
        assert isinstance(assignment, TopicAssignment)
        encoded = await self._encoded(topic.name, assignment)

        async def write(*, replaces_config: bool) -> None:
            partitions, live = assignment.partitions, cluster.brokers
            await self._write_in_pieces(
                topic_writes.creation(topic, encoded, partitions, live, self._epoch, replaces_config=replaces_config)
            )

        try:
            try:
                await write(replaces_config=False)
            except NodeExists as error:
                if error.path != znodes.topic_config_path(topic.name):
                    raise
                await write(replaces_config=True)
        except NodeExists as error:
            raise TopicAlreadyExists(f"topic {topic.name} exists") from error
        return assignment

    async def _encoded(self, name: str, assignment: TopicAssignment) -> bytes:
        encoded = await self._slices.run(assignment.encode_work())
        if len(encoded) > topic_writes.MAX_ASSIGNMENT_BYTES:
            raise InvalidPartitions(
                f"topic {name}: {len(assignment.partitions)} partitions take {len(encoded)} bytes in "
                f"the registry; {topic_writes.MAX_ASSIGNMENT_BYTES} are the most: use several topics"
            )
        return encoded

    async def _write_in_pieces(self, operations: Iterable[Operation]) -> None:
        for piece in topic_writes.pieces(operations):
            await self._write(piece)

    async def extend_topics(
        self, extensions: Sequence[Extension], *, validate_only: bool = False
    ) -> dict[str, TopicAssignment | KafkaError]:
        """Give topics more partitions, with leaders elected; return each one's assignment, or the error that it met.

        Raises NotController (41).
        """
        results: dict[str, TopicAssignment | KafkaError] = {}
        async with self._working:
            state = await self._current_state()
            sized = ((extension, max(extension.total, 1)) for extension in extensions)
            for batch in topic_writes.batches(sized):
                outcomes = await asyncio.gather(
                    *(self._extend_topic(extension, state, validate_only=validate_only) for extension in batch),
                    return_exceptions=True,
                )
                _take_outcomes(results, {extension.name: "adding partitions to" for extension in batch}, outcomes)
        return results

    async def _extend_topic(self, extension: Extension, state: ClusterState, *, validate_only: bool) -> TopicAssignment:
        name = extension.name
        topic = _known(state, name)
        data, stat = await answer(self._store.get(znodes.topic_path(name)))
        old = await self._slices.run(TopicAssignment.decode_work(name, data))
        added = await self._slices.run(planned_extension(extension, old, state))
        extended = TopicAssignment(topic.topic_id, {**old.partitions, **added})
        encoded = await self._encoded(name, extended)
        if not validate_only:
            topic_node = SetData(znodes.topic_path(name), encoded, stat.version)
            await self._write_in_pieces(
                chain([topic_node], topic_writes.new_partitions(name, added, state.brokers, self._epoch))
            )
        return extended

    async def delete_topics(self, names: Sequence[str]) -> dict[str, KafkaError | None]:
        """Remove topics from the registry; brokers remove the data when they see it. Raises NotController (41)."""
        results: dict[str, KafkaError | None] = {}
        async with self._working:
            state = await self._current_state()
            names_marked: list[str] = await answer(self._store.children(znodes.DELETED_TOPICS))
            marked = set(names_marked)
            known = {name: topic for name in names if (topic := state.topics.get(name)) is not None}
            for batch in topic_writes.batches((name, len(topic.partitions)) for name, topic in known.items()):
                outcomes = await asyncio.gather(
                    *(self._delete_topic(name, known[name], marked=name in marked) for name in batch),
                    return_exceptions=True,
                )
                _take_outcomes(results, dict.fromkeys(batch, "deleting"), outcomes)
            unreadable = [name for name in dict.fromkeys(names) if name in state.unreadable_topics]
            outcomes = await asyncio.gather(*map(self._delete_found, unreadable), return_exceptions=True)
            _take_outcomes(results, dict.fromkeys(unreadable, "deleting"), outcomes)
        for name in names:
            if name not in known and name not in results:
                results[name] = UnknownTopicOrPartition(f"topic {name} does not exist")
        return results

    async def _delete_topic(self, name: str, topic: TopicState, *, marked: bool) -> None:
        marker = znodes.deleted_topic_path(name)
        if not marked and not topic_writes.fits_one_multi(topic):
            await self._write([Create(marker)])
            marked = True
        try:
            last = [Delete(marker)] if marked else []
            await self._write_in_pieces(chain(topic_writes.deletion(name, topic), last))
        except NodeError:
            # There is less, or more, than a topic of ours consists of.
            await self._delete_found(name)

    async def _delete_found(self, name: str) -> None:
        """Delete whatever there is of a topic, and its marker last."""
        marker, config = znodes.deleted_topic_path(name), znodes.topic_config_path(name)
        with contextlib.suppress(NodeExists):
            await self._write([Create(marker)])
        paths = [*reversed(await self._subtree(znodes.topic_path(name)))]
        if await answer(self._store.exists(config)):
            paths.append(config)
        await self._write_in_pieces(Delete(path) for path in (*paths, marker))

    async def _subtree(self, path: str) -> list[str]:
        """Return the paths at and below ``path``, parents first; none when it does not exist."""
        found: list[str] = []
        level = [path] if await answer(self._store.exists(path)) else []
        while level:
            found += level
            below: list[str] = []
            for first in range(0, len(level), _LISTED_AT_ONCE):
                parents = level[first : first + _LISTED_AT_ONCE]
                children: list[list[str]] = await asyncio.gather(
                    *(answer(self._store.children(parent)) for parent in parents)
                )
                below += [f"{parent}/{name}" for parent, names in zip(parents, children, strict=True) for name in names]
            level = below
        return found

    async def _finish_deletions(self) -> None:
        """Finish what a former controller, or a tool that writes the marker, has begun."""
        for name in await answer(self._store.children(znodes.DELETED_TOPICS)):
            _LOG.info("finishing the deletion of topic %s", name)
            await self._delete_found(name)

    async def _current_state(self) -> ClusterState:
        if not self.is_active:
            raise NotController(f"broker {self._broker_id} is not the controller")
        return await self._watcher.caught_up()


def _known(state: ClusterState, name: str) -> TopicState:
    topic = state.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"topic {name} does not exist")
    return topic


def _take_outcomes(results: dict[str, Any], doing: Mapping[str, str], outcomes: Sequence[Any]) -> None:
    """Put what became of some topics among the results. Raises NotController, and what nobody has foreseen."""
    for (name, what), outcome in zip(doing.items(), outcomes, strict=True):
        if isinstance(outcome, NotController):
            raise outcome
        if isinstance(outcome, (KafkaError, RegistryError)):
            outcome = _as_kafka_error(outcome, f"{what} topic {name}")
        elif isinstance(outcome, BaseException):
            raise outcome
        results[name] = outcome


def _as_kafka_error(error: KafkaError | RegistryError, what: str) -> KafkaError:
    """Turn a registry's error into one with a wire code."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, OutOfRoom):
        return KafkaStorageError(f"{what}: {error}")
    return RequestTimedOut(f"{what}: the registry did not answer ({error}); it may or may not have been done")

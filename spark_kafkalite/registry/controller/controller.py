"""The controller: the one broker that elects leaders and changes the list of topics. One candidacy a registry session.

Claiming the role creates the ephemeral /controller and raises /controller_epoch in one multi. Every later write is a
multi that begins with a check of that epoch node's version: a controller that was deposed without noticing fails there
and steps down (KAFKA-6082). Partition states are written at the version that was read, because leaders write them too
(their ISR). Brokers are never told anything: they watch the registry (rule R9).

Elections and topic changes run one after the other, each on a snapshot that has caught up with the registry. Only the
controller creates and deletes topics, so between that snapshot and the writes no topic can be replaced by another one
whose node versions happen to be equal.

Changes of topics are made by ``topic_changes``. Of elections many share a multi.

A topic of more partitions than fit into one multi is written in several: a crash between leaves partitions without
state, which the next controller gives one, or a marker in /admin/delete_topics, whose deletion it finishes.

The role ends with the session: what is being written then fails, and may or may not have happened. What a broken
connection has interrupted is taken up when it is back (:meth:`Controller.resume`, rule R13).
Source: kafka.controller.KafkaController and kafka.zk.KafkaZkClient of Apache Kafka 3.9.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any, Final

from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import (
    KafkaError,
    NotController,
    RegistryError,
)
from spark_kafkalite.model import (
    BrokerId,
    ControllerEpoch,
    TopicPartition,
)
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import ClusterChange, ClusterState, PartitionState
from spark_kafkalite.registry.cluster.watcher import ClusterWatcher
from spark_kafkalite.registry.controller.election import Elected, elect, needs_election, why_leaderless
from spark_kafkalite.registry.controller.topic_changes import TopicChanges
from spark_kafkalite.registry.controller.topic_plan import Extension, TopicSpec
from spark_kafkalite.registry.store import (
    BadVersion,
    Check,
    ConnectionLoss,
    Create,
    NodeExists,
    NoNode,
    Operation,
    SessionExpired,
    SessionState,
    SetData,
    Store,
    answer,
)
from spark_kafkalite.registry.znodes import TopicAssignment
from spark_kafkalite.slices import Slices, Work

__all__ = ["Controller", "Extension", "TopicSpec"]

_LOG = logging.getLogger(__name__)

NO_EPOCH: Final = ControllerEpoch(-1)
# Elections that share a multi.
_ELECTED_AT_ONCE: Final = 100

_Candidates = Sequence[tuple[TopicPartition, PartitionState]]


class Controller:
    """This session's candidacy for the role, and the role while it has it. Lives in the watcher's event loop."""

    def __init__(
        self,
        store: Store,
        watcher: ClusterWatcher,
        broker_id: BrokerId,
        clock: Clock = SYSTEM_CLOCK,
        *,
        unclean_election: Callable[[str], bool] = lambda _: False,
        min_insync: Callable[[str], int] = lambda _: 1,
        slices: Slices | None = None,
    ) -> None:
        """``unclean_election`` says whether a topic's ``unclean.leader.election.enable`` is on, ``min_insync`` with how
        many in-sync replicas its high watermark moves (``election``); ``slices``: the long
        work of the running loop, its own when nobody shares them."""
        self._slices = slices or Slices(asyncio.get_running_loop())
        self._topics = TopicChanges(store, self._slices, self._write, lambda: self._epoch)
        self._unclean_election = unclean_election
        self._min_insync = min_insync
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
        self._watcher.view.add_listener(self._on_change)
        await self._claim()

    def resume(self) -> None:
        """Go on with what a broken connection has interrupted: claim the role, or look at everything (rule R13)."""
        if not self._closed:
            self._spawn(self._bring_into_order() if self.is_active else self._claim())

    async def close(self) -> None:
        """Give up the role, so that the next broker has it at once; with its session, if that has ended."""
        self._closed = True
        self._watcher.view.remove_listener(self._on_change)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        was_active = self.is_active
        self._resign()
        if was_active and self._store.state is not SessionState.LOST:
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
        await self._bring_into_order()

    async def _bring_into_order(self) -> None:
        async with self._working:
            await self._topics.finish_deletions()
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
        """Do a multi that is fenced by the controller epoch.

        Raises NotController once another broker has the role; SessionExpired when the session ends before the answer:
        whether it was done is not known then.
        """
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
        except SessionExpired:
            self._resign()
            raise
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
        error = None if task.cancelled() else task.exception()
        if isinstance(error, (ConnectionLoss, SessionExpired)):
            _LOG.warning("the controller's work was interrupted: %s", error)
        elif error is not None:
            _LOG.error("the controller's work failed: %s", error, exc_info=error)

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
            leaderless = partition.leader == znodes.NO_LEADER
            if leaderless and self._outcome(topic_partition, partition, state).leader == znodes.NO_LEADER:
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
                            return  # after a reconnection, and in the next session, everything is looked at
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
        except (ConnectionLoss, NotController, SessionExpired):
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
            if isinstance(outcome, (ConnectionLoss, NotController, SessionExpired)):
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
        elected = self._outcome(topic_partition, partition, cluster)
        epoch = partition.leader_epoch + 1
        if elected.leader == znodes.NO_LEADER:
            why = why_leaderless(partition, cluster.brokers)
            _LOG.warning("%s: no leader, epoch %d: %s", topic_partition, epoch, why)
        else:
            _LOG.info("%s: leader %d, epoch %d, ISR %s", topic_partition, elected.leader, epoch, list(elected.isr))
        return elected.as_node(epoch, self._epoch).encode()

    def _outcome(self, topic_partition: TopicPartition, partition: PartitionState, cluster: ClusterState) -> Elected:
        name = topic_partition.topic
        return elect(
            partition,
            cluster.brokers,
            min_insync=self._min_insync(name),
            unclean=self._unclean_election(name),
        )

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
        self, topics: Sequence[TopicSpec], *, validate_only: bool = False
    ) -> dict[str, TopicAssignment | KafkaError]:
        """Create topics with their leaders elected; give each one's assignment, or the error that it met.

        Brokers see them a moment later (``ClusterView.wait_for``). Raises NotController (41).
        """
        async with self._working:
            return await self._topics.create(topics, await self._current_state(), validate_only=validate_only)

    async def extend_topics(
        self, extensions: Sequence[Extension], *, validate_only: bool = False
    ) -> dict[str, TopicAssignment | KafkaError]:
        """Give topics more partitions, with leaders elected; return each one's assignment, or the error that it met.

        Raises NotController (41).
        """
        async with self._working:
            return await self._topics.extend(extensions, await self._current_state(), validate_only=validate_only)

    async def delete_topics(self, names: Sequence[str]) -> dict[str, KafkaError | None]:
        """Remove topics from the registry; brokers remove the data when they see it. Raises NotController (41)."""
        async with self._working:
            return await self._topics.delete(names, await self._current_state())

    async def _current_state(self) -> ClusterState:
        if not self.is_active:
            raise NotController(f"broker {self._broker_id} is not the controller")
        return await self._watcher.caught_up()

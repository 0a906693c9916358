"""Begins, replaces, cancels and ends reassignments of partitions, for the controller. ``reassignment`` has the rules.

Partitions of one topic are written together: a multi writes the topic node and the states of up to five hundred of
them, each at the version that was read (V3). The topic node alone is written where no state changes. Where a leader has
written one of the states meanwhile, the multi is refused. Then the partitions are written by halves, so that only that
one waits for the next round.

A reassignment is in the registry alone. The controller checks all of them when it takes the role and after every
reconnection (V8), and those whose partitions, brokers or settings change.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from spark_kafkalite.errors import (
    InvalidReplicaAssignment,
    KafkaError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import BrokerId, TopicPartition
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import ClusterChange, ClusterState, PartitionState
from spark_kafkalite.registry.cluster.state_nodes import StateChange
from spark_kafkalite.registry.controller import reassignment
from spark_kafkalite.registry.controller.role import ControllerRole
from spark_kafkalite.registry.controller.topic_writes import MAX_ASSIGNMENT_BYTES
from spark_kafkalite.registry.multi_pieces import PIECE_BYTES
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import BadVersion, Check, NodeExists, NoNode, Operation, SetData, Store, answer
from spark_kafkalite.registry.znodes import TopicAssignment
from spark_kafkalite.slices import Slices, Work

_LOG = logging.getLogger(__name__)

# Partitions whose states are written in one multi; where no state is written, any number. Every broker reads the whole
# topic node again after each multi, so few large ones are cheaper.
_TOGETHER: Final = 500
# What a state's operation has besides the encoded state, at most.
_STATE_PATH_BYTES: Final = 400
# Of what somebody has asked for, when others write the same nodes.
_ASKED_TRIES: Final = 5
# Partitions that get a line of their own in the log.
_TOLD: Final = 10


@dataclass(frozen=True, slots=True)
class AskedMove:
    """A reassignment that is asked for: the brokers that are to have the partition, None to cancel."""

    topic_partition: TopicPartition
    targets: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class _Move:
    """A partition before and after a write."""

    number: int
    before: PartitionState
    after: PartitionState
    change: StateChange

    @property
    def writes_state(self) -> bool:
        return self.before.node != self.after.node

    @property
    def is_list_only(self) -> bool:
        """Whether the state does not matter: no replica leaves, and nothing ends."""
        return not self.writes_state and (self.after.is_moving or not self.before.is_moving)


@dataclass(slots=True)
class _Written:
    """What has come of the writes of a topic."""

    done: list[_Move] = field(default_factory=list)
    overtaken: list[_Move] = field(default_factory=list)
    refused: dict[int, KafkaError] = field(default_factory=dict)


class Moves:
    """See the module's text. Lives in the controller's event loop; one call of :meth:`run` or :meth:`ask` at a time."""

    def __init__(
        self,
        store: Store,
        slices: Slices,
        role: ControllerRole,
        min_insync: Callable[[str], int],
    ) -> None:
        """``min_insync`` as the ``Controller`` takes it."""
        self._store = store
        self._slices = slices
        self._role = role
        self._min_insync = min_insync
        self._to_check: set[TopicPartition] = set()
        self._check_all = False

    @property
    def are_due(self) -> bool:
        """Whether there are reassignments to check."""
        return self._check_all or bool(self._to_check)

    def have_begun(self, state: ClusterState) -> bool:
        """Return whether any reassignment is in progress; if not, nothing is left to check."""
        if any(topic.moving for topic in state.topics.values()):
            return True
        self._check_all, self._to_check = False, set()
        return False

    def look_at_everything(self) -> None:
        """Have the next round check all reassignments."""
        self._check_all = True

    def look_at_changes(self, old: ClusterState, new: ClusterState, change: ClusterChange) -> None:
        """Have the next round check the reassignments that a change of the cluster may let end."""
        if change.new_brokers or change.bounced_brokers or old.broker_configs != new.broker_configs:
            self._check_all = True
        for name in change.changed_configs:
            self._to_check.update(TopicPartition(name, number) for number in new.topics[name].moving)
        for topic_partition in change.changed_partitions:
            topic = new.topics.get(topic_partition.topic)
            if topic is not None and topic_partition.partition in topic.moving:
                self._to_check.add(topic_partition)

    # A round --------------------------------------------------------------------------------------------------------

    async def run(self, state: ClusterState) -> None:
        """End the reassignments that can end. The next call handles what others have written meanwhile.

        Raises NotController, RegistryError; all are checked again then.
        """
        try:
            for name, moves in (await self._slices.run(self._ending(state))).items():
                written = await self._write_topic(name, state, moves)
                for move in written.done:
                    _LOG.info(
                        "%s-%d: its reassignment has ended; replicas %s, leader %d, epoch %d",
                        name, move.number, list(move.after.replicas), move.after.leader, move.after.leader_epoch,
                    )  # fmt: skip
                self._to_check.update(TopicPartition(name, each.number) for each in written.overtaken)
                for number, error in written.refused.items():
                    _LOG.error("%s-%d: its reassignment cannot end: %s", name, number, error)
        except BaseException:
            self._check_all = True
            raise

    def _ending(self, state: ClusterState) -> Work[dict[str, list[_Move]]]:
        """Return the writes that end reassignments; what cannot end is checked off."""
        wanted: set[TopicPartition] = self._to_check
        if self._check_all:
            wanted = {TopicPartition(name, number) for name, topic in state.topics.items() for number in topic.moving}
        self._check_all, self._to_check = False, set()
        found: dict[str, list[_Move]] = {}
        for name, number in sorted(wanted):
            yield None
            before = state.partition(TopicPartition(name, number))
            if before is None:
                continue
            after = reassignment.ended(before, state.brokers, self._min_insync(name), self._role.epoch)
            if after is not None:
                found.setdefault(name, []).append(_move(state, name, number, before, after))
        return found

    # What is asked for ----------------------------------------------------------------------------------------------

    async def ask(
        self,
        asked: Sequence[AskedMove],
        state: ClusterState,
        caught_up: Callable[[], Awaitable[ClusterState]],
        *,
        allows_other_factor: bool,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Begin, replace and cancel reassignments; ``caught_up`` gives the next state. Each partition is named once.

        Gives each one's error, None for success. Raises NotController, RegistryError.
        """
        results: dict[TopicPartition, KafkaError | None] = {}
        left: Sequence[AskedMove] = asked
        for number in range(_ASKED_TRIES):
            if number:
                state = await caught_up()
            found = await self._slices.run(self._planned(left, state, results, allows_other_factor))
            again: set[TopicPartition] = set()
            for name, moves in found.items():
                written = await self._write_topic(name, state, moves)
                for move in written.done:
                    results[TopicPartition(name, move.number)] = None
                    self._to_check.add(TopicPartition(name, move.number))
                results.update((TopicPartition(name, each), error) for each, error in written.refused.items())
                again.update(TopicPartition(name, each.number) for each in written.overtaken)
                _tell(name, written.done)
            left = [each for each in left if each.topic_partition in again]
            if not left:
                return results
        for each in left:
            results[each.topic_partition] = RequestTimedOut(f"{each.topic_partition} is being changed by others")
        return results

    def _planned(
        self,
        asked: Sequence[AskedMove],
        state: ClusterState,
        results: dict[TopicPartition, KafkaError | None],
        allows_other_factor: bool,
    ) -> Work[dict[str, list[_Move]]]:
        """Return what is to be written of each topic; the errors of the others go to ``results``."""
        found: dict[str, list[_Move]] = {}
        for each in asked:
            yield None
            name, number = each.topic_partition
            try:
                before = state.partition(each.topic_partition)
                if before is None:
                    raise UnknownTopicOrPartition(
                        f"Unable to find partition {name}:{number}."
                        if name in state.topics
                        else f"Unable to find a topic named {name}."
                    )
                min_insync, epoch = self._min_insync(name), self._role.epoch
                after: PartitionState | None
                if each.targets is None:
                    after = reassignment.cancelled(before, state.brokers, min_insync, epoch)
                else:
                    targets = reassignment.check_targets(
                        before, each.targets, state.brokers, allows_other_factor=allows_other_factor
                    )
                    after = reassignment.begun(before, targets, state.brokers, min_insync, epoch)
            except KafkaError as error:
                results[each.topic_partition] = error.with_traceback(None)
                continue
            if after is None:
                results[each.topic_partition] = None
            else:
                found.setdefault(name, []).append(_move(state, name, number, before, after))
        return found

    # Writes ---------------------------------------------------------------------------------------------------------

    async def _write_topic(self, name: str, state: ClusterState, moves: Sequence[_Move]) -> _Written:
        """Write partitions of one topic. Raises NotController, RegistryError."""
        written = _Written()
        waiting = [moves]
        while waiting:
            some = waiting.pop()
            size = await self._fitting(name, some)
            if size < len(some):
                waiting += [some[size:], some[:size]]
                continue
            try:
                await self._write_together(name, state, some)
            except InvalidReplicaAssignment as error:
                written.refused.update((each.number, error) for each in some)
            except (BadVersion, NoNode, NodeExists, MalformedNode):
                if len(some) == 1:
                    written.overtaken += some
                else:
                    waiting += [some[len(some) // 2 :], some[: len(some) // 2]]
            else:
                written.done += some
        return written

    async def _fitting(self, name: str, moves: Sequence[_Move]) -> int:
        """Return how many of these fit into one multi with the topic's node."""
        if all(each.is_list_only for each in moves):
            return len(moves)
        stat = await answer(self._store.exists(znodes.topic_path(name)))
        left = PIECE_BYTES - (0 if stat is None else stat.data_length)
        for count, each in enumerate(moves[:_TOGETHER]):
            left -= _STATE_PATH_BYTES + (len(each.after.node.encode()) if each.writes_state else 0)
            if left < 0:
                return max(count, 1)
        return min(len(moves), _TOGETHER)

    async def _write_together(self, name: str, state: ClusterState, moves: Sequence[_Move]) -> None:
        """Write these in one step. Raises NodeError where something has changed since the snapshot."""
        data, stat = await answer(self._store.get(znodes.topic_path(name)))
        node = await self._slices.run(TopicAssignment.decode_work(name, data))
        topic_id = state.topics[name].topic_id
        partitions, adding, removing = dict(node.partitions), dict(node.adding), dict(node.removing)
        operations: list[Operation] = []
        for each in moves:
            number, before, after = each.number, each.before, each.after
            in_node = partitions.get(number), adding.get(number, ()), removing.get(number, ())
            if node.topic_id != topic_id or in_node != (before.all_listed, before.adding, before.removing):
                raise BadVersion("the topic has changed meanwhile", znodes.topic_path(name))
            partitions[number] = after.replicas
            _put(adding, number, after.adding)
            _put(removing, number, after.removing)
            if each.writes_state:
                operations.append(each.change.operation)
            elif not each.is_list_only:
                # It ends because of what the state says (V1).
                operations.append(Check(znodes.state_path(name, number), before.version))
        after_node = replace(node, partitions=partitions, adding=adding, removing=removing)
        encoded = await self._slices.run(after_node.encode_work())
        if len(encoded) > MAX_ASSIGNMENT_BYTES:
            raise InvalidReplicaAssignment(
                f"topic {name} would take {len(encoded)} bytes in the registry; {MAX_ASSIGNMENT_BYTES} are the most: "
                "reassign fewer of its partitions at a time"
            )
        await self._write_step(operations, SetData(znodes.topic_path(name), encoded, stat.version))

    async def _write_step(self, states: Sequence[Operation], topic: Operation) -> None:
        """Write states and their topic's node in one step (V3). The states go first, and so do their news."""
        await self._role.write([*states, topic])


def _move(cluster: ClusterState, name: str, number: int, before: PartitionState, after: PartitionState) -> _Move:
    change = StateChange(TopicPartition(name, number), cluster.topics[name].topic_id, before, after)
    return _Move(number, before, after, change)


def _put(moves: dict[int, tuple[BrokerId, ...]], number: int, replicas: tuple[BrokerId, ...]) -> None:
    if replicas:
        moves[number] = replicas
    else:
        moves.pop(number, None)


def _tell(name: str, moves: Sequence[_Move]) -> None:
    """Log what was asked for and has been written."""
    cancelled = [each for each in moves if not each.after.is_moving]
    for move in moves[:_TOLD]:
        replicas = list(move.after.replicas)
        if move.after.is_moving:
            _LOG.info(
                "%s-%d is reassigned: replicas %s, of which %s are added and %s go",
                name, move.number, replicas, list(move.after.adding), list(move.after.removing),
            )  # fmt: skip
        else:
            _LOG.info("%s-%d has replicas %s; no reassignment is in progress", name, move.number, replicas)
    if len(moves) > _TOLD:
        _LOG.info("%s: %d partitions are reassigned, %d are not any more", name, len(moves), len(cancelled))

"""Elects leaders for the partitions that need one, for the controller.

Which partitions those are is found on a snapshot that has caught up with the registry; who leads is ``election``'s. A
hundred elections share a multi, and all multis of a round are sent before the first answer is waited for: a broker that
dies with a thousand leaderships costs a few round trips. Where one partition's state has changed meanwhile its whole
multi is refused; each of it is then tried by itself.

What is left undone is kept: a round that fails with the connection begins again at the next call, with everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from spark_kafkalite.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    FencedLeaderEpoch,
    KafkaError,
    NotController,
    PreferredLeaderNotAvailable,
    RegistryError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import ClusterChange, ClusterState, PartitionState
from spark_kafkalite.registry.controller.election import (
    Elected,
    elect,
    elect_preferred,
    elect_this,
    needs_election,
    why_leaderless,
)
from spark_kafkalite.registry.controller.last_resorts import LastResorts, Waited, tell
from spark_kafkalite.registry.report_nodes import OFFLINE
from spark_kafkalite.registry.store import (
    BadVersion,
    ConnectionLoss,
    Create,
    NodeError,
    NodeExists,
    NoNode,
    Operation,
    SessionExpired,
    SetData,
    Store,
    answer,
)
from spark_kafkalite.slices import Slices, Work

_LOG = logging.getLogger(__name__)

# Elections that share a multi, and multis that are under way at a time: what waits in the registry stays bounded.
_ELECTED_AT_ONCE: Final = 100
_MULTIS_AT_ONCE: Final = 50
# Of an election that somebody has asked for, when the state changes under it.
_ASKED_TRIES: Final = 3

_Candidate = tuple[TopicPartition, PartitionState]
FencedWrite = Callable[[Sequence[Operation]], Awaitable[list[Any]]]


class Chosen(NamedTuple):
    """The replica that an operator wants to lead, and the leader epoch of the state that the operator has seen."""

    broker_id: BrokerId
    leader_epoch: LeaderEpoch


class Elections:
    """See the module's text. Lives in the controller's event loop; one call of :meth:`run` or :meth:`run_asked` at a
    time."""

    def __init__(
        self,
        store: Store,
        slices: Slices,
        write: FencedWrite,
        epoch: Callable[[], ControllerEpoch],
        unclean_election: Callable[[str], bool],
        min_insync: Callable[[str], int],
        last_resorts: LastResorts,
    ) -> None:
        """``write`` does a multi that the controller's epoch fences; ``last_resorts`` knows when an unclean election
        may be held, and by which reports; the others as the ``Controller`` takes them."""
        self._store = store
        self._slices = slices
        self._write = write
        self._epoch = epoch
        self._unclean_election = unclean_election
        self._min_insync = min_insync
        self._last_resorts = last_resorts
        self._to_check: set[TopicPartition] = set()
        self._check_all = False
        # What a write was refused for; the same again after catching up means that the node cannot be read.
        self._refused: dict[TopicPartition, PartitionState] = {}

    @property
    def are_due(self) -> bool:
        """Whether there are partitions to look at."""
        return self._check_all or bool(self._to_check) or self._last_resorts.are_due

    def look_at_everything(self) -> None:
        """Have the next round look at every partition."""
        self._check_all = True
        self._refused.clear()

    def look_at_changes(self, old: ClusterState, new: ClusterState, change: ClusterChange) -> None:
        """Have the next round look at what a change of the cluster may have left without a leader."""
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

    # A round --------------------------------------------------------------------------------------------------------

    async def run(self, state: ClusterState) -> None:
        """Elect where it is needed. What changes meanwhile is for the next call, as is what somebody else wrote first.

        Raises NotController, RegistryError; everything is looked at again then.
        """
        await self._hold(await self._slices.run(self._candidates(state)), state)
        try:
            due = await self._last_resorts.due(state)
        except BaseException:
            self._check_all = True
            raise
        allowed = [each for each in due if self._unclean_election(each[0].topic)]
        await self._hold(allowed, state, unclean=True)

    async def _hold(self, found: Sequence[_Candidate], state: ClusterState, *, unclean: bool = False) -> None:
        batches = [found[first : first + _ELECTED_AT_ONCE] for first in range(0, len(found), _ELECTED_AT_ONCE)]
        try:
            for first in range(0, len(batches), _MULTIS_AT_ONCE):
                under_way = []
                for batch in batches[first : first + _MULTIS_AT_ONCE]:
                    operations = await self._slices.run(self._elected(batch, state, unclean=unclean))
                    under_way.append(asyncio.ensure_future(self._elect(batch, operations, state, unclean=unclean)))
                _raise_worst(await asyncio.gather(*under_way, return_exceptions=True))
        except BaseException:
            self._check_all = True
            raise

    def _candidates(self, state: ClusterState) -> Work[list[_Candidate]]:
        """Return the partitions, of those to check, that an election can help; the others are checked off."""
        wanted: Iterable[TopicPartition] = sorted(self._to_check)
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
            if self._refused.get(topic_partition) is partition:
                continue
            leaderless = partition.leader == znodes.NO_LEADER
            if leaderless and self._outcome(topic_partition, partition, state).leader == znodes.NO_LEADER:
                # Whoever has a log says so only once nobody leads.
                if self._unclean_election(topic_partition.topic):
                    self._last_resorts.want(topic_partition, partition)
                continue
            found.append((topic_partition, partition))
        return found

    def _outcome(
        self,
        topic_partition: TopicPartition,
        partition: PartitionState,
        cluster: ClusterState,
        *,
        unclean: bool = False,
    ) -> Elected:
        logs = self._last_resorts.logs(topic_partition, partition, cluster) if unclean else {}
        elected = elect(
            partition,
            cluster.brokers,
            min_insync=self._min_insync(topic_partition.topic),
            unclean=unclean,
            logs=logs,
        )
        if unclean and elect(partition, cluster.brokers).leader == znodes.NO_LEADER != elected.leader:
            tell(topic_partition, partition, cluster, logs, elected.leader)
        return elected

    def _elected(self, batch: Sequence[_Candidate], cluster: ClusterState, *, unclean: bool) -> Work[list[Operation]]:
        """Return the writes that give partitions with a state their leaders."""
        operations: list[Operation] = []
        for topic_partition, partition in batch:
            if partition.has_state:
                elected = self._outcome(topic_partition, partition, cluster, unclean=unclean)
                operations.append(self._election(topic_partition, partition, cluster, elected))
            yield None
        return operations

    def _election(
        self, topic_partition: TopicPartition, partition: PartitionState, cluster: ClusterState, elected: Elected
    ) -> Operation:
        epoch = partition.leader_epoch + 1
        if elected.leader == znodes.NO_LEADER:
            why = why_leaderless(partition, cluster.brokers)
            _LOG.warning("%s: no leader, epoch %d: %s", topic_partition, epoch, why)
        else:
            _LOG.info("%s: leader %d, epoch %d, ISR %s", topic_partition, elected.leader, epoch, list(elected.isr))
        data = elected.as_node(epoch, self._epoch()).encode()
        path = znodes.state_path(*topic_partition)
        return SetData(path, data, partition.version) if partition.has_state else Create(path, data)

    async def _elect(
        self, batch: Sequence[_Candidate], operations: list[Operation], cluster: ClusterState, *, unclean: bool
    ) -> None:
        alone = [candidate for candidate in batch if not candidate[1].has_state]
        try:
            if operations:
                await self._write(operations)
        except (ConnectionLoss, NotController, SessionExpired):
            raise
        except RegistryError:
            # None of them has happened: each is tried by itself, to find the one that it was for.
            alone = list(batch)
        outcomes = await asyncio.gather(
            *(self._elect_alone(*candidate, cluster, unclean=unclean) for candidate in alone), return_exceptions=True
        )
        for candidate, outcome in zip(alone, outcomes, strict=True):
            if isinstance(outcome, (BadVersion, NoNode, NodeExists)):
                # Somebody else has written it meanwhile, or it cannot be read.
                self._to_check.add(candidate[0])
                if not isinstance(outcome, NoNode):
                    self._refused[candidate[0]] = candidate[1]
            elif isinstance(outcome, NodeError):
                _LOG.error("electing a leader for %s failed: %s", candidate[0], outcome)
        _raise_worst(outcome for outcome in outcomes if not isinstance(outcome, NodeError))

    async def _elect_alone(
        self, topic_partition: TopicPartition, partition: PartitionState, cluster: ClusterState, *, unclean: bool
    ) -> None:
        name, number = topic_partition
        if not partition.has_state:
            for path in (znodes.partitions_path(name), znodes.partition_path(name, number)):
                with contextlib.suppress(NodeExists):
                    await answer(self._store.create(path))
        elected = self._outcome(topic_partition, partition, cluster, unclean=unclean)
        await self._write([self._election(topic_partition, partition, cluster, elected)])

    # Elections that somebody asks for -------------------------------------------------------------------------------

    async def run_asked(
        self,
        partitions: Sequence[TopicPartition] | None,
        state: ClusterState,
        caught_up: Callable[[], Awaitable[ClusterState]],
        *,
        unclean: bool,
        chosen: Mapping[TopicPartition, Chosen],
        waited: Waited,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Have the first replica of each partition lead, or, ``unclean``, the one with the best log, or the ``chosen``
        one, where there is no leader. ``waited``: what ``LastResorts.wait`` has given.

        Each of ``partitions`` is named once; None: all in ``state`` that need it. ``caught_up`` gives the next state.
        Gives each one's error, None for success. Raises NotController, RegistryError.
        """
        results: dict[TopicPartition, KafkaError | None] = {}

        def all_in(state: ClusterState) -> Work[list[TopicPartition]]:
            found = []
            for name, topic in state.topics.items():
                for number in topic.partitions:
                    found.append(TopicPartition(name, number))
                    yield None
            return found

        left = await self._slices.run(all_in(state)) if partitions is None else partitions
        for number in range(_ASKED_TRIES):
            if number:
                state = await caught_up()
            if unclean:
                await self._last_resorts.read()
            asked = await self._slices.run(self._look_at_asked(left, state, results, chosen, waited, unclean=unclean))
            left = []
            for first in range(0, len(asked), _ELECTED_AT_ONCE):
                some = asked[first : first + _ELECTED_AT_ONCE]
                outcomes = await asyncio.gather(*(self._write([each]) for _, each in some), return_exceptions=True)
                for (topic_partition, _), outcome in zip(some, outcomes, strict=True):
                    results[topic_partition] = None
                    if isinstance(outcome, NodeError):
                        left.append(topic_partition)
                        results[topic_partition] = RequestTimedOut(f"{topic_partition} is being changed by others")
                    elif isinstance(outcome, BaseException):
                        raise outcome
            if not left:
                break
        if partitions is None:
            return {each: error for each, error in results.items() if not isinstance(error, ElectionNotNeeded)}
        return results

    def _look_at_asked(
        self,
        partitions: Sequence[TopicPartition],
        state: ClusterState,
        results: dict[TopicPartition, KafkaError | None],
        chosen: Mapping[TopicPartition, Chosen],
        waited: Waited,
        *,
        unclean: bool,
    ) -> Work[list[tuple[TopicPartition, Operation]]]:
        """Return the writes that elect; what stands against the other elections goes to ``results``."""
        found = []
        for topic_partition in partitions:
            yield None
            try:
                by_choice = chosen.get(topic_partition)
                elected, partition = self._asked(topic_partition, state, by_choice, waited, unclean=unclean)
                found.append((topic_partition, self._election(topic_partition, partition, state, elected)))
            except KafkaError as error:
                results[topic_partition] = error.with_traceback(None)
        return found

    def _asked(
        self,
        topic_partition: TopicPartition,
        state: ClusterState,
        chosen: Chosen | None,
        waited: Waited,
        *,
        unclean: bool,
    ) -> tuple[Elected, PartitionState]:
        partition = state.partition(topic_partition)
        if partition is None or not partition.has_state or partition.unreadable:
            raise UnknownTopicOrPartition(f"there is no partition {topic_partition} that could be led")
        is_led = not needs_election(partition, state.brokers)
        if unclean:
            if is_led:
                raise ElectionNotNeeded(f"{topic_partition} is led by broker {partition.leader}")
            if chosen is not None:
                return self._chosen(topic_partition, partition, state, chosen), partition
            if elect(partition, state.brokers).leader == znodes.NO_LEADER:
                self._last_resorts.check_known(topic_partition, partition, state, waited)
            elected = self._outcome(topic_partition, partition, state, unclean=True)
            if elected.leader == znodes.NO_LEADER:
                raise EligibleLeadersNotAvailable(f"no replica of {topic_partition} is live, with a log that is online")
            return elected, partition
        first = partition.replicas[0]
        if is_led and partition.leader == first:
            raise ElectionNotNeeded(f"{topic_partition} is led by its first replica, broker {first}")
        preferred = elect_preferred(partition, state.brokers, min_insync=self._min_insync(topic_partition.topic))
        if preferred is None:
            raise PreferredLeaderNotAvailable(
                f"broker {first}, the first replica of {topic_partition}, is not live, not in sync, or has not proven "
                "that its log is whole"
            )
        return preferred, partition

    def _chosen(
        self, topic_partition: TopicPartition, partition: PartitionState, cluster: ClusterState, chosen: Chosen
    ) -> Elected:
        """Return the election of the replica that an operator has chosen, if that is still what the operator saw."""
        if partition.leader_epoch != chosen.leader_epoch:
            raise FencedLeaderEpoch(
                f"{topic_partition} has leader epoch {partition.leader_epoch}, and had {chosen.leader_epoch} when "
                f"broker {chosen.broker_id} was chosen: look at it again"
            )
        by_itself = elect(partition, cluster.brokers, min_insync=self._min_insync(topic_partition.topic))
        if by_itself.leader != znodes.NO_LEADER:
            raise ElectionNotNeeded(f"broker {by_itself.leader} can lead {topic_partition}, and has all its records")
        logs = self._last_resorts.logs(topic_partition, partition, cluster)
        elected = elect_this(partition, cluster.brokers, chosen.broker_id)
        report = logs.get(chosen.broker_id)
        if elected is None or report is None or report.gone == OFFLINE:
            raise EligibleLeadersNotAvailable(
                f"broker {chosen.broker_id} cannot lead {topic_partition}: it is no replica of it, is not live, has "
                "its log offline, or has not reported what it has"
            )
        tell(topic_partition, partition, cluster, logs, chosen.broker_id)
        return elected


def _raise_worst(outcomes: Iterable[BaseException | None]) -> None:
    """Raise what decides how it goes on: the loss of the role or of the session before that of the connection."""
    errors = [outcome for outcome in outcomes if outcome is not None]
    for error in sorted(errors, key=lambda each: not isinstance(each, (NotController, SessionExpired))):
        raise error

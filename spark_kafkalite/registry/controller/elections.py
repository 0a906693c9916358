"""Elects leaders for the partitions that need one, for the controller.

It finds these partitions on a snapshot that has caught up with the registry; ``election`` chooses the leaders. A
hundred elections share a multi, and many multis are under way at a time: a broker that dies with a thousand leaderships
costs a few round trips. Where one partition's state has changed meanwhile its whole multi is refused. Each of its
writes is then tried by itself (``StateWriter``), and what is refused then is checked again on the next snapshot.

What is left undone is kept: a round that fails with the connection begins again at the next call, with everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from spark_kafkalite.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    FencedLeaderEpoch,
    KafkaError,
    NotController,
    PreferredLeaderNotAvailable,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import BrokerId, LeaderEpoch, TopicPartition
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.accepted_damage import AcceptedDamage, Ranges
from spark_kafkalite.registry.cluster.cluster_state import ClusterChange, ClusterState, PartitionState
from spark_kafkalite.registry.cluster.state_nodes import FencedNodes, StateChange
from spark_kafkalite.registry.cluster.state_writer import StateWriter, StateWrites, WritePace
from spark_kafkalite.registry.controller.election import (
    Elected,
    elect,
    elect_preferred,
    elect_this,
    kept_acceptance,
    may_lose,
    needs_election,
    next_epoch,
    state_that_names_nobody,
    why_leaderless,
)
from spark_kafkalite.registry.controller.last_resorts import LastResorts, Waited, tell, tell_of_recovery
from spark_kafkalite.registry.controller.recovery import needs_no_setting
from spark_kafkalite.registry.controller.role import ControllerRole
from spark_kafkalite.registry.report_nodes import OFFLINE
from spark_kafkalite.registry.store import NodeError, NoNode, SessionExpired, Store
from spark_kafkalite.slices import Slices, Work

_LOG = logging.getLogger(__name__)

# What waits in the registry stays bounded. Nothing is done again in the same round.
_PACE: Final = WritePace(together=100, steps=50, alone=100, retry_s=0.0)
# Elections that a writer is given in one turn.
_NOTED_AT_ONCE: Final = 5_000
# Of an election that somebody has asked for, when the state changes under it.
_ASKED_TRIES: Final = 3


@dataclass(eq=False, slots=True)
class _Election:
    """A partition that is to have a leader, with its state in the snapshot; ``change`` is made before it is written."""

    topic_partition: TopicPartition
    topic_id: bytes
    state: PartitionState
    change: StateChange | None = None

    @property
    def key(self) -> TopicPartition:
        return self.topic_partition


class Chosen(NamedTuple):
    """The replica that an operator wants to lead, and the leader epoch of the state that the operator has seen.

    ``accepted``: the ranges of offsets, ends exclusive, that its log lacks and that the operator accepts as lost. With
    them the replica may lead already; it is elected again.
    """

    broker_id: BrokerId
    leader_epoch: LeaderEpoch
    accepted: Ranges = ()


class Elections:
    """See the module's text. Lives in the controller's event loop; one call of :meth:`run` or :meth:`run_asked` at a
    time."""

    def __init__(
        self,
        store: Store,
        slices: Slices,
        role: ControllerRole,
        unclean_election: Callable[[str], bool],
        recovery: Callable[[str], bool],
        min_insync: Callable[[str], int],
        last_resorts: LastResorts,
    ) -> None:
        """``last_resorts`` knows when an unclean election may be held, and by which reports; the others as the
        ``Controller`` takes them."""
        self._nodes = FencedNodes(store, role.write)
        self._slices = slices
        self._role = role
        self._unclean_election = unclean_election
        self._recovery = recovery
        self._min_insync = min_insync
        self._last_resorts = last_resorts
        self._to_check: set[TopicPartition] = set()
        self._check_all = False
        # What a write was refused for; the same again after catching up means that the node cannot be read.
        self._refused: dict[TopicPartition, PartitionState] = {}

    @property
    def are_due(self) -> bool:
        """Whether there are partitions to check."""
        return self._check_all or bool(self._to_check) or self._last_resorts.are_due

    def look_at_everything(self) -> None:
        """Have the next round check every partition."""
        self._check_all = True
        self._refused.clear()

    def look_at_changes(self, old: ClusterState, new: ClusterState, change: ClusterChange) -> None:
        """Have the next round check the partitions that a change of the cluster may have left without a leader."""
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
        """Elect where it is needed. The next call handles later changes, and states that another broker wrote first.

        Raises NotController, RegistryError; everything is checked again then.
        """
        try:
            await self._write(_Round(self, state), await self._slices.run(self._candidates(state)))
            unclean, recovered = [], []
            for key, partition, is_unclean in await self._last_resorts.due(state):
                if is_unclean and self._unclean_election(key.topic):
                    unclean.append(_election(state, key, partition))
                elif not is_unclean and (self._recovery(key.topic) or partition.names_nobody):
                    recovered.append(_election(state, key, partition))
            await self._write(_UncleanRound(self, state), unclean)
            await self._write(_RecoveryRound(self, state), recovered)
        except BaseException:
            self._check_all = True
            raise

    async def _write(self, writes: _Elected, elections: Sequence[_Election], *, alone: bool = False) -> None:
        """Write elections; no more of them are begun after a failure, which is raised when the others have ended."""
        for first in range(0, len(elections), _NOTED_AT_ONCE):
            some = elections[first : first + _NOTED_AT_ONCE]
            # What has no state yet needs nodes to be made first.
            by_itself = [each for each in some if alone or not each.state.has_state]
            together = [each for each in some if not alone and each.state.has_state]
            writer = StateWriter(asyncio.get_running_loop(), self._slices, self._nodes, writes, _PACE)
            await writer.write_all(together, by_itself)
            if writes.error is not None:
                raise writes.error

    def overtaken(self, election: _Election, *, may_be_unreadable: bool) -> None:
        """Have an election checked again: another broker has written the state meanwhile, or it cannot be read."""
        self._to_check.add(election.topic_partition)
        if may_be_unreadable:
            self._refused[election.topic_partition] = election.state

    def _candidates(self, state: ClusterState) -> Work[list[_Election]]:
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
            leaderless = partition.has_state and partition.leader == znodes.NO_LEADER
            if leaderless and self._outcome(topic_partition, partition, state).leader == znodes.NO_LEADER:
                # Whoever has a log says so only once nobody leads.
                unclean = self._unclean_election(topic_partition.topic)
                if unclean or self._recovery(topic_partition.topic) or partition.names_nobody:
                    self._last_resorts.want(topic_partition, partition, unclean=unclean)
                continue
            found.append(_election(state, topic_partition, partition))
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

    async def prepare(self, elections: Sequence[_Election], change: Callable[[_Election], StateChange | None]) -> None:
        """Make the changes of many elections, in slices."""

        def prepare() -> Work[None]:
            for election in elections:
                made = change(election)
                if made is not None:
                    # Encoded now, and kept.
                    _ = made.operation
                yield None

        await self._slices.run(prepare())

    def change(self, election: _Election, cluster: ClusterState, *, unclean: bool = False) -> StateChange:
        """Return the change that an election makes; it is the same from then on."""
        if not election.state.has_state:
            # Somebody has deleted it, or begun to create the topic.
            return self._first_state(election)
        if election.change is None:
            outcome = self._outcome(election.topic_partition, election.state, cluster, unclean=unclean)
            election.change = self._change(election, cluster, outcome)
        return election.change

    def _first_state(self, election: _Election) -> StateChange:
        """Return the change that makes a missing state, which names no replica; it is the same from then on."""
        key, before = election.topic_partition, election.state
        if election.change is None:
            # One that this session has never seen may be that of a topic whose creation was interrupted.
            _LOG.log(
                logging.INFO if before.former is None else logging.WARNING,
                "%s: made the missing registry node %s; it names no replica, and one leads when all have reported "
                "what their logs have",
                key,
                znodes.state_path(*key),
            )
            after = state_that_names_nobody(before, self._role.epoch)
            election.change = StateChange(key, election.topic_id, before, after)
        return election.change

    def recovery(self, election: _Election, cluster: ClusterState) -> StateChange | None:
        """Return the change that has the best log lead because nothing is lost by it (rule R18); it is the same from
        then on. None when that is not so any more: the partition is checked again."""
        if election.change is None:
            key, before = election.topic_partition, election.state
            relied_on = self._last_resorts.relied_on(key, before, cluster)
            if relied_on is not None and not self._recovery(key.topic) and not needs_no_setting(before, relied_on[0]):
                return None
            if relied_on is None or elect(before, cluster.brokers).leader != znodes.NO_LEADER:
                self._to_check.add(key)
                return None
            logs, checks = relied_on
            elected = elect(before, cluster.brokers, unclean=True, logs=logs)
            tell_of_recovery(key, before, logs, elected.leader)
            election.change = replace(self._change(election, cluster, elected, has_all=True), checks=checks)
        return election.change

    def _change(
        self,
        election: _Election,
        cluster: ClusterState,
        elected: Elected,
        accepted: Ranges = (),
        *,
        has_all: bool = False,
    ) -> StateChange:
        """``has_all``: the elected log has all that any replica has (R18), though nothing proves it to be whole."""
        before = election.state
        # Otherwise the state says which epochs there were.
        logs = self._last_resorts.logs(election.topic_partition, before, cluster) if before.names_nobody else {}
        epoch = next_epoch(before, logs)
        if elected.leader == znodes.NO_LEADER:
            why = why_leaderless(before, cluster.brokers)
            _LOG.warning("%s: no leader, epoch %d: %s", election.topic_partition, epoch, why)
        else:
            isr = list(elected.isr)
            _LOG.info("%s: leader %d, epoch %d, ISR %s", election.topic_partition, elected.leader, epoch, isr)
        accepted_damage = kept_acceptance(before, elected.leader, cluster.brokers)
        if accepted:
            accepted_damage = AcceptedDamage(cluster.brokers[elected.leader].incarnation, accepted)
        is_unclean = not has_all and may_lose(before, elected.leader, cluster.brokers)
        after = replace(
            before,
            leader_epoch=epoch,
            controller_epoch=self._role.epoch,
            accepted_damage=accepted_damage,
            unclean_epoch=epoch if is_unclean else before.unclean_epoch,
            **elected._asdict(),
        )
        return StateChange(election.topic_partition, election.topic_id, before, after)

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
            found = await self._slices.run(self._look_at_asked(left, state, results, chosen, waited, unclean=unclean))
            asked = _AskedRound(self, state)
            await self._write(asked, found, alone=True)
            left = asked.left
            for each in found:
                results[each.topic_partition] = None
            for topic_partition in left:
                results[topic_partition] = RequestTimedOut(f"{topic_partition} is being changed by others")
            if not left:
                break
        if partitions is None:
            return {each: error for each, error in results.items() if not isinstance(error, ElectionNotNeeded)}
        return results

    async def run_preferred(self, partitions: Sequence[TopicPartition], state: ClusterState) -> None:
        """Have the first replica of each partition lead, as far as it may and the state is still this one.

        Raises NotController, RegistryError.
        """
        results: dict[TopicPartition, KafkaError | None] = {}
        asked = self._look_at_asked(partitions, state, results, {}, {}, unclean=False)
        await self._write(_Round(self, state), await self._slices.run(asked))

    def _look_at_asked(
        self,
        partitions: Sequence[TopicPartition],
        state: ClusterState,
        results: dict[TopicPartition, KafkaError | None],
        chosen: Mapping[TopicPartition, Chosen],
        waited: Waited,
        *,
        unclean: bool,
    ) -> Work[list[_Election]]:
        """Return the elections to be written; what stands against the other ones goes to ``results``."""
        found = []
        for topic_partition in partitions:
            yield None
            try:
                by_choice = chosen.get(topic_partition)
                elected, partition = self._asked(topic_partition, state, by_choice, waited, unclean=unclean)
                election = _election(state, topic_partition, partition)
                accepted = () if by_choice is None else by_choice.accepted
                election.change = self._change(election, state, elected, accepted)
                found.append(election)
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
            if is_led and (chosen is None or not chosen.accepted or chosen.broker_id != partition.leader):
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
                f"broker {chosen.broker_id} was chosen: check it again"
            )
        if partition.leader == chosen.broker_id and not needs_election(partition, cluster.brokers):
            # It leads on, with what it lacks accepted.
            return Elected(partition.leader, partition.isr, partition.incarnations, partition.eligible)
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


def _election(cluster: ClusterState, topic_partition: TopicPartition, partition: PartitionState) -> _Election:
    return _Election(topic_partition, cluster.topics[topic_partition.topic].topic_id, partition)


class _Elected(StateWrites[_Election]):
    """Elections as they are written, each once: another look needs another snapshot."""

    def __init__(self, elections: Elections, cluster: ClusterState) -> None:
        self._elections = elections
        self._cluster = cluster
        # What decides how it goes on: the loss of the role or of the session before that of the connection.
        self.error: Exception | None = None

    def change(self, write: _Election) -> StateChange | None:
        return None if self.error is not None else self._elections.change(write, self._cluster)

    def failed(self, writes: Sequence[_Election], error: Exception) -> bool:
        if self.error is None or isinstance(error, (NotController, SessionExpired)):
            self.error = error
        return False

    def written(self, write: _Election, change: StateChange, state: PartitionState) -> None:
        """Nothing more: the watcher sees it."""

    def found(self, write: _Election, change: StateChange, state: PartitionState | None) -> None:
        raise AssertionError("nothing is read in a round")


class _Round(_Elected):
    """Elections of a round."""

    async def prepare(self, writes: Sequence[_Election]) -> None:
        await self._elections.prepare(writes, self.change)

    def refused(self, write: _Election, error: NodeError) -> bool:
        may_be_unreadable = not isinstance(error, NoNode) and error.path == znodes.state_path(*write.topic_partition)
        self._elections.overtaken(write, may_be_unreadable=may_be_unreadable)
        return False

    def failed(self, writes: Sequence[_Election], error: Exception) -> bool:
        if isinstance(error, NodeError):
            _LOG.error("electing a leader for %s failed: %s", writes[0].topic_partition, error)
            return False
        return super().failed(writes, error)


class _UncleanRound(_Round):
    """Elections of a round that may lose records."""

    def change(self, write: _Election) -> StateChange | None:
        return None if self.error is not None else self._elections.change(write, self._cluster, unclean=True)


class _RecoveryRound(_Round):
    """Elections of a round that no replica can prove to be whole, and that lose nothing all the same."""

    def change(self, write: _Election) -> StateChange | None:
        return None if self.error is not None else self._elections.recovery(write, self._cluster)


class _AskedRound(_Elected):
    """Elections that an operator has asked for."""

    def __init__(self, elections: Elections, cluster: ClusterState) -> None:
        super().__init__(elections, cluster)
        # Where the state was another one.
        self.left: list[TopicPartition] = []

    def refused(self, write: _Election, error: NodeError) -> bool:
        self.left.append(write.topic_partition)
        return False

    def failed(self, writes: Sequence[_Election], error: Exception) -> bool:
        return self.refused(writes[0], error) if isinstance(error, NodeError) else super().failed(writes, error)

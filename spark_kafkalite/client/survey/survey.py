"""Questions to all brokers of a cluster, side by side: ends of logs, groups, their members and committed offsets.

A request is bounded (1,000 partitions, 25 groups), and so is the time for each answer and for a whole survey. A broker
that does not answer is noted in :attr:`MonitoredCluster.failures` and asked nothing more; what only it knows is left
out. So is a topic or a group that goes away between two questions. A broker that failed in one survey has little time
in the next, until it answers again.

A coordinator lists its own groups, so the broker that lists a group is asked for its offsets.
"""

from __future__ import annotations

import threading
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.metadata import ClusterSnapshot, PartitionInfo
from spark_kafkalite.client.network.retry import Deadline, is_retriable
from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import AdvertisedUnreachable, KafkaliteError, RequestTimedOut
from spark_kafkalite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from spark_kafkalite.wire.error_codes import error_for
from spark_kafkalite.wire.messages.describe_groups import DescribeGroupsRequest
from spark_kafkalite.wire.messages.list_groups import ListGroupsRequest
from spark_kafkalite.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from spark_kafkalite.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

NOT_KNOWN: Final = -1
PARTITIONS_AT_ONCE: Final = 1_000
GROUPS_AT_ONCE: Final = 25
_BROKERS_AT_ONCE: Final = 16
# For one that did not answer the last time.
_SECOND_CHANCE_MS: Final = 1_000
# Before a coordinator that loads its groups is asked again.
_LOADING_PAUSE_S: Final = 0.05
# Types of groups that have committed offsets, and those whose members DescribeGroups returns ("": an older broker).
_WITH_OFFSETS: Final = frozenset({"", "classic", "consumer"})
_CLASSIC: Final = frozenset({"", "classic"})
_DEAD: Final = "Dead"

Item = TypeVar("Item")


@dataclass(slots=True)
class TopicOffsets:
    """Where the logs of a topic begin and end, by partition; :data:`NOT_KNOWN` where its leader did not answer.

    ``ends`` are high watermarks.
    """

    starts: array[int]
    ends: array[int]

    @classmethod
    def of(cls, partitions: int) -> TopicOffsets:
        """Return those of a topic of which nothing is known yet."""
        nothing = [NOT_KNOWN] * partitions
        return cls(array("q", nothing), array("q", nothing))

    def end(self, partition: int) -> int:
        """Return the end of a partition's log, NOT_KNOWN also for one that there is not."""
        return self.ends[partition] if 0 <= partition < len(self.ends) else NOT_KNOWN


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group, and the broker that coordinates it. ``state`` is empty where the broker is too old to return it."""

    group_id: str
    coordinator: int
    state: str
    protocol_type: str
    group_type: str


@dataclass(slots=True)
class SurveyedGroup:
    """What a group has committed: partitions and offsets by topic, in the same order.

    ``members`` is None where it is not known.
    """

    group_id: str
    coordinator: int
    state: str
    members: int | None
    committed: dict[str, tuple[array[int], array[int]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(partitions) for partitions, _ in self.committed.values())


class MonitoredCluster:
    """Asks one cluster, again and again. For one thread; its questions run side by side."""

    def __init__(self, cluster: ClusterClient, *, broker_ms: int, clock: Clock = SYSTEM_CLOCK) -> None:
        """A broker has ``broker_ms`` for each answer."""
        self.cluster = cluster
        # Why brokers did not answer, since :meth:`begin`.
        self.failures: dict[int, str] = {}
        # Groups that their coordinator did not answer for.
        self.groups_left_out = 0
        self._broker_ms = broker_ms
        self._clock = clock
        self._slow: Collection[int] = ()
        self._one_by_one: set[int] = set()
        self._lock = threading.Lock()
        self._within = Deadline.after_ms(0, clock)

    def begin(self, within_ms: float) -> None:
        """Begin a new survey; all that is asked from now on has ``within_ms`` in all."""
        self._within = Deadline.after_ms(within_ms, self._clock)
        self._slow = set(self.failures)
        self.failures = {}
        self.groups_left_out = 0

    def topics(self) -> ClusterSnapshot:
        """Ask for the brokers and all topics. Raises KafkaliteError when no broker answers."""
        return self.cluster.refresh(None, self._within.earlier_of(self._broker_ms))

    @property
    def left_ms(self) -> float:
        """How much time is left."""
        return self._within.left_s() * 1000

    # Logs -----------------------------------------------------------------------------------------------------------

    def log_offsets(
        self, topics: Iterable[str], into: dict[str, TopicOffsets] | None = None, *, with_starts: bool = True
    ) -> dict[str, TopicOffsets]:
        """Return the offsets of topics as the snapshot has them, each partition by its leader.

        ``into`` are those of before: they are changed where there is news.
        """
        found: dict[str, TopicOffsets] = {} if into is None else into
        by_leader: dict[int, list[tuple[str, PartitionInfo]]] = defaultdict(list)
        snapshot = self.cluster.snapshot
        for topic in topics:
            info = snapshot.topics.get(topic)
            if info is None or info.error_code:
                continue
            # Partitions are numbered without gaps; what a broker numbers otherwise is left out.
            count = len(info.partitions)
            if topic not in found or len(found[topic].ends) != count:
                found[topic] = TopicOffsets.of(count)
            for each in info.partitions:
                if each.leader in snapshot.nodes and 0 <= each.partition < count:
                    by_leader[each.leader].append((topic, each))

        def ask(leader: int) -> None:
            for some in in_parts(by_leader[leader], PARTITIONS_AT_ONCE):
                self._ask_offsets(leader, some, LATEST_TIMESTAMP, found)
                if with_starts:
                    self._ask_offsets(leader, some, EARLIEST_TIMESTAMP, found)

        self.each_broker(by_leader, ask)
        return found

    def _ask_offsets(
        self,
        leader: int,
        partitions: Sequence[tuple[str, PartitionInfo]],
        timestamp: int,
        found: dict[str, TopicOffsets],
    ) -> None:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for topic, info in partitions:
            asked = ListOffsetsPartition(partition_index=info.partition, current_leader_epoch=-1, timestamp=timestamp)
            topics.setdefault(topic, []).append(asked)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=[ListOffsetsTopic(name=name, partitions=each) for name, each in topics.items()],
        )
        answer = self.request(leader, request)
        for topic in answer.topics:
            offsets = found.get(topic.name)
            if offsets is None:
                continue
            into = offsets.ends if timestamp == LATEST_TIMESTAMP else offsets.starts
            for item in topic.partitions:
                if 0 <= item.partition_index < len(into):
                    into[item.partition_index] = NOT_KNOWN if item.error_code else item.offset

    # Groups ---------------------------------------------------------------------------------------------------------

    def list_groups(self) -> list[ListedGroup]:
        """Return the groups of all brokers, in order of their ids."""
        found: dict[str, ListedGroup] = {}

        def ask(broker: int) -> None:
            for each in self._ask_for_groups(broker):
                found[each.group_id] = ListedGroup(
                    each.group_id, broker, each.group_state, each.protocol_type, each.group_type
                )

        self.each_broker(self.cluster.snapshot.nodes, ask)
        return [found[group_id] for group_id in sorted(found)]

    def _ask_for_groups(self, broker: int) -> Sequence[Any]:
        """Return the groups of a coordinator. One that still reads them from their topic has the time of an answer."""
        deadline = self.deadline(broker)
        while True:
            answer = self.request(broker, ListGroupsRequest())
            if not answer.error_code:
                groups: Sequence[Any] = answer.groups
                return groups
            error = error_for(answer.error_code, f"broker {broker} cannot list its groups")
            if not is_retriable(error) or deadline.left_s() < _LOADING_PAUSE_S:
                raise error
            self.cluster.pause(_LOADING_PAUSE_S)

    def group_offsets(
        self, groups: Iterable[ListedGroup], *, most_offsets: int, with_members: bool = True
    ) -> list[SurveyedGroup]:
        """Return what groups have committed, in order of their ids; those that are not answered for are left out.

        Nothing more is asked when ``most_offsets`` were returned; :attr:`groups_left_out` counts what was not asked.
        """
        by_coordinator: dict[int, list[ListedGroup]] = defaultdict(list)
        for group in groups:
            if group.group_type in _WITH_OFFSETS:
                by_coordinator[group.coordinator].append(group)
        found: list[SurveyedGroup] = []
        total = 0

        def ask(broker: int) -> None:
            nonlocal total
            mine = by_coordinator[broker]
            answered = 0
            try:
                for some in in_parts(mine, GROUPS_AT_ONCE):
                    if total >= most_offsets:
                        return
                    groups = self._ask_groups(broker, some, with_members=with_members)
                    answered += len(groups)
                    with self._lock:
                        total += sum(map(len, groups))
                        found.extend(groups)
            finally:
                with self._lock:
                    self.groups_left_out += len(mine) - answered

        self.each_broker(by_coordinator, ask)
        found.sort(key=lambda group: group.group_id)
        return found

    def _ask_groups(self, broker: int, groups: Sequence[ListedGroup], *, with_members: bool) -> list[SurveyedGroup]:
        found = {
            each.group_id: SurveyedGroup(each.group_id, broker, each.state, 0 if each.state == "Empty" else None)
            for each in groups
        }
        classic = [each.group_id for each in groups if each.group_type in _CLASSIC]
        asked = [group_id for group_id in classic if found[group_id].members is None]
        if with_members and asked:
            described = self.request(broker, DescribeGroupsRequest(groups=asked))
            for each in described.groups:
                if not each.error_code and each.group_id in found and each.group_state != _DEAD:
                    found[each.group_id].members = len(each.members)
                    found[each.group_id].state = each.group_state
        answered = dict(self._committed(broker, list(found)))
        for group_id, topics in answered.items():
            if group_id not in found:
                continue
            for topic in topics:
                kept = [each for each in topic.partitions if not each.error_code and each.committed_offset >= 0]
                if kept:
                    found[group_id].committed[topic.name] = (
                        array("i", [each.partition_index for each in kept]),
                        array("q", [each.committed_offset for each in kept]),
                    )
        return [group for group_id, group in found.items() if group_id in answered]

    def _committed(self, broker: int, group_ids: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """Yield groups and their topics, of those that the broker answers for."""
        if broker not in self._one_by_one:
            # Both forms: versions before 8 ask for one group, later ones for several.
            request = OffsetFetchRequest(
                group_id=group_ids[0],
                topics=None,
                groups=[OffsetFetchRequestGroup(group_id=each, topics=None) for each in group_ids],
            )
            answer = self.request(broker, request)
            if answer.groups:
                yield from ((each.group_id, each.topics) for each in answer.groups if not each.error_code)
                return
            self._one_by_one.add(broker)
        for group_id in group_ids:
            request = OffsetFetchRequest(group_id=group_id, topics=None)
            answer = self.request(broker, request)
            if not answer.error_code:
                yield group_id, answer.topics

    # Brokers --------------------------------------------------------------------------------------------------------

    def deadline(self, broker: int) -> Deadline:
        """Return until when a broker has to answer what it is asked now."""
        is_slow = broker in self._slow
        return self._within.earlier_of(min(self._broker_ms, _SECOND_CHANCE_MS) if is_slow else self._broker_ms)

    def request(self, broker: int, message: Any) -> Any:
        """Return a broker's answer. Raises BrokerUnreachable, RequestTimedOut when there is no time left to ask."""
        if self._within.passed():
            raise RequestTimedOut(f"there was no time left to ask broker {broker} for everything")
        return self.cluster.request_to(broker, message.API_KEY, message, self.deadline(broker))

    def each_broker(self, brokers: Iterable[int], ask: Callable[[int], None]) -> None:
        """Have ``ask`` called for each broker, side by side; note the errors that it raises."""
        asked = [each for each in brokers if each not in self.failures]
        if not asked:
            return
        with ThreadPoolExecutor(min(len(asked), _BROKERS_AT_ONCE)) as threads:
            for _ in threads.map(lambda broker: self._ask_broker(broker, ask), asked):
                pass

    def _ask_broker(self, broker: int, ask: Callable[[int], None]) -> None:
        try:
            ask(broker)
        except AdvertisedUnreachable as error:
            # What has happened, without the advice for a first connection.
            self.failures[broker] = str(error.__cause__ or error)
        except KafkaliteError as error:
            self.failures[broker] = str(error)


def in_parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Yield sequences of at most ``size`` items."""
    for at in range(0, len(items), size):
        yield items[at : at + size]

"""What requests that are under way will need is neither forgotten nor counted twice."""

from __future__ import annotations

import contextlib
from types import MappingProxyType

from spark_kafkalite.broker.requests.coming_partitions import Coming, ComingPartitions, Short
from spark_kafkalite.model import BrokerId
from spark_kafkalite.net.descriptors import Descriptors
from spark_kafkalite.registry.cluster.cluster_state import ClusterState, PartitionState, TopicState, diff
from spark_kafkalite.registry.cluster.cluster_view import ClusterView

ME, OTHER = BrokerId(1), BrokerId(2)
CONNECTIONS = 3


class Broker:
    """Broker 1, whose registry shows so many partitions of topics: its own, and others'."""

    def __init__(self) -> None:
        self.view = ClusterView()
        self.descriptors = Descriptors(256)
        self.coming = ComingPartitions(ME, self.view, self.descriptors, lambda: CONNECTIONS)

    def show(self, **topics: tuple[int, int]) -> None:
        states = {}
        for name, (own, others) in topics.items():
            replicas = [(ME, OTHER)] * own + [(OTHER,)] * others
            partitions = {number: PartitionState(each, leader=OTHER) for number, each in enumerate(replicas)}
            states[name] = TopicState(name.encode().ljust(16), partitions, {})
        new = ClusterState(topics=MappingProxyType(states))
        self.view.publish(new, diff(self.view.state, new))

    @property
    def hosted(self) -> int:
        """What is counted: what one partition more is told that finds no room."""
        wanted = Coming(10_000, 10_000, 10_000)
        with self.coming.reserved({"far too large": wanted}) as short:
            return short["far too large"].hosted


def test_what_comes_counts_until_the_registry_names_it() -> None:
    broker = Broker()
    broker.show(there=(5, 7))
    assert broker.hosted == 5
    with broker.coming.reserved({"new": Coming(12, 12, 6)}):
        assert broker.hosted == 5 + 6
        # Which ones these are of the six is not known: half of what is left.
        broker.show(there=(5, 7), new=(1, 2))
        assert broker.hosted == 5 + 1 + 5
        broker.show(there=(5, 7), new=(6, 6))
        assert broker.hosted == 5 + 6
    assert broker.hosted == 5 + 6


def test_an_extension_counts_what_it_adds_once() -> None:
    broker = Broker()
    broker.show(there=(5, 0))
    with broker.coming.reserved({"there": Coming(9, 4, 4)}):
        assert broker.hosted == 9
        broker.show(there=(7, 0))
        assert broker.hosted == 9
        broker.show()
        assert broker.hosted == 4


def test_all_requests_count_together_and_what_is_short_does_not() -> None:
    broker = Broker()
    room = broker.descriptors.room_for_partitions(CONNECTIONS)
    with contextlib.ExitStack() as requests:
        assert not requests.enter_context(broker.coming.reserved({"a": Coming(room, room, room - 10)}))
        both = {"b": Coming(11, 11, 11), "c": Coming(10, 10, 10)}
        assert requests.enter_context(broker.coming.reserved(both)) == {"b": Short(11, room - 10, CONNECTIONS)}
        assert broker.hosted == room
        # Another request for a name that is being made counts as well: only one of them will be refused for that.
        assert requests.enter_context(broker.coming.reserved({"c": Coming(1, 1, 1)})) == {
            "c": Short(1, room, CONNECTIONS)
        }
    assert broker.hosted == 0


def test_a_refusal_names_the_topic() -> None:
    assert "topic t: 11 more partitions cannot be hosted" in str(Broker().coming.refusal("t", Short(11, 120, 3)))

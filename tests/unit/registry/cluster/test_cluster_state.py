from dataclasses import replace

from spark_kafkalite.model import BrokerEpoch, BrokerId, Incarnation, LeaderEpoch, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, ClusterState, PartitionState, TopicState, diff


def broker(number: int, epoch: int) -> BrokerInfo:
    return BrokerInfo(BrokerId(number), "h", 1, None, BrokerEpoch(epoch))


def partition(leader: int, version: int) -> PartitionState:
    return PartitionState(
        (BrokerId(1),), BrokerId(leader), LeaderEpoch(0), (BrokerId(1),), version=version, modified_zxid=9
    )


def test_nothing_differs_from_itself() -> None:
    state = ClusterState("c", {1: broker(1, 5)}, {"t": TopicState(b"i", {0: partition(1, 0)}, {})})
    change = diff(state, state)
    assert not any((change.new_brokers, change.changed_partitions, change.new_topics))


def test_brokers_come_go_and_bounce() -> None:
    old = ClusterState("c", {1: broker(1, 5), 2: broker(2, 6), 4: broker(4, 7)})
    new = ClusterState("c", {1: broker(1, 5), 2: broker(2, 9), 3: broker(3, 10)}, controller_id=BrokerId(1))
    change = diff(old, new)
    assert (change.new_brokers, change.gone_brokers, change.bounced_brokers) == ((3,), (4,), (2,))


def test_partitions_configs_and_topics() -> None:
    old = ClusterState(
        "c",
        {},
        {
            "same": TopicState(b"1", {0: partition(1, 0)}, {}),
            "gone": TopicState(b"2", {0: partition(1, 0)}, {}),
            "again": TopicState(b"3", {0: partition(1, 0)}, {}),
            "moved": TopicState(b"4", {0: partition(1, 0), 1: partition(1, 0)}, {"a": "1"}),
        },
    )
    new = ClusterState(
        "c",
        {},
        {
            "same": TopicState(b"1", {0: partition(1, 0)}, {}),
            "again": TopicState(b"5", {0: partition(1, 0)}, {}),
            "moved": TopicState(b"4", {0: partition(1, 0), 1: partition(2, 1), 2: partition(1, 0)}, {"a": "2"}),
            "new": TopicState(b"6", {0: partition(1, 0)}, {}),
        },
    )
    change = diff(old, new)
    assert change.new_topics == ("again", "new")
    assert change.deleted_topics == (("again", b"3"), ("gone", b"2"))
    assert change.changed_configs == ("moved",)
    assert change.changed_partitions == (
        TopicPartition("again", 0),
        TopicPartition("moved", 1),
        TopicPartition("moved", 2),
        TopicPartition("new", 0),
    )


def test_a_broker_leads_in_a_state_that_means_its_log() -> None:
    def run(incarnation: int, *steady: int, number: int = 1) -> BrokerInfo:
        known = tuple(map(Incarnation, steady))
        return replace(broker(number, 5), incarnation=Incarnation(incarnation), steady=known)

    only = replace(partition(1, 0), incarnations={BrokerId(1): Incarnation(77)})
    state = replace(only, replicas=(BrokerId(1), BrokerId(2)))
    assert state.is_led_by(run(77))
    assert only.is_led_by(run(80, 79, 77))
    # Another run, which leads under a higher epoch or not at all; another broker; one that is no replica any more.
    assert not state.is_led_by(run(80, 79, 77))
    assert not only.is_led_by(run(80, 79))
    assert not state.is_led_by(run(77, number=2))
    assert not replace(state, replicas=(BrokerId(2),)).is_led_by(run(77))
    # Nobody knows which run is meant.
    assert not partition(1, 0).is_led_by(run(77))
    assert not partition(1, 0).is_led_by(broker(1, 5))

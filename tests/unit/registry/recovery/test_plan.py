"""What a registry is to hold that is made again from the logs of several brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.model import BrokerId, ControllerEpoch, Incarnation, LeaderEpoch, TopicPartition
from spark_kafkalite.registry import deleted_topics, znodes
from spark_kafkalite.registry.producer_id_block import PRODUCER_ID_BLOCK, ProducerIdBlock
from spark_kafkalite.registry.recovery import evidence_node
from spark_kafkalite.registry.recovery.host_logs import HostLog, HostLogs, KnownTopic
from spark_kafkalite.registry.recovery.plan import RecoveryPlan, plan_recovery
from spark_kafkalite.registry.znodes import NO_LEADER, LeaderAndIsr, TopicAssignment

CLUSTER, OTHER_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA", "BBBBBBBBBBBBBBBBBBBBBA"
ID, OTHER_ID = bytes(range(16)), bytes(range(1, 17))
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def a_log(
    key: TopicPartition = T0, epoch: int = 3, end: int = 10, *, topic_id: bytes | None = ID, committed: int = 0
) -> HostLog:
    return HostLog(key, topic_id, epoch, end, epoch, high_watermark=committed)


def a_host(broker: int, *logs: HostLog, cluster_id: str | None = CLUSTER, producer_id: int = -1) -> HostLogs:
    return HostLogs(BrokerId(broker), cluster_id, Incarnation(100 + broker), 1_000 + broker, producer_id, logs)


def old_nodes(
    replicas: tuple[int, ...] = (1, 2, 3),
    *,
    topic_id: bytes = ID,
    epoch: int = 1,
    config: Mapping[str, str] | None = None,
) -> dict[str, bytes]:
    """The registry of yesterday: topic t with one partition."""
    brokers = tuple(map(BrokerId, replicas))
    state = LeaderAndIsr(brokers[0], LeaderEpoch(epoch), brokers, ControllerEpoch(4))
    return {
        **dict.fromkeys(znodes.PERSISTENT_PATHS, b""),
        znodes.CLUSTER_ID: znodes.encode_cluster_id(CLUSTER),
        znodes.topic_path("t"): TopicAssignment(topic_id, {0: brokers}).encode(),
        znodes.topic_config_path("t"): znodes.encode_config(config or {"retention.ms": "5"}),
        znodes.partitions_path("t"): b"",
        znodes.partition_path("t", 0): b"",
        znodes.state_path("t", 0): state.encode(),
    }


def state_of(plan: RecoveryPlan, key: TopicPartition = T0) -> LeaderAndIsr:
    return LeaderAndIsr.decode(*key, plan.nodes[znodes.state_path(*key)])


def topic_of(plan: RecoveryPlan, name: str = "t") -> TopicAssignment:
    return TopicAssignment.decode(name, plan.nodes[znodes.topic_path(name)])


def test_when_everything_is_lost_topics_come_back_with_the_brokers_that_have_their_logs() -> None:
    plan = plan_recovery(
        [
            a_host(1, a_log(), a_log(T1, end=4)),
            a_host(2, a_log(end=30), producer_id=7_777),
            a_host(3, a_log(T1, epoch=9, end=2)),
        ],
        {},
    )
    assert znodes.decode_cluster_id(plan.nodes[znodes.CLUSTER_ID]) == CLUSTER
    topic = topic_of(plan)
    # That of the best log is the preferred leader.
    assert (topic.topic_id, dict(topic.partitions)) == (ID, {0: (2, 1), 1: (3, 1)})
    first, second = state_of(plan), state_of(plan, T1)
    assert (first.leader, first.isr, dict(first.incarnations)) == (NO_LEADER, (2,), {2: 102})
    # A later epoch counts more than a longer log.
    assert (second.isr, second.leader_epoch > 9) == ((3,), True)
    assert first.leader_epoch > 3
    assert ProducerIdBlock.decode(plan.nodes[PRODUCER_ID_BLOCK]).first > 7_777
    config = znodes.decode_config("/", plan.nodes[znodes.topic_config_path("t")])
    assert config == {"retention.ms": "-1", "retention.bytes": "-1"}
    assert (plan.unread, plan.left_over, plan.problems) == ({}, [], [])


def test_of_an_older_registry_replicas_and_settings_stay_and_states_go_above_the_logs() -> None:
    new = TopicPartition("made-since", 0)
    hosts = [a_host(1, a_log(end=5)), a_host(2, a_log(epoch=8, end=6)), a_host(3, a_log(new, topic_id=OTHER_ID))]
    plan = plan_recovery(hosts, old_nodes(epoch=20))
    assert znodes.topic_path("t") not in plan.nodes
    assert znodes.topic_config_path("t") not in plan.nodes
    assert znodes.CLUSTER_ID not in plan.nodes
    state = state_of(plan)
    assert (state.leader, state.isr, state.controller_epoch) == (NO_LEADER, (2,), 4)
    assert state.leader_epoch > 20
    assert dict(topic_of(plan, "made-since").partitions) == {0: (3,)}


def test_equal_logs_are_led_in_the_order_of_the_replicas() -> None:
    hosts = [a_host(1, a_log()), a_host(2, a_log()), a_host(3, a_log())]
    assert state_of(plan_recovery(hosts, old_nodes((3, 1, 2)))).isr == (3,)


def test_partitions_that_were_added_since_the_backup_come_back() -> None:
    plan = plan_recovery([a_host(1, a_log(), a_log(T1)), a_host(2, a_log()), a_host(3, a_log(T1))], old_nodes())
    assert dict(topic_of(plan).partitions) == {0: (1, 2, 3), 1: (1, 3)}


def test_a_partition_of_which_a_replica_was_not_read_is_named_unless_that_broker_is_given_up() -> None:
    new = TopicPartition("made-since", 0)
    hosts = [a_host(1, a_log(), a_log(new, topic_id=OTHER_ID)), a_host(2, a_log(end=3))]
    # Where a topic is that the registry does not have nobody knows.
    assert plan_recovery(hosts, old_nodes()).unread == {T0: (3,), new: (3,)}
    plan = plan_recovery(hosts, old_nodes(), without=[3])
    assert plan.unread == {}
    assert state_of(plan).isr == (1,)
    # What broker 3 knows to be committed is given up. Where all logs were read, nothing is.
    assert state_of(plan).unclean_epoch == state_of(plan).leader_epoch
    plan = plan_recovery([*hosts, a_host(3, a_log())], old_nodes())
    assert state_of(plan).unclean_epoch == -1


def test_a_topic_that_only_a_broker_had_that_is_given_up_waits_for_it() -> None:
    plan = plan_recovery([a_host(1)], old_nodes((3,)), without=[3])
    assert (state_of(plan).isr, dict(state_of(plan).incarnations)) == ((3,), {})
    assert plan.without_logs == ["t"]


def a_host_that_ran(broker: int, *logs: HostLog, topic_id: bytes = ID) -> HostLogs:
    """One that knows topic t, with a replica of each partition at brokers 3, 1 and 2."""
    replicas = tuple(map(BrokerId, (3, 1, 2)))
    known = KnownTopic("t", topic_id, {0: replicas, 1: replicas}, {"retention.ms": "86400000"})
    return replace(a_host(broker, *logs), topics=(known,))


def test_what_a_broker_that_ran_knew_of_a_topic_comes_back_and_names_who_was_not_asked() -> None:
    hosts = [a_host_that_ran(1, a_log(), a_log(T1)), a_host(2, a_log(end=12), a_log(T1))]
    plan = plan_recovery(hosts, {})
    assert plan.unread == {T0: (3,), T1: (3,)}
    plan = plan_recovery(hosts, {}, without=[3])
    assert not plan.unread
    (topic,) = plan.topics
    assert (topic.best, topic.config, topic.is_config_lost) == ({0: 2, 1: 1}, {"retention.ms": "86400000"}, False)
    topic_node = TopicAssignment.decode("t", plan.nodes[znodes.topic_path("t")])
    assert topic_node.partitions == {0: (3, 1, 2), 1: (3, 1, 2)}
    assert b"86400000" in plan.nodes[znodes.topic_config_path("t")]


def test_of_an_older_registry_settings_stay_whatever_brokers_knew() -> None:
    plan = plan_recovery([a_host_that_ran(1, a_log())], old_nodes((1, 2), config={"retention.ms": "5"}))
    # A replica that the registry does not name was one later.
    assert plan.unread == {T0: (2, 3), T1: (2, 3)}
    assert [topic.config for topic in plan.topics] == [None]


def test_a_topic_that_a_broker_knew_and_no_log_is_read_of_is_named_unless_it_was_deleted() -> None:
    hosts = [a_host_that_ran(1), a_host(2)]
    assert plan_recovery(hosts, {}).unread == {T0: (3,), T1: (3,)}
    assert not plan_recovery(hosts, {}, without=[3]).unread
    deleted = deleted_topics.DeletedTopics({znodes.uuid_text(ID): 1}).encode()
    assert not plan_recovery(hosts, {deleted_topics.PATH: deleted}).unread


def test_a_topic_that_was_made_again_since_the_backup_is_the_one_of_the_logs() -> None:
    hosts = [a_host(number, a_log(topic_id=OTHER_ID)) for number in (1, 2, 3)]
    plan = plan_recovery(hosts, old_nodes())
    assert topic_of(plan).topic_id == OTHER_ID
    # The settings were those of the other topic.
    assert znodes.decode_config("/", plan.nodes[znodes.topic_config_path("t")])["retention.ms"] == "-1"


@pytest.mark.parametrize("is_current", [True, False])
def test_a_topic_node_without_an_id_gets_that_of_the_logs_and_keeps_its_settings(is_current: bool) -> None:
    hosts = [a_host(number, a_log()) for number in (1, 2, 3)]
    plan = plan_recovery(hosts, old_nodes(topic_id=znodes.NO_TOPIC_ID), is_current=is_current)
    assert (topic_of(plan).topic_id, dict(topic_of(plan).partitions)) == (ID, {0: (1, 2, 3)})
    assert znodes.topic_config_path("t") not in plan.nodes


def test_of_a_registry_that_lacks_nothing_only_what_contradicts_the_logs_changes() -> None:
    hosts = [a_host(1, a_log(epoch=3), a_log(TopicPartition("u", 0), topic_id=OTHER_ID)), a_host(2), a_host(3)]
    plan = plan_recovery(hosts, old_nodes(epoch=3), is_current=True)
    assert znodes.state_path("t", 0) not in plan.nodes
    assert state_of(plan, TopicPartition("u", 0)).isr == (1,)
    assert state_of(plan_recovery(hosts, old_nodes(epoch=2), is_current=True)).leader_epoch > 3
    other = plan_recovery(hosts, old_nodes(topic_id=bytes(15) + b"x"), is_current=True)
    assert other.left_over == [(1, T0, znodes.uuid_text(ID))]
    assert znodes.topic_path("t") not in other.nodes


def test_logs_of_two_topics_of_one_name_are_for_the_operator_unless_one_was_deleted() -> None:
    hosts = [a_host(1, a_log(topic_id=OTHER_ID)), a_host(2, a_log(end=99))]
    with pytest.raises(ConfigError, match=r"different topic ids .*broker 1: AQID.*broker 2: AAEC"):
        plan_recovery(hosts, {})
    deleted = deleted_topics.DeletedTopics().with_added([znodes.uuid_text(ID)], 0)
    plan = plan_recovery(hosts, {deleted_topics.PATH: deleted.encode()})
    assert topic_of(plan).topic_id == OTHER_ID
    assert state_of(plan).isr == (1,)
    assert plan.left_over == [(2, T0, znodes.uuid_text(ID))]


def test_a_topic_that_was_deleted_does_not_come_back() -> None:
    deleted = deleted_topics.DeletedTopics().with_added([znodes.uuid_text(ID)], 0)
    plan = plan_recovery([a_host(1, a_log())], {deleted_topics.PATH: deleted.encode()})
    assert plan.topics == []
    assert [key for _, key, _ in plan.left_over] == [T0]


def test_what_was_acknowledged_and_is_in_no_log_is_named() -> None:
    plan = plan_recovery([a_host(1, a_log(end=10, committed=15)), a_host(2, a_log(end=12, epoch=2))], {})
    (problem,) = plan.problems
    assert "no log of t-0 has offsets 10 to 14" in problem


def test_a_log_that_names_no_topic_id_is_not_led_with() -> None:
    """Its broker would set it aside, and lead an empty one."""
    plan = plan_recovery([a_host(1, a_log(end=10)), a_host(2, a_log(end=12, topic_id=None)), a_host(3)], old_nodes())
    assert state_of(plan).isr == (1,)
    (problem,) = plan.problems
    assert "log of t-0 of broker 2 names no topic id" in problem


def test_hosts_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="different clusters"):
        plan_recovery([a_host(1), a_host(2, cluster_id=OTHER_CLUSTER)], {})
    with pytest.raises(ConfigError, match="given twice"):
        plan_recovery([a_host(1), a_host(1)], {})
    with pytest.raises(ConfigError, match=f"is that of cluster {CLUSTER}"):
        plan_recovery([a_host(1, cluster_id=OTHER_CLUSTER)], old_nodes())
    with pytest.raises(ConfigError, match="have the same topic id"):
        plan_recovery([a_host(1, a_log()), a_host(2, a_log(TopicPartition("u", 0)))], {})
    with pytest.raises(ConfigError, match="no broker"):
        plan_recovery([], {})


def test_a_recovery_that_is_repeated_goes_above_the_first_one() -> None:
    hosts = [a_host(1, a_log())]
    first = plan_recovery(hosts, {})
    again = plan_recovery(hosts, first.nodes)
    assert state_of(again).leader_epoch > state_of(first).leader_epoch
    assert znodes.topic_path("t") not in again.nodes


def test_the_file_of_a_host_says_all_again_and_a_part_of_it_is_refused() -> None:
    host = replace(a_host_that_ran(1, a_log(), a_log(T1, topic_id=None)), producer_id=5)
    assert HostLogs.decode("file", host.encode()) == host
    for data in (host.encode()[:-9], b"{}", host.encode().replace(b'"version":1', b'"version":9')):
        with pytest.raises(ConfigError, match="file is not what kafkalite cluster recover-registry --to writes"):
            HostLogs.decode("file", data)


def test_the_evidence_that_is_settled() -> None:
    assert evidence_node.decode(evidence_node.encode({BrokerId(1): 2**40, BrokerId(3): 7})) == {1: 2**40, 3: 7}

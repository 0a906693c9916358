"""Each administrative change is one INFO line of the broker that the client asked, with the client's address and id."""

from __future__ import annotations

import re
import uuid

from spark_kafkalite import Admin, Producer, TopicPartition
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tests.interop.support.raw_client import RawClient
from tests.patience import PATIENCE_S, wait_until

CHANGES = " INFO spark_kafkalite.broker.requests.administrative_log: "


def log_of(cluster: KafkaliteCluster, number: int) -> str:
    return cluster.broker(number).stderr_path.read_text()


def changes(cluster: KafkaliteCluster, about: str) -> list[str]:
    """Return the lines of all brokers about something, without their times."""
    lines = [line for number in cluster.brokers for line in log_of(cluster, number).splitlines()]
    return [line.split(CHANGES)[1] for line in lines if CHANGES in line and about in line]


def test_changes_of_topics_are_written_with_the_client(cluster: KafkaliteCluster) -> None:
    topic = f"changed-{uuid.uuid4().hex}"
    with Admin(bootstrap_servers=cluster.bootstrap, client_id="auditor") as admin:
        admin.create_topics([NewTopic(topic, 2, replication_factor=3)])
        admin.create_partitions({topic: 3})
        admin.alter_configs({"retention.ms": "86400000"}, topic=topic)
        admin.delete_topics([topic])
    wait_until(lambda: len(changes(cluster, topic)) == 4, "four lines about the topic")
    texts = [re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", line) for line in changes(cluster, topic)]
    by = "(client ADDRESS, client id auditor)"
    assert texts == [
        f"topic {topic} has been created with 2 partitions and 3 replicas of each {by}",
        f"topic {topic} has been extended to 3 partitions {by}",
        f"settings of topic {topic} have been replaced: retention.ms=86400000 {by}",
        f"topic {topic} has been deleted {by}",
    ]


def test_a_change_that_the_controller_makes_for_another_broker_is_written_by_that_one(
    cluster: KafkaliteCluster,
) -> None:
    topic = f"handed-on-{uuid.uuid4().hex}"
    asked = next(number for number in cluster.brokers if number != cluster.controller())
    with RawClient(cluster.broker(asked).bootstrap) as client:
        new = CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
        (created,) = client.call(CreateTopicsRequest(topics=[new], timeout_ms=60_000), 7).topics
        assert created.error_code == 0, created.error_message
        here = ":".join(map(str, client.socket.getsockname()))
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.delete_topics([topic])
    (line,) = (line for line in changes(cluster, topic) if "created" in line)
    assert line.startswith(f"topic {topic} has been created with 1 partitions and 1 replicas of each (client {here}, ")
    assert f"topic {topic} has been created" in log_of(cluster, asked)


def test_creating_and_deleting_a_topic_warns_of_no_partition(cluster: KafkaliteCluster) -> None:
    topic = f"quiet-{uuid.uuid4().hex}"
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic(topic, 12, replication_factor=3)
        cluster.wait_in_sync(topic)
        with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
            for partition in range(12):
                producer.send(topic, b"one", partition=partition).result(PATIENCE_S)
        admin.delete_topics([topic])
    for number in cluster.brokers:
        assert not [line for line in log_of(cluster, number).splitlines() if topic in line and " INFO " not in line]


def test_a_topic_that_a_producer_makes_is_written(cluster: KafkaliteCluster) -> None:
    topic = f"automatic-{uuid.uuid4().hex}"
    with Producer(bootstrap_servers=cluster.bootstrap, client_id="maker") as producer:
        producer.send(topic, b"one").result(PATIENCE_S)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.delete_topics([topic])
    (line,) = (line for line in changes(cluster, topic) if "created" in line)
    assert re.fullmatch(rf"topic {topic} has been created automatically \(client \S+, client id maker\)", line)


def test_deleted_records_offsets_and_elections_are_written(cluster: KafkaliteCluster) -> None:
    topic = f"emptied-{uuid.uuid4().hex}"
    with Admin(bootstrap_servers=cluster.bootstrap, client_id="auditor") as admin:
        admin.create_topic(topic, 1, replication_factor=3)
        cluster.wait_in_sync(topic)
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send(topic, b"one", partition=0).result(PATIENCE_S)
        admin.delete_records({TopicPartition(topic, 0): 1})
        (line,) = changes(cluster, f"records have been deleted: {topic}-0")
        assert re.fullmatch(
            rf"records have been deleted: {topic}-0 before offset 1 \(client \S+, client id auditor\)", line
        )
        group = f"forgets-{uuid.uuid4().hex}"
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
        admin.delete_group_offsets(group, [TopicPartition(topic, 0)])
        (line,) = changes(cluster, group)
        assert line.startswith(f"1 committed offsets of group {group} have been deleted: {topic}-0 (client ")
        leader = cluster.leader_of(topic)
        assert leader is not None
        cluster.kill(leader)
        cluster.wait_for_leader(topic, other_than=leader)
        cluster.restart(leader)
        cluster.wait_in_sync(topic)
        assert not [each for each in admin.elect_leaders([TopicPartition(topic, 0)]).values() if each is not None]
        # Lines about elections of other tests are there, too.
        (line,) = changes(cluster, f"elected: {topic}-0")
        assert line.startswith(f"preferred leaders of 1 partitions have been elected: {topic}-0 (client ")
        admin.delete_topics([topic])


def test_control_characters_of_names_are_escaped(cluster: KafkaliteCluster) -> None:
    """A group is made and deleted by a client whose id would clear the screen and forge a line."""
    group, client_id = f"g\x1b[2J{uuid.uuid4().hex}", "evil\n2026 INFO \u202eforged"
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        topic = f"read-{uuid.uuid4().hex}"
        admin.create_topic(topic, 1, replication_factor=3)
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
        admin.delete_topics([topic])
    with Admin(bootstrap_servers=cluster.bootstrap, client_id=client_id) as admin:
        admin.delete_groups([group])
    shown = group.replace("\x1b", "\\x1b")
    (line,) = wait_until(lambda: changes(cluster, f"group {shown} "), "the line about the group")
    assert line.startswith(f"group {shown} has been deleted (client 127.0.0.1:")
    assert line.endswith(r", client id evil\n2026 INFO \u202eforged)")

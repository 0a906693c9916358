"""What this version has written is no obstacle to the last release, which keeps it for the next upgrade."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, Producer, TopicPartition
from spark_kafkalite.acls import (
    AccessControlEntry,
    Acl,
    Operation,
    PatternType,
    PermissionType,
    Resource,
    ResourceType,
)
from spark_kafkalite.client.admin.admin import ConfigChange, NewTopic
from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.patience import PATIENCE_S, wait_until
from tests.upgrade.last_release import LastRelease
from tests.upgrade.upgraded_cluster import change, settle, three_brokers

MOVED, MOVING, STILL = (TopicPartition(name, 0) for name in ("moved", "moving", "still"))
AUTHORIZER: dict[str, object] = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
}
ACL = Acl(
    Resource(ResourceType.TOPIC, PatternType.LITERAL, "still"),
    AccessControlEntry("User:alice", "*", Operation.READ, PermissionType.ALLOW),
)
SETTING = "max.connection.creation.rate"


def produce(bootstrap: str, first: int, count: int) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for topic, partition in (MOVED, MOVING, STILL):
            for number in range(first, first + count):
                producer.send(topic, b"%d" % number, partition=partition)
        producer.flush(PATIENCE_S)


def check_all_have(bootstrap: str, count: int) -> None:
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        for partition in (MOVED, MOVING, STILL):
            consumer.assign([partition])
            consumer.seek_to_beginning()
            found: list[int] = []
            while len(found) < count:
                records = consumer.poll(int(PATIENCE_S * 1000))
                assert records, f"{len(found)} of {count} records of {partition}"
                found += [int(record.value or b"-1") for record in records]
            assert found == list(range(count))


def use_what_is_new(admin: Admin) -> None:
    """Have all nodes in the registry that the last release does not know."""
    admin.alter_client_quotas({"user": "alice", "client-id": None}, {"producer_byte_rate": 1e9})
    admin.alter_client_quotas({"client-id": None}, {"consumer_byte_rate": 1e9})
    admin.alter_client_quotas({"ip": None}, {"connection_creation_rate": 1e4})
    admin.set_password("alice", "alice-secret")
    for whose in ({"broker_id": 1}, {"all_brokers": True}):
        admin.incremental_alter_configs([ConfigChange(SETTING, "set", "100000")], **whose)  # type: ignore[arg-type]
    assert admin.alter_partition_reassignments({MOVED: [3, 2]}) == {MOVED: None}
    wait_until(lambda: not admin.list_partition_reassignments(), "the reassignment to end")


def check_what_is_new(admin: Admin) -> None:
    assert len(admin.describe_client_quotas()) == 3
    assert admin.describe_users().keys() == {"alice"}
    assert admin.describe_configs(broker_id=1)[SETTING].value == "100000"


def test_the_last_release_goes_on_with_what_this_version_has_written(tmp_path: Path, last_release: LastRelease) -> None:
    with (
        three_brokers(tmp_path, None) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
    ):
        admin.create_topics([NewTopic(each.topic, assignments={0: [1, 2]}) for each in (MOVED, MOVING)])
        admin.create_topics([NewTopic(STILL.topic, assignments={0: [1, 2, 3]})])
        produce(cluster.bootstrap, 0, 50)
        use_what_is_new(admin)
        begin_a_move_that_cannot_end(cluster, admin)
        for number in (1, 2, 3):
            change(cluster.broker(number), last_release, back=True)
        cluster.wait_in_sync()
        # Each of the three brokers of the move has a replica, and none of them ends it.
        assert cluster.in_sync(MOVING.topic) == {1, 2, 3}
        log = cluster.broker(1).stderr_path.read_text()
        assert f"ignoring a setting of broker 1 in the registry: unknown broker setting '{SETTING}'" in log
        produce(cluster.bootstrap, 50, 50)
        settle(cluster)
        check_all_have(cluster.bootstrap, 100)
        # One upgrade begins with a crash.
        cluster.kill(2)
        for number in (2, 1, 3):
            change(cluster.broker(number), last_release)
            settle(cluster)
        wait_until(lambda: not admin.list_partition_reassignments(), "the reassignment to end")
        assert cluster.in_sync(MOVING.topic) == cluster.in_sync(MOVED.topic) == {2, 3}
        check_what_is_new(admin)
        produce(cluster.bootstrap, 100, 50)
        check_all_have(cluster.bootstrap, 150)


def begin_a_move_that_cannot_end(cluster: KafkaliteCluster, admin: Admin) -> None:
    """Broker 3 dies, and gets a replica before its session expires."""

    def has_begun() -> bool:
        if cluster.controller() != 3:
            cluster.kill(3)
            if admin.alter_partition_reassignments({MOVING: [3, 2]}) == {MOVING: None}:
                return True
        cluster.restart(3)
        settle(cluster)
        return False

    wait_until(has_begun, "a reassignment to a broker that has just died")


def test_a_broker_of_its_own_goes_back_with_users_and_acls_in_its_registry(
    tmp_path: Path, last_release: LastRelease
) -> None:
    broker = BrokerProcess(tmp_path / "data", overrides=AUTHORIZER)
    with broker, Admin(bootstrap_servers=broker.bootstrap) as admin:
        for topic, _ in (MOVED, MOVING, STILL):
            admin.create_topic(topic)
        admin.set_password("alice", "alice-secret")
        admin.alter_client_quotas({"user": "alice"}, {"producer_byte_rate": 1e9})
        admin.create_acls([ACL])
        produce(broker.bootstrap, 0, 10)
        # As the page says, what the last release lacks is taken out before.
        assert broker.stop() == 0
        broker.overrides.clear()
        change(broker, last_release, back=True)
        produce(broker.bootstrap, 10, 10)
        admin.create_topic("made-by-the-last-release")
        assert broker.stop() == 0
        broker.overrides.update(AUTHORIZER)
        change(broker, last_release)
        check_all_have(broker.bootstrap, 20)
        assert admin.describe_users().keys() == {"alice"}
        assert len(admin.describe_client_quotas()) == 1
        assert admin.describe_acls() == [ACL]


def test_settings_that_the_last_release_lacks_are_named_before_it_touches_anything(
    tmp_path: Path, last_release: LastRelease
) -> None:
    new = {"metrics.listener": "127.0.0.1:0", "auto.leader.rebalance.enable": "true"}
    broker = BrokerProcess(tmp_path / "data", overrides=new, command_prefix=last_release.prefix)
    with pytest.raises(ChildFailed, match=r"(?s)metrics\.listener.*auto\.leader\.rebalance\.enable"):
        broker.start()
    assert not list((tmp_path / "data").iterdir())

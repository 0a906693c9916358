"""ACLs in a cluster of three: every broker asks for rights before it hands a request on, and each follows changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.interop.security.asked_rights import ASKED, REFUSALS, allow, codes, forbid_all, login, plain
from tests.interop.security.test_authorization import SECURED
from tests.interop.support.raw_client import RawClient
from tests.patience import wait_until

# What a broker that is not the controller hands on.
HANDED_ON = ("CreateTopics", "DeleteTopics", "CreatePartitions", "ElectLeaders")
BROKERS = (1, 2, 3)


class SecuredCluster(KafkaliteCluster):
    """Three brokers whose only listener authenticates clients."""

    def _wait_until_all_know_all(self) -> None:
        def all_know() -> bool:
            for broker in self.brokers.values():
                with login(broker.bootstrap, "admin") as admin:
                    if len(admin.call(MetadataRequest(topics=[]), 12).brokers) < len(self.brokers):
                        return False
            return True

        wait_until(all_know, "the brokers to know each other")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaliteCluster]:
    name = "listener.name.plaintext.plain.sasl.jaas.config"
    overrides = {
        **{setting: value for setting, value in SECURED.items() if not setting.startswith("listener")},
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        name: SECURED["listener.name.sasl_plaintext.plain.sasl.jaas.config"],
        "zookeeper.session.timeout.ms": 6_000,
    }
    with SecuredCluster(tmp_path_factory.mktemp("secured"), overrides=overrides) as running:
        yield running


Login = Callable[[int, str], RawClient]


@pytest.fixture
def as_user(cluster: KafkaliteCluster) -> Iterator[Login]:
    with ExitStack() as stack:

        def connect(broker: int, user: str) -> RawClient:
            return stack.enter_context(login(cluster.brokers[broker].bootstrap, user))

        yield connect
        forbid_all(connect(1, "admin"), "alice")


@pytest.fixture(scope="module")
def present(cluster: KafkaliteCluster) -> str:
    """A topic with a copy on each broker, which follow under the authorizer."""
    with login(cluster.brokers[2].bootstrap, "admin") as admin:
        create = CreateTopicsRequest(
            topics=[CreatableTopic(name="present", num_partitions=1, replication_factor=3)], timeout_ms=20_000
        )
        assert [each.error_code for each in admin.call(create, 7).topics] == [0]

        def in_sync() -> bool:
            (topic,) = admin.call(MetadataRequest(topics=[MetadataRequestTopic(name="present")]), 12).topics
            return bool(topic.partitions) and len(topic.partitions[0].isr_nodes) == 3

        wait_until(in_sync, "all replicas to be in sync")
    return "present"


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("label", HANDED_ON)
def test_no_broker_hands_on_what_its_client_may_not_do(as_user: Login, present: str, broker: int, label: str) -> None:
    asked = next(each for each in ASKED if each.label == label)
    (_, _, refusal), *_ = asked.rights
    answer = plain(as_user(broker, "alice").call(asked.request(present), asked.version), present)
    assert REFUSALS & set(codes(answer)) == {refusal}


def test_one_topic_of_a_request_that_is_handed_on_may_be_allowed(as_user: Login, present: str) -> None:
    admin = as_user(1, "admin")
    allow(admin, "alice", (Operation.CREATE, ResourceType.TOPIC), name="mine")
    for broker in BROKERS:
        alice = as_user(broker, "alice")
        topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("mine", "theirs")]
        create = CreateTopicsRequest(topics=topics, timeout_ms=10_000, validate_only=True)

        def outcomes(alice: RawClient = alice, create: CreateTopicsRequest = create) -> dict[str, int]:
            return {each.name: each.error_code for each in alice.call(create, 7).topics}

        wait_until(lambda outcomes=outcomes: outcomes() == {"mine": 0, "theirs": 29}, f"broker {broker} to know")


def test_a_change_at_one_broker_is_obeyed_by_all(as_user: Login, present: str) -> None:
    members = {broker: as_user(broker, "alice") for broker in BROKERS}

    def refused() -> set[int]:
        request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        return {broker for broker, client in members.items() if client.call(request, 4).error_code == 30}

    assert refused() == set(BROKERS)
    allow(as_user(3, "admin"), "alice", (Operation.READ, ResourceType.GROUP), name="g")
    # At once where it was changed.
    assert 3 not in refused()
    wait_until(lambda: refused() == set(), "all brokers to follow")
    forbid_all(as_user(1, "admin"), "alice")
    assert 1 in refused()
    wait_until(lambda: refused() == set(BROKERS), "all brokers to follow")


def test_brokers_decide_by_the_last_known_acls_while_the_registry_is_away(
    cluster: KafkaliteCluster, as_user: Login, present: str
) -> None:
    allow(as_user(1, "admin"), "alice", (Operation.READ, ResourceType.GROUP), name="kept")
    alice = as_user(2, "alice")

    def refused(group: str) -> bool:
        request = HeartbeatRequest(group_id=group, generation_id=1, member_id="m")
        return bool(alice.call(request, 4).error_code == 30)

    wait_until(lambda: not refused("kept"), "broker 2 to know")
    cluster.registry.stop()
    try:
        log = cluster.brokers[2].stderr_path
        wait_until(lambda: "connection to the registry is lost" in log.read_text(), "broker 2 to notice")
        assert not refused("kept")
        assert refused("other")
        # A new connection, too.
        with login(cluster.brokers[2].bootstrap, "alice") as late:
            assert late.call(HeartbeatRequest(group_id="other", generation_id=1, member_id="m"), 4).error_code == 30
    finally:
        cluster.registry.start()
    wait_until(lambda: _can_alter(as_user), "the registry to take an ACL again")
    wait_until(lambda: not refused("again"), "broker 2 to follow")


def _can_alter(as_user: Login) -> bool:
    allow(as_user(1, "admin"), "alice", (Operation.READ, ResourceType.GROUP), name="again")
    return True

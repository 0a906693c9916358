"""What clients may do is limited by ACLs: each API, item by item, with real users of a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.requests import handlers
from spark_kafkalite.broker.requests.dispatch import SERVED_APIS
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from spark_kafkalite.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from spark_kafkalite.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from spark_kafkalite.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from spark_kafkalite.wire.messages.list_groups import ListGroupsRequest
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafkalite.wire.packed import FetchPartition, FetchRequest, FetchResponse, Topic
from tests.interop.security.asked_rights import (
    ASKED,
    REFUSALS,
    Asked,
    allow,
    codes,
    forbid_all,
    keys,
    login,
    plain,
)
from tests.interop.security.recorded_refusals import GOLDEN, record, record_apache
from tests.interop.support.raw_client import RawClient
from tests.lab import apache_kafka
from tests.lab.batches import make_batch
from tests.patience import wait_until

PRESENT, ABSENT = "present", "missing"
EXISTS = 36
USERS = " ".join(f'user_{name}="{name}-secret"' for name in ("admin", "alice", "bob"))
SECURED = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        f"org.apache.kafka.common.security.plain.PlainLoginModule required {USERS};"
    ),
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:admin",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("authorization") / "data", overrides=SECURED) as running:
        yield running


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[RawClient]:
    """A connection of the super user. The present topic and group exist, which a test may have deleted."""
    with login(broker.bootstrap, "admin") as client:
        create_present(client)
        yield client
        forbid_all(client, "alice")


def create_present(admin: RawClient) -> None:
    create = CreateTopicsRequest(
        topics=[CreatableTopic(name=PRESENT, num_partitions=1, replication_factor=1)], timeout_ms=10_000
    )
    assert {each.error_code for each in admin.call(create, 7).topics} <= {0, EXISTS}
    commit = next(asked for asked in ASKED if asked.label == "OffsetCommit")

    def is_committed() -> bool:
        find = next(asked for asked in ASKED if asked.label == "FindCoordinator")
        admin.call(find.request(PRESENT), find.version)
        return set(codes(plain(admin.call(commit.request(PRESENT), commit.version), PRESENT))) == {0}

    wait_until(is_committed, "the group to have an offset")


@pytest.fixture
def alice(broker: BrokerProcess) -> Iterator[RawClient]:
    with login(broker.bootstrap, "alice") as client:
        yield client


def test_every_served_api_that_needs_rights_is_in_the_table() -> None:
    handlers.load()
    assert keys() == {key for key, api in SERVED_APIS.items() if api.needs and not api.brokers_only}


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked.label)
def test_each_missing_right_is_refused_alike_for_names_that_exist_and_that_do_not(
    asked: Asked, admin: RawClient, alice: RawClient
) -> None:
    for missing in asked.rights:
        others = [(operation, kind) for operation, kind, _ in asked.rights if (operation, kind) != missing[:2]]
        answers = []
        for name in (PRESENT, ABSENT):
            if others:
                allow(admin, "alice", *others, name=name)
            answers.append(plain(alice.call(asked.request(name), asked.version), name))
            forbid_all(admin, "alice")
        assert REFUSALS & set(codes(answers[1])) == {missing[2]}
        # A client that may create a topic learns whether it exists; only its settings are hidden then.
        if asked.label != "CreateTopics" or missing[0] is Operation.CREATE:
            assert answers[0] == answers[1]
    # With all of them nothing is refused for want of a right.
    for name in (ABSENT, PRESENT):
        if asked.rights:
            allow(admin, "alice", *((operation, kind) for operation, kind, _ in asked.rights), name=name)
        answer = plain(alice.call(asked.request(name), asked.version), name)
        refused = REFUSALS & set(codes(answer))
        assert not refused or "transaction" in asked.label


def test_the_error_codes_of_refusals_are_those_of_apache_kafka(broker: BrokerProcess) -> None:
    assert record(broker.bootstrap) == json.loads(GOLDEN.read_text())


@pytest.mark.kafka
def test_apache_kafka_answers_what_was_recorded(tmp_path: Path) -> None:
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    assert record_apache(tmp_path) == json.loads(GOLDEN.read_text())


def fetched(client: RawClient, request: FetchRequest) -> FetchResponse:
    return client.ask_fetch(request, 12)


def session_fetch(*, session_id: int, epoch: int, max_wait_ms: int = 0, named: bool = False) -> FetchRequest:
    topics: list[tuple[Topic, list[FetchPartition]]] = []
    if named:
        topics = [(PRESENT, [FetchPartition(0, 0, 1 << 20)])]
    # More than there is, so that it waits.
    return FetchRequest(topics, max_wait_ms, min_bytes=1 << 20, session_id=session_id, session_epoch=epoch)


def test_a_fetch_session_that_waits_receives_the_loss_of_its_right(admin: RawClient, alice: RawClient) -> None:
    allow(admin, "alice", (Operation.READ, ResourceType.TOPIC), name=PRESENT)
    opened = fetched(alice, session_fetch(session_id=0, epoch=0, named=True))
    assert [one.error_code for one in opened.topics[0][1]] == [0]
    # It waits for records that do not come.
    alice.send_request(session_fetch(session_id=opened.session_id, epoch=1, max_wait_ms=10 * 60_000), 12)
    forbid_all(admin, "alice")
    # Long before the ten minutes that it would wait for records.
    answer = alice.receive_fetch(12)
    assert [one.error_code for one in answer.topics[0][1]] == [29]
    # And so does each later one, until the right is back.
    again = fetched(alice, session_fetch(session_id=opened.session_id, epoch=2))
    assert [one.error_code for one in again.topics[0][1]] == [29]
    allow(admin, "alice", (Operation.READ, ResourceType.TOPIC), name=PRESENT)
    back = fetched(alice, session_fetch(session_id=opened.session_id, epoch=3))
    assert [one.error_code for one in back.topics[0][1]] == [0]


def test_a_fetch_without_a_session_that_waits_receives_the_loss_of_its_right(
    admin: RawClient, alice: RawClient
) -> None:
    allow(admin, "alice", (Operation.READ, ResourceType.TOPIC), name=PRESENT)
    alice.send_request(session_fetch(session_id=0, epoch=-1, max_wait_ms=10 * 60_000, named=True), 12)
    forbid_all(admin, "alice")
    # Long before the ten minutes that it would wait for records.
    assert [one.error_code for one in alice.receive_fetch(12).topics[0][1]] == [29]


def test_a_member_that_loses_its_right_on_the_group_is_refused_at_its_next_heartbeat(
    admin: RawClient, alice: RawClient
) -> None:
    heartbeat = next(asked for asked in ASKED if asked.label == "Heartbeat")
    allow(admin, "alice", (Operation.READ, ResourceType.GROUP), name="present")
    assert alice.call(heartbeat.request(PRESENT), heartbeat.version).error_code not in REFUSALS
    forbid_all(admin, "alice")
    assert alice.call(heartbeat.request(PRESENT), heartbeat.version).error_code == 30


def test_all_topics_and_all_groups_are_those_that_the_client_may_describe(admin: RawClient, alice: RawClient) -> None:
    def seen() -> tuple[list[str | None], list[str], list[str]]:
        topics = alice.call(MetadataRequest(topics=None), 12).topics
        pages = alice.call(DescribeTopicPartitionsRequest(topics=[], response_partition_limit=100), 0).topics
        groups = alice.call(ListGroupsRequest(), 4).groups
        return [each.name for each in topics], [each.name for each in pages], [each.group_id for each in groups]

    assert seen() == ([], [], [])
    allow(admin, "alice", (Operation.WRITE, ResourceType.TOPIC), (Operation.READ, ResourceType.GROUP), name=PRESENT)
    assert seen() == ([PRESENT], [PRESENT], [PRESENT])


def test_part_of_a_request_may_be_allowed(admin: RawClient, alice: RawClient) -> None:
    allow(admin, "alice", (Operation.WRITE, ResourceType.TOPIC), name=PRESENT)
    batch = make_batch(1)
    alice.send_produce([(PRESENT, [(0, batch)]), (ABSENT, [(0, batch)]), ("__consumer_offsets", [(0, batch)])])
    outcomes = {name: parts[0].error_code for name, parts in alice.receive_produce().topics}
    assert outcomes == {PRESENT: 0, ABSENT: 29, "__consumer_offsets": 29}


def test_a_topic_is_made_automatically_only_for_a_client_that_may_create_it(admin: RawClient, alice: RawClient) -> None:
    def asked() -> int:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="automatic")], allow_auto_topic_creation=True)
        return int(alice.call(request, 12).topics[0].error_code)

    assert asked() == 29
    allow(admin, "alice", (Operation.DESCRIBE, ResourceType.TOPIC), name="automatic")
    assert asked() == 29
    assert "automatic" not in {each.name for each in admin.call(MetadataRequest(topics=None), 12).topics}
    allow(admin, "alice", (Operation.CREATE, ResourceType.TOPIC), name="automatic")
    assert asked() in (0, 5)


def test_authorized_operations_are_those_of_the_client(admin: RawClient, alice: RawClient) -> None:
    def operations() -> tuple[int, int]:
        request = MetadataRequest(
            topics=None, include_cluster_authorized_operations=True, include_topic_authorized_operations=True
        )
        answer = alice.call(request, 10)
        return answer.cluster_authorized_operations, answer.topics[0].topic_authorized_operations

    allow(admin, "alice", (Operation.WRITE, ResourceType.TOPIC), name=PRESENT)
    assert operations() == (0, 1 << Operation.WRITE | 1 << Operation.DESCRIBE)
    allow(admin, "alice", (Operation.ALTER, ResourceType.CLUSTER), name="")
    assert operations()[0] == 1 << Operation.ALTER | 1 << Operation.DESCRIBE


def test_who_may_only_look_has_no_logs_compared(admin: RawClient, alice: RawClient) -> None:
    allow(admin, "alice", (Operation.DESCRIBE, ResourceType.CLUSTER), name="")
    assert alice.call(DescribeLogDirsRequest(topics=None), 4).error_code == 0
    # It reads all of the logs.
    assert alice.call(DescribeLogDirsRequest(topics=None, compares=True), 4).error_code in REFUSALS
    allow(admin, "alice", (Operation.ALTER, ResourceType.CLUSTER), name="")
    assert alice.call(DescribeLogDirsRequest(topics=None, compares=True), 4).error_code == 0


def test_an_id_does_not_tell_the_name_of_a_topic(admin: RawClient, alice: RawClient) -> None:
    (topic,) = admin.call(MetadataRequest(topics=[MetadataRequestTopic(name=PRESENT)]), 12).topics
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=topic.topic_id)])
    (shown,) = alice.call(asked, 12).topics
    assert (shown.error_code, shown.name, shown.partitions) == (29, None, [])
    delete = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=topic.topic_id)], timeout_ms=1000)
    (refused,) = alice.call(delete, 6).responses
    assert (refused.error_code, refused.name) == (29, None)
    allow(admin, "alice", (Operation.DESCRIBE, ResourceType.TOPIC), name=PRESENT)
    (refused,) = alice.call(delete, 6).responses
    assert (refused.error_code, refused.name) == (29, PRESENT)


def test_denials_are_written_to_the_audit_log_a_few_times(
    broker: BrokerProcess, admin: RawClient, alice: RawClient
) -> None:
    heartbeat = next(asked for asked in ASKED if asked.label == "Heartbeat")
    for _ in range(50):
        assert alice.call(heartbeat.request("audited\nfake"), heartbeat.version).error_code == 30

    def lines() -> list[str]:
        return [line for line in broker.stderr_path.read_text().splitlines() if "audited" in line]

    # The broker's next period may begin between two of the requests: it brings three lines more.
    assert 3 <= len(lines()) < 50
    assert (
        "kafka.authorizer.logger: Principal = User:alice is Denied operation = READ from host = 127.0.0.1" in lines()[0]
    )
    assert "request = Heartbeat" in lines()[0]

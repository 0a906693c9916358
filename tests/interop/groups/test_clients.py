"""Groups of the field's consumers on our broker: they share, leave, come back, and go on where they were.

Mixtures of them in a storm are in storms/; here each kind meets each rule once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import confluent_kafka
import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.interop.groups import group_clients
from tests.interop.groups.group_clients import KINDS, Confluent, GroupMember
from tests.interop.groups.group_peer import GroupPeer, find_coordinator
from tests.interop.support.raw_client import RawClient
from tests.patience import PATIENCE_S, wait_until

PARTITIONS = 4
RECORDS = 100

_numbers = itertools.count(1)
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    overrides = {"offsets.topic.num.partitions": 5}
    with BrokerProcess(tmp_path_factory.mktemp("group-clients"), overrides=overrides) as running:
        with RawClient(running.bootstrap) as client:
            find_coordinator(client, "warm-up")
        yield running


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    """A topic with some records in each partition."""
    name = f"shared-{next(_numbers)}"
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(name, PARTITIONS, 1)
    send(broker, name, 0)
    return name


def send(broker: BrokerProcess, topic: str, first: int) -> set[bytes]:
    values = [b"record %d" % number for number in range(first, first + RECORDS)]
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % PARTITIONS)
        producer.flush(PATIENCE_S)
    return set(values)


def own_all(*members: GroupMember) -> bool:
    """Whether the members share all partitions, each with an equal part."""
    owned = [member.owned for member in members]
    return (
        set.union(*owned) == set(range(PARTITIONS))
        and sum(map(len, owned)) == PARTITIONS
        and max(map(len, owned)) - min(map(len, owned)) <= 1
    )


@every_kind
def test_members_share_and_one_that_leaves_is_replaced_at_once(broker: BrokerProcess, topic: str, kind: str) -> None:
    join = KINDS[kind]
    first = join(broker.bootstrap, topic, topic, commit=True)
    wait_until(lambda: own_all(first), "the first member to own all")
    wait_until(lambda: len(first.values) == RECORDS, "all records")
    second = join(broker.bootstrap, topic, topic)
    third = join(broker.bootstrap, topic, topic)
    wait_until(lambda: own_all(first, second, third), "the three to share")
    first.leave()
    wait_until(lambda: own_all(second, third), "the other two to share")
    later = send(broker, topic, RECORDS)
    wait_until(lambda: later <= set(second.values) | set(third.values), "the later records")
    third.leave()
    wait_until(lambda: own_all(second), "the last member to own all")
    second.leave()
    with GroupPeer(broker.bootstrap, topic) as peer:
        assert peer.describe().group_state == "Empty"


@every_kind
def test_a_group_goes_on_where_it_committed(broker: BrokerProcess, topic: str, kind: str) -> None:
    member = KINDS[kind](broker.bootstrap, topic, topic, commit=True)
    wait_until(lambda: len(member.values) == RECORDS, "all records")
    member.leave()
    later = send(broker, topic, RECORDS)
    member = KINDS[kind](broker.bootstrap, topic, topic)
    wait_until(lambda: len(member.values) >= RECORDS, "the later records")
    member.leave()
    assert set(member.values) == later
    assert len(member.values) == RECORDS


@every_kind
def test_the_restart_of_a_static_member_is_no_rebalance(
    broker: BrokerProcess, topic: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A restart takes some seconds on a busy host.
    monkeypatch.setattr(group_clients, "SESSION_MS", 45_000)
    join = KINDS[kind]
    members = [join(broker.bootstrap, topic, topic, instance=f"i{number}") for number in range(2)]
    wait_until(lambda: own_all(*members), "the two to share")
    with GroupPeer(broker.bootstrap, topic) as peer:
        wait_until(lambda: peer.describe().group_state == "Stable", "the group to be stable")
        shares = {one.group_instance_id: one.member_assignment for one in peer.describe().members}
        ids = {one.group_instance_id: one.member_id for one in peer.describe().members}
        assignments = members[0].assignments
        # A static member does not leave when it closes.
        members[1].leave()
        members[1] = join(broker.bootstrap, topic, topic, instance="i1")
        wait_until(lambda: own_all(*members), "the restarted one to have its share")
        described = peer.describe()
        assert described.group_state == "Stable"
        assert {one.group_instance_id: one.member_assignment for one in described.members} == shares
        later = {one.group_instance_id: one.member_id for one in described.members}
        assert later["i0"] == ids["i0"]
        assert later["i1"] != ids["i1"]
        assert members[0].assignments == assignments, "the other one was asked to rejoin"
    for member in members:
        member.leave()


def test_kinds_with_an_assignor_in_common_share_one_group(broker: BrokerProcess, topic: str) -> None:
    members = [KINDS[kind](broker.bootstrap, topic, topic) for kind in ("confluent", "kafka-python", "confluent")]
    wait_until(lambda: own_all(*members), "all three to share")
    for member in members:
        member.leave()


def test_a_member_without_an_assignor_in_common_is_told(broker: BrokerProcess, topic: str) -> None:
    member = KINDS["confluent-cooperative"](broker.bootstrap, topic, topic)
    wait_until(lambda: own_all(member), "the first member to own all")
    stranger = Confluent(broker.bootstrap, topic, topic)
    wait_until(lambda: not stranger.is_alive(), "the refusal")
    assert isinstance(stranger.error, confluent_kafka.KafkaException)
    assert stranger.error.args[0].code() == confluent_kafka.KafkaError.INCONSISTENT_GROUP_PROTOCOL
    assert own_all(member)
    member.leave()

"""Committed offsets over the wire: every version, every client, restarts, expiry; Apache Kafka reads our log."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest

from spark_kafkalite import Admin
from spark_kafkalite.coordinator.internal_topic import partition_for
from spark_kafkalite.errors import InvalidTopic
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from spark_kafkalite.wire.messages.find_coordinator import FindCoordinatorRequest
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafkalite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from spark_kafkalite.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from spark_kafkalite.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.interop.support.python_clients import kafka
from tests.interop.support.raw_client import RawClient
from tests.lab import apache_kafka
from tests.lab.batches import make_batch
from tests.patience import wait_until

pytestmark = [pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")]

TOPIC = "read"
_groups = (f"group-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    overrides = {"offsets.retention.check.interval.ms": 200, "offset.metadata.max.bytes": 100}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", overrides=overrides) as running:
        with Admin(bootstrap_servers=running.bootstrap) as admin:
            admin.create_topic(TOPIC, 3, 1)
        with RawClient(running.bootstrap) as client:
            find(client)
            # Of all partitions.
            wait_until_loaded(client, [f"warm-up-{number}" for number in range(500)])
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as connected:
        find(connected)
        yield connected


@pytest.fixture
def group() -> str:
    return next(_groups)


def find(client: RawClient, group: str = "g", version: int = 2) -> Any:
    keys = [group] if version >= 4 else []
    return client.call(FindCoordinatorRequest(key=group, coordinator_keys=keys), version)


def wait_until_loaded(client: RawClient, groups: list[str]) -> None:
    """Wait until the broker coordinates groups: it loads what it has of them in its own time."""
    wait_until(lambda: all(committed(client, each)[0] == 0 for each in groups), "all groups to be loaded")


def commit(
    client: RawClient, group: str, offsets: dict[tuple[str, int], int], version: int = 8, **fields: Any
) -> dict[tuple[str, int], int]:
    """Commit as a client without a group; return each partition's error."""
    metadata = fields.pop("metadata", "")
    epoch = fields.pop("leader_epoch", -1)
    topics = [
        OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=part,
                    committed_offset=offset,
                    committed_metadata=metadata,
                    committed_leader_epoch=epoch,
                )
            ],
        )
        for (topic, part), offset in offsets.items()
    ]
    answer = client.call(OffsetCommitRequest(group_id=group, topics=topics, **fields), version)
    return {(topic.name, part.partition_index): part.error_code for topic in answer.topics for part in topic.partitions}


def committed(client: RawClient, group: str, topics: dict[str, list[int]] | None = None, version: int = 7) -> Any:
    """Return the group's error and (offset, leader epoch, metadata) by topic and partition."""
    if version >= 8:
        asked = (
            None
            if topics is None
            else [OffsetFetchRequestTopics(name=name, partition_indexes=parts) for name, parts in topics.items()]
        )
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=asked)])
        (answer,) = client.call(request, version).groups
    else:
        older = (
            None
            if topics is None
            else [OffsetFetchRequestTopic(name=name, partition_indexes=parts) for name, parts in topics.items()]
        )
        answer = client.call(OffsetFetchRequest(group_id=group, topics=older), version)
    found = {
        (topic.name, part.partition_index): (part.committed_offset, part.committed_leader_epoch, part.metadata)
        for topic in answer.topics
        for part in topic.partitions
    }
    return answer.error_code, found


class TestFindCoordinator:
    @pytest.mark.parametrize("version", range(7))
    def test_every_version_names_the_broker(self, client: RawClient, broker: BrokerProcess, version: int) -> None:
        answer = find(client, "g", version)
        (one,) = answer.coordinators if version >= 4 else (answer,)
        assert (one.error_code, one.node_id, one.host, one.port) == (0, 1, "127.0.0.1", broker.port)

    def test_many_keys_have_an_answer_each(self, client: RawClient) -> None:
        keys = ["a", "b", "", "caf\u00e9"]
        answer = client.call(FindCoordinatorRequest(coordinator_keys=keys), 4)
        assert [(one.key, one.error_code) for one in answer.coordinators] == [(key, 0) for key in keys]

    @pytest.mark.parametrize(("key_type", "code"), [(1, 53), (2, 42), (-1, 42)])
    def test_other_coordinators_are_refused_for_good(self, client: RawClient, key_type: int, code: int) -> None:
        for version in (1, 6):
            request = FindCoordinatorRequest(key="k", key_type=key_type, coordinator_keys=["k"] if version > 3 else [])
            answer = client.call(request, version)
            (one,) = answer.coordinators if version >= 4 else (answer,)
            assert (one.error_code, one.node_id) == (code, -1)
            assert one.error_message

    def test_the_topic_is_made_once_compacted_and_internal(self, tmp_path: Path) -> None:
        overrides = {"offsets.topic.num.partitions": 7, "offsets.topic.segment.bytes": 50_000}
        with BrokerProcess(tmp_path / "data", overrides=overrides) as broker, RawClient(broker.bootstrap) as client:
            many = [RawClient(broker.bootstrap) for _ in range(8)]
            sent = [one.send(FindCoordinatorRequest(key="g"), 2) for one in many]
            assert [one.receive(10, 2).error_code for one in many] == [0] * len(sent)
            for one in many:
                one.socket.close()
            (topic,) = client.call(MetadataRequest(topics=[MetadataRequestTopic(name="__consumer_offsets")]), 12).topics
            assert (topic.error_code, topic.is_internal, len(topic.partitions)) == (0, True, 7)
            with Admin(bootstrap_servers=broker.bootstrap) as admin:
                assert [each for each in admin.list_topics() if each.startswith("__")] == []
                shown = admin.describe_configs(topic="__consumer_offsets")
            assert (shown["cleanup.policy"].value, shown["segment.bytes"].value) == ("compact", "50000")

    def test_nobody_else_writes_to_it_or_extends_it(self, client: RawClient, broker: BrokerProcess) -> None:
        assert client.produce("__consumer_offsets", make_batch(key=b"k")).error_code == 17
        with Admin(bootstrap_servers=broker.bootstrap) as admin, pytest.raises(InvalidTopic):
            admin.create_partitions({"__consumer_offsets": 60})

    def test_without_enough_brokers_there_is_no_coordinator(self, tmp_path: Path) -> None:
        overrides = {"offsets.topic.replication.factor": 3}
        with BrokerProcess(tmp_path / "data", overrides=overrides) as broker, RawClient(broker.bootstrap) as client:
            assert find(client).error_code == 15
            assert commit(client, "g", {(TOPIC, 0): 1}) == {(TOPIC, 0): 3}
            assert committed(client, "g", {TOPIC: [0]}) == (16, {(TOPIC, 0): (-1, -1, "")})


class TestCommitAndFetch:
    @pytest.mark.parametrize("version", range(2, 10))
    def test_every_version_commits(self, client: RawClient, group: str, version: int) -> None:
        epoch = {"leader_epoch": 4} if version >= 6 else {}
        assert commit(client, group, {(TOPIC, 1): 2**40}, version, metadata="m\u00e9ta", **epoch) == {(TOPIC, 1): 0}
        assert committed(client, group, {TOPIC: [1]}) == (
            0,
            {(TOPIC, 1): (2**40, epoch.get("leader_epoch", -1), "m\u00e9ta")},
        )

    @pytest.mark.parametrize("version", range(1, 10))
    def test_every_version_fetches(self, client: RawClient, group: str, version: int) -> None:
        commit(client, group, {(TOPIC, 0): 7, (TOPIC, 2): 8}, leader_epoch=1, metadata="x")
        epoch = 1 if version >= 5 else -1
        wanted = {(TOPIC, 2): (8, epoch, "x"), (TOPIC, 1): (-1, -1, ""), ("none", 0): (-1, -1, "")}
        assert committed(client, group, {TOPIC: [2, 1], "none": [0]}, version) == (0, wanted)
        if version >= 2:
            every = {(TOPIC, 0): (7, epoch, "x"), (TOPIC, 2): (8, epoch, "x")}
            assert committed(client, group, None, version) == (0, every)
            assert committed(client, group, {}, version) == (0, {})
            assert committed(client, "no-such-group", None, version) == (0, {})

    def test_many_groups_are_fetched_at_once(self, client: RawClient) -> None:
        groups = [next(_groups) for _ in range(5)]
        for number, each in enumerate(groups):
            commit(client, each, {(TOPIC, 0): number})
        asked = [OffsetFetchRequestGroup(group_id=each, topics=None) for each in groups]
        answer = client.call(OffsetFetchRequest(groups=asked, require_stable=True), 8)
        offsets = [(one.group_id, one.topics[0].partitions[0].committed_offset) for one in answer.groups]
        assert offsets == [(each, number) for number, each in enumerate(groups)]

    def test_a_group_is_fetched_once_by_a_request(self, client: RawClient, group: str) -> None:
        commit(client, group, {(TOPIC, 0): 1})
        asked = [OffsetFetchRequestGroup(group_id=each, topics=None) for each in (group, "other", group)]
        answer = client.call(OffsetFetchRequest(groups=asked), 8)
        assert [(one.group_id, one.error_code, len(one.topics)) for one in answer.groups] == [
            (group, 0, 1),
            ("other", 0, 0),
            (group, 42, 0),
        ]

    @pytest.mark.parametrize("version", [7, 8])
    def test_a_partition_that_is_named_often_is_answered_once(
        self, client: RawClient, group: str, version: int
    ) -> None:
        commit(client, group, {(TOPIC, 0): 1, (TOPIC, 1): 2}, metadata="m" * 100)
        request = OffsetFetchRequest(
            group_id=group,
            topics=[OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0, 1] * 1_000)] * 2,
        )
        if version >= 8:
            topics = [OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0, 1] * 1_000)] * 2
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)])
        answer = client.call(request, version)
        (topic,) = answer.topics if version < 8 else answer.groups[0].topics
        assert [(each.partition_index, each.committed_offset) for each in topic.partitions] == [(0, 1), (1, 2)]

    def test_a_bad_partition_spoils_only_itself(self, client: RawClient, group: str) -> None:
        wanted = {(TOPIC, 0): 5, (TOPIC, 3): 5, (TOPIC, -1): 5, ("no-such-topic", 0): 5}
        assert commit(client, group, wanted) == {
            (TOPIC, 0): 0,
            (TOPIC, 3): 3,
            (TOPIC, -1): 3,
            ("no-such-topic", 0): 3,
        }
        assert commit(client, group, {(TOPIC, 1): 5}, metadata="m" * 101) == {(TOPIC, 1): 12}
        assert commit(client, group, {(TOPIC, 1): 6}, metadata="m" * 100) == {(TOPIC, 1): 0}
        assert committed(client, group)[1] == {(TOPIC, 0): (5, -1, ""), (TOPIC, 1): (6, -1, "m" * 100)}

    def test_a_generation_needs_a_group(self, client: RawClient, group: str) -> None:
        member = {"member_id": "m", "generation_id_or_member_epoch": 1}
        assert commit(client, group, {(TOPIC, 0): 1}, **member) == {(TOPIC, 0): 22}
        commit(client, group, {(TOPIC, 0): 1})
        assert commit(client, group, {(TOPIC, 0): 2}, **member)[TOPIC, 0] in (22, 25)
        assert committed(client, group)[1][TOPIC, 0][0] == 1

    def test_an_empty_group_id_is_one_like_others(self, client: RawClient) -> None:
        assert commit(client, "", {(TOPIC, 0): 3}) == {(TOPIC, 0): 0}
        assert committed(client, "")[1][TOPIC, 0][0] == 3

    def test_pipelined_commits_come_in_order(self, client: RawClient, group: str) -> None:
        for offset in range(300):
            partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
            topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])]
            client.send(OffsetCommitRequest(group_id=group, topics=topics), 8)
            if offset % 50 == 49:
                for _ in range(50):
                    assert client.receive(8, 8).topics[0].partitions[0].error_code == 0
        assert committed(client, group)[1][TOPIC, 0][0] == 299

    def test_a_retention_time_of_the_client_is_kept_to(self, client: RawClient, group: str) -> None:
        commit(client, group, {(TOPIC, 0): 3}, version=4, retention_time_ms=300)
        commit(client, group, {(TOPIC, 1): 3}, version=4, retention_time_ms=3_600_000)
        commit(client, group, {(TOPIC, 2): 3}, version=4)
        wait_until(lambda: (TOPIC, 0) not in committed(client, group)[1], "the first offset to expire")
        assert sorted(committed(client, group)[1]) == [(TOPIC, 1), (TOPIC, 2)]

    def test_offsets_go_with_their_topic(self, client: RawClient, broker: BrokerProcess, group: str) -> None:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("short-lived", 2, 1)
        commit(client, group, {("short-lived", 0): 1, ("short-lived", 1): 1, (TOPIC, 0): 1})
        client.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="short-lived")], timeout_ms=50_000), 6)
        wait_until(lambda: list(committed(client, group)[1]) == [(TOPIC, 0)], "the deleted topic's offsets to go")


class TestDelete:
    def test_offsets_are_deleted_one_by_one(self, client: RawClient, group: str) -> None:
        commit(client, group, {(TOPIC, 0): 1, (TOPIC, 1): 2})
        asked = [OffsetDeleteRequestPartition(partition_index=number) for number in (1, 2, 9)]
        topics = [OffsetDeleteRequestTopic(name=TOPIC, partitions=asked)]
        answer = client.call(OffsetDeleteRequest(group_id=group, topics=topics), 0)
        assert answer.error_code == 0
        assert [(part.partition_index, part.error_code) for part in answer.topics[0].partitions] == [
            (1, 0),
            (2, 0),
            (9, 3),
        ]
        assert committed(client, group)[1] == {(TOPIC, 0): (1, -1, "")}

    def test_of_a_group_with_consumers_only_topics_that_nobody_reads(
        self, client: RawClient, broker: BrokerProcess, group: str
    ) -> None:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("unread", 1, 1)
        commit(client, group, {(TOPIC, 0): 1, ("unread", 0): 1})
        member = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
        member.subscribe([TOPIC])
        wait_until(lambda: bool(member.poll(0.1) or member.assignment()), "the member to have its partitions")
        # Only members commit now, and a rebalance does not take back what was committed before it.
        assert commit(client, group, {(TOPIC, 0): 2}) == {(TOPIC, 0): 25}
        asked = [OffsetDeleteRequestPartition(partition_index=0)]
        topics = [OffsetDeleteRequestTopic(name=name, partitions=asked) for name in (TOPIC, "unread")]
        answer = client.call(OffsetDeleteRequest(group_id=group, topics=topics), 0)
        assert [topic.partitions[0].error_code for topic in answer.topics] == [86, 0]
        assert committed(client, group)[1] == {(TOPIC, 0): (1, -1, "")}
        member.commit(offsets=[confluent_kafka.TopicPartition(TOPIC, 0, 7)], asynchronous=False)
        assert committed(client, group)[1][TOPIC, 0][0] == 7
        member.close()
        answer = client.call(OffsetDeleteRequest(group_id=group, topics=topics[:1]), 0)
        assert answer.topics[0].partitions[0].error_code == 0
        wait_until(lambda: committed(client, group)[1] == {}, "the offsets to go with the last member")

    def test_a_group_that_does_not_exist_is_an_error(self, client: RawClient) -> None:
        assert client.call(OffsetDeleteRequest(group_id="no-such-group"), 0).error_code == 69


class TestClients:
    def test_confluent_commits_and_closes(self, broker: BrokerProcess, group: str) -> None:
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": group}
        consumer = confluent_kafka.Consumer(settings)
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
        consumer.poll(0.1)
        consumer.commit(offsets=[confluent_kafka.TopicPartition(TOPIC, 0, 11, metadata="here")], asynchronous=False)
        (found,) = consumer.committed([confluent_kafka.TopicPartition(TOPIC, 0)], 10)
        assert found.offset == 11
        consumer.close()

    def test_kafka_python_commits(self, broker: BrokerProcess, group: str) -> None:
        consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=group, enable_auto_commit=False)
        partition = kafka.TopicPartition(TOPIC, 1)
        consumer.assign([partition])
        consumer.commit({partition: kafka.OffsetAndMetadata(12, "k", -1)})
        assert consumer.committed(partition) == 12
        consumer.close()

    def test_aiokafka_commits(self, broker: BrokerProcess, group: str) -> None:
        async def run() -> int:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=broker.bootstrap, group_id=group, enable_auto_commit=False
            )
            await consumer.start()
            partition = aiokafka.TopicPartition(TOPIC, 2)
            consumer.assign([partition])
            await consumer.commit({partition: 13})
            found = await consumer.committed(partition)
            await consumer.stop()
            return int(found)

        assert asyncio.run(run()) == 13


def test_commits_outlive_kills_and_restarts(tmp_path: Path) -> None:
    groups = [f"g{number}" for number in range(40)]
    with BrokerProcess(tmp_path / "data") as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic(TOPIC, 3, 1)
        for round_number, end in enumerate((broker.kill, broker.stop), 1):
            with RawClient(broker.bootstrap) as client:
                find(client)
                wait_until_loaded(client, groups)
                for number, each in enumerate(groups):
                    assert commit(client, each, {(TOPIC, 0): number * round_number}) == {(TOPIC, 0): 0}
            end()
            broker.start()
            with RawClient(broker.bootstrap) as client:
                wait_until_loaded(client, groups)
                offsets = [committed(client, each)[1][TOPIC, 0][0] for each in groups]
            assert offsets == [number * round_number for number in range(len(groups))]


@pytest.mark.kafka
def test_apache_kafka_reads_our_log(client: RawClient, broker: BrokerProcess, group: str) -> None:
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    commit(client, group, {(TOPIC, 0): 41, (TOPIC, 1): 42}, metadata="ours")
    segments = (broker.data_dir / f"__consumer_offsets-{partition_for(group, 50)}").glob("*.log")
    dumped = apache_kafka.kafka_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", ",".join(map(str, segments))
    ).stdout
    lines = [line for line in dumped.splitlines() if f'"group":"{group}"' in line]
    assert len(lines) == 2
    assert '"offset":41' in lines[0] and '"metadata":"ours"' in lines[0]
    assert '"partition":1' in lines[1] and '"offset":42' in lines[1]

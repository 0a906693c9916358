"""The worst that a client can ask of each API within one request, for ``test_worst_requests``.

Each is as long as the broker decodes, or names what is there as often as that allows. Topic ``wide`` has a thousand
partitions, ``names-N`` one each, ``large`` and ``stamped`` (with LogAppendTime) take batches of any size; ``g`` is a
group with offsets for all of ``wide``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spark_kafkalite.wire import codec, packed
from spark_kafkalite.wire.inner import compare_replicas
from spark_kafkalite.wire.message import ApiMessage
from spark_kafkalite.wire.messages import alter_client_quotas as new_quotas
from spark_kafkalite.wire.messages import alter_configs as alter
from spark_kafkalite.wire.messages import alter_partition_reassignments as reassignments
from spark_kafkalite.wire.messages import alter_user_scram_credentials as new_scram
from spark_kafkalite.wire.messages import (
    api_versions,
    delete_groups,
    describe_cluster,
    describe_groups,
    describe_topic_partitions,
    elect_leaders,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
)
from spark_kafkalite.wire.messages import create_acls as acls_created
from spark_kafkalite.wire.messages import create_partitions as partitions
from spark_kafkalite.wire.messages import create_topics as topics
from spark_kafkalite.wire.messages import delete_acls as acls_deleted
from spark_kafkalite.wire.messages import delete_records as deletion
from spark_kafkalite.wire.messages import delete_topics as deleted
from spark_kafkalite.wire.messages import describe_acls as acls_described
from spark_kafkalite.wire.messages import describe_client_quotas as quotas
from spark_kafkalite.wire.messages import describe_configs as configs
from spark_kafkalite.wire.messages import describe_log_dirs as directories
from spark_kafkalite.wire.messages import describe_user_scram_credentials as scram
from spark_kafkalite.wire.messages import incremental_alter_configs as incremental
from spark_kafkalite.wire.messages import list_partition_reassignments as moving
from spark_kafkalite.wire.messages import offset_delete as offsets
from spark_kafkalite.wire.messages import offset_for_leader_epoch as epochs
from tests.lab.batches import make_batch
from tests.seeds import SOAK

WIDE = 1_000
MANY_TOPICS = 200
# Requests are named by their size in the soak. ``make test`` sends a quarter of that, which may take a quarter of the
# memory.
PART = 1 if SOAK else 4
# In the soak little less than the elements that a request may have.
MANY = 250_000 // PART
TOPIC, BROKER, LOGGER = 2, 4, 8
MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class Worst:
    """One request: ``make`` gives its frame without the length. ``refused``: the broker closes the connection."""

    name: str
    api_key: int
    make: Callable[[], bytes]
    refused: bool = False


def frame(message: ApiMessage, version: int) -> bytes:
    return codec.encode_request(message, version, 1, "worst")


def wide(count: int = MANY) -> list[int]:
    """Partition numbers, the same again and again."""
    return [number % WIDE for number in range(count)]


def produce(batches: int, records: int = 1, record_bytes: int = 1) -> bytes:
    batch = bytes(make_batch([b"x" * record_bytes] * records))
    named = [(number % WIDE, batch) for number in range(batches)]
    pieces, _ = packed.pack_produce_request(1, "worst", 9, 1, 30_000, [("wide", named)])
    return b"".join(bytes(piece) for piece in pieces)


def produce_one(topic: str, records: int, record_bytes: int) -> bytes:
    batch = make_batch([b"x" * record_bytes] * records)
    pieces, _ = packed.pack_produce_request(1, "worst", 9, 1, 30_000, [(topic, [(0, batch)])])
    return b"".join(bytes(piece) for piece in pieces)


def fetch(asked: list[packed.FetchPartition], topic: str = "wide", max_wait_ms: int = 0) -> bytes:
    return packed.pack_fetch_request(1, "worst", 11, packed.FetchRequest([(topic, asked)], max_wait_ms, 1 << 30))


def session_fetch(asked: list[packed.FetchPartition], session_id: int = 0, epoch: int = 0) -> bytes:
    """A fetch of a session, which opens it unless it has an id and an epoch."""
    topics = [("wide", asked)] if asked else []
    return packed.pack_fetch_request(
        1, "worst", 11, packed.FetchRequest(topics, 0, 1 << 30, session_id=session_id, session_epoch=epoch)
    )


def positions(partitions: Iterable[int]) -> list[packed.FetchPartition]:
    return [packed.FetchPartition(number, 0, 9) for number in partitions]


def fetch_topics(names: int) -> bytes:
    one = [packed.FetchPartition(0, 0, 1024)]
    return packed.pack_fetch_request(
        1, "worst", 11, packed.FetchRequest([(f"t{number}", one) for number in range(names)])
    )


def commit(count: int) -> bytes:
    named = [offset_commit.OffsetCommitRequestPartition(partition_index=number) for number in wide(count)]
    topic = offset_commit.OffsetCommitRequestTopic(name="wide", partitions=named)
    return frame(offset_commit.OffsetCommitRequest(group_id="g", topics=[topic]), 8)


def commit_unknown(count: int) -> bytes:
    named = [offset_commit.OffsetCommitRequestPartition(partition_index=number) for number in range(count)]
    topic = offset_commit.OffsetCommitRequestTopic(name="none", partitions=named)
    return frame(offset_commit.OffsetCommitRequest(group_id="g", topics=[topic]), 8)


def fetch_offsets_of_groups(count: int) -> bytes:
    groups = [offset_fetch.OffsetFetchRequestGroup(group_id=f"g{number}", topics=None) for number in range(count)]
    return frame(offset_fetch.OffsetFetchRequest(groups=groups), 8)


def fetch_offsets_of_topics(numbers: list[int], topic: str = "wide") -> bytes:
    asked = [offset_fetch.OffsetFetchRequestTopic(name=topic, partition_indexes=numbers)]
    return frame(offset_fetch.OffsetFetchRequest(group_id="g", topics=asked), 7)


def metadata_of(names: list[str]) -> bytes:
    asked = [metadata.MetadataRequestTopic(name=name) for name in names]
    return frame(metadata.MetadataRequest(topics=asked, allow_auto_topic_creation=False), 9)


def list_offsets_of(numbers: list[int]) -> bytes:
    asked = [list_offsets.ListOffsetsPartition(partition_index=number, timestamp=1) for number in numbers]
    topic = list_offsets.ListOffsetsTopic(name="wide", partitions=asked)
    return frame(list_offsets.ListOffsetsRequest(replica_id=-1, topics=[topic]), 6)


def pages_of(topics: list[str], cursor: str | None = None) -> bytes:
    request = describe_topic_partitions.DescribeTopicPartitionsRequest(
        topics=[describe_topic_partitions.TopicRequest(name=name) for name in topics],
        response_partition_limit=2**31 - 1,
    )
    if cursor is not None:
        request.cursor = describe_topic_partitions.CursorRequest(topic_name=cursor, partition_index=0)
    return frame(request, 0)


def resources_of(types: list[int]) -> bytes:
    return frame(list_config_resources.ListConfigResourcesRequest(resource_types=types), 1)


def configs_of(resources: list[tuple[int, str]], keys: list[str] | None = None) -> bytes:
    asked = [
        configs.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
        for kind, name in resources
    ]
    return frame(configs.DescribeConfigsRequest(resources=asked, include_synonyms=True), 4)


def increments(resources: int, operations: int, name: str = "wide") -> bytes:
    changes = [
        incremental.AlterableConfig(name=f"unknown.{number}", config_operation=0, value="1")
        for number in range(operations)
    ]
    return frame(
        incremental.IncrementalAlterConfigsRequest(
            resources=[
                incremental.AlterConfigsResource(
                    resource_type=TOPIC, resource_name=name if resources == 1 else f"none-{number}", configs=changes
                )
                for number in range(resources)
            ]
        ),
        1,
    )


def replacements(resources: int, settings: int) -> bytes:
    changes = [alter.AlterableConfig(name=f"unknown.{number}", value="1") for number in range(settings)]
    named = [
        alter.AlterConfigsResource(
            resource_type=TOPIC, resource_name="wide" if resources == 1 else f"none-{number}", configs=changes
        )
        for number in range(resources)
    ]
    return frame(alter.AlterConfigsRequest(resources=named), 2)


def records_before(numbers: list[int]) -> bytes:
    asked = [deletion.DeleteRecordsPartition(partition_index=number, offset=0) for number in numbers]
    topic = deletion.DeleteRecordsTopic(name="wide", partitions=asked)
    return frame(deletion.DeleteRecordsRequest(topics=[topic], timeout_ms=30_000), 2)


def epochs_of(numbers: list[int]) -> bytes:
    asked = [epochs.OffsetForLeaderPartition(partition=number) for number in numbers]
    return frame(
        epochs.OffsetForLeaderEpochRequest(topics=[epochs.OffsetForLeaderTopic(topic="wide", partitions=asked)]), 4
    )


def log_dirs(numbers: list[int] | None) -> bytes:
    asked = None if numbers is None else [directories.DescribableLogDirTopic(topic="wide", partitions=numbers)]
    return frame(directories.DescribeLogDirsRequest(topics=asked), 4)


def delete_offsets(numbers: list[int]) -> bytes:
    asked = [offsets.OffsetDeleteRequestPartition(partition_index=number) for number in numbers]
    topic = offsets.OffsetDeleteRequestTopic(name="wide", partitions=asked)
    return frame(offsets.OffsetDeleteRequest(group_id="g", topics=[topic]), 0)


def new_topics(count: int, partition_count: int = 1, *, validate_only: bool = True) -> bytes:
    wanted = [
        topics.CreatableTopic(name=f"new-{number}", num_partitions=partition_count, replication_factor=1)
        for number in range(count)
    ]
    return frame(topics.CreateTopicsRequest(topics=wanted, timeout_ms=30_000, validate_only=validate_only), 7)


def new_topic_assigned(count: int) -> bytes:
    assigned = [topics.CreatableReplicaAssignment(partition_index=number, broker_ids=[1]) for number in range(count)]
    wanted = topics.CreatableTopic(name="new", num_partitions=-1, replication_factor=-1, assignments=assigned)
    return frame(topics.CreateTopicsRequest(topics=[wanted], timeout_ms=30_000, validate_only=True), 7)


def new_topic_configured(count: int) -> bytes:
    settings = [topics.CreatableTopicConfig(name=f"unknown.{number}", value="1") for number in range(count)]
    wanted = topics.CreatableTopic(name="new", num_partitions=1, replication_factor=1, configs=settings)
    return frame(topics.CreateTopicsRequest(topics=[wanted], timeout_ms=30_000, validate_only=True), 7)


def more_partitions(names: list[str]) -> bytes:
    wanted = [partitions.CreatePartitionsTopic(name=name, count=2, assignments=None) for name in names]
    return frame(partitions.CreatePartitionsRequest(topics=wanted, timeout_ms=30_000, validate_only=True), 3)


def delete_topics(names: list[str]) -> bytes:
    return frame(deleted.DeleteTopicsRequest(topic_names=names, timeout_ms=30_000), 5)


def elections(numbers: Iterable[int], topic: str = "wide") -> bytes:
    asked = [elect_leaders.TopicPartitions(topic=topic, partitions=list(numbers))]
    return frame(elect_leaders.ElectLeadersRequest(topic_partitions=asked, timeout_ms=30_000), 2)


def leave(count: int) -> bytes:
    members = [leave_group.MemberIdentity(member_id=f"m{number}") for number in range(count)]
    return frame(leave_group.LeaveGroupRequest(group_id="g", members=members), 4)


def join(protocols: int) -> bytes:
    named = [join_group.JoinGroupRequestProtocol(name=f"p{number}", metadata=b"") for number in range(protocols)]
    return frame(
        join_group.JoinGroupRequest(
            group_id="joined", session_timeout_ms=10_000, rebalance_timeout_ms=1, protocol_type="t", protocols=named
        ),
        3,
    )


def join_of(metadata_bytes: int, times: int = 1) -> bytes:
    metadata = bytes(metadata_bytes)
    named = [join_group.JoinGroupRequestProtocol(name=f"range-{n}", metadata=metadata) for n in range(times)]
    return frame(
        join_group.JoinGroupRequest(
            group_id="joined", session_timeout_ms=10_000, rebalance_timeout_ms=1, protocol_type="t", protocols=named
        ),
        3,
    )


def sync(assignments: int) -> bytes:
    shares = [
        sync_group.SyncGroupRequestAssignment(member_id=f"m{number}", assignment=b"") for number in range(assignments)
    ]
    return frame(sync_group.SyncGroupRequest(group_id="g", member_id="m", assignments=shares), 3)


def names(prefix: str, count: int = MANY) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def tags(message: ApiMessage, version: int, count: int) -> bytes:
    """A request that ends in as many unknown tagged fields as one struct may have, and far more."""
    body = frame(message, version)[:-1]
    fields = bytearray()
    for number in range(count):
        fields += struct.pack(">BBBB", 0x80 | number & 0x7F, 0x80 | number >> 7 & 0x7F, number >> 14, 0)
    return body + struct.pack(">BBB", 0x80 | count & 0x7F, 0x80 | count >> 7 & 0x7F, count >> 14) + fields


def moves(partitions: Iterable[int], topic: str = "wide") -> bytes:
    asked = [reassignments.ReassignablePartition(partition_index=number, replicas=None) for number in partitions]
    topics_ = [reassignments.ReassignableTopic(name=topic, partitions=asked)]
    return frame(reassignments.AlterPartitionReassignmentsRequest(topics=topics_), 1)


ALL = [
    Worst("produce of 60,000 batches", 0, lambda: produce(60_000 // PART)),
    Worst("produce of 90 MiB in 100 batches", 0, lambda: produce(100, 9, 102_000)),
    Worst("produce of one batch of 104 MB", 0, lambda: produce_one("large", 104, 1_000_000)),
    Worst("produce of one batch of 104 MB, stamped by the broker", 0, lambda: produce_one("stamped", 104, 1_000_000)),
    Worst("produce of one batch of 4 million records", 0, lambda: produce_one("large", 4_000_000, 1)),
    Worst("fetch of a partition 200,000 times", 1, lambda: fetch(
        [packed.FetchPartition(0, 0, 1024)] * (200_000 // PART))),
    Worst("fetch of 200,000 unknown partitions", 1, lambda: fetch(positions(range(MANY)))),
    Worst("fetch of 120,000 unknown topics", 1, lambda: fetch_topics(120_000 // PART)),
    Worst("fetch of 1,000 partitions again and again", 1, lambda: fetch(positions(wide()))),
    Worst("fetch that opens a session of 10,000 partitions", 1, lambda: session_fetch(positions(range(10_000)))),
    Worst("fetch that would open a session of 200,000 partitions", 1, lambda: session_fetch(positions(range(MANY)))),
    Worst("offsets of a partition again and again", 2, lambda: list_offsets_of([0] * MANY)),
    Worst("offsets of 1,000 partitions again and again", 2, lambda: list_offsets_of(wide())),
    Worst("metadata of a wide topic 5,000 times", 3, lambda: metadata_of(["wide"] * (5_000 // PART))),
    Worst("metadata of 250,000 unknown topics", 3, lambda: metadata_of(names("none-"))),
    Worst("metadata of all topics", 3, lambda: frame(metadata.MetadataRequest(topics=None), 9)),
    Worst("commit of 200,000 offsets", 8, lambda: commit(200_000 // PART)),
    Worst("commit of 20,000 offsets", 8, lambda: commit(20_000 // PART)),
    Worst("commit of 250,000 unknown partitions", 8, lambda: commit_unknown(MANY)),
    Worst("offsets of 250,000 partitions of a group", 9, lambda: fetch_offsets_of_topics(list(range(MANY)), "none")),
    Worst("offsets of a thousand partitions again and again", 9, lambda: fetch_offsets_of_topics(wide())),
    Worst("offsets of 100,000 groups", 9, lambda: fetch_offsets_of_groups(100_000 // PART)),
    Worst("coordinators of 250,000 groups", 10, lambda: frame(
        find_coordinator.FindCoordinatorRequest(key_type=0, coordinator_keys=names("g")), 4)),
    Worst("join with 250,000 protocols", 11, lambda: join(MANY)),
    Worst("heartbeat with tags", 12, lambda: tags(heartbeat.HeartbeatRequest(group_id="g"), 4, 4_000)),
    Worst("heartbeat with too many tags", 12, lambda: tags(heartbeat.HeartbeatRequest(), 4, MANY), refused=True),
    Worst("leave of 250,000 members", 13, lambda: leave(MANY)),
    Worst("sync with 250,000 assignments", 14, lambda: sync(MANY)),
    Worst("description of 250,000 groups", 15, lambda: frame(
        describe_groups.DescribeGroupsRequest(groups=names("g")), 5)),
    Worst("groups by 250,000 states", 16, lambda: frame(
        list_groups.ListGroupsRequest(states_filter=names("s")), 4)),
    Worst("a mechanism of 32,000 characters", 17, lambda: frame(
        sasl_handshake.SaslHandshakeRequest(mechanism="x" * 32_000), 1)),
    Worst("versions with tags", 18, lambda: tags(api_versions.ApiVersionsRequest(
        client_software_name="n", client_software_version="1"), 3, 4_000)),
    Worst("20,000 topics, validated only", 19, lambda: new_topics(20_000 // PART)),
    Worst("250,000 topics, validated only", 19, lambda: new_topics(125_000 // PART)),
    Worst("a topic of 100,000 assigned partitions", 19, lambda: new_topic_assigned(100_000 // PART)),
    Worst("a topic with 250,000 settings", 19, lambda: new_topic_configured(MANY)),
    Worst("deletion of 250,000 unknown topics", 20, lambda: delete_topics(names("none-"))),
    Worst("deletion of a topic 250,000 times", 20, lambda: delete_topics(["names-0"] * MANY)),
    Worst("deletion of records of 250,000 partitions", 21, lambda: records_before(list(range(MANY)))),
    Worst("deletion of records of a partition again and again", 21, lambda: records_before(wide())),
    Worst("a producer id with tags", 22, lambda: tags(init_producer_id.InitProducerIdRequest(), 4, 4_000)),
    Worst("epochs of 250,000 partitions", 23, lambda: epochs_of(list(range(MANY)))),
    Worst("epochs of 1,000 partitions again and again", 23, lambda: epochs_of(wide())),
    Worst("settings of 250,000 unknown topics", 32, lambda: configs_of([(TOPIC, n) for n in names("none-")])),
    Worst("settings of a topic 10,000 times", 32, lambda: configs_of([(TOPIC, "wide")] * (10_000 // PART))),
    Worst("settings of all topics", 32, lambda: configs_of([(TOPIC, n) for n in names("names-", MANY_TOPICS)])),
    Worst("settings of the broker 10,000 times", 32, lambda: configs_of([(BROKER, "1")] * (10_000 // PART))),
    Worst("250,000 settings of the broker", 32, lambda: configs_of([(BROKER, "1")], names("none."))),
    Worst("levels of loggers 10,000 times", 32, lambda: configs_of([(LOGGER, "1")] * (10_000 // PART))),
    Worst("250,000 replaced settings of a topic", 33, lambda: replacements(1, MANY)),
    Worst("settings of 120,000 topics replaced", 33, lambda: replacements(120_000 // PART, 1)),
    Worst("log directories of 250,000 partitions", 35, lambda: log_dirs(list(range(MANY)))),
    Worst("log directories of everything", 35, lambda: log_dirs(None)),
    Worst("partitions for 250,000 unknown topics", 37, lambda: more_partitions(names("none-"))),
    Worst("partitions for a topic 250,000 times", 37, lambda: more_partitions(["names-1"] * MANY)),
    Worst("deletion of 200,000 groups", 42, lambda: frame(
        delete_groups.DeleteGroupsRequest(groups_names=names("g", 200_000 // PART)), 2)),
    Worst("elections of 250,000 unknown partitions", 43, lambda: elections(range(MANY), "none")),
    Worst("elections of a thousand partitions again and again", 43, lambda: elections(wide())),
    Worst("100,000 changes of a topic", 44, lambda: increments(1, 100_000 // PART)),
    Worst("changes of 100,000 topics", 44, lambda: increments(100_000 // PART, 1)),
    Worst("deletion of 250,000 offsets", 47, lambda: delete_offsets(list(range(MANY)))),
    Worst("deletion of offsets again and again", 47, lambda: delete_offsets(wide())),
    Worst("a proof of 30 MB", 36, lambda: frame(
        sasl_authenticate.SaslAuthenticateRequest(auth_bytes=b"n,,n=" + b"x" * 30_000_000), 2), refused=True),
    Worst("a proof of 8 MB", 36, lambda: frame(
        sasl_authenticate.SaslAuthenticateRequest(auth_bytes=b"n,,n=" + b"x" * 8_000_000), 2)),
    Worst("what differs in 200,000 ranges, asked by no broker", 10001, lambda: frame(
        compare_replicas.CompareReplicasRequest(damaged=[compare_replicas.ComparedRange()] * (200_000 // PART)), 0),
        refused=True),
    Worst("the cluster with tags", 60, lambda: tags(describe_cluster.DescribeClusterRequest(), 1, 4_000)),
    Worst("resources of 250,000 types", 74, lambda: resources_of([TOPIC, BROKER, LOGGER] * (MANY // 3))),
    Worst("description of ACLs with tags", 29, lambda: tags(acls_described.DescribeAclsRequest(), 3, 4_000)),
    Worst("creation of 250,000 ACLs", 30, lambda: frame(
        acls_created.CreateAclsRequest(creations=[acls_created.AclCreation()] * MANY), 3)),
    Worst("deletion of ACLs by 250,000 filters", 31, lambda: frame(
        acls_deleted.DeleteAclsRequest(filters=[acls_deleted.DeleteAclsFilter()] * MANY), 3)),
    Worst("moves of 250,000 unknown partitions", 45, lambda: moves(range(MANY), "none")),
    Worst("moves of a thousand partitions again and again", 45, lambda: moves(wide())),
    Worst("moves of 120,000 partitions of a list", 46, lambda: frame(
        moving.ListPartitionReassignmentsRequest(topics=[moving.ListPartitionReassignmentsTopics(
            name="wide", partition_indexes=wide())]), 0)),
    Worst("quotas of 250,000 components", 48, lambda: frame(
        quotas.DescribeClientQuotasRequest(components=[quotas.ComponentData(entity_type="user")] * MANY), 1)),
    Worst("80,000 new quotas", 49, lambda: frame(
        new_quotas.AlterClientQuotasRequest(entries=[new_quotas.EntryDataRequest(
            entity=[new_quotas.EntityDataRequest(entity_type="user", entity_name="u")],
            ops=[new_quotas.OpData(key="k")])] * (MANY // 3)), 1)),
    Worst("quotas of an entity of 250,000 parts", 49, lambda: frame(
        new_quotas.AlterClientQuotasRequest(entries=[new_quotas.EntryDataRequest(
            entity=[new_quotas.EntityDataRequest(entity_type="user", entity_name="u")] * MANY)]), 1)),
    Worst("credentials of 250,000 users", 50, lambda: frame(
        scram.DescribeUserScramCredentialsRequest(users=[scram.UserName(name=n) for n in names("u")]), 0)),
    Worst("credentials for 80,000 users", 51, lambda: frame(
        new_scram.AlterUserScramCredentialsRequest(upsertions=[new_scram.ScramCredentialUpsertion(
            name=n, mechanism=1, iterations=4095, salt=b"s", salted_password=bytes(32))
            for n in names("u", 80_000 // PART)]),
        0)),
    Worst("partitions of all topics", 75, lambda: pages_of([])),
    Worst("partitions of 250,000 unknown topics", 75, lambda: pages_of(names("none-"))),
    Worst("partitions of the last of 250,000 topics", 75, lambda: pages_of(names("none-"), "none-99999")),
    Worst("partitions of a topic 250,000 times", 75, lambda: pages_of(["wide"] * MANY)),
    Worst("a request of 36 MB", 3, lambda: metadata_of(["x" * 30_000] * 1200), refused=True),
    Worst("metadata of 1,000 names of 30 KB", 3, lambda: metadata_of([f"{n:04}" + "x" * 29_996 for n in range(1000)])),
    Worst("a join with 32 MB of metadata", 11, lambda: join_of(32_000_000), refused=True),
    Worst("a join with 8 MB of metadata", 11, lambda: join_of(8_000_000)),
    Worst("a join with 100 times 320 KB of metadata", 11, lambda: join_of(320_000, 100)),
]  # fmt: skip

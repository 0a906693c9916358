"""One request of each API that needs rights, and a client that sends it as some user.

The same requests go to our broker and to Apache Kafka. Each names one topic, group or transactional id, so that a name
that exists can be compared with one that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from spark_kafkalite.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.message import ApiMessage, Message
from spark_kafkalite.wire.messages import (
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_topic_partitions,
    describe_user_scram_credentials,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)
from spark_kafkalite.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafkalite.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.interop.support.raw_client import RawClient

REFUSALS = {29, 30, 31, 53}
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
# Of topics, for DescribeConfigs and the like.
_TOPIC_CONFIG, _GROUP_CONFIG, _BROKER_CONFIG = 2, 32, 4


class Asked(NamedTuple):
    """A request about a topic, group or transactional id of some name.

    ``rights`` are all that it needs, each with the error code where it is missing.
    """

    label: str
    version: int
    request: Callable[[str], ApiMessage]
    rights: tuple[tuple[Operation, ResourceType, int], ...]


_READ_GROUP = ((Operation.READ, GROUP, 30),)


def _configs(kind: int, name: str) -> ApiMessage:
    return describe_configs.DescribeConfigsRequest(
        resources=[describe_configs.DescribeConfigsResource(resource_type=kind, resource_name=name)]
    )


def _altered(kind: int, name: str) -> ApiMessage:
    return incremental_alter_configs.IncrementalAlterConfigsRequest(
        validate_only=True,
        resources=[
            incremental_alter_configs.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[incremental_alter_configs.AlterableConfig(name="retention.ms", value="1000")],
            )
        ],
    )


ASKED = (
    Asked(
        "Produce",
        9,
        lambda name: produce.ProduceRequest(
            acks=1,
            timeout_ms=1000,
            topic_data=[
                produce.TopicProduceData(
                    name=name, partition_data=[produce.PartitionProduceData(index=0, records=None)]
                )
            ],
        ),
        ((Operation.WRITE, TOPIC, 29),),
    ),
    Asked(
        "Fetch",
        11,
        lambda name: fetch.FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[
                fetch.FetchTopic(
                    topic=name,
                    partitions=[fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)],
                )
            ],
        ),
        ((Operation.READ, TOPIC, 29),),
    ),
    Asked(
        "ListOffsets",
        5,
        lambda name: list_offsets.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                list_offsets.ListOffsetsTopic(
                    name=name, partitions=[list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)]
                )
            ],
        ),
        ((Operation.DESCRIBE, TOPIC, 29),),
    ),
    Asked(
        "Metadata",
        12,
        lambda name: metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
        ),
        ((Operation.DESCRIBE, TOPIC, 29),),
    ),
    Asked(
        "OffsetCommit",
        8,
        lambda name: offset_commit.OffsetCommitRequest(
            group_id=name,
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        offset_commit.OffsetCommitRequestPartition(
                            partition_index=0, committed_offset=0, committed_metadata=""
                        )
                    ],
                )
            ],
        ),
        ((Operation.READ, GROUP, 30), (Operation.READ, TOPIC, 29)),
    ),
    Asked(
        "OffsetFetch",
        8,
        lambda name: offset_fetch.OffsetFetchRequest(
            groups=[
                offset_fetch.OffsetFetchRequestGroup(
                    group_id=name,
                    topics=[offset_fetch.OffsetFetchRequestTopics(name=name, partition_indexes=[0])],
                )
            ]
        ),
        ((Operation.DESCRIBE, GROUP, 30), (Operation.DESCRIBE, TOPIC, 29)),
    ),
    Asked(
        "FindCoordinator",
        4,
        lambda name: find_coordinator.FindCoordinatorRequest(key_type=0, coordinator_keys=[name]),
        ((Operation.DESCRIBE, GROUP, 30),),
    ),
    Asked(
        "FindCoordinator of a transaction",
        4,
        lambda name: find_coordinator.FindCoordinatorRequest(key_type=1, coordinator_keys=[name]),
        ((Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, 53),),
    ),
    Asked(
        "JoinGroup",
        7,
        lambda name: join_group.JoinGroupRequest(
            group_id=name,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=1000,
            protocol_type="consumer",
            protocols=[join_group.JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
        _READ_GROUP,
    ),
    Asked(
        "SyncGroup",
        5,
        lambda name: sync_group.SyncGroupRequest(
            group_id=name, generation_id=1, member_id="m", protocol_type="consumer", protocol_name="range"
        ),
        _READ_GROUP,
    ),
    Asked(
        "Heartbeat",
        4,
        lambda name: heartbeat.HeartbeatRequest(group_id=name, generation_id=1, member_id="m"),
        _READ_GROUP,
    ),
    Asked(
        "LeaveGroup",
        4,
        lambda name: leave_group.LeaveGroupRequest(group_id=name, members=[leave_group.MemberIdentity(member_id="m")]),
        _READ_GROUP,
    ),
    Asked(
        "DescribeGroups",
        5,
        lambda name: describe_groups.DescribeGroupsRequest(groups=[name]),
        ((Operation.DESCRIBE, GROUP, 30),),
    ),
    Asked("ListGroups", 4, lambda name: list_groups.ListGroupsRequest(), ()),
    Asked(
        "CreateTopics",
        7,
        lambda name: create_topics.CreateTopicsRequest(
            topics=[create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)],
            timeout_ms=5000,
            validate_only=True,
        ),
        ((Operation.CREATE, TOPIC, 29), (Operation.DESCRIBE_CONFIGS, TOPIC, 29)),
    ),
    Asked(
        "DeleteTopics",
        6,
        lambda name: delete_topics.DeleteTopicsRequest(
            topics=[delete_topics.DeleteTopicState(name=name)], timeout_ms=5000
        ),
        ((Operation.DELETE, TOPIC, 29),),
    ),
    Asked(
        "DeleteRecords",
        2,
        lambda name: delete_records.DeleteRecordsRequest(
            topics=[
                delete_records.DeleteRecordsTopic(
                    name=name, partitions=[delete_records.DeleteRecordsPartition(partition_index=0, offset=0)]
                )
            ],
            timeout_ms=5000,
        ),
        ((Operation.DELETE, TOPIC, 29),),
    ),
    Asked(
        "InitProducerId",
        4,
        lambda name: init_producer_id.InitProducerIdRequest(
            transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1
        ),
        ((Operation.IDEMPOTENT_WRITE, CLUSTER, 31),),
    ),
    Asked(
        "InitProducerId of a transaction",
        4,
        lambda name: init_producer_id.InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1
        ),
        ((Operation.WRITE, ResourceType.TRANSACTIONAL_ID, 53),),
    ),
    Asked(
        "OffsetForLeaderEpoch",
        4,
        lambda name: offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                offset_for_leader_epoch.OffsetForLeaderTopic(
                    topic=name,
                    partitions=[
                        offset_for_leader_epoch.OffsetForLeaderPartition(
                            partition=0, current_leader_epoch=-1, leader_epoch=0
                        )
                    ],
                )
            ],
        ),
        ((Operation.DESCRIBE, TOPIC, 29),),
    ),
    Asked(
        "DescribeAcls",
        3,
        lambda name: describe_acls.DescribeAclsRequest(
            resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
        ),
        ((Operation.DESCRIBE, CLUSTER, 31),),
    ),
    Asked(
        "CreateAcls",
        3,
        lambda name: create_acls.CreateAclsRequest(
            creations=[
                create_acls.AclCreation(
                    resource_type=TOPIC,
                    resource_name="nobody-asks-for-it",
                    principal="User:nobody",
                    host="*",
                    operation=Operation.READ,
                    permission_type=Permission.ALLOW,
                )
            ]
        ),
        ((Operation.ALTER, CLUSTER, 31),),
    ),
    Asked(
        "DeleteAcls",
        3,
        lambda name: delete_acls.DeleteAclsRequest(
            filters=[
                delete_acls.DeleteAclsFilter(
                    resource_type_filter=TOPIC,
                    resource_name_filter="nobody-asks-for-it",
                    pattern_type_filter=PatternType.LITERAL,
                    operation=1,
                    permission_type=1,
                )
            ]
        ),
        ((Operation.ALTER, CLUSTER, 31),),
    ),
    Asked(
        "DescribeConfigs of a topic",
        4,
        lambda name: _configs(_TOPIC_CONFIG, name),
        ((Operation.DESCRIBE_CONFIGS, TOPIC, 29),),
    ),
    Asked(
        "DescribeConfigs of a group",
        4,
        lambda name: _configs(_GROUP_CONFIG, name),
        ((Operation.DESCRIBE_CONFIGS, GROUP, 30),),
    ),
    Asked(
        "DescribeConfigs of a broker",
        4,
        lambda name: _configs(_BROKER_CONFIG, ""),
        ((Operation.DESCRIBE_CONFIGS, CLUSTER, 31),),
    ),
    Asked(
        "IncrementalAlterConfigs of a topic",
        1,
        lambda name: _altered(_TOPIC_CONFIG, name),
        ((Operation.ALTER_CONFIGS, TOPIC, 29),),
    ),
    Asked(
        "IncrementalAlterConfigs of a broker",
        1,
        lambda name: _altered(_BROKER_CONFIG, ""),
        ((Operation.ALTER_CONFIGS, CLUSTER, 31),),
    ),
    Asked(
        "AlterConfigs",
        2,
        lambda name: alter_configs.AlterConfigsRequest(
            resources=[alter_configs.AlterConfigsResource(resource_type=_TOPIC_CONFIG, resource_name=name)],
            validate_only=True,
        ),
        ((Operation.ALTER_CONFIGS, TOPIC, 29),),
    ),
    Asked(
        "DescribeLogDirs",
        4,
        lambda name: describe_log_dirs.DescribeLogDirsRequest(topics=None),
        ((Operation.DESCRIBE, CLUSTER, 31),),
    ),
    Asked(
        "CreatePartitions",
        3,
        lambda name: create_partitions.CreatePartitionsRequest(
            topics=[create_partitions.CreatePartitionsTopic(name=name, count=2)], timeout_ms=5000, validate_only=True
        ),
        ((Operation.ALTER, TOPIC, 29),),
    ),
    Asked(
        "DeleteGroups",
        2,
        lambda name: delete_groups.DeleteGroupsRequest(groups_names=[name]),
        ((Operation.DELETE, GROUP, 30),),
    ),
    Asked(
        "OffsetDelete",
        0,
        lambda name: offset_delete.OffsetDeleteRequest(
            group_id=name,
            topics=[
                offset_delete.OffsetDeleteRequestTopic(
                    name=name, partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=0)]
                )
            ],
        ),
        ((Operation.DELETE, GROUP, 30), (Operation.READ, TOPIC, 29)),
    ),
    Asked(
        "ElectLeaders",
        2,
        lambda name: elect_leaders.ElectLeadersRequest(
            election_type=0,
            topic_partitions=[elect_leaders.TopicPartitions(topic=name, partitions=[0])],
            timeout_ms=5000,
        ),
        ((Operation.ALTER, CLUSTER, 31),),
    ),
    Asked(
        "AlterPartitionReassignments",
        0,
        lambda name: alter_partition_reassignments.AlterPartitionReassignmentsRequest(
            timeout_ms=5000,
            topics=[
                alter_partition_reassignments.ReassignableTopic(
                    name=name,
                    partitions=[alter_partition_reassignments.ReassignablePartition(partition_index=0, replicas=None)],
                )
            ],
        ),
        ((Operation.ALTER, CLUSTER, 31),),
    ),
    Asked(
        "ListPartitionReassignments",
        0,
        lambda name: list_partition_reassignments.ListPartitionReassignmentsRequest(timeout_ms=5000, topics=None),
        ((Operation.DESCRIBE, CLUSTER, 31),),
    ),
    Asked(
        "DescribeClientQuotas",
        1,
        lambda name: describe_client_quotas.DescribeClientQuotasRequest(components=[], strict=False),
        ((Operation.DESCRIBE_CONFIGS, CLUSTER, 31),),
    ),
    Asked(
        "AlterClientQuotas",
        1,
        lambda name: alter_client_quotas.AlterClientQuotasRequest(
            entries=[
                alter_client_quotas.EntryDataRequest(
                    entity=[alter_client_quotas.EntityDataRequest(entity_type="user", entity_name="nobody")],
                    ops=[alter_client_quotas.OpData(key="producer_byte_rate", value=1.0, remove=True)],
                )
            ],
            validate_only=True,
        ),
        ((Operation.ALTER_CONFIGS, CLUSTER, 31),),
    ),
    Asked(
        "DescribeUserScramCredentials",
        0,
        lambda name: describe_user_scram_credentials.DescribeUserScramCredentialsRequest(
            # Without names Apache Kafka does not answer a client that lacks the right.
            users=[describe_user_scram_credentials.UserName(name=name)]
        ),
        ((Operation.DESCRIBE, CLUSTER, 31),),
    ),
    Asked(
        "AlterUserScramCredentials",
        0,
        lambda name: alter_user_scram_credentials.AlterUserScramCredentialsRequest(
            deletions=[alter_user_scram_credentials.ScramCredentialDeletion(name=name, mechanism=1)]
        ),
        ((Operation.ALTER, CLUSTER, 31),),
    ),
    Asked(
        "ListConfigResources",
        1,
        lambda name: list_config_resources.ListConfigResourcesRequest(resource_types=[_TOPIC_CONFIG]),
        ((Operation.DESCRIBE_CONFIGS, CLUSTER, 31),),
    ),
    Asked(
        "DescribeTopicPartitions",
        0,
        lambda name: describe_topic_partitions.DescribeTopicPartitionsRequest(
            topics=[describe_topic_partitions.TopicRequest(name=name)], response_partition_limit=100
        ),
        ((Operation.DESCRIBE, TOPIC, 29),),
    ),
)


def login(bootstrap: str, user: str) -> RawClient:
    """Return a connection of a user whose password is its name and ``-secret``, authenticated by PLAIN."""
    client = RawClient(bootstrap)
    assert client.call(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
    proof = f"\0{user}\0{user}-secret".encode()
    assert client.call(SaslAuthenticateRequest(auth_bytes=proof), 2).error_code == 0
    return client


def allow(admin: RawClient, user: str, *rights: tuple[Operation, ResourceType], name: str) -> None:
    """Add ACLs on a resource of this name, or on the cluster."""
    creations = [
        create_acls.AclCreation(
            resource_type=kind,
            resource_name=CLUSTER_NAME if kind is CLUSTER else name,
            principal=f"User:{user}",
            host="*",
            operation=operation,
            permission_type=Permission.ALLOW,
        )
        for operation, kind in rights
    ]
    answer = admin.call(create_acls.CreateAclsRequest(creations=creations), 3)
    assert [each.error_code for each in answer.results] == [0] * len(creations)


def forbid_all(admin: RawClient, user: str) -> None:
    """Delete all ACLs of a user."""
    every = delete_acls.DeleteAclsFilter(
        resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1, principal_filter=f"User:{user}"
    )
    (result,) = admin.call(delete_acls.DeleteAclsRequest(filters=[every]), 3).filter_results
    assert result.error_code == 0
    assert {each.error_code for each in result.matching_acls} <= {0}


def plain(value: Any, name: str) -> Any:
    """Return an answer as plain values, with NAME in the place of a name."""
    if isinstance(value, Message):
        slots = (slot for each in type(value).__mro__ for slot in getattr(each, "__slots__", ()))
        return {slot: plain(getattr(value, slot), name) for slot in slots}
    if isinstance(value, list):
        return [plain(each, name) for each in value]
    return value.replace(name, "NAME") if isinstance(value, str) else value


def codes(value: Any) -> Iterator[int]:
    """Give all error codes in an answer in plain values."""
    if isinstance(value, dict):
        for field, each in value.items():
            if field.endswith("error_code"):
                yield each
            else:
                yield from codes(each)
    elif isinstance(value, list):
        for each in value:
            yield from codes(each)


def keys() -> set[ApiKey]:
    """Return the APIs of the table."""
    return {asked.request("x").API_KEY for asked in ASKED}

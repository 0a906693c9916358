"""One or more undamaged requests of every API that the broker serves, none of which changes much.

What they name may or may not exist; ``damaged`` tests make their damage out of them.
"""

from __future__ import annotations

from typing import Any

from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.message import ApiMessage
from spark_kafkalite.wire.messages import (
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    create_acls,
    delete_acls,
    delete_groups,
    delete_records,
    describe_acls,
    describe_client_quotas,
    describe_groups,
    describe_log_dirs,
    describe_topic_partitions,
    describe_user_scram_credentials,
    elect_leaders,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_partition_reassignments,
    offset_commit,
    offset_delete,
    offset_fetch,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
)
from spark_kafkalite.wire.messages.api_versions import ApiVersionsRequest
from spark_kafkalite.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from spark_kafkalite.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from spark_kafkalite.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from spark_kafkalite.wire.messages.describe_cluster import DescribeClusterRequest
from spark_kafkalite.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from spark_kafkalite.wire.messages.init_producer_id import InitProducerIdRequest
from spark_kafkalite.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafkalite.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)


def sample_requests(api_key: int, version: int, topic: str, other_topic: str) -> list[ApiMessage]:
    """Return requests of an API that can be sent in ``version``; AssertionError for one that nobody has added here."""
    name = ApiKey(api_key).api_name
    if name == "ListOffsets":
        partitions = [ListOffsetsPartition(partition_index=0, timestamp=at) for at in (-1, -2, 1_700_000_000_000)]
        return [ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=partitions)])]
    if name == "Metadata":
        return [
            MetadataRequest(topics=[MetadataRequestTopic(name=topic), MetadataRequestTopic(name="no-such-topic")]),
            MetadataRequest(topics=None if version >= 1 else []),
        ]
    if name == "ApiVersions":
        return [ApiVersionsRequest(client_software_name="mutant", client_software_version="1.0")]
    if name == "CreateTopics":
        return [
            CreateTopicsRequest(
                topics=[
                    CreatableTopic(
                        name=topic,
                        num_partitions=2,
                        replication_factor=1,
                        configs=[CreatableTopicConfig(name="retention.ms", value="60000")],
                    ),
                    CreatableTopic(
                        name=other_topic,
                        num_partitions=-1,
                        replication_factor=-1,
                        assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1])],
                    ),
                ],
                timeout_ms=100,
                validate_only=True,
            )
        ]
    if name == "DeleteTopics":
        names = ["no-such-topic", "none-either"]
        return [
            DeleteTopicsRequest(
                topics=[DeleteTopicState(name=each) for each in names] if version >= 6 else [],
                topic_names=names if version < 6 else [],
                timeout_ms=100,
            )
        ]
    if name == "CreatePartitions":
        assignments = [CreatePartitionsAssignment(broker_ids=[1])]
        return [
            CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name=topic, count=2, assignments=assignments)],
                timeout_ms=100,
                validate_only=True,
            )
        ]
    if name == "InitProducerId":
        return [InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)]
    if name == "DescribeConfigs":
        keys = ["retention.ms", "segment.bytes"]
        return [
            DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(resource_type=2, resource_name=topic, configuration_keys=keys),
                    DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None),
                    DescribeConfigsResource(resource_type=8, resource_name="1", configuration_keys=["root"]),
                ],
                include_synonyms=True,
            )
        ]
    if name in ("AlterConfigs", "IncrementalAlterConfigs"):
        return [_alteration(name, topic)]
    if name == "DescribeCluster":
        return [DescribeClusterRequest(include_cluster_authorized_operations=True)]
    if name == "DescribeTopicPartitions":
        named = [describe_topic_partitions.TopicRequest(name=each) for each in (topic, "no-such-topic")]
        cursor = describe_topic_partitions.CursorRequest(topic_name=topic, partition_index=0)
        return [
            describe_topic_partitions.DescribeTopicPartitionsRequest(topics=named, cursor=cursor),
            describe_topic_partitions.DescribeTopicPartitionsRequest(response_partition_limit=1),
        ]
    if name == "ListConfigResources":
        return [list_config_resources.ListConfigResourcesRequest(resource_types=[2, 4, 8] if version >= 1 else [])]
    if name == "ElectLeaders":
        some_partitions = [
            elect_leaders.TopicPartitions(topic=each, partitions=[0, 1]) for each in (topic, "no-such-topic")
        ]
        return [
            elect_leaders.ElectLeadersRequest(
                election_type=kind if version >= 1 else 0, topic_partitions=each, timeout_ms=100
            )
            for each in (some_partitions, None)
            for kind in (0, 1)
        ]
    if name == "OffsetForLeaderEpoch":
        partitions = [OffsetForLeaderPartition(partition=0, leader_epoch=0)]
        return [OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=topic, partitions=partitions)])]
    if name == "DeleteRecords":
        below = [delete_records.DeleteRecordsPartition(partition_index=0, offset=0)]
        topics = [delete_records.DeleteRecordsTopic(name=each, partitions=below) for each in (topic, "no-such-topic")]
        return [delete_records.DeleteRecordsRequest(topics=topics, timeout_ms=100)]
    if name == "DescribeLogDirs":
        some = [describe_log_dirs.DescribableLogDirTopic(topic=topic, partitions=[0])]
        return [describe_log_dirs.DescribeLogDirsRequest(topics=each) for each in (some, None)]
    if name == "FindCoordinator":
        keys = ["g", "caf\u00e9", ""]
        return [
            find_coordinator.FindCoordinatorRequest(key="g", coordinator_keys=keys if version >= 4 else []),
            find_coordinator.FindCoordinatorRequest(key="t", key_type=1 if version >= 1 else 0, coordinator_keys=["t"]),
        ]
    if name == "OffsetCommit":
        return [_commit("g", topic, "up to here"), _commit("", "no-such-topic", None)]
    if name == "OffsetFetch":
        return _offset_fetches(version, topic)
    if name == "OffsetDelete":
        partition = offset_delete.OffsetDeleteRequestPartition(partition_index=0)
        some = offset_delete.OffsetDeleteRequestTopic(name=topic, partitions=[partition])
        return [offset_delete.OffsetDeleteRequest(group_id="no-such-group", topics=[some])]
    if (found := _requests_of_what_is_off(name, topic)) is not None:
        return found
    if name in ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "DescribeGroups", "ListGroups", "DeleteGroups"):
        return _group_requests(name, version)
    raise AssertionError(f"{name} is served, and this file has no request of it: add one")


def _requests_of_what_is_off(name: str, topic: str) -> list[ApiMessage] | None:
    """Requests that change nothing, because their feature is not built; None for another API's."""
    some = alter_client_quotas.EntityDataRequest(entity_type="user", entity_name=None)
    moves = [alter_partition_reassignments.ReassignablePartition(replicas=each) for each in ([1, 2], None)]
    moved = alter_partition_reassignments.ReassignableTopic(name=topic, partitions=moves)
    requests: dict[str, ApiMessage] = {
        "AlterClientQuotas": alter_client_quotas.AlterClientQuotasRequest(
            entries=[alter_client_quotas.EntryDataRequest(entity=[some], ops=[alter_client_quotas.OpData(key="k")])]
        ),
        "AlterPartitionReassignments": alter_partition_reassignments.AlterPartitionReassignmentsRequest(topics=[moved]),
        "CreateAcls": create_acls.CreateAclsRequest(creations=[create_acls.AclCreation(principal="User:a")]),
        "DeleteAcls": delete_acls.DeleteAclsRequest(filters=[delete_acls.DeleteAclsFilter(operation=1)]),
        "DescribeAcls": describe_acls.DescribeAclsRequest(operation=1),
        "DescribeClientQuotas": describe_client_quotas.DescribeClientQuotasRequest(
            components=[describe_client_quotas.ComponentData(entity_type="user", match_type=2)]
        ),
        "AlterUserScramCredentials": alter_user_scram_credentials.AlterUserScramCredentialsRequest(
            deletions=[alter_user_scram_credentials.ScramCredentialDeletion(name="none", mechanism=1)],
            upsertions=[alter_user_scram_credentials.ScramCredentialUpsertion(name="a", mechanism=9)],
        ),
        "DescribeUserScramCredentials": describe_user_scram_credentials.DescribeUserScramCredentialsRequest(
            users=[describe_user_scram_credentials.UserName(name="a")]
        ),
        "ListPartitionReassignments": list_partition_reassignments.ListPartitionReassignmentsRequest(topics=None),
        "SaslHandshake": sasl_handshake.SaslHandshakeRequest(mechanism="PLAIN"),
        "SaslAuthenticate": sasl_authenticate.SaslAuthenticateRequest(auth_bytes=b"n,,n=a"),
    }
    return [requests[name]] if name in requests else None


def _group_requests(name: str, version: int) -> list[ApiMessage]:
    """Requests of a member, and of an administrator."""
    member: dict[str, Any] = {"group_id": "g", "member_id": "m", "generation_id": 1}
    if name == "JoinGroup":
        protocols = [join_group.JoinGroupRequestProtocol(name=each, metadata=b"\0\0\0\0") for each in ("range", "x")]
        common: dict[str, Any] = {
            "session_timeout_ms": 6000,
            "rebalance_timeout_ms": 6000,
            "protocol_type": "consumer",
            "protocols": protocols,
        }
        # None of them waits for other members: one gets an id, a static one replaces itself, one is unknown.
        requests: list[ApiMessage] = [join_group.JoinGroupRequest(group_id="unknown", member_id="m", **common)]
        if version >= 4:
            requests.append(join_group.JoinGroupRequest(group_id="joined", **common))
        if version >= 5:
            requests.append(join_group.JoinGroupRequest(group_id="static", group_instance_id="i", **common))
        return requests
    if name == "SyncGroup":
        assignments = [sync_group.SyncGroupRequestAssignment(member_id="m", assignment=b"a")]
        return [
            sync_group.SyncGroupRequest(
                assignments=assignments, protocol_type="consumer", protocol_name="range", **member
            )
        ]
    if name == "Heartbeat":
        return [heartbeat.HeartbeatRequest(**member)]
    if name == "LeaveGroup":
        leaving = [leave_group.MemberIdentity(member_id="m"), leave_group.MemberIdentity(group_instance_id="i")]
        return [
            leave_group.LeaveGroupRequest(
                group_id="g", member_id="m" if version < 3 else "", members=leaving if version >= 3 else []
            )
        ]
    if name == "DescribeGroups":
        return [describe_groups.DescribeGroupsRequest(groups=["g", "caf\u00e9"], include_authorized_operations=True)]
    if name == "ListGroups":
        return [list_groups.ListGroupsRequest(states_filter=["Stable"] if version >= 4 else [])]
    return [delete_groups.DeleteGroupsRequest(groups_names=["no-such-group", "none-either"])]


def _commit(group_id: str, topic: str, metadata: str | None) -> ApiMessage:
    partition = offset_commit.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=5, committed_metadata=metadata
    )
    topics = [offset_commit.OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    return offset_commit.OffsetCommitRequest(group_id=group_id, topics=topics)


def _offset_fetches(version: int, topic: str) -> list[ApiMessage]:
    if version < 8:
        named = [offset_fetch.OffsetFetchRequestTopic(name=topic, partition_indexes=[0, 1])]
        return [
            offset_fetch.OffsetFetchRequest(group_id="g", topics=each)
            for each in (named, None if version >= 2 else named)
        ]
    topics = [offset_fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=[0, 1])]
    groups = [offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=each) for each in (topics, None)]
    return [offset_fetch.OffsetFetchRequest(groups=groups, require_stable=True)]


def _alteration(name: str, topic: str) -> ApiMessage:
    wanted = ((2, topic, "flush.ms", "100000"), (4, "", "log.flush.interval.ms", "1000"))
    if name == "AlterConfigs":
        return alter_configs.AlterConfigsRequest(
            resources=[
                alter_configs.AlterConfigsResource(
                    resource_type=kind,
                    resource_name=resource,
                    configs=[alter_configs.AlterableConfig(name=setting, value=value)],
                )
                for kind, resource, setting, value in wanted
            ],
            validate_only=True,
        )
    return incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[
            incremental_alter_configs.AlterConfigsResource(
                resource_type=kind,
                resource_name=resource,
                configs=[incremental_alter_configs.AlterableConfig(name=setting, value=value)],
            )
            for kind, resource, setting, value in wanted
        ],
        validate_only=True,
    )

"""Refused admin requests: code and text, each against our broker and against Apache Kafka.

The texts are those that people search for when a tool prints them. The table has Kafka's: Apache Kafka must answer with
exactly that, and ours with something that begins so and may say more. Where the two differ on purpose, the row has our
text, too, and the reason stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.wire.message import ApiMessage
from spark_kafkalite.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityDataRequest,
    EntryDataRequest,
    OpData,
)
from spark_kafkalite.wire.messages.alter_configs import AlterableConfig as LegacyConfig
from spark_kafkalite.wire.messages.alter_configs import AlterConfigsRequest
from spark_kafkalite.wire.messages.alter_configs import AlterConfigsResource as LegacyResource
from spark_kafkalite.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from spark_kafkalite.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from spark_kafkalite.wire.messages.create_acls import AclCreation, CreateAclsRequest
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
from spark_kafkalite.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from spark_kafkalite.wire.messages.delete_groups import DeleteGroupsRequest
from spark_kafkalite.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from spark_kafkalite.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from spark_kafkalite.wire.messages.describe_acls import DescribeAclsRequest
from spark_kafkalite.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from spark_kafkalite.wire.messages.describe_cluster import DescribeClusterRequest
from spark_kafkalite.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from spark_kafkalite.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from spark_kafkalite.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from spark_kafkalite.wire.messages.init_producer_id import InitProducerIdRequest
from spark_kafkalite.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from spark_kafkalite.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from spark_kafkalite.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.interop.support.raw_client import RawClient

# Topics that are there: one of two partitions, one that is only compacted, one whose name others collide with.
PRESENT, COMPACTED, DOTTED = "refusable", "refusable-compacted", "refusable.dotted"
SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
LONG = "x" * 300
ILLEGAL = "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
SOME_ID = bytes(range(16))


@dataclass(frozen=True)
class Refusal:
    """A request, its version, and the code and text of what it is answered with. A text of None is not compared."""

    request: ApiMessage
    version: int
    code: int
    text: str | None = None
    # Where ours is not to begin with Kafka's, and why is said beside it.
    ours: str | None = None


def new(name: str = "refused", partitions: int = 1, replicas: int = 1, **settings: str | None) -> CreateTopicsRequest:
    configs = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, configs=configs)
    return CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=True)


def user(name: str, mechanism: int = 1, iterations: int = 4096) -> AlterUserScramCredentialsRequest:
    upsertion = ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=bytes(32)
    )
    return AlterUserScramCredentialsRequest(upsertions=[upsertion])


def no_user(name: str, mechanism: int = 1) -> AlterUserScramCredentialsRequest:
    return AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion(name=name, mechanism=mechanism)])


def assigned(*replicas: tuple[int, list[int]], partitions: int = -1, factor: int = -1) -> CreateTopicsRequest:
    request = new("refused", partitions, factor)
    request.topics[0].assignments = [
        CreatableReplicaAssignment(partition_index=number, broker_ids=brokers) for number, brokers in replicas
    ]
    return request


def more(name: str, count: int, assignment: Iterable[list[int]] | None = None) -> CreatePartitionsRequest:
    replicas = None if assignment is None else [CreatePartitionsAssignment(broker_ids=each) for each in assignment]
    topic = CreatePartitionsTopic(name=name, count=count, assignments=replicas)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=10_000, validate_only=True)


def twice(request: Any) -> Any:
    request.topics = request.topics * 2
    return request


def deletion(name: str | None = None, topic_id: bytes = bytes(16), times: int = 1) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=[DeleteTopicState(name=name, topic_id=topic_id)] * times, timeout_ms=10_000)


def alter(kind: int, name: str, *changes: tuple[str, int, str | None]) -> IncrementalAlterConfigsRequest:
    configs = [AlterableConfig(name=key, config_operation=operation, value=value) for key, operation, value in changes]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)


def replace(kind: int, name: str, *changes: tuple[str, str | None]) -> AlterConfigsRequest:
    configs = [LegacyConfig(name=key, value=value) for key, value in changes]
    return AlterConfigsRequest(
        resources=[LegacyResource(resource_type=kind, resource_name=name, configs=configs)], validate_only=True
    )


def describe(kind: int, name: str) -> DescribeConfigsRequest:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    return DescribeConfigsRequest(resources=[resource])


def records(topic: str, partition: int, offset: int) -> DeleteRecordsRequest:
    asked = DeleteRecordsPartition(partition_index=partition, offset=offset)
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[asked])], timeout_ms=5000)


def offsets(group: str) -> OffsetDeleteRequest:
    topic = OffsetDeleteRequestTopic(name=PRESENT, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
    return OffsetDeleteRequest(group_id=group, topics=[topic])


def quota(
    key: str = "producer_byte_rate", value: float = 1024.0, *, remove: bool = False, **names: str | None
) -> AlterClientQuotasRequest:
    """Change a quota of the types in ``names``, without them that of a client id."""
    named = {kind.replace("_", "-"): name for kind, name in names.items()} or {"client-id": "limited"}
    entity = [EntityDataRequest(entity_type=kind, entity_name=name) for kind, name in named.items()]
    change = OpData(key=key, value=value, remove=remove)
    return AlterClientQuotasRequest(entries=[EntryDataRequest(entity=entity, ops=[change])], validate_only=True)


def quotas_of(kind: str, match_type: int, match: str | None = None) -> DescribeClientQuotasRequest:
    asked = ComponentData(entity_type=kind, match_type=match_type, match=match)
    return DescribeClientQuotasRequest(components=[asked])


def bad(value: str, name: str, problem: str) -> str:
    return f"Invalid value {value} for configuration {name}: {problem}"


CREATE = {
    "a topic that exists": Refusal(new(PRESENT), 7, 36, f"Topic '{PRESENT}' already exists."),
    "an empty name": Refusal(new(""), 7, 17, "Topic name is invalid: the empty string is not allowed"),
    "a name of one dot": Refusal(new("."), 7, 17, "Topic name is invalid: '.' is not allowed"),
    "a name of two dots": Refusal(new(".."), 7, 17, "Topic name is invalid: '..' is not allowed"),
    "a long name": Refusal(
        new(LONG), 7, 17, f"Topic name is invalid: the length of '{LONG}' is longer than the max allowed length 249"
    ),
    "a name with a blank": Refusal(new("bad name"), 7, 17, f"Topic name is invalid: 'bad name' {ILLEGAL}"),
    "a name that is not ASCII": Refusal(new("é"), 7, 17, f"Topic name is invalid: 'é' {ILLEGAL}"),
    "a name that collides": Refusal(
        new("refusable_dotted"), 7, 17, f"Topic 'refusable_dotted' collides with existing topic: {DOTTED}"
    ),
    "one name twice": Refusal(twice(new("again")), 7, 42, "Duplicate topic name."),
    "no partitions": Refusal(
        new(partitions=0), 7, 37, "Number of partitions was set to an invalid non-positive value."
    ),
    "too many partitions": Refusal(
        new(partitions=10_001), 7, 44, "Excessively large number of partitions per request."
    ),
    "no replicas": Refusal(
        new(partitions=0, replicas=0), 7, 38,
        "Replication factor must be larger than 0, or -1 to use the default value."
    ),
    "too many replicas": Refusal(
        new(replicas=3), 7, 38,
        "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached because "
        "only 1 broker(s) are registered or some brokers have all their log directories cordoned.",
        # Log directories cannot be cordoned here.
        ours="Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached "
        "because only 1 broker(s) are registered",
    ),
    "an assignment and a factor": Refusal(
        assigned((0, [1]), partitions=1, factor=1), 7, 42,
        "A manual partition assignment was specified, but replication factor was not set to -1.",
    ),
    "an assignment and a count": Refusal(
        assigned((0, [1]), partitions=1), 7, 42,
        "A manual partition assignment was specified, but numPartitions was not set to -1.",
    ),
    "a partition assigned twice": Refusal(
        assigned((0, [1]), (0, [1])), 7, 39, "Found multiple manual partition assignments for partition 0"
    ),
    "a gap in an assignment": Refusal(
        assigned((0, [1]), (2, [1])), 7, 39, "partitions should be a consecutive 0-based integer sequence"
    ),
    "an assignment without replicas": Refusal(
        assigned((0, [1]), (1, [])), 7, 39, "The manual partition assignment includes an empty replica list."
    ),
    "an assignment to one broker twice": Refusal(
        assigned((0, [1, 1])), 7, 39, "The manual partition assignment includes the broker 1 more than once."
    ),
    "an assignment to no broker": Refusal(
        assigned((0, [1, 7])), 7, 39,
        "The manual partition assignment includes broker 7, but no such broker is registered.",
    ),
    "an unknown setting": Refusal(new(retentoin_ms="1"), 7, 40, "Unknown topic config name: retentoin.ms"),
    "settings without values": Refusal(
        new(retention_ms=None, flush_ms=None), 7, 40,
        "Null value not supported for topic configs: retention.ms,flush.ms"
    ),
    "no number": Refusal(new(retention_ms="x"), 7, 40, bad("x", "retention.ms", "Not a number of type LONG")),
    "a number with a fraction": Refusal(
        new(min_insync_replicas="1.5"), 7, 40, bad("1.5", "min.insync.replicas", "Not a number of type INT")
    ),
    "no fraction": Refusal(
        new(min_cleanable_dirty_ratio="x"), 7, 40, bad("x", "min.cleanable.dirty.ratio", "Not a number of type DOUBLE")
    ),
    "a number that is too large for its type": Refusal(
        new(max_message_bytes="3000000000"), 7, 40, bad("3000000000", "max.message.bytes", "Not a number of type INT")
    ),
    "a number below the bound": Refusal(
        new(retention_ms="-2"), 7, 40, bad("-2", "retention.ms", "Value must be at least -1")
    ),
    "a number above the bound": Refusal(
        new(min_cleanable_dirty_ratio="2"), 7, 40,
        bad("2.0", "min.cleanable.dirty.ratio", "Value must be no more than 1"),
    ),
    "a segment that is too small": Refusal(
        new(segment_bytes="1"), 7, 40, bad("1", "segment.bytes", "Value must be at least 1048576"),
        # Smaller segments are allowed here.
        ours=bad("1", "segment.bytes", "Value must be at least 14"),
    ),
    "neither true nor false": Refusal(
        new(preallocate="maybe"), 7, 40, bad("maybe", "preallocate", "Expected value to be either true or false")
    ),
    "none of the choices": Refusal(
        new(message_timestamp_type="x"), 7, 40,
        bad("x", "message.timestamp.type", "String must be one of: CreateTime, LogAppendTime"),
    ),
    "a list with none of the choices": Refusal(
        new(cleanup_policy="delete,burn"), 7, 40,
        bad("burn", "cleanup.policy", "String must be one of: compact, delete"),
    ),
    "a level that there is not": Refusal(
        new(compression_gzip_level="0"), 7, 40,
        bad("0", "compression.gzip.level", "Value must be between 1 and 9 or equal to -1"),
    ),
    "no list of replicas": Refusal(
        new(leader_replication_throttled_replicas="x"), 7, 40,
        bad(
            "[x]", "leader.replication.throttled.replicas",
            "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the following "
            "format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
        ),
    ),
    "settings that contradict each other": Refusal(
        new(min_compaction_lag_ms="10", max_compaction_lag_ms="5"), 7, 40,
        "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
    ),
    "tiered storage": Refusal(
        new(remote_storage_enable="true"), 7, 40,
        "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.",
    ),
}  # fmt: skip

EXTEND = {
    # Kafka has no text here.
    "a topic that does not exist": Refusal(more("refusable-none", 3), 3, 3, ours="The topic 'refusable-none' does not"),
    "the same number": Refusal(more(PRESENT, 2), 3, 37, "Topic already has 2 partition(s)."),
    "fewer": Refusal(
        more(PRESENT, 1), 3, 37, f"The topic {PRESENT} currently has 2 partition(s); 1 would not be an increase."
    ),
    "one name twice": Refusal(twice(more(PRESENT, 3)), 3, 42, "Duplicate topic name."),
    "another number of assignments": Refusal(
        more(PRESENT, 4, [[1]]), 3, 39,
        "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
    ),
    "an assignment to no broker": Refusal(
        more(PRESENT, 3, [[7]]), 3, 39,
        "The manual partition assignment includes broker 7, but no such broker is registered.",
    ),
    "an assignment to one broker twice": Refusal(
        more(PRESENT, 3, [[1, 1]]), 3, 39, "The manual partition assignment includes the broker 1 more than once."
    ),
    "an assignment without replicas": Refusal(
        more(PRESENT, 3, [[]]), 3, 39, "The manual partition assignment includes an empty replica list."
    ),
}  # fmt: skip

DELETE_TOPICS = {
    "a topic that does not exist": Refusal(
        deletion("refusable-none"), 6, 3, "This server does not host this topic-partition."
    ),
    "an id that does not exist": Refusal(
        deletion(topic_id=SOME_ID), 6, 100, "This server does not host this topic ID."
    ),
    "neither name nor id": Refusal(deletion(), 6, 42, "Neither topic name nor id were specified."),
    "both": Refusal(deletion(PRESENT, SOME_ID), 6, 42, "You may not specify both topic name and topic id."),
    "a name twice": Refusal(deletion(PRESENT, times=2), 6, 42, "Duplicate topic name."),
    "a name of nothing twice": Refusal(deletion("refusable-none", times=2), 6, 42, "Duplicate topic name."),
    "an id twice": Refusal(deletion(topic_id=SOME_ID, times=2), 6, 42, "Duplicate topic id."),
}

ALTER_TOPIC = {
    "a topic that does not exist": Refusal(
        alter(TOPIC, "refusable-none", ("flush.ms", SET, "1")), 1, 3, "The topic 'refusable-none' does not exist."
    ),
    "no topic": Refusal(alter(TOPIC, "", ("flush.ms", SET, "1")), 1, 42, "Default topic resources are not allowed."),
    "a bad name": Refusal(
        alter(TOPIC, "bad name", ("flush.ms", SET, "1")), 1, 17, f"Topic name is invalid: 'bad name' {ILLEGAL}"
    ),
    "an unknown setting": Refusal(
        alter(TOPIC, PRESENT, ("nope", SET, "1")), 1, 40, "Unknown topic config name: nope"
    ),
    "a bad value": Refusal(
        alter(TOPIC, PRESENT, ("flush.ms", SET, "x")), 1, 40, bad("x", "flush.ms", "Not a number of type LONG")
    ),
    "no value": Refusal(
        alter(TOPIC, PRESENT, ("flush.ms", SET, None), ("retention.ms", APPEND, None)), 1, 42,
        "Null value not supported for : flush.ms, retention.ms",
    ),
    "a setting twice": Refusal(
        alter(TOPIC, PRESENT, ("flush.ms", SET, "1"), ("flush.ms", DELETE, None)), 1, 42,
        "Error due to duplicate config keys",
    ),
    "appending to a number": Refusal(
        alter(TOPIC, PRESENT, ("flush.ms", APPEND, "1")), 1, 40,
        "Can't APPEND to key flush.ms because its type is not LIST.",
    ),
    "subtracting from a number": Refusal(
        alter(TOPIC, PRESENT, ("flush.ms", SUBTRACT, "1")), 1, 40,
        "Can't SUBTRACT to key flush.ms because its type is not LIST.",
    ),
    "appending what is not allowed": Refusal(
        alter(TOPIC, PRESENT, ("cleanup.policy", APPEND, "burn")), 1, 40,
        bad("burn", "cleanup.policy", "String must be one of: compact, delete"),
    ),
    "replacing those of a topic that does not exist": Refusal(
        replace(TOPIC, "refusable-none", ("flush.ms", "1")), 2, 3, "The topic 'refusable-none' does not exist."
    ),
    "replacing by an unknown setting": Refusal(
        replace(TOPIC, PRESENT, ("nope", "1")), 2, 40, "Unknown topic config name: nope"
    ),
    "replacing by a bad value": Refusal(
        replace(TOPIC, PRESENT, ("flush.ms", "x")), 2, 40, bad("x", "flush.ms", "Not a number of type LONG")
    ),
    "replacing by no value": Refusal(
        replace(TOPIC, PRESENT, ("flush.ms", None)), 2, 42, "Null value not supported for : flush.ms"
    ),
    "replacing twice": Refusal(
        replace(TOPIC, PRESENT, ("flush.ms", "1"), ("flush.ms", "2")), 2, 42, "Error due to duplicate config keys"
    ),
}  # fmt: skip

ALTER_OTHERS = {
    "another broker": Refusal(
        alter(BROKER, "2", ("log.cleaner.threads", SET, "1")), 1, 42,
        "Unexpected broker id, expected 1, but received 2",
    ),
    "no number of a broker": Refusal(
        alter(BROKER, "x", ("log.cleaner.threads", SET, "1")), 1, 42, "Node id must be an integer, but it is: x"
    ),
    "a read-only setting": Refusal(
        alter(BROKER, "1", ("log.dirs", SET, "/x")), 1, 42, "Cannot update these configs dynamically: [log.dirs]"
    ),
    "a read-only setting of all brokers": Refusal(
        alter(BROKER, "", ("log.dirs", SET, "/x")), 1, 42, "Cannot update these configs dynamically: [log.dirs]"
    ),
    "a bad value": Refusal(
        alter(BROKER, "1", ("log.cleaner.threads", SET, "x")), 1, 42,
        bad("x", "log.cleaner.threads", "Not a number of type INT"),
    ),
    "a bad value of all brokers": Refusal(
        alter(BROKER, "", ("log.retention.ms", SET, "x")), 1, 42,
        bad("x", "log.retention.ms", "Not a number of type LONG"),
    ),
    "appending to a number": Refusal(
        alter(BROKER, "1", ("log.cleaner.threads", APPEND, "1")), 1, 40,
        "Config value append is not allowed for config key: log.cleaner.threads",
    ),
    "an operation that there is not": Refusal(
        alter(BROKER, "1", ("log.cleaner.threads", 7, "1")), 1, 42, "Unknown operations type 7"
    ),
    "replacing those of another broker": Refusal(
        replace(BROKER, "2", ("log.cleaner.threads", "1")), 2, 42, "Unexpected broker id, expected 1, but received 2"
    ),
    "replacing read-only settings": Refusal(
        replace(BROKER, "1", ("log.dirs", "/x")), 2, 42, "Cannot update these configs dynamically: [log.dirs]"
    ),
    "a logger that there is not": Refusal(
        alter(LOGGER, "1", ("no.such.logger", SET, "INFO")), 1, 40, "Logger no.such.logger does not exist!"
    ),
    "a level that there is not": Refusal(
        alter(LOGGER, "1", ("root", SET, "LOUD")), 1, 40,
        "Cannot set the log level of root to LOUD as it is not a supported log level. Valid log levels are DEBUG, "
        "ERROR, FATAL, INFO, TRACE, WARN",
    ),
    "no level of the root": Refusal(
        alter(LOGGER, "1", ("root", DELETE, None)), 1, 42, "Removing the log level of the root logger is not allowed"
    ),
    "appending to a level": Refusal(
        alter(LOGGER, "1", ("root", APPEND, "INFO")), 1, 42,
        "APPEND operation is not allowed for the BROKER_LOGGER resource",
    ),
    "loggers of another broker": Refusal(
        alter(LOGGER, "2", ("root", SET, "INFO")), 1, 42, "Unexpected node id. Expected 1, but received 2"
    ),
    "loggers of no broker": Refusal(
        alter(LOGGER, "", ("root", SET, "INFO")), 1, 42, "Node id must be an integer, but it is: "
    ),
    "replacing levels": Refusal(replace(LOGGER, "1", ("root", "INFO")), 2, 42, "Unknown resource type 8"),
    "client metrics without a name": Refusal(
        alter(METRICS, "", ("interval.ms", SET, "1000")), 1, 42, "Subscription name can't be empty"
    ),
    "a group without a name": Refusal(
        alter(GROUP, "", ("consumer.session.timeout.ms", SET, "50000")), 1, 42,
        "Default group resources are not allowed.",
    ),
    "a resource that there is not": Refusal(alter(99, "x", ("a", SET, "b")), 1, 42, "Unknown resource type 99"),
    "replacing those of a resource that there is not": Refusal(
        replace(99, "x", ("a", "b")), 2, 42, "Unknown resource type 99"
    ),
}  # fmt: skip

DESCRIBE = {
    "a topic that does not exist": Refusal(
        # Kafka has no text here.
        describe(TOPIC, "refusable-none"), 4, 3, ours="The topic 'refusable-none' does not exist."
    ),
    "a bad name": Refusal(describe(TOPIC, "bad name"), 4, 17, f"Topic name is invalid: 'bad name' {ILLEGAL}"),
    "another broker": Refusal(
        describe(BROKER, "2"), 4, 42, "Unexpected broker id, expected 1 or empty string, but received 2"
    ),
    "no number of a broker": Refusal(describe(BROKER, "x"), 4, 42, "Broker id must be an integer, but it is: x"),
    "loggers of another broker": Refusal(
        describe(LOGGER, "2"), 4, 42, "Unexpected broker id, expected 1 but received 2"
    ),
    "loggers of no number": Refusal(describe(LOGGER, "x"), 4, 42, "Broker id must be an integer, but it is: x"),
    "loggers of no broker": Refusal(describe(LOGGER, ""), 4, 42, "Broker id must not be empty"),
    "client metrics without a name": Refusal(
        describe(METRICS, ""), 4, 42, "Client metrics subscription name must not be empty"
    ),
    "a group without a name": Refusal(describe(GROUP, ""), 4, 42, "Group name must not be empty"),
    # Kafka has the general text of the code here.
    "a resource that there is not": Refusal(describe(99, "x"), 4, 42, ours="Unknown resource type 99"),
    "controllers": Refusal(
        DescribeClusterRequest(endpoint_type=2), 1, 114,
        "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
    ),
    "an endpoint that there is not": Refusal(
        DescribeClusterRequest(endpoint_type=9), 1, 115, "Unsupported endpoint type 9"
    ),
}  # fmt: skip


def move(replicas: list[int] | None, topic: str = PRESENT, partition: int = 0) -> AlterPartitionReassignmentsRequest:
    asked = ReassignablePartition(partition_index=partition, replicas=replicas)
    return AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=[asked])])


NO_AUTHORIZER = "No Authorizer is configured."
# Features that are off, or of which there is nothing.
OFF = {
    "description of ACLs": Refusal(
        DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1), 3, 54,
        "No Authorizer is configured on the broker",
    ),
    "creation of an ACL": Refusal(
        CreateAclsRequest(creations=[AclCreation(
            resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3,
        )]), 3, 54, NO_AUTHORIZER,
    ),
    "deletion of ACLs": Refusal(
        DeleteAclsRequest(filters=[DeleteAclsFilter(
            resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1,
        )]), 3, 54, NO_AUTHORIZER,
    ),
    "cancelling a move that is none": Refusal(move(None), 1, 85),
    "a move of no topic": Refusal(move([1], "refusable-none"), 1, 3, "Unable to find a topic named refusable-none."),
    "a move of no partition": Refusal(move([1], PRESENT, 9), 1, 3, f"Unable to find partition {PRESENT}:9."),
    "a move to where it is": Refusal(move([1]), 1, 0),
    "a move to nobody": Refusal(move([]), 1, 39),
    "a move to a broker twice": Refusal(move([1, 1]), 1, 39),
    "a move to a broker that is not": Refusal(move([1, 99]), 1, 39),
    "a handshake": Refusal(SaslHandshakeRequest(mechanism="PLAIN"), 1, 34),
    "an old handshake": Refusal(SaslHandshakeRequest(mechanism="PLAIN"), 0, 34),
    "a quota that is not there": Refusal(quota(remove=True), 1, 0),
    "a quota": Refusal(quota(), 1, 0),
    "a quota of 0": Refusal(quota(value=0.0), 1, 42, "Quota producer_byte_rate must be greater than 0"),
    "a quota below 0": Refusal(quota(value=-1.0), 1, 42, "Quota producer_byte_rate must be greater than 0"),
    "a quota that is too large": Refusal(
        quota(value=1e300), 1, 42, "Proposed value for producer_byte_rate is too large for a LONG.",
        "Proposed value for producer_byte_rate is too large for a LONG: 1e+300"),
    "a quota of a fraction": Refusal(
        quota(value=1.5), 1, 42, "producer_byte_rate cannot be a fractional value.",
        "producer_byte_rate cannot be a fractional value, but it is 1.5"),
    "a quota that is unknown": Refusal(quota("speed"), 1, 42, "Invalid configuration key speed"),
    "a quota of an address, of a client": Refusal(
        quota("connection_creation_rate"), 1, 42, "Invalid configuration key connection_creation_rate"),
    "a quota of nobody": Refusal(
        AlterClientQuotasRequest(entries=[EntryDataRequest(entity=[], ops=[OpData(key="producer_byte_rate")])]), 1, 42,
        "Invalid empty client quota entity"),
    "a quota of an empty name": Refusal(quota(user=""), 1, 42, "Empty user not supported"),
    "a quota of an unknown type": Refusal(
        quota(group="g"), 1, 42, "Unhandled client quota entity type: group"),
    "a quota of a client at an address": Refusal(
        quota(user="u", ip="10.0.0.1"), 1, 42, None),
    "quotas of an unknown type": Refusal(quotas_of("group", 2), 1, 35, None, "Unsupported entity type group"),
    "quotas of an empty type": Refusal(quotas_of("", 2), 1, 42, None, "Invalid empty entity type."),
    "quotas of no name": Refusal(quotas_of("user", 0), 1, 42, None, "Request specified MATCH_TYPE_EXACT"),
    "quotas of any name, and one": Refusal(
        quotas_of("user", 2, "u"), 1, 42, None, "Request specified MATCH_TYPE_SPECIFIED"),
    "quotas of an unknown way to match": Refusal(quotas_of("user", 7), 1, 42, None, "Unknown match type 7"),
}  # fmt: skip

USERS = {
    "a user that is not there": Refusal(
        DescribeUserScramCredentialsRequest(users=[UserName(name="none")]), 0, 91,
        "Attempt to describe a user credential that does not exist: none",
    ),
    "a user twice": Refusal(
        DescribeUserScramCredentialsRequest(users=[UserName(name="none"), UserName(name="none")]), 0, 92,
        "Cannot describe SCRAM credentials for the same user twice in a single request: none",
    ),
    "deletion of a user that is not there": Refusal(
        no_user("none"), 0, 91, "Attempt to delete a user credential that does not exist"
    ),
    "deletion by an unknown mechanism": Refusal(no_user("none", 7), 0, 33, "Unknown SCRAM mechanism"),
    "deletion of a user without a name": Refusal(no_user(""), 0, 93, "Username must not be empty"),
    "a user without a name": Refusal(user(""), 0, 93, "Username must not be empty"),
    "a user of an unknown mechanism": Refusal(user("refusable", 0), 0, 33, "Unknown SCRAM mechanism"),
    "too few iterations": Refusal(user("refusable", 1, 4095), 0, 93, "Too few iterations"),
    "too many iterations": Refusal(user("refusable", 1, 16_385), 0, 93, "Too many iterations"),
    "a credential twice": Refusal(
        AlterUserScramCredentialsRequest(upsertions=[*user("refusable").upsertions, *user("refusable").upsertions]),
        0, 92, "A user credential cannot be altered twice in the same request",
    ),
}  # fmt: skip

# These answers have no text.
WITHOUT_TEXT = {
    "records of a topic that does not exist": Refusal(records("refusable-none", 0, 0), 2, 3),
    "records of a partition that does not exist": Refusal(records(PRESENT, 9, 0), 2, 3),
    "records beyond the end": Refusal(records(PRESENT, 0, 5), 2, 1),
    "records at a negative offset": Refusal(records(PRESENT, 0, -2), 2, 1),
    "records of a compacted topic": Refusal(records(COMPACTED, 0, 0), 2, 44),
    "a group that does not exist": Refusal(DeleteGroupsRequest(groups_names=["refusable-none"]), 2, 69),
    "a group without a name": Refusal(DeleteGroupsRequest(groups_names=[""]), 2, 69),
    "offsets of a group that does not exist": Refusal(offsets("refusable-none"), 0, 69),
    "offsets of a group without a name": Refusal(offsets(""), 0, 24),
    "an empty transactional id": Refusal(InitProducerIdRequest(transactional_id="", transaction_timeout_ms=9), 4, 42),
    "a producer's epoch without its id": Refusal(
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=9, producer_epoch=5), 4, 42
    ),
    "a producer's id without its epoch": Refusal(
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=9, producer_id=5), 4, 42
    ),
}

TABLES = {
    "create": CREATE,
    "extend": EXTEND,
    "delete": DELETE_TOPICS,
    "alter topic": ALTER_TOPIC,
    "alter others": ALTER_OTHERS,
    "describe": DESCRIBE,
    "off": OFF,
    "users": USERS,
    "without text": WITHOUT_TEXT,
}
CASES = [pytest.param(row, id=f"{table}: {name}") for table, rows in TABLES.items() for name, row in rows.items()]


def outcome(answer: Any) -> tuple[int, str | None]:
    """Return code and text of the one thing that an answer is about."""
    for rows in ("topics", "results", "responses", "filter_results", "entries"):
        for row in getattr(answer, rows, ()) or ():
            for partition in getattr(row, "partitions", ()):
                return partition.error_code, getattr(partition, "error_message", None)
            return row.error_code, getattr(row, "error_message", None)
    return answer.error_code, getattr(answer, "error_message", None)


@pytest.fixture(scope="module")
def is_ours(bootstrap: str, admin: Admin) -> bool:
    """Whether this is our broker; it has the topics then."""
    for name, settings in ((PRESENT, {}), (COMPACTED, {"cleanup.policy": "compact"}), (DOTTED, {})):
        admin.create_topic(name, 2, 1, settings)
    # Until then the coordinator of groups is not there.
    admin.describe_groups(["refusable-none", ""])
    return "flush.before.ack" in admin.describe_configs(topic=PRESENT)


@pytest.fixture(scope="module")
def call(bootstrap: str, is_ours: bool) -> Callable[[ApiMessage, int], Any]:
    def call(request: ApiMessage, version: int) -> Any:
        with RawClient(bootstrap) as client:
            return client.call(request, version)

    return call


@pytest.mark.parametrize("row", CASES)
def test_a_refused_request(row: Refusal, call: Callable[[ApiMessage, int], Any], is_ours: bool) -> None:
    code, text = outcome(call(row.request, row.version))
    assert code == row.code, text
    if not is_ours:
        assert row.text is None or text == row.text
        return
    expected = row.ours or row.text
    assert expected is None or (text or "").startswith(expected), text


def test_a_topic_that_is_named_twice_is_answered_once_and_stays(
    call: Callable[[ApiMessage, int], Any], admin: Admin
) -> None:
    answer = call(deletion(PRESENT, times=3), 6)
    assert [(each.name, each.error_code) for each in answer.responses] == [(PRESENT, 42)]
    assert PRESENT in admin.list_topics()


@pytest.mark.parametrize("version", [2, 3, 4, 7])
def test_minus_one_is_the_default_in_every_version(version: int, call: Callable[[ApiMessage, int], Any]) -> None:
    code, text = outcome(call(new(f"by-default-{version}", -1, -1), version))
    assert (code, text) == (0, None)


def test_records_of_a_topic_without_a_policy_can_be_deleted(
    call: Callable[[ApiMessage, int], Any], admin: Admin
) -> None:
    admin.create_topic("kept-for-ever", 1, 1, {"cleanup.policy": ""})
    code, _ = outcome(call(records("kept-for-ever", 0, -1), 2))
    assert code == 0


@pytest.mark.parametrize("version", [0, 1])
def test_there_are_no_quotas_to_describe(version: int, call: Callable[[ApiMessage, int], Any]) -> None:
    of_clients = ComponentData(entity_type="client-id", match_type=2)
    answer = call(DescribeClientQuotasRequest(components=[of_clients]), version)
    assert (answer.error_code, answer.entries) == (0, [])


def test_nothing_is_being_moved(call: Callable[[ApiMessage, int], Any]) -> None:
    answer = call(ListPartitionReassignmentsRequest(topics=None), 0)
    assert (answer.error_code, answer.topics) == (0, [])


@pytest.mark.parametrize("version", [0, 1])
def test_all_operations_on_the_cluster_are_allowed(version: int, call: Callable[[ApiMessage, int], Any]) -> None:
    for is_asked, expected in ((True, sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))), (False, -(2**31))):
        answer = call(DescribeClusterRequest(include_cluster_authorized_operations=is_asked), version)
        assert answer.cluster_authorized_operations == expected

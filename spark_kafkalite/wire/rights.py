"""The right that each request of a client needs, for the texts of refusals.

A refusal names an API's topic, group or cluster, and not what is missing: this does, in the words of Kafka's ACLs.
Source: the table of operations in Kafka's documentation ("Authorization and ACLs"), KafkaApis.
"""

from __future__ import annotations

from typing import Final

from spark_kafkalite.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    KafkaError,
    TopicAuthorizationFailed,
)
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.error_codes import error_for

_TOPIC: Final = TopicAuthorizationFailed.code
_GROUP: Final = GroupAuthorizationFailed.code
_CLUSTER: Final = ClusterAuthorizationFailed.code

_NEEDED: Final[dict[tuple[int, int], str]] = {
    (ApiKey.PRODUCE, _TOPIC): "WRITE on the topic",
    (ApiKey.PRODUCE, _CLUSTER): "IDEMPOTENT_WRITE on the cluster, or WRITE on a topic",
    (ApiKey.INIT_PRODUCER_ID, _CLUSTER): (
        "WRITE on a topic, or IDEMPOTENT_WRITE on the cluster (without either, enable.idempotence=false)"
    ),
    (ApiKey.FETCH, _TOPIC): "READ on the topic",
    (ApiKey.LIST_OFFSETS, _TOPIC): "DESCRIBE on the topic (READ and WRITE include it)",
    (ApiKey.METADATA, _TOPIC): (
        "DESCRIBE on the topic (READ and WRITE include it); a topic that does not exist needs CREATE"
    ),
    (ApiKey.OFFSET_COMMIT, _TOPIC): "READ on the topic",
    (ApiKey.OFFSET_COMMIT, _GROUP): "READ on the group",
    (ApiKey.OFFSET_FETCH, _TOPIC): "DESCRIBE on the topic (READ includes it)",
    (ApiKey.OFFSET_FETCH, _GROUP): "DESCRIBE on the group (READ includes it)",
    (ApiKey.OFFSET_DELETE, _TOPIC): "READ on the topic",
    (ApiKey.OFFSET_DELETE, _GROUP): "DELETE on the group",
    (ApiKey.FIND_COORDINATOR, _GROUP): "DESCRIBE on the group (READ and DELETE include it)",
    (ApiKey.JOIN_GROUP, _GROUP): "READ on the group",
    (ApiKey.SYNC_GROUP, _GROUP): "READ on the group",
    (ApiKey.HEARTBEAT, _GROUP): "READ on the group",
    (ApiKey.LEAVE_GROUP, _GROUP): "READ on the group",
    (ApiKey.DESCRIBE_GROUPS, _GROUP): "DESCRIBE on the group",
    (ApiKey.DELETE_GROUPS, _GROUP): "DELETE on the group",
    (ApiKey.LIST_GROUPS, _CLUSTER): "DESCRIBE on the cluster",
    (ApiKey.CREATE_TOPICS, _TOPIC): "CREATE on the topic or the cluster",
    (ApiKey.CREATE_TOPICS, _CLUSTER): "CREATE on the cluster",
    (ApiKey.CREATE_PARTITIONS, _TOPIC): "ALTER on the topic",
    (ApiKey.DELETE_TOPICS, _TOPIC): "DELETE on the topic",
    (ApiKey.DELETE_RECORDS, _TOPIC): "DELETE on the topic",
    (ApiKey.DESCRIBE_CONFIGS, _TOPIC): "DESCRIBE_CONFIGS on the topic",
    (ApiKey.DESCRIBE_CONFIGS, _GROUP): "DESCRIBE_CONFIGS on the group",
    (ApiKey.DESCRIBE_CONFIGS, _CLUSTER): "DESCRIBE_CONFIGS on the cluster",
    (ApiKey.ALTER_CONFIGS, _TOPIC): "ALTER_CONFIGS on the topic",
    (ApiKey.ALTER_CONFIGS, _GROUP): "ALTER_CONFIGS on the group",
    (ApiKey.ALTER_CONFIGS, _CLUSTER): "ALTER_CONFIGS on the cluster",
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, _TOPIC): "ALTER_CONFIGS on the topic",
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, _GROUP): "ALTER_CONFIGS on the group",
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, _CLUSTER): "ALTER_CONFIGS on the cluster",
    (ApiKey.DESCRIBE_LOG_DIRS, _CLUSTER): "DESCRIBE on the cluster",
    (ApiKey.DESCRIBE_CLUSTER, _CLUSTER): "DESCRIBE on the cluster",
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, _TOPIC): "DESCRIBE on the topic",
    (ApiKey.ELECT_LEADERS, _CLUSTER): "ALTER on the cluster",
    (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, _CLUSTER): "DESCRIBE on the cluster",
    (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, _CLUSTER): "ALTER on the cluster",
}


def refusal(api_key: int, code: int, text: str | None) -> KafkaError:
    """Return the exception for an API's error code, as ``error_for``; its text names the missing right, if one is
    missing."""
    needed = _NEEDED.get((api_key, code))
    if needed is None:
        return error_for(code, text)
    return error_for(code, f"{(text or 'refused').rstrip('. ')}: the client's principal needs {needed}")

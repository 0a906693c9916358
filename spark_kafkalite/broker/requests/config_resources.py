"""The resource whose rights stand for the settings of a topic, a broker, its loggers or a group."""

from __future__ import annotations

from typing import Final

from spark_kafkalite.acls import CLUSTER_NAME, ResourceType

# Numbers of org.apache.kafka.common.config.ConfigResource.Type.
_TOPIC: Final = 2
_GROUP: Final = 32


def resource_of(resource_type: int, name: str) -> tuple[ResourceType, str]:
    """Return whose rights count. Those of the cluster count for brokers, their loggers, client metrics, and unknown
    types, about which a client without rights learns nothing. Source: kafka.server.ConfigHelper, AuthHelper."""
    if resource_type == _TOPIC:
        return ResourceType.TOPIC, name
    if resource_type == _GROUP:
        return ResourceType.GROUP, name
    return ResourceType.CLUSTER, CLUSTER_NAME

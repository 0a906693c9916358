"""ListConfigResources (key 74), versions 0 to 1: the names of resources that have settings.

v0  client metrics only (the API was ListClientMetricsResources then)
v1  the types that are asked for; none means all of them

Topics (2), brokers (4) and the loggers of brokers (8) are listed. Client metrics (16) and groups (32) are known types
of which there are none: this broker keeps no settings for them. Any other type is UNSUPPORTED_VERSION.

Source: KIP-1142, kafka.server.KafkaApis.handleListConfigResources of Apache Kafka 4.
"""

from __future__ import annotations

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import ClusterAuthorizationFailed, UnsupportedVersion
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32
_TYPES = frozenset({_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP})
_FIRST_VERSION_WITH_TYPES = 1
_LISTED_AT_ONCE = 500


@handles(ApiKey.LIST_CONFIG_RESOURCES, 0, 1)
def handle(
    context: BrokerContext, exchange: Exchange, message: ListConfigResourcesRequest
) -> Work[ListConfigResourcesResponse]:
    """List resources."""
    if not exchange.may(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER):
        return ListConfigResourcesResponse(error_code=ClusterAuthorizationFailed.code)
    types = frozenset({_CLIENT_METRICS})
    if exchange.api_version >= _FIRST_VERSION_WITH_TYPES:
        types = frozenset(message.resource_types) or _TYPES
    if not types <= _TYPES:
        return ListConfigResourcesResponse(error_code=UnsupportedVersion.code)
    cluster = context.cluster
    found = [
        ConfigResource(resource_name=str(broker_id), resource_type=kind)
        for kind in (_BROKER_LOGGER, _BROKER)
        if kind in types
        for broker_id in cluster.brokers
    ]
    if _TOPIC in types:
        for number, name in enumerate(cluster.topics):
            found.append(ConfigResource(resource_name=name, resource_type=_TOPIC))
            if number % _LISTED_AT_ONCE == 0:
                yield None
    return ListConfigResourcesResponse(config_resources=found)

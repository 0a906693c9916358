"""DescribeCluster (key 60), versions 0 and 1: cluster id, controller and live brokers.

v0  plain; with authorized operations where the client asks for them
v1  the client names what it means: brokers (1) or KRaft controllers (2); there are no KRaft controllers here

A tagged field of our own, which other clients skip, has the version of each broker, as its registration names it.
"""

from __future__ import annotations

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.authorized_operations import cluster_operations
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.registry.znodes import NO_LEADER
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS = 1
_CONTROLLERS = 2
_MISMATCHED_ENDPOINT_TYPE = 114
_UNSUPPORTED_ENDPOINT_TYPE = 115


@handles(ApiKey.DESCRIBE_CLUSTER, 0, 1)
def handle(context: BrokerContext, exchange: Exchange, message: DescribeClusterRequest) -> DescribeClusterResponse:
    """Describe the cluster as the registry has it; the controller only while the registry answers this broker."""
    cluster = context.cluster
    if exchange.api_version >= 1 and message.endpoint_type != _BROKERS:
        code = _UNSUPPORTED_ENDPOINT_TYPE
        text = f"Unsupported endpoint type {message.endpoint_type}"
        if message.endpoint_type == _CONTROLLERS:
            code = _MISMATCHED_ENDPOINT_TYPE
            text = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
        return DescribeClusterResponse(
            error_code=code,
            error_message=text,
            endpoint_type=message.endpoint_type,
            cluster_id=cluster.cluster_id,
        )
    brokers = []
    for broker in cluster.brokers.values():
        address = context.address_of(broker, exchange.session)
        if address is None:
            continue
        host, port = address
        brokers.append(
            DescribeClusterBroker(
                broker_id=broker.broker_id,
                host=host,
                port=port,
                rack=broker.rack,
                software_version=broker.software_version or None,
            )
        )
    controller_id = cluster.controller_id if context.lease.holds(context.clock.monotonic_s()) else NO_LEADER
    return DescribeClusterResponse(
        endpoint_type=_BROKERS,
        cluster_id=cluster.cluster_id,
        controller_id=controller_id,
        brokers=brokers,
        cluster_authorized_operations=cluster_operations(
            exchange, is_asked=message.include_cluster_authorized_operations
        ),
    )

"""What brokers have heard of changes that are in the registry: each hears of them in its own time."""

from __future__ import annotations

from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.wire.messages.describe_cluster import DescribeClusterRequest
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.interop.support.raw_client import RawClient
from tests.patience import wait_until


def wait_until_known(broker: str, topic: str) -> None:
    """Wait until a broker knows a topic, and may be asked about it."""
    with RawClient(broker) as client:
        wait_until(lambda: not client.call(_about(topic), 9).topics[0].error_code, f"{broker} to know {topic}")


def wait_until_told_of_isr(broker: str, topic: str, members: set[int]) -> None:
    """Wait until a broker that knows a topic has heard which replicas of its partition 0 are in sync."""
    with RawClient(broker) as client:
        wait_until(
            lambda: set(client.call(_about(topic), 9).topics[0].partitions[0].isr_nodes) == members,
            f"{broker} to hear that {members} are in sync",
        )


def wait_until_all_know_all(cluster: KafkaliteCluster) -> None:
    """Wait until each broker has heard that all brokers live, and that one of them is the controller."""
    living = set(cluster.brokers)

    def knows_all(client: RawClient) -> bool:
        told = client.call(DescribeClusterRequest(), 1)
        return {each.broker_id for each in told.brokers} == living and told.controller_id in living

    for broker in cluster.brokers.values():
        with RawClient(broker.bootstrap) as client:
            wait_until(lambda client=client: knows_all(client), f"{broker.bootstrap} to know all brokers")  # type: ignore[misc]


def _about(topic: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)

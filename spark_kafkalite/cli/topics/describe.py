"""``kafkalite topics describe``: topics, their settings, and the leader and replicas of each partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from spark_kafkalite.cli.options import ClientSettings, client_options, json_option, reachable_admin, topic_pattern
from spark_kafkalite.cli.output import echo, print_json
from spark_kafkalite.errors import UnknownTopicOrPartition, UnsupportedVersion
from spark_kafkalite.model import TopicPartition, topic_name_problem

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.client.admin.replicas import EligibleReplicas
    from spark_kafkalite.client.network.metadata import PartitionInfo, TopicInfo


@click.command("describe")
@click.option("--topic", metavar="NAME_OR_REGEX", help="The topics to describe; all without it.")
@click.option("--exclude-internal", is_flag=True, help="Leave out internal topics.")
@click.option("--if-exists", is_flag=True, help="No error when no topic matches.")
@click.option("--under-replicated-partitions", is_flag=True, help="Only partitions with replicas out of sync.")
@click.option("--under-min-isr-partitions", is_flag=True, help="Only those with fewer in sync than acks=all needs.")
@click.option("--at-min-isr-partitions", is_flag=True, help="Only those with no more in sync than acks=all needs.")
@click.option("--unavailable-partitions", is_flag=True, help="Only partitions without a live leader.")
@click.option(
    "--topics-with-overrides", is_flag=True, help="Only topics with settings of their own, without partitions."
)
@client_options
@json_option
def describe(
    topic: str | None,
    exclude_internal: bool,
    if_exists: bool,
    under_replicated_partitions: bool,
    under_min_isr_partitions: bool,
    at_min_isr_partitions: bool,
    unavailable_partitions: bool,
    topics_with_overrides: bool,
    client: ClientSettings,
    as_json: bool,
) -> None:
    """Show topics, their settings, and the leader and replicas of each partition.

    Elr are replicas outside the ISR that may still lead, because the ISR had fewer than min.insync.replicas members
    without them. N/A: the brokers do not report them.
    """
    described: list[tuple[TopicInfo, dict[str, str], list[PartitionInfo]]] = []
    only = {
        "under-replicated": under_replicated_partitions,
        "under-min-isr": under_min_isr_partitions,
        "at-min-isr": at_min_isr_partitions,
        "unavailable": unavailable_partitions,
    }
    only_some = any(only.values())
    with reachable_admin(client) as admin:
        live = {node.node_id for node in admin.describe_cluster().brokers}
        for info in _matching(admin, topic, exclude_internal, if_exists).values():
            settings = admin.describe_configs(topic=info.name)
            configs = {entry.name: entry.value or "" for entry in settings.values() if entry.source == "topic"}
            if topics_with_overrides and not configs:
                continue
            min_isr = int(settings["min.insync.replicas"].value or 1)
            shown = [
                partition
                for partition in info.partitions
                if not only_some or any(only[each] for each in _conditions(partition, min_isr, live))
            ]
            if shown or not only_some:
                described.append((info, configs, [] if topics_with_overrides else shown))
        eligible = _eligible(admin, [info.name for info, _, partitions in described if partitions])
    if as_json:
        print_json([_as_json(info, configs, partitions, eligible) for info, configs, partitions in described])
        return
    for info, configs, partitions in described:
        if not only_some:
            echo(_topic_line(info, configs))
        for partition in partitions:
            echo(_partition_line(info.name, partition, eligible))


def _matching(admin: Admin, topic: str | None, exclude_internal: bool, if_exists: bool) -> dict[str, TopicInfo]:
    """Return the topics of this name, or else those that match it as a pattern."""
    every = admin.describe_topics()
    if topic is not None and topic in every:
        return {topic: every[topic]}
    found = {
        name: info
        for name, info in every.items()
        if (topic is None or topic_pattern(topic).fullmatch(name)) and not (exclude_internal and info.is_internal)
    }
    if topic is not None and not found and not if_exists:
        if topic_name_problem(topic) is None:
            # Lists leave out what the client may not describe. This raises an error that names the right.
            with suppress(UnknownTopicOrPartition):
                admin.describe_topics([topic])
        raise UnknownTopicOrPartition(f"no topic has the name or matches the pattern {topic!r}")
    return found


def _conditions(partition: PartitionInfo, min_isr: int, live: set[int]) -> list[str]:
    """Return what a partition can be asked for by. Source: TopicCommand.PartitionDescription of Apache Kafka, which
    has a topic of fewer replicas under min.insync.replicas at all times, though acks=all is served."""
    found = []
    needed = partition.needed_in_sync(min_isr)
    if len(partition.isr) < len(partition.replicas):
        found.append("under-replicated")
    if partition.leader < 0 or len(partition.isr) < needed:
        found.append("under-min-isr")
    if len(partition.isr) == needed:
        found.append("at-min-isr")
    if partition.leader not in live:
        found.append("unavailable")
    return found


def _eligible(admin: Admin, topics: list[str]) -> dict[TopicPartition, EligibleReplicas]:
    """Return the eligible replicas of partitions; empty if the broker does not report them."""
    try:
        return admin.eligible_replicas(topics)
    except UnsupportedVersion:
        return {}


def _topic_line(info: TopicInfo, configs: Mapping[str, str]) -> str:
    replication_factor = len(info.partitions[0].replicas) if info.partitions else 0
    return (
        f"Topic: {info.name}\tTopicId: {_id_text(info.topic_id)}\tPartitionCount: {len(info.partitions)}\t"
        f"ReplicationFactor: {replication_factor}\t"
        f"Configs: {','.join(f'{name}={value}' for name, value in sorted(configs.items()))}"
    )


def _partition_line(topic: str, partition: PartitionInfo, eligible: Mapping[TopicPartition, EligibleReplicas]) -> str:
    leader = str(partition.leader) if partition.leader >= 0 else "none"
    found = eligible.get(TopicPartition(topic, partition.partition))
    return (
        f"\tTopic: {topic}\tPartition: {partition.partition}\tLeader: {leader}\t"
        f"Replicas: {_listed(partition.replicas)}\tIsr: {_listed(partition.isr)}\t"
        f"Elr: {'N/A' if found is None else _listed(found.eligible)}\t"
        f"LastKnownElr: {'N/A' if found is None else _listed(found.last_known)}"
    )


def _listed(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))


def _as_json(
    info: TopicInfo,
    configs: Mapping[str, str],
    partitions: list[PartitionInfo],
    eligible: Mapping[TopicPartition, EligibleReplicas],
) -> dict[str, Any]:
    return {
        "topic": info.name,
        "topicId": _id_text(info.topic_id),
        "internal": info.is_internal,
        "configs": dict(sorted(configs.items())),
        "partitions": [
            {
                "partition": each.partition,
                "leader": each.leader,
                "leaderEpoch": each.leader_epoch,
                "replicas": list(each.replicas),
                "isr": list(each.isr),
                "eligible": _eligible_list(eligible.get(TopicPartition(info.name, each.partition))),
            }
            for each in partitions
        ],
    }


def _eligible_list(found: EligibleReplicas | None) -> list[int] | None:
    return None if found is None else list(found.eligible)


def _id_text(topic_id: bytes) -> str:
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(topic_id).rstrip(b"=").decode("ascii")

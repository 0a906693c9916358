"""``kafkalite topics``: create, list, describe, extend and delete topics, in the words of Kafka's own tool."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from spark_kafkalite.cli.configs import Entity, warn_of_contradictions
from spark_kafkalite.cli.delete_records import delete_records
from spark_kafkalite.cli.options import (
    ActionGroup,
    bootstrap_option,
    client_settings,
    json_option,
    name_values,
    reachable_admin,
)
from spark_kafkalite.cli.output import print_json
from spark_kafkalite.errors import TopicAlreadyExists, UnknownTopicOrPartition, UnsupportedVersion
from spark_kafkalite.model import TopicPartition

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.client.admin.replicas import EligibleReplicas
    from spark_kafkalite.client.network.metadata import PartitionInfo, TopicInfo

_EPILOG = """\b
Examples:
  kafkalite topics create --topic events --partitions 4
  kafkalite topics create --topic events --if-not-exists --config retention.ms=-1
  kafkalite topics list
  kafkalite topics describe --topic events
  kafkalite topics alter --topic events --partitions 8
  kafkalite topics delete --topic events
  kafkalite topics delete-records --topic events --partition 0 --before-offset 1000

Kafka's spelling works too: kafkalite topics --describe --topic events
"""


@click.group("topics", cls=ActionGroup, epilog=_EPILOG)
def command() -> None:
    """Create, list, describe, extend and delete topics."""


command.add_command(delete_records)


def _admin(bootstrap_server: str, command_config: str | None, command_properties: tuple[str, ...]) -> Admin:
    return reachable_admin(client_settings(bootstrap_server, command_config, command_properties))


@command.command("create")
@click.option("--topic", required=True, help="Name of the topic.")
@click.option("--partitions", type=int, default=-1, help="Number of partitions; the broker's default without it.")
@click.option("--replication-factor", type=int, default=-1, help="Replicas of each partition; likewise.")
@click.option(
    "--replica-assignment",
    metavar="B:B,B:B,...",
    help="Brokers of each partition, instead of both numbers: '1:2,2:1' is two partitions.",
)
@click.option("--config", "configs", metavar="NAME=VALUE", multiple=True, help="A setting of the topic. Repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing when the topic exists.")
@bootstrap_option
@json_option
def create(
    topic: str,
    partitions: int,
    replication_factor: int,
    replica_assignment: str | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    bootstrap_server: str,
    command_config: str | None,
    command_properties: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create a topic and wait until it has leaders."""
    from spark_kafkalite.client.admin.admin import NewTopic

    if replica_assignment and (partitions != -1 or replication_factor != -1):
        raise click.UsageError("--replica-assignment replaces --partitions and --replication-factor")
    assignments = dict(enumerate(parse_assignment(replica_assignment))) if replica_assignment else {}
    new = NewTopic(topic, partitions, replication_factor, name_values(configs, "--config"), assignments)
    with _admin(bootstrap_server, command_config, command_properties) as admin:
        existed = if_not_exists and topic in admin.list_topics(include_internal=True)
        if not existed:
            try:
                admin.create_topics([new], if_not_exists=if_not_exists)
            except TopicAlreadyExists as error:
                raise TopicAlreadyExists(f"{error}; with --if-not-exists this is not an error") from None
        info = admin.describe_topics([topic])[topic]
        if configs and not existed:
            warn_of_contradictions(Entity("topics", topic), admin.describe_configs(topic=topic))
    if as_json:
        print_json({"topic": topic, "created": not existed, "partitions": len(info.partitions)})
    elif existed:
        click.echo(f"Topic {topic} exists already.")
    else:
        click.echo(f"Created topic {topic}.")


@command.command("list")
@click.option("--topic", metavar="REGEX", help="Only topics whose whole name matches.")
@click.option("--exclude-internal", is_flag=True, help="Leave out internal topics.")
@bootstrap_option
@json_option
def list_topics(
    topic: str | None,
    exclude_internal: bool,
    bootstrap_server: str,
    command_config: str | None,
    command_properties: tuple[str, ...],
    as_json: bool,
) -> None:
    """List the topics, one a line."""
    with _admin(bootstrap_server, command_config, command_properties) as admin:
        names = admin.list_topics(include_internal=not exclude_internal)
    if topic is not None:
        names = [name for name in names if _pattern(topic).fullmatch(name)]
    if as_json:
        print_json(names)
        return
    for name in names:
        click.echo(name)


@command.command("describe")
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
@bootstrap_option
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
    bootstrap_server: str,
    command_config: str | None,
    command_properties: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show topics, their settings, and the leader and replicas of each partition.

    Elr are the replicas that may lead beside those in sync, because they left them when these were fewer than
    min.insync.replicas; N/A where the brokers do not tell.
    """
    described: list[tuple[TopicInfo, dict[str, str], list[PartitionInfo]]] = []
    only = {
        "under-replicated": under_replicated_partitions,
        "under-min-isr": under_min_isr_partitions,
        "at-min-isr": at_min_isr_partitions,
        "unavailable": unavailable_partitions,
    }
    only_some = any(only.values())
    with _admin(bootstrap_server, command_config, command_properties) as admin:
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
            click.echo(_topic_line(info, configs))
        for partition in partitions:
            click.echo(_partition_line(info.name, partition, eligible))


@command.command("alter")
@click.option("--topic", required=True, help="Name of the topic.")
@click.option("--partitions", type=int, required=True, help="The new number of partitions; it can only grow.")
@click.option(
    "--replica-assignment",
    metavar="B:B,B:B,...",
    help="Brokers of each partition: of the added ones, or of all (then those that exist are skipped).",
)
@click.option("--if-exists", is_flag=True, help="Do nothing when the topic does not exist.")
@bootstrap_option
@json_option
def alter(
    topic: str,
    partitions: int,
    replica_assignment: str | None,
    if_exists: bool,
    bootstrap_server: str,
    command_config: str | None,
    command_properties: tuple[str, ...],
    as_json: bool,
) -> None:
    """Add partitions to a topic.

    Records with a key may go to another partition afterwards: what is in the log already does not move.
    """
    with _admin(bootstrap_server, command_config, command_properties) as admin:
        if if_exists and topic not in admin.list_topics(include_internal=True):
            _done(as_json, {"topic": topic, "altered": False}, f"Topic {topic} does not exist.")
            return
        assignments = None
        if replica_assignment:
            given = parse_assignment(replica_assignment)
            existing = len(admin.describe_topics([topic])[topic].partitions)
            assignments = {topic: given[existing:] if len(given) == partitions else given}
        admin.create_partitions({topic: partitions}, assignments=assignments)
    _done(
        as_json,
        {"topic": topic, "altered": True, "partitions": partitions},
        f"Topic {topic} has {partitions} partitions.",
    )


@command.command("delete")
@click.option("--topic", "topics", required=True, multiple=True, metavar="NAME[,NAME]", help="Topics. Repeatable.")
@click.option("--if-exists", is_flag=True, help="No error for topics that do not exist.")
@bootstrap_option
@json_option
def delete(
    topics: tuple[str, ...],
    if_exists: bool,
    bootstrap_server: str,
    command_config: str | None,
    command_properties: tuple[str, ...],
    as_json: bool,
) -> None:
    """Delete topics with all their records. There is no way back."""
    names = [name.strip() for text in topics for name in text.split(",") if name.strip()]
    with _admin(bootstrap_server, command_config, command_properties) as admin:
        if if_exists:
            existing = set(admin.list_topics(include_internal=True))
            names = [name for name in names if name in existing]
        if names:
            admin.delete_topics(names)
    _done(as_json, {"deleted": names}, "\n".join(f"Deleted topic {name}." for name in names) or "Nothing to delete.")


def parse_assignment(text: str) -> list[list[int]]:
    """Return the brokers of each partition of '1:2,2:1'. Raises UsageError."""
    try:
        return [[int(broker) for broker in partition.split(":")] for partition in text.split(",")]
    except ValueError:
        raise click.UsageError(
            f"--replica-assignment {text}: not of the form '1:2,2:1' (brokers with ':', partitions with ',')"
        ) from None


def _done(as_json: bool, value: Mapping[str, Any], text: str) -> None:
    if as_json:
        print_json(value)
    else:
        click.echo(text)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise click.UsageError(f"--topic {text}: not a regular expression: {error}") from None


def _matching(admin: Admin, topic: str | None, exclude_internal: bool, if_exists: bool) -> dict[str, TopicInfo]:
    """Return the topics of this name, or else those that match it as a pattern."""
    every = admin.describe_topics()
    if topic is not None and topic in every:
        return {topic: every[topic]}
    found = {
        name: info
        for name, info in every.items()
        if (topic is None or _pattern(topic).fullmatch(name)) and not (exclude_internal and info.is_internal)
    }
    if topic is not None and not found and not if_exists:
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
    """Return the eligible replicas of partitions; nothing where the broker does not tell."""
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

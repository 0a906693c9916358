"""``kafkalite topics``: create, list, describe, extend and delete topics, in the words of Kafka's own tool."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
from spark_kafkalite.errors import TopicAlreadyExists, UnknownTopicOrPartition

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
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
@click.option("--unavailable-partitions", is_flag=True, help="Only partitions without a leader.")
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
    unavailable_partitions: bool,
    topics_with_overrides: bool,
    bootstrap_server: str,
    command_config: str | None,
    command_properties: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show topics, their settings, and the leader and replicas of each partition."""
    described: list[tuple[TopicInfo, dict[str, str], list[PartitionInfo]]] = []
    only_some = under_replicated_partitions or unavailable_partitions
    with _admin(bootstrap_server, command_config, command_properties) as admin:
        for info in _matching(admin, topic, exclude_internal, if_exists).values():
            configs = _overrides(admin, info.name)
            if topics_with_overrides and not configs:
                continue
            shown = [
                partition
                for partition in info.partitions
                if not only_some
                or (under_replicated_partitions and set(partition.isr) != set(partition.replicas))
                or (unavailable_partitions and partition.leader < 0)
            ]
            if shown or not only_some:
                described.append((info, configs, [] if topics_with_overrides else shown))
    if as_json:
        print_json([_as_json(info, configs, partitions) for info, configs, partitions in described])
        return
    for info, configs, partitions in described:
        if not only_some:
            click.echo(_topic_line(info, configs))
        for partition in partitions:
            click.echo(_partition_line(info.name, partition))


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


def _overrides(admin: Admin, topic: str) -> dict[str, str]:
    """Return the settings that the topic itself has."""
    entries = admin.describe_configs(topic=topic).values()
    return {entry.name: entry.value or "" for entry in entries if entry.source == "topic"}


def _topic_line(info: TopicInfo, configs: Mapping[str, str]) -> str:
    replication_factor = len(info.partitions[0].replicas) if info.partitions else 0
    return (
        f"Topic: {info.name}\tTopicId: {_id_text(info.topic_id)}\tPartitionCount: {len(info.partitions)}\t"
        f"ReplicationFactor: {replication_factor}\t"
        f"Configs: {','.join(f'{name}={value}' for name, value in sorted(configs.items()))}"
    )


def _partition_line(topic: str, partition: PartitionInfo) -> str:
    leader = str(partition.leader) if partition.leader >= 0 else "none"
    return (
        f"\tTopic: {topic}\tPartition: {partition.partition}\tLeader: {leader}\t"
        f"Replicas: {','.join(map(str, partition.replicas))}\tIsr: {','.join(map(str, partition.isr))}"
    )


def _as_json(info: TopicInfo, configs: Mapping[str, str], partitions: list[PartitionInfo]) -> dict[str, Any]:
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
            }
            for each in partitions
        ],
    }


def _id_text(topic_id: bytes) -> str:
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(topic_id).rstrip(b"=").decode("ascii")

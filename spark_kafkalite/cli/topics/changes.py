"""``kafkalite topics create``, ``alter`` and ``delete``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from spark_kafkalite.cli.configs import Entity, warn_of_contradictions
from spark_kafkalite.cli.options import ClientSettings, client_options, json_option, name_values, reachable_admin
from spark_kafkalite.cli.output import echo, print_json
from spark_kafkalite.errors import TopicAlreadyExists


@click.command("create")
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
@client_options
@json_option
def create(
    topic: str,
    partitions: int,
    replication_factor: int,
    replica_assignment: str | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    client: ClientSettings,
    as_json: bool,
) -> None:
    """Create a topic and wait until it has leaders."""
    from spark_kafkalite.client.admin.admin import NewTopic

    if replica_assignment and (partitions != -1 or replication_factor != -1):
        raise click.UsageError("--replica-assignment replaces --partitions and --replication-factor")
    assignments = dict(enumerate(parse_assignment(replica_assignment))) if replica_assignment else {}
    new = NewTopic(topic, partitions, replication_factor, name_values(configs, "--config"), assignments)
    with reachable_admin(client) as admin:
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
        echo(f"Topic {topic} exists already.")
    else:
        echo(f"Created topic {topic}.")


@click.command("alter")
@click.option("--topic", required=True, help="Name of the topic.")
@click.option("--partitions", type=int, required=True, help="The new number of partitions; it can only grow.")
@click.option(
    "--replica-assignment",
    metavar="B:B,B:B,...",
    help="Brokers of each partition: of the added ones, or of all (then those that exist are skipped).",
)
@click.option("--if-exists", is_flag=True, help="Do nothing when the topic does not exist.")
@client_options
@json_option
def alter(
    topic: str,
    partitions: int,
    replica_assignment: str | None,
    if_exists: bool,
    client: ClientSettings,
    as_json: bool,
) -> None:
    """Add partitions to a topic.

    Records with a key may go to another partition afterwards: what is in the log already does not move.
    """
    with reachable_admin(client) as admin:
        if if_exists and topic not in admin.list_topics(include_internal=True):
            _print_done(as_json, {"topic": topic, "altered": False}, f"Topic {topic} does not exist.")
            return
        assignments = None
        if replica_assignment:
            given = parse_assignment(replica_assignment)
            existing = len(admin.describe_topics([topic])[topic].partitions)
            assignments = {topic: given[existing:] if len(given) == partitions else given}
        admin.create_partitions({topic: partitions}, assignments=assignments)
    _print_done(
        as_json,
        {"topic": topic, "altered": True, "partitions": partitions},
        f"Topic {topic} has {partitions} partitions.",
    )


@click.command("delete")
@click.option("--topic", "topics", required=True, multiple=True, metavar="NAME[,NAME]", help="Topics. Repeatable.")
@click.option("--if-exists", is_flag=True, help="No error for topics that do not exist.")
@client_options
@json_option
def delete(
    topics: tuple[str, ...],
    if_exists: bool,
    client: ClientSettings,
    as_json: bool,
) -> None:
    """Delete topics with all their records. There is no way back."""
    names = [name.strip() for text in topics for name in text.split(",") if name.strip()]
    with reachable_admin(client) as admin:
        if if_exists:
            existing = set(admin.list_topics(include_internal=True))
            names = [name for name in names if name in existing]
        if names:
            admin.delete_topics(names)
    _print_done(
        as_json, {"deleted": names}, "\n".join(f"Deleted topic {name}." for name in names) or "Nothing to delete."
    )


def parse_assignment(text: str) -> list[list[int]]:
    """Return the brokers of each partition of '1:2,2:1'. Raises UsageError."""
    try:
        return [[int(broker) for broker in partition.split(":")] for partition in text.split(",")]
    except ValueError:
        raise click.UsageError(
            f"--replica-assignment {text}: not of the form '1:2,2:1' (brokers with ':', partitions with ',')"
        ) from None


def _print_done(as_json: bool, value: Mapping[str, Any], text: str) -> None:
    if as_json:
        print_json(value)
    else:
        echo(text)

"""``kafkalite cluster elect``: have leaders elected, preferred ones or, as a last resort, any that live."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from spark_kafkalite.cli.cluster.losses import confirmed_elections
from spark_kafkalite.cli.options import (
    ClientSettings,
    client_options,
    existing_partitions,
    json_option,
    reachable_admin,
)
from spark_kafkalite.cli.output import echo, print_json, warn
from spark_kafkalite.errors import KafkaError
from spark_kafkalite.model import TopicPartition

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.client.network.metadata import PartitionInfo

# The protocol's error code.
_ELECTION_NOT_NEEDED: Final = 84


@click.command(
    "elect",
    epilog="""\b
Examples:
  kafkalite cluster elect --preferred
  kafkalite cluster elect --preferred events:0,events:1
  kafkalite cluster elect --unclean events:0
  kafkalite cluster elect --unclean
  kafkalite cluster elect --unclean --replica events:0=2
""",
)
@click.option("--preferred", is_flag=True, help="Have the first replica of each partition lead, where it is in sync.")
@click.option(
    "--unclean",
    is_flag=True,
    help="Have the live replica with the best log lead a partition without a leader. What it lacks is lost. Of a named "
    "partition that is led, accept what the leader's log lacks and no other replica has.",
)
@click.option(
    "--replica",
    "replicas",
    multiple=True,
    metavar="TOPIC:PARTITION=BROKER",
    help="With --unclean: have this replica lead, whatever its log has. Can be given several times.",
)
@click.option("--yes", is_flag=True, help="Do not ask before an unclean election.")
@click.argument("partitions", nargs=-1, metavar="[TOPIC:PARTITION[,...]]...")
@client_options
@json_option
def elect(
    preferred: bool,
    unclean: bool,
    replicas: tuple[str, ...],
    yes: bool,
    partitions: tuple[str, ...],
    client: ClientSettings,
    as_json: bool,
) -> int:
    """Elect leaders of partitions. If none is named: of all with --preferred, of those without a leader with --unclean.

    Before an unclean election it shows what each replica has and what would be lost, and asks once.
    """
    if preferred == unclean:
        raise click.UsageError("give either --preferred or --unclean")
    if replicas and not unclean:
        raise click.UsageError("--replica chooses for an unclean election: give --unclean, too")
    wishes = _wishes(replicas)
    asked = [named_partition(text) for argument in partitions for text in argument.split(",") if text.strip()]
    if wishes:
        asked = list(dict.fromkeys([*asked, *wishes]))
    with reachable_admin(client) as admin:
        wanted = _existing(admin, asked) if asked else None
        if unclean:
            outcomes = _elect_unclean(admin, wanted, wishes, show=not as_json, ask=not yes)
            if outcomes is None:
                return 1
            if not outcomes:
                return 0
        else:
            outcomes = admin.elect_leaders(wanted)
        leaders = _partition_infos(admin, outcomes)
    if as_json:
        print_json([_as_json(key, outcomes[key], leaders.get(key)) for key in sorted(outcomes)])
    else:
        _print(outcomes, leaders)
    failed = [error for error in outcomes.values() if error is not None and error.code != _ELECTION_NOT_NEEDED]
    return 1 if failed else 0


def _elect_unclean(
    admin: Admin,
    wanted: list[TopicPartition] | None,
    wishes: Mapping[TopicPartition, int],
    *,
    show: bool,
    ask: bool,
) -> dict[TopicPartition, KafkaError | None] | None:
    """Return the outcomes; none where nothing is to be done, None where the user does not want it."""
    if wanted is None:
        wanted = _leaderless(admin)
        if not wanted:
            warn("every partition has a leader; nothing is to be done")
            return {}
    confirmed = confirmed_elections(admin, wanted, wishes, show=show, ask=ask)
    if confirmed is None:
        return None
    chosen = {key: (each.broker, each.leader_epoch) for key, each in confirmed.items() if each is not None}
    accepted = {key: each.accepted for key, each in confirmed.items() if each is not None}
    best = [key for key, each in confirmed.items() if each is None]
    outcomes = admin.elect_leaders(chosen=chosen, accepted=accepted) if chosen else {}
    if best:
        outcomes |= admin.elect_leaders(best, unclean=True)
    return outcomes


def _wishes(replicas: tuple[str, ...]) -> dict[TopicPartition, int]:
    """Return which broker is to lead which partition."""
    found: dict[TopicPartition, int] = {}
    for text in replicas:
        where, separator, broker = text.strip().rpartition("=")
        if not separator or not broker.isdecimal():
            raise click.UsageError(f"--replica {text}: not of the form TOPIC:PARTITION=BROKER, such as events:0=2")
        key = named_partition(where)
        if found.get(key, int(broker)) != int(broker):
            raise click.UsageError(f"--replica {text}: {key} has broker {found[key]} already")
        found[key] = int(broker)
    return found


def named_partition(text: str) -> TopicPartition:
    topic, separator, number = text.strip().rpartition(":")
    if not separator or not topic or not number.isdecimal():
        raise click.UsageError(f"{text}: not of the form TOPIC:PARTITION, such as events:0")
    return TopicPartition(topic, int(number))


def _existing(admin: Admin, asked: list[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions, each once. Raises UnknownTopicOrPartition for those that do not exist."""
    topics: dict[str, set[int] | None] = {
        name: {number for topic, number in asked if topic == name} for name, _ in asked
    }
    return existing_partitions(admin, topics)


def _leaderless(admin: Admin) -> list[TopicPartition]:
    """Return all partitions that no live broker leads."""
    live = {node.node_id for node in admin.describe_cluster().brokers}
    topics = admin.describe_topics(admin.list_topics(include_internal=True))
    return [
        TopicPartition(name, each.partition)
        for name, topic in sorted(topics.items())
        for each in topic.partitions
        if each.leader not in live
    ]


def _partition_infos(admin: Admin, keys: Any) -> dict[TopicPartition, PartitionInfo]:
    wanted = set(keys)
    described = admin.describe_topics({key.topic for key in wanted}) if wanted else {}
    return {
        key: each
        for name, info in described.items()
        for each in info.partitions
        if (key := TopicPartition(name, each.partition)) in wanted
    }


def _print(
    outcomes: Mapping[TopicPartition, KafkaError | None], leaders: Mapping[TopicPartition, PartitionInfo]
) -> None:
    if not outcomes:
        click.echo("Every partition is led by its preferred replica.")
    for key in sorted(outcomes):
        error = outcomes[key]
        if error is None:
            leader = leaders[key].leader if key in leaders else -1
            echo(f"{key}: led by broker {leader}" if leader >= 0 else f"{key}: elected")
        elif error.code == _ELECTION_NOT_NEEDED:
            echo(f"{key}: needs no election")
        else:
            echo(f"{key}: not elected: {error}")


def _as_json(key: TopicPartition, error: KafkaError | None, info: PartitionInfo | None) -> dict[str, Any]:
    return {
        "topic": key.topic,
        "partition": key.partition,
        "elected": error is None,
        "error": None if error is None else str(error),
        "leader": None if info is None else info.leader,
    }

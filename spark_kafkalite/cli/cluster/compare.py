"""``kafkalite cluster compare``: have followers compare their logs with their leaders' now, and show what they find."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from spark_kafkalite.cli.cluster.elect import named_partition
from spark_kafkalite.cli.options import (
    ClientSettings,
    client_options,
    existing_partitions,
    json_option,
    reachable_admin,
)
from spark_kafkalite.cli.output import echo, print_json, warn
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import TopicPartition

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.client.admin.logs import ReplicaComparison
    from spark_kafkalite.client.network.metadata import PartitionInfo

_LOOK_EVERY_S: Final = 1.0
_TOLD_EVERY_S: Final = 10.0
_ASKED_MS: Final = 10_000
_TEXTS: Final = {
    "same": "the same as its leader's",
    "different": "DIFFERS from its leader's",
    "failed": "not compared",
}

# One log: its partition, and the broker that has it.
_Log = tuple[TopicPartition, int]


@click.command(
    "compare",
    epilog="""\b
Examples:
  kafkalite cluster compare
  kafkalite cluster compare events clicks:0,clicks:1
""",
)
@click.argument("partitions", nargs=-1, metavar="[TOPIC[:PARTITION][,...]]...")
@client_options
@json_option
def compare(
    partitions: tuple[str, ...],
    client: ClientSettings,
    as_json: bool,
) -> int:
    """Compare the replicas of partitions now, byte by byte on the disks; of all partitions if none is named.

    Each follower compares its log with its leader's, up to the high watermark. The setting
    replica.compare.max.bytes.per.second (1 MB/s) limits the speed. docs/operations.md describes how a log that differs
    is healed. If you interrupt this command, the brokers go on, and the same command then shows their progress. It ends
    with 1 if logs differ, or could not be compared.
    """
    asked = [text.strip() for argument in partitions for text in argument.split(",") if text.strip()]
    with reachable_admin(client) as admin:
        infos = _asked_partitions(admin, asked)
        found = _Outcomes(
            {(key, broker) for key, info in infos.items() for broker in info.replicas if broker != info.leader}
        )
        _compare(admin, found, show=not as_json)
    if as_json:
        print_json([_as_json(*log, found.ended[log]) for log in sorted(found.ended)])
    elif not infos:
        click.echo("No partition has several replicas.")
    return 0 if all(each.state == "same" for each in found.ended.values()) else 1


def _asked_partitions(admin: Admin, asked: Iterable[str]) -> dict[TopicPartition, PartitionInfo]:
    """Return the named partitions, or all, of those that have several replicas. Raises UnknownTopicOrPartition."""
    topics: dict[str, set[int] | None] = {}
    for text in asked:
        if ":" not in text:
            topics[text] = None
            continue
        key = named_partition(text)
        numbers = topics.setdefault(key.topic, set())
        if numbers is not None:
            numbers.add(key.partition)
    if topics:
        existing_partitions(admin, topics)
    described = admin.describe_topics(topics or admin.list_topics(include_internal=True))
    return {
        TopicPartition(name, each.partition): each
        for name, topic in sorted(described.items())
        for each in topic.partitions
        if len(each.replicas) > 1 and each.partition in (topics.get(name) or (each.partition,))
    }


class _Outcomes:
    """What has been found of the logs: those that are still compared, and how the others have ended."""

    def __init__(self, logs: Iterable[_Log]) -> None:
        self.left = set(logs)
        self.ended: dict[_Log, ReplicaComparison] = {}
        # How far it is with one of them.
        self.progress = ""

    def by_broker(self) -> dict[int, list[TopicPartition]]:
        """Return what is left."""
        logs: dict[int, list[TopicPartition]] = {}
        for key, broker in sorted(self.left):
            logs.setdefault(broker, []).append(key)
        return logs

    def end(self, log: _Log, outcome: ReplicaComparison, *, show: bool) -> None:
        """Take up how one has ended."""
        self.left.discard(log)
        self.ended[log] = outcome
        if show:
            key, broker = log
            echo(f"{key}: broker {broker}: {_TEXTS.get(outcome.state, outcome.state)}: {outcome.text}")


def _compare(admin: Admin, found: _Outcomes, *, show: bool) -> None:
    began_s = told_s = time.monotonic()
    for broker, keys in found.by_broker().items():
        _ask(admin, broker, keys, found, begin=True, show=show)
    while found.left:
        time.sleep(_LOOK_EVERY_S)
        for broker, keys in found.by_broker().items():
            _ask(admin, broker, keys, found, begin=False, show=show)
        now_s = time.monotonic()
        if found.left and now_s - told_s >= _TOLD_EVERY_S:
            told_s = now_s
            warn(f"{len(found.left)} logs are left after {now_s - began_s:.0f} s; {found.progress}")


def _ask(
    admin: Admin, broker: int, keys: Sequence[TopicPartition], found: _Outcomes, *, begin: bool, show: bool
) -> None:
    """Take up how far one broker is with these."""
    from spark_kafkalite.client.admin.logs import ReplicaComparison

    outcomes: Mapping[TopicPartition, ReplicaComparison | None]
    nobody = ReplicaComparison("failed", "it follows no leader, has no log, or is of an older version")
    try:
        outcomes = admin.compare_replicas({broker: keys}, begin=begin, timeout_ms=_ASKED_MS)[broker]
    except KafkaliteError as error:
        outcomes = {}
        nobody = ReplicaComparison("failed", str(error))
    for key in keys:
        outcome = outcomes.get(key) or nobody
        if outcome.has_ended:
            found.end((key, broker), outcome, show=show)
        elif outcome.state == "comparing":
            found.progress = f"broker {broker} is with {key} {outcome.text}"


def _as_json(key: TopicPartition, broker: int, outcome: ReplicaComparison) -> dict[str, Any]:
    return {
        "topic": key.topic,
        "partition": key.partition,
        "broker": broker,
        "outcome": outcome.state,
        "text": outcome.text,
    }

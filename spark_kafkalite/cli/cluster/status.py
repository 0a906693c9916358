"""``kafkalite cluster status``: brokers, leaders and replicas at a glance, and what stands against the guarantee."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from spark_kafkalite.cli.cluster.health import (
    HEALTHY,
    OFFLINE,
    TOPIC_SETTINGS,
    Health,
    failures_as_no_answer,
    find_health,
    required_replicas,
)
from spark_kafkalite.cli.cluster.moves import MovesInProgress, moves_of
from spark_kafkalite.cli.cluster.next_failure import Stops, preferred, skew_text, stops_without
from spark_kafkalite.cli.cluster.replica_logs import (
    DamagedLog,
    ReplicaLogs,
    ask_directories,
    damaged_logs,
    logs_in,
    ranges_text,
)
from spark_kafkalite.cli.options import ClientSettings, client_options, json_option, reachable_admin
from spark_kafkalite.cli.output import echo, print_json, print_table, warn
from spark_kafkalite.cli.rights import NOT_DESCRIBED
from spark_kafkalite.errors import KafkaliteError, UnsupportedVersion
from spark_kafkalite.log.directories.fullness import WHAT_TO_DO, fullness_text, used_percent, warned_level
from spark_kafkalite.log.files.fs import Space
from spark_kafkalite.model import INTERNAL_TOPICS, TopicPartition
from spark_kafkalite.printable import first_of

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin, ClusterDescription
    from spark_kafkalite.client.admin.configs import ConfigEntry
    from spark_kafkalite.client.admin.logs import LogDirInfo
    from spark_kafkalite.client.admin.replicas import Leaderless
    from spark_kafkalite.client.network.metadata import PartitionInfo

_SHOWN: Final = 10
_ASKED_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class _Status(Health):
    """The findings. ``warnings`` are reasons why a record acknowledged with acks=all may be lost with a broker."""

    eligible: Mapping[TopicPartition, tuple[int, ...]]
    # Why partitions have no leader, by the broker that was asked.
    why: Mapping[TopicPartition, Leaderless]
    # The log directories of the brokers that answer, with their logs.
    directories: Mapping[int, list[LogDirInfo]]
    warnings: list[str]
    moves: MovesInProgress

    @property
    def logs(self) -> ReplicaLogs:
        return logs_in(self.directories)

    def nearly_full(self) -> list[tuple[int, str, Space]]:
        """Return the log directories whose disks are so full that it is worth a warning: broker, path and room."""
        return [
            (broker, each.path, space)
            for broker, directories in sorted(self.directories.items())
            for each in directories
            if each.refusal is None and (space := _space(each)) is not None and warned_level(used_percent(space))
        ]

    def refusals(self) -> list[tuple[int, str]]:
        """Return the log directories that take no records: broker and why."""
        return [
            (broker, each.refusal)
            for broker, directories in sorted(self.directories.items())
            for each in directories
            if each.refusal is not None
        ]

    @property
    def exit_code(self) -> int:
        """The code of :class:`Health`, and OFFLINE if a leader's broker has a log directory that takes no records."""
        refuses = any(self.counts(broker)[0] for broker, _ in self.refusals())
        return OFFLINE if refuses else super(_Status, self).exit_code

    def fullest(self, broker: int) -> float | None:
        """Return how full the fullest disk of a broker is, in percent; None if the broker does not report it."""
        spaces = map(_space, self.directories.get(broker, ()))
        return max((used_percent(space) for space in spaces if space is not None), default=None)

    def stops(self) -> dict[int, Stops]:
        """Return what stops with each live broker, if it fails next; without those with which nothing stops."""
        answering = self.live - self.unreachable
        required = required_replicas(self.partitions, self.settings, self.moving)
        found = {broker: stops_without(broker, self.partitions, required, answering) for broker in sorted(answering)}
        return {broker: stops for broker, stops in found.items() if stops.leaderless or stops.refusing}

    @property
    def topic_count(self) -> int:
        return len({key.topic for key in self.partitions})

    def damaged(self) -> list[DamagedLog]:
        """Return the damaged logs."""
        return damaged_logs(self.logs, self.partitions, self.live - self.unreachable)

    def stopped(self) -> list[tuple[TopicPartition, int, str]]:
        """Return the replicas that copy nothing any more, or whose logs are not served: partition, broker and why."""
        return [
            (key, broker, log.why_stopped)
            for key, logs in sorted(self.logs.items())
            for broker, log in logs.items()
            if log.why_stopped
        ]

    def counts(self, broker: int) -> tuple[int, int, int]:
        """Return how many partitions a broker leads, has a replica of, and has one in sync of."""
        infos = self.partitions.values()
        return (
            sum(info.leader == broker for info in infos),
            sum(broker in info.replicas for info in infos),
            sum(broker in info.isr for info in infos),
        )


def _space(directory: LogDirInfo) -> Space | None:
    if directory.total_bytes is None or directory.usable_bytes is None:
        return None
    return Space(directory.usable_bytes, directory.total_bytes)


@click.command(
    "status",
    epilog="""\b
Examples:
  kafkalite cluster status
  kafkalite cluster status --bootstrap-server 10.0.0.5:9092 --json
""",
)
@client_options
@json_option
@click.option(
    "--exit-code",
    "with_exit_code",
    is_flag=True,
    help="End with 1 if something is under-replicated, 3 if something is offline, refuses acks=all or has a full "
    "disk, 4 if no broker answers or the client may not describe the cluster.",
)
def status(
    client: ClientSettings,
    as_json: bool,
    with_exit_code: bool,
) -> int:
    """Show the brokers, the controller, the number of leaders on each broker, and partitions without all replicas.

    It names damaged logs, with what the brokers do about them, and followers that no longer copy. It also shows the
    reassignments in progress and their throttles, which brokers do not lead what they should, and what stops if one
    more broker fails.

    It warns if a record acknowledged with acks=all can be lost with a broker: there are fewer than three brokers, a
    topic has fewer than three replicas, or its min.insync.replicas is less than two.

    Without --exit-code the exit code is always 0. With it, 0 means that all partitions have a leader and are in sync,
    that each broker accepts a connection, and that a controller is known.
    """
    with failures_as_no_answer() if with_exit_code else nullcontext(), reachable_admin(client) as admin:
        found = _look(admin)
    if as_json:
        print_json(_as_json(found))
    else:
        _print(found)
        _warn(found)
    return found.exit_code if with_exit_code else HEALTHY


def _warn(found: _Status) -> None:
    if not found.may_describe:
        warn(NOT_DESCRIBED)
    for broker in sorted(found.unreachable):
        warn(
            f"broker {broker} cannot be connected to. It has just ended, or the other brokers do not notice its end "
            "while the registry is unavailable, or this host cannot reach its advertised address. Its leaders and "
            "replicas are shown as last known"
        )
    if found.cluster.controller_id < 0:
        warn(
            "no controller is known: either none is elected yet, or /controller in the registry is a persistent node, "
            "which brokers remove (see their logs), or the registry does not answer the broker that was asked. In the "
            "last case all this is as last known, topics and leaders cannot change, and only producers with acks=all "
            "are served"
        )
    if found.refusing:
        warn(
            f"acks=all is refused where fewer replicas are in sync than min.insync.replicas: {_some(found.refusing)}; "
            + (
                "start the brokers that are down"
                if len(found.live) < len(found.broker_ids)
                else "all brokers are live, and copy what they lack as soon as there is a leader"
            )
        )
    for broker, directories in sorted(found.directories.items()):
        for path in (each.path for each in directories if each.error is not None):
            warn(f"broker {broker}: log directory {path} is offline; ERROR lines of its log have the remedy")
    for broker, refusal in found.refusals():
        warn(f"broker {broker}: {refusal}")
    for broker, path, space in found.nearly_full():
        warn(f"broker {broker}: {fullness_text(path, space)}: {WHAT_TO_DO}")
    for warning in found.warnings:
        warn(f"acknowledged records may be lost with a broker: {warning}")


def _look(admin: Admin) -> _Status:
    health = find_health(admin)
    cluster, partitions, live = health.cluster, health.partitions, health.live
    not_whole = {
        key.topic for key, info in partitions.items() if len(info.isr) < len(info.replicas) or info.leader not in live
    }
    try:
        found = admin.eligible_replicas(not_whole)
    except UnsupportedVersion:
        found = {}
    eligible = {key: each.eligible for key, each in found.items() if each.eligible}
    why = {key: each.leaderless for key, each in found.items() if each.leaderless is not None}
    # A log may be damaged while all replicas are in sync.
    directories = ask_directories(admin, None, sorted(live - health.unreachable))
    known = len(health.broker_ids)
    warnings = [
        *_of_brokers(admin, cluster, health.unreachable, known),
        *_of_topics(partitions, health.settings),
    ]
    return _Status(
        cluster, partitions, health.settings, health.refusing, health.unreachable, health.may_describe, health.moving,
        eligible, why, directories, warnings,
        moves_of(admin, health.moving, directories, {key.topic for key in partitions}, live - health.unreachable),
    )  # fmt: skip


def _of_brokers(admin: Admin, cluster: ClusterDescription, unreachable: set[int], known: int) -> Iterable[str]:
    """Yield what is wrong with the cluster's size, and with the settings that new topics get; ``known`` counts its
    brokers, whether they live or not."""
    from spark_kafkalite.broker.settings.cluster_defaults import weaknesses

    for node in cluster.brokers:
        if node.node_id in unreachable:
            continue
        try:
            entries = admin.describe_configs(broker_id=node.node_id, timeout_ms=_ASKED_MS)
        except KafkaliteError:
            continue  # it has just gone; another one will do
        values = {name: _value(entry) for name, entry in entries.items()}
        yield from weaknesses(values, known)
        return


def _value(entry: ConfigEntry) -> Any:
    if entry.kind == "boolean":
        return entry.value == "true"
    return int(entry.value) if entry.kind in ("int", "long", "short") and entry.value else entry.value


def _of_topics(
    partitions: Mapping[TopicPartition, PartitionInfo], settings: Mapping[str, Mapping[str, ConfigEntry]]
) -> Iterable[str]:
    """Yield what is wrong with the topics that there are."""
    from spark_kafkalite.broker.settings.cluster_defaults import MIN_IN_SYNC, REPLICAS

    few = {key.topic for key, info in partitions.items() if len(info.replicas) < REPLICAS}
    if few:
        yield f"fewer than {REPLICAS} replicas: {_some(few)}"
    lax, unclean = set(), set()
    for topic, entries in settings.items():
        in_sync, election = (entries.get(name) for name in TOPIC_SETTINGS)
        if topic not in few and in_sync is not None and int(in_sync.value or 1) < MIN_IN_SYNC:
            lax.add(topic)
        if election is not None and election.value == "true":
            unclean.add(topic)
    if lax:
        yield f"min.insync.replicas is less than {MIN_IN_SYNC}: {_some(lax)}"
    if unclean:
        yield f"unclean.leader.election.enable is true: {_some(unclean)}"


def _print(found: _Status) -> None:
    cluster = found.cluster
    controller = cluster.controller_id if cluster.controller_id >= 0 else "none"
    echo(f"Cluster {cluster.cluster_id or 'of unknown id'}, controller {controller}")
    nodes = {node.node_id: node for node in cluster.brokers}
    print_table(
        ("BROKER", "ADDRESS", "RACK", "VERSION", "DISK", "LEADS", "REPLICAS", "IN-SYNC"),
        [
            (broker, _place(nodes[broker].address, broker in found.unreachable) if broker in nodes else "not live",
             (nodes[broker].rack if broker in nodes else None) or "-", cluster.versions.get(broker, "-"),
             _percent(found.fullest(broker)), *found.counts(broker))
            for broker in found.broker_ids
        ],
    )  # fmt: skip
    lacking, leaderless = found.under_replicated(), found.leaderless()
    click.echo(
        f"Topics: {found.topic_count}, partitions: {len(found.partitions)}, under-replicated: {len(lacking)}, "
        f"without a live leader: {len(leaderless)}"
    )
    # Internal topics are many partitions, and nobody's first question.
    shown = sorted(dict.fromkeys([*leaderless, *lacking]), key=lambda key: key.topic in INTERNAL_TOPICS)
    for key in shown[:_SHOWN]:
        info = found.partitions[key]
        leader = info.leader if info.leader in found.live else "none"
        eligible = f", may lead {_listed(found.eligible[key])}" if key in found.eligible else ""
        echo(f"  {key}: leader {leader}, in sync {_listed(info.isr)} of {_listed(info.replicas)}{eligible}")
        if key in found.why and info.leader not in found.live:
            echo(f"    because {found.why[key].reason}")
            echo(f"    what to do: {found.why[key].remedy}")
    if len(shown) > _SHOWN:
        click.echo(
            f"  and {len(shown) - _SHOWN} more: kafkalite topics describe --under-replicated-partitions, or "
            "--unavailable-partitions"
        )
    _print_logs(found)
    for line in found.moves.lines():
        echo(line)
    settled = {key: info for key, info in found.partitions.items() if key not in found.moving}
    if skew := skew_text(found.live, settled):
        echo(skew)
    if len(found.live) > 1:
        for broker, stops in found.stops().items():
            echo(f"If broker {broker} fails: {stops.text()}")


def _print_logs(found: _Status) -> None:
    """Print which logs are damaged, and which replicas have stopped."""
    lines = []
    for log in found.damaged():
        key = log.partition
        line = f"  {key}: the log of broker {log.broker} is damaged: it lacks offsets {ranges_text(log.ranges)}"
        if log.next:
            line += f"\n    next: {log.next}"
        if log.leads_on:
            replicas = found.partitions[key].replicas
            away = [each for each in replicas if each not in found.live or each in found.unreachable]
            start = f"start broker {_listed(away)}; where its log is lost for good: " if away else ""
            line += f"\n    what to do: {start}kafkalite cluster elect --unclean {key.topic}:{key.partition}"
        lines.append(line)
    lines += [f"  {key}: broker {broker} has stopped: {why}" for key, broker, why in found.stopped()]
    for line in lines[:_SHOWN]:
        echo(line)
    if len(lines) > _SHOWN:
        echo(f"  and {len(lines) - _SHOWN} more logs that are damaged, or not copied any more: --json names all")


def _place(address: str, is_unreachable: bool) -> str:
    return f"{address} (no answer)" if is_unreachable else address


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{int(value)}%"


def _listed(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))


def _some(found: Iterable[object]) -> str:
    return first_of(sorted(map(str, found)), _SHOWN)


def _as_json(found: _Status) -> dict[str, Any]:
    nodes = {node.node_id: node for node in found.cluster.brokers}
    brokers = []
    for broker in found.broker_ids:
        node = nodes.get(broker)
        leads, replicas, in_sync = found.counts(broker)
        first = preferred(broker, found.partitions)
        brokers.append(
            {
                "id": broker,
                "live": node is not None,
                "answers": node is not None and broker not in found.unreachable,
                "address": None if node is None else node.address,
                "rack": None if node is None else node.rack,
                "version": found.cluster.versions.get(broker),
                "leads": leads,
                "replicas": replicas,
                "inSync": in_sync,
                "preferred": first.partitions,
                "preferredLed": first.led,
                "logDirs": [_log_dir(each) for each in found.directories.get(broker, ())],
            }
        )
    return {
        "clusterId": found.cluster.cluster_id,
        "controller": found.cluster.controller_id,
        "brokers": brokers,
        "topics": found.topic_count,
        "partitions": len(found.partitions),
        "underReplicated": [_partition(found, key) for key in found.under_replicated()],
        "refusingAcksAll": [_partition(found, key) for key in found.refusing],
        "leaderless": [_leaderless(found, key) for key in found.leaderless()],
        "damaged": [
            {
                "topic": log.partition.topic,
                "partition": log.partition.partition,
                "broker": log.broker,
                "ranges": [list(each) for each in log.ranges],
                "next": log.next,
            }
            for log in found.damaged()
        ],
        "stopped": [
            {"topic": key.topic, "partition": key.partition, "broker": broker, "reason": why}
            for key, broker, why in found.stopped()
        ],
        "warnings": found.warnings,
        **found.moves.as_json(),
        "ifOneMoreFails": [{"broker": broker, **stops.as_json()} for broker, stops in found.stops().items()],
    }


def _log_dir(directory: LogDirInfo) -> dict[str, Any]:
    space = _space(directory)
    return {
        "path": directory.path,
        "online": directory.error is None,
        "totalBytes": directory.total_bytes,
        "usableBytes": directory.usable_bytes,
        "usedPercent": None if space is None else round(used_percent(space), 1),
        "refusal": directory.refusal,
    }


def _partition(found: _Status, key: TopicPartition) -> dict[str, Any]:
    info = found.partitions[key]
    return {
        "topic": key.topic,
        "partition": key.partition,
        "leader": info.leader,
        "replicas": list(info.replicas),
        "isr": list(info.isr),
        "eligible": list(found.eligible.get(key, ())),
    }


def _leaderless(found: _Status, key: TopicPartition) -> dict[str, Any]:
    """Return a partition without a leader, with the reason, what to do, and what each replica's log has."""
    why = found.why.get(key)
    fields = _partition(found, key)
    if why is not None:
        fields |= {
            "reason": why.reason,
            "command": why.remedy,
            "best": why.best,
            "logs": [dict(each) for each in why.replicas],
        }
    return fields

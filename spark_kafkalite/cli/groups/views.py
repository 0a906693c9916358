"""What ``kafkalite groups describe`` shows, from brokers or the registry, as tables and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from spark_kafkalite.cli.groups.options import Places, no_such_group
from spark_kafkalite.cli.output import print_table, warn
from spark_kafkalite.client.offset_stores.store import KAFKA, ZOOKEEPER
from spark_kafkalite.model import CommittedOffset, TopicPartition

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import PartitionLag
    from spark_kafkalite.registry.consumer_nodes import ConsumerRegistration

_UNKNOWN: Final = "Unknown"
# Long and hardly ever read: what a narrow terminal may cut. Pipes and --json have them whole.
_IDS: Final = ("CONSUMER-ID", "GROUP-INSTANCE-ID", "CLIENT-ID", "METADATA", "SUBSCRIPTION")


@dataclass(frozen=True)
class MemberView:
    """One member. ``reads`` is what a registry consumer has registered: topics or a pattern, with streams."""

    member_id: str
    instance_id: str | None
    host: str
    client_id: str
    assignment: tuple[TopicPartition, ...]
    reads: str = ""


@dataclass(frozen=True)
class PartitionView:
    """One partition that the group has an offset for, or a member."""

    topic_partition: TopicPartition
    committed: CommittedOffset | None
    lag: PartitionLag
    member: MemberView | None
    # The member's thread, in the registry.
    owner: str


@dataclass(frozen=True)
class GroupView:
    """One group. ``partitions`` is empty where they were not asked for."""

    group: str
    storage: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: str
    members: tuple[MemberView, ...]
    partitions: tuple[PartitionView, ...]


def view_group(places: Places, group: str, *, with_offsets: bool) -> GroupView:
    """Gather one group. Raises GroupIdNotFound."""
    if places.zookeeper is None:
        return _at_the_brokers(places, group, with_offsets)
    return _in_the_registry(places, group, with_offsets)


def _at_the_brokers(places: Places, group: str, with_offsets: bool) -> GroupView:
    admin = places.admin
    described = admin.describe_groups([group])[group]
    state, protocol_type = described.state, described.protocol_type
    if not described.exists:
        # A group of Kafka's newer protocol is not known by that call either.
        listed = next((each for each in admin.list_groups() if each.group_id == group), None)
        if listed is None:
            raise no_such_group(group, KAFKA)
        warn(f"group {group} uses the newer group protocol (type {listed.group_type}): its members cannot be shown")
        state, protocol_type = listed.state or _UNKNOWN, listed.protocol_type
    members = tuple(
        MemberView(each.member_id, each.group_instance_id, each.host, each.client_id, each.assignment)
        for each in sorted(described.members, key=lambda each: (each.client_id, each.member_id))
    )
    owners = {each: member for member in members for each in member.assignment}
    offsets = admin.group_offsets(group) if with_offsets else {}
    coordinator = described.coordinator
    return GroupView(
        group,
        KAFKA,
        state,
        protocol_type,
        described.protocol,
        f"{coordinator.address} ({coordinator.node_id})",
        members,
        _partitions(places, offsets, owners, {}) if with_offsets else (),
    )


def _in_the_registry(places: Places, group: str, with_offsets: bool) -> GroupView:
    from spark_kafkalite.registry.consumer_nodes import consumer_of

    registry = places.in_registry(group)
    if not registry.exists():
        raise no_such_group(group, ZOOKEEPER)
    threads = registry.owners()
    members = tuple(
        MemberView(
            consumer_id,
            None,
            "",
            "",
            tuple(each for each, thread in threads.items() if consumer_of(thread) == consumer_id),
            _reads(registration),
        )
        for consumer_id, registration in sorted(registry.registrations().items())
    )
    owners = {each: member for member in members for each in member.assignment}
    offsets = registry.read() if with_offsets else {}
    if with_offsets and threads.keys() - offsets.keys():
        # With offsets.storage=kafka only the members are here.
        at_the_brokers = places.at_coordinator(group).read()
        elsewhere = {each: at_the_brokers[each] for each in threads if each in at_the_brokers and each not in offsets}
        if elsewhere:
            warn(f"group {group} keeps offsets at its coordinator (offsets.storage=kafka): these are shown")
            offsets |= elsewhere
    return GroupView(
        group,
        ZOOKEEPER,
        "Stable" if members else "Empty",
        "registry",
        "range",
        f"none ({places.zookeeper})",
        members,
        _partitions(places, offsets, owners, threads) if with_offsets else (),
    )


def _reads(registration: ConsumerRegistration) -> str:
    subscription = ", ".join(f"{name} x {streams}" for name, streams in sorted(registration.subscription.items()))
    return f"{registration.pattern.value}: {subscription}"


def _partitions(
    places: Places,
    offsets: dict[TopicPartition, CommittedOffset],
    owners: dict[TopicPartition, MemberView],
    threads: dict[TopicPartition, str],
) -> tuple[PartitionView, ...]:
    wanted = sorted({*offsets, *owners, *threads})
    if not wanted:
        return ()
    lags = places.admin.lag_behind({each: offsets[each].offset if each in offsets else None for each in wanted})
    found = []
    for each in wanted:
        member = owners.get(each)
        owner = threads.get(each) or ("" if member is None else member.member_id)
        found.append(PartitionView(each, offsets.get(each), lags[each], member, owner))
    return tuple(found)


# As tables ------------------------------------------------------------------------------------------------------------


def _or_dash(value: object) -> object:
    return "-" if value is None or value == "" else value


def seconds(age_ms: int | None) -> str:
    """Return an age for people, '-' for one that is not known."""
    return "-" if age_ms is None else f"{age_ms / 1000:.1f}"


def print_offsets(groups: Iterable[GroupView], verbose: bool) -> None:
    """Print a line for each partition."""
    headings = ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "LAG-SECONDS"]
    headings += ["CONSUMER-ID", "HOST", "CLIENT-ID"]
    if verbose:
        headings += ["GROUP-INSTANCE-ID", "LOG-START-OFFSET", "LEADER-EPOCH", "METADATA"]
    rows = []
    for group in groups:
        for each in group.partitions:
            topic, partition = each.topic_partition
            member, committed = each.member, each.committed
            row: list[object] = [group.group, topic, partition, each.lag.committed, each.lag.log_end_offset]
            row += [each.lag.records, seconds(each.lag.age_ms), each.owner]
            row += [member and member.host, member and member.client_id]
            if verbose:
                row += [member and member.instance_id, each.lag.log_start_offset]
                epoch = committed.leader_epoch if committed is not None and committed.leader_epoch >= 0 else None
                row += [epoch, committed and committed.metadata]
            rows.append([_or_dash(value) for value in row])
    if rows:
        print_table(headings, rows, shortened=_IDS)


def warn_of_groups(groups: Sequence[GroupView], *, with_offsets: bool) -> None:
    """Warn of what the tables do not show: groups without a reader, that rebalance, or that have lost records."""
    for group in groups:
        if not group.members and group.state != _UNKNOWN:
            nothing = " and no offsets" if with_offsets and not group.partitions else ""
            warn(f"group {group.group} has no active members{nothing}")
        elif group.state in ("PreparingRebalance", "CompletingRebalance"):
            warn(f"group {group.group} is rebalancing: what its members read changes at the moment")
        for each in group.partitions:
            lag = each.lag
            if lag.deleted:
                warn(
                    f"{each.topic_partition}: {lag.deleted} records after the offset {lag.committed} of group "
                    f"{group.group} have been deleted from the log; it cannot read them any more"
                )
            elif lag.records is not None and lag.records < 0:
                warn(
                    f"{each.topic_partition}: the offset {lag.committed} of group {group.group} lies beyond the log's "
                    f"end, {lag.log_end_offset}, as after a topic was recreated; 'groups reset-offsets' corrects it"
                )
            elif lag.log_end_offset is None:
                warn(f"{each.topic_partition}: there is no such partition, or no leader now that knows its end")


def print_members(groups: Iterable[GroupView], verbose: bool) -> None:
    """Print a line for each member."""
    headings = ["GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    rows: list[list[object]] = []
    for group in groups:
        for each in group.members:
            row = [group.group, each.member_id, each.instance_id, each.host, each.client_id, len(each.assignment)]
            if verbose:
                row += [assignment_text(each.assignment), each.reads]
            rows.append([_or_dash(value) for value in row])
    if rows:
        print_table([*headings, "ASSIGNMENT", "SUBSCRIPTION"] if verbose else headings, rows, shortened=_IDS)


def assignment_text(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions in Kafka's short form: 'clicks(0,2), events(1)'."""
    return ", ".join(
        f"{topic}({','.join(str(each.partition) for each in of_topic)})"
        for topic, of_topic in groupby(sorted(partitions), key=lambda each: each.topic)
    )


def print_states(groups: Iterable[GroupView]) -> None:
    """Print a line for each group."""
    print_table(
        ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"),
        [(each.group, each.coordinator, _or_dash(each.assignor), each.state, len(each.members)) for each in groups],
    )


# As JSON --------------------------------------------------------------------------------------------------------------


def group_as_json(group: GroupView, *, with_offsets: bool) -> dict[str, Any]:
    """Return everything that is known of a group."""
    found: dict[str, Any] = {
        "group": group.group,
        "storage": group.storage,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.instance_id,
                "client_id": each.client_id,
                "host": each.host,
                "assignment": [{"topic": topic, "partition": number} for topic, number in each.assignment],
                **({"subscription": each.reads} if each.reads else {}),
            }
            for each in group.members
        ],
    }
    if with_offsets:
        found["offsets"] = [_partition_as_json(each) for each in group.partitions]
    return found


def _partition_as_json(each: PartitionView) -> dict[str, Any]:
    lag = each.lag
    return {
        "topic": each.topic_partition.topic,
        "partition": each.topic_partition.partition,
        "current_offset": lag.committed,
        "log_start_offset": lag.log_start_offset,
        "log_end_offset": lag.log_end_offset,
        "lag": lag.records,
        "lag_seconds": None if lag.age_ms is None else lag.age_ms / 1000,
        "deleted": lag.deleted,
        "metadata": None if each.committed is None else each.committed.metadata,
        "member_id": each.owner or None,
    }

"""Shows what an unclean election loses, and asks for confirmation.

The brokers report their logs, the replica that they would choose, and what is lost with each replica
(``client.admin.replicas.Leaderless``). If a broker does not report that, such as one of another project, the table has
only the ends of the logs. It also lists holes in the log of the present or future leader (``acceptance``).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from spark_kafkalite.cli.cluster.replica_logs import ask_logs, ranges_text
from spark_kafkalite.cli.output import print_table, warn
from spark_kafkalite.errors import KafkaliteError, UnsupportedVersion
from spark_kafkalite.log.damaged_ranges import Ranges, clipped, merged, without
from spark_kafkalite.model import TopicPartition

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.client.admin.replicas import EligibleReplicas
    from spark_kafkalite.client.network.metadata import PartitionInfo

# How long to wait for live replicas that have not reported; the brokers wait as long themselves.
_REPORTED_WITHIN_S: Final = 10.0
_POLL_S: Final = 0.2

Found = Mapping[TopicPartition, "EligibleReplicas"]


class Confirmed(NamedTuple):
    """The replica that is to lead, the leader epoch that it was shown with, and the holes of its log that the user
    accepts, as ranges of offsets whose ends are exclusive."""

    broker: int
    leader_epoch: int
    accepted: tuple[tuple[int, int], ...] = ()


def confirmed_elections(
    admin: Admin,
    wanted: Sequence[TopicPartition],
    wishes: Mapping[TopicPartition, int],
    *,
    show: bool,
    ask: bool,
) -> dict[TopicPartition, Confirmed | None] | None:
    """Show what each replica has and what is lost, and ask; return the partitions to elect leaders of.

    The value of a partition is None if the brokers choose. A partition whose leader has holes in its log that no other
    replica can fill is elected again, and its holes are accepted. Returns None if the user declines, or no partition is
    left. Raises click.UsageError if there is no terminal to ask at, or a wish cannot be met.
    """
    infos = _infos(admin, wanted)
    live = {node.node_id for node in admin.describe_cluster().brokers}
    led = [key for key in wanted if infos[key].leader in live]
    left = [key for key in wanted if key not in led]
    holes = _holes_of_leaders(admin, {key: infos[key] for key in led}, live)
    chosen: dict[TopicPartition, Confirmed] = {}
    for key in led:
        leader = infos[key].leader
        if not holes[key].accepted or wishes.get(key, leader) != leader:
            warn("; ".join([f"{key} has a leader, broker {leader}: it is left alone", *holes[key].told]))
            continue
        chosen[key] = Confirmed(leader, infos[key].leader_epoch, holes[key].accepted)
    if not left and not chosen:
        return None
    found = _reported(admin, left) if left else {}
    for key in left:
        if key in wishes:
            chosen[key] = _wish(key, wishes[key], infos[key], found.get(key))
        confirmed, holes[key] = _with_holes(chosen.get(key), found.get(key))
        if confirmed is not None:
            chosen[key] = confirmed
    if show or ask:
        if left:
            _print_replicas(admin, infos, left, live, found)
            _print_losses(left, wishes, found)
        for key in sorted(holes):
            for told in holes[key].told if key in chosen else ():
                click.echo(f"{key}: {told}")
    if ask and not sys.stdin.isatty():
        raise click.UsageError(
            "an unclean election loses records, and there is no terminal here to ask whether that is wanted: nothing "
            "was elected; give --yes"
        )
    question = "Have these replicas lead, and lose for good what only others have?"
    if not left:
        question = "Accept these holes, and lose for good what only others have?"
    if ask and not click.confirm(question, err=True):
        return None
    return {key: chosen.get(key) for key in wanted if key in left or key in chosen}


def _holes_of_leaders(
    admin: Admin, led: Mapping[TopicPartition, PartitionInfo], live: set[int]
) -> dict[TopicPartition, Acceptance]:
    """Return which holes of the logs of those that lead these partitions may be accepted."""
    logs = ask_logs(admin, {key.topic for key in led}, sorted(live))
    damaged = [
        key for key, info in led.items() if info.leader in (said := logs.get(key, {})) and said[info.leader].damaged
    ]
    ends = admin.replica_ends(damaged) if damaged else {}
    found = dict.fromkeys(led, Acceptance((), ()))
    for key in damaged:
        info, said = led[key], logs[key]
        others: dict[int, OtherLog | None] = {}
        for broker in info.replicas:
            end, log = ends[key].get(broker), said.get(broker)
            if broker == info.leader:
                continue
            others[broker] = None
            if log is not None and isinstance(end, int):
                others[broker] = OtherLog(end, log.damaged, log.why_stopped is not None)
        found[key] = acceptance(info.leader, said[info.leader].damaged, others)
    return found


def _with_holes(confirmed: Confirmed | None, found: EligibleReplicas | None) -> tuple[Confirmed | None, Acceptance]:
    """Return a choice with the holes of the log that is to lead, of a partition without a leader; the brokers' choice,
    if that has holes and the user has not chosen."""
    leaderless = None if found is None else found.leaderless
    leader = confirmed.broker if confirmed is not None else None if leaderless is None else leaderless.best
    if leaderless is None or leader is None:
        return confirmed, Acceptance((), ())
    reports = _by_broker(leaderless.replicas)
    holes = acceptance(
        leader,
        _damage_of(reports.get(leader, {})),
        {broker: _other_log(report) for broker, report in reports.items() if broker != leader},
        is_led=False,
    )
    if not holes.accepted:
        return confirmed, holes
    return Confirmed(leader, leaderless.leader_epoch, holes.accepted), holes


def _other_log(report: Mapping[str, Any]) -> OtherLog | None:
    if "endOffset" not in report or report.get("gone") == "offline":
        return None
    return OtherLog(0 if report.get("gone") else int(report["endOffset"]), _damage_of(report))


def _damage_of(report: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    return tuple((int(start), int(end)) for start, end in report.get("damaged", ()))


def _infos(admin: Admin, keys: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionInfo]:
    described = admin.describe_topics({key.topic for key in keys})
    wanted = set(keys)
    return {
        key: each
        for name, info in described.items()
        for each in info.partitions
        if (key := TopicPartition(name, each.partition)) in wanted
    }


def _reported(admin: Admin, wanted: Sequence[TopicPartition]) -> Found:
    """Return the brokers' reports of these partitions, once every live replica has reported, or the time is over."""
    until_s = time.monotonic() + _REPORTED_WITHIN_S
    while True:
        try:
            found = admin.eligible_replicas({key.topic for key in wanted})
        except UnsupportedVersion:
            return {}
        lacking = [key for key in wanted if key in found and _lacks_reports(found[key])]
        if not lacking or time.monotonic() >= until_s:
            return found
        time.sleep(_POLL_S)


def _lacks_reports(found: EligibleReplicas) -> bool:
    replicas = () if found.leaderless is None else found.leaderless.replicas
    return any(each.get("registered") and "endOffset" not in each for each in replicas)


def _wish(key: TopicPartition, broker: int, info: PartitionInfo, found: EligibleReplicas | None) -> Confirmed:
    leaderless = None if found is None else found.leaderless
    if leaderless is None:
        raise click.UsageError(
            f"--replica {key.topic}:{key.partition}={broker}: the brokers do not report their logs, so none can be "
            "chosen: an election is under way, or they are of an earlier version"
        )
    if broker not in leaderless.losses:
        replicas = ", ".join(map(str, info.replicas))
        raise click.UsageError(
            f"--replica {key.topic}:{key.partition}={broker}: it has to be a live replica of {replicas}"
        )
    return Confirmed(broker, leaderless.leader_epoch)


def _print_replicas(
    admin: Admin,
    infos: Mapping[TopicPartition, PartitionInfo],
    wanted: Sequence[TopicPartition],
    live: set[int],
    found: Found,
) -> None:
    ends = admin.replica_ends(wanted)
    rows = []
    for key in wanted:
        each = found.get(key)
        may_lead = each.eligible if each is not None else ()
        reports = {} if each is None or each.leaderless is None else _by_broker(each.leaderless.replicas)
        for broker in infos[key].replicas:
            end = ends[key].get(broker)
            report = reports.get(broker, {})
            rows.append(
                (
                    key,
                    broker,
                    "yes" if broker in live else "no",
                    "in sync" if broker in infos[key].isr else "eligible" if broker in may_lead else "behind",
                    _epoch_text(report),
                    "?" if end is None else type(end).__name__ if isinstance(end, KafkaliteError) else end,
                    _state_text(report),
                )
            )
    print_table(("PARTITION", "REPLICA", "LIVE", "WAS", "LAST-EPOCH", "LOG-END-OFFSET", "LOG"), rows)


def _by_broker(replicas: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    return {each["broker"]: each for each in replicas if "broker" in each}


def _epoch_text(report: Mapping[str, Any]) -> object:
    epoch = report.get("lastEpoch", -1)
    return "?" if "endOffset" not in report else "-" if epoch < 0 else epoch


def _state_text(report: Mapping[str, Any]) -> str:
    if "endOffset" not in report:
        return "not reported"
    return str(report.get("gone") or ("damaged" if report.get("damaged") else "whole"))


def _print_losses(wanted: Sequence[TopicPartition], wishes: Mapping[TopicPartition, int], found: Found) -> None:
    """Print for each partition which broker would lead, and what is lost."""
    for key in wanted:
        leaderless = found[key].leaderless if key in found else None
        if leaderless is None:
            continue
        leader = wishes.get(key, leaderless.best)
        if leader is None:
            click.echo(f"{key}: no replica can lead; {leaderless.remedy}")
            continue
        lost = leaderless.losses.get(leader, ())
        click.echo(f"{key}: broker {leader} would lead: {'; '.join(lost) or 'loses nothing that a replica has'}")


# Which holes of a leader's log are accepted as lost with ``elect --unclean``, and what that loses. Pure. A hole is a
# range of offsets that a log had and lacks. It heals where another replica has it and is in sync. Where none has, or
# none that is whole, followers wait at it for ever, until an operator accepts it.


class OtherLog(NamedTuple):
    """What another replica has: all below ``end_offset`` but for what is damaged. ``has_stopped``: it is not copied."""

    end_offset: int
    damaged: Ranges = ()
    has_stopped: bool = False

    def has_of(self, hole: Ranges) -> Ranges:
        """Return the offsets of a hole that it has."""
        return without(clipped(hole, 0, self.end_offset), self.damaged)


class Acceptance(NamedTuple):
    """The ranges of offsets, ends exclusive, to be accepted, and a line for each hole."""

    accepted: Ranges
    told: tuple[str, ...]


def acceptance(
    broker: int, holes: Iterable[tuple[int, int]], others: Mapping[int, OtherLog | None], *, is_led: bool = True
) -> Acceptance:
    """Return which holes of a broker's log are to be accepted. ``others`` are the other replicas, None for one that has
    not reported its log.

    A hole is not accepted if a replica has all of it and is whole: that one joins the ISR, and leads. Nor, unless the
    partition ``is_led`` already, if a damaged replica has a part of it: they heal each other once one of them leads.
    """
    accepted, told = [], []
    logs = {each: log for each, log in others.items() if log is not None}
    for start, end in merged(holes):
        hole = ((start, end),)
        name = f"the hole {ranges_text(hole)} of broker {broker}"
        has = {each: log.has_of(hole) for each, log in logs.items()}
        whole = [each for each, log in logs.items() if has[each] == hole and not log.damaged and not log.has_stopped]
        if whole:
            told.append(f"does not accept {name}: broker {whole[0]} has these offsets, and leads once it is in sync")
            continue
        having = [each for each, log in logs.items() if has[each] and not log.has_stopped]
        if having and not is_led:
            who = ", ".join(map(str, having))
            told.append(f"does not accept {name} yet: it may heal from broker {who} once the partition has a leader")
            continue
        accepted.append((start, end))
        lost = _count(without(hole, [each for ranges in has.values() for each in ranges]))
        text = f"accepts {name}: up to {lost:,} records that no replica that has reported has"
        parts = [
            f"broker {each} has {_count(ranges):,} others, which may be lost, too"
            for each, ranges in has.items()
            if ranges
        ]
        told.append("; ".join([text, *parts]))
    if accepted:
        told += [f"broker {each} has not reported" for each, log in others.items() if log is None]
    return Acceptance(tuple(accepted), tuple(told))


def _count(ranges: Ranges) -> int:
    return sum(end - start for start, end in ranges)

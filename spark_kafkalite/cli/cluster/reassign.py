"""``kafkalite cluster reassign``: move partitions to other brokers, with the JSON of Kafka's own tool."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from spark_kafkalite.cli.cluster.reassignment_json import plan_text, read_plan
from spark_kafkalite.cli.cluster.reassignment_plans import check_live, drained, spread, with_factor
from spark_kafkalite.cli.cluster.reassignment_room import (
    busiest_bytes,
    check_rooms,
    rooms,
    shown_bytes,
    shown_time,
    sizes_of,
)
from spark_kafkalite.cli.cluster.reassignment_throttle import (
    remove_throttles,
    set_throttle,
    tell_throttle_from_before,
)
from spark_kafkalite.cli.options import ClientSettings, client_options, reachable_admin
from spark_kafkalite.cli.output import echo, said
from spark_kafkalite.errors import KafkaError, KafkaliteError, UnknownTopicOrPartition
from spark_kafkalite.model import TopicPartition

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin

Plan = Mapping[TopicPartition, Sequence[int]]

_ASKED_EVERY_S: Final = 1.0
# How often --wait asks how much has been copied.
_SHOWN_EVERY_S: Final = 5.0
_NOTHING: Final = "nothing is to be moved: all partitions are where the plan has them"
_EPILOG: Final = """\b
Examples:
  kafkalite cluster reassign --plan --drain 3 > plan.json
  kafkalite cluster reassign --execute --file plan.json --throttle 50000000 --wait
  kafkalite cluster reassign --verify --file plan.json

\b
Without a file:
  kafkalite cluster reassign --execute --spread --wait
  kafkalite cluster reassign --plan --replication-factor 3 --topic events
  kafkalite cluster reassign --cancel
"""


@click.command("reassign", epilog=_EPILOG)
@click.option("--plan", "action", flag_value="plan", help="Print the plan and what it copies; change nothing.")
@click.option("--execute", "action", flag_value="execute", help="Begin to move partitions.")
@click.option("--verify", "action", flag_value="verify", help="Show which partitions of a plan have moved.")
@click.option("--cancel", "action", flag_value="cancel", help="Cancel what is in progress; of a plan, or everything.")
@click.option(
    "--file",
    "--reassignment-json-file",
    "file",
    metavar="FILE",
    help="Plan in the JSON of Kafka's kafka-reassign-partitions; - reads it from stdin.",
)
@click.option("--drain", metavar="BROKER", type=click.IntRange(0), help="Plan: no replica stays on this broker.")
@click.option("--spread", "spreads", is_flag=True, help="Plan: replicas and leaders are spread over all live brokers.")
@click.option(
    "--replication-factor", "factor", metavar="N", type=click.IntRange(1), help="Plan: --topic gets N replicas."
)
@click.option("--topic", "topics", metavar="NAME", multiple=True, help="For --replication-factor. Repeatable.")
@click.option(
    "--throttle",
    metavar="BYTES_PER_S",
    type=click.IntRange(1),
    help="With --execute: the most that is copied in a second to each broker, and from each. With --plan: show the "
    "time that this takes. --verify removes the throttle when all partitions have moved, as --wait does.",
)
@click.option("--preserve-throttles", is_flag=True, help="With --verify, --cancel and --wait: keep throttles.")
@click.option("--wait", is_flag=True, help="With --execute: show progress until all partitions have moved.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="S",
    type=click.FloatRange(0),
    default=86_400.0,
    show_default=True,
    help="Seconds that --wait waits.",
)
@client_options
def reassign(
    client: ClientSettings,
    action: str | None,
    file: str | None,
    drain: int | None,
    spreads: bool,
    factor: int | None,
    topics: tuple[str, ...],
    throttle: int | None,
    preserve_throttles: bool,
    wait: bool,
    timeout_s: float,
) -> int:
    """Move partitions to other brokers, while they are written and read.

    A plan is computed (--drain, --spread, --replication-factor) or read from a file. It is refused if a broker's disk
    would have less than log.dir.min.free.bytes and 10 % of its file system left. The exit code of --verify is 1 while
    something has not moved.

    The plan that --execute is given again with another --throttle goes on at that rate.
    """
    if action is None:
        raise click.UsageError("give one of --plan, --execute, --verify and --cancel")
    goals = sum((file is not None, drain is not None, spreads, factor is not None))
    if goals > 1 or (goals == 0 and action != "cancel"):
        raise click.UsageError("give one of --file, --drain, --spread and --replication-factor")
    if action in ("verify", "cancel") and goals and file is None:
        raise click.UsageError(f"--{action} needs --file: a plan that is computed now would be another one")
    if bool(topics) != (factor is not None):
        raise click.UsageError("--replication-factor and --topic go together")
    if wait and action != "execute":
        raise click.UsageError("--wait goes with --execute")
    if throttle is not None and action not in ("plan", "execute"):
        raise click.UsageError("--throttle goes with --plan and --execute")
    keeps = preserve_throttles
    where = "stdin" if file == "-" else file
    named = None if file is None else read_plan(_text_of(file), str(where))
    if named == {}:
        said(f"{where} names no partition, so there is nothing to do")
        return 0
    with reachable_admin(client) as admin:
        if action == "cancel":
            return _cancel(admin, named, keeps_throttles=keeps)
        if action == "verify" and named is not None:
            return _verify(admin, named, keeps_throttles=keeps)
        current = _assignment(admin, None if named is None else {key.topic for key in named})
        if named is None:
            racks = {node.node_id: node.rack for node in admin.describe_cluster().brokers}
            if drain is not None:
                named = drained(current, racks, drain)
                if not named and drain not in racks:
                    said(f"no broker {drain} is live, and no partition has a replica on it; live: {_numbers(racks)}")
                    if action == "plan":
                        # An empty plan, which --execute takes and does nothing.
                        click.echo(plan_text({}))
                    return 0
            elif factor is not None:
                _check_topics(topics, current)
                named = with_factor(current, racks, topics, factor)
            else:
                named = spread(current, racks)
        missing = sorted(set(named) - set(current))
        if missing:
            raise UnknownTopicOrPartition(f"there is no partition {missing[0]}, which the plan names")
        if action == "plan":
            return _plan(admin, named, current, throttle)
        return _execute(admin, named, current, timeout_s if wait else None, throttle, keeps_throttles=keeps)


def _numbers(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(brokers)))


def _text_of(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise click.UsageError(f"--file {file} cannot be read: {reason}") from None


def _assignment(admin: Admin, topics: set[str] | None) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the replicas of all partitions, without those that a reassignment in progress is to take away."""
    infos: Mapping[str, Any] = admin.describe_topics(topics) if topics is not None else admin.describe_topics()
    found = {
        TopicPartition(name, each.partition): tuple(each.replicas)
        for name, info in infos.items()
        for each in info.partitions
    }
    for key, moving in admin.list_partition_reassignments().items():
        if key in found:
            found[key] = tuple(moving.targets)
    return found


def _check_topics(topics: Sequence[str], current: Plan) -> None:
    unknown = set(topics) - {key.topic for key in current}
    if unknown:
        raise UnknownTopicOrPartition(f"there is no topic {sorted(unknown)[0]}")


def _changes(plan: Plan, current: Plan) -> Plan:
    return {key: replicas for key, replicas in plan.items() if tuple(replicas) != tuple(current[key])}


def _plan(admin: Admin, plan: Plan, current: Plan, throttle: int | None) -> int:
    changed = _changes(plan, current)
    if changed:
        _check(admin, changed, current, throttle)
    else:
        said(_NOTHING)
    click.echo(plan_text(changed))
    return 0


def _check(admin: Admin, changed: Plan, current: Plan, throttle: int | None) -> None:
    """Show what is copied, to where, and for how long. Raises NoPlan if a broker is not live or has too little room."""
    origins = {key: each.origin for key, each in admin.list_partition_reassignments(changed).items()}
    check_live(changed, {**current, **origins}, {node.node_id for node in admin.describe_cluster().brokers})
    logs = admin.describe_log_dirs()
    found = rooms(admin, changed, current, logs)
    for each in found:
        said(each.text())
    moved = sum(set(replicas) != set(current[key]) for key, replicas in changed.items())
    said(
        f"partitions that change their brokers: {moved}, only the order of their replicas: {len(changed) - moved}; "
        f"to copy: {shown_bytes(sum(each.copied_bytes for each in found))}"
    )
    if throttle is not None and found:
        seconds = busiest_bytes(changed, current, sizes_of(logs)) / throttle
        said(f"at {shown_bytes(throttle)}/s to and from each broker this takes at least {shown_time(seconds)}")
    check_rooms(found)


def _execute(
    admin: Admin, plan: Plan, current: Plan, wait_s: float | None, throttle: int | None, *, keeps_throttles: bool
) -> int:
    changed = _changes(plan, current)
    moving = admin.list_partition_reassignments(plan)
    if not changed and not moving:
        said(_NOTHING)
        return 0
    if changed:
        _check(admin, changed, current, throttle)
        said("for a way back, save this plan, which is what there is now:")
        click.echo(plan_text({key: current[key] for key in changed}))
    begun = {key: replicas for key, replicas in plan.items() if key in changed or key in moving}
    if throttle is not None:
        set_throttle(admin, begun, throttle)
        said(
            f"the throttle is set to {shown_bytes(throttle)}/s; --verify and --wait remove it when all partitions have "
            "moved"
        )
    else:
        tell_throttle_from_before(admin, begun, moving)
    outcomes = admin.alter_partition_reassignments(changed) if changed else {}
    refused = {key: error for key, error in outcomes.items() if error is not None}
    for key, error in sorted(refused.items()):
        said(f"{key} is not moved: {error}")
    begun = {key: replicas for key, replicas in begun.items() if key not in refused}
    if changed:
        how = "" if wait_s is not None else "; kafkalite cluster status shows how far they are"
        said(f"{len(changed) - len(refused)} reassignments have begun{how}")
    if moving.keys() - changed.keys():
        said(f"{len(moving.keys() - changed.keys())} were in progress, and go on")
    before = {key: moving[key].origin if key in moving else current[key] for key in begun}
    has_ended = not begun or (wait_s is not None and _wait(admin, begun, before, wait_s))
    if throttle is not None and has_ended and not keeps_throttles:
        has_ended = remove_throttles(admin, plan)
    return 1 if refused or (wait_s is not None and not has_ended) else 0


def _wait(admin: Admin, plan: Plan, current: Plan, wait_s: float) -> bool:
    """Show how far the reassignments are until they have ended; return whether they have in time.

    Brokers may end meanwhile, and topics may be deleted. Raises KafkaError where asking again is of no use.
    """
    until_s, progress, told = time.monotonic() + wait_s, _MoveProgress(plan, current), ""
    while True:
        now_s, problem = time.monotonic(), ""
        try:
            left = admin.list_partition_reassignments(plan)
            if not left:
                break
            if now_s < until_s:
                progress.show(admin, left)
        except KafkaliteError as error:
            if isinstance(error, KafkaError) and not error.retriable:
                raise
            problem = str(error)
        if now_s >= until_s:
            if problem:
                said(f"not ended after {wait_s:g} s: {problem}")
            else:
                said(f"{len(left)} of {len(plan)} partitions have not moved after {wait_s:g} s; they go on")
            return False
        if problem and problem != told:
            said(f"waiting: {problem}")
        told = problem
        time.sleep(min(_ASKED_EVERY_S, max(until_s - now_s, 0)))
    said(f"all {len(plan)} partitions have moved")
    return True


class _MoveProgress:
    """What is shown of reassignments every few seconds."""

    def __init__(self, plan: Plan, current: Plan) -> None:
        self._current = current
        self._coming = {key: [each for each in replicas if each not in current[key]] for key, replicas in plan.items()}
        self._sizes: dict[TopicPartition, Mapping[int, int]] = {}
        self._shown_s: float | None = None
        self._copied = 0

    def show(self, admin: Admin, left: Collection[TopicPartition]) -> None:
        """Print how much has been copied, unless it has just been; ``left`` are the partitions that move."""
        now_s, before_s = time.monotonic(), self._shown_s
        targets = {each for brokers in self._coming.values() for each in brokers}
        if not targets or (before_s is not None and now_s - before_s < _SHOWN_EVERY_S):
            return
        live = {node.node_id for node in admin.describe_cluster().brokers}
        asked = sorted(live & (targets | {each for key in self._coming for each in self._current[key]}))
        # Of topics whose partitions have all moved, or that were deleted, what was found last stays.
        logs = admin.describe_log_dirs(asked, topics=sorted({key.topic for key in left}))
        self._sizes.update(sizes_of(logs))
        total = copied = 0
        for key, brokers in self._coming.items():
            sizes = self._sizes.get(key, {})
            total += max(sizes.values(), default=0) * len(brokers)
            copied += sum(sizes.get(each, 0) for each in brokers)
        dead = targets - live
        waits = f"; broker {_numbers(dead)} is to get replicas, and is not live" if dead else ""
        rate = 0.0 if before_s is None else max(copied - self._copied, 0) / max(now_s - before_s, 0.001)
        about = f", about {shown_time(max(total - copied, 0) / rate)} left" if rate > 0 else ""
        said(
            f"{len(left)} of {len(self._coming)} partitions move; {shown_bytes(copied)} of {shown_bytes(total)} "
            f"copied, {shown_bytes(rate)}/s{about}{waits}"
        )
        self._shown_s, self._copied = now_s, copied


def _verify(admin: Admin, plan: Plan, *, keeps_throttles: bool) -> int:
    topics = {key.topic for key in plan}
    try:
        current = _assignment(admin, topics)
    except UnknownTopicOrPartition:
        # Topics may be deleted while they move, and their throttle is to be removed all the same.
        current = _assignment(admin, topics & admin.describe_topics().keys())
    moving = admin.list_partition_reassignments(plan)
    has_ended = True
    for key, replicas in sorted(plan.items()):
        if key not in current:
            echo(f"There is no active reassignment of partition {key}, and no such partition.")
            has_ended = False
        elif key in moving:
            echo(f"Reassignment of partition {key} is still in progress.")
            has_ended = False
        elif tuple(replicas) == tuple(current[key]):
            echo(f"Reassignment of partition {key} is completed.")
        else:
            listed, wanted = ", ".join(map(str, current[key])), ", ".join(map(str, replicas))
            echo(f"There is no active reassignment of partition {key}, but its replicas are {listed}, not {wanted}.")
            has_ended = False
    is_free = bool(moving) or keeps_throttles or remove_throttles(admin, plan)
    return 0 if has_ended and is_free else 1


def _cancel(admin: Admin, plan: Plan | None, *, keeps_throttles: bool) -> int:
    moving = admin.list_partition_reassignments(None if plan is None else plan)
    if moving:
        outcomes = admin.alter_partition_reassignments(dict.fromkeys(moving))
        for key, error in sorted(outcomes.items()):
            echo(f"The reassignment of {key} is cancelled." if error is None else f"{key} goes on moving: {error}")
    else:
        outcomes = {}
        echo("No reassignment is in progress.")
    is_free = keeps_throttles or remove_throttles(admin, plan)
    return 1 if not is_free or any(error is not None for error in outcomes.values()) else 0

"""What the members of a group did, and what of it must never happen.

Every member appends events to a journal of its own, one JSON object a line, each by one ``write``: what happened before
a SIGKILL is there. Times are CLOCK_MONOTONIC in nanoseconds, which all processes of a host share. Every event has
``time``, ``member`` (a name that no other process uses) and ``event``:

| event | with | meaning |
|---|---|---|
| started | instance | the process is up; ``instance`` is its group.instance.id, or null |
| assigned | generation, partitions | all that the member owns since this moment |
| revoked | generation, partitions | what it has just stopped to own; lost partitions too |
| delivered | generation, partition, first, next | records first..next-1 were handed over, and are processed |
| wrong | partition, offset, value | a record that does not hold what was written at its offset |
| committing | number, generation, offsets | before a commit is sent; ``offsets`` is {partition: offset} |
| committed | number, generation, offsets | the same commit was acknowledged |
| refused | number, error | the same commit failed, or nobody knows |
| observed | partition, offset, since | the group's committed offset, asked for since ``since`` |
| left | | the consumer is closed |

A generation of -1 says that the client did not know of one. Processes of one ``instance`` are one member of the group,
one after the other: the later takes over what the earlier had, in the same generation.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NONE = -1


@dataclass(frozen=True)
class Event:
    time: int
    member: str
    kind: str
    generation: int = NONE
    partition: int = NONE
    first: int = NONE
    next: int = NONE
    number: int = NONE
    since: int = 0
    partitions: frozenset[int] = frozenset()
    offsets: Mapping[int, int] = field(default_factory=dict)
    text: str = ""


def read_journals(directory: Path) -> list[Event]:
    """Return all members' events in the order of time. A line that a kill has cut off is left out."""
    events = []
    for path in sorted(directory.glob("*.journal")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            events.append(_event(json.loads(line)))
    return sorted(events, key=lambda event: event.time)


def _event(line: dict[str, Any]) -> Event:
    kind = line["event"]
    return Event(
        line["time"], line["member"], kind,
        generation=line.get("generation", NONE),
        partition=line.get("partition", NONE),
        first=line.get("first", line.get("offset", NONE)),
        next=line.get("next", NONE),
        number=line.get("number", NONE),
        since=line.get("since", 0),
        partitions=frozenset(line.get("partitions", ())),
        offsets={int(partition): offset for partition, offset in line.get("offsets", {}).items()},
        text=str(line.get("error", line.get("value", line.get("instance"))) or ""),
    )  # fmt: skip


def violations(events: Iterable[Event], ends: Mapping[int, int]) -> list[str]:
    """Return everything that must not have happened; ``ends`` are the partitions' end offsets after the storm."""
    events = sorted(events, key=lambda event: event.time)
    return [
        *_wrong_records(events),
        *_lost_records(events, ends),
        *_two_owners(events),
        *_broken_streams(events),
        *_generations_that_went_back(events),
        *_commits_that_went_back(events),
        *_commits_ahead_of_delivery(events),
        *_commits_of_old_generations(events),
    ]


def final_owners(events: Iterable[Event]) -> dict[str, frozenset[int]]:
    """Return what each member owned last; members that left or gave everything up own nothing."""
    owned: dict[str, frozenset[int]] = {}
    for event in sorted(events, key=lambda event: event.time):
        if event.kind == "assigned":
            owned[event.member] = event.partitions
        elif event.kind == "revoked":
            owned[event.member] = owned.get(event.member, frozenset()) - event.partitions
        elif event.kind == "left":
            owned[event.member] = frozenset()
    return owned


def _wrong_records(events: list[Event]) -> list[str]:
    return [
        f"wrong record: {event.member} read {event.text} at offset {event.first} of partition {event.partition}"
        for event in events
        if event.kind == "wrong"
    ]


def _lost_records(events: list[Event], ends: Mapping[int, int]) -> list[str]:
    ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event.kind == "delivered":
            ranges[event.partition].append((event.first, event.next))
    found = []
    for partition, end in ends.items():
        reached = 0
        for first, following in sorted(ranges[partition]):
            if first > reached:
                found.append(f"record lost: offsets {reached}..{first - 1} of partition {partition} reached nobody")
            reached = max(reached, following)
        if reached < end:
            found.append(f"record lost: offsets {reached}..{end - 1} of partition {partition} reached nobody")
    return found


def _two_owners(events: list[Event]) -> list[str]:
    owners: dict[tuple[int, int], str] = {}
    instances: dict[str, str] = {}
    found = []
    for event in events:
        if event.kind == "started" and event.text:
            instances[event.member] = event.text
        if event.generation == NONE:
            continue
        if event.kind == "assigned":
            partitions = event.partitions
        elif event.kind == "delivered":
            partitions = frozenset((event.partition,))
        else:
            continue
        for partition in partitions:
            owner = owners.setdefault((event.generation, partition), event.member)
            if instances.get(owner, owner) != instances.get(event.member, event.member):
                found.append(
                    f"two owners: partition {partition} was {owner}'s and {event.member}'s in generation "
                    f"{event.generation} ({event.kind})"
                )
    return list(dict.fromkeys(found))


def _broken_streams(events: list[Event]) -> list[str]:
    """While a member owns a partition it reads on where it was: no gap, and nothing twice."""
    position: dict[tuple[str, int], int] = {}
    owned: dict[str, frozenset[int]] = {}
    found = []
    for event in events:
        if event.kind in ("assigned", "revoked"):
            before = owned.get(event.member, frozenset())
            now = event.partitions if event.kind == "assigned" else before - event.partitions
            # What was assigned anew may begin again at the last commit, also where the member had it before.
            for partition in event.partitions | (before - now):
                if event.kind == "revoked" or partition not in before:
                    position.pop((event.member, partition), None)
            owned[event.member] = now
        elif event.kind == "delivered":
            expected = position.get((event.member, event.partition), event.first)
            if event.first != expected:
                found.append(
                    f"broken stream: {event.member} was at offset {expected} of partition {event.partition} and was "
                    f"given {event.first}"
                )
            position[event.member, event.partition] = event.next
    return found


def _generations_that_went_back(events: list[Event]) -> list[str]:
    """A member that starts after a generation was seen comes into a later one, or into that one as a known member."""
    last: dict[str, int] = {}
    highest_at_start: dict[str, int] = {}
    highest = NONE
    found = []
    for event in events:
        if event.kind == "started":
            highest_at_start[event.member] = highest
        if event.kind != "assigned" or event.generation == NONE:
            continue
        floor = max(last.get(event.member, NONE), highest_at_start.get(event.member, NONE))
        if event.generation < floor:
            found.append(f"generation went back: {event.member} was given {event.generation} after {floor}")
        last[event.member] = event.generation
        highest = max(highest, event.generation)
    return found


@dataclass(frozen=True)
class _Operation:
    """A commit that was acknowledged, or a look at the committed offset: it took effect between the two times."""

    since: int
    until: int
    offset: int
    what: str


def _operations(events: list[Event]) -> dict[int, list[_Operation]]:
    began: dict[tuple[str, int], Event] = {}
    found: dict[int, list[_Operation]] = defaultdict(list)
    for event in events:
        if event.kind == "committing":
            began[event.member, event.number] = event
        elif event.kind == "committed":
            since = began[event.member, event.number].time
            for partition, offset in event.offsets.items():
                found[partition].append(_Operation(since, event.time, offset, f"{event.member} committed {offset}"))
        elif event.kind == "observed":
            found[event.partition].append(_Operation(event.since, event.time, event.first, f"{event.first} was found"))
    return found


def _commits_that_went_back(events: list[Event]) -> list[str]:
    """Of two operations, one ended before the other began, the second has no smaller offset."""
    found = []
    for partition, operations in _operations(events).items():
        by_end = sorted(operations, key=lambda each: each.until)
        ended = 0
        highest: _Operation | None = None
        for operation in sorted(operations, key=lambda each: each.since):
            while ended < len(by_end) and by_end[ended].until < operation.since:
                if highest is None or by_end[ended].offset > highest.offset:
                    highest = by_end[ended]
                ended += 1
            if highest is not None and operation.offset < highest.offset:
                found.append(f"commit went back: partition {partition}: {operation.what} after {highest.what}")
    return found


def _commits_ahead_of_delivery(events: list[Event]) -> list[str]:
    """A commit, or what is found committed, covers only records that somebody has processed."""
    ranges: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for event in events:
        if event.kind == "delivered":
            ranges[event.partition].append((event.first, event.next, event.time))
    found = []
    for partition, operations in _operations(events).items():
        # Records reach members roughly in order, so a pass over both by time is short.
        delivered = sorted(ranges[partition], key=lambda each: each[2])
        waiting: list[tuple[int, int]] = []
        taken = reached = 0
        for operation in sorted(operations, key=lambda each: each.until):
            while taken < len(delivered) and delivered[taken][2] <= operation.until:
                waiting.append(delivered[taken][:2])
                taken += 1
            waiting.sort()
            while waiting and waiting[0][0] <= reached:
                reached = max(reached, waiting.pop(0)[1])
            if operation.offset > reached:
                found.append(
                    f"commit ahead of delivery: partition {partition}: {operation.what}, and {reached} was processed "
                    f"by nobody"
                )
    return found


def _commits_of_old_generations(events: list[Event]) -> list[str]:
    """Once somebody was given a generation, no commit of an earlier one that is sent then is accepted.

    Nor one of a process whose instance another process has taken over by then.
    """
    began: dict[tuple[str, int], tuple[Event, int, str, str]] = {}
    instances: dict[str, str] = {}
    holders: dict[str, str] = {}
    newest, owner = NONE, ""
    found = []
    for event in events:
        instance = instances.get(event.member, "")
        if event.kind == "started" and event.text:
            instances[event.member] = event.text
        elif event.kind == "assigned":
            # It began last among those of its instance: the later process is the one that counts.
            if instance and list(instances).index(event.member) >= list(instances).index(
                holders.get(instance, event.member)
            ):
                holders[instance] = event.member
            if event.generation > newest:
                newest, owner = event.generation, event.member
        elif event.kind == "committing":
            began[event.member, event.number] = (event, newest, owner, holders.get(instance, event.member))
        elif event.kind == "committed":
            sent, newest_then, owner_then, holder_then = began[event.member, event.number]
            if holder_then != event.member:
                found.append(
                    f"commit of a fenced instance: {event.member} committed {dict(event.offsets)} after {holder_then} "
                    f"took over {instance}"
                )
            # Different before and after: nobody knows with which of them it was sent.
            if NONE != sent.generation == event.generation < newest_then:
                found.append(
                    f"commit of an old generation: {event.member} committed {dict(event.offsets)} in generation "
                    f"{event.generation} after {owner_then} was given {newest_then}"
                )
    return found

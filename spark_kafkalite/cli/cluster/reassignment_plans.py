"""Plans of reassignments: which brokers are to have which partitions, so that a broker is drained, that all have their
share, or that topics have more or fewer replicas. Pure.

An assignment is the list of brokers of each partition, the preferred leader first. A plan has the partitions that
change, with their next brokers. Racks: a partition's replicas are on as many racks afterwards as before, or on more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence

import click

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.printable import first_of

Brokers = tuple[int, ...]
Assignment = Mapping[TopicPartition, Brokers]
# The rack of each live broker, None for one that names none.
Racks = Mapping[int, str | None]


class NoPlan(click.ClickException):
    """There is no such plan for this cluster."""


def check_live(
    plan: Mapping[TopicPartition, Sequence[int]], origins: Mapping[TopicPartition, Sequence[int]], live: Collection[int]
) -> None:
    """Raise NoPlan if partitions are to come to brokers that are not live, which the controller refuses.

    ``origins`` are the replicas without those that reassignments are adding.
    """
    absent: dict[int, list[TopicPartition]] = {}
    for key in sorted(plan):
        for broker in plan[key]:
            if broker not in live and broker not in origins[key]:
                absent.setdefault(broker, []).append(key)
    if absent:
        named = "; ".join(
            f"broker {broker}, which is to get {first_of(keys, 1)}" for broker, keys in sorted(absent.items())
        )
        numbers = ", ".join(map(str, sorted(live)))
        raise NoPlan(f"not live: {named}. Start it, or name another; live are {numbers}. Nothing has been changed")


def drained(assignment: Assignment, racks: Racks, broker: int) -> dict[TopicPartition, Brokers]:
    """Return the plan after which a broker has no replica. Raises NoPlan where too few other brokers live."""
    others = {each: rack for each, rack in racks.items() if each != broker}
    loads = _loads(assignment, others)
    plan: dict[TopicPartition, Brokers] = {}
    for key in sorted(assignment):
        replicas = assignment[key]
        if broker not in replicas:
            continue
        chosen = _best(loads, others, [each for each in replicas if each != broker])
        if chosen is None:
            raise NoPlan(
                f"{key} has {len(replicas)} replicas, and no live broker besides {broker} is left for one of them: add "
                "a broker, or let the topic have fewer replicas (--replication-factor)"
            )
        loads[chosen] += 1
        plan[key] = tuple(chosen if each == broker else each for each in replicas)
    return plan


def with_factor(
    assignment: Assignment, racks: Racks, topics: Collection[str], factor: int
) -> dict[TopicPartition, Brokers]:
    """Return the plan after which topics have so many replicas. Raises NoPlan where fewer brokers live.

    Added replicas are on other racks first, then on the least loaded brokers. Of those that there are, dead ones go
    first, then the last ones: the preferred leader stays.
    """
    if factor > len(racks):
        live = ", ".join(map(str, sorted(racks)))
        raise NoPlan(
            f"{factor} replicas need as many live brokers; there are {len(racks)} ({live}): start more, or give a "
            "smaller --replication-factor"
        )
    loads = _loads(assignment, racks)
    plan: dict[TopicPartition, Brokers] = {}
    for key in sorted(each for each in assignment if each.topic in topics):
        replicas = list(assignment[key])
        while len(replicas) > factor:
            dead = [each for each in replicas if each not in racks]
            gone = dead[-1] if dead else replicas[-1]
            replicas.remove(gone)
            loads[gone] -= 1
        while len(replicas) < factor:
            chosen = _best(loads, racks, replicas)
            # There are at least as many live brokers as replicas are wanted.
            assert chosen is not None
            loads[chosen] += 1
            replicas.append(chosen)
        if tuple(replicas) != assignment[key]:
            plan[key] = tuple(replicas)
    return plan


def spread(assignment: Assignment, racks: Racks) -> dict[TopicPartition, Brokers]:
    """Return the plan after which live brokers have the same numbers of replicas, and of partitions that prefer them,
    or differ by one, as far as racks and replicas allow it. It moves as few replicas as that takes; leaders change by
    the order of replicas alone, which moves none."""
    current = {key: list(replicas) for key, replicas in assignment.items()}
    _spread_replicas(current, racks)
    _spread_leaders(current, racks)
    return {key: tuple(replicas) for key, replicas in sorted(current.items()) if tuple(replicas) != assignment[key]}


def _spread_replicas(current: dict[TopicPartition, list[int]], racks: Racks) -> None:
    loads = _loads(current, racks)
    on_broker: dict[int, set[TopicPartition]] = {each: set() for each in racks}
    for key, replicas in current.items():
        for each in replicas:
            if each in on_broker:
                on_broker[each].add(key)
    while (move := _next_move(current, racks, loads, on_broker)) is not None:
        key, source, target = move
        replicas = current[key]
        replicas[replicas.index(source)] = target
        loads[source] -= 1
        loads[target] += 1
        on_broker[source].discard(key)
        on_broker[target].add(key)


def _next_move(
    current: Mapping[TopicPartition, Sequence[int]],
    racks: Racks,
    loads: Mapping[int, int],
    on_broker: Mapping[int, set[TopicPartition]],
) -> tuple[TopicPartition, int, int] | None:
    """Return a move from one of the most loaded brokers to one of the least loaded that brings them closer."""
    by_load = sorted(racks, key=lambda each: (loads[each], each))
    for source in reversed(by_load):
        for target in by_load:
            if loads[source] - loads[target] < 2:
                break
            # A follower rather than the preferred leader, which clients would have to look for.
            for key in sorted(on_broker[source] - on_broker[target], key=lambda key: (current[key][0] == source, key)):
                others = [each for each in current[key] if each != source]
                if _rack_count([*others, target], racks) >= _rack_count([*others, source], racks):
                    return key, source, target
    return None


def _spread_leaders(current: dict[TopicPartition, list[int]], racks: Racks) -> None:
    """Change the order of replicas until brokers lead as many partitions as each other, or one more."""
    led: dict[int, set[TopicPartition]] = {each: set() for each in racks}
    for key, replicas in current.items():
        if replicas[0] in led:
            led[replicas[0]].add(key)
    while True:
        for source in sorted(led, key=lambda each: (-len(led[each]), each)):
            path = _path_of_leaders(current, led, source)
            if path:
                break
        else:
            return
        # From its end, so that no broker leads more than before in between.
        for key, target in reversed(path):
            replicas = current[key]
            led[replicas[0]].discard(key)
            replicas.remove(target)
            replicas.insert(0, target)
            led[target].add(key)


def _path_of_leaders(
    current: Mapping[TopicPartition, Sequence[int]], led: Mapping[int, set[TopicPartition]], source: int
) -> list[tuple[TopicPartition, int]]:
    """Return the partitions whose leaders change, each with the next one, so that ``source`` leads one fewer and a
    broker that led at least two fewer leads one more; none where there is no such way."""
    came_by: dict[int, tuple[TopicPartition, int] | None] = {source: None}
    waiting = deque([source])
    while waiting:
        broker = waiting.popleft()
        if len(led[source]) - len(led[broker]) >= 2:
            path: list[tuple[TopicPartition, int]] = []
            step = came_by[broker]
            while step is not None:
                key, target = step
                path.insert(0, (key, target))
                step = came_by[current[key][0]]
            return path
        for key in sorted(led[broker]):
            for target in current[key][1:]:
                if target in led and target not in came_by:
                    came_by[target] = key, target
                    waiting.append(target)
    return []


def _loads(assignment: Mapping[TopicPartition, Sequence[int]], racks: Racks) -> Counter[int]:
    loads = Counter(dict.fromkeys(racks, 0))
    for replicas in assignment.values():
        loads.update(replicas)
    return loads


def _best(loads: Mapping[int, int], racks: Racks, replicas: Sequence[int]) -> int | None:
    """Return the live broker for one more replica: on a rack that has none yet, then with the least load."""
    taken = {racks[each] for each in replicas if each in racks}
    free = [each for each in racks if each not in replicas]
    return min(free, key=lambda each: (racks[each] in taken, loads[each], each), default=None)


def _rack_count(replicas: Sequence[int], racks: Racks) -> int:
    """Return on how many racks replicas are. Brokers without a rack, and dead ones, are on none of them."""
    return len({racks[each] for each in replicas if racks.get(each) is not None})

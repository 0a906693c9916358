"""Which brokers get the replicas of new partitions. Pure.

First replicas (the preferred leaders) go round the brokers from a starting place; the further replicas of a partition
follow at a distance that grows by one with every full round, so that the partitions of a lost broker have their next
replicas on many others. With racks, brokers are taken alternately from each rack, and a partition takes a second
replica from a rack only when every rack has one.
Source: the properties are those of kafka.admin.AdminUtils.assignReplicasToBrokers; the arithmetic is our own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

from spark_kafkalite.errors import InvalidPartitions, InvalidReplicaAssignment, InvalidReplicationFactor
from spark_kafkalite.model import BrokerId
from spark_kafkalite.slices import Work, run_whole

Assignment = dict[int, tuple[BrokerId, ...]]

# More is a typing error in practice, and would block the registry for minutes.
MAX_PARTITIONS = 10_000


def place(
    partition_count: int,
    replication_factor: int,
    racks: Mapping[int, str | None],
    *,
    start: int = 0,
    first_partition: int = 0,
) -> Assignment:
    """As :func:`place_work`, in one piece."""
    return run_whole(
        place_work(partition_count, replication_factor, racks, start=start, first_partition=first_partition)
    )


def place_work(
    partition_count: int,
    replication_factor: int,
    racks: Mapping[int, str | None],
    *,
    start: int = 0,
    first_partition: int = 0,
) -> Work[Assignment]:
    """Return the replicas of partitions ``first_partition`` up to ``first_partition + partition_count``.

    ``racks`` maps each live broker to its rack; ``start`` is the place of the first preferred leader (any number).
    Raises InvalidPartitions (37), InvalidReplicationFactor (38).
    """
    if partition_count < 1:
        raise InvalidPartitions(f"the number of partitions is {partition_count}; it must be at least 1")
    if partition_count > MAX_PARTITIONS:
        raise InvalidPartitions(f"{partition_count} partitions at once are more than {MAX_PARTITIONS}")
    if replication_factor < 1:
        raise InvalidReplicationFactor(f"the replication factor is {replication_factor}; it must be at least 1")
    if replication_factor > len(racks):
        raise InvalidReplicationFactor(
            f"the replication factor {replication_factor} is larger than the number of live brokers, {len(racks)}"
        )
    ring = _alternate(racks)
    placed = {}
    for number in range(first_partition, first_partition + partition_count):
        placed[number] = _replicas(ring, racks, start + number, replication_factor)
        yield None
    return placed


def _replicas(
    ring: Sequence[BrokerId], racks: Mapping[int, str | None], place: int, replication_factor: int
) -> tuple[BrokerId, ...]:
    count = len(ring)
    leader = ring[place % count]
    others = count - 1
    shift = (place // count) % others if others else 0
    candidates = [ring[(place + 1 + (shift + step) % others) % count] for step in range(others)] if others else []
    chosen = [leader]
    while len(chosen) < replication_factor:
        used = {racks[broker] for broker in chosen if racks[broker] is not None}
        fresh = (broker for broker in candidates if racks[broker] is None or racks[broker] not in used)
        # Every rack has one already: from here on any broker will do.
        following = next(fresh, candidates[0])
        candidates.remove(following)
        chosen.append(following)
    return tuple(chosen)


def _alternate(racks: Mapping[int, str | None]) -> list[BrokerId]:
    """Order the brokers so that neighbours lie in different racks as far as possible; by id without racks."""
    by_rack: dict[str, list[BrokerId]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker] or "", []).append(BrokerId(broker))
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker for column in rounds for broker in column if broker is not None]


def check_assignment(
    assignment: Mapping[int, Sequence[int]], live: Collection[int], first_partition: int = 0
) -> Assignment:
    """As :func:`check_assignment_work`, in one piece."""
    return run_whole(check_assignment_work(assignment, live, first_partition))


def check_assignment_work(
    assignment: Mapping[int, Sequence[int]], live: Collection[int], first_partition: int = 0
) -> Work[Assignment]:
    """Return an assignment that a user gave, checked.

    Raises InvalidReplicaAssignment (39): partitions not consecutive from ``first_partition``, a broker twice or not
    live, or partitions with different numbers of replicas.
    """
    expected = list(range(first_partition, first_partition + len(assignment)))
    if not assignment or sorted(assignment) != expected:
        raise InvalidReplicaAssignment(
            f"the assignment names partitions {sorted(assignment)[:20]}; "
            f"they must be consecutive, from {first_partition}"
        )
    factor = len(assignment[first_partition])
    live = set(live)
    for number, replicas in assignment.items():
        yield None
        if len(replicas) != factor or not replicas:
            raise InvalidReplicaAssignment(
                f"partition {number} has {len(replicas)} replicas and partition {first_partition} has {factor}; "
                "all must have the same number, at least 1"
            )
        if len(replicas) > len(live):
            # Before they are looked at: a request has room for millions.
            raise InvalidReplicaAssignment(
                f"partition {number} has {len(replicas)} replicas; there are {len(live)} live brokers"
            )
        if len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignment(f"partition {number} names a broker twice: {list(replicas)}")
        unknown = sorted(set(replicas) - live)
        if unknown:
            raise InvalidReplicaAssignment(f"partition {number} names brokers that are not live: {unknown}")
    return {number: tuple(BrokerId(replica) for replica in assignment[number]) for number in expected}


def start_after(existing: Sequence[BrokerId], racks: Mapping[int, str | None]) -> int:
    """Return the ``start`` with which further partitions go on from a topic whose partition 0 has these replicas."""
    ring = _alternate(racks)
    return ring.index(existing[0]) if existing and existing[0] in ring else 0

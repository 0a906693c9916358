"""Which brokers get the replicas of new partitions. Pure.

First replicas (the preferred leaders) go round the brokers from a starting place. The further replicas of a partition
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

# Kafka's words: org.apache.kafka.controller.ReplicationControlManager.createTopic.
NO_PARTITIONS = "Number of partitions was set to an invalid non-positive value."
NO_REPLICAS = "Replication factor must be larger than 0, or -1 to use the default value."

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
        raise InvalidPartitions(f"{NO_PARTITIONS} It is {partition_count}.")
    if partition_count > MAX_PARTITIONS:
        raise InvalidPartitions(f"{partition_count} partitions at once are more than {MAX_PARTITIONS}")
    if replication_factor < 1:
        raise InvalidReplicationFactor(f"{NO_REPLICAS} It is {replication_factor}.")
    if replication_factor > len(racks):
        raise InvalidReplicationFactor(
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(racks)} broker(s) are registered"
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
) -> Work[Assignment]:
    """Return an assignment that a user gave, checked.

    Raises InvalidReplicaAssignment (39), in Kafka's words and in its order: no replicas, a broker that is not live or
    named twice, partitions with different numbers of replicas, partitions not consecutive from ``first_partition``.
    Source: org.apache.kafka.controller.ReplicationControlManager.validateManualPartitionAssignment.
    """
    factor = 0
    for replicas in assignment.values():
        yield None
        if not replicas:
            raise InvalidReplicaAssignment("The manual partition assignment includes an empty replica list.")
        for broker_id in sorted(replicas):
            if broker_id not in live:
                raise InvalidReplicaAssignment(
                    f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
                )
            if replicas.count(broker_id) > 1:
                raise InvalidReplicaAssignment(
                    f"The manual partition assignment includes the broker {broker_id} more than once."
                )
        if factor and len(replicas) != factor:
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is "
                f"not consistent with previous partitions, which have {factor} replica(s)."
            )
        factor = len(replicas)
    expected = list(range(first_partition, first_partition + len(assignment)))
    if not assignment or sorted(assignment) != expected:
        raise InvalidReplicaAssignment(
            f"partitions should be a consecutive {first_partition}-based integer sequence; the assignment names "
            f"{sorted(assignment)[:20]}"
        )
    return {number: tuple(BrokerId(replica) for replica in assignment[number]) for number in expected}


def start_after(existing: Sequence[BrokerId], racks: Mapping[int, str | None]) -> int:
    """Return the ``start`` with which further partitions go on from a topic whose partition 0 has these replicas."""
    ring = _alternate(racks)
    return ring.index(existing[0]) if existing and existing[0] in ring else 0

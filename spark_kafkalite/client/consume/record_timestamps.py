"""Timestamps of records at offsets: one fetch of one batch for each, several on their way to a leader at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from spark_kafkalite.client.consume.fetch_requests import (
    FetchFrom,
    FetchLimits,
    PartitionFetched,
    receive_fetch,
    send_fetch,
)
from spark_kafkalite.client.consume.fetched import FetchedBatches, columns_from
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import KafkaliteError, TopicAuthorizationFailed
from spark_kafkalite.model import IsolationLevel, TopicPartition

Place = tuple[TopicPartition, int]

# A broker sends one whole batch however low the limit is. Behind it may be only markers or compacted gaps.
_ONE_BATCH: Final = FetchLimits(0, 1, 0, IsolationLevel.READ_UNCOMMITTED)
_MOST_BATCHES: Final = 8
_ON_THEIR_WAY: Final = 16
_LEADERS_AT_ONCE: Final = 16


def record_timestamps(
    cluster: ClusterClient, offsets: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, int]:
    """Return the timestamp of the first record at or after each offset.

    What cannot be read now is left out, and so are partitions whose next few batches hold no record.
    """
    return {partition: found for (partition, _), found in timestamps_at(cluster, offsets.items(), deadline).items()}


def timestamps_at(
    cluster: ClusterClient, places: Iterable[Place], deadline: Deadline, unreadable: set[str] | None = None
) -> dict[Place, int]:
    """Do what :func:`record_timestamps` does, for any number of offsets in each partition.

    Leaders are asked side by side. What is not answered at the deadline is left out. ``unreadable`` gets the topics
    that the client may not READ.
    """
    by_leader: dict[int, list[Place]] = defaultdict(list)
    for place in places:
        by_leader[cluster.snapshot.leader(*place[0])].append(place)
    found: dict[Place, int] = {}
    if not by_leader:
        return found

    def ask(leader: int) -> None:
        _ask_leader(cluster, leader, by_leader[leader], deadline, found, set() if unreadable is None else unreadable)

    with ThreadPoolExecutor(min(len(by_leader), _LEADERS_AT_ONCE)) as threads:
        for _ in threads.map(ask, by_leader):
            pass
    return found


def _ask_leader(
    cluster: ClusterClient,
    leader: int,
    places: Sequence[Place],
    deadline: Deadline,
    found: dict[Place, int],
    unreadable: set[str],
) -> None:
    try:
        connection = cluster.connect(leader, deadline)
    except KafkaliteError:
        return
    try:
        # Where each question reads now: behind a batch without records it goes on in the next.
        left = {place: place[1] for place in places}
        for _ in range(_MOST_BATCHES):
            left = _ask_once(connection, left, deadline, cluster.config.client_id, found, unreadable)
            if not left:
                return
    except KafkaliteError:
        return
    finally:
        connection.close()


def _ask_once(
    connection: BrokerConnection,
    left: Mapping[Place, int],
    deadline: Deadline,
    client_id: str,
    found: dict[Place, int],
    unreadable: set[str],
) -> dict[Place, int]:
    """Ask for each place once; return those whose batch held no record, with the offset behind it."""
    again: dict[Place, int] = {}
    places = list(left.items())
    sent = 0
    for number, (place, offset) in enumerate(places):
        while sent < min(len(places), number + _ON_THEIR_WAY):
            (partition, _), position = places[sent]
            send_fetch(connection, [FetchFrom(partition, position, -1, 1)], _ONE_BATCH, client_id)
            sent += 1
        results = receive_fetch(connection, deadline).results
        fetched = results.get(place[0])
        if fetched is not None and fetched.error_code == TopicAuthorizationFailed.code:
            unreadable.add(place[0].topic)
        timestamp, next_offset = _first_timestamp(place[0], fetched, offset)
        if timestamp is not None:
            found[place] = timestamp
        elif next_offset is not None:
            again[place] = next_offset
    return again


def _first_timestamp(
    topic_partition: TopicPartition, fetched: PartitionFetched | None, offset: int
) -> tuple[int | None, int | None]:
    """Return the timestamp of the first record at or after ``offset``; without any, where the next batch begins."""
    if fetched is None or fetched.error_code or fetched.records is None:
        return None, None
    try:
        batches = FetchedBatches(topic_partition, fetched, offset)
        for columns in columns_from([batches], max_rows=1):
            return columns.timestamp_at(0), None
    except KafkaliteError:
        # A batch that cannot be read stops its consumer too; here it only has no age.
        return None, None
    return None, batches.end_offset if batches.end_offset > offset else None

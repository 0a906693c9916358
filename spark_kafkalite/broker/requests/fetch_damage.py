"""A follower's report of its damaged logs in its fetch, and its leaders' answers (``wire.packed.replica_damage``).

Leaders receive the report before anything is read, and so before the fetch offsets count. They answer when the fetch is
answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.replication.leader import Leader
from spark_kafkalite.model import Incarnation, TopicPartition
from spark_kafkalite.wire.packed import FetchRequest
from spark_kafkalite.wire.packed.replica_damage import REFUSED, UNCOUNTED, ReplicaDamage, pack_damage, parse_damage

# What a follower says of each partition that is or was damaged, by topic id and number.
Said = dict[tuple[bytes, int], ReplicaDamage]


def take_damage(context: BrokerContext, fetch: FetchRequest) -> Said:
    """Report to the leaders what their follower's logs lack, and what it refuses. Return the report.

    Raises FrameError.
    """
    said = {(each.topic_id, each.partition): each for each in parse_damage(fetch.damage)}
    for each, leader in _led(context, said.values()):
        leader.follower_damage(fetch.replica_id, Incarnation(fetch.replica_epoch), each.stage, each.ranges)
        if each.flags & REFUSED:
            leader.refused_by(fetch.replica_id)
    return said


def damage_answer(context: BrokerContext, fetch: FetchRequest, said: Said) -> bytes:
    """Return the leaders' answers to the report."""
    incarnation = Incarnation(fetch.replica_epoch)
    answers = []
    for each, leader in _led(context, said.values()):
        is_uncounted = leader.in_sync.is_uncounted(fetch.replica_id, incarnation, each.stage)
        log = leader.log
        answers.append(
            each._replace(
                ranges=log.damaged_ranges,
                flags=UNCOUNTED if is_uncounted else 0,
                log_start_offset=int(log.undeleted_start_offset),
            )
        )
    return pack_damage(answers)


def _led(context: BrokerContext, said: Iterable[ReplicaDamage]) -> Iterator[tuple[ReplicaDamage, Leader]]:
    """Yield what concerns a partition that is led here under the epoch that is meant."""
    for each in said:
        name = context.cluster.topic_name(each.topic_id)
        partition = context.replicas.find(TopicPartition(name, each.partition)) if name is not None else None
        leader = partition.leader if partition is not None and partition.topic_id == each.topic_id else None
        if leader is not None and leader.epoch == each.leader_epoch:
            yield each, leader

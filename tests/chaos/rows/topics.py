"""Rows in which topics come and go."""

from __future__ import annotations

import time
from typing import Final

from spark_kafkalite import Admin
from tests.chaos.rows.stage import FAILOVER_S, ISR_WITHIN_S, Row, Stage

_PARTITIONS: Final = 3
_RECORDS: Final = 5
_ROUNDS: Final = 4


def make_topics_again(stage: Stage) -> None:
    """A topic is deleted and made again under its name, four times; each time a broker is killed: before the deletion,
    between the two, or when the new one is there. The new topic has nothing of the old one."""
    topic = f"{stage.place.topic}-again"
    topic_id = stage.make_topic(topic, _PARTITIONS)
    _send(stage, topic, topic_id)
    moments = ["before", "between", "after", stage.chance.choice(["before", "between", "after"])]
    stage.chance.shuffle(moments)
    for moment in moments[:_ROUNDS]:
        victim = stage.chance.choice(sorted(stage.brokers))
        living = ",".join(broker.bootstrap for number, broker in stage.brokers.items() if number != victim)
        bounds = {"longest_gap_s": FAILOVER_S, "isr_within_s": ISR_WITHIN_S}
        with stage.fault(f"kill {moment} a topic is made again", victim, **bounds):
            broker = stage.brokers[victim]
            if moment == "before":
                broker.kill()
            with Admin(bootstrap_servers=living) as admin:
                admin.delete_topics([topic])
            stage.note_topic(topic_id, topic, _PARTITIONS, is_kept=False)
            if moment == "before":
                # With what it has of the old one.
                broker.start()
            elif moment == "between":
                broker.kill()
            topic_id = stage.make_topic(topic, _PARTITIONS, bootstrap=living, away=broker)
            if moment == "after":
                broker.kill()
            _send(stage, topic, topic_id)
            if not broker.running:
                broker.start()
            _send(stage, topic, topic_id)
    stage.cluster.cluster.wait_in_sync(topic)
    stage.note_topic(topic_id, topic, _PARTITIONS, is_kept=True)


def _send(stage: Stage, topic: str, topic_id: str) -> None:
    """Have some records acknowledged by each partition."""
    # Whoever has not heard of the new topic may have the old one still.
    for number, broker in stage.brokers.items():
        if broker.running:
            stage.wait_until(
                f"broker {number} knows {topic}",
                lambda number=number: stage.topic_id_at(topic, number) == topic_id,  # type: ignore[misc]
            )
    for partition in range(_PARTITIONS):
        for _ in range(_RECORDS):
            stage.wait_until(
                f"{topic}-{partition} takes a record",
                lambda partition=partition: _take(stage, topic, topic_id, partition),  # type: ignore[misc]
            )


def _take(stage: Stage, topic: str, topic_id: str, partition: int) -> bool:
    leader = stage.cluster.cluster.leader_of(topic, partition)
    if leader is not None and stage.send_one(topic, topic_id, partition, leader) == 0:
        return True
    time.sleep(0.1)
    return False


MORE_ROWS: Final = (Row("28", make_topics_again),)

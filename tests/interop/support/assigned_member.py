"""A member of a group that has its partitions: confluent-kafka's consumer, for tests of what others see of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from confluent_kafka import Consumer

from tests.patience import wait_until


@contextlib.contextmanager
def assigned_member(bootstrap: str, group: str, topic: str, **settings: str) -> Iterator[Consumer]:
    """Give a member that was assigned the topic's partitions; it leaves in the end. Settings in snake case."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **named})
    consumer.subscribe([topic])
    try:
        wait_until(lambda: assigned_after_poll(consumer), "the consumer to have its partitions", poll_s=0)
        yield consumer
    finally:
        consumer.close()


def assigned_after_poll(consumer: Consumer) -> bool:
    """Let a consumer take part in its group; return whether it has partitions."""
    consumer.poll(0.1)
    return bool(consumer.assignment())

"""A member of a group that has its partitions: confluent-kafka's consumer, for tests of what others see of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from confluent_kafka import Consumer

from tests.patience import PATIENCE_S


@contextlib.contextmanager
def assigned_member(bootstrap: str, group: str, topic: str, **settings: str) -> Iterator[Consumer]:
    """Give a member that was assigned the topic's partitions; it leaves in the end. Settings in snake case."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **named})
    consumer.subscribe([topic])
    deadline = time.monotonic() + PATIENCE_S
    try:
        while not consumer.assignment():
            assert time.monotonic() < deadline, "the consumer was not assigned its partitions"
            consumer.poll(0.1)
        yield consumer
    finally:
        consumer.close()

"""Which partition a record goes to: by the hash of its key; without a key sticky, round robin or random.

With a key, all of the built-in partitioners use Kafka's hash (murmur2), so that every Kafka client puts a key into the
same partition. Without one, ``default`` stays with a partition until its batch is full and then moves on, which fills
batches; ``round_robin`` changes with every record; ``random`` draws. Partitions without a leader are left out where
there is a choice. A callable decides alone.

A :class:`TopicPartitioner` belongs to one topic of one producer and is used under the producer's lock.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from typing import Final

from spark_kafkalite.errors import ConfigError, SerializationError
from spark_kafkalite.records.kernel import murmur2

PartitionFunction = Callable[[str, "bytes | None", "bytes | None", int], int]
"""Given topic, key, value and the number of partitions, returns the partition."""

_POSITIVE: Final = 0x7FFFFFFF


def partition_of_key(key: bytes, partition_count: int) -> int:
    """Return the partition of a key, as Kafka's clients compute it. Raises SerializationError unless it is bytes."""
    try:
        return (murmur2(key) & _POSITIVE) % partition_count
    except TypeError:
        raise SerializationError(f"key is {type(key).__name__}, must be bytes-like or None") from None


class TopicPartitioner:
    """The choice for one topic. ``sticky`` is the partition that records without key go to at present."""

    __slots__ = ("_available", "_custom", "_next", "_random", "count", "ignore_keys", "mode", "sticky", "topic")

    def __init__(
        self,
        topic: str,
        mode: str | PartitionFunction,
        *,
        ignore_keys: bool = False,
        random_source: random.Random | None = None,
    ) -> None:
        self.topic = topic
        self.mode = mode if isinstance(mode, str) else "custom"
        self._custom = mode if callable(mode) else None
        self.ignore_keys = ignore_keys
        self._random = random_source or random.Random()
        self.count = 0
        self._available: Sequence[int] = ()
        self.sticky = 0
        self._next = 0

    def update(self, partition_count: int, available: Sequence[int]) -> None:
        """Take over the topic's partitions; ``available`` are the numbers of those that have a leader."""
        first_time = self.count == 0
        self.count = partition_count
        self._available = available or range(partition_count)
        if first_time:
            # Producers that start together must not all begin with the same partition.
            self._next = self._random.randrange(len(self._available))
        if first_time or self.sticky not in self._available:
            self.sticky = self._random.choice(self._available)

    def choose(self, key: bytes | None, value: bytes | None) -> int:
        """Return the partition of one record.

        Raises ConfigError when the user's function returns something that is not a partition of the topic.
        """
        if self._custom is not None:
            partition = self._custom(self.topic, key, value, self.count)
            if not isinstance(partition, int) or not 0 <= partition < self.count:
                raise ConfigError(
                    f"the partitioner returned {partition!r} for topic {self.topic}: it must be an int from 0 to "
                    f"{self.count - 1}"
                )
            return partition
        if key is not None and not self.ignore_keys:
            return partition_of_key(key, self.count)
        if self.mode == "default":
            return self.sticky
        if self.mode == "random":
            return self._random.choice(self._available)
        self._next = (self._next + 1) % len(self._available)
        return self._available[self._next]

    def draw(self, count: int) -> array[int]:
        """Return partitions for ``count`` records without key, round robin or random."""
        if self.mode == "random":
            return array("i", self._random.choices(self._available, k=count))
        size = len(self._available)
        first = self._next + 1
        self._next = (self._next + count) % size
        turns = array("i", [self._available[(first + step) % size] for step in range(size)])
        return (turns * (count // size + 1))[:count]

    def move_on(self) -> None:
        """Change the sticky partition: its batch is full. It changes for certain when there is another one."""
        others = [partition for partition in self._available if partition != self.sticky]
        if others:
            self.sticky = self._random.choice(others)

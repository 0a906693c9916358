"""Counters of topics and logs for the broker's metrics: plain integers that the event loop raises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

# The first bound is 2**9 us; each further one is twice as large, up to 16.8 s.
_FIRST_BITS: Final = 9
_BUCKETS: Final = 16
_BOUNDS_S: Final = tuple(2 ** (_FIRST_BITS + number) / 1e6 for number in range(_BUCKETS))


class Histogram:
    """Counts of durations, by buckets whose bounds are powers of two."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (_BUCKETS + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        bucket = (int(seconds * 1_000_000) >> _FIRST_BITS).bit_length()
        self.counts[bucket if bucket < _BUCKETS else _BUCKETS] += 1
        self.total_s += seconds

    def buckets(self) -> Iterator[tuple[float, int]]:
        """Iterate over upper bounds in seconds and counts; the last bound is infinity."""
        return zip((*_BOUNDS_S, float("inf")), self.counts, strict=True)


class TopicMeter:
    """What clients and followers do with one topic at this broker. Sizes are bytes of record batches as stored."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_fetch_requests",
        "failed_produce_requests",
        "fetch_requests",
        "messages_in",
        "produce_requests",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        self.bytes_in = self.messages_in = self.produce_requests = self.failed_produce_requests = 0
        self.bytes_out = self.fetch_requests = self.failed_fetch_requests = 0
        self.replication_bytes_in = self.replication_bytes_out = 0


class TopicMeters:
    """The meters of topics by name, and ``rest``: requests that name no topic of this broker, and deleted topics."""

    def __init__(self) -> None:
        self.by_name: dict[str, TopicMeter] = {}
        self.rest = TopicMeter()
        # By the names and ids in fetches that have named topics of this broker: a small fetch looks up nothing else.
        self.by_topic: dict[str | bytes, TopicMeter] = {}

    def of(self, topic: str) -> TopicMeter:
        """Return the meter of a topic that this broker has a partition of."""
        meter = self.by_name.get(topic)
        if meter is None:
            meter = self.by_name[topic] = TopicMeter()
        return meter

    def known(self, topic: str | None) -> TopicMeter:
        """Return the meter of a topic that a client has named; clients may name anything."""
        return self.rest if topic is None else self.by_name.get(topic, self.rest)

    def fetched(self, topic: str | bytes, name_of: Callable[[bytes], str | None]) -> TopicMeter:
        """Return the meter of a topic that a fetch has named, by its name or its id (``name_of`` knows names by ids).
        The next time ``by_topic`` has it, unless it is no topic of this broker."""
        meter = self.known(topic if isinstance(topic, str) else name_of(topic))
        if meter is not self.rest:
            self.by_topic[topic] = meter
        return meter

    def forget(self, topics: Iterable[str]) -> None:
        """Keep what deleted topics had in the sums alone."""
        self.by_topic.clear()
        for topic in topics:
            meter = self.by_name.pop(topic, None)
            if meter is not None:
                for name in TopicMeter.__slots__:
                    setattr(self.rest, name, getattr(self.rest, name) + getattr(meter, name))

    def total(self, counter: Callable[[TopicMeter], int]) -> int:
        """Return the sum of one counter over all topics."""
        return sum(map(counter, (self.rest, *self.by_name.values())))


class LogMeters:
    """What is counted where logs are written: topics, and flushes."""

    def __init__(self) -> None:
        self.topics = TopicMeters()
        self.flushes = Histogram()
        # Flushes whose records may not be on the disk: their log directory is offline from then on.
        self.failed_flushes = 0
        # Of batches that replicas received which a reassignment adds: at this broker, and from it.
        self.reassignment_bytes_in = self.reassignment_bytes_out = 0

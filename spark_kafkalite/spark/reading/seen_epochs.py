"""The leader epochs in which a query has seen logs reach to its offsets. Pure.

A task whose log has less of the epochs up to its first offset reads a log that was cut since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from spark_kafkalite.model import NO_LEADER_EPOCH, TopicPartition
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange, Offsets


class SeenEpochs:
    """The leader epochs of both ends of the batch to come."""

    def __init__(self) -> None:
        self._epochs: dict[tuple[TopicPartition, int], int] = {}

    def remember(self, start: Offsets, end: Offsets, leader_epochs: Mapping[TopicPartition, int]) -> None:
        """Take note of a batch. ``leader_epochs`` are those under which the logs have just been seen to reach to
        ``end``."""
        # The first one counts: a later leader may have a log that was cut.
        known = {at: epoch for at in start.items() if (epoch := self._epochs.get(at)) is not None}
        self._epochs = {**{(tp, end[tp]): epoch for tp, epoch in leader_epochs.items()}, **known}

    def with_epochs(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges with the leader epochs of their starts, as far as they are known."""
        return [
            replace(each, start_epoch=self._epochs.get((each.topic_partition, each.start_offset), NO_LEADER_EPOCH))
            for each in ranges
        ]

"""The end of an AvailableNow run: the ends of the logs when the run began.

The end moves only if a topic or a log changed meanwhile. Partitions that were deleted since leave the run. Partitions
of the query that were unknown when the run began join it if they exist. The run reads a topic that was created again up
to its new end. It reads a log that ends below the run's end up to there: a task would wait for records that may never
arrive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafkalite.spark.conditions import LOSS_OFFSET_CHANGED, listed
from spark_kafkalite.spark.reading.data_loss import DataLoss, LossCause, LossPolicy
from spark_kafkalite.spark.reading.offset_ranges import Offsets

if TYPE_CHECKING:
    from spark_kafkalite.spark.reading.cluster_offsets import ClusterOffsets
    from spark_kafkalite.spark.reading.known_topics import KnownTopics


class RunEnd:
    """The end of one run. ``offsets`` is replaced when the end moves."""

    def __init__(self, offsets: Offsets, losses: LossPolicy) -> None:
        self.offsets = offsets
        self._losses = losses

    def follow_logs(self, start: Offsets, lookup: ClusterOffsets, topics: KnownTopics) -> None:
        """Bring the end up to date with the logs. ``start`` is where the next batch begins.

        Raises SparkConditionError where a log ends below the end or a topic was created again, unless data may be lost.
        """
        end = dict(self.offsets)
        assigned = lookup.assigned({tp.topic for tp in {**start, **end}})
        topics.note(assigned)
        there = set(assigned.partitions)
        end = {tp: offset for tp, offset in end.items() if tp in there}
        if missed := [tp for tp in start if tp in there and tp not in end]:
            end.update(lookup.latest(missed, start))
        latest = lookup.latest(end, {tp: offset for tp, offset in end.items() if tp.topic not in topics.recreated})
        lower = {tp: now for tp, now in latest.items() if tp.topic not in topics.recreated and now < end[tp]}
        # Below the batch's start it is found when the batch is planned.
        if cut := sorted(tp for tp, now in lower.items() if now >= start.get(tp, 0)):
            shown = listed([f"{tp} went from {end[tp]} to {lower[tp]}" for tp in cut])
            text = f"logs end below the end of this AvailableNow run: {shown}"
            self._losses.meet(DataLoss(LOSS_OFFSET_CHANGED, LossCause.END_WENT_BACK, text), " to the new ends")
        end.update({tp: now for tp, now in latest.items() if tp.topic in topics.recreated or tp in lower})
        self.offsets = end

    def cover(self, start: Offsets) -> None:
        """Move the end of a query's first batch to its start, where that lies behind it.

        The start was resolved after the end: records and partitions that came in between belong to the next run, and
        the end must not lie before the start, nor lack a partition of it.
        """
        end = self.offsets
        self.offsets = {tp: max(end.get(tp, 0), start.get(tp, 0)) for tp in {**end, **start}}

"""Streaming reads on the driver: initial offsets, the end of each micro-batch, and its tasks.

One object serves a query in a Python process of its own. The engine calls it from one thread, in this order:

1. ``prepareForTriggerAvailableNow``, once, if the trigger is AvailableNow;
2. ``initialOffset``, if there is no checkpoint yet;
3. for each batch ``latestOffset``, ``commit`` of the batch before, ``partitions``. After a restart with a batch that
   was planned and not finished, ``partitions`` comes first.

The engine's behaviour sets these rules:

- It repeats a first batch that failed with a *new* ``initialOffset``. So the end of batch 0 carries the initial offsets
  (``$initial``, see :mod:`.offset_json`) and ``partitions`` uses those. Otherwise records are lost.
- It compares offsets as text. So an offset that did not move is returned unchanged. Otherwise empty batches run.
- An exception ends the query. So every call to the cluster retries (:mod:`.cluster_offsets`).
- With the default trigger it calls ``latestOffset`` as fast as it returns. So without new records the call waits a
  little (:mod:`.trigger_pace`).
- ``commit`` is delayed by one batch and ``stop`` is never called. So nothing depends on them. The ``start`` of
  ``latestOffset`` is durably done, because the engine takes it from its commit log; the offset registry commits that
  (``checkpoints.checkpoint_commits``). An AvailableNow run calls once more after its last batch. Trigger.Once and a
  stopped query do not. The listener commits their last batch, or the query does when it starts again.

The engine makes a second such object only to pickle it with ``read``. So an object connects when it first has to.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.checkpoints.checkpoint_topics import meet_unsubscribed
from spark_kafkalite.spark.conditions import listed
from spark_kafkalite.spark.options.options import ReaderOptions
from spark_kafkalite.spark.options.positions import AT_EARLIEST, Positions
from spark_kafkalite.spark.pyspark_versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from spark_kafkalite.spark.reading.available_now import RunEnd
from spark_kafkalite.spark.reading.batch_reader import planned_tasks, report_gone
from spark_kafkalite.spark.reading.cluster_offsets import ClusterOffsets
from spark_kafkalite.spark.reading.data_loss import LossCause
from spark_kafkalite.spark.reading.known_topics import KnownTopics
from spark_kafkalite.spark.reading.offset_json import from_json, to_json
from spark_kafkalite.spark.reading.offset_ranges import (
    Offsets,
    losses,
    ranges_between,
    waiting,
)
from spark_kafkalite.spark.reading.read_plan import ReadPlan, tasks_of
from spark_kafkalite.spark.reading.seen_epochs import SeenEpochs
from spark_kafkalite.spark.reading.trigger_limits import limited, limited_by_bytes
from spark_kafkalite.spark.reading.trigger_pace import TriggerPace
from spark_kafkalite.spark.tracebacks import without_frames
from spark_kafkalite.spark.workers.worker_log import say

if TYPE_CHECKING:
    from spark_kafkalite.spark.checkpoints.checkpoint_commits import OffsetRegistry

_LOG = logging.getLogger("spark_kafkalite.spark")


@without_frames
class KafkaliteStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark asks of the source of one streaming query."""

    def __init__(self, options: ReaderOptions, schema: pa.Schema) -> None:
        self._options = options
        self._plan = ReadPlan.of(options, schema)
        self._starting = options.starting_for(streaming=True)
        self._lookup_made: ClusterOffsets | None = None
        self._registry_made: OffsetRegistry | None = None
        self._initial: Offsets | None = None
        self._first_batch_planned = False
        self._run_end: RunEnd | None = None
        self._latest: Offsets | None = None
        self._topics = KnownTopics(options)
        self._epochs = SeenEpochs()
        self._pace = TriggerPace(options.min_offsets_per_trigger, options.max_trigger_delay_ms)
        self._has_planned_end = False
        self._has_begun = False
        # Partitions of the checkpoint that the options do not name, as far as they have been met.
        self._left_partitions: set[TopicPartition] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lookup_made": None, "_registry_made": None}

    @property
    def _lookup(self) -> ClusterOffsets:
        if self._lookup_made is None:
            self._lookup_made = ClusterOffsets(self._options)
        return self._lookup_made

    @property
    def _registry(self) -> OffsetRegistry | None:
        if self._registry_made is None and self._options.commit.commits:
            # Most queries commit nothing, and a process is started for each of them.
            from spark_kafkalite.spark.checkpoints.checkpoint_commits import OffsetRegistry

            self._registry_made = OffsetRegistry.of(self._options)
        return self._registry_made

    def _begin(self, checkpoint: Offsets | None) -> None:
        """Warn of the options, once the engine has asked for something.

        ``checkpoint``: where the query goes on, None if it starts where the options specify.
        """
        if self._has_begun:
            return
        self._has_begun = True
        say(self._options.stream_notes())
        if checkpoint is None or self._options.starting is None:
            return
        starting, new = self._options.starting, self._options.new_partition_start
        overridden = [f"{starting.option}={starting.text}"]
        if new.option in self._options.given:
            overridden.append(f"{new.option}={new.text}")
        _LOG.warning(
            "%s: without effect on the partitions of the checkpoint, in which the query goes on at %s; for another "
            "start give it a new checkpointLocation, or move this one with kafkalite offsets rewind --checkpoint",
            ", ".join(overridden),
            listed([f"{tp} offset {offset}" for tp, offset in sorted(checkpoint.items())]),
        )

    def _without_unsubscribed(self, start: Offsets, kept: Collection[TopicPartition] = ()) -> Offsets:
        """Return the offsets of the checkpoint that the options name, and those of ``kept``.

        Raises SparkConditionError if the others must not be left, as with a checkpoint of another query.
        """
        left = self._options.subscription.unnamed(start)
        if not left:
            return start
        if self._left_partitions != left:
            meet_unsubscribed(self._options, left, is_all=len(left) == len(start))
            self._left_partitions = left
        return {tp: offset for tp, offset in start.items() if tp not in left or tp in kept}

    # Offsets --------------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Resolve the starting options, once in this process: batch 0 asks twice and must get the same."""
        self._begin(None)
        if self._initial is None:
            assigned = self._lookup.assigned()
            self._topics.note(assigned)
            if self._starting.committed:
                from spark_kafkalite.spark.checkpoints.checkpoint_commits import committed_start

                initial = committed_start(self._options, self._lookup, assigned)
            else:
                initial = self._lookup.resolved(self._starting, assigned.partitions, starting=True)
            report_gone(self._options, assigned.partitions, initial)
            self._initial = initial
            _LOG.info("starting at %s", to_json(self._initial))
        return to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the options' limit; Trigger.Once overrules it with everything.

        The engine takes only one limit from a Python source. If both are set, this is the limit of offsets.
        """
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take note of the ends of the logs; the query stops when it gets there."""
        self._run_end = RunEnd(self._latest_now({}), self._options.losses)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch, or ``start`` itself when there is nothing to do."""
        start_offsets, _ = from_json(start)
        start_offsets = self._without_unsubscribed(start_offsets)
        self._begin(start_offsets)
        if self._options.available_now and self._run_end is None:
            self.prepareForTriggerAvailableNow()
        is_first = self._is_first_batch(start)
        if self._initial is None:
            self._compare_ids(start_offsets, start)
        self._has_planned_end = True
        self._tell_registry(start_offsets, is_first)
        if not is_first:
            self._topics.keep(start, {tp.topic for tp in start_offsets})
        latest = self._latest_for(start_offsets, is_first)
        if not is_first and self._run_end is None and latest == start_offsets and not self._topics.recreated:
            latest = self._wait_for_news(start_offsets)
        self._latest = latest
        begin = self._begin_of(start_offsets, latest)
        # An AvailableNow run would leave its last records unread.
        if not is_first and self._run_end is None and self._pace.waits_for_more(waiting(begin, latest)):
            return start
        end = self._limited(begin, latest, limit)
        if not self._new_from_first:
            # The first batch of new partitions has none of their records, but holds their start for a repetition.
            end = {tp: offset if tp in start_offsets else begin.get(tp, offset) for tp, offset in end.items()}
        self._epochs.remember(start_offsets, end, self._lookup.leader_epochs(end))
        if is_first:
            return to_json(end, initial=self._initial)
        if end == start_offsets:
            end = _told_apart(begin, end)
        if end == start_offsets:
            if self._run_end is not None and self._registry is not None:
                # The run ends here: the last chance to commit its last batch.
                self._registry.follow(start_offsets, self._topics.ids, last=True)
            return start
        self._pace.has_batch()
        return to_json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the logs as last seen, for the query's progress."""
        return None if self._latest is None else to_json(self._latest)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint holds the offsets, and ``latestOffset`` passed them to the registry."""

    def stop(self) -> None:
        """Release what the query has open; the engine calls this at its end."""
        registry, self._registry_made = self._registry_made, None
        if registry is not None:
            registry.close()

    def _is_first_batch(self, start: Mapping[str, Any]) -> bool:
        """Whether the batch to come is batch 0, whose end must carry the initial offsets."""
        return self._initial is not None and not self._first_batch_planned and start == to_json(self._initial)

    def _latest_for(self, start_offsets: Offsets, is_first: bool) -> Offsets:
        if self._run_end is None:
            return self._latest_now(start_offsets)
        self._run_end.follow_logs({} if is_first else start_offsets, self._lookup, self._topics)
        if is_first:
            self._run_end.cover(start_offsets)
        return self._run_end.offsets

    def _latest_now(self, start_offsets: Mapping[TopicPartition, int]) -> Offsets:
        assigned = self._lookup.assigned({tp.topic for tp in start_offsets})
        self._topics.note(assigned)
        # The end of a topic that is a new one of the same name may well be lower.
        not_below = {tp: offset for tp, offset in start_offsets.items() if tp.topic not in self._topics.recreated}
        return self._lookup.latest(assigned.partitions, not_below)

    def _wait_for_news(self, start_offsets: Offsets) -> Offsets:
        latest = start_offsets
        for _ in self._pace.looks():
            # New partitions are looked for once in a call of latestOffset, new records more often.
            latest = self._lookup.latest(start_offsets, start_offsets)
            if any(latest.get(tp, offset) < offset for tp, offset in start_offsets.items()):
                # It may be a new topic of the same name, which its id shows.
                return self._latest_now(start_offsets)
            if latest != start_offsets:
                break
        return latest

    def _begin_of(self, start_offsets: Offsets, latest: Offsets) -> Offsets:
        """Return where each partition goes on: recreated topics at their first offset, new partitions at
        ``newPartitionStart``."""
        again = [tp for tp in latest if tp.topic in self._topics.recreated]
        new = [tp for tp in latest if tp not in start_offsets and tp.topic not in self._topics.recreated]
        return {
            **{tp: offset for tp, offset in start_offsets.items() if tp in latest},
            **self._lookup.earliest(again),
            **(self._lookup.resolved(self._options.new_partition_start, new, starting=False) if new else {}),
        }

    def _limited(self, begin: Offsets, latest: Offsets, limit: ReadLimit) -> Offsets:
        if isinstance(limit, ReadAllAvailable):
            return latest
        end = {tp: offset for tp, offset in latest.items() if tp in begin}
        if isinstance(limit, ReadMaxRows):
            end = limited(begin, end, limit.max_rows)
        if self._options.max_bytes_per_trigger is not None:
            end = limited_by_bytes(self._lookup.samples, begin, end, self._options.max_bytes_per_trigger)
        return end

    @property
    def _new_from_first(self) -> bool:
        return self._options.new_partition_start.positions == Positions(AT_EARLIEST)

    # The offset registry --------------------------------------------------------------------------------------------

    def _tell_registry(self, start_offsets: Offsets, is_first: bool) -> None:
        """Commit the end of the batch before, which is finished once the engine asks for the next one."""
        registry = self._registry
        if registry is None:
            return
        if is_first:
            # Nothing is done yet, but a group that is further on goes back to where the user said.
            if self._options.starting is not None and not self._starting.committed:
                registry.rewind(start_offsets, self._topics.ids)
            return
        # With the ids of before this call's look at the cluster: those that the batches were planned under.
        registry.follow(
            {tp: offset for tp, offset in start_offsets.items() if tp.topic not in self._topics.recreated},
            self._topics.ids,
        )

    def _compare_ids(self, known: Offsets, position: Mapping[str, Any]) -> set[str]:
        """After a restart, return the topics of these offsets that were created again since; see ``KnownTopics``."""
        topics = {tp.topic for tp in known}
        return self._topics.compare(topics, position, lambda: self._committed_ids(known), self._lookup.assigned)

    def _committed_ids(self, known: Offsets) -> Mapping[str, bytes] | None:
        """Return the topic ids in the group's commits, None without a group, or if this process has begun the query."""
        if self._registry is None or self._initial is not None:
            return None
        remembered = self._registry.remembered(known)
        if remembered.without_offsets:
            _LOG.warning(
                "the group %s has no offsets of %s, which this query has read. The group is new to the query, commits "
                "failed or expired, or the topic was deleted, which makes Kafka forget them. Only offsets that went "
                "back, or ids in the checkpoint, show a topic that was created again since",
                self._options.commit.group_id,
                ", ".join(sorted(remembered.without_offsets)),
            )
        return remembered.topic_ids

    # Tasks ----------------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch. Raises SparkConditionError when data is lost and must not be."""
        self._first_batch_planned = True
        end_offsets, initial = from_json(end)
        start_offsets, _ = from_json(start)
        # Batch 0 holds its own start, and knows better than an initialOffset() that was asked again after a failure. In
        # a later batch the end is the same object as the start's and says nothing new.
        if initial is not None and start != end:
            start_offsets = initial
        # A batch that was planned before a restart is read whole, so that its records stay the same.
        start_offsets = self._without_unsubscribed(start_offsets, kept=end_offsets)
        self._begin(start_offsets)
        made_again: set[str] = set()
        if self._initial is None or not self._has_planned_end:
            # Of batch 0 that was planned before a restart, the offset log has only the end.
            made_again = self._compare_ids(start_offsets, end if initial is not None and start != end else start)
        new = [tp for tp in end_offsets if tp not in start_offsets]
        first_of_new: Offsets = {}
        if new and self._new_from_first:
            first_of_new = self._lookup.earliest(new)
        else:
            start_offsets.update({tp: end_offsets[tp] for tp in new})
        begin = {**start_offsets, **first_of_new}
        for loss in losses(start_offsets, end_offsets, first_of_new):
            self._options.losses.meet(loss)
            if loss.cause is LossCause.END_WENT_BACK:
                begin.update(self._begin_again(start_offsets, end_offsets))
        begin.update(self._lookup.earliest(tp for tp in end_offsets if tp.topic in self._topics.recreated - made_again))
        # Planned before a restart, for a topic that is gone: the next batch begins with the new one.
        begin.update({tp: offset for tp, offset in end_offsets.items() if tp.topic in made_again})
        self._topics.recreated = made_again
        self._topics.keep(end, {tp.topic for tp in end_offsets})
        end_offsets = {tp: offset for tp, offset in end_offsets.items() if tp in begin}
        ranges = self._epochs.with_epochs(ranges_between(begin, end_offsets))
        return [*tasks_of(self._options, planned_tasks(self._options, self._lookup, ranges))]

    def _begin_again(self, start: Offsets, end: Offsets) -> Offsets:
        """Return the first offsets of partitions whose end went backwards, unless the topic is known to be the same.

        A topic with another id, or one that this process has not seen before, counts as a new topic and is read from
        its beginning. If the id is the same, the log was truncated. Then the range is skipped, as in the JVM connector.
        """
        backwards = [tp for tp, offset in end.items() if tp in start and offset < start[tp]]
        return self._lookup.earliest(tp for tp in backwards if not self._topics.is_same(tp.topic))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's ranges; runs in a Python worker, on a copy of this object."""
        from spark_kafkalite.spark.reading.partition_reader import read_task

        return read_task(self._plan, partition)


def _told_apart(begin: Offsets, end: Offsets) -> Offsets:
    """Return the end of a batch, one record lower if it has records to read. Call it if the end equals the start.

    This happens if a recreated topic has exactly as many records as the old one. The engine runs no batch between equal
    offsets. The next batch reads the record that is left out.
    """
    unread = next((tp for tp, offset in end.items() if begin.get(tp, offset) < offset), None)
    return end if unread is None else {**end, unread: end[unread] - 1}

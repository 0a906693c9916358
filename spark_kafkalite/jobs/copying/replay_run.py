"""The record of a replay with a run id in the cluster, so that a repeated run writes only the records that lack.

The record is the metadata of the committed offsets of a consumer group without members, ``kafkalite-replay-RUN``. The
run commits them in one request before it writes anything. For each partition of the source they hold the range that the
first start planned, for each partition of the target its end at that moment. So a repeated run reads the same range,
although new records have arrived, and searches for its stamps only from that end on.

The offsets themselves mean nothing to a repeated run. They are the ends of the logs at the last commit, and a run that
has finished commits once more: lag tools then show no lag of the group.

The coordinator deletes a group's offsets ``offsets.retention.minutes`` after its last commit (7 days by default), and
each start commits again. A run whose record is gone starts from the beginning. So the first start reads the last
records of the target, and refuses to run if they have the stamps of its own run id. Earlier records may still have
them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from spark_kafkalite.errors import UnknownTopicOrPartition
from spark_kafkalite.jobs.load.planning import LoadPlan, PlanError, TopicLogs
from spark_kafkalite.manifests.manifest import LoadedTopic
from spark_kafkalite.model import LATEST_TIMESTAMP, CommittedOffset, LogBounds, TopicPartition
from spark_kafkalite.spark.conditions import listed
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.jobs.copying.offset_set import OffsetSet

GROUP_PREFIX: Final = "kafkalite-replay-"
# Of each partition of the target, at a first start: enough to see a run that ended there.
LOOK_BACK_OFFSETS: Final = 1_000
_DIGEST_DIGITS: Final = 16


def group_of(run_id: str) -> str:
    """Return the group that keeps a run's record."""
    return f"{GROUP_PREFIX}{run_id}"


def digest(asked: Mapping[str, object]) -> str:
    """Return a text that identifies a range that was asked for."""
    return sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:_DIGEST_DIGITS]


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """A run as its first start recorded it: the ``ranges`` of the source, and where each partition of the target
    ended, ``begins``."""

    asked: str
    topic_ids: Mapping[str, str | None]
    ranges: Mapping[TopicPartition, tuple[int, int]]
    begins: Mapping[TopicPartition, int]

    @classmethod
    def first(cls, asked: str, plan: LoadPlan, source: TopicLogs, target: TopicLogs) -> ReplayRun:
        """Return the run of a plan that was made now."""
        planned = {each.topic_partition: (each.start_offset, each.end_offset) for each in plan.ranges}
        ends = {tp: (log.end_offset, log.end_offset) for tp, log in source.bounds.items()}
        topics = {tp.topic for tp in (*source.bounds, *target.bounds)}
        ids = {**source.topic_ids, **target.topic_ids}
        return cls(
            asked,
            {topic: ids.get(topic) for topic in topics},
            {**ends, **planned},
            {tp: log.end_offset for tp, log in target.bounds.items()},
        )

    def offsets(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, CommittedOffset]:
        """Return what is committed: these ``ends`` of the logs of source and target, with the run as metadata.

        Where no end is given, it is the one that the run recorded.
        """
        common = {"run": self.asked, "of": [len(self.ranges), len(self.begins)]}
        fields: dict[TopicPartition, tuple[int, Mapping[str, int]]] = {
            tp: (end, {"start": start, "end": end}) for tp, (start, end) in self.ranges.items()
        }
        fields.update((tp, (begin, {"begin": begin})) for tp, begin in self.begins.items())
        committed: dict[TopicPartition, CommittedOffset] = {}
        for tp, (otherwise, own) in fields.items():
            metadata = json.dumps({**common, "id": self.topic_ids[tp.topic], **own}, separators=(",", ":"))
            committed[tp] = CommittedOffset(ends.get(tp, otherwise), metadata)
        return committed

    @classmethod
    def of(cls, group: str, committed: Mapping[TopicPartition, CommittedOffset]) -> ReplayRun:
        """Return the run that a group remembers. Raises PlanError for one that lacks something."""
        ranges: dict[TopicPartition, tuple[int, int]] = {}
        begins: dict[TopicPartition, int] = {}
        ids: dict[str, str | None] = {}
        fields: dict[str, Any] = {}
        for tp, each in committed.items():
            try:
                fields = json.loads(each.metadata)
                ids[tp.topic] = fields["id"]
                # Version 0.2 kept the end, and the begin, in the offset.
                if "start" in fields:
                    ranges[tp] = (int(fields["start"]), int(fields.get("end", each.offset)))
                else:
                    begins[tp] = int(fields.get("begin", each.offset))
            except (ValueError, KeyError, TypeError):
                raise PlanError(
                    f"group {group}: what it has committed for {tp} is no record of a replay; give another --run-id"
                ) from None
        if fields.get("of") != [len(ranges), len(begins)]:
            raise PlanError(
                f"group {group}: its record of the run lacks partitions: a topic of it was deleted since, or the "
                "record was not written whole; give another --run-id, and an empty target"
            )
        return cls(str(fields["run"]), ids, ranges, begins)

    def resumed(self, run_id: str, asked: str, source: TopicLogs, target: TopicLogs) -> LoadPlan:
        """Return the plan of the first start, to be carried out again.

        Raises PlanError when something else is asked for, when a topic was created again, and when the log of the
        target no longer holds all that the run may have written.
        """
        named = [{tp.topic for tp in each} for each in (self.ranges, self.begins)]
        if named != [{tp.topic for tp in each.bounds} for each in (source, target)]:
            read, written = (listed(sorted(each)) for each in named)
            raise PlanError(f"--run-id {run_id}: that run reads topic {read} and writes topic {written}; give another")
        if asked != self.asked:
            raise PlanError(
                f"--run-id {run_id}: that run was begun with another range; repeat its options, or give another "
                "--run-id"
            )
        for topic, found in {**source.topic_ids, **target.topic_ids}.items():
            known = self.topic_ids.get(topic)
            if known is not None and known != found:
                raise PlanError(
                    f"--run-id {run_id}: topic {topic} had id {known} when the run began, and has id {found} now: it "
                    "was deleted and created again; give another --run-id"
                )
        for tp, begin in sorted(self.begins.items()):
            log = target.bounds.get(tp, LogBounds(0, 0))
            if not log.start_offset <= begin <= log.end_offset:
                raise PlanError(
                    f"--run-id {run_id}: the run began to write at offset {begin} of {tp}, whose log now holds offsets "
                    f"{log.start_offset} to {log.end_offset} (exclusive): what the run has written is no longer known; "
                    "replay into another topic with another --run-id, and with retention.ms=-1"
                )
        for tp, (_, end) in sorted(self.ranges.items()):
            if (log := source.bounds.get(tp, LogBounds(0, 0))).end_offset < end:
                raise PlanError(
                    f"--run-id {run_id}: the run reads {tp} up to offset {end}, but its log now ends at "
                    f"{log.end_offset}: it was truncated; give another --run-id"
                )
        # What the log no longer holds may be in the target already; if not, whoever reads it says so.
        ranges = [OffsetRange(tp, first, end) for tp, (first, end) in sorted(self.ranges.items()) if first < end]
        topics = {
            topic: LoadedTopic(source.topic_ids.get(topic), {tp.partition: end for tp, (_, end) in self.ranges.items()})
            for topic in {tp.topic for tp in self.ranges}
        }
        return LoadPlan(tuple(ranges), topics)

    def look_from(self, target: TopicLogs) -> dict[TopicPartition, int]:
        """Return from where on the target is looked through; a partition that it got since, from its start."""
        return {tp: self.begins.get(tp, log.start_offset) for tp, log in target.bounds.items()}


def commit(admin: Admin, run_id: str, run: ReplayRun) -> None:
    """Commit the record of a run at the ends that the logs have now. A log that is gone keeps the recorded end."""
    partitions = [*run.ranges, *run.begins]
    ends: dict[TopicPartition, int] = {}
    for topic in {tp.topic for tp in partitions}:
        with suppress(UnknownTopicOrPartition):
            # Lag tools compare with the ends of all records, committed or not.
            found = admin.list_offsets(dict.fromkeys((tp for tp in partitions if tp.topic == topic), LATEST_TIMESTAMP))
            ends.update((tp, at.offset) for tp, at in found.items() if at is not None)
    admin.alter_group_offsets(group_of(run_id), run.offsets(ends))


def recorded_run(admin: Admin, run_id: str) -> ReplayRun | None:
    """Return what the cluster remembers of a run, None for one that has not begun. Raises PlanError."""
    group = group_of(run_id)
    committed = admin.group_offsets(group)
    return ReplayRun.of(group, committed) if committed else None


def last_records(target: TopicLogs) -> dict[TopicPartition, int]:
    """Return where the last records of each partition of the target begin."""
    return {tp: max(log.start_offset, log.end_offset - LOOK_BACK_OFFSETS) for tp, log in target.bounds.items()}


def check_new(run_id: str, target: str, found: Mapping[int, OffsetSet]) -> None:
    """Raise PlanError when a run of which the cluster knows nothing has written the last records of the target."""
    if found:
        raise PlanError(
            f"--run-id {run_id}: topic {target} holds records of that run, but group {group_of(run_id)}, which "
            "remembers where it began, is gone (offsets.retention.minutes after its last start, or deleted); give "
            "another --run-id, and the range of what is missing"
        )


def compaction_problem(admin: Admin, topic: str) -> str | None:
    """Return why a run cannot be repeated into the topic: compaction removes records, and they would come again."""
    settings = admin.describe_topic_settings([topic], ["cleanup.policy"]).get(topic)
    policy = settings.get("cleanup.policy") if settings else None
    if policy is not None and policy.value is not None and "compact" in policy.value:
        return (
            f"topic {topic} has cleanup.policy={policy.value}: a repeated run would write again what compaction has "
            "removed; replay into a topic with cleanup.policy=delete, or leave out --run-id"
        )
    return None

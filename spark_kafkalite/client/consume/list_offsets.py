"""Offsets by time, and the ends of logs: ListOffsets at the leader of each partition.

Timestamps are milliseconds; negative ones name places (``model.EARLIEST_TIMESTAMP`` and others).

A leader that was elected just now does not know yet how far its log is committed, and answers OFFSET_NOT_AVAILABLE (78;
LEADER_NOT_AVAILABLE before version 5). A caller that knows an earlier end passes it as ``last_known`` and gets that;
other callers wait. Source: KIP-207.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.leader_questions import Asked, Failures, LeaderQuestion, ask_leaders
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import LeaderNotAvailable, OffsetNotAvailable, UnknownTopicOrPartition
from spark_kafkalite.model import NO_LEADER_EPOCH, IsolationLevel, TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from spark_kafkalite.wire.rights import refusal

# Metadata may lag behind a partition that was just added, for about as long as these rounds take.
_UNKNOWN_ROUNDS: Final = 4
_NO_NEWS: Final = frozenset({OffsetNotAvailable.code, LeaderNotAvailable.code})


class OffsetAndTimestamp(NamedTuple):
    """An answer of ListOffsets: ``timestamp`` is the record's, -1 for the ends of the log."""

    offset: int
    timestamp: int
    leader_epoch: int


def offsets_for(
    cluster: ClusterClient,
    timestamps: Mapping[TopicPartition, int],
    deadline: Deadline,
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    allow_auto_create: bool = False,
    last_known: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Return the first offset at or after each timestamp; None where there is none.

    ``last_known`` are ends that were seen before: they are returned, without timestamp and epoch, for leaders that do
    not know theirs yet.

    Timestamps are ms, or ``model.LATEST_TIMESTAMP`` and its like. Each partition's leader is asked; moves of
    leaders are followed until the deadline. Raises the last error then, or at once one that does not pass.
    """
    for topic in {each.topic for each in timestamps}:
        cluster.topic(topic, deadline, allow_auto_create=allow_auto_create)
    question = _OffsetsQuestion(timestamps, isolation, last_known or {})
    ask_leaders(cluster, question, deadline)
    return question.found


class _OffsetsQuestion(LeaderQuestion):
    """ListOffsets; what is left has the timestamps."""

    api_key = ApiKey.LIST_OFFSETS

    def __init__(
        self,
        timestamps: Mapping[TopicPartition, int],
        isolation: IsolationLevel,
        last_known: Mapping[TopicPartition, int],
    ) -> None:
        super().__init__(timestamps)
        self.found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        self._isolation = isolation
        self._last_known = last_known

    def request(self, asked: Asked, deadline: Deadline) -> ListOffsetsRequest:
        return ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(self._isolation),
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=info.partition,
                            current_leader_epoch=info.leader_epoch,
                            timestamp=self.left[TopicPartition(topic, info.partition)],
                        )
                        for info in infos
                    ],
                )
                for topic, infos in asked.items()
            ],
        )

    def take(self, answer: ListOffsetsResponse) -> Failures:
        failures: Failures = {}
        for topic in answer.topics:
            for item in topic.partitions:
                topic_partition = TopicPartition(topic.name, item.partition_index)
                if topic_partition not in self.left:
                    continue
                if item.error_code in _NO_NEWS and topic_partition in self._last_known:
                    end = self._last_known[topic_partition]
                    self.found[topic_partition] = OffsetAndTimestamp(end, -1, NO_LEADER_EPOCH)
                elif item.error_code:
                    text = f"{topic_partition}: its offsets cannot be looked up now"
                    failures[topic_partition] = refusal(ApiKey.LIST_OFFSETS, item.error_code, text)
                    continue
                else:
                    self.found[topic_partition] = (
                        None if item.offset < 0 else OffsetAndTimestamp(item.offset, item.timestamp, item.leader_epoch)
                    )
                del self.left[topic_partition]
        return failures

    def judge(self, failures: Failures, rounds: int, *, may_go_on: bool) -> None:
        for error in failures.values():
            # A partition that fresh metadata does not know either is not about to appear.
            if isinstance(error, UnknownTopicOrPartition) and rounds > _UNKNOWN_ROUNDS:
                raise error
        super().judge(failures, rounds, may_go_on=may_go_on)

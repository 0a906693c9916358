"""Administration of logs: delete records, look up offsets, and see what the log directories hold.

The base of :class:`spark_kafkalite.client.admin.admin.Admin` for these calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from spark_kafkalite.client.admin.requests import AdminRequests
from spark_kafkalite.client.consume.list_offsets import OffsetAndTimestamp, offsets_for
from spark_kafkalite.client.network.retry import Backoff, Deadline, needs_refresh
from spark_kafkalite.errors import BrokerUnreachable, ConfigError, KafkaError, KafkaliteError, UnknownTopicOrPartition
from spark_kafkalite.model import HIGH_WATERMARK, IsolationLevel, TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.error_codes import error_for
from spark_kafkalite.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from spark_kafkalite.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from spark_kafkalite.wire.rights import refusal


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """One log in a log directory. ``offset_lag`` is how far it is behind; ``is_future`` for a copy being moved here."""

    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirInfo:
    """One log directory of a broker.

    ``error`` says why it cannot be used. Bytes of the file system are None where the broker does not tell.
    """

    path: str
    error: KafkaError | None = None
    replicas: Mapping[TopicPartition, ReplicaInfo] = field(default_factory=dict)
    total_bytes: int | None = None
    usable_bytes: int | None = None


class LogAdmin(AdminRequests):
    """The calls of an administrator that have to do with logs."""

    def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records below an offset of each partition, for good; return where the logs start afterwards.

        HIGH_WATERMARK (-1) stands for the end that consumers see. Every partition is tried, then the first error is
        raised with all of them in its text: OffsetOutOfRange (1) beyond that end, PolicyViolation (44) for a topic that
        is only compacted, UnknownTopicOrPartition (3).
        """
        left = {TopicPartition(*each): offset for each, offset in before.items()}
        for topic_partition, offset in left.items():
            if offset < HIGH_WATERMARK:
                raise ConfigError(f"delete_records: {topic_partition} before {offset}: not an offset, nor -1")
        deadline = self._deadline(timeout_ms)
        for topic in {each.topic for each in left}:
            self._cluster.topic(topic, deadline)
        starts: dict[TopicPartition, int] = {}
        failed: dict[TopicPartition, KafkaliteError] = {}
        backoff = Backoff(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms)
        while left:
            passing = self._delete_round(left, starts, failed, deadline)
            pause_s = backoff.next_s()
            if passing and deadline.left_s() <= pause_s:
                failed.update(passing)
                break
            left = {each: left[each] for each in passing}
            if left:
                self._cluster.pause(pause_s)
                if any(needs_refresh(error) for error in passing.values()):
                    self._cluster.refresh({each.topic for each in left}, deadline)
        if failed:
            first, *others = failed.values()
            raise type(first)("; ".join(str(error) for error in (first, *others))) if others else first
        return starts

    def _delete_round(
        self,
        left: Mapping[TopicPartition, int],
        starts: dict[TopicPartition, int],
        failed: dict[TopicPartition, KafkaliteError],
        deadline: Deadline,
    ) -> dict[TopicPartition, KafkaliteError]:
        """Ask each leader once; fill ``starts`` and ``failed`` and return the errors that may pass."""
        passing: dict[TopicPartition, KafkaliteError] = {}
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)

        def note(topic_partition: TopicPartition, error: KafkaliteError) -> None:
            may_pass = isinstance(error, BrokerUnreachable) or (
                isinstance(error, KafkaError) and error.retriable and not isinstance(error, UnknownTopicOrPartition)
            )
            (passing if may_pass else failed)[topic_partition] = error

        for topic_partition in left:
            try:
                by_leader[self._cluster.leading(topic_partition).leader].append(topic_partition)
            except KafkaliteError as error:
                note(topic_partition, error)
        for leader, partitions in by_leader.items():
            topics: dict[str, list[DeleteRecordsPartition]] = defaultdict(list)
            for topic, partition in partitions:
                asked = DeleteRecordsPartition(partition_index=partition, offset=left[TopicPartition(topic, partition)])
                topics[topic].append(asked)
            request = DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name=name, partitions=each) for name, each in topics.items()],
                timeout_ms=self._broker_timeout_ms(deadline),
            )
            try:
                answer = self._cluster.request_to(leader, ApiKey.DELETE_RECORDS, request, deadline)
            except BrokerUnreachable as error:
                passing.update(dict.fromkeys(partitions, error))
                continue
            for result in answer.topics:
                for item in result.partitions:
                    topic_partition = TopicPartition(result.name, item.partition_index)
                    if item.error_code:
                        text = f"{topic_partition}: records before {left.get(topic_partition)} cannot be deleted"
                        note(topic_partition, refusal(ApiKey.DELETE_RECORDS, item.error_code, text))
                    else:
                        starts[topic_partition] = item.low_watermark
        return passing

    def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return offsets by time (ms), or for one of the places in a log; None where there is none.

        one of those that ``model`` names: LATEST_TIMESTAMP (-1), EARLIEST_TIMESTAMP (-2), MAX_TIMESTAMP (-3),
        EARLIEST_LOCAL_TIMESTAMP (-4), LATEST_TIERED_TIMESTAMP (-5).
        """
        wanted = {TopicPartition(*each): timestamp for each, timestamp in timestamps.items()}
        return offsets_for(self._cluster, wanted, self._deadline(timeout_ms), isolation=isolation)

    def describe_log_dirs(
        self,
        broker_ids: Iterable[int] | None = None,
        *,
        topics: Iterable[str] | None = None,
        timeout_ms: int | None = None,
    ) -> dict[int, list[LogDirInfo]]:
        """Return the log directories of brokers (None: all live ones), with the logs of ``topics`` (None: all)."""
        deadline = self._deadline(timeout_ms)
        nodes = self._cluster.refresh([], deadline).nodes
        asked = None
        if topics is not None:
            infos = {name: self._cluster.topic(name, deadline) for name in topics}
            asked = [
                DescribableLogDirTopic(topic=name, partitions=[each.partition for each in info.partitions])
                for name, info in infos.items()
            ]
        request = DescribeLogDirsRequest(topics=asked)
        found: dict[int, list[LogDirInfo]] = {}
        for broker_id in sorted(nodes) if broker_ids is None else dict.fromkeys(broker_ids):
            if broker_id not in nodes:
                raise ConfigError(f"there is no live broker {broker_id}; the brokers are {sorted(nodes)}")
            answer = self._retried(partial(self._log_dirs, broker_id, request, deadline), deadline)
            found[broker_id] = [_log_dir(each) for each in answer.results]
        return found

    def _log_dirs(self, broker_id: int, request: DescribeLogDirsRequest, deadline: Deadline) -> Any:
        answer = self._cluster.request_to(broker_id, ApiKey.DESCRIBE_LOG_DIRS, request, deadline)
        if answer.error_code:
            raise refusal(
                ApiKey.DESCRIBE_LOG_DIRS,
                answer.error_code,
                f"the log directories of broker {broker_id} cannot be described",
            )
        return answer


def _log_dir(received: Any) -> LogDirInfo:
    error = error_for(received.error_code, f"log directory {received.log_dir}") if received.error_code else None
    return LogDirInfo(
        received.log_dir,
        error,
        {
            TopicPartition(topic.name, each.partition_index): ReplicaInfo(
                each.partition_size, each.offset_lag, each.is_future_key
            )
            for topic in received.topics
            for each in topic.partitions
        },
        received.total_bytes if received.total_bytes >= 0 else None,
        received.usable_bytes if received.usable_bytes >= 0 else None,
    )

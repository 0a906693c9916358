"""Administration of logs: delete records, look up offsets, and see what the log directories hold.

The base of :class:`spark_kafkalite.client.admin.admin.Admin` for these calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from spark_kafkalite.client.admin.requests import AdminRequests
from spark_kafkalite.client.consume.list_offsets import OffsetAndTimestamp, offsets_for
from spark_kafkalite.client.network.leader_questions import Asked, Failures, LeaderQuestion, ask_leaders
from spark_kafkalite.client.network.retry import Deadline, is_retriable
from spark_kafkalite.errors import (
    ConfigError,
    InvalidRequest,
    KafkaError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from spark_kafkalite.model import HIGH_WATERMARK, IsolationLevel, TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.error_codes import error_for
from spark_kafkalite.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from spark_kafkalite.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from spark_kafkalite.wire.rights import refusal


@dataclass(frozen=True, slots=True)
class ReplicaComparison:
    """A follower's comparison of its log with its leader's. ``state``: waiting, comparing, same, different or failed;
    ``text`` has the details."""

    state: str
    text: str

    @property
    def has_ended(self) -> bool:
        """Whether it has."""
        return self.state not in ("waiting", "comparing")


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """One log in a log directory. ``offset_lag`` is how far it is behind; ``is_future`` for a copy being moved here.

    ``damaged``: the ranges of offsets that it had and lacks, the end exclusive. ``why_stopped``: why it copies nothing
    from its leader any more, or is not served; None where neither is so. ``comparison``: the last one that
    ``compare_replicas`` has asked for. Only brokers of this project return these three.
    """

    size_bytes: int
    offset_lag: int
    is_future: bool
    damaged: tuple[tuple[int, int], ...] = ()
    why_stopped: str | None = None
    comparison: ReplicaComparison | None = None


@dataclass(frozen=True, slots=True)
class LogDirInfo:
    """One log directory of a broker.

    ``error`` is why it cannot be used, ``refusal`` why it takes no records while it serves reads (only brokers of this
    project return it). Bytes of the file system are None where the broker does not return them.
    """

    path: str
    error: KafkaError | None = None
    replicas: Mapping[TopicPartition, ReplicaInfo] = field(default_factory=dict)
    total_bytes: int | None = None
    usable_bytes: int | None = None
    refusal: str | None = None


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
        question = _DeletionQuestion(left, self._broker_timeout_ms)
        ask_leaders(self._cluster, question, deadline)
        if question.failed:
            first, *others = dict.fromkeys(question.failed.values())
            raise type(first)("; ".join(str(error) for error in (first, *others))) if others else first
        return question.starts

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

    def compare_replicas(
        self,
        partitions: Mapping[int, Iterable[TopicPartition]],
        *,
        begin: bool = True,
        timeout_ms: int | None = None,
    ) -> dict[int, dict[TopicPartition, ReplicaComparison | None]]:
        """Have brokers compare their logs of these partitions, which they follow, with those of the leaders, and return
        how far each is; without ``begin`` return that alone. A comparison that is under way goes on.

        None for a log that is not compared: the broker leads it, has none, or is none of this project's. Each broker
        compares one partition at a time, at the speed that ``replica.compare.max.bytes.per.second`` allows.
        """
        deadline = self._deadline(timeout_ms)
        found: dict[int, dict[TopicPartition, ReplicaComparison | None]] = {}
        for broker_id, each in partitions.items():
            keys = [TopicPartition(*key) for key in each]
            by_topic: dict[str, list[int]] = {}
            for key in keys:
                by_topic.setdefault(key.topic, []).append(key.partition)
            asked = [DescribableLogDirTopic(topic=name, partitions=numbers) for name, numbers in by_topic.items()]
            request = DescribeLogDirsRequest(topics=asked, compares=begin)
            answer = self._retried(partial(self._log_dirs, broker_id, request, deadline), deadline)
            logs = {key: log for result in answer.results for key, log in _log_dir(result).replicas.items()}
            found[broker_id] = {key: logs[key].comparison if key in logs else None for key in keys}
        return found

    def host_logs(self, *, stands_still: bool = False, timeout_ms: int | None = None) -> bytes:
        """Return what the broker at the bootstrap address has for the recovery of the cluster's registry; see
        ``kafkalite cluster recover-registry``.

        With ``stands_still`` that broker leads and copies nothing from then on, until it is restarted. Raises
        InvalidRequest (42) with the reason when it answers nothing, UnsupportedVersion (35) when it is too old.
        """
        deadline = self._deadline(timeout_ms)
        request = DescribeLogDirsRequest(topics=[], wants_host_logs=True, stands_still=stands_still)
        answer = self._cluster.request_any(ApiKey.DESCRIBE_LOG_DIRS, request, deadline)
        if answer.why_no_host_logs is not None:
            raise InvalidRequest(answer.why_no_host_logs)
        if answer.error_code or answer.host_logs is None:
            raise UnsupportedVersion("it does not answer for the recovery of a registry")
        return bytes(answer.host_logs)

    def _log_dirs(self, broker_id: int, request: DescribeLogDirsRequest, deadline: Deadline) -> Any:
        answer = self._cluster.request_to(broker_id, ApiKey.DESCRIBE_LOG_DIRS, request, deadline)
        if answer.error_code:
            raise refusal(
                ApiKey.DESCRIBE_LOG_DIRS,
                answer.error_code,
                f"the log directories of broker {broker_id} cannot be described",
            )
        return answer


class _DeletionQuestion(LeaderQuestion):
    """DeleteRecords; what is left has the offsets to delete before."""

    api_key = ApiKey.DELETE_RECORDS

    def __init__(self, before: Mapping[TopicPartition, int], broker_timeout_ms: Callable[[Deadline], int]) -> None:
        super().__init__(before)
        self.starts: dict[TopicPartition, int] = {}
        self.failed: Failures = {}
        self._broker_timeout_ms = broker_timeout_ms

    def request(self, asked: Asked, deadline: Deadline) -> DeleteRecordsRequest:
        return DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        DeleteRecordsPartition(
                            partition_index=info.partition, offset=self.left[TopicPartition(topic, info.partition)]
                        )
                        for info in infos
                    ],
                )
                for topic, infos in asked.items()
            ],
            timeout_ms=self._broker_timeout_ms(deadline),
        )

    def take(self, answer: DeleteRecordsResponse) -> Failures:
        failures: Failures = {}
        for topic in answer.topics:
            for item in topic.partitions:
                topic_partition = TopicPartition(topic.name, item.partition_index)
                if topic_partition not in self.left:
                    continue
                if item.error_code:
                    text = f"{topic_partition}: records before {self.left[topic_partition]} cannot be deleted"
                    failures[topic_partition] = refusal(ApiKey.DELETE_RECORDS, item.error_code, text)
                else:
                    self.starts[topic_partition] = item.low_watermark
                    del self.left[topic_partition]
        return failures

    def judge(self, failures: Failures, rounds: int, *, may_go_on: bool) -> None:
        """Give up single partitions; the others' records are deleted all the same."""
        for topic_partition, error in failures.items():
            if not may_go_on or not is_retriable(error) or isinstance(error, UnknownTopicOrPartition):
                self.failed[topic_partition] = error
                del self.left[topic_partition]


def _log_dir(received: Any) -> LogDirInfo:
    error = error_for(received.error_code, f"log directory {received.log_dir}") if received.error_code else None
    return LogDirInfo(
        received.log_dir,
        error,
        {
            TopicPartition(topic.name, each.partition_index): ReplicaInfo(
                each.partition_size,
                each.offset_lag,
                each.is_future_key,
                tuple(zip(each.damaged_offsets[::2], each.damaged_offsets[1::2], strict=False)),
                each.why_stopped,
                None
                if each.comparison_state is None
                else ReplicaComparison(each.comparison_state, each.comparison or ""),
            )
            for topic in received.topics
            for each in topic.partitions
        },
        received.total_bytes if received.total_bytes >= 0 else None,
        received.usable_bytes if received.usable_bytes >= 0 else None,
        received.refusal,
    )

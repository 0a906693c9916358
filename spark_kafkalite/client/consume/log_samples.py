"""How large the log is at some offsets: a short fetch at each, of which only the batches' headers are looked at.

No request says how many bytes a range of offsets takes. DescribeLogDirs gives the size of a whole log, old segments and
new ones alike, and asks for rights on the cluster that readers do not have. A fetch says exactly what lies at one
place, from any broker and with the right to read, and costs at least one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from spark_kafkalite.client.consume.list_offsets import offsets_for
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.metadata import PartitionInfo
from spark_kafkalite.client.network.retry import Backoff, Deadline, is_retriable, needs_refresh
from spark_kafkalite.errors import (
    CorruptMessage,
    InvalidRecord,
    KafkaliteError,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import EARLIEST_TIMESTAMP, TopicPartition
from spark_kafkalite.records.buffers import Buffer
from spark_kafkalite.records.kernel import scan_headers
from spark_kafkalite.records.layout import LOG_OVERHEAD
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafkalite.wire.rights import refusal

# Of one place. A batch that is larger comes alone: a broker lets the first partition of an answer pass every limit.
SAMPLE_BYTES: Final = 64 * 1024
# Of one answer; places that it has no room for are asked for again.
_ANSWER_BYTES: Final = 16 * 1024 * 1024


class LogSample(NamedTuple):
    """A stretch of a log from ``start_offset`` until before ``end_offset``, and the bytes that it takes there.

    Bytes as they are stored: compressed. Of a batch that begins before the stretch, its share by offsets.
    """

    start_offset: int
    end_offset: int
    size_bytes: int


def log_samples(
    cluster: ClusterClient, places: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, LogSample]:
    """Return what lies in the logs from each of these offsets on, about SAMPLE_BYTES of each, at least one batch.

    Left out are places at the end of their log, and those whose log cannot be read there. Offsets below the start of a
    log count as empty. Moves of leaders are followed until the deadline; then, or at once when it does not pass, the
    last error is raised.
    """
    asking = _Asking(places)
    backoff = Backoff(cluster.config.retry_backoff_ms, cluster.config.retry_backoff_max_ms)
    for topic in {each.topic for each in places}:
        try:
            cluster.topic(topic, deadline)
        except UnknownTopicOrPartition:
            asking.leave_out([each for each in places if each.topic == topic])
    while left := asking.left:
        error = _round(cluster, asking, deadline)
        if error is None:
            continue
        pause_s = backoff.next_s()
        if not is_retriable(error) or deadline.left_s() <= pause_s:
            raise error
        cluster.pause(pause_s)
        if needs_refresh(error):
            cluster.refresh({each.topic for each in left}, deadline)
    return asking.found


class _Asking:
    """What is known of the places, and from which offset on the others are asked for."""

    def __init__(self, places: Mapping[TopicPartition, int]) -> None:
        self._places = places
        self.left = dict(places)
        self.found: dict[TopicPartition, LogSample] = {}

    def leave_out(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask no more of these."""
        for each in partitions:
            self.left.pop(each, None)

    def take(self, topics: Sequence[Any]) -> tuple[KafkaliteError | None, list[TopicPartition]]:
        """Take one answer; return an error in it that may pass, and whose log does not hold the offset."""
        error: KafkaliteError | None = None
        outside: list[TopicPartition] = []
        empty: list[TopicPartition] = []
        has_records = False
        for topic in topics:
            for item in topic.partitions:
                tp = TopicPartition(topic.topic, item.partition_index)
                if tp not in self.left:
                    continue
                if item.error_code == OffsetOutOfRange.code:
                    outside.append(tp)
                elif item.error_code == CorruptMessage.code:
                    self.leave_out([tp])
                elif item.error_code:
                    error = refusal(ApiKey.FETCH, item.error_code, f"{tp}: its size cannot be looked up now")
                elif not item.records:
                    empty.append(tp)
                else:
                    has_records = True
                    sample = _sample(self._places[tp], self.left.pop(tp), item.records)
                    if sample is not None:
                        self.found[tp] = sample
        if not has_records:
            # The first partition has no limit: so there is nothing at any of these.
            self.leave_out(empty)
        return error, outside


def _round(cluster: ClusterClient, asking: _Asking, deadline: Deadline) -> KafkaliteError | None:
    """Ask each leader once, and return an error that was met, if any."""
    error: KafkaliteError | None = None
    by_leader: dict[int, dict[str, list[PartitionInfo]]] = {}
    for tp in list(asking.left):
        try:
            info = cluster.leading(tp)
        except UnknownTopicOrPartition:
            asking.leave_out([tp])
        except KafkaliteError as failure:
            error = failure
        else:
            by_leader.setdefault(info.leader, {}).setdefault(tp.topic, []).append(info)
    for leader, topics in by_leader.items():
        request = FetchRequest(
            max_bytes=_ANSWER_BYTES,
            topics=[
                FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchPartition(
                            partition=info.partition,
                            current_leader_epoch=info.leader_epoch,
                            fetch_offset=asking.left[TopicPartition(topic, info.partition)],
                            partition_max_bytes=SAMPLE_BYTES,
                        )
                        for info in infos
                    ],
                )
                for topic, infos in topics.items()
            ],
        )
        try:
            answer = cluster.request_to(
                leader, ApiKey.FETCH, request, deadline.earlier_of(cluster.config.request_timeout_ms)
            )
            if answer.error_code:
                raise refusal(ApiKey.FETCH, answer.error_code, f"broker {leader} refuses to say how large records are")
            refused, outside = asking.take(answer.responses)
            _move_into_logs(cluster, asking, outside, deadline)
        except KafkaliteError as failure:
            refused = failure
        error = refused or error
    return error


def _move_into_logs(
    cluster: ClusterClient, asking: _Asking, outside: Sequence[TopicPartition], deadline: Deadline
) -> None:
    """Go on at the first offset of a log that begins above the place."""
    if not outside:
        return
    starts = offsets_for(cluster, dict.fromkeys(outside, EARLIEST_TIMESTAMP), deadline)
    for tp in outside:
        start = starts[tp]
        if start is not None and start.offset > asking.left[tp]:
            asking.left[tp] = start.offset
        else:
            asking.leave_out([tp])


def _sample(place: int, asked: int, records: Buffer) -> LogSample | None:
    try:
        headers = scan_headers(records)
    except (CorruptMessage, InvalidRecord):
        # Of an old format, or damaged: the task that reads it says so.
        return None
    end_offset, size_bytes = asked, 0
    for header in headers:
        batch_bytes = LOG_OVERHEAD + header.batch_length
        batch_end = header.base_offset + header.last_offset_delta + 1
        if header.base_offset < asked < batch_end:
            batch_bytes = batch_bytes * (batch_end - asked) // (batch_end - header.base_offset)
        end_offset, size_bytes = max(end_offset, batch_end), size_bytes + batch_bytes
    return LogSample(place, end_offset, size_bytes) if end_offset > place and headers else None

"""How large the log is at some offsets: a short fetch at each, of which only the batches' headers are read.

No request returns how many bytes a range of offsets takes. DescribeLogDirs gives the size of a whole log, old segments
and new ones alike, and asks for rights on the cluster that readers do not have. A fetch returns exactly what lies at
one place, from any broker and with the right to read, and costs at least one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from spark_kafkalite.client.consume.list_offsets import offsets_for
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.leader_questions import Asked, Failures, LeaderQuestion, ask_leaders
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import CorruptMessage, InvalidRecord, OffsetOutOfRange, UnknownTopicOrPartition
from spark_kafkalite.model import EARLIEST_TIMESTAMP, TopicPartition
from spark_kafkalite.records.buffers import Buffer
from spark_kafkalite.records.kernel import scan_headers
from spark_kafkalite.records.layout import LOG_OVERHEAD
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
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
    question = _SamplesQuestion(cluster, places, deadline)
    for topic in {each.topic for each in places}:
        try:
            cluster.topic(topic, deadline)
        except UnknownTopicOrPartition:
            question.leave_out([each for each in places if each.topic == topic])
    ask_leaders(cluster, question, deadline)
    return question.found


class _SamplesQuestion(LeaderQuestion):
    """A fetch; what is left has the offsets to fetch from."""

    api_key = ApiKey.FETCH

    def __init__(self, cluster: ClusterClient, places: Mapping[TopicPartition, int], deadline: Deadline) -> None:
        super().__init__(places)
        self.found: dict[TopicPartition, LogSample] = {}
        self._cluster = cluster
        self._deadline = deadline
        self._places = places

    def leave_out(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask no more of these."""
        for each in partitions:
            self.left.pop(each, None)

    def request(self, asked: Asked, deadline: Deadline) -> FetchRequest:
        return FetchRequest(
            max_bytes=_ANSWER_BYTES,
            topics=[
                FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchPartition(
                            partition=info.partition,
                            current_leader_epoch=info.leader_epoch,
                            fetch_offset=self.left[TopicPartition(topic, info.partition)],
                            partition_max_bytes=SAMPLE_BYTES,
                        )
                        for info in infos
                    ],
                )
                for topic, infos in asked.items()
            ],
        )

    def take(self, answer: FetchResponse) -> Failures:
        if answer.error_code:
            raise refusal(ApiKey.FETCH, answer.error_code, "a broker refuses the fetch that measures record sizes")
        failures: Failures = {}
        outside: list[TopicPartition] = []
        empty: list[TopicPartition] = []
        has_records = False
        for topic in answer.responses:
            for item in topic.partitions:
                tp = TopicPartition(topic.topic, item.partition_index)
                if tp not in self.left:
                    continue
                if item.error_code == OffsetOutOfRange.code:
                    outside.append(tp)
                elif item.error_code == CorruptMessage.code:
                    self.leave_out([tp])
                elif item.error_code:
                    failures[tp] = refusal(ApiKey.FETCH, item.error_code, f"{tp}: its size cannot be looked up now")
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
        self._move_into_logs(outside)
        return failures

    def judge(self, failures: Failures, rounds: int, *, may_go_on: bool) -> None:
        gone = [each for each, error in failures.items() if isinstance(error, UnknownTopicOrPartition)]
        self.leave_out(gone)
        others = {each: error for each, error in failures.items() if each in self.left}
        if others:
            super().judge(others, rounds, may_go_on=may_go_on)

    def _move_into_logs(self, outside: Sequence[TopicPartition]) -> None:
        """Go on at the first offset of a log that begins above the place."""
        if not outside:
            return
        starts = offsets_for(self._cluster, dict.fromkeys(outside, EARLIEST_TIMESTAMP), self._deadline)
        for tp in outside:
            start = starts[tp]
            if start is not None and start.offset > self.left[tp]:
                self.left[tp] = start.offset
            else:
                self.leave_out([tp])


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

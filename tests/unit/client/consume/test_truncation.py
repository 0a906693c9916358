"""Logs that were cut below what was read: what consumers and bounded readers make of a diverging epoch."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafkalite.client.config import consumer_config
from spark_kafkalite.client.consume.fetched import columns_from
from spark_kafkalite.client.consume.range_fetcher import RangeFetcher
from spark_kafkalite.client.consume.read_ahead import ReadAhead
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.network.served_versions import SUPPORTED
from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import LogTruncated, NotLeaderOrFollower
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages import offset_for_leader_epoch as epoch_ends
from spark_kafkalite.wire.messages.fetch import EpochEndOffset, FetchableTopicResponse, FetchResponse, PartitionData
from spark_kafkalite.wire.messages.metadata import MetadataResponse
from tests.lab.batches import make_batch
from tests.lab.model_broker import LEADER_EPOCH, ModelBroker
from tests.patience import PATIENCE_S

T0 = TopicPartition("t", 0)
FAST = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 5}


class Cut:
    """A broker whose log is parted from what was read: of the last epoch it has nothing from ``end_offset`` on."""

    def __init__(self, end_offset: int) -> None:
        self.end_offset = end_offset
        # Readers that have read beyond this offset hear of it.
        self.from_offset = 50
        self.epochs_asked: list[tuple[int, int]] = []
        self.broker = ModelBroker({"t": 1}, self._answer)
        for first in range(0, 100, 10):
            self.broker.append(T0, make_batch([b"%d" % number for number in range(first, first + 10)]))

    def _answer(self, api_key: int, request: Any) -> FetchResponse | None:
        if api_key != ApiKey.FETCH:
            return None
        (asked,) = request.topics[0].partitions
        self.epochs_asked.append((asked.fetch_offset, asked.last_fetched_epoch))
        if asked.last_fetched_epoch != LEADER_EPOCH or asked.fetch_offset < self.from_offset:
            return None
        part = PartitionData(
            high_watermark=100, diverging_epoch=EpochEndOffset(epoch=LEADER_EPOCH - 1, end_offset=self.end_offset)
        )
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])])


@pytest.fixture
def cut(request: pytest.FixtureRequest) -> Iterator[Cut]:
    made = Cut(request.param)
    yield made
    made.broker.close()


@pytest.fixture
def cluster(cut: Cut) -> Iterator[ClusterClient]:
    config = consumer_config({"bootstrap.servers": "model:1"}, FAST).client
    client = ClusterClient(config, SYSTEM_CLOCK, cut.broker.open)
    client.refresh(["t"], Deadline.after_ms(10_000))
    yield client
    client.close()


def read_until(cluster: ClusterClient, end: int, **settings: Any) -> list[int]:
    """Read everything with fetches of one batch each, up to the number before ``end``."""
    given = {**FAST, "fetch_max_wait_ms": 50, "max_partition_fetch_bytes": 1, **settings}
    ahead = ReadAhead(consumer_config({"bootstrap.servers": "model:1"}, given), cluster, SYSTEM_CLOCK)
    ahead.assign([T0])
    ahead.move([T0], 0, None)
    found: list[int] = []
    try:
        while not found or found[-1] < end - 1:
            with ahead.lock:
                state = ahead.states[T0]
                waited = ahead.changed.wait_for(lambda: state.buffered or state.error is not None, PATIENCE_S)  # noqa: B023
                assert waited, state.fetch_offset
                if not state.buffered:
                    assert state.error is not None
                    raise state.error
                piece = state.buffered.popleft()
                state.buffered_bytes -= piece.size_bytes
                ahead.changed.notify_all()
            for columns in columns_from([piece]):
                found += [int(columns.value_at(row) or b"-1") for row in range(columns.count)]
    finally:
        ahead.close()
    return found


@pytest.mark.parametrize("cut", [37], indirect=True)
def test_without_a_policy_the_poll_names_both_offsets(cluster: ClusterClient, cut: Cut) -> None:
    with pytest.raises(LogTruncated, match="truncated to offset 37 after records up to offset 50") as raised:
        read_until(cluster, 100, auto_offset_reset="none")
    error = raised.value
    assert (error.topic_partition, error.offset, error.divergent_offset, error.leader_epoch) == (T0, 50, 37, 2)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("cut", [37], indirect=True)
def test_with_a_policy_reading_goes_on_where_the_logs_part(
    cluster: ClusterClient, cut: Cut, caplog: pytest.LogCaptureFixture
) -> None:
    # Once is enough: the batch before 37 is of the model's only epoch.
    real, parted = cut._answer, []

    def once(api_key: int, request: Any) -> FetchResponse | None:
        answer = None if parted else real(api_key, request)
        parted.extend([answer] if answer is not None else [])
        return answer

    cut.broker.answer_first = once
    assert read_until(cluster, 100, auto_offset_reset="latest") == [*range(50), *range(37, 100)]
    assert "going to 37" in caplog.text


@pytest.mark.parametrize("cut", [50], indirect=True)
def test_an_epoch_that_ended_without_a_record_has_lost_nothing(cluster: ClusterClient, cut: Cut) -> None:
    cut.from_offset = 50
    real = cut._answer

    def once(api_key: int, request: Any) -> FetchResponse | None:
        answer = real(api_key, request)
        return None if (50, LEADER_EPOCH - 1) in cut.epochs_asked else answer

    cut.broker.answer_first = once
    assert read_until(cluster, 100, auto_offset_reset="none") == list(range(100))
    assert {(0, -1), (10, LEADER_EPOCH), (50, LEADER_EPOCH), (50, LEADER_EPOCH - 1)} <= set(cut.epochs_asked)


@pytest.mark.parametrize("cut", [37], indirect=True)
def test_a_range_that_is_cut_while_it_is_read_names_both_offsets(cluster: ClusterClient, cut: Cut) -> None:
    found: list[int] = []
    with (
        pytest.raises(LogTruncated) as raised,
        RangeFetcher(cluster, T0, 5, 80, max_bytes=1, timeout_ms=20_000) as fetcher,
    ):
        for columns in columns_from(fetcher):
            found += [int(columns.value_at(row) or b"-1") for row in range(columns.count)]
    assert (raised.value.offset, raised.value.divergent_offset) == (50, 37)


@pytest.mark.parametrize("cut", [37], indirect=True)
def test_a_range_whose_start_is_known_from_before_is_compared_at_once(cluster: ClusterClient, cut: Cut) -> None:
    with (
        pytest.raises(LogTruncated) as raised,
        RangeFetcher(cluster, T0, 60, 80, timeout_ms=20_000, start_epoch=LEADER_EPOCH) as fetcher,
    ):
        next(iter(fetcher))
    assert (raised.value.offset, raised.value.divergent_offset) == (60, 37)
    with RangeFetcher(cluster, T0, 60, 61, timeout_ms=20_000) as fetcher:
        assert next(iter(fetcher)).first_base_offset == 60


class OldBroker:
    """A broker whose Fetch is 11 and compares nothing; when asked where an epoch ends it answers as told.

    It is elected once the reader has got to offset 50: then its leader epoch is a new one.
    """

    def __init__(self, *answers: tuple[int, int, int]) -> None:
        # Error code, epoch, end offset; the last one for good.
        self.answers = list(answers)
        self.asked: list[tuple[int, int]] = []
        self.leader_epoch = LEADER_EPOCH
        self.broker = ModelBroker({"t": 1}, self._answer)
        for first in range(0, 100, 10):
            self.broker.append(T0, make_batch([b"%d" % number for number in range(first, first + 10)]))

    def _answer(self, api_key: int, request: Any) -> Any:
        if api_key == ApiKey.METADATA:
            return self._metadata(request)
        if api_key == ApiKey.FETCH:
            (part,) = request.topics[0].partitions
            if part.fetch_offset >= 50:
                self.leader_epoch = LEADER_EPOCH + 1
            if part.current_leader_epoch != self.leader_epoch:
                moved = PartitionData(error_code=NotLeaderOrFollower.code)
                return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[moved])])
        if api_key == ApiKey.OFFSET_FOR_LEADER_EPOCH:
            (part,) = request.topics[0].partitions
            assert (request.replica_id, part.current_leader_epoch) == (-1, self.leader_epoch)
            self.asked.append((part.leader_epoch, part.current_leader_epoch))
            code, epoch, end = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            ended = epoch_ends.EpochEndOffset(error_code=code, leader_epoch=epoch, end_offset=end)
            topic = epoch_ends.OffsetForLeaderTopicResult(topic="t", partitions=[ended])
            return epoch_ends.OffsetForLeaderEpochResponse(topics=[topic])
        return None

    def _metadata(self, request: Any) -> MetadataResponse:
        answer = self.broker._metadata(request)
        for topic in answer.topics:
            for part in topic.partitions:
                part.leader_epoch = self.leader_epoch
        return answer


@pytest.fixture
def old(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OldBroker]:
    monkeypatch.setitem(SUPPORTED, ApiKey.FETCH, (4, 11))
    made = OldBroker(*request.param)
    yield made
    made.broker.close()


@pytest.fixture
def old_cluster(old: OldBroker) -> Iterator[ClusterClient]:
    config = consumer_config({"bootstrap.servers": "model:1"}, FAST).client
    client = ClusterClient(config, SYSTEM_CLOCK, old.broker.open)
    client.refresh(["t"], Deadline.after_ms(10_000))
    yield client
    client.close()


@pytest.mark.parametrize("old", [[(0, LEADER_EPOCH - 1, 37)], [(0, LEADER_EPOCH, 37)]], indirect=True)
def test_a_broker_that_compares_nothing_is_asked_where_the_epoch_ends(
    old_cluster: ClusterClient, old: OldBroker
) -> None:
    with pytest.raises(LogTruncated) as raised:
        read_until(old_cluster, 100, auto_offset_reset="none")
    assert (raised.value.offset, raised.value.divergent_offset) == (50, 37)
    assert set(old.asked) == {(LEADER_EPOCH, LEADER_EPOCH + 1)}


@pytest.mark.parametrize(
    "old",
    [
        [(0, LEADER_EPOCH, 100)],
        # It is another one by now; then: the epoch had no record; the one before it ends there; now it has records.
        [(NotLeaderOrFollower.code, -1, -1), *[(0, LEADER_EPOCH - 1, 50)] * 2, (0, LEADER_EPOCH, 100)],
        # It has forgotten such old epochs.
        [(0, -1, -1)],
    ],
    indirect=True,
)
def test_an_old_broker_whose_log_is_the_same_is_read_on(old_cluster: ClusterClient, old: OldBroker) -> None:
    assert read_until(old_cluster, 100, auto_offset_reset="none") == list(range(100))
    assert old.asked


@pytest.mark.parametrize("old", [[(0, LEADER_EPOCH, 100)]], indirect=True)
def test_an_old_broker_is_asked_once_for_each_election(old_cluster: ClusterClient, old: OldBroker) -> None:
    read_until(old_cluster, 100)
    assert old.asked == [(LEADER_EPOCH, LEADER_EPOCH + 1)]


@pytest.mark.parametrize("old", [[(0, LEADER_EPOCH, 37)]], indirect=True)
def test_a_range_of_an_old_broker_that_was_cut_names_both_offsets(old_cluster: ClusterClient, old: OldBroker) -> None:
    with (
        pytest.raises(LogTruncated) as raised,
        RangeFetcher(old_cluster, T0, 5, 80, max_bytes=1, timeout_ms=20_000) as fetcher,
    ):
        for _ in columns_from(fetcher):
            pass
    assert (raised.value.offset, raised.value.divergent_offset) == (50, 37)

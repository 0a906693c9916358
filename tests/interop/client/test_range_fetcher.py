"""Bounded ranges read ahead, as Spark's readers do it, against our broker and Apache Kafka."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.client.config import ClientConfig
from spark_kafkalite.client.consume.range_fetcher import RangeFetcher, RangeNotInLog, columns_from
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.errors import OffsetOutOfRange, RequestTimedOut, UnknownTopicOrPartition
from spark_kafkalite.model import TopicPartition

COUNT = 5_000


@pytest.fixture(scope="module")
def filled(bootstrap: str, admin: Admin) -> TopicPartition:
    """A partition with the values 0 to 4999 in batches of all codecs."""
    topic = "ranges"
    admin.create_topic(topic, 1, 1, if_not_exists=True)
    for turn, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        with Producer(bootstrap_servers=bootstrap, compression_type=codec, batch_size=3_000) as producer:
            for number in range(turn * 1_000, (turn + 1) * 1_000):
                producer.send(topic, b"%d" % number, headers=[("n", b"h")] if number % 2 else None)
    return TopicPartition(topic, 0)


@pytest.fixture
def cluster(bootstrap: str) -> Iterator[ClusterClient]:
    client = ClusterClient(ClientConfig((bootstrap,)))
    yield client
    client.close()


@pytest.mark.parametrize("span", [(0, COUNT), (0, 1), (17, 18), (123, 4_567), (COUNT - 1, COUNT), (40, 40)])
@pytest.mark.parametrize("max_bytes", [2_000, 4 << 20])
@pytest.mark.parametrize("max_rows", [7, 65_536])
def test_exactly_the_range_is_read(
    cluster: ClusterClient, filled: TopicPartition, span: tuple[int, int], max_bytes: int, max_rows: int
) -> None:
    with RangeFetcher(cluster, filled, *span, max_bytes=max_bytes) as fetcher:
        pieces = list(columns_from(fetcher, max_rows=max_rows, with_headers=True))
    assert all(0 < columns.count <= max_rows for columns in pieces)
    rows = [(columns.offset_at(row), columns.value_at(row)) for columns in pieces for row in range(columns.count)]
    assert rows == [(number, b"%d" % number) for number in range(*span)]


def test_headers_come_when_asked_for(cluster: ClusterClient, filled: TopicPartition) -> None:
    with RangeFetcher(cluster, filled, 10, 12) as fetcher:
        (columns,) = columns_from(fetcher, with_headers=True)
    assert [columns.headers_at(row) for row in range(2)] == [[], [("n", b"h")]]


def test_a_range_that_is_gone_names_the_log(cluster: ClusterClient, filled: TopicPartition) -> None:
    with RangeFetcher(cluster, filled, COUNT + 10, COUNT + 20) as fetcher, pytest.raises(RangeNotInLog) as raised:
        list(fetcher)
    error = raised.value
    assert isinstance(error, OffsetOutOfRange)
    assert (error.offset, error.log_start_offset, error.log_end_offset) == (COUNT + 10, 0, COUNT)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_range_beyond_the_end_gives_up_without_progress(cluster: ClusterClient, filled: TopicPartition) -> None:
    rows = 0
    with (
        RangeFetcher(cluster, filled, COUNT - 3, COUNT + 5, timeout_ms=3_000) as fetcher,
        pytest.raises(RequestTimedOut, match=f"nothing came from offset {COUNT} on for 3000 ms"),
    ):
        for columns in columns_from(fetcher):
            rows += columns.count


def test_a_partition_that_does_not_exist_is_named(cluster: ClusterClient, filled: TopicPartition) -> None:
    missing = TopicPartition(filled.topic, 7)
    with (
        RangeFetcher(cluster, missing, 0, 5, timeout_ms=2_000) as fetcher,
        pytest.raises(UnknownTopicOrPartition, match="ranges-7"),
    ):
        list(fetcher)


def test_closing_early_ends_the_thread(cluster: ClusterClient, filled: TopicPartition) -> None:
    fetcher = RangeFetcher(cluster, filled, 0, COUNT, max_bytes=2_000, read_ahead=1)
    next(iter(fetcher)).release()
    fetcher.close()
    fetcher.close()
    assert not [thread for thread in threading.enumerate() if thread.name == f"kafkalite-fetch-{filled}"]

"""Wire codec: what one request costs to parse and one response to pack, ours beside kio's.

Figures are microseconds per message for one topic and one partition, and for metadata of a hundred partitions; the
records are a kilobyte. kio copies records and packs in Python; ours hands out views. Bounds are ours: the hot calls
should stay near five microseconds, since a broker does one parse and one pack per request.
"""

from __future__ import annotations

import io
import timeit
from collections.abc import Callable, Iterator
from typing import Any

from kio.schema.fetch.v12.response import FetchResponse as KioFetchResponse
from kio.schema.metadata.v12.response import MetadataResponse as KioMetadataResponse
from kio.schema.produce.v9.request import ProduceRequest as KioProduceRequest
from kio.serial import entity_reader, entity_writer

from bench.measurement import Row
from spark_kafkalite.wire import codec, packed
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.header import read_request_header
from spark_kafkalite.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

RECORDS = bytes(1024)


def rows(quick: bool) -> Iterator[Row]:
    """Measure each call in turn with kio's."""
    calls = 2_000 if quick else 20_000
    produce = b"".join(packed.pack_produce_request(1, "bench", 9, -1, 30_000, [("topic", [(0, RECORDS)])])[0])  # type: ignore[arg-type]
    produce_view = memoryview(bytearray(produce))
    body = read_request_header(produce)[1]
    yield _row(
        "parse a Produce v9 request",
        calls,
        lambda: packed.parse_produce(produce_view, read_request_header(produce_view)[1], 9),
        lambda: _kio_read(KioProduceRequest, produce, body),
        at_most=6,
    )
    produced = [("topic", [packed.ProducedPartition(0, 0, 5, -1, 0)])]
    yield _row(
        "pack a Produce v9 response", calls, lambda: packed.pack_produce_response(1, 9, produced), None, at_most=5
    )
    fetch = packed.FetchRequest([("topic", [packed.FetchPartition(0, 5, 1 << 20)])])
    fetch_view = memoryview(packed.pack_fetch_request(1, "bench", 12, fetch))
    fetch_body = read_request_header(fetch_view)[1]
    yield _row(
        "parse a Fetch v12 request", calls, lambda: packed.parse_fetch(fetch_view, fetch_body, 12), None, at_most=5
    )
    fetched = [("topic", [packed.FetchedPartition(0, 0, 5, 5, 0, RECORDS)])]
    response = b"".join(packed.pack_fetch_response(1, 12, fetched)[0])  # type: ignore[arg-type]
    entity = entity_reader(KioFetchResponse)(response, 5)[0]
    yield _row(
        "pack a Fetch v12 response",
        calls,
        lambda: packed.pack_fetch_response(1, 12, fetched),
        lambda: _kio_write(entity),
        at_most=5,
    )
    yield _row(
        "parse a Fetch v12 response",
        calls,
        lambda: packed.parse_fetch_response(response, 12),
        lambda: _kio_read(KioFetchResponse, response, 5),
        at_most=6,
    )
    metadata = _metadata(100)
    frame = codec.encode_response(metadata, 12, 1)
    metadata_entity = entity_reader(KioMetadataResponse)(frame, 5)[0]
    yield _row(
        "encode Metadata v12 of 100 partitions",
        calls // 20,
        lambda: codec.encode_response(metadata, 12, 1),
        lambda: _kio_write(metadata_entity),
    )
    yield _row(
        "decode Metadata v12 of 100 partitions",
        calls // 20,
        lambda: codec.decode_response(ApiKey.METADATA, 12, frame),
        lambda: _kio_read(KioMetadataResponse, frame, 5),
    )


def _row(
    what: str, calls: int, ours: Callable[[], Any], peer: Callable[[], Any] | None, at_most: float | None = None
) -> Row:
    our_times: list[float] = []
    peer_times: list[float] = []
    ours()
    for _ in range(5):
        our_times.append(timeit.timeit(ours, number=calls) / calls * 1e6)
        if peer is not None:
            peer_times.append(timeit.timeit(peer, number=calls) / calls * 1e6)
    return Row(what, "us", our_times, peer_times, "kio", higher_is_better=False, at_most=at_most)


def _metadata(partitions: int) -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=n, host="broker.example", port=9092) for n in range(3)],
        cluster_id="bench",
        controller_id=1,
        topics=[
            MetadataResponseTopic(
                name="topic",
                topic_id=b"t" * 16,
                partitions=[
                    MetadataResponsePartition(
                        partition_index=n, leader_id=1, leader_epoch=3, replica_nodes=[0, 1, 2], isr_nodes=[0, 1, 2]
                    )
                    for n in range(partitions)
                ],
            )
        ],
    )


def _kio_read(cls: type[Any], frame: bytes, position: int) -> Any:
    return entity_reader(cls)(frame, position)


def _kio_write(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


if __name__ == "__main__":
    for measured in rows(quick=True):
        print(measured.what, round(measured.our_median, 2), "us, kio", round(measured.peer_median or 0, 2))

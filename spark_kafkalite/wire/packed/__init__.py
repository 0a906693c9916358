"""Produce, Fetch and OffsetCommit, packed and parsed by hand: the messages that the broker sees most.

The same bytes as ``codec`` for the same content (a test compares both with each other and with kio), but without a
message object per struct, and without moving records. A parsed request or response holds views into the frame. What is
packed comes as *pieces*, bytes and record buffers in their order on the wire, for ``sendmsg``. In a Fetch response the
records may be any object with a ``length`` in bytes, such as a slice of a segment file; it becomes a piece of its own
that the connection sends with ``sendfile``.

Pieces and frames here have headers but not the length in front: the connection adds it, because only the connection
knows how it sends.

Versions: Produce 3 to 11, Fetch 4 to 17, which names topics by their ids from 13 on. Tagged fields that are kept: the
replica that fetches, diverging epochs, current leaders and their addresses, and what brokers report to each other of
damaged logs (``replica_damage``). All others are skipped: a correct answer needs none of them. Malformed bytes raise
``FrameError``, another version ``UnsupportedVersion``.
"""

from __future__ import annotations

from spark_kafkalite.wire.packed.fetch_request import (
    FetchPartition,
    FetchRequest,
    pack_fetch_body,
    pack_fetch_request,
    parse_fetch,
    parse_fetch_in_slices,
)
from spark_kafkalite.wire.packed.fetch_response import (
    FetchedPartition,
    FetchResponse,
    pack_fetch_response,
    pack_fetch_response_in_slices,
    parse_fetch_answer,
    parse_fetch_response,
)
from spark_kafkalite.wire.packed.fetch_versions import FETCH_BY_ID, FETCH_VERSIONS, Topic
from spark_kafkalite.wire.packed.layout import NodeEndpoint, Piece, Records, RecordSlice, dismantle_topics
from spark_kafkalite.wire.packed.produce import (
    PRODUCE_VERSIONS,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    pack_produce_request,
    pack_produce_response,
    pack_produce_response_in_slices,
    parse_produce,
    parse_produce_in_slices,
    parse_produce_response,
)

__all__ = [
    "FETCH_BY_ID",
    "FETCH_VERSIONS",
    "PRODUCE_VERSIONS",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchedPartition",
    "NodeEndpoint",
    "Piece",
    "ProduceRequest",
    "ProduceResponse",
    "ProducedPartition",
    "RecordSlice",
    "Records",
    "Topic",
    "dismantle_topics",
    "pack_fetch_body",
    "pack_fetch_request",
    "pack_fetch_response",
    "pack_fetch_response_in_slices",
    "pack_produce_request",
    "pack_produce_response",
    "pack_produce_response_in_slices",
    "parse_fetch",
    "parse_fetch_answer",
    "parse_fetch_in_slices",
    "parse_fetch_response",
    "parse_produce",
    "parse_produce_in_slices",
    "parse_produce_response",
]

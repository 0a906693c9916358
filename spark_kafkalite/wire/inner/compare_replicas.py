"""CompareReplicas (API 10001): a follower asks its leader for the checksum of a range of offsets, version 0.

A request without ``is_detailed`` asks for the next range from ``start_offset`` on, of about ``max_bytes`` bytes, that
ends below the leader's high watermark and not behind ``end_offset``. One with ``is_detailed`` asks what is wrong with
just that range, and carries what is wrong with the follower's.

Offsets of ranges are (start, end exclusive). ``damaged``: batches that cannot be read or fail their CRC. ``missing``:
offsets that no batch has, or a batch without records. ``is_compacted``: compaction has been at work in the range.
"""

from __future__ import annotations

from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.message import Message, RequestBody, ResponseBody, field


class ComparedRange(Message):
    """Part of CompareReplicasRequest and CompareReplicasResponse, version 0."""

    start_offset: int = field("int64", 0, 0)
    end_offset: int = field("int64", 0, 0)


class CompareReplicasRequest(RequestBody, api_key=ApiKey.COMPARE_REPLICAS):
    """The body of a CompareReplicas request, version 0."""

    replica_id: int = field("int32", 0, 0, default=-1)
    topic_id: bytes = field("uuid", 0, 0)
    partition: int = field("int32", 0, 0)
    leader_epoch: int = field("int32", 0, 0, default=-1)
    start_offset: int = field("int64", 0, 0)
    end_offset: int = field("int64", 0, 0)
    max_bytes: int = field("int32", 0, 0)
    is_detailed: bool = field("bool", 0, 0)
    damaged: list[ComparedRange] = field("[]ComparedRange", 0, 0)
    missing: list[ComparedRange] = field("[]ComparedRange", 0, 0)
    is_compacted: bool = field("bool", 0, 0)


class CompareReplicasResponse(ResponseBody, api_key=ApiKey.COMPARE_REPLICAS):
    """The body of a CompareReplicas response, version 0.

    ``end_offset`` is ``start_offset`` when there is nothing to compare from there on. ``size_bytes`` is -1 where the
    bytes cannot be read. ``first_offset``: below it retention or compaction may have removed records. The epochs are
    those of the batches, in a detailed answer.
    """

    error_code: int = field("int16", 0, 0)
    first_offset: int = field("int64", 0, 0)
    start_offset: int = field("int64", 0, 0)
    end_offset: int = field("int64", 0, 0)
    size_bytes: int = field("int64", 0, 0)
    checksum: int = field("uint32", 0, 0)
    damaged: list[ComparedRange] = field("[]ComparedRange", 0, 0)
    missing: list[ComparedRange] = field("[]ComparedRange", 0, 0)
    is_compacted: bool = field("bool", 0, 0)
    first_epoch: int = field("int32", 0, 0, default=-1)
    last_epoch: int = field("int32", 0, 0, default=-1)

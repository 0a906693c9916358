"""CompareReplicas (API 10001): a follower asks its leader for the checksum of a range of offsets, version 0.

A request without ``is_detailed`` asks for the next range from ``start_offset`` on, of about ``max_bytes`` bytes, that
ends below the leader's high watermark and not behind ``end_offset``. One with ``is_detailed`` asks what is wrong with
just that range, and carries what is wrong with the follower's.

Offsets of ranges are (start, end exclusive). ``damaged``: batches that cannot be read or fail their CRC. ``missing``:
offsets that no batch has, or a batch without records. ``is_compacted``: compaction has been at work in the range.
"""

from __future__ import annotations

from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.message import NEW_LIST, ZERO_UUID, ApiMessage, Message


class ComparedRange(Message):
    """Part of CompareReplicasRequest and CompareReplicasResponse, version 0."""

    __slots__ = ("end_offset", "start_offset")
    SCHEMA = (
        ("start_offset", "int64", 0, 0, None, None),
        ("end_offset", "int64", 0, 0, None, None),
    )

    def __init__(self, *, start_offset: int = 0, end_offset: int = 0) -> None:
        self.start_offset = start_offset
        self.end_offset = end_offset


class CompareReplicasRequest(ApiMessage):
    """The body of a CompareReplicas request, version 0."""

    __slots__ = (
        "damaged",
        "end_offset",
        "is_compacted",
        "is_detailed",
        "leader_epoch",
        "max_bytes",
        "missing",
        "partition",
        "replica_id",
        "start_offset",
        "topic_id",
    )
    API_KEY = ApiKey.COMPARE_REPLICAS
    IS_REQUEST = True
    SCHEMA = (
        ("replica_id", "int32", 0, 0, None, None),
        ("topic_id", "uuid", 0, 0, None, None),
        ("partition", "int32", 0, 0, None, None),
        ("leader_epoch", "int32", 0, 0, None, None),
        ("start_offset", "int64", 0, 0, None, None),
        ("end_offset", "int64", 0, 0, None, None),
        ("max_bytes", "int32", 0, 0, None, None),
        ("is_detailed", "bool", 0, 0, None, None),
        ("damaged", "[]ComparedRange", 0, 0, None, None),
        ("missing", "[]ComparedRange", 0, 0, None, None),
        ("is_compacted", "bool", 0, 0, None, None),
    )

    def __init__(
        self,
        *,
        replica_id: int = -1,
        topic_id: bytes = ZERO_UUID,
        partition: int = 0,
        leader_epoch: int = -1,
        start_offset: int = 0,
        end_offset: int = 0,
        max_bytes: int = 0,
        is_detailed: bool = False,
        damaged: list[ComparedRange] = NEW_LIST,
        missing: list[ComparedRange] = NEW_LIST,
        is_compacted: bool = False,
    ) -> None:
        self.replica_id = replica_id
        self.topic_id = topic_id
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.max_bytes = max_bytes
        self.is_detailed = is_detailed
        self.damaged = [] if damaged is NEW_LIST else damaged
        self.missing = [] if missing is NEW_LIST else missing
        self.is_compacted = is_compacted


class CompareReplicasResponse(ApiMessage):
    """The body of a CompareReplicas response, version 0.

    ``end_offset`` is ``start_offset`` when there is nothing to compare from there on. ``size_bytes`` is -1 where the
    bytes cannot be read. ``first_offset``: below it retention or compaction may have removed records. The epochs are
    those of the batches, in a detailed answer.
    """

    __slots__ = (
        "checksum",
        "damaged",
        "end_offset",
        "error_code",
        "first_epoch",
        "first_offset",
        "is_compacted",
        "last_epoch",
        "missing",
        "size_bytes",
        "start_offset",
    )
    API_KEY = ApiKey.COMPARE_REPLICAS
    IS_REQUEST = False
    SCHEMA = (
        ("error_code", "int16", 0, 0, None, None),
        ("first_offset", "int64", 0, 0, None, None),
        ("start_offset", "int64", 0, 0, None, None),
        ("end_offset", "int64", 0, 0, None, None),
        ("size_bytes", "int64", 0, 0, None, None),
        ("checksum", "uint32", 0, 0, None, None),
        ("damaged", "[]ComparedRange", 0, 0, None, None),
        ("missing", "[]ComparedRange", 0, 0, None, None),
        ("is_compacted", "bool", 0, 0, None, None),
        ("first_epoch", "int32", 0, 0, None, None),
        ("last_epoch", "int32", 0, 0, None, None),
    )

    def __init__(
        self,
        *,
        error_code: int = 0,
        first_offset: int = 0,
        start_offset: int = 0,
        end_offset: int = 0,
        size_bytes: int = 0,
        checksum: int = 0,
        damaged: list[ComparedRange] = NEW_LIST,
        missing: list[ComparedRange] = NEW_LIST,
        is_compacted: bool = False,
        first_epoch: int = -1,
        last_epoch: int = -1,
    ) -> None:
        self.error_code = error_code
        self.first_offset = first_offset
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.size_bytes = size_bytes
        self.checksum = checksum
        self.damaged = [] if damaged is NEW_LIST else damaged
        self.missing = [] if missing is NEW_LIST else missing
        self.is_compacted = is_compacted
        self.first_epoch = first_epoch
        self.last_epoch = last_epoch

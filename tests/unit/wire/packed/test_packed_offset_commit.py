"""OffsetCommit by hand beside the codec: the same values, the same bytes, the same verdict on damage."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafkalite.errors import FrameError, UnsupportedVersion
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.header import read_request_header
from spark_kafkalite.wire.messages import offset_commit
from spark_kafkalite.wire.packed.offset_commit import (
    OFFSET_COMMIT_VERSIONS,
    OffsetCommit,
    pack_offset_commit_response,
    parse_offset_commit,
)
from tests.seeds import SOAK

names = st.text("aé-._", max_size=5) | st.sampled_from(["t", "x" * 126, "x" * 127, "x" * 300])
int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
partitions = st.tuples(int32, int64, int32, st.none() | names)
# Nearly all of them; several in a row are read at once.
bare = st.tuples(int32, int64, int32, st.sampled_from([None, ""]))
requests = st.builds(
    OffsetCommit,
    names,
    int32,
    names,
    st.none() | names,
    int64,
    st.lists(
        st.tuples(
            names,
            st.lists(partitions, max_size=3) | st.lists(bare | partitions, max_size=6) | st.lists(bare, max_size=6),
        ),
        max_size=3,
    ),
)
outcomes = st.lists(st.tuples(names, st.lists(st.tuples(int32, int16), max_size=3)), max_size=3)


def message_of(request: OffsetCommit) -> offset_commit.OffsetCommitRequest:
    return offset_commit.OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        retention_time_ms=request.retention_time_ms,
        topics=[
            offset_commit.OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    offset_commit.OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=leader_epoch,
                        committed_metadata=metadata,
                    )
                    for partition, offset, leader_epoch, metadata in parts
                ],
            )
            for name, parts in request.topics
        ],
    )


def in_version(request: OffsetCommit, version: int) -> OffsetCommit:
    """What a version can say of a request."""
    if version >= 5:
        request = request._replace(retention_time_ms=-1)
    if version < 7:
        request = request._replace(group_instance_id=None)
    if version < 6:
        topics = [
            (name, [(part, offset, -1, text) for part, offset, _, text in parts]) for name, parts in request.topics
        ]
        request = request._replace(topics=topics)
    return request


def encoded(request: OffsetCommit, version: int) -> tuple[bytes, int]:
    frame = codec.encode_request(message_of(in_version(request, version)), version, 7, "me")
    return frame, read_request_header(frame)[1]


@pytest.mark.parametrize("version", OFFSET_COMMIT_VERSIONS)
@settings(max_examples=200 if SOAK else 10, deadline=None)
@given(requests)
def test_requests_are_read_as_the_codec_reads_them(version: int, request: OffsetCommit) -> None:
    frame, position = encoded(request, version)
    assert parse_offset_commit(frame, position, version) == in_version(request, version)


@pytest.mark.parametrize("version", OFFSET_COMMIT_VERSIONS)
@settings(max_examples=200 if SOAK else 10, deadline=None)
@given(outcomes, int32)
def test_responses_are_the_codecs_bytes(version: int, topics: list[Any], throttle_time_ms: int) -> None:
    message = offset_commit.OffsetCommitResponse(
        throttle_time_ms=throttle_time_ms if version >= 3 else 0,
        topics=[
            offset_commit.OffsetCommitResponseTopic(
                name=name,
                partitions=[
                    offset_commit.OffsetCommitResponsePartition(partition_index=number, error_code=code)
                    for number, code in parts
                ],
            )
            for name, parts in topics
        ],
    )
    packed = pack_offset_commit_response(7, version, topics, throttle_time_ms)
    assert packed == codec.encode_response(message, version, 7)


SAMPLE = OffsetCommit(
    "group",
    3,
    "member",
    "instance",
    1000,
    [
        ("topic", [(0, 5, 6, "text"), (1, 7, -1, None)]),
        ("other", []),
        ("bare", [(number, 9, 1, "") for number in range(4)]),
    ],
)


@pytest.mark.parametrize("version", OFFSET_COMMIT_VERSIONS)
class TestHostileBytes:
    def test_cut_anywhere_is_a_frame_error(self, version: int) -> None:
        frame, position = encoded(SAMPLE, version)
        for length in range(position, len(frame)):
            with pytest.raises(FrameError):
                parse_offset_commit(frame[:length], position, version)

    def test_bytes_after_the_body_are_ignored(self, version: int) -> None:
        frame, position = encoded(SAMPLE, version)
        assert parse_offset_commit(frame + b"\xff\x00", position, version) == in_version(SAMPLE, version)

    def test_damage_gives_the_codecs_verdict(self, version: int) -> None:
        frame, position = encoded(SAMPLE, version)
        rng = random.Random(version)
        for _ in range(500):
            damaged = bytearray(frame)
            for _ in range(rng.randrange(1, 3)):
                damaged[rng.randrange(position, len(frame))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            verdicts: list[OffsetCommit | str] = []
            try:
                verdicts.append(parse_offset_commit(damaged, position, version))
            except FrameError:
                verdicts.append("error")
            try:
                message = codec.decode_request(8, version, damaged, position)
                assert verdicts[0] != "error"
                assert isinstance(verdicts[0], OffsetCommit)
                assert message_of(verdicts[0]) == message, bytes(damaged).hex()
            except FrameError:
                assert verdicts == ["error"], bytes(damaged).hex()

    def test_very_many_empty_partitions_are_refused(self, version: int) -> None:
        count = codec.MAX_REQUEST_ELEMENTS + 1
        metadata = b"\0" if version >= 8 else b"\xff\xff"
        partition = bytes(16 if version >= 6 else 12) + metadata + (b"\0" if version >= 8 else b"")
        frame, position = encoded(SAMPLE._replace(topics=[("t", [])]), version)
        if version >= 8:
            body = frame[: -len(b"\1\0\0")] + b"\x82\x80\x10" + partition * count + bytes(2)
        else:
            body = frame[:-4] + count.to_bytes(4, "big") + partition * count
        for decode in (
            lambda: parse_offset_commit(body, position, version),
            lambda: codec.decode_request(8, version, body, position),
        ):
            with pytest.raises(FrameError, match="too many array elements"):
                decode()


def test_other_versions_are_unsupported() -> None:
    for version in (1, 10):
        with pytest.raises(UnsupportedVersion, match="packed here are 2 to 9"):
            parse_offset_commit(bytes(50), 0, version)
        with pytest.raises(UnsupportedVersion, match="packed here are 2 to 9"):
            pack_offset_commit_response(1, version, [])

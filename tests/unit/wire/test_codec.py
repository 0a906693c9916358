from __future__ import annotations

import random
import struct
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafkalite.errors import FrameError, UnsupportedVersion
from spark_kafkalite.slices import run_whole
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.header import pack_response_header, read_request_header
from spark_kafkalite.wire.messages import SCHEMAS, join_group
from spark_kafkalite.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from spark_kafkalite.wire.messages.delete_groups import DeleteGroupsRequest
from spark_kafkalite.wire.messages.fetch import FetchRequest
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest
from spark_kafkalite.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafkalite.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from spark_kafkalite.wire.primitives import append_uvarint
from tests.seeds import SOAK

seeds = st.integers(0, 2**32)


def decoded(api_key, version, is_request, body):
    """Decode a body without header through the public functions; in slices the result must be the same."""
    if is_request:
        whole = outcome(lambda: codec.decode_request(api_key, version, body, 0))
        in_slices = codec.decode_request_in_slices(api_key, version, memoryview(body), 0)
        again = outcome(lambda: run_whole(in_slices))
        # Errors are compared by their text, and so is what damage has made NaN, which equals nothing.
        assert again == whole or repr(again) == repr(whole)
        if isinstance(whole, Exception):
            raise whole
        return whole
    return codec.decode_response(api_key, version, bytes(pack_response_header(api_key, version, 7)) + body)[1]


def outcome(work):
    """Return what ``work`` returns, or the FrameError it raises."""
    try:
        return work()
    except FrameError as error:
        return error


def bodies_of(samples, rng, api_key):
    api = SCHEMAS[api_key]
    for version in range(api.first_version, api.last_version + 1):
        for is_request in (True, False):
            message = samples.random_message(rng, samples.body_class(api_key, is_request), version)
            yield version, is_request, message, codec.encode_body(message, version)


@pytest.mark.parametrize("api_key", SCHEMAS)
@settings(max_examples=100 if SOAK else 6, deadline=None)
@given(seed=seeds)
def test_bytes_equal_kios_and_round_trip_in_both_directions(samples, api_key, seed):
    for version, is_request, message, body in bodies_of(samples, random.Random(seed), api_key):
        kio_entity = samples.to_kio(message, version)
        assert body == samples.kio_bytes(kio_entity), f"version {version}"
        assert decoded(api_key, version, is_request, body) == message
        if not is_request:
            in_slices = run_whole(codec.encode_response_in_slices(message, version, 7))
            assert in_slices == codec.encode_response(message, version, 7)
        assert samples.kio_rewritten(type(kio_entity), body) == body


@pytest.mark.parametrize("api_key", SCHEMAS)
def test_a_body_cut_anywhere_is_a_frame_error(samples, api_key):
    for version, is_request, _, body in bodies_of(samples, random.Random(api_key), api_key):
        for length in range(0, min(len(body), 400), 1 if SOAK else 1 + len(body) // 40):
            with pytest.raises(FrameError):
                decoded(api_key, version, is_request, body[:length])


@pytest.mark.parametrize("api_key", SCHEMAS)
def test_bytes_after_the_body_are_ignored(samples, api_key):
    for version, is_request, message, body in bodies_of(samples, random.Random(api_key), api_key):
        assert decoded(api_key, version, is_request, body + b"\xff\x00more") == message


@pytest.mark.parametrize("api_key", SCHEMAS)
@settings(max_examples=100 if SOAK else 5, deadline=None)
@given(seed=seeds)
def test_damaged_bytes_give_a_value_or_a_frame_error(samples, api_key, seed):
    rng = random.Random(seed)
    for version, is_request, _, body in bodies_of(samples, rng, api_key):
        damaged = bytearray(body)
        for _ in range(rng.randrange(1, 4)):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        try:
            decoded(api_key, version, is_request, bytes(damaged))
        except FrameError:
            pass


@settings(max_examples=3_000 if SOAK else 150, deadline=None)
@given(st.sampled_from(sorted(SCHEMAS)), st.integers(0, 20), st.booleans(), st.binary(max_size=60))
def test_garbage_gives_a_value_or_a_frame_error(api_key, version, is_request, garbage):
    try:
        decoded(api_key, version, is_request, garbage)
    except (FrameError, UnsupportedVersion):
        pass


HUGE_COUNTS = [
    b"\x7f\xff\xff\xff",
    b"\x00\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\x7f",
    b"\x80\x80\x80\x80\x08",
]


@pytest.mark.parametrize("api_key", SCHEMAS)
def test_a_huge_count_in_a_small_frame_takes_no_memory(samples, api_key):
    frames = []
    for version, is_request, _, body in bodies_of(samples, random.Random(api_key), api_key):
        for count in HUGE_COUNTS:
            # The count at the front, where most bodies' first array is, and behind each early position.
            cuts = range(12) if SOAK else (0, 1, 2, 4, 7, 11)
            frames += [(version, is_request, body[:cut] + count + bytes(16)) for cut in cuts if cut < len(body)]
    for version, is_request, frame in frames:  # compile first, measure then
        try:
            decoded(api_key, version, is_request, frame)
        except FrameError:
            pass
    tracemalloc.start()
    try:
        for version, is_request, frame in frames:
            try:
                decoded(api_key, version, is_request, frame)
            except FrameError:
                pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 300_000


def test_the_error_of_a_huge_count_names_field_count_and_bytes_left():
    with pytest.raises(FrameError, match=r"MetadataRequest\.topics claims 2147483646 elements.* 3 bytes left"):
        codec.decode_request(3, 9, b"\xff\xff\xff\xff\x07" + bytes(3), 0)


def test_a_request_of_very_many_tiny_elements_is_refused():
    message = DeleteGroupsRequest(groups_names=[""] * (codec.MAX_REQUEST_ELEMENTS + 1))
    body = codec.encode_body(message, 2)
    with pytest.raises(FrameError, match="too many array elements"):
        codec.decode_request(42, 2, body, 0)


def test_a_response_may_have_more_elements_than_a_request(monkeypatch):
    monkeypatch.setattr(codec, "MAX_REQUEST_ELEMENTS", 1_000)
    message = MetadataResponse(brokers=[MetadataResponseBroker(node_id=1)] * 1_001)
    frame = codec.encode_response(message, 1, 5)
    assert len(codec.decode_response(3, 1, frame)[1].brokers) == 1_001
    body = codec.encode_body(DeleteGroupsRequest(groups_names=[""] * 1_001), 2)
    with pytest.raises(FrameError, match="too many array elements"):
        codec.decode_request(42, 2, body, 0)


def test_unknown_tagged_fields_are_skipped():
    body = codec.encode_body(HeartbeatRequest(group_id="g", generation_id=3, member_id="m"), 4)
    assert body[-1] == 0
    with_tags = body[:-1] + b"\x02" + b"\x63\x03abc" + b"\xff\xff\x03\x00"
    message = codec.decode_request(12, 4, with_tags, 0)
    assert message == HeartbeatRequest(group_id="g", generation_id=3, member_id="m")


def test_a_known_tagged_field_of_another_length_is_refused():
    body = codec.encode_body(FetchRequest(cluster_id="abc"), 12)
    assert body.endswith(b"\x01\x00\x04\x04abc")
    assert codec.decode_request(1, 12, body, 0).cluster_id == "abc"
    with pytest.raises(FrameError, match=r"FetchRequest\.cluster_id claims 5 bytes, its content has 4"):
        codec.decode_request(1, 12, body[:-6] + b"\x00\x05\x04abcd", 0)


@pytest.mark.parametrize(
    "tags", [b"\xff\xff\xff\xff\x0f", b"\x01\x05\xff\xff\xff\xff\x07", b"\x01\x05\x02a", b"\x02\x05\x00"]
)
def test_tagged_fields_that_do_not_fit_are_refused(tags):
    body = codec.encode_body(HeartbeatRequest(), 4)
    with pytest.raises(FrameError):
        codec.decode_request(12, 4, body[:-1] + tags, 0)


def test_a_varint_of_six_bytes_is_refused():
    with pytest.raises(FrameError, match="more than 5 bytes"):
        codec.decode_request(3, 9, b"\x82\x80\x80\x80\x80\x00" + bytes(30), 0)


def test_a_varint_above_32_bits_is_refused():
    with pytest.raises(FrameError, match="more than 32 bits"):
        codec.decode_request(3, 9, b"\xff\xff\xff\xff\x7f" + bytes(30), 0)


@pytest.mark.parametrize(("version", "body"), [(0, b"\xff\xff"), (4, b"\x00")])
def test_null_where_the_version_allows_none_is_refused(version, body):
    with pytest.raises(FrameError, match=r"HeartbeatRequest\.group_id is null"):
        codec.decode_request(12, version, body + bytes(20), 0)


def test_a_null_array_where_the_version_allows_none_is_refused():
    with pytest.raises(FrameError, match=r"MetadataRequest\.topics is null"):
        codec.decode_request(3, 0, b"\xff\xff\xff\xff", 0)


def test_a_compact_string_longer_than_kafka_reads_is_refused():
    length = b"\x81\x80\x02"  # 32768 + 1
    with pytest.raises(FrameError, match="32768 bytes, a string has at most 32767"):
        codec.decode_request(12, 4, length + b"x" * 40000, 0)


def test_a_byte_field_that_would_be_copied_for_long_is_refused():
    body = codec.encode_body(joining([bytes(8 * 1024 * 1024 + 1)]), 3)
    with pytest.raises(FrameError, match=r"JoinGroupRequestProtocol\.metadata has 8388609 bytes, at most 8388608"):
        codec.decode_request(11, 3, body, 0)


def joining(metadata):
    protocols = [join_group.JoinGroupRequestProtocol(name="range", metadata=one) for one in metadata]
    return join_group.JoinGroupRequest(group_id="g", protocol_type="consumer", protocols=protocols)


def test_slices_end_after_many_bytes_too():
    """A few large elements take as long as many small ones."""
    message = joining([bytes(512 * 1024)] * 20)
    body = codec.encode_body(message, 5)
    assert sum(1 for _ in codec.decode_request_in_slices(11, 5, memoryview(body), 0)) >= 19
    assert sum(1 for _ in codec.encode_body_in_slices(message, 5)) >= 19


@pytest.mark.parametrize("version", [3, 4])
def test_a_string_too_long_to_send_is_a_value_error(version):
    with pytest.raises(ValueError, match=r"at most 32767|format"):
        codec.encode_request(HeartbeatRequest(group_id="x" * 32768), version, 1, None)


def test_text_that_is_not_utf_8_is_a_frame_error():
    body = struct.pack(">h", 2) + b"\xc3\x28" + bytes(20)
    with pytest.raises(FrameError, match=r"Heartbeat \(API 12\) version 0: a string is not UTF-8"):
        codec.decode_request(12, 0, body, 0)


@pytest.mark.parametrize(
    "message",
    [HeartbeatRequest(generation_id=2**31), HeartbeatRequest(group_id=None), HeartbeatRequest(member_id=b"bytes")],
)
def test_a_value_that_the_version_cannot_hold_is_a_value_error(message):
    with pytest.raises(ValueError, match="cannot encode HeartbeatRequest version 3"):
        codec.encode_request(message, 3, 1, "me")


@pytest.mark.parametrize(("api_key", "version"), [(999, 0), (12, 5), (12, -1), (0, 2)])
def test_a_version_without_schema_is_unsupported(api_key, version):
    with pytest.raises(UnsupportedVersion):
        codec.decode_request(api_key, version, bytes(100), 0)


def test_records_are_views_into_the_frame():
    records = b"r" * 5000
    message = ProduceRequest(
        acks=-1, topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(records=records)])]
    )
    frame = bytearray(codec.encode_request(message, 9, 1, "me"))
    _, position = read_request_header(frame)
    view = codec.decode_request(0, 9, frame, position).topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview)
    assert view.obj is frame
    view[0] = ord("R")
    assert b"Rrrr" in frame


def test_a_field_that_the_version_lacks_is_left_out():
    message = MetadataRequest(topics=[MetadataRequestTopic(name="t", topic_id=b"i" * 16)])
    assert codec.decode_request(3, 4, codec.encode_body(message, 4), 0).topics[0].topic_id == bytes(16)


class TestApiVersionsFallback:
    """A broker that does not know the version of the request answers in version 0 (KIP-511)."""

    answer = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)])

    @pytest.mark.parametrize("asked", [0, 1, 2, 3, 4])
    def test_the_answer_is_decoded_as_version_0(self, asked):
        frame = codec.encode_response(self.answer, 0, 9)
        assert codec.decode_response(18, asked, frame) == (9, self.answer)

    @pytest.mark.parametrize("asked", [3, 4])
    def test_an_answer_in_the_version_asked_for_is_decoded_too(self, asked):
        frame = codec.encode_response(self.answer, asked, 9)
        assert codec.decode_response(18, asked, frame) == (9, self.answer)

    def test_the_response_header_never_has_tagged_fields(self):
        body = codec.encode_body(self.answer, 3)
        assert codec.encode_response(self.answer, 3, 9) == b"\x00\x00\x00\x09" + body


def test_requests_carry_their_header():
    frame = codec.encode_request(ApiVersionsRequest(client_software_name="n", client_software_version="1"), 3, 8, "cé")
    header, position = read_request_header(frame)
    assert header == (18, 3, 8, "cé")
    assert codec.decode_request(18, 3, frame, position).client_software_name == "n"


def test_importing_the_codec_imports_no_messages():
    script = (
        "import sys, spark_kafkalite.wire.codec, spark_kafkalite.wire.packed, spark_kafkalite.wire.error_codes\n"
        "print([name for name in sys.modules if name.startswith('spark_kafkalite.wire.messages.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_large_messages_are_decoded_and_encoded_in_many_slices():
    names = [f"group-{number}" for number in range(10_000)]
    body = codec.encode_body(DeleteGroupsRequest(groups_names=names), 2)
    work = codec.decode_request_in_slices(42, 2, memoryview(body), 0)
    steps = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            assert end.value.groups_names == names
            break
        steps += 1
    assert steps >= 50
    partitions = [MetadataResponsePartition(partition_index=number) for number in range(10_000)]
    answer = MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=partitions)])
    assert sum(1 for _ in codec.encode_response_in_slices(answer, 12, 1)) >= 50


def test_more_tagged_fields_in_a_struct_than_any_honest_one_has_are_refused():
    body = codec.encode_body(HeartbeatRequest(group_id="g", member_id="m"), 4)
    tags = bytearray()
    append_uvarint(tags, 5_000)
    for number in range(5_000):
        append_uvarint(tags, 100 + number)
        tags.append(0)
    with pytest.raises(FrameError, match="too many array elements"):
        decoded(12, 4, True, body[:-1] + tags)

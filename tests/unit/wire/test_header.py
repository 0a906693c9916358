from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as KioHeader1
from kio.schema.request_header.v2.header import RequestHeader as KioHeader2

from spark_kafkalite.errors import FrameError
from spark_kafkalite.wire.header import (
    is_flexible,
    pack_request_header,
    pack_response_header,
    read_request_header,
    read_response_header,
)
from spark_kafkalite.wire.messages import SCHEMAS

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)


@given(st.sampled_from(sorted(SCHEMAS)), st.integers(0, 20), int32, st.none() | st.text(max_size=20))
def test_a_request_header_equals_kios_and_is_read_back(samples, api_key, version, correlation_id, client_id):
    packed = bytes(pack_request_header(api_key, version, correlation_id, client_id))
    kio_class = KioHeader2 if is_flexible(api_key, version) else KioHeader1
    kio_header = kio_class(
        request_api_key=api_key, request_api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    assert packed == samples.kio_bytes(kio_header)
    header, position = read_request_header(packed + b"body")
    assert header == (api_key, version, correlation_id, client_id)
    assert position == len(packed)


@given(st.sampled_from(sorted(SCHEMAS)), st.integers(0, 20), int32)
def test_a_response_header_is_read_back(api_key, version, correlation_id):
    packed = bytes(pack_response_header(api_key, version, correlation_id))
    assert read_response_header(packed + b"body", api_key, version) == (correlation_id, len(packed))
    assert len(packed) == (5 if is_flexible(api_key, version) and api_key != 18 else 4)


def test_the_header_of_an_unknown_api_is_read():
    packed = bytes(pack_request_header(999, 3, 5, "me"))
    assert read_request_header(packed) == ((999, 3, 5, "me"), len(packed))


def test_the_header_of_a_future_version_is_read_as_a_flexible_one():
    assert read_request_header(bytes(pack_request_header(18, 99, 5, "me")))[0] == (18, 99, 5, "me")


def test_tagged_fields_in_headers_are_skipped():
    packed = bytes(pack_request_header(3, 9, 5, None))[:-1] + b"\x01\x63\x02ab"
    assert read_request_header(packed)[1] == len(packed)
    packed = bytes(pack_response_header(3, 9, 5))[:-1] + b"\x01\x63\x02ab"
    assert read_response_header(packed, 3, 9) == (5, len(packed))


def test_a_header_of_very_many_tagged_fields_is_a_frame_error():
    packed = bytes(pack_request_header(3, 9, 5, None))[:-1] + b"\x81\x20" + b"\x63\x00" * 4097
    with pytest.raises(FrameError, match="4097 tagged fields, at most 4096"):
        read_request_header(packed)


@pytest.mark.parametrize("version", [8, 9])
def test_a_request_header_cut_anywhere_is_a_frame_error(version):
    packed = bytes(pack_request_header(3, version, 5, "client"))
    for length in range(len(packed)):
        with pytest.raises(FrameError):
            read_request_header(packed[:length])


def test_a_response_header_cut_anywhere_is_a_frame_error():
    for length in range(5):
        with pytest.raises(FrameError):
            read_response_header(bytes(length), 3, 9)


@given(st.binary(max_size=40))
def test_garbage_gives_a_value_or_a_frame_error(garbage):
    try:
        read_request_header(garbage)
    except FrameError:
        pass


def test_a_client_id_that_is_not_utf_8_is_a_frame_error():
    packed = bytes(pack_request_header(3, 1, 5, "ab")).replace(b"ab", b"\xc3\x28")
    with pytest.raises(FrameError, match="client id is not UTF-8"):
        read_request_header(packed)


def test_a_client_id_too_long_to_send_is_a_value_error():
    with pytest.raises(ValueError, match=r"client\.id has 40000 bytes, at most 32767"):
        pack_request_header(3, 1, 5, "x" * 40000)

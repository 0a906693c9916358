from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafkalite.errors import FrameError
from spark_kafkalite.registry.served.jute import (
    RequestReader,
    write_acl,
    write_buffer,
    write_int,
    write_long,
    write_string,
    write_strings,
)
from spark_kafkalite.registry.tree.acl import AclEntry


def test_values_are_read_as_they_were_written() -> None:
    acl = (AclEntry(31, "world", "anyone"), AclEntry(1, "digest", "ü:x"))
    reader = RequestReader(
        write_int(-7) + write_long(2**40) + write_string("/ä") + write_buffer(b"") + write_strings(["a", "b"])
        + write_acl(acl) + b"\1" + write_int(-1)
    )  # fmt: skip
    assert (reader.int32(), reader.int64(), reader.string(), reader.buffer()) == (-7, 2**40, "/ä", b"")
    assert reader.vector(RequestReader.string) == ["a", "b"]
    assert tuple(reader.acl()) == acl
    assert reader.boolean() is True
    assert reader.buffer() is None
    assert reader.remaining == 0


def test_null_strings_and_vectors() -> None:
    assert RequestReader(write_int(-1)).optional_string() is None
    assert RequestReader(write_int(-1)).vector(RequestReader.string) == []
    with pytest.raises(FrameError, match="null"):
        RequestReader(write_int(-1)).string()


@pytest.mark.parametrize("length", [1, 2**31 - 1])
def test_a_length_or_count_beyond_the_bytes_is_refused(length: int) -> None:
    with pytest.raises(FrameError):
        RequestReader(write_int(length)).buffer()
    with pytest.raises(FrameError):
        RequestReader(write_int(length)).vector(RequestReader.string)
    with pytest.raises(FrameError):
        RequestReader(struct.pack("!i", 3) + b"\xff\xff\xff").string()


@given(st.binary(max_size=60), st.integers(0, 6))
def test_garbage_gives_a_value_or_our_error(data: bytes, which: int) -> None:
    reader = RequestReader(data)
    reads = [reader.int32, reader.int64, reader.boolean, reader.buffer, reader.string, reader.acl, reader.multi_header]
    try:
        reads[which]()
    except FrameError:
        pass
    assert 0 <= reader.remaining <= len(data)

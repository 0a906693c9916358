from __future__ import annotations

import random
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafkalite.errors import FrameError
from spark_kafkalite.wire.frame import BLOCK_BYTES, FrameReader


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def receive(reader: FrameReader, data: bytes) -> int:
    """Put at most as much into the reader as one receive would; return how much."""
    room = reader.writable()
    count = min(len(room), len(data))
    assert count > 0
    room[:count] = data[:count]
    reader.received(count)
    return count


def contents(sizes: list[int]) -> list[bytes]:
    rng = random.Random(len(sizes))
    return [rng.randbytes(size) for size in sizes]


SIZES = st.lists(
    st.one_of(st.integers(1, 300), st.integers(BLOCK_BYTES - 8, BLOCK_BYTES + 8), st.integers(1, 5 * BLOCK_BYTES)),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(0, 2**32))
def test_frames_come_out_whole_however_the_stream_is_cut(sizes, seed):
    rng = random.Random(seed)
    frames = contents(sizes)
    stream = b"".join(map(framed, frames))
    reader, got, position = FrameReader(10 * BLOCK_BYTES), [], 0
    while position < len(stream):
        chunk = stream[position : position + rng.choice([1, 3, 4, 5, 100, 4096, BLOCK_BYTES, 10**9])]
        position += receive(reader, chunk)
        while (frame := reader.next_frame()) is not None:
            got.append(frame)
    # Compared at the end: no frame may have been overwritten by a later one.
    assert [bytes(frame) for frame in got] == frames
    assert reader.held_bytes == 0
    assert not reader.in_frame


def test_byte_by_byte():
    frames = contents([1, 2, 70, 1])
    reader = FrameReader(100)
    got = [bytes(frame) for byte in b"".join(map(framed, frames)) for frame in reader.feed(bytes([byte]))]
    assert got == frames


def test_feed_takes_any_amount_at_once():
    frames = contents([3, BLOCK_BYTES * 3, 5, BLOCK_BYTES - 4, 9])
    assert [bytes(f) for f in FrameReader(10**6).feed(b"".join(map(framed, frames)))] == frames


def test_small_frames_that_arrive_together_share_a_block():
    first, second = FrameReader(100).feed(framed(b"one") + framed(b"two"))
    assert first.obj is second.obj


def test_a_large_frame_has_a_buffer_of_its_own_and_no_larger():
    content = bytes(BLOCK_BYTES * 5 + 17)
    (frame,) = FrameReader(10**6).feed(framed(content))
    assert len(frame.obj) == len(content)


def test_frames_are_writable_in_place():
    (frame,) = FrameReader(100).feed(framed(b"abc"))
    frame[0:1] = b"X"
    assert bytes(frame) == b"Xbc"


def test_an_idle_reader_holds_nothing():
    reader = FrameReader(10**6)
    assert reader.held_bytes == 0
    reader.feed(framed(b"abc") + framed(bytes(BLOCK_BYTES * 2)))
    assert reader.held_bytes == 0


def test_a_length_alone_takes_no_memory():
    reader = FrameReader(100 * 2**20)
    tracemalloc.start()
    try:
        reader.feed(struct.pack(">i", 100 * 2**20))
        assert len(reader.writable()) > 0
        assert tracemalloc.get_traced_memory()[1] < 4 * BLOCK_BYTES
    finally:
        tracemalloc.stop()


def test_memory_stays_within_twice_what_has_arrived():
    reader = FrameReader(100 * 2**20)
    reader.feed(struct.pack(">i", 100 * 2**20))
    arrived = 0
    for _ in range(200):
        arrived += receive(reader, bytes(10_000))
        assert reader.next_frame() is None
        assert reader.held_bytes <= max(BLOCK_BYTES, 2 * arrived)
    assert reader.in_frame


@pytest.mark.parametrize("length", [0, -1, -(2**31)])
def test_a_length_below_one_names_the_value(length):
    with pytest.raises(FrameError, match=f"claims {length} bytes, the least is 1"):
        FrameReader(100).feed(struct.pack(">i", length))


def test_a_length_above_the_limit_names_value_bound_and_setting():
    with pytest.raises(FrameError, match=r"claims 101 bytes, socket\.request\.max\.bytes allows 100"):
        FrameReader(100).feed(struct.pack(">i", 101))
    with pytest.raises(FrameError, match=r"claims 1195725856 bytes, receive\.max\.bytes allows 100"):
        FrameReader(100, "receive.max.bytes").feed(b"GET / HTTP/1.1\r\n")


def test_the_limit_itself_is_allowed():
    assert len(FrameReader(100).feed(framed(bytes(100)))) == 1


def test_frames_before_a_bad_length_come_out_and_after_it_nothing_does():
    reader = FrameReader(100)
    receive(reader, framed(b"good") + struct.pack(">i", -5) + framed(b"never"))
    assert bytes(reader.next_frame()) == b"good"
    for _ in range(2):
        with pytest.raises(FrameError, match="claims -5 bytes"):
            reader.next_frame()
    with pytest.raises(FrameError, match="claims -5 bytes"):
        reader.writable()
    assert reader.held_bytes == 0


def test_its_repr_shows_how_far_it_is():
    reader = FrameReader(10**6)
    reader.feed(framed(b"abc") + b"\x00\x00")
    assert repr(reader) == "FrameReader(2 bytes waiting)"
    reader = FrameReader(10**6)
    reader.feed(struct.pack(">i", 500_000) + b"abc")
    assert repr(reader) == "FrameReader(3 of 500000 bytes of a frame)"

"""Streams into frames: cut anywhere, with lengths that no peer should send, and in memory that others use as well."""

from __future__ import annotations

import mmap
import resource
import struct
from collections.abc import Iterator
from random import Random

import pytest

from spark_kafkalite.errors import FrameError
from spark_kafkalite.wire.frame import (
    HEAD_BYTES,
    FrameBuffer,
    FrameReader,
    FrameSizeError,
    framed,
    lend_memory,
)

BODIES = (b"one", b"t", b"three" * 300, b"four", b"x" * 70_000, b"end")
STREAM = b"".join(struct.pack(">i", len(body)) + body for body in BODIES)
BAD_SIZES = (0, -1, -(2**31), 1001, 2**31 - 1)


class Source:
    """A stream that fills what a reader names, as a socket would, ``most`` bytes a call."""

    def __init__(self, stream: bytes, most: int, *, gathers: bool = True) -> None:
        self.left = stream
        self.most = most
        self.gathers = gathers

    def receive(self, reader: FrameReader) -> memoryview | None:
        received = 0
        for buffer in reader.room()[: 2 if self.gathers else 1]:
            piece = self.left[: min(len(buffer), self.most - received)]
            buffer[: len(piece)] = piece
            self.left = self.left[len(piece) :]
            received += len(piece)
            if len(piece) < len(buffer):
                break
        return reader.received(received)


def frames_of(reader: FrameReader, source: Source) -> Iterator[memoryview]:
    while source.left:
        completed = source.receive(reader)
        if completed is not None:
            yield completed
        while (frame := reader.next_frame()) is not None:
            yield frame
        reader.keep_rest(lend_memory)


def reader_of(scratch_bytes: int = 4096, max_frame_bytes: int = 1 << 20) -> FrameReader:
    return FrameReader(max_frame_bytes, memoryview(bytearray(HEAD_BYTES + scratch_bytes)))


def test_a_frame_is_its_length_and_its_bytes() -> None:
    assert framed(b"four") == b"\x00\x00\x00\x04four"


@pytest.mark.parametrize("gathers", [True, False])
@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 7, 64, 4096, 1_000_000])
def test_frames_arrive_however_the_stream_is_cut(most: int, gathers: bool) -> None:
    source = Source(STREAM, most, gathers=gathers)
    assert [bytes(frame) for frame in frames_of(reader_of(), source)] == list(BODIES)


@pytest.mark.parametrize("cut", range(len(framed(b"abc") * 2) + 1))
def test_two_frames_cut_at_any_byte(cut: int) -> None:
    stream = framed(b"abc") + framed(b"def")
    reader, found = reader_of(), []
    for piece in (stream[:cut], stream[cut:]):
        found += [bytes(frame) for frame in frames_of(reader, Source(piece, 4096))]
    assert found == [b"abc", b"def"]
    assert (reader.is_amid_frame, reader.held_bytes) == (False, 0)


@pytest.mark.parametrize("size_bytes", BAD_SIZES)
@pytest.mark.parametrize("before", [b"", b"fine"])
def test_lengths_that_are_not_allowed(size_bytes: int, before: bytes) -> None:
    stream = (framed(before) if before else b"") + struct.pack(">i", size_bytes) + b"x"
    reader = reader_of(max_frame_bytes=1000)
    buffer = FrameBuffer(1000)
    buffer.feed(stream)
    Source(stream, 4096).receive(reader)
    for frames in (reader, buffer):
        if before:
            assert bytes(frames.next_frame() or b"") == before
        with pytest.raises(FrameSizeError, match=f"a frame of {size_bytes} bytes; 1 to 1000 are allowed") as raised:
            frames.next_frame()
        assert isinstance(raised.value, FrameError)
        assert raised.value.size_bytes == size_bytes


def test_a_frame_of_the_largest_size_is_taken() -> None:
    assert [bytes(frame) for frame in frames_of(reader_of(max_frame_bytes=5), Source(framed(b"12345"), 100))] == [
        b"12345"
    ]


def test_whole_frames_are_served_where_they_lie() -> None:
    scratch = memoryview(bytearray(HEAD_BYTES + 100))
    reader = FrameReader(1000, scratch)
    Source(framed(b"abc") + framed(b"def"), 100).receive(reader)
    first, second = reader.next_frame(), reader.next_frame()
    assert first is not None and second is not None
    assert first.obj is second.obj is scratch.obj
    scratch[8:11] = b"ABC"
    assert (bytes(first), bytes(second)) == (b"ABC", b"def")


def test_what_is_cut_off_is_out_of_the_way_of_others_who_use_the_scratch() -> None:
    scratch = memoryview(bytearray(HEAD_BYTES + 100))
    readers = [FrameReader(1000, scratch) for _ in range(3)]
    streams = [framed(bytes([65 + number]) * 30) for number in range(3)]
    found: list[bytes] = []
    for cut in ((0, 2), (2, 20), (20, 34)):
        for reader, stream in zip(readers, streams, strict=True):
            found += [bytes(frame) for frame in frames_of(reader, Source(stream[slice(*cut)], 100))]
    assert found == [b"A" * 30, b"B" * 30, b"C" * 30]


def test_the_rest_of_a_large_frame_goes_where_it_belongs_and_little_beside_it() -> None:
    reader = reader_of(1 << 20, max_frame_bytes=1 << 21)
    assert [len(buffer) for buffer in reader.room()] == [1 << 20]
    for size_bytes, beside in ((1000, 1 << 20), (300_000, 64 << 10)):
        Source(struct.pack(">i", size_bytes) + b"abc", 100).receive(reader)
        assert reader.next_frame() is None
        reader.keep_rest(lend_memory)
        assert [len(buffer) for buffer in reader.room()] == [size_bytes - 3, beside]
        assert (reader.filled_bytes, reader.announced_bytes, reader.is_amid_frame) == (3, size_bytes, True)
        assert len(reader.clear() or b"") == size_bytes


def test_a_promise_costs_only_what_arrives_of_it() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    readers = [reader_of(100, max_frame_bytes=1 << 30) for _ in range(8)]
    for reader in readers:
        Source(struct.pack(">i", 1 << 29) + b"abc", 100).receive(reader)
        assert reader.next_frame() is None
        assert reader.keep_rest(lend_memory) == 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_lent_memory_is_the_frames_and_not_touched_before() -> None:
    assert isinstance(lend_memory(100_000).obj, mmap.mmap)
    assert isinstance(lend_memory(100).obj, bytearray)
    lent: list[memoryview] = []

    def lend(size_bytes: int) -> memoryview:
        lent.append(memoryview(bytearray(size_bytes)))
        return lent[-1]

    reader = reader_of()
    Source(framed(b"abcdef")[:7], 100).receive(reader)
    assert reader.next_frame() is None and reader.keep_rest(lend) == 3
    assert Source(b"def" + framed(b"next"), 100).receive(reader) is lent[0]
    assert bytes(lent[0]) == b"abcdef"
    assert bytes(reader.next_frame() or b"") == b"next"


def test_no_memory_leaves_the_reader_as_it_was() -> None:
    def refuse(size_bytes: int) -> memoryview:
        raise MemoryError(size_bytes)

    reader = reader_of()
    Source(framed(b"abc") + framed(b"abcdef")[:7], 100).receive(reader)
    assert bytes(reader.next_frame() or b"") == b"abc"
    assert reader.next_frame() is None
    with pytest.raises(MemoryError):
        reader.keep_rest(refuse)
    assert reader.announced_bytes == 6
    assert reader.clear() is None


def test_a_frame_that_was_put_back_comes_again_also_out_of_the_stash() -> None:
    scratch = memoryview(bytearray(HEAD_BYTES + 100))
    reader = FrameReader(1000, scratch)
    rest = framed(b"cut off")[:6]
    Source(framed(b"abc") + framed(b"def") + rest, 100).receive(reader)
    assert bytes(reader.next_frame() or b"") == b"abc"
    frame = reader.next_frame()
    assert frame is not None
    reader.put_back(frame)
    assert reader.stash() == 7 + 6
    assert reader.stash() == 0
    scratch[:] = bytes(len(scratch))
    frame = reader.next_frame()
    assert bytes(frame or b"") == b"def"
    assert (reader.stashed_bytes, reader.held_bytes, reader.is_drained) == (13, 13, False)
    assert reader.next_frame() is None
    assert reader.keep_rest(lend_memory) == 2 - 13
    assert (reader.stashed_bytes, reader.held_bytes, reader.is_drained) == (0, 2, True)
    assert bytes(Source(framed(b"cut off")[6:], 100).receive(reader) or b"") == b"cut off"


def test_to_keep_the_rest_twice_loses_nothing() -> None:
    reader, stream = reader_of(), framed(b"abcdef")
    found: list[bytes] = []
    for piece in (stream[:2], stream[2:7], stream[7:]):
        found += [bytes(frame) for frame in frames_of(reader, Source(piece, 100))]
        assert reader.keep_rest(lend_memory) == 0
    assert found == [b"abcdef"]


@pytest.mark.parametrize("seed", range(200))
def test_a_reader_that_stops_and_goes_on_gives_every_frame_once(seed: int) -> None:
    print(f"seed {seed}")
    random = Random(seed)
    bodies = [bytes([number]) * random.choice([1, 3, 50, 900, 5000]) for number in range(random.randint(1, 30))]
    source = Source(b"".join(map(framed, bodies)), 1, gathers=random.random() < 0.5)
    scratch = memoryview(bytearray(HEAD_BYTES + 2000))
    reader = FrameReader(5000, scratch)
    found: list[bytes] = []
    while source.left or reader.stashed_bytes:
        if not reader.stashed_bytes:
            source.most = random.choice([1, 2, 5, 100, 2000])
            completed = source.receive(reader)
            if completed is not None:
                found.append(bytes(completed))
        while (frame := reader.next_frame()) is not None:
            if random.random() < 0.3:
                reader.put_back(frame)
                reader.stash()
                break
            found.append(bytes(frame))
        else:
            reader.keep_rest(lend_memory)
        scratch[:] = bytes([255]) * len(scratch)
    assert found == bodies
    assert (reader.held_bytes, reader.is_amid_frame, reader.is_drained) == (0, False, True)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 64, 10_000, 1_000_000])
def test_a_buffer_gives_frames_however_it_is_fed(size: int) -> None:
    buffer, found = FrameBuffer(1 << 20), []
    for start in range(0, len(STREAM), size):
        buffer.feed(STREAM[start : start + size])
        while (frame := buffer.next_frame()) is not None:
            found.append(frame)
    assert found == list(BODIES)
    assert len(buffer) == 0


def test_a_buffer_counts_what_is_not_taken_and_forgets_it() -> None:
    buffer = FrameBuffer(1000)
    buffer.feed(framed(b"abc") * 3)
    assert (len(buffer), buffer.peek(5), buffer.peek(100)) == (21, b"\x00\x00\x00\x03a", framed(b"abc") * 3)
    assert buffer.next_frame() == b"abc"
    assert (len(buffer), buffer.peek(100)) == (14, framed(b"abc") * 2)
    buffer.clear()
    assert (len(buffer), buffer.next_frame()) == (0, None)


def test_a_buffers_bound_holds_for_the_frame_that_comes_next() -> None:
    buffer = FrameBuffer(4)
    buffer.feed(framed(b"four") + framed(b"five!"))
    assert buffer.next_frame() == b"four"
    with pytest.raises(FrameSizeError):
        buffer.next_frame()
    buffer.max_frame_bytes = 5
    assert buffer.next_frame() == b"five!"


def test_many_small_frames_are_not_moved_for_each_that_is_taken() -> None:
    buffer = FrameBuffer(1000)
    buffer.feed(framed(b"x") * 100_000)
    before = len(buffer._data)
    assert buffer.next_frame() == b"x"
    assert len(buffer._data) == before
    for _ in range(60_000):
        buffer.next_frame()
    # What was taken is given back on the way, too.
    assert len(buffer._data) < before * 0.6

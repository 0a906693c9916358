"""What lies behind damage is looked through completely, and in time, whatever bytes it is made of."""

from __future__ import annotations

import errno
import random
import struct
from pathlib import Path

import pytest

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.files.fs import File
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.loading import torn
from spark_kafkalite.log.loading.torn import Mapped, may_have_held, sound_batches, sound_header
from spark_kafkalite.records.layout import HEADER_BYTES, MAGIC_POSITION, MAX_INT32
from tests.lab.batches import make_stored_batch
from tests.seeds import SEED, SOAK
from tests.unit.log.loading.looks import Looks

MEBIBYTE = 1 << 20


def found_in(data: bytes, next_offset: int) -> list[tuple[int, int]]:
    """Return base offset and size of the batches that are found."""
    headers, is_complete = sound_batches(memoryview(data), 0, next_offset)
    assert is_complete
    return [(header.base_offset, header.size_bytes) for header in headers]


def looked_for_everywhere(data: bytes, next_offset: int) -> list[tuple[int, int]]:
    """As :func:`found_in`, by trying every position."""
    view, position, last, found = memoryview(data), 0, next_offset + MAX_INT32, []
    while position < len(view):
        try:
            header = sound_header(view, position)
        except CorruptMessage:
            position += 1
            continue
        if not next_offset <= header.base_offset <= last:
            position += 1
            continue
        found.append((header.base_offset, header.size_bytes))
        next_offset = header.next_offset
        position += header.size_bytes
    return found


def header(base_offset: int, size_bytes: int) -> bytes:
    """Return a header that looks like one of a batch of that size, but for its CRC."""
    packed = struct.pack(">qiibIhiqqqhii", base_offset, size_bytes - 12, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1)
    assert len(packed) == HEADER_BYTES
    return packed


@pytest.mark.parametrize("next_offset", [0, 7, 2**31, 2**32 - 5, 2**33 + 2**31, 3 * 2**56 - 2])
@pytest.mark.parametrize("distance", [0, 3, 1000, MAX_INT32])
def test_batches_of_the_segment_are_found(next_offset: int, distance: int) -> None:
    batch = bytes(make_stored_batch(next_offset + distance, 0, 3))
    garbage = bytes(range(256)) + b"\2" * 40
    assert found_in(garbage + batch + garbage + batch[:-1], next_offset) == [(next_offset + distance, len(batch))]


@pytest.mark.parametrize("base_offset", [2**40 - 1, 2**40 + MAX_INT32 + 1, 0, 2**62])
def test_batches_that_cannot_be_of_the_segment_are_none(base_offset: int) -> None:
    stale, own = bytes(make_stored_batch(base_offset, 0, 3)), bytes(make_stored_batch(2**40 + 9, 0, 1))
    assert found_in(stale + own, 2**40) == [(2**40 + 9, len(own))]


def test_every_sound_batch_is_found_wherever_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    # Several of them are looked through.
    monkeypatch.setattr(torn, "_PIECE_BYTES", 50)
    chance = random.Random(SEED)
    several, rounds = 0, 5_000 if SOAK else 300
    for _ in range(rounds):
        next_offset = chance.choice([0, 5, 2**31 - 1, 2**32 - 3, 2**32])
        pieces, offset = [], next_offset
        for _ in range(chance.randrange(12)):
            kind = chance.randrange(4)
            if kind == 0:
                pieces.append(bytes(chance.choices(chance.choice([b"\0\2", b"\0\0\0\2\1", bytes(range(256))]), k=90)))
            elif kind == 1:
                pieces.append(header(offset + chance.randrange(3), chance.randrange(HEADER_BYTES, 400)))
            else:
                offset += chance.randrange(-2, 5)
                batch = bytes(make_stored_batch(max(offset, 0), 0, chance.randrange(1, 4)))
                pieces.append(batch[: chance.choice([len(batch), len(batch), chance.randrange(len(batch))])])
        data = b"".join(pieces)
        expected = looked_for_everywhere(data, next_offset)
        assert found_in(data, next_offset) == expected, f"seed {SEED}"
        several += len(expected) > 1
    assert several > rounds / 10, f"seed {SEED}"


@pytest.mark.parametrize("next_offset", [0, 7, 2**32 - 3])
def test_what_is_small_is_looked_through_even_if_all_of_it_looks_like_batches(next_offset: int) -> None:
    batch = bytes(make_stored_batch(next_offset + 2, 0, 3))
    for likeness in (b"\0" * 16 + b"\2" * 16, header(next_offset, 4000)[: MAGIC_POSITION + 1]):
        garbage = likeness * (4000 // len(likeness))
        assert found_in(garbage + batch, next_offset) == [(next_offset + 2, len(batch))], likeness


@pytest.mark.parametrize(
    ("piece", "is_complete"),
    [
        (b"\2", True),
        (b"\0", True),
        (b"\0" * 16 + b"\2" * 16, False),
        (header(9, HEADER_BYTES), True),
        (header(9, MEBIBYTE // 2), False),
    ],
    ids=["magics", "zeros", "zeros and magics", "small batches", "large batches"],
)
def test_no_content_takes_long(monkeypatch: pytest.MonkeyPatch, piece: bytes, is_complete: bool) -> None:
    """Half a minute and more for what is written in a fraction of a second, where each byte is looked at by itself."""
    monkeypatch.setattr(torn, "_LEAST_VAIN_BYTES", MEBIBYTE)
    looks = Looks(monkeypatch)
    data = memoryview(piece * (MEBIBYTE // len(piece)))
    assert sound_batches(data, 0, 7) == ([], is_complete)
    # Eight times the bytes, of which a place that is no batch at the first glance counts as 128.
    assert looks.checked_bytes <= 8 * MEBIBYTE + len(data)
    assert looks.candidates <= 8 * MEBIBYTE // 128 + 2


class _BadSector:
    """A file of which one place cannot be read."""

    def __init__(self, file: File, at: int) -> None:
        self._file = file
        self._at = at

    def pread(self, length: int, position: int) -> bytes:
        if position <= self._at < position + length:
            raise OSError(errno.EIO, "Input/output error")
        return self._file.pread(length, position)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def test_a_sector_that_cannot_be_read_is_an_error_before_the_file_is_mapped(tmp_path: Path) -> None:
    data = random.Random(SEED).randbytes(3 * MEBIBYTE + 5)
    (tmp_path / "a.log").write_bytes(data)
    file = OsFs().open(f"{tmp_path}/a.log")
    for at in (0, 2 * MEBIBYTE, len(data) - 1):
        with pytest.raises(OSError, match="Input/output error"), Mapped(_BadSector(file, at)):  # type: ignore[arg-type]
            raise AssertionError("it is mapped")
        # Only what is looked at is read.
        with Mapped(_BadSector(file, at), at + 1) as view:  # type: ignore[arg-type]
            assert view[at + 1 :] == data[at + 1 :]


def test_bytes_with_room_for_a_batch_may_have_had_any_offsets() -> None:
    assert may_have_held(0, 0) and not may_have_held(HEADER_BYTES - 1, 1)
    assert may_have_held(HEADER_BYTES, MAX_INT32) and may_have_held(400, 100_000)

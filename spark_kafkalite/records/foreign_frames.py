"""What Kafka's decoders read of a compressed section, where the libraries behind ``compression`` read more or less.

A broker takes only what Java's consumers can read: a batch that they cannot read stops each of them at its offset. For
a section in lz4 or zstd, :func:`lz4_as_java_reads` and :func:`zstd_as_java_reads` return the part that the library has
to decompress for the same result as Java's. For the gzip sections that the library refuses, there is
:func:`gzip_members`.

Java's lz4 reader takes one frame of independent blocks and no dictionary. It checks neither content size nor content
checksum, ends at an empty block, and ignores what follows the frame. Its zstd reader takes windows of up to 128 MiB,
and behind the last frame the beginning of another one that gives no output yet. Its gzip reader ignores what is no
member behind the last one. tests/golden/frames has the verdicts.

Each block costs one step of Python: sixteen for a MiB in the blocks that clients make.

Source: org.apache.kafka.common.compress.Lz4BlockInputStream, com.github.luben.zstd.ZstdInputStreamNoFinalizer,
java.util.zip.GZIPInputStream; LZ4 frame format 1.6; RFC 8878; RFC 1952.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from spark_kafkalite.records.buffers import Buffer

_UINT32: Final = struct.Struct("<I")

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
# Of FLG: version 1, independent blocks, no reserved bit and no dictionary id.
_LZ4_FIXED_BITS, _LZ4_FIXED_VALUE = 0xE3, 0x60
_LZ4_BLOCK_CHECKSUMS, _LZ4_CONTENT_SIZE, _LZ4_CONTENT_CHECKSUM = 0x10, 0x08, 0x04
_LZ4_LENGTH: Final = 0x7FFFFFFF

_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_SKIPPABLE: Final = 0x184D2A50
_ZSTD_MAGIC_BYTES, _ZSTD_SKIPPABLE_END = b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18"
# ZSTD_WINDOWLOG_LIMIT_DEFAULT: the streaming decoder's limit, which Java's reader leaves as it is.
_ZSTD_LARGEST_WINDOW: Final = 128 * 1024 * 1024
_RAW_BLOCK, _RLE_BLOCK, _RESERVED_BLOCK = 0, 1, 3

_GZIP_HEADER_BYTES, _GZIP_TRAILER_BYTES = 10, 8
_GZIP_CHECKSUM, _GZIP_EXTRA, _GZIP_TEXTS = 0x02, 0x04, (0x08, 0x10)


class ForeignFrame(Exception):
    """Kafka's decoders refuse the section."""


def lz4_as_java_reads(data: memoryview) -> bytes | memoryview:
    """Return ``data``, or another frame which gives what Java reads of it. Raises ForeignFrame."""
    begun = bytes(data[:7])
    if len(begun) < 7 or begun[:4] != _LZ4_MAGIC:
        raise ForeignFrame("it does not begin with an lz4 frame")
    flags, block_size = begun[4], begun[5]
    if flags & _LZ4_FIXED_BITS != _LZ4_FIXED_VALUE:
        raise ForeignFrame(f"frame flags {flags:#04x}: blocks must be independent, and there can be no dictionary")
    if block_size & 0x8F or block_size < 0x40:
        raise ForeignFrame(f"frame byte {block_size:#04x} is none of the four sizes of blocks")
    first = 7 + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    if begun not in _LZ4_USUAL_HEADERS and (
        len(data) < first or data[first - 1] != _xxh32_short(bytes(data[4 : first - 1])) >> 8 & 0xFF
    ):
        raise ForeignFrame("the checksum of the frame's header is wrong")
    end, is_end_mark = _last_lz4_block(data, first, flags, 1 << (2 * (block_size >> 4) + 8))
    if not flags & (_LZ4_CONTENT_SIZE | _LZ4_CONTENT_CHECKSUM) and is_end_mark and end + 4 == len(data):
        return data
    plain = bytes([flags & ~(_LZ4_CONTENT_SIZE | _LZ4_CONTENT_CHECKSUM), block_size])
    checksum = bytes([_xxh32_short(plain) >> 8 & 0xFF])
    return b"".join((_LZ4_MAGIC, plain, checksum, data[first:end], bytes(4)))


def _last_lz4_block(data: memoryview, position: int, flags: int, largest: int) -> tuple[int, bool]:
    """Return where the blocks end, and whether the usual end mark exists."""
    behind = 8 if flags & _LZ4_BLOCK_CHECKSUMS else 4
    unpack = _UINT32.unpack_from
    try:
        while True:
            (word,) = unpack(data, position)
            length = word & _LZ4_LENGTH
            if length <= 1 and (length == 0 or word == 1):
                break
            if length > largest:
                raise ForeignFrame(f"a block of {length} bytes, where the frame's header allows at most {largest}")
            position += length + behind
        if length:
            # One byte of a compressed block is no more than a token: its output is empty, and Java's reader ends there.
            if data[position + behind] >> 4:
                raise ForeignFrame("a block of one byte announces more")
        elif flags & _LZ4_CONTENT_CHECKSUM:
            unpack(data, position + 4)
    except (struct.error, IndexError):
        raise ForeignFrame("it is cut off: the frame has no end") from None
    return position, word == 0


def _xxh32_short(data: bytes) -> int:
    """Return xxHash32 with seed 0 of at most 15 bytes."""
    mask, position = 0xFFFFFFFF, 0
    found = (374761393 + len(data)) & mask
    while position + 4 <= len(data):
        found = (found + _UINT32.unpack_from(data, position)[0] * 3266489917) & mask
        found = (found << 17 | found >> 15) * 668265263 & mask
        found, position = found & mask, position + 4
    for byte in data[position:]:
        found = (found + byte * 374761393) & mask
        found = ((found << 11 | found >> 21) & mask) * 2654435761 & mask
    found = (found ^ found >> 15) * 2246822519 & mask
    found = (found ^ found >> 13) * 3266489917 & mask
    return found ^ found >> 16


# What nearly all clients write.
_LZ4_USUAL_HEADERS: Final = frozenset(
    _LZ4_MAGIC + plain + bytes([_xxh32_short(plain) >> 8 & 0xFF])
    for plain in (bytes([flags, size]) for flags in (0x60, 0x70) for size in (0x40, 0x50, 0x60, 0x70))
)


def zstd_as_java_reads(data: memoryview) -> memoryview:
    """Return ``data``, without a last frame that has begun and gives no output yet. Raises ForeignFrame."""
    position = 0
    while position < len(data):
        start = position
        try:
            position = _zstd_frame_end(data, start)
        except (struct.error, IndexError):
            return data[:start] if start and _may_be_zstd(bytes(data[start : start + 4])) else data
    return data


def _may_be_zstd(begun: bytes) -> bool:
    is_skippable = begun[0] & 0xF0 == 0x50 and _ZSTD_SKIPPABLE_END.startswith(begun[1:])
    return is_skippable or _ZSTD_MAGIC_BYTES.startswith(begun)


def _zstd_frame_end(data: memoryview, position: int) -> int:
    """Return where the frame ends that begins at ``position``; the data's end where only the library can find that.

    Raises struct.error or IndexError when the data ends before the frame gives any output, ForeignFrame.
    """
    end = len(data)
    (magic,) = _UINT32.unpack_from(data, position)
    if magic & ~0xF == _ZSTD_SKIPPABLE:
        position += 8 + int(_UINT32.unpack_from(data, position + 4)[0])
        if position > end:
            raise IndexError
        return position
    if magic != _ZSTD_MAGIC:
        return end
    descriptor = data[position + 4]
    is_single_segment = descriptor & 0x20
    position += 5
    if not is_single_segment:
        exponent, mantissa = data[position] >> 3, data[position] & 7
        _check_window((1 << (10 + exponent)) // 8 * (8 + mantissa))
        position += 1
    position += (0, 1, 2, 4)[descriptor & 3]
    width = (1 if is_single_segment else 0, 2, 4, 8)[descriptor >> 6]
    if is_single_segment:
        _check_window(int.from_bytes(data[position : position + width], "little"))
    return _zstd_blocks_end(data, position + width, 4 if descriptor & 4 else 0)


def _zstd_blocks_end(data: memoryview, position: int, checksum_bytes: int) -> int:
    """Return where a frame ends whose blocks begin at ``position``; as :func:`_zstd_frame_end`."""
    end, has_output = len(data), False
    try:
        while True:
            word = data[position] | data[position + 1] << 8 | data[position + 2] << 16
            kind, size = word >> 1 & 3, word >> 3
            if kind == _RESERVED_BLOCK:
                return end
            position += 3
            # What is there of a raw block is output already.
            has_output = has_output or (kind == _RAW_BLOCK and size > 0 and position < end)
            position += 1 if kind == _RLE_BLOCK else size
            if position > end:
                raise IndexError
            has_output = has_output or size > 0
            if word & 1:
                position += checksum_bytes
                if position > end:
                    raise IndexError
                return position
    except IndexError:
        if has_output:
            return end
        raise


def _check_window(size: int) -> None:
    if size > _ZSTD_LARGEST_WINDOW:
        raise ForeignFrame(f"a window of {size} bytes; Kafka's decoders take {_ZSTD_LARGEST_WINDOW}")


def gzip_members(data: Buffer, max_bytes: int) -> bytes | None:
    """Return the content of the members as Java reads them; None for more than ``max_bytes``. Raises ForeignFrame."""
    view = memoryview(data)
    pieces: list[bytes] = []
    room = max_bytes
    start = _gzip_body(view)
    if start is None:
        raise ForeignFrame("it does not begin with a gzip member")
    while start is not None:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            piece = inflater.decompress(view[start:], room + 1)
        except zlib.error as error:
            raise ForeignFrame(str(error)) from error
        room -= len(piece)
        if room < 0:
            return None
        rest = inflater.unused_data
        if not inflater.eof or len(rest) < _GZIP_TRAILER_BYTES:
            raise ForeignFrame("a gzip member is cut off")
        if struct.unpack_from("<II", rest) != (zlib.crc32(piece), len(piece) & 0xFFFFFFFF):
            raise ForeignFrame("checksum or length of a gzip member is wrong")
        pieces.append(piece)
        view = memoryview(rest)[_GZIP_TRAILER_BYTES:]
        # Of so little Java does not look for another member.
        start = _gzip_body(view) if len(view) > _GZIP_HEADER_BYTES + _GZIP_TRAILER_BYTES else None
    return b"".join(pieces)


def _gzip_body(view: memoryview) -> int | None:
    """Return where a member's deflated data begin, None when this is no member. Java takes the reserved flags."""
    if len(view) < _GZIP_HEADER_BYTES or bytes(view[:3]) != b"\x1f\x8b\x08":
        return None
    flags, position, data = view[3], _GZIP_HEADER_BYTES, bytes(view[: 1 << 18])
    if flags & _GZIP_EXTRA:
        position += 2 + int.from_bytes(data[position : position + 2], "little")
    for flag in _GZIP_TEXTS:
        if flags & flag:
            position = data.find(b"\0", position) + 1
            if not position:
                return None
    if flags & _GZIP_CHECKSUM:
        if data[position : position + 2] != struct.pack("<H", zlib.crc32(data[:position]) & 0xFFFF):
            return None
        position += 2
    return position if position < len(view) else None

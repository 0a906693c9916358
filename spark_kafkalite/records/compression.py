"""The codecs of a batch's records section, in every dialect that clients send.

Reads gzip with any number of members; snappy as Java and aiokafka frame it (xerial stream) and as librdkafka sends it
(one raw block). Reads lz4 frames with or without block checksums, content size and block independence; zstd frames,
several in a row too. Writes what every client can read: one gzip member, xerial snappy in 32 KiB blocks, lz4 frames of
independent 64 KiB blocks (Java's reader refuses dependent ones), zstd at level 3.

Output is capped: :func:`decompress` never allocates more than ``max_bytes``, nor more than the input could expand to,
so a small hostile batch costs no more than its cap. The sizes that formats carry are hints for the first try, never
trusted.

Source of the framings: RFC 1952; github.com/xerial/snappy-java SnappyOutputStream; LZ4 frame format 1.6; RFC 8878.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from typing import Any, Final

import cramjam

from spark_kafkalite.errors import CorruptMessage, InvalidRecord
from spark_kafkalite.records.foreign_frames import (
    ForeignFrame,
    gzip_members,
    lz4_as_java_reads,
    zstd_as_java_reads,
)

Buffer = bytes | bytearray | memoryview

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

# Name to number; the numbers are the attribute bits of a batch.
CODECS: Final = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
CODEC_NAMES: Final = {number: name for name, number in CODECS.items()}

# Lowest and highest level and the one that is used without asking. Sources: Kafka's defaults for
# compression.gzip.level, compression.lz4.level and compression.zstd.level (KIP-390). lz4's default, 9, stands for the
# fast compressor, as in Kafka, and every other level for itself: 1 is about as fast, more than 12 gives no more.
LEVELS: Final = {GZIP: (1, 9, 6), LZ4: (1, 17, 9), ZSTD: (-131072, 22, 3)}

# What a byte of input can become at most; a hint beyond it is a lie. Deflate: 258 bytes for 2 bits; lz4: 255 for a byte
# of match length; snappy: a copy of 64 bytes takes 3; zstd: a run block of 4 bytes stands for 128 KiB.
_MAX_RATIO: Final = {GZIP: 1040, SNAPPY: 64, LZ4: 260, ZSTD: 32768}
_SMALLEST_OUTPUT: Final = 4096
_MAPPED_OUTPUT_BYTES: Final = 4 * 1024 * 1024
_HUGE_PAGES: Final[int | None] = getattr(mmap, "MADV_HUGEPAGE", None)

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
# Magic, version 1, oldest compatible version 1; then blocks of int32 length and raw snappy.
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
# The first bytes of the magic, where a block's length is expected: another stream begins.
_XERIAL_AGAIN: Final = int.from_bytes(_XERIAL_MAGIC[:4], "big")
_XERIAL_BLOCK_BYTES: Final = 32 * 1024

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
# Magic; version 1 with independent blocks; blocks of up to 64 KiB; checksum of the two bytes before (xxh32, second
# byte).
_LZ4_HEADER: Final = _LZ4_MAGIC + b"\x60\x40\x82"
_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_UNCOMPRESSED_BIT: Final = 0x80000000
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
# What every zstd reader accepts (RFC 8878, section 3.1.1.1.2); more is refused unless the cap is higher anyway.
_LARGEST_USUAL_WINDOW: Final = 8 * 1024 * 1024

# What cramjam says when the output buffer is too small.
_BUFFER_FULL: Final = "failed to write whole buffer"
_DecompressInto = Callable[[Any, Any], int]


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes | bytearray:
    """Return ``data`` compressed as one piece; ``level`` None is the codec's default, snappy has only one."""
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data, level=LEVELS[GZIP][2] if level is None or level < 0 else level))
    if codec == SNAPPY:
        return _compress_snappy(data)
    if codec == LZ4:
        return _compress_lz4(data) if level is None or level == LEVELS[LZ4][2] else _compress_lz4_at(data, level)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=LEVELS[ZSTD][2] if level is None else level))
    if codec == NONE:
        return bytes(data)
    raise ValueError(f"codec {codec} is not one of {CODECS}")


def decompress(codec: int, data: Buffer, max_bytes: int, *, as_java: bool = False) -> Buffer:
    """Return ``data`` decompressed; without a codec, ``data`` itself.

    With ``as_java`` what Kafka's own decoders refuse is refused, too: a broker lets nothing in that they cannot read.
    Without, it is read where the library can: older logs may have it.

    Raises InvalidRecord when there are more than ``max_bytes``, CorruptMessage when the data is not what the codec
    writes.
    """
    if codec == NONE:
        if len(data) > max_bytes:
            raise _over(codec, max_bytes)
        return data
    if codec == SNAPPY:
        return _decompress_snappy(data, max_bytes)
    try:
        return _decompress_as_java(codec, data, max_bytes)
    except CorruptMessage:
        if as_java or codec not in (LZ4, ZSTD):
            raise
        return _decompress_whole(codec, data, max_bytes)


def _decompress_as_java(codec: int, data: Buffer, max_bytes: int) -> Buffer:
    """Decompress what Java reads of ``data``."""
    try:
        if codec == LZ4:
            return _decompress_whole(codec, lz4_as_java_reads(memoryview(data)), max_bytes, _lz4_hint(data))
        if codec == ZSTD:
            return _decompress_whole(codec, zstd_as_java_reads(memoryview(data)), max_bytes)
        try:
            return _decompress_whole(codec, data, max_bytes)
        except CorruptMessage:
            if codec != GZIP:
                raise
        plain = gzip_members(data, max_bytes)
    except ForeignFrame as error:
        raise _corrupt(codec, error) from error
    if plain is None:
        raise _over(codec, max_bytes)
    return plain


def _decompress_whole(codec: int, data: Buffer, max_bytes: int, hint: int = 0) -> Buffer:
    if codec == GZIP:
        return _decompress_into(codec, cramjam.gzip.decompress_into, data, max_bytes, _gzip_hint(data))
    if codec == LZ4:
        return _decompress_into(codec, cramjam.lz4.decompress_into, data, max_bytes, hint or _lz4_hint(data))
    if codec == ZSTD:
        return _decompress_into(codec, cramjam.zstd.decompress_into, data, max_bytes, _zstd_hint(data, max_bytes))
    raise CorruptMessage(f"codec {codec} in the batch's attributes is not known; known are {_known_codecs()}")


def _known_codecs() -> str:
    return ", ".join(f"{number} ({name})" for name, number in CODECS.items())


def _over(codec: int, max_bytes: int) -> InvalidRecord:
    return InvalidRecord(
        f"{CODEC_NAMES[codec]} batch decompresses to more than {max_bytes} bytes (max.decompressed.batch.bytes)"
    )


def _corrupt(codec: int, reason: object) -> CorruptMessage:
    return CorruptMessage(f"{CODEC_NAMES[codec]} batch cannot be decompressed: {reason}")


def _decompress_into(codec: int, into: _DecompressInto, data: Buffer, max_bytes: int, hint: int) -> Buffer:
    # The library fills a buffer of ours and fails once it is full, so nothing larger is ever made. A first guess that
    # was too small costs another round with four times the room: at most a third more work than the last round.
    if not len(data):
        raise _corrupt(codec, "it is empty")
    limit = min(max_bytes, len(data) * _MAX_RATIO[codec])
    size = min(hint if hint > 0 else max(4 * len(data), _SMALLEST_OUTPUT), limit)
    while True:
        output = _new_output(size)
        try:
            written = into(data, output)
        except cramjam.DecompressionError as error:
            if str(error) != _BUFFER_FULL:
                raise _corrupt(codec, error) from error
            if size >= limit:
                raise _over(codec, max_bytes) from None
            size = min(4 * size, limit)
            continue
        return memoryview(output)[:written]


def _new_output(size: int) -> bytearray | mmap.mmap:
    # A bytearray is filled with zeros while the GIL is held: 64 MiB of it stop a broker's loop for 40 to 140 ms on new
    # memory, although the batch is walked in a thread. Mapped pages are first touched by the codec, without the GIL;
    # huge ones, because with small ones that takes five times as long as the decompression. Small outputs are the usual
    # ones, and fastest in memory that was used before.
    if size < _MAPPED_OUTPUT_BYTES:
        return bytearray(size)
    output = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if _HUGE_PAGES is not None:
        try:
            output.madvise(_HUGE_PAGES)
        except OSError:  # a system without huge pages: slower, nothing else
            pass
    return output


def _gzip_hint(data: Buffer) -> int:
    # The last member's length modulo 2^32.
    return int.from_bytes(data[-4:], "little") if len(data) >= 18 else 0


def _lz4_hint(data: Buffer) -> int:
    # Bit 3 of FLG: the content size follows FLG and BD.
    if len(data) >= 14 and data[4] & 0x08:
        return int.from_bytes(data[6:14], "little")
    return 0


def _zstd_hint(data: Buffer, max_bytes: int) -> int:
    """Return the content size of the first frame, 0 when it has none; refuse a window larger than any output may be."""
    if len(data) < 6 or bytes(data[:4]) != _ZSTD_MAGIC:
        return 0
    descriptor = data[4]
    single_segment = descriptor & 0x20
    position = 5
    if not single_segment:
        exponent, mantissa = data[5] >> 3, data[5] & 7
        window = (1 << (10 + exponent)) // 8 * (8 + mantissa)
        if window > max(max_bytes, _LARGEST_USUAL_WINDOW):
            raise _over(ZSTD, max_bytes)
        position += 1
    position += (0, 1, 2, 4)[descriptor & 3]
    width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    size = int.from_bytes(data[position : position + width], "little") + (256 if width == 2 else 0)
    if single_segment and size > max_bytes:
        raise _over(ZSTD, max_bytes)
    return size


def _compress_snappy(data: Buffer) -> bytes:
    pieces = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        pieces.append(len(block).to_bytes(4, "big"))
        pieces.append(block)
    return b"".join(pieces)


def _snappy_blocks(data: Buffer) -> list[tuple[Buffer, int]]:
    """Return the raw blocks of either dialect, each with its stated decompressed length."""
    if bytes(data[:8]) != _XERIAL_MAGIC:
        return [(data, _raw_snappy_length(data))]
    if len(data) < len(_XERIAL_HEADER):
        raise _corrupt(SNAPPY, "its xerial header is cut off")
    blocks = []
    position = len(_XERIAL_HEADER)
    # Java's reader does not look at what is too short for a length.
    while position + 4 <= len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        if length == _XERIAL_AGAIN:
            position += len(_XERIAL_HEADER)
            if position > len(data):
                raise _corrupt(SNAPPY, "its xerial header is cut off")
            continue
        position += 4
        if position + length > len(data):
            raise _corrupt(SNAPPY, f"a block of {length} bytes at {position} ends after the data ({len(data)} bytes)")
        block = data[position : position + length]
        blocks.append((block, _raw_snappy_length(block)))
        position += length
    return blocks


def _raw_snappy_length(block: Buffer) -> int:
    try:
        length = int(cramjam.snappy.decompress_raw_len(block))
    except cramjam.DecompressionError as error:
        raise _corrupt(SNAPPY, error) from error
    # The library makes room before it reads, so a lie here must not get that far.
    if length > len(block) * _MAX_RATIO[SNAPPY]:
        raise _corrupt(SNAPPY, f"{len(block)} bytes cannot hold the {length} that they announce")
    return length


def _decompress_snappy(data: Buffer, max_bytes: int) -> Buffer:
    view = memoryview(data)
    blocks = _snappy_blocks(view)
    total = sum(length for _, length in blocks)
    if total > max_bytes:
        raise _over(SNAPPY, max_bytes)
    room = memoryview(_new_output(total))
    position = 0
    for block, length in blocks:
        try:
            written = cramjam.snappy.decompress_raw_into(block, room[position : position + length])
        except cramjam.DecompressionError as error:
            raise _corrupt(SNAPPY, error) from error
        if written != length:
            raise _corrupt(SNAPPY, f"a block announces {length} bytes and gives {written}")
        position += length
    return room


def _compress_lz4(data: Buffer) -> bytes:
    pieces = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            pieces.append(len(block).to_bytes(4, "little"))
            pieces.append(block)
        else:
            pieces.append((len(plain) | _LZ4_UNCOMPRESSED_BIT).to_bytes(4, "little"))
            pieces.append(bytes(plain))
    pieces.append(bytes(4))
    return b"".join(pieces)


def _compress_lz4_at(data: Buffer, level: int) -> bytes:
    # The library's frames: the same blocks, with a checksum of each. Its blocks alone know no levels.
    frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    frame.compress(bytes(data))
    return bytes(frame.finish())

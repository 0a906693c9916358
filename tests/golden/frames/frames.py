"""The compressed sections of ``verdicts.json``: for each codec what its format allows, allows rarely, and forbids.

All hold the same records (:func:`section`), or a part of them, or more. What a frame is about is its name.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Final

import cramjam

from spark_kafkalite.records import layout
from spark_kafkalite.records.compression import CODECS
from tests.lab.batches import make_batch

VALUES: Final = [b"first " * 20, b"second " * 20, bytes(range(100))]
RECORDS: Final = len(VALUES)


def section() -> bytes:
    """Return the records, uncompressed."""
    return bytes(make_batch(VALUES))[layout.HEADER_BYTES :]


def batch_with(codec: str, frame: bytes) -> bytes:
    """Return the batch of the records whose compressed section is ``frame``."""
    from crc32c import crc32c

    batch = bytearray(make_batch(VALUES)[: layout.HEADER_BYTES]) + frame
    struct.pack_into(">i", batch, 8, len(batch) - layout.LOG_OVERHEAD)
    struct.pack_into(">h", batch, 21, CODECS[codec])
    struct.pack_into(">I", batch, layout.CRC_POSITION, crc32c(bytes(batch[layout.CRC_START :])))
    return bytes(batch)


def frames() -> dict[str, dict[str, bytes]]:
    """Return the frames by codec and name."""
    return {"gzip": _gzip_frames(), "snappy": _snappy_frames(), "lz4": _lz4_frames(), "zstd": _zstd_frames()}


def _in_parts(data: bytes, count: int) -> list[bytes]:
    size = -(-len(data) // count)
    return [data[start : start + size] for start in range(0, len(data), size)]


# gzip -----------------------------------------------------------------------------------------------------------------


def _deflate(data: bytes, level: int = 6, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -15, 8, strategy)
    return packer.compress(data) + packer.flush()


def _member(
    data: bytes, body: bytes | None = None, *, method: int = 8, flags: int = 0, more: bytes = b"",
    crc: int | None = None, size: int | None = None, fixed: bytes = bytes(5) + b"\xff",
) -> bytes:  # fmt: skip
    head = b"\x1f\x8b" + bytes([method, flags]) + fixed + more
    body = _deflate(data) if body is None else body
    crc = zlib.crc32(data) if crc is None else crc
    return head + body + struct.pack("<II", crc, len(data) if size is None else size)


def _gzip_frames() -> dict[str, bytes]:
    data = section()
    one, empty = _member(data), _member(b"")
    first, second = _in_parts(data, 2)
    head = b"\x1f\x8b\x08\x02" + bytes(5) + b"\xff"
    right = struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    flushed = zlib.compressobj(6, zlib.DEFLATED, -15)
    blocks = b"".join(flushed.compress(part) + flushed.flush(zlib.Z_SYNC_FLUSH) for part in _in_parts(data, 5))
    blocks += flushed.flush()
    return {
        "one member": one,
        "level 1": _member(data, _deflate(data, 1)),
        "level 9": _member(data, _deflate(data, 9)),
        "a stored block": _member(data, _deflate(data, 0)),
        "fixed codes": _member(data, _deflate(data, 6, zlib.Z_FIXED)),
        "flushed blocks": _member(data, blocks),
        "a time and a system": _member(data, fixed=b"\x01\x02\x03\x04\x02\x03"),
        "a name": _member(data, flags=8, more=b"name\0"),
        "a comment": _member(data, flags=16, more=b"comment\0"),
        "an extra field": _member(data, flags=4, more=b"\x06\0ab\x02\0xy"),
        "an empty extra field": _member(data, flags=4, more=b"\0\0"),
        "marked as text": _member(data, flags=1),
        "a header checksum": _member(data, flags=2, more=right),
        "a wrong header checksum": _member(data, flags=2, more=b"\x12\x34"),
        "name, comment and extra field": _member(data, flags=28, more=b"\x02\0ab" + b"name\0" + b"comment\0"),
        "reserved flag 5": _member(data, flags=32),
        "reserved flag 7": _member(data, flags=128),
        "method 7": _member(data, method=7),
        "another magic": b"\x1f\x8c" + one[2:],
        "two members": _member(first) + _member(second),
        "five members": b"".join(map(_member, _in_parts(data, 5))),
        "an empty member first": empty + one,
        "an empty member between": _member(first) + empty + _member(second),
        "an empty member last": one + empty,
        "a zero behind": one + b"\0",
        "ten zeros behind": one + bytes(10),
        "forty zeros behind": one + bytes(40),
        "text behind": one + b"trailing text that is no member at all",
        "a magic behind": one + b"\x1f\x8b",
        "a header behind": one + empty[:10],
        "a header and more behind": one + empty[:10] + bytes(12),
        "a member with a reserved flag behind": one + _member(b"", flags=32),
        "a member with a wrong header checksum behind": one + _member(b"more", flags=2, more=b"\x12\x34"),
        "a member behind that is cut off": one + _member(second)[:-9],
        "a member behind with a wrong checksum": one + _member(b"", crc=5),
        "a member behind with another method": one + _member(b"", method=7),
        "another member behind with more": one + _member(b"more"),
        "a wrong checksum": _member(data, crc=1),
        "a wrong length": _member(data, size=1),
        "a wrong checksum in the first of two": _member(first, crc=1) + _member(second),
        "cut by a byte": one[:-1],
        "without checksum and length": one[:-8],
        "cut in half": one[: len(one) // 2],
        "nothing": b"",
        "a header alone": one[:10],
        "deflate without a header": _deflate(data),
        "a zlib stream": zlib.compress(data),
        "a reserved kind of block": _member(data, b"\x07" + _deflate(data)),
        "a name without end": one[:3] + b"\x08" + one[4:10] + b"name",
        "a byte more than the records": _member(data + b"x"),
        "a byte less than the records": _member(data[:-1]),
    }


# snappy ---------------------------------------------------------------------------------------------------------------

_XERIAL = b"\x82SNAPPY\0"


def _raw(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def _literal(data: bytes) -> bytes:
    """An element of up to 64 KiB that stands for itself."""
    return b"\xf4" + struct.pack("<H", len(data) - 1) + data


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes(found) + bytes([number])


def _xerial(blocks: Iterable[bytes], version: int = 1, compatible: int = 1) -> bytes:
    sized = b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    return _XERIAL + struct.pack(">ii", version, compatible) + sized


def _snappy_frames() -> dict[str, bytes]:
    data = section()
    raw, halves = _raw(data), _in_parts(data, 2)
    one, two = _xerial([raw]), _xerial(map(_raw, halves))
    size = _varint(len(data))
    repeat = data.index(b"first ") + 6
    tail = data[repeat + 114 :]
    head = _varint(len(data)) + _literal(data[:repeat])
    copies = {
        "copies of one byte offset": (b"".join([bytes([0x01 | 4 << 2, 6])] * 14) + bytes([0x01 | 2 << 2, 6])),
        "copies of two bytes offset": bytes([0x02 | 63 << 2, 6, 0]) + bytes([0x02 | 49 << 2, 6, 0]),
        "copies of four bytes offset": bytes([0x03 | 63 << 2, 6, 0, 0, 0]) + bytes([0x03 | 49 << 2, 6, 0, 0, 0]),
        "a copy from offset 0": bytes([0x02 | 63 << 2, 0, 0]) + bytes([0x02 | 49 << 2, 6, 0]),
        "a copy from before the start": bytes([0x02 | 63 << 2, 255, 255]) + bytes([0x02 | 49 << 2, 6, 0]),
    }
    return {
        "raw": raw,
        "raw, one literal": size + _literal(data),
        **{f"raw, {name}": head + bytes_ + _literal(tail) for name, bytes_ in copies.items()},
        "raw, a length of more bytes than needed": bytes([size[0], size[1] | 128, 0]) + raw[2:],
        "raw, a length that is too large": _varint(len(data) + 1) + raw[2:],
        "raw, a length that is too small": _varint(len(data) - 1) + raw[2:],
        "raw, a length of six bytes": b"\xff\xff\xff\xff\xff\x01" + raw[2:],
        "raw, a length of 2 GiB": _varint(2**31) + raw[2:],
        "raw, cut by a byte": raw[:-1],
        "raw, cut in half": raw[: len(raw) // 2],
        "raw, a byte behind": raw + b"\0",
        "raw, twice": _raw(halves[0]) + _raw(halves[1]),
        "raw, a byte more than the records": _raw(data + b"x"),
        "raw, a byte less than the records": _raw(data[:-1]),
        "raw, empty": b"\0",
        "nothing": b"",
        "xerial, one block": one,
        "xerial, two blocks": two,
        "xerial, twenty blocks": _xerial(map(_raw, _in_parts(data, 20))),
        "xerial, an empty block first": _xerial([_raw(b""), raw]),
        "xerial, an empty block between": _xerial([_raw(halves[0]), _raw(b""), _raw(halves[1])]),
        "xerial, an empty block last": _xerial([raw, _raw(b"")]),
        "xerial, a block of length 0 first": _xerial([b"", raw]),
        "xerial, a block of length 0 between": _xerial([_raw(halves[0]), b"", _raw(halves[1])]),
        "xerial, a block of length 0 last": _xerial([raw, b""]),
        "xerial, a block of negative length": one + struct.pack(">i", -5),
        "xerial, a block that is cut off": one[:-1],
        "xerial, a length that is cut off": one + b"\0\0",
        "xerial, a byte behind": one + b"x",
        "xerial, a block behind that is cut off": one + struct.pack(">i", 100) + b"abc",
        "xerial, a block behind that is not snappy": one + struct.pack(">i", 4) + b"\xff\xff\xff\xff",
        "xerial, two streams": _xerial([_raw(halves[0])]) + _xerial([_raw(halves[1])]),
        "xerial, a header again behind": one + _xerial([]),
        "xerial, a header again first": _xerial([]) + one,
        "xerial, half a header behind": one + _xerial([])[:10],
        "xerial, version 2": _xerial([raw], 2),
        "xerial, version 0": _xerial([raw], 0),
        "xerial, compatible from version 2": _xerial([raw], 2, 2),
        "xerial, compatible from version 0": _xerial([raw], 1, 0),
        "xerial, a header alone": _xerial([]),
        "xerial, half a header": one[:12],
        "xerial, another magic": b"\x82SNAPPZ\0" + one[8:],
        "xerial, a byte more than the records": _xerial([raw, _raw(b"x")]),
        "xerial, a byte less than the records": _xerial([_raw(data[:-1])]),
        "xerial, around a stream": _xerial([one]),
        "snappy's own framing": b"\xff\x06\0\0sNaPpY" + b"\x01" + struct.pack("<I", len(data))[:3] + bytes(4) + data,
    }  # fmt: skip


# lz4 ------------------------------------------------------------------------------------------------------------------


def _rotated(number: int, by: int, bits: int) -> int:
    return (number << by | number >> (bits - by)) & ((1 << bits) - 1)


def _xxh32(data: bytes) -> int:
    primes = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask, position = 0xFFFFFFFF, 0
    if len(data) >= 16:
        lanes = [(primes[0] + primes[1]) & mask, primes[1], 0, -primes[0] & mask]
        while position + 16 <= len(data):
            for lane, word in enumerate(struct.unpack_from("<4I", data, position)):
                lanes[lane] = _rotated((lanes[lane] + word * primes[1]) & mask, 13, 32) * primes[0] & mask
            position += 16
        found = sum(_rotated(lane, by, 32) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & mask
    else:
        found = primes[4]
    found = (found + len(data)) & mask
    while position + 4 <= len(data):
        found = _rotated((found + struct.unpack_from("<I", data, position)[0] * primes[2]) & mask, 17, 32)
        found = found * primes[3] & mask
        position += 4
    for byte in data[position:]:
        found = _rotated((found + byte * primes[4]) & mask, 11, 32) * primes[0] & mask
    for shift, prime in ((15, primes[1]), (13, primes[2])):
        found = (found ^ found >> shift) * prime & mask
    return found ^ found >> 16


def _lz4(
    blocks: Sequence[bytes], flags: int = 0x60, block_size: int = 0x40, more: bytes = b"", *,
    checksum: int | None = None, end: bytes = bytes(4), magic: bytes = b"\x04\x22\x4d\x18",
) -> bytes:  # fmt: skip
    """A frame of what :func:`_block` makes; ``more`` is what the flags announce: content size, dictionary id."""
    descriptor = bytes([flags, block_size]) + more
    checksum = _xxh32(descriptor) >> 8 & 255 if checksum is None else checksum
    return magic + descriptor + bytes([checksum]) + b"".join(blocks) + end


def _block(data: bytes, *, stored: bool = False, checked: bool = False, wrong: int = 0) -> bytes:
    body = data if stored else bytes(cramjam.lz4.compress_block(data, store_size=False))
    size = struct.pack("<I", len(body) | (1 << 31 if stored else 0))
    return size + body + (struct.pack("<I", _xxh32(body) ^ wrong) if checked else b"")


def _linked(data: bytes) -> list[bytes]:
    """Two blocks, the second of which copies from the first."""
    head = data[: data.index(b"first ") + 60]
    tail = data[data.index(b"first ") + 120 :]
    # No literals, then 60 bytes from 60 back; then the rest, as literals.
    copy = bytes([0x0F]) + struct.pack("<H", 60) + bytes([60 - 4 - 15])
    literals = bytes([0xF0]) + bytes([255] * ((len(tail) - 15) // 255)) + bytes([(len(tail) - 15) % 255]) + tail
    body = copy + literals
    return [_block(head, stored=True), struct.pack("<I", len(body)) + body]


def _lz4_frames() -> dict[str, bytes]:
    data = section()
    whole, halves = _block(data), _in_parts(data, 2)
    one, empty = _lz4([whole]), _lz4([])
    size, checksum = struct.pack("<Q", len(data)), struct.pack("<I", _xxh32(data))
    skippable = b"\x50\x2a\x4d\x18" + struct.pack("<I", 3) + b"abc"
    large = data + bytes(70_000)
    return {
        "one block": one,
        "two blocks": _lz4([_block(half) for half in halves]),
        "fifty blocks": _lz4([_block(part, stored=True) for part in _in_parts(data, 50)]),
        "a stored block": _lz4([_block(data, stored=True)]),
        **{f"blocks of size {number}": _lz4([whole], 0x60, number << 4) for number in range(8)},
        "a content size": _lz4([whole], 0x68, more=size),
        "a wrong content size": _lz4([whole], 0x68, more=struct.pack("<Q", 1)),
        "a huge content size": _lz4([whole], 0x68, more=b"\xff" * 8),
        "a content checksum": _lz4([whole], 0x64, end=bytes(4) + checksum),
        "a wrong content checksum": _lz4([whole], 0x64, end=bytes(4) + b"abcd"),
        "a content checksum that is cut off": _lz4([whole], 0x64, end=bytes(4) + checksum[:2]),
        "a content checksum that is not there": _lz4([whole], 0x64),
        "block checksums": _lz4([_block(half, checked=True) for half in halves], 0x70),
        "a wrong block checksum": _lz4([_block(data, checked=True, wrong=1)], 0x70),
        "a stored block with a wrong checksum": _lz4([_block(data, stored=True, checked=True, wrong=1)], 0x70),
        "everything": _lz4([_block(data, checked=True)], 0x7C, more=size, end=bytes(4) + checksum),
        "linked blocks": _lz4(_linked(data), 0x40),
        "blocks that may be linked and are not": _lz4([whole], 0x40),
        "linked blocks marked as independent": _lz4(_linked(data), 0x60),
        "a dictionary id": _lz4([whole], 0x61, more=struct.pack("<I", 7)),
        "reserved bit 1": _lz4([whole], 0x62),
        "version 0": _lz4([whole], 0x20),
        "version 2": _lz4([whole], 0xA0),
        "reserved bit of the block size": _lz4([whole], 0x60, 0xC0),
        "reserved low bits of the block size": _lz4([whole], 0x60, 0x41),
        "a wrong header checksum": _lz4([whole], checksum=1),
        "the header checksum of old clients": _lz4([whole], checksum=_xxh32(b"\x04\x22\x4d\x18\x60\x40") >> 8 & 255),
        "another magic": _lz4([whole], magic=b"\x05\x22\x4d\x18"),
        "the legacy magic": b"\x02\x21\x4c\x18" + whole,
        "a block larger than announced": _lz4([_block(large)]),
        "a stored block larger than announced": _lz4([_block(large, stored=True)]),
        "an empty stored block as the end": _lz4([whole], end=struct.pack("<I", 1 << 31)),
        "an empty stored block between": _lz4([_block(halves[0]), struct.pack("<I", 1 << 31), _block(halves[1])]),
        "an empty block between": _lz4([_block(halves[0]), _block(b""), _block(halves[1])]),
        "an empty block first": _lz4([_block(b""), whole]),
        "an empty block last": _lz4([whole, _block(b"")]),
        "an empty block last and no end": _lz4([whole, _block(b"")], end=b""),
        "an empty block with bits in its token": _lz4([_block(halves[0]), b"\1\0\0\0\x07", _block(halves[1])]),
        "two frames": _lz4([_block(halves[0])]) + _lz4([_block(halves[1])]),
        "an empty frame first": empty + one,
        "an empty frame last": one + empty,
        "a skippable frame first": skippable + one,
        "a skippable frame last": one + skippable,
        "a byte behind": one + b"x",
        "text behind": one + b"trailing text",
        "the same frame behind": one + one,
        "no end": _lz4([whole], end=b""),
        "half an end": _lz4([whole], end=bytes(2)),
        "a block that is cut off": one[:-8],
        "a block that is not lz4": _lz4([struct.pack("<I", 5) + b"\xff\xff\xff\xff\xff"]),
        "nothing": b"",
        "a header alone": one[:7],
        "half a header": one[:5],
        "a byte more than the records": _lz4([_block(data + b"x")]),
        "a byte less than the records": _lz4([_block(data[:-1])]),
    }


# zstd -----------------------------------------------------------------------------------------------------------------


def _xxh64(data: bytes) -> int:
    primes = 11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579, 2870177450012600261
    mask, position = (1 << 64) - 1, 0

    def round_(lane: int, word: int) -> int:
        return _rotated((lane + word * primes[1]) & mask, 31, 64) * primes[0] & mask

    if len(data) >= 32:
        lanes = [(primes[0] + primes[1]) & mask, primes[1], 0, -primes[0] & mask]
        while position + 32 <= len(data):
            lanes = [round_(a, b) for a, b in zip(lanes, struct.unpack_from("<4Q", data, position), strict=True)]
            position += 32
        found = sum(_rotated(lane, by, 64) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & mask
        for lane in lanes:
            found = ((found ^ round_(0, lane)) * primes[0] + primes[3]) & mask
    else:
        found = primes[4]
    found = (found + len(data)) & mask
    while position + 8 <= len(data):
        found ^= round_(0, struct.unpack_from("<Q", data, position)[0])
        found = (_rotated(found, 27, 64) * primes[0] + primes[3]) & mask
        position += 8
    if position + 4 <= len(data):
        found ^= struct.unpack_from("<I", data, position)[0] * primes[0] & mask
        found = (_rotated(found, 23, 64) * primes[1] + primes[2]) & mask
        position += 4
    for byte in data[position:]:
        found = _rotated(found ^ byte * primes[4] & mask, 11, 64) * primes[0] & mask
    for shift, prime in ((33, primes[1]), (29, primes[2])):
        found = (found ^ found >> shift) * prime & mask
    return found ^ found >> 32


_ZSTD = b"\x28\xb5\x2f\xfd"


def _stored(parts: Sequence[bytes], *, last: bool = True) -> bytes:
    """Raw blocks, the last of which is marked as such."""
    found = b""
    for number, part in enumerate(parts):
        is_last = last and number == len(parts) - 1
        found += struct.pack("<I", len(part) << 3 | is_last)[:3] + part
    return found


def _window(data: bytes, parts: Sequence[bytes] | None = None, *, exponent: int = 10, flags: int = 0) -> bytes:
    """A frame without content size, of raw blocks."""
    return _ZSTD + bytes([flags, exponent << 3]) + _stored([data] if parts is None else parts)


def _sized(data: bytes, size: int | None = None, *, flags: int = 0, more: bytes = b"") -> bytes:
    """A frame of one segment with a content size of four bytes."""
    head = bytes([0xA0 | flags]) + more + struct.pack("<I", len(data) if size is None else size)
    return _ZSTD + head + _stored([data])


def _zstd_frames() -> dict[str, bytes]:
    data = section()
    one, empty = bytes(cramjam.zstd.compress(data)), _window(b"")
    first, second = _in_parts(data, 2)
    skippable = b"\x50\x2a\x4d\x18" + struct.pack("<I", 3) + b"abc"
    checksum = struct.pack("<I", _xxh64(data) & 0xFFFFFFFF)
    run = data.index(b"first ")
    repeated = _ZSTD + bytes([0, 80]) + _stored([data], last=False) + struct.pack("<I", 5 << 3 | 2 | 1)[:3] + b"x"
    return {
        "one frame": one,
        "level 1": bytes(cramjam.zstd.compress(data, level=1)),
        "level 19": bytes(cramjam.zstd.compress(data, level=19)),
        "a raw block": _window(data),
        "thirty raw blocks": _window(data, _in_parts(data, 30)),
        "an empty block first": _window(data, [b"", data]),
        "an empty block last": _window(data, [data, b""]),
        "a content size": _sized(data),
        "a content size of two bytes": _ZSTD + b"\x60" + struct.pack("<H", len(data) - 256) + _stored([data]),
        "a content size of eight bytes": _ZSTD + b"\xe0" + struct.pack("<Q", len(data)) + _stored([data]),
        "a content size that is too large": _sized(data, len(data) + 1),
        "a content size that is too small": _sized(data, len(data) - 1),
        "a huge content size": _ZSTD + b"\xe0" + b"\xff" * 7 + b"\x7f" + _stored([data]),
        "a checksum": _window(data, flags=4) + checksum,
        "a wrong checksum": _window(data, flags=4) + b"abcd",
        "a checksum that is cut off": _window(data, flags=4) + checksum[:3],
        "the reserved bit": _window(data, flags=8),
        "the unused bit": _window(data, flags=16),
        "a dictionary id": _ZSTD + bytes([1, 80, 7]) + _stored([data]),
        "dictionary id 0": _ZSTD + bytes([1, 80, 0]) + _stored([data]),
        "a dictionary id of four bytes": _ZSTD + bytes([3, 80]) + struct.pack("<I", 77) + _stored([data]),
        "a window of 1 KiB": _window(data, exponent=0),
        "a window of 8 MiB": _window(data, exponent=13),
        "a window of 16 MiB": _window(data, exponent=14),
        "a window of 128 MiB": _window(data, exponent=17),
        "a window of 256 MiB": _window(data, exponent=18),
        "a window of 2 TiB": _window(data, exponent=31),
        "a reserved kind of block": _ZSTD + bytes([0, 80]) + struct.pack("<I", 5 << 3 | 6 | 1)[:3] + b"abcde",
        "a run behind": repeated,
        "a block larger than the window": _ZSTD + b"\x00\x00" + _stored([data + bytes(2_000)]),
        "two frames": bytes(cramjam.zstd.compress(first)) + bytes(cramjam.zstd.compress(second)),
        "ten frames": b"".join(map(_window, _in_parts(data, 10))),
        "two frames, the first of a run": _window(data[:run]) + _window(data[run:]),
        "an empty frame first": empty + one,
        "an empty frame between": _window(first) + empty + _window(second),
        "an empty frame last": one + empty,
        "a skippable frame first": skippable + one,
        "a skippable frame between": _window(first) + skippable + _window(second),
        "a skippable frame last": one + skippable,
        "the last kind of skippable frame first": b"\x5f" + skippable[1:] + one,
        "a skippable frame that is cut off": one + skippable[:-1],
        "a byte behind": one + b"x",
        "text behind": one + b"trailing text",
        "a magic behind": one + _ZSTD,
        "half a magic behind": one + _ZSTD[:2],
        "a header behind": one + _ZSTD + bytes([0, 80]),
        "a header of a larger window than possible behind": one + _window(b"", exponent=20),
        "a block's header behind": one + _window(b"more")[:-4],
        "half a skippable header behind": one + skippable[:6],
        "an empty block behind that is not the last": one + _ZSTD + bytes([0, 80]) + _stored([b""], last=False),
        "a frame of another dictionary behind": one + _ZSTD + bytes([1, 80, 7]) + _stored([b""]),
        "a frame behind that is cut off": one + _window(b"more")[:-1],
        "a frame behind with more": one + _window(b"more"),
        "no last block": _ZSTD + bytes([0, 80]) + _stored([data], last=False),
        "cut by a byte": one[:-1],
        "cut in half": one[: len(one) // 2],
        "nothing": b"",
        "a magic alone": _ZSTD,
        "another magic": b"\x29" + one[1:],
        "the magic of version 0.7": b"\x27" + one[1:],
        "a byte more than the records": _window(data + b"x"),
        "a byte less than the records": _window(data[:-1]),
    }

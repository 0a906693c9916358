"""Codecs: every dialect that clients send is read, what is written every client reads, and output is capped."""

from __future__ import annotations

import gzip
import os
import random
import subprocess
import sys

import cramjam
import pytest
from aiokafka import codec as aiokafka_codec
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafkalite.errors import CorruptMessage, InvalidRecord
from spark_kafkalite.records.compression import CODECS, GZIP, LZ4, SNAPPY, ZSTD, compress, decompress
from tests.patience import PATIENCE_S
from tests.seeds import SOAK

COMPRESSING = [GZIP, SNAPPY, LZ4, ZSTD]
SAMPLES = {
    "empty": b"",
    "one byte": b"x",
    "repetitive": b"abcdefghij" * 30_000,
    "random": random.Random(1).randbytes(200_000),
    "a block exactly": bytes(65_536),
}


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_round_trip(codec: int, sample: str) -> None:
    data = SAMPLES[sample]
    compressed = compress(codec, data)
    assert bytes(decompress(codec, compressed, len(data))) == data
    assert bytes(decompress(codec, memoryview(bytearray(compressed)), 2**26)) == data


@pytest.mark.parametrize("sample", ["one byte", "repetitive", "random", "a block exactly"])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_one_byte_above_the_limit_is_refused(codec: int, sample: str) -> None:
    data = SAMPLES[sample]
    with pytest.raises(InvalidRecord, match=f"{len(data) - 1} bytes"):
        decompress(codec, compress(codec, data), len(data) - 1)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_levels(codec: int) -> None:
    data = SAMPLES["repetitive"]
    for level in (None, 1, 9):
        assert bytes(decompress(codec, compress(codec, data, level), len(data))) == data


@pytest.mark.parametrize(
    ("codec", "levels"), [(GZIP, [1, 2, 9]), (LZ4, [1, 3, 8, 12]), (ZSTD, [-50, 1, 19])], ids=["gzip", "lz4", "zstd"]
)
def test_higher_levels_give_less(codec: int, levels: list[int]) -> None:
    chance = random.Random(7)
    data = b"".join(b'{"row":%d,"delay":%d}' % (row, chance.randrange(100)) for row in range(4_000))
    compressed = [compress(codec, memoryview(data), level) for level in levels]
    sizes = [len(each) for each in compressed]
    assert sizes == sorted(set(sizes), reverse=True)
    assert all(bytes(decompress(codec, each, len(data))) == data for each in compressed)


@pytest.mark.parametrize("sample", SAMPLES)
def test_lz4_of_every_level_has_independent_blocks_of_64_kib(sample: str) -> None:
    for level in range(1, 18):
        compressed = compress(LZ4, SAMPLES[sample], level)
        # Java's reader refuses others.
        assert compressed[4] & 0b1110_0000 == 0b0110_0000 and compressed[5] == 0x40
        assert bytes(decompress(LZ4, compressed, len(SAMPLES[sample]))) == SAMPLES[sample]


def test_lz4s_default_level_is_the_fast_one_as_in_kafka() -> None:
    data = SAMPLES["repetitive"]
    assert compress(LZ4, data, 9) == compress(LZ4, data)


def test_gzip_with_several_members() -> None:
    data = gzip.compress(b"first,") + gzip.compress(b"second")
    assert bytes(decompress(GZIP, data, 100)) == b"first,second"


def test_zstd_with_several_frames() -> None:
    data = bytes(cramjam.zstd.compress(b"first," * 5)) + bytes(cramjam.zstd.compress(b"second"))
    assert bytes(decompress(ZSTD, data, 100)) == b"first," * 5 + b"second"


def test_snappy_raw_block_as_librdkafka_sends_it() -> None:
    data = SAMPLES["repetitive"]
    assert bytes(decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(data)), len(data))) == data


@pytest.mark.parametrize("name", ["snappy", "lz4", "zstd", "gzip"])
def test_both_ways_with_aiokafka(name: str) -> None:
    data = SAMPLES["repetitive"] + SAMPLES["random"]
    encode, decode = getattr(aiokafka_codec, f"{name}_encode"), getattr(aiokafka_codec, f"{name}_decode")
    assert bytes(decompress(CODECS[name], bytes(encode(data)), len(data))) == data
    assert bytes(decode(bytes(compress(CODECS[name], data)))) == data


def test_lz4_frames_have_independent_blocks_of_64_kib() -> None:
    frame = compress(LZ4, SAMPLES["random"])
    assert frame[:7].hex() == "04224d18604082"  # what Java and librdkafka write, header checksum included


def test_lz4_frame_with_content_size_and_dependent_blocks() -> None:
    data = SAMPLES["repetitive"]
    frame = bytes(cramjam.lz4.compress(data))
    assert not frame[4] & 0x20
    assert bytes(decompress(LZ4, frame, len(data))) == data


def test_unknown_codec() -> None:
    with pytest.raises(CorruptMessage, match="codec 5"):
        decompress(5, b"abc", 100)
    with pytest.raises(ValueError, match="codec 9"):
        compress(9, b"abc")


@pytest.mark.parametrize("codec", COMPRESSING)
def test_cut_data_is_corrupt(codec: int) -> None:
    whole = bytes(compress(codec, SAMPLES["repetitive"]))
    for length in (0, 1, 5, 12, len(whole) // 2, len(whole) - 1):
        with pytest.raises((CorruptMessage, InvalidRecord)):
            decompress(codec, whole[:length], 2**20)


def test_sizes_that_lie_are_no_reason_to_allocate() -> None:
    huge_block = b"\xff\xff\xff\xff\x0f" + b"\x00a"  # raw snappy: 4 GiB - 1 announced
    with pytest.raises(CorruptMessage, match="cannot hold"):
        decompress(SNAPPY, huge_block, 2**40)
    xerial = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01" + b"\x7f\xff\xff\xff" + b"abc"
    with pytest.raises(CorruptMessage, match="after the data"):
        decompress(SNAPPY, xerial, 2**40)
    zstd_with_huge_window = b"\x28\xb5\x2f\xfd\x00\xf8\x01\x00\x00"
    with pytest.raises(InvalidRecord):
        decompress(ZSTD, zstd_with_huge_window, 2**20)


@settings(max_examples=2_000 if SOAK else 100, deadline=None)
@given(
    codec=st.sampled_from(COMPRESSING),
    data=st.binary(max_size=200),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    whole=st.booleans(),
)
def test_damaged_data_gives_our_errors_or_a_value(
    codec: int, data: bytes, changes: list[tuple[int, int]], whole: bool
) -> None:
    damaged = bytearray(compress(codec, data) if whole else data)
    for position, byte in changes:
        if damaged:
            damaged[position % len(damaged)] = byte
    try:
        result = decompress(codec, damaged, 10_000)
    except (CorruptMessage, InvalidRecord):
        return
    assert len(result) <= 10_000


# A gibibyte of zeros in each codec, made piece by piece, and what reading it with a limit of 16 MiB takes.
BOMB = """
import resource, sys, zlib
import cramjam
from spark_kafkalite.errors import InvalidRecord
from spark_kafkalite.records.compression import CODECS, decompress
name, dialect = sys.argv[1].split("-")
mib = bytes(2**20)
if name == "gzip":
    # After a full flush each mebibyte is packed alike; the sum at the end is wrong, but nobody is to get there.
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    first, others = [stream.compress(mib) + stream.flush(zlib.Z_FULL_FLUSH) for _ in range(2)]
    bomb = first + others * 1023 + stream.flush()
elif name == "zstd":
    if dialect == "frames":
        bomb = bytes(cramjam.zstd.compress(mib)) * 1024
    else:  # one frame, no content size: 8192 run blocks of 128 KiB behind a window of 128 KiB
        block = (2**17 << 3 | 1 << 1).to_bytes(3, "little") + b"\\0"
        bomb = b"\\x28\\xb5\\x2f\\xfd\\x00\\x38" + block * 8191 + (2**17 << 3 | 3).to_bytes(3, "little") + b"\\0"
elif name == "lz4":
    block = bytes(cramjam.lz4.compress_block(bytes(65536), store_size=False))
    bomb = bytes.fromhex("04224d18604082") + (len(block).to_bytes(4, "little") + block) * 16384 + bytes(4)
elif dialect == "xerial":
    block = bytes(cramjam.snappy.compress_raw(bytes(65536)))
    bomb = b"\\x82SNAPPY\\0\\0\\0\\0\\1\\0\\0\\0\\1" + (len(block).to_bytes(4, "big") + block) * 16384
else:
    bomb = b"\\x80\\x80\\x80\\x80\\x04" + b"\\0\\0" + b"\\xfe\\1\\0" * (2**24 - 1) + b"\\xfa\\1\\0"
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(CODECS[name], bomb, 16 * 2**20)
    print("decompressed")
except InvalidRecord as error:
    print("refused", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize(
    "bomb", ["gzip-plain", "zstd-frames", "zstd-frame", "lz4-frame", "snappy-xerial", "snappy-raw"]
)
def test_a_bomb_of_a_gibibyte_is_cut_off(bomb: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", BOMB, bomb],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=os.environ,
    )
    outcome, *growth_mib = result.stdout.split() or [result.stderr]
    assert outcome == "refused", result.stderr
    # The buffers of all rounds together: 4 + 16 MiB, and what the codec keeps.
    assert int(growth_mib[0]) <= 40

"""The end of a segment is damaged in thousands of ways; recovery keeps exactly the sound batches before the damage.

What a crash or a disk does to the last three batches of six: cuts them, fills them with zeros or garbage, flips bits,
repeats or exchanges blocks, leaves sound batches behind a hole, and lies about offsets, epochs and lengths. Whatever it
was, the log that is opened is the longest run of batches that are byte for byte what was written, and later ones of
them in segments of their own, and it takes appends.
``tests/unit/log/loading/test_recovery.py`` goes through each byte of a tail; here the damage is random, and every
failure names its seed. The soak tries a hundred times as many, with other seeds.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.log.files.fs import write_whole
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.loading import scan
from spark_kafkalite.log.loading.loaded_log import LastRun
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.lab.batches import header_of, make_batch, make_stored_batch
from tests.seeds import SEED, SOAK

CASES = 100_000 if SOAK else 1_000
# The cases of `make test` are chosen, not drawn.
FIRST = SEED * 1_000_000 if SOAK else 0
PATH = "/data/t-0/00000000000000000000.log"
LATER = "/data/t-0/00000000000000000012.log"
BATCHES = 6
_EPOCH_FIELD = range(12, 16)


class Tail:
    """A sound segment of six batches of two records, of which the last three are to be damaged."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.batches = []
        for number in range(BATCHES):
            values = [chance.randbytes(chance.randrange(80)) for _ in range(2)]
            codec = chance.choice(["none", "none", "gzip", "lz4", "zstd", "snappy"])
            batch = make_batch(values, codec=codec, producer_id=7, producer_epoch=0, base_sequence=2 * number)
            kernel.stamp(batch, 0, 2 * number, 3 + number // 2)
            self.batches.append(bytes(batch))

    @property
    def data(self) -> bytes:
        return b"".join(self.batches)

    def start(self, number: int) -> int:
        return sum(map(len, self.batches[:number]))

    def somewhere(self) -> int:
        """A position in the last three batches."""
        return self.chance.randrange(self.start(3), len(self.data))

    def late(self) -> int:
        return self.chance.randrange(3, BATCHES)


def cut(tail: Tail) -> bytes:
    return tail.data[: tail.somewhere()]


def zeros(tail: Tail) -> bytes:
    at = tail.somewhere()
    return tail.data[:at] + bytes(len(tail.data) - at + tail.chance.choice([0, 1, 60, 61, 4096]))


def garbage(tail: Tail) -> bytes:
    at = tail.somewhere()
    return tail.data[:at] + tail.chance.randbytes(tail.chance.randrange(1, 500))


def block_of_garbage(tail: Tail) -> bytes:
    data, at = bytearray(tail.data), tail.somewhere()
    end = min(at + tail.chance.choice([1, 8, 64, 512]), len(data))
    data[at:end] = tail.chance.randbytes(end - at)
    return bytes(data)


def flipped_bit(tail: Tail) -> bytes:
    data, number = bytearray(tail.data), tail.late()
    # The epoch lies outside of the CRC, and a higher one is as good as any.
    places = [place for place in range(len(tail.batches[number])) if place not in _EPOCH_FIELD]
    data[tail.start(number) + tail.chance.choice(places)] ^= 1 << tail.chance.randrange(8)
    return bytes(data)


def repeated_block(tail: Tail) -> bytes:
    first = tail.chance.randrange(BATCHES)
    block = b"".join(tail.batches[first : first + tail.chance.randrange(1, 4)])
    at = tail.start(tail.chance.randrange(3, BATCHES + 1))
    return tail.data[:at] + block + tail.chance.choice([b"", tail.data[at:]])


def batch_after_a_hole(tail: Tail) -> bytes:
    at = tail.start(tail.late())
    hole = tail.chance.choice([bytes, tail.chance.randbytes])(tail.chance.randrange(1, 300))
    return tail.data[:at] + hole + tail.data[at:]


def exchanged(tail: Tail) -> bytes:
    batches = list(tail.batches)
    one, other = tail.chance.sample(range(3, BATCHES), 2)
    batches[one], batches[other] = batches[other], batches[one]
    return b"".join(batches)


def left_out(tail: Tail) -> bytes:
    batches = list(tail.batches)
    del batches[tail.chance.randrange(3, BATCHES - 1)]
    return b"".join(batches)


def stale_batch(tail: Tail) -> bytes:
    """A whole sound batch of something else at the end or in the place of another."""
    stale = make_stored_batch(tail.chance.choice([0, 5, 100, 2**40]), tail.chance.choice([0, 9]), 2)
    at = tail.start(tail.late())
    return tail.data[:at] + bytes(stale) + tail.chance.choice([b"", tail.data[at:]])


def lie(tail: Tail) -> bytes:
    data, at = bytearray(tail.data), tail.start(tail.late())
    field, width, values = tail.chance.choice(
        [
            (0, ">q", [-1, 2**62, 0, 3, tail.chance.getrandbits(40)]),
            (8, ">i", [0, -1, 1, 48, 49, 60, 2**31 - 1, -(2**31), tail.chance.getrandbits(20)]),
            (12, ">i", [0, 1, -1, -(2**31)]),
            (16, ">b", [0, 1, 3, -1]),
            (23, ">i", [-1, 0, 7, 2**31 - 1]),
            (57, ">i", [-1, 0, 2**31 - 1]),
        ]
    )
    struct.pack_into(width, data, at + field, tail.chance.choice(values))
    return bytes(data)


DAMAGES: list[Callable[[Tail], bytes]] = [
    cut,
    zeros,
    garbage,
    block_of_garbage,
    flipped_bit,
    repeated_block,
    batch_after_a_hole,
    exchanged,
    left_out,
    stale_batch,
    lie,
]


def try_damage(damage: Callable[[Tail], bytes], seed: int) -> None:
    tail = Tail(random.Random(seed))
    damaged = damage(tail)
    sound = 0
    while sound < BATCHES and damaged.startswith(b"".join(tail.batches[: sound + 1])):
        sound += 1
    end = tail.start(sound)
    if damage is block_of_garbage and damaged[end : end + 12] == tail.data[end : end + 12]:
        header = damaged[end : end + 12] + tail.data[end + 12 : end + 16]
        if header + damaged[end + 16 : tail.start(sound + 1)] == tail.batches[sound]:
            # Only the epoch is another one, which nothing can tell from a later leader's.
            return
    fs = MemoryFs()
    fs.make_directories("/data/t-0")
    fs.sync_everything("/")
    write_whole(fs.open(PATH, create=True), damaged)
    later = b""
    if tail.chance.random() < 0.3 and damaged != tail.data:
        # Another segment follows, as sound as can be; behind damage it stays, and what is between is missing.
        later = bytes(make_stored_batch(2 * BATCHES, 9))
        write_whole(fs.open(LATER, create=True), later)
    log = open_log(fs)
    # Whole batches that cannot stay prove that their offsets have been given, when they fit.
    goes_on_at = int(log.log_end_offset)
    assert goes_on_at >= 2 * sound, f"{log}, {sound} batches are sound"
    kept = [path for path in fs.files() if ".torn" in path]
    assert goes_on_at == 2 * sound or kept or later, f"{log}: nothing is kept that proves where it goes on"
    assert fs.files()[PATH] == tail.data[:end]
    assert not later or fs.files()[LATER] == later, "a sound segment is gone"
    headers = []
    for segment in log.segments:
        for position, header in segment.headers(0) if segment.log_path != LATER else ():
            if header.record_count:
                headers.append(header)
                batch = segment.file.pread(header.size_bytes, position)
                assert batch == tail.batches[header.base_offset // 2], f"{log}: other records at {header.base_offset}"
    behind = [header for header in headers if header.base_offset >= 2 * sound]
    missing = {offset for start, end_offset in log.damaged_ranges for offset in range(start, end_offset)}
    there = {offset for header in behind for offset in (header.base_offset, header.last_offset)}
    assert not missing & there
    assert not later or missing | there == set(range(2 * sound, 2 * BATCHES))
    next_sequence = 2 + max(header.base_offset for header in headers)
    assert log.epochs.epoch_at(2 * sound - 1) == 3 + (sound - 1) // 2
    repeated = bytearray(tail.batches[sound - 1])
    assert log.append_as_leader(repeated, header_of(repeated), 9).duplicate
    batch = make_batch(1, producer_id=7, producer_epoch=0, base_sequence=next_sequence)
    assert log.append_as_leader(batch, header_of(batch), 9).base_offset == goes_on_at
    again = open_log(fs.crash(CrashMode.POWER))
    assert again.log_end_offset == goes_on_at, "what was recovered did not survive a power cut"


def open_log(fs: MemoryFs) -> PartitionLog:
    config = TopicConfig.from_properties({})
    host = LogHost.alone(OpenFiles(fs), "/data", SYSTEM_CLOCK)
    return PartitionLog.open(host, "/data/t-0", TopicPartition("t", 0), None, config, LastRun(clean=False))


@pytest.mark.parametrize("damage", DAMAGES)
def test_recovery_keeps_what_is_sound(damage: Callable[[Tail], bytes]) -> None:
    for seed in range(FIRST, FIRST + CASES // len(DAMAGES) + 1):
        try:
            try_damage(damage, seed)
        except Exception as error:
            raise AssertionError(f"{damage.__name__}, seed {seed}: {error}") from error


def test_recovery_that_checks_no_crc_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan.kernel, "check_crc", lambda buffer, position, size: None)
    with pytest.raises((AssertionError, KafkaliteError)):
        for seed in range(100):
            try_damage(flipped_bit, seed)


def test_recovery_that_believes_every_length_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan.Scan, "_fault", lambda self, header, base_offset, bytes_left: None)
    with pytest.raises((AssertionError, KafkaliteError)):
        for seed in range(100):
            try_damage(lie, seed)
            try_damage(left_out, seed)

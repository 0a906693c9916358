"""A segment goes on behind damage, with what is certain to be its own."""

from __future__ import annotations

import errno
import random
import struct
from collections.abc import Callable

import pytest

from spark_kafkalite.log.files.fs import write_whole
from spark_kafkalite.log.loading import resume
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.records import kernel
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.lab.batches import make_batch, make_stored_batch, values_of
from tests.seeds import SEED
from tests.unit.log.loading.looks import Looks

LogOpener = Callable[..., PartitionLog]
DIRECTORY = "/data/t-0"
FIRST = f"{DIRECTORY}/00000000000000000000.log"
PAGE_BYTES = 4096


def content_of(values: list[bytes], *, epoch: int = 0, base_offset: int = 0) -> tuple[bytearray, list[int]]:
    """Return batches of one record each, and where each begins."""
    content, starts = bytearray(), []
    for number, value in enumerate(values):
        starts.append(len(content))
        content += make_stored_batch(base_offset + number, epoch, [value])
    return content, starts


def disk_with(content: bytes, epochs: str = "") -> MemoryFs:
    fs = MemoryFs()
    fs.make_directories(DIRECTORY)
    write_whole(fs.open(FIRST, create=True), content)
    if epochs:
        write_whole(fs.open(f"{DIRECTORY}/leader-epoch-checkpoint", create=True), epochs.encode())
    fs.sync_everything("/")
    return fs


def records(log: PartitionLog) -> dict[int, bytes | None]:
    """Return what lies between the damage."""
    found: dict[int, bytes | None] = {}
    for segment in log.segments:
        for position, header in segment.headers(0):
            found.update(values_of(segment.file.pread(header.size_bytes, position)))
    return found


VALUES = [b"value %d" % number * 5 for number in range(12)]


@pytest.mark.parametrize(
    ("at", "damage"),
    [
        pytest.param(70, b"\xff", id="a record"),
        pytest.param(17, b"\xff\xff", id="the CRC"),
        pytest.param(16, b"\7", id="the magic"),
        pytest.param(0, b"\x11" * 12, id="offset and length"),
        pytest.param(8, b"\x7f\xff\xff\xff", id="a length that is too large"),
        pytest.param(8, b"\0\0\0\x45", id="a length that is too small"),
        pytest.param(23, b"\x7f", id="the last offset"),
        pytest.param(0, bytes(80), id="all of it"),
    ],
)
def test_what_is_damaged_is_all_that_is_missing(open_log: LogOpener, at: int, damage: bytes) -> None:
    content, starts = content_of(VALUES)
    for number in (3, 4):
        content[starts[number] + at : starts[number] + at + len(damage)] = damage
    content[starts[8] + 70] ^= 1
    fs = disk_with(content)
    log = open_log(clean=False, on=fs)
    assert records(log) == {number: value for number, value in enumerate(VALUES) if number not in (3, 4, 8)}
    assert log.damaged_ranges == ((3, 5), (8, 9)) and log.log_end_offset == 12 and not log.was_whole
    pieces = [bytes(content[starts[3] : starts[5]]), bytes(content[starts[8] : starts[9]])]
    assert fs.files()[FIRST + ".torn"] == b"".join(pieces)
    # The next start finds the same, whatever has become of the file of damaged ranges.
    fs.unlink(f"{DIRECTORY}/damaged-ranges")
    again = open_log(clean=False, on=fs)
    assert again.damaged_ranges == ((3, 5), (8, 9)) and records(again) == records(log)


@pytest.mark.parametrize("damage", [b"\x11" * 12, bytes(80)])
def test_a_compressed_batch_has_had_more_offsets_than_bytes(open_log: LogOpener, damage: bytes) -> None:
    dense = make_batch([b""] * 100_000, codec="zstd")
    kernel.stamp(dense, 0, 3, 0)
    assert len(dense) < 100_000
    content, starts = content_of(VALUES[:3])
    starts.append(len(content))
    content += dense
    behind, _ = content_of(VALUES[3:6], base_offset=100_003)
    content += behind
    content[starts[3] : starts[3] + len(damage)] = damage
    log = open_log(clean=False, on=disk_with(content))
    assert sorted(records(log)) == [0, 1, 2, 100_003, 100_004, 100_005]
    assert log.damaged_ranges == ((3, 100_003),) and log.log_end_offset == 100_006
    # Where it is not certain that those behind are the log's, their offsets are not given again.
    last = len(content) - len(behind) // 3
    content[last : last + 12] = b"\x11" * 12
    log = open_log(clean=False, on=disk_with(content))
    assert sorted(records(log)) == [0, 1, 2]
    assert log.log_end_offset == 100_005 and log.damaged_ranges == ((3, 100_005),)


@pytest.mark.parametrize("damage", [b"\x11" * 12, bytes(61), bytes(80)])
def test_between_two_lost_headers_nothing_is_certain(open_log: LogOpener, damage: bytes) -> None:
    """What lies there may be of a record; it is kept next to the log."""
    content, starts = content_of(VALUES)
    for number in (3, 8):
        content[starts[number] : starts[number] + len(damage)] = damage
    fs = disk_with(content)
    log = open_log(clean=False, on=fs)
    if damage == bytes(61):
        # An append that was written ahead, as it seems.
        assert list(records(log)) == [0, 1, 2] and log.damaged_ranges == ((3, 12),)
        assert fs.files()[FIRST + ".torn"] == content[starts[3] :]
        return
    assert list(records(log)) == [0, 1, 2, 9, 10, 11]
    assert log.damaged_ranges == ((3, 9),)
    assert fs.files()[FIRST + ".torn"] == content[starts[3] : starts[9]]


def test_what_looks_like_an_interrupted_append_hides_the_rest(open_log: LogOpener) -> None:
    content, starts = content_of(VALUES)
    struct.pack_into(">i", content, starts[3] + 8, 100_000)
    log = open_log(clean=False, on=disk_with(content))
    assert list(records(log)) == [0, 1, 2] and log.damaged_ranges == ((3, 12),)


@pytest.mark.parametrize("pages", [[1], [1, 2], [2], [1, 4]])
def test_behind_pages_that_the_power_took_the_segment_goes_on(open_log: LogOpener, pages: list[int]) -> None:
    """A page is zero whose neighbours have reached the disk."""
    values = [b"%d" % number * 50 for number in range(10, 160)]
    content, starts = content_of(values)
    for page in pages:
        content[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = bytes(PAGE_BYTES)
    # What lies between two lost pages is more than a value can have.
    log = open_log(clean=False, on=disk_with(content), max_message_bytes=5000)
    starts.append(len(content))
    hit = {
        number
        for number in range(len(values))
        if any(starts[number] < (page + 1) * PAGE_BYTES and starts[number + 1] > page * PAGE_BYTES for page in pages)
    }
    assert records(log) == {number: value for number, value in enumerate(values) if number not in hit}
    assert sum(end - start for start, end in log.damaged_ranges) == len(hit)


def test_batches_in_values_do_not_become_the_logs(open_log: LogOpener) -> None:
    """A backup of a log, whose offsets happen to fit."""
    inner = bytes(content_of([b"foreign"] * 2, base_offset=5)[0])
    values = [*VALUES[:3], inner, *VALUES[4:]]
    for damage in ((8, b"\0\0\0\x45"), (0, bytes(61)), (0, b"\x11" * 12), (70, b"\xff"), (8, b"\x7f\xff\xff\xff")):
        content, starts = content_of(values)
        at, data = damage
        content[starts[3] + at : starts[3] + at + len(data)] = data
        log = open_log(clean=False, on=disk_with(content))
        assert b"foreign" not in records(log).values(), damage
        assert set(records(log).items()) <= set(enumerate(values)), damage


@pytest.mark.parametrize("is_ahead", [False, True])
def test_an_interrupted_append_leaves_nothing_of_what_is_in_its_values(open_log: LogOpener, *, is_ahead: bool) -> None:
    inner = bytes(content_of([b"foreign" * 9] * 20, base_offset=5)[0])
    content, starts = content_of([*VALUES[:3], inner])
    for cut_bytes in range(1, len(inner), 97):
        torn = content[: len(content) - cut_bytes]
        if is_ahead:
            torn[starts[3] : starts[3] + 61] = bytes(61)
        log = open_log(clean=False, on=disk_with(torn))
        assert records(log) == dict(enumerate(VALUES[:3]))
        assert log.segments.first.base_offset == 0


def test_what_came_back_after_a_truncation_stays_away(open_log: LogOpener) -> None:
    """The file of leader epochs says that a later leader has written there."""
    content, starts = content_of(VALUES, epoch=1)
    content[starts[3] + 70] ^= 1
    log = open_log(clean=False, on=disk_with(content, "0\n2\n1 0\n4 3\n"))
    assert list(records(log)) == [0, 1, 2]
    log = open_log(clean=False, on=disk_with(content, "0\n1\n1 0\n"))
    assert list(records(log)) == [0, 1, 2, *range(4, 12)]


def test_a_crash_or_a_full_disk_meanwhile_costs_nothing(open_log: LogOpener, monkeypatch: pytest.MonkeyPatch) -> None:
    content, starts = content_of(VALUES)
    for number in (2, 5, 9):
        content[starts[number] + 70] ^= 1
    expected = {number: value for number, value in enumerate(VALUES) if number not in (2, 5, 9)}
    for mode in (CrashMode.PROCESS, CrashMode.POWER):
        # After so many calls that change the disk the process ends.
        for calls in range(1, 20):
            fs = disk_with(content)
            left = calls

            def count(call: Callable[..., object]) -> Callable[..., object]:
                def counted(*args: object, **options: object) -> object:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        raise OSError(errno.ENOSPC, "no room")
                    return call(*args, **options)

                return counted

            with monkeypatch.context() as patched:
                for name in ("rename", "sync_directory", "unlink"):
                    patched.setattr(fs, name, count(getattr(fs, name)))
                patched.setattr(resume, "copy_bytes", count(resume.copy_bytes))
                try:
                    open_log(clean=False, on=fs)
                except OSError:
                    pass
            after = fs.crash(mode)
            log = open_log(clean=False, on=after)
            assert records(log) == expected, (mode, calls)
            assert log.damaged_ranges == ((2, 3), (5, 6), (9, 10)), (mode, calls)


def test_only_so_many_pieces_become_segments(open_log: LogOpener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "MOST_RUNS", 2)
    content, starts = content_of(VALUES)
    for number in (1, 3, 5, 7):
        content[starts[number] + 70] ^= 1
    log = open_log(clean=False, on=disk_with(content))
    assert log.log_end_offset == 12
    assert set(records(log).items()) <= set(enumerate(VALUES))


def test_no_content_is_looked_at_again_and_again(open_log: LogOpener, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value of headers that look like batches, behind a damaged length."""
    forged = struct.pack(">qiibIhiqqqhii", 5, 1 << 20, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1)
    content, starts = content_of([*VALUES[:3], forged * ((2 << 20) // len(forged)), *VALUES[4:]])
    struct.pack_into(">i", content, starts[3] + 8, 100)
    looks = Looks(monkeypatch)
    log = open_log(clean=False, on=disk_with(content))
    assert looks.checked_bytes <= 80 << 20
    assert list(records(log))[:3] == [0, 1, 2]


def test_random_damage_never_makes_other_records(open_log: LogOpener) -> None:
    chance = random.Random(SEED)
    for _ in range(60):
        inner = bytes(content_of([b"foreign"] * 3, base_offset=chance.randrange(1, 20))[0])
        values = [chance.choice((inner, b"v" * chance.randrange(200))) for _ in range(20)]
        content, starts = content_of(values)
        starts.append(len(content))
        hit = set()
        for _ in range(chance.randrange(1, 4)):
            at, size = chance.randrange(len(content)), chance.choice((1, 1, 8, 200))
            size = min(size, len(content) - at)
            content[at : at + size] = bytes(size) if chance.random() < 0.5 else chance.randbytes(size)
            hit |= {number for number in range(20) if starts[number] < at + size and starts[number + 1] > at}
        log = open_log(clean=False, on=disk_with(content))
        found = records(log)
        assert set(found.items()) <= set(enumerate(values))
        missing = {each for start, end in log.damaged_ranges for each in range(start, end)}
        assert not missing & found.keys()
        assert missing | found.keys() >= set(range(int(log.log_end_offset)))
        assert found.keys() >= set(range(min(hit, default=20)))

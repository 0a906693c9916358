"""A batch with a wrong CRC is told of by what reads its bytes anyway, once a minute for each log."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from spark_kafkalite.broker.internal_topic_host import _read_and_look
from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.files.needs_thread import without_waiting
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.reader import DecodeFirst
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import MemoryFs
from tests.lab.batches import header_of, make_batch

LogOpener = Callable[..., PartitionLog]
PATH = "/data/t-0/00000000000000000000.log"
FIRST_MS = 1_700_000_000_000


def fill(log: PartitionLog, codec: str = "none") -> list[int]:
    """Append ten batches, a second apart; return their positions."""
    positions = []
    for number in range(10):
        positions.append(log.size_bytes)
        data = make_batch([b"value %d" % number * 20], codec=codec, timestamp_ms=FIRST_MS + number * 1000)
        log.append_as_leader(data, header_of(data), 0)
    return positions


def flip_crc(fs: MemoryFs, position: int) -> None:
    """Change a byte of the CRC field, so that everything else can still be decoded."""
    file = fs.open(PATH)
    file.pwrite(bytes([file.pread(1, position + 17)[0] ^ 1]), position + 17)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    return found


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_look_up_by_time_tells_of_it_once_a_minute(
    open_log: LogOpener, fs: MemoryFs, clock: ManualClock, caplog: pytest.LogCaptureFixture, codec: str
) -> None:
    log = open_log()
    positions = fill(log, codec)
    for number in (3, 7):
        flip_crc(fs, positions[number])

    def look_up(number: int) -> int | None:
        while True:
            try:
                with without_waiting():
                    found = log.offset_for_timestamp(FIRST_MS + number * 1000, 10)
                return found.offset if found else None
            except DecodeFirst as missing:
                missing.work()
            except CorruptMessage:
                return None

    assert look_up(2) == 2 and lines(caplog) == []
    assert look_up(3) is None
    (line,) = lines(caplog)
    assert line.startswith(
        f"t-0: the batch at offset 3 is damaged, at position {positions[3]} of {PATH}: its CRC field"
    )
    assert look_up(7) is None and look_up(3) is None
    clock.advance(ms=59_000)
    assert look_up(7) is None and lines(caplog) == []
    clock.advance(ms=1_000)
    assert look_up(7) is None
    (line,) = lines(caplog)
    assert "the batch at offset 7 " in line and "(3 more were met since the last line)" in line


def test_load_of_groups_tells_of_it(open_log: LogOpener, fs: MemoryFs, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log()
    positions = fill(log)
    flip_crc(fs, positions[4])
    piece = log.read(2, 1 << 20, 10)
    assert piece is not None
    with pytest.raises(CorruptMessage, match=f"the batch at offset 4, position {positions[4]} of {PATH}, is damaged"):
        _read_and_look(piece, 2, log.local.damage)
    (line,) = lines(caplog)
    assert f"t-0: the batch at offset 4 is damaged, at position {positions[4]} of {PATH}" in line


def test_fetch_looks_at_no_bytes(open_log: LogOpener, fs: MemoryFs, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log()
    flip_crc(fs, fill(log)[4])
    piece = log.read(4, 1 << 20, 10)
    assert piece is not None and len(piece.read()) == piece.length
    assert lines(caplog) == []


def test_recovery_names_log_offset_file_and_position(
    open_log: LogOpener, fs: MemoryFs, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log()
    positions = fill(log)
    flip_crc(fs, positions[6])
    assert open_log(clean=False, recovery_point=5).log_end_offset == 10
    (lost,) = lines(caplog)
    assert f"t-0: 1 offsets are missing in /data/t-0: 6 to 6 ({PATH[-24:]}: cut at position {positions[6]} (" in lost
    assert ": its CRC field (at 17) is" in lost or ": its CRC field is 0x" in lost
    assert lost.endswith(
        ". A replica copies them from its leader, if that has them. If no other broker has them, readers pass over "
        "them: restore the files from a backup while the broker is stopped, or produce the records again"
    )


def test_whatever_a_damaged_batch_decodes_to_is_an_error_of_its_own(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log()
    positions = fill(log)
    file = fs.open(PATH)
    file.pwrite(b"\xff" * 20, positions[5] + 61)
    with pytest.raises(CorruptMessage):
        log.offset_for_timestamp(FIRST_MS + 5000, 10)

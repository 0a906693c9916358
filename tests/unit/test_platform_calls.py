"""On Linux each name is the system's own call; where the system lacks it, the fallback does the same."""

from __future__ import annotations

import errno
import fcntl
import os
import runpy
import select
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite import platform_calls

LACKING = ("eventfd", "fdatasync", "memfd_create", "posix_fadvise", "posix_fallocate", "sendfile", "RWF_NOWAIT")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Any]]:
    """Return what loads the module as a system has it that lacks all of the calls."""
    for name in LACKING:
        monkeypatch.delattr(os, name)
    monkeypatch.delattr(socket, "MSG_MORE")
    return lambda: runpy.run_path(platform_calls.__file__)


@pytest.fixture
def calls(load: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return load()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems lack the calls")
def test_linux_has_its_own_calls() -> None:
    assert platform_calls.sync_data is os.fdatasync
    assert platform_calls.sync_all is os.fsync
    assert platform_calls.allocate is os.posix_fallocate
    assert platform_calls.send_file is os.sendfile
    assert (platform_calls.MSG_MORE, platform_calls.NOWAIT) == (socket.MSG_MORE, os.RWF_NOWAIT)
    reading, writing = platform_calls.open_event()
    os.close(reading)
    assert reading == writing


def test_flags_that_are_missing_ask_for_nothing(calls: dict[str, Any]) -> None:
    assert (calls["MSG_MORE"], calls["NOWAIT"]) == (0, 0)


def test_a_file_grows_to_what_is_allocated_and_keeps_its_content(calls: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with path.open("r+b") as file:
        calls["allocate"](file.fileno(), 0, 600_000)
        assert path.read_bytes() == b"content".ljust(600_000, b"\0")
        assert os.fstat(file.fileno()).st_blocks * 512 >= 600_000
        calls["allocate"](file.fileno(), 0, 10)
    assert path.stat().st_size == 600_000


def test_a_flush_reaches_the_drive_where_the_system_can_say_so(
    load: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda *given: made.append(given))
    monkeypatch.setattr(os, "fsync", lambda descriptor: made.append(descriptor))
    calls = load()
    calls["sync_data"](7)
    calls["sync_all"](8)
    assert made == [(7, 51), (8, 51)]


@pytest.mark.parametrize(("number", "made"), [(errno.ENOTSUP, [7]), (errno.EIO, [])])
def test_a_flush_goes_on_with_fsync_where_the_file_system_has_no_other(
    load: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch, number: int, made: list[int]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    synced: list[int] = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", synced.append)
    try:
        load()["sync_data"](7)
    except OSError as error:
        assert error.errno == errno.EIO
    assert synced == made


def test_an_event_is_readable_from_writing_to_reading(calls: dict[str, Any]) -> None:
    reading, writing = calls["open_event"]()
    try:
        for _ in range(2):
            assert select.select([reading], [], [], 0)[0] == []
            os.write(writing, calls["EVENT"])
            assert select.select([reading], [], [], 0)[0] == [reading]
            assert os.read(reading, len(calls["EVENT"])) == calls["EVENT"]
        with pytest.raises(BlockingIOError):
            os.read(reading, 1)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_secret_is_in_a_file_of_its_owner_and_gone_afterwards(
    calls: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(KeyError), calls["secret_file"](b"secret") as path:
        assert Path(path).read_bytes() == b"secret"
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_a_file_is_sent(calls: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    ours, theirs = socket.socketpair()
    with ours, theirs, path.open("rb") as file:
        assert calls["send_file"](ours.fileno(), file.fileno(), 2, 5) == 5
        assert theirs.recv(100) == b"23456"
        assert calls["send_file"](ours.fileno(), file.fileno(), 8, 5) == 2
        # Nothing is left: the caller has to see that, or it would ask for ever.
        assert calls["send_file"](ours.fileno(), file.fileno(), 10, 5) == 0
        calls["read_ahead"](file.fileno(), 0, 10)

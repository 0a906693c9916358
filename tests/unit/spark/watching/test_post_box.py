"""Warnings between processes: what arrives, and that nobody waits for who does not listen."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from spark_kafkalite.spark.watching.post_box import PostBox, PostedWarning, post

WARNING = PostedWarning("KafkaliteSource", "subscribe=ä", "WARN", "text")
# What no process has as its number.
PID = 2**31


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the box will be."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"spark-kafkalite-{os.geteuid()}"


def test_what_is_posted_arrives(directory: Path) -> None:
    box = PostBox(PID)
    post(WARNING, (PID + 1, PID))
    post(WARNING._replace(text="x" * 100_000), (PID,))
    assert box.next(60) == WARNING
    assert box.next(60) == WARNING._replace(text="x" * 2_000 + "...")
    assert box.next(0.01) is None
    assert directory.stat().st_mode & 0o777 == 0o700
    box.close()
    assert list(directory.iterdir()) == []


def test_children_and_grandchildren_find_it(directory: Path) -> None:
    box = PostBox(os.getpid())
    say = "from spark_kafkalite.spark.watching.post_box import *; post(PostedWarning('a', 'b', 'c', {!r}))"
    child = f"{say.format('child')}; import subprocess, sys; subprocess.run([sys.executable, '-c', {say.format('grandchild')!r}])"  # noqa: E501
    subprocess.run([sys.executable, "-c", child], env={**os.environ, "TMPDIR": str(directory.parent)}, check=True)
    assert [box.next(60), box.next(60)] == [PostedWarning("a", "b", "c", text) for text in ("child", "grandchild")]
    box.close()


def test_nobody_waits_where_nobody_listens_or_takes_anything(directory: Path) -> None:
    post(WARNING, (PID,))
    box = PostBox(PID)
    for _ in range(1_000):
        post(WARNING, (PID,))
    assert box.next(60) == WARNING
    # As a process leaves it that was killed; the next one takes its place.
    box._socket.close()
    post(WARNING, (PID,))
    again = PostBox(PID)
    post(WARNING, (PID,))
    assert again.next(60) == WARNING
    again.close()


@pytest.mark.parametrize("sent", [b"", b"no json", b"[1]", b"7", b'["a","b","c","d","e"]', b"\xff", b"[" * 16_000])
def test_what_is_no_warning_is_passed_over(directory: Path, sent: bytes) -> None:
    box = PostBox(PID)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(sent, str(directory / str(PID)))
    post(WARNING, (PID,))
    assert box.next(60) is None
    assert box.next(60) == WARNING
    box.close()


def test_a_directory_that_others_may_change_is_not_used(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(PermissionError, match="is not a directory of this user's alone"):
        PostBox(PID)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(directory / str(PID)))
        post(WARNING, (PID,))
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.recv(1)


def test_a_path_that_is_too_long_has_no_box_and_takes_no_post(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("d" * 150)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(OSError):
        PostBox(PID)
    post(WARNING, (PID,))

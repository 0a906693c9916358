from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_kafkalite.log.files import small_files
from spark_kafkalite.log.files.fs import read_whole, replace_file
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.files.small_files import CheckpointError
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.memory_fs import MemoryFs


def test_offset_checkpoint_is_kafkas_text(fs: MemoryFs) -> None:
    offsets = {TopicPartition("b", 1): 7, TopicPartition("a", 0): 5}
    small_files.write_offsets(fs, "/data/c", offsets)
    assert read_whole(fs, "/data/c") == b"0\n2\na 0 5\nb 1 7\n"
    assert small_files.read_offsets(fs, "/data/c") == offsets


def test_missing_checkpoints_are_empty(fs: MemoryFs) -> None:
    assert small_files.read_offsets(fs, "/data/c") == {}
    assert small_files.read_epochs(fs, "/data/c") == []
    assert small_files.read_topic_id(fs, "/data/c") is None
    assert small_files.read_meta(fs, "/data/c") is None


@pytest.mark.parametrize(
    "text",
    [
        "0\n",
        "x\n0\n",
        "1\n0\n",
        "0\n2\na 0 5\n",
        "0\n1\na 0\n",
        "0\n1\na 0 x\n",
        "0\n1\na x 1\n",
        "\0\0\0\0",
        "0\nx\n",
    ],
)
def test_damaged_offset_checkpoint_is_an_error_that_names_the_file(fs: MemoryFs, text: str) -> None:
    replace_file(fs, "/data/c", text.encode())
    with pytest.raises(CheckpointError, match="/data/c"):
        small_files.read_offsets(fs, "/data/c")


def test_epochs_are_kafkas_text(fs: MemoryFs) -> None:
    small_files.write_epochs(fs, "/data/e", [(0, 0), (3, 100)])
    assert read_whole(fs, "/data/e") == b"0\n2\n0 0\n3 100\n"
    assert small_files.read_epochs(fs, "/data/e") == [(0, 0), (3, 100)]
    replace_file(fs, "/data/e", b"0\n1\n0 y\n")
    with pytest.raises(CheckpointError):
        small_files.read_epochs(fs, "/data/e")


def test_topic_id_is_kafkas_text(fs: MemoryFs) -> None:
    topic_id = bytes(range(240, 256))
    replace_file(fs, "/data/p", small_files.partition_metadata(topic_id, 7))
    kafkas = b"version: 0\ntopic_id: 8PHy8_T19vf4-fr7_P3-_w"
    written = read_whole(fs, "/data/p")
    assert written == kafkas + b"\npartition: 7\ncrc32c: 8d433519\n"
    assert small_files.read_partition_metadata(fs, "/data/p") == (topic_id, 7)
    for at in range(len(kafkas)):
        flipped = bytearray(written)
        flipped[at] ^= 1
        replace_file(fs, "/data/p", bytes(flipped))
        with pytest.raises(CheckpointError, match="/data/p"):
            small_files.read_partition_metadata(fs, "/data/p")
    replace_file(fs, "/data/p", kafkas)
    assert small_files.read_partition_metadata(fs, "/data/p") == (topic_id, None)
    assert small_files.read_topic_id(fs, "/data/p") == topic_id


def test_the_beginning_of_a_partition_metadata_file_names_no_other_partition(fs: MemoryFs) -> None:
    topic_id = bytes(range(240, 256))
    written = small_files.partition_metadata(topic_id, 71)
    found = set()
    for length in range(len(written)):
        # What a power loss may leave.
        replace_file(fs, "/data/p", written[:length])
        with contextlib.suppress(CheckpointError):
            found.add(small_files.read_partition_metadata(fs, "/data/p"))
    # Without the end of its last line the file is whole.
    assert found == {(topic_id, None), (topic_id, 71)}


@pytest.mark.parametrize(
    "text", ["", "version: 0", "version: 1\ntopic_id: 8PHy8_T19vf4-fr7_P3-_w", "version: 0\ntopic_id: ab"]
)
def test_damaged_topic_id_is_an_error(fs: MemoryFs, text: str) -> None:
    replace_file(fs, "/data/p", text.encode())
    with pytest.raises(CheckpointError, match="/data/p"):
        small_files.read_topic_id(fs, "/data/p")


def test_meta_properties(fs: MemoryFs) -> None:
    small_files.write_meta(fs, "/data/m", {"broker.id": "3", "cluster.id": "abc"})
    assert small_files.read_meta(fs, "/data/m") == {"version": "0", "broker.id": "3", "cluster.id": "abc"}
    replace_file(fs, "/data/m", b"#comment\nversion=7\n")
    with pytest.raises(CheckpointError, match="version 7"):
        small_files.read_meta(fs, "/data/m")
    replace_file(fs, "/data/m", bytes(40))
    with pytest.raises(CheckpointError, match="/data/m: damaged, no version in it; restore it, or remove it"):
        small_files.read_meta(fs, "/data/m")


def test_every_cut_of_a_checkpoint_is_noticed(fs: MemoryFs) -> None:
    small_files.write_epochs(fs, "/epochs", [(0, 0), (3, 1234)])
    whole = read_whole(fs, "/epochs")
    for length in range(len(whole)):
        replace_file(fs, "/epochs", whole[:length])
        with pytest.raises(CheckpointError):
            small_files.read_epochs(fs, "/epochs")


def test_a_file_that_is_too_large_for_a_small_one_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(CheckpointError, match=f"{path}: 1099511627776 bytes are too many, at most"):
        small_files.read_offsets(OsFs(), str(path))


def test_a_file_of_more_lines_than_any_broker_has_logs_takes_no_memory_for_them(fs: MemoryFs) -> None:
    replace_file(fs, "/data/c", b"\n" * 2_000_000)
    with pytest.raises(CheckpointError, match="/data/c: 2000000 lines are too many, at most 1000002 are read"):
        small_files.read_epochs(fs, "/data/c")


@pytest.mark.parametrize("read", [small_files.read_meta, small_files.read_topic_id])
def test_a_file_about_one_directory_is_read_up_to_a_megabyte(fs: MemoryFs, read: Callable[..., object]) -> None:
    replace_file(fs, "/data/m", bytes((1 << 20) + 1))
    with pytest.raises(CheckpointError, match="/data/m: 1048577 bytes are too many, at most 1048576 are read"):
        read(fs, "/data/m")

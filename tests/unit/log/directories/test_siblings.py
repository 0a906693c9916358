"""Log directories that know each other: one that is missing or comes up empty is noticed, and may be given up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.directories.siblings import find_siblings
from spark_kafkalite.log.files.fs import remove_tree, replace_file
from spark_kafkalite.log.files.small_files import read_meta
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import MemoryFs

KEYS = [TopicPartition("t", number) for number in range(2)]
ID = bytes(range(16))
Start = Callable[..., LogManager]


@pytest.fixture
def start(fs: MemoryFs, clock: ManualClock) -> Iterator[Start]:
    running: list[LogManager] = []

    def starter(*log_dirs: str, lost: tuple[str, ...] = ()) -> LogManager:
        while running:
            running.pop().shutdown()
        config = TopicConfig.from_properties({})
        manager = LogManager(fs, log_dirs, clock, config_of=lambda _: config, lost_directories=lost)
        running.append(manager)
        manager.open()
        manager.claim(1, "cluster")
        manager.load()
        return manager

    yield starter
    while running:
        running.pop().abandon()


@pytest.fixture
def id_of_b(start: Start, fs: MemoryFs) -> str:
    """One log in each of /a and /b, stopped; returns the id of /b."""
    manager = start("/a", "/b")
    assert [manager.create(key, ID).disk.path for key in KEYS] == ["/a", "/b"]
    manager.shutdown()
    return (read_meta(fs, "/b/meta.properties") or {})["directory.id"]


def empty(fs: MemoryFs, path: str) -> None:
    remove_tree(fs, path)
    fs.make_directories(path)


@pytest.mark.parametrize("how", ["empty", "removed", "not named"])
def test_log_of_a_directory_that_is_away_is_not_made_anew(
    start: Start, fs: MemoryFs, id_of_b: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    if how == "empty":
        empty(fs, "/b")
    elif how == "removed":
        remove_tree(fs, "/b")
    again = start("/a") if how == "not named" else start("/a", "/b")
    (line,) = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert "log directory /b " in line and f"log.dirs.lost={id_of_b}" in line
    assert set(again.logs) == {KEYS[0]}
    with pytest.raises(KafkaStorageError, match=rf"t-1 has no log .* it may lie in /b .*log\.dirs\.lost={id_of_b}"):
        again.directories.check_all_online(KEYS[1])
    # Nothing is written where the disk belongs, and it is missed until it is back.
    assert not any(path.startswith("/b/") for path in fs.files()) or how == "not named"
    assert again.create(TopicPartition("new", 0), ID).disk.path == "/a"
    caplog.clear()
    start("/a")
    assert f"log.dirs.lost={id_of_b}" in caplog.text


def test_directory_that_is_lost_is_forgotten(
    start: Start, fs: MemoryFs, id_of_b: str, caplog: pytest.LogCaptureFixture
) -> None:
    empty(fs, "/b")
    again = start("/a", "/b", lost=(id_of_b,))
    again.directories.check_all_online(KEYS[1])
    assert again.create(KEYS[1], ID).disk.path == "/b"
    start("/a", "/b").directories.check_all_online(KEYS[1])
    assert not caplog.records


def test_directories_are_moved_added_and_reordered_without_ceremony(
    start: Start, fs: MemoryFs, id_of_b: str, caplog: pytest.LogCaptureFixture
) -> None:
    fs.rename("/b", "/d")
    again = start("/c", "/d", "/a")
    assert set(again.logs) == set(KEYS)
    again.directories.check_all_online(TopicPartition("t", 2))
    again.shutdown()
    assert find_siblings(fs, ["/a"]).missing.keys() == find_siblings(fs, ["/a", "/c", "/d"]).present.keys() - {
        *find_siblings(fs, ["/a"]).present
    }
    assert find_siblings(fs, ["/a"]).missing[id_of_b] == "/d"
    assert not caplog.records


def test_directory_that_lost_its_own_file_is_known_by_its_logs(
    start: Start, fs: MemoryFs, id_of_b: str, caplog: pytest.LogCaptureFixture
) -> None:
    fs.unlink("/b/meta.properties")
    assert set(start("/a", "/b").logs) == set(KEYS)
    assert (read_meta(fs, "/b/meta.properties") or {})["directory.id"] == id_of_b
    assert not caplog.records


def test_other_disk_in_the_place_of_one(
    start: Start, fs: MemoryFs, id_of_b: str, caplog: pytest.LogCaptureFixture
) -> None:
    empty(fs, "/b")
    replace_file(fs, "/b/meta.properties", b"version=0\ndirectory.id=other\n")
    again = start("/a", "/b")
    assert f"log directory /b (directory.id {id_of_b}) is missing" in caplog.text
    with pytest.raises(KafkaStorageError):
        again.directories.check_all_online(KEYS[1])


def test_directories_of_older_brokers_join_and_keep_what_they_say(start: Start, fs: MemoryFs) -> None:
    for path in ("/a", "/b"):
        fs.make_directories(path)
        replace_file(fs, f"{path}/meta.properties", b"version=0\nbroker.id=1\ncluster.id=cluster\nother=x\n")
    start("/a", "/b")
    said = [read_meta(fs, f"{path}/meta.properties") or {} for path in ("/a", "/b")]
    assert said[0]["kafkalite.directories"] == said[1]["kafkalite.directories"]
    assert {each["directory.id"] for each in said} == find_siblings(fs, ["/a", "/b"]).present.keys()
    assert said[0]["other"] == "x"
    assert not find_siblings(fs, ["/a", "/b"]).missing


def test_a_copy_of_meta_properties_makes_no_second_directory_of_its_id(
    start: Start, fs: MemoryFs, id_of_b: str
) -> None:
    fs.make_directories("/c")
    replace_file(fs, "/c/meta.properties", fs.files()["/b/meta.properties"])
    start("/a", "/b", "/c")
    assert len(find_siblings(fs, ["/a", "/b", "/c"]).present) == 3
    assert find_siblings(fs, ["/a", "/b", "/c"]).present[id_of_b] == "/b"

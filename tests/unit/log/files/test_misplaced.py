"""What is no regular file among a log directory's files costs its log alone, or is passed over, and the line names it.

A symbolic link is never followed: what it leads to belongs to somebody else.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kafkalite.errors import ConfigError, KafkaStorageError
from spark_kafkalite.log.files.fs import remove_tree, replace_file
from spark_kafkalite.log.files.log_files import LogRefused
from spark_kafkalite.log.files.os_fs import OsFile, OsFs
from spark_kafkalite.log.loading.repair import plan_repair
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock
from tests.lab.batches import header_of, make_batch

KEY = TopicPartition("t", 0)
OTHER = TopicPartition("other", 0)
ID = bytes(range(16))
Starter = Callable[[], LogManager]


def append(manager: LogManager, key: TopicPartition) -> None:
    data = make_batch([b"x" * 60])
    manager.logs[key].append_as_leader(data, header_of(data), 0)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The log directory, which is a link itself: that stays allowed."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    return tmp_path / "data"


@pytest.fixture
def start(data: Path) -> Iterator[Starter]:
    running: list[LogManager] = []

    def starter() -> LogManager:
        config = TopicConfig.from_properties({"segment.bytes": "300"})
        manager = LogManager(OsFs(), [str(data)], ManualClock(), config_of=lambda _: config)
        manager.open()
        running.append(manager)
        manager.claim(1, "cluster")
        manager.load()
        return manager

    yield starter
    for manager in running:
        manager.abandon()


@pytest.fixture
def stopped(start: Starter, data: Path) -> Path:
    manager = start()
    for key in (KEY, OTHER):
        manager.create(key, ID)
        for _ in range(6):
            append(manager, key)
    job = manager.log_starts.promise({manager.logs[KEY]: 1})
    job.run()
    manager.log_starts.finish(job)
    manager.shutdown()
    return data


def put_in_place(kind: str, path: Path) -> None:
    """Put something else in the place of a file or directory; what was there is kept as PATH.kept."""
    if path.exists():
        os.rename(path, f"{path}.kept")
    if kind == "directory":
        path.mkdir()
        (path / "somebody's").touch()
    elif kind == "named pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"somebody's")


def put_right(path: Path) -> None:
    """Undo ``put_in_place``."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if Path(f"{path}.kept").exists():
        os.rename(f"{path}.kept", path)


def make_link(path: Path, outside: Path) -> bytes:
    """Put a link in the place of a file, to where the file was moved; return the file's bytes."""
    if path.exists():
        os.rename(path, outside)
    else:
        outside.write_bytes(b"somebody's " * 100)
    path.symlink_to(outside)
    return outside.read_bytes()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        "00000000000000000000.log",
        "00000000000000000004.log",
        "00000000000000000077.log",
        "00000000000000000000.index",
        "00000000000000000004.timeindex",
        "00000000000000000006.snapshot",
        "00000000000000000002.log.swap",
        "leader-epoch-checkpoint",
        "partition.metadata",
        "cleaner-swap",
    ],
)
def test_log_with_a_link_is_refused_alone(
    start: Starter, stopped: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, clean: bool
) -> None:
    before = make_link(stopped / "t-0" / name, tmp_path / "outside")
    if not clean:
        (stopped / ".kafka_cleanshutdown").unlink()
    manager = start()
    assert f"t-0 is not served: {stopped}/t-0/{name} is a symbolic link" in caplog.text
    assert KEY not in manager.logs
    with pytest.raises(KafkaStorageError, match="symbolic link"):
        manager.create(KEY, ID)
    append(manager, OTHER)
    assert manager.directories[str(stopped)].offline is None
    manager.shutdown()
    assert (tmp_path / "outside").read_bytes() == before
    # With the file back in its place nothing is lost.
    (stopped / "t-0" / name).unlink()
    if b"somebody" not in before:
        os.rename(tmp_path / "outside", stopped / "t-0" / name)
    again = start()
    assert again.logs[KEY].log_end_offset == 6
    assert again.logs[KEY].log_start_offset == 1, "what was deleted stays so while the log cannot be opened"
    append(again, KEY)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", ["directory", "named pipe"])
@pytest.mark.parametrize(
    "name",
    [
        "00000000000000000000.log",
        "00000000000000000004.log",
        "00000000000000000004.index",
        "00000000000000000006.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
        "cleaner-swap",
    ],
)
def test_log_with_something_else_in_place_of_a_file_is_refused_alone(
    start: Starter, stopped: Path, caplog: pytest.LogCaptureFixture, name: str, kind: str, clean: bool
) -> None:
    path = stopped / "t-0" / name
    put_in_place(kind, path)
    if not clean:
        (stopped / ".kafka_cleanshutdown").unlink()
    manager = start()
    assert f"t-0 is not served: {path} is a {kind} where a file should be: move it away, or put the file" in caplog.text
    with pytest.raises(KafkaStorageError, match=f"{name} is a {kind}"):
        manager.create(KEY, ID)
    append(manager, OTHER)
    assert manager.directories[str(stopped)].offline is None
    # Nothing is lost once the file is back, for which the broker need not stop.
    put_right(path)
    assert manager.create(KEY, ID).log_end_offset == 6
    append(manager, KEY)
    manager.shutdown()


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint.tmp", "00000000000000000006.snapshot.tmp"])
def test_directory_where_a_file_is_going_to_be_written(
    start: Starter, stopped: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    put_in_place("directory", stopped / "t-0" / name)
    manager = start()
    assert f"t-0 is not served: {stopped}/t-0/{name} is a directory where a file should be" in caplog.text
    append(manager, OTHER)
    # Those of no name of ours are somebody else's.
    put_right(stopped / "t-0" / name)
    for other in ("notes.tmp", "00000000000000000006.old", "x.log"):
        put_in_place("directory", stopped / "t-0" / other)
    assert manager.create(KEY, ID).log_end_offset == 6


@pytest.mark.parametrize("kind", ["file", "named pipe"])
def test_something_else_in_place_of_a_log(
    start: Starter, stopped: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    put_in_place(kind, stopped / "t-0")
    manager = start()
    assert f"t-0 is not served: {stopped}/t-0 is a {kind} where a directory should be: move it away" in caplog.text
    with pytest.raises(KafkaStorageError, match="where a directory should be"):
        manager.create(KEY, ID)
    # One that is put there while the broker runs.
    put_in_place(kind, stopped / "new-0")
    with pytest.raises(KafkaStorageError, match=f"new-0 is a {kind} where a directory should be"):
        manager.create(TopicPartition("new", 0), ID)
    assert manager.directories[str(stopped)].offline is None
    append(manager, OTHER)
    (stopped / "t-0").unlink()
    with pytest.raises(KafkaStorageError, match="t-0 is missing: put it back"):
        manager.create(KEY, ID)
    assert manager.directories[str(stopped)].offline is None
    os.rename(stopped / "t-0.kept", stopped / "t-0")
    assert manager.create(KEY, ID).log_end_offset == 6


def test_file_with_the_name_of_no_topic_s_log_is_somebody_else_s(stopped: Path, tmp_path: Path) -> None:
    (stopped / "notes-2").write_text("somebody's")
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "t-0").write_text("somebody's")
    dirs = [str(stopped), str(tmp_path / "second")]
    topics = {"t": ID, "other": ID}
    for _ in range(2):
        manager = LogManager(
            OsFs(), dirs, ManualClock(), config_of=lambda _: TopicConfig.from_properties({}), topic_id_of=topics.get
        )
        manager.open()
        manager.claim(1, "cluster")
        manager.load()
        assert set(manager.logs) == {KEY, OTHER} and manager.was_clean
        manager.shutdown()


def test_partition_directory_that_is_a_link(
    start: Starter, stopped: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.rename(stopped / "t-0", tmp_path / "outside")
    (stopped / "t-0").symlink_to(tmp_path / "outside")
    before = {path.name: path.read_bytes() for path in (tmp_path / "outside").iterdir()}
    manager = start()
    assert f"t-0 is not served: {stopped}/t-0 is a symbolic link" in caplog.text
    with pytest.raises(KafkaStorageError, match="put the directory in its place"):
        manager.create(KEY, ID)
    # One that is put there while the broker runs.
    (stopped / "new-0").symlink_to(tmp_path / "outside")
    with pytest.raises(KafkaStorageError, match="symbolic link"):
        manager.create(TopicPartition("new", 0), ID)
    append(manager, OTHER)
    manager.shutdown()
    assert {path.name: path.read_bytes() for path in (tmp_path / "outside").iterdir()} == before


@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "kafkalite-log-starts",
        "replication-offset-checkpoint",
        "cleaner-offset-checkpoint",
        ".kafka_cleanshutdown",
        "recovery-point-offset-checkpoint.tmp",
    ],
)
def test_checkpoint_that_is_a_link_counts_as_missing(start: Starter, stopped: Path, tmp_path: Path, name: str) -> None:
    before = make_link(stopped / name, tmp_path / "outside")
    manager = start()
    assert manager.logs[KEY].log_end_offset == 6
    append(manager, KEY)
    manager.shutdown()
    assert (tmp_path / "outside").read_bytes() == before
    assert not (stopped / name).is_symlink() or name.startswith("cleaner")


@pytest.mark.parametrize("kind", ["directory", "named pipe"])
@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "kafkalite-log-starts",
        "replication-offset-checkpoint",
        "cleaner-offset-checkpoint",
        ".kafka_cleanshutdown",
    ],
)
def test_something_else_in_place_of_a_checkpoint_counts_as_missing(
    start: Starter, stopped: Path, caplog: pytest.LogCaptureFixture, name: str, kind: str
) -> None:
    put_in_place(kind, stopped / name)
    manager = start()
    assert f"{stopped}/{name} is a {kind} where a file should be: move it away" in caplog.text
    assert manager.logs[KEY].log_end_offset == 6
    append(manager, KEY)
    manager.shutdown()
    # A pipe has been replaced. A directory stays, and every start goes on without the file.
    again = start()
    assert again.was_clean == (kind == "named pipe")
    assert again.logs[KEY].log_end_offset == 7


def test_directory_in_place_of_an_unfinished_checkpoint(
    start: Starter, stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put_in_place("directory", stopped / "recovery-point-offset-checkpoint.tmp")
    for end_offset in (6, 7):
        manager = start()
        assert manager.logs[KEY].log_end_offset == end_offset
        append(manager, KEY)
        manager.shutdown()
        assert "recovery-point-offset-checkpoint.tmp is a directory where a file should be: move it" in caplog.text
        assert manager.directories[str(stopped)].offline is None


@pytest.mark.parametrize("name", [".lock", ".kafkalite-reserve", "meta.properties"])
def test_directory_in_place_of_what_the_log_directory_needs_costs_it_alone(
    stopped: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    put_in_place("directory", stopped / name)
    dirs = [str(stopped), str(tmp_path / "second")]
    manager = LogManager(OsFs(), dirs, ManualClock(), config_of=lambda _: TopicConfig.from_properties({}))
    manager.open()
    manager.claim(1, "cluster")
    manager.load()
    assert (
        f"{stopped}/{name} is a directory where a file should be: move it away, or put the file in its place; "
        "put that right, then restart the broker" in caplog.text
    )
    assert [each.path for each in manager.directories.online] == [dirs[1]]
    manager.create(TopicPartition("new", 0), ID)
    manager.shutdown()
    alone = LogManager(OsFs(), dirs[:1], ManualClock(), config_of=lambda _: TopicConfig.from_properties({}))
    with pytest.raises((ConfigError, KafkaStorageError), match="put that right, or name other directories"):
        alone.open()
        alone.claim(1, "cluster")
    alone.abandon()


def test_file_that_may_not_be_opened_costs_its_log_alone(
    start: Starter, stopped: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = OsFs.open

    def refusing(fs: OsFs, path: str, *, create: bool = False) -> OsFile:
        # Root may open everything.
        if path == f"{stopped}/t-0/leader-epoch-checkpoint":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return really(fs, path, create=create)

    monkeypatch.setattr(OsFs, "open", refusing)
    manager = start()
    assert "t-0 is not served" in caplog.text
    assert "Permission denied (the broker runs as user id" in caplog.text
    append(manager, OTHER)
    monkeypatch.undo()
    assert manager.create(KEY, ID).log_end_offset == 6


def test_roll_into_a_directory_fails_the_append_alone(start: Starter, stopped: Path) -> None:
    manager = start()
    put_in_place("directory", stopped / "t-0" / "00000000000000000006.log")
    end = manager.logs[KEY].log_end_offset
    with pytest.raises(KafkaStorageError, match=r"6\.log is a directory where a file should be"):
        for _ in range(6):
            append(manager, KEY)
    assert manager.logs[KEY].failure is None and manager.directories[str(stopped)].offline is None
    assert manager.logs[KEY].log_end_offset == end
    append(manager, OTHER)
    put_right(stopped / "t-0" / "00000000000000000006.log")
    append(manager, KEY)


@pytest.mark.parametrize("name", [".lock", ".kafkalite-reserve"])
def test_lock_or_reserve_that_is_a_link(start: Starter, stopped: Path, tmp_path: Path, name: str) -> None:
    before = make_link(stopped / name, tmp_path / "outside")
    with pytest.raises(ConfigError, match=rf"{name} is a symbolic link"):
        start()
    assert (tmp_path / "outside").read_bytes() == before


def test_meta_properties_that_are_a_link(start: Starter, stopped: Path, tmp_path: Path) -> None:
    make_link(stopped / "meta.properties", tmp_path / "outside")
    with pytest.raises(KafkaStorageError, match=r"meta\.properties is a symbolic link"):
        start()


def test_leftovers_that_are_links_go_and_their_targets_stay(start: Starter, stopped: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"somebody's")
    for name in ("t-0/x.tmp", "t-0/00000000000000000000.log.cleaned", "t-0/00000000000000000002.log.deleted"):
        (stopped / name).symlink_to(outside / "file")
    (stopped / "old-0.0123456789abcdef-delete").symlink_to(outside)
    (stopped / "t-0" / "README").symlink_to(outside / "file")
    manager = start()
    deletions = manager.due_deletions()
    assert deletions is not None
    deletions.run()
    assert sorted(path.name for path in stopped.rglob("*") if path.is_symlink()) == ["README"]
    assert (outside / "file").read_bytes() == b"somebody's"


def test_removing_a_tree_follows_no_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"somebody's")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(outside)
    (tmp_path / "tree-link").symlink_to(outside)
    remove_tree(OsFs(), f"{tmp_path}/tree")
    remove_tree(OsFs(), f"{tmp_path}/tree-link")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside"]
    assert (outside / "file").exists()


def test_replacing_a_file_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"somebody's")
    for name in ("file", "file.tmp"):
        (tmp_path / name).symlink_to(tmp_path / "outside")
    replace_file(OsFs(), f"{tmp_path}/file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new" and not (tmp_path / "file").is_symlink()
    assert (tmp_path / "outside").read_bytes() == b"somebody's"


@pytest.mark.parametrize("base", [2**63, 10**20 - 1])
def test_segment_beyond_int64_is_refused_by_name(
    start: Starter, stopped: Path, caplog: pytest.LogCaptureFixture, base: int
) -> None:
    path = stopped / "t-0" / f"{base:020d}.log"
    path.write_bytes(b"")
    manager = start()
    assert f"t-0 is not served: {path}: no segment begins at offset {base:020d}" in caplog.text
    append(manager, OTHER)
    assert path.exists()
    with pytest.raises(LogRefused, match=f"{base}"):
        plan_repair(OsFs(), f"{stopped}/t-0")
    manager.shutdown()
    path.unlink()
    assert start().logs[KEY].log_end_offset == 6


@pytest.mark.parametrize("suffix", ["index", "timeindex", "snapshot"])
def test_small_files_beyond_int64_are_nobody_s(start: Starter, stopped: Path, suffix: str) -> None:
    (stopped / "t-0" / f"{2**63}.{suffix}".zfill(20 + 1 + len(suffix))).write_bytes(bytes(12))
    manager = start()
    assert manager.logs[KEY].log_end_offset == 6
    append(manager, KEY)

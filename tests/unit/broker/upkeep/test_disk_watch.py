"""What is seen of full, broken and sound log directories, in which rhythm; time jumps from look to look."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import pairwise

import pytest

from spark_kafkalite.broker.upkeep.disk_watch import DiskWatch
from spark_kafkalite.log.directories.disk import LogDirectory
from spark_kafkalite.log.files.fs import Space
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import MemoryFs
from tests.lab.manual_loop import ManualLoop, ManualThreads

CONFIG = TopicConfig.from_properties({})


class Watch:
    """Two log directories that are watched, and what comes of it. It stands in for the replicas as well."""

    def __init__(self, loop: ManualLoop, reserve_bytes: int = 0) -> None:
        self.loop = loop
        self.fs = MemoryFs()
        self.threads = ManualThreads(loop)
        self.logs = LogManager(
            self.fs, ["/d0", "/d1"], ManualClock(), config_of=lambda _: CONFIG, reserve_bytes=reserve_bytes
        )
        self.logs.open()
        self.logs.load()
        self.offline: list[str] = []
        self.logs.on_offline.append(self.offline.append)
        self.has_failed = False
        self.retried_s: list[float] = []
        self.rooms = 0
        self.watch = DiskWatch(
            loop,
            self.threads,  # type: ignore[arg-type]
            self.logs,
            self,  # type: ignore[arg-type]
            self._room,
        )
        self.began_s = loop.time()
        self.watch.start()

    def retry_failed(self) -> None:
        self.retried_s.append(self.loop.time() - self.began_s)

    def _room(self) -> None:
        self.rooms += 1

    @property
    def first(self) -> LogDirectory:
        return self.logs.directories["/d0"]

    def fill(self) -> None:
        """Have a write to the first directory find no room."""
        self.first.out_of_room("append", OSError(errno.ENOSPC, "No space left on device"))

    def note_probes(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """Return when the first directory is probed, from now on; every probe finds no room."""
        probed_s: list[float] = []

        def probe(directory: LogDirectory) -> None:
            assert directory is self.first
            probed_s.append(self.loop.time())
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(LogDirectory, "probe", probe)
        return probed_s


@pytest.fixture
def loop() -> Iterator[ManualLoop]:
    loop = ManualLoop(ManualClock())
    yield loop
    loop.close()


@pytest.fixture
def watched(loop: ManualLoop) -> Watch:
    return Watch(loop)


def test_a_full_directory_takes_records_again_when_a_probe_has_found_room(watched: Watch) -> None:
    watched.fill()
    assert watched.first.refusal is not None
    watched.loop.run_for(2)
    assert watched.first.refusal is None
    assert (watched.rooms, len(watched.retried_s)) == (1, 1)
    watched.loop.run_for(60)
    assert watched.rooms == 1


def test_probes_become_rare_while_they_fail_and_frequent_after_a_quiet_minute(
    watched: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        probed_s = watched.note_probes(patch)
        watched.fill()
        watched.loop.run_for(60)
        waits = [later - earlier for earlier, later in pairwise(probed_s)]
        assert waits[:5] == pytest.approx([0.5, 1, 2, 4, 8], abs=0.6)
        assert waits[5:] == pytest.approx([10] * len(waits[5:]), abs=0.6)
        assert watched.first.refusal is not None
        assert watched.rooms == 0
    watched.loop.run_for(11)
    assert watched.first.refusal is None
    probed_s = watched.note_probes(monkeypatch)
    watched.loop.run_for(75)
    watched.fill()
    watched.loop.run_for(3)
    assert len(probed_s) >= 2
    assert probed_s[1] - probed_s[0] == pytest.approx(0.5, abs=0.1)


def test_a_probe_that_finds_the_disk_broken_takes_the_directory_offline_and_no_other(watched: Watch) -> None:
    watched.fs.fail("sync", errno.EIO, path_part="/d0/")
    watched.fill()
    watched.loop.run_for(60)
    assert watched.offline == ["/d0"]
    assert "a probe failed" in str(watched.first.offline)
    assert watched.logs.directories["/d1"].offline is None
    assert watched.rooms == 0


def test_a_probe_that_is_refused_is_told_of_and_made_again(watched: Watch, caplog: pytest.LogCaptureFixture) -> None:
    watched.fs.fail("open", errno.EACCES, path_part="/d0/")
    watched.fill()
    watched.loop.run_for(1)
    assert "whether log directory /d0 has room again cannot be found out" in caplog.text
    watched.loop.run_for(10)
    assert (watched.first.refusal, watched.offline, watched.rooms) == (None, [], 1)


def test_one_thread_at_a_time_looks_at_a_directory(watched: Watch) -> None:
    watched.threads.held = True
    watched.fill()
    watched.loop.run_for(60)
    assert len(watched.threads.work) == 1


def test_reserves_are_made_after_the_start_and_again_when_they_could_not_be(loop: ManualLoop) -> None:
    watched = Watch(loop, reserve_bytes=1 << 20)
    watched.fs.fail("allocate", errno.ENOSPC, path_part="/d0/")
    assert [directory.reserve_bytes for directory in watched.logs.directories] == [0, 0]
    loop.run_for(0.6)
    assert [directory.reserve_bytes for directory in watched.logs.directories] == [0, 1 << 20]
    loop.run_for(1.1)
    assert [directory.reserve_bytes for directory in watched.logs.directories] == [1 << 20, 1 << 20]


def test_logs_that_could_not_be_made_are_tried_again_as_long_as_there_are_any(watched: Watch) -> None:
    watched.has_failed = True
    watched.loop.run_for(35)
    assert watched.retried_s == pytest.approx([0.5, 10.5, 20.5, 30.5], abs=0.6)
    watched.has_failed = False
    watched.loop.run_for(60)
    assert len(watched.retried_s) == 4


def test_after_the_end_nothing_is_looked_at(watched: Watch) -> None:
    watched.fill()
    watched.watch.stop()
    watched.loop.run_for(60)
    assert watched.first.refusal is not None
    assert watched.threads.work == []


def test_a_disk_that_fills_is_warned_of_once(loop: ManualLoop, caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(loop)
    with caplog.at_level("WARNING"):
        watch.fs.space = lambda _: Space(20, 100)  # type: ignore[method-assign]
        loop.run_for(5)
        assert not caplog.records
        watch.fs.space = lambda path: Space(10 if path == "/d0" else 20, 100)  # type: ignore[method-assign]
        loop.run_for(5)
    (record,) = caplog.records
    assert record.getMessage().startswith("the disk of log directory /d0 is 90 % full (10 bytes are free): ")
    watch.watch.stop()

"""A log directory of which a call has not returned for a session: it is found, left, read again and used again."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafkalite.broker.hung_disks import HungCalls, HungDisks, StopWatch
from spark_kafkalite.broker.replication.follower import Follower
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.log.directories.disk import LogDirectory
from spark_kafkalite.log.files.disk_calls import CALLS, DiskCall, DiskCalls
from spark_kafkalite.log.files.os_fs import OsFile, OsFs
from tests.patience import PATIENCE_S, wait_until
from tests.seeds import SEED
from tests.unit.broker.replication.test_partition import Harness


def call(since_s: float, path: str = "/logs/t-0/0.log", thread: int = 1) -> DiskCall:
    return DiskCall(thread, "fdatasync", path, since_s)


# The rule ---------------------------------------------------------------------------------------------------------


def test_a_call_that_has_not_returned_for_the_limit_hangs_until_it_returns() -> None:
    rule = HungCalls(4.0, 0.5, 0.0)
    times = [half / 2 for half in range(1, 20)]
    hung = [now_s for now_s in times if rule.look(now_s, [call(0.7)] if now_s < 8.0 else [])]
    assert hung == [now_s for now_s in times if 4.7 <= now_s < 8.0]


def test_work_of_many_short_calls_does_not_hang() -> None:
    """As the recovery of a large log, or a round of comparisons that may read so much in a second."""
    rule = HungCalls(4.0, 0.5, 0.0)
    assert not any(rule.look(half / 2, [call(half / 2 - 3.4)]) for half in range(1, 200))


def test_a_pause_of_the_process_is_no_hang_of_its_calls() -> None:
    rule = HungCalls(4.0, 0.5, 0.0)
    assert not rule.look(0.5, [call(0.2)])
    assert not any(rule.look(60.0 + half / 2, [call(0.2)]) for half in range(8))
    assert rule.look(64.0, [call(0.2)])
    # What hangs does so still after another pause.
    assert rule.look(90.0, [call(0.2)])


def test_calls_hang_only_after_the_limit_and_always_then() -> None:
    """In any order of calls, looks and pauses."""
    chance = random.Random(SEED)
    for _ in range(300):
        limit_s, now_s, every_s = 4.0, 0.0, 0.5
        rule = HungCalls(limit_s, every_s, now_s)
        calls: dict[DiskCall, float] = {}
        for _ in range(60):
            pause_s = chance.uniform(2.1, 30.0) * every_s if chance.random() < 0.03 else 0.0
            before_s, now_s = now_s, now_s + (pause_s or chance.uniform(1.0, 1.9) * every_s)
            for each in [each for each in calls if chance.random() < 0.05]:
                del calls[each]
            if chance.random() < 0.3:
                new = call(chance.uniform(before_s, now_s), thread=chance.randrange(1 << 30))
                calls[new] = new.since_s
            hung = rule.look(now_s, calls)
            if pause_s:
                calls = {each: since_s if each in hung else now_s for each, since_s in calls.items()}
            assert hung == {each for each, since_s in calls.items() if now_s - since_s >= limit_s}


# A broker that follows and leads ------------------------------------------------------------------------------------


class World:
    """A partition of broker 1 on a disk whose calls are what a test says."""

    def __init__(self, harness: Harness, **settings: object) -> None:
        self.harness = harness
        self.partition = harness.partition(**settings)
        self.disk: LogDirectory = self.partition.log.disk
        self.calls: list[DiskCall] = []
        self.left: list[Partition] = []
        self.now_s = 0.0
        harness.loop.time = lambda: self.now_s  # type: ignore[method-assign]
        self.disks = HungDisks(harness.loop, harness.io, self, [self.disk], self, 4.0)  # type: ignore[arg-type]

    def under_way(self) -> list[DiskCall]:
        return self.calls

    def in_directory(self, path: str) -> list[Partition]:
        assert path == self.disk.path
        return [self.partition]

    def directory_hangs(self, path: str) -> None:
        self.left += self.in_directory(path)
        self.partition.disk_hangs()

    def let_pass(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.5
            self.disks._look()
        self.disks.stop()

    def answer(self) -> None:
        """Do what threads are given: the probe, and the reading of the log."""
        self.harness.io.run_all()
        self.harness.io.run_all()


@pytest.fixture
def world() -> Iterator[World]:
    loop = asyncio.new_event_loop()
    yield World(Harness(loop), flush_before_ack=True)
    loop.close()


def followed(world: World) -> Follower:
    world.partition.resign(2, 1, 1)
    assert isinstance(world.partition.role, Follower)
    return world.partition.role


def test_a_directory_that_hangs_is_said_once_and_left(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.calls = [call(0.0)]
    world.let_pass(3.5)
    assert not world.left and not caplog.text
    world.let_pass(3.0)
    assert world.left == [world.partition]
    (line,) = caplog.messages
    assert line.startswith(
        "log directory /logs does not answer: fdatasync of /logs/t-0/0.log has not returned for 4.0 s, longer than "
        "a session with the registry"
    )


def test_another_directory_does_not_hang(world: World) -> None:
    world.calls = [call(0.0, "/logs-too/t-0/0.log")]
    world.let_pass(8.0)
    assert world.disk.hanging is None


def test_a_follower_copies_nothing_until_the_end_of_its_log_has_been_read(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    follower, ready = followed(world), []
    follower.on_ready = lambda: ready.append(world.now_s)
    assert follower.ask(0.0) is not None
    world.calls = [call(0.0)]
    world.let_pass(5.0)
    # It is asked what it asks now: nothing.
    assert ready == [4.0] and follower.ask(world.now_s) is None
    world.calls = []
    world.let_pass(0.5)
    world.harness.io.run_all()
    assert follower.ask(world.now_s) is None and world.disk.hanging is not None
    world.harness.io.run_all()
    assert ready == [4.0, 5.5] and follower.ask(world.now_s) is not None
    assert "log directory /logs answers again, after 5.5 s; the ends of its 1 logs have been read again" in caplog.text


def test_a_disk_that_is_only_slow_does_not_come_and_go(world: World) -> None:
    """A probe takes too long."""
    world.calls = [call(0.0)]
    world.let_pass(5.0)
    world.calls = []
    for _ in range(4):
        world.let_pass(3.0)
        world.harness.io.run_all()
        assert world.disk.hanging is not None and not world.harness.io.work
    world.let_pass(0.5)
    world.answer()
    assert world.disk.hanging is None


def test_what_cannot_be_read_afterwards_is_known(world: World) -> None:
    world.harness.append(world.partition, 3)
    world.harness.append(world.partition, 2)
    segment = world.partition.log.segments.active
    damage = world.partition.log.local.known_damage
    damage.is_kept = True
    world.harness.io.work.clear()
    world.calls = [call(0.0)]
    world.let_pass(5.0)
    # As where the device has lost what was in its cache.
    segment.file.pwrite(b"\0\0\0", segment.size_bytes - 3)
    world.calls = []
    world.let_pass(0.5)
    world.answer()
    assert damage.ranges == ((3, 5),)


def test_no_flush_is_begun_meanwhile_and_one_afterwards(world: World) -> None:
    world.calls = [call(0.0)]
    world.let_pass(5.0)
    world.harness.append(world.partition)
    world.harness.run_loop()
    assert not world.harness.io.work
    world.calls = []
    world.let_pass(0.5)
    world.answer()
    world.harness.run_loop()
    world.harness.io.run_all()
    assert world.partition.log.recovery_point == 1


def test_a_flush_that_waits_for_a_thread_does_not_hang_too(world: World) -> None:
    world.harness.append(world.partition)
    world.harness.run_loop()
    assert len(world.harness.io.work) == 1
    world.calls = [call(0.0)]
    world.let_pass(5.0)
    world.harness.io.run_all()
    assert world.partition.log.recovery_point == 0 and world.partition.log.failure is None
    world.calls = []
    world.let_pass(0.5)
    world.answer()
    world.harness.run_loop()
    world.harness.io.run_all()
    assert world.partition.log.recovery_point == 1


def test_a_leader_that_leads_on_takes_what_it_is_sent(world: World) -> None:
    world.calls = [call(0.0)]
    world.let_pass(5.0)
    assert world.harness.append(world.partition).base_offset == 0


# The calls ----------------------------------------------------------------------------------------------------------


def test_calls_are_under_way_until_they_return_or_fail(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []

    def look(*_: object) -> int:
        seen.extend((each.name, each.path) for each in CALLS.under_way() if each.thread == threading.get_ident())
        raise OSError("no")

    path = str(tmp_path / "file")
    file = OsFs().open(path, create=True)
    calls = {"fdatasync": file.sync, "pwrite": lambda: file.pwrite(b"a", 0), "pread": lambda: file.pread(1, 0)}
    for name, make in calls.items():
        with monkeypatch.context() as patched:
            patched.setattr("spark_kafkalite.log.files.os_fs.sync_data" if name == "fdatasync" else f"os.{name}", look)
            with pytest.raises(OSError, match="no"):
                make()
    assert seen == [(name, path) for name in calls]
    assert not [each for each in CALLS.under_way() if each.thread == threading.get_ident()]
    assert isinstance(file, OsFile)


# A stop -------------------------------------------------------------------------------------------------------------


def test_a_stop_ends_although_a_thread_waits_for_a_disk(caplog: pytest.LogCaptureFixture) -> None:
    calls, ended, codes = DiskCalls(), threading.Event(), []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    hanging = threading.Thread(target=lambda: calls.make("fdatasync", "/logs/t-0/0.log", ended.wait, PATIENCE_S))
    hanging.start()
    wait_until(calls.under_way, "the call to begin")
    with caplog.at_level(logging.CRITICAL):
        StopWatch(calls, 0.08, end).start()
        assert ended.wait(PATIENCE_S)
    hanging.join()
    assert codes == [1]
    assert "the stop ends here, because a disk does not answer: fdatasync of /logs/t-0/0.log" in caplog.text

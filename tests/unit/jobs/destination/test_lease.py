"""Leases over a real directory; time passes by setting modification times, as the file system's clock would."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_kafkalite.jobs.destination import lease
from spark_kafkalite.jobs.destination.lease import DestinationHeld, DestinationLease, Holder, lease_path
from spark_kafkalite.manifests.files import LocalFiles
from tests.patience import wait_until

MINUTE_MS = 60_000


def hold(
    files: LocalFiles,
    run: str,
    lease_ms: int = MINUTE_MS,
    wait_ms: int | None = None,
    said: list[str] | None = None,
    pause: Callable[[float], None] | None = None,
) -> AbstractContextManager[DestinationLease]:
    def never(seconds: float) -> None:
        raise AssertionError(f"{run} waits for {seconds} s")

    say = [].append if said is None else said.append
    return lease.held(files, run, lease_ms=lease_ms, wait_ms=wait_ms, say=say, pause=pause or never)


def by(files: LocalFiles, number: int, run: str, **more: object) -> Path:
    """Leave the lease of a run that does not renew it; return its file."""
    holder = Holder.of_this_process(run, MINUTE_MS)
    text = json.dumps({**{name: getattr(holder, name) for name in holder.__slots__}, **more})
    files.write_new(lease_path(number), text)
    return Path(files.root.removeprefix("file://")) / lease_path(number)


def age(path: Path, by_s: float) -> None:
    """Let the last renewal be so much longer ago."""
    modified_s = path.stat().st_mtime - by_s
    os.utime(path, (modified_s, modified_s))


def leases(files: LocalFiles) -> list[str]:
    return files.names(lease.LEASES)


def test_a_free_destination_is_held_and_released(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    with hold(files, "r1") as first:
        document = json.loads(files.read(lease_path(1)))
        assert document["run"] == "r1"
        assert (document["pid"], document["released"]) == (os.getpid(), False)
        assert document.keys() == {"run", "host", "pid", "user", "started", "lease_ms", "released"}
        assert leases(files) == ["00000000000000000001.json"]
        first.check()
    assert json.loads(files.read(lease_path(1)))["released"]
    # The highest number stays, so that none is given twice.
    with hold(files, "r2") as second:
        assert second.number == 2
        assert leases(files) == ["00000000000000000002.json"]


def test_a_run_that_fails_releases_it(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    with pytest.raises(ZeroDivisionError), hold(files, "r1"):
        raise ZeroDivisionError
    with hold(files, "r2"):
        pass


def test_who_holds_it_is_told_before_anything_is_waited_for(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    path = by(files, 1, "r1", host="h", pid=7, user="u", started="2026-01-01T00:00:00+00:00")
    said: list[str] = []
    waits: list[float] = []

    def pause(seconds: float) -> None:
        assert said
        waits.append(seconds)
        age(path, seconds)

    # Nobody renews it: a run that is dead.
    with hold(files, "r2", said=said, pause=pause) as second:
        assert second.number == 2
    assert len(said) == 1
    assert "run r1 (host h, pid 7, user u, since 2026-01-01T00:00:00+00:00) holds the destination" in said[0]
    assert re.search(r"its lease ends in [0-9]+ s unless it is renewed; waiting for that$", said[0])
    # The rest of the minute has passed in this test.
    assert sum(waits) == pytest.approx(MINUTE_MS / 1000, abs=20)
    assert max(waits) <= 2


def test_a_lease_that_is_renewed_is_of_a_run_that_lives(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    path = by(files, 1, "r1")
    age(path, 30)
    with (
        pytest.raises(DestinationHeld, match=r"run r1 .*holds the destination; its lease was renewed, so it lives"),
        hold(files, "r2", pause=lambda seconds: age(path, -5)),
    ):
        raise AssertionError("r2 holds it")
    assert leases(files) == ["00000000000000000001.json"]


@pytest.mark.parametrize("wait_ms", [0, 40])
def test_with_a_time_to_wait_a_living_run_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_ms: int
) -> None:
    files = LocalFiles(tmp_path)
    path = by(files, 1, "r1")
    said: list[str] = []
    now_s = [100.0]
    monkeypatch.setattr(lease, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def pause(seconds: float) -> None:
        age(path, -1)
        now_s[0] += seconds

    with pytest.raises(DestinationHeld, match="--wait"), hold(files, "r2", wait_ms=wait_ms, said=said, pause=pause):
        raise AssertionError("r2 holds it")
    assert len(said) == (wait_ms > 0)


def test_a_release_ends_the_wait(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    first = hold(files, "r1")
    first.__enter__()
    with hold(files, "r2", wait_ms=MINUTE_MS, pause=lambda seconds: first.__exit__(None, None, None)) as second:
        assert second.number == 2


class OtherClock(LocalFiles):
    """A file system whose clock is ten days ahead."""

    def modified_ms(self, path: str) -> int | None:
        found_ms = super().modified_ms(path)
        return None if found_ms is None else found_ms + 864_000_000


def test_the_hosts_clock_does_not_matter(tmp_path: Path) -> None:
    files = OtherClock(tmp_path)
    path = by(files, 1, "r1")
    with pytest.raises(DestinationHeld), hold(files, "r2", wait_ms=0):
        raise AssertionError("r2 holds it")
    age(path, 61)
    with hold(files, "r2", wait_ms=0) as second:
        assert second.number == 2


def test_who_was_paused_beyond_its_lease_sees_who_has_taken_over(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    with (
        pytest.raises(DestinationHeld, match=r"run r2 .* took the destination over while this run \(r1\)") as told,
        hold(files, "r1") as first,
    ):
        age(tmp_path / lease_path(1), 61)
        with hold(files, "r2"):
            with pytest.raises(DestinationHeld, match="run r2"):
                first.check()
            # As when the other one has deleted what this one reads.
            raise ZeroDivisionError
    assert isinstance(told.value.__cause__, DestinationHeld | ZeroDivisionError)
    # The one that lost it has not taken it back.
    assert leases(files) == ["00000000000000000002.json"]
    with hold(files, "r3", wait_ms=0) as third:
        assert third.number == 3


def test_it_is_renewed_while_the_run_works(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    with hold(files, "r1", lease_ms=60):
        for _ in range(3):
            before_ms = files.modified_ms(lease_path(1))
            wait_until(lambda before_ms=before_ms: files.modified_ms(lease_path(1)) != before_ms, "a renewal")


class Unwilling(LocalFiles):
    willing = True
    refused = 0

    def replace(self, path: str, text: str) -> None:
        if not self.willing:
            self.refused += 1
            raise OSError(28, "No space left on device")
        super().replace(path, text)


def test_a_renewal_that_fails_is_said_once_and_ends_nothing(tmp_path: Path) -> None:
    files = Unwilling(tmp_path)
    said: list[str] = []
    with hold(files, "r1", lease_ms=30, said=said) as first:
        files.willing = False
        wait_until(lambda: files.refused > 5, "renewals that fail")
        first.check()
    assert len(said) == 1
    assert said[0].startswith(f"WARNING: the lease of {files.root} cannot be renewed and may end: ")
    assert "No space left on device" in said[0]


def test_of_many_that_want_it_at_once_one_gets_it(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    age(by(files, 7, "dead"), 61)
    begin, outcomes, ends = threading.Barrier(8), [], threading.Event()

    def want(run: str) -> None:
        begin.wait()
        try:
            with hold(LocalFiles(tmp_path), run, wait_ms=0) as held:
                outcomes.append(held.number)
                ends.wait()
        except DestinationHeld:
            outcomes.append(0)

    threads = [threading.Thread(target=want, args=(f"r{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(outcomes) == 8, "the outcomes of all runs")
    ends.set()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [0] * 7 + [8]
    assert leases(files) == ["00000000000000000008.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run": 3}', '"x"', '{"lease_ms": "x"}'])
def test_a_lease_that_cannot_be_read_ends_as_any_other(tmp_path: Path, text: str) -> None:
    files = LocalFiles(tmp_path)
    files.write_new(lease_path(1), text)
    with pytest.raises(DestinationHeld, match="run unknown"), hold(files, "r1", wait_ms=0):
        raise AssertionError("r1 holds it")
    age(tmp_path / lease_path(1), 61)
    with hold(files, "r1", wait_ms=0) as first:
        assert first.number == 2


def test_what_killed_runs_have_left_half_written_goes(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    for name, old in ((".0001.json.x.tmp", True), ("clock-dead", True), ("clock-waiting", False)):
        files.write_new(f"{lease.LEASES}/{name}", "")
        if old:
            age(tmp_path / lease.LEASES / name, 4000)
    with hold(files, "r1"):
        assert leases(files) == ["00000000000000000001.json", "clock-waiting"]

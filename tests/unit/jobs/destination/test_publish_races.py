"""Several runs over one directory at once, without leases, in any order that chance finds: what is published is whole.

Each operation on the directory is a turn, and a scheduler says whose it is: so a run is paused anywhere for as long as
others need to recover, load and publish, or is killed there.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.jobs.destination import publish
from spark_kafkalite.jobs.destination.lease import DestinationHeld
from spark_kafkalite.jobs.load.planning import LoadPlan
from spark_kafkalite.manifests.files import LocalFiles
from spark_kafkalite.manifests.manifest import FilePart, LoadedTopic, PublishedFile, Staged, staging_path
from spark_kafkalite.manifests.names import file_name
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange
from tests.patience import PATIENCE_S
from tests.seeds import SEED, SOAK

ORDERS = 3_000 if SOAK else 25
ID = "AAAAAAAAQACAAAAAAAAAAQ"


class Killed(BaseException):
    pass


class Turns:
    """Lets one of several threads go on at a time, from one operation to its next."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._changed = threading.Condition()
        self._waiting: set[str] = set()
        self._running: set[str] = set()
        self._granted = ""
        self._killed: set[str] = set()
        self._errors: list[Exception] = []

    def wait(self, name: str) -> None:
        with self._changed:
            self._running.discard(name)
            self._waiting.add(name)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._granted == name)
            self._granted = ""
            if name in self._killed:
                raise Killed

    def play(self, runs: dict[str, Callable[[], None]]) -> None:
        def body(name: str, run: Callable[[], None]) -> None:
            try:
                self.wait(name)
                run()
            except Killed:
                pass
            except Exception as error:
                self._errors.append(error)
            finally:
                with self._changed:
                    self._running.discard(name)
                    self._changed.notify_all()

        threads = [threading.Thread(target=body, args=each, daemon=True) for each in runs.items()]
        self._running = set(runs)
        for thread in threads:
            thread.start()
        last = ""
        while True:
            with self._changed:
                assert self._changed.wait_for(lambda: not self._running, PATIENCE_S)
                if not self._waiting:
                    break
                # Mostly long stretches, so that others are paused for a whole run.
                if last not in self._waiting or self._chance.random() < 0.15:
                    last = self._chance.choice(sorted(self._waiting))
                if self._chance.random() < 0.004:
                    self._killed.add(last)
                self._waiting.discard(last)
                self._running.add(last)
                self._granted = last
                self._changed.notify_all()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]


class Shared(LocalFiles):
    """A directory each operation on which is a turn."""

    def __init__(self, root: Path, turns: Turns, name: str) -> None:
        super().__init__(root)
        self._turns = turns
        self._name = name

    def __getattribute__(self, name: str) -> Any:
        if name in ("exists", "names", "read", "write_new", "rename_new", "delete", "size_bytes"):
            object.__getattribute__(self, "_turns").wait(object.__getattribute__(self, "_name"))
        return super().__getattribute__(name)


def load(files: LocalFiles, run: str, chance: random.Random) -> str:
    """One run as the job does it, with plain files in place of Spark's; return how it ended."""
    try:
        newest = publish.recover(files, run).newest
        start = newest.next_offsets.get(TopicPartition("t", 0), 0) if newest is not None else 0
        until = start + chance.randrange(1, 4)
        plan = LoadPlan((OffsetRange(TopicPartition("t", 0), start, until),), {"t": LoadedTopic(ID, {0: until})})
        publish.write_plan(files, run, plan)
        staged = []
        for offset in range(start, until):
            path = f"{staging_path(run)}/data/{offset}"
            files.write_new(path, f"{offset} by {run}")
            final = f"t/{file_name('t', 0, offset, offset)}"
            staged.append(PublishedFile(path, final, "t", (FilePart(0, offset, offset, 1),)))
        publish.commit(files, run, plan, Staged(tuple(staged)), newest)
    except DestinationHeld:
        return "overtaken"
    return "published"


def play(seed: int, root: Path) -> list[str]:
    chance = random.Random(seed)
    turns = Turns(chance)
    ended: dict[str, str] = {}

    def run(name: str) -> None:
        ended[name] = load(Shared(root, turns, name), name, random.Random(f"{seed} {name}"))

    names = [f"r{number}" for number in range(chance.choice((2, 3, 4)))]
    turns.play({name: lambda name=name: run(name) for name in names})  # type: ignore[misc]

    files = LocalFiles(root)
    newest = publish.recover(files, "last").newest
    if newest is None:
        assert not ended, "only runs that were killed may publish nothing"
        return ["killed" for _ in names]
    by_run = {manifest.run: manifest for manifest in publish.manifests(files)}
    for name in names:
        # One that was killed may have committed.
        assert name not in ended or (ended[name] == "published") == (name in by_run), (name, ended)
    found = [file for manifest in by_run.values() for file in manifest.files]
    # Each offset once, none left out, up to where the newest manifest says.
    assert [file.parts[0].first_offset for file in found] == list(
        range(newest.next_offsets.get(TopicPartition("t", 0), 0))
    )
    assert files.names("t") == sorted(Path(file.final).name for file in found)
    for manifest in by_run.values():
        for file in manifest.files:
            assert files.read(file.final) == f"{file.parts[0].first_offset} by {manifest.run}"
    assert files.names("_kafkalite/staging") == []
    return [ended.get(name, "killed") for name in names]


def test_runs_that_are_paused_and_killed_anywhere_publish_each_offset_once(tmp_path: Path) -> None:
    counts: dict[str, int] = {}
    for seed in range(SEED, SEED + ORDERS):
        try:
            for each in play(seed, tmp_path / str(seed)):
                counts[each] = counts.get(each, 0) + 1
        except BaseException:
            print(f"play({seed}) fails")
            raise
    # Otherwise nothing has raced.
    assert min(counts.get(each, 0) for each in ("published", "overtaken", "killed")) >= max(1, ORDERS // 80), counts


@pytest.mark.parametrize("broken", ["no fence", "fence last"])
def test_without_the_fence_before_the_deletions_records_would_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """What the test above is worth: a recovery that does not fence, or too late, is found."""

    def recover(files: Any, run: str | None = None, check: Callable[[], None] = lambda: None) -> publish.Recovery:
        newest = publish.newest_manifest(files)
        if newest is not None and files.exists(newest.staging):
            publish.move_files(files, newest)
            files.delete(newest.staging)
        left = tuple(files.names("_kafkalite/staging"))
        for each in left:
            files.delete(staging_path(each))
        if left and broken == "fence last":
            fence = publish._fence(run or "x", newest)
            try:
                files.write_new(fence.path, fence.to_json())
            except publish.FileExists:
                return recover(files, run, check)
            newest = fence
        return publish.Recovery(newest, 0, left)

    monkeypatch.setattr(publish, "recover", recover)
    with pytest.raises((AssertionError, publish.ManifestError)):
        for seed in range(400):
            play(seed, tmp_path / str(seed))

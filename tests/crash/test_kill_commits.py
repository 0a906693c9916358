"""40,000 commits of offsets while the broker is killed with SIGKILL at random moments.

Three committers pipeline commits, each for groups of its own, with offsets that only grow; two readers look at all
groups all the time. After each kill everything that was acknowledged is there, nothing is there that was not sent, and
no reader ever sees an offset go back, not even one whose commit was in flight. Segments of ``__consumer_offsets`` are
small and the cleaner is busy with them, so kills also hit compaction and its swaps.

Each failure names its seed; ``KAFKALITE_SEED`` repeats the moments of a run (not the kernel's scheduling). The soak
makes ten times as many commits.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from pathlib import Path

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.find_coordinator import FindCoordinatorRequest
from spark_kafkalite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from spark_kafkalite.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.interop.support.raw_client import RawClient
from tests.patience import PATIENCE_S, wait_until
from tests.seeds import SEED, SOAK

COMMITS = 1_000_000 if SOAK else 40_000

TOPIC = "read"
COMMITTERS = 3
GROUPS_EACH = 8
PARTITIONS = 4
IN_FLIGHT = 64
# The coordinator loads, or the topic of offsets has just been found to have no leader here.
PASSING = {14, 15, 16}

OVERRIDES = {
    "offsets.topic.num.partitions": 5,
    "offsets.topic.segment.bytes": 100_000,
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.min.cleanable.ratio": 0.01,
}

Key = tuple[str, int]


class Peer:
    """A thread that talks to the broker, again and again when the connection breaks."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._bootstrap = bootstrap
        self.failures: list[BaseException] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    with RawClient(self._bootstrap) as client:
                        client.call(FindCoordinatorRequest(key="g"), 2)
                        while not self._stopping.is_set():
                            self.turn(client)
                except OSError:
                    # Killed: it is back in a moment.
                    time.sleep(0.02)
        except BaseException as error:
            self.failures.append(error)

    def turn(self, client: RawClient) -> None:
        raise NotImplementedError


class Committer(Peer):
    """Commits growing offsets; knows what it sent and what was acknowledged."""

    def __init__(self, bootstrap: str, number: int) -> None:
        super().__init__(bootstrap, f"committer-{number}")
        self.keys = [(f"group {number} {group}", part) for group in range(GROUPS_EACH) for part in range(PARTITIONS)]
        self.sent = dict.fromkeys(self.keys, -1)
        self.acknowledged = dict.fromkeys(self.keys, -1)
        self.count = 0
        self._chance = random.Random(SEED + number)

    def turn(self, client: RawClient) -> None:
        window: list[tuple[Key, int]] = []
        for key in self._chance.choices(self.keys, k=IN_FLIGHT):
            offset = self.sent[key] = self.sent[key] + 1
            window.append((key, offset))
            part = OffsetCommitRequestPartition(partition_index=key[1], committed_offset=offset)
            topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=[part])]
            client.send(OffsetCommitRequest(group_id=key[0], topics=topics), 8)
        for key, offset in window:
            (part_answer,) = client.receive(8, 8).topics[0].partitions
            if part_answer.error_code == 0:
                self.acknowledged[key] = offset
                self.count += 1
            else:
                assert part_answer.error_code in PASSING, part_answer


class Reader(Peer):
    """Fetches all groups' offsets over and over; none may go back."""

    def __init__(self, bootstrap: str, number: int, groups: list[str]) -> None:
        super().__init__(bootstrap, f"reader-{number}")
        self._groups = groups
        self.seen: dict[Key, int] = {}
        self.turns = 0

    def turn(self, client: RawClient) -> None:
        for key, offset in fetched(client, self._groups).items():
            assert offset >= self.seen.get(key, -1), f"{key} went back from {self.seen[key]} to {offset}"
            self.seen[key] = offset
        self.turns += 1
        time.sleep(0.01)


def fetched(client: RawClient, groups: list[str]) -> dict[Key, int]:
    """Return what is committed, of the groups that are not being loaded."""
    asked = [OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups]
    answer = client.call(OffsetFetchRequest(groups=asked), 8)
    assert {group.error_code for group in answer.groups} <= {0} | PASSING
    return {
        (group.group_id, part.partition_index): part.committed_offset
        for group in answer.groups
        for topic in group.topics
        for part in topic.partitions
    }


def check_all_there(bootstrap: str, committers: list[Committer], acknowledged: dict[Key, int]) -> None:
    """Wait until every group is served, and compare."""
    groups = sorted({key[0] for key in acknowledged})
    with RawClient(bootstrap) as client:

        def all_served() -> bool:
            asked = [OffsetFetchRequestGroup(group_id=group, topics=[]) for group in groups]
            return not any(one.error_code for one in client.call(OffsetFetchRequest(groups=asked), 8).groups)

        wait_until(all_served, f"all groups to be served, seed {SEED}", poll_s=0.02)
        found = fetched(client, groups)
    sent = {key: offset for committer in committers for key, offset in committer.sent.items()}
    lost = {key: (found.get(key), offset) for key, offset in acknowledged.items() if found.get(key, -1) < offset}
    assert lost == {}, f"seed {SEED}: acknowledged and not there any more"
    assert all(offset <= sent[key] for key, offset in found.items()), f"seed {SEED}: never sent"


@pytest.mark.timeout(3000 if SOAK else 600)
def test_no_acknowledged_commit_is_lost_and_none_goes_back(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    broker = BrokerProcess(tmp_path / "data", overrides=OVERRIDES)
    kills = 0
    with broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic(TOPIC, PARTITIONS, 1)
        committers = [Committer(broker.bootstrap, number) for number in range(COMMITTERS)]
        groups = sorted({key[0] for committer in committers for key in committer.keys})
        readers = [Reader(broker.bootstrap, number, groups) for number in range(2)]
        peers: list[Peer] = [*committers, *readers]
        for peer in peers:
            peer.start()

        def failures() -> list[list[BaseException]]:
            return [peer.failures for peer in peers if peer.failures]

        def commits() -> int:
            return sum(committer.count for committer in committers)

        while commits() < COMMITS:
            kill_at = commits() + chance.randrange(COMMITS // 10)
            while (count := commits()) < kill_at:
                wait_until(
                    lambda count=count: failures() or commits() > count,  # type: ignore[misc]
                    lambda: f"another commit, seed {SEED}\n{broker.tail()}",
                    poll_s=0.005,
                )
                assert failures() == [], f"seed {SEED}"
            time.sleep(chance.random() / 20)
            # What is acknowledged before the kill begins must be there after it.
            acknowledged = {key: offset for committer in committers for key, offset in committer.acknowledged.items()}
            broker.kill()
            kills += 1
            broker.start()
            check_all_there(broker.bootstrap, committers, acknowledged)
        for peer in peers:
            peer.stop()
        assert failures() == [], f"seed {SEED}"
        final = {key: offset for committer in committers for key, offset in committer.acknowledged.items()}
        check_all_there(broker.bootstrap, committers, final)
        written = sum(offset + 1 for committer in committers for offset in committer.sent.values())

        def size_bytes() -> int:
            found = 0
            for path in (tmp_path / "data").glob("__consumer_offsets-*/*.log"):
                with contextlib.suppress(FileNotFoundError):  # compaction is at work
                    found += path.stat().st_size
            return found

        # Each takes more than 80 bytes; compaction leaves only the last of each key, and what came lately.
        wait_until(lambda: size_bytes() < written * 80 / 2, lambda: f"compaction; logs of {size_bytes()} bytes")
        assert broker.stop() == 0
    reads = sum(one.turns for one in readers)
    print(f"{written} commits sent, {kills} kills, {reads} reads; logs of {size_bytes()} bytes at last")
    assert kills > 3

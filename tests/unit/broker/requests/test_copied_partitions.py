"""What a follower copies does not hold up the partitions of the same session for which commits wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.wire import packed
from tests.lab.partition_states import partition_state
from tests.unit.broker.replication.test_partition import Harness
from tests.unit.broker.requests.test_fetching import FOLLOWER, ME, TOPIC_ID, Bed, Connection, follower, going_on
from tests.unit.broker.requests.test_throttled_followers import counts

# Batches of one record have some 70 bytes: two of them fit into half of this.
MAX_BYTES = 320


@pytest.fixture
def harness() -> Iterator[Harness]:
    loop = asyncio.new_event_loop()
    yield Harness(loop)
    loop.close()


class CopyingBed(Bed):
    """Three partitions. A follower has joined the ISR of the last one, and copies the others: it is not near their ends
    when it first fetches, and so is not about to join either."""

    def __init__(self, harness: Harness) -> None:
        super().__init__(harness)
        self.copied = [self.lead(number) for number in (0, 1)]
        self.in_sync = self.lead(2, isr=(ME, FOLLOWER))
        self.connection = Connection(self, FOLLOWER)
        self.ends = dict.fromkeys(range(3), 0)
        self.last: packed.FetchResponse | None = None
        self.epoch = 0
        for partition in self.copied:
            self.append(partition, 20)
        self.fetch()

    def append(self, partition: Partition, batches: int) -> None:
        for _ in range(batches):
            self.harness.append(partition, 1)

    def fetch(self) -> dict[int, int]:
        """Return how many records the next fetch brings of each partition."""
        asked = [packed.FetchPartition(number, end, 1 << 20, 4, 4 if end else -1) for number, end in self.ends.items()]
        request = follower(packed.FetchRequest([(TOPIC_ID, asked)], 0, max_bytes=MAX_BYTES, session_epoch=0))
        if self.last is not None:
            request = going_on(request, self.last, self.epoch, topics=[(TOPIC_ID, asked)])
        self.last = self.connection.fetch(request)
        self.epoch += 1
        found = counts(self.last)
        for number, count in found.items():
            self.ends[number] += count
        return {number: count for number, count in found.items() if count}


def test_commits_wait_for_little_of_what_is_copied(harness: Harness) -> None:
    bed = CopyingBed(harness)
    for _ in range(3):
        # It is the last one that has news, and comes with the next answer whole.
        bed.append(bed.in_sync, 2)
        found = bed.fetch()
        assert found.pop(2) == 2
        assert sum(found.values()) == 2
    # The copied ones have taken turns.
    assert all(bed.ends[number] > 0 for number in (0, 1))


def test_what_is_copied_has_its_share_however_much_is_committed(harness: Harness) -> None:
    bed = CopyingBed(harness)
    bed.append(bed.in_sync, 20)
    for _ in range(4):
        found = bed.fetch()
        assert found.pop(2) == 2
        assert sum(found.values()) == 2


def test_a_batch_that_is_larger_than_the_share_is_copied(harness: Harness) -> None:
    bed = CopyingBed(harness)
    harness.append(bed.copied[0], 50)
    bed.append(bed.in_sync, 100)
    while bed.ends[0] < 20:
        bed.fetch()
    while bed.ends[1] < 20:
        assert bed.fetch()[2] > 0
    assert bed.ends[0] == 70


def test_a_follower_that_copies_everything_is_not_limited(harness: Harness) -> None:
    bed = CopyingBed(harness)
    bed.append(bed.in_sync, 4)
    bed.in_sync.become_leader(partition_state(ME, epoch=4, version=2))
    # Its leader has forgotten what it said, so it has to begin another session.
    bed.last, bed.epoch = None, 0
    assert sum(bed.fetch().values()) == 4

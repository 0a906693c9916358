"""Two stores at once: dual commits, over stores that are dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.offset_stores.store import DualOffsets
from spark_kafkalite.errors import CoordinatorNotAvailable, KafkaliteError
from spark_kafkalite.model import CommittedOffset, TopicPartition
from spark_kafkalite.testing.manual_clock import ManualClock

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


class Memory:
    """A store of offsets that may be told to fail; ``takes_ms`` passes with each call."""

    def __init__(self, clock: ManualClock | None = None, takes_ms: float = 0, **offsets: int) -> None:
        self.offsets = {ONE: offsets["one"]} if "one" in offsets else {}
        self.offsets |= {TWO: offsets["two"]} if "two" in offsets else {}
        self.failure: KafkaliteError | None = None
        self.left_s: list[float] = []
        self._clock, self._takes_ms = clock, takes_ms

    def read(
        self, partitions: Iterable[TopicPartition] | None = None, deadline: Deadline | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        self._pass(deadline)
        wanted = self.offsets if partitions is None else partitions
        return {each: CommittedOffset(self.offsets[each]) for each in wanted if each in self.offsets}

    def write(self, offsets: Mapping[TopicPartition, CommittedOffset], deadline: Deadline | None = None) -> None:
        self._pass(deadline)
        self.offsets.update({each: committed.offset for each, committed in offsets.items()})

    def close(self) -> None:
        self.offsets = {}

    def _pass(self, deadline: Deadline | None) -> None:
        if deadline is not None:
            self.left_s.append(deadline.left_s())
        if self._clock is not None:
            self._clock.advance(s=self._takes_ms / 1000)
        if self.failure is not None:
            raise self.failure


def offsets_in(store: DualOffsets, *partitions: TopicPartition) -> dict[TopicPartition, int]:
    return {each: committed.offset for each, committed in store.read(partitions or None).items()}


def committed(**offsets: int) -> dict[TopicPartition, CommittedOffset]:
    return {{"one": ONE, "two": TWO}[name]: CommittedOffset(offset) for name, offset in offsets.items()}


def test_dual_commits_write_both_and_reading_takes_the_larger() -> None:
    primary, secondary = Memory(one=5, two=9), Memory(one=6)
    both = DualOffsets(primary, secondary)
    assert offsets_in(both) == offsets_in(both, TWO, ONE) == {ONE: 6, TWO: 9}
    both.write(committed(one=8, two=10))
    assert primary.offsets == secondary.offsets == {ONE: 8, TWO: 10}
    both.write(committed(one=3))  # a rewind: written to one only, the other would undo it
    assert offsets_in(both, ONE) == {ONE: 3}


@pytest.mark.parametrize("failing", [0, 1])
def test_a_dual_commit_fails_when_either_store_does_and_tries_both(failing: int) -> None:
    stores = Memory(), Memory()
    stores[failing].failure = CoordinatorNotAvailable("gone")
    both = DualOffsets(*stores)
    with pytest.raises(CoordinatorNotAvailable, match="gone") as caught:
        both.write(committed(one=4))
    assert len(caught.value.__notes__) == 1
    assert stores[1 - failing].offsets == {ONE: 4}
    with pytest.raises(CoordinatorNotAvailable):
        both.read([ONE])


def test_a_store_that_uses_up_its_time_leaves_the_other_as_much() -> None:
    clock = ManualClock()
    stores = Memory(clock, takes_ms=5_000), Memory(clock)
    stores[0].failure = CoordinatorNotAvailable("gone")
    with pytest.raises(CoordinatorNotAvailable):
        DualOffsets(*stores).write(committed(one=4), Deadline.after_ms(5_000, clock))
    assert [each.left_s for each in stores] == [[5.0], [5.0]]
    assert stores[1].offsets == {ONE: 4}

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest

from spark_kafkalite.client.offset_stores import DualOffsets, RegistryOffsets
from spark_kafkalite.client.registry_link import RegistryLink
from spark_kafkalite.errors import CoordinatorNotAvailable, KafkaliteError
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry.embedded import EmbeddedRegistry
from spark_kafkalite.registry.store import ConnectionLoss, SessionExpired, Store
from spark_kafkalite.registry.znodes import MalformedNode
from tests.unit.client.recording_store import RecordingStore

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
# Stores in memory have no sessions.
SESSION = cast(Store, None)


class Memory:
    """A store of offsets that may be told to fail."""

    def __init__(self, **offsets: int) -> None:
        self.offsets = {ONE: offsets["one"]} if "one" in offsets else {}
        self.offsets |= {TWO: offsets["two"]} if "two" in offsets else {}
        self.failure: KafkaliteError | None = None

    def fetch(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        if self.failure is not None:
            raise self.failure
        return {each: self.offsets[each] for each in partitions if each in self.offsets}

    def commit(self, offsets: Mapping[TopicPartition, int], session: Store) -> None:
        if self.failure is not None:
            raise self.failure
        self.offsets.update(offsets)


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[RecordingStore]:
    with EmbeddedRegistry(tmp_path) as registry:
        yield RecordingStore(registry.connect())


@pytest.fixture
def store(recording: RecordingStore) -> Store:
    return cast(Store, recording)


@pytest.fixture
def registry_offsets(store: Store) -> RegistryOffsets:
    link = RegistryLink()
    link.replace(store)
    return RegistryOffsets(link, "g", 5_000)


def test_the_registry_keeps_offsets_as_text_in_persistent_nodes(
    store: Store, registry_offsets: RegistryOffsets
) -> None:
    assert registry_offsets.fetch([ONE, TWO]) == {}
    registry_offsets.commit({ONE: 5}, store)
    registry_offsets.commit({ONE: 7, TWO: 0}, store)
    assert registry_offsets.fetch([ONE, TWO]) == {ONE: 7, TWO: 0}
    data, stat = store.get("/consumers/g/offsets/t/0").result(5)
    assert (data, stat.ephemeral_owner, stat.version) == (b"7", 0, 1)
    registry_offsets.commit({ONE: 2}, store)  # what a rewind does
    assert registry_offsets.fetch([ONE]) == {ONE: 2}


def test_an_offset_that_is_no_number_is_not_guessed_at(store: Store, registry_offsets: RegistryOffsets) -> None:
    store.create("/consumers/g/offsets/t/1", b"many", make_parents=True).result(5)
    with pytest.raises(MalformedNode, match="/consumers/g/offsets/t/1"):
        registry_offsets.fetch([ONE, TWO])


def test_a_lost_answer_is_an_error_and_not_a_success(
    recording: RecordingStore, store: Store, registry_offsets: RegistryOffsets
) -> None:
    registry_offsets.commit({ONE: 1}, store)
    recording.lost = lambda method, path: method == "set"
    with pytest.raises(ConnectionLoss):
        registry_offsets.commit({ONE: 2}, store)


@pytest.mark.parametrize("exists", [False, True])
def test_a_session_that_is_over_commits_nothing_even_when_there_is_a_new_one(tmp_path: Path, exists: bool) -> None:
    with EmbeddedRegistry(tmp_path) as registry:
        former, present = registry.connect(), registry.connect()
        link = RegistryLink()
        link.replace(present)
        offsets = RegistryOffsets(link, "g", 5_000)
        if exists:
            offsets.commit({ONE: 7}, present)
        former.close()
        with pytest.raises(SessionExpired):
            offsets.commit({ONE: 1}, former)
        assert offsets.fetch([ONE]) == ({ONE: 7} if exists else {})


def test_dual_commits_write_both_and_reading_takes_the_larger() -> None:
    primary, secondary = Memory(one=5, two=9), Memory(one=6)
    both = DualOffsets(primary, secondary)
    assert both.fetch([ONE, TWO]) == {ONE: 6, TWO: 9}
    both.commit({ONE: 8, TWO: 10}, SESSION)
    assert primary.offsets == secondary.offsets == {ONE: 8, TWO: 10}
    both.commit({ONE: 3}, SESSION)  # a rewind: written to one only, the other would undo it
    assert both.fetch([ONE]) == {ONE: 3}


@pytest.mark.parametrize("failing", [0, 1])
def test_a_dual_commit_fails_when_either_store_does_and_tries_both(failing: int) -> None:
    stores = Memory(), Memory()
    stores[failing].failure = CoordinatorNotAvailable("gone")
    both = DualOffsets(*stores)
    with pytest.raises(CoordinatorNotAvailable, match="gone"):
        both.commit({ONE: 4}, SESSION)
    assert stores[1 - failing].offsets == {ONE: 4}
    with pytest.raises(CoordinatorNotAvailable):
        both.fetch([ONE])

"""What is committed and what is not, over a store that is a dictionary."""

import logging

import pytest

from spark_kafkalite.errors import CoordinatorNotAvailable
from spark_kafkalite.model import CommittedOffset, TopicPartition
from spark_kafkalite.spark.checkpoints import checkpoint_commits
from spark_kafkalite.spark.checkpoints.checkpoint_commits import OffsetRegistry
from spark_kafkalite.spark.checkpoints.stored_offset import StoredOffset

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
OLD, NEW = b"1" * 16, b"2" * 16


class DictionaryStore:
    """``down`` refuses everything; ``loses_answers`` stores, and then says that it did not."""

    def __init__(self) -> None:
        self.stored: dict[TopicPartition, StoredOffset] = {}
        self.written: list[dict[TopicPartition, int]] = []
        self.reads = 0
        self.timeouts_s: list[float] = []
        self.down = False
        self.loses_answers = False

    def __str__(self) -> str:
        return "group 'g'"

    def read(self, partitions, deadline):
        self.reads += 1
        self.timeouts_s.append(round(deadline.left_s()))
        if self.down:
            raise CoordinatorNotAvailable("the coordinator is away")
        return {tp: self.stored[tp].committed() for tp in partitions if tp in self.stored}

    def write(self, offsets, deadline):
        self.stored.update({tp: StoredOffset.of(each) for tp, each in offsets.items()})
        self.written.append({tp: each.offset for tp, each in offsets.items()})
        if self.loses_answers:
            raise CoordinatorNotAvailable("the answer was lost")

    def offsets(self):
        return {tp: each.offset for tp, each in self.stored.items()}

    def close(self) -> None:
        pass


class Time:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def store():
    return DictionaryStore()


@pytest.fixture
def time_s():
    return Time()


@pytest.fixture
def registry(store, time_s):
    return OffsetRegistry([store], time_s)


@pytest.fixture(autouse=True)
def all_warnings(caplog):
    caplog.set_level(logging.WARNING)


def test_only_what_moved_is_committed(registry, store):
    registry.follow({T0: 5, T1: 3}, {"t": OLD})
    registry.follow({T0: 7, T1: 3}, {"t": OLD})
    reads = store.reads
    registry.follow({T0: 7, T1: 3}, {"t": OLD})
    assert store.reads == reads
    assert store.written == [{T0: 5, T1: 3}, {T0: 7}]
    assert store.stored[T0].topic_id == OLD


def test_commits_never_go_back(registry, store, caplog):
    store.stored = {T0: StoredOffset(50, OLD), T1: StoredOffset(3)}
    registry.follow({T0: 9, T1: 4}, {"t": OLD})
    assert store.offsets() == {T0: 50, T1: 4}
    assert "is ahead of this query and is not taken back: t-0 is at 50, done is 9" in caplog.text
    registry.follow({T0: 51, T1: 4}, {"t": OLD})
    assert store.offsets() == {T0: 51, T1: 4}


def test_a_topic_made_again_begins_anew(registry, store, caplog):
    store.stored = {T0: StoredOffset(50, OLD)}
    registry.follow({T0: 2}, {"t": NEW})
    assert store.stored[T0][:2] == (2, NEW)
    assert not caplog.text


def test_without_an_id_lower_is_back(registry, store):
    store.stored = {T0: StoredOffset(50, OLD), T1: StoredOffset(50)}
    registry.follow({T0: 2, T1: 2}, {})
    registry.follow({T1: 3}, {"t": NEW})
    assert store.offsets() == {T0: 50, T1: 50}


def test_a_rewind_that_was_asked_for_goes_back_once(registry, store, caplog):
    store.stored = {T0: StoredOffset(50, OLD), T1: StoredOffset(3, OLD)}
    registry.rewind({T0: 10, T1: 10}, {"t": OLD})
    # Where nothing is to be taken back, nothing is done yet and so nothing is committed.
    assert store.offsets() == {T0: 10, T1: 3}
    assert "goes back to the start that this new query's options set: t-0 from 50 to 10" in caplog.text
    store.stored[T0] = StoredOffset(60, OLD)
    registry.follow({T0: 20, T1: 20}, {"t": OLD})
    assert store.offsets() == {T0: 60, T1: 20}


def test_a_rewind_that_failed_is_made_good_by_the_first_commit(registry, store):
    store.stored = {T0: StoredOffset(50, OLD)}
    store.down = True
    registry.rewind({T0: 10}, {"t": OLD})
    store.down = False
    registry.follow({T0: 20}, {"t": OLD})
    assert store.offsets() == {T0: 20}


def test_a_failed_commit_warns_with_the_reason_and_is_repeated_with_the_next_batch(registry, store, time_s, caplog):
    store.down = True
    registry.follow({T0: 5}, {"t": OLD})
    assert "cannot commit offsets to group 'g': the coordinator is away" in caplog.text
    caplog.clear()
    # Idle: not at once again. With the next batch: again, but without holding it up for long, and without a warning.
    registry.follow({T0: 5}, {"t": OLD})
    assert store.reads == 1
    registry.follow({T0: 6}, {"t": OLD})
    assert store.timeouts_s == [5, 1]
    assert not caplog.text
    store.down = False
    registry.follow({T0: 7}, {"t": OLD})
    assert store.offsets() == {T0: 7}
    assert "offsets are committed to group 'g' again" in caplog.text


def test_a_failed_commit_is_repeated_while_idle_and_at_the_end(registry, store, time_s):
    store.down = True
    registry.follow({T0: 5}, {})
    time_s.now_s += checkpoint_commits._RETRY_S
    registry.follow({T0: 5}, {})
    assert store.reads == 2
    store.down = False
    registry.follow({T0: 5}, {}, last=True)
    assert store.offsets() == {T0: 5}
    # The last chance is worth the full time.
    assert store.timeouts_s[-1] == 5


def test_somebody_else_on_the_same_partition_warns(registry, store, caplog):
    # What was there before is the last run's.
    store.stored = {T0: StoredOffset(3, OLD, "another")}
    registry.follow({T0: 5}, {"t": OLD})
    assert not caplog.text
    store.stored = {T0: StoredOffset(4, OLD, "spark-kafkalite other-host:17")}
    registry.follow({T0: 6}, {"t": OLD})
    assert "another process commits there: t-0 at 4 by spark-kafkalite other-host:17" in caplog.text
    assert "give each a groupId of its own" in caplog.text
    assert store.offsets() == {T0: 6}


def test_two_registries_on_one_store_warn_of_each_other(store, time_s, caplog, monkeypatch):
    one = OffsetRegistry([store], time_s)
    monkeypatch.setattr(checkpoint_commits.os, "getpid", lambda: 2)
    two = OffsetRegistry([store], time_s)
    one.follow({T0: 5}, {"t": OLD})
    two.follow({T0: 3}, {"t": OLD})
    assert "is ahead of this query" in caplog.text
    two.follow({T0: 8}, {"t": OLD})
    caplog.clear()
    one.follow({T0: 9}, {"t": OLD})
    assert "another process commits there" in caplog.text


def test_the_listener_leaves_alone_what_is_done(store, time_s, registry, caplog):
    listener = OffsetRegistry([store], time_s, for_listener=True)
    registry.follow({T0: 5}, {"t": OLD})
    # The query's next run is faster than the report of this one's end.
    listener.follow({T0: 4}, {"t": OLD}, last=True)
    assert store.written == [{T0: 5}]
    assert not caplog.text


def test_the_listener_is_not_somebody_else(store, time_s, registry, caplog):
    registry.follow({T0: 5}, {"t": OLD})
    OffsetRegistry([store], time_s, for_listener=True).follow({T0: 6}, {"t": OLD}, last=True)
    registry.follow({T0: 6}, {"t": OLD})
    assert store.offsets() == {T0: 6}
    assert not caplog.text


def test_numbers_alone_tell_as_much(registry, store, caplog):
    # As in ZooKeeper: no id, no writer.
    registry.follow({T0: 5}, {})
    store.stored[T0] = StoredOffset(5)
    registry.follow({T0: 6}, {})
    store.stored[T0] = StoredOffset(6)
    assert not caplog.text
    store.stored[T0] = StoredOffset(2)
    registry.follow({T0: 7}, {})
    assert "another process commits there: t-0 at 2." in caplog.text


def test_an_answer_that_was_lost_is_not_somebody_else(registry, store, caplog):
    registry.follow({T0: 5}, {})
    store.loses_answers = True
    registry.follow({T0: 6}, {})
    store.stored[T0] = StoredOffset(6)
    store.loses_answers = False
    registry.follow({T0: 7}, {})
    assert "another process" not in caplog.text
    assert store.offsets() == {T0: 7}


def test_idle_partitions_are_committed_again_before_they_expire(registry, store, time_s):
    registry.follow({T0: 5}, {})
    time_s.now_s += 3601
    registry.follow({T0: 5}, {})
    registry.follow({T0: 5}, {})
    assert store.written == [{T0: 5}, {T0: 5}]


def test_ids_are_remembered_where_they_are_known(store):
    store.stored = {T0: StoredOffset(3, OLD), TopicPartition("u", 0): StoredOffset(3)}
    down = DictionaryStore()
    down.down = True
    partitions = [*store.stored, T1, TopicPartition("v", 0)]
    assert OffsetRegistry([store]).remembered(partitions) == ({"t": OLD}, {"v"})
    # Who could not be asked may know more.
    assert OffsetRegistry([store, down]).remembered(partitions) == ({"t": OLD}, frozenset())


def test_the_text_of_a_commit_and_that_of_others():
    ours = StoredOffset(5, bytes(range(16)), "spark-kafkalite h:1")
    text = '{"topic_id":"AAECAwQFBgcICQoLDA0ODw","writer":"spark-kafkalite h:1"}'
    assert ours.committed() == CommittedOffset(5, text)
    for each in (ours, StoredOffset(5)):
        assert StoredOffset.of(each.committed()) == each
    for text in ("", "anything", "[]", "1", '{"topic_id":5}', '{"topic_id":"short"}', '{"topic_id":"é"}', '"' * 9):
        assert StoredOffset.of(CommittedOffset(5, text))[:2] == (5, None)

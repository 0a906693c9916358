"""Commits a stream's finished offsets where other programs see them, and starts from such offsets when asked.

A query itself uses only its checkpoint. The commits are for others: lag tools, and consumers or queries that take over.
So :meth:`OffsetRegistry.follow` never raises; a failed commit is a warning, and the next batch repeats it.

- A stored offset moves back only in two cases. The topic was deleted and created again (its id is in the commit), or a
  new query starts before its group's committed offsets (:meth:`OffsetRegistry.rewind`). When a topic is deleted, Apache
  Kafka deletes its committed offsets with their text.
- Each commit reads first. If another process wrote the stored offset, a warning follows: most often another query uses
  the same group on the same partitions by mistake.
- Offsets expire (``offsets.retention.minutes``, counted from the commit, as these groups have no members), so those of
  idle partitions are committed again every hour.

A query's source process owns one registry, and the listener makes one to commit a query's last batch. Not thread-safe.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.offset_stores.store import OffsetStore
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import CommittedOffset, TopicPartition
from spark_kafkalite.spark.checkpoints.stored_offset import StoredOffset, stores_of
from spark_kafkalite.spark.cluster_errors import refusal
from spark_kafkalite.spark.conditions import (
    CONNECTION_FAILED,
    INVALID_OPTION,
    LOSS_OFFSET_CHANGED,
    SparkConditionError,
    listed,
    option_error,
)
from spark_kafkalite.spark.options.options import ReaderOptions
from spark_kafkalite.spark.reading.cluster_offsets import Assigned, ClusterOffsets
from spark_kafkalite.spark.reading.data_loss import DataLoss, LossCause
from spark_kafkalite.spark.reading.offset_ranges import Offsets

_LOG = logging.getLogger("spark_kafkalite.spark")

# A commit holds up the next batch, so it may not take long, and less where the last one failed already.
COMMIT_TIMEOUT_MS: Final = 5_000
_FAILING_TIMEOUT_MS: Final = 1_000
# Without a next batch a failed commit is repeated this often.
_RETRY_S: Final = 10.0
_COMMIT_ALL_S: Final = 3_600.0
_WARN_AGAIN_S: Final = 60.0
# How the listener signs. It repeats what a source may have committed, or its next start may commit at the same time.
_LISTENER: Final = " (listener)"


class Remembered(NamedTuple):
    """What the commits hold of topics: their ids, and the topics without a stored offset."""

    topic_ids: Mapping[str, bytes]
    without_offsets: frozenset[str]


class OffsetRegistry:
    """The stores of one query's offsets."""

    def __init__(
        self, stores: Sequence[OffsetStore], now_s: Callable[[], float] = time.monotonic, *, for_listener: bool = False
    ) -> None:
        writer = f"spark-kafkalite {socket.gethostname()}:{os.getpid()}" + (_LISTENER if for_listener else "")
        self._followers = [_Follower(store, writer, now_s) for store in stores]

    def close(self) -> None:
        """Release the stores."""
        for follower in self._followers:
            follower.store.close()

    @classmethod
    def of(cls, options: ReaderOptions, *, for_listener: bool = False) -> OffsetRegistry | None:
        """Return the registry that the options ask for, None when nothing is committed. Nothing is connected yet."""
        return cls(stores_of(options), for_listener=for_listener) if options.commit.commits else None

    def follow(self, done: Offsets, topic_ids: Mapping[str, bytes], *, last: bool = False) -> None:
        """Commit offsets before which all records are done. ``last``: no later call repeats a failed commit."""
        for follower in self._followers:
            follower.follow(done, topic_ids, last=last)

    def rewind(self, start: Offsets, topic_ids: Mapping[str, bytes]) -> None:
        """Move stored offsets back to the start that a query's options set; those before it stay."""
        for follower in self._followers:
            follower.rewind(start, topic_ids)

    def remembered(self, partitions: Iterable[TopicPartition]) -> Remembered:
        """Return what the stores know of the topics since offsets of these partitions were committed."""
        partitions = list(partitions)
        topic_ids: dict[str, bytes] = {}
        without = {tp.topic for tp in partitions}
        for follower in self._followers:
            try:
                found = follower.read(partitions, Deadline.after_ms(COMMIT_TIMEOUT_MS))
            except (KafkaliteError, OSError) as error:
                _LOG.warning(
                    "cannot read the offsets of %s: %s; whether a topic was deleted and created again while the query "
                    "did not run is seen only by offsets that went back",
                    follower.store,
                    error,
                )
                return Remembered(topic_ids, frozenset())
            topic_ids.update({tp.topic: each.topic_id for tp, each in found.items() if each.topic_id is not None})
            without -= {tp.topic for tp in found}
        return Remembered(topic_ids, frozenset(without))


class _Follower:
    """One store, and what this process has read from it and written to it."""

    def __init__(self, store: OffsetStore, writer: str, now_s: Callable[[], float]) -> None:
        self.store = store
        self._writer = writer
        self._now_s = now_s
        # As last seen in the store, and as last dealt with: committed, or held back.
        self._seen: dict[TopicPartition, StoredOffset | None] = {}
        self._dealt_with: dict[TopicPartition, StoredOffset] = {}
        self._may_go_back: set[TopicPartition] = set()
        self._failed: dict[TopicPartition, StoredOffset] | None = None
        self._retry_at_s = 0.0
        self._commit_all_at_s = now_s() + _COMMIT_ALL_S
        self._warned_at_s: dict[str, float] = {}

    def read(self, partitions: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, StoredOffset]:
        return _stored(self.store.read(partitions, deadline))

    def write(self, offsets: Mapping[TopicPartition, StoredOffset], deadline: Deadline) -> None:
        self.store.write({tp: each.committed() for tp, each in offsets.items()}, deadline)

    def rewind(self, start: Offsets, topic_ids: Mapping[str, bytes]) -> None:
        self._may_go_back.update(start)
        wanted = self._wanted(start, topic_ids)
        deadline = Deadline.after_ms(COMMIT_TIMEOUT_MS)
        try:
            stored = self.read(wanted, deadline)
            back = {tp: each for tp, each in wanted.items() if tp in stored and stored[tp].offset > each.offset}
            self._seen.update({tp: stored.get(tp) for tp in wanted})
            if back:
                self.write(back, deadline)
        except (KafkaliteError, OSError) as error:
            self._failed = {}
            self._warn_of_failure(error)
            return
        self._may_go_back.difference_update(wanted)
        self._seen.update(back)
        if back:
            moves = [f"{tp} from {stored[tp].offset} to {each.offset}" for tp, each in back.items()]
            _LOG.warning("%s goes back to the start that this new query's options set: %s", self.store, listed(moves))

    def follow(self, done: Offsets, topic_ids: Mapping[str, bytes], *, last: bool) -> None:
        wanted = self._wanted(done, topic_ids)
        now_s = self._now_s()
        everything = now_s >= self._commit_all_at_s
        due = {tp: each for tp, each in wanted.items() if everything or self._dealt_with.get(tp) != each}
        if not due or (due == self._failed and now_s < self._retry_at_s and not last):
            return
        failing = self._failed is not None and not last
        deadline = Deadline.after_ms(_FAILING_TIMEOUT_MS if failing else COMMIT_TIMEOUT_MS)
        allowed: dict[TopicPartition, StoredOffset] = {}
        try:
            stored = self.read(due, deadline)
            allowed = self._allowed(due, stored)
            if allowed:
                self.write(allowed, deadline)
        except (KafkaliteError, OSError) as error:
            # Some may be stored all the same; the next attempt must not take them for another process's.
            self._seen = {tp: each for tp, each in self._seen.items() if tp not in allowed}
            self._failed, self._retry_at_s = due, self._now_s() + _RETRY_S
            self._warn_of_failure(error)
            return
        if self._failed is not None:
            _LOG.warning("offsets are committed to %s again", self.store)
            self._failed = None
            self._warned_at_s.pop("failure", None)
        if everything:
            self._commit_all_at_s = now_s + _COMMIT_ALL_S
        self._seen.update(allowed)
        self._may_go_back.difference_update(allowed)
        self._dealt_with.update(due)

    def _wanted(self, offsets: Offsets, topic_ids: Mapping[str, bytes]) -> dict[TopicPartition, StoredOffset]:
        return {tp: StoredOffset(offset, topic_ids.get(tp.topic), self._writer) for tp, offset in offsets.items()}

    def _allowed(
        self, due: Mapping[TopicPartition, StoredOffset], stored: Mapping[TopicPartition, StoredOffset]
    ) -> dict[TopicPartition, StoredOffset]:
        """Return the offsets that may replace stored ones; warn of the others, and of another process's offsets."""
        allowed: dict[TopicPartition, StoredOffset] = {}
        ahead: list[str] = []
        others: list[str] = []
        for tp, ours in due.items():
            before = stored.get(tp)
            if before is not None and tp in self._seen and self._is_anothers(before, self._seen[tp], ours):
                others.append(f"{tp} at {before.offset}" + (f" by {before.writer}" if before.writer else ""))
            self._seen[tp] = before
            if self._is_done_by(before, ours):
                continue
            goes_back = before is not None and before.offset > ours.offset
            if (
                before is not None
                and goes_back
                and not before.is_of_another_topic(ours.topic_id)
                and tp not in self._may_go_back
            ):
                ahead.append(f"{tp} is at {before.offset}, done is {ours.offset}")
            else:
                allowed[tp] = ours
        if others:
            self._warn(
                "others",
                "%s: another process commits there: %s. Two queries, or a query and a consumer, on one group and "
                "partition overwrite each other's offsets; give each a groupId of its own",
                self.store,
                listed(others),
            )
        if ahead:
            self._warn(
                "ahead",
                "%s is ahead of this query and is not taken back: %s. It is committed again from there on; to take it "
                "back, reset the group's offsets by hand",
                self.store,
                listed(ahead),
            )
        return allowed

    def _is_done_by(self, before: StoredOffset | None, ours: StoredOffset) -> bool:
        """Whether this is the listener, and the source or the query's next run has already committed its offsets."""
        return (
            self._writer.endswith(_LISTENER)
            and before is not None
            and before.offset >= ours.offset
            and not before.is_of_another_topic(ours.topic_id)
        )

    @staticmethod
    def _is_anothers(before: StoredOffset, seen: StoredOffset | None, ours: StoredOffset) -> bool:
        """Whether another process wrote the stored offset; this process last saw or wrote ``seen``."""
        if before.writer and not before.writer.endswith(_LISTENER):
            return before.writer != ours.writer and before != seen
        return before.offset not in (ours.offset, -1 if seen is None else seen.offset)

    def _warn_of_failure(self, error: Exception) -> None:
        self._warn(
            "failure",
            "cannot commit offsets to %s: %s; the query continues, its checkpoint holds them, and they are committed "
            "again with the next batch",
            self.store,
            error,
        )

    def _warn(self, kind: str, text: str, *arguments: object) -> None:
        """Warn, but of one kind only so often: batches may come many times a second."""
        now_s = self._now_s()
        if now_s - self._warned_at_s.get(kind, -_WARN_AGAIN_S) >= _WARN_AGAIN_S:
            self._warned_at_s[kind] = now_s
            _LOG.warning(text, *arguments)


def _stored(found: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, StoredOffset]:
    return {tp: StoredOffset.of(each) for tp, each in found.items()}


# Starting from committed offsets ------------------------------------------------------------------------------------


def committed_start(options: ReaderOptions, lookup: ClusterOffsets, assigned: Assigned) -> Offsets:
    """Return where ``startingOffsets=committed`` starts these partitions: the larger offset, where two stores have one.

    Raises SparkConditionError when a store cannot be read, when ``committedFallback=fail`` and a partition has nothing,
    and when a topic was made again since and ``failOnDataLoss`` is true; else such a topic starts at its first offset.
    """
    commit = options.commit
    found: Offsets = {}
    made_again: set[TopicPartition] = set()
    stores = stores_of(options)
    for store in stores:
        explain = partial(_cannot_read, options, store)
        read = partial(store.read, assigned.partitions)
        try:
            stored = lookup.patiently(f"the offsets of {store}", read, explain=explain)
        finally:
            store.close()
        for tp, each in _stored(stored).items():
            if each.is_of_another_topic(known_id(assigned.topic_ids, tp.topic)):
                made_again.add(tp)
            found[tp] = max(each.offset, found.get(tp, 0))
    if made_again:
        names = listed([f"{tp} (committed {found[tp]})" for tp in sorted(made_again)])
        loss = DataLoss(
            LOSS_OFFSET_CHANGED,
            LossCause.RECREATED,
            f"topics were deleted and created again since offsets were committed: {names}",
        )
        options.losses.meet(loss, ", with the new topics from their first offset")
        found.update(lookup.earliest(made_again))
    missing = [tp for tp in assigned.partitions if tp not in found]
    if missing and commit.fallback == "fail":
        raise option_error(
            INVALID_OPTION,
            "startingOffsets",
            "committed",
            f"{' and '.join(map(str, stores))} has no offset of {listed([str(tp) for tp in missing])}; commit one, or "
            "set committedFallback=earliest or committedFallback=latest for such partitions",
        )
    found = lookup.starting_in_log(found, "startingOffsets", "committed")
    found.update(lookup.earliest(missing) if commit.fallback == "earliest" else lookup.latest(missing))
    return found


def known_id(topic_ids: Mapping[str, bytes], topic: str) -> bytes | None:
    """Return a topic's id, None if the brokers have none (zero bytes)."""
    topic_id = topic_ids.get(topic)
    return topic_id if topic_id is not None and any(topic_id) else None


def _cannot_read(options: ReaderOptions, store: OffsetStore, error: KafkaliteError) -> SparkConditionError:
    refused = refusal(error, options.client, f"groupId={options.commit.group_id}")
    return refused or option_error(
        CONNECTION_FAILED, "groupId", options.commit.group_id, f"cannot read the offsets of {store}: {error}; fix that"
    )

"""The broker's side of one internal topic: creates it, appends to it and reads it.

The modules in ``coordinator/`` use neither logs nor brokers. They call an :class:`InternalTopicHost`:

- ``append_committed`` appends a batch under the leader epoch of the caller's loaded state, as a Produce with
  ``acks=all`` does. It completes when the high watermark has passed the batch and, if the topic asks for that, the log
  is flushed. A partition with another leader epoch refuses the batch.
- ``read_replicated`` yields the batches from the log's start to its end at the time of the call. Before that it waits
  until the high watermark has passed that end, because the cluster may lose records that are not committed. Threads
  read the log in pieces, so that loading a large log does not stall the broker.

The controller creates the topic like any other, on the first request for a coordinator. What this broker coordinates of
it is ``broker.coordinators``'.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from spark_kafkalite.broker.replication.bounds import ACKS_ALL
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.requests.topics import TopicAdmin
from spark_kafkalite.broker.waiting.page_cache import look_up
from spark_kafkalite.broker.waiting.purgatory import DelayedOperation
from spark_kafkalite.coordinator.internal_topic import InternalTopic
from spark_kafkalite.errors import (
    CoordinatorNotAvailable,
    CorruptMessage,
    InvalidReplicationFactor,
    KafkaError,
    KafkaStorageError,
    TopicAlreadyExists,
)
from spark_kafkalite.log.loading.damage import DamageLines, without_place
from spark_kafkalite.log.partition_log import AppendResult
from spark_kafkalite.log.segments.segment import LogSlice
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.net.io_threads import IoThreads, Lane
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.records.kernel import scan_headers
from spark_kafkalite.records.layout import BatchHeader
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.controller.controller import TopicSpec
from spark_kafkalite.slices import Slices

logger = logging.getLogger(__name__)
# Every client repeats its request while the topic cannot be created.
_quiet = QuietLog(logger, burst=1, period_s=60.0)

# The size of one read of a log. It has at most a few thousand batches, whose headers are scanned in one call.
_PIECE_BYTES: Final = 256 * 1024
# How long a request for a coordinator waits for the topic. After that its client repeats the request.
_CREATE_TIMEOUT_S: Final = 10.0


class InternalTopicHost:
    """Creates, writes and reads one internal topic for its coordinator."""

    def __init__(
        self,
        topic: InternalTopic,
        slices: Slices,
        io: IoThreads,
        view: ClusterView,
        topics: TopicAdmin,
        replicas: Replicas,
    ) -> None:
        self.topic: Final = topic
        self._slices = slices
        self._io = io
        self._view = view
        self._topics = topics
        self._replicas = replicas
        self._creating: asyncio.Task[KafkaError | None] | None = None

    # The topic ------------------------------------------------------------------------------------------------------

    def partition_count(self) -> int:
        """Return the topic's number of partitions, 0 while the topic does not exist."""
        topic = self._view.state.topics.get(self.topic.name)
        return len(topic.partitions) if topic is not None else 0

    async def ensure(self) -> None:
        """Create the topic if it does not exist. Raises CoordinatorNotAvailable (15), which clients retry."""
        if self.partition_count():
            return
        if self._creating is None:
            self._creating = asyncio.get_running_loop().create_task(self._create())
        # The first request may be cancelled; others still wait for the topic.
        error = await asyncio.shield(self._creating)
        if error is not None:
            raise CoordinatorNotAvailable(f"{self.topic.name} cannot be created: {error}{self._remedy(error)}")

    async def _create(self) -> KafkaError | None:
        topic = self.topic
        new = TopicSpec(topic.name, topic.partition_count, topic.replication_factor, config=topic.config)
        try:
            outcome = (await self._topics.make([new], timeout_s=_CREATE_TIMEOUT_S))[topic.name]
        finally:
            self._creating = None
        if outcome is None or isinstance(outcome, TopicAlreadyExists):
            return None
        text = "%s, which %ss need, cannot be created: %s%s"
        _quiet.log(
            logging.WARNING, f"create {topic.name}", text, topic.name, topic.kind, outcome, self._remedy(outcome)
        )
        return outcome

    def _remedy(self, error: KafkaError) -> str:
        if not isinstance(error, InvalidReplicationFactor):
            return ""
        return f"; start more brokers, or set {self.topic.replication_setting} to what there are"

    # Writing and reading --------------------------------------------------------------------------------------------

    def append_committed(self, partition: int, batch: bytearray, leader_epoch: int) -> int | asyncio.Future[int]:
        """Append a batch; return its base offset, or a future with it where the batch has yet to be committed.

        Raises the errors of a Produce, and so does the future: NotLeaderOrFollower (6), FencedLeaderEpoch (74) or
        UnknownLeaderEpoch (75) under another epoch, NotEnoughReplicas (19), MessageTooLarge (10), RecordListTooLarge
        (18), KafkaStorageError (56).
        """
        hosted = self._hosted(partition)
        appended = hosted.append_own(memoryview(batch), leader_epoch)
        if appended.last_offset < hosted.acknowledged_end_offset(ACKS_ALL):
            return appended.base_offset
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        _Appended(hosted, leader_epoch, appended, done)
        return done

    async def read_replicated(self, partition: int) -> AsyncIterator[tuple[BatchHeader, memoryview]]:
        """Yield the batches that the log contains at the call, after all of them are committed.

        Raises the errors of Partition.check_leader if this broker ceases to lead meanwhile. Raises CorruptMessage (2)
        with the position of damage and the command that repairs it, and KafkaStorageError (56) if the log cannot be
        read.
        """
        hosted = self._hosted(partition)
        hosted.check_leader()
        leader_epoch = hosted.leader_epoch
        missing = hosted.log.readiness.missing()
        if missing is not None:
            # Before the coordinator's first append, which does not wait. That meets what goes wrong.
            with contextlib.suppress(OSError, KafkaError):
                await self._io.run(missing.work, Lane.SYNC if missing.syncs else Lane.READ)
            hosted.check_leader(leader_epoch)
        until_offset = int(hosted.log.log_end_offset)
        if hosted.high_watermark < until_offset:
            committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            _LoadWait(hosted, leader_epoch, until_offset, committed)
            await committed
        offset = int(hosted.log_start_offset)
        while offset < until_offset:
            # A thread reads the parts of the disk that the look-up needs.
            find = partial(_find, hosted, leader_epoch, offset, until_offset)
            try:
                piece = await self._slices.run(look_up(self._io, asyncio.get_running_loop(), find))
                if piece is None:
                    return
                read = partial(_read_and_look, piece, offset, hosted.log.local.damage)
                data, headers = await self._io.run(read, Lane.READ)
            except OSError as error:
                await self._survey(hosted, offset, str(error))
                raise KafkaStorageError(f"cannot read {hosted.topic_partition}: {error.strerror or error}") from error
            except CorruptMessage as error:
                await self._survey(hosted, offset, str(error))
                # To skip the batch would silently lose its records.
                raise CorruptMessage(f"{error}; {_remedy(hosted)}") from error
            position = 0
            for header in headers:
                hosted.check_leader(leader_epoch)
                yield header, data[position : position + header.size_bytes]
                position += header.size_bytes
                offset = header.next_offset

    async def _survey(self, hosted: Partition, offset: int, reason: str) -> None:
        """Record the unreadable part of the log, if other brokers have its records."""
        local = hosted.log.local
        damage = local.known_damage
        if damage.is_kept:
            await self._io.run(partial(damage.survey, offset, local.log_end_offset, reason), Lane.READ)
            damage.tell()

    def _hosted(self, partition: int) -> Partition:
        return self._replicas.get(TopicPartition(self.topic.name, partition))

    def confirm(self, partition: int) -> asyncio.Future[bool]:
        """Ask whether this broker still leads a partition of the topic; see ``replication.leadership_confirmation``.

        Raises the errors of Partition.check_leader if this broker knows that it does not lead.
        """
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def answered(is_confirmed: bool) -> None:
            if not answer.done():
                answer.set_result(is_confirmed)

        question = self._hosted(partition).check_leader().confirm(answered)
        # The caller may have cancelled the future.
        answer.add_done_callback(lambda _: question.drop())
        return answer


def _find(hosted: Partition, leader_epoch: int, offset: int, until_offset: int) -> LogSlice | None:
    hosted.check_leader(leader_epoch)
    return hosted.log.read(offset, _PIECE_BYTES, until_offset)


def _read_and_look(piece: LogSlice, offset: int, damage: DamageLines) -> tuple[memoryview, list[BatchHeader]]:
    """Return the bytes of a piece, which begins with the batch that contains ``offset``, and its batches' headers.

    Raises CorruptMessage with the position for damage, which ``damage`` also logs.
    """
    data = memoryview(piece.read())
    position = 0
    try:
        headers = scan_headers(data)
        if not headers:
            raise CorruptMessage("its length goes beyond the log's end")
    except CorruptMessage as error:
        where = f"position {piece.position} of {piece.file.path}"
        raise CorruptMessage(
            f"a header at or behind offset {offset}, {where}, is damaged: {without_place(error)}"
        ) from error
    for header in headers:
        batch = data[position : position + header.size_bytes]
        at = piece.position + position
        if not damage.look(batch, header, piece.file.path, at):
            raise CorruptMessage(
                f"the batch at offset {header.base_offset}, position {at} of {piece.file.path}, is damaged"
            )
        position += header.size_bytes
    return data, headers


def _remedy(hosted: Partition) -> str:
    """Return the remedy for a partition whose log cannot be read, as text."""
    has_others = hosted.log.local.known_damage.is_kept
    return (
        f"{'another in-sync replica leads, and this one copies from it; if there is none, ' if has_others else ''}"
        "restore the file from a backup, or stop the broker and cut the log there: "
        f"kafkalite dump-log --repair {shlex.quote(str(hosted.log.directory))}"
    )


class _CommitWait(DelayedOperation):
    """Waits until a partition has committed something.

    It completes when :meth:`is_committed` is true, or when the leader epoch ends. It has no deadline.
    """

    __slots__ = ("_leader_epoch", "_partition")

    def __init__(self, partition: Partition, leader_epoch: int) -> None:
        super().__init__()
        self._partition = partition
        self._leader_epoch = leader_epoch
        partition.add_ack_waiter(self)

    def is_committed(self) -> bool:
        raise NotImplementedError

    def tell(self, error: KafkaError | None) -> None:
        """Complete the caller's future, with the error if there is one."""
        raise NotImplementedError

    def try_complete(self) -> bool:
        error: KafkaError | None = None
        try:
            self._partition.check_leader(self._leader_epoch)
            if not self.is_committed():
                return False
        except KafkaError as caught:
            error = caught
        if self.finish():
            self.tell(error)
        return True

    def expire(self) -> None:
        raise NotImplementedError("it has no deadline")

    def fail(self) -> None:
        self.tell(CoordinatorNotAvailable(f"waiting for {self._partition.topic_partition} failed"))

    def release(self) -> None:
        self._partition.remove_ack_waiter(self)


class _LoadWait(_CommitWait):
    """A load that waits until all records of the log are committed."""

    __slots__ = ("_done", "_until_offset")

    def __init__(self, partition: Partition, leader_epoch: int, until_offset: int, done: asyncio.Future[None]) -> None:
        super().__init__(partition, leader_epoch)
        self._until_offset = until_offset
        self._done = done

    def is_committed(self) -> bool:
        return self._partition.high_watermark >= self._until_offset

    def tell(self, error: KafkaError | None) -> None:
        if not self._done.done():
            self._done.set_result(None) if error is None else self._done.set_exception(error)


class _Appended(_CommitWait):
    """An append that is not committed yet."""

    __slots__ = ("_appended", "_done")

    def __init__(
        self, partition: Partition, leader_epoch: int, appended: AppendResult, done: asyncio.Future[int]
    ) -> None:
        super().__init__(partition, leader_epoch)
        self._appended = appended
        self._done = done

    def is_committed(self) -> bool:
        return self._appended.last_offset < self._partition.acknowledged_end_offset(ACKS_ALL)

    def tell(self, error: KafkaError | None) -> None:
        if not self._done.done():
            self._done.set_result(self._appended.base_offset) if error is None else self._done.set_exception(error)

"""``__consumer_offsets`` for the group coordinator: made when first needed, written, read, and who leads what of it.

``groups/`` knows neither logs nor brokers and gets the two functions of :class:`GroupLog`:

- ``append_committed`` appends under the leader epoch that the caller has loaded, as a produce with ``acks=all``, and is
  done when the high watermark (and the flush, where the topic asks for one) has passed the batch. A partition that is
  led under another epoch by then refuses it.
- ``read_committed_log`` gives what the log held when it was called, from its start on, and waits until the high
  watermark has passed that end: a coordinator that served what is not committed yet might take it back. Reading goes
  piece by piece in threads, so that loading the largest log stalls nobody.

The topic is made through the controller like any other, on the first request for a coordinator. Partitions tell when
they begin and cease to lead (:meth:`GroupLog.role_changed`); the shards are loaded and thrown away by that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from spark_kafkalite.broker.dynamic_config import DynamicConfig
from spark_kafkalite.broker.event_log import QuietLog
from spark_kafkalite.broker.io_threads import IoThreads, Lane
from spark_kafkalite.broker.page_cache import MOST_LOOK_UPS
from spark_kafkalite.broker.partition import Partition
from spark_kafkalite.broker.purgatory import DelayedOperation
from spark_kafkalite.broker.replicas import Replicas
from spark_kafkalite.broker.topics import Topics
from spark_kafkalite.errors import CoordinatorNotAvailable, KafkaError, RequestTimedOut, TopicAlreadyExists
from spark_kafkalite.groups.shard import Shards
from spark_kafkalite.log.damage import DamageLines
from spark_kafkalite.log.fs import NotInMemory, without_waiting
from spark_kafkalite.log.partition_log import AppendResult
from spark_kafkalite.log.segment import LogSlice
from spark_kafkalite.model import CONSUMER_OFFSETS_TOPIC, TopicPartition
from spark_kafkalite.records.kernel import scan_headers
from spark_kafkalite.records.layout import BatchHeader
from spark_kafkalite.registry.cluster_view import ClusterView
from spark_kafkalite.registry.controller import NewTopic

logger = logging.getLogger(__name__)
_quiet = QuietLog(logger)

_ACKS_ALL: Final = -1
# Of a log that is being read; a few thousand batches at most, whose headers are looked at in one go.
_PIECE_BYTES: Final = 256 * 1024
# How long a request for a coordinator waits for the topic; afterwards its client asks again.
_CREATE_TIMEOUT_S: Final = 10.0


class GroupLog:
    """See the module's text."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: DynamicConfig,
        io: IoThreads,
        view: ClusterView,
        topics: Topics,
        replicas: Replicas,
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._io = io
        self._view = view
        self._topics = topics
        self._replicas = replicas
        self._creating: asyncio.Task[KafkaError | None] | None = None

    # The topic ------------------------------------------------------------------------------------------------------

    def partition_count(self) -> int:
        """Return how many partitions the topic has, 0 while there is none."""
        topic = self._view.state.topics.get(CONSUMER_OFFSETS_TOPIC)
        return len(topic.partitions) if topic is not None else 0

    async def ensure_topic(self) -> None:
        """Make the topic unless there is one. Raises CoordinatorNotAvailable (15), after which clients ask again."""
        if self.partition_count():
            return
        if self._creating is None:
            self._creating = self._loop.create_task(self._create())
        # The first one to ask may go away; the others still want the topic.
        error = await asyncio.shield(self._creating)
        if error is not None:
            raise CoordinatorNotAvailable(f"{CONSUMER_OFFSETS_TOPIC} cannot be made: {error}")

    async def _create(self) -> KafkaError | None:
        config = self._settings.current
        topic = NewTopic(
            CONSUMER_OFFSETS_TOPIC,
            config["offsets.topic.num.partitions"],
            config["offsets.topic.replication.factor"],
            config={
                "cleanup.policy": "compact",
                # As they are written, which is uncompressed.
                "compression.type": "producer",
                "segment.bytes": str(config["offsets.topic.segment.bytes"]),
            },
        )
        try:
            outcome = (await self._topics.create([topic], timeout_s=_CREATE_TIMEOUT_S))[topic.name]
        finally:
            self._creating = None
        if not isinstance(outcome, KafkaError) or isinstance(outcome, TopicAlreadyExists):
            return None
        _quiet.log(logging.WARNING, "create", "%s, which groups need, cannot be made: %s", topic.name, outcome)
        return outcome

    # Writing and reading --------------------------------------------------------------------------------------------

    def append_committed(
        self, partition_number: int, batch: bytearray, expected_leader_epoch: int, timeout_s: float
    ) -> asyncio.Future[int]:
        """Append a batch; the future has its base offset when it is committed.

        It raises what a produce would be answered with: NotLeaderOrFollower (6), FencedLeaderEpoch (74) or
        UnknownLeaderEpoch (75) under another epoch, NotEnoughReplicas (19), MessageTooLarge (10), RecordListTooLarge
        (18), KafkaStorageError (56); RequestTimedOut (7) when the batch is in the log, and not committed in time.
        """
        done: asyncio.Future[int] = self._loop.create_future()
        try:
            partition = self._replicas.get(TopicPartition(CONSUMER_OFFSETS_TOPIC, partition_number))
            appended = partition.append_own(memoryview(batch), expected_leader_epoch)
        except KafkaError as error:
            done.set_exception(error)
            return done
        if appended.last_offset < partition.acknowledged_end_offset(_ACKS_ALL):
            done.set_result(appended.base_offset)
        else:
            _Appended(partition, expected_leader_epoch, appended, done).start_timer(self._loop, timeout_s)
        return done

    async def read_committed_log(self, partition_number: int) -> AsyncIterator[tuple[BatchHeader, memoryview]]:
        """Give the batches that the log holds now, each once it is certain that it stays.

        Raises the errors of Partition.check_leader when this broker ceases to lead meanwhile, CorruptMessage (2) and
        KafkaStorageError (56) when the log cannot be read.
        """
        partition = self._replicas.get(TopicPartition(CONSUMER_OFFSETS_TOPIC, partition_number))
        partition.check_leader()
        leader_epoch = partition.leader_epoch
        until_offset = int(partition.log.log_end_offset)
        if partition.high_watermark < until_offset:
            committed: asyncio.Future[None] = self._loop.create_future()
            _Reading(partition, leader_epoch, until_offset, committed)
            await committed
        offset = int(partition.log_start_offset)
        while offset < until_offset:
            piece = await self._find(partition, leader_epoch, offset, until_offset)
            if piece is None:
                return
            data = memoryview(await self._io.run(partial(_read_and_look, piece, partition.log.damage), Lane.READ))
            position = 0
            for header in scan_headers(data):
                partition.check_leader(leader_epoch)
                yield header, data[position : position + header.size_bytes]
                position += header.size_bytes
                offset = header.next_offset

    async def _find(self, partition: Partition, leader_epoch: int, offset: int, until_offset: int) -> LogSlice | None:
        """Look the next piece up; what that needs of the disk is read by a thread."""
        misses = 0
        while misses < MOST_LOOK_UPS:
            partition.check_leader(leader_epoch)
            try:
                with without_waiting():
                    return partition.log.read(offset, _PIECE_BYTES, until_offset)
            except NotInMemory as missing:
                misses += not missing.goes_on
                await self._io.run(missing.load, Lane.READ)
        return partition.log.read(offset, _PIECE_BYTES, until_offset)

    # Leadership -----------------------------------------------------------------------------------------------------

    def role_changed(self, shards: Shards, partition: Partition) -> None:
        """Load or give up the groups of a partition of the topic."""
        topic, number = partition.topic_partition
        if topic != CONSUMER_OFFSETS_TOPIC:
            return
        if partition.is_leader:
            shards.lead(number, partition.leader_epoch)
        else:
            shards.resign(number)


def _read_and_look(piece: LogSlice, damage: DamageLines) -> bytes:
    """Return a piece's bytes; what is damaged among them is told of, and left to whoever decodes it."""
    data = piece.read()
    view, position = memoryview(data), 0
    for header in scan_headers(data):
        batch = view[position : position + header.size_bytes]
        damage.look(batch, header, piece.file.path, piece.position + position)
        position += header.size_bytes
    return data


class _Waiting(DelayedOperation):
    """Waits until a partition has committed something.

    Completed by: whatever :meth:`is_committed` asks for, the end of the leader epoch, or the deadline if there is one.
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
        """Let go whoever waits."""
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
        if self.finish():
            text = "not committed within offsets.commit.timeout.ms; it may be later"
            self.tell(RequestTimedOut(f"{self._partition.topic_partition}: {text}"))

    def fail(self) -> None:
        self.tell(CoordinatorNotAvailable(f"waiting for {self._partition.topic_partition} failed"))

    def release(self) -> None:
        self._partition.remove_ack_waiter(self)


class _Reading(_Waiting):
    """A load that waits until all that the log holds is committed."""

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


class _Appended(_Waiting):
    """An append that is not committed yet."""

    __slots__ = ("_appended", "_done")

    def __init__(
        self, partition: Partition, leader_epoch: int, appended: AppendResult, done: asyncio.Future[int]
    ) -> None:
        super().__init__(partition, leader_epoch)
        self._appended = appended
        self._done = done

    def is_committed(self) -> bool:
        return self._appended.last_offset < self._partition.acknowledged_end_offset(_ACKS_ALL)

    def tell(self, error: KafkaError | None) -> None:
        if not self._done.done():
            self._done.set_result(self._appended.base_offset) if error is None else self._done.set_exception(error)

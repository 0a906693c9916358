"""Simulated clients: producers that write numbered values, readers that follow from the beginning, and what they saw.

They are no processes: they live outside of all loops, and no fault stops them. Each finds leaders in what some running
broker believes, as metadata would tell, and tries again for ever; so what one wrote is acknowledged, refused for good,
or unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records.kernel import scan_headers
from spark_kafkalite.wire.codec import decode_response, encode_request
from spark_kafkalite.wire.message import ApiMessage
from spark_kafkalite.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafkalite.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from spark_kafkalite.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.lab.batches import make_batch, values_of
from tests.simulator.network import CLIENT, Network, Wire

_TIMEOUT_S: Final = 2.0
_BACKOFF_S: Final = 0.1
ACKS_ALL: Final = -1
# Between two batches of a producer: with acks=all, and without waiting for followers.
_PAUSE_S: Final = 0.3
_SHORT_PAUSE_S: Final = 0.03
_PRODUCE, _FETCH, _LIST_OFFSETS = 9, 13, 7
# Errors after which a value has certainly not been appended by that request.
NOT_APPENDED: Final = frozenset({6, 3, 19, 74, 75, 5, 56, 9, 100})
# NotEnoughReplicas, NotEnoughReplicasAfterAppend.
_TOO_FEW: Final = frozenset({19, 20})
# What an idempotent producer cannot go on after: its sequence numbers say that records before are gone.
FATAL: Final = frozenset({45, 47, 59})


class Finder(Protocol):
    """Who says where a partition's leader is, as a metadata answer would."""

    def leader_of(self, topic_partition: TopicPartition) -> tuple[int, int, bytes] | None:
        """Return a leader's broker, its epoch and the topic's id, as some running broker believes; None: unknown."""

    def has_topic(self, broker: int, topic_partition: TopicPartition, topic_id: bytes) -> bool:
        """Whether a broker and the registry have the topic of this id.

        Some requests name topics, not ids: what is answered of one that has been made again may be the older one's, or
        the newer one's, and is nobody's.
        """


@dataclass
class Seen:
    """What the clients have seen, by topic id: the whole of it is what invariants are checked against."""

    # (topic id, partition, offset) -> value, of acknowledgements with acks=all.
    acknowledged: dict[tuple[bytes, int, int], bytes] = field(default_factory=dict)
    # Value -> where it was acknowledged with acks=1: it may be lost, but is nowhere else.
    acknowledged_by_leader: dict[bytes, tuple[bytes, int, int]] = field(default_factory=dict)
    # As ``acknowledged``, of what readers were given.
    read: dict[tuple[bytes, int, int], bytes] = field(default_factory=dict)
    sent: set[bytes] = field(default_factory=set)
    # By topic id and partition: the offset below which somebody has asked for everything to be deleted.
    deleted: dict[tuple[bytes, int], int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    acknowledgements: int = 0
    # Where a leader refused acks=all, because too few replicas were in sync (19, 20).
    refused: set[TopicPartition] = field(default_factory=set)

    def acknowledge(self, topic_partition: TopicPartition, topic_id: bytes, offset: int, value: bytes) -> None:
        """Take note of an acknowledgement with acks=all."""
        other = self.acknowledged.setdefault((topic_id, topic_partition.partition, offset), value)
        if other != value:
            self.problems.append(f"{topic_partition}: offset {offset} acknowledged for {other!r} and {value!r}")
        self.acknowledgements += 1


class _Asking:
    """One client's present connection, and at most one request on it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._world = network.world
        self._wire: Wire | None = None
        self._asked = 0
        self._on_answer: Callable[[Any], None] | None = None
        self._version = (0, 0)

    def ask(self, broker: int, message: ApiMessage, version: int, on_answer: Callable[[Any], None]) -> None:
        """Send a request; ``on_answer`` gets the message, or None when there is none: broken, or too late."""
        self._asked += 1
        number = self._asked
        if self._wire is None or not self._wire.is_open or self._wire.to != broker:
            if self._wire is not None:
                self._wire.close()
            self._wire = self._network.connect(CLIENT, None, broker, self)
        self._on_answer, self._version = on_answer, (message.API_KEY, version)
        self._wire.request(encode_request(message, version, number, None))
        self._world.later(_TIMEOUT_S, lambda: self._too_late(number))

    def frame_came(self, frame: bytes) -> None:
        if int.from_bytes(frame[:4]) == self._asked:
            self._done(decode_response(*self._version, frame)[1])

    def broken(self, reason: str) -> None:
        self._done(None)

    def _too_late(self, number: int) -> None:
        if number == self._asked and self._on_answer is not None and self._wire is not None:
            self._wire.close()
            self._wire = None
            self._done(None)

    def _done(self, answer: Any) -> None:
        on_answer, self._on_answer = self._on_answer, None
        if on_answer is not None:
            on_answer(answer)


class SimulatedProducer:
    """An idempotent producer, one batch at a time, over a partition; each value is written once."""

    def __init__(
        self, network: Network, finder: Finder, seen: Seen, topic_partition: TopicPartition, number: int, acks: int
    ) -> None:
        self._network = network
        self._world = network.world
        self._finder = finder
        self._seen = seen
        self.topic_partition = self._partition = topic_partition
        self._number = number
        self._acks = acks
        self._pause_s = _PAUSE_S if acks == ACKS_ALL else _SHORT_PAUSE_S
        self._asking = _Asking(network)
        self._topic_id = b""
        self._run = 0
        self._epoch = -1
        self.is_stopped = False
        self.is_idle = True
        self.last_acknowledged_s = self._world.now_s
        self._begin_anew()
        self._world.later(self._pause_s, self._next)

    def _begin_anew(self) -> None:
        """Have another producer id, as for a topic that was made again."""
        self._run += 1
        self._sequence = 0
        self._count = 0

    def _next(self) -> None:
        if self.is_stopped:
            self.is_idle = True
            return
        self.is_idle = False
        self._count += 1
        size = self._world.random.choice((1, 1, 1, 3))
        values = [b"%d-%d-%d-%d" % (self._number, self._run, self._count, each) for each in range(size)]
        self._seen.sent.update(values)
        self._send(values)

    def _send(self, values: list[bytes]) -> None:
        found = self._finder.leader_of(self._partition)
        if found is None:
            self._again(values)
            return
        leader, epoch, topic_id = found
        if topic_id == self._topic_id and epoch < self._epoch:
            # Clients do not believe metadata that go back (KIP-320).
            self._again(values)
            return
        self._epoch = epoch
        if topic_id != self._topic_id:
            if self._topic_id:
                # Whether the older topic has them, nobody asks any more.
                self._begin_anew()
                self._topic_id = topic_id
                self._world.later(_BACKOFF_S, self._next)
                return
            self._topic_id = topic_id
        batch = make_batch(
            values,
            producer_id=self._number * 1000 + self._run,
            producer_epoch=0,
            base_sequence=self._sequence,
        )
        data = [PartitionProduceData(index=self._partition.partition, records=bytes(batch))]
        request = ProduceRequest(
            acks=self._acks,
            timeout_ms=1500,
            topic_data=[TopicProduceData(name=self._partition.topic, partition_data=data)],
        )
        self._asking.ask(leader, request, _PRODUCE, lambda answer: self._answered(values, leader, topic_id, answer))

    def _answered(self, values: list[bytes], leader: int, topic_id: bytes, answer: Any) -> None:
        if answer is None:
            self._again(values)
            return
        (topic,) = answer.responses
        (partition,) = topic.partition_responses
        code = partition.error_code
        if code == 0:
            if self._finder.has_topic(leader, self._partition, topic_id):
                for index, value in enumerate(values):
                    self._acknowledged(topic_id, partition.base_offset + index, value)
            self._sequence += len(values)
            self.last_acknowledged_s = self._world.now_s
            self._world.later(self._pause_s * self._world.random.random() * 2, self._next)
        elif code in FATAL:
            # A topic that has been made again knows nothing of this producer.
            # With acks=1 what came before may be lost.
            if self._acks == ACKS_ALL and self._finder.has_topic(leader, self._partition, topic_id):
                self._seen.problems.append(f"{self._partition}: producer {self._number} got error {code}")
            self._begin_anew()
            self._world.later(_BACKOFF_S, self._next)
        else:
            if code in _TOO_FEW:
                self._seen.refused.add(self._partition)
            self._again(values)

    def _acknowledged(self, topic_id: bytes, offset: int, value: bytes) -> None:
        if self._acks == ACKS_ALL:
            self._seen.acknowledge(self._partition, topic_id, offset, value)
        else:
            self._seen.acknowledged_by_leader[value] = (topic_id, self._partition.partition, offset)

    def _again(self, values: list[bytes]) -> None:
        self._world.later(_BACKOFF_S * (0.5 + self._world.random.random()), lambda: self._send(values))


class SimulatedReader:
    """Reads one partition from the beginning on, as an assigned consumer does; now and then it asks for the end."""

    def __init__(self, network: Network, finder: Finder, seen: Seen, topic_partition: TopicPartition) -> None:
        self._network = network
        self._world = network.world
        self._finder = finder
        self._seen = seen
        self._partition = topic_partition
        self._asking = _Asking(network)
        self._topic_id = b""
        self._position = 0
        self._end = 0
        self._epoch = -1
        self._world.later(0.05, self._next)

    def _next(self) -> None:
        found = self._finder.leader_of(self._partition)
        if found is None:
            self._later()
            return
        leader, epoch, topic_id = found
        if topic_id != self._topic_id:
            self._topic_id, self._position, self._end, self._epoch = topic_id, 0, 0, -1
        if epoch < self._epoch:
            # Clients do not believe metadata that go back (KIP-320).
            self._later()
            return
        self._epoch = epoch
        if self._world.random.random() < 0.1:
            self._ask_end(leader)
            return
        asked = FetchPartition(
            partition=self._partition.partition,
            current_leader_epoch=epoch,
            fetch_offset=self._position,
            partition_max_bytes=1 << 20,
        )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=300,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=0,
            session_epoch=-1,
            topics=[FetchTopic(topic_id=topic_id, partitions=[asked])],
        )
        self._asking.ask(leader, request, _FETCH, lambda answer: self._fetched(topic_id, answer))

    def _fetched(self, topic_id: bytes, answer: Any) -> None:
        if answer is not None and answer.responses and topic_id == self._topic_id:
            (partition,) = answer.responses[0].partitions
            deleted_until = self._seen.deleted.get((topic_id, self._partition.partition), 0)
            if partition.error_code == 1 and self._position < deleted_until:
                self._position = deleted_until
            elif partition.error_code == 1:
                self._problem(f"position {self._position} is out of range")
            elif partition.error_code == 0 and partition.records:
                self._take(topic_id, bytes(partition.records))
                self._world.later(0.01, self._next)
                return
        self._later()

    def _take(self, topic_id: bytes, records: bytes) -> None:
        for offset, value in values_of(records):
            if offset >= self._position and value is not None:
                key = (topic_id, self._partition.partition, offset)
                other = self._seen.read.setdefault(key, value)
                if other != value:
                    self._problem(f"offset {offset} was {other!r} and is {value!r}")
        self._position = max(self._position, scan_headers(records)[-1].next_offset)

    def _ask_end(self, leader: int) -> None:
        topic_id = self._topic_id
        asked = ListOffsetsPartition(partition_index=self._partition.partition, timestamp=-1)
        topics = [ListOffsetsTopic(name=self._partition.topic, partitions=[asked])]

        def answered(answer: Any) -> None:
            if answer is not None and self._finder.has_topic(leader, self._partition, topic_id):
                (partition,) = answer.topics[0].partitions
                if partition.error_code == 0:
                    if partition.offset < self._end:
                        self._problem(f"the end went back from {self._end} to {partition.offset}")
                    self._end = max(self._end, partition.offset)
            self._later()

        self._asking.ask(leader, ListOffsetsRequest(replica_id=-1, topics=topics), _LIST_OFFSETS, answered)

    def _problem(self, problem: str) -> None:
        self._seen.problems.append(f"{self._partition}: {problem}")

    def _later(self) -> None:
        self._world.later(_BACKOFF_S * (0.5 + self._world.random.random()), self._next)

"""A simulated producer with several batches under way, as librdkafka has them: five on each connection.

What is under way to one broker does not keep it from sending what comes later to the next leader; a log knows the
repeats of a producer's last five batches only (KIP-98). So a batch that is in the log, and is sent again after more
than five later ones, is refused as out of order; a client takes another epoch then, and writes it a second time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.wire.codec import decode_response, encode_request
from spark_kafkalite.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.lab.batches import make_batch
from tests.simulator.clients import ACKS_ALL, Finder, Seen
from tests.simulator.network import CLIENT, Network, Wire

_UNDER_WAY_AT_ONCE: Final = 5
_OPEN_AT_ONCE: Final = 30
# Between two batches, and before one is sent again.
_PAUSE_S: Final = 0.01
_BACKOFF_S: Final = 0.1
_TIMEOUT_MS: Final = 30_000
_PRODUCE: Final = 9
_OUT_OF_ORDER: Final = 45


@dataclass(eq=False)
class _Batch:
    """What is not acknowledged yet."""

    value: bytes
    sequence: int
    is_under_way: bool = False
    not_before_s: float = 0.0


class _Pipe:
    """A connection to one broker, and what is under way on it."""

    def __init__(self, producer: PipelinedProducer, network: Network, broker: int) -> None:
        self._producer = producer
        self._asked = 0
        self.under_way: dict[int, _Batch] = {}
        self.wire: Wire = network.connect(CLIENT, None, broker, self)

    def send(self, batch: _Batch, request: ProduceRequest) -> None:
        self._asked += 1
        self.under_way[self._asked] = batch
        batch.is_under_way = True
        self.wire.request(encode_request(request, _PRODUCE, self._asked, None))

    def frame_came(self, frame: bytes) -> None:
        batch = self.under_way.pop(int.from_bytes(frame[:4]))
        (topic,) = decode_response(ProduceRequest.API_KEY, _PRODUCE, frame)[1].responses
        batch.is_under_way = False
        self._producer.answered(batch, topic.partition_responses[0])

    def broken(self, reason: str) -> None:
        under_way, self.under_way = self.under_way, {}
        for batch in under_way.values():
            batch.is_under_way = False
            self._producer.send_again(batch)


class PipelinedProducer:
    """See the module's text. Writes with acks=all; each value is a batch of its own."""

    def __init__(
        self, network: Network, finder: Finder, seen: Seen, topic_partition: TopicPartition, number: int
    ) -> None:
        self._network = network
        self._world = network.world
        self._finder = finder
        self._seen = seen
        self.topic_partition = topic_partition
        self._number = number
        self._pipes: dict[int, _Pipe] = {}
        self._open: deque[_Batch] = deque()
        self._count = 0
        self._epoch = -1
        self._topic_id = b""
        self.is_stopped = False
        self.last_acknowledged_s = self._world.now_s
        self._world.later(_PAUSE_S, self._next)

    @property
    def is_idle(self) -> bool:
        return self.is_stopped and not self._open

    def _next(self) -> None:
        if not self.is_stopped and len(self._open) < _OPEN_AT_ONCE:
            value = b"%d-1-%d-0" % (self._number, self._count + 1)
            self._open.append(_Batch(value, self._count))
            self._count += 1
            self._seen.sent.add(value)
        self._send()
        if not self.is_idle:
            self._world.later(_PAUSE_S * self._world.random.random() * 2, self._next)

    def _send(self) -> None:
        """Send what is not under way, in order, as far as there is room on the leader's connection."""
        found = self._finder.leader_of(self.topic_partition)
        # Clients do not believe metadata that go back (KIP-320).
        if found is None or found[1] < self._epoch:
            return
        leader, self._epoch, self._topic_id = found
        pipe = self._pipes.get(leader)
        if pipe is None or not pipe.wire.is_open:
            pipe = self._pipes[leader] = _Pipe(self, self._network, leader)
        for batch in self._open:
            if batch.is_under_way:
                continue
            if batch.not_before_s > self._world.now_s or len(pipe.under_way) == _UNDER_WAY_AT_ONCE:
                return
            data = make_batch(
                [batch.value], producer_id=self._number * 1000, producer_epoch=0, base_sequence=batch.sequence
            )
            partition = PartitionProduceData(index=self.topic_partition.partition, records=bytes(data))
            topic = TopicProduceData(name=self.topic_partition.topic, partition_data=[partition])
            pipe.send(batch, ProduceRequest(acks=ACKS_ALL, timeout_ms=_TIMEOUT_MS, topic_data=[topic]))

    def answered(self, batch: _Batch, partition: Any) -> None:
        code = partition.error_code
        if code == 0:
            self._open.remove(batch)
            self.last_acknowledged_s = self._world.now_s
            self._seen.acknowledge(self.topic_partition, self._topic_id, partition.base_offset, batch.value)
        elif code == _OUT_OF_ORDER and batch is self._open[0]:
            self._seen.problems.append(f"{self.topic_partition}: {batch.value!r} would be written again")
        else:
            self.send_again(batch)

    def send_again(self, batch: _Batch) -> None:
        batch.not_before_s = self._world.now_s + _BACKOFF_S

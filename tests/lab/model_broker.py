"""A model of a broker in the test's process, for tests of clients: one node, topics in memory, faults on request.

Clients use their real connection code, over pairs of sockets instead of a network: pass :meth:`ModelBroker.open` to
:class:`~spark_kafkalite.client.network.cluster.ClusterClient`. The model answers the requests of producers and readers
(Metadata, InitProducerId, Produce, ListOffsets, Fetch). A test answers other requests itself (``answer_first``).

The model implements the real broker's rules on which clients depend: sequence numbers, whole batches, errors for
offsets outside of the log. ``tests/interop/client/test_model_broker.py`` checks both brokers against these rules.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from spark_kafkalite.client.client_config import ClientConfig
from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.half_open import HalfOpen
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.network.served_versions import SUPPORTED
from spark_kafkalite.client.network.sockets import ByteSocket, send_all
from spark_kafkalite.errors import (
    BrokerUnreachable,
    HandshakeFailed,
    OffsetOutOfRange,
    OutOfOrderSequenceNumber,
    SslHandshakeFailed,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import EARLIEST_TIMESTAMP, TopicPartition
from spark_kafkalite.records.kernel import read_header, stamp
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.frame import LENGTH, framed
from spark_kafkalite.wire.header import read_request_header
from spark_kafkalite.wire.messages import fetch, list_offsets, metadata, produce
from spark_kafkalite.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from spark_kafkalite.wire.messages.init_producer_id import InitProducerIdResponse
from tests.lab.model_security import ModelListener, ModelSession

NODE_ID: Final = 1
LEADER_EPOCH: Final = 3
# Source: socket.request.max.bytes.
_MAX_FRAME_BYTES: Final = 100 << 20
# A broker recognises the last five batches of a producer.
_REMEMBERED: Final = 5


class ModelPartition:
    """One partition's log: whole batches, and the sequences of its producers."""

    def __init__(self) -> None:
        # First offset, first offset behind it, and bytes of each batch.
        self.batches: list[tuple[int, int, bytes]] = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self._producers: dict[int, deque[tuple[int, int, int, int]]] = {}

    def append(self, batch: bytes | bytearray | memoryview) -> tuple[int, int]:
        """Append a batch and return (error code, base offset). Source: ProducerAppendInfo.checkSequence."""
        data = bytearray(batch)
        header = read_header(data)
        if header.producer_id >= 0:
            known = self._producers.setdefault(header.producer_id, deque(maxlen=_REMEMBERED))
            epoch, first = header.producer_epoch, header.base_sequence
            following = (first + header.record_count) % 2**31
            for seen_epoch, seen_first, seen_following, offset in known:
                if (seen_epoch, seen_first, seen_following) == (epoch, first, following):
                    return 0, offset
            if known:
                last_epoch, _, expected, _ = known[-1]
                if first != (expected if epoch == last_epoch else 0):
                    return OutOfOrderSequenceNumber.code, -1
            known.append((epoch, first, following, self.log_end_offset))
        base_offset = self.log_end_offset
        stamp(data, 0, base_offset, LEADER_EPOCH)
        self.log_end_offset = read_header(data).next_offset
        self.batches.append((base_offset, self.log_end_offset, bytes(data)))
        return 0, base_offset

    def read(self, offset: int, max_bytes: int) -> tuple[int, bytes]:
        """Return (error code, whole batches): from the batch that contains ``offset``, at least that one."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            return OffsetOutOfRange.code, b""
        found = b""
        for _, end, data in self.batches:
            if end > offset:
                if found and len(found) + len(data) > max_bytes:
                    break
                found += data
        return 0, found


AnswerFirst = Callable[[int, Any], Any]
"""Called with the API key and the request. It returns an answer, or None for the broker's own, or raises
ConnectionError."""


class ModelBroker:
    """The broker. It holds ``lock`` while it serves a request.

    A test takes ``lock`` to read or change several attributes consistently.
    """

    def __init__(
        self,
        topics: Mapping[str, int],
        answer_first: AnswerFirst | None = None,
        listener: ModelListener | None = None,
    ) -> None:
        """``topics``: number of partitions by topic name."""
        self.listener = listener or ModelListener()
        # The broker's address in Metadata answers.
        self.address: tuple[str, int] = ("model", 1)
        self.lock = threading.RLock()
        self.partitions = {
            TopicPartition(name, number): ModelPartition() for name, count in topics.items() for number in range(count)
        }
        self.answer_first = answer_first
        # Called after the broker has served a request and before it sends the answer; ConnectionError loses the answer.
        self.answer_last: Callable[[int, Any], None] | None = None
        self.opened = 0
        self._appended = threading.Condition(self.lock)
        self._producer_ids = 0
        self._connections: list[socket.socket] = []
        self._listening: list[socket.socket] = []
        self._closed = False

    # For clients ----------------------------------------------------------------------------------------------------

    def open(
        self, host: str, port: int, config: ClientConfig, deadline: Deadline, half_open: HalfOpen | None = None
    ) -> BrokerConnection:
        """Return a new connection. Tests use this instead of ``BrokerConnection.open``."""
        ours, theirs = socket.socketpair()
        with self.lock:
            if self._closed:
                ours.close()
                theirs.close()
                raise BrokerUnreachable(f"{host}:{port}: the model broker is closed")
        self.serve(ours)
        return BrokerConnection.over(theirs, host, port, config, deadline, half_open)

    def listen(self) -> str:
        """Also listen on a port of the loopback interface; return its address, which Metadata answers then name."""
        listening = socket.create_server(("127.0.0.1", 0))
        host, port = self.address = listening.getsockname()
        with self.lock:
            self._listening.append(listening)
        threading.Thread(target=self._accept, args=(listening,), name="model-broker-accept", daemon=True).start()
        return f"{host}:{port}"

    def _accept(self, listening: socket.socket) -> None:
        with listening, contextlib.suppress(OSError):
            while True:
                self.serve(listening.accept()[0])

    def serve(self, sock: socket.socket) -> None:
        """Serve a connection, in a thread of its own."""
        with self.lock:
            self.opened += 1
            self._connections.append(sock)
        threading.Thread(target=self._serve, args=(sock,), name="model-broker", daemon=True).start()

    def break_connections(self) -> None:
        """Break all connections that are open."""
        with self.lock:
            connections, self._connections = self._connections, []
        _shut_down(connections)

    def close(self) -> None:
        """Break all connections and accept no new ones."""
        with self.lock:
            self._closed = True
            self._appended.notify_all()
            _shut_down(self._listening)
        self.break_connections()

    # For tests ------------------------------------------------------------------------------------------------------

    def append(self, topic_partition: TopicPartition, batch: bytes | bytearray) -> int:
        """Append a batch and return its base offset."""
        with self.lock:
            code, base_offset = self.partitions[topic_partition].append(batch)
            assert not code
            self._appended.notify_all()
        return base_offset

    def delete_before(self, topic_partition: TopicPartition, offset: int) -> None:
        """Move the log's start, as retention does."""
        with self.lock:
            log = self.partitions[topic_partition]
            log.log_start_offset = offset
            log.batches = [each for each in log.batches if each[1] > offset]

    # Serving --------------------------------------------------------------------------------------------------------

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, SslHandshakeFailed, HandshakeFailed):
            channel = self.listener.accept(sock)
            session = ModelSession(self.listener)
            while (frame := _read_frame(channel)) is not None:
                (api_key, api_version, correlation_id, _), position = read_request_header(frame)
                session.check(api_key)
                request = codec.decode_request(api_key, api_version, frame, position)
                answer = session.answer(api_key, request) or self._answer(api_key, request)
                if answer is not None:
                    send_all(channel, [framed(codec.encode_response(answer, api_version, correlation_id))])
                if session.is_over:
                    return

    def _answer(self, api_key: int, request: Any) -> Any:
        if api_key == ApiKey.API_VERSIONS:
            served = [
                ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in SUPPORTED.items()
            ]
            return ApiVersionsResponse(api_keys=served)
        answer = self.answer_first(api_key, request) if self.answer_first is not None else None
        if answer is None:
            with self.lock:
                answer = self._handlers[api_key](self, request)
        if self.answer_last is not None:
            self.answer_last(api_key, request)
        return answer

    def _metadata(self, request: metadata.MetadataRequest) -> metadata.MetadataResponse:
        names = sorted({each.topic for each in self.partitions})
        if request.topics is not None:
            names = [each.name for each in request.topics if each.name is not None]
        return metadata.MetadataResponse(
            brokers=[metadata.MetadataResponseBroker(node_id=NODE_ID, host=self.address[0], port=self.address[1])],
            controller_id=NODE_ID,
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> metadata.MetadataResponseTopic:
        numbers = sorted(each.partition for each in self.partitions if each.topic == name)
        return metadata.MetadataResponseTopic(
            error_code=0 if numbers else UnknownTopicOrPartition.code,
            name=name,
            partitions=[
                metadata.MetadataResponsePartition(
                    partition_index=number, leader_id=NODE_ID, leader_epoch=LEADER_EPOCH, replica_nodes=[NODE_ID]
                )
                for number in numbers
            ],
        )

    def _init_producer_id(self, request: object) -> InitProducerIdResponse:
        self._producer_ids += 1
        return InitProducerIdResponse(producer_id=self._producer_ids, producer_epoch=0)

    def _produce(self, request: produce.ProduceRequest) -> produce.ProduceResponse | None:
        answers = []
        for topic in request.topic_data:
            parts = []
            for part in topic.partition_data:
                log = self.partitions.get(TopicPartition(topic.name, part.index))
                code, offset = UnknownTopicOrPartition.code, -1
                if log is not None and part.records is not None:
                    code, offset = log.append(memoryview(part.records))
                parts.append(produce.PartitionProduceResponse(index=part.index, error_code=code, base_offset=offset))
            answers.append(produce.TopicProduceResponse(name=topic.name, partition_responses=parts))
        self._appended.notify_all()
        return produce.ProduceResponse(responses=answers) if request.acks else None

    def _list_offsets(self, request: list_offsets.ListOffsetsRequest) -> list_offsets.ListOffsetsResponse:
        answers = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                log = self.partitions.get(TopicPartition(topic.name, part.partition_index))
                answer = list_offsets.ListOffsetsPartitionResponse(partition_index=part.partition_index)
                if log is None:
                    answer.error_code = UnknownTopicOrPartition.code
                else:
                    answer.offset = log.log_start_offset if part.timestamp == EARLIEST_TIMESTAMP else log.log_end_offset
                parts.append(answer)
            answers.append(list_offsets.ListOffsetsTopicResponse(name=topic.name, partitions=parts))
        return list_offsets.ListOffsetsResponse(topics=answers)

    def _fetch(self, request: fetch.FetchRequest) -> fetch.FetchResponse:
        answer, size_bytes = self._fetched(request)
        if size_bytes < request.min_bytes and not self._closed:
            self._appended.wait(request.max_wait_ms / 1000)
            answer, _ = self._fetched(request)
        return answer

    def _fetched(self, request: fetch.FetchRequest) -> tuple[fetch.FetchResponse, int]:
        answers = []
        # Errors are answered at once.
        size_bytes = 0
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                data = fetch.PartitionData(partition_index=part.partition, high_watermark=-1)
                log = self.partitions.get(TopicPartition(topic.topic, part.partition))
                if log is None:
                    data.error_code = UnknownTopicOrPartition.code
                else:
                    room = request.max_bytes - size_bytes
                    data.error_code, found = log.read(part.fetch_offset, min(part.partition_max_bytes, room))
                    if room > 0 and not data.error_code:
                        data.records = found
                        size_bytes += len(found)
                    data.high_watermark = data.last_stable_offset = log.log_end_offset
                    data.log_start_offset = log.log_start_offset
                if data.error_code:
                    size_bytes += request.min_bytes
                parts.append(data)
            answers.append(fetch.FetchableTopicResponse(topic=topic.topic, partitions=parts))
        return fetch.FetchResponse(responses=answers), size_bytes

    _handlers: Final[dict[int, Callable[[ModelBroker, Any], Any]]] = {
        ApiKey.METADATA: _metadata,
        ApiKey.INIT_PRODUCER_ID: _init_producer_id,
        ApiKey.PRODUCE: _produce,
        ApiKey.LIST_OFFSETS: _list_offsets,
        ApiKey.FETCH: _fetch,
    }


def _shut_down(sockets: Iterable[socket.socket]) -> None:
    """End sockets that threads wait for; these close them."""
    for sock in sockets:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _read_frame(channel: ByteSocket) -> memoryview | None:
    """Return the next frame, None at the end of the stream, and for a length that is no client's."""
    head = _read_exactly(channel, LENGTH.size)
    length = -1 if head is None else LENGTH.unpack(head)[0]
    return _read_exactly(channel, length) if 0 < length <= _MAX_FRAME_BYTES else None


def _read_exactly(channel: ByteSocket, count: int) -> memoryview | None:
    data = memoryview(bytearray(count))
    filled = 0
    while filled < count:
        received = channel.recv_into(data[filled:])
        if received == 0:
            return None
        filled += received or 0
    return data

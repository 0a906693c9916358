"""What ``broker.network.peers`` is to a broker, over simulated connections; nobody proves who he is."""

from __future__ import annotations

from collections import deque
from typing import Any

from spark_kafkalite.broker.network.peer import Buffer, OnAnswer, OnClosed
from spark_kafkalite.errors import BrokerUnreachable
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo
from spark_kafkalite.wire.codec import decode_response_body, encode_body
from spark_kafkalite.wire.header import pack_request_header, read_response_header
from spark_kafkalite.wire.message import ApiMessage
from tests.simulator.network import Network
from tests.simulator.world import ProcessLoop

# As replica.socket.timeout.ms would be in tests.
_TIMEOUT_S = 5.0


class SimulatedPeerConnection:
    """As ``PeerConnection``: requests and answers in order."""

    def __init__(self, network: Network, loop: ProcessLoop, from_: int, to: int, on_closed: OnClosed) -> None:
        self.name = f"broker {to}"
        self.closed = False
        self.was_proved = True
        self._loop = loop
        self._on_closed = on_closed
        self._sent: deque[tuple[int, int, int, OnAnswer]] = deque()
        self._came: deque[bytes] = deque()
        self._correlation_id = 0
        self._held = 0
        self._answers = 0
        self._wire = network.connect(from_, loop, to, self)

    @property
    def unanswered(self) -> int:
        return len(self._sent)

    def send(
        self, api_key: int, version: int, body: Buffer, on_answer: OnAnswer, *, timeout_s: float | None = None
    ) -> None:
        if self.closed:
            return
        self._correlation_id += 1
        head = pack_request_header(api_key, version, self._correlation_id, None)
        self._sent.append((self._correlation_id, api_key, version, on_answer))
        self._wire.request(bytes(head) + bytes(body))
        self._loop.call_later(_TIMEOUT_S if timeout_s is None else timeout_s, self._check, self._correlation_id)

    def _check(self, correlation_id: int) -> None:
        if not self.closed and not self._held and self._sent and self._sent[0][0] <= correlation_id:
            self._end("did not answer in time")

    def hold(self) -> None:
        self._held += 1

    def release(self) -> None:
        self._held -= 1
        self._loop.call_soon(self._take)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._wire.close(by_opener=True)

    def frame_came(self, frame: bytes) -> None:
        self._came.append(frame)
        self._take()

    def _take(self) -> None:
        while self._came and not self._held and not self.closed:
            frame = memoryview(self._came.popleft())
            correlation_id, api_key, version, on_answer = self._sent.popleft()
            answered_id, position = read_response_header(frame, api_key, version)
            assert answered_id == correlation_id, f"request {correlation_id} is answered as {answered_id}"
            on_answer(frame[position:])

    def broken(self, reason: str) -> None:
        self._end(reason)

    def _end(self, reason: str) -> None:
        if not self.closed:
            self.close()
            self._on_closed(BrokerUnreachable(f"{self.name}: {reason}"))


class SimulatedPeers:
    """As ``Peers``."""

    def __init__(self, network: Network, loop: ProcessLoop, broker_id: int) -> None:
        self._network = network
        self._loop = loop
        self._broker_id = broker_id

    def connect(self, broker: BrokerInfo, on_closed: OnClosed) -> SimulatedPeerConnection:
        return SimulatedPeerConnection(self._network, self._loop, self._broker_id, broker.broker_id, on_closed)

    async def ask(self, broker: BrokerInfo, message: ApiMessage, version: int, *, timeout_s: float) -> Any:
        answered = self._loop.create_future()

        def failed(error: Exception) -> None:
            if not answered.done():
                answered.set_exception(error)

        connection = self.connect(broker, failed)
        connection.send(
            message.API_KEY,
            version,
            encode_body(message, version),
            lambda body: answered.done() or answered.set_result(bytes(body)),
            timeout_s=timeout_s,
        )
        try:
            return decode_response_body(message.API_KEY, version, memoryview(await answered))
        finally:
            connection.close()

    def close(self) -> None: ...

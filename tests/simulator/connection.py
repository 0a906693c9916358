"""A broker's end of a simulated connection: what ``broker.network.connection`` is to the real one, without bytes.

Requests are served by the real dispatcher and handlers, one after the other, and answers leave in the requests' order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.broker.network.session import Session
from spark_kafkalite.broker.requests.dispatch import Dispatcher
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import FrameError
from spark_kafkalite.net.outbox import FileRange, Response
from tests.simulator.network import Wire
from tests.simulator.world import ProcessLoop


class ServedConnection:
    """See the module's text. Satisfies ``exchange.Carrier``."""

    def __init__(self, loop: ProcessLoop, wire: Wire, dispatcher: Dispatcher, listener: Listener) -> None:
        self.session = Session(f"host-{wire.from_}:1", listener)
        self.received_s = loop.time()
        self._loop = loop
        self._wire = wire
        self._dispatcher = dispatcher
        self._waiting: deque[bytearray] = deque()
        self._pending: deque[Exchange] = deque()
        self._held = 0
        self._serving = False
        self.closed = False

    # End ------------------------------------------------------------------------------------------------------------

    def frame_came(self, frame: bytes) -> None:
        self.received_s = self._loop.time()
        # A request's memory is the broker's, which stamps offsets into it.
        self._waiting.append(bytearray(frame))
        self._serve()

    def broken(self, reason: str) -> None:
        if not self.closed:
            self.closed = True
            self.session.connection_closed()
            pending, self._pending = self._pending, deque()
            for exchange in pending:
                if exchange.response is None:
                    exchange.abandon()

    def _serve(self) -> None:
        while self._waiting and not self._held and not self.closed and not self._serving:
            self._serving = True
            try:
                self._dispatcher.serve(self, memoryview(self._waiting.popleft()))  # type: ignore[arg-type]
            except FrameError as error:
                self.close(str(error), hostile=True)
            finally:
                self._serving = False

    # Carrier --------------------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        return self._loop.time()

    def answered(self, exchange: Exchange) -> None:
        if not exchange.has_place:
            if self.closed or not exchange.response:
                return
            if self._pending:
                self.take_place(exchange)
            else:
                self._send(exchange.response)
        while self._pending and (response := self._pending[0].response) is not None:
            self._pending.popleft()
            self._send(response)

    def send_answers(self) -> None:
        """They have left."""

    def take_place(self, exchange: Exchange) -> None:
        exchange.has_place = True
        if self.closed:
            exchange.abandon()
        else:
            self._pending.append(exchange)

    def hold(self) -> None:
        self._held += 1

    def release(self) -> None:
        self._held -= 1
        self._loop.call_soon(self._serve)

    def mute(self, seconds: float) -> None:
        raise NotImplementedError("nobody is throttled here")

    def keep(self, frame: memoryview) -> tuple[memoryview, Callable[[], None]]:
        return memoryview(bytearray(frame)), lambda: None

    def close(self, reason: str, *, hostile: bool = False) -> None:
        if not self.closed:
            self._wire.close()
            self.broken(reason)

    def _send(self, response: Response) -> None:
        if self.closed or not response:
            return
        if isinstance(response, bytes):
            self._wire.answer(response)
            return
        sent = bytearray()
        for piece in response[0]:
            if isinstance(piece, FileRange):
                piece.begin()
                try:
                    if piece.is_cut:
                        self.close("a range of a file has been truncated")
                        return
                    data = piece.file.pread(piece.length, piece.position)  # type: ignore[attr-defined]
                except OSError as error:
                    # As an outbox does, so that the next read finds out what is wrong.
                    piece.could_not_be_read()
                    self.close(f"cannot read a file: {error}")
                    return
                finally:
                    piece.end()
                if len(data) != piece.length:
                    piece.could_not_be_read()
                    self.close("a file ended early")
                    return
                sent += data
            else:
                sent += piece
        self._wire.answer(bytes(sent))

"""From a complete request to its handler, and from what the handler gives to the response.

Each file in ``handlers/`` registers its function with :func:`handles`, which says key and versions once; what
ApiVersions tells clients and ``docs/protocol.md`` come from the same table. Four kinds of handler:

- ``handles(...)`` on a plain function: gets the decoded request, returns the response message. For requests whose cost
  does not grow with their length.
- a generator function: the same, as work in slices (``slices.py``): it yields between elements. Nearly always one slice
  is enough, and the answer leaves at once.
- a coroutine function: may wait; runs as a task, its answer keeps its place in the connection's order. What may take
  long in it runs in slices, too (``await context.slices.run(...)``).
- ``handles(..., raw=True)``: gets the request's bytes and returns packed bytes, or None when it has deferred its answer
  or owes none, or work in slices that returns these. Only what comes by the thousands a second, Produce, Fetch and
  OffsetCommit: no message objects and no task on these paths.

No request holds the loop for long, whatever it names. A large one is decoded in slices, its handler works in slices,
and its answer is encoded in slices; meanwhile its connection is not served, as in Apache Kafka, and of all connections
at most ``LARGE_AT_ONCE`` such requests are worked on, because in memory they are many times as large as on the wire.
The others wait in the buffers in which they arrived. Only a Produce may be larger than ``_MOST_DECODED_BYTES``.

What cannot be answered closes the connection, as in Kafka: an unknown API or version (the layout of an answer is
unknown then; ApiVersions alone has one), a request that cannot be decoded, and a bug in a handler, whose traceback is
logged.

Hooks: one before each handler (it will authenticate, authorise and throttle) and one after (metrics).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from spark_kafkalite.broker.connection import Connection, ResponseSlot
from spark_kafkalite.broker.event_log import QuietLog
from spark_kafkalite.broker.outbox import Response, as_response
from spark_kafkalite.broker.request_memory import KeptMemory
from spark_kafkalite.errors import FrameError
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.codec import (
    decode_request,
    decode_request_in_slices,
    encode_response,
    encode_response_in_slices,
)
from spark_kafkalite.wire.header import read_request_header
from spark_kafkalite.wire.message import ApiMessage, dismantle

if TYPE_CHECKING:
    from spark_kafkalite.broker.context import BrokerContext

logger = logging.getLogger(__name__)

API_VERSIONS_KEY = 18
_PRODUCE_KEY = 0
# What a request of this many bytes names is served in a few milliseconds, at once.
SMALL_REQUEST_BYTES = 32 * 1024
LARGE_AT_ONCE = 4
# Twice what a group's members may say of themselves (group.max.bytes); a thousand topics take a hundredth of it.
_MOST_DECODED_BYTES = 32 * 1024 * 1024


class Request:
    """What a handler may want to know about the request it serves, beside its body."""

    __slots__ = (
        "_kept",
        "api_key",
        "api_version",
        "client_id",
        "connection",
        "correlation_id",
        "deferred",
        "slot",
    )

    def __init__(
        self, connection: Connection, api_key: int, api_version: int, correlation_id: int, client_id: str | None
    ) -> None:
        self.connection = connection
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        # The place of an answer that comes later; None for the others.
        self.slot: ResponseSlot | None = None
        # Whether somebody else than the dispatcher puts it there.
        self.deferred = False
        self._kept: KeptMemory | None = None

    @property
    def client_host(self) -> str:
        """The client's address as Kafka's tools show it, "/127.0.0.1"."""
        return "/" + self.connection.peer.rpartition(":")[0].strip("[]")

    def defer(self) -> ResponseSlot:
        """Return the place of this request's answer, which the caller completes later."""
        self.deferred = True
        return self.place()

    def place(self) -> ResponseSlot:
        """Have a place for the answer; responses to later requests wait behind it."""
        if self.slot is None:
            self.slot = self.connection.defer()
        return self.slot

    def keep(self, frame: memoryview) -> memoryview:
        """Return the request's bytes in memory that stays as it is until the work on the request is done."""
        kept, give_back = self.connection.keep(frame)
        self._kept = KeptMemory(give_back)
        return kept

    def keep_part(self, part: memoryview) -> tuple[memoryview, Callable[[], None]]:
        """Return a part of the request's bytes in memory that stays as it is until the function beside it is called.

        That is the part itself where the request's bytes are kept, else a copy.
        """
        if self._kept is None:
            return self.connection.keep(part)
        self._kept.hold()
        return part, self._kept.release

    def work_done(self) -> None:
        """Let go of what was kept."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.release()

    def on_abandon(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called if the connection closes before the answer, at once if it has already.

        For a coroutine handler.
        """
        assert self.slot is not None
        if self.slot.abandoned:
            callback()
        else:
            self.slot.on_abandon = callback

    def __repr__(self) -> str:
        return f"<Request api={self.api_key} v{self.api_version} #{self.correlation_id} from {self.connection.peer}>"


Hook = Callable[[Request], None]


@dataclass(frozen=True, slots=True)
class Api:
    """One served API; versions are inclusive. ``advertised_from`` is what clients are told for ``min_version``."""

    key: int
    name: str
    min_version: int
    max_version: int
    advertised_from: int
    handler: Callable[..., Any]
    is_raw: bool
    is_coroutine: bool
    is_work: bool


API_TABLE: dict[int, Api] = {}


def handles(
    key: int,
    min_version: int,
    max_version: int,
    *,
    advertised_from: int | None = None,
    raw: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the handler of API ``key`` for these versions, both inclusive."""

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        if key in API_TABLE:
            raise RuntimeError(f"API {key} has two handlers: {API_TABLE[key].handler} and {handler}")
        # handlers/list_offsets.py serves ListOffsets.
        name = "".join(word.capitalize() for word in handler.__module__.rpartition(".")[2].split("_"))
        advertised = min_version if advertised_from is None else advertised_from
        is_coroutine = inspect.iscoroutinefunction(handler)
        is_work = inspect.isgeneratorfunction(handler)
        API_TABLE[key] = Api(key, name, min_version, max_version, advertised, handler, raw, is_coroutine, is_work)
        return handler

    return register


class _Gate:
    """Lets a number of works in at a time; the others wait in the order in which they came."""

    __slots__ = ("_inside", "_limit", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def through(self, work: Work[Any]) -> Work[Any]:
        """Do the work, when it may come in."""
        if self._inside >= self._limit:
            turn: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(turn)
            try:
                yield turn
            except GeneratorExit:
                # Nobody waits for the answer any more. If it was let in already, the next one may be.
                if not turn.cancel():
                    self._let_in()
                raise
        else:
            self._inside += 1
        try:
            return (yield from work)
        finally:
            self._let_in()

    def _let_in(self) -> None:
        """Give the place of one that has left to the next one."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._inside -= 1


class Dispatcher:
    """Serves the requests of all connections."""

    def __init__(self, context: BrokerContext, apis: Mapping[int, Api] = API_TABLE) -> None:
        """``apis`` are those served, by key."""
        self._context = context
        self._apis = apis
        self._tasks: set[asyncio.Task[None]] = set()
        # What ends the work that one slice did not finish.
        self._late: dict[Request, Callable[[], None]] = {}
        self._gate = _Gate(context.loop, LARGE_AT_ONCE)
        self._quiet = QuietLog(logger)
        self.before: Hook | None = None
        self.after: Hook | None = None

    def serve(self, connection: Connection, frame: memoryview) -> None:
        """Serve one request, valid in memory until this returns. Raises FrameError when it cannot be read."""
        header, position = read_request_header(frame)
        key, version = header.api_key, header.api_version
        request = Request(connection, key, version, header.correlation_id, header.client_id)
        api = self._apis.get(key)
        if api is None or not api.min_version <= version <= api.max_version:
            self._refuse(request)
            return
        if len(frame) > _MOST_DECODED_BYTES and key != _PRODUCE_KEY:
            raise FrameError(
                f"{api.name} has {len(frame)} bytes, at most {_MOST_DECODED_BYTES} are possible; ask for less at a time"
            )
        if self.before is not None:
            self.before(request)
        try:
            if api.is_raw:
                response = api.handler(self._context, request, frame, position)
                if type(response) is GeneratorType:
                    self._work(request, self._gate.through(response))
                elif response is not None:
                    connection.answer(response)
            elif len(frame) <= SMALL_REQUEST_BYTES:
                message = decode_request(key, version, frame, position)
                if api.is_coroutine:
                    self._start(request, api.handler(self._context, request, message))
                elif api.is_work:
                    self._work(request, self._answered(request, api.handler(self._context, request, message)))
                else:
                    answer = api.handler(self._context, request, message)
                    connection.answer(encode_response(answer, version, request.correlation_id))
            else:
                self._work(request, self._gate.through(self._large(api, request, request.keep(frame), position)))
        except FrameError:
            raise
        except Exception:
            self._report_bug(request)
            connection.close("a handler failed")
        if self.after is not None:
            self.after(request)

    def _large(self, api: Api, request: Request, frame: memoryview, position: int) -> Work[Response | None]:
        """Decode a large request, call its handler, and encode the answer."""
        message = yield from decode_request_in_slices(request.api_key, request.api_version, frame, position)
        answer = api.handler(self._context, request, message)
        if api.is_coroutine:
            self._start(request, answer, message)
            return None
        if not api.is_work:
            return encode_response(answer, request.api_version, request.correlation_id)
        response = yield from self._answered(request, answer)
        yield from dismantle(message)
        return response

    def _answered(self, request: Request, work: Generator[Any, None, Any]) -> Work[Response]:
        answer = yield from work
        return (yield from self._encoded(request, answer))

    def _encoded(self, request: Request, answer: ApiMessage) -> Work[Response]:
        body = yield from encode_response_in_slices(answer, request.api_version, request.correlation_id)
        yield from dismantle(answer)
        return as_response(body)

    def _work(self, request: Request, work: Work[Response | None]) -> None:
        """Run work that gives the response, or None when it has deferred the answer or owes none.

        If one slice is not enough the answer gets its place and the connection waits.
        """
        connection = request.connection
        is_late = False

        def done(response: Response | None, error: BaseException | None) -> None:
            request.work_done()
            if not is_late:
                if error is not None:
                    raise error
                if response is not None:
                    connection.answer(response)
                return
            del self._late[request]
            connection.release()
            if isinstance(error, FrameError):
                connection.close(f"sent a request that cannot be read: {error}", hostile=True)
            elif error is not None:
                self._report_bug(request, error)
                connection.close("a handler failed")
            elif not request.deferred:
                request.place().complete(b"" if response is None else response)

        drop = self._context.slices.start(work, done)
        if drop is None:
            return

        def abandoned() -> None:
            if self._late.pop(request, None) is not None:
                drop()
                request.work_done()

        is_late = True
        self._late[request] = abandoned
        connection.hold()
        request.place().on_abandon = abandoned

    def _refuse(self, request: Request) -> None:
        """Answer or close a request of an API or version that is not served."""
        if request.api_key == API_VERSIONS_KEY:
            # A newer client learns from a version 0 answer which version to use. Source: KIP-511.
            answer = self._apis[API_VERSIONS_KEY].handler(self._context, request, None)
            request.connection.answer(encode_response(answer, 0, request.correlation_id))
            return
        api = self._apis.get(request.api_key)
        served = "this API is not served" if api is None else f"served are {api.min_version} to {api.max_version}"
        raise FrameError(f"API {request.api_key} version {request.api_version}: {served}")

    def _start(self, request: Request, work: Coroutine[Any, Any, Any], large: ApiMessage | None = None) -> None:
        """Run a handler that waits; its answer goes into the place that its request has now."""
        slot = request.defer()

        async def run() -> None:
            try:
                answer = await work
                slot.complete(await self._context.slices.run(self._encoded(request, answer)))
                if large is not None:
                    await self._context.slices.run(dismantle(large))
            except Exception as error:
                self._report_bug(request, error)
                slot.fail("a handler failed")

        task = self._context.loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _report_bug(self, request: Request, error: BaseException | None = None) -> None:
        self._quiet.log(
            logging.ERROR,
            f"bug-{request.api_key}",
            "the handler of API %d version %d failed; its connection to %s is closed",
            request.api_key,
            request.api_version,
            request.connection.peer,
            exc_info=error or True,
        )

    async def stop(self) -> None:
        """Cancel the handlers that still wait, and end unfinished work."""
        for abandon in list(self._late.values()):
            abandon()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

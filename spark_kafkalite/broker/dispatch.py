"""From a complete request to its handler, and from what the handler gives to the response.

Each file in ``handlers/`` registers its function with :func:`handles`, which says key and versions once; what
ApiVersions tells clients and ``docs/protocol.md`` come from the same table. Four kinds of handler:

- ``handles(...)`` on a plain function: gets the decoded request, returns the response message.
- ``handles(..., only_reads=True)`` on a plain function that changes nothing: when it needs bytes of a log that are not
  in memory, a thread reads them and the handler is called anew.
- a coroutine function: may wait; runs as a task, its answer keeps its place in the connection's order.
- ``handles(..., raw=True)``: gets the request's bytes and returns packed bytes, or None when it has deferred its answer
  or owes none. Only what comes by the thousands a second, Produce, Fetch and OffsetCommit: no message objects and no
  task on these paths.

What cannot be answered closes the connection, as in Kafka: an unknown API or version (the layout of an answer is
unknown then; ApiVersions alone has one), a request that cannot be decoded, and a bug in a handler, whose traceback is
logged.

Hooks: one before each handler (it will authenticate, authorise and throttle) and one after (metrics).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_kafkalite.broker.connection import Connection, ResponseSlot
from spark_kafkalite.broker.event_log import QuietLog
from spark_kafkalite.broker.io_threads import Lane
from spark_kafkalite.broker.outbox import Response
from spark_kafkalite.broker.page_cache import MOST_LOOK_UPS
from spark_kafkalite.errors import FrameError
from spark_kafkalite.log.fs import NotInMemory, without_waiting
from spark_kafkalite.wire.codec import decode_request, encode_response
from spark_kafkalite.wire.header import read_request_header

if TYPE_CHECKING:
    from spark_kafkalite.broker.context import BrokerContext

logger = logging.getLogger(__name__)

API_VERSIONS_KEY = 18


class Request:
    """What a handler may want to know about the request it serves, beside its body."""

    __slots__ = ("api_key", "api_version", "client_id", "connection", "correlation_id", "slot")

    def __init__(
        self, connection: Connection, api_key: int, api_version: int, correlation_id: int, client_id: str | None
    ) -> None:
        self.connection = connection
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        # The place of the answer, for a handler that may wait; None for the others.
        self.slot: ResponseSlot | None = None

    @property
    def client_host(self) -> str:
        """The client's address as Kafka's tools show it, "/127.0.0.1"."""
        return "/" + self.connection.peer.rpartition(":")[0].strip("[]")

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


RawHandler = Callable[["BrokerContext", Request, memoryview, int], Response | None]
MessageHandler = Callable[["BrokerContext", Request, Any], Any]
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
    only_reads: bool


API_TABLE: dict[int, Api] = {}


def handles(
    key: int,
    min_version: int,
    max_version: int,
    *,
    advertised_from: int | None = None,
    raw: bool = False,
    only_reads: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the handler of API ``key`` for these versions, both inclusive."""

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        if key in API_TABLE:
            raise RuntimeError(f"API {key} has two handlers: {API_TABLE[key].handler} and {handler}")
        # handlers/list_offsets.py serves ListOffsets.
        name = "".join(word.capitalize() for word in handler.__module__.rpartition(".")[2].split("_"))
        advertised = min_version if advertised_from is None else advertised_from
        is_coroutine = inspect.iscoroutinefunction(handler)
        API_TABLE[key] = Api(key, name, min_version, max_version, advertised, handler, raw, is_coroutine, only_reads)
        return handler

    return register


class Dispatcher:
    """Serves the requests of all connections."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._apis = dict(API_TABLE)
        self._tasks: set[asyncio.Task[None]] = set()
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
        if self.before is not None:
            self.before(request)
        try:
            if api.is_raw:
                response = api.handler(self._context, request, frame, position)
                if response is not None:
                    connection.answer(response)
            else:
                message = decode_request(key, version, frame, position)
                if api.is_coroutine:
                    self._start(request, api.handler(self._context, request, message))
                elif api.only_reads:
                    self._serve_from_memory(api, request, message)
                else:
                    answer = api.handler(self._context, request, message)
                    connection.answer(encode_response(answer, version, request.correlation_id))
        except FrameError:
            raise
        except Exception:
            self._report_bug(request)
            connection.close("a handler failed")
        if self.after is not None:
            self.after(request)

    def _serve_from_memory(self, api: Api, request: Request, message: Any) -> None:
        """Answer at once if everything is in memory, and later if not."""
        try:
            with without_waiting():
                answer = api.handler(self._context, request, message)
        except NotInMemory as missing:
            self._start(request, self._read_first(api, request, message, missing))
        else:
            request.connection.answer(encode_response(answer, request.api_version, request.correlation_id))

    async def _read_first(self, api: Api, request: Request, message: Any, missing: NotInMemory) -> Any:
        misses = 0
        while misses < MOST_LOOK_UPS:
            misses += not missing.goes_on
            await self._context.io.run(missing.load, Lane.READ)
            try:
                with without_waiting():
                    return api.handler(self._context, request, message)
            except NotInMemory as again:
                missing = again
        return api.handler(self._context, request, message)

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

    def _start(self, request: Request, work: Coroutine[Any, Any, Any]) -> None:
        """Run a handler that waits; its answer goes into the place that its request has now."""
        slot = request.slot = request.connection.defer()

        async def run() -> None:
            try:
                answer = await work
                slot.complete(encode_response(answer, request.api_version, request.correlation_id))
            except Exception:
                self._report_bug(request)
                slot.fail("a handler failed")

        task = self._context.loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _report_bug(self, request: Request) -> None:
        self._quiet.log(
            logging.ERROR,
            f"bug-{request.api_key}",
            "the handler of API %d version %d failed; its connection to %s is closed",
            request.api_key,
            request.api_version,
            request.connection.peer,
            exc_info=True,
        )

    async def stop(self) -> None:
        """Cancel the handlers that still wait."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

"""Finds the handler of a complete request, calls it, and encodes its response.

Each file in ``handlers/`` registers its function with :func:`handles`, which declares key and versions once. The answer
of ApiVersions and ``docs/protocol.md`` come from the same table. Four kinds of handler:

- ``handles(...)`` on a plain function: gets the decoded request, returns the response message. For requests whose cost
  does not grow with their length.
- a generator function: the same, as work in slices (``slices.py``): it yields between elements. Nearly always one slice
  is enough, and the answer leaves at once.
- a coroutine function: may wait; runs as a task. What may take long in it runs in slices, too (``context.work``). One
  that waits for what other clients do declares it (``waits_for_clients``): it is never inside the gate.
- ``handles(..., raw=True)``: gets the request's bytes and returns packed bytes (none when no answer is owed), or None
  when it has deferred its answer, or work in slices that returns these. Only what comes by the thousands a second,
  Produce, Fetch and OffsetCommit: no message objects and no task on these paths.

No request holds the loop for long, whatever it names. A large one is decoded in slices, its handler works in slices,
and its answer is encoded in slices. Meanwhile, and while a coroutine has not answered, its connection is not served, as
in Apache Kafka. Large requests, and small ones whose work is long, go through the gate (``gate``): a few are worked on
at a time, the others wait in the buffers in which they arrived. Only a Produce may be larger than
``_MOST_DECODED_BYTES``.

What cannot be answered closes the connection, as in Kafka: an unknown API or version, a request that cannot be decoded,
and a bug in a handler, whose traceback is logged. The layout of an answer to an unknown version is unknown; only
ApiVersions has one.

A ``slow_requests.RequestWatch`` chooses what learns the times of an exchange. An exchange gets its client's quota, if
the client has one. Rights are asked for by handlers, item by item (``exchange.may``): one request may name topics of
which its client may use some only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from dataclasses import dataclass
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, Protocol

from spark_kafkalite.broker.authentication.authentication import AuthenticationRefused
from spark_kafkalite.broker.network.connection import Connection
from spark_kafkalite.broker.network.session import COMPLETE, Handshake, Session
from spark_kafkalite.broker.requests.exchange import Exchange, Quota
from spark_kafkalite.broker.requests.slow_requests import RequestWatch
from spark_kafkalite.coordinator.internal_topic import GROUPS
from spark_kafkalite.errors import FrameError
from spark_kafkalite.net.outbox import Response, as_response
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.records.admission import INLINE_BATCH_BYTES
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.codec import (
    decode_request,
    decode_request_in_slices,
    encode_response,
    encode_response_in_slices,
)
from spark_kafkalite.wire.header import read_request_header
from spark_kafkalite.wire.message import ApiMessage, dismantle
from spark_kafkalite.wire.rights import NEEDS, NOTHING, Need

if TYPE_CHECKING:
    from spark_kafkalite.broker.context import BrokerContext

logger = logging.getLogger(__name__)

# What a request of this many bytes names is served in a few milliseconds, at once.
SMALL_REQUEST_BYTES = 32 * 1024
# Twice what a group's members may say of themselves (group.max.bytes); a thousand topics take a hundredth of it.
_MOST_DECODED_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServedApi:
    """One API and its handler; versions are inclusive. ``advertised_from`` is what clients hear for ``min_version``."""

    key: ApiKey
    min_version: int
    max_version: int
    advertised_from: int
    handler: Callable[..., Any]
    is_raw: bool
    waits_for_clients: bool = False
    brokers_only: bool = False
    groups_of: Callable[[Any], Iterable[str]] | None = None
    needs: tuple[Need, ...] = NOTHING

    @property
    def name(self) -> str:
        """Kafka's name of it."""
        return self.key.api_name


SERVED_APIS: dict[int, ServedApi] = {}


def handles(
    key: ApiKey,
    min_version: int,
    max_version: int,
    *,
    advertised_from: int | None = None,
    raw: bool = False,
    waits_for_clients: bool = False,
    brokers_only: bool = False,
    groups_of: Callable[[Any], Iterable[str]] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the handler of API ``key`` for these versions, both inclusive.

    ``wire.rights`` has the rights that it needs; RuntimeError for an API without an entry there. The handler asks
    for them (``exchange.may``) before it looks anything up. ``brokers_only`` is for what the brokers of a cluster ask
    each other: it is not advertised, and a client that asks is closed. ``groups_of`` gives the groups that a request
    names, of an API that only their coordinator may answer (``requests.coordination``).
    """
    if key not in NEEDS:
        raise RuntimeError(f"API {key} has no entry in wire.rights.NEEDS: add the rights that it needs")

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        if key in SERVED_APIS:
            raise RuntimeError(f"API {key} has two handlers: {SERVED_APIS[key].handler} and {handler}")
        advertised = min_version if advertised_from is None else advertised_from
        SERVED_APIS[key] = ServedApi(
            key,
            min_version,
            max_version,
            advertised,
            handler,
            raw,
            waits_for_clients,
            brokers_only,
            groups_of,
            NEEDS[key],
        )
        return handler

    return register


class QuotaSource(Protocol):
    """Knows the quota of each client. ``are_set``: whether there are quotas at all."""

    are_set: bool

    def of(self, session: Session, client_id: str | None) -> Quota | None:
        """Return the quota of a client, None if nothing limits it."""


class Dispatcher:
    """Serves the requests of all connections."""

    def __init__(
        self,
        context: BrokerContext,
        apis: Mapping[int, ServedApi] = SERVED_APIS,
        watch: RequestWatch | None = None,
        quotas: QuotaSource | None = None,
    ) -> None:
        """``apis`` are those served, by key."""
        self._context = context
        self._apis = apis
        self._watch = watch
        self._quotas = quotas
        self._tasks: set[asyncio.Task[None]] = set()
        # What ends the work that one slice did not finish.
        self._late: dict[Exchange, Callable[[], None]] = {}
        self._gate = context.gate
        self._quiet = QuietLog(logger)

    def serve(self, connection: Connection, frame: memoryview) -> None:
        """Serve one request, valid in memory until this returns. Raises FrameError when it cannot be read."""
        session = connection.session
        if session.handshake is not COMPLETE and self._serve_token(connection, frame):
            return
        header, position = read_request_header(frame)
        key, version, _, _ = header
        api = self._apis.get(key)
        seen_by = None if self._watch is None or api is None else self._watch.next(key)
        exchange = Exchange(connection, header, len(frame), seen_by)
        if seen_by is not None:
            exchange.started()
        if self._quotas is not None and self._quotas.are_set:
            exchange.quota = self._quotas.of(connection.session, exchange.client_id)
        if session.fetch_session is not None:
            # A fetch that waits would keep all answers back, and a follower that has more to ask for from asking.
            session.fetch_session.end_wait()
        if api is None or not api.min_version <= version <= api.max_version:
            self._answer_unserved(exchange)
            return
        if api.brokers_only and session.broker_id is None:
            raise FrameError(f"{api.name} is answered only to the brokers of the cluster")
        if len(frame) > _MOST_DECODED_BYTES and key != ApiKey.PRODUCE:
            raise FrameError(
                f"{api.name} has {len(frame)} bytes, at most {_MOST_DECODED_BYTES} are possible; ask for less at a time"
            )
        counts_time = exchange.quota is not None and exchange.resume()
        try:
            if api.is_raw:
                self._serve_raw(api, exchange, frame, position)
            elif len(frame) <= SMALL_REQUEST_BYTES:
                self._serve_small(api, exchange, decode_request(key, version, frame, position))
            else:
                self._work(exchange, self._large(api, exchange, exchange.keep(frame), position))
        except FrameError:
            raise
        except Exception:
            self._report_bug(exchange)
            exchange.close("a handler failed")
        finally:
            if counts_time:
                exchange.pause()

    def _serve_token(self, connection: Connection, frame: memoryview) -> bool:
        """Serve what is a token and not a request, or raise FrameError for a request that is not served before the
        client has authenticated. Return whether it was served."""
        session = connection.session
        if session.handshake is not Handshake.RAW:
            # Without a look at the rest of the request. One of less than two bytes is not read either.
            api_key = int.from_bytes(frame[:2], signed=True)
            if session.handshake is Handshake.EXPIRED and api_key != ApiKey.SASL_HANDSHAKE:
                # Many clients do not know of lifetimes, so it is nothing hostile.
                connection.close("its session has expired (connections.max.reauth.ms)")
                return True
            session.check_request(api_key)
            return False
        exchange = Exchange(connection, (ApiKey.SASL_AUTHENTICATE, 0, 0, None), len(frame))
        self._start(exchange, self._answered_token(exchange, bytes(frame)))
        return True

    async def _answered_token(self, exchange: Exchange, token: bytes) -> None:
        """Answer a token that came after SaslHandshake version 0: it has no header, and its answer has no room
        for an error."""
        try:
            said = await self._context.authentication.answer(exchange.session, token, exchange.connection.now_s)
        except AuthenticationRefused as refused:
            await asyncio.sleep(refused.delay_s)
            exchange.close("failed to authenticate")
            return
        if said.delay_s:
            await asyncio.sleep(said.delay_s)
        if exchange.session.handshake is Handshake.COMPLETE:
            exchange.connection.allow_large_requests()
        # In this form an empty token is sent, too.
        exchange.answer(([said.token], len(said.token)))

    def _serve_raw(self, api: ServedApi, exchange: Exchange, frame: memoryview, position: int) -> None:
        response = api.handler(self._context, exchange, frame, position)
        if type(response) is GeneratorType:
            # A Produce takes little more than its own bytes, which are counted, and waits for nobody's large request.
            is_gated = len(frame) > INLINE_BATCH_BYTES or api.key is not ApiKey.PRODUCE
            self._work(exchange, self._gate.through(response) if is_gated else response)
        elif response is not None:
            exchange.answer(response)

    def _serve_small(self, api: ServedApi, exchange: Exchange, message: ApiMessage) -> None:
        if api.groups_of is not None and not self._context.coordinators[GROUPS].coordination.is_certain:
            self._start(exchange, self._when_confirmed(api, exchange, message))
            return
        answer = api.handler(self._context, exchange, message)
        if type(answer) is CoroutineType:
            self._start(exchange, answer)
        elif type(answer) is GeneratorType:
            self._work(exchange, self._gate.when_long(self._answered(exchange, answer)))
        else:
            if exchange.quota is not None:
                self._throttle(exchange, answer)
            exchange.answer(encode_response(answer, exchange.api_version, exchange.correlation_id))

    def _large(self, api: ServedApi, exchange: Exchange, frame: memoryview, position: int) -> Work[Response | None]:
        """Decode a large request, call its handler, and encode the answer, all of it inside the gate."""
        yield from self._gate.enter()
        is_inside = True
        try:
            message = yield from decode_request_in_slices(exchange.api_key, exchange.api_version, frame, position)
            if api.groups_of is not None and not self._context.coordinators[GROUPS].coordination.is_certain:
                # It waits for followers, and not inside.
                self._start(exchange, self._when_confirmed(api, exchange, message), message)
                return None
            answer = api.handler(self._context, exchange, message)
            if type(answer) is CoroutineType:
                # From here on it is the coroutine that is inside, if it may be.
                exchange.is_inside = not api.waits_for_clients
                is_inside = api.waits_for_clients
                self._start(exchange, answer, message)
                return None
            if type(answer) is not GeneratorType:
                return (yield from self._encoded(exchange, answer))
            response = yield from self._answered(exchange, answer)
            yield from dismantle(message)
            return response
        finally:
            if is_inside:
                self._gate.leave()

    async def _when_confirmed(self, api: ServedApi, exchange: Exchange, message: ApiMessage) -> Any:
        """Call a handler of groups once it is certain that this broker coordinates them, or have it answer that it does
        not."""
        assert api.groups_of is not None
        context = self._context
        coordination = context.coordinators[GROUPS].coordination
        partitions = await context.work(exchange, coordination.partitions_of(api.groups_of(message)))
        question = asyncio.ensure_future(coordination.confirm(partitions))

        def abandoned() -> None:
            question.cancel()

        exchange.call_if_abandoned(abandoned)
        if not await question:
            context = context.not_coordinating()
        answer = api.handler(context, exchange, message)
        if type(answer) is CoroutineType:
            return await answer
        return await context.work(exchange, answer) if type(answer) is GeneratorType else answer

    def _throttle(self, exchange: Exchange, answer: ApiMessage) -> None:
        """Write into an answer for how long its client is kept waiting after it."""
        throttle_ms = exchange.throttle_time_ms()
        if throttle_ms and hasattr(answer, "throttle_time_ms"):
            answer.throttle_time_ms = throttle_ms

    def _answered(self, exchange: Exchange, work: Generator[Any, None, Any]) -> Work[Response]:
        answer = yield from work
        return (yield from self._encoded(exchange, answer))

    def _encoded(self, exchange: Exchange, answer: ApiMessage) -> Work[Response]:
        if exchange.quota is not None:
            self._throttle(exchange, answer)
        body = yield from encode_response_in_slices(answer, exchange.api_version, exchange.correlation_id)
        if len(body) > SMALL_REQUEST_BYTES:
            yield from dismantle(answer)
        return as_response(body)

    def _work(self, exchange: Exchange, work: Work[Response | None]) -> None:
        """Run work that gives the response, or None when it has deferred the answer.

        If one slice is not enough the answer gets its place and the connection waits.
        """
        connection = exchange.connection
        is_late = False

        def done(response: Response | None, error: BaseException | None) -> None:
            exchange.work_done()
            if is_late:
                del self._late[exchange]
                connection.release()
            elif error is not None:
                raise error
            if isinstance(error, FrameError):
                exchange.close(f"sent a request that cannot be read: {error}", hostile=True)
            elif error is not None:
                self._report_bug(exchange, error)
                exchange.close("a handler failed")
            elif response is not None:
                exchange.answer(response)

        drop = self._context.slices.start(exchange.counted(work), done)
        if drop is None:
            return

        def abandoned() -> None:
            if self._late.pop(exchange, None) is not None:
                drop()
                exchange.work_done()

        is_late = True
        self._late[exchange] = abandoned
        connection.hold()
        exchange.place()
        exchange.call_if_abandoned(abandoned)

    def _answer_unserved(self, exchange: Exchange) -> None:
        """Answer a request of an API or version that is not served, or raise FrameError, which closes."""
        if exchange.api_key == ApiKey.API_VERSIONS:
            # A newer client learns from a version 0 answer which version to use. Source: KIP-511.
            answer = self._apis[ApiKey.API_VERSIONS].handler(self._context, exchange, None)
            exchange.answer(encode_response(answer, 0, exchange.correlation_id))
            return
        api = self._apis.get(exchange.api_key)
        served = "this API is not served" if api is None else f"served are {api.min_version} to {api.max_version}"
        raise FrameError(f"API {exchange.api_key} version {exchange.api_version}: {served}")

    def _start(self, exchange: Exchange, work: Coroutine[Any, Any, Any], large: ApiMessage | None = None) -> None:
        """Run a handler that waits; its answer goes into the place that its request has now."""
        exchange.defer()
        exchange.connection.hold()

        async def run() -> None:
            try:
                answer = await work
                if answer is not None:
                    exchange.answer(await self._context.slices.run(self._encoded(exchange, answer)))
                if large is not None:
                    await self._context.slices.run(dismantle(large))
            except Exception as error:
                self._report_bug(exchange, error)
                exchange.close("a handler failed")
            finally:
                exchange.connection.release()
                if exchange.is_inside:
                    self._gate.leave()

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            # A task that is cancelled before its first step never comes to the work.
            work.close()

        task = self._context.loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(ended)

    def _report_bug(self, exchange: Exchange, error: BaseException | None = None) -> None:
        self._quiet.log(
            logging.ERROR,
            f"bug-{exchange.api_key}",
            "the handler of API %d version %d failed; its connection to %s is closed",
            exchange.api_key,
            exchange.api_version,
            exchange.session.peer,
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

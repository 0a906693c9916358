"""One request and its answer: an exchange begins when the request is read and ends when the answer's last byte is sent.

A handler gets the exchange together with the request's body. :meth:`Exchange.answer` is the only exit: at once, or
later after :meth:`Exchange.defer`, which keeps the answer's place in the connection's order. A handler that cannot
answer closes the connection (:meth:`Exchange.close`).

An :class:`Oversight`, such as metrics, learns the times of an exchange; without one they are not taken, which costs
nothing. A client's :class:`Quota` decides how long the client is throttled after an answer. Rights are asked for by
handlers, item by item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Protocol, TypeVar, cast

from spark_kafkalite.acls import CLUSTER_NAME, OPERATIONS, Operation, ResourceType
from spark_kafkalite.broker.network.session import Session
from spark_kafkalite.net.outbox import Response
from spark_kafkalite.net.request_memory import KeptMemory
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.header import RequestHeader
from spark_kafkalite.wire.rights import refused

# All that can be done with each type of resource, as bits.
_EVERYTHING = {kind: sum(1 << operation for operation in operations) for kind, operations in OPERATIONS.items()}

T = TypeVar("T")


class HasName(Protocol):
    name: str


NamedTopic = TypeVar("NamedTopic", bound=HasName)


class Carrier(Protocol):
    """The connection that an exchange goes over, as far as the exchange knows it; see ``connection.Connection``."""

    session: Session
    # When the bytes of the request being served came.
    received_s: float

    def now_s(self) -> float:
        """The loop's time."""

    def answered(self, exchange: Exchange) -> None:
        """Send the exchange's answer when those before it have left."""

    def send_answers(self) -> None:
        """Send now what would be sent soon."""

    def take_place(self, exchange: Exchange) -> None:
        """Have answers to later requests wait behind this one."""

    def hold(self) -> None:
        """Serve no further request until :meth:`release` is called as often."""

    def release(self) -> None:
        """Go on with the requests that came meanwhile."""

    def mute(self, seconds: float) -> None:
        """Serve no further request for some time."""

    def allow_large_requests(self) -> None:
        """Take requests of any allowed size, although the session began with a handshake."""

    def keep(self, frame: memoryview) -> tuple[memoryview, Callable[[], None]]:
        """Return memory with the request being served that stays as it is until the returned function is called."""

    def close(self, reason: str, *, hostile: bool = False) -> None:
        """Close at once. ``hostile``: the peer broke the protocol or a limit."""


class Oversight(Protocol):
    """Learns the times of exchanges. Must not block."""

    def ended(self, exchange: Exchange, times: Times) -> None:
        """Take note of the times: the last byte of the answer was sent, or the connection closed before (``sent_s``
        0). Once for an exchange."""


class Quota(Protocol):
    """What a client may do in a time; see ``broker.quotas``. ``counts_time``: whether it needs ``worked_s``."""

    counts_time: bool

    def throttle_time_ms(self, exchange: Exchange, response_bytes: int) -> int:
        """Charge the client for one exchange, and return for how long it is throttled after the answer (KIP-219).

        ``response_bytes`` is the size of the records that a Fetch would answer with, else 0. If a Fetch is throttled
        its client is not charged for them, because the answer that is sent then has none.
        """

    def most_fetch_bytes(self, asked: int) -> int:
        """Return how many record bytes a Fetch that asks for so many may answer with."""


class Times:
    """How an exchange went on, in seconds of the loop's clock; 0 until it happens.

    ``arrived_s`` the request's last byte was read; ``started_s`` its handler was called; ``deferred_s`` the handler
    began to wait, if it did; ``answered_s``; ``sent_s`` the answer's last byte was given to the system.
    """

    __slots__ = ("answered_s", "arrived_s", "deferred_s", "sent_s", "started_s")

    def __init__(self, arrived_s: float) -> None:
        self.arrived_s = arrived_s
        self.started_s = self.deferred_s = self.answered_s = self.sent_s = 0.0

    @property
    def waited_s(self) -> float:
        """How long the answer waited for something else than this request's own work."""
        return self.answered_s - self.deferred_s if self.deferred_s and self.answered_s else 0.0


class Exchange:
    """See the module's text. ``times`` is set under an oversight, until the exchange has ended."""

    __slots__ = (
        "_kept",
        "_on_abandon",
        "_resumed_s",
        "_worked_s",
        "abandoned",
        "api_key",
        "api_version",
        "client_id",
        "connection",
        "correlation_id",
        "has_place",
        "is_inside",
        "oversight",
        "quota",
        "request_bytes",
        "response",
        "throttle_ms",
        "times",
    )

    def __init__(
        self,
        connection: Carrier,
        header: RequestHeader,
        request_bytes: int = 0,
        oversight: Oversight | None = None,
    ) -> None:
        self.connection = connection
        self.api_key, self.api_version, self.correlation_id, self.client_id = header
        self.request_bytes = request_bytes
        self.oversight = oversight
        self.response: Response | None = None
        # Whether it stands in its connection's order already.
        self.has_place = False
        # Whether all that is done for it is inside the gate.
        self.is_inside = False
        self.abandoned = False
        # The dispatcher's unfinished work, and a handler's waiting operation.
        self._on_abandon: list[Callable[[], None]] = []
        self._kept: KeptMemory | None = None
        self.times = None if oversight is None else Times(connection.received_s)
        # What its client may do; None if nothing limits it.
        self.quota: Quota | None = None
        # -1: not asked for yet.
        self.throttle_ms = -1
        # For how long it was worked on before, and since when it is being worked on; 0 while it is not.
        self._worked_s = self._resumed_s = 0.0

    @property
    def session(self) -> Session:
        """The client that asks."""
        return self.connection.session

    def started(self) -> None:
        """Note that the handler is called next."""
        if self.times is not None:
            self.times.started_s = self.connection.now_s()

    # Rights ---------------------------------------------------------------------------------------------------------

    def may(
        self,
        operation: Operation,
        resource_type: ResourceType,
        name: str | None = CLUSTER_NAME,
        *,
        is_probe: bool = False,
    ) -> bool:
        """Whether the client may do this with the resource of this name; None: with any of its type.

        ``is_probe``: another right may do as well, or what is denied is left out. A denial is not written to the audit
        log then.
        """
        rights = self.session.rights
        return rights is None or rights.may(self.api_key, operation, resource_type, name, is_probe=is_probe)

    def require(self, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> None:
        """Raise the refusal of that type (29, 30, 31, 53) unless the client may do this."""
        rights = self.session.rights
        if rights is not None and not rights.may(self.api_key, operation, resource_type, name):
            raise refused(resource_type)

    def divided(self, operation: Operation, topics: Iterable[NamedTopic]) -> Work[tuple[list[NamedTopic], list[str]]]:
        """Return the topics with which the client may do this, and the names of the others, each once."""
        allowed: list[NamedTopic] = []
        forbidden: dict[str, None] = {}
        for topic in topics:
            yield None
            if self.may(operation, ResourceType.TOPIC, topic.name):
                allowed.append(topic)
            else:
                forbidden[topic.name] = None
        return allowed, list(forbidden)

    def operations_on(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return all that the client may do with a resource, as Metadata and the Describe APIs name it: bits that are
        numbered by ``Operation``. Source: AuthHelper.authorizedOperations."""
        rights = self.session.rights
        return _EVERYTHING[resource_type] if rights is None else rights.operations_on(resource_type, name)

    @property
    def has_limits(self) -> bool:
        """Whether there is anything that the client may not do."""
        rights = self.session.rights
        return rights is not None and not rights.is_unlimited

    # The answer -----------------------------------------------------------------------------------------------------

    def answer(self, response: Response) -> None:
        """Give the answer (an empty one sends nothing); it leaves when those to earlier requests have.

        Does nothing when the connection has closed meanwhile. Raises RuntimeError for a second answer.
        """
        if self.response is not None:
            raise RuntimeError(f"{self} is answered once")
        self._on_abandon.clear()
        self.response = response
        if self.times is not None:
            self.times.answered_s = self.connection.now_s()
        if self.quota is not None:
            if self.throttle_ms < 0:
                self.throttle_time_ms()
            if self.throttle_ms > 0:
                self.connection.mute(self.throttle_ms / 1000)
        self.connection.answered(self)

    def throttle_time_ms(self, response_bytes: int = 0) -> int:
        """Return the throttle time that the answer contains. Asked once for an exchange; see ``Quota``."""
        if self.quota is None:
            return 0
        self.throttle_ms = self.quota.throttle_time_ms(self, response_bytes)
        return self.throttle_ms

    # The work -------------------------------------------------------------------------------------------------------

    @property
    def worked_s(self) -> float:
        """For how many seconds the loop has worked on this request, if its client's quota counts that."""
        return self._worked_s + (perf_counter() - self._resumed_s if self._resumed_s else 0.0)

    def resume(self) -> bool:
        """Note that the work on it begins, or goes on, for a quota that counts it; return whether :meth:`pause` has to
        follow."""
        if self.quota is None or not self.quota.counts_time or self._resumed_s:
            return False
        self._resumed_s = perf_counter()
        return True

    def pause(self) -> None:
        """Note that other work follows."""
        self._worked_s += perf_counter() - self._resumed_s
        self._resumed_s = 0.0

    def counted(self, work: Work[T]) -> Work[T]:
        """Return work in slices with the time that it takes counted, if its client's quota counts that."""
        if self.quota is None or not self.quota.counts_time:
            return work
        return self._counted(work)

    def _counted(self, work: Work[T]) -> Work[T]:
        try:
            while True:
                resumed = self.resume()
                try:
                    step = next(work)
                except StopIteration as done:
                    return cast(T, done.value)
                finally:
                    if resumed:
                        self.pause()
                yield step
        finally:
            work.close()

    def place(self) -> None:
        """Have a place for the answer now; answers to later requests wait behind it."""
        if not self.has_place:
            self.connection.take_place(self)

    def defer(self) -> None:
        """Have :meth:`answer` called later, and keep the answer's place."""
        if self.times is not None and not self.times.deferred_s:
            self.times.deferred_s = self.connection.now_s()
        self.place()

    def close(self, reason: str, *, hostile: bool = False) -> None:
        """Close the connection, because no answer can be given."""
        self.connection.close(reason, hostile=hostile)

    def call_if_abandoned(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called, too, if the connection closes before the answer; at once if it has already."""
        if self.abandoned:
            callback()
        else:
            self._on_abandon.append(callback)

    # For the connection ---------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Note that the connection is gone, and notify the code that would have answered."""
        self.abandoned = True
        callbacks, self._on_abandon = self._on_abandon, []
        for callback in callbacks:
            callback()
        self.ended(sent=False)

    def ended(self, *, sent: bool) -> None:
        """Notify the oversight that this exchange has no more to come."""
        if self.oversight is None or self.times is None:
            return
        if sent:
            self.times.sent_s = self.connection.now_s()
        oversight, self.oversight = self.oversight, None
        times, self.times = self.times, None
        oversight.ended(self, times)

    # The request's memory -------------------------------------------------------------------------------------------

    def keep(self, frame: memoryview) -> memoryview:
        """Return the request's bytes in memory that stays as it is until the work on the request is done."""
        kept, give_back = self.connection.keep(frame)
        self._kept = KeptMemory(give_back)
        return kept

    def keep_part(self, part: memoryview) -> tuple[memoryview, Callable[[], None]]:
        """Return a part of the request's bytes in memory that stays as it is until the returned function is called.

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

    def __repr__(self) -> str:
        return f"<Exchange api={self.api_key} v{self.api_version} #{self.correlation_id} with {self.session.peer}>"

"""A group's coordinator: finds it, sends it requests, and finds it again when it moves.

Owns the look-up (FindCoordinator) and its memory, and the list of errors that mean "ask again": the coordinator loads
(14), none is available at present (15), another broker is it (16), its write took too long (7), the connection broke.
Such requests are repeated until the deadline, with the pauses of ``retry.backoff.ms``. The caller handles everything
else in an answer. The coordinator may have done a repeated request already, so it must be safe to repeat; requests of
groups are.

Short requests share the client's one connection to that broker; a request that the broker may hold for minutes
(JoinGroup, SyncGroup) needs a connection of its own: :meth:`CoordinatorLink.connect`.

Thread-safe.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any, Final

from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.metadata import Node
from spark_kafkalite.client.network.retry import Backoff, Deadline
from spark_kafkalite.errors import (
    BrokerUnreachable,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaliteError,
    NotCoordinator,
    RequestTimedOut,
)
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.error_codes import error_for
from spark_kafkalite.wire.message import Message
from spark_kafkalite.wire.messages.find_coordinator import FindCoordinatorRequest
from spark_kafkalite.wire.rights import refusal

_LOG = logging.getLogger("spark_kafkalite.client")

_GROUP_KEY_TYPE: Final = 0
# After some seconds, in which a coordinator is usually found: who waits for it should know why.
_TOLD_OF_ATTEMPT: Final = 6

# After these the same request may succeed; all but the first also say that the coordinator may be another broker now.
RETRIED_CODES: Final = frozenset(
    {CoordinatorLoadInProgress.code, CoordinatorNotAvailable.code, NotCoordinator.code, RequestTimedOut.code}
)


class CoordinatorLink:
    """One group's coordinator, found when it is first needed."""

    def __init__(self, cluster: ClusterClient, group_id: str) -> None:
        self.cluster = cluster
        self.group_id = group_id
        self._lock = threading.Lock()
        self._node: Node | None = None

    def __repr__(self) -> str:
        return f"CoordinatorLink({self.group_id!r}, {self})"

    def __str__(self) -> str:
        node = self._node
        return "coordinator not known" if node is None else f"coordinator {node}"

    def node(self, deadline: Deadline) -> Node:
        """Return the broker that coordinates the group, asking for it unless it is known.

        Waits while there is none, as while ``__consumer_offsets`` is made. Raises CoordinatorNotAvailable (15) or
        BrokerUnreachable at the deadline, and what does not pass, such as GroupAuthorizationFailed (30), at once.
        """
        node = self._node
        if node is not None:
            return node
        backoff = self._backoff()
        while True:
            try:
                node = self._find(deadline)
            except KafkaliteError as error:
                pause_s = backoff.next_s()
                if not error.retriable or deadline.left_s() <= pause_s:
                    raise
                if backoff.attempts == _TOLD_OF_ATTEMPT:
                    _LOG.warning("%s; it is tried again", error)
                self.cluster.pause(pause_s)
            else:
                with self._lock:
                    self._node = node
                return node

    def _find(self, deadline: Deadline) -> Node:
        # Both forms: versions before 4 ask for one key, later ones for a list.
        request = FindCoordinatorRequest(key=self.group_id, key_type=_GROUP_KEY_TYPE, coordinator_keys=[self.group_id])
        attempt = deadline.earlier_of(self.cluster.config.request_timeout_ms)
        answer = self.cluster.request_any(ApiKey.FIND_COORDINATOR, request, attempt)
        found = answer.coordinators[0] if answer.coordinators else answer
        if found.error_code:
            why = found.error_message or "no coordinator was found"
            raise refusal(ApiKey.FIND_COORDINATOR, found.error_code, f"group {self.group_id!r}: {why}")
        known = self.cluster.snapshot.nodes.get(found.node_id)
        if known is None or (known.host, known.port) != (found.host, found.port):
            known = self.cluster.refresh([], attempt).nodes.get(found.node_id)
        if known is None:
            raise CoordinatorNotAvailable(
                f"group {self.group_id!r}: its coordinator, broker {found.node_id} at {found.host}:{found.port}, is "
                "not among the live brokers of the cluster"
            )
        return known

    def forget(self, node: Node | None = None) -> None:
        """Look the coordinator up again when it is next needed, if it is still ``node`` (None: in any case)."""
        with self._lock:
            if node is None or self._node == node:
                self._node = None

    def call(self, request: Any, deadline: Deadline) -> Any:
        """Send a request to the coordinator, again while it cannot be done at present, and return the answer.

        Codes in the answer other than :data:`RETRIED_CODES` are the caller's. Raises the last error at the deadline,
        and UnsupportedVersion when coordinator and client share no version.
        """
        name = request.API_KEY.api_name
        backoff = self._backoff()
        while True:
            node = self.node(deadline)
            error: KafkaliteError
            try:
                attempt = deadline.earlier_of(self.cluster.config.request_timeout_ms)
                answer = self.cluster.request_to(node.node_id, request.API_KEY, request, attempt)
            except BrokerUnreachable as failure:
                self.forget(node)
                error = BrokerUnreachable(f"group {self.group_id!r}: {name} failed: {failure}")
                error.__cause__ = failure
            else:
                code = next((each for each in error_codes(answer) if each in RETRIED_CODES), 0)
                if not code:
                    return answer
                if code != CoordinatorLoadInProgress.code:
                    self.forget(node)
                error = error_for(code, f"group {self.group_id!r}: coordinator {node} cannot do {name} at present")
            pause_s = backoff.next_s()
            if deadline.left_s() <= pause_s:
                raise error
            self.cluster.pause(pause_s)

    def attempt(self, request: Any, deadline: Deadline) -> None:
        """Send a request once if the coordinator is known, and take any answer: for what may fail when one leaves."""
        node = self._node
        if node is not None:
            attempt = deadline.earlier_of(self.cluster.config.request_timeout_ms)
            self.cluster.request_to(node.node_id, request.API_KEY, request, attempt)

    def connect(self, deadline: Deadline) -> tuple[Node, BrokerConnection]:
        """Open a connection of the caller's own to the coordinator. Raises BrokerUnreachable, having forgotten it."""
        node = self.node(deadline)
        try:
            return node, self.cluster.connect(node.node_id, deadline)
        except BrokerUnreachable:
            self.forget(node)
            raise

    def _backoff(self) -> Backoff:
        config = self.cluster.config
        return Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)


def error_codes(answer: Message) -> Iterator[int]:
    """Yield every error code in an answer, wherever it stands: for the whole, a group, a member or a partition."""
    for name in answer.__slots__:
        value = getattr(answer, name)
        if name == "error_code":
            if value:
                yield value
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, Message):
                    yield from error_codes(each)

"""Closes the connections that a deleted credential has opened: a thief of it is served no longer.

Every broker follows the credentials (``scram_users``), so all brokers do it. Apache Kafka leaves such connections open
until they authenticate again (``connections.max.reauth.ms``). A new password leaves them open here too, so that clients
can be given it one after the other.

The connections end a moment after the deletion: the client that asked for it may be of the same user, and receives the
answer first. All deletions of that moment share one pass over the connections, in slices.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from spark_kafkalite.broker.network.connection import Connection
from spark_kafkalite.broker.requests.administrative_log import MOST_NAMED, some_of
from spark_kafkalite.slices import Slices, Work

logger = logging.getLogger(__name__)

_AFTER_S: Final = 0.5
_LOOKED_AT_ONCE: Final = 100


class EndedSessions:
    """See the module's text. Lives in one event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, slices: Slices, connections: Callable[[], Collection[Connection]]
    ) -> None:
        """``connections`` are all that are open."""
        self._loop = loop
        self._slices = slices
        self._connections = connections
        # When a credential was deleted, by mechanism and principal; the loop's clock.
        self._deleted_s: dict[tuple[str, str], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def credential_deleted(self, mechanism: str, user: str) -> None:
        """Close the connections that this credential has opened."""
        self._deleted_s[mechanism, f"User:{user}"] = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(_AFTER_S, self._begin)

    def stop(self) -> None:
        """Close nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        self._timer = None
        deleted_s, self._deleted_s = self._deleted_s, {}
        self._slices.start(self._close(deleted_s), self._closed)

    def _close(self, deleted_s: dict[tuple[str, str], float]) -> Work[Counter[str]]:
        """Return how many connections were closed, by principal."""
        closed: Counter[str] = Counter()
        for number, connection in enumerate(list(self._connections())):
            if number % _LOOKED_AT_ONCE == 0:
                yield None
            session = connection.session
            when_s = deleted_s.get((session.mechanism, session.principal))
            # A user of that name may have been added since.
            if when_s is not None and session.is_authenticated and session.renewed_s <= when_s:
                connection.close(f"the {session.mechanism} credential of {session.principal} has been deleted")
                closed[session.principal] += 1
        return closed

    def _closed(self, closed: Counter[str] | None, error: BaseException | None) -> None:
        if error is not None:
            logger.critical("connections of deleted users may be open", exc_info=error)
        elif closed:
            named = [f"{principal[:100]!r} ({count})" for principal, count in closed.most_common(MOST_NAMED)]
            logger.info(
                "closed %d %s whose credentials have been deleted: %s",
                closed.total(),
                "connection" if closed.total() == 1 else "connections",
                some_of(named, len(closed)),
            )

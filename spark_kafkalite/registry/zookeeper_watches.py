"""The watches of one session with an ensemble, which outlive its connections.

kazoo forgets all watches with a connection. Here they last as long as their session: when the connection is lost, a
read of each watched node is queued before any later request; what changed meanwhile fires then, the others are left
again. (The protocol's own SetWatches does the same, but kazoo cannot send it.)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from kazoo import exceptions as kazoo_errors
from kazoo.protocol.states import WatchedEvent

from spark_kafkalite.registry.store import Watcher, WatchEvent, call_back
from spark_kafkalite.registry.zookeeper_client import EVENT_TYPES, Client, Watch
from spark_kafkalite.registry.zookeeper_errors import translated

_LOG = logging.getLogger(__name__)


class SessionWatches:
    """See the module's text."""

    def __init__(self, client: Client, lock: threading.RLock, abandon: Callable[[], None]) -> None:
        """``lock`` is held while a request is queued, and while the connection or the session ends; ``abandon`` ends
        the session."""
        self._client = client
        self._lock = lock
        self._abandon = abandon
        # kazoo calls a watcher of data and children twice for one deletion, with the same event.
        self._event: WatchedEvent | None = None
        self._told: set[Watcher] = set()
        # Watches of a lost connection whose nodes are to be read, with the last zxid that was seen before.
        self._adrift: dict[Watch, int] = {}
        self._broken_connections = 0

    def _tell(self, watcher: Watcher, event: WatchedEvent) -> None:
        """Call a watcher with an event, unless it was called with this very one."""
        if event is not self._event:
            self._event, self._told = event, set()
        if watcher in self._told:
            return
        self._told.add(watcher)
        call_back(watcher, WatchEvent(EVENT_TYPES[str(event.type)], event.path))

    def watch(self, path: str, watcher: Watcher | None, *, of_children: bool = False) -> Watch | None:
        """Return a watch for kazoo to leave on a node; None without a watcher."""
        return None if watcher is None else Watch(self._tell, path, watcher, of_children)

    def keep(self) -> None:
        """Queue a read of every watched node, with the watch, before kazoo forgets them: the connection has broken. In
        kazoo's connection thread, with the lock."""
        client = self._client
        self._broken_connections += 1
        for added in client.add_again():
            added.rawlink(self._added_again)
        for watch in client.left_watches():
            if not watch.done:
                self._adrift.setdefault(watch, client.last_zxid)
        # By path: a deletion that a watcher of data and children has missed is then told once.
        for watch, seen_zxid in sorted(self._adrift.items(), key=lambda item: item[0].path):
            if watch.of_children:
                read = client.get_children_async(watch.path, watch, include_data=True)
            else:
                read = client.exists_async(watch.path, watch)
            read.rawlink(partial(self._read_again, watch, seen_zxid, self._broken_connections))

    def _added_again(self, result: Any) -> None:
        """End the session if a watch of a tree cannot be left again: what it would report is not to be missed."""
        try:
            result.get_nowait()
        except (kazoo_errors.ConnectionLoss, kazoo_errors.SessionExpiredError):
            return  # it has been queued again, or there is no session any more
        except Exception as error:
            _LOG.error("a new session is needed: %s", translated(error, "/"))
            self._abandon()

    def _read_again(self, watch: Watch, seen_zxid: int, broken_connections: int, result: Any) -> None:
        """Fire a watch if its node has changed while there was no connection. In the store's thread."""
        try:
            answer = result.get_nowait()
        except (kazoo_errors.ConnectionLoss, kazoo_errors.SessionExpiredError):
            return  # it is queued again, or there is no session any more
        except kazoo_errors.NoNodeError:
            missed: str | None = "DELETED"
        except Exception:  # the watcher reads, and meets it
            missed = "CHILD" if watch.of_children else "CHANGED"
        else:
            missed = watch.missed(answer[1] if watch.of_children else answer, seen_zxid)
        with self._lock:
            # Unless the connection that this answer came over, and left the watch on, has broken too.
            if broken_connections == self._broken_connections:
                self._adrift.pop(watch, None)
        if missed is not None:
            event = WatchedEvent(missed, None, watch.path)
            watch(event if event != self._event else self._event)

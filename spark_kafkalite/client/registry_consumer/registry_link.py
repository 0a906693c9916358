"""A client's way to the registry: its present session, and waiting for answers.

A session that has expired is over for good (``registry.store``), so the link gets a new one from its owner; whoever
asks through the link uses the present one. Waiting ends with the link: ``close()`` wakes everybody with ClosedError.

Thread-safe. Not for use in a store's own callbacks, which must not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Final, TypeVar

from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import ClosedError
from spark_kafkalite.registry.store import ConnectionLoss, NodeExists, NoNode, SessionExpired, Store, Watcher

T = TypeVar("T")

_LOOK_S: Final = 0.1


class RegistryLink:
    """The present session, if there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"RegistryLink({'closed' if self._closed else self._store})"

    @property
    def store(self) -> Store:
        """The present session. Raises SessionExpired while there is none, ClosedError after the end."""
        with self._lock:
            if self._closed:
                raise ClosedError("this client has been closed")
            if self._store is None:
                raise SessionExpired("there is no session with the registry at present")
            return self._store

    def replace(self, store: Store | None) -> Store | None:
        """Make ``store`` the present session (None: there is none) and return the former one, for its owner to close.

        Raises ClosedError after the end: the new session is the caller's to close then.
        """
        with self._lock:
            if self._closed and store is not None:
                raise ClosedError("this client has been closed")
            former, self._store = self._store, store
            return former

    def is_present(self, store: Store) -> bool:
        """Whether this session is the present one."""
        with self._lock:
            return self._store is store and not self._closed

    def close(self) -> Store | None:
        """End all waiting, now and later, and return the session for its owner to close."""
        with self._lock:
            self._closed = True
            former, self._store = self._store, None
            return former

    def wait(self, future: Future[T], deadline: Deadline | None = None) -> T:
        """Return an answer. Raises its error, ConnectionLoss at the deadline (None: wait as long as the session lives),
        ClosedError when the link is closed.
        """
        while True:
            left_s = _LOOK_S if deadline is None else min(_LOOK_S, max(0.0, deadline.left_s()))
            try:
                return future.result(left_s)
            except TimeoutError:
                if self._closed:
                    raise ClosedError("this client has been closed") from None
                if deadline is not None and deadline.passed():
                    raise ConnectionLoss("the registry did not answer in time") from None

    def wait_found(self, futures: Iterable[Future[T]], deadline: Deadline | None = None) -> list[T | None]:
        """Return all answers in order, None for nodes that do not exist."""
        found: list[T | None] = []
        for future in futures:
            try:
                found.append(self.wait(future, deadline))
            except NoNode:
                found.append(None)
        return found

    def create_persistent(self, store: Store, path: str) -> None:
        """Make a node, and those above it, unless it exists."""
        try:
            self.wait(store.create(path, make_parents=True))
        except NodeExists:
            return

    def children(
        self, store: Store, path: str, watch: Watcher | None = None, deadline: Deadline | None = None
    ) -> list[str]:
        """Return the names below a path, none when it does not exist; then the watch waits for it."""
        while True:
            try:
                return self.wait(store.children(path, watch), deadline)
            except NoNode:
                if self.wait(store.exists(path, watch), deadline) is None:
                    return []

    def get(self, store: Store, path: str, watch: Watcher | None = None) -> bytes | None:
        """Return a node's data, None when it does not exist; then the watch waits for it."""
        while True:
            try:
                return self.wait(store.get(path, watch))[0]
            except NoNode:
                if self.wait(store.exists(path, watch)) is None:
                    return None

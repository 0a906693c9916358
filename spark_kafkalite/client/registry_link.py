"""A client's connection to the registry: its present session, and waiting for answers.

A session that has expired is over for good (``registry.store``), so the link gets a new one from its owner. Requests
through the link use the present session. A :class:`ZooKeeperLink` opens its sessions itself. Waiting ends with the
link: ``close()`` wakes all waiting threads with ClosedError.

kazoo is imported when a session is opened (:func:`zookeeper_opener`): most programs that load clients need none.

Thread-safe. Not for use in a store's own callbacks, which must not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import ClosedError, RegistryError
from spark_kafkalite.registry.store import (
    ConnectionLoss,
    NodeExists,
    NoNode,
    SessionExpired,
    SessionState,
    Store,
    Watcher,
)

T = TypeVar("T")

_LOOK_S: Final = 0.1
_OPEN_WITHIN_S: Final = 10.0
# For what reaches clients: the address in a broker's own settings is often copied to another host.
_FROM_OTHER_HOSTS: Final = (
    "A broker's registry.listener and 'kafkalite registry' answer on their own host only: from another host use a "
    "ZooKeeper ensemble, or keep offsets with the group's coordinator (Spark: commitOffsets=group; Python: Consumer "
    "with group_id)"
)


class RegistryLink:
    """The present session, if there is one."""

    def __init__(self, *, answer_within_s: float | None = None) -> None:
        """``answer_within_s`` is the patience with one answer where no deadline is given (None: no end to it)."""
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._closed = False
        self._answer_within_s = answer_within_s

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'closed' if self._closed else self._store})"

    def __str__(self) -> str:
        return "the registry"

    @property
    def store(self) -> Store:
        """The present session. Raises SessionExpired while there is none, ClosedError after the end."""
        with self._lock:
            if self._closed:
                raise ClosedError("this client has been closed")
            if self._store is None:
                raise SessionExpired("there is no session with the registry at present")
            return self._store

    def session(self, deadline: Deadline | None = None) -> Store:
        """Return the present session. A link that opens its own does so by the deadline."""
        return self.store

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
        """Return an answer. Raises its error, ConnectionLoss at the deadline (None: the link's patience, or as long as
        the session lives), ClosedError when the link is closed.
        """
        within = "in time"
        if deadline is None and self._answer_within_s is not None:
            deadline = Deadline.after_ms(self._answer_within_s * 1000)
            within = f"within {self._answer_within_s:g} s"
        while True:
            left_s = _LOOK_S if deadline is None else min(_LOOK_S, max(0.0, deadline.left_s()))
            try:
                return future.result(left_s)
            except TimeoutError:
                if self._closed:
                    raise ClosedError("this client has been closed") from None
                if deadline is not None and deadline.passed():
                    raise ConnectionLoss(
                        f"{self} has not answered {within}; is it running, and does it have a majority?"
                    ) from None

    def wait_found(self, futures: Iterable[Future[T]], deadline: Deadline | None = None) -> list[T | None]:
        """Return all answers in order, None for nodes that do not exist."""
        found: list[T | None] = []
        for future in futures:
            try:
                found.append(self.wait(future, deadline))
            except NoNode:
                found.append(None)
        return found

    def names(self, future: Future[list[str]], deadline: Deadline | None = None) -> list[str]:
        """Return the names that a question for children gives, none for a node that does not exist."""
        try:
            return self.wait(future, deadline)
        except NoNode:
            return []

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


class SessionLink(RegistryLink):
    """A link in one of its sessions: once that is over every request raises SessionExpired, whichever came after."""

    def __init__(self, link: RegistryLink, session: Store) -> None:
        super().__init__()
        self._link = link
        self._session = session

    def __str__(self) -> str:
        return str(self._link)

    @property
    def store(self) -> Store:
        """The one session. Raises SessionExpired when it is over, ClosedError when the link is closed."""
        if self._link.store is not self._session:
            raise SessionExpired("the session with the registry has expired, another one has begun")
        return self._session

    def wait(self, future: Future[T], deadline: Deadline | None = None) -> T:
        return self._link.wait(future, deadline)


class ZooKeeperLink(RegistryLink):
    """A link with sessions of its own: opened when one is first needed, and again after one was lost."""

    def __init__(self, connect: str) -> None:
        """``connect`` is ``host:port,...[/chroot]``."""
        super().__init__()
        self._connect = connect

    def __str__(self) -> str:
        return f"ZooKeeper at {self._connect}"

    def session(self, deadline: Deadline | None = None) -> Store:
        """Return a session that lives, opening one by the deadline. Raises ConnectionLoss when no server answers."""
        present = self._store
        if present is not None and present.state is not SessionState.LOST:
            return present
        if present is not None:
            self.replace(None)
            present.close()
        left_s = _OPEN_WITHIN_S if deadline is None else max(0.1, deadline.left_s())
        opened = zookeeper_opener()(self._connect, connect_timeout_s=left_s, make_chroot=False)
        try:
            self.replace(opened)
        except ClosedError:
            opened.close()
            raise
        return opened


def zookeeper_opener() -> Callable[..., Store]:
    """Return ``registry.zookeeper.open_zookeeper`` with the errors of a client. Raises RegistryError where kazoo is
    missing."""
    try:
        from spark_kafkalite.registry.zookeeper import open_zookeeper
    except ImportError as error:
        raise RegistryError(f"kazoo is needed to talk to the registry: {error}") from error

    def opened(connect: str, **settings: Any) -> Store:
        try:
            return open_zookeeper(connect, **settings)
        except ConnectionLoss as error:
            raise ConnectionLoss(f"{error}. {_FROM_OTHER_HOSTS}") from error

    return opened

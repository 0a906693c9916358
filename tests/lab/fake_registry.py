"""Replaces a remote registry in tests: an embedded one whose sessions a test can expire, interrupt and refuse.

The sessions and the tree are real. The module imitates only what a network and an ensemble do to a session:

- The session expires before or after a write or a read.
- The connection breaks, and an answer is lost with it.
- The ensemble does not answer.

The contract tests of every ``Store`` also run on :class:`FakeStore` (tests/contract).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from spark_kafkalite.registry.store import (
    Check,
    ConnectionLoss,
    Request,
    SessionExpired,
    SessionState,
    Store,
    steps_of,
)
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from tests.patience import PATIENCE_S

# A fault of one operation: called with the store and the operation itself, it returns the answer for the caller.
Fault = Callable[["FakeStore", Callable[[], "Future[Any]"]], "Future[Any]"]


class FakeRegistry:
    """The embedded registry. Thread-safe, except for the attributes that a test sets."""

    def __init__(self, directory: Path, session_timeout_ms: int = 6000) -> None:
        self.registry = EmbeddedRegistry(directory)
        # Every session that open_session has returned, oldest first.
        self.sessions: list[FakeStore] = []
        self._session_timeout_ms = session_timeout_ms
        self._reachable = True
        self._waiting: list[Future[Store]] = []
        self._lock = threading.Lock()
        # (text, fault): the fault applies to the next operation on a path that contains the text.
        self._faults: list[tuple[str, Fault]] = []

    def connect(self) -> FakeStore:
        """Open a session to which no fault applies."""
        return FakeStore(self, EmbeddedStore(self.registry, self._session_timeout_ms), None)

    def open_session(self) -> Future[Store]:
        """Open a session for a broker. While the registry is unreachable, the result stays pending."""
        opening: Future[Store] = Future()
        with self._lock:
            if not self._reachable:
                self._waiting.append(opening)
                return opening
        self._open(opening)
        return opening

    def _open(self, opening: Future[Store]) -> None:
        session = FakeStore(self, EmbeddedStore(self.registry, self._session_timeout_ms), self._fault_for)
        self.sessions.append(session)
        opening.set_result(session)

    def expire(self) -> None:
        """Expire the newest session, as an ensemble does when it receives no heartbeat within the timeout."""
        self.registry.expire(self.sessions[-1].session_id).result()

    def become_unreachable(self) -> None:
        """Open no session until :meth:`become_reachable`. Existing sessions continue."""
        with self._lock:
            self._reachable = False

    def become_reachable(self) -> None:
        """Open all pending sessions, and open later ones immediately."""
        with self._lock:
            self._reachable = True
            waiting, self._waiting = self._waiting, []
        for opening in waiting:
            self._open(opening)

    @property
    def is_waited_for(self) -> bool:
        """Whether a caller waits for a session, because the registry is unreachable."""
        return bool(self._waiting)

    def arm(self, path_part: str, fault: Fault) -> None:
        """Apply ``fault`` to the next operation on a path that contains ``path_part``. Faults apply in this order."""
        with self._lock:
            self._faults.append((path_part, fault))

    @property
    def armed(self) -> int:
        """How many faults have not been applied yet."""
        return len(self._faults)

    def _fault_for(self, paths: Sequence[str]) -> Fault | None:
        with self._lock:
            if self._faults and any(self._faults[0][0] in path for path in paths):
                return self._faults.pop(0)[1]
        return None

    def close(self) -> None:
        """End all sessions and release the directory."""
        self.registry.close()

    def __enter__(self) -> FakeRegistry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FakeStore(Store):
    """One session with a :class:`FakeRegistry`; see ``registry.store.Store``."""

    def __init__(
        self,
        owner: FakeRegistry,
        inner: EmbeddedStore,
        fault_for: Callable[[Sequence[str]], Fault | None] | None,
    ) -> None:
        super().__init__(inner.listeners)
        self.owner = owner
        self.inner = inner
        self.is_closed = False
        self._fault_for = fault_for

    def __repr__(self) -> str:
        return f"FakeStore({self.inner!r})"

    @property
    def session_id(self) -> int:
        return self.inner.session_id

    @property
    def session_timeout_ms(self) -> int:
        return self.inner.session_timeout_ms

    @property
    def seen_zxid(self) -> int:
        return self.inner.seen_zxid

    def ask(self, request: Request) -> Future[Any]:
        operation = partial(self.inner.ask, request)
        # A check is no reason for a fault: every write of a controller begins with one.
        paths = [step.path for step in steps_of(request) if not isinstance(step, Check)]
        fault = None if self._fault_for is None else self._fault_for(paths)
        return operation() if fault is None else fault(self, operation)

    def close(self) -> None:
        self.is_closed = True
        self.inner.close()


def expire_before(store: FakeStore, operation: Callable[[], Future[Any]]) -> Future[Any]:
    """A fault: the session expires before the operation."""
    store.owner.registry.expire(store.session_id)
    return operation()


def expire_after(store: FakeStore, operation: Callable[[], Future[Any]]) -> Future[Any]:
    """A fault: the registry performs the operation, and the session expires before the answer arrives."""
    lost: Future[Any] = Future()

    def done(_: Future[Any]) -> None:
        ended = store.owner.registry.expire(store.session_id)
        error = SessionExpired(f"registry session {store.session_id} has ended before the answer came")
        ended.add_done_callback(lambda _: lost.set_exception(error))

    operation().add_done_callback(done)
    return lost


def lose_answer_late(store: FakeStore, operation: Callable[[], Future[Any]]) -> Future[Any]:
    """A fault: as :func:`lose_answer`, but the caller hears of the restored connection before its operation fails."""
    lost: Future[Any] = Future()
    operation().exception(PATIENCE_S)
    store.listeners.report(SessionState.SUSPENDED)
    store.listeners.report(SessionState.CONNECTED)
    lost.set_exception(ConnectionLoss("the connection broke before the answer came"))
    return lost


def lose_answer(store: FakeStore, operation: Callable[[], Future[Any]]) -> Future[Any]:
    """A fault: the registry performs the operation; the connection breaks with the answer and is restored at once."""
    lost: Future[Any] = Future()

    def done(_: Future[Any]) -> None:
        # In the registry's thread, as all reports of a store.
        store.listeners.report(SessionState.SUSPENDED)
        lost.set_exception(ConnectionLoss("the connection broke before the answer came"))
        store.listeners.report(SessionState.CONNECTED)

    operation().add_done_callback(done)
    return lost

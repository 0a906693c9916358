"""One session of this process with the embedded registry: the ``Store`` of :mod:`.store` over :mod:`.embedded`.

Every call is an operation that the registry's writer thread runs in its turn, and fails with SessionExpired once the
session has ended. Session listeners run in that thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.registry.store import (
    ANY_VERSION,
    Create,
    Delete,
    Operation,
    SessionExpired,
    SessionListener,
    SessionListeners,
    SessionState,
    SetData,
    Stat,
    Watcher,
    check_multi,
)

if TYPE_CHECKING:
    from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry


class EmbeddedStore:
    """One session with an :class:`EmbeddedRegistry`; see ``registry.store.Store``."""

    def __init__(self, registry: EmbeddedRegistry, session_id: int, session_timeout_ms: int) -> None:
        self._registry = registry
        self._session_id = session_id
        self._session_timeout_ms = session_timeout_ms
        self._listeners = SessionListeners()
        self._owns_registry = False

    def __repr__(self) -> str:
        return f"EmbeddedStore(session_id={self._session_id}, {self.state.value}, {self._registry!r})"

    @property
    def registry(self) -> EmbeddedRegistry:
        """The registry of this session, for serving it to other processes."""
        return self._registry

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_ms(self) -> int:
        return self._session_timeout_ms

    @property
    def state(self) -> SessionState:
        return self._listeners.state

    def add_session_listener(self, listener: SessionListener) -> None:
        self._listeners.add(listener)

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> Future[str]:
        def run() -> str:
            registry = self._registry
            parents = registry.tree.missing_parents(path) if make_parents else []
            created = Create(path, data, ephemeral=ephemeral, sequential=sequential)
            name: str = registry.apply([*parents, created], self._session_id)[-1]
            return name

        return self._submit(run)

    def get(self, path: str, watch: Watcher | None = None) -> Future[tuple[bytes, Stat]]:
        return self._submit(lambda: self._registry.tree.get(path, self._session_id, watch))

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Future[Stat]:
        return self._submit(lambda: self._registry.apply([SetData(path, data, version)], self._session_id)[0])

    def delete(self, path: str, version: int = ANY_VERSION) -> Future[None]:
        return self._submit(lambda: self._registry.apply([Delete(path, version)], self._session_id)[0])

    def exists(self, path: str, watch: Watcher | None = None) -> Future[Stat | None]:
        return self._submit(lambda: self._registry.tree.exists(path, self._session_id, watch))

    def children(self, path: str, watch: Watcher | None = None) -> Future[list[str]]:
        return self._submit(lambda: self._registry.tree.children(path, self._session_id, watch))

    def multi(self, operations: Sequence[Operation]) -> Future[list[Any]]:
        taken = list(operations)

        def run() -> list[Any]:
            check_multi(taken)
            return self._registry.apply(taken, self._session_id)

        return self._submit(run)

    def sync(self) -> Future[None]:
        return self._submit(lambda: None)

    def close(self) -> None:
        self._listeners.clear()
        if self.state is not SessionState.LOST:
            with contextlib.suppress(RegistryError):
                self._registry.expire(self._session_id).result()
        if self._owns_registry:
            self._registry.close()

    def own_registry(self) -> None:
        """Close the registry together with this session."""
        self._owns_registry = True

    def report(self, state: SessionState) -> None:
        """Take a new state and tell the listeners. Writer thread only."""
        self._listeners.report(state)

    def _submit(self, run: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()

        def run_in_session() -> Any:
            if self._session_id not in self._registry.tree.sessions:
                raise SessionExpired(f"registry session {self._session_id} has ended")
            return run()

        self._registry.submit(run_in_session, future)
        return future

"""A registry store that notes what is asked of it, and can lose answers, for tests of those who use stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from spark_kafkalite.registry.store import ConnectionLoss, Operation, Stat, Store, Watcher


class RecordingStore:
    """Hands every call on to a store. ``calls`` holds (method, path, whether it watches)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: list[tuple[str, str, bool]] = []
        self.lost: Callable[[str, str], bool] = lambda method, path: False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _note(self, method: str, path: str, watch: Watcher | None, future: Future[Any]) -> Future[Any]:
        self.calls.append((method, path, watch is not None))
        if not self.lost(method, path):
            return future
        lost: Future[Any] = Future()
        # Done, and nobody learns of it.
        future.add_done_callback(lambda _: lost.set_exception(ConnectionLoss("the answer was lost")))
        return lost

    def create(self, path: str, data: bytes = b"", **options: Any) -> Future[str]:
        return self._note("create", path, None, self._store.create(path, data, **options))

    def get(self, path: str, watch: Watcher | None = None) -> Future[tuple[bytes, Stat]]:
        return self._note("get", path, watch, self._store.get(path, watch))

    def set(self, path: str, data: bytes, version: int = -1) -> Future[Stat]:
        return self._note("set", path, None, self._store.set(path, data, version))

    def delete(self, path: str, version: int = -1) -> Future[None]:
        return self._note("delete", path, None, self._store.delete(path, version))

    def exists(self, path: str, watch: Watcher | None = None) -> Future[Stat | None]:
        return self._note("exists", path, watch, self._store.exists(path, watch))

    def children(self, path: str, watch: Watcher | None = None) -> Future[list[str]]:
        return self._note("children", path, watch, self._store.children(path, watch))

    def multi(self, operations: Sequence[Operation]) -> Future[list[Any]]:
        paths = " ".join(f"{type(each).__name__}:{each.path}" for each in operations)
        return self._note("multi", paths, None, self._store.multi(operations))

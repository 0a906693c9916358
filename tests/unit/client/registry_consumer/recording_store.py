"""A registry store that notes what is asked of it, and can lose answers, for tests of those who use stores."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from spark_kafkalite.registry.store import (
    Children,
    ConnectionLoss,
    CreateWithParents,
    Exists,
    Get,
    Multi,
    Request,
    SetData,
    Store,
    steps_of,
)

_NAMES = {SetData: "set", CreateWithParents: "create"}


class RecordingStore(Store):
    """Hands every request on to a store. ``calls`` holds (method, path, whether it watches)."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.listeners)
        self._store = store
        self.calls: list[tuple[str, str, bool]] = []
        self.lost: Callable[[str, str], bool] = lambda method, path: False

    @property
    def session_id(self) -> int:
        return self._store.session_id

    @property
    def session_timeout_ms(self) -> int:
        return self._store.session_timeout_ms

    def close(self) -> None:
        self._store.close()

    def ask(self, request: Request) -> Future[Any]:
        method = _NAMES.get(type(request), type(request).__name__.lower())
        if isinstance(request, Multi):
            path = " ".join(f"{type(each).__name__}:{each.path}" for each in request.operations)
        else:
            path = "".join(step.path for step in steps_of(request))
        watches = isinstance(request, (Get, Exists, Children)) and request.watch is not None
        self.calls.append((method, path, watches))
        answer = self._store.ask(request)
        if not self.lost(method, path):
            return answer
        lost: Future[Any] = Future()
        # Done, and nobody learns of it.
        answer.add_done_callback(lambda _: lost.set_exception(ConnectionLoss("the answer was lost")))
        return lost

"""One session of this process with the embedded registry: a ``registry.store.Store`` over :mod:`.embedded`.

Every request is an operation that the registry's writer thread runs in its turn, and fails with SessionExpired once the
session has ended. Session listeners run in that thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.registry.store import (
    Children,
    CreateWithParents,
    Exists,
    Get,
    GetMany,
    Guard,
    Multi,
    NoNode,
    Request,
    SessionExpired,
    SessionState,
    Stat,
    Store,
    Sync,
    WatchTree,
    check_multi,
    check_read,
)
from spark_kafkalite.registry.tree.acl import GUARDED_ACL, OPEN_ACL, PROCESS_ACL, Permission, SetAcl, allows
from spark_kafkalite.registry.tree.embedded import Check, EmbeddedRegistry
from spark_kafkalite.registry.tree.tree import Tree

DEFAULT_SESSION_TIMEOUT_MS: Final = 18_000


class EmbeddedStore(Store):
    """One session with an :class:`EmbeddedRegistry`; see ``registry.store.Store``."""

    def __init__(
        self,
        registry: EmbeddedRegistry,
        session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS,
        *,
        owns_registry: bool = False,
    ) -> None:
        """Open the session; with ``owns_registry`` its close() closes the registry, too.

        Raises RegistryError when it cannot be opened: no room, or the registry is closed or has failed.
        """
        super().__init__()
        self.registry: Final = registry
        self._session_timeout_ms = session_timeout_ms
        self._owns_registry = owns_registry
        self._session_id = registry.begin_session(self.listeners.report)

    def __repr__(self) -> str:
        return f"EmbeddedStore(session_id={self._session_id}, {self.state.value}, {self.registry!r})"

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_ms(self) -> int:
        return self._session_timeout_ms

    @property
    def seen_zxid(self) -> int:
        return self.registry.committed_zxid

    def ask(self, request: Request) -> Future[Any]:
        answer: Future[Any] = Future()
        self.registry.submit(lambda: self._run(request), answer)
        return answer

    def close(self) -> None:
        self.listeners.clear()
        if self.state is not SessionState.LOST:
            with contextlib.suppress(RegistryError):
                self.registry.expire(self._session_id).result()
            # The registry reports it, too, but perhaps only after its answer.
            self.listeners.report(SessionState.LOST)
        if self._owns_registry:
            self.registry.close()

    def _run(self, request: Request) -> Any:
        """Do what is asked for. Writer thread only."""
        registry, tree, session_id = self.registry, self.registry.tree, self._session_id
        if session_id not in tree.sessions:
            raise SessionExpired(f"registry session {session_id} has ended")
        match request:
            case Get(path, watch):
                return tree.get(path, session_id, watch)
            case GetMany(paths):
                return get_many(tree, paths, session_id)
            case Exists(path, watch):
                return tree.exists(path, session_id, watch)
            case Children(path, watch):
                return tree.children(path, session_id, watch)
            case WatchTree(path, watch):
                return tree.watch_tree(path, session_id, watch)
            case Multi(operations):
                check_multi(operations)
                return registry.apply(operations, session_id)
            case CreateWithParents(create):
                return registry.apply([*tree.missing_parents(create.path), create], session_id)[-1]
            case Sync():
                return None
            case Guard(path, private):
                node = tree.nodes.get(path)
                if node is None:
                    raise NoNode(f"cannot guard registry node {path}: it does not exist", path)
                if node.acl == OPEN_ACL or (private and node.acl == GUARDED_ACL):
                    registry.apply([SetAcl(path, PROCESS_ACL if private else GUARDED_ACL)], session_id)
                return allows(node.acl, Permission.READ, ())
            case operation:
                return registry.apply([operation], session_id)[0]


def get_many(tree: Tree, paths: Sequence[str], session_id: int) -> list[tuple[bytes, Stat] | RegistryError]:
    """Return what ``Store.get_many`` gives. Raises BadArguments."""
    check_read(paths)
    found: list[tuple[bytes, Stat] | RegistryError] = []
    for path in paths:
        try:
            found.append(tree.get(path, session_id, None))
        except NoNode as error:
            found.append(error.with_traceback(None))
    return found


def open_embedded(
    directory: Path | str,
    *,
    session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS,
    clock: Clock = SYSTEM_CLOCK,
    make_room: Callable[[], bool] | None = None,
    check: Check | None = None,
    keep_sessions: bool = False,
) -> EmbeddedStore:
    """Open the registry in ``directory`` (made when missing) with one session; closing that closes the registry.

    ``keep_sessions`` as for EmbeddedRegistry; this one is not kept.

    Raises what EmbeddedRegistry and EmbeddedStore do.
    """
    registry = EmbeddedRegistry(directory, clock, make_room, check, keep_sessions=keep_sessions)
    try:
        return EmbeddedStore(registry, session_timeout_ms, owns_registry=True)
    except RegistryError:
        registry.close()
        raise

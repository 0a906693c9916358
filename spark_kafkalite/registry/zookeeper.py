"""The registry's ``Store`` over a ZooKeeper ensemble, or over anything else that speaks its protocol.

One store is one session. Answers, events and session states come in the order in which they arrived on the connection,
and ZooKeeper sends an event before any answer that shows its change.

kazoo opens a new session when the old one has expired. A store does not: LOST is final. Requests made before fail, and
none of them can run in a later session (the flag is set under the lock that queues requests, in kazoo's own thread,
before kazoo fails what is pending).

An outcome that a failed connection leaves unknown is reported as ConnectionLoss and never retried here: only the caller
can know whether the write happened. Requests made while the session is SUSPENDED wait for the connection.

Watches last as long as their session (``zookeeper_watches``).
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from kazoo import exceptions as kazoo_errors
from kazoo.protocol.states import KazooState, ZnodeStat
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Permissions

from spark_kafkalite.errors import ConfigError, RegistryError
from spark_kafkalite.registry import store
from spark_kafkalite.registry.ruok import versions, why_no_session
from spark_kafkalite.registry.store import (
    Check,
    Children,
    Create,
    CreateWithParents,
    Delete,
    Exists,
    Get,
    GetMany,
    Guard,
    Multi,
    NodeError,
    Operation,
    Request,
    SessionState,
    SetData,
    Stat,
    Store,
    Sync,
    WatchTree,
    steps_of,
)
from spark_kafkalite.registry.zookeeper_address import DIGEST_MD5, GSSAPI, SASL_MECHANISMS
from spark_kafkalite.registry.zookeeper_client import Client, ClientLog, OneThreadHandler, Watch
from spark_kafkalite.registry.zookeeper_errors import refusal_of, translated
from spark_kafkalite.registry.zookeeper_watches import SessionWatches
from spark_kafkalite.version import install_command

_LOG = logging.getLogger(__name__)

DEFAULT_SESSION_TIMEOUT_MS: Final = 18_000
DEFAULT_CONNECT_TIMEOUT_S: Final = 30.0
_CONSUMERS: Final = "/consumers"
# A path to try on whether trees can be watched; no such node is ever made, so nothing is reported.
_NEVER_MADE: Final = "/kafkalite/never_made"

# All may read, and the identity of the session that sets it may do the rest.
_GUARDED_ACL: Final = (*CREATOR_ALL_ACL, *READ_ACL_UNSAFE)

_STATES: Final = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}


class ZooKeeperStore(Store):
    """One session with an ensemble; see ``registry.store.Store``."""

    def __init__(
        self, client: Client, handler: OneThreadHandler, session_timeout_ms: int, set_acl: bool, has_auth: bool
    ) -> None:
        super().__init__()
        self._set_acl = set_acl
        self._has_auth = has_auth
        self._client = client
        self._handler = handler
        self._session_timeout_ms = session_timeout_ms
        self._session_id = 0
        # Held while a request is queued, and while the connection or the session ends.
        self._lock = client.submit_lock = threading.RLock()
        self._ended = False
        self._stopping = False
        self._watches = SessionWatches(client, self._lock, self.abandon)

    def __repr__(self) -> str:
        return f"ZooKeeperStore({self._client.hosts}, session_id={self._session_id:#x}, {self.state.value})"

    @property
    def _where(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self._client.hosts)

    @property
    def can_be_private(self) -> bool:
        return self._has_auth

    @property
    def sets_acl(self) -> bool:
        return self._set_acl

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_ms(self) -> int:
        """What the ensemble granted: it bounds what was asked for to 2 to 20 of its ticks."""
        return self._client.granted_timeout_ms or self._session_timeout_ms

    @property
    def seen_zxid(self) -> int:
        return int(self._client.last_zxid or 0)

    def ask(self, request: Request) -> Future[Any]:
        send, convert = self._call(request)
        steps = steps_of(request)
        path = steps[0].path if steps else "/"
        refusal = refusal_of(request, steps)
        if refusal is not None:
            # In its turn, so that answers keep the order of the calls.
            send, convert = partial(self._client.sync_async, "/"), partial(_raise, refusal)
        future: Future[Any] = Future()

        def answered(result: Any) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                value = convert(result.get_nowait())
            except Exception as error:
                # Without its frames, which hold the result that holds the error.
                future.set_exception(translated(error.with_traceback(None), path))
            else:
                future.set_result(value)

        with self._lock:
            if not self._ended:
                send().rawlink(answered)
                return future
        future.set_exception(store.SessionExpired(f"registry session {self._session_id:#x} has ended"))
        return future

    def _call(self, request: Request) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        """Return how kazoo is asked for a request, and what makes its result the store's."""
        client, watches = self._client, self._watches
        match request:
            case Create():
                return partial(self._create, request), str
            case CreateWithParents(create):
                return partial(self._create_with_parents, create), str
            case SetData(path, data, version):
                return partial(client.set_async, path, bytes(data), version), _stat
            case Delete(path, version):
                return partial(client.delete_async, path, version), _nothing
            case Get(path, watcher):
                return partial(client.get_async, path, watches.watch(path, watcher)), _data_and_stat
            case GetMany(paths):
                return partial(client.read_many, paths), partial(_read_results, paths)
            case Exists(path, watcher):
                watch = watches.watch(path, watcher)
                return partial(client.exists_async, path, watch), partial(_found, watch)
            case Children(path, watcher):
                return partial(client.get_children_async, path, watches.watch(path, watcher, of_children=True)), sorted
            case WatchTree(path, watcher):
                return partial(client.add_tree_watch, path, watcher), _nothing
            case Guard(path, private):
                return partial(self._guard, path, private), bool
            case Multi(operations):
                return partial(self._transact, operations), partial(_multi_results, operations)
            case Check():
                return partial(self._transact, (request,)), lambda results: _multi_results((request,), results)[0]
            case Sync():
                return partial(client.sync_async, "/"), _nothing

    def _create(self, create: Create) -> Any:
        return self._client.create_async(
            create.path,
            bytes(create.data),
            acl=self._acl(create.path, private=create.private),
            ephemeral=create.ephemeral,
            sequence=create.sequential,
        )

    def _create_with_parents(self, create: Create) -> Any:
        # Sent ahead, not after a refusal: one session's requests are done in order.
        for parent in _parents(create.path):
            self._client.create_async(parent, acl=self._acl(parent))
        return self._create(create)

    def _acl(self, path: str, *, private: bool = False) -> list[ACL]:
        """Return the access rights of a node that is created. Source: kafka.zk.ZkData.defaultAcls."""
        if private:
            return list(CREATOR_ALL_ACL)
        # Consumers, who prove nothing, write below theirs.
        if not self._set_acl or path == _CONSUMERS or path.startswith(f"{_CONSUMERS}/"):
            return list(OPEN_ACL_UNSAFE)
        return list(_GUARDED_ACL)

    def _guard(self, path: str, private: bool) -> Any:
        """Return kazoo's result: whether all may read the node, now that its rights are as they should be."""
        client, result = self._client, self._handler.async_result()
        wanted = CREATOR_ALL_ACL if private else _GUARDED_ACL

        def changed(of_change: Any) -> None:
            try:
                of_change.get_nowait()
                result.set(not private)
            except Exception as error:
                result.set_exception(error)

        def looked(of_look: Any) -> None:
            try:
                acl, _ = of_look.get_nowait()
            except Exception as error:
                result.set_exception(error)
                return
            of_all = {each.perms for each in acl if each.id.scheme == "world"}
            if not of_all or (not private and of_all == {Permissions.READ}):
                result.set(bool(of_all))
                return
            with self._lock:
                if not self._ended:
                    client.set_acls_async(path, list(wanted)).rawlink(changed)
                    return
            result.set_exception(store.SessionExpired(f"registry session {self._session_id:#x} has ended"))

        client.get_acls_async(path).rawlink(looked)
        return result

    def _transact(self, operations: Sequence[Operation]) -> Any:
        transaction = self._client.transaction()
        for operation in operations:
            match operation:
                case Create(path, data, ephemeral, sequential, private):
                    acl = self._acl(path, private=private)
                    transaction.create(path, bytes(data), acl=acl, ephemeral=ephemeral, sequence=sequential)
                case SetData(path, data, version):
                    transaction.set_data(path, bytes(data), version)
                case Delete(path, version):
                    transaction.delete(path, version)
                case Check(path, version):
                    transaction.check(path, version)
        return transaction.commit_async()

    def close(self) -> None:
        self.listeners.clear()
        with self._lock:
            self._ended = True
        self.listeners.report(SessionState.LOST)
        self._stop()

    def abandon(self) -> None:
        with self._lock:
            self.session_changed(KazooState.LOST)

    # From kazoo's threads -------------------------------------------------------------------------------------------

    def session_changed(self, state: str) -> None:
        """Take a state of kazoo's. In its connection thread, with the lock; before a lost session's requests fail."""
        new = _STATES[state]
        if self._ended:
            return
        if new is SessionState.SUSPENDED:
            self._watches.keep()
        elif new is SessionState.LOST:
            self._ended = True
            # Not from here: stopping waits for this thread.
            threading.Thread(target=self._stop, name="kafkalite-zookeeper-stop", daemon=True).start()
        self._handler.call(lambda: self.listeners.report(new))

    # ----------------------------------------------------------------------------------------------------------------

    def connect(self, timeout_s: float, *, make_chroot: bool) -> None:
        """Open the session. Raises ConnectionLoss when the ensemble does not answer in time, RegistryError when it
        refuses this client or has no such chroot."""
        deadline_s = time.monotonic() + timeout_s
        # Not start(): it warns of a chroot that is missing, which is seen to below.
        self._client.start_async()
        while True:
            connected = self._client.wait_until_connected(deadline_s - time.monotonic())
            if not connected:
                self.close()
                if self._client.auth_failed:
                    raise self._refused("AuthFailedError")
                raise store.ConnectionLoss(why_no_session(self._client.hosts, timeout_s))
            try:
                # Both answer only when the credentials, if any are asked for, are right.
                found = self._client.exists("/")
                if found is None and make_chroot:
                    self._make_chroot()
                break
            except kazoo_errors.KazooException as error:
                broken = isinstance(error, (kazoo_errors.ConnectionLoss, kazoo_errors.SessionExpiredError))
                if self._client.auth_failed or not broken or isinstance(error, kazoo_errors.ConnectionClosedError):
                    self.close()
                    raise self._refused(type(error).__name__) from error
                # The connection broke before the answer: nobody has been told of this session yet.
        with self._lock:
            self._client.add_listener(self.session_changed)
            if self._client.state != KazooState.CONNECTED:  # it broke meanwhile
                self.session_changed(self._client.state)
        if found is None and not make_chroot:
            self.close()
            raise RegistryError(
                f"the registry at {self._where} has no node {self._client.chroot}, in which its cluster would be: "
                "correct what follows the addresses in zookeeper.connect"
            )
        # Not its client_id, which is None while there is no connection.
        self._session_id = self._client.last_session_id

    def require_tree_watches(self, timeout_s: float) -> None:
        """Make sure that the ensemble can watch trees; else end the session. Raises RegistryTooOld, ConnectionLoss."""
        deadline_s = time.monotonic() + timeout_s
        try:
            while True:
                try:
                    self.watch_tree(_NEVER_MADE, _nothing).result(max(deadline_s - time.monotonic(), 0))
                    return
                except store.ConnectionLoss:
                    if time.monotonic() >= deadline_s:
                        raise
        except BaseException as error:
            self.close()
            if isinstance(error, TimeoutError):
                raise store.ConnectionLoss(why_no_session(self._client.hosts, timeout_s)) from error
            if not isinstance(error, store.RegistryTooOld):
                raise
            raise store.RegistryTooOld(
                f"the ZooKeeper at {versions(self._client.hosts)} is older than 3.6 and cannot watch all topics at "
                "once (persistent recursive watches), which brokers need; upgrade every server of the ensemble to 3.6 "
                "or later, then start this broker"
            ) from error

    def _make_chroot(self) -> None:
        # kazoo makes the last part only of the chroot it has.
        client, chroot = self._client, self._client.chroot
        client.chroot = ""
        try:
            client.ensure_path(chroot, acl=self._acl(chroot))
        finally:
            client.chroot = chroot

    def _refused(self, why: str) -> RegistryError:
        return RegistryError(
            f"the registry at {self._where} refuses this client ({why}): check its credentials (zookeeper.digest, "
            "zookeeper.sasl.mechanism)"
        )

    def _stop(self) -> None:
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
        with contextlib.suppress(Exception):  # the session ends by itself then
            self._client.stop()
            self._client.close()


def open_zookeeper(
    connect: str,
    *,
    session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS,
    connect_timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S,
    auth: tuple[str, str] | None = None,
    make_chroot: bool = True,
    set_acl: bool = False,
    watches_trees: bool = False,
) -> ZooKeeperStore:
    """Open a session with the ensemble ``host:port,...[/chroot]``; the chroot is made when it is missing, if it may.

    ``auth`` is a scheme and its credential, such as ``("digest", "user:password")``, or a mechanism of SASL: DIGEST-MD5
    with such a credential, or GSSAPI, whose tickets libkrb5 finds by itself. With ``set_acl`` only this
    credential may change the nodes that are created, though all clients may read them; what consumers share stays open.
    With ``watches_trees`` an ensemble that cannot do that is refused with RegistryTooOld.
    Raises ConnectionLoss when no server answers in time, RegistryError as ``ZooKeeperStore.connect``, ConfigError
    without the libraries of SASL.
    """
    handler = OneThreadHandler()
    client = Client(
        hosts=connect,
        timeout=session_timeout_ms / 1000,
        handler=handler,
        auth_data=[auth] if auth and auth[0] not in SASL_MECHANISMS else None,
        sasl_options=_sasl_options(*auth) if auth and auth[0] in SASL_MECHANISMS else None,
        # One attempt after the other, for ever: expiry, not a count, ends a session.
        connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 0.2},
        logger=ClientLog(connect),
    )
    opened = ZooKeeperStore(client, handler, session_timeout_ms, set_acl, auth is not None)
    opened.connect(connect_timeout_s, make_chroot=make_chroot)
    if watches_trees:
        opened.require_tree_watches(connect_timeout_s)
    return opened


def _sasl_options(mechanism: str, credential: str) -> dict[str, str]:
    """Return kazoo's options for a mechanism. Raises ConfigError without the libraries that kazoo needs for it."""
    needed = ("puresasl",) if mechanism == DIGEST_MD5 else ("puresasl", "kerberos")
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise ConfigError(
            f"zookeeper.sasl.mechanism={mechanism} needs pure-sasl{', pykerberos' * (len(needed) - 1)} ("
            f"{', '.join(missing)} missing): {install_command('zookeeper-sasl')}"
        )
    if mechanism == GSSAPI:
        return {"mechanism": mechanism, "service": "zookeeper"}
    user, _, password = credential.partition(":")
    return {"mechanism": mechanism, "username": user, "password": password}


def _parents(path: str) -> list[str]:
    store.check_path(path)
    parents = []
    parent = store.parent_of(path)
    while parent != "/":
        parents.append(parent)
        parent = store.parent_of(parent)
    return parents[::-1]


def _raise(error: Exception, _: Any) -> None:
    raise error


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(*stat)


def _nothing(_: Any) -> None:
    return None


def _data_and_stat(answer: tuple[bytes | None, ZnodeStat]) -> tuple[bytes, Stat]:
    data, stat = answer
    return bytes(data or b""), _stat(stat)


def _read_results(paths: Sequence[str], results: Sequence[Any]) -> list[Any]:
    return [
        translated(result, path) if isinstance(result, Exception) else (result[0], Stat(*result[1]))
        for path, result in zip(paths, results, strict=True)
    ]


def _found(watch: Watch | None, answer: ZnodeStat | None) -> Stat | None:
    if watch is not None:
        watch.existed = answer is not None
    return None if answer is None else _stat(answer)


def _multi_results(operations: Sequence[Operation], results: Sequence[Any]) -> list[Any]:
    for index, (operation, result) in enumerate(zip(operations, results, strict=True)):
        if isinstance(result, Exception) and not isinstance(result, kazoo_errors.RolledBackError):
            error = translated(result, operation.path)
            if isinstance(error, NodeError):
                error.operation_index = index
            raise error
    return [_stat(result) if isinstance(result, tuple) else result if isinstance(result, str) else None
            for result in results]  # fmt: skip

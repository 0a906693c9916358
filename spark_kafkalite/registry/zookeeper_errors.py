"""What an ensemble refuses, or would refuse, as the errors of a ``Store``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kazoo import exceptions as kazoo_errors

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.registry import store
from spark_kafkalite.registry.store import Create, Delete, GetMany, NodeError, Request, SetData, Step

_REFUSALS: Final[dict[type[Exception], tuple[type[NodeError], str]]] = {
    kazoo_errors.NoNodeError: (store.NoNode, "it, or its parent, does not exist"),
    kazoo_errors.NodeExistsError: (store.NodeExists, "it exists"),
    kazoo_errors.BadVersionError: (store.BadVersion, "it has another version"),
    kazoo_errors.NotEmptyError: (store.NotEmpty, "it has children"),
    kazoo_errors.NoChildrenForEphemeralsError: (store.NoChildrenForEphemerals, "its parent is ephemeral"),
    kazoo_errors.BadArgumentsError: (store.BadArguments, "the path or data is not legal"),
}


def refusal_of(request: Request, steps: Sequence[Step]) -> NodeError | None:
    """Return why the server would not take a request of these steps; None when it may."""
    try:
        if isinstance(request, GetMany):
            store.check_read(request.paths)
        for index, step in enumerate(steps):
            _check(step, index)
        store.check_multi(steps)
    except NodeError as error:
        return error
    return None


def _check(step: Step, index: int) -> None:
    """Refuse what the server would answer by closing the connection, or kazoo would silently repair."""
    path = step.path
    try:
        store.check_path(path + "0" if isinstance(step, Create) and step.sequential else path)
        if isinstance(step, (Create, SetData)):
            store.check_data(path, step.data)
        elif isinstance(step, Delete) and path == "/":
            # With a chroot it would be a node like any other.
            raise store.BadArguments("the registry's root cannot be deleted", path)
    except NodeError as error:
        error.operation_index = index
        raise


def translated(error: Exception, path: str) -> Exception:
    """Return the store's error for one of kazoo's about a request on ``path``; a RegistryError is returned as it is."""
    if isinstance(error, RegistryError):
        return error
    refusal = _REFUSALS.get(type(error))
    if refusal is not None:
        kind, reason = refusal
        return kind(f"the registry refused an operation on {path}: {reason}", path)
    if isinstance(error, kazoo_errors.UnimplementedError):
        return store.RegistryTooOld(
            f"the registry cannot watch everything below {path}: ZooKeeper can from version 3.6 on"
        )
    if isinstance(error, kazoo_errors.QuotaExceededError):
        return store.OutOfRoom(
            f"the registry has no room for {path}: its disk is full, or a quota is reached; make room, then try again"
        )
    if isinstance(error, kazoo_errors.SessionExpiredError):
        return store.SessionExpired(f"the registry session has ended before an answer on {path} came")
    if isinstance(error, kazoo_errors.ConnectionLoss):
        return store.ConnectionLoss(f"the connection to ZooKeeper broke before an answer on {path} came")
    if isinstance(error, kazoo_errors.NoAuthError):
        return store.NoAuth(
            f"ZooKeeper refused an operation on {path}: NoAuthError; the node is for clients with other credentials: "
            "set zookeeper.digest to that of the cluster's brokers",
            path,
        )
    return RegistryError(f"ZooKeeper refused an operation on {path}: {type(error).__name__} {error}".rstrip())

"""What a broker writes about itself: the base nodes, the cluster id, and the registration under its broker id.

The registration node is ephemeral; its creation zxid is the *broker epoch*, which only grows and distinguishes one
incarnation of a broker id from the next. A node of an earlier session may still exist when a crashed broker comes back.
The broker waits for its end, up to that session's timeout, which the node names, and two seconds. It does not delete
the node, because it may as well belong to a second broker that was given the same id. Only the node of a former session
of this very process is replaced at once. It goes with the session; ``membership`` makes the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Set
from dataclasses import replace
from typing import Final

from spark_kafkalite.errors import InconsistentClusterId, RegistryError
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import (
    Create,
    Delete,
    NodeError,
    NodeExists,
    NoNode,
    Stat,
    Store,
    WatchEvent,
    answer,
    call_in_loop,
)
from spark_kafkalite.registry.znodes import BrokerRegistration

_LOG = logging.getLogger(__name__)

# On top of the session timeout: the registry ends sessions on its own tick, and the news takes a moment.
EXPIRY_MARGIN_S: Final = 2.0
# How often to look at a holder of this broker's id, and how long an answer may take before it counts as silence.
_LOOK_S: Final = 0.25
_STEADY_S: Final = 1.0


class DuplicateBrokerId(RegistryError):
    """Another live broker holds this broker id."""


class RegistryEmptied(RegistryError):
    """The registry of running brokers holds no cluster any more."""


async def create_base_nodes(store: Store) -> list[str]:
    """Create the persistent nodes that everything else stands on, as far as they are missing; return those."""
    futures = {path: store.create(path, make_parents=True) for path in znodes.PERSISTENT_PATHS}
    made: list[str] = []
    for path, future in futures.items():
        with contextlib.suppress(NodeExists):
            await answer(future)
            made.append(path)
    return made


async def check_not_emptied(store: Store) -> None:
    """Check that the registry has a cluster id or a topic. Without both it has been emptied or replaced, and no node is
    made again: brokers that come later would take the registry for theirs.

    Raises RegistryEmptied, RegistryError.
    """
    if await answer(store.exists(znodes.CLUSTER_ID)) is not None:
        return
    with contextlib.suppress(NoNode):
        if await answer(store.children(znodes.TOPICS)):
            return
    raise RegistryEmptied(
        f"the registry has neither {znodes.CLUSTER_ID} nor topics: it was emptied. Put its data back before the "
        "sessions of brokers end: no broker starts with it as it is. If it is lost, stop all brokers and have it made "
        "from their logs: kafkalite cluster recover-registry"
    )


async def make_base_nodes_again(store: Store) -> None:
    """Make base nodes again that were removed by hand, with one warning; none in a registry that was emptied.

    What fails is left to the next time.
    """
    with contextlib.suppress(RegistryError):
        await check_not_emptied(store)
        if made := await create_base_nodes(store):
            _LOG.warning(
                "registry nodes were gone that brokers need, and are made again, empty: %s; do not delete them",
                ", ".join(made),
            )


async def cluster_id(store: Store, stored: str | None = None, *, holds_logs: bool = False) -> str:
    """Return the cluster's id, made by the first broker that asks.

    ``stored`` is the id in this broker's own ``meta.properties``, None when it has none yet; ``holds_logs`` is whether
    it has logs that a new registry would not know.
    Raises InconsistentClusterId (code 104) when the broker's data belongs to another cluster. Raises RegistryError when
    it has logs and the registry has no cluster id: their topics would seem not to exist.
    """
    fresh = stored or znodes.uuid_text(znodes.new_uuid())
    try:
        data, _ = await answer(store.get(znodes.CLUSTER_ID))
    except NoNode as error:
        if holds_logs:
            raise RegistryError(
                f"the registry has no {znodes.CLUSTER_ID}, so it is new or has been emptied, but this broker's log "
                f"directories hold logs{f' of cluster {stored}' if stored else ''}, which would be served no more: "
                "correct zookeeper.connect, or put the registry's data back. If it is lost, have it made from the logs "
                "of all brokers (kafkalite cluster recover-registry). The registry of a broker that has been "
                "a cluster by itself is served by kafkalite registry --data with its registry.dir"
            ) from error
        # A registry that is new while the data is not: the data's id is taken over, since nothing contradicts it.
        with contextlib.suppress(NodeExists):
            await answer(store.create(znodes.CLUSTER_ID, znodes.encode_cluster_id(fresh), make_parents=True))
        data, _ = await answer(store.get(znodes.CLUSTER_ID))
    found = znodes.decode_cluster_id(data)
    if stored is not None and stored != found:
        raise _other_cluster(stored, found)
    return found


async def check_cluster_id(store: Store, known: str) -> None:
    """Check, in a later session, that the registry is still the one that this broker belongs to.

    Raises InconsistentClusterId (code 104) when it is another cluster's. Raises RegistryError when it has no cluster
    id: in an emptied registry no topic exists, and the brokers' logs would be deleted.
    """
    try:
        data, _ = await answer(store.get(znodes.CLUSTER_ID))
    except NoNode as error:
        raise RegistryError(
            f"the registry has no {znodes.CLUSTER_ID}, where it had {known}: it has been emptied or replaced; put its "
            "data back, or correct zookeeper.connect; if it is lost, stop all brokers and have it made from their "
            "logs: kafkalite cluster recover-registry"
        ) from error
    found = znodes.decode_cluster_id(data)
    if found != known:
        raise _other_cluster(known, found)


async def check_not_older(store: Store, seen_zxid: int) -> None:
    """Check, in a later session, that the registry has come at least as far as this broker has seen it.

    Raises RegistryError for one that has not: in an older copy later topics do not exist, and their logs would be
    deleted.
    """
    if store.seen_zxid < seen_zxid:
        # One server of an ensemble may be behind the others.
        await answer(store.sync())
    if store.seen_zxid < seen_zxid:
        raise RegistryError(
            f"the registry is older than this broker has seen it: it has not come to transaction {seen_zxid}; an older "
            "copy has been put in its place, or zookeeper.connect names another one: put its newest data back. If "
            "there is none, stop all brokers and have it completed from their logs: kafkalite cluster recover-registry"
        )


def _other_cluster(known: str, found: str) -> InconsistentClusterId:
    return InconsistentClusterId(
        f"this broker's data (meta.properties) belongs to cluster {known}, but the registry is that of cluster "
        f"{found}; use the right registry, or another log.dirs for this one"
    )


async def register_broker(store: Store, registration: BrokerRegistration, own_sessions: Set[int] = frozenset()) -> Stat:
    """Create the broker's ephemeral registration and return the node's stat: its ``czxid`` is the broker epoch.

    ``own_sessions`` are former sessions of this very process, whose node is replaced. Raises DuplicateBrokerId, naming
    the holder, when the registry's answers show for the timeout + 2 s that another session holds the id.
    """
    loop = asyncio.get_running_loop()
    path = znodes.broker_path(registration.broker_id)
    data = replace(registration, session_timeout_ms=store.session_timeout_ms).encode()
    patience = _HolderPatience(loop, store)
    gone = asyncio.Event()

    def on_event(_: WatchEvent) -> None:
        call_in_loop(loop, gone.set)

    with contextlib.suppress(NodeExists):
        await answer(store.create(path, data, ephemeral=True, make_parents=True))
    while True:
        gone.clear()
        # Of an ensemble's server that is behind, too, the answer is not older than the question.
        _, stat = await asyncio.gather(answer(store.sync()), answer(store.exists(path, watch=on_event)))
        if stat is None:
            with contextlib.suppress(NodeExists):
                await answer(store.create(path, data, ephemeral=True, make_parents=True))
        elif stat.ephemeral_owner == store.session_id:
            # Also when the create itself was answered with ConnectionLoss or tried twice: the node is ours.
            return stat
        elif stat.ephemeral_owner in own_sessions:
            with contextlib.suppress(NodeError):
                await answer(store.multi([Delete(path, stat.version), Create(path, data, ephemeral=True)]))
        elif stat.ephemeral_owner != patience.holder:
            await patience.begin(registration.broker_id, stat.ephemeral_owner)
        elif patience.is_over():
            raise DuplicateBrokerId(await _duplicate_text(store, registration, stat))
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_LOOK_S, patience.full_s)):
                    await gone.wait()


class _HolderPatience:
    """How long the holder of this broker's id may be a process that has died: its session's timeout and a margin.

    The registry must answer over that whole time, in one piece. While it cannot be reached, or stands still, it ends no
    session, and gives each its whole time afterwards. Silence proves nothing about the holder, even where the
    connection is not known to be broken yet.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, store: Store) -> None:
        self._loop = loop
        self._store = store
        self.full_s = 0.0
        self.holder = 0
        self._since_s = self._seen_s = loop.time()
        # On the loss of the connection, and on its return.
        store.add_session_listener(lambda _: call_in_loop(loop, self._begin_again))

    async def begin(self, broker_id: int, holder: int) -> None:
        """Wait for the end of another session than so far: for the timeout in its registration, or else this
        session's."""
        timeout_ms = 0
        with contextlib.suppress(NoNode, MalformedNode):
            data, _ = await answer(self._store.get(znodes.broker_path(broker_id)))
            timeout_ms = BrokerRegistration.decode(broker_id, data).session_timeout_ms
        self.full_s = (timeout_ms or self._store.session_timeout_ms) / 1000 + EXPIRY_MARGIN_S
        self.holder = holder
        self._since_s = self._seen_s = self._loop.time()
        _LOG.info(
            "broker.id=%d is still registered: waiting up to %.0f s, in case it is of a process that has died",
            broker_id,
            self.full_s,
        )

    def _begin_again(self) -> None:
        self._since_s = self._loop.time()

    def is_over(self) -> bool:
        """Take an answer that names the holder's session; return whether that one must be alive by now."""
        now_s = self._loop.time()
        if now_s > self._seen_s + _STEADY_S:
            self._begin_again()
        self._seen_s = now_s
        return now_s >= self._since_s + self.full_s


async def _duplicate_text(store: Store, registration: BrokerRegistration, stat: Stat) -> str:
    holder = "another broker"
    with contextlib.suppress(RegistryError):
        data, _ = await answer(store.get(znodes.broker_path(registration.broker_id)))
        found = BrokerRegistration.decode(registration.broker_id, data)
        holder = f"the broker at {found.host}:{found.port}"
    return (
        f"broker.id={registration.broker_id} is taken by {holder} (registry session {stat.ephemeral_owner:#x}); stop "
        "that broker or give this one an id of its own"
    )


async def deregister_broker(store: Store, broker_id: int) -> None:
    """Remove this session's own registration, if it exists: the clean way out."""
    path = znodes.broker_path(broker_id)
    stat = await answer(store.exists(path))
    if stat is not None and stat.ephemeral_owner == store.session_id:
        with contextlib.suppress(NoNode):
            await answer(store.delete(path))
